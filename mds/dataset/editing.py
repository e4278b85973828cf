"""Changes of the order while a training runs; each holds from a step on, the same on all ranks.

What was prefetched does not matter: a loader lets go of batches that were made beforehand when the
step has come. These functions are methods of Samples.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mds.arguments import shown
from mds.dataset.steps import TrainingSteps
from mds.errors import ConfigError
from mds.plan.edits import MAX_DROPPED, MAX_WHY, check_reserve, drops_of, too_many_dropped
from mds.plan.mixture import MAX_STEPS
from mds.plan.pack_schedule import first_shares
from mds.plan.schedule import check_weights
from mds.plan.state import MAX_EDITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mds.dataset.order_state import OrderState
    from mds.dataset.shard_map import ShardMap
    from mds.dataset.worker_epoch import WorkerEpoch
    from mds.plan.position import Cursor, Position
    from mds.world import World


class RunningLoop(Protocol):
    """What is asked of a loader's iteration; of one of ours, not of torch's."""

    @property
    def is_under_way(self) -> bool:
        """Whether batches were given and more may come."""

    @property
    def position(self) -> Position | None:
        """Position of all ranks after the last batch that was given."""

    @property
    def is_exact(self) -> bool:
        """Whether a change can begin with any of its batches."""
        ...

    def change_at(self, epoch: int, sample: int) -> None:
        """Go by the changed order from that sample on."""


class EditableDataset(Protocol):
    """What these functions need of a dataset."""

    _loop: Callable[[], RunningLoop | None]
    _order: OrderState
    _running: WorkerEpoch | None
    _shards: ShardMap
    packing: Any

    def _world(self) -> World: ...


def no_loop() -> None:
    """No loader has begun an iteration."""


def set_weights(
    self: EditableDataset, weights: Mapping[str, float], *, at_step: int | None = None
) -> int:
    """Give the streams of a schedule other weights; returns the step from which they hold.

    - ``weights`` (Mapping[str, float]): By name, as in a knot of the Schedule.
    - ``at_step`` (int | None, default None, steps): Global batch since the training began from
      which they hold; None is the next one that the loader gives.

    They hold to the end: what the schedule has for later steps, and weights that were set for later
    ones, are set aside. In a run of packs the window of documents that is under way comes first,
    and the step that is returned has the first pack behind it. Call it on every rank after the same
    step with the same arguments; nothing is sent between ranks, and different ones show in the
    order hash. Without a StreamingDataLoader under way, weights hold from the next epoch on. They
    are part of the state.

    Raises ConfigError for weights that make no sense, a step that is over, and without a schedule.

    >>> step = dataset.set_weights({"web": 0.2, "math": 0.8})  # doctest: +SKIP
    """
    order = self._order
    if order.schedule is None:
        raise ConfigError(
            "set_weights() changes the weights of a schedule, and this dataset has none: give "
            "schedule=Schedule({0: {...}})."
        )
    checked = dict(check_weights(weights, "of set_weights()"))
    order.schedule.check_names(set(checked))
    step = _step(self, at_step)
    changed = order.schedule.with_weights(step, checked)
    first_shares(changed, order.weights.choose)  # refuses what gives no samples
    edit: dict[str, Any] = {"step": step, "weights": checked}
    if self.packing is not None:
        edit["window"], step = _next_window(self, step)
    _edit(self, [edit])
    return step


def drop(
    self: EditableDataset, samples: Iterable[int], why: str = "", *, at_step: int | None = None
) -> int:
    """Let samples never come again; returns the step from which that holds.

    - ``samples`` (Iterable[int]): Their numbers, as ``dataset[number]`` takes them.
    - ``why`` (str, default ''): A few words, kept in the state.
    - ``at_step`` (int | None, default None, steps): Global batch since the training began from
      which they do not come; None is the next one that the loader gives.

    Another sample of the stream takes the place of each: the next of a reserve, which is the stream
    in an order of its own. It may come by itself in the epoch, too. All other places stay as they
    are. At most half of a stream can be dropped. Call it on every rank after the same step with the
    same arguments; nothing is sent between ranks, and different ones show in the order hash.
    Without a StreamingDataLoader under way it holds from the next epoch on. The state has it.

    Raises ConfigError for numbers that no sample has, for more than can be dropped, and for a step
    that is over.

    >>> step = dataset.drop([77123, 88012], why="gibberish")  # doctest: +SKIP
    """
    ids = _numbers(samples, self._shards.num_samples)
    _check_why(why)
    training = TrainingSteps(self)
    if at_step is None:
        epoch, inside = training.next_at(*_earliest(self))
        step, place = training.before(epoch) + inside, inside * training.batch
    else:
        step = _step(self, at_step)
        epoch, place = training.place_of(step, _earliest(self)[0])
    edit: dict[str, Any] = {"epoch": epoch, "from": place, "drop": ids, "why": why}
    if ids and self.packing is not None:
        edit["windows"] = _windows(self, epoch, place)
    if ids:
        every = drops_of([*self._order.epochs.edits, edit])
        check_reserve(every, self._order.samples_by_stream())
        _edit(self, [edit])
    return step


def skip(dataset: EditableDataset, steps: Any) -> int:
    """Let global batches never come; the step that comes instead (``loader.skip``)."""
    if not isinstance(steps, range) or steps.step != 1 or not steps or steps.start < 0:
        raise ConfigError(
            f"skip(steps={shown(steps)}): give the global batches since the training began that "
            "shall not come, as range(12300, 12400)."
        )
    if steps.stop > MAX_STEPS:
        raise ConfigError(
            f"skip(steps={shown(steps)}): a training has at most {MAX_STEPS:,} steps. Give a range "
            "that ends there or before."
        )
    training, begun = TrainingSteps(dataset), _earliest(dataset)
    earliest = training.step_at(*begun)
    if steps.start < earliest:
        raise ConfigError(
            f"skip(steps={steps}): step {earliest - 1} was the last that came, so steps can be "
            f"skipped from {earliest} on. To leave out what came, load an earlier state first."
        )
    edits: list[dict[str, Any]] = []
    epoch, place = training.place_of(steps.start, begun[0])
    last_epoch, last = training.place_of(steps.stop, begun[0])
    while (epoch, place) < (last_epoch, last) and len(edits) <= MAX_EDITS:
        end = last if epoch == last_epoch else training.in_epoch(epoch) * training.batch
        edits.append({"epoch": epoch, "from": place, "skip": end - place})
        epoch, place = epoch + 1, 0
    if len(edits) > MAX_EDITS:
        raise ConfigError(
            f"skip(steps={steps}): these are steps of more than {MAX_EDITS:,} epochs, and a state "
            "has an entry for each. Skip fewer, or begin a new run."
        )
    _edit(dataset, edits)
    return training.step_at(last_epoch, last)


def _next_window(dataset: EditableDataset, step: int) -> tuple[int, int]:
    """Return the first window of the run that has not begun at a step, and the step it is in."""
    training = TrainingSteps(dataset)
    epoch, place = training.place_of(step, _earliest(dataset)[0])
    packs = training.packs(epoch)
    first = packs.scheduled.first if packs.scheduled is not None else 0
    cursor = _cursor(dataset, epoch, place)
    window, pack = cursor.windows[0] if cursor is not None else (0, 0)
    if not pack:
        return first + window, step
    end = place + len(packs.load(0, window)) - pack
    is_last = window + 1 >= int(packs.windows[0])
    inside = -(-end // training.batch) if is_last else end // training.batch
    return first + window + 1, training.before(epoch) + inside


def _windows(dataset: EditableDataset, epoch: int, place: int) -> list[int]:
    """Return for each canonical node the first window that has not begun at a place."""
    cursor = _cursor(dataset, epoch, place)
    return [window + bool(pack) for window, pack in cursor.windows] if cursor is not None else []


def _cursor(dataset: EditableDataset, epoch: int, place: int) -> Cursor | None:
    """Return the cursor of packs at a place, None at the beginning of an epoch."""
    if not place:
        return None
    loop, pending = dataset._loop(), dataset._order.epochs.pending
    running = loop.position if loop is not None else None
    for position in (pending.position if pending is not None else None, running):
        if position is not None and position[:2] == (epoch, place) and position.cursor is not None:
            return position.cursor
    return TrainingSteps(dataset).packs(epoch).table.cursor(place)


def _numbers(samples: Iterable[int], count: int) -> list[int]:
    """Sample numbers, ascending, each once, checked (ConfigError)."""
    given = np.asarray(None)
    if not isinstance(samples, (str, bytes, bytearray, memoryview)):
        # Else it is no iterable, or has lists of different lengths.
        with contextlib.suppress(TypeError, ValueError):
            # No more than are needed to tell that they are too many.
            few = itertools.islice(samples, MAX_DROPPED + 1)
            given = np.asarray(samples if isinstance(samples, np.ndarray) else [*few])
    if given.ndim != 1 or not (np.issubdtype(given.dtype, np.integer) or not given.size):
        raise ConfigError(
            f"drop() takes the numbers of samples, got {shown(samples)}. Write "
            "drop([77123, 88012])."
        )
    if len(given) > MAX_DROPPED and not isinstance(samples, np.ndarray):
        raise too_many_dropped(f"More than {MAX_DROPPED:,}")
    # Ascending, so that ranks agree on what takes the places where they were given a set.
    found: list[int] = np.unique(given.astype(np.int64)).tolist()
    wrong = [number for number in found if not 0 <= number < count]
    if wrong:
        raise ConfigError(
            f"drop(): there is no sample {wrong[0]}; the {count:,} samples are numbered from 0 "
            "through all streams."
        )
    return found


def _check_why(why: object) -> None:
    if not isinstance(why, str) or len(why) > MAX_WHY:
        raise ConfigError(
            f"why {str(why)[:60]!r} of drop() must be a text of at most {MAX_WHY} letters."
        )


def _edit(dataset: EditableDataset, edits: list[dict[str, Any]]) -> None:
    """Take note of edits, and let the loader that runs go by them."""
    epochs = dataset._order.epochs
    if len(epochs.edits) + len(edits) > MAX_EDITS:
        raise ConfigError(
            f"the order was changed {len(epochs.edits):,} times while the training ran, and "
            f"{MAX_EDITS:,} are the most: change more at once."
        )
    epochs.edit(edits)
    loop = dataset._loop()
    if loop is not None:
        for edit in edits:
            steps, is_step = TrainingSteps(dataset), "step" in edit
            place = steps.place_of(edit["step"]) if is_step else (edit["epoch"], edit["from"])
            loop.change_at(*place)


def _step(dataset: EditableDataset, at_step: Any) -> int:
    """The step from which a change holds. Raises ConfigError for one that has begun."""
    earliest = TrainingSteps(dataset).step_at(*_earliest(dataset))
    if at_step is None:
        return earliest
    if isinstance(at_step, np.integer):
        at_step = int(at_step)  # counters of trainers are of many kinds
    if type(at_step) is not int:
        raise ConfigError(
            f"at_step {shown(at_step)} is not a whole number: give the global batch since the "
            "training began from which the change holds, or leave at_step out for the next one."
        )
    if at_step < earliest:
        raise ConfigError(
            f"at_step {shown(at_step)}: the earliest step from which the order can be changed is "
            f"{earliest}. Steps count global batches since the training began."
        )
    if at_step >= MAX_STEPS:
        raise ConfigError(
            f"at_step {shown(at_step)}: a training has at most {MAX_STEPS:,} steps. Leave at_step "
            "out for the next one."
        )
    return at_step


def _earliest(dataset: EditableDataset) -> tuple[int, int]:
    """The epoch, and the place in it, from which the order can still be changed."""
    loop = dataset._loop()
    position = loop.position if loop is not None and loop.is_exact else None
    epochs = dataset._order.epochs
    if epochs.pending is not None:
        position = epochs.pending.position
    if position is None:
        # Workers of another kind of loader are ahead, so no change holds before they end.
        return epochs.next_epoch, 0
    return max(position.epoch, 0), position.place
