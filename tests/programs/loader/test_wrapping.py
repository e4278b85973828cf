"""Wrappers around a dataset: under our loader they behave as under torch's, or are refused."""

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Subset,
    random_split,
)

from mds import StreamingDataLoader, StreamingDataset
from tests.unit.loader.wrapping_helpers import Piped, Transformed

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


@pytest.mark.slow
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
