"""Which kind of files a location has: the same for reading in place and for converting."""

import pytest
from click.testing import CliRunner

import mds
from mds._cli import main
from mds.errors import ConfigError, SourceError
from mds.formats import RawFiles
from mds.formats._detect import Endings, format_of_files, kind_of_files
from mds.writers.convert import prepare

KINDS = [
    ("images", ["a/1.jpg", "b/2.PNG", "b/3.webp"]),
    ("images", ["1.jpg", "2.jpg", "labels.csv"]),
    ("images", ["img/1.jpg", "rows.jsonl"]),
    ("audio", ["a.wav", "x/b.flac"]),
    ("metadata", ["a.wav", "b.wav", "metadata.csv"]),
    ("metadata", ["clips/a.mp3", "train.tsv", "test.tsv"]),
    ("metadata", ["train/1.jpg", "train/metadata.csv", "test/1.jpg", "test/metadata.csv"]),
    ("paired", ["1.jpg", "1.txt", "2.jpg", "2.txt"]),
    ("paired", ["images/1.png", "labels/1.xml"]),
    ("paired", ["84/1-0.flac", "84/1-1.flac", "84/1.trans.txt"]),
    ("text", ["a.txt", "src/b.py", "c.md"]),
    ("text", ["a.txt.gz"]),
    ("jsonl", ["a.jsonl", "b.ndjson.gz", "c.jsonl.zst"]),
    ("jsonl", ["a.json"]),
    ("csv", ["a.csv", "b.tsv.gz"]),
    ("parquet", ["a.parquet", "x=1/b.pq"]),
    ("arrow", ["data-00000.arrow", "state.json", "dataset_info.json"]),
    ("tar", ["0.tar", "1.tgz", "2.tar.gz", "0.tar.idx", "1_stats.json"]),
    ("megatron", ["a.bin", "a.idx", "b.bin", "b.idx"]),
    ("files", ["a.heic", "b.heic"]),
    ("files", ["a.bin", "b.bin"]),
    # Companions do not count.
    ("images", ["1.jpg", "README.md", "LICENSE", "CITATION.cff", "sub/readme.txt"]),
    ("images", ["license_plate_1.jpg", "license_plate_2.jpg"]),
    ("parquet", ["a.parquet", "_SUCCESS", "_metadata", "a.parquet.crc", "_old/b.json"]),
    ("csv", ["a.csv", "LICENSE"]),
    ("text", ["README.md", "LICENSE.txt"]),
    ("jsonl", ["a.jsonl", "dataset_infos.json", "index.json", "index.files.bin"]),
]


@pytest.mark.parametrize(("kind", "names"), KINDS)
def test_all_data_files_of_a_folder_are_of_one_kind(tmp_path, kind, names):
    """The kind follows from the names, whatever their order; tables beside sounds are read."""
    sounds = [name.rpartition("/")[2] for name in names if name.endswith((".wav", ".mp3"))]
    tables = [name for name in names if name.endswith((".csv", ".tsv"))]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        rows = sounds if name in tables[:1] else []
        (tmp_path / name).write_text("\n".join(["file_name", *rows]))
    endings = Endings()
    assert kind_of_files(names, str(tmp_path), endings) == kind
    assert kind_of_files(names[::-1], str(tmp_path), endings) == kind


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["1.jpg", "a.wav"], "1 audio such as a.wav, 1 images such as 1.jpg"),
        (["1.jpg"] * 99 + ["a.pdf"], "99 images such as 1.jpg, 1 files such as a.pdf"),
        (["1.jpg", "x.csv", "y.csv"], "2 csv such as x.csv, 1 images .* --labels FILE"),
        (["1.jpg", "2.jpg", "a.txt"], "2 images such as 1.jpg, 1 text such as a.txt"),
        (["a.parquet", "b.jsonl"], "1 jsonl such as b.jsonl, 1 parquet such as a.parquet"),
        (["a.bin", "b.idx", "c.txt"], "2 files such as a.bin, 1 text such as c.txt"),
    ],
)
def test_files_of_several_kinds_are_an_error(names, words):
    """It names the kinds, with the command for each."""
    with pytest.raises(ConfigError, match=f"folder has files of several kinds: {words}") as told:
        kind_of_files(names, "data", Endings())
    assert "--format files (format='files')" in str(told.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [("a.zip", "unpack it"), ("a.xlsx", "as CSV"), ("a.pkl", "MDSWriter"), ("x/a.h5", "MDSWriter")],
)
def test_files_that_no_format_reads_are_refused(tmp_path, name, words):
    """In place and converted, with what to do."""
    (tmp_path / "data" / name).parent.mkdir(parents=True)
    (tmp_path / "data" / name).write_bytes(b"x")
    for read in (mds.StreamingDataset, lambda path: prepare(path, str(tmp_path / "out"))):
        for path in (tmp_path / "data", tmp_path / "data" / name):
            told = f"^{tmp_path}/data/{name}: .*{words}.*--format files"
            with pytest.raises((ConfigError, SourceError), match=told):
                read(str(path))


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("s3://bucket/{00..12}.tar", "tar"),
        ("s3://bucket/*.tar.gz", "tar"),
        ("http://host/a.jsonl", "jsonl"),
        ("s3://bucket/data/*.txt", "text"),
        ("s3://bucket/tokens.bin", "megatron"),
        ("s3://bucket/v1.metadata.json", "iceberg"),
        ("s3://bucket/*.jpg", "images"),
        ("s3://bucket/data", None),
    ],
)
def test_a_url_or_a_pattern_has_the_kind_of_its_ending(url, kind):
    """A folder behind a network is not listed, so it is taken for MDS."""
    found = format_of_files(url)
    assert (None if found is None else found.name) == kind


