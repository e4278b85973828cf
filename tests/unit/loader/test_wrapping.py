"""Wrappers around a dataset: under our loader they behave as under torch's, or are refused."""

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    random_split,
)

from mds import StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError, StateError


class Transformed(Dataset):
    """The usual way to add a transform in torch."""

    def __init__(self, dataset, length=None):
        self.dataset, self._length = dataset, length

    def __len__(self):
        return self._length or len(self.dataset)

    def __getitem__(self, at):
        return {"id": self.dataset[at]["id"] + 1000}


class Piped(IterableDataset):
    """A wrapper that iterates what it wraps."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        for sample in self.dataset:
            yield {"id": sample["id"] + 1000}


KINDS = {
    "subset": lambda d: Subset(d, [5, 3, 8, 60, 61, 62, 99]),
    "transformed": Transformed,
    "of a subset": lambda d: Transformed(Subset(d, range(50))),
    "subset of it": lambda d: Subset(Transformed(d), range(20, 60)),
    "random split": lambda d: random_split(d, [80, 20], torch.Generator().manual_seed(1))[0],
    "concatenated": lambda d: ConcatDataset([Transformed(d), Transformed(Subset(d, range(9)))]),
}
ORDERS = {
    "plain": lambda d: {"batch_size": 4},
    "shuffled": lambda d: {"batch_size": 4, "shuffle": True},
    "sampler": lambda d: {"batch_size": 4, "sampler": RandomSampler(d, num_samples=13)},
    "distributed": lambda d: {"batch_size": 4, "sampler": DistributedSampler(d, 2, 1)},
    "batch sampler": lambda d: {"batch_sampler": BatchSampler(RandomSampler(d), 3, True)},
    "nothing said": lambda d: {},
}


@pytest.mark.parametrize(
    ("order", "workers"), [*((o, 0) for o in ORDERS), ("plain", 2), ("shuffled", 2)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_map_style_wrapper_is_read_as_by_torch(make, kind, order, workers):
    """The same batches in the same order: shuffled, sharded, each sample once for all workers."""

    def batches(loader):
        dataset = KINDS[kind](StreamingDataset(local=make(), batch_size=8))
        torch.manual_seed(7)
        options = {**ORDERS[order](dataset), "num_workers": workers}
        return [batch["id"].tolist() for batch in loader(dataset, **options)]

    assert batches(StreamingDataLoader) == batches(DataLoader)


def test_a_map_style_wrapper_has_no_position(make):
    """Asking for one warns and says what to do; loading one is refused."""
    loader = StreamingDataLoader(
        Transformed(StreamingDataset(local=make(), batch_size=4)), batch_size=4
    )
    next(iter(loader))
    with pytest.warns(UserWarning, match=r"Transformed keeps no position.*dataset\.map"):
        assert loader.state_dict() is None
    loader.load_state_dict(None)
    state = StreamingDataset(local=make(), batch_size=4).state_dict(8)
    with pytest.raises(StateError, match="Transformed keeps no position"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_wrapper_resumes(make, workers):
    """Wrappers that iterate, one in another, know where they are."""

    def fresh():
        dataset = StreamingDataset(local=make(), batch_size=4, shuffle=True)
        return StreamingDataLoader(Piped(Piped(dataset)), batch_size=4, num_workers=workers)

    loader, seen = fresh(), []
    for batch in loader:
        seen += batch["id"].tolist()
        if len(seen) == 40:
            state = loader.state_dict()
            break
    resumed = fresh()
    resumed.load_state_dict(state)
    tail = [i for batch in resumed for i in batch["id"].tolist()]
    assert sorted(seen + tail) == list(range(2000, 2100))


def test_an_iterable_that_reads_a_map_style_wrapper_has_no_position(make):
    """It reads by number, whatever order that is."""
    inner = Transformed(StreamingDataset(local=make(), batch_size=4))
    loader = StreamingDataLoader(Piped(inner), batch_size=4)
    with pytest.warns(UserWarning, match="Piped keeps no position"):
        assert loader.state_dict() is None


class Zipped(IterableDataset):
    """Pairs of samples of two datasets, under names of its own."""

    def __init__(self, left, right):
        self.left, self.right = left, right

    def __iter__(self):
        return zip(self.left, self.right, strict=True)


def test_an_iterable_with_its_datasets_elsewhere_has_no_position(make):
    """Two datasets in attributes or in a chain: the warning says how to keep one."""
    first, second = (StreamingDataset(local=make(), batch_size=4) for _ in range(2))
    for dataset in (Zipped(first, second), Piped(Zipped(first, second)), first + second):
        loader = StreamingDataLoader(dataset, batch_size=4)
        with pytest.warns(UserWarning, match=r"keeps no position: .* self\.dataset, and here"):
            assert loader.state_dict() is None
        with pytest.raises(StateError, match=r"To resume, keep one as self\.dataset"):
            loader.load_state_dict(first.state_dict(8))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_chain_is_read_as_by_torch(make, workers):
    """One dataset after the other, each sample once; ``a + b`` is a chain."""

    def ids(loader):
        chain = StreamingDataset(local=make(), batch_size=4) + StreamingDataset(
            local=make(samples=20, first=500), batch_size=4
        )
        assert isinstance(chain, ChainDataset)
        return [b["id"].tolist() for b in loader(chain, batch_size=4, num_workers=workers)]

    assert ids(StreamingDataLoader) == ids(DataLoader)
    assert sorted(i for b in ids(StreamingDataLoader) for i in b) == [*range(100), *range(500, 520)]


def test_a_concatenation_names_streams(make):
    """It cannot work; torch's own check is an assertion, which ``python -O`` leaves out."""
    both = ConcatDataset.__new__(ConcatDataset)
    both.datasets = [StreamingDataset(local=make(), batch_size=4) for _ in range(2)]
    with pytest.raises(ConfigError, match="streams="):
        StreamingDataLoader(Transformed(both, 200), batch_size=4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shuffle": True}, "shuffle=True, shuffle_seed="),
        ({"sampler": [1, 2, 3]}, "topology="),
        ({"batch_sampler": [[1, 2], [3]]}, "batching_method="),
    ],
)
def test_a_loader_does_not_order_a_streaming_dataset(make, options, says):
    """The message names the arguments of the dataset."""
    dataset = StreamingDataset(local=make(), batch_size=4)
    with pytest.raises(ConfigError, match=says):
        StreamingDataLoader(dataset, **options)
    with pytest.raises(ConfigError, match="shuffle="):
        StreamingDataLoader(Piped(dataset), 4, True)
    assert len(list(StreamingDataLoader(dataset, 4, False, None, num_workers=0))) == 25


