"""Every kind of input is recognised for what it is and comes out whole."""

import bz2
import gzip
import json
import lzma
import struct

import numpy as np
import pytest
import zstandard
from quickly import convert, prepare

from devtools.httpserver import http_server
from mds import CSVWriter, JSONWriter, LocalDataset, MDSWriter
from mds.errors import RecordError, SourceError


def test_image_folder_gives_image_label_and_class(kit):
    """The sub-folder is the class, labels count classes by name, images are stored untouched."""
    kit.write("dog/1.jpg", kit.jpeg + b"1")
    kit.write("cat/2.JPEG", kit.jpeg + b"2")
    kit.write("dog/deep/3.jpeg", kit.jpeg + b"3")
    made = prepare(str(kit.source), kit.out)
    assert kit.encodings(made) == {"class": "str", "image": "jpeg", "label": "int"}
    made.run()
    found = [(s["class"], s["label"], s["image"]) for s in kit.stored()]
    assert found == [
        (b"cat", (0).to_bytes(8, "little"), kit.jpeg + b"2"),
        (b"dog", (1).to_bytes(8, "little"), kit.jpeg + b"1"),
        (b"dog", (1).to_bytes(8, "little"), kit.jpeg + b"3"),
    ]


def test_path_of_an_image_is_there_for_the_asking(kit):
    """An image folder offers the path as a further column."""
    kit.write("a/1.png", kit.png)
    convert(str(kit.source), kit.out, encodings={"path": "str"}, drop="image")
    assert kit.samples() == [{"class": "a", "label": 0, "path": "a/1.png"}]


def test_folders_named_like_splits_become_splits(kit):
    """train/class/image gives one dataset a split, with the same labels in all of them."""
    for name in ("train/x/1.png", "train/y/2.png", "val/y/3.png"):
        kit.write(name, kit.png + name.encode())
    summary = convert(str(kit.source), kit.out, drop="image")
    assert [(split.name, split.samples) for split in summary.splits] == [("train", 2), ("val", 1)]
    assert kit.samples(kit.out + "/val") == [{"class": "y", "label": 1}]


def test_mixed_images_keep_their_bytes_under_the_commoner_encoding(kit):
    """JPEG and PNG side by side are not encoded again, and the plan says how many of which."""
    kit.write("a/1.png", kit.png)
    kit.write("a/2.png", kit.png)
    kit.write("b/3.jpg", kit.jpeg)
    made = prepare(str(kit.source), kit.out)
    (image,) = [column for column in made.columns if column.name == "image"]
    assert (image.encoding, "2 png, 1 jpeg" in image.note) == ("png", True)
    made.run()
    assert [sample["image"] for sample in kit.stored()] == [kit.png, kit.png, kit.jpeg]


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("labels.csv", "file,age,kind\n2.jpg,7,cat\n1.jpg,9,dog\n"),
        ("metadata.jsonl", '{"id":"1","age":9,"kind":"dog"}\n{"id":"2","age":7,"kind":"cat"}\n'),
    ],
)
def test_flat_images_take_their_labels_from_a_table(kit, name, table):
    """A CSV or JSON lines file that names the images brings its other columns."""
    kit.write("1.jpg", kit.jpeg)
    kit.write("2.jpg", kit.jpeg)
    kit.write(name, table)
    convert(str(kit.source), kit.out, drop="image")
    assert kit.samples() == [
        {"age": 9, "kind": "dog", "path": "1.jpg"},
        {"age": 7, "kind": "cat", "path": "2.jpg"},
    ]


def test_image_without_a_row_is_a_bad_record(kit):
    """An image that the table of labels forgets is not given a label made up."""
    kit.write("1.jpg", kit.jpeg)
    kit.write("2.jpg", kit.jpeg)
    kit.write("labels.csv", "file,age\n1.jpg,7\n")
    with pytest.raises(RecordError, match=r"2\.jpg: labels\.csv has no row for it"):
        convert(str(kit.source), kit.out)


def test_file_that_is_no_image_is_named(kit):
    """An image is known by its first bytes, not by its ending."""
    kit.write("a/1.jpg", kit.jpeg)
    kit.write("a/2.jpg", b"<html>not found</html>")
    words = r"2\.jpg: this is not a picture: it starts with b'<html>"
    with pytest.raises(RecordError, match=words):
        convert(str(kit.source), kit.out)


def test_audio_is_stored_untouched(kit):
    """Sound files are taken byte for byte."""
    kit.write("one.wav", kit.wav(1))
    kit.write("two.flac", b"fLaC of two")
    convert(str(kit.source), kit.out)
    assert kit.samples() == [
        {"audio": kit.wav(1), "path": "one.wav"},
        {"audio": b"fLaC of two", "path": "two.flac"},
    ]


