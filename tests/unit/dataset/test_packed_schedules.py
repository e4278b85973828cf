"""Packs of several streams whose shares of the tokens follow a schedule."""

import collections
import functools
import itertools
import json
import os
import re
import warnings

import numpy as np
import pytest
import runs
from runs import steps_of

from mds import MDSWriter, Packing, Schedule, Stream, StreamingDataLoader, StreamingDataset, World
from mds.dataset.rewind import Rewind, compare, read_mixture
from mds.errors import ConfigError, PlanError, StateError
from mds.plan.mixture import MAX_STEPS
from mds.plan.pack_schedule import Documents, PackedRun
from mds.plan.schedule import ScheduledRun

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:milestones of the schedule take effect"),
]

CAPACITY, BATCH = 128, 24
MEAN = {"web": 40, "code": 60, "math": 12}
COUNT = {"web": 900, "code": 300, "math": 400}
FIRST = dict(zip(COUNT, np.cumsum([0, *COUNT.values()]).tolist(), strict=False))
KNOTS = {0: {"web": 0.8, "code": 0.2}, 6: {"web": 8, "code": 2}, 36: {"code": 1, "math": 1}}
SCHEDULE = Schedule(KNOTS, "linear")


def length(stream, number):
    return 1 + (number * 7919) % (2 * MEAN[stream] - 1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Three streams, of longer and shorter documents, whose tokens tell stream and number."""
    folder = tmp_path_factory.mktemp("scheduled")
    columns = {"tokens": "ndarray:uint16"}
    for name, count in COUNT.items():
        place = str(folder / name)
        with MDSWriter(out=place, columns=columns, lengths="tokens", size_limit=8000) as writer:
            for number in range(count):
                tokens = np.full(length(name, number), FIRST[name] + number + 1, np.uint16)
                writer.write({"tokens": tokens})
    return str(folder)


def loader_of(corpus, ranks=1, rank=0, workers=0, kind="threads", state=None, **settings):
    settings = {"shuffle": True, "shuffle_algo": "seekable", "num_canonical_nodes": 4,
                "shuffle_block_size": 100, "packing": Packing(CAPACITY), "schedule": SCHEDULE,
                "streams": {name: Stream(local=f"{corpus}/{name}") for name in COUNT},
                **settings}  # fmt: skip
    dataset = StreamingDataset(
        topology=World(1, ranks, 1, rank), batch_size=BATCH // ranks, **settings
    )
    more = {"num_workers": workers, "workers": kind} if workers else {}
    loader = StreamingDataLoader(dataset, **more)
    if state is not None:
        loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def documents_of(batch):
    """The numbers of the documents of a varlen batch, without places that have none."""
    ends = batch["cu_seqlens"].tolist()
    tokens = batch["tokens"].tolist()
    return [tokens[a] - 1 for a, b in itertools.pairwise(ends) if tokens[a]]


def stream_of(number):
    return next(name for name in reversed([*FIRST]) if FIRST[name] <= number)


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


train = functools.partial(runs.train, documents_of)


def plan_of(loader, epoch=0):
    return steps_of(loader).packs(epoch)


@pytest.fixture(scope="module")
def undisturbed(corpus):
    return train([loader_of(corpus)], 3)


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


def test_streams_go_on_over_epochs_and_nothing_comes_twice_in_a_pass(corpus, undisturbed):
    """Every stream gives all its documents before one comes again."""
    seen = collections.defaultdict(list)
    for row in itertools.chain(*undisturbed[0]):
        for number in row:
            seen[stream_of(number)].append(number)
    last = plan_of(loader_of(corpus), 3).plan.scheduled.sample_ranges()
    for (name, count), (turns, _) in zip(COUNT.items(), last, strict=True):
        assert len(seen[name]) == turns
        times = collections.Counter(seen[name])
        whole, rest = divmod(turns, count)
        assert {*times.values()} <= {whole, whole + 1}
        assert sum(n == whole + 1 for n in times.values()) == rest


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


def test_weights_may_be_set_for_a_later_step_and_between_epochs(corpus, undisturbed):
    """The window is that of the step; at the beginning of an epoch its first."""
    steps = len(undisturbed[0][0])
    loader = loader_of(corpus)
    assert loader.dataset.set_weights({"code": 1}, at_step=steps) == steps
    rows, _, state = train([loader], 2)
    assert rows[0] == undisturbed[0][0]
    assert {stream_of(n) for row in rows[1] for n in row} == {"code"}
    assert state["edits"][0]["window"] == plan_of(loader, 1).plan.scheduled.first


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


def test_dropped_documents_never_come(corpus, undisturbed):
    """In windows that had begun their places are padding; later ones are packed without them."""
    gone = [undisturbed[0][0][4][0], undisturbed[0][0][9][1], undisturbed[0][1][3][0]]
    rows, _, _ = train([loader_of(corpus)], 2, [(3, lambda loader: loader.dataset.drop(gone))])
    assert rows[0][:3] == undisturbed[0][0][:3]
    assert {*gone}.isdisjoint(itertools.chain(*rows[0][3:], *rows[1]))


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


def test_knots_count_tokens_for_any_global_batch(corpus):
    """Another global batch goes on from a state then; with steps it is refused."""
    tokens = Schedule({at * BATCH * CAPACITY: w for at, w in KNOTS.items()}, "linear", "tokens")
    by_steps, by_tokens = plan_of(loader_of(corpus)), plan_of(loader_of(corpus, schedule=tokens))
    for epoch in (0, 1):
        mine, theirs = (plan_of(loader_of(corpus, schedule=s), epoch) for s in (SCHEDULE, tokens))
        assert np.array_equal(*(next(p.step_reads()) for p in (mine, theirs)))
    assert by_steps.windows.tolist() == by_tokens.windows.tolist()
    dataset = loader_of(corpus, schedule=tokens).dataset
    dataset.batch_size = BATCH // 2
    state = train([loader_of(corpus, schedule=tokens)], stop=2)[2]
    dataset.load_state_dict(state)
    other = loader_of(corpus).dataset
    other.batch_size = BATCH // 2
    with pytest.raises(StateError, match="global_batch_size was 24 and is 12"):
        other.load_state_dict(train([loader_of(corpus)], stop=2)[2])


def test_a_temperature_weighs_streams_by_their_tokens(corpus):
    """At one, all are gone through once at the same time."""
    loader = loader_of(corpus, schedule=Schedule.temperature({0: 1.0}))
    (rows,), _, _ = train([loader])
    assert sorted(itertools.chain(*rows)) == [*range(sum(COUNT.values()))]


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


def test_a_spent_stream_ends_the_training_or_is_refused(corpus):
    """By what the schedule says, at the window before the first that asks for more."""
    share = {0: {"web": 1, "math": 1}}
    stop = loader_of(corpus, schedule=Schedule(share, spent="stop"))
    rows, _, _ = train([stop], 3)
    math = [n for n in itertools.chain(*rows[0], *rows[1], *rows[2]) if stream_of(n) == "math"]
    assert len(math) == len({*math}) > COUNT["math"] - 100
    assert rows[2] == []
    with pytest.raises(PlanError, match=r"the windows 0 to .*'math' has given all it may, 1 pass"):
        train([loader_of(corpus, schedule=Schedule(share, spent="error"))])


def test_short_documents_do_not_make_windows_too_large(corpus):
    """A window of one stream's documents alone has as many as are packed at once."""
    run = ScheduledRun(Schedule({0: {"long": 1, "short": 0}, 5: {"short": 1}}), ("long", "short"))
    documents = [Documents(100_000, 10**9), Documents(10**7, 10**7)]
    packed = PackedRun.of(run, documents, [100_000, 10**7], 10_100_000, 16_384, 10**6)
    mixture = packed.mixture((100_000, 10**7), 1)
    most = np.diff(mixture.counts(np.arange(packed.windows)), axis=0).max()
    assert 100_000 < most <= 131_072


def test_an_unshuffled_window_has_its_streams_mixed(corpus):
    """Documents are in an order of their own streams, evenly spread."""
    loader = loader_of(corpus, shuffle=False, schedule=Schedule({0: {"web": 1, "code": 1}}))
    (rows,), _, _ = train([loader], stop=4)
    for row in rows:
        assert {stream_of(n) for n in row} == {"web", "code"}


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"schedule": Schedule(KNOTS, unit="samples")}, "documents have different lengths"),
        ({"schedule": Schedule({0: {"web": 1}}, unit="tokens", tokens_per_sample=9)}, "are known"),
        ({"packing": Packing(budget=500)}, "unit='steps' and Packing"),
        ({"schedule": Schedule({0: {"web": 1}}, unit="tokens"), "packing": None}, "give one of"),
    ],
)
def test_what_knots_cannot_count_is_refused(corpus, settings, match):
    """When the dataset is made, with the way out."""
    with pytest.raises(ConfigError, match=match):
        loader_of(corpus, **settings)


