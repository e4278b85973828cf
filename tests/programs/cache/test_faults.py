"""What a cluster does to a cache: disks that fill up, folders that vanish or cannot be written."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess

import numpy as np
import pytest
from cache_tools import SAMPLES, contents, open_cache, open_caches, read, shuffled, write

from mds import StreamingDataLoader, StreamingDataset
from mds._cache.ledger_file import SLOT_LOCKS
from mds._cache.process_cache import CacheTuning
from mds._prefetch.prefetcher import Prefetcher
from mds.errors import CacheError, NoSpaceError
from mds.storage._local import network_kind
from mds.storage._locks import FileLockFile, RangeLockFile, lock_within, open_locks


@contextlib.contextmanager
def mounted(folder, *options):
    """A mount over a folder; skips where that is not allowed."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can mount")
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"mount does not work here: {done.stderr.decode().strip()}")
    try:
        yield str(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path):
    """A cache folder on a disk of 120 KB, which is half of the dataset."""
    (tmp_path / "disk").mkdir()
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=120k", "tmpfs") as path:
        yield path + "/cache"


@pytest.fixture
def read_only(tmp_path):
    """A function that makes a folder read-only, for root too."""
    with contextlib.ExitStack() as stack:

        def protect(folder):
            stack.enter_context(mounted(folder, "--bind", str(folder)))
            subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)

        yield protect


@pytest.mark.parametrize("form", ["remote", "packed"])
def test_a_full_disk_evicts_and_goes_on(request, small_disk, form):
    """Without a limit the disk is the limit."""
    with open_cache(request.getfixturevalue(form), small_disk) as cache:
        for start in range(0, 2 * SAMPLES, 30):  # so many at a time fit
            ids = np.arange(start, start + 30) % SAMPLES
            assert read(cache, ids) == ids.tolist()
        assert cache.stats()["evicted_shards"]


@pytest.mark.parametrize("limit", [None, 10_000_000])
@pytest.mark.parametrize("is_shuffled", [False, True])
@pytest.mark.parametrize("form", ["remote", "packed"])
def test_a_window_that_the_disk_does_not_hold_is_read(
    request, small_disk, caplog, form, is_shuffled, limit
):
    """What finds no room beside the shards in use is read without being kept, with a warning."""
    ids = shuffled() if is_shuffled else np.arange(SAMPLES)
    with open_cache(request.getfixturevalue(form), small_disk, limit) as cache:
        for _ in range(2):
            assert read(cache, ids) == ids.tolist()
    warnings = [text for text in caplog.messages if "read without being cached" in text]
    assert len(warnings) <= 2, "once for each epoch"
    assert limit or warnings


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_workers_read_an_epoch_that_the_disk_does_not_hold(remote, small_disk, workers):
    """Two workers that fill one disk see every sample once."""
    dataset = StreamingDataset(remote=remote, local=small_disk, batch_size=4, columns=["x"])
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2, worker_type=workers)
    assert sorted(x for batch in loader for x in batch["x"].tolist()) == list(range(SAMPLES))


def test_a_full_disk_with_nothing_to_evict_is_an_error_that_says_so(tmp_path, small_disk):
    """And nothing is left of the shard that did not fit."""
    remote = write(tmp_path / "large", samples=20, size=10_000, size_limit=1_000_000)
    with open_cache(remote, small_disk) as cache:
        with pytest.raises(NoSpaceError, match="bytes free"):
            cache.hold(0)
        assert not [name for name in os.listdir(small_disk) if "shard" in name]
        assert cache.usage < 50_000


def test_a_full_disk_ends_the_download_at_once(tmp_path, small_disk):
    """Even while the error is kept, whose traceback has the functions that were downloading."""
    remote = write(
        tmp_path / "large", samples=20, size=10_000, size_limit=1_000_000, compression="zstd"
    )
    with open_cache(remote, small_disk) as cache, pytest.raises(NoSpaceError) as kept:
        cache.hold(0)
    numbers = os.listdir("/proc/self/fd")
    open_files = [os.path.realpath(f"/proc/self/fd/{number}") for number in numbers]
    assert kept.value
    assert not [name for name in open_files if name.startswith(os.path.realpath(remote))]


@pytest.mark.parametrize("limit", [None, 90_000])
def test_the_folder_may_vanish_under_a_running_job(remote, folder, limit):
    """What is needed again is fetched again."""
    with open_cache(remote, folder, limit) as cache:
        ids = shuffled()
        got = []
        offsets = cache.sources[0].index.offsets
        with Prefetcher(cache, [ids], offsets, predownload=8) as prefetcher:
            for number, window in enumerate(prefetcher.windows()):
                if number % 2:
                    shutil.rmtree(folder, ignore_errors=True)  # others write into it
                got += [
                    window.readers[shard][row]["x"]
                    for shard, row in zip(window.shards.tolist(), window.rows.tolist(), strict=True)
                ]
        assert got == ids.tolist()
        shutil.rmtree(folder, ignore_errors=True)
        assert read(cache, ids) == ids.tolist()


def test_a_folder_that_vanishes_between_two_looks_locks_nothing_twice(remote, tmp_path):
    """Its new lock file is that of other folders, whose space this process is about to lock."""
    folders = [tmp_path / name for name in "abc"]
    (tmp_path / "a/.mds").mkdir(parents=True)
    other = open_locks(str(tmp_path / "a/.mds/lock"))  # so its lock file stays its own
    assert other.try_lock(SLOT_LOCKS)
    tuning = CacheTuning(lock_timeout_seconds=0.2)
    with open_caches(remote, folders, 200_000, tuning=tuning) as cache:
        assert cache.hold(0)[0]["x"] == 0
        other.close()
        budget = cache.runtime.budget
        assert len({opened.ledger.lock_identity for opened in budget.folders}) == 2
        budget._deletions.get = lambda _: True  # as for thousands of folders, a moment after a look
        shutil.rmtree(folders[0])
        assert cache.hold(len(cache.sources[0].index))[0]["x"] == 0
        assert len({opened.ledger.lock_identity for opened in budget.folders}) == 1