def test_text_files_are_documents(kit):
    """A text file is one sample, whatever its line ends, with its path; a BOM is no text."""
    kit.write("b/two.md", "zwei\r\nZeilen")
    kit.write("a.txt", b"\xef\xbb\xbfeins")
    convert(str(kit.source), kit.out)
    assert kit.samples() == [
        {"path": "a.txt", "text": "eins"},
        {"path": "b/two.md", "text": "zwei\r\nZeilen"},
    ]


def test_python_sources_may_declare_their_encoding(kit):
    """A source in Latin-1 that says so is a document like others; one that lies is bad."""
    kit.write("a.py", "# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1"))
    kit.write("b.py", b"x = 1\ny = '\xe9'\n")
    with pytest.raises(RecordError, match=r"b\.py, line 2, column 6: byte 0xe9 is not UTF-8"):
        convert(str(kit.source), kit.out)
    summary = convert(str(kit.source), kit.out, on_error="skip")
    assert (summary.samples, summary.bad_count) == (1, 1)
    assert "é" in kit.samples()[0]["text"]


def test_lines_are_samples_when_asked(kit):
    """format='lines' makes every line a sample, empty ones too."""
    kit.write("a.txt", "one\n\r\nthree")
    convert(str(kit.source), kit.out, format="lines")
    assert [sample["text"] for sample in kit.samples()] == ["one", "", "three"]


@pytest.mark.parametrize(
    ("ending", "compress"),
    [
        ("", bytes),
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", zstandard.compress),
    ],
)
def test_json_lines_also_compressed(kit, ending, compress):
    """Every line is a sample; compressed files are read through."""
    records = [{"n": i, "t": f"text {i} é", "o": {"deep": [i]}} for i in range(50)]
    data = b"\xef\xbb\xbf" + kit.lines(records).replace("\n", "\r\n").encode() + b"\n"
    path = kit.write("x.jsonl" + ending, compress(data))
    convert(path, kit.out)
    assert kit.samples() == records


def test_broken_compressed_file_is_an_error_of_ours(kit):
    """A cut-off gzip file names the file and does not end the dataset early."""
    path = kit.write(
        "x.jsonl.gz", gzip.compress(kit.lines([{"a": i} for i in range(999)]).encode())[:-9]
    )
    with pytest.raises(SourceError, match=r"x\.jsonl\.gz.*(cannot be read|cut short)"):
        convert(path, kit.out)


def test_zstandard_file_that_ends_at_a_line_is_not_taken_for_whole(kit):
    """Its frame is not ended, so rows are missing, however well the last one reads."""
    packer = zstandard.ZstdCompressor().compressobj()
    rows = b"".join(b"%d,word\n" % i for i in range(99))
    data = packer.compress(b"a,b\n" + rows) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    with pytest.raises(SourceError, match=r"x\.csv\.zst: the compressed data end too early"):
        convert(kit.write("x.csv.zst", data), kit.out)
    convert(kit.write("y.csv.zst", data + packer.flush()), kit.out)
    assert len(kit.samples()) == 99


def test_json_list_is_as_good_as_lines(kit):
    """A JSON file that is one list gives its objects."""
    path = kit.write("x.json", json.dumps([{"a": 1}, {"a": 2}], indent=1))
    convert(path, kit.out)
    assert kit.samples() == [{"a": 1}, {"a": 2}]


def test_csv_with_quotes_and_line_breaks(kit):
    """Quoted cells may hold separators, quotes and line breaks; numbers are recognised."""
    path = kit.write("x.csv", 'id,code,score,text\n1,007,1.5,"a, ""b""\nc"\n2,008,2,\n')
    convert(path, kit.out)
    assert kit.samples() == [
        {"code": "007", "id": 1, "score": 1.5, "text": 'a, "b"\nc'},
        {"code": "008", "id": 2, "score": 2.0, "text": ""},
    ]


@pytest.mark.parametrize(("name", "separator"), [("x.tsv", "\t"), ("x.csv", ";")])
def test_separator_is_found(kit, name, separator):
    """TSV is known by its ending, other separators by the header."""
    path = kit.write(name, f"a{separator}b\n1{separator}x,y\n")
    convert(path, kit.out)
    assert kit.samples() == [{"a": 1, "b": "x,y"}]


