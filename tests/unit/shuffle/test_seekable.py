"""The shuffle that can be entered anywhere: exact, local, well mixed, and without weak edges."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ordertools import joined, make_plan, sizes, uneven

from mds.plan._keyed_sampling import keyed_counts
from mds.shuffle import ShuffleSpec, get_shuffle
from mds.shuffle._permutation import (
    KeyedOrders,
    derive_key,
    hash_counters,
    keyed_order,
    permute,
    permute_below,
    unpermute,
)
from mds.shuffle._seekable import Seekable

specs = st.builds(
    lambda shards, nodes, seed, epoch, block: ShuffleSpec(
        np.array(shards, np.int64), nodes, seed, epoch, block
    ),
    sizes,
    st.integers(1, 9),
    st.integers(0, 2**70),
    st.integers(0, 9),
    st.sampled_from([1, 2, 5, 30, 100, 10_000]),
)


@given(specs)
def test_every_sample_once_and_back(spec):
    """It is a permutation, within each node, and `find` undoes `ids_at`."""
    shuffle = Seekable(spec)
    positions = np.arange(spec.samples)
    ids = shuffle.ids_at(positions)
    assert sorted(ids.tolist()) == positions.tolist()
    assert np.array_equal(shuffle.find(ids), positions)
    whole = joined(w for node in range(spec.num_canonical_nodes) for w in shuffle.windows(node))
    assert np.array_equal(whole, ids)


@given(specs, st.data())
def test_any_position_is_computed_alone(spec, data):
    """One id, from a shuffle made for it, is that of the whole."""
    position = data.draw(st.integers(0, spec.samples - 1))
    alone = Seekable(spec).ids_at(np.array([position]))
    assert alone[0] == Seekable(spec).ids_at(np.arange(spec.samples))[position]


def moved(algo, sizes, block, epoch=0):
    """Where each sample went, seen from the place of its shard in the order of shards."""
    order = get_shuffle(algo, sizes, 1, 5, epoch, block)
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    shard = np.repeat(np.arange(len(sizes)), sizes)
    return position, shard


def lives(position, shard, count):
    """For each shard, positions from its first sample to its last, the short way round."""
    found = []
    for k in range(count):
        mine = np.sort(position[shard == k])
        gaps = np.diff(mine, append=mine[0] + len(position))
        found.append(len(position) - gaps.max())
    return np.array(found)


def test_shards_are_needed_no_longer_and_mixed_no_less_than_by_py1e():
    """At the same block size: mean life of a shard, and distance of samples of a shard.

    py1e is measured away from the ends of the node, where it squeezes shards together.
    """
    sizes, block = np.full(1_000, 500), 20_000
    found = {}
    for algo in ("py1e", "seekable"):
        position, shard = moved(algo, sizes, block)
        middle = position.reshape(1_000, 500).mean(axis=1)
        inside = (middle > block) & (middle < 500_000 - block)
        neighbours = np.abs(np.diff(position.reshape(1_000, 500), axis=1))
        apart = np.minimum(neighbours, len(position) - neighbours)
        found[algo] = lives(position, shard, 1_000)[inside].mean(), apart[inside].mean()
    assert found["seekable"][0] <= 1.02 * found["py1e"][0]
    assert found["seekable"][1] >= 0.99 * found["py1e"][1]


def test_the_ends_of_a_node_are_mixed_as_well_as_its_middle():
    """Shards at both ends of the line are spread as wide as any, because the window wraps."""
    sizes, block = np.full(400, 500), 20_000
    position, shard = moved("seekable", sizes, block)
    life = lives(position, shard, 400)
    assert life.min() > 0.9 * life.mean()
    first, last = (
        np.unique(shard[np.argsort(position)[:500]]),
        np.unique(shard[np.argsort(position)[-500:]]),
    )
    assert min(len(first), len(last)) > 0.9 * block / 500


def test_a_shard_larger_than_a_block_is_mixed():
    """Its samples are shuffled among themselves, and with the shards beside it."""
    sizes = np.array([20_000, 20_000, 20_000])
    order = get_shuffle("seekable", sizes, 1, 0, 0, 2_000)
    inside = order[order < 20_000]
    # Of a sequence in file order neighbours would be a block apart at most.
    assert np.abs(np.diff(inside)).mean() > 5_000
    shard = order // 20_000
    changes = np.count_nonzero(np.diff(shard))
    assert changes > 500


def test_every_stretch_opens_as_many_new_shards():
    """Downloads are even over an epoch: no stretch needs many more new shards than another."""
    sizes, block = np.full(1_000, 200), 20_000
    order = get_shuffle("seekable", sizes, 1, 0, 0, block)
    _, first = np.unique(order // 200, return_index=True)
    opened = np.histogram(first[first > block], np.arange(block, 180_001, 4_000))[0]
    assert opened.max() <= 2 * opened.mean()
    assert opened.min() >= opened.mean() / 2


def test_epochs_and_seeds_give_unrelated_orders():
    """Hardly a sample is where it was."""
    sizes = uneven(50, 20_000)
    orders = [get_shuffle("seekable", sizes, 1, s, e, 4_000) for s, e in ((1, 0), (1, 1), (2, 0))]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert np.count_nonzero(orders[i] == orders[j]) < 20


def test_the_order_of_today_is_the_order_of_always():
    """Recorded ids: checkpoints depend on them."""
    sizes = np.array([30, 1, 25, 60, 44])
    order = get_shuffle("seekable", sizes, 2, 9176, 3, 50)
    assert order[:12].tolist() == [116, 29, 15, 30, 9, 120, 13, 59, 20, 19, 57, 1]
    large = Seekable(ShuffleSpec(np.full(100_000, 20_000), 4, 1, 2, 1 << 18))
    found = large.ids_at(np.array([0, 1, 999_999_999, 1_999_999_999]))
    assert found.tolist() == [1806542381, 1394628599, 855443454, 309839129]


def test_a_position_in_two_billion_samples_needs_little_memory():
    """A few numbers for each of 488,894 shards, and nothing for samples."""
    sizes = uneven(488_894, 2_000_000_000)
    tracemalloc.start()
    plan = make_plan(sizes, (1, 8, 8), shuffle=True, shuffle_algo="seekable", batch_size=512)
    start = plan.filling.length // 2 // 512 * 512
    ids = next(plan.blocks(0, 3, 5, start=start))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.unique(ids)) == len(ids)
    assert peak < 64_000_000


@given(st.integers(0, 32), st.integers(0, 2**64 - 1))
def test_keyed_permutations_of_powers_of_two_can_be_undone(bits, key):
    """`unpermute` undoes `permute`, which stays inside."""
    values = hash_counters(1, np.arange(50)).astype(np.uint32) & np.uint32(2**bits - 1)
    keys = hash_counters(key, np.arange(50))
    found = permute(values, keys, bits)
    assert int(found.max()) < 2**bits
    assert np.array_equal(unpermute(found, keys, bits), values)


@given(st.integers(1, 300), st.integers(0, 2**64 - 1))
def test_keyed_permutations_of_any_size_are_permutations(size, key):
    """Every value is hit once, and the inverse leads back."""
    values, sizes = np.arange(size), np.full(size, size)
    keys = np.full(size, key, np.uint64)
    found = permute_below(values, sizes, keys)
    assert sorted(found.tolist()) == values.tolist()
    assert np.array_equal(permute_below(found, sizes, keys, inverse=True), values)


def test_keyed_permutations_look_random():
    """Over many keys a pair of neighbours goes to all pairs of values equally often."""
    keys = hash_counters(derive_key(7), np.arange(200_000))
    a, b = (permute(np.full(len(keys), v, np.uint32), keys, 5).astype(int) for v in (8, 9))
    counts = np.bincount(a * 32 + b, minlength=1024).reshape(32, 32)
    assert np.trace(counts) == 0
    others = counts[~np.eye(32, dtype=bool)]
    expected = len(keys) / len(others)
    chi = ((others - expected) ** 2 / expected).sum()
    assert abs(chi - len(others)) < 5 * np.sqrt(2 * len(others))


def test_groups_stay_in_their_order():
    """Numbers are shuffled inside of their groups only."""
    groups = np.repeat([0, 2, 7], [5, 1, 30])
    order = keyed_order(3, 36, groups)
    assert sorted(order.tolist()) == list(range(36))
    assert groups[order].tolist() == groups.tolist()


def test_orders_made_together_are_those_made_alone():
    """Keyed orders of several ranges, with groups and without, and of some of them."""
    groups = np.repeat([0, 2, 7], [5, 1, 30])
    together = KeyedOrders([(36, groups), (0, None), (9, None), (36, None)])
    alone = [keyed_order(key, 36, groups) for key in (3, 4)] + [keyed_order(5, 9)]
    which = np.array([0, 2])
    keys = np.repeat(np.array([3, 5], np.uint64), [36, 9])
    assert together.subset(which).orders(keys).tolist() == [*alone[0], *alone[2]]
    whole = together.orders(np.repeat(np.array([4, 5, 3], np.uint64), [36, 9, 36])).tolist()
    assert whole == [*alone[1], *alone[2], *keyed_order(3, 36)]


def test_a_group_goes_to_and_fro_between_epochs():
    """Far more parts than it keeps of other epochs; every order is that of its epoch."""
    sizes = [np.full(count, 1) for count in (150_000, 40_000)]
    specs = [ShuffleSpec(each, 2, 7, 0, 1 << 12) for each in sizes]
    shuffles = [Seekable(spec) for spec in specs]
    group, positions = Seekable.group(dict(enumerate(shuffles))), np.arange(0, 40_000, 999)
    for epochs in ((1, 1), (2, 1), (3, 2), (4, 3), (1, 0), (5, 4), (1, 1)):
        group = group.at_epochs(np.array([0, 1]), np.array(epochs))
        for number, epoch in enumerate(epochs):
            found = group.ids_at(np.full(len(positions), number), positions)
            assert np.array_equal(found, shuffles[number].at_epoch(epoch).ids_at(positions))


@given(sizes, st.integers(0, 300), st.sampled_from([1, 2, 7, 100]), st.integers(0, 2**63))
def test_keyed_sampling_takes_exactly_so_many(shards, choose, granularity, key):
    """In all as many as asked, and of a shard its full copies and at most one more."""
    shards = np.array(shards, np.int64)
    counts = keyed_counts(shards, choose, granularity, key)
    assert counts.sum() == choose
    copies = choose // shards.sum()
    assert (counts >= shards * copies).all()
    assert (counts <= shards * (copies + 1)).all()


@pytest.mark.parametrize("granularity", [1, 10])
def test_keyed_sampling_is_fair(granularity):
    """Over many epochs every sample is chosen about equally often."""
    seen = np.zeros(200, int)
    for epoch in range(200):
        plan = make_plan(
            [{"shards": [30, 3, 45, 22, 10, 20, 50, 20], "choose": 100}],
            (1, 1, 1),
            shuffle=True,
            shuffle_algo="seekable",
            sampling_granularity=granularity,
            remainder="short",
            epoch=epoch,
        )
        ids = joined(plan.blocks(0, 0, 0))
        seen[ids[ids >= 0]] += 1
    assert seen.sum() == 200 * 100
    assert seen.min() > 50
    assert seen.max() < 150
