"""Packs of whole epochs are the same in every world, and from every step on."""

import pytest
from packs import LENGTHS, WORLDS, packed, steps_of

from mds.errors import PlanError
from mds.plan._packing import Packing
from mds.plan._state import emit_state


@pytest.mark.parametrize("order", [
    {}, {"shuffle": False}, {"shuffle_algo": "py1e"}, {"shuffle_algo": "py1s"},
    {"num_canonical_nodes": 3}, {"shuffle_block_size": 100_000},
], ids=str)  # fmt: skip
def test_every_token_comes_once_in_every_world(order):
    """And each global batch has the same packs in all of them."""
    expected = steps_of(packed(WORLDS[0], **order), WORLDS[0])
    pieces = sorted(piece for step, _ in expected for pack in step for piece in pack)
    whole = sorted((i, s, min(512, n - s)) for i, n in enumerate(LENGTHS) for s in range(0, n, 512))
    assert pieces == whole
    for world in WORLDS[1:]:
        assert steps_of(packed(world, **order), world) == expected


@pytest.mark.parametrize("what", ["attention", "tokens"])
def test_balance_does_not_change_what_is_in_a_step(what):
    """Only which of the ranks of a node has it; each has as many packs."""
    world = (2, 4, 1)
    packing = Packing(512, overflow="split", balance=what)
    assert steps_of(packed(world, packing=packing), world) == steps_of(packed(world), world)


def test_a_run_goes_on_exactly_in_any_other_world():
    """From every step, through a state as text; with another batch size too."""
    expected = steps_of(packed((1, 1, 1)), (1, 1, 1))
    plan = packed((1, 1, 1))
    for step in [*range(0, len(expected), 7), len(expected) - 1]:
        state = emit_state(plan.state(0).at(expected[step][1]))
        assert state["unit"] == "packs"
        world = WORLDS[step % len(WORLDS)]
        assert steps_of(packed(world, state=state), world) == expected[step + 1 :]
    rest = steps_of(packed((1, 2, 1), state=state, batch=5), (1, 2, 1))
    assert sum(rest, ([],))[0] == []
    middle = steps_of(packed((1, 2, 1), batch=5), (1, 2, 1))
    flat = [p for step, _ in expected for p in step if p]
    assert sorted(flat) == sorted(p for step, _ in middle for p in step if p)


def test_the_table_says_what_the_reading_gives():
    """Steps, batches, cursors and places of samples, at random, as they come in order."""
    world = (2, 2, 2)
    plan = packed(world)
    expected = steps_of(packed(world), world)
    assert plan.steps == len(expected)
    for step in (0, 1, len(expected) // 2, len(expected) - 1):
        ids = sorted(row.sample for row in plan.step_rows(step))
        assert ids == sorted(p[0] for pack in expected[step][0] for p in pack)
        count = (step + 1) * plan.shape.global_batch
        assert plan.state(count).position == expected[step][1]
    for sample in (0, 17, 2999, int(LENGTHS.argmax())):
        places = plan.locate(sample)
        steps = [
            s
            for s, (packs, _) in enumerate(expected)
            for pack in packs
            if sample in dict.fromkeys(p[0] for p in pack)
        ]
        assert sorted(place.step for place in places) == steps
        for place in places:
            contents, slots = plan.filling.dealt(place.step)
            slot = place.rank * plan.shape.batch + place.place
            assert sample in contents.ids[slots == slot]
    with pytest.raises(IndexError):
        plan.step_rows(plan.steps)
    with pytest.raises(PlanError, match="several documents"):
        plan.batch(0)
