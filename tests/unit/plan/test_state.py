"""States: read from both libraries, written for both, refused with the differences."""

import dataclasses
import json

import numpy as np
import pytest
from ordertools import joined, make_plan, steps_of

from mds.errors import StateError
from mds.plan._state import (
    KEYS,
    TEXT_KEYS,
    VERSION,
    Cursor,
    Position,
    ResumePoint,
    emit_state,
    parse_state,
)
from tests.states import values_of

THEIRS = {
    "epoch": 2,
    "sample_in_epoch": 30,
    "num_canonical_nodes": 2,
    "shuffle_seed": 7,
    "initial_physical_nodes": 2,
}


def test_the_incumbent_s_state_is_read_and_written_key_by_key():
    """Five keys in, the same five out, and nothing else."""
    state = parse_state(THEIRS)
    assert not state.is_ours
    assert emit_state(state) == THEIRS


def test_a_state_from_before_initial_physical_nodes_is_read():
    """States of versions before 0.7 lack the key."""
    old = {key: THEIRS[key] for key in KEYS[:-1]}
    assert parse_state(old).initial_physical_nodes is None


def test_our_state_has_their_keys_and_fits_json():
    """More keys follow; text and back is the same state, of less than a page."""
    plan = make_plan([50, 60], (1, 2, 1), shuffle=True)
    state = plan.state(16, order_hash=plan.order_hash(2))
    found = emit_state(state)
    assert list(found)[:5] == list(KEYS)
    text = json.dumps(found)
    assert len(text) < 4096
    assert parse_state(json.loads(text)) == state


def test_numbers_of_other_kinds_are_taken_as_numbers():
    """Checkpoints come back from some formats as numpy integers or floats."""
    state = parse_state(THEIRS | {"epoch": np.int64(3), "sample_in_epoch": 30.0})
    assert state.position[:2] == (3, 30)
    assert type(state.position.epoch) is int


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epoch": "two"}, "epoch 'two'"),
        ({"sample_in_epoch": 1.5}, "sample_in_epoch 1.5"),
        ({"num_canonical_nodes": 0}, "num_canonical_nodes 0"),
        ({"shuffle_seed": None}, "shuffle_seed None"),
        ({"version": 99}, "version 99"),
    ],
)
def test_a_state_that_makes_no_sense_is_refused(change, says):
    """The sentence has the key and what was found."""
    with pytest.raises(StateError, match=says):
        parse_state(THEIRS | change)


OURS = {**THEIRS, "version": 1, "dataset": {"samples": 90}, "order": {"shuffle": True}}


