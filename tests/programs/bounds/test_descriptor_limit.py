"""Thousands of streams and hundreds of datasets under ``ulimit -n``: locks share a descriptor."""

import os

import pytest
from limits import run

from mds import MDSWriter, Samples, Stream
from mds._cache.ledger_file import SLOT_LOCKS
from mds.storage._locks import holders_of

READ = """
import mds
folder, count, workers, kind, limit = sys.argv[1:]
places = range(int(count))
if __name__ == "__main__":
    dataset = (mds.StreamingDataset if int(workers) else mds.Samples)(
        streams=[mds.Stream(remote=f"{folder}/remote", local=f"{folder}/cache{n}") for n in places],
        batch_size=50,
        cache_limit=limit or None,
        shuffle=True,
    )
    samples = dataset
    if int(workers):
        loader = mds.StreamingDataLoader(dataset, num_workers=int(workers), worker_type=kind)
        samples = ({"x": x} for batch in loader for x in batch["x"].tolist())
    seen = sorted(sample["x"] for sample in samples)
    assert seen == sorted([*range(3)] * int(count)), len(seen)
    assert descriptors() <= 150, descriptors()
    print("read")
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with a dataset of three samples, in ``remote``."""
    with MDSWriter(out=str(tmp_path / "remote"), columns={"x": "int"}) as writer:
        for number in range(3):
            writer.write({"x": number})
    return tmp_path


def test_streams_share_a_descriptor(folder):
    """More streams than files may be open, first fetched, then under a limit from the cache."""
    for limit in "", "10mb":
        assert run(READ, folder, 150, 0, "", limit, descriptors=100) == "read\n"
    locks = {os.stat(path).st_ino for path in folder.glob("cache*/.mds/lock")}
    assert len(locks) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "kind", "limit"), [(0, "", "100mb"), (4, "threads", ""), (2, "processes", "100mb")]
)
def test_two_thousand_streams(folder, workers, kind, limit):
    """A second start reads all of them too, with workers of both kinds and under a limit."""
    for _ in range(2):
        out = run(READ, folder, 2000, workers, kind, limit, descriptors=256, timeout=1200)
        assert out == "read\n"


def test_a_folder_in_use_keeps_its_lock_file(folder):
    """A process that comes later locks that file, and shares one for the other folders."""

    def streams(count):
        places = [folder / f"cache{number}" for number in range(count)]
        return [Stream(remote=str(folder / "remote"), local=str(place)) for place in places]

    first = Samples(streams=streams(1), batch_size=1)
    assert len([*first]) == 3
    path = str(folder / "cache0/.mds/lock")
    inode = os.stat(path).st_ino
    assert run(READ, folder, 10, 0, "", "", descriptors=100) == "read\n"
    assert os.stat(path).st_ino == inode
    others = {os.stat(lock).st_ino for lock in folder.glob("cache*/.mds/lock")} - {inode}
    assert len(others) == 1
    second = Samples(streams=streams(10), batch_size=1)
    assert len([*second]) == 30
    slots = [pid for number in range(6) for pid in holders_of(path, SLOT_LOCKS + number)]
    assert slots == [os.getpid()] * 2
    assert len([*first]) == 3


KEEP = """
import mds
folder, count = sys.argv[1:]
kept = []
try:
    for number in range(int(count)):
        kept.append(mds.Samples(
            remote=f"{folder}/remote", local=f"{folder}/cache{number % 50}", batch_size=1,
        ))
        assert sorted(sample["x"] for sample in kept[-1]) == [0, 1, 2]
    print("kept", len(kept))
except mds.errors.MdsError as error:
    print(error)
    kept.clear()
    assert len([*mds.Samples(remote=f"{folder}/remote", batch_size=1)]) == 3
"""


def test_datasets_that_are_kept_take_two_descriptors_each(folder):
    """One more than the limit allows raises an error that names the limit and the remedy."""
    assert run(KEEP, folder, 40, descriptors=110) == "kept 40\n"
    error = run(KEEP, folder, 60, descriptors=100)
    assert "has 100 files open, which is its limit. Raise the limit" in error
    assert "(ulimit -n 65536)" in error


@pytest.mark.slow
def test_five_hundred_datasets(folder):
    """The usual limit is enough for them."""
    assert run(KEEP, folder, 500, descriptors=1024, timeout=1200) == "kept 500\n"


COUNT = """
import mds, threading
folder, count = sys.argv[1], 40
streams = [mds.Stream(remote=f"{folder}/remote", local=f"{folder}/cache{n}") for n in range(count)]
mds.Samples(streams=streams[:1], batch_size=1)  # imports what is needed
opened = []

def note(event, arguments):
    if event == "open" and arguments[1] is None:  # by os.open, which `open` calls too
        opened.append(arguments[0])

sys.addaudithook(note)
threads = threading.active_count()
mds.Samples(streams=streams, batch_size=1)
assert threading.active_count() == threads
print(len(opened) / count, sum("mounts" in str(path) for path in opened))
"""


def test_opening_a_stream_takes_few_files(folder):
    """At a second start: its index and the note beside it, and no look at the mounts for each."""
    assert run(READ, folder, 40, 0, "", "", descriptors=100) == "read\n"
    files, mounts = run(COUNT, folder).split()
    assert float(files) <= 3
    assert int(mounts) <= 1


LOCK = """
import mds
folder, count = sys.argv[1], int(sys.argv[2])

def samples(limit):
    streams = [mds.Stream(remote=f"{folder}/remote", local=f"{folder}/{n}") for n in range(count)]
    return mds.Samples(streams=streams, batch_size=1, cache_limit=limit)

full = samples(None)._cache
for shard in range(count):
    full.prepare(shard)
used = full.usage
size = full.sources[0].index.shard(0).files[0][0].size
full.close()
cache = samples(used - count // 2 * size)._cache
assert 0 < cache.usage <= cache.limit
locks = 0

def note(event, arguments):
    global locks
    locks += event == "fcntl.fcntl"

sys.addaudithook(note)
fetched = cache.stats()["fetched_shards"]
for shard in range(count):
    cache.prepare(shard)
    assert cache.usage <= cache.limit
print(locks / (cache.stats()["fetched_shards"] - fetched))
"""


def test_locks_of_a_fetch_do_not_grow_with_the_folders(folder):
    """A fetch that evicts a shard locks two folders, however many share the limit."""
    few = float(run(LOCK, folder, 10))
    assert float(run(LOCK, folder, 80)) <= few + 2
