"""Groups of shards, which the tasks of an engine read."""

import itertools

import numpy as np
import pytest

from mds import MDSWriter, StreamingDataset


@pytest.fixture
def dataset(tmp_path):
    """Fifty samples of growing sizes in many shards, in two streams."""
    for name in ("a", "b"):
        with MDSWriter(str(tmp_path / name), {"text": "str"}, size_limit=300) as writer:
            for number in range(25):
                writer.write({"text": "x" * 5 * number})
    return StreamingDataset({str(tmp_path / "a"): 0.5, str(tmp_path / "b"): 0.5})


@pytest.mark.parametrize("count", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("part", [slice(None), slice(7, 31), slice(0, 50, 3), slice(4, 5)])
def test_groups_divide_between_shards(dataset, count, part):
    """They have all samples in order, no group is empty, and no shard is in two."""
    shards = dataset.select(part)._shards
    groups = shards.groups(count)
    assert [*itertools.chain(*groups)] == [*range(shards.num_samples)]
    assert all(groups)
    assert len(groups) <= min(count, np.count_nonzero(shards.samples_per_shard))
    starts = {group.start for group in groups}
    assert starts <= {*shards.sample_offset_per_shard.tolist()}


def test_groups_have_about_the_same_bytes(dataset):
    """A group exceeds its share by one shard at most."""
    shards = dataset._shards
    sizes = [shard.raw.size for shard in dataset.shards]
    for count in (2, 3, 5):
        for group in shards.groups(count):
            shard_numbers = {shards.locate(sample)[0] for sample in group}
            share = sum(sizes) / count
            assert sum(sizes[number] for number in shard_numbers) < share + max(sizes)


def test_an_empty_dataset_has_no_group(dataset):
    """No task is started for it."""
    empty = dataset.select([])._shards
    assert empty.groups(4) == []
    assert empty.stored_bytes(empty.num_samples) == 0
