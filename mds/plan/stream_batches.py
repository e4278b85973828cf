"""Global batches made of several streams: the methods of batching by stream, and schedules.

- `PerStreamBatches`: every global batch is from one stream.
- `DevicePerStreamBatches`: the batch of every rank is from one stream.
- `StratifiedBatches`: every global batch has samples of all streams, by their shares.
- `ScheduledBatches`: the same, by shares that change.

All are arithmetic on step numbers. The first two also keep a shuffled list of the stream of each
batch.

The batches of a schedule are full, since a stream begins again when all its samples have come. The
samples of such a batch are laid out stream by stream and taken in strides of about the golden
ratio, the same in every world: so each rank gets every stream by its share, and so does each part
of its batch.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError, StreamPlanError
from mds.plan.global_batches import RandomBatches, warn_repeated
from mds.plan.partition import Gaps, PaddedGrid, Partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mds.plan.global_batches import Lookup, PartitionSpec
    from mds.plan.mixture import Mixture

    Ids = NDArray[np.int64]


class StreamBatches(abc.ABC):
    """Global batches made of several streams, of which whole ones are dropped at a resume.

    Of a step of which a part was seen, only what was not seen is left.
    """

    def __init__(self, total: int, spec: PartitionSpec) -> None:
        self.shape = spec.shape
        first, seen_slots = divmod(spec.drop, self.shape.global_batch)
        if not spec.is_precise:
            warn_repeated(seen_slots)
            seen_slots = 0
        # As in a slice: nothing remains after the end, and a negative number counts from the end.
        first = max(total + first, 0) if first < 0 else min(first, total)
        size = self.shape.global_batch
        skips = [(begin // size, -(-end // size)) for begin, end in spec.skips]
        self._gaps = Gaps([(0, first), *skips])
        # Nothing of a step that is skipped was seen of the one that comes instead.
        self._seen_slots = seen_slots if self._gaps.place(0) == first else 0
        self.count = self._gaps.number(total)
        self.filled = self.shape.batch if self.count else 0

    @property
    def shares(self) -> tuple[int, int]:
        """Fewest and most samples that a rank gets."""
        if not self.count:
            return 0, 0
        slots = self.shape.slots(0, self.shape.world)
        minimum, maximum = self.shape.shares(self.shape.deal(slots) >= self._seen_slots)
        later = (self.count - 1) * self.shape.batch
        return minimum + later, maximum + later

    def block(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of steps and slots."""
        out = self._fill(self._gaps.places(steps), slots, lookups)
        if self._seen_slots and len(steps) and int(steps.min()) == 0:
            is_seen = self.shape.deal(slots) < self._seen_slots
            out[(steps == 0)[:, None] & is_seen] = -1
        return out

    def whole(self, first: int, last: int, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of all slots of the steps ``first`` to ``last`` - 1."""
        return self.block(np.arange(first, last), np.arange(self.shape.global_batch), lookups)

    def find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of positions of a stream's order."""
        step, slot = self._find(stream, positions)
        real = self._gaps.is_in_no_gap(step)
        step, slot = self._gaps.numbers(step[real]), slot[real]
        remains = (step > 0) | (self.shape.deal(slot) >= self._seen_slots)
        return step[remains], slot[remains]

    def marks(self, steps: Ids, slots: Ids) -> Ids:
        """Return the first element of the step: the slots in it depend on the world."""
        first = self._gaps.places(steps)[:, None] * self.shape.global_batch
        return np.broadcast_to(first, (len(steps), len(slots)))

    def canonical_nodes_of(self, node: int) -> Ids:
        """Return all: a node reads from each of them in turn."""
        del node
        return np.arange(self._canonical)

    _canonical: int

    @abc.abstractmethod
    def _fill(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids: ...

    @abc.abstractmethod
    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Origins:
    """Table of batches: the stream of each, and its number in that stream."""

    stream: NDArray[np.unsignedinteger]
    number: NDArray[np.unsignedinteger]

    @classmethod
    def shuffled(cls, counts: Sequence[int], rng: np.random.Generator) -> Origins:
        """Return ``counts[i]`` batches of stream i in an order drawn from ``rng``."""
        total = sum(counts)
        kind = np.min_scalar_type(max(len(counts) - 1, 0))
        stream = np.repeat(np.arange(len(counts), dtype=kind), counts)
        rng.shuffle(stream)
        number = np.empty(total, np.min_scalar_type(max(total, 1)))
        for i, count in enumerate(counts):
            number[stream == i] = np.arange(count, dtype=number.dtype)
        return cls(stream, number)

    def find(self, stream: int, numbers: Ids) -> tuple[Ids, Ids]:
        """Return which batches of a stream exist (indexes of ``numbers``), and their places."""
        places = np.flatnonzero(self.stream == stream)
        existing = np.flatnonzero(numbers < len(places))
        return existing, places[numbers[existing]]


class PerStreamBatches(StreamBatches):
    """Batching method per_stream: every global batch from one stream."""

    def __init__(
        self, samples: Sequence[int], spec: PartitionSpec, rng: np.random.Generator
    ) -> None:
        self._batches = _whole_streams(samples, spec)
        counts = [batches.full for batches in self._batches]
        _require_full_batch(counts, "global batch", spec.shape.global_batch)
        self._origins = Origins.shuffled(counts, rng)
        super().__init__(sum(counts), spec)

    def canonical_nodes_of(self, node: int) -> Ids:
        """Return the canonical nodes that a physical node reads, the same in all streams."""
        return np.unique(
            np.concatenate([batches.canonical_nodes_of(node) for batches in self._batches])
        )

    def _fill(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        stream, number = self._origins.stream[steps], self._origins.number[steps]
        out = np.empty((len(steps), len(slots)), np.int64)
        for i in np.unique(stream).tolist():
            mine = stream == i
            out[mine] = self._batches[i].block(number[mine].astype(np.int64), slots, [lookups[i]])
        return out

    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        number, slot = self._batches[stream].find(0, positions)
        existing, step = self._origins.find(stream, number)
        return step, slot[existing]


class StratifiedBatches(StreamBatches):
    """Batching method stratified: every global batch from all streams, each with its share."""

    def __init__(
        self, samples: Sequence[int], proportions: Sequence[float], spec: PartitionSpec
    ) -> None:
        self._canonical, initial = spec.canonical, spec.initial_shape or spec.shape
        self._initial_shape = initial
        self._parts = stratify(proportions, spec.shape.global_batch)
        self._ends = np.cumsum(self._parts)
        self._partitions = [
            Partition(PaddedGrid(count, spec.canonical, 1), 1, initial.ranks) for count in samples
        ]
        shares = zip(self._partitions, self._parts, strict=True)
        self._total = min(
            (partition.total // part for partition, part in shares if part), default=0
        )
        super().__init__(self._total, spec)

    def _fill(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        # The slots of the initial world, which are dealt in the same order, so that what was
        # seen of a step is the same in both.
        slots = self._initial_shape.dealt(self.shape.deal(slots))
        stream = np.searchsorted(self._ends, slots, side="right")
        out = np.empty((len(steps), len(slots)), np.int64)
        for i in np.unique(stream).tolist():
            mine = np.flatnonzero(stream == i)
            part = self._parts[i]
            offset = slots[mine] - (self._ends[i] - part)
            numbers = (steps[:, None] * part + offset).reshape(-1)
            ids = lookups[i](self._partitions[i].positions(numbers))
            out[:, mine] = ids.reshape(len(steps), len(mine))
        return out

    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        part = self._parts[stream]
        if not part:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        step, offset = np.divmod(self._partitions[stream].find(positions), part)
        is_complete = step < self._total
        slot = offset[is_complete] + int(self._ends[stream]) - part
        return step[is_complete], self.shape.dealt(self._initial_shape.deal(slot))


class DevicePerStreamBatches(StreamBatches):
    """Batching method device_per_stream: every rank's batch from one stream."""

    def __init__(
        self, samples: Sequence[int], spec: PartitionSpec, rng: np.random.Generator
    ) -> None:
        shape, self._canonical = spec.shape, spec.canonical
        if self._canonical % shape.nodes:
            raise PlanError(
                f"canonical nodes {self._canonical} and physical nodes {shape.nodes}: "
                "device_per_stream needs canonical nodes to be a multiple of physical nodes."
            )
        self._share = self._canonical // shape.nodes
        self._partitions = [
            Partition(
                PaddedGrid(count, self._canonical, self._canonical), self._canonical, shape.ranks
            )
            for count in samples
        ]
        self._counts = [
            partition.total // shape.nodes // shape.batch for partition in self._partitions
        ]
        _require_full_batch(self._counts, "rank's batch", shape.batch)
        self._origins = [Origins.shuffled(self._counts, rng) for _ in range(shape.nodes)]
        self._length = sum(self._counts)
        # One more round of padding where none is needed: the incumbent does so.
        padded = (self._length // shape.world + 1) * shape.world
        super().__init__(padded // shape.ranks, spec)

    def _fill(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        shape = self.shape
        device, offset = np.divmod(slots, shape.batch)
        # Batches of the nodes are taken in cycle, and then dealt to all ranks in cycle.
        batch = steps[:, None] * shape.world + device
        number, node = np.divmod(batch, shape.nodes)
        out = np.full(batch.shape, -1, np.int64)
        offset = np.broadcast_to(offset, batch.shape)
        for p, origins in enumerate(self._origins):
            is_here = (node == p) & (number < self._length)
            stream = np.full(batch.shape, -1, np.int64)
            stream[is_here] = origins.stream[number[is_here]]
            for i in np.unique(stream[is_here]).tolist():
                mine = stream == i
                of_stream = origins.number[number[mine]].astype(np.int64)
                numbers = self._partition_index(of_stream * shape.batch + offset[mine], p)
                out[mine] = lookups[i](self._partitions[i].positions(numbers))
        return out

    def _partition_index(self, sequence: Ids, node: int) -> Ids:
        """Return elements, as dealt, of the sequence that a node reads from its canonical nodes."""
        line, rank = np.divmod(sequence, self.shape.ranks)
        cycle, mine = np.divmod(line, self._share)
        element = cycle * self.shape.ranks + rank
        return element * self._canonical + node * self._share + mine

    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        shape = self.shape
        element, canonical = np.divmod(self._partitions[stream].find(positions), self._canonical)
        node, mine = np.divmod(canonical, self._share)
        cycle, rank = np.divmod(element, shape.ranks)
        of_stream, offset = np.divmod(
            (cycle * self._share + mine) * shape.ranks + rank, shape.batch
        )
        steps, slots = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for p, origins in enumerate(self._origins):
            rows = np.flatnonzero(node == p)
            existing, number = origins.find(stream, of_stream[rows])
            step, device = np.divmod(number * shape.nodes + p, shape.world)
            steps.append(step)
            slots.append(device * shape.batch + offset[rows[existing]])
        return np.concatenate(steps), np.concatenate(slots)


def stratify(proportions: Sequence[float], size: int) -> list[int]:
    """Return how many samples of a global batch of ``size`` each stream gives.

    Places left by rounding down go to the largest remainders, of equal ones to the later stream.
    Raises PlanError when a stream that gives samples would give none.
    """
    shares = np.array(proportions, np.float64)
    parts = np.array([int(share * size) for share in proportions], np.int64)
    remainders = size * shares - parts
    short = size - int(parts.sum())
    if short:
        order = np.lexsort((np.arange(len(parts)), remainders))[::-1]
        parts[order[:short]] += 1
    for i, part in enumerate(parts.tolist()):
        if part <= 0 < proportions[i]:
            raise StreamPlanError(
                f"stream {i} has {proportions[i]:.3g} of the epoch, which is less than one sample "
                f"of a global batch of {size}: enlarge the batch or the stream's share.",
                i,
            )
    return [int(part) for part in parts]


def full_batches(samples: Sequence[int], spec: PartitionSpec) -> list[int]:
    """Return how many batches each stream gives to per_stream, which decides the order of all.

    Streams are padded to be even for nodes and ranks, so worlds with equal global batches can
    differ in them.
    """
    return [batches.full for batches in _whole_streams(samples, spec)]


def _whole_streams(samples: Sequence[int], spec: PartitionSpec) -> list[RandomBatches]:
    fresh = dataclasses.replace(spec, drop=0, skips=())
    return [RandomBatches(count, fresh) for count in samples]


def _require_full_batch(counts: Sequence[int], kind: str, size: int) -> None:
    for i, count in enumerate(counts):
        if not count:
            raise StreamPlanError(
                f"stream {i} does not fill one {kind} of {size} samples: choose more of it, use a "
                "smaller batch, or batching_method 'random'.",
                i,
            )


class ScheduledBatches(StreamBatches):
    """Global batches ``first`` to ``last`` - 1 of a run.

    There is one lookup, from streams and turns (`mds.plan.passes`) to sample ids.
    """

    def __init__(self, mixture: Mixture, first: int, last: int, spec: PartitionSpec) -> None:
        self._mixture, self._begin, self._canonical = mixture, first, spec.canonical
        size = mixture.batch
        stride = stride_of(size)
        self._places = np.arange(size, dtype=np.int64) * stride % size
        self._back = pow(stride, -1, size) if size > 1 else 0
        super().__init__(last - first, spec)

    def marks(self, steps: Ids, slots: Ids) -> Ids:
        """Return the number of the sample in the epoch."""
        first = self._gaps.places(steps)[:, None] * self.shape.global_batch
        return first + self.shape.deal(slots)

    def _fill(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        positions = self._positions(steps + self._begin, self._places[self.shape.deal(slots)])
        return lookups[0](positions).reshape(len(steps), len(slots))

    def _positions(self, steps: Ids, places: Ids) -> Ids:
        """Return streams and turns of places in ascending steps of the run, step after step."""
        streams, size = self._mixture.streams, self._mixture.batch
        begin, end = self._mixture.ranges(steps)
        ends = (end - begin).cumsum(axis=1)
        row = np.arange(len(steps)) * size
        numbers = (places + row[:, None]).reshape(-1)
        lines = (ends + row[:, None]).reshape(-1)
        lines_of = lines.searchsorted(numbers, side="right")
        # A stream's first place in the batch is where the one before it ends.
        shift = end.reshape(-1) - lines
        out = np.empty((2, len(numbers)), np.int64)
        np.remainder(lines_of, streams, out=out[0])
        np.add(shift[lines_of], numbers, out=out[1])
        return out

    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        del stream  # one order has all of them
        parts = [
            self._find_turns(of, positions[1][positions[0] == of])
            for of in np.unique(positions[0]).tolist()
        ]
        steps, slots = zip(*parts, strict=True) if parts else ([np.zeros(0, np.int64)],) * 2
        return np.concatenate(steps), np.concatenate(slots)

    def _find_turns(self, stream: int, turns: Ids) -> tuple[Ids, Ids]:
        step = self._mixture.steps_of_turns(stream, turns)
        counts = self._mixture.counts(np.concatenate([step, step + 1]))
        begin, end = counts.reshape(2, len(step), self._mixture.streams)
        first = np.cumsum(end - begin, axis=1)[:, stream] - (end - begin)[:, stream]
        place = first + turns - begin[:, stream]
        number = place * self._back % self._mixture.batch
        return step - self._begin, self.shape.dealt(number)


def stride_of(size: int) -> int:
    """Return the number nearest to ``size`` times the golden ratio without a common factor."""
    ideal = size * (math.sqrt(5) - 1) / 2
    near = round(ideal)
    candidates = (near + sign * k for k in range(size + 1) for sign in (1, -1))
    return next((c for c in candidates if c > 0 and math.gcd(c, size) == 1), 1)
