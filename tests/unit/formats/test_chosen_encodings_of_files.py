"""Encodings that the user chose for files, for tables beside them and for tars."""

import datetime as dt
import decimal
import json

import numpy as np
import pictures
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tars

from mds import StreamingDataset
from mds.errors import FormatError, RecordError
from mds.formats import AudioFiles, ImageFiles, MetadataFiles, PairedFiles, RawFiles, Tar, TextFiles
from mds.writers.convert import convert

#: Encoding, text, and the value of the text in a column with this encoding.
TEXTS = [
    ("int", "12345678", 12345678),
    ("int", "5", 5),
    ("int8", "5", np.int8(5)),
    ("int32", "1", np.int32(1)),
    ("float32", "1.5", np.float32(1.5)),
    ("float64", "1.5", np.float64(1.5)),
    ("bytes", "12345678", b"12345678"),
    ("str_int", "12345678901234567890123", 12345678901234567890123),
    ("str_decimal", "1.50", decimal.Decimal("1.50")),
    ("json", "12", 12),
    ("json", '{"a": [1]}', {"a": [1]}),
    ("optional[int]", "12345678", 12345678),
    ("optional[int]", "", None),
]
WAV = b"RIFF0000"


def write(folder, **files):
    """Write files by their names, in which "_" is a dot and "__" a slash."""
    for name, data in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())


def write_tar(folder, **files):
    """Write a tar of one sample with files by their endings."""
    folder.mkdir(exist_ok=True)
    data = {
        name: each if isinstance(each, bytes) else each.encode() for name, each in files.items()
    }
    tars.by_python(folder / "a.tar", tars.members([data]))


def read_three(tmp_path, kind, column, encoding, **options):
    """Return a value as it is read in place, through the cache, and converted."""
    files, more = tmp_path / "files", {**options, "encodings": {column: encoding}}
    chosen = kind(**more)
    in_place = StreamingDataset(local=str(files), format=chosen, batch_size=1)
    cached = StreamingDataset(
        remote=files.as_uri(), local=str(tmp_path / "cache"), format=chosen, batch_size=1
    )
    convert(str(files), str(tmp_path / "out"), durable=False, format=chosen)
    converted = StreamingDataset(local=str(tmp_path / "out"), batch_size=1)
    return [dataset[0][column] for dataset in (in_place, cached, converted)]


def check(values, expected):
    """Check that all values are the expected one, type for type."""
    for value in values:
        assert type(value) is type(expected)
        np.testing.assert_equal(value, expected)


def put_kind(kind, folder, text):
    """Write a dataset with a text, and return its format, options, and the column of the text."""
    if kind == "document":
        write(folder, a_txt=text)
        return TextFiles, {}, "text"
    if kind == "pair":
        write(folder, a_wav=WAV, a_txt=text)
        return PairedFiles, {}, "text"
    if kind == "transcript":
        write(folder, a_wav=WAV, x_trans_txt=f"a {text}\n")
        return PairedFiles, {}, "text"
    if kind == "files":
        write(folder, a_bin=text)
        return RawFiles, {}, "bytes"
    if kind in ("labels", "metadata", "manifest"):
        cell = text.replace('"', '""')
        table = f'file_name,n,x\na.jpg,"{cell}",0.5\n'
        name = {"labels": "labels_csv", "metadata": "metadata_csv", "manifest": "list_csv"}[kind]
        folder.mkdir(exist_ok=True)
        (folder / name.replace("_", ".")).write_text(table)
        (folder / "a.jpg").write_bytes(pictures.jpeg(1))
        if kind == "labels":
            return ImageFiles, {"labels": "labels.csv"}, "n"
        if kind == "metadata":
            return MetadataFiles, {}, "n"
        return RawFiles, {"manifest": "list.csv", "path": "file_name"}, "n"
    write_tar(folder, **{kind: text})
    return Tar, {}, kind


KINDS = ["document", "pair", "transcript", "files", "labels", "metadata", "manifest", "txt", "bin"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("encoding", "text", "expected"), TEXTS)
def test_a_text_is_parsed_for_its_encoding(tmp_path, kind, encoding, text, expected):
    """Everywhere alike."""
    format_class, options, column = put_kind(kind, tmp_path / "files", text)
    check(read_three(tmp_path, format_class, column, encoding, **options), expected)


@pytest.mark.parametrize(
    ("encoding", "value", "expected"),
    [
        ("int32", 1, np.int32(1)),
        ("int", "5", 5),
        ("json", "a", "a"),
        ("json", "5", "5"),
        ("float16", 0.5, np.float16(0.5)),
        ("str", 1, "1"),
        ("bytes", "é", "é".encode()),
        ("optional[int]", None, None),
        ("ndarray:int32", [1, 2], np.array([1, 2], np.int32)),
    ],
)
def test_values_of_json_lines_are_fitted(tmp_path, encoding, value, expected):
    """A text stays a text for JSON."""
    row = json.dumps({"file_name": "a.jpg", "n": value})
    write(tmp_path / "files", a_jpg=pictures.jpeg(1), metadata_jsonl=f"{row}\n")
    check(read_three(tmp_path, MetadataFiles, "n", encoding), expected)


