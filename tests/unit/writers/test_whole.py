"""Whatever happens while a dataset is written, an index that appears names files that are whole."""

import hashlib
import json
import os
import pathlib
import shutil
import threading

import pytest

from mds import CSVWriter, JSONWriter, LocalDataset, MDSWriter, StreamingDataset
from mds.errors import ConfigError, EncodingError, NotFoundError, WriterError
from mds.storage import open_store
from mds.storage._locks import LOCK_NAME, try_lock_folder

INTS = {"x": "int"}
SAMPLES = 600  # three shards of text or more
WRITERS = [MDSWriter, JSONWriter, CSVWriter]


def look(folder):
    """Check a dataset without the library: every file with its size and digests; its samples."""
    folder = pathlib.Path(folder)
    samples = 0
    for shard in json.loads((folder / "index.json").read_bytes())["shards"]:
        samples += shard["samples"]
        for part in ("data", "meta"):
            info = shard.get(f"zip_{part}") or shard.get(f"raw_{part}")
            if info is None:
                continue
            data = (folder / info["basename"]).read_bytes()
            assert len(data) == info["bytes"], info["basename"]
            for name, digest in info["hashes"].items():
                assert hashlib.new(name, data).hexdigest() == digest, info["basename"]
    return samples


def begin(out, kind=MDSWriter, samples=SAMPLES, **kwargs):
    """A writer that has some shards in their place and more on the way."""
    writer = kind(out=out, columns=INTS, size_limit=400, hashes=["md5"], **kwargs)
    for i in range(samples):
        writer.write({"x": i})
    first = {f"shard.0000{number}" for number in range(3)}
    while not first <= {name.rsplit(".", 1)[0] for name in os.listdir(folder_of(out))}:
        threading.Event().wait(0.01)  # uploads end in any order
    return writer


def go_on(writer):
    """Write some more shards, and finish."""
    for i in range(2000):
        writer.write({"x": i})
    writer.finish()


def folder_of(out):
    return out if isinstance(out, str) else out[-1]


@pytest.fixture
def places(tmp_path):
    """A local folder and one behind it, as (local, remote)."""
    return str(tmp_path / "local"), str(tmp_path / "remote")


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("where", ["folder", "pair"])
def test_a_shard_that_is_deleted_meanwhile(places, kind, where):
    """The index is not published, and the error names the file."""
    out = places[0] if where == "folder" else places
    writer = begin(out, kind)
    os.unlink(next(iter(sorted(pathlib.Path(folder_of(out)).glob("shard.00001.*")))))
    with pytest.raises(WriterError, match=r"shard\.00001\..* is missing"):
        writer.finish()
    assert not list(pathlib.Path(places[0]).parent.rglob("index.json"))


@pytest.mark.parametrize("kind", WRITERS)
def test_a_shard_that_is_changed_meanwhile(places, kind):
    """A file of another size is not what the index would say."""
    writer = begin(places[0], kind)
    path = next(iter(sorted(pathlib.Path(places[0]).glob("shard.00001.*"))))
    path.write_bytes(b"other")
    with pytest.raises(WriterError, match=r"shard\.00001.* has 5 bytes instead of \d+"):
        writer.finish()
    assert not os.path.exists(os.path.join(places[0], "index.json"))


@pytest.mark.parametrize("where", ["folder", "pair", "station"])
def test_a_folder_that_is_deleted_meanwhile(places, where):
    """Neither an index nor a hang, also when the folder is made anew; the error names it."""
    out = places[0] if where == "folder" else places
    writer = begin(out)
    gone = places[0] if where == "station" else folder_of(out)
    os.rename(gone, places[0] + ".gone")
    shutil.rmtree(places[0] + ".gone", ignore_errors=True)
    with pytest.raises(WriterError, match=r"deleted or replaced|is missing|is gone|No such file"):
        go_on(writer)
    writer.abort()
    assert not list(pathlib.Path(places[0]).parent.rglob("index.json"))


def test_an_object_that_is_deleted_or_replaced_meanwhile(tmp_path):
    """The same behind a URL, where another object of the same size is told by its version."""
    for number, harm in enumerate(("delete", "put")):
        remote = f"memory://{tmp_path}/{number}"
        with open_store(remote) as store:
            writer = MDSWriter(out=remote, columns=INTS, size_limit=400, max_workers=1)
            for i in range(200):
                writer.write({"x": i})
            while not any("00002" in info.key for info in store.list()):
                threading.Event().wait(0.01)
            size = store.head("shard.00001.mds").size
            if harm == "delete":
                store.delete("shard.00001.mds")
            else:
                store.put("shard.00001.mds", bytes(size))
            with pytest.raises(WriterError, match=r"shard\.00001\.mds is (missing|not the object)"):
                writer.finish()
            with pytest.raises(NotFoundError):
                store.head("index.json")


