"""What is no regular file is never waited for: a pipe of the name of a file blocks its reader."""

import os
import socket

import pytest

from mds import JSONWriter, LocalDataset, MDSWriter, StreamingDataset
from mds.errors import FormatError, MdsError, NotFoundError, StoreError
from mds.formats import RawFiles
from mds.storage import open_store
from mds.storage._files import open_directory, open_regular


def pipe(path):
    os.mkfifo(path)


def listening(path):
    """A socket that has the name; it goes with its path."""
    here = os.getcwd()
    os.chdir(os.path.dirname(path))  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.basename(path))
    finally:
        os.chdir(here)


@pytest.fixture(params=[pipe, listening])
def put(request):
    """Puts something that is no file in the place of a file."""

    def instead(path):
        if os.path.exists(path):
            os.unlink(path)
        request.param(str(path))

    return instead


@pytest.fixture
def data(tmp_path):
    """A dataset of four shards, compressed or not."""

    def make(name, **options):
        out = str(tmp_path / name)
        with MDSWriter(out=out, columns={"x": "int"}, size_limit=120, **options) as writer:
            for number in range(12):
                writer.write({"x": number})
        return out

    return make


def test_it_is_not_opened(tmp_path, put):
    """By path, below a folder, or through a store; a listing leaves it out."""
    put(tmp_path / "one")
    (tmp_path / "two").write_bytes(b"2")
    with pytest.raises((NotFoundError, OSError)):
        open_regular(str(tmp_path / "one"))
    with open_directory(str(tmp_path)) as folder, pytest.raises(OSError):
        folder.open("one")
    store = open_store(str(tmp_path))
    for ask in (store.get, store.head, lambda key: store.get_file(key, str(tmp_path / "three"))):
        with pytest.raises(StoreError, match="one"):
            ask("one")
    assert [info.key for info in store.list()] == ["two"]
    with open_regular(str(tmp_path / "two")) as file:
        assert file.read() == b"2"
    with pytest.raises(IsADirectoryError):
        open_regular(str(tmp_path))


@pytest.mark.parametrize("is_fetched", [False, True])
@pytest.mark.parametrize("name", ["index.json", "shard.00001.mds"])
def test_a_dataset_with_one_is_an_error(data, tmp_path, put, name, is_fetched):
    """Of its index or of a shard, read in place or fetched."""
    folder = data("data")
    put(os.path.join(folder, name))
    place = (
        {"remote": folder, "local": str(tmp_path / "cache")} if is_fetched else {"local": folder}
    )
    with pytest.raises((StoreError, FormatError), match=name):
        list(StreamingDataset(**place, batch_size=1, download_retry=0))
    with pytest.raises(MdsError, match=name):
        list(LocalDataset(folder))


@pytest.mark.parametrize("name", ["index.columns.json", "index.lengths-x.bin"])
def test_what_lies_beside_an_index_is_left_alone(data, put, name):
    """A dataset needs none of it."""
    folder = data("data")
    put(os.path.join(folder, name))
    dataset = StreamingDataset(local=folder, batch_size=1)
    assert [sample["x"] for sample in dataset] == list(range(12))
    assert dataset.columns == ["x"]


@pytest.mark.parametrize(
    "name", ["index.json", ".mds/origin.json", ".mds/index.mds", "shard.00001.mds"]
)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_cache_with_one_is_refused_or_healed(data, tmp_path, put, compression, name):
    """At the next start, in the place of what the library left there."""
    folder, cache = data("data", compression=compression), tmp_path / "cache"
    place = {"remote": folder, "local": str(cache), "batch_size": 1}
    assert len(list(StreamingDataset(**place))) == 12
    put(cache / name)
    try:
        found = [sample["x"] for sample in StreamingDataset(**place)]
    except MdsError as error:
        assert str(cache) in str(error)  # noqa: PT017 - either will do
    else:
        assert found == list(range(12))


def test_a_file_of_a_manifest(tmp_path, put):
    """It is read when its sample is asked for, and may be anything by then."""
    (tmp_path / "rows.csv").write_text("path\na.txt\n")
    put(tmp_path / "a.txt")
    dataset = StreamingDataset(
        remote=str(tmp_path), format=RawFiles(manifest="rows.csv"), batch_size=1
    )
    with pytest.raises((MdsError, OSError), match=r"a\.txt"):
        dataset[0]


def test_lines_of_one_that_came_after_the_plan(tmp_path, put):
    """A file that is exchanged for a pipe is told, and not waited for."""
    with JSONWriter(out=str(tmp_path / "unused"), columns={"x": "int"}) as writer:
        writer.write({"x": 1})
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    dataset = StreamingDataset(remote=str(tmp_path / "a.jsonl"), batch_size=1)
    put(tmp_path / "a.jsonl")
    with pytest.raises((MdsError, OSError)):
        dataset[0]
