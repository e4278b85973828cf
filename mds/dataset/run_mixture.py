"""The mixture of a run with a schedule, from its state: as it was and as it will be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mds.errors import StateError
from mds.plan.pack_schedule import PackedRun, TokenMixture

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mds.dataset.rewind import Rewind
    from mds.plan.mixture import Mixture


class RunMixture(NamedTuple):
    """Mixture of a run: names of the streams, samples of a pass, and counts by any step.

    ``now``: the step that comes next. ``unit``: what steps are; of a run of packs windows.
    """

    names: tuple[str, ...]
    samples: tuple[int, ...]
    mixture: Mixture
    until: int
    now: int
    unit: str

    def amounts(self, steps: NDArray[np.int64]) -> NDArray[Any]:
        """Return the samples, or about the tokens of packs, before each of ``steps``."""
        mixture = self.mixture
        return mixture.tokens(steps) if isinstance(mixture, TokenMixture) else mixture.counts(steps)


def read_mixture(rewind: Rewind, until: int | None = None) -> RunMixture:
    """Return the mixture of a run up to step ``until``.

    Without it up to a quarter beyond the last change, the step of the state, or an epoch. Raises
    StateError for a run without a schedule.
    """
    epoch, now = rewind.position
    order = rewind.order(epoch)
    run, scheduled = order.schedule, order.scheduled
    if run is None or scheduled is None:
        raise StateError(
            "the state is of a run without a schedule: the shares of its streams are those of "
            "their sizes, repeat= and choose=, and stay."
        )
    choose, batch = tuple(map(int, order.choose)), order.shape.global_batch
    if isinstance(run, PackedRun):
        cursor = rewind.point.position.cursor
        now = scheduled.first + (cursor.windows[0][0] if cursor is not None else 0)
    if until is None:
        last = max([*(span.first for span in run.stretches(choose, batch)), *dict(run.live)])
        until = max(last + last // 4, now, run.epoch_steps(order.epoch_size, batch), 1)
    return RunMixture(run.names, choose, scheduled.mixture, until, now, run.unit)
