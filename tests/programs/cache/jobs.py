"""What processes of the tests do: run as ``python jobs.py NAME ARGUMENT...``."""

from __future__ import annotations

import itertools
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "unit" / "cache"))

import numpy as np
from cache_tools import SAMPLES, disk_usage, open_cache, open_caches, read, shuffled
from users import become

from mds._cache.ledger_file import open_ledger_file
from mds._cache.ownership import CONTROL
from mds._prefetch.prefetcher import Prefetcher


def epochs(remote, folder, limit, count, seed):
    """Shuffled epochs, one after the other; prints a line when each is complete and right."""
    with open_cache(remote, folder, int(limit) or None, attempts=3) as cache:
        print("open", flush=True)
        for number in range(int(count)):
            ids = shuffled(int(seed) + number)
            assert read(cache, ids) == ids.tolist()
            print("epoch", flush=True)
        print(cache.stats()["fetched_shards"], flush=True)


def ranges(remote, folder, shard, *rows):
    """Some samples of a shard by ranges; the cache stays open until the input ends."""
    with open_cache(remote, folder) as cache:
        read_rows = [cache.samples(int(shard), [int(row)])[0]["x"] for row in rows]
        assert cache.stats()["ranged_reads"] >= len(rows)
        print(read_rows, flush=True)
        sys.stdin.read()


def epochs_until(remote, folder, limit, seed, path):
    """Shuffled epochs, each checked, as long as there is no file at ``path``."""
    with open_cache(remote, folder, int(limit) or None, attempts=3) as cache:
        for number in itertools.count(int(seed)):
            ids = shuffled(number)
            assert read(cache, ids) == ids.tolist()
            if os.path.exists(path):
                return


def epochs_of_a_user(user, umask, *arguments):
    """The same as another user, unless that is this one."""
    if int(user) != os.geteuid():
        # What is imported late is imported now: root's Python may be out of the other's reach.
        with tempfile.TemporaryDirectory() as own, open_cache(arguments[0], own, 120_000) as cache:
            read(cache, shuffled(0))
        become(int(user), int(umask, 8))
    epochs_until(*arguments)


def epochs_by_a_bad_clock(remote, folder, limit, count, seed):
    """The same while the time of the day jumps a day forth or back at every look."""
    right, jumps = time.time, random.Random(int(seed))
    time.time = lambda: right() + jumps.choice([-86_400.0, 0.0, 86_400.0])
    epochs(remote, folder, limit, count, seed)


def construct(remote, folder, count):
    """Make caches and read a sample of each, as many processes do that start together."""
    for number in range(int(count)):
        with open_cache(remote, folder) as cache:
            assert read(cache, [number])[0] == number


def forked(remote, folder, limit, workers, count):
    """Epochs shared by forked children, after the parent has used the remote itself."""
    cache = open_cache(remote, folder, int(limit) or None)
    assert read(cache, [0]) == [0]
    for number in range(int(count)):
        ids = shuffled(number)
        children = []
        for worker in range(int(workers)):
            pid = os.fork()
            if not pid:
                mine = ids[worker :: int(workers)]
                os._exit(0 if read(cache, mine) == mine.tolist() else 1)
            children.append(pid)
        for pid in children:
            assert os.waitpid(pid, 0)[1] == 0
    assert read(cache, [SAMPLES - 1]) == [SAMPLES - 1]


def forked_inside(remote, folder, limit):
    """A child that is forked while its parent reads, reads itself, and ends as any program does."""
    with open_cache(remote, folder, int(limit) or None) as cache:
        ids = shuffled()
        with Prefetcher(cache, [ids], cache.sources[0].index.offsets, predownload=50) as prefetcher:
            windows = prefetcher.windows()
            seen = len(next(windows).ids)
            child = os.fork()
            if not child:
                assert read(cache, ids) == ids.tolist()
                sys.exit(0)
            assert seen + sum(len(window.ids) for window in windows) == SAMPLES
        assert os.waitpid(child, 0)[1] == 0
        assert read(cache, ids) == ids.tolist()


def die_making_room(remote, folder, limit):
    """Enter a shard that is not there, and die before what must go for it is deleted."""
    with open_cache(remote, folder, int(limit)) as cache:
        budget = cache.runtime.budget
        opened = budget.folders[0]
        read(cache)
        shard = int(np.flatnonzero(opened.ledger.entries["size"] == 0)[0])
        size = opened.folder.peak(opened.folder.index.shard(shard))
        budget._delete_files = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        print(shard, flush=True)
        budget.reserve(opened, shard, size)


def die_between_folders(remote, limit, *folders):
    """Die like this while the victim is in another folder than the new shard."""
    with open_caches(remote, folders, int(limit)) as cache:
        budget = cache.runtime.budget
        opened = next(each for each in budget.folders if not each.ledger.entries["size"].any())
        budget._delete_files = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        budget.reserve(opened, 0, opened.folder.peak(opened.folder.index.shard(0)))


def die_at_each_line(remote, folder, limit):
    """Enter a shard and die, at each line in turn; prints by how much the books fall short."""
    with open_cache(remote, folder, int(limit)) as cache:
        read(cache)
    for line in itertools.count(1):
        child = os.fork()
        if not child:
            _enter_until_line(remote, folder, int(limit), line)
        if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            return
        books = open_ledger_file(os.path.join(folder, CONTROL, "ledger"))
        print(line, disk_usage(folder) - books.size - int(books.entries["size"].sum()), flush=True)


def _enter_until_line(remote, folder, limit, line):
    lines = itertools.count(1)

    def follow(frame, event, _):
        if os.path.basename(frame.f_code.co_filename) not in ("budget.py", "ledger.py"):
            return None
        if event == "line" and next(lines) == line:
            os.kill(os.getpid(), signal.SIGKILL)
        return follow

    with open_cache(remote, folder, limit) as cache:
        opened = cache.runtime.fetcher.open(cache.runtime.catalog.folders[0])
        shard = int(np.flatnonzero(opened.ledger.entries["size"] == 0)[0])
        size = opened.folder.peak(opened.folder.index.shard(shard))
        sys.settrace(follow)
        assert cache.runtime.budget.reserve(opened, shard, size)
        sys.settrace(None)
    os._exit(0)


def stop_fetching(remote, folder, limit):
    """Stop inside of the first download, until it is woken; then read everything."""
    with open_cache(remote, folder, int(limit) or None) as cache:
        downloader = cache.runtime.fetcher.downloaders[0]
        download = downloader.download

        def stop_inside(*arguments):
            downloader.download = download
            budget, ledger = cache.runtime.budget, cache.runtime.open_folders[0].ledger
            with budget._lock, ledger._threads:  # no other thread holds the books
                _stop()
            return download(*arguments)

        downloader.download = stop_inside
        ids = shuffled(1)
        assert read(cache, ids) == ids.tolist()


def stop_changing(remote, folder, limit):
    """Stop inside of a change of the books, until it is woken."""
    with open_cache(remote, folder, int(limit) or None) as cache:
        opened = cache.runtime.fetcher.open(cache.runtime.catalog.folders[0])
        with opened.ledger.change():
            _stop()


def _stop():
    print("held", flush=True)
    signal.raise_signal(signal.SIGSTOP)  # of this thread: it does not go on until others notice


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
