"""Global batches made of several streams: the methods of batching by stream, and schedules.

- `PerStreamBatches`: every global batch is from one stream.
- `DevicePerStreamBatches`: the batch of every rank is from one stream.
- `StratifiedBatches`: every global batch has samples of all streams, by their shares.
- `ScheduledBatches`: the same, by shares that change.

All compute sample ids from steps and slots, and steps and slots from positions of a stream's order.
The terms are those of `mds.plan._global_batches`: a *step* is the number of a global batch, a
*slot* the index of a sample in it. `Shape.deal` turns a slot into the number of its sample in the
step, since samples are dealt to ranks in turns, and `Shape.dealt` is the inverse. A *lookup* is a
function from positions of a stream's order to sample ids. A `Partition` numbers the positions of a
stream's order as they are dealt, with padding; `Partition.positions` turns numbers into positions,
and `Partition.find` is the inverse. Arrays without a stated shape are one-dimensional.

The first two methods also keep a shuffled list of the stream of each batch (`Origins`).

The batches of a schedule are full, since a stream begins again when all its samples have come. The
samples of such a batch are laid out stream by stream and taken in strides of about the golden
ratio, the same in every world: so each rank gets every stream by its share, and so does each part
of its batch. Each canonical node gives samples of its own part of each stream.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from mds._words import plural
from mds.errors import PlanError, StreamPlanError
from mds.plan._global_batches import RandomBatches, warn_repeated
from mds.plan._partition import Gaps, PaddedGrid, Partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mds.plan._global_batches import Lookup, PartitionSpec
    from mds.plan._row_counts import RowCounts, StepCounts

    Ids = NDArray[np.int64]


class StreamBatches(abc.ABC):
    """Global batches made of several streams.

    Public methods count the steps that remain: a resume leaves out the steps that were seen, and
    steps that were skipped. If a step was seen in part, it is step 0, and its slots that were seen
    are padding. Subclasses implement `_fill` and `_find`, which count the steps of the whole epoch.

    Args:
        total: Number of steps of the whole epoch.
        spec: Shape of the world, and the samples that were seen or skipped.

    Attributes:
        count: Number of steps that remain.
        filled: Slots of each rank that may have a sample.
    """

    is_full = False

    def __init__(self, total: int, spec: PartitionSpec) -> None:
        self.shape = spec.shape
        # Steps that were seen as a whole, and samples that were seen of the step that follows.
        first, seen_slots = divmod(spec.drop, self.shape.global_batch)
        if not spec.is_precise:
            warn_repeated(seen_slots)
            seen_slots = 0
        # As in a slice, with which mosaicml-streaming leaves steps out: nothing remains after the
        # end, and a negative number counts from the end.
        first = max(total + first, 0) if first < 0 else min(first, total)
        size = self.shape.global_batch
        # From ranges of samples to ranges of steps: a step is left out if any of its samples is
        # skipped.
        skips = [(begin // size, -(-end // size)) for begin, end in spec.skips]
        self._gaps = Gaps([(0, first), *skips])
        # If the step that was seen in part is skipped, nothing was seen of the one that follows.
        self._seen_slots = seen_slots if self._gaps.place(0) == first else 0
        self.count = self._gaps.number(total)
        self.filled = self.shape.batch if self.count else 0

    @property
    def shares(self) -> tuple[int, int]:
        """Fewest and most samples that a rank gets in all steps that remain."""
        if not self.count:
            return 0, 0
        # Only the first step may lack samples: those that were seen.
        slots = self.shape.slots(0, self.shape.world)
        minimum, maximum = self.shape.shares(self.shape.deal(slots) >= self._seen_slots)
        later = (self.count - 1) * self.shape.batch
        return minimum + later, maximum + later

    def block(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of steps and slots, int64 (steps, slots), -1 for padding.

        ``steps`` count the steps that remain. ``slots`` has the shape (slots,), or (steps, slots)
        for other slots in each step. ``lookups`` has the lookup of each stream's order.
        """
        out = self._fill(self._gaps.places(steps), slots, lookups)
        if self._seen_slots and len(steps) and int(steps.min()) == 0:
            is_seen = self.shape.deal(slots) < self._seen_slots
            out[(steps == 0)[:, None] & is_seen] = -1
        return out

    def whole(self, first: int, last: int, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of all slots of the steps ``first`` to ``last`` - 1."""
        return self.block(np.arange(first, last), np.arange(self.shape.global_batch), lookups)

    def find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots at which positions of a stream's order come.

        Steps count those that remain. Positions that were seen or skipped, or that no batch has,
        are left out, so the results may be shorter than ``positions``.
        """
        step, slot = self._find(stream, positions)
        is_unskipped = self._gaps.is_in_no_gap(step)
        step, slot = self._gaps.numbers(step[is_unskipped]), slot[is_unskipped]
        # Of step 0, the first samples may have been seen.
        remains = (step > 0) | (self.shape.deal(slot) >= self._seen_slots)
        return step[remains], slot[remains]

    def marks(self, steps: Ids, slots: Ids) -> Ids:
        """Return the place in the epoch of each step and slot, int64 (steps, slots).

        A place counts the samples of all ranks since the epoch began. All slots of a step get the
        place of its first sample: which slot has which sample depends on the world.
        """
        first = self._gaps.places(steps)[:, None] * self.shape.global_batch
        return np.broadcast_to(first, (len(steps), slots.shape[-1]))

    def canonical_nodes_of(self, node: int) -> Ids:
        """Return all canonical nodes: every node reads from each of them."""
        del node
        return np.arange(self._canonical)

    #: Number of canonical nodes.
    _canonical: int

    @abc.abstractmethod
    def _fill(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of steps and slots, int64 (steps, slots), -1 for padding.

        Steps count from the beginning of the epoch. ``slots`` and ``lookups`` are those of `block`.
        """

    @abc.abstractmethod
    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots at which positions of the order of a stream come.

        Steps count from the beginning of the epoch. Positions that no batch has are left out.
        """


@dataclasses.dataclass(frozen=True, eq=False)
class Origins:
    """Stream of each batch of an epoch, where every batch is from one stream.

    ::

        batch      0  1  2  3  4
        stream     1  0  1  1  0
        number     0  0  1  2  1      batch 3 is the third one of stream 1

    Attributes:
        stream: Stream of each batch, of shape (batches,).
        number: Number of each batch among those of its stream, from 0, of shape (batches,).
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
        """Return which batches of all are those with some numbers of a stream.

        In the example of the class, ``find(1, [2, 7])`` is ``[0], [3]``: number 2 of stream 1 is
        batch 3, and there is no number 7.

        Args:
            stream: Stream of the batches.
            numbers: Numbers of batches among those of the stream.

        Returns the indexes of those ``numbers`` that exist, and the batch of each of them.
        """
        batches = np.flatnonzero(self.stream == stream)
        existing = np.flatnonzero(numbers < len(batches))
        return existing, batches[numbers[existing]]


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
        # All batches of each stream alone, whatever was seen: the base class leaves out steps.
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
        out = np.empty((len(steps), slots.shape[-1]), np.int64)
        for i in np.unique(stream).tolist():
            mine = stream == i
            own_slots = slots if slots.ndim == 1 else slots[mine]
            # Batches of the stream alone, so their only lookup is the one of this stream.
            numbers = number[mine].astype(np.int64)
            out[mine] = self._batches[i].block(numbers, own_slots, [lookups[i]])
        return out

    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of positions of a stream's order; see `StreamBatches`."""
        # Each stream is batched alone, as the only order (0): this is the batch of the stream.
        number, slot = self._batches[stream].find(0, positions)
        # A last batch that is not full is in no step.
        existing, step = self._origins.find(stream, number)
        return step, slot[existing]


class StratifiedBatches(StreamBatches):
    """Batching method ``stratified``: every global batch has samples of all streams, by shares.

    The slots of a batch are split into parts, one for each stream. The samples of a stream fill
    its part of one batch after the other. With parts of 5 and 3 slots::

        slot of step 0     0  1  2  3  4 | 5  6  7
        stream             0  0  0  0  0 | 1  1  1
        number             0  1  2  3  4 | 0  1  2      in the stream's partition

        slot of step 1     0  1  2  3  4 | 5  6  7
        number             5  6  7  8  9 | 3  4  5

    These are slots of the world in which the run began. In another world, the sample of a slot goes
    to the slot with the same number in the step, so that a step that was seen in part is continued.

    Args:
        samples: Samples of the order of each stream.
        proportions: Share of each stream in the epoch, from 0 to 1.
        spec: Settings by which positions are dealt to ranks.
    """

    def __init__(
        self, samples: Sequence[int], proportions: Sequence[float], spec: PartitionSpec
    ) -> None:
        # The padding of a stream depends on the number of ranks: it stays as in the initial world.
        self._canonical, initial = spec.canonical, spec.initial_shape or spec.shape
        self._initial_shape = initial
        self._parts = stratify(proportions, spec.shape.global_batch)  # slots of each stream
        self._ends = np.cumsum(self._parts)  # end of each stream's slots
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
        # The slot of the initial world that has the same number in the step.
        slots = self._initial_shape.dealt(self.shape.deal(slots))
        slots = np.broadcast_to(slots, (len(steps), slots.shape[-1]))
        stream = np.searchsorted(self._ends, slots, side="right")
        out = np.empty(slots.shape, np.int64)
        for i in np.unique(stream).tolist():
            part = self._parts[i]
            step, _ = mine = np.nonzero(stream == i)
            offset = slots[mine] - (self._ends[i] - part)  # in the stream's part
            numbers = steps[step] * part + offset
            out[mine] = lookups[i](self._partitions[i].positions(numbers))
        return out

    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of positions of a stream's order; see `StreamBatches`."""
        # The inverse of `_fill`.
        part = self._parts[stream]
        if not part:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        step, offset = np.divmod(self._partitions[stream].find(positions), part)
        is_complete = step < self._total  # after the last step, other streams have too few samples
        slot = offset[is_complete] + int(self._ends[stream]) - part
        return step[is_complete], self.shape.dealt(self._initial_shape.deal(slot))


class DevicePerStreamBatches(StreamBatches):
    """Batching method ``device_per_stream``: the batch of every rank is from one stream.

    Here a *batch* is that of one rank. Each node has its own shuffled list of batches (`Origins`).
    Batches are taken from the lists of the nodes in turns, and given to all ranks in turns, so a
    node's ranks also get batches from lists of other nodes. With 2 nodes of 3 ranks::

        batch                   0  1  2  3  4  5 | 6  7  8 ...
        list of node            0  1  0  1  0  1 | 0  1  0
        number in that list     0  0  1  1  2  2 | 3  3  4
        step                    0  0  0  0  0  0 | 1  1  1
        rank, over all nodes    0  1  2  3  4  5 | 0  1  2

    The list of a node has, of every stream, samples of an equal share of the canonical nodes.

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
                f"num_canonical_nodes {self._canonical} does not fit {shape.nodes} physical "
                "nodes: device_per_stream needs a multiple of the number of physical nodes."
            )
        self._share = self._canonical // shape.nodes  # canonical nodes of a node
        # Positions of each stream, dealt to its canonical nodes in turns as if these were physical
        # nodes: index n is element n // canonical of canonical node n % canonical.
        self._partitions = [
            Partition(
                PaddedGrid(count, canonical=self._canonical, nodes=self._canonical),
                self._canonical,
                shape.ranks,
            )
            for count in samples
        ]
        # Full batches of each stream in the list of a node.
        self._counts = [
            partition.total // shape.nodes // shape.batch for partition in self._partitions
        ]
        _require_full_batch(self._counts, "rank's batch", shape.batch)
        self._origins = [Origins.shuffled(self._counts, rng) for _ in range(shape.nodes)]
        self._length = sum(self._counts)  # batches of the list of a node
        # Padded to the next multiple of all ranks (`shape.world`), even if the length is one
        # already, as in mosaicml-streaming.
        padded = (self._length // shape.world + 1) * shape.world
        # In a step every node gives a batch to each of its ranks: `shape.ranks` of its list.
        super().__init__(padded // shape.ranks, spec)

    def _fill(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of steps and slots, int64 (steps, slots); see `StreamBatches`."""
        shape = self.shape
        device, offset = np.divmod(slots, shape.batch)  # rank over all nodes, place in its batch
        # All arrays from here on have the shape (steps, slots). See the picture of the class.
        batch = steps[:, None] * shape.world + device
        number, node = np.divmod(batch, shape.nodes)
        out = np.full(batch.shape, -1, np.int64)  # after the end of a list there is only padding
        offset = np.broadcast_to(offset, batch.shape)
        for p, origins in enumerate(self._origins):
            is_here = (node == p) & (number < self._length)
            stream = np.full(batch.shape, -1, np.int64)
            stream[is_here] = origins.stream[number[is_here]]
            for i in np.unique(stream[is_here]).tolist():
                mine = stream == i
                batch_of_stream = origins.number[number[mine]].astype(np.int64)
                indices = self._partition_index(batch_of_stream * shape.batch + offset[mine], p)
                out[mine] = lookups[i](self._partitions[i].positions(indices))
        return out

    def _partition_index(self, sequence: Ids, node: int) -> Ids:
        """Return indices in a stream's partition of the samples in the list of a node.

        The list has the node's canonical nodes in turns, and of each as many consecutive elements
        as the node has ranks. With 2 ranks and the canonical nodes A and B::

            sequence     0  1 | 2  3 | 4  5 | 6  7
            canonical    A  A | B  B | A  A | B  B
            element      0  1 | 0  1 | 2  3 | 2  3

        Args:
            sequence: Numbers of the samples among those of the stream in the list of the node.
            node: Number of the node.
        """
        run, element_in_run = np.divmod(sequence, self.shape.ranks)
        turn, canonical_of_node = np.divmod(run, self._share)
        element = turn * self.shape.ranks + element_in_run
        return element * self._canonical + node * self._share + canonical_of_node

    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of positions of a stream's order; see `StreamBatches`."""
        shape = self.shape
        # First the inverse of `_partition_index`.
        element, canonical = np.divmod(self._partitions[stream].find(positions), self._canonical)
        node, canonical_of_node = np.divmod(canonical, self._share)
        turn, element_in_run = np.divmod(element, shape.ranks)
        sequence = (turn * self._share + canonical_of_node) * shape.ranks + element_in_run
        # Then the inverse of `_fill`, list by list.
        batch_of_stream, offset = np.divmod(sequence, shape.batch)
        steps, slots = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for p, origins in enumerate(self._origins):
            rows = np.flatnonzero(node == p)
            existing, number = origins.find(stream, batch_of_stream[rows])
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
        # Streams by descending remainder, then by descending number.
        order = np.lexsort((np.arange(len(parts)), remainders))[::-1]
        parts[order[:short]] += 1
    for i, part in enumerate(parts.tolist()):
        if part <= 0 < proportions[i]:
            raise StreamPlanError(
                f"stream {i} has {proportions[i]:.3g} of the epoch, which is less than one sample "
                f"of a global batch of {size}. Enlarge the batch or the stream's share.",
                i,
            )
    return [int(part) for part in parts]


def full_batches(samples: Sequence[int], spec: PartitionSpec) -> list[int]:
    """Return the number of global batches of each stream for the method ``per_stream``.

    ``samples`` are the samples of the order of each stream. Each stream is padded so that all ranks
    get equally many, so the numbers may differ between worlds with equal global batches. The order
    of all batches depends on them, so a resume in another world checks that they are the same.
    """
    return [batches.full for batches in _whole_streams(samples, spec)]


def _whole_streams(samples: Sequence[int], spec: PartitionSpec) -> list[RandomBatches]:
    """Return the global batches of each stream alone, as if nothing was seen or skipped."""
    fresh = dataclasses.replace(spec, drop=0, skips=())
    return [RandomBatches(count, fresh) for count in samples]


def _require_full_batch(counts: Sequence[int], kind: str, size: int) -> None:
    """Raise StreamPlanError for a stream without a full batch.

    Args:
        counts: Full batches of each stream.
        kind: Name of the batch for the message, such as "global batch".
        size: Samples of the batch.
    """
    for i, count in enumerate(counts):
        if not count:
            raise StreamPlanError(
                f"stream {i} does not fill one {kind} of {plural(size, 'sample')}. Choose more "
                "samples of "
                "this stream, or use a smaller batch or batching_method 'random'.",
                i,
            )


class ScheduledBatches(StreamBatches):
    """Global batches ``first`` to ``last`` - 1 of a run with a schedule.

    All streams together are one order, with one lookup. Its positions are int64 of shape (3, n):
    streams, rows, and the numbers of the samples that these rows have given of these streams since
    the training began (`mds.plan._row_counts`).

    The samples of a step are laid out stream by stream. The samples that are dealt as number 0, 1,
    2, ... are taken from that layout in strides, here of 5::

        place in the layout     0  1  2  3  4 | 5  6  7      5 samples of stream 0, 3 of stream 1
        number dealt            0  5  2  7  4 | 1  6  3      number n is at place 5 * n % 8

    In a step with a turn, number n is at place (5 * n - turn) % 8.

    Places are given to rows in turns, and numbers to nodes, so that each node reads rows of its
    own; see `canonical_nodes_of`.

    Args:
        rows: Samples that each row gives of each stream in the steps of the run.
        first, last: First step of the epoch in the run, and the end.
        spec: Shape of the world, and the samples that were seen or skipped.
    """

    is_full = True

    def __init__(self, rows: RowCounts, first: int, last: int, spec: PartitionSpec) -> None:
        self._rows, self._mixture = rows, rows.mixture
        self._begin, self._end = first, last
        self._canonical = spec.canonical
        # Place in the layout of each number that is dealt, if the turn is 0.
        size = rows.mixture.batch
        self._places = np.arange(size, dtype=np.int64) * rows.stride % size
        super().__init__(last - first, spec)

    def canonical_nodes_of(self, node: int) -> Ids:
        """Return the canonical nodes that a physical node reads.

        With 8 canonical nodes and 4 physical ones, node 1 reads the canonical nodes 1 and 5. All
        are returned if a stream has too few samples for rows.
        """
        # Samples of row r are dealt as numbers that have the remainder of r, modulo any number that
        # divides both the rows and the global batch; number n goes to node n % nodes.
        divisor = math.gcd(self.shape.nodes, self._canonical) if self._rows.has_rows.all() else 1
        return np.arange(node % divisor, self._canonical, divisor)

    def marks(self, steps: Ids, slots: Ids) -> Ids:
        """Return the place in the epoch of each step and slot, int64 (steps, slots).

        Places of a step follow the numbers that are dealt, which are the same in every world.
        """
        first = self._gaps.places(steps)[:, None] * self.shape.global_batch
        return first + self.shape.deal(slots)

    def _fill(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of steps and slots, int64 (steps, slots); see `StreamBatches`."""
        # Slot -> number dealt in the step -> place in the layout -> stream, row and number -> id.
        positions = self._positions(steps + self._begin, self.shape.deal(slots))
        return lookups[0](positions).reshape(len(steps), slots.shape[-1])

    def _positions(self, steps: Ids, numbers: Ids) -> Ids:
        """Return stream, row and number of samples in steps, int64 (3, steps * numbers).

        Args:
            steps: Steps of the run, ascending.
            numbers: Numbers that are dealt in a step, of shape (n,), or (steps, n).
        """
        rows, size = self._rows, self._mixture.batch
        turns = rows.turns(steps)[:, None]
        places = (self._places[numbers] - turns) % size
        if size % rows.rows:
            residues = (places + (steps[:, None] * size + turns)) % rows.rows
        else:  # the same in all steps
            residues = numbers * rows.stride % rows.rows
        # The residues that occur, and the index of each residue among them.
        occurs = np.zeros(rows.rows, bool)
        occurs[residues] = True
        columns = np.broadcast_to((np.cumsum(occurs) - 1)[residues], places.shape)
        out = np.empty((3, *places.shape), np.int64)
        out[1] = rows.row_of[residues]
        for counts in rows.parts(steps, np.flatnonzero(occurs)):
            part = counts.indexes
            out[0, part], out[2, part] = self._numbers(counts, places[part], columns[part])
        return out.reshape(3, -1)

    def _numbers(self, counts: StepCounts, places: Ids, columns: Ids) -> tuple[Ids, Ids]:
        """Return the streams and the numbers of the samples at places of some steps.

        Layouts of all steps are laid end to end, as lines of the samples of one stream in one
        step. A binary search finds the line of each flat place::

            flat place     0  1  2  3  4 | 5  6  7 || 8  9 10 11 12 |13 14 15
            line           0  0  0  0  0 | 1  1  1 || 2  2  2  2  2 | 3  3  3
            stream         0  0  0  0  0 | 1  1  1 || 0  0  0  0  0 | 1  1  1

        Args:
            counts: Counts of the steps.
            places: Places in the layout of each step, int64 (steps, n).
            columns: Index in ``counts.rows`` of the row of each place, int64 (steps, n).

        Both results have the shape of ``places``.
        """
        rows = self._rows
        sizes = counts.end - counts.begin
        step_begins = np.arange(len(places))[:, None] * self._mixture.batch
        flat_places = places + step_begins
        line_ends = (sizes.cumsum(axis=1) + step_begins).reshape(-1)
        line_of = line_ends.searchsorted(flat_places, side="right")
        streams = line_of % self._mixture.streams
        # Of the places of a line, every ``rows.rows``-th one is of the same row.
        numbers = flat_places - (line_ends - sizes.reshape(-1))[line_of]
        if rows.has_rows.all():
            numbers //= rows.rows
        elif rows.rows > 1:
            numbers //= np.where(rows.has_rows, rows.rows, 1)[streams]
        line_of += columns * len(line_ends)
        numbers += counts.rows.reshape(-1)[line_of]
        return streams, numbers

    def _find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of positions, int64 (3, n); see `StreamBatches`.

        Results are grouped by stream and row, and not in the order of ``positions``.
        """
        del stream  # the positions name the streams
        steps, slots = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for each, row in np.unique(positions[:2], axis=1).T.tolist():
            is_of_row = (positions[0] == each) & (positions[1] == row)
            step, slot = self._find_numbers(each, row, positions[2][is_of_row])
            steps.append(step)
            slots.append(slot)
        return np.concatenate(steps), np.concatenate(slots)

    def _find_numbers(self, stream: int, row: int, numbers: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of samples of one row of a stream, as `_find` does.

        ``numbers`` count the samples that the row gives of the stream since the training began.
        """
        rows, size = self._rows, self._mixture.batch
        steps = rows.steps_of(stream, row, numbers, self._end)
        # The inverse of `_positions`: the place of the stream's first sample in the layout of the
        # step, the place of the sample, and the number with which it is dealt.
        places = np.empty(len(steps), np.int64)
        residue = np.array([row * rows.stride % rows.rows])
        for index, step in enumerate(steps.tolist()):
            (counts,) = rows.parts(np.array([step]), residue)
            first = int((counts.end - counts.begin)[0, :stream].sum())
            number_in_step = int(numbers[index] - counts.rows[0, 0, stream])
            if rows.has_rows[stream]:
                # The first place of the row at ``first`` or after it, and then every rows-th one.
                grid_begin = int(rows.grid_begins(np.array([step]))[0])
                first += (int(residue[0]) - grid_begin - first) % rows.rows
                number_in_step *= rows.rows
            places[index] = first + number_in_step
        dealt_numbers = (places + rows.turns(steps)) * rows.inverse_stride % size
        return steps - self._begin, self.shape.dealt(dealt_numbers)
