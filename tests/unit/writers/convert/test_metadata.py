"""Folders of pictures and sound with a table of metadata: what is read, and what is refused."""

import json

import pytest
from quickly import convert, prepare

from mds.errors import RecordError, SourceError


def test_sounds_take_the_rows_of_their_table(kit):
    """Each sound has the columns of its row, however rows are sorted; numbers are numbers."""
    kit.write("data/1.wav", kit.wav(1))
    kit.write("data/2.flac", b"fLaC of two")
    kit.write("metadata.csv", "file_name,text,age\ndata/2.flac,two,7\ndata/1.wav,one,9\n")
    convert(str(kit.source), kit.out)
    assert kit.samples() == [
        {"age": 9, "audio": kit.wav(1), "path": "data/1.wav", "text": "one"},
        {"age": 7, "audio": b"fLaC of two", "path": "data/2.flac", "text": "two"},
    ]


def test_tables_of_splits_name_files_of_their_own_folders(kit):
    """Pictures with a table of JSON lines in each folder of a split become splits."""
    for split in ("train", "test"):
        kit.write(f"{split}/1.jpg", kit.jpeg)
        row = {"file_name": "./1.jpg", "objects": {"of": split}}
        kit.write(f"{split}/metadata.jsonl", kit.lines([row]))
    convert(str(kit.source), kit.out)
    for split in ("train", "test"):
        (sample,) = kit.samples(f"{kit.out}/{split}")
        assert (sample["path"], sample["objects"]) == (f"{split}/1.jpg", {"of": split})


def test_ljspeech_has_a_table_without_a_header_or_quoting(kit):
    """Lines of id|text|normalised text name the sounds in wavs; a quote is a letter."""
    kit.write("wavs/LJ001.wav", kit.wav(1))
    kit.write("README", "of the data set")
    kit.write("metadata.csv", 'LJ001|No. 1, "quoted|Number one, "quoted\n')
    conversion = prepare(str(kit.source), kit.out)
    assert conversion.source.notes == ["left out of the folder: 1 file of another kind (README)"]
    conversion.run()
    assert kit.samples() == [
        {
            "audio": kit.wav(1),
            "id": "LJ001",
            "normalized_text": 'Number one, "quoted',
            "path": "wavs/LJ001.wav",
            "text": 'No. 1, "quoted',
        }
    ]


def test_tables_may_name_sounds_of_another_folder(kit):
    """As in Common Voice; tables that are named after splits make splits, others are left out."""
    for name in "abcd":
        kit.write(f"clips/{name}.mp3", b"ID3" + name.encode())
    kit.write("train.tsv", "path\tsentence\nb.mp3\tB\na.mp3\tA\n")
    kit.write("test.tsv", "path\tsentence\nc.mp3\tC\n")
    kit.write("validated.tsv", "path\tsentence\nb.mp3\tB\n")
    conversion = prepare(str(kit.source), kit.out)
    assert conversion.source.notes == [
        (
            "left out of the folder: 1 file of another kind (validated.tsv), 1 file that no table "
            "lists (clips/d.mp3)"
        )
    ]
    conversion.run()
    assert kit.samples(f"{kit.out}/train") == [
        {"audio": b"ID3a", "path": "clips/a.mp3", "sentence": "A"},
        {"audio": b"ID3b", "path": "clips/b.mp3", "sentence": "B"},
    ]
    assert len(kit.samples(f"{kit.out}/test")) == 1


def test_a_table_that_names_all_sounds_is_joined(kit):
    """Whatever its name; one that names some of them is left out, unless it is asked for."""
    for number in range(9):
        kit.write(f"{number}.wav", kit.wav(number))
    kit.write("labels.csv", "file,who\n" + "".join(f"{n}.wav,{n % 2}\n" for n in range(9)))
    convert(str(kit.source), kit.out)
    assert [sample["who"] for sample in kit.samples()] == [n % 2 for n in range(9)]
    kit.write("labels.csv", "file,who\n1.wav,1\n")
    conversion = prepare(str(kit.source), kit.out + "2")
    assert any("1 file of another kind" in note for note in conversion.source.notes)
    assert conversion.run().samples == 9
    with pytest.raises(RecordError, match=r"0\.wav: no row of labels\.csv lists it"):
        convert(str(kit.source), kit.out + "3", format="metadata")


def test_one_table_beside_pictures_is_a_table_of_labels_unless_chosen(kit):
    """`format="metadata"` gives the same samples, and takes no other name of a picture."""
    kit.write("train/1.jpg", kit.jpeg)
    kit.write("train/metadata.csv", "file_name,text\n1.jpg,a\n")
    labels = prepare(str(kit.source), kit.out)
    chosen = prepare(str(kit.source), kit.out + "2", format="metadata")
    assert labels.source.title == "images"
    assert chosen.source.title == "files with a table of metadata"
    labels.run()
    chosen.run()
    assert kit.stored(kit.out) == kit.stored(f"{kit.out}2")