@pytest.mark.parametrize("base", [THEIRS, OURS], ids=["theirs", "ours"])
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "value",
    [
        True, np.True_, "7", b"7", float("nan"), float("inf"), 1.5, [3], {}, 10**30, 10**5000,
        -(10**5000), np.array([3, 4]), object(), 1j,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_every_field_is_a_number_in_its_range(base, key, value):
    """Another type, no number, or one that no run can have: a sentence with the key."""
    with pytest.raises(StateError, match=key):
        parse_state(base | {key: value})


@pytest.mark.parametrize(
    "change",
    [
        {"version": True},
        {"version": 0},
        {"version": -1},
        {"version": "1"},
        {"dataset": [1]},
        {"dataset": "abc"},
        {"dataset": {"samples": [1] * 1000}},
        {"dataset": {5: 1}},
        {"dataset": {"samples": "x" * 10_000}},
        {"dataset": {"samples": 10**5000}},
        {"order": 3},
        {"order": {str(i): i for i in range(10_000)}},
        {"order": {"shuffle": {"deep": {}}}},
        {"order_hash": 5},
        {"order_hash": "0" * 10_000},
        {"epoch": -2},
        {"sample_in_epoch": -1},
        {"shuffle_seed": -1},
        {"num_canonical_nodes": -1},
        {"num_canonical_nodes": 2**31},
        {"initial_physical_nodes": 0},
    ],
    ids=",".join,
)
def test_our_own_keys_are_checked_too(change):
    """What is believed when a run goes on is of the right kind, in a short sentence."""
    with pytest.raises(StateError) as told:
        parse_state(OURS | change)
    assert len(str(told.value)) < 700


@pytest.mark.parametrize("seed", [0, 9176, 2**32 - 1, 2**63])
@pytest.mark.parametrize("nodes", [1, 64, 4096 * 64])
def test_what_a_run_can_have_is_taken(seed, nodes):
    """Seeds of any launcher, and the incumbent's canonical nodes of thousands of nodes."""
    found = {**THEIRS, "shuffle_seed": seed, "num_canonical_nodes": nodes, "epoch": -1}
    assert emit_state(parse_state(found)) == found


def test_a_state_without_keys_says_which():
    """And what it is instead."""
    with pytest.raises(StateError, match="no sample_in_epoch, shuffle_seed; it has epoch"):
        parse_state({"epoch": 1, "num_canonical_nodes": 1})
    with pytest.raises(StateError, match="got list"):
        parse_state([1, 2])


def test_another_dataset_or_order_is_refused_with_the_differences():
    """All of them, each with both values."""
    plan = make_plan([50, 60], (1, 2, 1), shuffle=True, shuffle_algo="py1s")
    state = plan.state(16)
    plan.check(emit_state(state))
    other = make_plan([50, 61], (1, 2, 1), shuffle=True, sampling_granularity=3)
    with pytest.raises(StateError) as told:
        other.check(state)
    text = str(told.value)
    for part in (
        "dataset samples was 110 and is 111",
        "order shuffle_algo was 'py1s' and is 'py1e'",
        "order sampling_granularity was 1 and is 3",
        "Use the state's values",
    ):
        assert part in text


def test_what_a_state_sets_itself_is_no_difference():
    """Seed, canonical nodes, world and, for dealt samples, batch size may be others."""
    state = make_plan([50, 60], (2, 2, 1), shuffle=True).state(16)
    make_plan(
        [50, 60], (1, 3, 2), shuffle=True, shuffle_seed=1, num_canonical_nodes=2, batch_size=5,
        shuffle_block_size=state.order["shuffle_block_size"],
    ).check(state)  # fmt: skip


def test_batches_by_stream_need_the_same_global_batch():
    """Their content depends on it."""
    order = {"batching_method": "stratified", "shuffle": True}
    streams = [{"shards": [50, 60]}, {"shards": [40]}]
    state = make_plan(streams, (1, 2, 1), batch_size=4, **order).state(16)
    make_plan(streams, (2, 1, 1), batch_size=4, num_canonical_nodes=1, shuffle_block_size=4_000_000,
              **order).check(state)  # fmt: skip
    with pytest.raises(StateError, match="global_batch_size was 8 and is 16"):
        make_plan(streams, (1, 2, 1), batch_size=8, **order).check(state)


def test_batches_of_one_stream_need_as_many_of_each_stream():
    """Padding for other ranks can fill one more, and then all are in another order."""
    order = {"batching_method": "per_stream", "shuffle": True, "num_canonical_nodes": 1}
    for sizes, is_same in (((78, 200), False), ((80, 200), True)):
        streams = [{"shards": [size]} for size in sizes]
        alone = make_plan(streams, (1, 1, 1), batch_size=20, **order)
        four = make_plan(streams, (1, 4, 1), batch_size=5, **order)
        rows = [
            [sorted(plan.batch(step).reshape(-1).tolist()) for step in range(plan.steps)]
            for plan in (alone, four)
        ]
        assert (rows[0] == rows[1]) == is_same
        if is_same:
            four.check(alone.state(40))
            continue
        with pytest.raises(StateError, match=r"batches_of_streams was '13 .*' and is '14 "):
            four.check(alone.state(40))
        old = alone.state(40)
        del old.order["batches_of_streams"]  # as it was written before
        four.check(old)


def test_stratified_batches_of_other_ranks_differ_by_a_step_at_the_end_at_most():
    """Where padding fills one more."""
    order = {"batching_method": "stratified", "shuffle": True, "num_canonical_nodes": 1}
    streams = [{"shards": [77]}, {"shards": [150]}]
    rows = []
    for ranks in (1, 4):
        plan = make_plan(streams, (1, ranks, 1), batch_size=12 // ranks, **order)
        steps = range(plan.steps)
        rows.append([sorted(plan.batch(step).reshape(-1).tolist()) for step in steps])
    assert [len(each) for each in rows] == [18, 19]
    assert rows[0] == rows[1][:18]


def test_the_incumbent_s_uneven_position_is_rounded_with_a_warning():
    """Its samples are dealt to nodes in turn, so a round that is not full is seen again."""
    uneven = THEIRS | {"sample_in_epoch": 31}
    plan = make_plan([90], (2, 1, 1), shuffle=True, resume=uneven, epoch=2)
    with pytest.warns(UserWarning, match="1 sample will be seen again"):
        theirs = steps_of(plan)
    assert theirs == steps_of(make_plan([90], (2, 1, 1), shuffle=True, resume=THEIRS, epoch=2))


def test_our_uneven_position_of_batches_by_stream_leaves_the_rest_of_the_batch():
    """What was seen of a batch is not seen again, and all later batches stay what they were."""
    streams = [{"shards": [50, 60]}, {"shards": [90]}]
    order = {"batching_method": "stratified", "shuffle": True, "batch_size": 4}
    first = make_plan(streams, (1, 2, 1), **order)
    batches = steps_of(first)
    plan = make_plan(streams, (1, 2, 1), resume=first.state(8 + 3), **order)
    left = steps_of(plan)
    assert left[1:] == batches[2:]
    assert len(left[0]) == 5
    assert set(left[0]) < set(batches[1])


def test_a_state_of_a_later_epoch_is_followed_and_of_an_earlier_one_never_ignored():
    """Ours is refused when another epoch was asked for; the incumbent's is told to be unused."""
    ours = make_plan([90], (1, 1, 1), epoch=3).state(8)
    assert make_plan([90], (1, 1, 1), epoch=1, resume=ours).epoch == 3
    with pytest.raises(StateError, match="Request epoch 3"):
        make_plan([90], (1, 1, 1), epoch=4, resume=ours)
    with pytest.warns(UserWarning, match="the state is not used"):
        plan = make_plan([90], (1, 1, 1), epoch=4, resume=THEIRS)
    assert plan.begin[:2] == (4, 0)


def test_a_state_from_before_the_first_epoch_asks_for_the_first():
    """Its seed and nodes count."""
    state = ResumePoint(Position(-1), 2, 5, 1, version=1)
    plan = make_plan([90], (1, 1, 1), shuffle=True, resume=state)
    assert (plan.epoch, plan.num_canonical_nodes, plan.shuffle_seed) == (0, 2, 5)


def test_resuming_at_the_end_gives_an_empty_epoch():
    """And the state of a finished epoch in a larger world fits a smaller one."""
    first = make_plan([90], (4, 4, 1), remainder="repeat")
    state = first.state(first.steps * 64)
    plan = make_plan([90], (1, 1, 2), resume=state)
    assert plan.steps == 0
    assert len(joined(plan.blocks(0, 0, 0))) == 0


def test_the_incumbent_s_position_far_beyond_the_end_is_refused():
    """It can only be of another dataset."""
    plan = make_plan([90], (1, 1, 2), resume=THEIRS | {"sample_in_epoch": 400})
    with pytest.raises(ValueError, match="cannot resume at sample 400 of an epoch of 90"):
        assert plan.steps


EXTENDED = {
    "epoch": "see position",
    "sample_in_epoch": "see position",
    "num_canonical_nodes": 2,
    "shuffle_seed": 7,
    "initial_physical_nodes": 2,
    "version": 2,
    "unit": "packs",
    "position": {"epoch": 3, "in_epoch": 840, "cursors": [[0, 12], [0, 13]], "turn": 0},
    "schedule": {"knots": [[0, {"web": 0.5}]], "between": "linear"},
    "edits": [{"at": 5, "drop": [77123], "why": "gibberish"}],
    "order": {"shuffle": True},
    "data": {"remote": "s3://b/web", "index": "ab12"},
}


def test_a_state_of_version_2_is_read_and_written_as_version_3():
    """Its values are those of version 3, whose place is a number, and no other keys."""
    point = parse_state(json.loads(json.dumps(EXTENDED)))
    assert point.position[:3] == (3, 840, "packs")
    assert point.position.cursor == Cursor(((0, 12), (0, 13)), 0)
    state = emit_state(point)
    assert values_of(state) == {
        "epoch": 3,
        "sample_in_epoch": 840,
        "num_canonical_nodes": -2,
        "shuffle_seed": 7,
        "initial_physical_nodes": 2,
        "version": 3,
        "unit": "packs",
        "finished": False,
        "order_hash": "",
        "cursor": {"cursors": [[0, 12], [0, 13]], "turn": 0},
        "dataset": None,
        **{key: EXTENDED[key] for key in ("schedule", "edits", "order", "data")},
    }
    assert parse_state(json.loads(json.dumps(state))) == dataclasses.replace(point, version=VERSION)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_state_has_the_same_keys_and_types_whatever_is_in_it(version):
    """So DCP loads all of it into a fresh one: no value is a dict or a list, and none is None."""
    state = emit_state(parse_state(OURS if version == 1 else EXTENDED))
    fresh = emit_state(ResumePoint(Position(-1), 1, 2, 1, version=VERSION))
    assert {key: type(value) for key, value in state.items()} == {
        **dict.fromkeys(KEYS, int),
        "version": int,
        "unit": str,
        "finished": bool,
        "order_hash": str,
        **dict.fromkeys(TEXT_KEYS, str),
    }
    assert list(state) == list(fresh)


@pytest.mark.parametrize("is_extended", [True, False])
def test_a_state_that_lost_a_key_is_refused_by_its_name(is_extended):
    """Key by key, and all but one: what a tool did not keep is named."""
    state = emit_state(parse_state(EXTENDED if is_extended else OURS))
    for lost in state:
        part = {key: value for key, value in state.items() if key != lost}
        with pytest.raises(StateError, match=rf"the state (is a part of one: it )?has no {lost}"):
            parse_state(part)
        if lost in {"unit", "cursor"}:  # they tell a part even without the version
            part = {key: state[key] for key in (*KEYS, lost)}
            with pytest.raises(StateError, match=r"it has no version, .*finished, order_hash"):
                parse_state(part)


@pytest.mark.parametrize(
    "lost", ["schedule", "edits", "unit", "position", "position.cursors", "position.turn"]
)
def test_a_state_of_version_2_that_lost_a_key_is_refused_by_its_name(lost):
    """Version 2 lists the keys that it has."""
    keys = ["schedule", "edits", "position.cursors", "position.turn"]
    state = json.loads(json.dumps({**EXTENDED, "keys": keys}))
    outer, _, inner = lost.rpartition(".")
    del (state[outer] if outer else state)[inner]
    with pytest.raises(StateError, match=rf"part of one: it has no {lost}"):
        parse_state(state)


def test_the_common_keys_of_a_state_of_packs_are_a_part_of_one():
    """Their position is none without the others, and the message names these."""
    state = emit_state(parse_state(EXTENDED))
    with pytest.raises(StateError, match="it has no version, unit, finished"):
        parse_state({key: state[key] for key in KEYS})
    with pytest.raises(StateError, match="it has no version, unit, position"):
        parse_state({key: EXTENDED[key] for key in KEYS})


def test_parts_of_two_states_are_refused():
    """An old checkpoint over the keys of a fresh state, and an edit over a state without any."""
    state = emit_state(parse_state(OURS))
    with pytest.raises(StateError, match="parts of two states: it has version 1"):
        parse_state({**state, "version": 1})
    edits = emit_state(parse_state(EXTENDED))["edits"]
    with pytest.raises(StateError, match="Load the keys of one state"):
        parse_state({**state, "edits": edits})


def test_other_settings_of_an_extended_run_have_no_way_around():
    """Keeping the common keys helps for samples alone, so it is advised for them alone."""
    for state, is_advised in ((EXTENDED, False), (OURS, True)):
        point = dataclasses.replace(parse_state(state), schedule=None, order={"shuffle": True})
        with pytest.raises(StateError, match="does not fit this run") as caught:
            point.check({}, {"shuffle": False})
        assert ("common keys" in str(caught.value)) is is_advised


def test_the_common_keys_of_samples_mean_what_they_meant():
    """So mosaicml-streaming goes on from them, whatever version was read."""
    assert {key: emit_state(parse_state(OURS))[key] for key in KEYS} == THEIRS
    samples = {key: EXTENDED[key] for key in EXTENDED if key not in {"schedule", "edits", "data"}}
    point = parse_state({**samples, "unit": "samples", "position": {"epoch": 1, "in_epoch": 5}})
    state = emit_state(point)
    assert {key: state[key] for key in KEYS} == {**THEIRS, "epoch": 1, "sample_in_epoch": 5}


def test_a_cursor_belongs_to_its_position():
    """The beginning of the next epoch has none."""
    position = parse_state(EXTENDED).position
    assert position.cursor is not None
    assert position.following() == Position(4, 0, "packs")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"edits": "[5"}, "edits '.5'; expected a text of JSON"),
        ({"edits": []}, "expected a text of JSON"),
        ({"schedule": "[" * 100_000}, "expected a text of JSON"),
        ({"dataset": None}, "dataset None; expected a text of JSON"),
        ({"cursor": "[]"}, "expected null or cursors and turn"),
        ({"cursor": '{"cursors": [[0, -1], [0, 0]], "turn": 0}'}, "they count from 0"),
        ({"unit": 5}, "unit"),
        ({"finished": 1}, "finished 1"),
        ({"order": '{"shuffle": [1]}'}, "expected short texts"),
        ({"num_canonical_nodes": 2}, "num_canonical_nodes 2, unit 'packs'"),
        ({"num_canonical_nodes": -(10**9)}, "num_canonical_nodes 1000000000"),
        ({"version": 4}, "update it"),
    ],
    ids=str,
)
def test_the_texts_of_a_state_are_checked(change, says):
    """Every value that a plan would believe, in a short sentence."""
    with pytest.raises(StateError, match=says) as caught:
        parse_state(emit_state(parse_state(EXTENDED)) | change)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 4}, "update it"),
        ({"version": 1}, "see position"),
        ({"unit": "tokens"}, "unit 'tokens'"),
        ({"unit": None}, "unit"),
        ({"unit": ["packs"]}, "unit"),
        ({"position": None}, "position"),
        ({"position": {"epoch": 1}}, "position"),
        ({"position": {"epoch": 1, "in_epoch": -1}}, "sample_in_epoch -1"),
        ({"position": {"epoch": "1", "in_epoch": 1}}, "epoch '1'"),
        ({"position": {"epoch": 1, "in_epoch": 1, "cursors": [[0, 1]]}}, "1 cursors"),
        ({"position": {"epoch": 1, "in_epoch": 1, "cursors": "ab"}}, "cursors"),
        ({"position": {"epoch": 1, "in_epoch": 1, "cursors": [[0], [1]]}}, "cursors"),
        ({"position": {"epoch": 1, "in_epoch": 1, "cursors": [[0, -1], [0, 0]]}}, "cursors"),
        ({"position": {"epoch": 1, "in_epoch": 1, "cursors": [["0", 1], [0, 0]]}}, "cursors"),
        ({"position": {"epoch": 1, "in_epoch": 1, "turn": 2}}, "turn 2"),
        ({"position": {"epoch": 1, "in_epoch": 1, "turn": "0"}}, "turn '0'"),
        ({"schedule": [1]}, "schedule"),
        ({"schedule": {"x": 1j}}, "schedule"),
        ({"schedule": {1: 2}}, "schedule"),
        ({"schedule": {"x": 10**500}}, "schedule"),
        ({"schedule": {"x": [[[[[[[[[[1]]]]]]]]]]}}, "nested"),
        ({"schedule": {"x": [0] * 2_000_000}}, "entries"),
        ({"edits": {"at": 5}}, "edits"),
        ({"edits": [5]}, "edits"),
        ({"edits": [{}] * 20_000}, "20,000 edits"),
        ({"data": {"remote": {3: 1}}}, "data"),
    ],
    ids=str,
)
def test_an_extension_is_checked(change, says):
    """Every value that a plan would believe, in a short sentence."""
    with pytest.raises(StateError, match=says) as told:
        parse_state(EXTENDED | change)
    assert len(str(told.value)) < 700
