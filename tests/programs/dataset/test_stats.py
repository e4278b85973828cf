"""Counters are those of the whole rank, whichever process did the work."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.unit.dataset import stats_helpers
from tests.unit.dataset.stats_helpers import SAMPLES, loader_of

# Fixtures of both halves of these tests.
remote = stats_helpers.remote
dataset = stats_helpers.dataset


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_the_trainer_sees_what_its_workers_counted(dataset, start):
    """After an epoch of two worker processes every shard was fetched, by one of them."""
    loader = loader_of(dataset, start)
    assert sorted(np.concatenate([*loader])) == [*range(SAMPLES)]
    stats = dataset.stats()
    shards = dataset._shards.num_shards
    assert stats["fetched_shards"] == shards
    assert stats["hits"] + stats["misses"] >= shards
    assert stats["used_bytes"] == dataset.cache_usage > stats["fetched_bytes"] > 0


def test_counts_of_workers_that_ended_stay(dataset):
    """Each epoch has workers of its own; what they did is added to what was done before."""
    loader = loader_of(dataset, "fork")
    before = 0
    for _ in range(5):
        list(loader)
        stats = dataset.stats()
        opened = stats["hits"] + stats["misses"]
        assert opened >= before + dataset._shards.num_shards
        before = opened
    rows = dataset._cache._counters.rows_of_rank()
    assert len(rows) <= 4, "the rows of the dead are used again"


JOB = """
import sys
from mds import StreamingDataset
dataset = StreamingDataset(remote=sys.argv[1], local=sys.argv[2], batch_size=8)
for sample in dataset:
    pass
print("read", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_the_node_counts_every_job_on_the_folder_while_it_runs(dataset, remote, tmp_path):
    """Two jobs share a folder and a third does not; when they end they count no more."""
    shards = dataset._shards.num_shards
    list(dataset)
    places = [str(tmp_path / "cache"), str(tmp_path / "cache"), str(tmp_path / "other")]
    with contextlib.ExitStack() as running:
        jobs = [
            running.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", JOB, remote, place],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for place in places
        ]
        assert [job.stdout.readline() for job in jobs] == ["read\n"] * 3
        stats = dataset.stats(node=True)
        assert (stats["processes"], stats["fetched_shards"]) == (3, shards)
        assert stats["hits"] == 3 * shards
        jobs[0].kill()
        jobs[0].wait()
        assert dataset.stats(node=True)["processes"] == 2
        for job in jobs[1:]:
            job.stdin.close()
    assert dataset.stats(node=True) == dataset.stats()


def test_counting_leaves_nothing_behind(dataset, remote, tmp_path):
    """No file has a name, so none is left where temporary files are."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", JOB, remote, str(tmp_path / "cache")],
        env={**os.environ, "TMPDIR": str(folder)},
        input="",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "read\n"
    list(dataset)
    assert dataset.stats(node=True)["processes"] == 1
    assert list(folder.iterdir()) == []


def test_a_killed_worker_keeps_its_counts(dataset):
    """What was counted is in memory that nobody owns: kill -9 takes none of it."""
    loader = loader_of(dataset, "fork", persistent_workers=True)
    batches = iter(loader)
    next(batches)
    deadline = time.monotonic() + 60
    while dataset.stats()["fetched_shards"] < 2 and time.monotonic() < deadline:
        os.sched_yield()
    before = dataset.stats()["fetched_shards"]
    for worker in batches._workers:
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    assert dataset.stats()["fetched_shards"] >= before >= 2
    assert dataset.stats()["processes"] == 0


def count_in_child(dataset, connection):
    list(dataset)
    connection.send(dataset.stats())


def test_ranks_that_were_forked_from_one_process_count_apart(dataset):
    """Each forked process that is no worker is a rank of its own."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    found = []
    for _ in range(2):
        child = fork.Process(target=count_in_child, args=(dataset, there))
        child.start()
        found.append(here.recv())
        child.join()
    shards = dataset._shards.num_shards
    assert [stats["fetched_shards"] for stats in found] == [shards, 0]
    assert found[1]["hits"] == shards, "not those of the first as well"
    assert dataset.stats()["hits"] == 0
