"""The batching methods that put global batches together from several streams.

Each is arithmetic on row numbers. What has to be kept is, for the methods that deal whole batches
to streams, the shuffled list of which stream each batch is from.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError
from mds.plan.partition import Deal, Matrix
from mds.plan.rows import RandomRows, tell_repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from mds.plan.rows import Dealing

    Ids = NDArray[np.int64]
    Take = Callable[[Ids], Ids]


class MixedRows(abc.ABC):
    """Rows made of several streams, of which whole ones are dropped at a resume.

    Of a row of which a part was seen, only what was not seen is left.
    """

    def __init__(self, total: int, dealing: Dealing) -> None:
        self.shape = dealing.shape
        first, seen = divmod(dealing.drop, self.shape.row)
        if not dealing.is_precise:
            tell_repeated(seen)
            seen = 0
        # As a slice does: beyond the end nothing is left, below zero counts from the end.
        self._first = max(total + first, 0) if first < 0 else min(first, total)
        self._seen = seen
        self.count = total - self._first

    def block(self, rows: Ids, places: Ids, takes: Sequence[Take]) -> Ids:
        """Sample ids of rows and places."""
        out = self._fill(rows + self._first, places, takes)
        if self._seen and len(rows) and int(rows.min()) == 0:
            seen = self.shape.numbers[places] < self._seen
            out[(rows == 0)[:, None] & seen] = -1
        return out

    def whole(self, first: int, last: int, takes: Sequence[Take]) -> Ids:
        """Sample ids of all places of the rows ``first`` to ``last`` - 1."""
        return self.block(np.arange(first, last), np.arange(self.shape.row), takes)

    def find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Rows and places at which positions of a stream's order are."""
        row, place = self._find(stream, positions)
        row = row - self._first
        left = (row > 0) | ((row == 0) & (self.shape.numbers[place] >= self._seen))
        return row[left], place[left]

    def marks(self, rows: Ids, places: Ids) -> Ids:
        """The first element of the row: the places in it depend on the world."""
        first = (rows[:, None] + self._first) * self.shape.row
        return np.broadcast_to(first, (len(rows), len(places)))

    def canonical_of(self, node: int) -> Ids:
        """All: what a node reads moves from node to node."""
        del node
        return np.arange(self._canonical)

    _canonical: int

    @abc.abstractmethod
    def _fill(self, rows: Ids, places: Ids, takes: Sequence[Take]) -> Ids: ...

    @abc.abstractmethod
    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Origins:
    """Which stream each batch is of, and which batch of that stream it is."""

    stream: NDArray[np.unsignedinteger]
    number: NDArray[np.unsignedinteger]

    @classmethod
    def shuffled(cls, counts: Sequence[int], rng: np.random.Generator) -> Origins:
        """``counts[i]`` batches of stream i in an order drawn from ``rng``."""
        total = sum(counts)
        kind = np.min_scalar_type(max(len(counts) - 1, 0))
        stream = np.repeat(np.arange(len(counts), dtype=kind), counts)
        rng.shuffle(stream)
        number = np.empty(total, np.min_scalar_type(max(total, 1)))
        for i, count in enumerate(counts):
            number[stream == i] = np.arange(count, dtype=number.dtype)
        return cls(stream, number)

    def find(self, stream: int, numbers: Ids) -> tuple[Ids, Ids]:
        """Of batches of a stream: which there are (indexes of ``numbers``), and where."""
        where = np.flatnonzero(self.stream == stream)
        known = np.flatnonzero(numbers < len(where))
        return known, where[numbers[known]]


class PerStreamRows(MixedRows):
    """Every global batch from one stream."""

    def __init__(self, samples: Sequence[int], dealing: Dealing, rng: np.random.Generator) -> None:
        fresh = dataclasses.replace(dealing, drop=0)
        self._rows = [RandomRows(count, fresh) for count in samples]
        counts = [rows.full for rows in self._rows]
        _refuse_empty(counts, "global batch", dealing.shape.row)
        self._origins = Origins.shuffled(counts, rng)
        super().__init__(sum(counts), dealing)

    def canonical_of(self, node: int) -> Ids:
        """The canonical nodes whose samples a physical node reads, the same in all streams."""
        return np.unique(np.concatenate([rows.canonical_of(node) for rows in self._rows]))

    def _fill(self, rows: Ids, places: Ids, takes: Sequence[Take]) -> Ids:
        stream, number = self._origins.stream[rows], self._origins.number[rows]
        out = np.empty((len(rows), len(places)), np.int64)
        for i in np.unique(stream).tolist():
            mine = stream == i
            out[mine] = self._rows[i].block(number[mine].astype(np.int64), places, [takes[i]])
        return out

    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        number, place = self._rows[stream].find(0, positions)
        known, row = self._origins.find(stream, number)
        return row, place[known]


