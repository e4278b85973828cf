"""Parquet, Arrow and Hugging Face datasets: types, nulls, nested values, images."""

import datetime as dt
import os
from decimal import Decimal

import numpy as np
import pytest
from quickly import convert, prepare

from devtools.httpserver import http_server
from mds.errors import RecordError, SourceError
from mds.formats._arrow_values import python_values

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")


def table_of(count=50):
    day = dt.date(2024, 1, 1)
    return pa.table(
        {
            "i8": pa.array([i % 100 for i in range(count)], pa.int8()),
            "i64": pa.array(range(count), pa.int64()),
            "f": pa.array([i / 2 for i in range(count)], pa.float32()),
            "s": pa.array([f"row {i}" for i in range(count)]),
            "d": pa.array([f"word {i % 3}" for i in range(count)]).dictionary_encode(),
            "b": pa.array([bytes([i]) for i in range(count)]),
            "v": pa.array([[float(i), 1.0] for i in range(count)], pa.list_(pa.float32())),
            "w": pa.array([[i, 2, 3] for i in range(count)], pa.list_(pa.int16(), 3)),
            "o": pa.array([{"a": i, "b": ["x"]} for i in range(count)]),
            "m": pa.array([[("k", i)] for i in range(count)], pa.map_(pa.string(), pa.int64())),
            "n": pa.array([None if i == 40 else i for i in range(count)], pa.int32()),
            "t": pa.array([day] * count),
            "c": pa.array([Decimal("1.50")] * count, pa.decimal128(6, 2)),
            "y": pa.array([i % 2 == 0 for i in range(count)]),
        }
    )


ENCODINGS = {
    "b": "bytes",
    "c": "str_decimal",
    "d": "str",
    "f": "float32",
    "i64": "int",
    "i8": "int8",
    "m": "json",
    "n": "optional[int32]",
    "o": "json",
    "s": "str",
    "t": "str",
    "v": "ndarray:float32",
    "w": "ndarray:int16:3",
    "y": "bool",
}


def check(sample, i):
    assert (sample["i8"], sample["i64"], sample["f"]) == (i, i, i / 2)
    assert (sample["s"], sample["d"], sample["b"]) == (f"row {i}", f"word {i % 3}", bytes([i]))
    assert sample["v"].tolist() == [float(i), 1.0]
    assert sample["w"].tolist() == [i, 2, 3]
    assert (sample["o"], sample["m"]) == ({"a": i, "b": ["x"]}, {"k": i})
    assert (sample["n"], sample["y"]) == (None if i == 40 else i, i % 2 == 0)
    assert (sample["t"], sample["c"]) == ("2024-01-01", Decimal("1.50"))


