"""All rows of a dataset as Arrow record batches, for DuckDB, Polars, pandas and pyarrow."""

import datetime as dt
import decimal
import io
import json

import numpy as np
import pytest
from PIL import Image

import mds
from mds import LocalDataset, MDSWriter, StreamingDataset
from mds.errors import ArgumentError, ConfigError, EncodingError
from mds.writers import CSVWriter, JSONWriter

pa = pytest.importorskip("pyarrow", reason='pyarrow is not installed: pip install "pyarrow>=21"')
parquet = pytest.importorskip("pyarrow.parquet")

COLUMNS = {
    "array": "ndarray:int32:4",
    "audio": "audio",
    "bool": "bool",
    "bytes": "bytes",
    "float": "float16",
    "json": "json",
    "lists": "list[str]",
    "number": "int",
    "optional": "optional[int32]",
    "optional_array": "optional[ndarray:float32]",
    "optional_matrix": "optional[ndarray:uint8:2,2]",
    "optional_text": "optional[str]",
    "price": "str_decimal",
    "small": "uint8",
    "tensor": "tensor:int16",
    "text": "str",
    "three": "ndarray:uint8:2,3",
    "vector": "ndarray:float32",
}
ROWS = 60
WAV = b"RIFF\x26\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\2\0\0\0\0\0"


def sample(number):
    is_even = number % 2 == 0
    return {
        "array": np.arange(4, dtype=np.int32) + number,
        "audio": WAV,
        "bool": is_even,
        "bytes": b"\0\xff" * (number % 4),
        "float": np.float16(number / 2),
        "json": {"k": [number, None]},
        "lists": ["a"] * (number % 3),
        "number": number - 2**40,
        "optional": None if is_even else np.int32(number),
        "optional_array": None if is_even else np.ones(number % 3 + 1, np.float32),
        "optional_matrix": None if is_even else np.full((2, 2), number, np.uint8),
        "optional_text": None if is_even else "né" * (number % 3),
        "price": decimal.Decimal(number) / 100,
        "small": np.uint8(number),
        "tensor": np.zeros(number % 2, np.int16),
        "text": "é" * (number % 5),
        "three": np.full((2, 3), number, np.uint8),
        "vector": np.arange(number % 3 + 1, dtype=np.float32),
    }


def plain(value):
    """Return a decoded value as Arrow gives it: arrays as flat lists, JSON and decimals as text."""
    if isinstance(value, np.ndarray):
        return value.reshape(-1).tolist()
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, decimal.Decimal) else value


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = str(tmp_path_factory.mktemp("arrow") / "data")
    with MDSWriter(out, COLUMNS, size_limit=2000) as writer:
        for number in range(ROWS):
            writer.write(sample(number))
    return out


@pytest.mark.parametrize("kind", [LocalDataset, StreamingDataset])
def test_every_encoding_keeps_its_values(kind, folder):
    dataset = kind(folder)
    table = dataset.to_arrow_reader().read_all()
    table.validate(full=True)
    assert table.schema.names == dataset.columns
    assert len(dataset.shards) > 3
    expected = [{name: plain(value) for name, value in sample(n).items()} for n in range(ROWS)]
    for row in expected:
        row["json"] = json.dumps(row["json"])
    assert table.to_pylist() == expected
    assert {name: str(table.schema.field(name).type) for name in table.schema.names} == {
        "array": "fixed_size_list<item: int32>[4]",
        "audio": "binary",
        "bool": "bool",
        "bytes": "binary",
        "float": "halffloat",
        "json": "string",
        "lists": "list<item: string>",
        "number": "int64",
        "optional": "int32",
        "optional_array": "list<item: float>",
        "optional_matrix": "extension<arrow.fixed_shape_tensor[value_type=uint8, shape=[2,2]]>",
        "optional_text": "string",
        "price": "string",
        "small": "uint8",
        "tensor": "list<item: int16>",
        "text": "string",
        "three": "extension<arrow.fixed_shape_tensor[value_type=uint8, shape=[2,3]]>",
        "vector": "list<item: float>",
    }


def test_types_of_parquet_come_back_on_request(tmp_path):
    """A consumer that requests the schema of the Parquet file gets an equal table."""
    utc = dt.timezone.utc
    table = pa.table(
        {
            "binary": pa.array([b"a", b"", b"\xff"]),
            "bool": pa.array([True, False, True]),
            "date": pa.array([dt.date(2024, 1, day) for day in (1, 2, 3)]),
            "decimal": pa.array([decimal.Decimal("1.20")] * 3, pa.decimal128(8, 2)),
            "double": pa.array([0.5, None, 2.5]),
            "float": pa.array([1, 2, 3], pa.float32()),
            "int8": pa.array([1, -1, 3], pa.int8()),
            "large": pa.array(["a", "b", None], pa.large_string()),
            "list": pa.array([[1], [2, 3], [4]], pa.list_(pa.int32())),
            "pair": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float64(), 2)),
            "string": pa.array(["é", "", None]),
            "struct": pa.array([{"a": [1], "b": "x"}, None, {"a": [], "b": None}]),
            "time": pa.array([dt.datetime(2024, 1, 1, 2, 3, 4, 5, utc)] * 3),
            "uint64": pa.array([0, 1, 2**64 - 1], pa.uint64()),
        }
    )
    path = str(tmp_path / "table.parquet")
    parquet.write_table(table, path)
    mds.convert(path, str(tmp_path / "data"))
    for dataset in (LocalDataset(str(tmp_path / "data")), StreamingDataset(path, format="parquet")):
        reader = pa.RecordBatchReader.from_stream(dataset, schema=table.schema)
        assert reader.read_all().equals(table)
    without_request = pa.table(dataset)
    assert without_request["double"].equals(table["double"])
    assert without_request["time"].to_pylist()[0] == "2024-01-01T02:03:04.000005+00:00"