class StratifiedRows(MixedRows):
    """Every global batch from all streams, each with its share."""

    def __init__(
        self, samples: Sequence[int], proportions: Sequence[float], dealing: Dealing
    ) -> None:
        self._canonical = dealing.canonical
        self._parts = stratify(proportions, dealing.shape.row)
        self._ends = np.cumsum(self._parts)
        self._deals = [
            Deal(Matrix(count, dealing.canonical, 1), 1, dealing.shape.ranks) for count in samples
        ]
        shares = zip(self._deals, self._parts, strict=True)
        self._total = min((deal.total // part for deal, part in shares if part), default=0)
        super().__init__(self._total, dealing)

    def _fill(self, rows: Ids, places: Ids, takes: Sequence[Take]) -> Ids:
        stream = np.searchsorted(self._ends, places, side="right")
        out = np.empty((len(rows), len(places)), np.int64)
        for i in np.unique(stream).tolist():
            mine = np.flatnonzero(stream == i)
            part = self._parts[i]
            offset = places[mine] - (self._ends[i] - part)
            numbers = (rows[:, None] * part + offset).reshape(-1)
            found = takes[i](self._deals[i].positions(numbers))
            out[:, mine] = found.reshape(len(rows), len(mine))
        return out

    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        part = self._parts[stream]
        if not part:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        row, offset = np.divmod(self._deals[stream].find(positions), part)
        kept = row < self._total
        return row[kept], offset[kept] + int(self._ends[stream]) - part


class DevicePerStreamRows(MixedRows):
    """Every rank's batch from one stream."""

    def __init__(self, samples: Sequence[int], dealing: Dealing, rng: np.random.Generator) -> None:
        shape, self._canonical = dealing.shape, dealing.canonical
        if self._canonical % shape.nodes:
            raise PlanError(
                f"canonical nodes {self._canonical} and physical nodes {shape.nodes}: "
                "device_per_stream needs canonical nodes to be a multiple of physical nodes."
            )
        self._share = self._canonical // shape.nodes
        self._deals = [
            Deal(Matrix(count, self._canonical, self._canonical), self._canonical, shape.ranks)
            for count in samples
        ]
        self._counts = [deal.total // shape.nodes // shape.batch for deal in self._deals]
        _refuse_empty(self._counts, "rank's batch", shape.batch)
        self._origins = [Origins.shuffled(self._counts, rng) for _ in range(shape.nodes)]
        self._length = sum(self._counts)
        # One more round of padding where none is needed: the incumbent does so.
        padded = (self._length // shape.world + 1) * shape.world
        super().__init__(padded // shape.ranks, dealing)

    def _fill(self, rows: Ids, places: Ids, takes: Sequence[Take]) -> Ids:
        shape = self.shape
        device, offset = np.divmod(places, shape.batch)
        # Batches of the nodes are taken in turn, and then dealt to all ranks in turn.
        batch = rows[:, None] * shape.world + device
        number, node = np.divmod(batch, shape.nodes)
        out = np.full(batch.shape, -1, np.int64)
        offset = np.broadcast_to(offset, batch.shape)
        for p, origins in enumerate(self._origins):
            there = (node == p) & (number < self._length)
            stream = np.full(batch.shape, -1, np.int64)
            stream[there] = origins.stream[number[there]]
            for i in np.unique(stream[there]).tolist():
                mine = stream == i
                of_stream = origins.number[number[mine]].astype(np.int64)
                numbers = self._dealt(of_stream * shape.batch + offset[mine], p)
                out[mine] = takes[i](self._deals[i].positions(numbers))
        return out

    def _dealt(self, sequence: Ids, node: int) -> Ids:
        """Elements, as dealt, of the sequence that a node reads from its canonical nodes."""
        line, rank = np.divmod(sequence, self.shape.ranks)
        step, mine = np.divmod(line, self._share)
        element = step * self.shape.ranks + rank
        return element * self._canonical + node * self._share + mine

    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        shape = self.shape
        element, canonical = np.divmod(self._deals[stream].find(positions), self._canonical)
        node, mine = np.divmod(canonical, self._share)
        step, rank = np.divmod(element, shape.ranks)
        of_stream, offset = np.divmod((step * self._share + mine) * shape.ranks + rank, shape.batch)
        rows, places = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for p, origins in enumerate(self._origins):
            here = np.flatnonzero(node == p)
            known, number = origins.find(stream, of_stream[here])
            row, device = np.divmod(number * shape.nodes + p, shape.world)
            rows.append(row)
            places.append(device * shape.batch + offset[here[known]])
        return np.concatenate(rows), np.concatenate(places)


def stratify(proportions: Sequence[float], row: int) -> list[int]:
    """How many samples of a global batch of ``row`` each stream gives.

    Places left by rounding down go to the largest remainders, of equal ones to the later stream.
    Raises PlanError when a stream that gives samples would give none.
    """
    shares = np.array(proportions, np.float64)
    parts = np.array([int(share * row) for share in proportions], np.int64)
    rest = row * shares - parts
    short = row - int(parts.sum())
    if short:
        order = np.lexsort((np.arange(len(parts)), rest))[::-1]
        parts[order[:short]] += 1
    for i, part in enumerate(parts.tolist()):
        if part <= 0 < proportions[i]:
            raise PlanError(
                f"stream {i} has {proportions[i]:.3g} of the epoch, which is less than one sample "
                f"of a global batch of {row}: enlarge the batch or the stream's share."
            )
    return [int(part) for part in parts]


def _refuse_empty(counts: Sequence[int], what: str, size: int) -> None:
    for i, count in enumerate(counts):
        if not count:
            raise PlanError(
                f"stream {i} does not fill one {what} of {size} samples: choose more of it, use a "
                "smaller batch, or batching_method 'random'."
            )
