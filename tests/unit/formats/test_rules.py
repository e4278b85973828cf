"""Rules of all formats: what a dataset of other people's files has, whatever their kind."""

import gzip
import io
import json
import logging
import os
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow import feather

import mds
from mds import StreamingDataset
from mds.errors import ConfigError, FormatError
from mds.formats import Arrow, JsonLines, Parquet, Problem, Tar
from mds.formats._dataset import open_files


def write_parquet(path, **columns):
    """Write a Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def write_lines(path, *records):
    """Write a file of JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def samples_of(folder, tmp_path, **options):
    """Return the samples of a folder that is read in place."""
    return list(StreamingDataset(str(folder), local=str(tmp_path / "cache"), **options))


def write_two_files(folder, kind):
    """Write two files of a kind, of which the second lacks a column."""
    if kind is Parquet:
        write_parquet(folder / "a.parquet", v=[1], w=["x"])
        write_parquet(folder / "b.parquet", v=[2])
    else:
        write_lines(folder / "a.jsonl", {"v": 1, "w": "x"})
        write_lines(folder / "b.jsonl", {"v": 2})


@pytest.mark.parametrize("kind", [Parquet, JsonLines])
def test_a_column_that_a_file_lacks_is_none_with_one_warning(tmp_path, caplog, kind):
    """`missing="null"` leaves out the warning, and `missing="error"` raises."""
    write_two_files(tmp_path / "data", kind)
    expected = [{"v": 1, "w": "x"}, {"v": 2, "w": None}]
    with caplog.at_level(logging.WARNING, "mds.formats"):
        assert samples_of(tmp_path / "data", tmp_path) == expected
        (warning,) = [each for each in caplog.messages if "there is no column 'w'" in each]
        assert "missing='null'" in warning
        caplog.clear()
        assert samples_of(tmp_path / "data", tmp_path, format=kind(missing="null")) == expected
        assert not caplog.messages
    with pytest.raises(FormatError, match=r"b\.\w+: there is no column 'w', but a\.\w+ has one"):
        samples_of(tmp_path / "data", tmp_path, format=kind(missing="error"))


def test_a_file_without_samples_has_no_say_about_columns(tmp_path, caplog):
    """Neither its columns nor their types count, unless no file has samples."""
    write_lines(tmp_path / "lines" / "a.jsonl")
    write_lines(tmp_path / "lines" / "b.jsonl", {"v": 1})
    write_parquet(tmp_path / "tables" / "a.parquet", v=pa.array([], pa.string()), w=pa.nulls(0))
    write_parquet(tmp_path / "tables" / "b.parquet", v=[1])
    for folder in ("lines", "tables"):
        kind = {"lines": JsonLines, "tables": Parquet}[folder](missing="error")
        assert samples_of(tmp_path / folder, tmp_path / folder, format=kind) == [{"v": 1}]
    assert not [each for each in caplog.messages if "no column" in each]


@pytest.mark.parametrize(
    ("kind", "encodings", "value"),
    [
        (JsonLines, {"v": "str_int"}, 1),
        (Parquet, {"v": "float64"}, np.float64(1)),
        (Parquet, {"v": "json"}, 1),
    ],
)
def test_encodings_of_the_user_replace_those_of_the_files(tmp_path, kind, encodings, value):
    """They are looked at first, so files of several types can be read."""
    write_two_files(tmp_path / "data", kind)
    first, second = samples_of(tmp_path / "data", tmp_path, format=kind(encodings=encodings))
    assert (first["v"], type(first["v"])) == (value, type(value))
    assert second["w"] is None


def test_encodings_join_files_of_several_types(tmp_path):
    """The error for such files names the setting, and the setting works."""
    write_parquet(tmp_path / "data" / "a.parquet", v=[1])
    write_parquet(tmp_path / "data" / "b.parquet", v=["x"])
    with pytest.raises(FormatError, match=r"b\.parquet: column 'v' .* encodings=\{'v': 'json'\}"):
        samples_of(tmp_path / "data", tmp_path)
    kind = Parquet(encodings={"v": "json"})
    assert samples_of(tmp_path / "data", tmp_path, format=kind) == [{"v": 1}, {"v": "x"}]


