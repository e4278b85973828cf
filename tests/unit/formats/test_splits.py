"""Splits of files that are read in place: named by folders or file names, chosen with split=."""

import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mds.compat.streaming  # noqa: F401 - the tests import `streaming`
from devtools.httpserver import http_server
from mds import LocalDataset, Stream, StreamingDataset
from mds.errors import ConfigError, FormatError, NotFoundError, StateError
from mds.formats import ImageFiles, RawFiles
from mds.storage._memory import MemoryStore
from mds.writers.convert import convert
from tests.unit.formats import tars
from tests.unit.formats.pictures import jpeg

FORMATS = ["jsonl", "lines", "parquet", "tar"]
ENDINGS = {"jsonl": ".jsonl", "lines": ".txt", "parquet": ".parquet", "tar": ".tar"}
COLUMNS = {"jsonl": "v", "lines": "text", "parquet": "v", "tar": "txt"}


def write(root, kind, *names):
    """Write a file of one sample for each name without ending; its value is the name."""
    for name in names:
        path = pathlib.Path(root, name + ENDINGS[kind])
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "parquet":
            pq.write_table(pa.table({"v": [name]}), path)
        elif kind == "tar":
            tars.by_python(path, [("0.txt", name.encode())])
        else:
            path.write_text(json.dumps({"v": name}) + "\n" if kind == "jsonl" else name + "\n")


def write_pictures(root, *names):
    """Write pictures."""
    for name in names:
        path = pathlib.Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(1))


def read(place, kind, **options):
    """Return the values of all samples."""
    dataset = StreamingDataset(str(place), format=kind, batch_size=1, **options)
    return [sample[COLUMNS[kind]] for sample in dataset]


def labels(place, **options):
    """Return class and label of each picture."""
    dataset = StreamingDataset(str(place), format="images", batch_size=1, **options)
    return [(sample["class"], sample["label"]) for sample in dataset]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("train", "val"),
    [("train/a", "val/a"), ("train-0", "val-0"), ("en/train/a", "en/val/a"), ("x.train", "val/b")],
)
def test_one_split_is_chosen_and_all_can_be_mixed(tmp_path, kind, train, val):
    """Without split= it is an error that names them, with the words for both."""
    files = tmp_path / "files"
    write(files, kind, train, val)
    assert read(files, kind, split="train") == [train]
    assert read(files, kind, split="val") == [val]
    assert read(files, kind, split="all") == sorted([train, val])
    with pytest.raises(FormatError, match=r"splits \(train, val\).*split='val'.*split='all'"):
        read(files, kind)
    convert(str(files), str(tmp_path / "out"), format=kind, durable=False)
    assert [s[COLUMNS[kind]] for s in LocalDataset(tmp_path / "out" / "train")] == [train]


@pytest.mark.parametrize("kind", FORMATS)
def test_one_split_alone_is_none(tmp_path, kind):
    """All files are read with its name and without; so are files of which some have no split."""
    write(tmp_path / "a", kind, "train-0", "train-1")
    write(tmp_path / "b", kind, "train/0", "train/1")
    write(tmp_path / "c", kind, "train/0", "train/1", "extra/2")
    for name in "ab":
        assert len(read(tmp_path / name, kind)) == 2
        assert len(read(tmp_path / name, kind, split="train")) == 2
    assert len(read(tmp_path / "c", kind)) == 3
    assert len(read(tmp_path / "c", kind, split="train")) == 2  # the folder


def test_other_names_are_folders(tmp_path):
    """Also below the folder of a language; a folder `all` is meant before all splits."""
    write(tmp_path, "jsonl", "en/train/a", "en/val/a", "de/train/a", "de/val/a", "all/train/b")
    assert read(tmp_path, "jsonl", split="en/train") == ["en/train/a"]
    assert read(tmp_path, "jsonl", split="train") == ["all/train/b", "de/train/a", "en/train/a"]
    assert read(tmp_path, "jsonl", split="all") == ["all/train/b"]
    with pytest.raises(FormatError, match=r"en: the files are splits \(train, val\)"):
        read(tmp_path, "jsonl", split="en")


def test_a_split_that_does_not_exist_names_those_that_do(tmp_path):
    """Or says that files have none."""
    write(tmp_path / "a", "jsonl", "train", "val")
    write(tmp_path / "b", "jsonl", "train", "extra")
    with pytest.raises(NotFoundError, match="no split 'test': the splits are train, val"):
        read(tmp_path / "a", "jsonl", split="test")
    with pytest.raises(NotFoundError, match="no split 'train': not every file is named after"):
        read(tmp_path / "b", "jsonl", split="train")


def test_patterns_and_single_files_have_splits(tmp_path):
    """A pattern of several splits needs split=; one of a single split does not."""
    write(tmp_path, "jsonl", "train-0", "train-1", "val-0", "notes")
    pattern = tmp_path / "[tv]*.jsonl"
    with pytest.raises(FormatError, match=r"splits \(train, val\)"):
        read(pattern, "jsonl")
    assert read(pattern, "jsonl", split="val") == ["val-0"]
    assert read(pattern, "jsonl", split="all") == ["train-0", "train-1", "val-0"]
    assert read(tmp_path / "train-*.jsonl", "jsonl") == ["train-0", "train-1"]
    assert read(tmp_path / "val-0.jsonl", "jsonl", split="val") == ["val-0"]
    with pytest.raises(NotFoundError, match="there is no split 'train'"):
        read(tmp_path / "val-0.jsonl", "jsonl", split="train")


