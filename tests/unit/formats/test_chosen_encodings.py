"""Columns of Parquet and Arrow files with encodings that the user chose."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402

import mds  # noqa: E402
from mds import StreamingDataset  # noqa: E402
from mds.errors import FormatError, RecordError  # noqa: E402
from mds.formats import Arrow, Parquet  # noqa: E402

TEXTS = pa.array(["1", "2", "-3"])
INTEGERS = pa.array([1, 2, -3])
LISTS = pa.array([[1, 2], [3], [4, 5]], pa.list_(pa.int32()))
TRUTHS = pa.array([[True], [False, True], [True]])
DATES = pa.array([dt.date(2020, 1, day) for day in (1, 2, 3)])
TIMES = pa.array([dt.time(1, 2, second) for second in (1, 2, 3)])
DECIMALS = pa.array([Decimal("1.5"), Decimal("2.0"), Decimal("-3.0")])
OBJECTS = pa.array(['{"a":1}', "[1]", "null"])
ONE, TWO, THREE = (Decimal(text) for text in ("1", "2", "-3"))
DAYS = [b"2020-01-01", b"2020-01-02", b"2020-01-03"]
CLOCK = [b"01:02:01", b"01:02:02", b"01:02:03"]

#: Columns, the chosen encoding and the values that come.
TAKEN = [
    (TEXTS, "int", [1, 2, -3]),
    (TEXTS, "int8", [1, 2, -3]),
    (TEXTS, "float32", [1.0, 2.0, -3.0]),
    (TEXTS, "optional[int]", [1, 2, -3]),
    (pa.array(["1", None, "3"]), "optional[int]", [1, None, 3]),
    (pa.array(["1", None, "3"]), "optional[float64]", [1.0, None, 3.0]),
    (pa.array(["", "a", "b"]), "optional[str]", ["", "a", "b"]),
    (TEXTS.dictionary_encode(), "int", [1, 2, -3]),
    (TEXTS, "str_int", [1, 2, -3]),
    (TEXTS, "str_float", [1.0, 2.0, -3.0]),
    (TEXTS, "str_decimal", [ONE, TWO, THREE]),
    (INTEGERS, "str_int", [1, 2, -3]),
    (INTEGERS, "str_float", [1.0, 2.0, -3.0]),
    (INTEGERS, "str_decimal", [ONE, TWO, THREE]),
    (INTEGERS, "str", ["1", "2", "-3"]),
    (INTEGERS, "float32", [1.0, 2.0, -3.0]),
    (DECIMALS, "float64", [1.5, 2.0, -3.0]),
    (DATES, "bytes", DAYS),
    (TIMES, "bytes", CLOCK),
    (OBJECTS, "json", [{"a": 1}, [1], None]),
    (OBJECTS.dictionary_encode(), "json", [{"a": 1}, [1], None]),
    (OBJECTS.cast(pa.large_string()), "json", [{"a": 1}, [1], None]),
    (pa.array(["1", None, '"x"']), "json", [1, None, "x"]),
    (pa.array(["1", None, '"x"']), "optional[json]", [1, None, "x"]),
    (DATES, "json", ["2020-01-01", "2020-01-02", "2020-01-03"]),
    (pa.array([["1"], ["a"], []]), "json", [["1"], ["a"], []]),
    (pa.array([{"a": "1"}] * 3), "json", [{"a": "1"}] * 3),
    (LISTS, "tensor", [[1, 2], [3], [4, 5]]),
    (LISTS, "ndarray:int64", [[1, 2], [3], [4, 5]]),
    (LISTS, "list[json]", [[1, 2], [3], [4, 5]]),
    (TRUTHS, "ndarray:int32", [[1], [0, 1], [1]]),
]

#: Columns whose row 1 is wrong, the chosen encoding, and the values of the rows 0 and 2.
REFUSED = [
    (pa.array(["1", "x", "3"]), "int", [1, 3]),
    (pa.array(["1", "", "3"]), "optional[int]", [1, 3]),
    (pa.array(["1", "x", "3"]), "float32", [1.0, 3.0]),
    (pa.array(["1", "x", "3"]), "str_decimal", [ONE, Decimal(3)]),
    (pa.array(["1", "999", "3"]), "int8", [1, 3]),
    (pa.array([1, 999, 3]), "int8", [1, 3]),
    (pa.array([1.0, 0.5, 3.0]), "int", [1, 3]),
    (pa.array([1, None, 3]), "int", [1, 3]),
    (pa.array([b"a", b"\xff", b"c"]), "str", ["a", "c"]),
    (pa.array(["1", "x", '{"a": 3}']), "json", [1, {"a": 3}]),
    (pa.array(["1", "", "3"]), "json", [1, 3]),
    (pa.array(["1", "[" * 99_999, "3"]), "json", [1, 3]),
    (pa.array(["1", "x", None]), "optional[json]", [1, None]),
    (pa.array([[1], [], [3]], pa.list_(pa.int32())), "ndarray:int32", [[1], [3]]),
    (pa.array([[1], [None], [3]], pa.list_(pa.int32())), "ndarray:int32", [[1], [3]]),
]

#: Columns and chosen encodings that no row fits.
NEVER = [
    (pa.array(["a", "b", "c"]), "tensor:float32"),
    (pa.array(["a", "b", "c"]), "tensor"),
    (pa.array(["a", "b", "c"]), "bool"),
    (INTEGERS, "list[json]"),
    (INTEGERS, "bytes"),
    (INTEGERS, "ndarray:int32"),
    (LISTS, "int"),
    (LISTS, "str"),
    (DATES, "int"),
    (DATES, "ndarray:int32:2"),
    (pa.array([{"a": 1}] * 3), "float64"),
    (pa.array([{"a": 1}] * 3), "list[json]"),
    (pa.array([[(1, "a")]] * 3, pa.map_(pa.int32(), pa.string())), "float32"),
]


def write(folder, kind, column):
    folder.mkdir()
    table = pa.table({"c": column, "id": range(len(column))})
    if kind is Parquet:
        pq.write_table(table, folder / "a.parquet")
    else:
        with pa.ipc.new_file(folder / "a.arrow", table.schema) as writer:
            writer.write_table(table)
    return str(folder)


def in_place(folder, tmp_path, **more):
    return StreamingDataset(
        remote=folder, local=str(tmp_path / "cache"), batch_size=4, shuffle=False, **more
    )


def plain(value):
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def values(dataset):
    return [plain(sample["c"]) for sample in dataset]


def converted(folder, tmp_path, **more):
    mds.convert(folder, str(tmp_path / "out"), **more)
    return values(in_place(str(tmp_path / "out"), tmp_path))


def names(cases):
    return [f"{case[0].type}-{case[1]}".replace(" ", "") for case in cases]


@pytest.mark.parametrize("kind", [Parquet, Arrow])
@pytest.mark.parametrize(("column", "encoding", "expected"), TAKEN, ids=names(TAKEN))
def test_values_come_as_the_chosen_encoding(tmp_path, kind, column, encoding, expected):
    """They are the same in place, one by one and as a batch, and converted."""
    folder = write(tmp_path / "files", kind, column)
    chosen = {"c": encoding}
    dataset = in_place(folder, tmp_path, format=kind(encodings=chosen))
    assert values(dataset) == expected
    assert plain(dataset[2]["c"]) == expected[2]
    assert converted(folder, tmp_path, encodings=chosen) == expected


@pytest.mark.parametrize("kind", [Parquet, Arrow])
@pytest.mark.parametrize(("column", "encoding", "expected"), REFUSED, ids=names(REFUSED))
def test_a_wrong_value_is_a_problem_of_its_row(tmp_path, kind, column, encoding, expected):
    """The error names file, row, column and a remedy, and skipping keeps the other rows."""
    folder = write(tmp_path / "files", kind, column)
    chosen = {"c": encoding}
    where = r"a\.(parquet|arrow), row 1, column 'c': .*(encodings=|'tensor')"
    dataset = in_place(folder, tmp_path, format=kind(encodings=chosen))
    assert [plain(dataset[row]["c"]) for row in (0, 2)] == expected
    with pytest.raises(FormatError, match=where):
        dataset[1]
    with pytest.raises(RecordError, match=where):
        mds.convert(folder, str(tmp_path / "stopped"), encodings=chosen)
    skipping = in_place(folder, tmp_path, format=kind(encodings=chosen), on_error="skip")
    assert values(skipping) == expected
    assert converted(folder, tmp_path, encodings=chosen, on_error="skip") == expected


@pytest.mark.parametrize("kind", [Parquet, Arrow])
@pytest.mark.parametrize(("column", "encoding"), NEVER, ids=names(NEVER))
def test_an_encoding_of_another_kind_is_refused(tmp_path, kind, column, encoding):
    """Reading in place refuses what converting refuses."""
    folder = write(tmp_path / "files", kind, column)
    chosen = {"c": encoding}
    where = r"a\.(parquet|arrow), row 0, column 'c': "
    with pytest.raises(FormatError, match=where):
        in_place(folder, tmp_path, format=kind(encodings=chosen))[0]
    with pytest.raises(RecordError, match=where):
        mds.convert(folder, str(tmp_path / "out"), encodings=chosen)


def test_many_wrong_values_leave_all_others(tmp_path):
    """A third of the rows is wrong, over several row groups."""
    texts = ["x" if row % 3 == 1 else str(row) for row in range(3000)]
    folder = write(tmp_path / "files", Parquet, pa.array(texts))
    expected = [row for row in range(3000) if row % 3 != 1]
    dataset = in_place(folder, tmp_path, format=Parquet(encodings={"c": "int"}), on_error="skip")
    assert values(dataset) == expected
    assert converted(folder, tmp_path, encodings={"c": "int"}, on_error="skip") == expected


def test_a_null_says_how_it_is_stored(tmp_path):
    """The reason is the user's encoding, not the statistics of the file."""
    folder = write(tmp_path / "files", Parquet, pa.array([None, 1]))
    dataset = in_place(folder, tmp_path, format=Parquet(encodings={"c": "int"}))
    with pytest.raises(FormatError, match=r"a value is null; .*'optional\[int\]'") as caught:
        dataset[0]
    assert "statistics" not in str(caught.value)
    optional = Parquet(encodings={"c": "optional[int]"})
    assert values(in_place(folder, tmp_path, format=optional)) == [None, 1]


