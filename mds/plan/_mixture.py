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

A share stays the same throughout a global batch, or *step*. So the *integral* of a share before a
step is the sum of the shares of all earlier steps, and ``batch`` times as many samples of the
stream are due when the step begins. With a share of 1/4 and global batches of 8 samples::

    step        0    1    2    3
    time        0    8   16   24      at which the step begins
    integral    0   1/4  2/4  3/4
    due         0    2    4    6      samples of the stream

All of it is integer arithmetic, so that every machine computes the same: shares and integrals are
in units of 1 / ``ONE`` = 2**-31. A call takes about 1 us for a global batch and a stream if many
are asked for at once, and 0.1 ms for a single batch.
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

    By rounding, and after earlier changes, some streams have given samples before the change that
    are due only later. These *early* samples are not given again when they are due.

    Attributes:
        step: Global batch from which the changed shares hold.
        counts: Samples that each stream has given before this step, int64 (streams,).
        time: Latest time at which all samples that are due have been given before this step.
        early: Number of early samples of all streams.
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

    Attributes:
        streams: Number of streams.
        change: Last change of the shares, or one at step 0 if there was none.
        earlier: Mixtures before each change.
    """

    def __init__(self, spans: Sequence[ShareSpan], batch: int) -> None:
        self.batch, self.streams = batch, len(spans[0].begin)
        self._spans = tuple(spans)
        self.change = _Change(0, np.zeros(self.streams, np.int64), 0, 0)
        self.earlier: tuple[Mixture, ...] = ()
        # First step of each span, int64 (spans,).
        self._starts = np.array([span.first for span in spans], np.int64)
        # Shares at the first step of each span, and their rise from there on; (spans, streams).
        self._begin = np.array([span.begin for span in spans], np.int64)
        self._rise = np.array([np.subtract(s.end or s.begin, s.begin) for s in spans], np.int64)
        # Curve of the rise of each span, None if the shares are constant.
        self._ramps = [_Ramp(s.length, s.shape) if s.length else None for s in spans]
        # Integral of the shares before each span: a sum over all earlier spans.
        self._base = np.zeros_like(self._begin)
        for k in range(1, len(spans)):
            length = self._starts[k : k + 1] - self._starts[k - 1]
            self._base[k] = self._base[k - 1] + self._integral_in_span(k - 1, length)[0]

    def changed(self, step: int, shares: tuple[int, ...]) -> Mixture:
        """Return a mixture that is the same before a step and has other shares from it on.

        ``step`` is a global batch of the run; ``shares`` are in units of 1 / ``ONE``.
        """
        mixture = Mixture(
            [*(s for s in self._spans if s.first < step), ShareSpan(step, shares)], self.batch
        )
        counts_of_steps, times = self._counts(np.array([step]))
        counts, time = counts_of_steps[0], int(times[0])
        begin = step * self.batch  # time at which the step begins
        due_at_begin = self._due(np.array([begin]))[0][0]
        early = np.maximum(counts - due_at_begin, 0).sum()
        mixture.change = _Change(step, counts, min(time, begin), int(early))
        mixture.earlier = (*self.earlier, self)
        return mixture

    def counts(self, steps: Ids) -> Ids:
        """Return the samples of each stream in the global batches before each of ``steps``.

        They are int64 of shape (steps, streams). Raises PlanError for a step beyond `MAX_STEPS`.
        """
        if len(steps) and not 0 <= int(steps.min()) <= int(steps.max()) < MAX_STEPS:
            raise PlanError(f"a schedule can have at most {MAX_STEPS:,} global batches.")
        if not self.earlier or not len(steps) or int(steps.min()) >= self.change.step:
            return self._counts(steps)[0]
        # Steps before a change are counted by the mixture that held then.
        counts = np.empty((len(steps), self.streams), np.int64)
        mixtures = [*self.earlier, self]
        indexes = np.searchsorted([m.change.step for m in mixtures[1:]], steps, side="right")
        for index in np.unique(indexes).tolist():
            is_of_mixture = indexes == index
            counts[is_of_mixture] = mixtures[index].counts(steps[is_of_mixture])
        return counts

    def ranges(self, steps: Ids) -> tuple[Ids, Ids]:
        """Return the counts of samples before and after each of ``steps``, which ascend.

        Both are int64 of shape (steps, streams).
        """
        number = len(steps)
        if number and (np.diff(steps) == 1).all():
            # Consecutive steps: each begins where the one before it ends, so count once for both.
            counts = self.counts(np.arange(steps[0], steps[-1] + 2))
            return counts[:-1], counts[1:]
        counts = self.counts(np.concatenate([steps, steps + 1]))
        return counts[:number], counts[number:]

    def _counts(self, steps: Ids) -> tuple[Ids, Ids]:
        """Return the samples of each stream before each step, and the time that they reach.

        A search finds the last time at which no more samples are due than fit in the steps before.
        These samples are counted. The few that are still missing are those that are due next. For
        example, 2 steps of 4 samples take all 7 samples that are due by some time, and the next.

        Returns:
            The counts, int64 of shape (steps, streams), and the times, int64 of shape (steps,).
        """
        samples_before = steps * self.batch
        # Samples that a stream gave before the last change count, even if they are due later.
        _, samples_before_change, change_time, early = self.change
        # At time t, t samples are due, give or take half a sample of each stream, and some have
        # come early before the change. So the time to find is between these:
        tolerance = self.streams // 2 + 2
        low = np.maximum(samples_before - tolerance - early, change_time)
        high = samples_before + tolerance
        width = int((high - low).max(initial=0))
        # All these times are near the beginnings of the steps, for which there is a quicker way.
        count_due = self._due_near(steps) if width < self.batch else self._due
        column = np.arange(len(steps))
        # A bisection into many parts at once, as many times cost about as much as a single one.
        while width > 1:
            parts = max(min(width, _TIMES_AT_ONCE // (len(steps) * self.streams)), 2)
            # Times of shape (parts + 1, steps), between which the parts are.
            edges = low + (high - low) * np.arange(parts + 1)[:, None] // parts
            samples_due = count_due(edges[1:-1])[0]  # (parts - 1, steps, streams)
            samples_at_edges = np.maximum(samples_due, samples_before_change).sum(axis=2)
            part = (samples_at_edges <= samples_before).sum(axis=0)  # of each step
            low, high = edges[part, column], edges[part + 1, column]
            width = int((high - low).max())
        samples_due, fraction, share = count_due(low)
        counts = np.maximum(samples_due, samples_before_change)
        missing = samples_before - counts.sum(axis=1)
        incomplete = np.flatnonzero(missing)
        if len(incomplete):
            # A stream has no sample to give next if its next one was given before the change.
            is_ahead = samples_due[incomplete] < samples_before_change
            counts[incomplete] += self._give_next(
                missing[incomplete], fraction[incomplete], share[incomplete], is_ahead
            )
        return counts, low

    def _give_next(
        self, missing: Ids, fraction: Ids, share: Ids, is_ahead: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return a mask of the streams that give a sample next, of shape (steps, streams).

        Each step takes as many as are ``missing``. All of them are due within the next unit of
        time, the next sample of a stream after (1 - fraction) / share of it. The earliest are
        taken, of equal ones that of the first stream.

        Args:
            missing: Samples that each step lacks, int64 (steps,).
            fraction: Part of the next sample that is due already, in units of 1 / ``ONE``. This
                and the other arguments have the shape (steps, streams).
            share: Share of each stream, in units of 1 / ``ONE``.
            is_ahead: Whether the stream gave its next sample before.
        """
        time_to_next = (ONE - fraction) / np.maximum(share, 1)
        is_due_later = fraction + share < ONE  # after more than a unit of time
        time_to_next[is_due_later | is_ahead] = np.inf
        order = np.argsort(time_to_next, axis=1, kind="stable")
        rank = np.empty_like(order)  # of each stream in this order: the inverse permutation
        np.put_along_axis(rank, order, np.arange(self.streams)[None], axis=1)
        return rank < missing[:, None]

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
        """Return the samples of each stream that are due before each step, as fractions.

        They are float64 of shape (steps, streams). `counts` has the whole samples that came.
        """
        return self.integral(steps).astype(np.float64) * (self.batch / ONE)

    def shares(self, step: int) -> list[float]:
        """Return the share of each stream in the global batch ``step``."""
        first, last = self.integral(np.array([step, step + 1]))
        return [value / ONE for value in (last - first).tolist()]

    def _due(self, times: Ids) -> tuple[Ids, Ids, Ids]:
        """Return what is due of each stream at times, as the function `_due` below does.

        Each of the three arrays has the shape of ``times`` and a dimension for streams.
        """
        # A unit of time is a sample of all streams, so a global batch lasts ``batch`` units.
        step, offset = np.divmod(times, self.batch)
        flat, shape = step.reshape(-1), (*step.shape, self.streams)
        integrals = self.integral(flat).reshape(shape)
        share = self.integral(flat + 1).reshape(shape) - integrals
        return _due(self.batch, integrals, offset[..., None], share)

    def _due_near(self, steps: Ids) -> _DueNear:
        """Return a quicker `Mixture._due` for times near the beginnings of ``steps``.

        Each time must be less than a global batch from the beginning of its step.
        """
        around = self.integral(np.concatenate([np.maximum(steps - 1, 0), steps, steps + 1]))
        before, current, after = around.reshape(3, len(steps), self.streams)
        return _DueNear(self.batch, steps * self.batch, current, current - before, after - current)

    def integral(self, steps: Ids) -> Ids:
        """Return the sum of the shares of the global batches before each step.

        It is int64 of shape (steps, streams), in units of 1 / ``ONE``.
        """
        spans = np.searchsorted(self._starts, steps, side="right") - 1  # span of each step
        if len(spans) and int(spans.min()) == int(spans.max()):
            k = int(spans[0])
            integrals: Ids = self._base[k] + self._integral_in_span(k, steps - self._starts[k])
            return integrals
        integrals = np.empty((len(steps), self.streams), np.int64)
        for k in np.unique(spans).tolist():
            in_span = spans == k
            steps_since = steps[in_span] - self._starts[k]
            integrals[in_span] = self._base[k] + self._integral_in_span(k, steps_since)
        return integrals

    def _integral_in_span(self, k: int, length: Ids) -> Ids:
        """Return the integral of the shares over the first ``length`` global batches of span k.

        It is int64 of shape (len(length), streams), in units of 1 / ``ONE``: the shares at the
        beginning times the length, and the rise of the shares times the integral of the ramp.
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
    """Quicker `Mixture._due` for times near the beginnings of known global batches.

    A search asks for many times near the same global batches. Their integrals are computed once,
    and from there on each time costs a product: due at ``begin`` plus (time - begin) * share.

    Attributes:
        batch: Samples of a global batch.
        begin: Time at which each global batch begins, int64 (steps,).
        integrals: Integrals of the shares at these times, int64 (steps, streams).
        shares_before, shares: Shares in the global batch before, and in the global batch itself,
            int64 (steps, streams).
    """

    batch: int
    begin: Ids
    integrals: Ids
    shares_before: Ids
    shares: Ids

    def __call__(self, times: Ids) -> tuple[Ids, Ids, Ids]:
        """Return samples due, their fraction and the shares, as the function `_due` does.

        ``times`` has the shape (steps,) or (n, steps). Each time is less than a global batch before
        or after the beginning of its step.
        """
        offset = (times - self.begin)[..., None]
        share = np.where(offset < 0, self.shares_before, self.shares)
        return _due(self.batch, self.integrals, offset, share)


def _due(batch: int, integrals: Ids, offset: Ids, share: Ids) -> tuple[Ids, Ids, Ids]:
    """Return how much is due of each stream at a time near the beginning of a global batch.

    The integral at the time is batch * integrals + offset * share. Sample j is due when it passes
    j - 1/2. So with 1/2 added, the whole part is the number of samples due: if the integral is
    1.75, then 2.25 means that 2 samples are due, and 0.25 of the way to the next one is done.

    Args:
        batch: Samples of a global batch.
        integrals: Integrals of the shares before this global batch, in units of 1 / ``ONE``.
        offset: Time since the beginning of this global batch, negative before it.
        share: Shares at the time, in units of 1 / ``ONE``.

    Returns:
        Samples due; the fraction of the way to the next sample, in units of 1 / ``ONE``; and
        ``share``. All are int64, with streams as the last dimension.
    """
    # Whole parts and fractions apart, since the product of batch and integral may exceed 64 bits.
    fractions = batch * (integrals & _MASK) + offset * share + _HALF
    samples_due = batch * (integrals >> SHARE_BITS) + (fractions >> SHARE_BITS)
    return samples_due, fractions & _MASK, share


class _Ramp:
    """Integral of a rise from 0 to ``ONE`` in ``length`` global batches.

    The rise has stairs, one for each global batch, as shares stay the same in a batch. A stair is
    as high as the curve in its middle. A linear rise in 4 global batches, in units of ``ONE``::

        global batch             0    1    2    3    4    5
        height                  1/8  3/8  5/8  7/8   1    1
        integral up to there     0   1/8  4/8  9/8   2    3

    Very long ramps have 2**20 stairs at most, each of several global batches.

    Args:
        length: Number of global batches.
        shape: Curve of the rise, "linear" or "cosine".
    """

    def __init__(self, length: int, shape: str) -> None:
        self._length = length
        self._width = -(-length // _MAX_STAIRS)  # global batches of a stair
        edges = np.append(np.arange(0, length, self._width), length)
        middle = (edges[1:] + edges[:-1]) / (2.0 * length)  # of each stair, from 0 to 1
        # The cosine curve is (1 - cos(pi * x)) / 2, and cos(y) = -sin(y - pi/2).
        height = middle if shape == "linear" else 0.5 + 0.5 * _sine(np.pi * (middle - 0.5))
        self._heights = np.clip(np.rint(height * ONE), 0, ONE).astype(np.int64)
        # Integral before each stair.
        self._before = np.concatenate([[0], np.cumsum(self._heights * np.diff(edges))])

    def integral(self, length: Ids) -> Ids:
        """Return the integral over the first ``length`` global batches, int64, for each length.

        It is in units of 1 / ``ONE``. After the end of the ramp the height stays at ``ONE``.
        """
        inside = np.minimum(length, self._length)  # global batches on the ramp
        stair = np.minimum(inside // self._width, len(self._heights) - 1)
        integrals: Ids = self._before[stair] + self._heights[stair] * (inside - stair * self._width)
        integrals += (length - inside) * ONE
        return integrals


def _sine(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sine of angles from -pi/2 to pi/2, by a series.

    Sums and products give the same bits on all machines, which `numpy.sin` does not. The series is
    x - x**3 / 3! + x**5 / 5! - ..., as x * (1 - x**2 / (2 * 3) * (1 - x**2 / (4 * 5) * ...)).
    """
    square = angle * angle
    series = np.zeros_like(angle)
    for k in range(23, 1, -2):
        series = (1.0 - series) * square / (k * (k - 1.0))
    return angle * (1.0 - series)
