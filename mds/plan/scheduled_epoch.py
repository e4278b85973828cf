"""The part of a scheduled training that one epoch is: which global batches, and what they take."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError
from mds.plan.mixture import MAX_STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mds.plan.mixture import Mixture
    from mds.plan.schedule import ScheduledRun


@dataclasses.dataclass(frozen=True, eq=False)
class ScheduledEpoch:
    """Global batches ``first`` to ``last`` - 1 of a run, or windows of a run with packs.

    ``largest_shares``: of each stream, in the schedule as it was written.
    """

    mixture: Mixture
    first: int
    last: int
    largest_shares: tuple[float, ...]

    def turns(self) -> list[tuple[int, int]]:
        """Return the range of turns that the epoch takes of each stream."""
        first, last = self.mixture.counts(np.array([self.first, self.last])).tolist()
        return list(zip(first, last, strict=True))


def scheduled_epoch(
    run: ScheduledRun, samples: Sequence[int], batch: int, epoch: int, epoch_size: int
) -> ScheduledEpoch:
    """Return epoch ``epoch`` of a run, of ``epoch_size`` samples, ``batch`` a global batch.

    Raises PlanError when a stream would give more than it may.
    """
    mixture, steps = run.mixture(samples, batch), run.epoch_steps(epoch_size, batch)
    first, last = epoch * steps, (epoch + 1) * steps
    if last >= MAX_STEPS:
        raise PlanError(
            f"epoch {epoch} of {steps:,} {run.unit}: a schedule is for {MAX_STEPS:,} {run.unit}."
        )
    limits = run.limits(samples)
    if limits is not None:
        ends = [mixture.steps_of(i, limit) for i, limit in enumerate(limits)]
        end = min(ends)
        if end < last and run.schedule.spent != "stop":
            name, limit = run.names[ends.index(end)], limits[ends.index(end)]
            passes = limit // max(samples[ends.index(end)], 1)
            unit = run.unit[:-1]
            raise PlanError(
                f"epoch {epoch} is the {run.unit} {first:,} to {last - 1:,} of the training, and "
                f"stream {name!r} has given all it may, {passes} pass{'es' * (passes > 1)}, after "
                f"{unit} {end:,}: give it a smaller weight, a shorter epoch_size or more "
                "max_passes, or spent='stop' to end there."
            )
        last = min(last, end)
        first = min(first, last)
    return ScheduledEpoch(mixture, first, last, tuple(run.largest_shares(samples)))