def test_order_is_that_of_storage_on_every_rank(folder):
    for rank in range(2):
        dataset = StreamingDataset(folder, batch_size=4, shuffle=True, topology=(rank, 2))
        numbers = dataset.to_arrow_reader(columns=["number"]).read_all()["number"].to_pylist()
        assert numbers == [n - 2**40 for n in range(ROWS)]
    assert dataset.state_dict()["epoch"] == -1  # no epoch began


def test_columns_come_as_asked_and_no_other_is_read(folder):
    reader = LocalDataset(folder).to_arrow_reader(columns=["text", "array"], batch_rows=7)
    batches = list(reader)
    assert batches[0].schema.names == ["text", "array"]
    assert max(batch.num_rows for batch in batches) <= 7
    assert sum(batch.num_rows for batch in batches) == ROWS
    assert StreamingDataset(folder, columns=["small"]).to_arrow_reader().schema.names == ["small"]


def test_a_selection_gives_its_rows(folder):
    dataset = StreamingDataset(folder, batch_size=4).select([3, 4, 40, 59])
    assert pa.table(dataset)["small"].to_pylist() == [3, 4, 40, 59]
    assert pa.table(dataset.limit(0)).num_rows == 0


def test_images_are_their_files(tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "jpeg")
    with MDSWriter(str(tmp_path / "data"), {"image": "jpeg"}) as writer:
        writer.write({"image": file.getvalue()})
    table = pa.table(StreamingDataset(str(tmp_path / "data")))
    assert table["image"].to_pylist() == [file.getvalue()]


@pytest.mark.parametrize("kind", [JSONWriter, CSVWriter])
def test_shards_of_lines(kind, tmp_path):
    columns = {"id": "int", "text": "str", "score": "float"}
    with kind(out=str(tmp_path / "data"), columns=columns) as writer:
        for number in range(5):
            writer.write({"id": number, "text": f"é{number}", "score": number / 2})
    assert pa.table(LocalDataset(str(tmp_path / "data"))).to_pylist() == [
        {"id": number, "text": f"é{number}", "score": number / 2} for number in range(5)
    ]


def test_streams_are_joined_and_missing_columns_are_null(tmp_path):
    for name, columns in (("a", {"id": "int", "text": "str"}), ("b", {"id": "int"})):
        with MDSWriter(str(tmp_path / name), columns) as writer:
            for number in range(2):
                writer.write({"id": number, "text": name} if name == "a" else {"id": number})
    dataset = StreamingDataset([str(tmp_path / "a"), str(tmp_path / "b")])
    assert pa.table(dataset)["text"].to_pylist() == ["a", "a", None, None]
    only_text = dataset.to_arrow_reader(columns=["text"])
    assert only_text.read_all()["text"].to_pylist() == ["a", "a", None, None]


def test_streams_of_other_types_are_refused(tmp_path):
    for name, encoding in (("a", "int32"), ("b", "int64")):
        with MDSWriter(str(tmp_path / name), {"id": encoding}) as writer:
            writer.write({"id": 1})
    with pytest.warns(UserWarning, match="'id' has the encoding 'int32' in some shards"):
        dataset = StreamingDataset([str(tmp_path / "a"), str(tmp_path / "b")])
    with pytest.raises(ConfigError, match="'id' is 'int32' in some shards and 'int64' in others"):
        dataset.to_arrow_reader()


def test_what_arrow_has_no_type_for_is_named_with_a_remedy(tmp_path):
    with MDSWriter(str(tmp_path / "data"), {"id": "int", "image": "pil"}) as writer:
        writer.write({"id": 1, "image": Image.new("L", (2, 2))})
    dataset = LocalDataset(str(tmp_path / "data"))
    with pytest.raises(ConfigError, match=r"'image' has the encoding 'pil'.*columns=\['id'\]"):
        dataset.to_arrow_reader()
    assert dataset.to_arrow_reader(columns=["id"]).read_all().num_rows == 1


