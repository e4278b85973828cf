"""Which position of the global order falls to which node, rank, worker and batch: arithmetic.

The order is thought of as a matrix with a row for each canonical node, read column by column.
Element t of that reading goes to physical node t mod P, element i of a node to rank i mod r, and
consecutive groups of b to the workers in turn. Nothing is stored, so any slice costs what it
yields. Where samples do not divide evenly some are dealt twice, at the places where the incumbent
does so, unless the deal is exact.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError, UnknownNameError

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALGORITHMS = ("orig", "relaxed")


@dataclasses.dataclass(frozen=True, slots=True)
class Matrix:
    """The positions 0 to ``samples`` - 1 as rows of canonical nodes, for so many nodes to share."""

    samples: int
    canonical: int
    nodes: int

    def __post_init__(self) -> None:
        high, low = max(self.canonical, self.nodes), min(self.canonical, self.nodes)
        if low < 1 or high % low:
            raise PlanError(
                f"canonical nodes {self.canonical} and physical nodes {self.nodes}: make one a "
                "multiple of the other (num_canonical_nodes)."
            )
        if self.pad and not self.is_cyclic and len(self._pad_sources()) not in {1, self.pad}:
            raise PlanError(
                f"{self.samples} samples are too few for {self.nodes} nodes that share "
                f"{self.canonical} canonical nodes: use exact=True, or fewer nodes."
            )

    @property
    def is_cyclic(self) -> bool:
        """Whether there are so few samples that they are simply repeated."""
        return self.samples < self.canonical or self.samples == self.canonical < self.nodes

    @property
    def columns_filled(self) -> int:
        """Columns before padding."""
        return -(-self.samples // self.canonical)

    @property
    def pad(self) -> int:
        """Columns added so that the physical nodes come out even."""
        if self.canonical >= self.nodes:
            return 0
        return -self.columns_filled % (self.nodes // self.canonical)

    @property
    def size(self) -> int:
        """Elements of the matrix."""
        return self.canonical * (self.columns_filled + self.pad)

    def _pad_sources(self) -> range:
        width = self.columns_filled + self.pad
        ratio = self.nodes // self.canonical
        first = width - 2 * self.pad - ratio + 1
        return range(max(first, 0), max(first + self.pad, 0))

    def positions(self, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions in the order of elements, in reading order, of the matrix."""
        column, row = np.divmod(elements, self.canonical)
        filled = self.columns_filled
        if self.is_cyclic:
            return (row * (filled + self.pad) + column) % max(self.samples, 1)
        if self.pad:
            sources = np.array(self._pad_sources())
            added = column >= filled
            at = (column[added] - filled) if len(sources) == self.pad else 0
            column[added] = sources[at]
        start = row * self.samples // self.canonical
        column += start
        # The last place of a short row repeats the one before it.
        end = (row + 1) * self.samples // self.canonical
        return np.minimum(column, end - 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Deal:
    """Positions dealt to ``matrix.nodes`` nodes, ``ranks`` on each, after dropping the first."""

    matrix: Matrix
    ranks: int
    drop: int = 0

    def __post_init__(self) -> None:
        if self.matrix.is_cyclic:
            warnings.warn(
                f"{self.matrix.samples} samples on {self.matrix.canonical} canonical nodes and "
                f"{self.matrix.nodes} physical nodes: samples are repeated. Use exact=True for "
                "every sample once.",
                stacklevel=2,
            )

    @property
    def left(self) -> int:
        """Elements after the dropped ones."""
        if self.drop < 0:  # as a slice counts from the end
            return min(-self.drop, self.matrix.size)
        return max(self.matrix.size - self.drop, 0)

    @property
    def per_node(self) -> int:
        """Elements of one node, before they are evened out over its ranks."""
        return self.left // self.matrix.nodes

    @property
    def per_rank(self) -> int:
        """Elements of one rank."""
        return -(-self.per_node // self.ranks)

    @property
    def total(self) -> int:
        """Elements of all ranks, with those that are repeated."""
        return self.per_rank * self.ranks * self.matrix.nodes

    def positions(self, dealt: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions of elements as dealt: element t is number t // (P * r) of its rank."""
        node = dealt % self.matrix.nodes
        of_node = dealt // self.matrix.nodes
        mine = self.per_node
        extra = self.per_rank * self.ranks - mine
        if extra:
            over = of_node >= mine
            if self.ranks + extra - 1 <= mine:
                of_node[over] -= self.ranks + extra - 1
            else:
                of_node[over] = (of_node[over] - mine) % mine
        elements = of_node * self.matrix.nodes + node
        return self.matrix.positions(elements + (self.matrix.size - self.left))


def check_drop(samples: int, workers: int, drop: int) -> None:
    """Refuse a resume beyond the end, give or take one round over the ranks (PlanError)."""
    if samples + (workers - samples % workers) < drop:
        raise PlanError(
            f"cannot resume at sample {drop} of an epoch of {samples} samples: the state is of "
            "another dataset or of another epoch size."
        )


def get_partitions(
    algo: str,
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> NDArray[np.int64]:
    """Positions as int64 (nodes, ranks, workers, batches, batch), -1 for padding.

    Raises UnknownNameError for an unknown ``algo`` and PlanError for numbers that do not fit.
    """
    from mds.plan.rows import RandomRows
    from mds.plan.shape import Shape, whole

    shape = Shape(num_physical_nodes, ranks_per_node, workers_per_rank, batch_size)
    rows = RandomRows.make(
        algo,
        num_samples,
        num_canonical_nodes,
        shape,
        drop_first,
        initial_physical_nodes,
    )
    return whole(shape, rows)


def unknown_algorithm(algo: str) -> UnknownNameError:
    """The error for a partition algorithm that does not exist."""
    return UnknownNameError(f"no partition_algo {algo!r}: choose one of {', '.join(ALGORITHMS)}.")
