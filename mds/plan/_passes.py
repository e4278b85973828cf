"""Passes through the streams of a schedule: after the last sample comes the first of the next pass.

Each pass through a stream is an order of its own, shuffled by the number of the pass as an epoch is
by its number. With a schedule each canonical node, or *row*, goes through the passes of its own
part of a stream, which are consecutive positions in the order of a pass, and counts its samples
since the training began. For a stream of 6 samples and 2 rows::

    row 0   number      0 1 2   3 4 5   6 ...       row 1   number      0 1 2   3 4 5   6 ...
            pass        0 0 0   1 1 1   2                   pass        0 0 0   1 1 1   2
            position    0 1 2   0 1 2   0                   position    3 4 5   3 4 5   3

Orders of passes are made when they are needed, and few are kept.

A global batch takes a few samples of each stream. Asking each stream in turn would cost as many
calls, so `StreamPasses` asks the current passes of all streams together, if their positions can be
computed alone (random access). Samples of another pass are asked for stream by stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from mds._process.fork_safe import cached_property
from mds.plan._stream_orders import RandomAccessOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeGuard

    from numpy.typing import NDArray

    from mds.plan._stream_orders import Lookup, StreamOrder
    from mds.shuffle._base import ShuffleGroup

    Ids = NDArray[np.int64]


_MAX_KEPT = 4  # orders of passes that are kept; an iteration reads one or two


class StreamRows(Protocol):
    """Parts of the streams of a schedule that each row has, and the samples that it gives.

    Attributes:
        rows: Number of rows: the canonical nodes.
        has_rows: Mask of the streams that are cut into parts.
        starts, sizes: Position of the first sample of each row in a pass, and the samples of the
            row; int64 (streams, rows). The whole stream, in each row, if it is not cut.
    """

    rows: int
    has_rows: NDArray[np.bool_]
    starts: Ids
    sizes: Ids

    def before(self, step: int) -> Ids:
        """Return the samples that each row has given before a step, int64 (streams, rows).

        For a stream that is not cut it is the number of all its samples, in each row.
        """


class PassOrders:
    """Orders of the passes through one stream.

    Args:
        make: Function from the number of a pass to its order.
        samples: Samples of a pass.
        sample_range: First sample of the stream that the epoch needs, and the end. Samples are
            numbered since the training began.
    """

    def __init__(
        self, make: Callable[[int], StreamOrder], samples: int, sample_range: tuple[int, int]
    ) -> None:
        self._make, self.samples = make, samples
        self._orders: dict[int, StreamOrder] = {}  # by the number of the pass
        first, last = sample_range
        # Numbers of the passes that have a needed sample.
        self._passes = range(first // samples, -(-last // samples)) if samples else range(0)

    @property
    def is_cheap(self) -> bool:
        """Whether no needed pass takes long to compute."""
        return not self._passes or self.order(self._passes[0]).is_cheap

    @property
    def can_be_grouped(self) -> bool:
        """Whether ids of this stream can be looked up together with those of other streams.

        The order of a pass must have random access and every sample once, and the epoch must need
        some pass of the stream.
        """
        return bool(self._passes) and _is_plain(self.order(self._passes[0]))

    def first_order(self) -> RandomAccessOrder:
        """Return the order of the first needed pass; only if `can_be_grouped` is true."""
        order = self.order(self._passes[0])
        assert _is_plain(order)
        return order

    def lookup(self) -> Lookup:
        """Return a function from pass * samples + position in the pass to ids."""
        lookups: dict[int, Lookup] = {}

        def take(numbers: Ids) -> Ids:
            """Return the sample id of each number."""
            if not len(numbers):
                return numbers
            first = int(numbers.min()) // self.samples
            last = int(numbers.max()) // self.samples
            # Mostly all are in one pass. Then a subtraction suffices; to divide each number would
            # double the time.
            if first == last:
                return self._lookup_of_pass(lookups, first)(numbers - first * self.samples)
            passes, positions = np.divmod(numbers, self.samples)
            ids = np.empty(len(numbers), np.int64)
            for number in np.unique(passes).tolist():
                in_pass = passes == number
                ids[in_pass] = self._lookup_of_pass(lookups, number)(positions[in_pass])
            return ids

        return take

    def _lookup_of_pass(self, lookups: dict[int, Lookup], number: int) -> Lookup:
        """Return the lookup of a pass, and keep it in ``lookups``, by the number of the pass.

        If too many are kept, that of the earliest pass is removed.
        """
        if number not in lookups:
            while len(lookups) >= _MAX_KEPT:
                del lookups[min(lookups)]
            lookups[number] = self.order(number).lookup()
        return lookups[number]

    def order(self, number: int) -> StreamOrder:
        """Return the order of a pass, and keep it.

        If too many are kept, that of the earliest pass is removed, unless orders take long to
        compute.
        """
        if number not in self._orders:
            # A random-access order is made from that of another pass, which shares its tables.
            plain_order = next((each for each in self._orders.values() if _is_plain(each)), None)
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

    A position of this order is a stream, a row, and the number of the sample among those that the
    row gives of the stream since the training began. Arrays of such positions are int64 of shape
    (3, n).

    Args:
        streams: Passes of each stream.
        rows: Parts of the streams that the rows have, and the samples that they give.
        first, last: First step of the epoch in the run, and the end.

    Attributes:
        per_stream: Samples in a pass through each stream, int64.
        samples: Sum of these.
        current: For each stream the pass in which the lookups of several streams in one call are.
            A batch mostly continues in it. None before the first lookup.
    """

    def __init__(
        self, streams: Sequence[PassOrders], rows: StreamRows, first: int, last: int
    ) -> None:
        self.streams, self.rows, self._steps = tuple(streams), rows, (first, last)
        self.per_stream = np.array([stream.samples for stream in streams])
        self.samples = int(self.per_stream.sum())
        self.current: CurrentPasses | None = None

    @property
    def parts(self) -> list[StreamOrder]:
        """Orders of passes that take long to compute."""
        return [
            stream.order(number)
            for i, stream in enumerate(self.streams)
            if not stream.is_cheap
            for number in self._passes_of(i)
        ]

    def lookup(self) -> Lookup:
        """Return a function from positions to ids, which is fastest if numbers ascend."""
        return PassLookup(self)

    def materialize(self) -> Lookup:
        """Return `lookup`, since the ids of all passes would be too many for memory."""
        return self.lookup()

    def find(self, sample: int) -> Ids:
        """Return all positions of a sample that the epoch needs, int64 of shape (3, n)."""
        rows, position_parts = self.rows, [np.zeros((3, 0), np.int64)]
        for i, stream in enumerate(self.streams):
            for number in self._passes_of(i):
                positions = stream.order(number).find(sample)
                row = np.zeros(len(positions), np.int64)
                if rows.has_rows[i]:
                    row = np.searchsorted(rows.starts[i], positions, side="right") - 1
                numbers = number * rows.sizes[i, row] + positions - rows.starts[i, row]
                first, last = self._ranges[:, i, row]
                is_needed = (numbers >= first) & (numbers < last)
                position_parts.append(np.stack([np.full(len(row), i), row, numbers])[:, is_needed])
        return np.concatenate(position_parts, axis=1)

    @cached_property
    def _ranges(self) -> Ids:
        """First number of each row that the epoch needs, and the end: (2, streams, rows)."""
        return np.stack([self.rows.before(step) for step in self._steps])

    def _passes_of(self, stream: int) -> range:
        """Return the numbers of the passes of which some row gives samples in the epoch."""
        first, last = self._ranges[:, stream]
        sizes = self.rows.sizes[stream]
        is_needed = first < last
        if not is_needed.any():
            return range(0)
        begins, ends = first[is_needed] // sizes[is_needed], -(-last[is_needed] // sizes[is_needed])
        return range(int(begins.min()), int(ends.max()))

    @cached_property
    def is_grouped(self) -> NDArray[np.bool_]:
        """Mask of the streams whose ids can be looked up in one call with those of others."""
        return np.array([stream.can_be_grouped for stream in self.streams])

    def switch_to(self, streams: Ids, passes: Ids) -> CurrentPasses:
        """Make the latest of these passes of each stream its current pass; return all current ones.

        Args:
            streams: Streams of samples, int64 of shape (n,).
            passes: Pass of each of these samples, int64 of shape (n,).
        """
        latest = np.full(len(self.streams), -1)  # -1 for streams that stay in their pass
        np.maximum.at(latest, streams, passes)
        latest[~self.is_grouped] = -1
        # Assigned as one value, since threads may look up at the same time.
        self.current = (self.current or self._first_passes()).at_passes(latest)
        return self.current

    def _first_passes(self) -> CurrentPasses:
        """Return the first needed passes of the streams in `is_grouped`, as the current ones."""
        passes, first_ids = np.full(len(self.streams), -1), np.zeros(len(self.streams), np.int64)
        shuffles = {}
        for number in np.flatnonzero(self.is_grouped).tolist():
            order = self.streams[number].first_order()
            passes[number], first_ids[number] = order.params.epoch, order.first_id
            shuffles[number] = order.shuffle
        any_shuffle = next(iter(shuffles.values()))  # all are of the same algorithm
        return CurrentPasses(passes, first_ids, any_shuffle.group(shuffles))