@pytest.mark.parametrize("kind", WRITERS)
def test_the_second_writer_of_a_folder_is_refused(places, kind):
    """At its construction, also with exist_ok; it touches nothing, and the first one goes on."""
    for out in (places[0], places):
        writer = begin(out, kind)
        before = {name for name in os.listdir(folder_of(out)) if name.startswith("shard")}
        for again in (out, folder_of(out)):
            with pytest.raises(WriterError, match=r"in use.*writer of this process still holds it"):
                MDSWriter(out=again, columns=INTS, exist_ok=True)
        assert before <= set(os.listdir(folder_of(out)))
        writer.finish()
        assert look(folder_of(out)) == SAMPLES
        # The lock leaves nothing behind, and a later writer may replace the dataset.
        assert LOCK_NAME not in os.listdir(folder_of(out))
        with MDSWriter(out=out, columns=INTS, exist_ok=True) as later:
            later.write({"x": 1})
        assert len(LocalDataset(folder_of(out))) == 1
        shutil.rmtree(folder_of(out))


def test_a_refused_writer_leaves_nothing(places):
    """A folder that was only made for the look is gone again."""
    with MDSWriter(out=places[1], columns=INTS) as writer:
        writer.write({"x": 1})
    with pytest.raises(FileExistsError):
        MDSWriter(out=places, columns=INTS)
    assert not os.path.exists(places[0])


def test_locks_of_network_file_systems(tmp_path):
    """Where a folder cannot be locked, a file stands for it, and goes with the lock."""
    folder = str(tmp_path / "folder")
    first = try_lock_folder(folder, on_folder=False)
    assert os.listdir(folder) == [LOCK_NAME]
    assert try_lock_folder(folder, on_folder=False) is None
    first.close()
    assert os.listdir(folder) == []
    (tmp_path / "folder" / LOCK_NAME).write_text("left by a process that was killed")
    second = try_lock_folder(folder, on_folder=False)
    assert second is not None
    second.close()
    # A link that somebody planted is not followed.
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "folder" / LOCK_NAME).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match=LOCK_NAME):
        try_lock_folder(folder, on_folder=False)
    assert (tmp_path / "mine").read_text() == "mine"


def test_two_writers_behind_one_url(tmp_path):
    """A store has no locks: the later one to come upon the other's files ends, or both do."""
    remote = f"memory://{tmp_path}"
    writers = [MDSWriter(out=remote, columns=INTS, size_limit=400) for _ in range(2)]
    ends = []
    for number, writer in enumerate(writers):
        try:
            for i in range(200):
                writer.write({"x": 1000 * number + i})
            writer.finish()
        except WriterError as error:
            writer.abort()
            ends.append(str(error))
    assert len(ends) == 1
    assert "another writer uses the same place" in ends[0]
    with open_store(remote) as store:
        shards = json.loads(store.get("index.json"))["shards"]
        assert sum(shard["samples"] for shard in shards) == 200
        for shard in shards:
            info = shard["raw_data"]
            assert hashlib.md5(store.get(info["basename"])).hexdigest()
            assert store.head(info["basename"]).size == info["bytes"]


def test_an_index_that_appears_meanwhile(tmp_path):
    """Another writer's dataset is not replaced by one that began when there was none."""
    remote = f"memory://{tmp_path}"
    writer = MDSWriter(out=remote, columns=INTS)
    writer.write({"x": 1})
    with open_store(remote) as store:
        store.put("index.json", b"theirs")
        with pytest.raises(WriterError, match=r"index\.json appeared"):
            writer.finish()
        assert store.get("index.json") == b"theirs"


def test_keys_without_a_column(tmp_path):
    """Said once by a warning; an error with strict=True; nothing with strict=False."""
    sample = {"x": 1, "lable": 2}
    for kind in WRITERS:
        folder = tmp_path / kind.__name__
        with kind(out=str(folder / "a"), columns=INTS) as writer:
            with pytest.warns(UserWarning, match=r"'lable', which no column has.*'x'"):
                writer.write(sample)
            writer.write(sample)  # warnings are errors in these tests
        with kind(out=str(folder / "b"), columns=INTS, strict=True) as writer:
            writer.write({"x": 1})
            for _ in range(2):
                with pytest.raises(EncodingError, match="sample 1 has 'lable'"):
                    writer.write(sample)
        assert len(LocalDataset(str(folder / "b"))) == 1
        with kind(out=str(folder / "c"), columns=INTS, strict=False) as writer:
            writer.write(sample)


