"""Steps of several batches for each rank: parts of what one batch would be, dealt to workers."""

import itertools

import numpy as np
import pytest
from ordertools import BATCHING, joined, make_plan

from mds import Packing
from mds.errors import ConfigError, StateError
from mds.plan import epoch_order
from mds.plan._pack_filling import DocumentLengths
from mds.plan._state import emit_state
from mds.world import World

STREAMS = [{"shards": [30, 40, 27]}, {"shards": [50, 23]}, {"shards": [33]}]
GLOBAL_BATCH = 24
ORDER = {"shuffle": True, "num_canonical_nodes": 2, "shuffle_block_size": 50}
WORLDS = [(1, 1), (1, 2), (2, 2)]  # nodes, ranks of a node


def make(world, workers, parts, **order):
    """A plan of the streams, with a global batch of `GLOBAL_BATCH` samples."""
    size = GLOBAL_BATCH // (world[0] * world[1] * parts)
    order = ORDER | order
    return make_plan(STREAMS, (*world, workers), batch_size=size, microbatches=parts, **order)


def batches_of_rank(plan, node, rank):
    """Ids and marks of the batches of a rank, as the loader takes them from its workers in turn."""
    workers = range(plan.shape.workers)
    ids = [joined(plan.blocks(node, rank, worker)) for worker in workers]
    marks = [plan.filling.marks(node, rank, worker, 0, len(ids[worker])) for worker in workers]
    pairs = np.stack([ids, marks], axis=2).reshape(len(ids), -1, plan.inputs.microbatch, 2)
    return pairs.swapaxes(0, 1).reshape(-1, plan.inputs.microbatch, 2)


@pytest.mark.parametrize("method", BATCHING)
@pytest.mark.parametrize("remainder", ["repeat", "short", "mask"])
def test_batches_are_the_parts_of_the_whole_batch(method, remainder):
    """With any number of workers, from the beginning and after a resume."""
    if method != "random" and remainder != "repeat":
        return  # refused
    order = {"batching_method": method, "remainder": remainder}
    for world, workers, parts in itertools.product(WORLDS, (1, 2, 3), (2, 3)):
        for seen in (0, 2 * GLOBAL_BATCH):
            resume = make(world, 1, 1, **order).state(seen)
            divided = make(world, workers, parts, resume=resume, **order)
            whole = make(world, 1, 1, resume=resume, **order)
            places = whole.steps * whole.shape.batch
            for node, rank in itertools.product(range(world[0]), range(world[1])):
                expected = batches_of_rank(whole, node, rank).reshape(-1, 2)
                got = batches_of_rank(divided, node, rank).reshape(-1, 2)
                assert (got[:places] == expected).all()
                assert (got[places:, 0] == -1).all()
                remaining = divided.filling.remaining_samples(node, rank)
                assert remaining == whole.filling.remaining_samples(node, rank)


def test_the_state_and_the_hash_do_not_depend_on_the_parts():
    """A state says nothing about them."""
    whole, divided = make((1, 2), 1, 1), make((1, 2), 3, 4)
    assert emit_state(whole.state(48)) == emit_state(divided.state(48))
    assert whole.order_hash(3) == divided.order_hash(3)


def test_every_way_to_the_ids_agrees():
    """By worker, by node, all at once, by sample, and their numbers."""
    for (nodes, ranks), workers, parts in itertools.product(WORLDS, (1, 2, 3), (1, 2, 3)):
        plan = make((nodes, ranks), workers, parts, remainder="short")
        spec = {"batch_size": plan.spec.batch_size, "microbatches": parts, "remainder": "short"}
        whole = epoch_order(STREAMS, World(nodes, ranks, workers, 0), **ORDER, **spec)
        for node in range(nodes):
            by_node = np.concatenate([*plan.filling.node_blocks(node, start=5)])
            for rank, worker in itertools.product(range(ranks), range(workers)):
                ids = joined(plan.blocks(node, rank, worker))
                assert (whole[node, rank, worker].reshape(-1) == ids).all()
                column = by_node[:, rank * workers + worker]
                assert (column == ids[5:][: len(column)]).all()
                assert (ids[5:][len(column) :] == -1).all()
                assert plan.filling.worker_samples(node, rank)[worker] == (ids >= 0).sum()
        for place in plan.locate(7):
            number = place.step * parts + place.place // plan.inputs.microbatch
            assert place.worker == number % workers
            batch = batches_of_rank(plan, *divmod(place.rank, ranks))[number, :, 0]
            assert batch[place.place % plan.inputs.microbatch] == 7


