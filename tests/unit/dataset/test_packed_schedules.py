"""Packs of several streams whose shares of the tokens follow a schedule."""

import collections
import itertools
import json
import re
import warnings

import numpy as np
import pytest

from mds import Packing, Schedule
from mds.errors import ConfigError, PlanError, StateError
from mds.plan.pack_schedule import Documents, PackedRun
from mds.plan.schedule import ScheduledRun
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
    last = plan_of(loader_of(corpus), 3).plan.scheduled.sample_ranges()
    for (name, count), (turns, _) in zip(COUNT.items(), last, strict=True):
        assert len(seen[name]) == turns
        times = collections.Counter(seen[name])
        whole, rest = divmod(turns, count)
        assert {*times.values()} <= {whole, whole + 1}
        assert sum(n == whole + 1 for n in times.values()) == rest


def test_weights_may_be_set_for_a_later_step_and_between_epochs(corpus, undisturbed):
    """The window is that of the step; at the beginning of an epoch its first."""
    steps = len(undisturbed[0][0])
    loader = loader_of(corpus)
    assert loader.dataset.set_weights({"code": 1}, at_step=steps) == steps
    rows, _, state = train([loader], 2)
    assert rows[0] == undisturbed[0][0]
    assert {stream_of(n) for row in rows[1] for n in row} == {"code"}
    assert state["edits"][0]["window"] == plan_of(loader, 1).plan.scheduled.first


def test_dropped_documents_never_come(corpus, undisturbed):
    """In windows that had begun their places are padding; later ones are packed without them."""
    gone = [undisturbed[0][0][4][0], undisturbed[0][0][9][1], undisturbed[0][1][3][0]]
    rows, _, _ = train([loader_of(corpus)], 2, [(3, lambda loader: loader.dataset.drop(gone))])
    assert rows[0][:3] == undisturbed[0][0][:3]
    assert {*gone}.isdisjoint(itertools.chain(*rows[0][3:], *rows[1]))


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
