"""All that changes an order, at once: any world goes on anywhere as if nothing had stopped."""

import numpy as np
import pytest
from ordertools import make_plan, steps_of

from mds.plan._edits import apply_weights
from mds.plan._schedule import Schedule, ScheduledRun

NAMES = ("web", "code", "math")
SHARDS = ([40, 25, 35], [9, 18], [23])
PER_STREAM = [sum(shards) for shards in SHARDS]
WORLDS = ((1, 1, 1), (1, 2, 3), (1, 4, 1), (2, 2, 1), (4, 1, 2))
GLOBAL = 16


def settings_of(rng):
    """Streams, their schedule or none, and an order, drawn."""
    streams = [{"shards": shards} for shards in SHARDS]
    order = {
        "shuffle": bool(rng.integers(5)),
        "shuffle_algo": str(rng.choice(["seekable", "py1e", "py1s", "py2s"])),
        "shuffle_block_size": int(rng.choice([7, 30, 400])),
        "num_canonical_nodes": int(rng.choice([1, 4, 8])),
        "sampling_method": str(rng.choice(["balanced", "fixed"])),
        "epoch_size": int(rng.integers(4, 12)) * GLOBAL,
    }
    kind = str(rng.choice(["schedule", "schedule", "random", "stratified"]))
    if kind == "schedule":
        asked: tuple[dict, ...] = ({}, {"repeat": 1.5}, {"choose": 20})
        streams = [{**stream, **asked[rng.integers(3)]} for stream in streams]
        weights = rng.integers(1, 9, (3, 3)).tolist()
        knots = {at: dict(zip(NAMES, weights[at // 5], strict=True)) for at in (0, 5, 10)}
        schedule = Schedule(knots, between=str(rng.choice(["hold", "linear", "cosine"])))
        return streams, ScheduledRun(schedule, NAMES), order
    share = {"proportion": (0.5, 0.25, 0.25), "repeat": (1, 2, 1.5), "choose": (70, 30, 20)}
    which = str(rng.choice(list(share)))
    for stream, value in zip(streams, share[which], strict=True):
        stream[which] = value
    if which != "proportion":
        del order["epoch_size"]
    is_exact = kind == "random" and bool(rng.integers(2))
    order |= {"batching_method": kind, "remainder": "short" if is_exact else "repeat"}
    return streams, None, order


def edits_of(rng, steps, is_scheduled):
    """Drops, skips and weights in the order in which a training makes them, each with its step."""
    found = []
    for at in np.sort(rng.integers(0, 2 * steps, rng.integers(1, 9))).tolist():
        epoch, place = at // steps, at % steps * GLOBAL
        kind = rng.integers(3)
        if kind == 0 and is_scheduled:
            weights = {name: int(rng.integers(1, 9)) for name in NAMES}
            edit = {"step": at, "weights": weights}
        elif kind == 1:
            edit = {"epoch": epoch, "from": place, "skip": GLOBAL}
        else:
            ids = np.unique(rng.integers(0, sum(PER_STREAM), rng.integers(1, 4))).tolist()
            edit = {"epoch": epoch, "from": place, "drop": ids, "why": ""}
        found.append((at, edit))
    return found


def plan_of(streams, run, order, world, edits, **more):
    nodes, ranks, _ = world
    return make_plan(
        streams,
        world,
        schedule=apply_weights(run, edits),
        edits=edits,
        batch_size=GLOBAL // (nodes * ranks),
        **order,
        **more,
    )


@pytest.mark.parametrize("seed", range(30))
def test_a_resume_of_an_edited_order_is_the_order(seed):
    """Drawn settings and edits, two epochs, on other worlds, with replication, from any step."""
    rng = np.random.default_rng(seed)
    streams, run, order = settings_of(rng)
    steps = plan_of(streams, run, order, WORLDS[0], ()).epoch_steps
    told = edits_of(rng, steps, run is not None)
    edits = tuple(edit for _, edit in told)
    for epoch in range(2):
        whole = plan_of(streams, run, order, WORLDS[0], edits, epoch=epoch)
        expected = steps_of(whole)
        for _ in range(4):
            seen = int(rng.integers(0, whole.steps + 1))
            state = whole.state(seen * GLOBAL)
            world = WORLDS[rng.integers(len(WORLDS))]
            plan = plan_of(streams, run, order, world, edits, resume=state, epoch=epoch)
            plan.check(state)
            found, rest = steps_of(plan), expected[seen:]
            if run is None and order["remainder"] == "repeat":
                # How many samples are repeated to even out ranks depends on their number.
                found, rest = (each[: max(len(rest) - 1, 0)] for each in (found, rest))
            assert found == rest, (order, world, edits, seen)
        # Two ranks of four see the same where they are replicas of each other.
        twice = make_plan(
            streams,
            (1, 4, 1),
            replication=2,
            schedule=apply_weights(run, edits),
            edits=edits,
            batch_size=GLOBAL // 2,
            epoch=epoch,
            **order,
        )
        assert steps_of(twice)[: len(expected) - 1] == expected[:-1]


@pytest.mark.parametrize("seed", range(30))
def test_an_edit_leaves_the_past(seed):
    """Before the step from which it holds everything is as it was without it."""
    rng = np.random.default_rng(1000 + seed)
    streams, run, order = settings_of(rng)
    steps = plan_of(streams, run, order, WORLDS[0], ()).epoch_steps
    told = edits_of(rng, steps, run is not None)
    edits: tuple = ()
    before = steps_of(plan_of(streams, run, order, WORLDS[0], ()))
    for at, edit in told:
        if at >= steps:
            break
        gone = len({e["from"] for e in edits if "skip" in e and e["from"] < at * GLOBAL})
        edits = (*edits, edit)
        after = steps_of(plan_of(streams, run, order, WORLDS[0], edits))
        assert after[: at - gone] == before[: at - gone], (order, edits)
        before = after
