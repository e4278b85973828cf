"""Trainers that deal samples out to ranks once more are refused, also in worker processes."""

import itertools

import pytest
from torch.utils.data import DataLoader, IterableDataset

from mds import StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError


class IterableDatasetShard(IterableDataset):
    """A class as those of accelerate and transformers, which give every second sample to a rank."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        yield from itertools.islice(self.dataset, 0, None, 2)


@pytest.mark.slow
@pytest.mark.parametrize("start", [None, "fork", "spawn"])
def test_a_trainer_that_shards_once_more_is_refused(make, start):
    """Half of the samples would never be seen; with one rank, or all samples on each, they are."""
    options = {} if start is None else {"num_workers": 1, "multiprocessing_context": start}
    dataset = StreamingDataset(local=make(), batch_size=4, topology=(0, 2))
    with pytest.raises(ConfigError, match="IterableDatasetShard divides the samples"):
        list(DataLoader(IterableDatasetShard(dataset), batch_size=4, **options))
    assert len(list(dataset)) == 50
    whole = StreamingDataset(local=make(), batch_size=4, topology=(0, 1))
    batches = list(DataLoader(IterableDatasetShard(whole), batch_size=4, **options))
    assert sum(len(batch["id"]) for batch in batches) == 50


class DataLoaderDispatcher:
    """A class as that of accelerate, which has one process read for all."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        yield from self.loader


@pytest.mark.parametrize("start", [None, "fork", "spawn"])
def test_a_process_that_reads_for_all_ranks_is_refused(make, start):
    """It would read the part of its own rank alone."""
    options = {} if start is None else {"num_workers": 1, "multiprocessing_context": start}
    dataset = StreamingDataset(local=make(), batch_size=4, topology=(0, 2))
    with pytest.raises((ConfigError, RuntimeError), match="DataLoaderDispatcher divides"):
        list(DataLoaderDispatcher(DataLoader(dataset, batch_size=4, **options)))


class SkipDataLoader(DataLoader):
    """A class as that of accelerate, which skip_first_batches() makes of a loader's arguments."""

    def __init__(self, loader, skip_batches):
        options = {
            "num_workers": loader.num_workers,
            "multiprocessing_context": loader.multiprocessing_context,
        }
        super().__init__(loader.dataset, loader.batch_size, **options)
        self.skip_batches = skip_batches

    def __iter__(self):
        yield from itertools.islice(super().__iter__(), self.skip_batches, None)


@pytest.mark.parametrize("start", [None, "fork", "spawn"])
def test_batches_are_not_skipped_past_the_loader(make, start):
    """Its state would stay at the beginning, and a resumed run would repeat the batches."""
    options = {} if start is None else {"num_workers": 1, "multiprocessing_context": start}
    dataset = StreamingDataset(local=make(), batch_size=4)
    loader = StreamingDataLoader(dataset, **options)
    with pytest.raises(ConfigError, match=r"skip_first_batches\(\).*load_state_dict\(state\)"):
        list(SkipDataLoader(loader, 3))
    other = DataLoader(StreamingDataset(local=make(), batch_size=4), batch_size=4, **options)
    assert len(list(SkipDataLoader(other, 3))) == len(loader) - 3