def test_batches_of_one_stream_are_those_of_a_whole_step():
    """With device_per_stream, all parts of the batch of a rank are of one stream."""
    plan = make((1, 2), 1, 3, batching_method="device_per_stream")
    ends = np.cumsum([97, 73, 33])
    for rank in range(2):
        ids = batches_of_rank(plan, 0, rank)[..., 0].reshape(-1, plan.shape.batch)
        streams = np.searchsorted(ends, ids[(ids >= 0).all(axis=1)], side="right")
        assert len(streams) > 4
        assert (streams == streams[:, :1]).all()


class Lengths(DocumentLengths):
    """Lengths of documents: 1 to 40 tokens."""

    digest, total, count = "", 20 * 203, 203

    def take(self, ids):
        """Lengths of documents."""
        return ids % 40 + 1


def make_packs(world, workers, parts, *, balance=None, **packing):
    """A plan of packs, with a global batch of `GLOBAL_BATCH` packs."""
    packing = Packing(**{"capacity": 64, "window": 8, **packing}, balance=balance)
    return make(world, workers, parts, packing=packing, lengths=Lengths())


@pytest.mark.parametrize("balance", [None, "tokens"])
def test_packs_are_those_of_the_whole_batch(balance):
    """Each step has all of its parts, whose position is that after the step."""
    for world, workers, parts in itertools.product(WORLDS, (1, 2, 3), (2, 3)):
        divided = make_packs(world, workers, parts, balance=balance)
        whole = make_packs(world, 1, 1, balance=balance)
        for node, rank in itertools.product(range(world[0]), range(world[1])):
            rank_packs = divided.filling.rank_packs
            by_worker = [[*rank_packs(node, rank, worker)] for worker in range(workers)]
            got = [by_worker[n % workers][n // workers] for n in range(sum(map(len, by_worker)))]
            expected = [*whole.filling.rank_packs(node, rank, 0)]
            assert len(got) == len(expected) * parts
            for number, step in enumerate(expected):
                batches = got[number * parts :][:parts]
                for name in ("ids", "starts", "sizes", "places", "counts"):
                    values = np.concatenate([getattr(batch, name) for batch in batches])
                    assert (values == getattr(step, name)).all(), name
                assert all(batch.end == step.end for batch in batches)
                assert sum(batch.order[1] for batch in batches) == step.order[1]
            for place in divided.locate(11):
                assert place.worker == (place.step * parts + place.place // (
                    divided.shape.batch // parts)) % workers  # fmt: skip
        reads = [
            np.sort(np.concatenate([ids for _, ids in plan.node_reads(0)]))
            for plan in (divided, whole)
        ]
        assert (reads[0] == reads[1]).all()


@pytest.mark.parametrize(
    ("before", "now", "difference"),
    [
        ({}, {"separator": 3}, "packing_separator was None and is 3"),
        ({"separator": 3}, {}, "packing_separator was 3 and is None"),
        (
            {},
            {"capacity": None, "budget": 64},
            "packing_capacity was 64 and is None; order packing_budget was None and is 64",
        ),
    ],
)
def test_options_of_packing_that_a_state_lacks_are_compared(before, now, difference):
    """A state has no key for an option that its run did not use."""
    facts = make_packs((1, 2), 1, 1, **now).order_facts()
    state = make_packs((1, 2), 1, 1, **before)
    point = state.state(0)
    recorded = {**state.order_facts(), "packing_window": facts["packing_window"]}
    with pytest.raises(StateError, match=difference):
        type(point)(point.position, version=3, order=recorded).check({}, facts)


def test_there_is_at_least_one_part():
    """Zero parts have no samples."""
    with pytest.raises(ConfigError, match="microbatches must be at least 1, got 0"):
        make((1, 1), 1, 1).spec.__class__(microbatches=0)
