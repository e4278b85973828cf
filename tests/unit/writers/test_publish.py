"""What appears where, and when: shards first, the index last, nothing at all after a failure."""

import json
import os
import pathlib

import pytest

from mds import LocalDataset, MDSWriter
from mds.errors import DeniedError, EncodingError, WriterError
from mds.events import Uploaded, subscribe
from mds.storage import open_store, register_store
from mds.storage._memory import MemoryStore

INTS = {"x": "int"}


def fill(out, samples=100, **kwargs):
    with MDSWriter(out=out, columns=INTS, size_limit=400, **kwargs) as writer:
        for i in range(samples):
            writer.write({"x": i})


def fill_and_raise(out, error):
    with MDSWriter(out=out, columns=INTS, size_limit=400, keep_local=True) as writer:
        for i in range(100):
            writer.write({"x": i})
        raise error


class Breaking(MemoryStore):
    """A store that is full after three files, as a quota would have it."""

    def _write(self, key, file, size):
        if len(list(self.list())) >= 3:
            raise DeniedError(f"put {self.url}/{key}: the quota is used up")
        super()._write(key, file, size)


class MineError(Exception):
    pass


@pytest.mark.parametrize("kind", ["local", "pair", "url"])
def test_an_exception_publishes_no_index(places, kind):
    """Leaving the block by an exception: the exception itself, and no index anywhere.

    Others finish there, and a dataset that was cut short looks complete.
    """
    out = {"local": places[0], "pair": places, "url": f"memory://{places[1]}"}[kind]
    mine = MineError("died")
    with pytest.raises(MineError) as caught:
        fill_and_raise(out, mine)
    assert caught.value is mine
    assert not list(pathlib.Path(places[0]).parent.rglob("index.json"))


def test_ctrl_c_publishes_no_index(places):
    """Nor does an interrupt, which is no Exception."""
    with pytest.raises(KeyboardInterrupt):
        fill_and_raise(places[0], KeyboardInterrupt())
    assert "index.json" not in os.listdir(places[0])


def test_an_aborted_writer_takes_nothing(out):
    """After `abort` a writer neither takes samples nor publishes; aborting twice is fine."""
    writer = MDSWriter(out=out, columns=INTS)
    writer.abort()
    writer.abort()
    with pytest.raises(WriterError, match="aborted"):
        writer.finish()
    with pytest.raises(WriterError, match="aborted"):
        writer.write({"x": 1})


def write_for_ever(writer):
    for i in range(10**9):
        writer.write({"x": i})


def test_a_folder_that_is_not_empty(places):
    """It is refused with what is in it; with exist_ok only an old dataset goes."""
    folder = pathlib.Path(places[0])
    fill(str(folder))
    old = set(os.listdir(folder))
    (folder / "notes.txt").write_text("mine")
    (folder / "sub").mkdir()
    (folder / "sub" / "index.json").write_text("mine")
    with pytest.raises(FileExistsError, match=r"not empty.*exist_ok"):
        fill(str(folder))
    assert old < set(os.listdir(folder))
    fill(str(folder), 10, exist_ok=True)
    assert set(os.listdir(folder)) == {"shard.00000.mds", "index.json", "notes.txt", "sub"}
    assert (folder / "sub" / "index.json").read_text() == "mine"


def test_a_remote_dataset_is_not_replaced_unasked(places):
    """An index at the destination is a dataset: refused, or with exist_ok replaced as a whole."""
    fill(places)
    before = sorted(os.listdir(places[1]))
    with pytest.raises(FileExistsError, match="already holds a dataset"):
        fill(places)
    assert sorted(os.listdir(places[1])) == before
    (pathlib.Path(places[1]) / "notes.txt").write_text("mine")
    fill(places, 10, exist_ok=True)
    assert sorted(os.listdir(places[1])) == ["index.json", "notes.txt", "shard.00000.mds"]


