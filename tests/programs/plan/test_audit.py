"""Where a sample is, which samples a step has, and the hash that proves it."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ordertools import BATCHING, algorithms, joined, make_plan

from mds.errors import StateError
from mds.plan import OrderHash
from mds.plan._audit import Place

STREAMS = [
    {"shards": [30, 0, 21, 45], "repeat": 1.5},
    {"shards": [60, 7]},
    {"shards": [33] * 3, "repeat": 2},
]
worlds = st.sampled_from([(1, 1, 1), (2, 2, 2), (2, 3, 1), (1, 4, 3)])


def planned(world, method, algo, seen=0, **order):
    order |= {
        "batch_size": 3,
        "shuffle": algo != "straight",
        "shuffle_algo": algo,
        "shuffle_block_size": 70,
        "batching_method": method,
        "num_canonical_nodes": 2,
        "epoch": 1,
    }
    plan = make_plan(STREAMS, world, **order)
    return make_plan(STREAMS, world, resume=plan.state(seen), **order) if seen else plan


@given(worlds, st.sampled_from(BATCHING), algorithms, st.sampled_from([0, 24, 31]))
def test_locate_finds_every_place_of_a_sample(world, method, algo, seen):
    """It is the inverse of `batch`, whatever the method, also after a resume."""
    plan = planned(world, method, algo, seen)
    places = {}
    for step in range(plan.steps):
        for (rank, at), sample in np.ndenumerate(plan.batch(step)):
            if sample >= 0:
                place = Place(step, rank, step % plan.world.workers_per_rank, at)
                places.setdefault(int(sample), []).append(place)
    for sample in range(0, sum(plan.inputs.stream_samples), 7):
        assert plan.locate(sample) == sorted(places.get(sample, []))
    assert plan.locate(sum(plan.inputs.stream_samples) + 5) == []


@given(worlds, st.sampled_from(["repeat", "short"]), st.sampled_from([0, 7]))
def test_locate_in_an_exact_and_in_a_small_epoch(world, remainder, seen):
    """Every sample has one place, or all its places when samples are repeated."""
    order = {"remainder": remainder, "batch_size": 2, "shuffle": True, "shuffle_algo": "seekable"}
    first = make_plan([5, 6], world, **order)
    plan = make_plan([5, 6], world, resume=first.state(seen), **order)
    steps = [plan.batch(step) for step in range(plan.steps)]
    for sample in range(11):
        want = [(step, *at) for step, ids in enumerate(steps) for at in np.argwhere(ids == sample)]
        found = [(p.step, p.rank, p.place) for p in plan.locate(sample)]
        assert found == [tuple(map(int, place)) for place in sorted(want)]


def test_batch_is_what_the_ranks_get():
    """Step n is batch n // workers of worker n % workers of every rank."""
    plan = planned((2, 2, 3), "random", "py1e")
    for step in (0, 1, 4, plan.steps - 1):
        batch, worker = divmod(step, 3)
        for rank in range(4):
            ids = joined(plan.blocks(rank // 2, rank % 2, worker, start=batch * 3))[:3]
            assert np.array_equal(plan.batch(step)[rank], ids)
    with pytest.raises(IndexError, match="the epoch has"):
        plan.batch(plan.steps)


@given(worlds, st.sampled_from(BATCHING), algorithms, st.integers(0, 2**32))
def test_pieces_of_the_hash_can_be_put_together_in_any_order(world, method, algo, seed):
    """Workers keep their own, block by block; the sum is that of the whole epoch."""
    plan = planned(world, method, algo)
    pieces = []
    for place in np.ndindex(*world):
        at = 0
        for ids in plan.blocks(*place):
            for part in np.array_split(ids, 3):
                made = OrderHash()
                made.add(plan.filling.marks(*place, at, at + len(part)), part)
                pieces.append(made)
                at += len(part)
    random.Random(seed).shuffle(pieces)
    total = OrderHash()
    for piece in pieces:
        total.merge(piece)
    assert total == plan.order_hash(plan.steps)


def test_a_resumed_run_goes_on_with_the_hash():
    """What came before and what comes after add up to the uninterrupted epoch."""
    for method in BATCHING:
        plan = planned((2, 2, 2), method, "py1br")
        total = plan.order_hash(3)
        total.merge(planned((2, 2, 2), method, "py1br", seen=36).order_hash(plan.steps))
        assert total == plan.order_hash(plan.steps)


def test_the_hash_is_that_of_equal_global_batches_on_any_world():
    """For dealt samples even of other batch sizes."""
    shards = {"shards": [40, 50, 30]}
    order = {"shuffle": True, "num_canonical_nodes": 4, "shuffle_algo": "seekable"}
    hashes = {
        str(make_plan([shards], world, batch_size=batch, **order).order_hash(steps))
        for world, batch, steps in (((2, 2, 2), 3, 5), ((1, 1, 1), 12, 5), ((4, 1, 1), 5, 3))
    }
    assert len(hashes) == 1


def test_the_hash_sees_what_two_runs_do_not_share():
    """Another sample, another step, a sample twice."""
    marks, ids = np.arange(50), np.arange(100, 150)

    def hashed(marks, ids):
        made = OrderHash()
        made.add(marks, ids)
        return str(made)

    swapped = ids.copy()
    swapped[[3, 4]] = ids[[4, 3]]
    twice = np.concatenate([ids, ids[:1]])
    found = {
        hashed(marks, ids),
        hashed(marks, swapped),
        hashed(marks + 1, ids),
        hashed(marks, ids + 1),
        hashed(np.concatenate([marks, marks[:1]]), twice),
    }
    assert len(found) == 5


def test_a_hash_is_printed_and_parsed():
    """And what is none is refused."""
    made = OrderHash()
    made.add(np.arange(5), np.arange(5))
    assert OrderHash.parse(str(made)) == made
    with pytest.raises(StateError, match="'x-1' is not an order hash"):
        OrderHash.parse("x-1")