@pytest.mark.parametrize("is_optional", [False, True])
@pytest.mark.parametrize(
    ("encoding", "items", "expected"),
    [
        ("str_int", [1, -(10**30)], ["1", str(-(10**30))]),
        ("str_float", [1.5], ["1.5"]),
        ("str_decimal", [decimal.Decimal("1.50")], ["1.50"]),
        ("json", [{"a": 1}, "text", None], ['{"a": 1}', '"text"', "null"]),
    ],
)
def test_lists_of_values_stored_as_text_are_lists_of_text(
    tmp_path, encoding, items, expected, is_optional
):
    encoding = f"optional[list[{encoding}]]" if is_optional else f"list[{encoding}]"
    values = [items, None] if is_optional else [items, []]
    with MDSWriter(str(tmp_path / "data"), {"x": encoding}) as writer:
        for value in values:
            writer.write({"x": value})
    table = pa.table(LocalDataset(str(tmp_path / "data")))
    assert table["x"].to_pylist() == [expected, values[1]]


def test_json_of_lines_is_json_text(tmp_path):
    """A text is told from JSON's null and from a number, and can be parsed."""
    values = ["null", None, "5", 5, {"k": ["é"]}]
    lines = "".join(json.dumps({"x": value, "text": "é"}) + "\n" for value in values)
    (tmp_path / "a.jsonl").write_text(lines)
    dataset = StreamingDataset(str(tmp_path / "a.jsonl"))
    table = pa.table(dataset)
    assert [json.loads(text) for text in table["x"].to_pylist()] == values
    assert table["text"].to_pylist() == ["é"] * 5


def test_a_batch_of_nulls_gets_the_requested_type(tmp_path):
    rows = [{"x": None, "y": None}, {"x": [None, "a"], "y": {"k": 1}}]
    schema = pa.schema([("x", pa.list_(pa.string())), ("y", pa.struct([("k", pa.int8())]))])
    columns = {"x": "optional[json]", "y": "json"}
    with MDSWriter(str(tmp_path / "data"), columns, samples_per_shard=1) as writer:
        for row in rows:
            writer.write(row)
    reader = pa.RecordBatchReader.from_stream(LocalDataset(str(tmp_path / "data")), schema=schema)
    assert reader.read_all().to_pylist() == rows


@pytest.mark.parametrize("encoding", ["ndarray", "list[ndarray:int32:2,2]"])
def test_the_only_column_cannot_be_left_out(tmp_path, encoding):
    value = np.ones((2, 2), np.int32)
    with MDSWriter(str(tmp_path / "data"), {"x": encoding}) as writer:
        writer.write({"x": [value] if encoding.startswith("list") else value})
    with pytest.raises(ConfigError, match=r"Arrow has no type\. Write it with another"):
        LocalDataset(str(tmp_path / "data")).to_arrow_reader()


def test_a_matrix_among_vectors_is_refused(tmp_path):
    with MDSWriter(str(tmp_path / "data"), {"x": "ndarray:float32"}) as writer:
        writer.write({"x": np.ones((2, 2), np.float32)})
    with pytest.raises(EncodingError, match=r"column 'x': an array of shape \(2, 2\)"):
        LocalDataset(str(tmp_path / "data")).to_arrow_reader().read_all()


def test_functions_and_wrong_arguments_are_refused(folder):
    dataset = StreamingDataset(folder, batch_size=4)
    with pytest.raises(ConfigError, match=r"as they are stored.*Call it before map\(\)"):
        dataset.map(dict).to_arrow_reader()
    with pytest.raises(ConfigError, match=r"no column 'txt'.*Did you mean 'text'"):
        dataset.to_arrow_reader(columns=["txt"])
    with pytest.raises(ConfigError, match="batch_rows must be a whole number"):
        dataset.to_arrow_reader(batch_rows=0)
    with pytest.raises(ArgumentError, match="columns must be a list of names"):
        dataset.to_arrow_reader(columns="text")
    with pytest.raises(ConfigError, match="columns= names no column"):
        dataset.to_arrow_reader(columns=[])


def test_damaged_text_is_an_error_that_names_its_place(tmp_path):
    with MDSWriter(str(tmp_path / "data"), {"text": "str"}) as writer:
        writer.write({"text": "abcdefgh"})
    path = tmp_path / "data" / "shard.00000.mds"
    path.write_bytes(path.read_bytes().replace(b"abcd", b"\xff\xfe\xff\xff"))
    with pytest.raises(EncodingError, match=r"shard\.00000\.mds, samples 0 to 0, column 'text'"):
        LocalDataset(str(tmp_path / "data")).to_arrow_reader().read_all()


def test_values_of_more_than_two_gib_in_a_batch_are_divided(folder, monkeypatch):
    """The bound is lowered: nobody has 2 GiB of text to spare in a test."""
    monkeypatch.setattr("mds._dataset.arrow_rows._MAX_BYTES", 20)
    reader = LocalDataset(folder).to_arrow_reader(columns=["text"])
    assert pa.Table.from_batches(reader)["text"].to_pylist() == ["é" * (n % 5) for n in range(ROWS)]
    monkeypatch.setattr("mds._dataset.arrow_rows._MAX_BYTES", 5)
    with pytest.raises(EncodingError, match="sample 3, column 'text': a value of more than 2 GiB"):
        LocalDataset(folder).to_arrow_reader(columns=["text"]).read_all()