def test_tables_may_have_other_columns(kit):
    """Each CSV file of a folder has its own header; a column that it lacks is None."""
    kit.write("1.csv", "a,b\n1,2\n")
    kit.write("2.csv", "c,a\n1,2\n")
    convert(str(kit.source), kit.out)
    assert kit.samples() == [{"a": 1, "b": 2, "c": None}, {"a": 2, "b": None, "c": 1}]


@pytest.mark.parametrize(("empty", "other"), [("1.csv", "2.csv"), ("2.csv", "1.csv")])
def test_an_empty_table_beside_others_has_no_say(kit, empty, other):
    """It has no header, so it says nothing about the columns."""
    kit.write(other, "a,b\n1,2\n")
    kit.write(empty, "")
    convert(str(kit.source), kit.out)
    assert kit.samples() == [{"a": 1, "b": 2}]


def test_webdataset_tar(kit):
    """Files of one name are one sample, endings are columns."""
    array = np.arange(3, dtype=np.float32)
    file = kit.source / "array.npy"
    np.save(file, array)
    members = []
    for i in range(3):
        members += [(f"d/{i}.jpg", kit.jpeg), (f"d/{i}.cls", b"%d" % i), (f"d/{i}.txt", b"t")]
        members += [(f"d/{i}.json", b'{"a": [1]}'), (f"d/{i}.v.npy", file.read_bytes())]
    file.unlink()
    made = prepare(kit.write("x.tar", kit.tar(members)), kit.out)
    assert kit.encodings(made) == {
        "__key__": "str", "cls": "int", "jpg": "jpeg", "json": "json", "txt": "str",
        "v.npy": "ndarray:float32:3",
    }  # fmt: skip
    made.run()
    assert kit.stored()[1]["jpg"] == kit.jpeg
    convert(made.source.name, kit.out + "2", drop="jpg")
    second = kit.samples(kit.out + "2")[1]
    assert (second["__key__"], second["cls"], second["json"]) == ("d/1", 1, {"a": [1]})
    assert np.array_equal(second["v.npy"], array)


def test_compressed_tar_that_ends_in_a_file_is_told(kit):
    """The tar inside of a whole gzip file may be cut short itself."""
    members = [(f"{i}.txt", b"text " * 999) for i in range(3)]
    path = kit.write("x.tar.gz", gzip.compress(kit.tar(members)[:15_000]))
    with pytest.raises(RecordError, match=r"sample '2': the tar ends inside the file \.txt"):
        convert(path, kit.out)


def test_tar_is_cut_between_samples(kit):
    """Parts of one tar begin with the first member of a sample, long names and all."""
    members = [
        (f"{'long/' * (i % 40)}{i:04}.{ending}", bytes(900)) for i in range(300) for ending in "abc"
    ]
    made = prepare(kit.write("x.tar", kit.tar(members)), kit.out)
    assert len(list(made.source.cut_parts(100_000))) > 5
    read = [r["__key__"] for p in made.source.cut_parts(100_000) for _, r in made.source.read(p)]
    assert read == [name[:-2].encode() for name, _ in members[::3]]


def test_sample_of_a_tar_without_a_member_has_none(kit):
    """A file that a sample lacks is None, as in place."""
    members = [("1.txt", b"a"), ("1.cls", b"1"), ("2.txt", b"b")]
    made = prepare(kit.write("x.tar", kit.tar(members)), kit.out)
    assert kit.encodings(made) == {"__key__": "str", "cls": "optional[int]", "txt": "str"}
    made.run()
    assert [sample["cls"] for sample in kit.samples()] == [1, None]


def test_mds_dataset_is_cut_and_compressed_anew(kit):
    """Samples of a dataset keep every byte, also of columns that nobody here could decode."""
    columns = {"a": "ndarray:int16", "b": "bytes", "c": "float32", "p": "pkl"}
    samples = [
        {"a": np.arange(i + 1, dtype=np.int16), "b": bytes([i]), "c": i / 3, "p": {i}}
        for i in range(60)
    ]
    before = str(kit.source / "mds")
    with MDSWriter(out=before, columns=columns, compression="gz", size_limit=500) as writer:
        for sample in samples:
            writer.write(sample)
    summary = convert(before, kit.out, compression="zstd", drop="c")
    assert summary.splits[0].shards == 1
    assert kit.stored() == [{k: s[k] for k in "abp"} for s in kit.stored(before)]


