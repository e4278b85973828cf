"""The batching methods: how global batches are put together from one stream or from several.

Each is arithmetic on row numbers. What has to be kept is, for the methods that deal whole batches
to streams, the shuffled list of which stream each batch is from.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError
from mds.plan.partition import ALGORITHMS, Deal, Matrix, check_drop, unknown_algorithm
from mds.plan.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Look = Callable[[NDArray[np.int64]], NDArray[np.int64]]


def _same(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return positions


@dataclasses.dataclass(frozen=True, eq=False)
class RandomRows:
    """Rows dealt from one order; ``dealt`` is the shape that the order was first dealt for."""

    deal: Deal
    dealt: Shape
    offsets: NDArray[np.int64]
    look_up: Look

    @classmethod
    def make(
        cls,
        algo: str,
        samples: int,
        canonical: int,
        shape: Shape,
        drop: int = 0,
        initial: int | None = None,
        look_up: Look = _same,
    ) -> RandomRows:
        """Rows of ``samples`` positions; see get_partitions for the rest."""
        if algo not in ALGORITHMS:
            raise unknown_algorithm(algo)
        check_drop(samples, shape.world, drop)
        if canonical < 1:
            raise PlanError(f"canonical nodes {canonical}: there must be at least one.")
        dealt = shape
        fits = canonical % shape.nodes == 0 or shape.nodes % canonical == 0
        if algo == "relaxed" and initial is not None and not fits:
            if shape.row % (initial * shape.ranks):
                raise PlanError(
                    f"a global batch of {shape.row} samples cannot be dealt to the {initial} nodes "
                    f"of {shape.ranks} ranks that the run began with: keep the global batch size "
                    f"a multiple of {initial * shape.ranks}."
                )
            batch = shape.row // (initial * shape.ranks)
            dealt = Shape(initial, shape.ranks, shape.workers, batch)
        drop -= drop % dealt.nodes
        deal = Deal(Matrix(samples, canonical, dealt.nodes), shape.ranks, drop)
        return cls(deal, dealt, dealt.offsets(), look_up)

    @property
    def count(self) -> int:
        """Rows, the last of which may be short."""
        return -(-self.deal.per_rank // self.dealt.batch)

    @property
    def full(self) -> int:
        """Rows without padding."""
        return self.deal.per_rank // self.dealt.batch

    def block(self, rows: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample ids of rows and places."""
        numbers = rows[:, None] * self.dealt.row + self.offsets[places][None, :]
        out = np.full(numbers.shape, -1, np.int64)
        real = numbers < self.deal.total
        out[real] = self.look_up(self.deal.positions(numbers[real]))
        return out


def _deal_all(samples: int, canonical: int, nodes: int, ranks: int) -> Deal:
    return Deal(Matrix(samples, canonical, nodes), ranks)


@dataclasses.dataclass(frozen=True, eq=False)
class Origins:
    """Which stream each row is of, and which row of that stream it is."""

    stream: NDArray[np.unsignedinteger]
    number: NDArray[np.unsignedinteger]

    @classmethod
    def shuffled(cls, counts: Sequence[int], rng: np.random.Generator) -> Origins:
        """``counts[i]`` rows of stream i in an order drawn from ``rng``."""
        total = sum(counts)
        kind = np.min_scalar_type(max(len(counts) - 1, 0))
        stream = np.repeat(np.arange(len(counts), dtype=kind), counts)
        rng.shuffle(stream)
        number = np.empty(total, np.min_scalar_type(max(total, 1)))
        for i, count in enumerate(counts):
            number[stream == i] = np.arange(count, dtype=number.dtype)
        return cls(stream, number)


