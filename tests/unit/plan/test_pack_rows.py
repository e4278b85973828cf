"""Packs of each canonical node are for its own machine: rows of the grid, empty places, cuts."""

import dataclasses
import itertools

import numpy as np
import pytest
from ordertools import make_plan
from packs import LENGTHS, SHARDS, Given, lengths_of, packed, steps_of

from mds import Schedule, World
from mds.errors import PlanError, StateError
from mds.plan import EpochPlan
from mds.plan._pack_filling import PackCosts, PackFilling, PackTable
from mds.plan._packing import Packing
from mds.plan._schedule import ScheduledRun
from mds.plan._state import Position, emit_state
from mds.shuffle import ShuffleSpec, get_shuffle
from mds.shuffle._registry import find_shuffle
from mds.shuffle._shard_parts import cut_by_cost

CUT = ["py1b", "py1br", "py1e", "py1s", "py2s", "seekable"]  # shuffles that can be cut by cost


def shards_of_nodes(plan, ends):
    """Which shards the documents of each machine are in, bool (nodes, shards)."""
    read = np.zeros((plan.shape.nodes, len(ends)), bool)
    for node in range(plan.shape.nodes):
        for _, ids in plan.node_reads(node):
            read[node, np.searchsorted(ends, ids, side="right")] = True
    return read


@pytest.mark.parametrize("algo", ["py1e", "seekable", "py1s"])
@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_machines_read_as_few_shards_as_without_packing(algo, nodes):
    """At most 3 % more than the samples of the same canonical nodes."""
    shards = [100] * 32
    lengths = lengths_of(3200, seed=nodes)
    world, ends = (nodes, 1, 1), np.cumsum(shards)
    order = {"shuffle": True, "shuffle_algo": algo, "num_canonical_nodes": 8, "batch_size": 4}
    plain = make_plan(shards, world, **order)
    packing = Packing(512, overflow="split")
    plan = make_plan(shards, world, packing=packing, lengths=Given(lengths), **order)
    packs = shards_of_nodes(plan, ends).sum()
    assert packs <= 8 + 1.03 * shards_of_nodes(plain, ends).sum()  # a cut shard of each node
    assert packs < 1.5 * len(shards)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8, 12])