def test_column_of_a_dataset_gets_another_encoding(kit):
    """Only the column that changes is decoded, and a value that does not fit is refused."""
    before = str(kit.source / "mds")
    with MDSWriter(out=before, columns={"a": "int", "b": "str"}) as writer:
        for i in (1, 2, 300):
            writer.write({"a": i, "b": "x"})
    convert(before, kit.out, encodings={"a": "uint16"})
    assert [sample["a"] for sample in kit.samples()] == [1, 2, 300]
    with pytest.raises(RecordError, match=r"sample 2, column 'a' \(uint8\): 300 does not fit"):
        convert(before, kit.out + "2", encodings={"a": "uint8"})


def test_mixed_folder_is_stored_file_by_file_on_request(kit):
    """Where files are of many kinds nothing is guessed; `--format files` takes path and bytes."""
    kit.write("a.txt", "text")
    kit.write("b.jpg", kit.jpeg)
    kit.write("c.bin", b"\0")
    with pytest.raises(SourceError, match=r"files of several kinds.*--format files"):
        prepare(str(kit.source), kit.out)
    convert(str(kit.source), kit.out, format="files")
    assert [s["path"] for s in kit.samples()] == ["a.txt", "b.jpg", "c.bin"]
    assert kit.samples()[2]["bytes"] == b"\0"


def test_patterns_choose_files(kit):
    """Include and exclude match names and paths; a readme beside the data is left out and told."""
    for name in ("a.txt", "b.txt", "sub/c.txt", "sub/d.py", ".hidden.txt"):
        kit.write(name, name)
    convert(str(kit.source), kit.out, include="*.txt", exclude="sub/*")
    assert [s["path"] for s in kit.samples()] == ["a.txt", "b.txt"]
    kit.write("photos/README.md", "about")
    kit.write("photos/a/1.png", kit.png)
    made = prepare(str(kit.source / "photos"), kit.out + "2")
    assert made.source.title == "images"
    assert any("1 file of another kind (README.md)" in note for note in made.source.notes)


def test_links_are_followed_once(kit):
    """Linked files and folders are read, circles and broken links are passed over and told."""
    kit.write("real/a.txt", "a")
    (kit.source / "linked").symlink_to(kit.source / "real")
    (kit.source / "real" / "up").symlink_to(kit.source)
    (kit.source / "file.txt").symlink_to(kit.source / "real" / "a.txt")
    (kit.source / "lost.txt").symlink_to(kit.source / "nowhere")
    made = prepare(str(kit.source), kit.out)
    assert made.source.notes == [
        (
            "left out of the folder: 1 broken link (lost.txt), 2 links to a folder above (such as "
            "linked/up)"
        ),
        "followed: 1 link to a file (file.txt), 1 link to a folder (linked)",
    ]
    made.run()
    assert [s["path"] for s in kit.samples()] == ["file.txt", "linked/a.txt", "real/a.txt"]


def test_columns_without_a_name_are_called_by_their_place(kit):
    """The index that pandas writes is a column like others; two of one name are refused."""
    convert(kit.write("x.csv", ",b\n0,x\n"), kit.out)
    assert kit.samples() == [{"b": "x", "column_0": 0}]
    with pytest.raises(SourceError, match=r"line 1: two columns have the name 'b'"):
        convert(kit.write("y.csv", "b,b\n0,x\n"), kit.out + "2")


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("x.jsonl", b"", "no records to convert. It is empty"),
        ("x.jsonl", b"\n{\n", r"The first record is bad: .*x\.jsonl, line 2, column 2: Expecting"),
        ("x.csv", b"a,b\n", "no records to convert. It is empty"),
        ("x.csv", b"", "no record"),
        ("x.jsonl.gz", b"no gzip", r"x\.jsonl\.gz, line 1, column 1: Expecting"),
        (
            "x.jsonl.zst",
            b"\x28\xb5\x2f\xfd" + b"no zstd" * 9,
            r"x\.jsonl\.zst: the compressed data are damaged",
        ),
        ("x.csv.xz", b"\xfd7zXZ\x00no lzma", r"x\.csv\.xz: the compressed data are damaged"),
        ("x.tar", b"no tar" * 999, r"x\.tar: this is not a tar"),
        ("x.tar", b"no tar" * 2_000_000, r"x\.tar: this is not a tar"),
        ("x.json", b"[1, 2", "this is not JSON"),
    ],
)
def test_source_that_holds_nothing_good_says_why(kit, name, data, words):
    """A broken or empty file is an error that names it, before anything is written."""
    with pytest.raises(SourceError, match=words):
        convert(kit.write(name, data), kit.out)


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_nothing_to_convert_is_an_error(kit, what):
    """A source that is not there, or holds nothing, is said to be so before anything is made."""
    path = kit.source if what == "empty" else kit.source / "nowhere"
    with pytest.raises(SourceError, match=r"no file to convert|no such file"):
        convert(str(path), kit.out)


