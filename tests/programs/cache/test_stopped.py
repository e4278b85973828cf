"""A process that is stopped, by a signal or a debugger, is told by name and holds nobody up."""

from __future__ import annotations

import fcntl
import os
import signal

import pytest
from cache_tools import SAMPLES, disk_usage, open_cache, read, shuffled
from sharing import finish, start

from mds._cache.process_cache import CacheTuning
from mds.errors import CacheError
from mds.storage import _control_files as control_files
from mds.storage import _locks as locks
from mds.storage._locks import describe_processes, holders_of, is_stopped

LIMIT = 90_000


@pytest.fixture
def stop():
    """Starts a job that stops itself while it holds something; it is woken and has to end well."""
    started = []

    def begin(*job):
        process = start(*job)
        started.append(process)
        assert process.stdout.readline() == b"held\n"
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGCONT)
            finish(process)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(locks, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(locks, "_STOPPED_SECONDS", 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, LIMIT])
@pytest.mark.parametrize("form", ["remote", "packed"])
def test_a_stopped_download_holds_nobody_up(request, folder, caplog, stop, form, limit):
    """The shard is fetched again, or under a limit read without being kept; the limit holds."""
    source = request.getfixturevalue(form)
    process = stop("stop_fetching", source, folder, limit)
    with open_cache(source, folder, limit or None) as cache:
        ids = shuffled()
        assert read(cache, ids) == ids.tolist()
        assert not limit or disk_usage(folder) <= cache.usage <= limit
    told = [each.getMessage() for each in caplog.records if "is being fetched" in each.msg]
    assert told or (form == "remote" and limit)  # rows of a raw shard come by themselves
    assert all(f"{process.pid} (" in each and "stopped" in each for each in told)
    assert all(("reads it without caching it" in each) == bool(limit) for each in told)


def test_who_holds_a_lock_is_seen(remote, folder, stop):
    """The process that has it, for the byte that it has, and for no other."""
    process = stop("stop_changing", remote, folder, 0)
    path = os.path.join(folder, ".mds", "lock")
    assert holders_of(path, 0) == [process.pid]
    assert holders_of(path, 7) == []
    assert holders_of(os.path.join(folder, ".mds", "ledger"), 0) == []
    assert holders_of(os.path.join(folder, "nothing"), 0) == []
    assert is_stopped(process.pid)
    assert not is_stopped(os.getpid())
    told = describe_processes([process.pid])
    assert told.startswith(f"process {process.pid} (python")
    assert "jobs.py, stopped) on " in told
    assert remote not in told  # of its arguments nothing


def test_the_books_held_by_a_stopped_process_are_an_error_that_names_it(remote, folder, stop):
    """It may hold them while it changes them, so nobody goes past it; woken, all is well."""
    process = stop("stop_changing", remote, folder, 0)
    tuning = CacheTuning(lock_timeout_seconds=0.2)
    with open_cache(remote, folder, tuning=tuning) as cache:
        with pytest.raises(CacheError, match=rf"kill -CONT.*{process.pid} \(.*stopped\) on "):
            read(cache)
        os.kill(process.pid, signal.SIGCONT)
        finish(process)
        assert read(cache) == list(range(SAMPLES))


def test_a_folder_that_somebody_keeps_locked_is_used_all_the_same(remote, folder, monkeypatch):
    """Whoever may open a folder can lock it, as a writer does."""
    monkeypatch.setattr(control_files, "_LOCK_SECONDS", 0.05)
    os.mkdir(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with open_cache(remote, folder, LIMIT) as cache:
            assert read(cache) == list(range(SAMPLES))
    finally:
        os.close(handle)