def test_a_wrapper_as_long_as_one_rank_is_told(make):
    """len() of a dataset is what one rank sees, so such a wrapper hides the rest of it."""
    dataset = StreamingDataset(local=make(), batch_size=4, topology=(0, 4))
    with pytest.warns(UserWarning, match="25 of 100 samples.*dataset.num_samples"):
        StreamingDataLoader(Transformed(dataset), batch_size=4)
    StreamingDataLoader(Transformed(dataset, dataset.num_samples), batch_size=4)


def test_another_batch_size_of_the_loader_is_told(make):
    """With several workers its positions would not be exact."""
    dataset = StreamingDataset(local=make(), batch_size=8)
    StreamingDataLoader(dataset, batch_size=5, num_workers=1)
    with pytest.warns(UserWarning, match="batches of 5 from an order for batches of 8"):
        StreamingDataLoader(dataset, batch_size=5, num_workers=2)


@pytest.mark.parametrize("batch_size", [5, 8])
def test_ranks_that_are_made_after_the_loader_are_found(make, monkeypatch, batch_size):
    """Trainers start their ranks when they fit; what was looked up before would be one rank."""
    dataset = StreamingDataset(local=make(), batch_size=8)
    loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=1)
    for name, value in (("RANK", 1), ("WORLD_SIZE", 2), ("LOCAL_RANK", 1), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    assert sum(len(batch["id"]) for batch in loader) == 50
