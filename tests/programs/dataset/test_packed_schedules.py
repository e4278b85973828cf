"""Packs of several streams whose shares of the tokens follow a schedule."""

import collections
import itertools
import os
import re
import warnings

import numpy as np
import pytest

from mds import Packing, RunHistory, Schedule, Stream
from mds.errors import StateError
from mds.plan._mixture import MAX_STEPS
from mds.plan._pack_schedule import Documents, PackedRun
from mds.plan._schedule import ScheduledRun
from tests.states import values_of
from tests.unit.dataset import packed_schedules_helpers
from tests.unit.dataset.packed_schedules_helpers import (
    BATCH,
    CAPACITY,
    COUNT,
    FIRST,
    KNOTS,
    SCHEDULE,
    length,
    loader_of,
    plan_of,
    stream_of,
    train,
)

# Fixtures of both halves of these tests.
corpus = packed_schedules_helpers.corpus
undisturbed = packed_schedules_helpers.undisturbed

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:milestones of the schedule take effect"),
]


def test_windows_are_the_integral_of_the_shares(corpus):
    """Document j is due where the share of the tokens passes j - 1/2 mean documents."""
    plan = plan_of(loader_of(corpus))
    run, mixture = plan.schedule, plan.scheduled.mixture
    steps = np.arange(3 * run.windows + 1)
    counts = mixture.counts(steps)
    assert (np.diff(counts, axis=0) >= 0).all()
    assert (counts[0] == 0).all()
    for i, (count, tokens) in enumerate(run.documents):
        due = mixture.integrals(steps)[:, i] * run.epoch_tokens / run.windows * count / tokens
        assert np.abs(counts[:, i] - due).max() <= 0.5 + 1e-6
        turns = np.arange(int(counts[-1, i]))
        windows = mixture.steps_of_samples(i, turns)
        assert (counts[windows, i] <= turns).all()
        assert (counts[windows + 1, i] > turns).all()
    never = PackedRun.of(
        ScheduledRun(Schedule({0: {"a": 1, "b": 0}}), ("a", "b")),
        [Documents(5, 50), Documents(5, 50)], [5, 5], 10, 10, 100, 1,
    ).mixture((5, 5), 1)  # fmt: skip
    assert never.steps_of_samples(1, np.array([0])).tolist() == [MAX_STEPS - 1]


@pytest.mark.parametrize(
    ("ranks", "workers", "kind"),
    [(1, 3, "threads"), (1, 2, "processes"), (2, 0, "threads"), (3, 1, "threads"),
     (8, 2, "threads")],
)  # fmt: skip
def test_every_world_has_the_same_global_batches(corpus, undisturbed, ranks, workers, kind):
    """And the same hash, which is the plan's."""
    loaders = [loader_of(corpus, ranks, rank, workers, kind) for rank in range(ranks)]
    rows, hashes, state = train(loaders, 2)
    assert (rows, hashes) == (undisturbed[0][:2], undisturbed[1][:2])
    plan = plan_of(loaders[0], 1)
    assert str(plan.order_hash(plan.steps)) == hashes[1]
    assert state["epoch"] == 1


WEIGHTS = [{"web": 1}, {"code": 2, "math": 1}, {"web": 3, "code": 1, "math": 1}]


def change(number):
    return lambda loader: loader.dataset.edits.set_weights(WEIGHTS[number % 3])


EDITS = [(3, change(1)), (7, change(2)), (25, change(0)), (38, change(1)), (50, change(2))]


@pytest.fixture(scope="module")
def edited(corpus):
    return train([loader_of(corpus)], 3, EDITS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(17 if os.environ.get("MDS_FAULTS") == "long" else 1))
def test_many_stops_each_in_another_world(corpus, edited, seed):
    """A few steps at a time, with weights that are set meanwhile: the batches are the same."""
    rng, stops, most = np.random.default_rng(seed), 0, 12
    expected = [row for rows in edited[0] for row in rows]
    while stops < most:
        state, seen = None, []
        while len(seen) < len(expected) and stops < most:
            ranks, workers = int(rng.choice([1, 2, 3, 4, 6, 8])), int(rng.integers(4))
            loaders = [loader_of(corpus, ranks, r, workers, state=state) for r in range(ranks)]
            some = int(rng.integers(1, 12))
            left = [(at - len(seen), act) for at, act in EDITS if at > len(seen)]
            rows, _, state = train(loaders, 3, left, min(some, len(expected) - len(seen)))
            seen += itertools.chain(*rows)
            stops += 1
        assert seen == expected[: len(seen)]