def test_missing_source_suggests_its_neighbour(kit):
    """A mistyped name is answered with the one that is there."""
    kit.write("photos/1.png", kit.png)
    with pytest.raises(SourceError, match=r"Did you mean .*photos\?"):
        convert(str(kit.source / "potos"), kit.out)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "tar"])
def test_files_behind_a_url_or_a_pattern_are_those_of_a_folder(kit, ending):
    """Lines and tars give the same bytes from a folder, from a pattern, and over HTTP."""
    for number in range(2):
        records = [{"id": 50 * number + i, "text": "x" * i} for i in range(50)]
        content = kit.lines(records).encode()
        if ending == "tar":
            members = [(f"{r['id']:03}.json", json.dumps(r).encode()) for r in records]
            content = kit.tar(members)
        elif ending == "jsonl.gz":
            content = gzip.compress(content)
        kit.write(f"{number}.{ending}", content)
    convert(str(kit.source), kit.out)
    assert len(kit.samples()) == 100
    convert(f"{kit.source}/*.{ending}", f"{kit.out}-pattern")
    with http_server(str(kit.source)) as url:
        made = prepare(f"{url}/{{0,1}}.{ending}", f"{kit.out}-far")
        made.run()
        *_, last = made.source.cut_parts(1 << 40)
        position = [position for position, _ in made.source.read(last)][-1]
        ends = {"tar": "/1.tar, sample '099'"}.get(ending, f"/1.{ending}, line 50")
        assert made.source.locate(last, position).endswith(ends)
    assert kit.files() == kit.files(f"{kit.out}-pattern") == kit.files(f"{kit.out}-far")


def test_a_format_without_an_input_of_its_own_is_a_source_by_its_name(kit):
    """Its samples keep their encodings, unless another one is asked for."""
    lengths = np.array([3, 2, 4], "<i4")
    offsets = np.cumsum([0, *lengths[:-1]]).astype("<i8") * 2
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 3, 4)
    cuts = np.arange(4).astype("<i8")
    kit.write("a.idx", b"".join([head, lengths.tobytes(), offsets.tobytes(), cuts.tobytes()]))
    path = kit.write("a.bin", np.arange(9).astype("<u2").tobytes())
    made = prepare(path, kit.out, format="megatron")
    made.run()
    values = [sample["tokens"].tolist() for sample in LocalDataset(kit.out)]
    assert values == [[0, 1, 2], [3, 4], [5, 6, 7, 8]]
    assert kit.encodings(made) == {"tokens": LocalDataset(kit.out).schema["tokens"]}
    again = prepare(path, f"{kit.out}-32", format="megatron", encodings={"tokens": "ndarray:int32"})
    again.run()
    values = [sample["tokens"] for sample in LocalDataset(f"{kit.out}-32")]
    assert [value.dtype for value in values] == [np.int32] * 3
    part = next(again.source.cut_parts(1 << 40))
    positions = [position for position, _ in again.source.read(part)]
    assert again.source.locate(part, positions[2]).endswith("a.bin, document 2")


@pytest.mark.parametrize("writer", [JSONWriter, CSVWriter])
def test_a_dataset_of_text_shards_with_floats(tmp_path, writer):
    """What text shards call float is written as float64."""
    source, out = str(tmp_path / "text"), str(tmp_path / "out")
    samples = [{"n": n, "x": n / 3, "t": f"text {n}"} for n in range(5)]
    with writer(out=source, columns={"n": "int", "x": "float", "t": "str"}) as shards:
        for sample in samples:
            shards.write(sample)
    made = prepare(source, out)
    assert {column.name: column.encoding for column in made.columns}["x"] == "float64"
    made.run()
    assert list(LocalDataset(out)) == samples


def test_mds_datasets_below_a_folder_are_not_stored_as_files(kit):
    """Shards are no samples: the error names the datasets, and mds merge or mds index helps."""
    folder = kit.source / "parts"
    for part in "ab":
        convert(({"n": number} for number in range(200)), str(folder / part), size_limit=200)
    for index in (True, False):
        with pytest.raises(SourceError, match="there are MDS datasets in its folders a, b"):
            convert(str(folder), kit.out)
        if index:
            (folder / "a" / "index.json").unlink()
    with pytest.raises(SourceError, match="write the index again: mds index"):
        convert(str(folder / "a"), kit.out)
    convert(str(folder / "a"), kit.out, format="files")
    assert {"bytes", "path"} == {*kit.samples()[0]}
