"""Samples left out while iterating: reported, replaced, and no rank shorter than another."""

import os

import pytest

from mds import MDSWriter, StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError, MdsError
from mds.sieve import LeftOut


def even(sample):
    """A filter that spawned workers can unpickle."""
    return sample["id"] % 2 == 0


def test_a_filter_fills_places_with_the_next_good_sample(make):
    """As many samples as planned, none refused, each at its own place."""
    dataset = StreamingDataset(local=make(), batch_size=4).filter(even)
    found = [s["id"] for s in dataset]
    assert found == [i + i % 2 for i in range(99)] + [98]
    assert [left.sample for left in dataset.left_out] == list(range(1, 100, 2))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_workers_left_out_is_told_to_the_main_process(make, workers):
    """Once each, whatever the number of workers, and the position is exact."""
    dataset = StreamingDataset(local=make(), batch_size=4).filter(even)
    loader = StreamingDataLoader(dataset, num_workers=workers)
    batches = [batch["id"].tolist() for batch in loader]
    assert sum(map(len, batches)) == 100
    assert all(i % 2 == 0 for batch in batches for i in batch)
    assert sorted(left.sample for left in dataset.left_out) == list(range(1, 100, 2))
    assert loader.state_dict()["sample_in_epoch"] == 100


@pytest.fixture
def broken(tmp_path):
    """Twenty samples, of which number 7 has text that is no UTF-8."""
    out = os.path.join(tmp_path, "broken")
    with MDSWriter(out=out, columns={"id": "int", "text": "str"}, samples_per_shard=5) as writer:
        for i in range(20):
            writer.write({"id": i, "text": b"\xff\xfe" if i == 7 else f"sample {i}"})
    return out


def test_a_broken_sample_is_an_error_unless_asked_otherwise(broken):
    """And when it is skipped, its number and reason are kept."""
    with pytest.raises(MdsError):
        list(StreamingDataset(local=broken, batch_size=4))
    dataset = StreamingDataset(local=broken, batch_size=4, on_error="skip")
    found = [s["id"] for s in dataset]
    assert found == [*range(7), 8, *range(8, 20)]
    assert [left.sample for left in dataset.left_out] == [7]
    assert isinstance(dataset.left_out[0], LeftOut)
    assert "Error" in dataset.left_out[0].reason


def test_a_missing_shard_is_never_skipped(broken):
    """Only faults of a sample are; a store that fails stops the run."""
    os.remove(os.path.join(broken, "shard.00002.mds"))
    with pytest.raises(FileNotFoundError):
        list(StreamingDataset(local=broken, batch_size=4, on_error="skip"))


def test_a_filter_that_refuses_everything_is_an_error(make):
    """Rather than an epoch without samples, or one that never ends."""
    dataset = StreamingDataset(local=make(), batch_size=4).filter(lambda sample: False)
    with pytest.raises(ConfigError, match="left out"):
        list(dataset)


def test_an_unknown_policy_is_refused(make):
    """With the ones that there are."""
    with pytest.raises(ConfigError, match="'raise' or 'skip'"):
        StreamingDataset(local=make(), on_error="ignore")