def test_a_hostile_old_index_deletes_nothing_outside(places, tmp_path):
    """Names in an index that is replaced are not followed out of its folder."""
    (tmp_path / "victim").write_text("mine")
    remote = pathlib.Path(places[1])
    remote.mkdir()
    info = {"basename": "../victim", "bytes": 1, "hashes": {}}
    (remote / "index.json").write_text(
        json.dumps({"shards": [{"raw_data": info}, 5], "version": 2})
    )
    fill(places, exist_ok=True)
    assert (tmp_path / "victim").read_text() == "mine"


def test_the_local_folder_is_only_a_station(places):
    """Without keep_local a pair leaves everything at the remote and nothing in the folder."""
    fill(places)
    assert not os.path.exists(places[0])
    assert len(LocalDataset(places[1])) == 100
    kept = (places[0] + "2", places[1] + "2")
    fill(kept, keep_local=True)
    assert sorted(os.listdir(kept[0])) == sorted(os.listdir(kept[1]))


def test_one_place_named_twice_is_one_place(places):
    """A pair of the same folder is that folder: nothing is uploaded onto itself and removed."""
    fill((places[0], f"file://{places[0]}"))
    assert len(LocalDataset(places[0])) == 100


def test_uploads_that_fail_are_told(tmp_path):
    """The error names the destination, carries its cause, comes again, and there is no index."""
    (tmp_path / "file").write_text("this is no folder")
    local = str(tmp_path / "local")
    with pytest.raises((WriterError, OSError), match="published") as caught:
        fill((local, str(tmp_path / "file" / "published")), retry=0)
    assert isinstance(caught.value, OSError) or caught.value.__cause__ is not None
    assert not list(tmp_path.rglob("index.json"))


def test_a_destination_that_breaks_in_the_middle(tmp_path):
    """The writer stops soon, with the name of the file, the place, and the cause behind it."""
    register_store("breaking", Breaking)
    remote = f"breaking://{tmp_path}"
    writer = MDSWriter(out=(str(tmp_path / "local"), remote), columns=INTS, size_limit=400)
    with pytest.raises(
        WriterError, match=r"shard\.0.*could not be uploaded to breaking:.*quota"
    ) as caught:
        write_for_ever(writer)
    assert isinstance(caught.value.__cause__, DeniedError)
    with pytest.raises(WriterError) as again:
        writer.finish()
    assert again.value is caught.value
    with open_store(remote) as store:
        assert [info.key for info in store.list() if "index" in info.key] == []


def test_the_index_comes_last(places):
    """By the time that the index is uploaded, every shard has been."""
    seen = []
    with subscribe(seen.append):
        fill(places, hashes=["sha1"], compression="zstd")
    remote = pathlib.Path(places[1])
    uploaded = {
        event.url.rpartition("/")[2]: event.size for event in seen if isinstance(event, Uploaded)
    }
    index = json.loads((remote / "index.json").read_bytes())
    assert uploaded == {s["zip_data"]["basename"]: s["zip_data"]["bytes"] for s in index["shards"]}
    last = (remote / "index.json").stat().st_mtime_ns
    assert all(path.stat().st_mtime_ns <= last for path in remote.iterdir())


def test_an_encoding_error_leaves_the_dataset_whole(out):
    """A sample that was refused is left out, and leaves no trace in the shard."""
    with MDSWriter(out=out, columns={"a": "str", "b": "int"}) as writer:
        writer.write({"a": "one", "b": 1})
        with pytest.raises(EncodingError):
            writer.write({"a": "two", "b": "2"})
        writer.write({"a": "three", "b": 3})
    assert [LocalDataset(out)[i]["a"] for i in range(2)] == ["one", "three"]


def test_no_temporary_folder_stays(tmp_path, monkeypatch):
    """Shards of a URL pass through a folder that is gone afterwards, however the writer ends."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fill(f"memory://{tmp_path}/a")
    with pytest.raises(MineError):
        fill_and_raise(f"memory://{tmp_path}/b", MineError())
    assert os.listdir(tmp_path) == []