@pytest.mark.parametrize("kind", [Arrow, JsonLines, Parquet, Tar])
def test_wrong_settings_of_columns_are_refused(kind):
    """The message names the setting and what it can be."""
    with pytest.raises(ConfigError, match="missing= must be 'null' or 'error', got 'zero'"):
        kind(missing="zero")
    with pytest.raises(ConfigError, match=r"encodings= must be a dict .* got 'v:int'"):
        kind(encodings="v:int")
    with pytest.raises(ValueError, match="no such"):
        kind(encodings={"v": "no such"})


# ---------------------------------------------------------------------- types of tables


def write_arrow(path, **columns):
    """Write an Arrow file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    feather.write_feather(pa.table(columns), path, compression="uncompressed")


WRITERS = {"parquet": write_parquet, "arrow": write_arrow}


@pytest.fixture(params=WRITERS)
def table(request, tmp_path):
    """Return a function that writes a table below a folder, and the folder."""
    folder = tmp_path / "data"

    def write(name, **columns):
        WRITERS[request.param](folder / f"{name}.{request.param}", **columns)
        return folder

    return write


def test_empty_lists_of_no_type_have_that_of_other_files(table, tmp_path):
    """`[[1, 2]]` in one file and `list<null>` in another are arrays; alone, lists are JSON."""
    table("a", v=[[1, 2]], w=[["x"]])
    folder = table("b", v=pa.array([[]], pa.list_(pa.null())), w=pa.array([["y"]]))
    first, second = samples_of(folder, tmp_path)
    assert first["v"].tolist() == [1, 2]
    assert (second["v"].tolist(), second["v"].dtype) == ([], np.int64)
    alone = table("alone/a", v=pa.array([[]], pa.list_(pa.null()))) / "alone"
    assert samples_of(alone, tmp_path) == [{"v": []}]


def test_lists_with_a_null_inside_are_json(table, tmp_path):
    """The file tells them from empty lists and null lists, which are arrays."""
    lists = {
        "inside": [[1, None], [2, 3]], "empty": [[1], []], "null": [None, [1]], "full": [[1], [2]]
    }  # fmt: skip
    table("a", **lists)
    folder = table("b", **{name: [[5], [6]] for name in lists})
    first, second, third, _ = samples_of(folder, tmp_path)
    assert [each["inside"] for each in (first, second, third)] == [[1, None], [2, 3], [5]]
    assert all(isinstance(first[name], np.ndarray) for name in ("empty", "full"))
    assert (first["null"], second["null"].tolist()) == (None, [1])


def test_a_conversion_finds_nulls_in_lists_that_no_statistics_count(tmp_path):
    """In place, such a list is an error that names the encoding that holds it.

    DuckDB 1.1.3 wrote the file: COPY (SELECT [1, NULL] AS v, [2] AS w) TO 'duckdb-nulls.parquet'.
    """
    path = pathlib.Path(__file__).parents[2] / "golden" / "parquet" / "duckdb-nulls.parquet"
    with pytest.raises(FormatError, match=r"row 0, column 'v': a list holds a null.*'json'"):
        samples_of(path, tmp_path)
    mds.convert(path, tmp_path / "out")
    (sample,) = mds.LocalDataset(tmp_path / "out")
    assert (sample["v"], sample["w"].tolist()) == ([1, None], [2])


@pytest.mark.parametrize(
    ("integer", "number", "expected"),
    [
        (pa.int8(), pa.float16(), np.float16),
        (pa.int16(), pa.float32(), np.float32),
        (pa.int32(), pa.float32(), np.float64),
        (pa.int64(), pa.float64(), np.float64),
    ],
)
def test_integers_beside_floats_are_floats_that_hold_both(
    table, tmp_path, integer, number, expected
):
    """The narrowest type without loss; integers of 64 bits are checked when they are read."""
    table("a", v=pa.array([100], integer))
    half = pa.array([np.float16(1.5)], pa.float16()) if number == pa.float16() else [1.5]
    folder = table("b", v=half if number == pa.float16() else pa.array(half, number))
    values = [sample["v"] for sample in samples_of(folder, tmp_path)]
    assert [float(value) for value in values] == [100, 1.5]
    assert {type(value) for value in values} == {expected}


def test_an_integer_that_a_float_cannot_hold_is_an_error(table, tmp_path):
    """The error has file, row and column, and names `encodings=`, which works."""
    table("a", v=[7, 2**53 + 1])
    folder = table("b", v=[1.5])
    with pytest.raises(FormatError, match=r"a\.\w+, row 1, column 'v': .*encodings=") as caught:
        samples_of(folder, tmp_path)
    assert str(2**53 + 1) in str(caught.value)
    kind = {"a.parquet": Parquet, "a.arrow": Arrow}[min(os.listdir(folder))]
    found = samples_of(folder, tmp_path, format=kind(encodings={"v": "json"}))
    assert [sample["v"] for sample in found] == [7, 2**53 + 1, 1.5]


def test_maps_whose_keys_are_no_text_are_pairs(table, tmp_path):
    """As pyarrow gives them, also deep inside; keys of bytes are text."""
    folder = table(
        "a",
        n=pa.array([[(1, 10), (2, None)]], pa.map_(pa.int64(), pa.int64())),
        b=pa.array([[(b"k", 1)]], pa.map_(pa.binary(), pa.int64())),
        t=pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        d=pa.array([{"m": [(1, {"x": 2})]}], pa.struct([
            ("m", pa.map_(pa.int32(), pa.struct([("x", pa.int64())])))
        ])),
    )  # fmt: skip
    (sample,) = samples_of(folder, tmp_path)
    assert sample == {
        "n": [[1, 10], [2, None]],
        "b": [["k", 1]],
        "t": {"k": 1},
        "d": {"m": [[1, {"x": 2}]]},
    }


def test_a_key_that_a_map_has_twice_is_an_error(table, tmp_path):
    """The error has file, row and column."""
    maps = pa.array([[("k", 1)], [("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64()))
    folder = table("a", id=[1, 2], m=maps)
    with pytest.raises(FormatError, match=r"a\.\w+, row 1, column 'm': .*key"):
        samples_of(folder, tmp_path)


def test_a_time_beyond_9999_is_an_error_with_its_row(table, tmp_path):
    """The error has file, row and column; the other columns can be read."""
    far = pa.array([0, 253402300800000000], pa.timestamp("us"))
    folder = table("a", id=[1, 2], t=far)
    with pytest.raises(FormatError, match=r"a\.\w+, row 1, column 't': .*out of range"):
        samples_of(folder, tmp_path)
    assert len(samples_of(folder, tmp_path, columns=["id"])) == 2


def test_the_row_of_an_error_counts_from_the_beginning_of_the_file(tmp_path):
    """Not from that of the row group or the record batch."""
    far = pa.array([*range(7), 253402300800000000], pa.timestamp("us"))
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"t": far}), tmp_path / "data" / "a.parquet", row_group_size=3)
    with pytest.raises(FormatError, match=r"a\.parquet, row 7, column 't'"):
        samples_of(tmp_path / "data", tmp_path)
    (tmp_path / "more").mkdir()
    feather.write_feather(
        pa.table({"t": far}), tmp_path / "more" / "a.arrow", compression="uncompressed", chunksize=3
    )
    with pytest.raises(FormatError, match=r"a\.arrow, row 7, column 't'"):
        samples_of(tmp_path / "more", tmp_path)


def test_a_record_that_is_no_sample_is_a_problem_in_its_place(table, tmp_path):
    """Samples and problems are all rows, in order, however many are wrong."""
    times = pa.array([0, 253402300800000000, 5, 253402300800000000, 6], pa.timestamp("us"))
    folder = table("a", id=range(5), t=times)
    data, files = open_files(str(folder))
    blocks = [*data.format.blocks(data.place(0), files)]
    places = [
        str(block.location).rpartition("row ")[2]
        if isinstance(block, Problem)
        else len(block.sizes)
        for block in blocks
    ]
    assert places == [1, "1, column 't'", 1, "3, column 't'", 1]


def picture(kind):
    """Return the bytes of a small picture."""
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (9, 9, 9)).save(buffer, kind)
    return buffer.getvalue()


FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def declared(feature, column):
    """Return a table with a column ``x`` that `datasets` declares as a feature."""
    features = {"info": {"features": {"x": feature}}}
    return pa.table({"x": column}).replace_schema_metadata({"huggingface": json.dumps(features)})


@pytest.mark.parametrize("feature", [
    {"feature": {"_type": "Image"}, "_type": "List"},
    {"feature": {"_type": "Image"}, "_type": "Sequence"},
    [{"_type": "Image"}],
])  # fmt: skip
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_lists_of_pictures_are_lists(tmp_path, feature, ending):
    """Of pictures if they are declared, else of bytes."""
    values = [{"bytes": picture("JPEG"), "path": None}, {"bytes": picture("PNG"), "path": "p.png"}]
    column = pa.array([values, [], None], pa.list_(FILE))
    (tmp_path / "data").mkdir()
    for name, table in [("a", declared(feature, column)), ("b", pa.table({"x": column}))]:
        path = tmp_path / "data" / f"{name}.{ending}"
        if ending == "parquet":
            pq.write_table(table, path)
        else:
            feather.write_feather(table, path, compression="uncompressed")
        full, empty, missing = samples_of(path, tmp_path / name)
        expected = [Image.Image] * 2 if name == "a" else [bytes] * 2
        assert all(isinstance(*each) for each in zip(full["x"], expected, strict=True))
        assert (empty["x"], missing["x"]) == ([], None)


def test_a_picture_that_is_only_a_path_is_an_error_with_its_location(table, tmp_path):
    """A value without bytes and path is None."""
    values = [{"bytes": b"a", "path": "a.png"}, {"bytes": None, "path": None}, None]
    folder = table("a", x=pa.array(values, FILE))
    assert [sample["x"] for sample in samples_of(folder, tmp_path)] == [b"a", None, None]
    table("a", x=pa.array([*values, {"bytes": None, "path": "/y.png"}], FILE))
    with pytest.raises(FormatError, match=r"a\.\w+, row 3, column 'x': .* path of a file"):
        samples_of(folder, tmp_path)


def test_a_sound_that_cannot_be_decoded_names_the_encoding_that_keeps_it(tmp_path):
    """An MP3 in a column of `Audio` is an error, and its bytes with the setting of the error."""
    sound = {"bytes": b"ID3\4" + bytes(60), "path": "a.mp3"}
    (tmp_path / "data").mkdir()
    table = declared({"_type": "Audio"}, pa.array([sound], FILE))
    pq.write_table(table, tmp_path / "data" / "a.parquet")
    with pytest.raises(
        FormatError, match=r"a\.parquet, row 0, column 'x': .* encodings=\{'x': 'bytes'\}"
    ):
        samples_of(tmp_path / "data", tmp_path)
    kind = Parquet(encodings={"x": "bytes"})
    assert samples_of(tmp_path / "data", tmp_path, format=kind) == [{"x": sound["bytes"]}]


# ---------------------------------------------------------------------- partitions


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl", "csv", "csv.gz"])
@pytest.mark.parametrize("is_chosen", [False, True])
def test_folders_that_name_a_value_are_columns(tmp_path, kind, is_chosen):
    """Numbers if all values are, None for the folder without a value; also if they are chosen."""

    def write(folder, value):
        path = tmp_path / "data" / folder / f"a.{kind}"
        if kind == "jsonl":
            write_lines(path, {"v": value})
        elif kind.startswith("csv"):
            path.parent.mkdir(parents=True, exist_ok=True)
            content = f"v\n{value}\n".encode()
            path.write_bytes(gzip.compress(content) if kind == "csv.gz" else content)
        else:
            WRITERS[kind](path, v=[value])

    write("lang=en/day=7/n=1", 1)
    write("lang=a%20b/day=__HIVE_DEFAULT_PARTITION__/n=x", 2)
    columns = ["lang", "day"] if is_chosen else None
    found = samples_of(tmp_path / "data", tmp_path, columns=columns)
    expected = [
        {"v": 2, "lang": "a b", "day": None, "n": "x"},
        {"v": 1, "lang": "en", "day": 7, "n": "1"},
    ]
    if is_chosen:
        expected = [{name: sample[name] for name in columns} for sample in expected]
    assert found == expected


def test_a_column_of_a_file_takes_precedence_over_its_folder(tmp_path):
    """As it was before folders named columns."""
    write_parquet(tmp_path / "data" / "v=9" / "a.parquet", v=[1])
    assert samples_of(tmp_path / "data", tmp_path) == [{"v": 1}]


def test_text_that_is_not_utf_8_is_an_error_that_names_the_encoding_that_keeps_it(tmp_path):
    """Parquet files hold any bytes in a column of text."""
    good, bad = pa.array([b"a", b"b", b"\xff"]), tmp_path / "data" / "a.parquet"
    text = pa.StringArray.from_buffers(3, *good.buffers()[1:])
    write_parquet(bad, t=text)
    with pytest.raises(FormatError, match=r"row 2, column 't': .*encodings=\{'t': 'bytes'\}"):
        samples_of(tmp_path / "data", tmp_path)
    found = samples_of(tmp_path / "data", tmp_path, format=Parquet(encodings={"t": "bytes"}))
    assert [sample["t"] for sample in found] == [b"a", b"b", b"\xff"]