@pytest.mark.parametrize("name", ["xy", "x.y"])
def test_a_null_in_a_list_of_a_column_with_a_dot(tmp_path, name):
    """The column is JSON, whatever its name."""
    (tmp_path / "files").mkdir()
    rows = [[1, None], [2]]
    pq.write_table(pa.table({name: rows}), tmp_path / "files" / "a.parquet")
    folder = str(tmp_path / "files")
    assert [sample[name] for sample in in_place(folder, tmp_path)] == rows
    mds.convert(folder, str(tmp_path / "out"))
    assert [sample[name] for sample in in_place(str(tmp_path / "out"), tmp_path)] == rows


@pytest.mark.parametrize("kind", [Parquet, Arrow])
def test_an_error_of_json_says_what_to_write(tmp_path, kind):
    """File, row, column, value and remedy; the remedy works."""
    folder = write(tmp_path / "files", kind, pa.array(["1", "x"]))
    with pytest.raises(
        FormatError,
        match=r"row 1, column 'c': expected JSON, got str 'x': .*; .* encodings=\{'c': 'str'\}",
    ):
        in_place(folder, tmp_path, format=kind(encodings={"c": "json"}))[1]
    assert values(in_place(folder, tmp_path, format=kind(encodings={"c": "str"}))) == ["1", "x"]


@pytest.mark.parametrize("kind", [Parquet, Arrow])
def test_texts_of_files_with_several_types_are_values_of_json(tmp_path, kind):
    """So that such files can be joined; nulls are no type of their own."""
    folder = write(tmp_path / "files", kind, pa.array(["5", "x"]))
    for name, column in (("b", pa.array([5])), ("c", pa.nulls(1))):
        write(tmp_path / name, kind, column)
        (path,) = (tmp_path / name).iterdir()
        path.rename(tmp_path / "files" / f"{name}{path.suffix}")
    chosen = {"c": "json"}
    dataset = in_place(folder, tmp_path, format=kind(encodings=chosen))
    assert values(dataset) == ["5", "x", 5, None]
    assert converted(folder, tmp_path, encodings=chosen) == ["5", "x", 5, None]
    (kept,) = (tmp_path / "files").glob("b.*")
    kept.unlink()
    with pytest.raises(FormatError, match="row 1, column 'c': expected JSON"):
        in_place(folder, tmp_path / "again", format=kind(encodings=chosen))[1]