def test_the_format_is_found_in_the_folder_of_a_split_or_above_it(tmp_path):
    """Other folders may have files of other formats."""
    write(tmp_path / "a", "jsonl", "train", "val")
    write(tmp_path / "b", "jsonl", "train/a")
    write(tmp_path / "b", "parquet", "val/a")
    for name, value in (("a", "train"), ("b", "train/a")):
        dataset = StreamingDataset(str(tmp_path / name), split="train", batch_size=1)
        assert [sample["v"] for sample in dataset] == [value]


def test_a_store_is_read_in_the_same_way(tmp_path):
    """Listed once; each split has a cache of its own below one cache folder."""
    write(tmp_path, "jsonl", "train-0", "val-0")
    store = MemoryStore("memory://splits-of-a-store")
    for path in tmp_path.iterdir():
        store.put(path.name, path.read_bytes())
    for split in ("train", "val", "train"):
        dataset = StreamingDataset(
            remote=store.url, local=str(tmp_path / "cache"), split=split, format="jsonl",
            batch_size=1,
        )  # fmt: skip
        assert [sample["v"] for sample in dataset] == [f"{split}-0"]
    with pytest.raises(FormatError, match=r"splits \(train, val\)"):
        StreamingDataset(remote=store.url, format="jsonl", local=str(tmp_path / "c"), batch_size=1)


def test_a_web_server_needs_names_and_no_listing(tmp_path):
    """A pattern of ranges is spelled out before a split is chosen."""
    write(tmp_path / "files", "jsonl", "train-0", "train-1", "val-0", "val-1")
    with http_server(str(tmp_path / "files")) as url:
        dataset = StreamingDataset(
            remote=f"{url}/{{train,val}}-{{0..1}}.jsonl", local=str(tmp_path / "c"), split="val",
            batch_size=1,
        )  # fmt: skip
        assert [sample["v"] for sample in dataset] == ["val-0", "val-1"]


def test_two_splits_of_a_folder_can_be_streams_of_one_dataset(tmp_path):
    """Read in place from the same folder."""
    write(tmp_path, "jsonl", "train", "val")
    streams = [Stream(local=str(tmp_path), split=split) for split in ("val", "train")]
    assert [s["v"] for s in StreamingDataset(streams=streams, batch_size=1)] == ["val", "train"]


def test_a_state_of_a_split_does_not_resume_with_other_files(tmp_path):
    """It says which files it belongs to."""
    write(tmp_path, "jsonl", "train-0", "train-1", "val-0")
    dataset = StreamingDataset(str(tmp_path), split="train", batch_size=1)
    state = dataset.state_dict(num_samples=1)
    again = StreamingDataset(str(tmp_path), split="train", batch_size=1)
    again.load_state_dict(state)
    assert [sample["v"] for sample in again] == ["train-1"]
    mixed = StreamingDataset(str(tmp_path), split="all", batch_size=1)
    with pytest.raises(StateError, match=r"belongs to 2 files of jsonl, but .* has 3 files"):
        mixed.load_state_dict(state)


def test_an_index_is_read_as_it_is(tmp_path):
    """In the folder of a split, and one of all splits in the folder above."""
    from mds.formats._dataset import open_files, write_files_index

    write(tmp_path, "jsonl", "train/a", "val/a")
    write_files_index(*open_files(str(tmp_path / "train")))
    write(tmp_path, "jsonl", "train/b")
    dataset = StreamingDataset(str(tmp_path), split="train", batch_size=1)
    assert [sample["v"] for sample in dataset] == ["train/a"]
    write_files_index(*open_files(str(tmp_path), split="all"))
    dataset = StreamingDataset(str(tmp_path), batch_size=1)
    assert [sample["v"] for sample in dataset] == ["train/a", "train/b", "val/a"]


def test_the_split_of_mosaic_data_shards_is_a_folder(tmp_path):
    """Also `all`; and of other files through `import streaming`."""
    write(tmp_path / "files", "jsonl", "train-0", "val-0", "train/x")
    convert([{"v": 1}], str(tmp_path / "shards" / "all"), durable=False)
    assert len(StreamingDataset(str(tmp_path / "shards"), split="all", batch_size=1)) == 1
    with pytest.raises(NotFoundError):
        StreamingDataset(str(tmp_path / "shards"), split="train", batch_size=1)
    import streaming

    files = str(tmp_path / "files")
    dataset = streaming.StreamingDataset(local=files, split="train", batch_size=1)
    assert [sample["v"] for sample in dataset] == ["train/x"]