def test_a_pattern_of_no_format_is_an_error():
    """The error names the formats."""
    with pytest.raises(ConfigError, match="its ending belongs to no format; give format=, one of"):
        format_of_files("s3://bucket/*.heic")


def test_shards_of_mds_are_no_files(tmp_path):
    """A folder of shards without an index is MDS, and so is one with an index."""
    (tmp_path / "shard.00000.mds").write_bytes(b"x")
    assert format_of_files(str(tmp_path)) is None
    (tmp_path / "shard.00000.mds").unlink()
    assert format_of_files(str(tmp_path)) is None
    (tmp_path / "a.jsonl").write_text("{}\n")
    assert format_of_files(str(tmp_path)).name == "jsonl"
    (tmp_path / "index.json").write_text("{}")
    assert format_of_files(str(tmp_path)) is None
    assert format_of_files(str(tmp_path), beside_index=True).name == "jsonl"


@pytest.mark.parametrize("ending", ["bin", "BIN"])
def test_one_file_of_tokens_has_an_index(tmp_path, ending):
    """A .bin file is one of Megatron-LM if an .idx file lies beside it."""
    path = tmp_path / f"a.{ending}"
    path.write_bytes(b"x")
    assert format_of_files(str(path)).name == "files"
    (tmp_path / "a.idx").write_bytes(b"x")
    assert format_of_files(str(path)).name == "megatron"


def test_companions_are_no_samples(tmp_path):
    """Beside others they are left out, unless every file is wanted."""
    for name in ("README.md", "a.txt", "sub/b.txt"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text(name)
    for kind, names in (
        ("text", ["a.txt", "sub/b.txt"]),
        ("files", ["README.md", "a.txt", "sub/b.txt"]),
    ):
        dataset = mds.StreamingDataset(str(tmp_path / "data"), format=kind, batch_size=1)
        assert [sample["path"] for sample in dataset] == names
    assert (
        "such as README.md" in mds.StreamingDataset(str(tmp_path / "data"), batch_size=1).explain()
    )
    (tmp_path / "data" / "a.txt").unlink()
    (tmp_path / "data" / "sub" / "b.txt").unlink()
    assert mds.StreamingDataset(str(tmp_path / "data"), batch_size=1)[0]["text"] == "README.md"


#: Files that no format reads, and companions of them.
ANY_FILES = ["a.heic", "sub/b.heic"]
COMPANIONS = [
    *("LICENSE", "README.md", "_SUCCESS", "a.heic.crc", "sub/README.txt", "sub/_SUCCESS"),
    "sub/b.heic.crc",
]


def test_companions_of_files_that_no_format_reads_are_no_samples(tmp_path):
    """In place, converted and indexed; they were samples, though they do not count for the kind."""
    folder = tmp_path / "data"
    for name in (*ANY_FILES, *COMPANIONS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    dataset = mds.StreamingDataset(str(folder), batch_size=1)
    assert [sample["path"] for sample in dataset] == ANY_FILES
    explanation = " ".join(str(dataset.explain()).split())
    assert f"left out {len(COMPANIONS)} files of another kind, such as LICENSE" in explanation
    cached = mds.StreamingDataset(folder.as_uri(), local=str(tmp_path / "cache"), batch_size=1)
    assert [sample["path"] for sample in cached] == ANY_FILES
    for number, more in enumerate(({}, {"keep_shards": True})):
        made = prepare(str(folder), str(tmp_path / f"out{number}"), **more)
        assert f"left out of the folder: {len(COMPANIONS)} files of another kind" in "".join(
            made.source.notes
        )
        made.run()
        converted = mds.LocalDataset(str(tmp_path / f"out{number}"))
        assert [sample["path"] for sample in converted] == ANY_FILES
    for number, more in enumerate(([], ["--set", "samples_per_shard=1"])):
        index = str(tmp_path / f"index{number}")
        command = ["index", str(folder), index, *more]
        assert not CliRunner().invoke(main, command, catch_exceptions=False).exit_code
        pinned = mds.StreamingDataset(index, batch_size=1)
        assert [sample["path"] for sample in pinned] == ANY_FILES
        assert pinned.num_shards == 1 + bool(more)


def test_every_file_is_a_sample_of_a_format_that_is_named(tmp_path):
    """Unless a setting leaves companions out; the datasets do not share a table of files."""
    for name in (*ANY_FILES, *COMPANIONS):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text(name)
    for kind, names in (
        ("files", [*ANY_FILES, *COMPANIONS]),
        (RawFiles(companions=False), ANY_FILES),
        ("files", [*ANY_FILES, *COMPANIONS]),
        (None, ANY_FILES),
    ):
        dataset = mds.StreamingDataset(str(tmp_path / "data"), format=kind, batch_size=1)
        assert [sample["path"] for sample in dataset] == sorted(names)
        out = tmp_path / "out"
        mds.convert(tmp_path / "data", out, format=kind, overwrite=True)
        assert [sample["path"] for sample in mds.LocalDataset(out)] == sorted(names)
    assert RawFiles().settings().get("companions") is None
    with pytest.raises(ConfigError, match="companions= must be True or False, got 'some'"):
        RawFiles(companions="some")


def test_companions_alone_are_samples(tmp_path):
    """As for other formats: a folder is not empty if it has files."""
    for name in ("LICENSE", "_SUCCESS", "a.crc"):
        (tmp_path / name).write_text(name)
    dataset = mds.StreamingDataset(str(tmp_path), batch_size=1)
    assert [sample["path"] for sample in dataset] == ["LICENSE", "_SUCCESS", "a.crc"]