def test_a_machine_reads_its_own_canonical_nodes(nodes):
    """Those that `nodes_read` names, of which the number is one of a fair share where it can be."""
    world = (nodes, 1, 1)
    plan = packed(world, batch=24 // nodes)
    starts = plan.orders[0].starts()
    for node in range(nodes):
        named = plan.nodes_read(node)
        ids = np.concatenate([ids for _, ids in plan.node_reads(node)])
        positions = np.concatenate([plan.orders[0].find(i) for i in np.unique(ids).tolist()])
        found = np.unique(np.searchsorted(starts, positions, side="right") - 1)
        assert set(found) <= set(named.tolist())
        assert len(named) == {1: 4, 2: 2, 3: 4, 4: 1, 8: 1, 12: 1}[nodes]


def test_skipped_steps_leave_packs_on_their_machines():
    """A range of whole steps moves nothing; one of another length lets machines read everything."""
    skip = {"epoch": 0, "from": 48, "skip": 32}
    plan = packed((4, 1, 1), edits=[skip])
    assert plan.nodes_read(2).tolist() == [2]
    whole, rest = packed((4, 1, 1)), steps_of(plan, (4, 1, 1))
    assert rest == steps_of(whole, (4, 1, 1))[:3] + steps_of(whole, (4, 1, 1))[5:]
    assert packed((4, 1, 1), edits=[{**skip, "skip": 33}]).nodes_read(2).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("algo", [*CUT, None])
@pytest.mark.parametrize("nodes", [2, 7, 64])
def test_canonical_nodes_have_equal_costs(algo, nodes):
    """Of any shuffle that lays shards end to end; every sample comes once."""
    lengths = lengths_of(sum(SHARDS), seed=5)
    order = {"shuffle": algo is not None, "shuffle_algo": algo or "py1e"}
    plan = make_plan(SHARDS, (1, 1, 1), num_canonical_nodes=nodes, shuffle_block_size=200, **order)
    costs = PackCosts(Packing(512, overflow="split"), Given(lengths), "")
    (cut_order,) = dataclasses.replace(plan.inputs, costs=costs).orders
    parts = [
        np.concatenate([ids.copy() for ids in cut_order.generate([node])]) for node in range(nodes)
    ]
    assert sorted(np.concatenate(parts).tolist()) == list(range(sum(SHARDS)))
    assert [len(part) for part in parts] == np.diff(cut_order.starts()).tolist()
    of_nodes = np.array([lengths[part].sum() for part in parts])
    exact = lengths.max() / 2 if algo != "py2s" else lengths.sum()  # py2s moves within a shard
    assert (
        np.abs(np.cumsum(of_nodes) - np.arange(1, nodes + 1) * lengths.sum() / nodes).max() <= exact
    )
    take, every = cut_order.lookup(), np.arange(sum(SHARDS))
    assert np.array_equal(take(every), np.concatenate(parts))


def test_naive_cannot_be_cut():
    """It spreads all samples, so its canonical nodes have equally many."""
    plan = make_plan(SHARDS, (1, 1, 1), shuffle=True, shuffle_algo="naive", num_canonical_nodes=4)
    costs = PackCosts(Packing(512), Given(LENGTHS), "")
    (order,) = dataclasses.replace(plan.inputs, costs=costs).orders
    assert np.diff(order.starts()).tolist() == [750] * 4


def test_the_cut_is_that_of_every_epoch_and_every_world():
    """Shards stay on their machines from epoch to epoch."""
    plan = packed((2, 1, 1))
    starts = plan.orders[0].starts().tolist()
    assert starts != [0, 750, 1500, 2250, 3000]
    for other in (plan.following(), plan.following().following(), packed((4, 2, 1))):
        assert other.orders[0].starts().tolist() == starts


@pytest.mark.parametrize("overflow", ["split", "truncate", "drop"])
def test_the_cost_is_what_is_packed(overflow):
    """What the packing cuts off or leaves out costs nothing."""
    costs = PackCosts(Packing(100, overflow=overflow, separator=1), Given([5, 0, 300]), "")
    assert (
        costs.take(np.arange(3)).tolist()
        == {
            "split": [6, 0, 301],
            "truncate": [6, 0, 100],
            "drop": [6, 0, 0],
        }[overflow]
    )


@pytest.mark.parametrize(
    ("sizes", "sequence", "costs", "nodes", "expected"),
    [
        ([4, 2], [1, 0], [1, 1, 1, 1, 3, 3], 2, (0, 2, 6)),
        ([3], [0], [1, 1, 10], 2, (0, 2, 3)),
        ([3], [0], [10, 1, 1], 2, (0, 1, 3)),
        ([2, 0, 2], [1, 2, 0], [5, 5, 5, 5], 2, (0, 2, 4)),
        ([2, 2], [0, 1], [0, 0, 7, 7], 4, (0, 2, 3, 3, 4)),
        ([2, 2], [0, 1], [0, 0, 0, 0], 2, None),
        ([1, 1], [0, 1], [1, 1], 8, (0, 0, 0, 0, 1, 1, 1, 1, 2)),
        ([0], [0], [], 2, None),
        ([], [], [], 2, None),
    ],
)
def test_cuts(sizes, sequence, costs, nodes, expected):
    """At the sample that is nearest to the share; samples and shards may cost nothing."""
    values = np.array(costs, np.int64)
    sequence, sizes = np.array(sequence, np.int64), np.array(sizes, np.int64)
    assert cut_by_cost(sizes, sequence, nodes, values.take) == expected


def test_cuts_are_exact_beyond_32_bits(monkeypatch):
    """Costs are added up in parts, as integers of 64 bits."""
    monkeypatch.setattr("mds.shuffle._shard_parts._COSTS_AT_ONCE", 7)
    rng = np.random.default_rng(0)
    sizes, values = rng.integers(0, 30, 40), rng.integers(0, 1 << 40, 40 * 30)
    sequence, total = rng.permutation(40), int(sizes.sum())
    cut = cut_by_cost(sizes, sequence, 16, values.take)
    firsts = np.cumsum(sizes) - sizes
    ids = np.concatenate([np.arange(firsts[s], firsts[s] + sizes[s]) for s in sequence.tolist()])
    sums = np.concatenate([[0], np.cumsum(values[ids])])
    for k, position in enumerate(cut):
        distances = np.abs(sums * 16 - k * sums[-1])
        assert distances[position] == distances.min()
    assert cut[-1] == total


@pytest.mark.parametrize("cut", [(), (0, 10), (0, 5, 9), (1, 5, 10), (0, 6, 5, 10), (0, 11, 10)])
def test_a_cut_that_does_not_fit_is_refused(cut):
    """It must ascend from 0 to the samples, with an end for each node."""
    with pytest.raises(PlanError, match="the cut"):
        ShuffleSpec(np.array([4, 6]), 2, seed=1, epoch=0, block_size=8, cut=cut)


def test_cut_orders_are_looked_up_together():
    """The positions of several streams in one call, whose nodes have different lengths."""
    specs = [
        ShuffleSpec(np.array(SHARDS), 3, seed=3, epoch=2, block_size=200, cut=(0, 100, 2900, 3000)),
        ShuffleSpec(np.array([7, 9]), 2, seed=5, epoch=0, block_size=4, cut=(0, 0, 16)),
    ]
    shuffles = {4: find_shuffle("seekable")(specs[0]), 1: find_shuffle("seekable")(specs[1])}
    group = shuffles[1].group(shuffles)
    numbers = np.concatenate([np.full(3000, 4), np.full(16, 1)])
    positions = np.concatenate([np.arange(3000), np.arange(16)])
    ids = group.ids_at(numbers, positions)
    assert np.array_equal(ids[:3000], shuffles[4].ids_at(np.arange(3000)))
    assert np.array_equal(ids[3000:], shuffles[1].ids_at(np.arange(16)))


@pytest.mark.parametrize("algo", CUT)
def test_shuffles_without_a_cut_stay_as_they_are(algo):
    """A cut into equal numbers is the order without one."""
    spec = ShuffleSpec(np.array(SHARDS), 4, seed=3, epoch=2, block_size=200)
    cut = ShuffleSpec(np.array(SHARDS), 4, seed=3, epoch=2, block_size=200,
                      cut=tuple(spec.node_starts().tolist()))  # fmt: skip
    made = find_shuffle(algo)(cut)
    ids = np.concatenate([ids.copy() for node in range(4) for ids in made.windows(node)])
    expected = get_shuffle(algo, SHARDS, num_canonical_nodes=4, seed=3, epoch=2, block_size=200)
    assert np.array_equal(ids, expected)


# ---------------------------------------------------------------------- schedules


def scheduled(world, batch, rows=8, small=0, **order):
    """A plan of packs of two streams, or three with one of ``small`` documents, by a schedule."""
    names = ("a", "b", "c")[: 3 if small else 2]
    shares = {0: dict.fromkeys(names, 1), 40: {"a": 3, "b": 1, **({"c": 1} if small else {})}}
    streams = [{"shards": [100] * 12}, {"shards": [60] * 10}, {"shards": [small]}][: len(names)]
    count = sum(sum(stream["shards"]) for stream in streams)
    order = {"shuffle": True, "shuffle_algo": "seekable", "shuffle_block_size": 80, **order}
    return EpochPlan(
        streams,
        World(world[0], world[1], world[2], 0),
        batch_size=batch,
        num_canonical_nodes=rows,
        packing=Packing(512, overflow="split", window=8),
        schedule=ScheduledRun(Schedule(shares, "linear"), names),
        lengths=Given(lengths_of(count, seed=7)),
        **order,
    )


@pytest.mark.parametrize("algo", ["seekable", "py1e"])
@pytest.mark.parametrize("nodes", [2, 8])
def test_machines_read_their_own_part_of_each_stream(algo, nodes):
    """About each shard once, as without a schedule."""
    plan = scheduled((nodes, 1, 1), 48 // nodes, shuffle_algo=algo)
    ends = np.cumsum([100] * 12 + [60] * 10)
    read = shards_of_nodes(plan, ends)
    assert read.sum() <= len(ends) + 2 * 7 < 1.7 * len(ends)  # a cut shard of each stream and node
    assert read.any(0).all()
    for node in range(nodes):
        assert plan.nodes_read(node).tolist() == list(range(node, 8, nodes))


@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize("small", [0, 20])
def test_scheduled_packs_are_the_same_in_every_world(rows, small):
    """And go on from any step in any other one, also into the next epoch."""
    worlds = [(1, 1, 1), (2, 1, 2), (2, 2, 1), (8, 1, 1)]
    expected = steps_of(scheduled((1, 1, 1), 16, rows, small), (1, 1, 1))
    for world in worlds[1:]:
        plan = scheduled(world, 16 // (world[0] * world[1]), rows, small)
        assert steps_of(plan, world) == expected
        assert plan.steps == plan.epoch_steps == len(expected)
    first = scheduled((1, 1, 1), 16, rows, small)
    for step in (0, len(expected) // 3, len(expected) - 2):
        world = worlds[1 + step % 3]
        end = expected[step][1]
        assert first.filling.table.cursor(end.place) == end.cursor
        state = dataclasses.replace(first.state(0).at(end), order=first.order_facts())
        batch = 16 // (world[0] * world[1])
        resumed = scheduled(world, batch, rows, small, resume=emit_state(state))
        assert steps_of(resumed, world) == expected[step + 1 :]
        following = steps_of(resumed.following(), world)
        assert following == steps_of(first.following(), (1, 1, 1))


@pytest.mark.parametrize("small", [0, 20])
def test_rows_go_through_their_parts(small):
    """Each document of a pass comes once in its row, and all rows get through at the same time."""
    plan = scheduled((1, 1, 1), 16, 4, small)
    seen = []
    for _ in range(3):
        seen += [each.ids[each.starts == 0] for each in plan.filling.rank_packs(0, 0, 0)]
        plan = plan.following()
    (order,) = plan.orders
    rows, counts = order.rows, np.bincount(np.concatenate(seen), minlength=1820)
    given = rows.before(plan.scheduled.first)
    assert rows.has_rows.tolist() == [True, True, False][: 3 if small else 2]
    whole = plan.scheduled.mixture.counts(np.array([plan.scheduled.first]))[0]
    for stream in range(2):
        take = order.streams[stream].order(0).lookup()
        for row in range(4):
            start, size = rows.starts[stream, row], rows.sizes[stream, row]
            times = counts[take(np.arange(start, start + size))]
            passes, rest = divmod(int(given[stream, row]), int(size))
            assert set(times.tolist()) <= {passes, passes + 1}
            assert (times == passes + 1).sum() == rest
        assert abs(given[stream].sum() - whole[stream]) <= 2  # each row is rounded
    if small:
        assert counts[1800 : 1800 + small].sum() == whole[2]
        assert np.ptp(counts[1800 : 1800 + small]) <= 1


def test_a_stream_with_few_documents_is_read_by_all_machines():
    """It has no rows, and `nodes_read` says so."""
    plan = scheduled((4, 1, 1), 4, 4, 20)
    assert plan.nodes_read(1).tolist() == [0, 1, 2, 3]
    read = set(np.concatenate([ids for _, ids in plan.node_reads(1)]).tolist())
    (order,) = plan.orders
    for stream in range(2):
        start, size = order.rows.starts[stream, 1], order.rows.sizes[stream, 1]
        part = order.streams[stream].order(0).lookup()(np.arange(start, start + size))
        first = 0 if stream == 0 else 1200
        of_stream = {n for n in read if first <= n < first + (1200, 600)[stream]}
        assert of_stream <= set(part.tolist())


def test_documents_of_a_schedule_are_located():
    """Every step that has a document, and no other."""
    plan = scheduled((2, 1, 1), 8, 4, 20)
    found = {}
    for step, (pieces, _) in enumerate(steps_of(plan, (2, 1, 1))):
        for pack in pieces:
            for sample, *_ in pack:
                found.setdefault(sample, set()).add(step)
    for sample in [*range(0, 1800, 333), *range(1800, 1820, 7)]:
        assert {place.step for place in plan.locate(sample)} == found.get(sample, set())


# ---------------------------------------------------------------------- empty places


def ragged(world, batch, rows=16, **order):
    """A plan whose rows have different numbers of packs for the same number of tokens."""
    return packed(world, batch=batch, num_canonical_nodes=rows, lengths=UNEVEN, **order)


UNEVEN = np.where(np.arange(3000) < 2400, 250, 300)  # packs have two documents, or one


def test_rows_that_end_leave_places_empty():
    """Places count on; steps have what is left, and no step is empty on all ranks."""
    plan = ragged((1, 1, 1), 4)
    table, packs = plan.filling.table, plan.filling.count()
    lengths = np.array([int(of_row.sum()) for of_row in packs])
    assert lengths.min() < lengths.max()
    assert plan.steps < -(-table.total // 4), "some steps are empty"
    read = list(plan.filling.rank_packs(0, 0, 0))
    assert len(read) == plan.steps == plan.epoch_steps
    assert all(each.packs_of_step for each in read)
    assert sum(each.packs_of_step for each in read) == lengths.sum()
    assert plan.filling.epoch_batches.full == sum(each.packs_of_step == 4 for each in read)
    assert {each.filled for each in read} <= {1, 2, 3, 4}
    ids = np.concatenate([each.ids for each in read])
    assert sorted(ids.tolist()) == list(range(3000))


@pytest.mark.parametrize("batch", [1, 3, 4, 5, 16, 23])
def test_any_step_alone_is_that_of_the_reading(batch):
    """By the table; and its end is where a resumed run goes on, at another global batch too."""
    plan = ragged((1, 1, 1), batch)
    steps = steps_of(plan, (1, 1, 1))
    for number in {0, 1, len(steps) // 2, *range(len(steps) - 9, len(steps))}:
        (again, end) = steps[number]
        contents, slots = plan.filling.dealt(number)
        rows = np.stack([contents.ids, contents.starts, contents.tokens], axis=1)
        packs = [tuple(map(tuple, rows[slots == slot].tolist())) for slot in range(batch)]
        assert sorted(packs) == again
        assert plan.filling.table.cursor(end.place) == end.cursor
        state = plan.state(0).at(end)
        resumed = ragged((1, 1, 1), batch, state=state)
        assert steps_of(resumed, (1, 1, 1)) == steps[number + 1 :]
        assert resumed.steps == len(steps) - number - 1
        assert resumed.epoch_steps == len(steps)
        other = ragged((1, 1, 1), 7, state=state)
        rest = sorted(p for pieces, _ in steps[number + 1 :] for p in pieces if p)
        assert sorted(p for pieces, _ in steps_of(other, (1, 1, 1)) for p in pieces if p) == rest


def _packs(mine):
    ends = np.cumsum(mine.counts)
    for first, last in zip(ends - mine.counts, ends, strict=True):
        yield tuple(zip(mine.ids[first:last].tolist(), mine.starts[first:last].tolist(),
                        mine.sizes[first:last].tolist(), strict=True))  # fmt: skip


@pytest.mark.parametrize("balance", [None, "tokens"])
def test_worlds_have_the_same_steps(balance):
    """With rows that end at different places, and fewer places in a step than rows."""
    packing = Packing(512, overflow="split", balance=balance)
    worlds = [(1, 1, 1), (2, 1, 2), (2, 2, 1), (4, 1, 3), (8, 1, 1)]
    orders = [
        [
            pieces
            for pieces, _ in steps_of(
                ragged(world, 8 // (world[0] * world[1]), packing=packing), world
            )
        ]
        for world in worlds
    ]
    assert all(order == orders[0] for order in orders[1:])
    hashes = {str(ragged(world, 8 // (world[0] * world[1])).order_hash(10**6)) for world in worlds}
    assert len(hashes) == 1


def test_locate_and_positions_at_the_end():
    """Steps count those that are given out; a position may be inside of a step."""
    plan = ragged((1, 1, 1), 4)
    found = {}
    for step, mine in enumerate(plan.filling.rank_packs(0, 0, 0)):
        for sample in mine.ids.tolist():
            found.setdefault(sample, []).append(step)
    for sample in {0, 899, 900, 2999, *mine.ids.tolist()}:
        assert [place.step for place in plan.locate(sample)] == found[sample]
    *_, begin = (end for _, end in steps_of(plan, (1, 1, 1))[:-30])
    last = ragged((1, 1, 1), 4, state=plan.state(0).at(begin))
    for mine in last.filling.rank_packs(0, 0, 0):
        for count in (1, 4):
            position = plan.filling.position_after(begin, min(count, mine.filled))
            assert position.place <= mine.end.place
        assert position.place == mine.end.place or mine.filled < 4
        begin = mine.end


def test_the_next_node_of_a_state_is_that_of_its_place():
    """Another one is refused: packs would go to other machines."""
    plan = packed((1, 1, 1))
    end = next(plan.filling.rank_packs(0, 0, 0)).end
    wrong = end._replace(cursor=end.cursor._replace(node=3))
    with pytest.raises(StateError, match="next pack at place 16, which is not of canonical node 3"):
        packed((1, 1, 1), state=plan.state(0).at(wrong))


def test_a_table_of_no_packs():
    """Nothing is found, and nothing is left."""
    for counts in ([], [np.zeros(0, np.int64)], [np.zeros(3, np.int64)] * 2):
        table = PackTable(counts)
        assert (table.total, table.regular) == (0, 0)
        assert not table.has_pack(np.arange(5 if counts else 0)).any()


@pytest.mark.parametrize("lengths", [[2, 0, 3], [0, 0, 1], [4, 4, 4], [1, 3, 1], [0, 5, 0]])
def test_the_table_finds_every_pack(lengths):
    """Places and packs name each other, and empty places have none."""
    counts = [np.array([n // 2, 0, n - n // 2], np.int64) for n in lengths]
    table = PackTable(counts)
    real = [(c, r) for c, r in itertools.product(range(5), range(3)) if c < lengths[r]]
    places = sorted(c * 3 + r for c, r in real)
    assert table.total == places[-1] + 1
    assert np.flatnonzero(table.has_pack(np.arange(table.total))).tolist() == places
    assert table.regular == next(p for p in range(table.total + 1) if p not in places)
    for place in places:
        row = place % 3
        window, pack = table.cursor(place).windows[row]
        assert table.find(row, window, pack) == place


def test_a_worker_packs_the_rows_of_its_machine(monkeypatch):
    """Once the packs of all windows are counted; until then it packs every row."""
    load, packed_rows = PackFilling.load, set()

    def note_row(packs, row, window):
        packed_rows.add(row)
        return load(packs, row, window)

    monkeypatch.setattr(PackFilling, "load", note_row)
    plan = packed((4, 2, 1))
    before = [mine.ids.tolist() for mine in plan.filling.rank_packs(2, 1, 0)]
    assert packed_rows == {0, 1, 2, 3}
    counted = packed((4, 2, 1))
    assert counted.steps == len(before)
    packed_rows.clear()
    assert [mine.ids.tolist() for mine in counted.filling.rank_packs(2, 1, 0)] == before
    assert packed_rows == {2}


def test_other_packs_than_were_counted_are_refused():
    """As a packer gives them whose code has changed."""
    plan = packed((1, 1, 1))
    plan.filling.table.counts[3][1] += 1
    with pytest.raises(PlanError, match=r"has \d+ packs, but \d+ were counted before"):
        list(plan.blocks(0, 0, 0))


def test_the_end_of_an_epoch_is_a_position():
    """A state after the last step has no more steps, and the next epoch begins at place 0."""
    plan = ragged((1, 1, 1), 4)
    *_, last = plan.filling.rank_packs(0, 0, 0)
    over = ragged((1, 1, 1), 4, state=plan.state(0).at(last.end))
    assert over.steps == 0
    assert list(over.filling.rank_packs(0, 0, 0)) == []
    assert over.following().begin == Position(1, 0, "packs")