def test_weights_hold_from_the_first_window_that_has_not_begun(corpus, undisturbed):
    """The step of the edit has the first pack of it; what is before stays as it was."""
    loader = loader_of(corpus)
    act = [(3, lambda loader: loader.dataset.edits.set_weights({"math": 1}))]
    rows, _, state = train([loader], 3, act)
    (edit,) = values_of(state)["edits"]
    step = edit["step"]
    assert [*loader.dataset.edits] == [f"from step {step}: weights {{'math': 1}}"]
    assert 3 <= step < 3 + 4
    flat = [*itertools.chain(*rows)]
    old = [*itertools.chain(*undisturbed[0])]
    assert flat[:step] == old[:step]
    has_math = ["math" in map(stream_of, row) for row in flat]
    assert has_math.index(True) == step
    # The other canonical nodes begin the window a few packs later.
    assert {stream_of(n) for row in flat[step + 3 :] for n in row} == {"math"}
    table = plan_of(loader).filling.table
    rows = len(table.counts)
    places = range((step + 1) * BATCH)
    windows = np.array([table.cursor(place).windows[place % rows][0] for place in places])
    assert edit["window"] == windows.max()
    assert (windows[: step * BATCH] < edit["window"]).all()


def test_a_plan_of_packs_knows_each_batch_and_each_place(corpus, edited):
    """Of a run whose weights were changed: any step alone, and where a document comes."""
    loader = loader_of(corpus)
    train([loader], 3, EDITS)
    for epoch in range(3):
        plan = plan_of(loader, epoch)
        rows = edited[0][epoch]
        assert plan.steps == len(rows)
        places = collections.defaultdict(list)
        for step in (0, 7, len(rows) - 1):
            assert sorted(row.sample for row in plan.step_rows(step)) == rows[step]
        for step, row in enumerate(rows):
            for number in row:
                places[number].append(step)
        for number in range(0, sum(COUNT.values()), 97):
            assert sorted(p.step for p in plan.locate(number)) == places[number]


def test_a_state_leads_back_to_its_order(corpus, edited):
    """Rows of a step, where a document came, the mixture, and how two runs differ."""
    state = edited[2]
    history = RunHistory(state)
    flat = [*itertools.chain(*edited[0])]
    assert sorted(row.sample for row in history.step(50)) == flat[50]
    assert 50 in {seen.step for seen in history.sample(flat[50][0])}
    found = history.mixture()
    assert found.unit == "windows"
    assert found.now == 3 * plan_of(loader_of(corpus)).schedule.windows
    shares = np.diff(found.amounts(np.array([0, 1])), axis=0)[0]
    assert abs(shares[0] / shares.sum() - 0.8) < 0.05
    other = train([loader_of(corpus)], 3, EDITS[:1])[2]
    told = history.diff(other)
    assert told.step is not None
    assert (
        flat[: told.step]
        == [*itertools.chain(*train([loader_of(corpus)], 3, EDITS[:1])[0])][: told.step]
    )


@pytest.mark.parametrize("overflow", ["split", "truncate", "drop"])
def test_shares_are_of_the_tokens_that_are_packed(corpus, overflow):
    """Of long documents what is left of them."""
    packing = Packing(32, overflow=overflow)
    loader = loader_of(corpus, packing=packing, schedule=Schedule({0: dict.fromkeys(COUNT, 1)}))
    shares = collections.Counter()
    for batch in loader:
        ends = batch["cu_seqlens"].tolist()
        for a, b in itertools.pairwise(ends):
            shares[stream_of(int(batch["tokens"][a]) - 1)] += b - a
    for name in COUNT:
        assert abs(shares[name] / sum(shares.values()) - 1 / 3) < 0.02


def test_a_remote_under_a_limit_changes_nothing(corpus, undisturbed, tmp_path):
    """Eviction goes by the documents of the windows to come."""
    streams = {name: Stream(remote=f"{corpus}/{name}", local=str(tmp_path / name))
               for name in COUNT}  # fmt: skip
    loader = loader_of(corpus, streams=streams, cache_limit="120kb")
    assert train([loader], 2)[0] == undisturbed[0][:2]