def test_states_fit_one_schedule(corpus, undisturbed):
    """None, another one, or one whose parts do not go together: refused with the reason."""
    state = json.loads(json.dumps(train([loader_of(corpus)], stop=3)[2]))
    with pytest.raises(StateError, match=r"with a schedule, and this dataset has none"):
        loader_of(corpus, schedule=None).dataset.load_state_dict(state)
    with pytest.raises(StateError, match="order schedule was"):
        loader_of(corpus, schedule=Schedule({0: {"web": 1}})).dataset.load_state_dict(state)
    loader = loader_of(corpus)
    for wrong, match in (
        ({"position": {**state["position"], "cursors": [[0, 0]] * 4}}, "with a schedule one"),
        ({"edits": [{"step": 1, "weights": {"web": 1}}]}, "does not know"),
        ({"edits": [{"step": 1, "weights": {"web": 1}, "window": -1}]}, "window '-1'"),
    ):
        with pytest.raises(StateError, match=match):
            loader.dataset.load_state_dict({**state, **wrong})
    unpacked = loader_of(corpus, packing=None)
    edits = [{"step": 1, "weights": {"web": 1}, "window": 3}]
    with pytest.raises(StateError, match="does not know"):
        unpacked.dataset.load_state_dict({**unpacked.dataset.state_dict(0), "edits": edits})


