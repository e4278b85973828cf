"""Processes that share a folder, and processes that are killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from cache_tools import SAMPLES, disk_usage, open_cache, open_caches, read
from sharing import SECONDS, Watch, finish, start

from devtools.httpserver import http_server
from mds._cache.process_cache import CacheTuning
from mds._cache.recovery import OpenFolder
from mds.storage._files import temporary_owner

LIMIT = 90_000


@pytest.mark.slow
@pytest.mark.parametrize("form", ["remote", "packed"])
def test_processes_with_a_limit_share_a_folder(request, folder, form):
    """Four processes, other orders, one limit: all complete, and never a byte over it."""
    source = request.getfixturevalue(form)
    with Watch(folder) as watch:
        for process in [start("epochs", source, folder, LIMIT, 3, seed) for seed in range(4)]:
            finish(process)
    assert watch.looks
    assert watch.most <= LIMIT


@pytest.mark.slow
def test_eight_processes_start_together(remote, folder):
    """Each constructs and reads again and again while the others do."""
    for process in [start("construct", remote, folder, 10) for _ in range(8)]:
        finish(process)


@pytest.mark.slow
def test_a_shard_is_downloaded_once_by_all_processes(remote, folder):
    """Who comes second finds it there or waits for it."""
    with http_server(remote) as url:
        processes = [start("epochs", url, folder, 0, 1, seed) for seed in range(3)]
        said = [process.communicate(timeout=SECONDS)[0].split() for process in processes]
    with open_cache(remote, folder) as cache:
        assert sum(int(words[-1]) for words in said) == len(cache.sources[0].index)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, LIMIT])
def test_killed_processes_leave_nothing_that_matters(remote, folder, limit):
    """At any instant, by kill -9: the others go on, the next start works, no part file stays."""
    instants = random.Random(limit)
    with Watch(folder) as watch:
        steady = start("epochs", remote, folder, limit, 6, 0)
        for _ in range(6):
            victim = start("epochs", remote, folder, limit, 1000, 1)
            victim.stdout.readline()
            threading.Event().wait(instants.uniform(0, 0.15))
            victim.kill()
            victim.communicate()
            if instants.random() < 0.3 and not limit:
                shutil.rmtree(folder, ignore_errors=True)
        finish(steady)
        finish(start("epochs", remote, folder, limit, 1, 2))
    assert not limit or watch.most <= limit
    with open_cache(remote, folder, limit or None) as cache:
        assert sorted(read(cache)) == list(range(SAMPLES))
        assert disk_usage(folder) <= cache.usage
    parts = [name for name in os.listdir(folder) if temporary_owner(name) is not None]
    assert not parts


@pytest.mark.slow
def test_the_books_never_fall_short_of_the_disk(remote, folder):
    """They count every byte, at whichever line a process is killed while it makes room."""
    killed = start("die_at_each_line", remote, folder, LIMIT)
    said, errors = killed.communicate(timeout=SECONDS)
    assert killed.returncode == 0, errors.decode()[-2000:]
    shortfalls = [int(line.split()[1]) for line in said.splitlines()]
    assert len(shortfalls) > 50
    assert max(shortfalls) <= 0


def test_what_the_dead_were_doing_is_settled_in_one_go(remote, folder, monkeypatch):
    """Room that one of them booked is nobody's until it is known what was to go for it."""
    with open_cache(remote, folder, LIMIT) as first, open_cache(remote, folder, LIMIT) as second:
        assert first.usage == second.usage  # both have opened the ledger
        killed = start("die_making_room", remote, folder, LIMIT)
        shard = int(killed.communicate(timeout=SECONDS)[0])
        assert killed.returncode == -signal.SIGKILL
        greedy = threading.Thread(target=second.hold, args=[shard])
        look = OpenFolder.rescan

        def look_while_another_wants_it(opened, number):
            if not greedy.ident:
                greedy.start()
                greedy.join(0.3)  # it has to wait; who does not is done by then
            look(opened, number)

        monkeypatch.setattr(OpenFolder, "rescan", look_while_another_wants_it)
        first.runtime.budget.folders[0].recover_entries()
        greedy.join(SECONDS)
        assert not greedy.is_alive()
        assert disk_usage(folder) <= first.usage <= LIMIT
        assert second.stats()["fetched_shards"] == 1


def test_a_death_between_two_folders_leaves_no_room(remote, tmp_path):
    """The victim of a dead process counts as long as it is there, whichever folder is settled."""
    folders = [tmp_path / "caches/new", tmp_path / "caches/full"]
    with open_caches(remote, folders) as cache:
        first = len(cache.sources[0].index)  # number of the first shard of the second folder
        for shard in 0, first, first + 1:
            cache.hold(shard)
            cache.release(shard)
        assert cache.runtime.evict_coldest()  # the shard of the first folder
        limit = cache.usage
    with open_caches(remote, folders, limit) as cache:
        assert cache.runtime.budget.used == limit  # it has opened the ledgers
        killed = start("die_between_folders", remote, limit, *folders)
        killed.communicate(timeout=SECONDS)
        assert killed.returncode == -signal.SIGKILL
        cache.hold(0)  # settles its own folder only
        assert cache.usage <= limit
    assert len([*tmp_path.glob("caches/*/shard.*")]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, LIMIT])
def test_a_child_forked_while_its_parent_reads_is_on_its_own(remote, folder, limit):
    """It inherits nothing that it could break, and ends without waiting for anything."""
    with http_server(remote) as url:
        for _ in range(3):
            finish(start("forked_inside", url, folder, limit))


def test_a_stopped_process_does_not_stop_the_others(remote, folder):
    """Whoever waits for a stuck download in vain does it himself."""
    tuning = CacheTuning(peer_timeout_seconds=0.05)
    with open_cache(remote, folder) as first, open_cache(remote, folder, tuning=tuning) as second:
        opened = first.runtime.fetcher.open(first.runtime.catalog.folders[0])
        lock = opened.ledger.fetch_lock(0, 1.0)
        assert second.hold(0)[0]["x"] == 0
        lock.close()


def test_a_zombie_answers_for_nothing(remote, folder):
    """A process that was killed and not waited for is dead: its part file goes, the limit holds."""
    steady = start("epochs", remote, folder, LIMIT, 1, 0)
    finish(steady)
    victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    path = os.path.join(folder, f".shard.00000.mds.{victim.pid}-0123456789ab.mds-part")
    with open(path, "wb") as file:
        file.write(bytes(20_000))
    victim.kill()
    os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    try:
        finish(start("epochs", remote, folder, LIMIT, 1, 0))
        assert not os.path.exists(path)
    finally:
        victim.communicate()