@pytest.mark.filterwarnings("default:milestones of the schedule")
def test_a_milestone_inside_a_window_is_a_warning_with_its_step(corpus):
    """Windows of a few packs begin so close to it that there is none."""
    schedule = Schedule({0: {"web": 1}, 7: {"code": 1}})

    def load(window):
        packing = Packing(CAPACITY, window=window)
        return loader_of(corpus, packing=packing, schedule=schedule, shuffle_block_size=1000)

    loader = load(128)
    with pytest.warns(UserWarning, match=r"step 7 at \d+\. Packing\(window=") as caught:
        next(iter(loader))
    effect = int(re.search(r"step 7 at (\d+)", str(caught[0].message))[1])
    seen = [batch["tokens"].numpy() for batch in load(128)]
    is_code = [bool((tokens > FIRST["code"]).all()) for tokens in seen]
    assert not any(is_code[: effect - 1])
    assert all(is_code[effect:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(load(8)))


def test_shares_of_the_tokens_follow_the_schedule(corpus, undisturbed):
    """At the beginning, half way down a ramp, and behind its end."""
    tokens = [
        {name: sum(length(name, n - FIRST[name]) for n in row if stream_of(n) == name)
         for name in COUNT}
        for row in itertools.chain(*undisturbed[0])
    ]  # fmt: skip
    begin, end = tokens[:6], tokens[41:]
    for some, shares in ((begin, KNOTS[0]), (end, {"code": 0.5, "math": 0.5})):
        whole = sum(sum(row.values()) for row in some)
        for name in COUNT:
            share = sum(row[name] for row in some) / whole
            assert abs(share - shares.get(name, 0)) < 0.03, name
    middle = tokens[18:24]  # about half way
    half = sum(row["web"] for row in middle) / sum(sum(row.values()) for row in middle)
    assert abs(half - 0.4) < 0.1


def test_streams_go_on_over_epochs_and_nothing_comes_twice_in_a_pass(corpus, undisturbed):
    """Every stream gives all its documents before one comes again."""
    seen = collections.defaultdict(list)
    for row in itertools.chain(*undisturbed[0]):
        for number in row:
            seen[stream_of(number)].append(number)
    plan = plan_of(loader_of(corpus), 3)
    (order,), steps = plan.orders, plan.scheduled.first
    given, rows = order.rows.before(steps), order.rows
    for stream, name in enumerate(COUNT):
        assert len(seen[name]) == given[stream].sum()
        times = collections.Counter(seen[name])
        # Each canonical node goes through its own part.
        ids = order.streams[stream].order(0).lookup()
        for row in range(rows.rows):
            start, size = rows.starts[stream, row], rows.sizes[stream, row]
            counts = [times[n] for n in ids(np.arange(start, start + size)).tolist()]
            whole, rest = divmod(int(given[stream, row]), int(size))
            assert {*counts} <= {whole, whole + 1}
            assert counts.count(whole + 1) == rest


def test_weights_may_be_set_for_a_later_step_and_between_epochs(corpus, undisturbed):
    """The window is that of the step; at the beginning of an epoch its first."""
    steps = len(undisturbed[0][0])
    loader = loader_of(corpus)
    loader.dataset.edits.set_weights({"code": 1}, at_step=steps)
    assert loader.dataset.edits[0].startswith(f"from step {steps}:")
    rows, _, state = train([loader], 2)
    assert rows[0] == undisturbed[0][0]
    assert {stream_of(n) for row in rows[1] for n in row} == {"code"}
    assert values_of(state)["edits"][0]["window"] == plan_of(loader, 1).scheduled.first


def test_dropped_documents_never_come(corpus, undisturbed):
    """In windows that had begun their places are padding; later ones are packed without them."""
    gone = [undisturbed[0][0][4][0], undisturbed[0][0][9][1], undisturbed[0][1][3][0]]
    rows, _, _ = train(
        [loader_of(corpus)], 2, [(3, lambda loader: loader.dataset.edits.replace_samples(gone))]
    )
    assert rows[0][:3] == undisturbed[0][0][:3]
    assert {*gone}.isdisjoint(itertools.chain(*rows[0][3:], *rows[1]))


def test_knots_count_tokens_for_any_global_batch(corpus):
    """Another global batch goes on from a state then; with steps it is refused."""
    tokens = Schedule({at * BATCH * CAPACITY: w for at, w in KNOTS.items()}, "linear", "tokens")
    by_steps, by_tokens = plan_of(loader_of(corpus)), plan_of(loader_of(corpus, schedule=tokens))
    for epoch in (0, 1):
        mine, theirs = (plan_of(loader_of(corpus, schedule=s), epoch) for s in (SCHEDULE, tokens))
        assert np.array_equal(*(next(p.step_reads()) for p in (mine, theirs)))
    assert by_steps.filling.windows.tolist() == by_tokens.filling.windows.tolist()
    dataset = loader_of(corpus, schedule=tokens).dataset
    dataset.batch_size = BATCH // 2
    state = train([loader_of(corpus, schedule=tokens)], stop=2)[2]
    dataset.load_state_dict(state)
    other = loader_of(corpus).dataset
    other.batch_size = BATCH // 2
    with pytest.raises(StateError, match="global_batch_size was 24 and is 12"):
        other.load_state_dict(train([loader_of(corpus)], stop=2)[2])


def test_shuffles_that_are_generated_go_with_it(corpus):
    """Of one, the whole order is generated; nothing is lost."""
    settings = {"shuffle_algo": "py1e", "shuffle_block_size": 4000,
                "schedule": Schedule.temperature({0: 1.0})}  # fmt: skip
    (rows,), _, _ = train([loader_of(corpus, **settings)])
    assert sorted(itertools.chain(*rows)) == [*range(sum(COUNT.values()))]
    some, _, middle = train([loader_of(corpus, **settings)], stop=5)
    again = [loader_of(corpus, 2, rank, state=middle, **settings) for rank in range(2)]
    assert some[0] + train(again)[0][0] == rows
