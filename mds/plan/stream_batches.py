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
    """Global batches made of several streams.

    A resume leaves out the steps that were seen. If a step was seen in part, its remaining samples
    come first. Subclasses implement `_fill` and `_find`, which know only the whole epoch.

    Args:
        total: Number of steps of the whole epoch.
        spec: Shape of the world, and the samples that were seen or skipped.

    Attributes:
        count: Number of steps that remain.
        filled: Slots of each rank that may have a sample.
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
        # Here gaps are of steps: a step is left out if any place of it is skipped.
        skips = [(begin // size, -(-end // size)) for begin, end in spec.skips]
        self._gaps = Gaps([(0, first), *skips])
        # If the step that was seen in part is skipped, nothing was seen of the one that follows.
        self._seen_slots = seen_slots if self._gaps.place(0) == first else 0
        self.count = self._gaps.number(total)
        self.filled = self.shape.batch if self.count else 0

    @property
    def shares(self) -> tuple[int, int]:
        """Fewest and most samples that a rank gets."""
        if not self.count:
            return 0, 0
        # Only the first step may lack samples: those that were seen.
        slots = self.shape.slots(0, self.shape.world)
        minimum, maximum = self.shape.shares(self.shape.deal(slots) >= self._seen_slots)
        later = (self.count - 1) * self.shape.batch
        return minimum + later, maximum + later

    def block(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of steps and slots, int64 (steps, slots), -1 for padding."""
        out = self._fill(self._gaps.places(steps), slots, lookups)
        if self._seen_slots and len(steps) and int(steps.min()) == 0:
            is_seen = self.shape.deal(slots) < self._seen_slots
            out[(steps == 0)[:, None] & is_seen] = -1
        return out

    def whole(self, first: int, last: int, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of all slots of the steps ``first`` to ``last`` - 1."""
        return self.block(np.arange(first, last), np.arange(self.shape.global_batch), lookups)

    def find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of positions of a stream's order that were not seen before."""
        step, slot = self._find(stream, positions)
        real = self._gaps.is_in_no_gap(step)
        step, slot = self._gaps.numbers(step[real]), slot[real]
        remains = (step > 0) | (self.shape.deal(slot) >= self._seen_slots)
        return step[remains], slot[remains]

    def marks(self, steps: Ids, slots: Ids) -> Ids:
        """Return for each step and slot the first place of the step, int64 (steps, slots).

        Which slot has which sample of the step depends on the world, so slots have no places.
        """
        first = self._gaps.places(steps)[:, None] * self.shape.global_batch
        return np.broadcast_to(first, (len(steps), len(slots)))

    def canonical_nodes_of(self, node: int) -> Ids:
        """Return all canonical nodes: every node reads from each of them."""
        del node
        return np.arange(self._canonical)

    #: Number of canonical nodes.
    _canonical: int

    @abc.abstractmethod
    def _fill(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of steps and slots, int64 (steps, slots), -1 for padding.

        Steps count from the beginning of the epoch. ``lookups`` has the lookup of each order.
        """

    @abc.abstractmethod
    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of positions of the order with number ``stream``.

        Steps count from the beginning of the epoch. Positions that no batch has are left out.
        """


@dataclasses.dataclass(frozen=True, eq=False)
class Origins:
    """Stream of each batch of an epoch, where every batch is from one stream.

    Attributes:
        stream: Stream of each batch.
        number: Number of each batch among those of its stream.
    """

    stream: NDArray[np.unsignedinteger]
    number: NDArray[np.unsignedinteger]

    @classmethod
    def shuffled(cls, counts: Sequence[int], rng: np.random.Generator) -> Origins:
        """Return ``counts[i]`` batches of stream i in an order drawn from ``rng``."""
        total = sum(counts)
        # Narrow integers, as there may be many batches.
        kind = np.min_scalar_type(max(len(counts) - 1, 0))
        stream = np.repeat(np.arange(len(counts), dtype=kind), counts)
        rng.shuffle(stream)
        number = np.empty(total, np.min_scalar_type(max(total, 1)))
        for i, count in enumerate(counts):
            number[stream == i] = np.arange(count, dtype=number.dtype)
        return cls(stream, number)

    def find(self, stream: int, numbers: Ids) -> tuple[Ids, Ids]:
        """Return the places of batches of a stream among all batches.

        ``numbers`` are the numbers of the batches among those of the stream. Returns the indexes of
        those ``numbers`` that have a batch, and the place of each of these.
        """
        places = np.flatnonzero(self.stream == stream)
        existing = np.flatnonzero(numbers < len(places))
        return existing, places[numbers[existing]]


class PerStreamBatches(StreamBatches):
    """Batching method ``per_stream``: every global batch is from one stream.

    Args:
        samples: Samples of the order of each stream.
        spec: Settings by which positions are dealt to ranks.
        rng: Generator that shuffles the streams of the batches.
    """

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
        """Return the sample ids of steps and slots, int64 (steps, slots); see `StreamBatches`."""
        stream, number = self._origins.stream[steps], self._origins.number[steps]
        out = np.empty((len(steps), len(slots)), np.int64)
        for i in np.unique(stream).tolist():
            mine = stream == i
            out[mine] = self._batches[i].block(number[mine].astype(np.int64), slots, [lookups[i]])
        return out

    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of positions of a stream's order; see `StreamBatches`."""
        number, slot = self._batches[stream].find(0, positions)
        existing, step = self._origins.find(stream, number)
        return step, slot[existing]


class StratifiedBatches(StreamBatches):
    """Batching method ``stratified``: every global batch has samples of all streams, by shares.

    The slots of a batch are split into parts, one for each stream.

    Args:
        samples: Samples of the order of each stream.
        proportions: Share of each stream in the epoch.
        spec: Settings by which positions are dealt to ranks.
    """

    def __init__(
        self, samples: Sequence[int], proportions: Sequence[float], spec: PartitionSpec
    ) -> None:
        # The padding of a stream depends on the ranks, so it stays that of the initial world.
        self._canonical, initial = spec.canonical, spec.initial_shape or spec.shape
        self._initial_shape = initial
        self._parts = stratify(proportions, spec.shape.global_batch)
        self._ends = np.cumsum(self._parts)
        self._partitions = [
            Partition(PaddedGrid(count, spec.canonical, nodes=1), nodes=1, ranks=initial.ranks)
            for count in samples
        ]
        # The epoch ends with the first stream that cannot fill its part of a batch.
        shares = zip(self._partitions, self._parts, strict=True)
        self._total = min(
            (partition.total // part for partition, part in shares if part), default=0
        )
        super().__init__(self._total, spec)

    def _fill(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of steps and slots, int64 (steps, slots); see `StreamBatches`."""
        # Slots of the initial world. Both worlds deal a step in the same order, so the same part of
        # a step was seen in both.
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
        """Return the steps and slots of positions of a stream's order; see `StreamBatches`."""
        part = self._parts[stream]
        if not part:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        step, offset = np.divmod(self._partitions[stream].find(positions), part)
        is_complete = step < self._total
        slot = offset[is_complete] + int(self._ends[stream]) - part
        return step[is_complete], self.shape.dealt(self._initial_shape.deal(slot))


class DevicePerStreamBatches(StreamBatches):
    """Batching method ``device_per_stream``: the batch of every rank is from one stream.

    Each node has its own shuffled list of batches. Of every stream it reads an equal share of the
    canonical nodes.

    Args:
        samples: Samples of the order of each stream.
        spec: Settings by which positions are dealt to ranks.
        rng: Generator that shuffles the streams of the batches.
    """

    def __init__(
        self, samples: Sequence[int], spec: PartitionSpec, rng: np.random.Generator
    ) -> None:
        shape, self._canonical = spec.shape, spec.canonical
        if self._canonical % shape.nodes:
            raise PlanError(
                f"canonical nodes {self._canonical} and physical nodes {shape.nodes}: "
                "device_per_stream needs canonical nodes to be a multiple of physical nodes."
            )
        self._share = self._canonical // shape.nodes  # canonical nodes of a node
        self._partitions = [
            Partition(
                PaddedGrid(count, self._canonical, self._canonical), self._canonical, shape.ranks
            )
            for count in samples
        ]
        # Full batches that each stream has on a node.
        self._counts = [
            partition.total // shape.nodes // shape.batch for partition in self._partitions
        ]
        _require_full_batch(self._counts, "rank's batch", shape.batch)
        self._origins = [Origins.shuffled(self._counts, rng) for _ in range(shape.nodes)]
        self._length = sum(self._counts)  # batches of the list of a node
        # One more turn of padding even if none is needed, as in mosaicml-streaming.
        padded = (self._length // shape.world + 1) * shape.world
        super().__init__(padded // shape.ranks, spec)

    def _fill(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of steps and slots, int64 (steps, slots); see `StreamBatches`."""
        shape = self.shape
        device, offset = np.divmod(slots, shape.batch)
        # Batches are taken from the lists of the nodes in turns, and dealt to all ranks in turns:
        # batch b is number b // nodes in the list of node b % nodes.
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
        """Return indices of a stream's partition for the samples that a node reads of the stream.

        A node reads its canonical nodes in turns, as many samples of each as it has ranks.

        Args:
            sequence: Numbers of the samples among those that the node reads of the stream.
            node: Number of the node.
        """
        line, rank = np.divmod(sequence, self.shape.ranks)
        cycle, mine = np.divmod(line, self._share)
        element = cycle * self.shape.ranks + rank
        return element * self._canonical + node * self._share + mine

    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of positions of a stream's order; see `StreamBatches`."""
        shape = self.shape
        # The inverse of `_partition_index`, then the place of the sample in a batch of the stream.
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
    """Return the number of samples that each stream gives to a global batch of ``size`` samples.

    Shares are rounded down. The remaining samples come from the streams with the largest
    remainders; of equal ones from the later stream. Raises PlanError if a stream that gives samples
    to the epoch would give none to a batch.
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
    """Return the number of global batches of each stream for the method ``per_stream``.

    Each stream is padded so that all ranks get equally many, so the numbers may differ between
    worlds with equal global batches. The order of all batches depends on them.
    """
    return [batches.full for batches in _whole_streams(samples, spec)]


def _whole_streams(samples: Sequence[int], spec: PartitionSpec) -> list[RandomBatches]:
    """Return the global batches of each stream alone, for a whole epoch."""
    fresh = dataclasses.replace(spec, drop=0, skips=())
    return [RandomBatches(count, fresh) for count in samples]


def _require_full_batch(counts: Sequence[int], kind: str, size: int) -> None:
    """Raise StreamPlanError for a stream without a full batch; ``kind`` names the batch."""
    for i, count in enumerate(counts):
        if not count:
            raise StreamPlanError(
                f"stream {i} does not fill one {kind} of {size} samples: choose more of it, use a "
                "smaller batch, or batching_method 'random'.",
                i,
            )


class ScheduledBatches(StreamBatches):
    """Global batches ``first`` to ``last`` - 1 of a run with a schedule.

    There is one lookup, from streams and their sample numbers (`mds.plan.passes`) to sample ids.

    Args:
        mixture: Samples of each stream in the steps of the run.
        first, last: First step of the epoch in the run, and the end.
        spec: Shape of the world, and the samples that were seen or skipped.
    """

    def __init__(self, mixture: Mixture, first: int, last: int, spec: PartitionSpec) -> None:
        self._mixture, self._begin, self._canonical = mixture, first, spec.canonical
        size = mixture.batch
        # Sample n of a batch is at place n * stride of its samples, laid out stream by stream.
        stride = stride_of(size)
        self._places = np.arange(size, dtype=np.int64) * stride % size
        self._inverse_stride = pow(stride, -1, size) if size > 1 else 0
        super().__init__(last - first, spec)

    def marks(self, steps: Ids, slots: Ids) -> Ids:
        """Return the places in the epoch, in the order in which a step is dealt."""
        first = self._gaps.places(steps)[:, None] * self.shape.global_batch
        return first + self.shape.deal(slots)

    def _fill(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of steps and slots, int64 (steps, slots); see `StreamBatches`."""
        positions = self._positions(steps + self._begin, self._places[self.shape.deal(slots)])
        return lookups[0](positions).reshape(len(steps), len(slots))

    def _positions(self, steps: Ids, places: Ids) -> Ids:
        """Return the stream and the sample number of places in steps, int64 (2, steps * places).

        ``steps`` of the run ascend. Places count the samples of a global batch, stream by stream.
        """
        streams, size = self._mixture.streams, self._mixture.batch
        # A line is the samples of one stream in one step. All lines of all steps are laid end to
        # end, and a binary search finds the line of each number.
        begin, end = self._mixture.ranges(steps)
        ends = (end - begin).cumsum(axis=1)
        row = np.arange(len(steps)) * size
        numbers = (places + row[:, None]).reshape(-1)
        line_ends = (ends + row[:, None]).reshape(-1)
        line_of = line_ends.searchsorted(numbers, side="right")
        # Added to a number, this gives the sample number in the stream: ends map to ends.
        shift = end.reshape(-1) - line_ends
        out = np.empty((2, len(numbers)), np.int64)
        np.remainder(line_of, streams, out=out[0])
        np.add(shift[line_of], numbers, out=out[1])
        return out

    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of positions of a stream's order; see `StreamBatches`."""
        del stream  # one order has all streams
        parts = [
            self._find_numbers(number, positions[1][positions[0] == number])
            for number in np.unique(positions[0]).tolist()
        ]
        steps, slots = zip(*parts, strict=True) if parts else ([np.zeros(0, np.int64)],) * 2
        return np.concatenate(steps), np.concatenate(slots)

    def _find_numbers(self, stream: int, sample_numbers: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of samples of one stream, as `_find` does.

        ``sample_numbers`` count the samples of the stream since the training began.
        """
        step = self._mixture.steps_of_samples(stream, sample_numbers)
        counts = self._mixture.counts(np.concatenate([step, step + 1]))
        begin, end = counts.reshape(2, len(step), self._mixture.streams)
        first = np.cumsum(end - begin, axis=1)[:, stream] - (end - begin)[:, stream]
        place = first + sample_numbers - begin[:, stream]
        number = place * self._inverse_stride % self._mixture.batch
        return step - self._begin, self.shape.dealt(number)


def stride_of(size: int) -> int:
    """Return the number nearest to ``size`` times 0.618... that has no common factor with it."""
    ideal = size * (math.sqrt(5) - 1) / 2
    near = round(ideal)
    candidates = (near + sign * k for k in range(size + 1) for sign in (1, -1))
    return next((c for c in candidates if c > 0 and math.gcd(c, size) == 1), 1)