@pytest.mark.parametrize("limit", [-1, "-1", 0.4, float("nan"), float("inf"), " ", 1 << 32, []])
def test_limits_that_make_no_sense(tmp_path, limit):
    """A limit that no shard can keep is refused before anything is made."""
    with pytest.raises(ConfigError, match="size"):
        MDSWriter(out=str(tmp_path / "out"), columns=INTS, size_limit=limit)
    assert os.listdir(tmp_path) == []


def test_samples_are_refused_before_they_are_joined(tmp_path):
    """Values that fit alone and not together are refused without memory for them once more."""

    class Small(MDSWriter):
        max_shard_size = 5000

    columns = {"a": "bytes", "b": "bytes"}
    with Small(out=str(tmp_path / "out"), columns=columns) as writer:
        with pytest.raises(WriterError, match=r"sample 0 has 6000 bytes.*Split the sample"):
            writer.write({"a": bytes(3000), "b": bytes(3000)})
        writer.write({"a": bytes(30), "b": bytes(30)})
    assert len(LocalDataset(str(tmp_path / "out"))) == 1


def test_what_stays_is_synced_before_the_index(tmp_path, monkeypatch):
    """Each shard once, then their folder, then the index; with durable=False nothing is."""
    synced = []
    real = os.fsync

    def fsync(handle):
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        real(handle)

    monkeypatch.setattr("os.fsync", fsync)

    def fill(out, **kwargs):
        synced.clear()
        with MDSWriter(out=out, columns=INTS, size_limit=400, **kwargs) as writer:
            for i in range(100):
                writer.write({"x": i})
        return list(synced)

    found = fill(str(tmp_path / "out"))
    shards = [name for name in found if "shard" in name]
    folders = [number for number, name in enumerate(found) if name == "out"]
    index = next(number for number, name in enumerate(found) if "index.json" in name)
    written = [name for name in os.listdir(tmp_path / "out") if name.startswith("shard")]
    assert len(shards) == len(set(shards)) == len(written) > 2
    assert folders[0] > max(number for number, name in enumerate(found) if "shard" in name)
    assert folders[0] < index < folders[-1]
    assert fill(str(tmp_path / "quick"), durable=False) == []
    # Shards on their way to a store are not.
    assert fill(f"memory://{tmp_path}") == []
    # A folder behind a folder is where they stay: there, once.
    both = fill((str(tmp_path / "station"), str(tmp_path / "end")))
    assert len([name for name in both if "shard" in name]) == len(written)


def test_a_folder_that_was_never_finished_is_told(tmp_path):
    """The next writer of the folder hears that shards were left without an index."""
    out = str(tmp_path / "out")
    begin(out).abort()
    with pytest.raises(FileExistsError, match="a writer left shards and never finished"):
        MDSWriter(out=out, columns=INTS)


def test_reading_what_was_never_finished_is_told(tmp_path):
    """A folder of shards without an index: the error says that its writer never finished."""
    out = str(tmp_path / "out")
    begin(out).abort()
    for read in (LocalDataset, lambda folder: StreamingDataset(local=folder, batch_size=1)):
        with pytest.raises(NotFoundError, match="never finished"):
            read(out)


def test_a_writer_whose_folder_was_moved_leaves_the_next_one_alone(tmp_path):
    """It stops, and no file of it lands in the folder that another writer made in its place."""
    out = str(tmp_path / "out")
    first = begin(out)
    os.rename(out, out + ".moved")
    second = MDSWriter(out=out, columns=INTS, size_limit=400, hashes=["md5"])
    for i in range(100):
        second.write({"x": i})
    with pytest.raises(WriterError, match=r"deleted or replaced|gone|No such file"):
        go_on(first)
    first.abort()
    second.finish()
    assert look(out) == 100
    names = {
        shard["raw_data"]["basename"]
        for shard in json.loads((pathlib.Path(out) / "index.json").read_bytes())["shards"]
    }
    assert set(os.listdir(out)) == {*names, "index.json"}


def test_a_folder_behind_that_is_moved_between_two_steps(places, monkeypatch):
    """After the writer's look and before its file is made: nothing lands in the next one's."""
    near, far = places
    theirs = []
    real = os.urandom

    def urandom(count):
        if not theirs and os.path.exists(os.path.join(near, "shard.00000.mds")):
            theirs.append("begun")
            os.rename(far, far + ".moved")
            with MDSWriter(out=far, columns=INTS, hashes=["md5"]) as second:
                second.write({"x": 1})
            theirs.append(sorted(os.listdir(far)))
        return real(count)

    monkeypatch.setattr("os.urandom", urandom)  # every file under way takes its name from it
    writer = MDSWriter(out=places, columns=INTS, size_limit=400, max_workers=1)
    with pytest.raises(WriterError, match="deleted or replaced"):
        go_on(writer)
    writer.abort()
    assert sorted(os.listdir(far)) == theirs[-1] == ["index.json", "shard.00000.mds"]
    assert look(far) == 1
