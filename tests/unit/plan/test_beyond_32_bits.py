"""Epochs of more than 2**32 samples: ids, positions and states are right beyond that number."""

import numpy as np
import pytest

from mds.plan import EpochPlan
from mds.plan._state import emit_state
from mds.world import World

SHARDS = [2**20] * (3 * 2**11) + [7]
SAMPLES = sum(SHARDS)
ORDERS = [
    {
        "shuffle": shuffle,
        "shuffle_algo": "seekable",
        "remainder": remainder,
        "num_canonical_nodes": nodes,
    }
    for shuffle in (False, True)
    for remainder in ("repeat", "short")
    for nodes in (1, 4)
]


def plan(order, resume=None, workers=2):
    """An epoch of six billion samples on two nodes of four ranks."""
    world = World(2, 4, workers, 0)
    return EpochPlan([{"shards": SHARDS}], world, batch_size=8, resume=resume, **order)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_windows_anywhere_in_a_large_epoch(order):
    """Ids are in range, distinct, found where they are, and the same after a resume."""
    whole = plan(order)
    assert whole.epoch_size == SAMPLES > 2**32
    assert whole.steps == -(-SAMPLES // 64)
    seen = []
    for step in (0, 2**25 - 1, 2**26 - 1, 2**26, whole.steps - 2):
        ids = whole.batch(step)
        assert 0 <= ids.min() <= ids.max() < SAMPLES
        seen.append(ids.reshape(-1))
        for sample in (int(ids[0, 0]), int(ids[-1, -1])):
            assert any(place.step == step for place in whole.locate(sample))
    assert len(np.unique(np.concatenate(seen))) == 5 * 64
    assert max(ids.max() for ids in seen) > 2**32
    state = emit_state(whole.state(2**32 + 64))
    assert np.array_equal(plan(order, state).batch(5), whole.batch((2**32 + 64) // 64 + 5))


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_workers_share_a_large_epoch(order):
    """A worker's block from far behind is its part of the steps there."""
    whole = plan(order)
    start = (2**32 // 64 // 2) * 8  # ids of one worker before global position 2**32
    block = next(whole.blocks(1, 3, 1, start))
    steps = start // 8 * 2 + 1 + 2 * np.arange(len(block) // 8)
    assert block.reshape(-1, 8).tolist() == [whole.batch(int(s))[7].tolist() for s in steps[:128]]


def test_an_epoch_in_order_is_the_numbers_themselves():
    """On one canonical node sample t is element t, also where 32 bits end."""
    whole = plan({"shuffle": False, "num_canonical_nodes": 1})
    step = 2**32 // 64
    assert sorted(whole.batch(step).reshape(-1).tolist()) == list(range(2**32, 2**32 + 64))
