"""Packs of several streams whose shares of the tokens follow a schedule."""

import itertools
import json

import numpy as np
import pytest

from mds import Packing, Schedule
from mds.errors import ConfigError, PlanError, StateError
from mds.plan._pack_schedule import Documents, PackedRun
from mds.plan._schedule import ScheduledRun
from tests.states import changed
from tests.unit.dataset import packed_schedules_helpers
from tests.unit.dataset.packed_schedules_helpers import (
    COUNT,
    KNOTS,
    loader_of,
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


def test_a_temperature_weighs_streams_by_their_tokens(corpus):
    """At one, all are gone through once at the same time."""
    loader = loader_of(corpus, schedule=Schedule.temperature({0: 1.0}))
    (rows,), _, _ = train([loader])
    assert sorted(itertools.chain(*rows)) == [*range(sum(COUNT.values()))]


def test_a_spent_stream_ends_the_training_or_is_refused(corpus):
    """By what the schedule says, at the window before the first that asks for more."""
    share = {0: {"web": 1, "math": 1}}
    one = {"num_canonical_nodes": 1}  # windows of several are too long for so few documents
    stop = loader_of(corpus, schedule=Schedule(share, exhausted="stop"), **one)
    rows, _, _ = train([stop], 3)
    math = [n for n in itertools.chain(*rows[0], *rows[1], *rows[2]) if stream_of(n) == "math"]
    assert len(math) == len({*math}) > COUNT["math"] - 100
    assert rows[2] == []
    with pytest.raises(PlanError, match=r"'math' reaches its limit of 1 pass .*windows 0 to"):
        train([loader_of(corpus, schedule=Schedule(share, exhausted="error"))])


def test_short_documents_do_not_make_windows_too_large(corpus):
    """A window of one stream's documents alone has as many as are packed at once, in each row."""
    run = ScheduledRun(Schedule({0: {"long": 1, "short": 0}, 5: {"short": 1}}), ("long", "short"))
    documents = [Documents(100_000, 10**9), Documents(10**7, 10**7)]
    for rows in (1, 8):
        packed = PackedRun.of(run, documents, [100_000, 10**7], 10_100_000, 16_384, 10**6, rows)
        mixture = packed.mixture((100_000, 10**7), 1)
        most = np.diff(mixture.counts(np.arange(packed.windows)), axis=0).max()
        assert 100_000 < most / rows <= 131_072


def test_an_unshuffled_window_has_its_streams_mixed(corpus):
    """Documents are in an order of their own streams, evenly spread."""
    loader = loader_of(corpus, shuffle=False, schedule=Schedule({0: {"web": 1, "code": 1}}))
    (rows,), _, _ = train([loader], stop=4)
    for row in rows:
        assert {stream_of(n) for n in row} == {"web", "code"}


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"schedule": Schedule(KNOTS, unit="samples")}, "counts the tokens of each document"),
        (
            {"schedule": Schedule({0: {"web": 1}}, unit="tokens", tokens_per_sample=9)},
            "does not work with packing=",
        ),
        ({"packing": Packing(budget=500)}, "unit='steps' does not work with Packing"),
        ({"schedule": Schedule({0: {"web": 1}}, unit="tokens"), "packing": None}, "Give one of"),
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
        ({"cursor": {"cursors": [[0, 0]], "turn": 0}}, "each canonical node has one"),
        ({"edits": [{"step": 1, "weights": {"web": 1}}]}, "does not know"),
        ({"edits": [{"step": 1, "weights": {"web": 1}, "window": -1}]}, "window '-1'"),
    ):
        with pytest.raises(StateError, match=match):
            loader.dataset.load_state_dict(changed(state, wrong))
    unpacked = loader_of(corpus, packing=None)
    edits = [{"step": 1, "weights": {"web": 1}, "window": 3}]
    with pytest.raises(StateError, match="does not know"):
        unpacked.dataset.load_state_dict(changed(unpacked.dataset.state_dict(0), {"edits": edits}))


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
    plain.dataset.edits.set_weights({"web": 1, "math": 1})
    next(batches)
    counted = plain.state_dict()
    assert counted["edits"]
    with pytest.raises(StateError, match=r"the state counts samples.*without packing="):
        loader_of(corpus).load_state_dict(counted)
    packed = loader_of(corpus)
    next(iter(packed))
    with pytest.raises(StateError, match=r"the state counts packs.*Give the same packing="):
        plain.load_state_dict(packed.state_dict())
