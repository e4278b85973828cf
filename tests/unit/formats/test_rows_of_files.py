"""Sounds, documents and other files are read in place as `mds.convert` writes them."""

import bz2
import gzip
import io
import json
import lzma
import wave

import numpy as np
import pictures
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mds import StreamingDataset
from mds.errors import ConfigError, FormatError, NotFoundError, ReplacedError
from mds.formats import AudioFiles, MetadataFiles, PairedFiles, RawFiles, TextFiles
from mds.formats._dataset import open_files, write_files_index
from mds.writers.convert import convert


def wav(number):
    """The bytes of a sound with ten samples."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(np.full(10, number, "<i2").tobytes())
    return buffer.getvalue()


def put(folder, **files):
    """Write files by their paths, in which "__" is a slash and "_" a dot."""
    for name, data in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())


def of(place, kind, **more):
    return StreamingDataset(local=str(place), format=kind, batch_size=1, **more)


def same_as_converted(tmp_path, kind, **options):
    """Read the files in place, through the cache and after a conversion; return the samples."""
    files = tmp_path / "files"
    samples = list(of(files, kind))
    cached = StreamingDataset(
        remote=files.as_uri(), local=str(tmp_path / "cache"), format=kind, batch_size=1
    )
    convert(str(files), str(tmp_path / "out"), durable=False, format=kind, **options)
    converted = list(StreamingDataset(local=str(tmp_path / "out"), batch_size=1))
    assert plain(samples) == plain(cached) == plain(converted)
    assert [[*sample] for sample in samples] == [[*sample] for sample in converted]
    return samples


def plain(samples):
    """Samples with the pixels of their pictures."""
    return [
        {name: value.tobytes() if name == "image" else value for name, value in sample.items()}
        for sample in samples
    ]


def test_sounds_have_their_bytes_and_paths(tmp_path):
    """Without folders of classes; they are stored as they are."""
    put(tmp_path / "files", b_wav=wav(2), a_flac=b"fLaC of one", c_mp3=b"ID3")
    samples = same_as_converted(tmp_path, "audio")
    assert samples[1] == {"audio": wav(2), "path": "b.wav"}


def test_sounds_in_folders_have_classes(tmp_path):
    """The class is the folder, the label its number."""
    put(tmp_path / "files", yes__1_wav=wav(1), no__2_wav=wav(2))
    samples = same_as_converted(tmp_path, "audio")
    assert samples[1] == {"audio": wav(1), "class": "yes", "label": 1, "path": "yes/1.wav"}
    dataset = of(tmp_path / "files", AudioFiles(samples_per_shard=1))
    assert dataset.class_names == {"label": ["no", "yes"]}


def test_sounds_are_decoded_by_their_encoding(tmp_path):
    """`encodings={"audio": "audio"}` gives samples and rate."""
    put(tmp_path / "files", a_wav=wav(3), b_wav=b"RIFF of no sound")
    dataset = of(tmp_path / "files", AudioFiles(encodings={"audio": "audio"}))
    sound, rate = dataset[0]["audio"]
    assert (sound.shape, sound.dtype, rate) == ((10, 1), np.float32, 16000)
    with pytest.raises(FormatError, match=r"b\.wav, column 'audio' \(audio\): encoding audio"):
        dataset[1]


def test_documents_have_their_text_and_paths(tmp_path):
    """A mark is no text, compressed files are decompressed by content, Python says its encoding."""
    put(
        tmp_path / "files",
        a_txt="one\r\ntwo",
        b_md="\ufeffthree",
        c_py="# coding: latin-1\nx = 'é'\n".encode("latin-1"),
        d__e_txt="",
    )
    samples = same_as_converted(tmp_path, "text")
    assert [sample["text"] for sample in samples] == [
        "one\r\ntwo", "three", "# coding: latin-1\nx = 'é'\n", "",
    ]  # fmt: skip
    put(tmp_path / "packed", a_txt_gz=gzip.compress(b"a"), b_txt=bz2.compress(b"b"))
    put(tmp_path / "packed", c_txt_xz=lzma.compress(b"c"), d_jpg=b"left out")
    packed = of(tmp_path / "packed", "text")
    assert [sample["text"] for sample in packed] == ["a", "b", "c"]


def test_documents_have_another_encoding_by_name(tmp_path):
    """A file that is not UTF-8 is named, with its line; the encoding helps."""
    put(tmp_path / "files", a_txt="one", b_txt="x\nJosé".encode("cp1252"))
    with pytest.raises(FormatError, match=r"b\.txt, line 2, column 4: byte 0xe9 is not UTF-8"):
        list(of(tmp_path / "files", "text"))
    assert [s["text"] for s in of(tmp_path / "files", "text", on_error="skip")] == ["one"]
    assert of(tmp_path / "files", TextFiles(encoding="cp1252"))[1]["text"] == "x\nJosé"


def test_documents_of_any_ending_are_read_if_there_are_no_others(tmp_path):
    """A folder of notes without an ending is a folder of documents if it is said so."""
    put(tmp_path / "files", LICENSE="free", NOTES="text")
    assert [sample["path"] for sample in of(tmp_path / "files", "text")] == ["LICENSE", "NOTES"]


def test_any_files_have_their_bytes_and_paths(tmp_path):
    """Whatever they are, in the order of their paths."""
    put(tmp_path / "files", b_dat=b"\3", a__x_bin=b"\1\2", c_jpg=b"no picture")
    samples = same_as_converted(tmp_path, "files")
    assert samples[0] == {"bytes": b"\1\2", "path": "a/x.bin"}


def test_a_manifest_gives_names_of_media(tmp_path):
    """Pictures are in the column image, sounds in audio, others in content, or as one likes."""
    put(tmp_path / "files", a_jpg=pictures.jpeg(1), b_jpg=pictures.jpeg(2), a_wav=wav(1))
    put(tmp_path / "files", p_csv="file_name,id\na.jpg,007\nb.jpg,012\n")
    put(tmp_path / "files", s_csv="path\na.wav\n", m_csv="path\na.wav\nb.jpg\n")
    for manifest, names in [
        ("p.csv", ["id", "image", "path"]),
        ("s.csv", ["audio", "path"]),
        ("m.csv", ["content", "path"]),
    ]:
        path = "file_name" if manifest == "p.csv" else "path"
        kind = RawFiles(manifest=manifest, path=path)
        assert [*of(tmp_path / "files", kind)[0]] == names
    sample = of(tmp_path / "files", RawFiles(manifest="p.csv", path="file_name", content="x"))[0]
    assert (sample["id"], sample["path"], sample["x"].size) == ("007", "a.jpg", (8, 8))


def test_an_index_of_a_manifest_keeps_the_names_of_media(tmp_path):
    """Its settings are those of a manifest of any files, so older indexes and states hold."""
    put(tmp_path / "files", a_jpg=pictures.jpeg(1), m_csv="path\na.jpg\n")
    kind = RawFiles(manifest="m.csv")
    assert kind.settings()["content"] == "content"
    write_files_index(*open_files(str(tmp_path / "files"), kind), str(tmp_path / "index"))
    dataset = StreamingDataset(remote=str(tmp_path / "index"), local=str(tmp_path / "cache"))
    assert [*dataset[0]] == ["image", "path"]
    assert "content" in of(tmp_path / "files", RawFiles(manifest="m.csv", content="content"))[0]


def test_a_manifest_has_no_other_column_of_paths(tmp_path):
    """The column that `path=` names becomes `path`, which must be free."""
    put(tmp_path / "files", a_bin=b"a", m_csv="file,path\na.bin,x\n")
    with pytest.raises(FormatError, match=r"m\.csv: the paths of the column 'file' become a col"):
        of(tmp_path / "files", RawFiles(manifest="m.csv", path="file"))


def test_a_file_that_is_no_sound_is_named(tmp_path):
    """Also one of many behind the cache; others are read."""
    put(tmp_path / "files", a_wav=wav(1), b_wav=b"<html>", c_wav=b"", d_wav=wav(4))
    dataset = of(tmp_path / "files", "audio")
    with pytest.raises(FormatError, match=r"b\.wav: this is not wav, flac, mp3 or ogg: it starts"):
        dataset[1]
    with pytest.raises(FormatError, match=r"c\.wav: it is empty"):
        dataset[2]
    skipping = of(tmp_path / "files", "audio", on_error="skip")
    assert [sample["path"] for sample in skipping] == ["a.wav", "d.wav"]


def test_a_file_that_changes_is_named(tmp_path):
    """A file that was listed and is gone, or another one, is an error at its sample."""
    put(tmp_path / "files", a_bin=b"a", b_bin=b"b", c_bin=b"c")
    dataset = of(tmp_path / "files", "files")
    (tmp_path / "files/b.bin").unlink()
    (tmp_path / "files/c.bin").write_bytes(b"other")
    assert dataset[0]["bytes"] == b"a"
    with pytest.raises(NotFoundError, match=r"b\.bin: .*, but it existed at the start"):
        dataset[1]
    with pytest.raises(ReplacedError, match=r"c\.bin: the file changed"):
        dataset[2]


@pytest.mark.parametrize("kind", [AudioFiles, TextFiles, RawFiles])
def test_a_shard_has_at_least_one_file(kind):
    """Another number is refused."""
    with pytest.raises(ConfigError, match="samples_per_shard=0 must be at least 1"):
        kind(samples_per_shard=0)


def test_shards_hold_so_many_files(tmp_path):
    """The last one holds what is left; columns without content read no file."""
    for number in range(7):
        put(tmp_path / "files", **{f"{number}_bin": bytes([number])})
    dataset = of(tmp_path / "files", RawFiles(samples_per_shard=3), columns=["path"])
    (tmp_path / "files/4.bin").unlink()
    assert dataset.samples_per_shard.tolist() == [3, 3, 1]
    assert [sample["path"] for sample in dataset] == [f"{number}.bin" for number in range(7)]


# ------------------------------------------------------------------ tables


def test_sounds_have_the_rows_of_their_table(tmp_path):
    """In the order of paths, however rows are sorted; numbers are numbers, codes are texts."""
    table = "file_name,text,age,id\nd/2.wav,two,7,007\nd/1.wav,one,9,012\n"
    put(tmp_path / "files", d__1_wav=wav(1), d__2_wav=wav(2), metadata_csv=table)
    samples = same_as_converted(tmp_path, "metadata")
    row = {"age": 9, "audio": wav(1), "id": "012", "path": "d/1.wav", "text": "one"}
    assert samples[0] == row


@pytest.mark.parametrize("ending", ["csv", "csv_gz", "tsv", "jsonl", "parquet"])
def test_a_table_of_any_kind_has_rows(tmp_path, ending):
    """A compressed table is known by its content."""
    rows = [{"file_name": f"{n}.jpg", "n": n} for n in range(3)]
    put(tmp_path / "files", **{f"{n}_jpg": pictures.jpeg(n) for n in range(3)})
    text = "file_name,n\n" + "".join(f"{n}.jpg,{n}\n" for n in range(3))
    content = {
        "csv": text,
        "csv_gz": gzip.compress(text.encode()),
        "tsv": text.replace(",", "\t"),
        "jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "parquet": parquet(rows),
    }[ending]
    put(tmp_path / "files", **{f"metadata_{ending}": content})
    samples = list(of(tmp_path / "files", "metadata"))
    assert [(sample["path"], sample["n"]) for sample in samples] == [
        ("0.jpg", 0), ("1.jpg", 1), ("2.jpg", 2),
    ]  # fmt: skip
    assert [*samples[0]] == ["image", "n", "path"]


def parquet(rows):
    """The bytes of a Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def test_a_table_has_any_separator(tmp_path):
    """As tables that are read alone."""
    table = "file_name;text\n1.wav;a, b\n"
    put(tmp_path / "files", **{"1_wav": wav(1), "metadata_csv": table})
    assert same_as_converted(tmp_path, "metadata")[0]["text"] == "a, b"


