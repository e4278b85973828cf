"""Rows of a schedule: the samples of each stream that each canonical node gives.

With a schedule each canonical node is a *row*. It has its own part of the samples of each stream,
which are consecutive positions in the order of a pass, and goes through all passes of that part
alone. So a machine that reads some rows needs no shards of others.

The samples of step s are laid out stream by stream. Place t of the layout is *grid place*
``s * size + turn + t``, where a global batch has ``size`` samples. Grid places are given to the
rows one after the other. The *turn* moves the layout by another number of rows in each step, so
that no row gets the larger part of a stream for long. Here are 3 rows and steps of 6 samples, 4 of
stream 0 and 2 of stream 1::

    step 0, turn 0            step 1, turn 1
    grid place 0 1 2 3 4 5    7 8 9 10 11 12
    stream     0 0 0 0 1 1    0 0 0  0  1  1
    row        0 1 2 0 1 2    1 2 0  1  2  0

Each row gives equally many samples in a step, or in a few steps if the number of rows does not
divide that of the samples. In any step a row gives as many samples of a stream as any other, or one
more.

Which sample of its part a row gives next depends on all earlier steps: it is the number of those
that it has given (`RowCounts`). These numbers are kept for every 1,024th step, as far as they have
been needed. So the first use at step s takes about 0.1 us times s for each stream, and any later
one below 1 ms.

A stream with few samples has no rows, since their lengths would differ too much for samples to come
equally often: its samples are numbered through the whole stream.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mds.shuffle._base import equal_cut
from mds.shuffle._permutation import derive_key, hash_counters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from mds.plan._mixture import Mixture

    Ids = NDArray[np.int64]

_TABLE_STEPS = 1 << 10  # steps from one kept count to the next
#: Samples of a stream in each row at least; rows then differ by at most 1/16.
MIN_ROW_SAMPLES = 16
_COUNTS_AT_ONCE = 1 << 20
_TURN_KEY = derive_key(0x7475726E)


class StepCounts(NamedTuple):
    """Counts of samples in some of the steps of a run.

    Attributes:
        indexes: Indexes of these steps among those that were asked for.
        begin, end: Samples of each stream before and after each step, int64 (steps, streams).
        rows: Samples that rows have given of each stream before each step, int64
            (residues, steps, streams); `RowCounts.parts` was asked for the residues.
    """

    indexes: slice
    begin: Ids
    end: Ids
    rows: Ids


class RowCounts:
    """Samples that each row has given of each stream before any step of a run.

    The grid places of a row have the same remainder, modulo the number of rows: its *residue*.
    Methods count by residues; the row with residue u is ``u * inverse_stride % rows``.

    Args:
        mixture: Samples of each stream in the steps of the run.
        samples: Samples of a pass through each stream.
        canonical: Number of canonical nodes.

    Attributes:
        rows: Number of rows: the canonical nodes, or 1 if no stream has rows.
        has_rows: Mask of the streams that have rows.
        starts, sizes: Position of the first sample of each row in a pass, and the samples of the
            row; int64 (streams, rows). The whole stream, in each row, if it has no rows.
        stride, inverse_stride: The sample that is dealt as number n in a step is at place
            ``stride * n - turn`` of the layout, modulo the samples of the step.
    """

    def __init__(self, mixture: Mixture, samples: Sequence[int], canonical: int) -> None:
        per_stream = np.array(samples, np.int64)
        self.mixture = mixture
        self.has_rows = (per_stream >= canonical * MIN_ROW_SAMPLES) & (canonical > 1)
        self.rows = rows = canonical if self.has_rows.any() else 1
        edges = np.array([equal_cut(count, rows) for count in samples]).reshape(-1, rows + 1)
        edges[~self.has_rows] = 0
        self.starts = edges[:, :-1]
        self.sizes = np.where(self.has_rows[:, None], np.diff(edges, axis=1), per_stream[:, None])
        size = mixture.batch
        self.stride = stride_of(size, rows)
        self.inverse_stride = pow(self.stride, -1, math.lcm(size, rows))
        #: Row of each residue, int64 (rows,).
        self.row_of = np.arange(rows) * self.inverse_stride % rows
        # Steps after which all rows have given equally many samples.
        self._period = rows // math.gcd(rows, size)
        # Counts by residue before the steps 0, 1024, ...; int64 (streams, rows) each.
        self._table: list[Ids] = [np.zeros((len(per_stream), rows), np.int64)]
        # Counts of all streams before consecutive steps, and the first of these steps.
        self._latest: tuple[int, Ids] = (0, np.zeros((1, len(per_stream)), np.int64))

    @classmethod
    def of(cls, mixture: Mixture, samples: Sequence[int], canonical: int) -> RowCounts:
        """Return the counts of a mixture, the same object for equal arguments.

        A mixture that was changed continues with the counts that were kept before the change.
        """
        return _row_counts(mixture, tuple(samples), canonical)

    def follow(self, earlier: RowCounts) -> None:
        """Take the kept counts of the steps before the last change of the mixture."""
        kept_steps = self.mixture.change.step // _TABLE_STEPS + 1
        self._table = earlier._table[:kept_steps]

    def turns(self, steps: Ids) -> Ids:
        """Return the turn of each step, int64: a number below that of the rows.

        Turns mostly differ by 1 from step to step, and by another number from round to round, of as
        many steps as there are rows. After as many rounds comes a number that looks random, so that
        turns have no rhythm in common with the counts of a stream.
        """
        # All steps of a period have one turn; `_period` is 1 if the rows divide a global batch.
        round_number, turn = np.divmod(steps // self._period, self.rows)
        block, round_in_block = np.divmod(round_number, self.rows)
        offsets = (hash_counters(_TURN_KEY, block) % np.uint64(self.rows)).astype(np.int64)
        turns: Ids = (turn + round_in_block * stride_of(self.rows) + offsets) % self.rows
        return turns

    def grid_begins(self, steps: Ids) -> Ids:
        """Return the first grid place of each step, int64."""
        return steps * self.mixture.batch + self.turns(steps)

    def parts(self, steps: Ids, residues: Ids) -> Iterator[StepCounts]:
        """Yield counts for all of ``steps``, which ascend, a part of them at a time.

        ``residues`` are those of the rows that are counted.
        """
        if self.rows == 1:
            begin, end = self.mixture.ranges(steps)
            yield StepCounts(slice(0, len(steps)), begin, end, begin[None])
            return
        first = 0
        while first < len(steps):
            # Steps up to the next kept step are counted from the one before.
            table_step = int(steps[first]) // _TABLE_STEPS * _TABLE_STEPS
            last = int(np.searchsorted(steps, table_step + _TABLE_STEPS))
            yield from self._parts_after(table_step, steps, slice(first, last), residues)
            first = last

    def _parts_after(
        self, table_step: int, steps: Ids, indexes: slice, residues: Ids
    ) -> Iterator[StepCounts]:
        """Yield counts as `parts` does, for steps that follow a kept step or are one.

        ``indexes`` are those of these steps in ``steps``.
        """
        # First those before the kept step, whose last steps may be stored.
        totals, totals_step = self._table_before(table_step), table_step
        counts = self._counts(table_step, int(steps[indexes.stop - 1]) + 1)
        edges = self._edges(table_step, counts)
        max_steps = max(_COUNTS_AT_ONCE // max(self.mixture.streams * len(residues), 1), 1)
        first = indexes.start
        while first < indexes.stop:
            begin_step = int(steps[first])
            last = min(int(np.searchsorted(steps, begin_step + max_steps)), indexes.stop)
            totals = totals + self._given(edges[totals_step - table_step : begin_step - table_step])
            totals_step = begin_step
            offsets = steps[first:last] - table_step
            begin, end = counts[offsets], counts[offsets + 1]
            part_edges = edges[offsets[0] : offsets[-1]]
            rows = self._running_totals(part_edges, totals, residues)
            if (np.diff(offsets) != 1).any():  # steps are missing, or come again as micro-batches
                rows = rows[:, offsets - offsets[0]]
            if not self.has_rows.all():
                rows[:, :, ~self.has_rows] = begin[:, ~self.has_rows]
            yield StepCounts(slice(first, last), begin, end, rows)
            first = last

    def before(self, step: int) -> Ids:
        """Return the samples that each row has given before a step, int64 (streams, rows).

        For a stream without rows it is the number of all its samples, in each row.
        """
        (part,) = self.parts(np.array([step]), self.row_residues)
        counts: Ids = part.rows[:, 0].T
        return counts

    @property
    def row_residues(self) -> Ids:
        """Residue of each row, int64 (rows,): the inverse of `row_of`."""
        return np.arange(self.rows) * self.stride % self.rows

    def steps_of(self, stream: int, row: int, numbers: Ids, last: int) -> Ids:
        """Return the steps before ``last`` in which a row gives samples of a stream.

        The ``numbers`` count the samples that the row gives of the stream since the training began.
        All of them must come before the step ``last``.
        """
        if not self.has_rows[stream]:
            return self.mixture.steps_of_samples(stream, numbers)
        residue = row * self.stride % self.rows
        self._table_before(last)
        table_column = np.array([counts[stream, residue] for counts in self._table])
        steps = np.empty(len(numbers), np.int64)
        for index, number in enumerate(numbers.tolist()):
            first = (int(np.searchsorted(table_column, number, side="right")) - 1) * _TABLE_STEPS
            candidates = np.arange(first, min(first + _TABLE_STEPS, last))
            counts = np.concatenate(
                [p.rows[0, :, stream] for p in self.parts(candidates, np.array([residue]))]
            )
            steps[index] = first + int(np.searchsorted(counts, number, side="right")) - 1
        return steps

    def first_excess(self, limits: Ids, last: int) -> tuple[int, int] | None:
        """Return the first step that takes more of a row than its limit, and the stream.

        None if no step before ``last`` does. ``limits`` are the most samples that each row may give
        of each stream, int64 (streams, rows).
        """
        residues, first = self.row_residues, 0
        # Skip all kept steps before which no limit is exceeded.
        while first + _TABLE_STEPS <= last and (self.before(first + _TABLE_STEPS) <= limits).all():
            first += _TABLE_STEPS
        for part in self.parts(np.arange(first, last + 1), residues):
            # Steps before which a row would have given more of a stream than its limit.
            steps, streams = np.nonzero((part.rows > limits.T[:, None]).any(axis=0))
            if len(steps):
                return first + part.indexes.start + int(steps[0]) - 1, int(streams[0])
        return None

    def _running_totals(self, edges: Ids, totals: Ids, residues: Ids) -> Ids:
        """Return what rows have given before each of some steps, and before the one that follows.

        Args:
            edges: Edges of these steps, which are consecutive; see `_edges`.
            totals: Samples that rows have given before the first of them, int64 (streams, rows).
            residues: Residues of the rows that are counted.

        Returns int64 of shape (residues, steps + 1, streams).
        """
        rows = np.empty((len(residues), len(edges) + 1, len(totals)), np.int64)
        rows[:, 0] = totals[:, residues].T
        # Grid places with a residue before an edge: one in each round, and maybe one in the round
        # in which the edge is.
        rounds, remainders = np.divmod(edges, self.rows)
        in_last_round = (remainders > residues[:, None, None]).view(np.int8)
        difference = in_last_round[:, :, 1:] - in_last_round[:, :, :-1]
        np.add(difference, np.diff(rounds, axis=1), out=rows[:, 1:])
        return np.cumsum(rows, axis=1, out=rows)

    def _table_before(self, step: int) -> Ids:
        """Return the counts by residue before a kept step, int64 (streams, rows).

        Also compute those of all kept steps before ``step``, if it is not a kept one.
        """
        number = step // _TABLE_STEPS
        if number >= len(self._table):
            table = list(self._table)
            while number >= len(table):
                begin = (len(table) - 1) * _TABLE_STEPS
                counts = self._counts(begin, begin + _TABLE_STEPS)
                table.append(table[-1] + self._given(self._edges(begin, counts)))
            self._table = table  # assigned as one value, since threads may count at the same time
        return self._table[number]

    def _counts(self, first: int, last: int) -> Ids:
        """Return the samples of all streams before the steps ``first`` to ``last``.

        Those of the latest kept step are stored, since the next call mostly continues there.
        """
        stored_first, counts = self._latest
        if stored_first != first:
            counts = self.mixture.counts(np.arange(first, last + 1))
        elif first + len(counts) <= last:
            later_counts = self.mixture.counts(np.arange(first + len(counts), last + 1))
            counts = np.concatenate([counts, later_counts])
        self._latest = first, counts
        return counts[: last - first + 1]

    def _edges(self, first: int, counts: Ids) -> Ids:
        """Return where the samples of each stream begin and end, int64 (steps, streams + 1).

        ``counts`` are those before consecutive steps from ``first`` on, and before the step that
        follows; edges are grid places.
        """
        edges = np.zeros((len(counts) - 1, self.mixture.streams + 1), np.int64)
        np.cumsum(np.diff(counts, axis=0), axis=1, out=edges[:, 1:])
        edges += self.grid_begins(np.arange(first, first + len(edges)))[:, None]
        return edges

    def _given(self, edges: Ids) -> Ids:
        """Return the samples that each row gives in steps with some edges, (streams, rows)."""
        rounds, remainders = np.divmod(edges, self.rows)
        # All rows give one sample in each round. A remainder adds one for all residues below it.
        # So count the edges of each stream by remainder, and those with a remainder above each.
        keys = remainders + np.arange(edges.shape[1]) * self.rows
        edges_at = np.bincount(keys.reshape(-1), minlength=edges.shape[1] * self.rows)
        edges_above = len(edges) - np.cumsum(edges_at.reshape(-1, self.rows), axis=1)
        in_rounds = np.diff(rounds, axis=1).sum(axis=0)
        samples: Ids = in_rounds[:, None] + np.diff(edges_above, axis=0)
        return samples


@functools.lru_cache(maxsize=32)
def _row_counts(mixture: Mixture, samples: tuple[int, ...], canonical: int) -> RowCounts:
    """Return `RowCounts.of`, but cached."""
    counts = RowCounts(mixture, samples, canonical)
    if mixture.earlier:
        counts.follow(_row_counts(mixture.earlier[-1], samples, canonical))
    return counts


def stride_of(size: int, other: int = 1) -> int:
    """Return the number nearest to 0.618... times ``size`` without a common factor.

    It has none with ``size`` and with ``other``. Multiples of this stride, modulo ``size``, then
    are all numbers below ``size``, and any few consecutive multiples are spread evenly.
    """
    ideal = size * (math.sqrt(5) - 1) / 2
    near, product = round(ideal), size * other
    candidates = (near + sign * k for k in range(product + 1) for sign in (1, -1))
    return next((c for c in candidates if c > 0 and math.gcd(c, product) == 1), 1)
