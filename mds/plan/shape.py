"""The world as the plan sees it: nodes, ranks, workers and the size of a rank's batch.

A *row* is one global batch: what all ranks see in one step. A *place* is where in it a sample is:
node by node, rank by rank, position by position. Row n is the batch number n // workers of worker
n % workers, of every rank.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Nodes, ranks of a node, workers of a rank, samples of a rank's batch."""

    nodes: int
    ranks: int
    workers: int
    batch: int

    @property
    def world(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.ranks

    @property
    def row(self) -> int:
        """Samples of a global batch."""
        return self.world * self.batch

    def offsets(self) -> NDArray[np.int64]:
        """For each place of a row, its number when a row is dealt round by round, int64 (row,)."""
        grid = np.arange(self.row, dtype=np.int64).reshape(self.batch, self.ranks, self.nodes)
        return np.ascontiguousarray(grid.transpose(2, 1, 0)).reshape(-1)


class Rows(Protocol):
    """The global batches of an epoch."""

    @property
    def count(self) -> int:
        """How many there are."""

    def block(self, rows: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample ids, int64 (rows, places), -1 for nothing."""


def batches(shape: Shape, rows: Rows) -> int:
    """Batches of one worker, the last of which may be padding."""
    return -(-rows.count // shape.workers)


def whole(shape: Shape, rows: Rows) -> NDArray[np.int64]:
    """All ids as int64 (nodes, ranks, workers, batches, batch)."""
    count = batches(shape, rows)
    out = np.full((count * shape.workers, shape.row), -1, np.int64)
    step = max(1, (1 << 20) // shape.row)
    places = np.arange(shape.row)
    for first in range(0, rows.count, step):
        last = min(first + step, rows.count)
        out[first:last] = rows.block(np.arange(first, last), places)
    grid = out.reshape(count, shape.workers, shape.nodes, shape.ranks, shape.batch)
    return np.ascontiguousarray(grid.transpose(2, 3, 1, 0, 4))
