"""Datasets as a data source of Spark, on a real local Spark."""

import json
import os
from decimal import Decimal

import numpy as np
import pytest

from mds import LocalDataset, MDSWriter, convert
from mds.errors import ConfigError
from tests.unit.writers.convert.conftest import spark

__all__ = ["spark"]
pytest.importorskip("pyspark", reason="pyspark is not installed")

from mds.integrations.spark import MDSDataSource

pytestmark = pytest.mark.filterwarnings("ignore")  # pyspark and what it brings warn of each other
COLUMNS = {
    "exact": "str_decimal",
    "flag": "bool",
    "half": "float16",
    "huge": "uint64",
    "id": "int",
    "image": "ndarray:uint8:2,2",
    "meta": "json",
    "note": "optional[str]",
    "raw": "bytes",
    "tokens": "ndarray:int32",
    "word": "uint16",
}
ENCODINGS = json.dumps(COLUMNS)


def sample(number):
    return {
        "exact": Decimal(number) / 4,
        "flag": number % 2 == 0,
        "half": np.float16(number / 2),
        "huge": np.uint64(2**64 - 1 - number),
        "id": number,
        "image": np.full((2, 2), number, np.uint8),
        "meta": {"number": [number]},
        "note": None if number % 3 else f"note {number}",
        "raw": b"\0" * (number % 5),
        "tokens": np.arange(1 + number % 4, dtype=np.int32),
        "word": np.uint16(60_000 + number),
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A dataset of 100 samples with columns of all kinds, in many shards."""
    out = str(tmp_path_factory.mktemp("spark") / "data")
    with MDSWriter(out, COLUMNS, size_limit=1000) as writer:
        for number in range(100):
            writer.write(sample(number))
    return out


@pytest.fixture
def session(spark):
    spark.dataSource.register(MDSDataSource)
    return spark


def read(session, folder, **options):
    return session.read.format("mds").options(**options).load(folder)


def save(frame, out, mode="append", **options):
    frame.write.format("mds").options(**options).mode(mode).save(out)


def ids(folder):
    return sorted(sample["id"] for sample in LocalDataset(folder))


def folders(out):
    return sorted(entry.name for entry in os.scandir(out) if entry.is_dir())


def test_columns_have_the_nearest_types_of_spark(session, source):
    """Unsigned and half numbers get wider types, tensors become lists, JSON is text."""
    frame = read(session, source, partitions="3")
    assert dict(frame.dtypes) == {
        "exact": "string",
        "flag": "boolean",
        "half": "float",
        "huge": "decimal(20,0)",
        "id": "bigint",
        "image": "array<smallint>",
        "meta": "string",
        "note": "string",
        "raw": "binary",
        "tokens": "array<int>",
        "word": "int",
    }
    rows = sorted(frame.collect(), key=lambda row: row.id)
    for number, row in enumerate(rows):
        expected = sample(number)
        assert row.note == expected["note"]
        assert row.huge == int(expected["huge"])
        assert row.image == expected["image"].reshape(-1).tolist()
        assert json.loads(row.meta) == expected["meta"]
        assert (row.flag, row.half, row.word) == (number % 2 == 0, number / 2, 60_000 + number)
        assert (bytes(row.raw), row.tokens) == (expected["raw"], expected["tokens"].tolist())
    assert frame.rdd.getNumPartitions() == 3


def test_only_the_columns_that_are_named_are_read(session, source):
    """In the order of the option; a schema of the caller is a choice of columns too."""
    frame = read(session, source, columns="word, id")
    assert frame.columns == ["word", "id"]
    assert frame.filter("id >= 98").collect() == [(60_098, 98), (60_099, 99)]
    narrow = session.read.schema("id int, note string").format("mds").load(source)
    assert narrow.filter("id = 3").collect() == [(3, "note 3")]


def test_a_copy_equals_its_source(session, source, tmp_path):
    """With the encodings of the source, the types and shapes that Spark lacks come back."""
    out = str(tmp_path / "out")
    save(read(session, source), out, encodings=ENCODINGS, size_limit="1kb", hashes="sha1,xxh3_64")
    copy = LocalDataset(out)
    assert copy.schema == COLUMNS
    assert {*copy.shards[0].raw.hashes} == {"sha1", "xxh3_64"}
    for values in copy:
        expected = sample(values["id"])
        for name in COLUMNS:
            np.testing.assert_equal(values[name], expected[name])
        assert values["image"].dtype == np.uint8
    assert ids(out) == [*range(100)]


def test_encodings_follow_from_the_types(session, tmp_path):
    """As for tables of Arrow: times become text, nested values JSON."""
    out = str(tmp_path / "out")
    row = session.sql(
        "select 1Y as byte, 2S as short, 3 as number, 4L as long, 1.5F as real, true as flag, "
        "cast(2.5 as decimal(5,2)) as price, binary('x') as raw, array(1, 2) as list, "
        "array('x') as words, named_struct('p', 1) as pair, timestamp'2026-01-02 03:04:05' as at, "
        "array(date'2026-01-02') as days, map('p', cast(2.5 as decimal(5,2))) as prices"
    )
    save(row, out)
    assert LocalDataset(out).schema == {
        "at": "str",
        "byte": "int8",
        "days": "json",
        "flag": "bool",
        "list": "ndarray:int32",
        "long": "int",
        "number": "int32",
        "pair": "json",
        "price": "str_decimal",
        "prices": "json",
        "raw": "bytes",
        "real": "float32",
        "short": "int16",
        "words": "json",
    }
    values = LocalDataset(out)[0]
    assert values["at"].startswith("2026-01-02T")
    assert (values["pair"], values["words"]) == ({"p": 1}, ["x"])
    assert (values["days"], values["prices"]) == (["2026-01-02"], {"p": "2.50"})


def test_modes(session, source, tmp_path):
    """Rows are added, or replace the dataset when all are written; other files stay."""
    out, foreign = str(tmp_path / "out"), tmp_path / "out" / "README"
    frame = read(session, source, columns="id,note")
    with pytest.raises(Exception, match='cannot be written in the "ErrorIfExists" mode'):
        save(frame, out, "error")
    save(frame, out, encodings='{"note": "optional[str]"}')
    foreign.write_text("by hand")
    save(frame.limit(10), out)  # with the encodings of the dataset there
    assert len(ids(out)) == 110
    with pytest.raises(Exception, match=r"'note' is 'optional\[str\]' in the dataset at"):
        save(frame.select("id"), out)
    save(frame.filter("id < 0"), out)
    assert len(ids(out)) == 110
    old = folders(out)
    few = read(session, out).filter("id < 5 and note is null")  # of the dataset to replace
    save(few, out, "overwrite", encodings='{"note": "optional[str]"}')
    assert {*ids(out)} == {1, 2, 4}
    assert not set(old) & set(folders(out))
    assert foreign.read_text() == "by hand"


def test_a_failed_job_leaves_what_was_there(session, source, tmp_path):
    """Its own folders are deleted; a dataset that it would replace stays."""
    out = str(tmp_path / "out")
    with MDSWriter(out, {"id": "int"}) as writer:
        writer.write({"id": 7})
    frame = read(session, source, columns="id,note")
    with pytest.raises(Exception, match=r"'optional\[str\]'"):  # null in a column of text
        save(frame, out, "overwrite")
    with pytest.raises(Exception, match="there are no rows to write"):
        save(frame.filter("id < 0"), out, "overwrite", encodings='{"note": "optional[str]"}')
    assert folders(out) == []
    assert ids(out) == [7]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": "id"}, "no argument 'column'"),
        ({"columns": "idd"}, "'idd'"),
        ({"partitions": "many"}, "'many' is not a whole number of partitions"),
        ({"storage_options": "key"}, "storage_options is a JSON object"),
    ],
)
def test_options_to_read_are_checked(session, source, options, message):
    """Before Spark plans a task."""
    with pytest.raises(Exception, match=message):
        read(session, source, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"comprssion": "zstd"}, "Did you mean compression="),
        ({"compression": "zip"}, "compression"),
        ({"encodings": "{'id': 'int32'}"}, "encodings is a JSON object"),
        ({"encodings": '{"idd": "int32"}'}, "names the column 'idd'"),
        ({"encodings": '{"id": "integer32"}'}, "column 'id': there is no encoding 'integer32'"),
        ({"lengths": "idd"}, "there is no column 'idd' to measure"),
        ({"lengths": "id"}, "only one-dimensional arrays have a length"),
    ],
)
def test_options_to_write_are_checked(session, tmp_path, options, message):
    """Before Spark starts a task."""
    with pytest.raises(Exception, match=rf"(?s)Failed to initialize.*{message}"):
        save(session.range(3), str(tmp_path / "out"), **options)


def test_one_path_is_read(session, source):
    """Spark passes several paths, and tables of its catalog without any."""
    with pytest.raises(Exception, match=r"give one path\. Join several datasets with union"):
        session.read.format("mds").load([source, source])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("note int", "column 'note' has the type string, but the schema of the caller says int32"),
        ("meta struct<number: array<int>>", "with cast or from_json"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(session, source, schema, message):
    """With the name of the column."""
    with pytest.raises(Exception, match=message):
        session.read.schema(schema).format("mds").load(source).collect()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("parse_json('{}')", r"'value' is a variant.*Write to_json\(value\)"),
        ("named_struct('p', binary('x'))", "column 'value', a nested value has bytes"),
        ("timestamp'12000-01-01 00:00:00'", "column 'value', Python cannot represent a value"),
    ],
)
def test_values_that_cannot_be_stored_are_refused(session, tmp_path, column, message):
    """With the name of the column."""
    with pytest.raises(Exception, match=message):
        save(session.sql(f"select {column} as value"), str(tmp_path / "out"))


def test_a_dataset_with_an_invalid_index_is_not_replaced(session, tmp_path):
    """Before Spark starts a task, because the shards to delete are unknown."""
    (tmp_path / "index.json").write_text('{"by": "another program"}')
    with pytest.raises(Exception, match=r"(?s)Failed to initialize.*the key 'by' is unknown"):
        save(session.range(3), str(tmp_path), "overwrite")
    assert os.listdir(tmp_path) == ["index.json"]


def test_a_data_frame_is_not_converted(session, tmp_path):
    """The message names the format."""
    with pytest.raises(ConfigError, match=r"is a data frame of Spark: .*docs/guides/spark.md"):
        convert(session.range(3), str(tmp_path / "out"))


def test_killed_workers_change_nothing(session, check_killed_job):
    """A worker dies while it writes and one while it reads: no row is lost or comes twice."""
    assert session is not None  # Java is installed
    check_killed_job("spark", 8)
