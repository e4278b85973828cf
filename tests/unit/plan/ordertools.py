"""Datasets, worlds and plans for the tests of the order."""

import numpy as np
from hypothesis import strategies as st

from mds.plan import EpochPlan
from mds.plan._mixture import ONE
from mds.world import World

DRAWN = ("naive", "py1b", "py1br", "py1e", "py1s", "py2s")
ALGORITHMS = (*DRAWN, "seekable")
BATCHING = ("random", "stratified", "per_stream", "device_per_stream")

sizes = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(sum)
algorithms = st.sampled_from(ALGORITHMS)


def make_plan(shards, world, **order):
    """A plan of one stream, or of several when ``shards`` is a list of lists."""
    streams = shards if isinstance(shards[0], dict) else [{"shards": shards}]
    order.setdefault("batch_size", 4)
    return EpochPlan(streams, World(*world, 0), **order)


def steps_of(plan):
    """The ids of each global batch, sorted, without padding."""
    return [np.sort(ids[ids >= 0]).tolist() for ids in map(plan.batch, range(plan.steps))]


def joined(blocks):
    """Blocks as one array; each is copied, because it is good only until the next is asked for."""
    return np.concatenate([np.zeros(0, np.int64), *(np.array(block) for block in blocks)])


def uneven(shards, samples, seed=7):
    """So many shard sizes, unequal, with so many samples in all."""
    weight = np.random.default_rng(seed).lognormal(0, 0.8, shards)
    found = np.maximum(1, (weight / weight.sum() * samples).astype(np.int64))
    found[0] += samples - found.sum()
    return found


def drawn_shares(rng, streams):
    """Shares of ONE that differ a lot, some of them zero."""
    weights = rng.random(streams) ** 4 * (rng.random(streams) > 0.2)
    weights[0] += 0.1
    shares = (weights / weights.sum() * ONE).astype(np.int64)
    shares[0] += ONE - shares.sum()
    return tuple(shares.tolist())
