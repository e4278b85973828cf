"""A schedule counts exactly: every global batch, alone or in turn, on every world."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ordertools import drawn_shares, make_plan

from mds.errors import ConfigError, PlanError
from mds.plan._mixture import ONE, Mixture, ShareSpan
from mds.plan._schedule import Schedule, ScheduledRun

WEB, CODE, MATH = [400, 250, 350], [90, 80], [33]
NAMES = ("web", "code", "math")
RAMP = {0: {"web": 0.8, "code": 0.15, "math": 0.05}, 100: {"web": 0.2, "code": 0.5, "math": 0.3}}


def run_of(schedule, names=NAMES):
    return ScheduledRun(schedule, names)


def plan_of(world, schedule=None, **order):
    """A plan of three streams in global batches of 24."""
    nodes, ranks, _ = world
    order.setdefault("batch_size", 24 // (nodes * ranks))
    run = schedule if isinstance(schedule, ScheduledRun) else run_of(schedule or ramp())
    streams = [{"shards": sizes} for sizes in (WEB, CODE, MATH)]
    return make_plan(streams, world, schedule=run, shuffle=True, **order)


def ramp(**more):
    return Schedule(RAMP, between="linear", **more)


def sorted_steps(plan):
    return [np.sort(plan.batch(step).reshape(-1)).tolist() for step in range(plan.steps)]


def due_one_by_one(mixture, steps):
    """Counts of the first steps as the definition says: the earliest of all samples, in turn."""
    taken = np.zeros(mixture.streams, np.int64)
    found = [taken.copy()]
    time, size = np.arange(steps * mixture.batch + mixture.streams + 2), mixture.batch
    edges = mixture.integral(np.arange(time[-1] // size + 2)).astype(object)
    rows = time // size
    passed = edges[rows] * size + (edges[rows + 1] - edges[rows]) * (time % size)[:, None]
    events = []
    for stream in range(mixture.streams):
        number = 1
        for at, (before, after) in enumerate(itertools.pairwise(passed[:, stream])):
            # Sample number j is due where twice the integral is (2 j - 1) times ONE.
            while 2 * before < (2 * number - 1) * ONE <= 2 * after:
                late = ((2 * number - 1) * ONE - 2 * before) / (2 * (after - before))
                events.append((at, late, stream))
                number += 1
    for nth, (_, _, stream) in enumerate(sorted(events)[: steps * mixture.batch], start=1):
        taken[stream] += 1
        if nth % mixture.batch == 0:
            found.append(taken.copy())
    return np.array(found)


@given(st.integers(1, 9), st.integers(1, 20), st.integers(0, 1 << 30))
def test_counts_are_those_of_the_definition(streams, batch, seed):
    """Sample j is due where the integral passes j - 1/2; a batch takes the next due, in order."""
    rng = np.random.default_rng(seed)
    a, b, c = (drawn_shares(rng, streams) for _ in range(3))
    mixture = Mixture(
        [
            ShareSpan(0, a, b, 9, "cosine"),
            ShareSpan(9, b, c, 7),
            ShareSpan(16, c),
            ShareSpan(20, a),
        ],
        batch,
    )
    assert mixture.counts(np.arange(31)).tolist() == due_one_by_one(mixture, 30).tolist()


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_ramps_follow_their_curve(shape):
    """The integral along a ramp is that of the line, and of the cosine, as floats have it."""
    begin, end, length, batch = (ONE // 4, ONE - ONE // 4), (ONE // 2, ONE // 2), 100_000, 2048
    mixture = Mixture([ShareSpan(0, begin, end, length, shape), ShareSpan(length, end)], batch)
    for step in (0, 1, 777, 50_000, 99_999, 100_000, 150_000):
        part = min(step / length, 1.0)
        if shape == "linear":
            risen = length * part**2 / 2
        else:
            risen = length * (part / 2 - np.sin(np.pi * part) / (2 * np.pi))
        expected = batch * (0.25 * step + 0.25 * (risen + max(step - length, 0)))
        assert mixture.integrals(np.array([step]))[0, 0] == pytest.approx(expected, abs=0.1)
    assert mixture.shares(length)[0] == 0.5


@settings(max_examples=12)
@given(st.integers(1, 9), st.integers(1, 20), st.integers(0, 1 << 30))
def test_a_change_leaves_the_past_and_counts_on(streams, batch, seed):
    """Before its step counts are as before; they never fall, and come back to the integral."""
    rng = np.random.default_rng(seed)
    mixture, steps = Mixture([ShareSpan(0, drawn_shares(rng, streams))], batch), np.arange(200)
    for step in np.sort(rng.choice(60, 5, replace=False)).tolist():
        before = mixture.counts(steps)
        mixture = mixture.changed(step, drawn_shares(rng, streams))
        after = mixture.counts(steps)
        assert after[: step + 1].tolist() == before[: step + 1].tolist()
        assert (np.diff(after, axis=0) >= 0).all()
        assert (after.sum(axis=1) == steps * batch).all()
        for k in rng.integers(0, 200, 9).tolist():
            assert mixture.counts(steps[k : k + 1])[0].tolist() == after[k].tolist()
    share = ONE // streams
    even = mixture.changed(60, (ONE - share * (streams - 1), *[share] * (streams - 1)))
    far = np.array([100_000])
    assert np.abs(even.counts(far)[0] - even.integrals(far)[0]).max() < 3


def test_steps_of_samples_finds_when_a_sample_comes():
    """The step of sample j of a stream is the one whose counts pass it."""
    mixture = run_of(ramp()).mixture((1000, 170, 33), 24)
    counts = mixture.counts(np.arange(300))
    for stream in range(3):
        turns = np.arange(int(counts[-1, stream]))
        expected = np.searchsorted(counts[:, stream], turns, side="right") - 1
        assert mixture.steps_of_samples(stream, turns).tolist() == expected.tolist()


@pytest.mark.parametrize("algo", ["seekable", "py1e", "py1s"])
@pytest.mark.parametrize("world", [(1, 2, 2), (2, 3, 1), (4, 2, 3)])
def test_global_batches_are_the_same_in_every_world(algo, world):
    """Their samples, the order hash, and where a sample is found."""
    alone = plan_of((1, 1, 1), shuffle_algo=algo, num_canonical_nodes=4)
    plan = plan_of(world, shuffle_algo=algo, num_canonical_nodes=4)
    expected = sorted_steps(alone)
    assert sorted_steps(plan) == expected
    assert str(plan.order_hash(plan.steps)) == str(alone.order_hash(alone.steps))
    for sample in (0, 5, 999, 1000, 1100, 1201):
        places = plan.locate(sample)
        assert len(places) == sum(step.count(sample) for step in expected)
        for place in places:
            assert plan.batch(place.step)[place.rank, place.place] == sample


@pytest.mark.parametrize("drop", [0, 24, 24 * 7 + 6, 24 * 50])
def test_a_resume_leaves_what_is_left_in_every_world(drop):
    """From any sample of all ranks on, also in the middle of a global batch."""
    whole = plan_of((1, 1, 1), num_canonical_nodes=2)
    ids = np.concatenate([whole.batch(step).reshape(-1) for step in range(whole.steps)])
    for world in ((1, 1, 1), (1, 4, 2), (2, 3, 1)):
        plan = plan_of(world, num_canonical_nodes=2, resume=whole.state(drop))
        left = np.concatenate([plan.batch(step).reshape(-1) for step in range(plan.steps)])
        assert np.sort(left[left >= 0]).tolist() == np.sort(ids[drop:]).tolist()


@pytest.mark.parametrize("algo", ["seekable", "py1e"])
def test_streams_go_on_from_epoch_to_epoch(algo):
    """Every pass of a stream has each of its samples once, across epochs, each time mixed anew."""
    plan, ids = plan_of((1, 1, 1), shuffle_algo=algo), []
    for _ in range(4):
        ids += [plan.batch(step).reshape(-1) for step in range(plan.steps)]
        plan = plan.following()
    # The order within a batch is the dealing's, so passes are told apart batch by batch.
    for first, last in ((0, 1000), (1000, 1170), (1170, 1203)):
        mine = [np.sort(step[(step >= first) & (step < last)]).tolist() for step in ids]
        taken = np.bincount(np.concatenate(mine).astype(np.int64) - first)
        assert taken.max() - taken.min() <= 1
        assert taken.min() >= 1
    small = np.concatenate([step[step >= 1170] for step in ids])
    assert small[:33].tolist() != small[33:66].tolist()


def test_a_stream_keeps_its_order_when_weights_change():
    """Live weights change how many come of a stream, and nothing is lost or comes twice."""
    plain = run_of(Schedule({0: {"web": 1, "code": 1, "math": 1}}))
    edited = plain.with_weights(3, {"web": 1}).with_weights(9, {"code": 1, "math": 3})
    ids = []
    for run in (plain, edited):
        plan = plan_of((1, 1, 1), run, shuffle_algo="seekable", epoch_size=24 * 20)
        ids.append(np.concatenate([plan.batch(step).reshape(-1) for step in range(20)]))
    assert ids[0][: 3 * 24].tolist() == ids[1][: 3 * 24].tolist()
    for first, last in ((0, 1000), (1000, 1170)):
        before, after = (each[(each >= first) & (each < last)] for each in ids)
        shared = min(len(before), len(after)) - 24
        assert len({*before[:shared].tolist()} ^ {*after[:shared].tolist()}) <= 24
        assert len({*after.tolist()}) == len(after)


def test_ranks_get_every_stream_by_its_share():
    """In each batch of a rank a stream has its share of the global batch, give or take one."""
    plan = plan_of((2, 2, 1), batch_size=32)
    for step in range(plan.steps):
        ids = plan.batch(step)
        of_all = (ids < 1000).sum() / 4
        assert np.abs((ids < 1000).sum(axis=1) - of_all).max() < 1


def test_exhausted_streams_end_the_training_or_are_refused():
    """With "stop" it ends before the batch that asks for more; else its epoch is refused."""
    even = {0: {"web": 1, "code": 1, "math": 1}}
    plan = plan_of((1, 1, 1), Schedule(even, exhausted="stop"))
    assert plan.steps == 33 // 8
    assert plan.following().steps == 0
    assert plan_of((1, 1, 1), Schedule(even, exhausted="stop", max_passes=3)).steps == 99 // 8
    assert plan_of((1, 1, 1), Schedule(even, exhausted="stop", max_passes={"code": 1})).steps == 21
    with pytest.raises(PlanError, match=r"'math' reaches its limit of 1 pass after step 4"):
        _ = plan_of((1, 1, 1), Schedule(even, exhausted="error")).steps
    with pytest.raises(PlanError, match=r"2 passes after step 8"):
        _ = plan_of((1, 1, 1), Schedule(even, max_passes={"math": 2})).steps
    plan = plan_of((1, 1, 1), Schedule(even, max_passes=13))
    assert plan.steps == 51
    with pytest.raises(PlanError, match=r"within epoch 1 \(steps 51 to 101\)"):
        _ = plan.following().steps


def test_passes_take_what_repeat_and_choose_say():
    """A pass of a stream with choose=10 has ten samples, and the next pass others."""
    streams = [{"shards": WEB}, {"shards": CODE, "choose": 10}]
    run = ScheduledRun(Schedule({0: {"web": 1, "code": 1}}), ("web", "code"))
    plan = make_plan(streams, (1, 1, 1), batch_size=4, shuffle=True, schedule=run)
    code = np.concatenate([plan.batch(step).reshape(-1) for step in range(10)])
    first, second = np.split(code[code >= 1000], 2)
    assert len({*first.tolist()}) == len({*second.tolist()}) == 10
    assert {*first.tolist()} != {*second.tolist()}


def test_units_count_the_same_thing():
    """A knot after so many steps is one after so many samples, and after so many tokens."""
    samples = (1000, 170, 33)
    knots = {at * 24: weights for at, weights in RAMP.items()}
    steps = run_of(ramp()).spans(samples, 24)
    assert run_of(Schedule(knots, "linear", "samples")).spans(samples, 24) == steps
    knots = {at * 512 - (at > 0): weights for at, weights in knots.items()}
    tokens = Schedule(knots, "linear", "tokens", tokens_per_sample=512)
    assert run_of(tokens).spans(samples, 24) == steps


def test_temperature_weighs_by_size():
    """1 is by size, more brings streams nearer; between knots it goes straight."""
    run = run_of(Schedule.temperature({0: 1.0, 100: 2.0}))
    mixture = run.mixture((1000, 170, 33), 24)
    sizes = np.array([1000, 170, 33])
    assert np.allclose(mixture.shares(0), sizes / sizes.sum(), atol=0.01)
    assert np.allclose(mixture.shares(100), sizes**0.5 / (sizes**0.5).sum(), atol=1e-8)


@pytest.mark.parametrize(
    "schedule",
    [
        ramp(),
        Schedule({0: {"a": 1}}, unit="samples", exhausted="stop", max_passes={"a": 3}),
        Schedule({0: {"a": 1}}, "cosine", "tokens", tokens_per_sample=9, max_passes=2),
        Schedule.temperature({0: 1, 7: 2.5}, exhausted="error"),
    ],
)
def test_a_schedule_is_told_whole(schedule):
    """JSON and repr give the same schedule back, and equal ones share a hash."""
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert eval(repr(schedule)) == schedule
    assert hash(eval(repr(schedule))) == hash(schedule)
    assert schedule != Schedule({0: {"b": 1}})
    run = ScheduledRun(schedule, ("a", "web", "code", "math"))
    assert ScheduledRun.from_json(run.to_json()) == run


@pytest.mark.parametrize(
    ("knots", "more", "told"),
    [
        ({}, {}, "expected a dict of milestones"),
        ({5: {"a": 1}}, {}, "the first milestone is 5"),
        ({0: {"a": 1}, -1: {"a": 1}}, {}, "milestone -1"),
        ({0: {"a": 1}, 1.5: {"a": 1}}, {}, "milestone 1.5"),
        ({0: {"a": 0}}, {}, "all weights at 0 are zero"),
        ({0: {"a": -1}}, {}, "the weight of 'a' at 0 is -1"),
        ({0: {"a": float("nan")}}, {}, "is nan"),
        ({0: {"a": float("inf")}}, {}, "is inf"),
        ({0: {"a": "1"}}, {}, "is '1'"),
        ({0: {3: 1}}, {}, "3 at 0 is not the name"),
        ({0: {}}, {}, "expected a dict of stream names"),
        ({0: 1.0}, {}, "expected a dict of stream names"),
        ({0: {"a": 1}}, {"between": "spline"}, "no between 'spline'"),
        ({0: {"a": 1}}, {"between": "steps"}, "no between 'steps': write between='hold'"),
        ({0: {"a": 1}}, {"exhausted": "again"}, "write exhausted='repeat'"),
        ({0: {"a": 1}}, {"unit": "epochs"}, "no unit 'epochs'"),
        ({0: {"a": 1}}, {"exhausted": "wait"}, "no exhausted 'wait'"),
        ({0: {"a": 1}}, {"tokens_per_sample": 8}, "together"),
        ({0: {"a": 1}}, {"unit": "tokens", "tokens_per_sample": 0}, "at least 1"),
        ({0: {"a": 1}}, {"max_passes": 0}, "max_passes 0"),
        ({0: {"a": 1}}, {"max_passes": {"a": 0.5}}, "max_passes 0.5"),
    ],
)
def test_what_makes_no_schedule_is_refused(knots, more, told):
    """Each with what was given and what is expected."""
    with pytest.raises(ConfigError, match=told):
        Schedule(knots, **more)


def test_states_keep_the_words_of_the_first_version():
    """They are written and read as before, so that any version resumes them."""
    schedule = Schedule({0: {"a": 1}}, max_passes=2)
    written = {"knots": [[0, {"a": 1.0}]], "between": "steps", "max_passes": 2}
    assert schedule.to_json() == written
    assert Schedule.from_json({**written, "spent": "again"}) == schedule
    stopped = Schedule({0: {"a": 1}}, exhausted="stop")
    assert stopped.to_json()["spent"] == "stop"
    assert repr(stopped) == "Schedule({0: {'a': 1}}, exhausted='stop')"


@pytest.mark.parametrize("found", [{}, {"knots": 3}, {"knots": [[0]]}, {"knots": [], "more": 1}])
def test_json_that_is_no_schedule_is_refused(found):
    """Whatever it is, with an error of ours."""
    with pytest.raises(ConfigError):
        Schedule.from_json(found)


def test_streams_and_schedule_have_to_fit():
    """Names that no stream has, and a weight for a stream without samples, are refused."""
    with pytest.raises(ConfigError, match=r"names math, but the streams are web, code"):
        run_of(ramp(), ("web", "code"))
    with pytest.raises(ConfigError, match=r"'math' has a weight at 0 but no samples"):
        run_of(ramp()).mixture((1000, 170, 0), 24)
    with pytest.raises(ConfigError, match="temperature at 0 is 0"):
        Schedule.temperature({0: 0})
    with pytest.raises(ConfigError, match="stream 1 has a proportion"):
        make_plan(
            [{"shards": WEB}, {"shards": CODE, "proportion": 1}],
            (1, 1, 1),
            schedule=run_of(Schedule({0: {"web": 1}}), ("web", "code")),
        )