def test_ljspeech_has_a_table_without_a_header(tmp_path):
    """Lines of id|text|text name sounds in wavs; a quote is a letter."""
    put(tmp_path / "files", wavs__LJ1_wav=wav(1), metadata_csv='LJ1|No. 1, "q|Number "q\n')
    (sample,) = same_as_converted(tmp_path, "metadata")
    assert (sample["id"], sample["text"], sample["normalized_text"]) == (
        "LJ1", 'No. 1, "q', 'Number "q',
    )  # fmt: skip
    put(tmp_path / "files", metadata_csv="LJ1|one|one\nLJ2|two\n")
    with pytest.raises(FormatError, match=r"metadata\.csv, line 2: 2 values for 3 columns"):
        of(tmp_path / "files", "metadata")


def test_a_table_may_name_files_of_another_folder(tmp_path):
    """Common Voice: train.tsv and test.tsv with the names of clips; other tables are left out."""
    for name in "abcd":
        put(tmp_path / "files", **{f"clips__{name}_mp3": b"ID3" + name.encode()})
    put(tmp_path / "files", train_tsv="path\ttext\nb.mp3\tB\na.mp3\tA\n")
    put(tmp_path / "files", test_tsv="path\ttext\nc.mp3\tC\n", other_tsv="path\nb.mp3\n")
    dataset = of(tmp_path / "files", "metadata", split="train")
    assert list(dataset) == [
        {"audio": b"ID3a", "path": "clips/a.mp3", "text": "A"},
        {"audio": b"ID3b", "path": "clips/b.mp3", "text": "B"},
    ]
    assert len(list(of(tmp_path / "files", "metadata", split="test"))) == 1
    assert "files that no table lists" in str(dataset.explain())
    chosen = of(tmp_path / "files", MetadataFiles(labels="other.tsv"), on_error="skip")
    assert [sample["path"] for sample in chosen] == ["clips/b.mp3"]


