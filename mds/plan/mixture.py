"""Mixture of streams along a run: how many samples of each stream the first global batches have.

Sample j of a stream is due where the integral of the stream's share passes j - 1/2, and a global
batch takes the samples that are due next, of equal ones that of the earlier stream first. So the
counts never fall, and those of any global batch are found alone, by bisection in time. Where shares
are changed while the training runs, what came before stays as it was: from then on the samples that
have not come yet are due by the changed integral.

All of it is integer arithmetic, so that every machine finds the same: a share is a multiple of
2**-31, the same throughout a global batch, and time is counted in samples of all streams. A call
costs about 1 us for a global batch and a stream where many are asked for at once, and 0.1 ms where
it is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mds.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]

SHARE_BITS = 31
ONE = 1 << SHARE_BITS  # the share of a stream that has everything
MAX_STEPS = 1 << 31
MAX_STREAMS = 1 << 12
_MASK = ONE - 1
_HALF = ONE >> 1
_AT_ONCE = 1 << 12  # samples due that are computed at once while a time is searched
_MAX_STAIRS = 1 << 20  # of a ramp; 200,000 global batches have one each


class ShareSpan(NamedTuple):
    """Shares from global batch ``first`` on, up to the next stretch.

    They go from ``begin`` to ``end`` in the course of ``length`` global batches, along a ``shape``,
    "linear" or "cosine"; ``length`` 0: they stay as at the beginning. Shares sum to ``ONE``.
    """

    first: int
    begin: tuple[int, ...]
    end: tuple[int, ...] = ()
    length: int = 0
    shape: str = "linear"


class _Change(NamedTuple):
    """Change of shares: what each stream has given, and the time by which that was due."""

    step: int
    counts: Ids
    time: int
    early: int


class Mixture:
    """Counts of each stream in the first global batches, of ``batch`` samples each.

    ``stretches`` ascend and begin at 0.
    """

    def __init__(self, stretches: Sequence[ShareSpan], batch: int) -> None:
        self.batch, self.streams = batch, len(stretches[0].begin)
        self._stretches = tuple(stretches)
        self.change = _Change(0, np.zeros(self.streams, np.int64), 0, 0)
        self._earlier: tuple[Mixture, ...] = ()  # the mixtures before each change
        self._starts = np.array([stretch.first for stretch in stretches], np.int64)
        self._begin = np.array([stretch.begin for stretch in stretches], np.int64)
        self._rise = np.array([np.subtract(s.end or s.begin, s.begin) for s in stretches], np.int64)
        self._ramps = [_Ramp(s.length, s.shape) if s.length else None for s in stretches]
        self._base = np.zeros_like(self._begin)
        for k in range(1, len(stretches)):
            length = self._starts[k : k + 1] - self._starts[k - 1]
            self._base[k] = self._base[k - 1] + self._since(k - 1, length)[0]

    def changed(self, step: int, shares: tuple[int, ...]) -> Mixture:
        """Return the same mixture up to a step, and other shares from there to the end."""
        mixture = Mixture(
            [*(s for s in self._stretches if s.first < step), ShareSpan(step, shares)], self.batch
        )
        counts, time = (each[0] for each in self._counts(np.array([step])))
        begin = step * self.batch
        early = np.maximum(counts - self._due(np.array([begin]))[0][0], 0).sum()
        mixture.change = _Change(step, counts, min(int(time), begin), int(early))
        mixture._earlier = (*self._earlier, self)
        return mixture

    def counts(self, steps: Ids) -> Ids:
        """Return the samples of each stream in the global batches before each of ``steps``.

        int64 (steps, streams). Raises PlanError for a step that no run reaches.
        """
        if len(steps) and not 0 <= int(steps.min()) <= int(steps.max()) < MAX_STEPS:
            raise PlanError(f"a schedule is for {MAX_STEPS:,} global batches at most.")
        if not self._earlier or not len(steps) or int(steps.min()) >= self.change.step:
            return self._counts(steps)[0]
        out = np.empty((len(steps), self.streams), np.int64)
        mixtures = [*self._earlier, self]
        which = np.searchsorted([m.change.step for m in mixtures[1:]], steps, side="right")
        for k in np.unique(which).tolist():
            mine = which == k
            out[mine] = mixtures[k].counts(steps[mine])
        return out

    def ranges(self, steps: Ids) -> tuple[Ids, Ids]:
        """Return the counts before and after the global batches ``steps``, which ascend."""
        number = len(steps)
        if number and int(steps[-1]) - int(steps[0]) == number - 1:
            # Each begins where the one before it ends.
            counts = self.counts(np.arange(steps[0], steps[-1] + 2))
            return counts[:-1], counts[1:]
        counts = self.counts(np.concatenate([steps, steps + 1]))
        return counts[:number], counts[number:]

    def _counts(self, steps: Ids) -> tuple[Ids, Ids]:
        """Return the counts, and the time up to which all that was due has come."""
        samples_before = steps * self.batch
        # What came before the change has come, whatever is due by now.
        _, base_counts, time, early = self.change
        # By a time t, t samples are due, give or take half a sample of each stream, and some came
        # early before the change.
        reach = self.streams // 2 + 2
        low, high = np.maximum(samples_before - reach - early, time), samples_before + reach
        width = int((high - low).max(initial=0))
        count_due = self._near(steps) if width < self.batch else self._due
        column = np.arange(len(steps))
        while width > 1:
            # A step with many times at once costs what one with a single time does.
            parts = max(min(width, _AT_ONCE // (len(steps) * self.streams)), 2)
            edges = low + (high - low) * np.arange(parts + 1)[:, None] // parts
            by_then = np.maximum(count_due(edges[1:-1])[0], base_counts).sum(axis=2)
            passed = (by_then <= samples_before).sum(axis=0)
            low, high = edges[passed, column], edges[passed + 1, column]
            width = int((high - low).max())
        by_now, distance, share = count_due(low)
        counts = np.maximum(by_now, base_counts)
        missing = samples_before - counts.sum(axis=1)
        incomplete = np.flatnonzero(missing)
        if len(incomplete):
            # Of the samples due within the next unit of time, those that are due first.
            distance, share = distance[incomplete], share[incomplete]
            late = (ONE - distance) / np.maximum(share, 1)
            late[(distance + share < ONE) | (by_now[incomplete] < base_counts)] = np.inf
            order = np.argsort(late, axis=1, kind="stable")
            place = np.empty_like(order)
            np.put_along_axis(place, order, np.arange(self.streams)[None], axis=1)
            counts[incomplete] += place < missing[incomplete, None]
        return counts, low

    def steps_of_turns(self, stream: int, turns: Ids) -> Ids:
        """Return the steps in which samples of a stream come, by their number since the beginning.

        MAX_STEPS - 1 for those that never do.
        """
        low, high = np.zeros(len(turns), np.int64), np.full(len(turns), MAX_STEPS - 1)
        while int((high - low).max(initial=0)) > 1:
            middle = (low + high) >> 1
            is_before = self.counts(middle)[:, stream] <= turns
            low, high = np.where(is_before, middle, low), np.where(is_before, high, middle)
        is_never = self.counts(high)[:, stream] <= turns
        return np.where(is_never, MAX_STEPS - 1, low)

    def steps_of(self, stream: int, samples: int) -> int:
        """Return how many whole global batches so many samples of a stream suffice for."""
        return int(self.steps_of_turns(stream, np.array([samples]))[0])

    def integrals(self, steps: Ids) -> NDArray[np.float64]:
        """Return the samples that the shares of each stream amount to before steps."""
        return self.integral(steps).astype(np.float64) * (self.batch / ONE)

    def shares(self, step: int) -> list[float]:
        """Return the share of each stream in the global batch ``step``."""
        first, last = self.integral(np.array([step, step + 1]))
        return [value / ONE for value in (last - first).tolist()]

    def _due(self, times: Ids) -> tuple[Ids, Ids, Ids]:
        """Return the samples due by times, the way to the next (of ONE), and the shares there."""
        step, offset = np.divmod(times, self.batch)
        flat, shape = step.reshape(-1), (*step.shape, self.streams)
        integrals = self.integral(flat).reshape(shape)
        share = self.integral(flat + 1).reshape(shape) - integrals
        return _due(self.batch, integrals, offset[..., None], share)

    def _near(self, steps: Ids) -> _Near:
        """Return the same for times in the global batches next to the begin of ``steps``."""
        around = self.integral(np.concatenate([np.maximum(steps - 1, 0), steps, steps + 1]))
        before, current, after = around.reshape(3, len(steps), self.streams)
        return _Near(self.batch, steps * self.batch, current, current - before, after - current)

    def integral(self, steps: Ids) -> Ids:
        """Return the integrals of the shares before steps, (steps, streams), in ONEs."""
        stretch = np.searchsorted(self._starts, steps, side="right") - 1
        if len(stretch) and int(stretch.min()) == int(stretch.max()):
            k = int(stretch[0])
            integrals: Ids = self._base[k] + self._since(k, steps - self._starts[k])
            return integrals
        out = np.empty((len(steps), self.streams), np.int64)
        for k in np.unique(stretch).tolist():
            mine = stretch == k
            out[mine] = self._base[k] + self._since(k, steps[mine] - self._starts[k])
        return out

    def _since(self, k: int, length: Ids) -> Ids:
        """Return what span k adds in so many global batches."""
        added: Ids = self._begin[k] * length[:, None]
        ramp = self._ramps[k]
        if ramp is not None:
            risen = ramp.integral(length)[:, None]
            change = self._rise[k]
            added += change * (risen >> SHARE_BITS) + (change * (risen & _MASK) >> SHARE_BITS)
        return added


class _Near(NamedTuple):
    """Samples due by times within a global batch of given ones, as `Mixture._due` finds them."""

    batch: int
    at: Ids
    here: Ids
    before: Ids
    after: Ids

    def __call__(self, times: Ids) -> tuple[Ids, Ids, Ids]:
        offset = (times - self.at)[..., None]
        share = np.where(offset < 0, self.before, self.after)
        return _due(self.batch, self.here, offset, share)


def _due(batch: int, integrals: Ids, offset: Ids, share: Ids) -> tuple[Ids, Ids, Ids]:
    """Return the samples due so many units of time after, or before, a place."""
    remainder = batch * (integrals & _MASK) + offset * share + _HALF
    return batch * (integrals >> SHARE_BITS) + (remainder >> SHARE_BITS), remainder & _MASK, share


class _Ramp:
    """Integral of a rise from 0 to 1 in ``length`` global batches, in units of ONE.

    It rises in stairs, one a global batch unless there are very many.
    """

    def __init__(self, length: int, shape: str) -> None:
        self._length = length
        self._width = -(-length // _MAX_STAIRS)
        edges = np.append(np.arange(0, length, self._width), length)
        middle = (edges[1:] + edges[:-1]) / (2.0 * length)
        height = middle if shape == "linear" else 0.5 + 0.5 * _sine(np.pi * (middle - 0.5))
        self._heights = np.clip(np.rint(height * ONE), 0, ONE).astype(np.int64)
        self._before = np.concatenate([[0], np.cumsum(self._heights * np.diff(edges))])

    def integral(self, length: Ids) -> Ids:
        """Return the integral from the beginning; after the end the value stays at 1."""
        inside = np.minimum(length, self._length)
        stair = np.minimum(inside // self._width, len(self._heights) - 1)
        integrals: Ids = self._before[stair] + self._heights[stair] * (inside - stair * self._width)
        integrals += (length - inside) * ONE
        return integrals


def _sine(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sine from -pi/2 to pi/2 by sums and products, equal to the bit on all machines."""
    square = angle * angle
    series = np.zeros_like(angle)
    for k in range(23, 1, -2):
        series = (1.0 - series) * square / (k * (k - 1.0))
    return angle * (1.0 - series)
