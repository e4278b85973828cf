"""Position of one worker of a loader that is not ours, such as torchdata's StatefulDataLoader.

Such a loader saves a state for each of its workers. A worker does not know how far the others are,
so its point is where its own count begins, a position of all ranks, and what it took since then.
Samples are counted from where the iteration began, and packs from the worker's last whole step::

    step            0  1  2  3  4  5        2 workers
    worker          0  1  0  1  0  1
    samples         worker 1 took step 1 and 3: 2 batches from step 0 on, in lane 1
    packs           worker 1 took step 1 and 3: nothing from step 4 on, in lane 1

The *lane* is the worker, counted from the step at which its count begins: worker 0 of this picture
is in lane 0 before step 0, and after step 2 in lane 1, as the next step belongs to worker 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from mds.errors import StateError
from mds.plan._state import (
    MAX_SAMPLES,
    ResumePoint,
    emit_state,
    parse_state,
)

_REMEDY = "or use mds.StreamingDataLoader, whose state does not depend on them"


class WorkerPoint(NamedTuple):
    """Position of one worker.

    Attributes:
        start: Position of all ranks from which the worker counts.
        taken: Samples that this worker took from there on, with padding. With packing, packs of the
            step that it is in the middle of.
        lane: Worker of the rank to which its next steps belong, counted from ``start``.
        world: Nodes, ranks, workers, batches of a step and their size, by name, on which the
            samples of a worker depend. With several ranks and a filter, also the rank. Empty if
            they were not recorded.
    """

    start: ResumePoint
    taken: int
    lane: int
    world: Mapping[str, int]

    def emit(self) -> dict[str, Any]:
        """Return the point as plain JSON; the keys are in checkpoints of users."""
        return {"turn": emit_state(self.start), **self._count()}

    def as_state(self) -> dict[str, Any]:
        """Return the point as a state of a dataset: ``start``, with the rest in its ``data``."""
        data = {**(self.start.data or {}), "worker": self._count()}
        return emit_state(dataclasses.replace(self.start, data=data))

    def _count(self) -> dict[str, Any]:
        return {"taken": self.taken, "lane": self.lane, "world": dict(self.world)}

    def moved(self, world: Mapping[str, int], *, is_alone: bool) -> WorkerPoint:
        """Return the same position of a run in ``world``.

        With equal global batches and workers, every step has the same samples and the same worker.
        A rank without worker processes (``is_alone``) knows the position of all ranks.

        Raises StateError if the point does not lead to a position in ``world``.
        """
        before = {**world, **self.world}
        # Behind a filter, ranks take different numbers of samples for equally many that they keep.
        if self.taken and "rank" in self.world and before != world:
            raise StateError(
                f"the state of rank {before['rank']} behind a filter or on_error='skip' counts "
                "only the samples of that rank. Save a state on each rank, and load each on its "
                f"own rank, on as many ranks, {_REMEDY}."
            )
        before = {name: before[name] for name in world}
        if before == world or before == {**world, "rank": before.get("rank")}:
            return self
        if before["workers"] == world["workers"]:
            is_equal = (
                before["batch_size"] * before["ranks"] == world["batch_size"] * world["ranks"]
                and before["microbatches"] == world["microbatches"] == 1
            )
            move = _MOVES[self.start.position.unit]
            point = move(self, before, world, is_equal=is_equal, is_alone=is_alone)
            if point is not None:
                return point
        changes = ", ".join(
            f"{name} {str(before[name])[:20]} then and {count} now"
            for name, count in world.items()
            if before[name] != count
        )
        raise StateError(
            "the state of a worker counts only the samples of that worker, but this run divides "
            f"samples differently: {changes}. Use the same num_workers and the same global batch "
            f"(ranks times batch_size), {_REMEDY}."
        )


def _move_samples(
    point: WorkerPoint,
    before: Mapping[str, int],
    world: Mapping[str, int],
    *,
    is_equal: bool,
    is_alone: bool,
) -> WorkerPoint | None:
    """Return the position of ``point``, which counts samples, in another world; None without one.

    Args:
        point: Point of a worker.
        before: World in which it counts.
        world: World of this run, with as many workers.
        is_equal: Whether both have the same steps, one batch each.
        is_alone: Whether this rank has no worker processes.
    """
    if is_alone:
        start, count = point.start, point.taken * before["ranks"]
        from mds.plan._edits import position_after

        end = position_after(start.position, count, start.edits)
        return WorkerPoint(start.at(end), 0, 0, world)
    batches, rest = divmod(point.taken, before["batch_size"] or 1)
    if rest or not is_equal:
        return None
    return WorkerPoint(point.start, batches * world["batch_size"], point.lane, world)


def _move_packs(
    point: WorkerPoint,
    before: Mapping[str, int],
    world: Mapping[str, int],
    *,
    is_equal: bool,
    is_alone: bool,
) -> WorkerPoint | None:
    """Return the position of ``point``, which counts packs, in another world; see `_move_samples`.

    Only a point between two steps can be moved.
    """
    del before
    if point.taken or not (is_equal or is_alone):
        return None
    return WorkerPoint(point.start, 0, point.lane, world)


#: How a point is moved to another world, by the unit of its position.
_MOVES = {"samples": _move_samples, "packs": _move_packs}


def parse_worker_point(state: Mapping[str, Any], lane: int) -> WorkerPoint:
    """Return the point of a result of `WorkerPoint.emit`.

    ``lane`` is that of a state without it. Raises StateError for anything else.
    """
    return _parse_count(parse_state(state["turn"]), state, lane)


def point_of_state(point: ResumePoint, lane: int) -> WorkerPoint:
    """Return the point of a worker from a parsed state of a dataset, see `WorkerPoint.as_state`.

    From a state of all ranks, every worker begins there, in its own ``lane``.
    """
    count = (point.data or {}).get("worker")
    return WorkerPoint(point, 0, lane, {}) if count is None else _parse_count(point, count, lane)


def refuse_worker_state(point: ResumePoint) -> None:
    """Raise StateError for the state of a worker where one of all ranks is needed."""
    if "worker" in (point.data or {}):
        raise StateError(
            "the state comes from dataset.state_dict() in a worker process, which counts only the "
            "samples of that worker. Load it in the same worker of as many, as torchdata's "
            "StatefulDataLoader does, or use mds.StreamingDataLoader, whose state is of all ranks."
        )


def _parse_count(start: ResumePoint, count: Any, lane: int) -> WorkerPoint:
    """Return the point with the numbers of `WorkerPoint._count`, checked.

    ``lane`` is that of states which do not record one.
    """
    values: Mapping[str, Any] = count if isinstance(count, Mapping) else {}
    taken, lane_then, world = values.get("taken"), values.get("lane", lane), values.get("world", {})
    if type(taken) is not int or not 0 <= taken <= MAX_SAMPLES:
        raise StateError(
            f"the state of a worker has {str(taken)[:60]} as its number of samples; expected a "
            "number."
        )
    numbers = [lane_then, *(world.values() if isinstance(world, Mapping) else [None])]
    if not all(type(number) is int and 0 <= number <= MAX_SAMPLES for number in numbers):
        raise StateError(
            f"the state of a worker has lane {str(lane_then)[:20]} and world {str(world)[:80]}; "
            "expected numbers."
        )
    return WorkerPoint(start, taken, min(lane_then, world.get("workers", lane + 1) - 1), world)
