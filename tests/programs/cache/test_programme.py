"""The fault programme: long sittings of kills, forks, jumping clocks and a bad wire.

It runs in a short form with all other tests. ``MDS_FAULTS=long`` runs it whole: 200 kills of an
8-process job with and without a limit, 40 epochs of 2 and of 8 forked workers, 402 kills of jobs of
three users.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import shutil
import signal
import tempfile
import threading
import time

import pytest
from cache_tools import SAMPLES, disk_usage, open_cache, read
from sharing import Watch, finish, start
from users import GROUP, USERS, can_become

from devtools.httpserver import http_server
from devtools.proxy import Fault, FaultProxy
from mds.storage._files import temporary_owner

IS_LONG = os.environ.get("MDS_FAULTS") == "long"
KILLS = 200 if IS_LONG else 8
KILLS_OF_USERS = 134 if IS_LONG else 6
EPOCHS = 40 if IS_LONG else 3
LIMIT = 120_000
TROUBLE = (
    *(Fault("damage", match=rf"GET /shard\.{number:05}", after=5000) for number in range(0, 20, 3)),
    *(Fault("short", match=rf"GET /shard\.{number:05}", after=2000) for number in range(1, 20, 3)),
    Fault("drop", match="GET /shard", times=None, chance=0.02),
    Fault("status", match="GET /shard", times=None, chance=0.02, status=503, retry_after=0),
    Fault("status", match="GET /shard", times=None, chance=0.02, status=429, retry_after=0),
    Fault("cut", match="GET /shard", times=None, chance=0.02, after=2000),
)


def nobody_waits_for_ever(processes, seconds):
    """Wait for all, and fail with the name of what hangs."""
    until = time.monotonic() + seconds
    for process in processes:
        finish(process, max(until - time.monotonic(), 1))


@pytest.fixture
def bad_wire(remote):
    """The URL of a dataset whose server answers late and, now and then, wrong."""
    with http_server(remote) as url, FaultProxy(url, latency=0.005) as proxy:
        proxy.add(*TROUBLE)
        yield proxy.url


@pytest.mark.slow
@pytest.mark.parametrize("form", ["remote", "packed"])
@pytest.mark.parametrize("limit", [0, LIMIT])
def test_a_job_of_eight_processes_survives_any_kills(request, folder, tmp_path, form, limit):
    """Each killed process is started again; all the others go on, and in the end all are whole."""
    enough = tmp_path / "enough"
    instants = random.Random(f"{form}{limit}")
    with http_server(request.getfixturevalue(form)) as url, Watch(folder) as watch:
        jobs = [(url, folder, limit, 1000 * seed, enough) for seed in range(8)]
        running = [start("epochs_until", *job) for job in jobs]
        try:
            for number in range(KILLS):
                victim = instants.randrange(len(jobs))
                threading.Event().wait(instants.uniform(0, 0.5))
                dead = [job for job in running if job.poll() is not None]
                assert not dead, dead[0].communicate()[1].decode()[-3000:]
                running[victim].kill()
                running[victim].communicate()
                running[victim] = start("epochs_until", *jobs[victim])
                if number % 40 == 20 and not limit:
                    shutil.rmtree(folder, ignore_errors=True)  # others write into it
            enough.touch()
            nobody_waits_for_ever(running, 600)
        finally:
            for process in running:
                process.kill()
                process.wait()
        with open_cache(url, folder, limit or None) as cache:
            assert sorted(read(cache)) == list(range(SAMPLES))
            assert disk_usage(folder) <= cache.usage
    assert not limit or watch.most <= limit
    assert not [name for name in os.listdir(folder) if temporary_owner(name) is not None]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 8])
def test_epochs_of_forked_workers_over_plain_http(remote, folder, workers):
    """The parent has used its connections before it forks; every byte is right."""
    with http_server(remote) as url:
        finish(start("forked", url, folder, LIMIT, workers, max(EPOCHS, 40 // workers)), 600)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, LIMIT])
def test_epochs_over_a_bad_wire(bad_wire, folder, limit):
    """What is dropped, refused, cut, shortened and damaged is asked for again."""
    jobs = [start("epochs", bad_wire, folder, limit, EPOCHS, seed) for seed in range(4)]
    nobody_waits_for_ever(jobs, 600 + 10 * EPOCHS)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, LIMIT])
def test_clocks_may_jump(remote, folder, limit):
    """Hours forth and back between any two looks, and file times of another year."""
    years = random.Random(limit)
    jobs = [start("epochs_by_a_bad_clock", remote, folder, limit, EPOCHS, n) for n in range(4)]
    while any(job.poll() is None for job in jobs):
        for path, _, names in os.walk(folder):
            for name in names:
                when = time.time() + years.uniform(-1e8, 1e8)
                with contextlib.suppress(OSError):  # it went in the meantime
                    os.utime(os.path.join(path, name), (when, when))
        threading.Event().wait(0.02)
    nobody_waits_for_ever(jobs, 60)


@pytest.fixture
def group_folder():
    """A cache folder of a group, mode 2770, which its users reach."""
    root = tempfile.mkdtemp(prefix="mds-programme-")
    os.chmod(root, 0o755)
    folder = os.path.join(root, "cache")
    os.mkdir(folder)
    if can_become():
        os.chown(folder, -1, GROUP)
    os.chmod(folder, 0o2770)
    yield folder
    shutil.rmtree(root)


def stop_for_a_while(process, instants):
    """Stop a process somewhere, be it with a lock in its hands, and let it go on."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGSTOP)
        threading.Event().wait(instants.uniform(0, 0.3))
        process.send_signal(signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.parametrize("forms", [("remote",), ("packed",), ("remote", "packed")])
def test_jobs_of_several_users_survive_kills_and_stops(request, group_folder, forms):
    """Four jobs of three users with three umasks: every sample right, the limit kept at each look.

    They are one user's where tests do not run as root, which alone can become others. Two datasets
    are kept apart in the folder, each with a limit of its own.
    """
    users = USERS if can_become() else (os.geteuid(),)
    enough = pathlib.Path(group_folder).parent / "enough"  # where all users can see it
    instants = random.Random("".join(forms))
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(http_server(request.getfixturevalue(f))) for f in forms]
        watch = stack.enter_context(Watch(group_folder))
        jobs = [
            (
                *(users[number % len(users)], ("022", "002", "077")[number % 3]),
                *(urls[number % len(urls)], group_folder, LIMIT, 1000 * number, enough),
            )
            for number in range(4)
        ]
        running = [start("epochs_of_a_user", *job) for job in jobs]
        try:
            for _ in range(KILLS_OF_USERS):
                threading.Event().wait(instants.uniform(0, 0.5))
                dead = [job for job in running if job.poll() is not None]
                assert not dead, dead[0].communicate()[1].decode()[-3000:]
                stop_for_a_while(instants.choice(running), instants)
                victim = instants.randrange(len(jobs))
                running[victim].kill()
                running[victim].communicate()
                running[victim] = start("epochs_of_a_user", *jobs[victim])
            enough.touch()
            nobody_waits_for_ever(running, 600)
        finally:
            for process in running:
                process.kill()
                process.wait()
    assert watch.most <= LIMIT * len(forms)