class CurrentPasses(NamedTuple):
    """One pass of each stream, whose samples are looked up in one call for all streams.

    Attributes:
        passes: Number of the pass of each stream, -1 for a stream that is looked up alone.
        first_ids: First sample id of each stream.
        group: Shuffles of these passes, which compute ids from arrays of streams and positions.
    """

    passes: Ids
    first_ids: Ids
    group: ShuffleGroup

    def at_passes(self, latest: Ids) -> CurrentPasses:
        """Return these passes, replaced by the pass in ``latest`` for some streams.

        ``latest`` has the number of a pass for each stream; -1 keeps the pass of the stream.
        """
        changed = np.flatnonzero((latest >= 0) & (latest != self.passes))
        if not len(changed):
            return self
        passes = np.where(latest >= 0, latest, self.passes)
        return self._replace(passes=passes, group=self.group.at_epochs(changed, latest[changed]))


class PassLookup:
    """Function from positions of `StreamPasses` to sample ids.

    Samples of the current pass of their stream are looked up together, in one call for all
    streams. For others, and for streams without random access, each stream is asked for its own.

    Args:
        passes: Orders of all streams.
    """

    def __init__(self, passes: StreamPasses) -> None:
        self._passes, self._rows = passes, passes.rows.rows
        # First position and samples of each row, stream after stream.
        self._starts, self._sizes = passes.rows.starts.reshape(-1), passes.rows.sizes.reshape(-1)
        self._stream_lookups: dict[int, Lookup] = {}

    def __call__(self, positions: Ids) -> Ids:
        """Return the sample id of each position, int64 of shape (3, n)."""
        streams, rows, numbers = positions
        rows_of_streams = streams * self._rows + rows
        size = self._sizes[rows_of_streams]
        passes = numbers // size
        in_pass = self._starts[rows_of_streams]  # position in the order of the pass
        in_pass += numbers
        in_pass -= passes * size
        if not self._passes.is_grouped.any():
            return self._ask_each_stream(streams, passes, in_pass)
        current = self._passes.current
        if current is None or not (is_current := current.passes[streams] == passes).all():
            # Some streams have reached another pass. Only one pass of a stream can be current, so
            # samples of others may remain.
            current = self._passes.switch_to(streams, passes)
            is_current = current.passes[streams] == passes
        if is_current.all():
            return self._ask_together(current, streams, in_pass)
        ids = np.empty(len(numbers), np.int64)
        ids[is_current] = self._ask_together(current, streams[is_current], in_pass[is_current])
        is_other = ~is_current
        ids[is_other] = self._ask_each_stream(
            streams[is_other], passes[is_other], in_pass[is_other]
        )
        return ids

    def _ask_each_stream(self, streams: Ids, passes: Ids, in_pass: Ids) -> Ids:
        """Return the sample ids of positions in passes, one stream after the other."""
        numbers = passes * self._passes.per_stream[streams] + in_pass
        # Narrow integers are compared more quickly.
        narrow_streams = streams.astype(np.min_scalar_type(len(self._passes.streams)))
        ids = np.empty(len(numbers), np.int64)
        for stream in np.flatnonzero(np.bincount(narrow_streams)).tolist():
            of_stream = np.flatnonzero(narrow_streams == stream)
            if stream not in self._stream_lookups:
                self._stream_lookups[stream] = self._passes.streams[stream].lookup()
            ids[of_stream] = self._stream_lookups[stream](numbers[of_stream])
        return ids

    def _ask_together(self, current: CurrentPasses, streams: Ids, positions: Ids) -> Ids:
        """Return the sample ids at positions of the current passes, int64 of shape (n,).

        Args:
            current: Pass of each stream.
            streams: Stream of each position, int64 (n,).
            positions: Position of each sample in the pass of its stream, int64 (n,).
        """
        if not len(positions):
            return positions
        ids = current.group.ids_at(streams, positions)
        ids += current.first_ids[streams]
        return ids