def test_the_split_of_files_that_a_table_names_is_the_folder_of_the_table(tmp_path):
    """Its rows may name files of any folders."""
    for split in ("train", "val"):
        write(tmp_path / split, "lines", "test")
        (tmp_path / split / "rows.csv").write_text("path\ntest.txt\n")
    kind = RawFiles(manifest="rows.csv")
    assert len(StreamingDataset(str(tmp_path), split="val", format=kind, batch_size=1)) == 1


class TestPictures:
    """Labels of pictures are numbers of the classes of all splits."""

    @pytest.mark.parametrize("form", ["{split}/{name}/1.jpg", "{name}/{split}/1.jpg"])
    def test_labels_of_one_split_are_those_of_all(self, tmp_path, form):
        """The class is the first folder that is no split; class names are complete."""
        pairs = [("train", "ant"), ("train", "cat"), ("test", "bee"), ("test", "cat")]
        write_pictures(tmp_path, *(form.format(split=s, name=n) for s, n in pairs))
        assert labels(tmp_path, split="train") == [("ant", 0), ("cat", 2)]
        assert labels(tmp_path, split="test") == [("bee", 1), ("cat", 2)]
        assert sorted(labels(tmp_path, split="all")) == [*zip(
            ("ant", "bee", "cat", "cat"), (0, 1, 2, 2), strict=True
        )]  # fmt: skip
        dataset = StreamingDataset(str(tmp_path), split="test", format="images", batch_size=1)
        assert dataset.class_names == {"label": ["ant", "bee", "cat"]}
        with pytest.raises(FormatError, match=r"splits \(test, train\)"):
            labels(tmp_path)

    def test_a_class_named_after_a_split_is_a_class_beside_others(self, tmp_path):
        """So is one that is chosen by its folder."""
        write_pictures(tmp_path, "train/1.jpg", "cat/2.jpg")
        assert labels(tmp_path) == [("cat", 0), ("train", 1)]

    def test_one_split_alone_is_no_class(self, tmp_path):
        """Its folder is passed over, with split= and without."""
        write_pictures(tmp_path, "train/cat/1.jpg", "train/dog/1.jpg")
        for options in ({}, {"split": "train"}):
            assert labels(tmp_path, **options) == [("cat", 0), ("dog", 1)]

    def test_names_of_pictures_name_no_splits(self, tmp_path):
        """A picture is one sample."""
        write_pictures(tmp_path, "train.jpg", "test.jpg")
        dataset = StreamingDataset(str(tmp_path), format="images", batch_size=1)
        assert [sample["path"] for sample in dataset] == ["test.jpg", "train.jpg"]

    def test_a_shard_has_pictures_of_one_split(self, tmp_path):
        """Also where splits are below classes and all are mixed."""
        names = [f"{n}/{s}/{i}.jpg" for n in "ab" for s in ("train", "val") for i in range(3)]
        write_pictures(tmp_path, *names)
        kind = ImageFiles(samples_per_shard=4)
        dataset = StreamingDataset(str(tmp_path), split="all", format=kind, batch_size=1)
        assert [shard.samples for shard in dataset.shards] == [4, 2, 4, 2]
        assert len(dataset) == 12


def test_a_folder_of_a_store_that_is_no_split_is_listed_alone(monkeypatch):
    """A listing of its siblings would cost requests."""
    store = MemoryStore("memory://folders-of-languages")
    for name in ("en/a.jsonl", "de/a.jsonl", "train/a.jsonl"):
        store.put(name, b'{"v": 1}\n')
    listed = []
    list_store = MemoryStore.list
    monkeypatch.setattr(
        MemoryStore,
        "list",
        lambda self, *a, **k: listed.append(self.url) or list_store(self, *a, **k),
    )
    dataset = StreamingDataset(remote=store.url, split="en", format="jsonl", batch_size=1)
    assert len(dataset) == 1
    assert {*listed} == {f"{store.url}/en"}


def test_mds_index_takes_a_split(tmp_path):
    """The index lists the files of the split, and needs a place of its own."""
    from click.testing import CliRunner

    from mds._cli.index_commands import index

    write(tmp_path / "files", "jsonl", "train-0", "train-1", "val-0")
    out = str(tmp_path / "out")
    run = CliRunner().invoke
    assert "splits (train, val)" in run(index, [str(tmp_path / "files"), out]).output
    assert "--split needs OUT" in run(index, [str(tmp_path / "files"), "--split", "val"]).output
    result = run(index, [str(tmp_path / "files"), out, "--split", "train"])
    assert result.exit_code == 0, result.output
    assert len(StreamingDataset(out, batch_size=1)) == 2


def test_commands_that_inspect_show_the_files_of_all_splits(tmp_path):
    """Nothing is left out of a check."""
    from mds._cli.datasets import describe, head

    write(tmp_path, "jsonl", "train-0", "val-0")
    assert describe(str(tmp_path)).samples == 2
    assert [sample["v"] for sample in head(str(tmp_path))] == ["train-0", "val-0"]


def test_split_is_checked_by_mosaic_data_shards_too(tmp_path):
    """A split that leaves its folder is refused for files as it is for shards."""
    write(tmp_path, "jsonl", "train", "val")
    with pytest.raises(ConfigError, match="not a folder inside"):
        StreamingDataset(str(tmp_path), split="../x", batch_size=1)