def test_a_row_and_its_file_belong_together(tmp_path):
    """A row without its file, and a file without a row, are problems; others can be read."""
    put(tmp_path / "files", a_wav=wav(1), b_wav=wav(2))
    put(tmp_path / "files", metadata_csv="file_name,text\na.wav,A\nc.wav,C\n")
    with pytest.raises(FormatError, match=r"b\.wav: no row of metadata\.csv lists it"):
        list(of(tmp_path / "files", "metadata"))
    (tmp_path / "files/b.wav").unlink()
    with pytest.raises(FormatError, match=r"c\.wav: metadata\.csv lists it, but there is no such"):
        list(of(tmp_path / "files", "metadata"))
    skipping = of(tmp_path / "files", "metadata", on_error="skip")
    assert [sample["path"] for sample in skipping] == ["a.wav"]


def test_columns_of_a_table_take_other_encodings(tmp_path):
    """A code stays a text, a list becomes an array, and cells may be missing."""
    put(tmp_path / "files", a_wav=wav(1), b_wav=wav(2))
    put(tmp_path / "files", metadata_csv="file_name,id,age\na.wav,7,NA\nb.wav,12,8\n")
    kind = MetadataFiles(encodings={"id": "str"}, null=["NA"])
    samples = list(of(tmp_path / "files", kind, columns=["id", "age"]))
    assert samples == [{"age": None, "id": "7"}, {"age": 8, "id": "12"}]
    (tmp_path / "files/metadata.csv").unlink()
    rows = [{"file_name": "a.wav", "box": [1, 2]}, {"file_name": "b.wav", "box": [3, 4]}]
    put(tmp_path / "files", metadata_jsonl="".join(json.dumps(row) + "\n" for row in rows))
    kind = MetadataFiles(encodings={"box": "ndarray:float32:2"})
    assert of(tmp_path / "files", kind)[1]["box"].tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("file_name,text\n../1.wav,one\n", r"metadata\.csv: '\.\./1\.wav' is outside the folder"),
        ("file_name,text\n/tmp/1.wav,one\n", r"'/tmp/1\.wav' is outside the folder"),
        ("file_name,text\n1.wav,one\n./1.wav,two\n", r"metadata\.csv: 1\.wav is listed twice"),
        ("file_name,audio\n1.wav,one\n", r"metadata\.csv: the table has a column 'audio', which"),
        ("file,text\n1.wav,one\n", "column 'file_name' is missing. The first line of a CSV must"),
        ("file_name,text\n,one\n", "column 'file_name' must have paths, got ''"),
        ("file_name,text\n1.wav,one\n2.jpg,two\n", "or sounds, but this one lists both"),
        ("file_name,text\n1.wav,one\n2.mp4,two\n", r"or sounds, but 2\.mp4 is neither"),
        ("file_name,text\n", r"metadata\.csv: there are no records to convert"),
        ("file_name,text\n1.wav\n", r"metadata\.csv, line 2: 1 value for 2 columns"),
    ],
)
def test_a_table_that_cannot_be_joined_is_refused(tmp_path, table, words):
    """The message names the table and what is wrong in it."""
    put(tmp_path / "files", **{"1_wav": wav(1), "metadata_csv": table})
    with pytest.raises(FormatError, match=words):
        of(tmp_path / "files", "metadata")