def test_a_read_only_folder_with_all_data_is_read_in_place(remote, folder, read_only):
    """Also when a remote is named."""
    shutil.copytree(remote, folder)
    before = contents(folder)
    read_only(folder)
    with open_cache(remote, folder) as cache:
        assert read(cache) == list(range(SAMPLES))
        assert cache.stats()["fetched_shards"] == 0
    assert contents(folder) == before


def test_a_read_only_folder_of_other_data_is_not_read(tmp_path, folder, read_only):
    """Its index has another text, or it is noted to be another source's: names say nothing."""
    one = write(tmp_path / "one", hashes=[])
    other = write(tmp_path / "other", hashes=[], salt=10_000)
    with open_cache(one, folder) as cache:
        read(cache)
    read_only(folder)
    with open_cache(one, folder) as cache:
        assert read(cache) == list(range(SAMPLES))
    with open_cache(other, folder) as cache, pytest.raises(CacheError, match=folder):
        read(cache, salt=10_000)


def test_a_read_only_folder_without_the_data_is_an_error_that_names_it(remote, folder, read_only):
    """There is nowhere to put what would have to come."""
    os.makedirs(folder)
    read_only(folder)
    with open_cache(remote, folder) as cache, pytest.raises(CacheError, match=folder):
        read(cache)


def test_files_let_in_whom_the_folder_lets_in(remote, folder):
    """A folder of a group gives files of the group, whatever the umask."""
    os.makedirs(folder)
    os.chmod(folder, 0o2770)
    before = os.umask(0o077)
    try:
        with open_cache(remote, folder) as cache:
            cache.hold(0)
            cache.release(0)
    finally:
        os.umask(before)
    for path, _, names in os.walk(folder):
        for name in names:
            mode = os.stat(os.path.join(path, name)).st_mode & 0o777
            assert mode == 0o660, name


@pytest.mark.parametrize("kind", [RangeLockFile, FileLockFile])
def test_locks_of_two_owners_exclude_each_other(tmp_path, kind):
    """Exclusive against all, shared against exclusive, and gone with their owner."""
    path = str(tmp_path / "lock")
    one, two = kind(path), kind(path)
    assert one.try_lock(5, is_shared=True)
    assert two.try_lock(5, is_shared=True)
    two.unlock(5)
    assert not two.try_lock(5)
    assert two.try_lock(6)
    one.close()
    one.close()
    one.unlock(5)
    assert two.try_lock(5)
    del two
    assert kind(path).try_lock(5)


@pytest.mark.parametrize("kind", [RangeLockFile, FileLockFile])
def test_a_wait_for_a_lock_ends_when_it_is_free_or_time_is_up(tmp_path, monkeypatch, kind):
    """A lock that comes too late is given back by itself."""
    monkeypatch.setattr("mds.storage._locks.open_locks", kind)
    path = str(tmp_path / "lock")
    owner = kind(path)
    owner.wait_lock(1)
    assert lock_within(path, 1, 0.05) is None
    owner.close()
    waited = lock_within(path, 1, 30)
    assert waited is not None
    waited.close()


def test_a_forked_child_does_not_keep_the_locks_of_its_parent(tmp_path):
    """They end with the parent's, whatever the child does."""
    path = str(tmp_path / "lock")
    owner = RangeLockFile(path)
    assert owner.try_lock(1)
    waiting, go = os.pipe()
    child = os.fork()
    if not child:
        os.close(go)
        os.read(waiting, 1)
        os._exit(0)
    owner.close()
    other = lock_within(path, 1, 30)
    assert other is not None
    other.close()
    os.close(go)
    os.waitpid(child, 0)
    os.close(waiting)


MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/export /mnt/shared\\040data nfs4 rw 0 0
s3fs /mnt/bucket fuse.s3fs rw 0 0
/dev/vdb /mnt/bucket/local xfs rw 0 0
tmpfs /mnt/again nfs rw 0 0
tmpfs /mnt/again tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/me", None),
        ("/mnt/shared data/cache", "nfs4"),
        ("/mnt/shared", None),
        ("/mnt/bucket", "fuse.s3fs"),
        ("/mnt/bucket/local/x", None),
        ("/mnt/again/x", None),
    ],
)
def test_network_file_systems_are_recognised(folder, kind):
    """By the innermost mount that a folder is below."""
    assert network_kind(folder, MOUNTS) == kind


def test_on_a_network_file_system_books_and_locks_are_on_the_nodes_own_disk(
    remote, folder, tmp_path, monkeypatch, caplog
):
    """The folder there has whole files only, and a limit is told to be the node's."""
    for module in ("mds._cache.ownership", "mds.storage._local"):
        monkeypatch.setattr(f"{module}.network_kind", lambda _: "nfs4")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "own"))
    with open_cache(remote, folder, limit=120_000) as cache:
        assert sorted(read(cache, shuffled())) == list(range(SAMPLES))
    assert "nfs4" in caplog.text
    assert os.listdir(os.path.join(folder, ".mds")) == ["origin.json"]
    assert list((tmp_path / "own").glob("mds-*/*/ledger"))