def test_a_remote_under_a_limit_changes_nothing(corpus, undisturbed, tmp_path):
    """Eviction goes by the documents of the windows to come."""
    streams = {name: Stream(remote=f"{corpus}/{name}", local=str(tmp_path / name))
               for name in COUNT}  # fmt: skip
    loader = loader_of(corpus, streams=streams, cache_limit="120kb")
    assert train([loader], 2)[0] == undisturbed[0][:2]


def test_shuffles_that_are_generated_go_with_it(corpus):
    """Of one, the whole order is generated; nothing is lost."""
    settings = {"shuffle_algo": "py1e", "shuffle_block_size": 4000,
                "schedule": Schedule.temperature({0: 1.0})}  # fmt: skip
    (rows,), _, _ = train([loader_of(corpus, **settings)])
    assert sorted(itertools.chain(*rows)) == [*range(sum(COUNT.values()))]
    some, _, middle = train([loader_of(corpus, **settings)], stop=5)
    again = [loader_of(corpus, 2, rank, state=middle, **settings) for rank in range(2)]
    assert some[0] + train(again)[0][0] == rows


def test_explain_and_len_know_windows(corpus, undisturbed):
    """Steps of the epoch, and what is told of each stream."""
    loader = loader_of(corpus)
    told = loader.dataset.explain()
    assert "window 0 to" in told
    assert "80.000%" in told
    assert len(loader) == len(undisturbed[0][0])


def test_a_state_of_samples_is_refused_for_its_unit_first(corpus):
    """What changed in the run is not looked at where places count something else."""
    plain = loader_of(corpus, packing=None)
    batches = iter(plain)
    next(batches)
    plain.dataset.set_weights({"web": 1, "math": 1})
    next(batches)
    counted = plain.state_dict()
    assert counted["edits"]
    with pytest.raises(StateError, match=r"the state counts samples.*without packing="):
        loader_of(corpus).load_state_dict(counted)
    packed = loader_of(corpus)
    next(iter(packed))
    with pytest.raises(StateError, match=r"the state counts packs.*Give the same packing="):
        plain.load_state_dict(packed.state_dict())
