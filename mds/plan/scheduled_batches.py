"""Global batches of streams whose shares change: each has as many of a stream as the mixture says.

All are full, since a stream begins again when it has given everything. The samples of a global
batch lie in it stream by stream, and are taken from it in strides of about the golden ratio, the
same in every world: each rank gets every stream by its share, and a part of its batch does too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mds.plan.stream_batches import StreamBatches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mds.plan.global_batches import Lookup, PartitionSpec
    from mds.plan.mixture import Mixture

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
