"""Passes through the streams of a schedule: after the last sample comes the first of the next pass.

Each pass through a stream is an order of its own, shuffled by the number of the pass as an epoch is
by its number. The *sample number* counts the samples that a stream gives since the training began.
With n samples in a pass, sample number s is sample ``s % n`` of pass ``s // n``, and in a pass the
canonical nodes are read in turns. Orders of passes are made when they are needed, and few are kept.

A global batch takes a few samples of each stream. Asking each stream in turn would cost as many
calls, so `StreamPasses` asks the current passes of all streams together, if their positions can be
computed alone (random access). Samples of another pass are asked for stream by stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mds.plan.partition import ExactGrid, Partition
from mds.plan.stream_orders import RandomAccessOrder
from mds.process.fork_safe import cached_property

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeGuard

    from numpy.typing import NDArray

    from mds.plan.stream_orders import Lookup, StreamOrder
    from mds.shuffle.base import ShuffleGroup

    Ids = NDArray[np.int64]


_MAX_KEPT = 4  # orders of passes that are kept; an iteration reads one or two


class PassOrders:
    """Orders of the passes through one stream.

    Args:
        make: Function from the number of a pass to its order.
        samples: Samples of a pass.
        canonical: Number of canonical nodes.
        wanted: First sample number that is needed, and the end.
    """

    def __init__(
        self,
        make: Callable[[int], StreamOrder],
        samples: int,
        canonical: int,
        wanted: tuple[int, int],
    ) -> None:
        self._make, self.samples, self.canonical, self.wanted = make, samples, canonical, wanted
        # Deals the positions of a pass to its canonical nodes in turns, as for one node and rank.
        self._partition = Partition(ExactGrid(samples, canonical), nodes=1, ranks=1, is_even=False)
        self._orders: dict[int, StreamOrder] = {}
        first, last = wanted
        # Numbers of the passes that have a needed sample.
        self._passes = range(first // samples, -(-last // samples)) if samples else range(0)

    @property
    def parts(self) -> list[StreamOrder]:
        """Orders of all needed passes if they take long to compute, else an empty list.

        Such orders are all kept, so that processes can share them in files.
        """
        if not self._passes or self._order(self._passes[0]).is_cheap:
            return []
        return [self._order(number) for number in self._passes]

    @property
    def can_be_grouped(self) -> bool:
        """Whether ids of this stream can be looked up together with those of other streams.

        The order of a pass must have random access and every sample once.
        """
        return bool(self._passes) and _is_plain(self._order(self._passes[0]))

    def first_order(self) -> RandomAccessOrder:
        """Return the order of the first pass, which has random access and every sample once."""
        order = self._order(self._passes[0])
        assert _is_plain(order)
        return order

    def lookup(self) -> Lookup:
        """Return a function from sample numbers to ids, which is fastest if numbers ascend."""
        lookups: dict[int, Lookup] = {}

        def take(sample_numbers: Ids) -> Ids:
            """Return the sample id of each sample number, which counts through all passes."""
            if not len(sample_numbers):
                return sample_numbers
            first = int(sample_numbers.min()) // self.samples
            last = int(sample_numbers.max()) // self.samples
            # Mostly all are in one pass. A division for each number would double the time.
            if first == last:
                elements = sample_numbers - first * self.samples
                return self._lookup_of_pass(lookups, first)(self._partition.positions(elements))
            passes, elements = np.divmod(sample_numbers, self.samples)
            positions = self._partition.positions(elements)
            out = np.empty(len(sample_numbers), np.int64)
            for number in np.unique(passes).tolist():
                mine = passes == number
                out[mine] = self._lookup_of_pass(lookups, number)(positions[mine])
            return out

        return take

    def find(self, sample: int) -> Ids:
        """Return all needed sample numbers of a sample, ascending."""
        parts = [np.zeros(0, np.int64)]
        for number in self._passes:
            elements = self._partition.find(self._order(number).find(sample))
            parts.append(np.sort(elements) + number * self.samples)
        sample_numbers = np.concatenate(parts)
        first, last = self.wanted
        return sample_numbers[(sample_numbers >= first) & (sample_numbers < last)]

    def _lookup_of_pass(self, lookups: dict[int, Lookup], number: int) -> Lookup:
        """Return the lookup of a pass, and keep it in ``lookups``, by the number of the pass.

        If too many are kept, that of the earliest pass is removed.
        """
        if number not in lookups:
            while len(lookups) >= _MAX_KEPT:
                del lookups[min(lookups)]
            lookups[number] = self._order(number).lookup()
        return lookups[number]

    def _order(self, number: int) -> StreamOrder:
        """Return the order of a pass, and keep it.

        If too many are kept, that of the earliest pass is removed, unless orders take long to
        compute.
        """
        if number not in self._orders:
            plain_order = next((each for each in self._orders.values() if _is_plain(each)), None)
            # Passes of a random-access order have much in common, so make it from another one.
            order = plain_order.at_epoch(number) if plain_order is not None else self._make(number)
            if order.is_cheap and len(self._orders) >= _MAX_KEPT:
                self._orders.pop(min(self._orders))
            self._orders[number] = order
        return self._orders[number]


def _is_plain(order: StreamOrder) -> TypeGuard[RandomAccessOrder]:
    """Whether an order has random access and every sample once."""
    return isinstance(order, RandomAccessOrder) and order.resampling.is_plain


class StreamPasses:
    """Orders of several streams over all their passes, as one order.

    A position is a pair: the stream, and the sample number in it. Arrays of positions are int64 of
    shape (2, n).

    Args:
        streams: Passes of each stream.
    """

    def __init__(self, streams: Sequence[PassOrders]) -> None:
        self.streams = tuple(streams)
        self.per_stream = np.array([stream.samples for stream in streams])
        self.samples = int(self.per_stream.sum())
        #: Latest passes that were asked together.
        self.current: CurrentPasses | None = None

    @property
    def parts(self) -> list[StreamOrder]:
        """Orders of passes that take long to compute."""
        return [part for stream in self.streams for part in stream.parts]

    def lookup(self) -> Lookup:
        """Return a function from positions to ids, which is fastest if sample numbers ascend."""
        return PassLookup(self)

    def materialize(self) -> Lookup:
        """Return `lookup`, since the ids of all passes would be too many for memory."""
        return self.lookup()

    def find(self, sample: int) -> Ids:
        """Return all needed positions of a sample."""
        positions = [np.zeros((2, 0), np.int64)]
        for number, stream in enumerate(self.streams):
            sample_numbers = stream.find(sample)
            streams = np.full(len(sample_numbers), number)
            positions.append(np.stack([streams, sample_numbers]))
        return np.concatenate(positions, axis=1)

    @cached_property
    def is_grouped(self) -> NDArray[np.bool_]:
        """Mask of the streams that can be asked together with others."""
        return np.array([stream.can_be_grouped for stream in self.streams])

    def switch_to(self, streams: Ids, passes: Ids) -> CurrentPasses:
        """Make the latest of these passes of each stream its current pass; return all current ones.

        Args:
            streams: Streams of samples, int64 of shape (n,).
            passes: Pass of each of these samples, int64 of shape (n,).
        """
        latest = np.full(len(self.streams), -1)
        np.maximum.at(latest, streams, passes)
        latest[~self.is_grouped] = -1
        # Assigned as one value, since threads may ask at the same time.
        self.current = (self.current or self._first_passes()).at_passes(latest)
        return self.current

    def _first_passes(self) -> CurrentPasses:
        """Return the first pass of each stream that can be asked together with others."""
        passes, first_ids = np.full(len(self.streams), -1), np.zeros(len(self.streams), np.int64)
        shuffles = {}
        for number in np.flatnonzero(self.is_grouped).tolist():
            order = self.streams[number].first_order()
            passes[number], first_ids[number] = order.params.epoch, order.first_id
            shuffles[number] = order.shuffle
        return CurrentPasses(passes, first_ids, next(iter(shuffles.values())).group(shuffles))

    def elements_to_positions(self, streams: Ids, elements: Ids) -> Ids:
        """Return the positions in the order of a pass of elements of passes.

        The canonical nodes of a pass are read in turns, as in `ExactGrid.positions`, which does the
        same for one stream.

        Args:
            streams: Stream of each element, int64 of shape (n,).
            elements: Number of the sample in its pass, int64 of shape (n,).
        """
        nodes = self.streams[0].canonical
        if nodes == 1:
            return elements
        samples = self.per_stream[streams]
        column = elements // nodes
        row = elements - column * nodes
        remainder = samples % nodes
        # The last column has only the nodes that are longer than others by one. Node k ends at
        # position (k + 1) * samples // nodes, so the i-th of them is the node with the number
        # (i + 1) * nodes / remainder, rounded up, minus 1.
        late = np.flatnonzero(column * nodes + remainder == samples)
        late = late[remainder[late] > 0]
        row[late] = -(-(row[late] + 1) * nodes // remainder[late]) - 1
        column += row * samples // nodes
        return column


class CurrentPasses(NamedTuple):
    """Passes of all streams that are asked together.

    Attributes:
        passes: Number of the pass of each stream, -1 for a stream that is asked alone.
        first_ids: First sample id of each stream.
        group: Shuffles of these passes, by the number of the stream.
    """

    passes: Ids
    first_ids: Ids
    group: ShuffleGroup

    def at_passes(self, latest: Ids) -> CurrentPasses:
        """Return these passes with others for some streams.

        ``latest`` has a pass for each stream; -1 keeps the pass of the stream.
        """
        changed = np.flatnonzero((latest >= 0) & (latest != self.passes))
        if not len(changed):
            return self
        passes = np.where(latest >= 0, latest, self.passes)
        return self._replace(passes=passes, group=self.group.at_epochs(changed, latest[changed]))


class PassLookup:
    """Function from pairs of a stream and a sample number to sample ids.

    Args:
        passes: Orders of all streams.
    """

    def __init__(self, passes: StreamPasses) -> None:
        self._passes = passes
        self._stream_lookups: dict[int, Lookup] = {}

    def __call__(self, positions: Ids) -> Ids:
        """Return the sample ids of positions, int64 of shape (2, n)."""
        streams, sample_numbers = positions
        if not self._passes.is_grouped.any():
            return self._ask_each_stream(streams, sample_numbers)
        # Samples of the current passes are looked up together, others stream by stream.
        samples, current = self._passes.per_stream[streams], self._passes.current
        passes = sample_numbers // samples
        if current is None or not (is_current := current.passes[streams] == passes).all():
            current = self._passes.switch_to(streams, passes)
            is_current = current.passes[streams] == passes
        elements = sample_numbers - passes * samples
        if is_current.all():
            return self._ask_together(current, streams, elements)
        out = np.empty(len(sample_numbers), np.int64)
        out[is_current] = self._ask_together(current, streams[is_current], elements[is_current])
        is_other = ~is_current
        out[is_other] = self._ask_each_stream(streams[is_other], sample_numbers[is_other])
        return out

    def _ask_each_stream(self, streams: Ids, sample_numbers: Ids) -> Ids:
        """Return the sample ids of sample numbers, one stream after the other."""
        # Narrow integers are compared more quickly.
        small = streams.astype(np.min_scalar_type(len(self._passes.streams)))
        out = np.empty(len(sample_numbers), np.int64)
        for stream in np.flatnonzero(np.bincount(small)).tolist():
            mine = np.flatnonzero(small == stream)
            if stream not in self._stream_lookups:
                self._stream_lookups[stream] = self._passes.streams[stream].lookup()
            out[mine] = self._stream_lookups[stream](sample_numbers[mine])
        return out

    def _ask_together(self, current: CurrentPasses, streams: Ids, elements: Ids) -> Ids:
        """Return the sample ids of elements of the current passes, int64 of shape (n,).

        ``elements`` are the numbers of samples in the pass of the stream beside them.
        """
        if not len(elements):
            return elements
        positions = self._passes.elements_to_positions(streams, elements)
        ids = current.group.ids_at(streams, positions)
        ids += current.first_ids[streams]
        return ids