def test_a_table_given_as_labels_is_used_alone(kit):
    """With `labels=` folders of pictures with several tables are read by that table."""
    for split in ("train", "test"):
        kit.write(f"{split}/{split}.jpg", kit.jpeg)
        kit.write(f"{split}/metadata.csv", f"file_name,text\n{split}.jpg,a\n")
    kit.write("all.csv", "file,kind\ntrain.jpg,x\ntest.jpg,y\n")
    convert(str(kit.source), kit.out, labels="all.csv", merge_splits=True, columns="kind")
    assert [sample["kind"] for sample in kit.samples()] == ["y", "x"]


def test_included_files_are_read_with_their_rows(kit):
    """A pattern chooses files; the table need not match it, and rows of other files are unused."""
    kit.write("a1.wav", kit.wav(1))
    kit.write("b2.wav", kit.wav(2))
    kit.write("metadata.csv", "file_name,text\na1.wav,one\nb2.wav,two\n")
    convert(str(kit.source), kit.out, include="a*.wav", drop="audio")
    assert kit.samples() == [{"path": "a1.wav", "text": "one"}]


def test_a_row_without_its_file_is_a_bad_record(kit):
    """It stops the conversion, or is left out and listed."""
    kit.write("1.wav", kit.wav(1))
    kit.write("metadata.csv", "file_name,text\n1.wav,one\n2.wav,two\n")
    with pytest.raises(RecordError, match=r"2\.wav: metadata\.csv lists it, but there is no such"):
        convert(str(kit.source), kit.out)
    summary = convert(str(kit.source), kit.out + "2", on_error="skip")
    assert (summary.samples, summary.bad_count) == (1, 1)


def test_a_sound_without_a_row_is_a_bad_record(kit):
    """It is given no row made up."""
    kit.write("1.wav", kit.wav(1))
    kit.write("2.wav", kit.wav(2))
    kit.write("metadata.csv", "file_name,text\n1.wav,one\n")
    with pytest.raises(RecordError, match=r"2\.wav: no row of metadata\.csv lists it"):
        convert(str(kit.source), kit.out)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("file_name,text\n../1.wav,one\n", r"metadata\.csv: '\.\./1\.wav' is outside the folder"),
        ("file_name,text\n/tmp/1.wav,one\n", r"'/tmp/1\.wav' is outside the folder"),
        ("file_name,text\n1.wav,one\n./1.wav,two\n", r"metadata\.csv: 1\.wav is listed twice"),
        ("file_name,audio\n1.wav,one\n", r"metadata\.csv: the table has a column 'audio', which"),
        ("file,text\n1.wav,one\n", "column 'file_name' is missing. The first line of a CSV must"),
        ("1.wav,one\n1.wav,two\n", "column 'file_name' is missing. The first line of a CSV must"),
        ("file_name,text\n,one\n", "column 'file_name' must have paths, got ''"),
        ("file_name,text\n1.wav,one\n2.jpg,two\n", "or sounds, but this one lists both"),
        ("file_name,text\n1.wav,one\n2.mp4,two\n", r"or sounds, but 2\.mp4 is neither"),
        ("file_name,text\n", r"metadata\.csv: there are no records to convert"),
        ("file_name,text\n1.wav\n", r"metadata\.csv, line 2: 1 value for 2 columns"),
    ],
)
def test_a_table_that_cannot_be_joined_is_refused(kit, table, words):
    """The message names the table and what is wrong in it; nothing is written."""
    kit.write("1.wav", kit.wav(1))
    kit.write("metadata.csv", table)
    with pytest.raises(SourceError, match=words):
        prepare(str(kit.source), kit.out, format="metadata")


def test_tables_that_differ_are_refused(kit):
    """CSV of other columns, and CSV beside JSON lines."""
    kit.write("train/1.wav", kit.wav(1))
    kit.write("test/2.wav", kit.wav(2))
    kit.write("train/metadata.csv", "file_name,text\n1.wav,one\n")
    kit.write("test/metadata.csv", "file_name,words\n2.wav,two\n")
    with pytest.raises(SourceError, match=r"only one of .* has the column 'text'"):
        prepare(str(kit.source), kit.out)
    (kit.source / "test/metadata.csv").unlink()
    kit.write("test/metadata.jsonl", json.dumps({"file_name": "2.wav", "text": "two"}))
    with pytest.raises(SourceError, match="some tables are CSV, others are JSON lines"):
        prepare(str(kit.source), kit.out)


def test_a_line_of_ljspeech_with_other_values_is_refused(kit):
    """The message names the line."""
    kit.write("wavs/a.wav", kit.wav(1))
    kit.write("metadata.csv", "a|one|one\nb|two\n")
    with pytest.raises(SourceError, match=r"metadata\.csv, line 2: 2 values for 3 columns"):
        prepare(str(kit.source), kit.out)


def test_a_folder_without_a_table_is_refused(kit):
    """Where metadata is asked for."""
    kit.write("1.wav", kit.wav(1))
    with pytest.raises(SourceError, match=r"there is no metadata\.csv or metadata\.jsonl"):
        prepare(str(kit.source), kit.out, format="metadata")