def test_a_folder_without_a_table_has_no_metadata(tmp_path):
    """Nor has one with several tables that have no name by which to choose."""
    put(tmp_path / "files", **{"1_wav": wav(1)})
    with pytest.raises(FormatError, match=r"there is no metadata\.csv or metadata\.jsonl"):
        of(tmp_path / "files", "metadata")
    put(tmp_path / "files", a_csv="x\n1.wav\n", b_csv="x\n1.wav\n")
    with pytest.raises(FormatError, match=r"several tables \(a\.csv, b\.csv\).* by labels="):
        of(tmp_path / "files", "metadata")
    assert of(tmp_path / "files", MetadataFiles(labels="b.csv"))[0]["path"] == "1.wav"
    with pytest.raises(FormatError, match=r"c\.csv: this table of labels does not exist"):
        of(tmp_path / "files", MetadataFiles(labels="c.csv"))


# ------------------------------------------------------------------ pairs


def test_pictures_have_the_texts_of_their_names(tmp_path):
    """Beside them, or in another folder."""
    for number in range(3):
        put(tmp_path / "files", **{f"img__{number}_jpg": pictures.jpeg(number)})
        put(tmp_path / "files", **{f"txt__{number}_txt": f"caption {number}"})
    samples = same_as_converted(tmp_path, "paired")
    assert (samples[2]["path"], samples[2]["text"]) == ("img/2.jpg", "caption 2")


