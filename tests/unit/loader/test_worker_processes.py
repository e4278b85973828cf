"""What a caller's collate function makes, as it arrives from worker processes."""

import os
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from mds import StreamingDataLoader, StreamingDataset
from tests.unit.loader.worker_processes_helpers import big, loader_of


def maps(samples):
    """What a worker has made in /dev/shm by then, besides locks; its parent may have some, too."""
    own = f"/dev/shm/torch_{os.getpid()}_"
    with open("/proc/self/maps") as file:
        return default_collate(samples), [line for line in file if own in line]


def test_memory_is_that_of_a_few_batches(make):
    """However many come."""
    loader = loader_of(make(1000), collate_fn=big, samples=5, num_workers=1)
    iterator = iter(loader)
    for _ in range(150):
        batch = next(iterator)
        assert batch["x"][-1] == batch["id"]
    (file,) = loader._loader_state.inner.dataset._files
    assert os.fstat(file.descriptor).st_blocks * 512 < 40 << 20  # of 100 MB that came


def test_nothing_lies_in_dev_shm(make):
    """Which Docker makes 64 MB small: not what crosses, nor what torch's collate makes."""
    for _, found in loader_of(make(), collate_fn=maps):
        assert found == []


def shows_types(samples):
    """Whether torch's collate function is what it is in the trainer."""
    return [
        default_collate([s["vector"] for s in samples]),
        default_collate([torch.from_numpy(s["vector"]) for s in samples]),
        default_collate([(s["vector"][:2], s["text"]) for s in samples]),
        default_collate([s["vector"].astype(">f4") for s in samples[:1]])
        if sys.byteorder == "big"
        else default_collate([np.float32(s["id"]) for s in samples]),
        default_collate([np.array(s["id"]) for s in samples]),
        default_collate([torch.tensor(s["id"]).to_sparse_coo() for s in samples[:0]] or [1]),
        default_collate([torch.ones(2, dtype=torch.bfloat16) for _ in samples]),
        default_collate([torch.arange(6).view(2, 3).t() for _ in samples]),
    ]


def test_torchs_collate_function_makes_the_same_in_a_worker(make):
    """Values, types and shapes are those that it makes here."""
    options = {"batch_size": 10, "collate_fn": shows_types}
    here, there = (
        [*StreamingDataLoader(StreamingDataset(local=make(), batch_size=10), **options, **more)]
        for more in ({}, {"num_workers": 1})
    )
    for one, other in zip(here, there, strict=True):
        flat = [torch.utils._pytree.tree_leaves(each) for each in (one, other)]
        for a, b in zip(*flat, strict=True):
            assert type(a) is type(b)
            assert a == b if isinstance(a, str) else (a.dtype == b.dtype and torch.equal(a, b))


def ragged(samples):
    """Arrays of several lengths."""
    return default_collate([np.zeros(s["id"] + 1) for s in samples])


def test_torchs_collate_function_refuses_the_same(make):
    """With its own words."""
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        [*loader_of(make(), collate_fn=ragged)]


class Kept(DataLoader[Any]):
    """Torch's own loader, to be told from ours."""


def test_torchs_loader_in_the_same_program_is_left_alone(make):
    """Its workers collate as torch does, also after ours were started."""
    [*loader_of(make())]
    theirs = Kept([{"x": np.arange(3)}] * 8, batch_size=4, num_workers=1)
    assert all(batch["x"].is_shared() for batch in theirs)
