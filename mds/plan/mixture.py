"""Mixture of streams along a run: the samples of each stream in the first global batches.

Sample j of a stream is *due* at the time at which the integral of the stream's share passes
j - 1/2. Time counts the samples of all streams. A global batch takes the samples that are due next;
of samples that are due at the same time, that of the earlier stream comes first::

    web     share 3/4    due at  2/3  2  10/3  14/3  6 ...
    math    share 1/4    due at       2              6 ...
    order                        web  web math  web  web  web math ...

So the count of a stream never falls, and the counts before any global batch are found alone, by
bisection in time. If the shares are changed while the training runs, what came before stays as it
was: from then on the remaining samples are due by the changed integral.

All of it is integer arithmetic, so that every machine computes the same: a share is a multiple of
2**-31, and stays the same throughout a global batch. A call takes about 1 us for a global batch and
a stream if many are asked for at once, and 0.1 ms for a single batch.
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
ONE = 1 << SHARE_BITS  # share of a stream that gives all samples
MAX_STEPS = 1 << 31
MAX_STREAMS = 1 << 12
_MASK = ONE - 1
_HALF = ONE >> 1
_TIMES_AT_ONCE = 1 << 12  # times at which due samples are computed at once in a search
_MAX_STAIRS = 1 << 20  # of a ramp; shorter ramps have a stair for each global batch


class ShareSpan(NamedTuple):
    """Shares of all streams from a global batch on, up to the next span.

    Attributes:
        first: First global batch.
        begin: Share of each stream at the beginning, in units of 1 / ``ONE``; the sum is ``ONE``.
        end: Shares after ``length`` global batches.
        length: Global batches in which shares go from ``begin`` to ``end``; 0 keeps them.
        shape: Curve on which they go, "linear" or "cosine".
    """

    first: int
    begin: tuple[int, ...]
    end: tuple[int, ...] = ()
    length: int = 0
    shape: str = "linear"


class _Change(NamedTuple):
    """Change of the shares while a training runs.

    Attributes:
        step: Global batch from which the changed shares hold.
        counts: Samples that each stream has given before.
        time: Time up to which all due samples have come before.
        early: Samples that have come before although they are due only later.
    """

    step: int
    counts: Ids
    time: int
    early: int


class Mixture:
    """Samples of each stream in the first n global batches of a run, for any n.

    Args:
        spans: Shares of the streams; spans ascend, and the first begins at 0.
        batch: Samples of a global batch.
    """

    def __init__(self, spans: Sequence[ShareSpan], batch: int) -> None:
        self.batch, self.streams = batch, len(spans[0].begin)
        self._spans = tuple(spans)
        self.change = _Change(0, np.zeros(self.streams, np.int64), 0, 0)
        self._earlier: tuple[Mixture, ...] = ()  # mixtures before each change
        # By span: first global batch, shares there, change of the shares up to its end, curve of
        # the change (None for constant shares), and the integral of the shares before the span.
        self._starts = np.array([span.first for span in spans], np.int64)
        self._begin = np.array([span.begin for span in spans], np.int64)
        self._rise = np.array([np.subtract(s.end or s.begin, s.begin) for s in spans], np.int64)
        self._ramps = [_Ramp(s.length, s.shape) if s.length else None for s in spans]
        self._base = np.zeros_like(self._begin)
        for k in range(1, len(spans)):
            length = self._starts[k : k + 1] - self._starts[k - 1]
            self._base[k] = self._base[k - 1] + self._since(k - 1, length)[0]

    def changed(self, step: int, shares: tuple[int, ...]) -> Mixture:
        """Return a mixture that is the same before a step and has other shares from it on.

        ``step`` is a global batch of the run; ``shares`` are in units of 1 / ``ONE``.
        """
        mixture = Mixture(
            [*(s for s in self._spans if s.first < step), ShareSpan(step, shares)], self.batch
        )
        counts, time = (each[0] for each in self._counts(np.array([step])))
        begin = step * self.batch
        # Samples beyond those that are due by the new shares: they are not taken again.
        early = np.maximum(counts - self._due(np.array([begin]))[0][0], 0).sum()
        mixture.change = _Change(step, counts, min(int(time), begin), int(early))
        mixture._earlier = (*self._earlier, self)
        return mixture

    def counts(self, steps: Ids) -> Ids:
        """Return the samples of each stream in the global batches before each of ``steps``.

        They are int64 of shape (steps, streams). Raises PlanError for a step beyond `MAX_STEPS`.
        """
        if len(steps) and not 0 <= int(steps.min()) <= int(steps.max()) < MAX_STEPS:
            raise PlanError(f"a schedule is for {MAX_STEPS:,} global batches at most.")
        if not self._earlier or not len(steps) or int(steps.min()) >= self.change.step:
            return self._counts(steps)[0]
        # A mixture counts up to the next change, and the last one from there on.
        out = np.empty((len(steps), self.streams), np.int64)
        mixtures = [*self._earlier, self]
        indexes = np.searchsorted([m.change.step for m in mixtures[1:]], steps, side="right")
        for index in np.unique(indexes).tolist():
            mine = indexes == index
            out[mine] = mixtures[index].counts(steps[mine])
        return out

    def ranges(self, steps: Ids) -> tuple[Ids, Ids]:
        """Return the counts of samples before and after each of ``steps``, which ascend.

        Both are int64 of shape (steps, streams).
        """
        number = len(steps)
        if number and int(steps[-1]) - int(steps[0]) == number - 1:
            # Each begins where the one before it ends.
            counts = self.counts(np.arange(steps[0], steps[-1] + 2))
            return counts[:-1], counts[1:]
        counts = self.counts(np.concatenate([steps, steps + 1]))
        return counts[:number], counts[number:]

    def _counts(self, steps: Ids) -> tuple[Ids, Ids]:
        """Return the counts before each step, and the time up to which all due samples have come.

        The counts are int64 of shape (steps, streams), the times int64 of shape (steps,). Bisection
        finds the last time at which no more samples are due than have come before the step. The
        samples that are still missing are those due next.
        """
        samples_before = steps * self.batch
        # What came before the last change stays, whatever is due by now.
        _, base_counts, time, early = self.change
        # At time t, t samples are due, give or take half a sample of each stream, and some have
        # come early before the change.
        reach = self.streams // 2 + 2
        low, high = np.maximum(samples_before - reach - early, time), samples_before + reach
        width = int((high - low).max(initial=0))
        # The function of nearby times is quicker.
        count_due = self._due_near(steps) if width < self.batch else self._due
        column = np.arange(len(steps))
        while width > 1:
            # Many times cost about as much as a single one.
            parts = max(min(width, _TIMES_AT_ONCE // (len(steps) * self.streams)), 2)
            edges = low + (high - low) * np.arange(parts + 1)[:, None] // parts
            by_then = np.maximum(count_due(edges[1:-1])[0], base_counts).sum(axis=2)
            passed = (by_then <= samples_before).sum(axis=0)
            low, high = edges[passed, column], edges[passed + 1, column]
            width = int((high - low).max())
        by_now, progress, share = count_due(low)
        counts = np.maximum(by_now, base_counts)
        missing = samples_before - counts.sum(axis=1)
        incomplete = np.flatnonzero(missing)
        if len(incomplete):
            # The missing samples are due within the next unit of time: take the earliest. A stream
            # has none to give if it reaches no next sample by then, or had come early before.
            progress, share = progress[incomplete], share[incomplete]
            time_to_next = (ONE - progress) / np.maximum(share, 1)
            has_none = (progress + share < ONE) | (by_now[incomplete] < base_counts)
            time_to_next[has_none] = np.inf
            order = np.argsort(time_to_next, axis=1, kind="stable")
            rank = np.empty_like(order)  # of each stream in this order: the inverse permutation
            np.put_along_axis(rank, order, np.arange(self.streams)[None], axis=1)
            counts[incomplete] += rank < missing[incomplete, None]
        return counts, low

    def steps_of_samples(self, stream: int, sample_numbers: Ids) -> Ids:
        """Return the steps in which samples of a stream come, by bisection of `counts`.

        ``sample_numbers`` count the samples of the stream since the training began. The step is
        MAX_STEPS - 1 for samples that never come.
        """
        low = np.zeros(len(sample_numbers), np.int64)
        high = np.full(len(sample_numbers), MAX_STEPS - 1)
        while int((high - low).max(initial=0)) > 1:
            middle = (low + high) >> 1
            is_before = self.counts(middle)[:, stream] <= sample_numbers
            low, high = np.where(is_before, middle, low), np.where(is_before, high, middle)
        never_comes = self.counts(high)[:, stream] <= sample_numbers
        return np.where(never_comes, MAX_STEPS - 1, low)

    def steps_of(self, stream: int, samples: int) -> int:
        """Return the number of whole global batches for which so many samples of a stream last."""
        return int(self.steps_of_samples(stream, np.array([samples]))[0])

    def integrals(self, steps: Ids) -> NDArray[np.float64]:
        """Return how many samples of each stream are due before each step, with their fractions.

        They are float64 of shape (steps, streams).
        """
        return self.integral(steps).astype(np.float64) * (self.batch / ONE)

    def shares(self, step: int) -> list[float]:
        """Return the share of each stream in the global batch ``step``."""
        first, last = self.integral(np.array([step, step + 1]))
        return [value / ONE for value in (last - first).tolist()]

    def _due(self, times: Ids) -> tuple[Ids, Ids, Ids]:
        """Return three arrays for times: samples due, progress to the next one, and shares.

        Each has the shape of ``times`` and a dimension for streams. Progress is in units of
        1 / ONE sample.
        """
        # A unit of time is a sample of all streams, so a global batch lasts ``batch`` units.
        step, offset = np.divmod(times, self.batch)
        flat, shape = step.reshape(-1), (*step.shape, self.streams)
        integrals = self.integral(flat).reshape(shape)
        share = self.integral(flat + 1).reshape(shape) - integrals
        return _due(self.batch, integrals, offset[..., None], share)

    def _due_near(self, steps: Ids) -> _DueNear:
        """Return the function `_due` for times less than a global batch from those of ``steps``."""
        around = self.integral(np.concatenate([np.maximum(steps - 1, 0), steps, steps + 1]))
        before, current, after = around.reshape(3, len(steps), self.streams)
        return _DueNear(self.batch, steps * self.batch, current, current - before, after - current)

    def integral(self, steps: Ids) -> Ids:
        """Return the sum of the shares of the global batches before each step.

        It is int64 of shape (steps, streams), in units of 1 / ``ONE``.
        """
        spans = np.searchsorted(self._starts, steps, side="right") - 1
        if len(spans) and int(spans.min()) == int(spans.max()):
            k = int(spans[0])
            integrals: Ids = self._base[k] + self._since(k, steps - self._starts[k])
            return integrals
        out = np.empty((len(steps), self.streams), np.int64)
        for k in np.unique(spans).tolist():
            mine = spans == k
            out[mine] = self._base[k] + self._since(k, steps[mine] - self._starts[k])
        return out

    def _since(self, k: int, length: Ids) -> Ids:
        """Return the integral of the shares over the first ``length`` global batches of span k.

        It is int64 of shape (len(length), streams), in units of 1 / ``ONE``.
        """
        added: Ids = self._begin[k] * length[:, None]
        ramp = self._ramps[k]
        if ramp is not None:
            risen = ramp.integral(length)[:, None]
            change = self._rise[k]
            # change * risen / ONE, rounded down, in two parts: the product may exceed 64 bits.
            added += change * (risen >> SHARE_BITS) + (change * (risen & _MASK) >> SHARE_BITS)
        return added


class _DueNear(NamedTuple):
    """Function `Mixture._due` for times near the beginnings of known global batches.

    Attributes:
        batch: Samples of a global batch.
        begin: Time at which each global batch begins.
        integrals: Integrals of the shares at these times.
        shares_before, shares: Shares in the global batch before, and in the global batch itself.
    """

    batch: int
    begin: Ids
    integrals: Ids
    shares_before: Ids
    shares: Ids

    def __call__(self, times: Ids) -> tuple[Ids, Ids, Ids]:
        """Return samples due, progress and shares as `Mixture._due` does.

        ``times`` has the shape (steps,) or (n, steps), each time near the beginning of its step.
        """
        offset = (times - self.begin)[..., None]
        share = np.where(offset < 0, self.shares_before, self.shares)
        return _due(self.batch, self.integrals, offset, share)


def _due(batch: int, integrals: Ids, offset: Ids, share: Ids) -> tuple[Ids, Ids, Ids]:
    """Return the samples due at a time, the progress to the next one, and the shares.

    The samples due are round((batch * integrals + offset * share) / ONE). Progress is in units of
    1 / ONE sample.

    Args:
        batch: Samples of a global batch.
        integrals: Integrals of the shares before the global batch near the time.
        offset: Time since the beginning of this global batch, negative before it.
        share: Shares at the time, in units of 1 / ONE.
    """
    # In two parts, since the product of batch and integral may exceed 64 bits.
    remainder = batch * (integrals & _MASK) + offset * share + _HALF
    return batch * (integrals >> SHARE_BITS) + (remainder >> SHARE_BITS), remainder & _MASK, share


class _Ramp:
    """Integral of a rise from 0 to ``ONE`` in ``length`` global batches.

    The rise has stairs, one for each global batch unless there are very many.

    Args:
        length: Number of global batches.
        shape: Curve of the rise, "linear" or "cosine".
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
        """Return the integral over the first ``length`` global batches, int64, for each length.

        After the end of the ramp the value stays at ``ONE``.
        """
        inside = np.minimum(length, self._length)
        stair = np.minimum(inside // self._width, len(self._heights) - 1)
        integrals: Ids = self._before[stair] + self._heights[stair] * (inside - stair * self._width)
        integrals += (length - inside) * ONE
        return integrals


def _sine(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sine of angles from -pi/2 to pi/2, by a series.

    Sums and products give the same bits on all machines, which `numpy.sin` does not.
    """
    square = angle * angle
    series = np.zeros_like(angle)
    for k in range(23, 1, -2):
        series = (1.0 - series) * square / (k * (k - 1.0))
    return angle * (1.0 - series)
