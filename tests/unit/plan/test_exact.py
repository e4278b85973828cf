"""Evaluation: every sample exactly once over all ranks, whatever the numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ordertools import algorithms, joined, make_plan, sizes

from mds.errors import PlanError, StateError

worlds = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3))


@given(sizes, worlds, algorithms, st.booleans(), st.integers(1, 9), st.integers(1, 7))
def test_every_sample_exactly_once(shards, world, algo, shuffle, batch, canonical):
    """On any world, also one of more ranks than samples, with any number of canonical nodes."""
    plan = make_plan(
        shards,
        world,
        batch_size=batch,
        remainder="short",
        shuffle=shuffle,
        shuffle_algo=algo,
        shuffle_block_size=40,
        num_canonical_nodes=canonical,
    )
    slices = [joined(plan.blocks(*place)) for place in np.ndindex(*world)]
    ids = joined(slices)
    assert sorted(ids[ids >= 0].tolist()) == list(range(sum(shards)))
    # Every rank takes as many steps; what it does not have is padding that says so.
    assert {len(part) for part in slices} == {plan.filling.length}
    assert plan.steps == -(-sum(shards) // (world[0] * world[1] * batch))


@given(sizes, worlds)
def test_the_canonical_order_is_that_of_a_single_process(shards, world):
    """With the same canonical nodes a world of any shape reads the one global order in turn."""
    order = {"remainder": "short", "num_canonical_nodes": 3, "batch_size": 2}
    alone = joined(make_plan(shards, (1, 1, 1), **order).blocks(0, 0, 0))
    plan = make_plan(shards, world, **order)
    steps = joined(
        plan.batch(step).reshape(world[0], world[1], 2).transpose(2, 1, 0).reshape(-1)
        for step in range(plan.steps)
    )
    assert steps[steps >= 0].tolist() == alone[alone >= 0].tolist()


def test_batches_by_stream_are_refused():
    """They leave out what does not fill a batch."""
    with pytest.raises(PlanError, match="Use batching_method 'random'"):
        make_plan([5], (1, 1, 1), remainder="short", batching_method="stratified")


def test_states_keep_their_key():
    """It is a bool, as in states of before, and an error about it names the argument."""
    for remainder in ("repeat", "short", "mask"):
        plan = make_plan([50], (1, 2, 1), remainder=remainder)
        assert plan.order_facts()["exact"] is (remainder != "repeat")
    state = make_plan([50], (1, 2, 1)).state(8)
    with pytest.raises(StateError, match=r"exact was False and is True .remainder='repeat' is Fal"):
        plan.check(state)


def test_with_repeat_few_samples_are_repeated_with_a_warning():
    """Nothing is repeated in silence."""
    plan = make_plan([3], (2, 4, 1), num_canonical_nodes=2)
    with pytest.warns(UserWarning, match="3 samples are few for 2 nodes of 4 ranks"):
        assert plan.steps == 1
