"""Partition of positions over nodes and ranks, by formulas.

The positions of an order are thought of as a grid with a row for each canonical node. The grid is
read column by column, and the *elements* of that reading are dealt in turns: element t goes to
physical node t mod P, and element i of a node to rank i mod R of it::

    canonical node 0 | 0 2 4 6 |     elements, with the positions 0, 1, 2, 3
    canonical node 1 | 1 3 5 7 |     elements, with the positions 4, 5, 6, 7

Nothing is stored, so any slice costs only the time for its own elements. If samples do not divide
evenly, some are dealt twice, and mosaicml-streaming decides which (`PaddedGrid`), unless the
partition is exact (`ExactGrid`).

`Gaps` are places of the epoch that are left out: those that a run saw before it was resumed, and
steps that were skipped.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from mds._process.fork_safe import cached_property
from mds._words import plural
from mds.errors import PlanError
from mds.shuffle._base import equal_cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]


class PaddedGrid:
    """Grid in which rows of all canonical nodes are equally long; short ones repeat positions.

    A canonical node has a row of consecutive positions. Elements count column by column, so that
    consecutive elements are from different canonical nodes::

        7 positions       row 0 | 0 1 2 2 |      the short row repeats its last position
                          row 1 | 3 4 5 6 |

        10 positions,     row 0 | 0 1 2 3 4 3 |  2 nodes share a row: one takes its columns 0, 2, 4,
        4 nodes           row 1 | 5 6 7 8 9 8 |  the other 1, 3, 5. Column 5 is added for that.

    Args:
        samples: Positions of the grid.
        canonical: Number of canonical nodes.
        nodes: Number of physical nodes. If several share a row, padding makes its length a multiple
            of their number.

    Attributes:
        size: Number of elements, repeated positions included.
        is_cyclic: Whether there are so few samples that elements repeat all of them in turns.

    Raises PlanError if neither number of nodes divides the other, or there are too few samples.
    """

    def __init__(self, samples: int, canonical: int, nodes: int) -> None:
        high, low = max(canonical, nodes), min(canonical, nodes)
        if low < 1 or high % low:
            raise PlanError(
                f"num_canonical_nodes {canonical} does not fit {nodes} physical nodes. Make one "
                "number a multiple of the other."
            )
        self.samples, self.canonical = samples, canonical
        ratio = max(nodes // canonical, 1)  # physical nodes that share a canonical node
        self._columns = -(-samples // canonical)  # length of the longest row, before padding
        self._pad = -self._columns % ratio  # columns to add, so that nodes get equally many
        width = self._columns + self._pad
        self.size = canonical * width
        # With fewer samples than rows, or one sample for each row that several physical nodes
        # share, the grid repeats the samples from the first one on.
        self.is_cyclic = samples < canonical or samples == canonical < nodes
        # Columns that the added columns repeat, as in mosaicml-streaming: as many columns, of which
        # the last is ``ratio`` - 1 columns before the end of the longest row (in the picture column
        # 3 of 0 to 4, with a ratio of 2). Some of them may lie before the first column, so fewer
        # remain. A single one is repeated in all added columns; any other number is an error.
        first_repeated = width - 2 * self._pad - ratio + 1
        self._repeated_columns = np.arange(
            max(first_repeated, 0), max(first_repeated + self._pad, 0)
        )
        if self._pad and not self.is_cyclic and len(self._repeated_columns) not in {1, self._pad}:
            raise PlanError(
                f"{samples} samples are too few for {nodes} nodes that share {canonical} "
                "canonical nodes. Use remainder='short', or fewer nodes."
            )

    @cached_property
    def starts(self) -> Ids:
        """First position of each row, and the end; int64 (canonical nodes + 1,)."""
        return equal_cut(self.samples, self.canonical)

    @property
    def regular(self) -> int:
        """Number of elements before the first one that may repeat a position."""
        return 0 if self.is_cyclic else max(self._columns - 1, 0) * self.canonical

    def positions(self, elements: Ids) -> Ids:
        """Return the position of each element, int64.

        Element t is in row ``t % canonical`` and column ``t // canonical``.
        """
        if self.canonical == 1 and not self._pad:
            return elements
        column = elements // self.canonical
        row = elements - column * self.canonical
        if self.is_cyclic:
            # Row after row, positions count up, and start over after the last one.
            return (row * (self._columns + self._pad) + column) % max(self.samples, 1)
        may_repeat = len(elements) > 0 and int(elements.max()) >= self.regular
        if may_repeat and self._pad:
            added = np.flatnonzero(column >= self._columns)
            is_single = len(self._repeated_columns) == 1  # repeated in all added columns
            repeated_index = 0 if is_single else column[added] - self._columns
            column[added] = self._repeated_columns[repeated_index]
        positions = column
        positions += self.starts[row]  # in place, as the array may be large
        if may_repeat:
            # The last element of a short row repeats the one before it.
            np.minimum(positions, self.starts[row + 1] - 1, out=positions)
        return positions

    def position_range(self, first: int, last: int) -> Ids:
        """Return the positions of the elements ``first`` to ``last`` - 1."""
        if self.is_cyclic or last > self.regular:
            return self.positions(np.arange(first, last))
        return _position_range(self.starts, first, last)


class ExactGrid:
    """Grid without padding: no position is repeated, and short rows lack the last column.

    Elements count column by column, so the last ones are of the longer rows only::

        row 0 | 0 1   |
        row 1 | 2 3   |      the elements 0 to 6 have the positions 0 2 4 1 3 5 6
        row 2 | 4 5 6 |

    Args:
        samples: Positions of the grid.
        canonical: Number of canonical nodes, which are the rows.

    Attributes:
        size: Number of elements, which is the number of positions.
        starts: First position of each row, and the end; int64 (canonical nodes + 1,).
    """

    is_cyclic = False

    def __init__(self, samples: int, canonical: int) -> None:
        if canonical < 1:
            raise PlanError(f"num_canonical_nodes must be at least 1, got {canonical}.")
        self.samples, self.canonical, self.size = samples, canonical, samples
        self._columns = -(-samples // canonical)  # length of the longest row
        self.starts = equal_cut(samples, canonical)
        # Rows that have the last column; some are one element shorter.
        self._long_rows = np.flatnonzero(np.diff(self.starts) == self._columns)

    @property
    def regular(self) -> int:
        """Number of elements before the last column, which short rows lack."""
        return max(self._columns - 1, 0) * self.canonical

    def positions(self, elements: Ids) -> Ids:
        """Return the position of each element, int64.

        Element t is in row ``t % canonical`` and column ``t // canonical``, except in the last
        column, which only the longer rows have.
        """
        if self.canonical == 1:
            return elements
        column = elements // self.canonical
        row = elements - column * self.canonical
        # In the last column, number k is the element of the k-th long row.
        in_last_column = np.flatnonzero(elements >= self.regular)
        row[in_last_column] = self._long_rows[row[in_last_column]]
        positions = column
        positions += self.starts[row]  # in place, as the array may be large
        return positions

    def position_range(self, first: int, last: int) -> Ids:
        """Return the positions of the elements ``first`` to ``last`` - 1."""
        if last > self.regular:
            return self.positions(np.arange(first, last))
        return _position_range(self.starts, first, last)


class Partition:
    """Positions of a grid, dealt in turns to all ranks.

    An *index* counts the elements that are dealt, without those that are left out. Index n goes to
    node ``n % nodes``, and is sample ``n // (nodes * ranks)`` of its rank::

        elements     0 1 2 3 4 5 6 7        of which 2 were seen (drop=2)
        indices          0 1 2 3 4 5        of 2 nodes with 2 ranks each
        node             0 1 0 1 0 1
        rank             0 0 1 1 0 0        indices 6 and 7 repeat samples if is_even

    Args:
        grid: Grid of positions.
        nodes: Physical nodes.
        ranks: Ranks of a node.
        drop: Elements at the beginning that were seen; a negative number counts from the end.
        is_even: Whether samples near the end are repeated, so that all ranks get equally many.
        skips: Ranges of elements that are left out, each as its first and its end.

    Attributes:
        offset: First element that was not seen.
        gaps: Elements that are left out, seen ones and skipped ones.
        remaining: Number of elements that are dealt once.
        total: Number of indices: the same, and samples that are repeated for even ranks.
    """

    def __init__(
        self,
        grid: PaddedGrid | ExactGrid,
        nodes: int,
        ranks: int,
        drop: int = 0,
        *,
        is_even: bool = True,
        skips: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.grid, self.nodes, self.ranks = grid, nodes, ranks
        # A negative number counts from the end, as in a slice.
        self.offset = min(drop, grid.size) if drop >= 0 else max(grid.size + drop, 0)
        self.gaps = Gaps([(0, self.offset), *skips])
        self.remaining = self.gaps.number(grid.size)
        # Samples of a node without repeated ones, and those that are repeated on each node.
        self._per_node = -(-self.remaining // nodes)
        per_rank = -(-self._per_node // ranks)
        self._extra = per_rank * ranks - self._per_node if is_even else 0
        self.total = per_rank * ranks * nodes if is_even else self.remaining
        # `_repeat_to_even` goes back by so many samples of a node.
        self._repeat_distance = ranks + self._extra - 1
        if grid.is_cyclic or (self._extra and self._repeat_distance > self._per_node):
            warnings.warn(
                f"{grid.samples} samples are few for {nodes} nodes of {plural(ranks, 'rank')}, "
                "so some are "
                "repeated. Use remainder='short' to see every sample once.",
                stacklevel=2,
            )

    def positions(self, indices: Ids) -> Ids:
        """Return the position of each index."""
        if len(indices) and int(indices.max()) >= self.remaining:
            indices = self._repeat_to_even(indices)
        return self.grid.positions(self.gaps.places(indices))

    def position_range(self, first: int, last: int) -> Ids:
        """Return the positions of the indices ``first`` to ``last`` - 1."""
        ends = self.gaps.places(np.array([first, last - 1]))
        begin, end = int(ends[0]), int(ends[1]) + 1
        # Consecutive elements are quicker to look up. They are not consecutive if a gap is among
        # them, or if the last ones repeat samples.
        if last > self.remaining or end - begin != last - first:
            return self.positions(np.arange(first, last))
        return self.grid.position_range(begin, end)

    def _repeat_to_even(self, indices: Ids) -> Ids:
        """Replace indices after a node's last sample by indices of samples that it repeats.

        Which samples are repeated is as in mosaicml-streaming. For example, a node of 4 ranks with
        the samples 0 to 9 needs 12 of them, and repeats 5 and 6::

            sample of the node   0 1 2 3 4 5 6 7 8 9   5 6
            rank                 0 1 2 3 0 1 2 3 0 1   2 3

        A sample that is added repeats the one ranks + added samples - 1 (here 5) before it. A node
        with fewer samples than that repeats its first ones.
        """
        node, number = indices % self.nodes, indices // self.nodes  # number: sample of the node
        per_node = self._per_node
        added = np.flatnonzero(number >= per_node)
        if self._repeat_distance <= per_node:
            number[added] -= self._repeat_distance
        else:
            number[added] = (number[added] - per_node) % per_node
        indices = number * self.nodes + node
        # The last turn over the nodes may miss some of them. Such a node repeats its sample of the
        # turn before or, if there is none, a sample of another node.
        missing = np.flatnonzero(indices >= self.remaining)
        earlier = indices[missing] - self.nodes
        indices[missing] = np.where(earlier >= 0, earlier, indices[missing] % self.remaining)
        return indices

    def find(self, positions: Ids) -> Ids:
        """Return all indices that have one of these positions: the inverse of `positions`."""
        starts = self.grid.starts
        # Indices before this one: no position is repeated, so invert the formula for an element.
        first_irregular = min(self.gaps.number(self.grid.regular), self.remaining)
        row = np.searchsorted(starts, positions, side="right") - 1
        elements = (positions - starts[row]) * self.grid.canonical + row
        indices = self.gaps.numbers(elements[self.gaps.is_in_no_gap(elements)])
        indices = indices[indices < first_irregular]
        # Later ones may repeat positions. They are a few for each rank and canonical node, so
        # compute all of their positions and compare.
        late_indices = np.arange(first_irregular, self.total)
        is_match = np.isin(self.positions(late_indices), positions)
        return np.concatenate([indices, late_indices[is_match]])

    def canonical_nodes_of(self, node: int) -> Ids:
        """Return the canonical nodes whose positions a physical node gets, sorted.

        For example, with 4 canonical nodes, 2 physical ones and no gaps, node 0 gets the canonical
        nodes 0 and 2, and node 1 gets 1 and 3. All are returned where this rule does not hold.
        """
        canonical = self.grid.canonical
        # In these cases any node may get any canonical node: samples start over in turns, the last
        # column is incomplete, or there are fewer samples than nodes.
        is_irregular = isinstance(self.grid, ExactGrid) or self.grid.is_cyclic
        if is_irregular or self.remaining < self.nodes:
            return np.arange(canonical)
        # So too after a skipped range whose length is no multiple of the nodes: from there on,
        # elements go to other nodes than before.
        lengths = self.gaps.ends - self.gaps.firsts
        if (lengths[self.gaps.firsts > 0] % self.nodes).any():
            return np.arange(canonical)
        # This node gets the elements t with t mod nodes == turn, and element t is in the row of
        # canonical node t mod canonical.
        turn = (node + self.offset) % self.nodes
        if canonical % self.nodes == 0:
            return np.arange(turn, canonical, self.nodes)
        if self.nodes % canonical == 0:
            return np.array([turn % canonical])
        return np.arange(canonical)


def _position_range(starts: Ids, first: int, last: int) -> Ids:
    """Return the positions of the elements ``first`` to ``last`` - 1 of a grid.

    All of them must be in columns that every row has. ``starts`` has the first position of each
    row, and the end. With ``starts`` 0, 4, 8 the elements 1 to 4 have the positions 4, 1, 5, 2.
    """
    canonical = len(starts) - 1
    # Whole columns, of which the elements before the first one are cut off.
    columns = np.arange(first // canonical, -(-last // canonical))
    skip = first % canonical
    return (columns[:, None] + starts[:-1]).reshape(-1)[skip : skip + last - first]


def check_drop(samples: int, ranks: int, drop: int) -> None:
    """Raise PlanError if more samples were seen than an epoch has, padding included.

    Args:
        samples: Samples of the epoch.
        ranks: Number of all ranks; the padding is at most one sample for each of them.
        drop: Samples of all ranks that were seen.
    """
    if samples + (ranks - samples % ranks) < drop:
        raise PlanError(
            f"cannot resume at sample {drop} of an epoch of {plural(samples, 'sample')}: the "
            "state belongs "
            "to another dataset or another epoch_size."
        )


class Gaps:
    """Places of an epoch that are left out, and the numbers of the places that remain.

    ::

        place     0  1  2  3  4  5  6  7  8
        gaps      x  x  x        x  x  x          (0, 3) and (5, 8)
        number             0  1           2

    A lookup takes well below 1 us: only the ends of the gaps are kept.

    Args:
        ranges: First place and end of each gap, in any order. They may overlap.

    Attributes:
        firsts, ends: First place and end of each gap; sorted, and merged if they touch.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        merged: list[list[int]] = []
        for first, last in sorted(each for each in ranges if each[0] < each[1]):
            if merged and first <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], last)
            else:
                merged.append([first, last])
        pairs = np.array(merged, np.int64).reshape(-1, 2)  # also (0, 2) if there are none
        self.firsts, self.ends = pairs[:, 0], pairs[:, 1]
        # Places in gaps before each gap, and in all gaps.
        self._places_before = np.zeros(len(pairs) + 1, np.int64)
        np.cumsum(self.ends - self.firsts, out=self._places_before[1:])
        # Number of the remaining place that follows each gap.
        self._numbers = self.firsts - self._places_before[:-1]
        # Most runs have no gap, or one at the beginning of the epoch: then no search is needed.
        self._only_at_beginning = not merged or (len(merged) == 1 and merged[0][0] == 0)
        self._total = int(self._places_before[-1])

    def places(self, numbers: Ids) -> Ids:
        """Return the remaining place with each number: the place plus the gaps before it."""
        if self._only_at_beginning:
            return numbers + self._total if self._total else numbers
        places: Ids = (
            numbers + self._places_before[np.searchsorted(self._numbers, numbers, side="right")]
        )
        return places

    def place(self, number: int) -> int:
        """Return the remaining place with a number."""
        return int(self.places(np.array([number]))[0])

    def numbers(self, places: Ids) -> Ids:
        """Return for each place how many remaining places come before it.

        In the picture of the class, the places 3, 6 and 8 have the numbers 0, 2 and 2.
        """
        gaps_begun = np.searchsorted(self.firsts, places, side="right")
        numbers = places - self._places_before[gaps_begun]
        # A place inside a gap has the number of the end of the gap: the rest of the gap was
        # subtracted too.
        inside = np.flatnonzero(gaps_begun)
        ends = self.ends[gaps_begun[inside] - 1]
        is_inside = places[inside] < ends
        inside, ends = inside[is_inside], ends[is_inside]
        numbers[inside] += ends - places[inside]
        return numbers

    def number(self, place: int) -> int:
        """Return how many remaining places come before a place."""
        return int(self.numbers(np.array([place]))[0])

    def is_in_no_gap(self, places: Ids) -> NDArray[np.bool_]:
        """Return a mask of the places that are in no gap."""
        gaps_begun = np.searchsorted(self.firsts, places, side="right")
        # By the number of gaps that have begun, the end of the last of them. If none has, an end
        # before all places.
        ends = np.concatenate([[np.iinfo(np.int64).min], self.ends])
        mask: NDArray[np.bool_] = places >= ends[gaps_begun]
        return mask
