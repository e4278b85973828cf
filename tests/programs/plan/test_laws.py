"""Laws of the order: nothing lost, nothing twice, and the same tail from every step on."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ordertools import ALGORITHMS, BATCHING, algorithms, joined, make_plan, sizes, steps_of

from mds.errors import ConfigError, PlanError
from mds.plan import epoch_order
from mds.world import World

worlds = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
mixtures = st.lists(
    st.builds(
        lambda shards, repeat: {"shards": shards, "repeat": repeat},
        sizes,
        st.sampled_from([0.5, 1, 1.5, 2]),
    ),
    min_size=1,
    max_size=3,
)


def planned(*args, **kwargs):
    """A plan whose rows can be made; other examples are beside the point."""
    try:
        plan = make_plan(*args, **kwargs)
        assert plan.filling.global_batches.count >= 0
    except (PlanError, ConfigError):
        assume(False)
    return plan


@given(sizes, worlds, algorithms, st.booleans(), st.integers(1, 200))
def test_every_sample_is_seen_and_only_the_remainder_twice(shards, world, algo, shuffle, block):
    """All ids appear; there are as few repetitions as an even share of all ranks needs."""
    plan = planned(shards, world, shuffle=shuffle, shuffle_algo=algo, shuffle_block_size=block + 3)
    ids = joined(map(np.asarray, steps_of(plan)))
    assert np.unique(ids).tolist() == list(range(sum(shards)))
    # One for each canonical node whose share is short by one, and one round over the ranks.
    slack = plan.num_canonical_nodes + world[0] * world[1]
    if sum(shards) > 2 * slack:
        assert len(ids) <= sum(shards) + slack


@given(
    mixtures,
    worlds,
    algorithms,
    st.sampled_from(["balanced", "fixed"]),
    st.sampled_from([1, 3, 50]),
)
def test_each_stream_gives_what_it_chose(streams, world, algo, method, granularity):
    """Of every stream as many as chosen, none more than one time more often than another."""
    assume(all(int(s["repeat"] * sum(s["shards"])) for s in streams))
    plan = planned(
        streams,
        world,
        remainder="short",
        shuffle=True,
        shuffle_algo=algo,
        sampling_method=method,
        sampling_granularity=granularity,
        shuffle_block_size=64,
        epoch=2,
    )
    ids = joined(map(np.asarray, steps_of(plan)))
    edges = np.cumsum([0] + [sum(s["shards"]) for s in streams])
    assert np.histogram(ids, edges)[0].tolist() == list(plan.choose)
    for stream, first, last in zip(streams, edges[:-1], edges[1:], strict=True):
        counts = np.bincount(ids[(ids >= first) & (ids < last)] - first, minlength=last - first)
        assert counts.min() >= int(stream["repeat"])
        assert counts.max() <= int(np.ceil(stream["repeat"]))


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("canonical", [4, 12])
def test_the_tail_is_the_same_from_every_step_on_every_world_that_fits(algo, canonical):
    """The state after each step, taken to other nodes, ranks, workers, gives the same batches."""
    shards = [17, 3, 40, 25, 60, 1, 22]
    order = {
        "shuffle": True,
        "shuffle_algo": algo,
        "shuffle_block_size": 20,
        "num_canonical_nodes": canonical,
    }
    first = make_plan(shards, (2, 2, 2), batch_size=3, epoch=1, **order)
    batches = steps_of(first)
    # The last batch may hold repetitions, which depend on the number of ranks.
    whole = sum(shards) // 12
    for nodes, ranks, workers, batch in ((2, 2, 2, 3), (1, 1, 3, 12), (4, 1, 1, 3), (1, 4, 2, 3)):
        for step in range(len(batches) + 1):
            state = first.state(step * 12)
            plan = make_plan(
                shards, (nodes, ranks, workers), batch_size=batch, epoch=1, resume=state, **order
            )
            assert steps_of(plan)[: whole - step] == batches[step:whole]


@pytest.mark.parametrize("method", BATCHING[1:])
@pytest.mark.parametrize("algo", ["py1e", "py1s", "seekable"])
def test_batches_by_stream_go_on_at_every_step(method, algo):
    """In the same world to the end, and for global batches on other workers too."""
    streams = [{"shards": [60, 31, 45]}, {"shards": [90, 7]}, {"shards": [33] * 3}]
    order = {
        "shuffle": True,
        "shuffle_algo": algo,
        "shuffle_block_size": 60,
        "batching_method": method,
        "batch_size": 4,
        "num_canonical_nodes": 2,
        "epoch": 3,
    }
    first = make_plan(streams, (2, 2, 2), **order)
    batches = steps_of(first)
    for world in ((2, 2, 2), (2, 2, 3), (1, 4, 1)):
        if method == "device_per_stream" and world == (1, 4, 1):
            continue
        # Repetitions that even out other ranks may fill one batch more.
        last = len(batches) - (world == (1, 4, 1))
        for step in range(len(batches) + 1):
            plan = make_plan(streams, world, resume=first.state(step * 16), **order)
            found = steps_of(plan)
            assert [b for b in found[: last - step] if b] == [b for b in batches[step:last] if b]
            assert world == (1, 4, 1) or len(found) == len(batches) - step


@given(
    sizes, st.integers(1, 6), st.integers(0, 400), st.sampled_from(["py1e", "py1br", "seekable"])
)
def test_a_position_of_our_own_is_honoured_to_the_sample(shards, nodes, seen, algo):
    """After any number of samples exactly the others are left."""
    order = {
        "shuffle": True,
        "shuffle_algo": algo,
        "shuffle_block_size": 30,
        "num_canonical_nodes": 1,
    }
    first = make_plan(shards, (1, 1, 1), remainder="short", **order)
    ids = joined(first.blocks(0, 0, 0))
    ids = ids[ids >= 0]
    plan = make_plan(shards, (nodes, 2, 2), remainder="short", resume=first.state(seen), **order)
    left = joined(map(np.asarray, steps_of(plan)))
    assert sorted(left.tolist()) == sorted(ids[seen:].tolist())


@given(sizes, worlds, worlds, algorithms)
def test_the_global_order_does_not_depend_on_who_computes_it(shards, one, other, algo):
    """Worlds of as many samples a step see the same steps, as long as nothing is repeated."""
    world = one[0] * one[1] * other[0] * other[1]
    canonical = one[0] * other[0]
    order = {
        "shuffle": True,
        "shuffle_algo": algo,
        "shuffle_block_size": 50,
        "num_canonical_nodes": canonical,
    }
    assume(sum(shards) >= canonical)
    plans = [
        make_plan(shards, shape, batch_size=world // (shape[0] * shape[1]), **order)
        for shape in (one, other)
    ]
    whole = sum(shards) // canonical * canonical // world
    assert steps_of(plans[0])[:whole] == steps_of(plans[1])[:whole]


@given(mixtures, worlds, algorithms, st.sampled_from(BATCHING), st.integers(0, 500), st.booleans())
@settings(max_examples=120)
def test_blocks_are_the_worker_s_part_of_the_whole(streams, world, algo, method, start, is_exact):
    """From any position, for every worker, with every method."""
    order = {
        "batch_size": 3,
        "shuffle": True,
        "shuffle_algo": algo,
        "shuffle_block_size": 3_000,
        "batching_method": method,
        "remainder": "short" if is_exact and method == "random" else "repeat",
    }
    plan = planned(streams, world, **order)
    whole = epoch_order(streams, World(*world, 0), **order)
    assert whole.shape[:3] == world
    for place in np.ndindex(*world):
        want = whole[place].reshape(-1)
        assert len(want) == plan.filling.length
        blocks = list(plan.blocks(*place, start=min(start, plan.filling.length)))
        assert all(block.ndim == 1 and block.dtype == np.int64 for block in blocks)
        assert np.array_equal(joined(blocks), want[start:])


def test_a_run_goes_on_with_what_its_state_set():
    """The epoch after a resumed one keeps the state's seed, canonical nodes and initial nodes."""
    state = {
        "epoch": 4,
        "sample_in_epoch": 12,
        "num_canonical_nodes": 4,
        "shuffle_seed": 5,
        "initial_physical_nodes": 4,
    }
    plan = make_plan([90, 30], (3, 2, 1), batch_size=4, shuffle=True, resume=state)
    following = plan.following()
    assert following.begin[:2] == (5, 0)
    assert (following.num_canonical_nodes, following.shuffle_seed) == (4, 5)
    assert following.state(0).initial_physical_nodes == 4
    # Without the initial nodes 4 canonical nodes would not fit 3 physical ones.
    assert sorted(set(joined(map(np.asarray, steps_of(following))))) == list(range(120))


@given(sizes, worlds, algorithms, st.integers(0, 9))
def test_the_workers_of_a_node_are_side_by_side(shards, world, algo, start):
    """The columns of a node's ids are the orders of its workers, rank by rank."""
    plan = planned(shards, world, shuffle=True, shuffle_algo=algo)
    nodes, ranks, workers = world
    start = min(start, plan.filling.length)
    for node in range(nodes):
        together = list(plan.filling.node_blocks(node, start))
        found = np.concatenate([*together, np.zeros((0, ranks * workers), np.int64)])
        for rank in range(ranks):
            for worker in range(workers):
                alone = joined(plan.blocks(node, rank, worker, start))
                column = found[:, rank * workers + worker]
                short = joined(plan.blocks(node, rank, worker, start, is_padded=False))
                for part in (column, short):  # but for padding at the end
                    assert part.tolist() == alone[: len(part)].tolist()
                    assert (alone[len(part) :] == -1).all()