def test_sounds_have_the_lines_of_transcripts(tmp_path):
    """By the first word of a line; the text may have another encoding."""
    put(tmp_path / "files", a_flac=b"fLaC1", b_flac=b"fLaC2")
    put(tmp_path / "files", c_trans_txt="a UNE F\u00caTE\nb TWO  WORDS\n".encode("cp1252"))
    with pytest.raises(FormatError, match=r"c\.trans\.txt: the transcripts cannot be read: line 1"):
        of(tmp_path / "files", "paired")
    samples = list(of(tmp_path / "files", PairedFiles(encoding="cp1252")))
    assert [sample["text"] for sample in samples] == ["UNE F\u00caTE", "TWO  WORDS"]


def test_files_without_a_partner_are_left_out(tmp_path):
    """If nine of ten have one; else the files are no pairs."""
    for number in range(10):
        put(tmp_path / "files", **{f"{number}_jpg": pictures.jpeg(number), f"{number}_txt": "x"})
    put(tmp_path / "files", alone_jpg=pictures.jpeg(1))
    dataset = of(tmp_path / "files", "paired")
    assert len(dataset) == 10
    assert "files without a partner, such as alone.jpg" in str(dataset.explain())
    for number in range(4):
        (tmp_path / f"files/{number}.txt").unlink()
    with pytest.raises(FormatError, match="less than 90 % of the files are pictures or sounds"):
        of(tmp_path / "files", "paired")
