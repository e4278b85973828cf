"""Counters are those of the whole rank, whichever process did the work."""

import multiprocessing
import os
import pickle
import signal
import time

from tests.unit.dataset import stats_helpers
from tests.unit.dataset.stats_helpers import loader_of

# Fixtures of both halves of these tests.
remote = stats_helpers.remote
dataset = stats_helpers.dataset


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


def test_a_dataset_that_was_not_read_counts_nothing(dataset):
    """Asking opens nothing, and every name is there."""
    stats = dataset.stats()
    assert (stats["fetched_shards"], stats["used_bytes"], stats["processes"]) == (0, 0, 0)
    list(dataset)
    assert dataset.stats().keys() == stats.keys()


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


def test_a_copy_that_goes_elsewhere_counts_from_the_beginning(dataset):
    """A pickle that is no worker's is another dataset object."""
    list(dataset)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.stats()["fetched_shards"] == 0
    assert dataset.stats()["fetched_shards"] > 0