class PerStreamRows:
    """Every global batch from one stream."""

    def __init__(
        self,
        sources: Sequence[tuple[int, Look]],
        canonical: int,
        shape: Shape,
        drop: int,
        rng: np.random.Generator,
        make: Callable[[int, Look], RandomRows],
    ) -> None:
        del canonical
        self._rows = [make(samples, look_up) for samples, look_up in sources]
        self._shape = shape
        counts = [rows.full for rows in self._rows]
        refuse_empty(counts, "global batch", shape.row)
        self._origins = Origins.shuffled(counts, rng)
        total = len(self._origins.stream)
        self._first = _dropped(drop, shape.row, total)
        self.count = total - self._first

    def block(self, rows: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample ids of rows and places."""
        stream = self._origins.stream[rows + self._first]
        number = self._origins.number[rows + self._first].astype(np.int64)
        out = np.empty((len(rows), len(places)), np.int64)
        for i in np.unique(stream):
            mine = stream == i
            out[mine] = self._rows[i].block(number[mine], places)
        return out


class StratifiedRows:
    """Every global batch from all streams, each with its share."""

    def __init__(
        self,
        sources: Sequence[tuple[int, Look]],
        proportions: Sequence[float],
        canonical: int,
        shape: Shape,
        drop: int,
    ) -> None:
        self._parts = stratify(proportions, shape.row)
        self._look_ups = [look_up for _, look_up in sources]
        self._deals = [_deal_all(samples, canonical, 1, shape.ranks) for samples, _ in sources]
        self._edges = np.cumsum(self._parts)
        total = min(d.total // part for d, part in zip(self._deals, self._parts, strict=True))
        self._first = _dropped(drop, shape.row, total)
        self.count = total - self._first

    def block(self, rows: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample ids of rows and places."""
        stream = np.searchsorted(self._edges, places, side="right")
        out = np.empty((len(rows), len(places)), np.int64)
        for i in np.unique(stream):
            mine = stream == i
            part = self._parts[i]
            place = places[mine] - (self._edges[i] - part)
            numbers = (rows[:, None] + self._first) * part + place[None, :]
            out[:, mine] = self._look_ups[i](self._deals[i].positions(numbers))
        return out


class DevicePerStreamRows:
    """Every rank's batch from one stream."""

    def __init__(
        self,
        sources: Sequence[tuple[int, Look]],
        canonical: int,
        shape: Shape,
        drop: int,
        rng: np.random.Generator,
    ) -> None:
        if canonical % shape.nodes:
            raise PlanError(
                f"canonical nodes {canonical} and physical nodes {shape.nodes}: device_per_stream "
                "needs canonical nodes to be a multiple of physical nodes."
            )
        self._shape, self._canonical = shape, canonical
        self._look_ups = [look_up for _, look_up in sources]
        self._deals = [
            _deal_all(samples, canonical, canonical, shape.ranks) for samples, _ in sources
        ]
        per_node = canonical // shape.nodes * shape.ranks
        counts = [deal.per_rank * per_node // shape.batch for deal in self._deals]
        refuse_empty(counts, "rank's batch", shape.batch)
        self._origins = [Origins.shuffled(counts, rng) for _ in range(shape.nodes)]
        self._length = sum(counts)
        # One more round of padding where none is needed: the incumbent does so.
        padded = (self._length // shape.world + 1) * shape.world
        total = padded // shape.ranks
        self._first = _dropped(drop, shape.row, total)
        self.count = total - self._first

    def block(self, rows: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample ids of rows and places."""
        shape = self._shape
        device, offset = np.divmod(places, shape.batch)
        # Batches of the nodes are taken in turn, and then dealt to all ranks in turn.
        batch = (rows[:, None] + self._first) * shape.world + device[None, :]
        number, node = np.divmod(batch, shape.nodes)
        out = np.full(batch.shape, -1, np.int64)
        offset = np.broadcast_to(offset, batch.shape)
        for p, origins in enumerate(self._origins):
            there = (node == p) & (number < self._length)
            stream = np.full(batch.shape, -1, np.int64)
            stream[there] = origins.stream[number[there]]
            for i in np.unique(stream[there]):
                mine = stream == i
                of_stream = origins.number[number[mine]].astype(np.int64)
                sequence = of_stream * shape.batch + offset[mine]
                out[mine] = self._take(int(i), p, sequence)
        return out

    def _take(self, stream: int, node: int, sequence: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids at places of the sequence that one node reads from its canonical nodes."""
        share = self._canonical // self._shape.nodes
        line, rank = np.divmod(sequence, self._shape.ranks)
        step, mine = np.divmod(line, share)
        element = step * self._shape.ranks + rank
        numbers = element * self._canonical + node * share + mine
        return self._look_ups[stream](self._deals[stream].positions(numbers))


def stratify(proportions: Sequence[float], row: int) -> list[int]:
    """How many samples of a global batch of ``row`` each stream gives.

    Places left by rounding down go to the largest remainders, of equal ones to the later stream.
    Raises PlanError when a stream would give none.
    """
    wanted = row * np.array(proportions, np.float64)
    parts = np.array([int(q * row) for q in proportions], np.int64)
    rest = wanted - parts
    short = row - int(parts.sum())
    if short:
        order = np.lexsort((np.arange(len(parts)), rest))[::-1]
        parts[order[:short]] += 1
    for i, part in enumerate(parts.tolist()):
        if part <= 0:
            raise PlanError(
                f"stream {i} has {proportions[i]:.3g} of the epoch, which is less than one sample "
                f"of a global batch of {row}: enlarge the batch or the stream's share."
            )
    return parts.tolist()  # type: ignore[no-any-return]


def refuse_empty(counts: Sequence[int], what: str, size: int) -> None:
    """Refuse a stream that does not fill a single batch (PlanError)."""
    for i, count in enumerate(counts):
        if not count:
            raise PlanError(
                f"stream {i} does not fill one {what} of {size} samples: choose more of it, use a "
                "smaller batch, or batching_method 'random'."
            )


def _dropped(drop: int, row: int, total: int) -> int:
    # As a slice does: beyond the end nothing is left, below zero counts from the end.
    first = drop // row
    return max(total + first, 0) if first < 0 else min(first, total)
