"""Counters are those of the whole rank, whichever process did the work."""

import pickle

from tests.unit.dataset import stats_helpers

# Fixtures of both halves of these tests.
remote = stats_helpers.remote
dataset = stats_helpers.dataset


def test_a_dataset_that_was_not_read_counts_nothing(dataset):
    """Asking opens nothing, and every name is there."""
    stats = dataset.stats()
    assert (stats["fetched_shards"], stats["used_bytes"], stats["processes"]) == (0, 0, 0)
    list(dataset)
    assert dataset.stats().keys() == stats.keys()


def test_a_copy_that_goes_elsewhere_counts_from_the_beginning(dataset):
    """A pickle that is no worker's is another dataset object."""
    list(dataset)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.stats()["fetched_shards"] == 0
    assert dataset.stats()["fetched_shards"] > 0
