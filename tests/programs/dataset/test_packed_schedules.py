"""Packs of several streams whose shares of the tokens follow a schedule."""

import collections
import itertools
import os

import numpy as np
import pytest

from mds import Packing, Schedule, Stream
from mds.dataset.rewind import Rewind, compare, read_mixture
from mds.plan.mixture import MAX_STEPS
from mds.plan.pack_schedule import Documents, PackedRun
from mds.plan.schedule import ScheduledRun
from tests.unit.dataset import packed_schedules_helpers
from tests.unit.dataset.packed_schedules_helpers import (
    BATCH,
    COUNT,
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
    plan = plan_of(loader_of(corpus)).plan
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
        [Documents(5, 50), Documents(5, 50)], [5, 5], 10, 10, 100,
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
    assert state["position"]["epoch"] == 1


WEIGHTS = [{"web": 1}, {"code": 2, "math": 1}, {"web": 3, "code": 1, "math": 1}]


def change(number):
    return lambda loader: loader.dataset.set_weights(WEIGHTS[number % 3])


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
    """The step that is returned has the first pack of it; what is before stays as it was."""
    told = []
    loader = loader_of(corpus)
    act = [(3, lambda loader: told.append(loader.dataset.set_weights({"math": 1})) or 0)]
    rows, _, state = train([loader], 3, act)
    (step,) = told
    assert 3 <= step < 3 + 4
    flat = [*itertools.chain(*rows)]
    old = [*itertools.chain(*undisturbed[0])]
    assert flat[:step] == old[:step]
    assert {stream_of(n) for row in flat[step + 1 :] for n in row} == {"math"}
    assert "math" not in {stream_of(n) for row in flat[:step] for n in row}
    (edit,) = state["edits"]
    assert edit["step"] == 3
    table = plan_of(loader).table
    node, window, _ = table.places(step * BATCH, (step + 1) * BATCH)
    assert edit["window"] in window.tolist()
    assert edit["window"] - 1 in table.places(0, step * BATCH)[1].tolist()
    assert node.tolist() == [0] * BATCH


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
            (packs,) = plan.batch(step)
            assert sorted(packs.ids.tolist()) == rows[step]
        for step, row in enumerate(rows):
            for number in row:
                places[number].append(step)
        for number in range(0, sum(COUNT.values()), 97):
            assert sorted(p.step for p in plan.locate(number)) == places[number]


def test_a_state_leads_back_to_its_order(corpus, edited):
    """Rows of a step, where a document came, the mixture, and how two runs differ."""
    state = edited[2]
    rewind = Rewind(state)
    flat = [*itertools.chain(*edited[0])]
    assert sorted(row.sample for row in rewind.rows(50)) == flat[50]
    assert 50 in {seen.step for seen in rewind.find(flat[50][0])}
    found = read_mixture(rewind)
    assert found.unit == "windows"
    assert found.now == 3 * plan_of(loader_of(corpus)).plan.schedule.windows
    shares = np.diff(found.amounts(np.array([0, 1])), axis=0)[0]
    assert abs(shares[0] / shares.sum() - 0.8) < 0.05
    other = train([loader_of(corpus)], 3, EDITS[:1])[2]
    told = compare(state, other)
    assert told.step is not None
    assert (
        flat[: told.step]
        == [*itertools.chain(*train([loader_of(corpus)], 3, EDITS[:1])[0])][: told.step]
    )


@pytest.mark.parametrize("overflow", ["split", "cut", "drop"])
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
