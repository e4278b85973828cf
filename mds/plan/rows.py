"""Global batches put together from one order: what all batching methods are made of.

A *row* is one global batch: what all ranks see in one step. A *place* is where in it a sample is:
node by node, rank by rank, position by position. Row n is batch number n // workers of worker
n % workers, of every rank. ``takes`` are the readers of the orders, one for each stream.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mds.errors import PlanError, UnknownNameError
from mds.plan.partition import Deal, Line, Matrix, check_drop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Take = Callable[[Ids], Ids]

ALGORITHMS = ("orig", "relaxed")


@dataclasses.dataclass(frozen=True)
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

    @property
    def per_node(self) -> int:
        """Samples of a global batch that one node sees."""
        return self.ranks * self.batch

    @functools.cached_property
    def numbers(self) -> Ids:
        """For each place of a row, its number when the row is dealt round by round, int64."""
        grid = np.arange(self.row, dtype=np.int64).reshape(self.batch, self.ranks, self.nodes)
        return np.ascontiguousarray(grid.transpose(2, 1, 0)).reshape(-1)


@dataclasses.dataclass(frozen=True)
class Dealing:
    """How an order is dealt.

    ``initial``: physical nodes that the run began with, if known. ``drop``: samples that were seen.
    ``is_precise``: ``drop`` is honoured to the sample, not rounded as the incumbent does.
    ``is_exact``: every sample once.
    """

    shape: Shape
    canonical: int
    algo: str = "relaxed"
    initial: int | None = None
    drop: int = 0
    is_precise: bool = False
    is_exact: bool = False

    def __post_init__(self) -> None:
        if self.algo not in ALGORITHMS:
            names = ", ".join(ALGORITHMS)
            raise UnknownNameError(f"no partition_algo {self.algo!r}: choose one of {names}.")
        if self.canonical < 1:
            raise PlanError(f"canonical nodes {self.canonical}: there must be at least one.")


class Rows(Protocol):
    """The global batches of an epoch."""

    count: int

    def block(self, rows: Ids, places: Ids, takes: Sequence[Take]) -> Ids:
        """Sample ids, int64 (rows, places), -1 for nothing."""

    def whole(self, first: int, last: int, takes: Sequence[Take]) -> Ids:
        """Sample ids of all places of the rows ``first`` to ``last`` - 1."""

    def find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Rows and places at which positions of a stream's order are."""

    def marks(self, rows: Ids, places: Ids) -> Ids:
        """Where in the epoch, int64 (rows, places): equal in worlds with equal global batches."""

    def canonical_of(self, node: int) -> Ids:
        """The canonical nodes whose samples a physical node reads."""


class RandomRows:
    """Rows dealt from one order, for the shape of ``dealing`` or, relaxed, for that of before."""

    def __init__(self, samples: int, dealing: Dealing) -> None:
        shape, drop = dealing.shape, dealing.drop
        if not dealing.is_precise:
            check_drop(samples, shape.world, drop)
        self._shape = shape
        self.dealt = shape if dealing.is_exact else _dealt_shape(dealing)
        matrix: Matrix | Line
        if dealing.is_exact:
            matrix = Line(samples, dealing.canonical)
        else:
            matrix = Matrix(samples, dealing.canonical, self.dealt.nodes)
        if not (dealing.is_precise or dealing.is_exact):
            tell_repeated(drop % self.dealt.nodes)
            drop -= drop % self.dealt.nodes
        self.deal = Deal(
            matrix, self.dealt.nodes, self.dealt.ranks, drop, is_even=not dealing.is_exact
        )
        self.count = -(-self.deal.total // self.dealt.row)
        self.full = self.deal.total // self.dealt.row  # rows without padding

    def block(self, rows: Ids, places: Ids, takes: Sequence[Take]) -> Ids:
        """Sample ids of rows and places."""
        numbers = (rows[:, None] * self.dealt.row + self.dealt.numbers[places]).reshape(-1)
        if len(numbers) and int(numbers.max()) >= self.deal.total:
            out = np.full(len(numbers), -1, np.int64)
            real = np.flatnonzero(numbers < self.deal.total)
            out[real] = takes[0](self.deal.positions(numbers[real]))
        else:
            out = takes[0](self.deal.positions(numbers))
        return out.reshape(len(rows), len(places))

    def whole(self, first: int, last: int, takes: Sequence[Take]) -> Ids:
        """Sample ids of all places of the rows ``first`` to ``last`` - 1."""
        dealt = self.dealt
        begin, end = first * dealt.row, last * dealt.row
        ids = takes[0](self.deal.stretch(begin, min(end, self.deal.total)))
        if len(ids) < end - begin:
            ids = np.concatenate([ids, np.full(end - begin - len(ids), -1, np.int64)])
        # Dealt round by round: positions in the batch, then ranks, then nodes.
        grid = ids.reshape(last - first, dealt.batch, dealt.ranks, dealt.nodes)
        rows: Ids = grid.transpose(0, 3, 2, 1).reshape(last - first, dealt.row)
        return rows

    def find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Rows and places at which positions are."""
        del stream
        row, number = np.divmod(self.deal.find(positions), self.dealt.row)
        return row, np.argsort(self.dealt.numbers)[number]

    def marks(self, rows: Ids, places: Ids) -> Ids:
        """The element of the reading of all canonical nodes."""
        return rows[:, None] * self.dealt.row + self.dealt.numbers[places] + self.deal.offset

    def canonical_of(self, node: int) -> Ids:
        """The canonical nodes whose samples a physical node reads."""
        mine, theirs = self._shape.per_node, self.dealt.per_node
        nodes = range(node * mine // theirs, ((node + 1) * mine - 1) // theirs + 1)
        return np.unique(np.concatenate([self.deal.rows_of(k) for k in nodes]))


def _dealt_shape(dealing: Dealing) -> Shape:
    """The shape to deal for: that of before where the canonical nodes do not fit this one."""
    shape, canonical, initial = dealing.shape, dealing.canonical, dealing.initial
    fits = canonical % shape.nodes == 0 or shape.nodes % canonical == 0
    if dealing.algo == "orig" or initial is None or fits:
        return shape
    if initial < 1 or shape.row % (initial * shape.ranks):
        raise PlanError(
            f"a global batch of {shape.row} samples cannot be dealt to the {initial} nodes of "
            f"{shape.ranks} ranks that the run began with: make the global batch a multiple of "
            f"{initial * shape.ranks} samples."
        )
    return Shape(initial, shape.ranks, shape.workers, shape.row // (initial * shape.ranks))


def tell_repeated(samples: int) -> None:
    """Warn that a state of the incumbent is rounded down, as it would do itself."""
    if samples:
        warnings.warn(
            f"the state's sample_in_epoch is rounded down as its library does: {samples} samples "
            "are seen again.",
            stacklevel=2,
        )