def write_ipc(path, table, *, stream):
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(path, "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
def test_every_type_finds_its_encoding(kit, kind):
    """Numbers keep their width, lists of numbers become arrays, what varies becomes JSON."""
    path = str(kit.source / ("x.parquet" if kind == "parquet" else "x.arrow"))
    if kind == "parquet":
        pq.write_table(table_of(), path, row_group_size=7)
    else:
        write_ipc(path, table_of(), stream=kind == "stream")
    made = prepare(path, kit.out)
    assert kit.encodings(made) == ENCODINGS
    made.run()
    samples = kit.samples()
    assert len(samples) == 50
    for i, sample in enumerate(samples):
        check(sample, i)


def test_parts_are_row_groups(kit):
    """A large Parquet file is many parts, and rows are counted through them in errors."""
    path = str(kit.source / "x.parquet")
    pq.write_table(pa.table({"a": list(range(1000))}), path, row_group_size=100)
    source = prepare(path, kit.out).source
    parts = list(source.cut_parts(source.size // 5))
    assert len(parts) == 5
    places = [source.locate(part, position) for part in parts for position, _ in source.read(part)]
    assert [place.rpartition("x.parquet, row ")[2] for place in places] == [*map(str, range(1000))]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_null_far_from_the_beginning_is_known(kit, kind):
    """Files say where they have nulls; what is null somewhere is optional from the first row on."""
    lists = [[1]] * 3000 + [[]]
    table = pa.table(
        {
            "a": pa.array([1] * 3000 + [None], pa.int32()),
            "b": pa.array([b"x"] * 3000 + [None]),
            "v": pa.array(lists, pa.list_(pa.int32())),
        }
    )
    path = str(kit.source / f"x.{kind}")
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        write_ipc(path, table, stream=False)
    made = prepare(path, kit.out)
    empty = "tensor:int32" if kind == "arrow" else "optional[tensor:int32]"
    assert kit.encodings(made) == {"a": "optional[int32]", "b": "optional[bytes]", "v": empty}
    made.run()
    first, last = kit.samples()[0], kit.samples()[-1]
    assert (first.pop("v").tolist(), last.pop("v").tolist()) == ([1], [])
    assert (first, last) == ({"a": 1, "b": b"x"}, {"a": None, "b": None})
    portable = prepare(path, kit.out, drop="b", portable=True, overwrite=True)
    assert kit.encodings(portable) == {"a": "json", "v": "json"}
    portable.run()
    assert kit.samples()[0] == {"a": 1, "v": [1]}
    assert kit.samples()[-1] == {"a": None, "v": []}


def test_a_null_that_no_statistics_foresee_is_none(kit):
    """A column of which a file says nothing may be None; with a plain encoding it is an error."""
    table = pa.table({"a": pa.array([1] * 3000 + [None], pa.int32())})
    path = str(kit.source / "x.parquet")
    pq.write_table(table, path, write_statistics=False)
    with pytest.raises(RecordError, match=r"row 3000, column 'a': a value is null"):
        convert(path, kit.out, encodings={"a": "int32"})
    convert(path, kit.out + "2")
    assert kit.samples(kit.out + "2")[-1] == {"a": None}
    skipped = convert(path, kit.out + "3", encodings={"a": "int32"}, on_error="skip")
    assert skipped.samples == 3000


def test_files_of_another_schema_are_refused(kit):
    """Columns of one name have values of one kind."""
    pq.write_table(pa.table({"a": [1]}), str(kit.source / "1.parquet"))
    pq.write_table(pa.table({"a": ["x"]}), str(kit.source / "2.parquet"))
    with pytest.raises(SourceError, match=r"2\.parquet: column 'a' is str, but int in 1.*"):
        convert(str(kit.source), kit.out)


def test_files_may_differ_in_widths_and_columns(kit):
    """The wider type holds both, and a column that one file has not is None there."""
    small = pa.table({"a": pa.array([1], pa.int16()), "b": ["x"]})
    pq.write_table(small, str(kit.source / "1.parquet"))
    pq.write_table(pa.table({"a": [1 << 40]}), str(kit.source / "2.parquet"))
    made = prepare(str(kit.source), kit.out)
    assert kit.encodings(made) == {"a": "int", "b": "optional[str]"}
    made.run()
    assert kit.samples() == [{"a": 1, "b": "x"}, {"a": 1 << 40, "b": None}]


def test_file_that_is_no_parquet_is_named(kit):
    """A broken file is said to be one."""
    path = kit.write("x.parquet", b"PAR1 or so")
    with pytest.raises(SourceError, match=r"x\.parquet: this is not a Parquet file"):
        convert(path, kit.out)


def test_values_that_json_cannot_hold_may_be_dropped(kit):
    """A nested column of bytes is an error of its records, and none where it is left out."""
    nested = pa.array([[b"x"], [b"y"]], pa.list_(pa.binary()))
    pq.write_table(pa.table({"a": [1, 2], "n": nested}), str(kit.source / "x.parquet"))
    with pytest.raises(RecordError, match=r"row 0, column 'n': a nested value has bytes"):
        convert(str(kit.source), kit.out)
    convert(str(kit.source), kit.out + "2", drop=("n",))
    assert kit.samples(kit.out + "2") == [{"a": 1}, {"a": 2}]


def test_times_beyond_nanoseconds_keep_their_year(kit):
    """Converted rows are those that are read in place."""
    times = pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]).cast(pa.timestamp("us"))
    path = str(kit.source / "x.parquet")
    pq.write_table(pa.table({"t": times}), path, use_deprecated_int96_timestamps=True)
    convert(path, kit.out)
    assert kit.samples() == [{"t": "0001-01-01T00:00:00"}, {"t": "9999-12-31T00:00:00"}]


def test_patterns_and_urls_name_tables(kit):
    """A pattern takes what it matches, on a disk and behind a URL."""
    for name in ("a", "b", "c"):
        pq.write_table(pa.table({"x": [name]}), str(kit.source / f"{name}.parquet"))
    for number, pattern in enumerate(("[ab]*.parquet", "[ab].parquet", "{a,b}.parquet")):
        convert(f"{kit.source}/{pattern}", f"{kit.out}{number}")
        assert [sample["x"] for sample in kit.samples(f"{kit.out}{number}")] == ["a", "b"]
    with http_server(str(kit.source)) as url:
        convert(f"{url}/{{b,c}}.parquet", f"{kit.out}-far")
    assert [sample["x"] for sample in kit.samples(f"{kit.out}-far")] == ["b", "c"]
    with pytest.raises(SourceError, match=r"no parquet files"):
        convert(f"{kit.source}/z*.parquet", kit.out + "3")


def test_a_delta_table_is_its_last_version(kit):
    """Files of versions before are left out; as a folder of Parquet they would be rows twice."""
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    place = str(kit.source / "table")
    deltalake.write_deltalake(place, pa.table({"x": [1, 2]}))
    deltalake.write_deltalake(place, pa.table({"x": [3]}), mode="overwrite")
    convert(place, kit.out)
    assert [sample["x"] for sample in kit.samples()] == [3]


@pytest.mark.parametrize("choice", [{"include": ["part*"]}, {"exclude": ["part*"]}])
def test_files_of_a_table_are_no_choice(kit, choice):
    """Some of them would be some of its rows, by chance."""
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    place = str(kit.source / "table")
    deltalake.write_deltalake(place, pa.table({"x": [1, 2]}))
    with pytest.raises(SourceError, match=r"cannot choose files of a delta table.*a pattern"):
        convert(place, kit.out, **choice)
    assert not os.path.exists(kit.out)


def test_images_of_hugging_face_tables_are_files(kit):
    """A struct of bytes and path, as `datasets` stores images, becomes the file itself."""
    rows = [{"bytes": kit.jpeg, "path": "1.jpg"}, {"bytes": kit.jpeg, "path": "2.jpg"}]
    path = str(kit.source / "x.parquet")
    pq.write_table(pa.table({"image": rows}), path)
    made = prepare(path, kit.out)
    assert kit.encodings(made) == {"image": "bytes"}
    assert "--encodings image:jpeg" in made.columns[0].note
    prepare(path, kit.out, encodings={"image": "jpeg"}).run()
    assert kit.stored() == [{"image": kit.jpeg}] * 2


class TestHuggingFace:
    """Datasets saved to disk, and by name."""

    @pytest.fixture
    def datasets(self):
        return pytest.importorskip("datasets", reason="datasets is not installed")

    def test_saved_dataset(self, kit, datasets):
        """Rows come in the order of the dataset, also when it was shuffled after it was made."""
        table = datasets.Dataset.from_dict(
            {
                "n": list(range(30)),
                "v": [[0.5, i] for i in range(30)],
                "y": [i % 2 for i in range(30)],
            }
        ).cast_column("y", datasets.ClassLabel(names=["even", "odd"]))
        shuffled = table.shuffle(seed=1)
        shuffled.save_to_disk(str(kit.source / "hf"))
        made = prepare(str(kit.source / "hf"), kit.out)
        assert kit.encodings(made) == {"n": "int", "v": "ndarray:float64", "y": "int"}
        made.run()
        assert [sample["n"] for sample in kit.samples()] == shuffled["n"][:]

    def test_splits_become_folders(self, kit, datasets):
        """A dataset of splits is one dataset a split; one of them can be taken alone."""
        splits = {
            name: datasets.Dataset.from_dict({"text": [f"{name} {i}" for i in range(count)]})
            for name, count in (("train", 5), ("test", 2))
        }
        datasets.DatasetDict(splits).save_to_disk(str(kit.source / "hf"))
        convert(str(kit.source / "hf"), kit.out)
        assert len(kit.samples(kit.out + "/train")) == 5
        convert(str(kit.source / "hf"), kit.out + "2", source_split="test")
        assert [s["text"] for s in kit.samples(kit.out + "2")] == ["test 0", "test 1"]

    def test_dataset_by_name(self, kit, datasets, tmp_path, monkeypatch):
        """hf:NAME loads what `datasets.load_dataset` finds, here a folder of JSON lines."""
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        kit.write("data/train.jsonl", kit.lines({"a": i} for i in range(4)))
        convert(f"hf:{kit.source / 'data'}", kit.out)
        assert [sample["a"] for sample in kit.samples()] == [0, 1, 2, 3]

    def test_images_are_not_decoded(self, kit, datasets):
        """An image column brings the bytes of the file."""
        rows = {"image": [{"bytes": kit.png, "path": None}] * 2}
        features = datasets.Features({"image": datasets.Image()})
        datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(kit.source / "hf"))
        made = prepare(str(kit.source / "hf"), kit.out)
        assert kit.encodings(made) == {"image": "png"}
        made.run()
        assert kit.stored() == [{"image": kit.png}] * 2


def test_arrays_share_the_memory_of_the_table():
    """Lists of numbers are not turned into Python numbers on their way."""
    column = pa.array([[1, 2], [], [3]], pa.list_(pa.int32())).slice(1)
    values = python_values(column)
    assert [value.tolist() for value in values] == [[], [3]]
    assert all(isinstance(value, np.ndarray) for value in values)