@pytest.mark.parametrize("kind", ["document", "pair", "files", "txt", "bin"])
@pytest.mark.parametrize("encoding", ["int", "json", "float32"])
@pytest.mark.parametrize("text", [b"no number", b"\xff\xfe\x00\x00\x00\x00\x00\x00"])
def test_content_that_does_not_fit_is_refused(tmp_path, kind, encoding, text):
    """It was taken as the bytes of the value; the error names the column."""
    format_class, options, column = put_kind(kind, tmp_path / "files", text)
    chosen = format_class(encodings={column: encoding}, **options)
    with pytest.raises(FormatError, match=column):
        StreamingDataset(local=str(tmp_path / "files"), format=chosen, batch_size=1)[0]
    with pytest.raises(RecordError, match=column):
        convert(str(tmp_path / "files"), str(tmp_path / "out"), durable=False, format=chosen)


def test_a_picture_is_no_number(tmp_path):
    """The error names the remedy."""
    write(tmp_path / "files", a_jpg=pictures.jpeg(1))
    chosen = ImageFiles(encodings={"image": "int"})
    with pytest.raises(FormatError, match=r"'image'.*encodings=\{'image': 'bytes'\}"):
        StreamingDataset(local=str(tmp_path / "files"), format=chosen, batch_size=1)[0]


@pytest.mark.parametrize(
    ("column", "encoding", "expected"),
    [("label", "str", "0"), ("class", "bytes", b"cat"), ("path", "bytes", b"cat/a.wav")],
)
def test_columns_of_class_folders_are_fitted(tmp_path, column, encoding, expected):
    """Those that come from the paths, too."""
    write(tmp_path / "files", cat__a_wav=WAV, dog__b_wav=WAV)
    check(read_three(tmp_path, AudioFiles, column, encoding), expected)


@pytest.mark.parametrize(
    ("ending", "data", "encoding", "expected"),
    [
        ("json", "[1, 2]", "ndarray:int32", np.array([1, 2], np.int32)),
        ("cls", "1", "int32", np.int32(1)),
        ("cls", "1.5", "float32", np.float32(1.5)),
        ("npy", tars.npy(np.arange(3)), "ndarray:int32", np.arange(3, dtype=np.int32)),
        ("__key__", "1", "bytes", b"000000"),
        ("__key__", "1", "int", 0),
    ],
)
def test_files_of_a_tar_are_fitted(tmp_path, ending, data, encoding, expected):
    """JSON, numbers, arrays and the name."""
    write_tar(tmp_path / "files", **{"txt" if ending == "__key__" else ending: data})
    check(read_three(tmp_path, Tar, ending, encoding), expected)


@pytest.mark.parametrize(("ending", "data"), [("txt", b"\xe9"), ("jpg", b"damaged")])
def test_a_damaged_file_of_a_tar_can_be_read_as_bytes(tmp_path, ending, data):
    """The error says so."""
    write_tar(tmp_path / "files", **{ending: data})
    place = str(tmp_path / "files")
    with pytest.raises(FormatError, match=rf"encodings=\{{'{ending}': 'bytes'\}}"):
        StreamingDataset(local=place, format="tar", batch_size=1)[0]
    check(read_three(tmp_path, Tar, ending, "bytes"), data)


def test_an_array_file_becomes_an_array(tmp_path):
    """As a list of files names it."""
    write(tmp_path / "files", a_npy=tars.npy(np.arange(3)), list_csv="path\na.npy\n")
    options = {"manifest": "list.csv"}
    values = read_three(tmp_path, RawFiles, "content", "ndarray:int32", **options)
    check(values, np.arange(3, dtype=np.int32))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (dt.date(2020, 1, 1), "2020-01-01"),
        (dt.time(1), "01:00:00"),
        (decimal.Decimal("1.50"), decimal.Decimal("1.50")),
        (b"\xff\x00", b"\xff\x00"),
        ([1, 2], [1, 2]),
    ],
)
def test_a_parquet_table_beside_pictures_has_all_types(tmp_path, value, expected):
    """Dates, decimals and bytes are no JSON, of which the rows are made."""
    write(tmp_path / "files", a_jpg=pictures.jpeg(1))
    pq.write_table(pa.table({"file": ["a.jpg"], "d": [value]}), tmp_path / "files/labels.parquet")
    kind = ImageFiles(labels="labels.parquet")
    in_place = StreamingDataset(local=str(tmp_path / "files"), format=kind, batch_size=1)
    convert(str(tmp_path / "files"), str(tmp_path / "out"), durable=False, format=kind)
    converted = StreamingDataset(local=str(tmp_path / "out"), batch_size=1)
    check([in_place[0]["d"], converted[0]["d"]], expected)
