"""Epochs and global batches of streams whose shares change, by the counts of a mixture.

All batches are full, since a stream begins again when all its samples have come. The samples of a
global batch are arranged stream by stream, and taken in strides of about the golden ratio, the same
in every world: each rank gets every stream by its share, and so does each part of its batch.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError
from mds.plan.mixture import MAX_STEPS
from mds.plan.stream_batches import StreamBatches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mds.plan.global_batches import Lookup, PartitionSpec
    from mds.plan.mixture import Mixture
    from mds.plan.schedule import ScheduledRun

    Ids = NDArray[np.int64]


class ScheduledBatches(StreamBatches):
    """Global batches ``first`` to ``last`` - 1 of a run.

    There is one lookup, from streams and turns (`mds.plan.stream_passes`) to sample ids.
    """

    def __init__(self, mixture: Mixture, first: int, last: int, spec: PartitionSpec) -> None:
        self._mixture, self._begin, self._canonical = mixture, first, spec.canonical
        size = mixture.batch
        stride = stride_of(size)
        self._places = np.arange(size, dtype=np.int64) * stride % size
        self._back = pow(stride, -1, size) if size > 1 else 0
        super().__init__(last - first, spec)

    def marks(self, steps: Ids, slots: Ids) -> Ids:
        """Return the number of the sample in the epoch."""
        first = self._gaps.places(steps)[:, None] * self.shape.global_batch
        return first + self.shape.deal(slots)

    def _fill(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        positions = self._positions(steps + self._begin, self._places[self.shape.deal(slots)])
        return lookups[0](positions).reshape(len(steps), len(slots))

    def _positions(self, steps: Ids, places: Ids) -> Ids:
        """Return streams and turns of places in ascending steps of the run, step after step."""
        streams, size = self._mixture.streams, self._mixture.batch
        begin, end = self._mixture.ranges(steps)
        ends = (end - begin).cumsum(axis=1)
        row = np.arange(len(steps)) * size
        numbers = (places + row[:, None]).reshape(-1)
        lines = (ends + row[:, None]).reshape(-1)
        lines_of = lines.searchsorted(numbers, side="right")
        # A stream's first place in the batch is where the one before it ends.
        shift = end.reshape(-1) - lines
        out = np.empty((2, len(numbers)), np.int64)
        np.remainder(lines_of, streams, out=out[0])
        np.add(shift[lines_of], numbers, out=out[1])
        return out

    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        del stream  # one order has all of them
        parts = [
            self._find_turns(of, positions[1][positions[0] == of])
            for of in np.unique(positions[0]).tolist()
        ]
        steps, slots = zip(*parts, strict=True) if parts else ([np.zeros(0, np.int64)],) * 2
        return np.concatenate(steps), np.concatenate(slots)

    def _find_turns(self, stream: int, turns: Ids) -> tuple[Ids, Ids]:
        step = self._mixture.steps_of_turns(stream, turns)
        counts = self._mixture.counts(np.concatenate([step, step + 1]))
        begin, end = counts.reshape(2, len(step), self._mixture.streams)
        first = np.cumsum(end - begin, axis=1)[:, stream] - (end - begin)[:, stream]
        place = first + turns - begin[:, stream]
        number = place * self._back % self._mixture.batch
        return step - self._begin, self.shape.dealt(number)


def stride_of(size: int) -> int:
    """Return the number nearest to ``size`` times the golden ratio without a common factor."""
    ideal = size * (math.sqrt(5) - 1) / 2
    near = round(ideal)
    candidates = (near + sign * k for k in range(size + 1) for sign in (1, -1))
    return next((c for c in candidates if c > 0 and math.gcd(c, size) == 1), 1)


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
