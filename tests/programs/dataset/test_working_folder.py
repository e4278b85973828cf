"""A relative path means what it meant when the object was made, whatever os.chdir comes later."""

import json
import os
import pickle
import shutil

import pytest

from mds import LocalDataset, MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from mds.errors import NotFoundError
from mds.storage import open_store

SAMPLES = 12


def write(folder, first, **options):
    with MDSWriter(folder, {"id": "int"}, size_limit=200, **options) as writer:
        for number in range(SAMPLES):
            writer.write({"id": first + number})


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two working folders with data at the same paths: ids from 0 in one, from 1000 in other."""
    for first, name in ((0, "one"), (1000, "other")):
        folder = tmp_path / name
        write(str(folder / "data"), first)
        write(str(folder / "data" / "part"), first)
        write(str(folder / "packed"), first, compression="zstd")
        (folder / "files").mkdir()
        for part in range(2):
            numbers = range(first + part * 6, first + part * 6 + 6)
            lines = "".join(json.dumps({"id": number}) + "\n" for number in numbers)
            (folder / "files" / f"{part}.jsonl").write_text(lines)
        (folder / "cache").mkdir()
    monkeypatch.setenv("MDS_CACHE_DIR", "cache")
    monkeypatch.chdir(tmp_path / "one")
    return tmp_path


MAKERS = {
    "in place": lambda: StreamingDataset("data", batch_size=4),
    "split": lambda: StreamingDataset("data", split="part", batch_size=4),
    "current folder": lambda: StreamingDataset("./data/../data", batch_size=4),
    "compressed": lambda: StreamingDataset(local="packed", batch_size=4),
    "cache": lambda: StreamingDataset(remote="data", local="copy", batch_size=4),
    "cache of the user": lambda: StreamingDataset(remote="data", batch_size=4),
    "streams": lambda: StreamingDataset([Stream("data/part", choose=SAMPLES)], batch_size=4),
    "lines": lambda: StreamingDataset("files", batch_size=4),
    "pattern": lambda: StreamingDataset("files/*.jsonl", batch_size=4),
    "fetched lines": lambda: StreamingDataset(remote="files", local="copy", batch_size=4),
    "local": lambda: LocalDataset("data"),
    "part of local": lambda: LocalDataset("data").select(range(SAMPLES)),
}


def ids(dataset):
    return sorted(sample["id"] for sample in dataset)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("way", ["itself", "pickled"])
def test_a_dataset_reads_the_folder_in_which_it_was_made(folders, make, way):
    """Also the pickle of it, as a worker process gets it."""
    dataset = make()
    before = repr(dataset)
    os.chdir(folders / "other")
    if way == "pickled":
        dataset = pickle.loads(pickle.dumps(dataset))
    assert repr(dataset) == before
    assert ids(dataset) == [*range(SAMPLES)]
    left = {name for name in os.listdir() if name not in {"data", "packed", "files", "cache"}}
    assert left == set()
    assert os.listdir("cache") == []


@pytest.mark.parametrize("name", ["in place", "cache", "compressed", "pattern"])
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_processes_read_the_folder_in_which_it_was_made(folders, name, context):
    """Which begin in the working folder of the moment in which they start."""
    loader = StreamingDataLoader(
        MAKERS[name](), batch_size=4, num_workers=1, multiprocessing_context=context
    )
    os.chdir(folders / "other")
    assert sorted(n for batch in loader for n in batch["id"].tolist()) == [*range(SAMPLES)]


def test_a_stream_keeps_its_places_as_typed(folders):
    """And means those of the folder in which it was made, not of that of its dataset."""
    stream = Stream("data", local="copy")
    before = repr(stream)
    os.chdir(folders / "other")
    assert (stream.remote, stream.local) == ("data", "copy")
    assert repr(stream) == before == "Stream(remote='data', local='copy')"
    dataset = StreamingDataset([stream], batch_size=4)
    assert ids(dataset) == [*range(SAMPLES)]
    assert dataset.streams[0].remote == "data"
    assert os.path.exists(folders / "one" / "copy" / "index.json")
    stream.local = "second"
    os.chdir(folders / "one")
    assert stream.folder == str(folders / "other" / "second")


def test_a_writer_and_a_store_keep_their_folder(folders):
    """A writer that begins in one folder ends there; a store pickles as the folder that it has."""
    store = open_store("made")
    with MDSWriter("made", {"id": "int"}) as writer:
        writer.write({"id": 5})
        os.chdir(folders / "other")
    assert ids(LocalDataset(folders / "one" / "made")) == [5]
    again = pickle.loads(pickle.dumps(store))
    for each in (store, again):
        assert each.head("index.json").size > 0
        assert each.url == str(folders / "one" / "made")


def test_a_folder_above_a_link_is_that_of_its_target(folders, monkeypatch):
    """``link/..`` is the folder that the system means by it, and not the one that has the link."""
    monkeypatch.chdir(folders)
    (folders / "one" / "inside").mkdir()
    os.symlink(folders / "one" / "inside", folders / "link")
    write("data", 2000)
    dataset = StreamingDataset("link/../data", batch_size=4)
    cached = StreamingDataset(remote="link/../data", local="copy", batch_size=4)
    os.chdir("/")
    assert ids(dataset) == ids(cached) == [*range(SAMPLES)]


def test_names_with_the_characters_of_patterns_may_lead_to_the_working_folder(folders):
    """A folder above the data may be called ``run[1]`` or ``{a}``."""
    strange = folders / "run[1]{a,b}*"
    shutil.copytree(folders / "one" / "files", strange / "files")
    os.chdir(strange)
    for place in ("files", "files/*.jsonl", "files/{0,1}.jsonl"):
        assert ids(StreamingDataset(place, batch_size=4)) == [*range(SAMPLES)]


def test_a_relative_path_without_a_working_folder_is_an_error_with_a_remedy(folders, monkeypatch):
    """As after the working folder of a job was deleted."""
    monkeypatch.setenv("MDS_CACHE_DIR", str(folders / "cache"))
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir(folders / "one" / "gone")
    with pytest.raises(NotFoundError, match=r"was deleted\. Give an absolute path"):
        StreamingDataset("data", batch_size=4)
    assert ids(StreamingDataset(folders / "one" / "data", batch_size=4)) == [*range(SAMPLES)]
