"""With a schedule each canonical node is a row, which goes through its own part of each stream."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ordertools import drawn_shares, make_plan, steps_of

from mds.errors import StateError
from mds.plan._mixture import ONE, Mixture, ShareSpan
from mds.plan._row_counts import RowCounts
from mds.plan._schedule import Schedule, ScheduledRun
from mds.plan._state import emit_state

NAMES = ("web", "code", "math")
SIZES = ([400, 250, 350], [90, 80, 100], [150, 33])
FIRST_IDS = np.cumsum([0, *(sum(sizes) for sizes in SIZES)])
CHANGE = {0: {"web": 0.8, "code": 0.15, "math": 0.05}, 60: {"web": 0.2, "code": 0.5, "math": 0.3}}


def run_of(**options):
    return ScheduledRun(Schedule(CHANGE, "linear", **options), NAMES)


def plan_of(world, canonical, size=48, run=None, **order):
    """Plan of three streams in global batches of ``size`` samples."""
    nodes, ranks, _ = world
    return make_plan(
        [{"shards": sizes} for sizes in SIZES],
        world,
        schedule=run or run_of(),
        shuffle=True,
        batch_size=size // (nodes * ranks),
        num_canonical_nodes=canonical,
        **order,
    )


def in_dealt_order(plan):
    """Ids of each step by the number with which they are dealt, as (steps, ids)."""
    ids = np.stack([plan.batch(step).reshape(-1) for step in range(plan.steps)])
    numbers = plan.shape.deal(np.arange(plan.shape.global_batch))
    return ids[:, np.argsort(numbers)]


def rows_of_steps(plan):
    """Row of each id of `in_dealt_order`, by the formulas of the module, for streams with rows."""
    rows = plan.scheduled.rows
    numbers, size = np.arange(plan.shape.global_batch), plan.shape.global_batch
    steps = np.arange(plan.scheduled.first, plan.scheduled.last)[:, None]
    turns = rows.turns(steps)
    places = (numbers * rows.stride - turns) % size
    return rows.row_of[(steps * size + turns + places) % rows.rows]


@pytest.mark.parametrize("algo", ["seekable", "py1e", "py1s"])
@pytest.mark.parametrize(("canonical", "size"), [(8, 48), (6, 48), (5, 48), (1, 48), (16, 8)])
def test_a_row_gives_its_part_of_each_pass_before_it_gives_any_again(algo, canonical, size):
    """Pass after pass, through several epochs: every sample once in each, in another order."""
    plan = plan_of((1, 1, 1), canonical, size, shuffle_algo=algo)
    rows = plan.scheduled.rows
    ids, row_of = [], []
    for _ in range(4):
        ids.append(in_dealt_order(plan))
        row_of.append(rows_of_steps(plan))
        plan = plan.following()
    ids, row_of = np.concatenate(ids).reshape(-1), np.concatenate(row_of).reshape(-1)
    for i, (first, last) in enumerate(itertools.pairwise(FIRST_IDS.tolist())):
        in_rows = []
        for row in range(rows.rows) if rows.has_rows[i] else [None]:
            is_of_row = (ids >= first) & (ids < last) & (True if row is None else row_of == row)
            samples, times = np.unique(ids[is_of_row], return_counts=True)
            length = int(rows.sizes[i, row or 0])
            # All of the part come before any comes again.
            assert len(samples) == min(times.sum(), length) > 0
            assert np.ptp(times) <= 1
            in_rows += samples.tolist()
        assert len(in_rows) == len({*in_rows})  # rows share no sample


WORLDS = [(1, 1, 1), (1, 3, 2), (2, 2, 1), (3, 1, 1), (4, 2, 3), (6, 1, 1), (8, 2, 1), (8, 6, 1)]


@pytest.mark.parametrize("algo", ["seekable", "py1e"])
@pytest.mark.parametrize("canonical", [1, 2, 5, 8, 12])
def test_steps_are_the_same_in_every_world(algo, canonical):
    """Also where the nodes do not divide the rows, and rows not the global batch."""
    expected = in_dealt_order(plan_of((1, 1, 1), canonical, shuffle_algo=algo))
    for world in WORLDS[1:]:
        plan = plan_of(world, canonical, shuffle_algo=algo)
        assert in_dealt_order(plan).tolist() == expected.tolist()


@pytest.mark.parametrize(("canonical", "size"), [(8, 48), (5, 48), (16, 8), (64, 24)])
def test_counts_of_a_step_are_those_of_the_mixture(canonical, size):
    """Rows decide which samples of a stream come, not how many."""
    plan = plan_of((1, 1, 1), canonical, size)
    counts = np.diff(plan.scheduled.mixture.counts(np.arange(plan.steps + 1)), axis=0)
    for step in range(plan.steps):
        stream = np.searchsorted(FIRST_IDS, plan.batch(step).reshape(-1), side="right") - 1
        assert np.bincount(stream, minlength=3).tolist() == counts[step].tolist()


@pytest.mark.parametrize("algo", ["seekable", "py1e"])
@pytest.mark.parametrize(("canonical", "size"), [(8, 48), (5, 48), (12, 24)])
def test_a_resume_continues_the_order_in_every_world(algo, canonical, size):
    """At any sample, with weights set, a step skipped and samples dropped."""
    rng = np.random.default_rng(canonical)
    run = run_of().with_weights(17, {"web": 1, "math": 2})
    edits = (
        {"epoch": 0, "from": 9 * size, "skip": size},
        {"epoch": 0, "from": 5 * size, "drop": [0, 7, 1001, 1300], "why": ""},
    )
    whole = plan_of((1, 1, 1), canonical, size, run, shuffle_algo=algo, edits=edits)
    ids = in_dealt_order(whole).reshape(-1)
    worlds = [world for world in WORLDS if size % (world[0] * world[1]) == 0]
    for world in worlds:
        drop = int(rng.integers(0, len(ids)))
        state = whole.state(drop)
        plan = plan_of(world, canonical, size, run, shuffle_algo=algo, edits=edits, resume=state)
        plan.check(state)
        rest = in_dealt_order(plan).reshape(-1)
        assert rest[rest >= 0].tolist() == ids[drop:].tolist()


def test_weights_that_are_set_change_no_earlier_step():
    """Rows continue with the samples that they have not given yet."""
    plain = plan_of((1, 1, 1), 8, epoch_size=48 * 60)
    edited = plan_of((1, 1, 1), 8, run=run_of().with_weights(30, {"web": 1}), epoch_size=48 * 60)
    first, second = in_dealt_order(plain), in_dealt_order(edited)
    assert first[:30].tolist() == second[:30].tolist()
    web = second[second < 1000]
    rows = rows_of_steps(edited)[second < 1000]
    for row in range(8):
        samples = web[rows == row]
        counts = np.bincount(np.unique(samples, return_counts=True)[1])
        assert len(np.flatnonzero(counts)) <= 2  # each came k or k + 1 times


@pytest.mark.parametrize("algo", ["seekable", "py1e"])
@pytest.mark.parametrize(("canonical", "size"), [(8, 48), (5, 48), (64, 24), (16, 8)])
def test_every_place_of_a_sample_is_found(algo, canonical, size):
    """In the second epoch, where rows have reached other passes, after a resume and a skip."""
    edits = ({"epoch": 1, "from": 20 * size, "skip": size},)
    whole = plan_of((1, 1, 1), canonical, size, epoch=1, edits=edits, shuffle_algo=algo)
    plan = plan_of(
        (2, 2, 1), canonical, size, epoch=1, edits=edits, resume=whole.state(3 * size + 5),
        shuffle_algo=algo,
    )  # fmt: skip
    batches = [plan.batch(step) for step in range(plan.steps)]
    for sample in (0, 5, 999, 1000, 1100, 1201, 1269, 1270, 1452):
        places = {
            (step, int(rank), int(place))
            for step, ids in enumerate(batches)
            for rank, place in np.argwhere(ids == sample)
        }
        assert {(each.step, each.rank, each.place) for each in plan.locate(sample)} == places


@pytest.mark.parametrize(
    ("nodes", "canonical"), [(2, 8), (4, 8), (8, 8), (8, 4), (3, 8), (6, 8), (2, 5), (1, 8)]
)
@pytest.mark.parametrize("algo", ["seekable", "py1e"])
def test_a_node_reads_only_samples_of_its_canonical_nodes(nodes, canonical, algo):
    """In the order of each pass these have positions in the parts of its rows."""
    plan = plan_of((nodes, 1, 2), canonical, shuffle_algo=algo, epoch=1)
    rows, order = plan.scheduled.rows, plan.orders[0]
    assert rows.has_rows.all()
    for node in range(nodes):
        canonical_nodes = plan.nodes_read(node).tolist()
        shared = np.gcd(nodes, canonical)
        assert canonical_nodes == [r for r in range(canonical) if r % shared == node % shared]
        for _, ids in plan.node_reads(node):
            for sample in np.unique(ids)[::7].tolist():
                assert {*order.find(sample)[1].tolist()} <= {*canonical_nodes}


@pytest.mark.parametrize(
    ("shards", "nodes", "most"),
    [((100, 100), 8, 1.1), ((1000, 1000), 64, 1.1), ((40,) * 6, 8, 1.3)],
)
def test_machines_share_the_shards_while_weights_change(shards, nodes, most):
    """They read each about once, as without a schedule, although counts are no multiples."""
    rng = np.random.default_rng(len(shards))
    names = tuple(f"stream{i}" for i in range(len(shards)))
    knots = {step: dict(zip(names, rng.random(len(names)), strict=True)) for step in (0, 300)}
    streams = [{"shards": [300] * count} for count in shards]
    order = {"shuffle": True, "num_canonical_nodes": nodes, "batch_size": 8}
    shards_read = {}
    for run in (None, ScheduledRun(Schedule(knots, "linear"), names)):
        plan = make_plan(streams, (nodes, 1, 1), schedule=run, **order)
        reads = [
            np.unique(np.concatenate([ids for _, ids in plan.node_reads(node)]) // 300)
            for node in range(nodes)
        ]
        all_shards = np.unique(np.concatenate(reads))
        shards_read[run is None] = sum(map(len, reads)) / len(all_shards)
    assert shards_read[False] <= max(most, shards_read[True] * 1.1)


def test_rows_of_a_small_stream_are_one():
    """Its samples come equally often, and all nodes may read them."""
    streams = [{"shards": [900]}, {"shards": [30]}, {"shards": [5]}]
    run = ScheduledRun(Schedule({0: {"a": 8, "b": 1, "c": 1}}), ("a", "b", "c"))
    order = {"shuffle": True, "num_canonical_nodes": 8, "schedule": run}
    alone = make_plan(streams, (1, 1, 1), batch_size=24, **order)
    plan = make_plan(streams, (4, 1, 1), batch_size=6, **order)
    assert plan.scheduled.rows.has_rows.tolist() == [True, False, False]
    assert plan.nodes_read(1).tolist() == [*range(8)]
    assert steps_of(plan) == steps_of(alone)
    ids = np.concatenate(steps_of(plan))
    for first, last in ((900, 930), (930, 935)):
        counts = np.bincount(ids[(ids >= first) & (ids < last)].astype(np.int64) - first)
        assert len(counts) == last - first
        assert counts.max() - counts.min() <= 1


def test_sizes_of_streams_may_all_be_too_small_for_rows():
    """Then the order is that of a single row."""
    few = plan_of((1, 1, 1), 500)
    assert few.scheduled.rows.rows == 1
    steps = np.arange(few.steps)
    assert few.scheduled.rows.turns(steps).tolist() == [0] * few.steps


@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 24), st.integers(0, 1 << 30))
def test_counts_of_rows_are_those_of_single_samples(streams, size, canonical, seed):
    """At any step, for any rows, in any order of the calls; and the samples of a stream add up."""
    rng = np.random.default_rng(seed)
    a, b = (drawn_shares(rng, streams) for _ in range(2))
    mixture = Mixture([ShareSpan(0, a, b, 1500), ShareSpan(1500, b)], size)
    samples = rng.integers(16 * canonical - 5, 16 * canonical + 50, streams).tolist()
    rows = RowCounts(mixture, samples, canonical)
    last = 2200
    counts = mixture.counts(np.arange(last + 1))
    expected = np.zeros((last + 1, streams, rows.rows), np.int64)
    begins = rows.grid_begins(np.arange(last))
    for step in range(last):
        stream = np.repeat(np.arange(streams), np.diff(counts[step : step + 2], axis=0)[0])
        row = rows.row_of[(begins[step] + np.arange(size)) % rows.rows]
        np.add.at(expected[step + 1], (stream, row), 1)
    expected = np.cumsum(expected, axis=0)
    expected[:, ~rows.has_rows] = counts[:, ~rows.has_rows, None]
    for step in rng.integers(0, last + 1, 12).tolist():
        assert rows.before(step).tolist() == expected[step].tolist()
    steps = np.unique(rng.integers(0, last, 50))
    residues = np.unique(rng.integers(0, rows.rows, 3))
    for part in rows.parts(steps, residues):
        chosen = steps[part.indexes]
        assert part.begin.tolist() == counts[chosen].tolist()
        assert part.end.tolist() == counts[chosen + 1].tolist()
        expected_rows = expected[chosen][:, :, rows.row_of[residues]]
        assert part.rows.transpose(1, 2, 0).tolist() == expected_rows.tolist()
    # Rows give equally many in all, up to one for those of a period that has not ended.
    if rows.has_rows.all():
        assert np.ptp(expected[last].sum(axis=0)) <= 1
    for stream, row in ((0, 0), (streams - 1, rows.rows - 1)):
        column = expected[:, stream, row]
        numbers = rng.integers(0, max(int(column[-1]), 1), 5)[: int(column[-1])]
        steps = np.searchsorted(column, numbers, side="right") - 1
        assert rows.steps_of(stream, row, numbers, last).tolist() == steps.tolist()


@pytest.mark.parametrize("share", [1 / 128, 7 / 128, 1 / 512, 1 / 448, 3.5 / 64, 1 / 3])
def test_no_row_is_ahead_for_long(share):
    """Counts that have a rhythm in common with the rows do not favour some of them."""
    part = int(ONE * share)
    mixture = Mixture([ShareSpan(0, (part, ONE - part))], 64)
    rows = RowCounts(mixture, [10**6, 10**6], 8)
    for step in (500, 5_000, 50_000):
        counts = rows.before(step)
        assert np.ptp(counts, axis=1).max() <= 2 * step**0.5


def test_a_change_keeps_the_counts_before_it():
    """So weights that are set do not count all steps again."""
    run = run_of()
    samples = [1000, 270, 183]
    rows = RowCounts.of(run.mixture(samples, 48), samples, 8)
    counts = rows.before(3000)
    for step in (1500, 2500):
        run = run.with_weights(step, {"web": 1})
        changed = RowCounts.of(run.mixture(samples, 48), samples, 8)
        assert changed.before(1400).tolist() == rows.before(1400).tolist()
    fresh = RowCounts(run.mixture(samples, 48), samples, 8)
    assert changed.before(3000).tolist() == fresh.before(3000).tolist() != counts.tolist()


@pytest.mark.parametrize("canonical", [1, 5, 8])
@pytest.mark.parametrize("passes", [1, 2])
def test_no_row_gives_more_passes_than_allowed(canonical, passes):
    """A run that stops ends before the first step in which a row would."""
    run = run_of(exhausted="stop", max_passes=passes)
    plan, ids = plan_of((1, 1, 1), canonical, run=run), []
    while plan.steps:
        ids.append(in_dealt_order(plan).reshape(-1))
        plan = plan.following()
    assert np.bincount(np.concatenate(ids)).max() == passes
    rows = plan.scheduled.rows
    end = sum(map(len, ids)) // 48
    assert (rows.before(end) <= passes * rows.sizes).all()
    assert (rows.before(end + 1) > passes * rows.sizes).any()


def test_a_state_of_an_earlier_order_is_refused():
    """It lacks the fact that tells the order, and would continue with other samples."""
    plan = plan_of((1, 1, 1), 4)
    state = plan.state(48 * 5)
    plan.check(emit_state(state))
    facts = {key: value for key, value in state.order.items() if key != "schedule_order"}
    for order in (facts, {**facts, "schedule_order": 1}):
        earlier = dataclasses.replace(state, order=order)
        with pytest.raises(StateError, match=r"schedule= by another version .* Start a new run"):
            plan.check(emit_state(earlier))


@pytest.mark.parametrize("epoch", [0, 2])
def test_orders_that_take_long_are_those_of_all_passes_that_rows_read(epoch):
    """Processes share them in files, so none may be missing, and none is made in vain."""
    plan = plan_of((2, 1, 1), 8, shuffle_algo="py1e", epoch=epoch, small_order=1)
    used = set()

    def recorded(order):
        lookup = order.new_lookup()

        def take(positions):
            used.add(order.key())
            return lookup(positions)

        return take

    for order in plan.long_orders:
        order.attach(recorded(order))
    expected = plan_of((2, 1, 1), 8, shuffle_algo="py1e", epoch=epoch)
    assert steps_of(plan) == steps_of(expected)
    assert used == {order.key() for order in plan.long_orders}
    rows = plan.scheduled.rows
    passes = {
        (i, int(number))
        for i in range(3)
        for row in range(8)
        for number in np.arange(
            *(rows.before(step)[i, row] for step in (plan.scheduled.first, plan.scheduled.last))
        )
        // rows.sizes[i, row]
    }
    assert len(plan.long_orders) == len(passes)


@pytest.mark.parametrize("steps", [[5, 5, 6, 6], [5, 5, 8, 8], [3, 3, 4, 7, 7], [4], [2, 3, 4]])
def test_steps_may_come_again_or_be_missing(steps):
    """Workers have several micro-batches of a step, and steps may be skipped."""
    run = ScheduledRun(Schedule({0: {"a": 3, "b": 1}, 9: {"a": 1, "b": 2}}, "linear"), ("a", "b"))
    mixture = run.mixture((400, 300), 24)
    rows = RowCounts(mixture, [400, 300], 4)
    every = np.arange(4)
    (parts,) = rows.parts(np.array(steps), every)
    begin, end = mixture.ranges(np.array(steps))
    for index, step in enumerate(steps):
        (alone,) = rows.parts(np.array([step]), every)
        assert np.array_equal(parts.rows[:, index], alone.rows[:, 0])
        assert np.array_equal(parts.begin[index], alone.begin[0])
        assert np.array_equal(parts.end[index], alone.end[0])
        assert np.array_equal(begin[index], alone.begin[0])
        assert np.array_equal(end[index], alone.end[0])
