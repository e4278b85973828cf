"""Changes of the order while a training runs; each holds from a step on, the same on all ranks.

What was prefetched does not matter: a loader lets go of batches that were made beforehand when the
step has come. These functions are methods of Samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from mds.errors import ConfigError
from mds.plan.schedule import check_weights
from mds.plan.state import parse_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mds.dataset.order_state import OrderState
    from mds.dataset.worker_epoch import WorkerEpoch
    from mds.world import World


class RunningLoop(Protocol):
    """What is asked of a loader's iteration; of one of ours, not of torch's."""

    @property
    def position(self) -> tuple[int, int] | None:
        """The epoch, and the sample of all ranks that comes next."""

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
    ones, are set aside. Call it on every rank after the same step with the same arguments; nothing
    is sent between ranks, and different ones show in the order hash. Without a StreamingDataLoader
    under way, weights hold from the next epoch on. They are part of the state.

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
    changed.mixture(order.weights.choose, 1)  # refuses what gives no samples
    _edit(self, {"step": step, "weights": checked})
    return step


def begin_again(self: EditableDataset, epoch: int, sample: int) -> None:
    """Let the next iteration go on from a sample of all ranks, by the order as it is now."""
    order = self._order
    order.epochs.load(parse_state(order.state(self._world(), epoch, sample)))


def _edit(dataset: EditableDataset, edit: dict[str, Any]) -> None:
    """Take note of an edit, and let the loader that runs go by it."""
    dataset._order.epochs.edit(edit)
    loop = dataset._loop()
    if loop is not None:
        loop.change_at(*_place_of(dataset, edit["step"]))


def _step(dataset: EditableDataset, at_step: int | None) -> int:
    """The step from which a change holds. Raises ConfigError for one that has begun."""
    earliest = _earliest(dataset)
    if at_step is None:
        return earliest
    if type(at_step) is not int or at_step < earliest:
        raise ConfigError(
            f"at_step {at_step!r}: the earliest step from which the order can be changed is "
            f"{earliest}. Steps count global batches since the training began."
        )
    return at_step


def _earliest(dataset: EditableDataset) -> int:
    """The first step of the training that can still be changed."""
    loop = dataset._loop()
    place = loop.position if loop is not None and loop.is_exact else None
    order = dataset._order
    pending = order.epochs.pending
    if pending is not None:
        place = max(pending.epoch, 0), pending.sample_in_epoch
    elif place is None:
        # Workers of whatever iterates went ahead by themselves, so nothing holds before they end.
        place = order.epochs.next_epoch, 0
    epoch, sample = place
    batch, steps = _sizes(dataset)
    return epoch * steps + -(-sample // batch)


def _place_of(dataset: EditableDataset, step: int) -> tuple[int, int]:
    """The epoch, and the sample in it, at which a step begins."""
    batch, steps = _sizes(dataset)
    epoch, inside = divmod(step, steps)
    return epoch, inside * batch


def _sizes(dataset: EditableDataset) -> tuple[int, int]:
    """Samples of a global batch, and global batches of an epoch."""
    order = dataset._order
    batch = order.spec.batch() * dataset._world().num_ranks
    return batch, max(-(-order.weights.epoch_size // batch), 1)
