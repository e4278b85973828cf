"""Order of a stream over all its passes: after the last sample comes the first of the next pass.

Each pass is an order of its own, shuffled by its number as an epoch is. A *turn* is the number of a
sample since the training began: pass ``turn // samples``, and in it the canonical nodes read side
by side. Orders of passes are made when a turn of theirs is asked for, and few are kept.
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


_KEPT = 4  # orders of passes that are kept; an iteration is in one or two


class PassOrders:
    """Orders of the passes of one stream, of ``samples`` samples each.

    ``make`` makes the order of a pass. ``turns``: those that are asked for, first and behind last.
    """

    def __init__(
        self,
        make: Callable[[int], StreamOrder],
        samples: int,
        canonical: int,
        turns: tuple[int, int],
    ) -> None:
        self._make, self.samples, self.canonical, self.turns = make, samples, canonical, turns
        self._partition = Partition(ExactGrid(samples, canonical), 1, 1, is_even=False)
        self._orders: dict[int, StreamOrder] = {}
        first, last = turns
        self._passes = range(first // samples, -(-last // samples)) if samples else range(0)

    @property
    def parts(self) -> list[StreamOrder]:
        """Orders behind it that take long to compute; all of them are kept."""
        if not self._passes or self._order(self._passes[0]).is_cheap:
            return []
        return [self._order(number) for number in self._passes]

    @property
    def can_be_together(self) -> bool:
        """Whether `first_order` gives the order of a pass."""
        return bool(self._passes) and _is_plain(self._order(self._passes[0]))

    def first_order(self) -> RandomAccessOrder:
        """Return the order of the first pass, for a random-access order with every sample once."""
        order = self._order(self._passes[0])
        assert _is_plain(order)
        return order

    def lookup(self) -> Lookup:
        """Return a function from turns to sample ids, which is fastest when turns ascend."""
        lookups: dict[int, Lookup] = {}

        def take(turns: Ids) -> Ids:
            if not len(turns):
                return turns
            first, last = int(turns.min()) // self.samples, int(turns.max()) // self.samples
            if first == last:  # as mostly, and a division for each turn would cost as much again
                elements = turns - first * self.samples
                return self._held(lookups, first)(self._partition.positions(elements))
            numbers, elements = np.divmod(turns, self.samples)
            positions = self._partition.positions(elements)
            out = np.empty(len(turns), np.int64)
            for number in np.unique(numbers).tolist():
                mine = numbers == number
                out[mine] = self._held(lookups, number)(positions[mine])
            return out

        return take

    def find(self, sample: int) -> Ids:
        """Return all turns of a sample among the wanted ones."""
        parts = [np.zeros(0, np.int64)]
        for number in self._passes:
            elements = self._partition.find(self._order(number).find(sample))
            parts.append(np.sort(elements) + number * self.samples)
        turns = np.concatenate(parts)
        return turns[(turns >= self.turns[0]) & (turns < self.turns[1])]

    def _held(self, lookups: dict[int, Lookup], number: int) -> Lookup:
        if number not in lookups:
            while len(lookups) >= _KEPT:
                del lookups[min(lookups)]
            lookups[number] = self._order(number).lookup()
        return lookups[number]

    def _order(self, number: int) -> StreamOrder:
        if number not in self._orders:
            plain_order = next((each for each in self._orders.values() if _is_plain(each)), None)
            # Much of a random-access order is the same in every pass.
            order = plain_order.at_epoch(number) if plain_order is not None else self._make(number)
            if order.is_cheap and len(self._orders) >= _KEPT:
                self._orders.pop(min(self._orders))
            self._orders[number] = order
        return self._orders[number]


def _is_plain(order: StreamOrder) -> TypeGuard[RandomAccessOrder]:
    """Whether an order is computed at any position and has every sample once."""
    return isinstance(order, RandomAccessOrder) and order.resampling.is_plain


class StreamPasses:
    """Orders of ``streams`` over all their passes.

    Its positions are columns of two rows, int64: the stream, and the turn in it.
    """

    def __init__(self, streams: Sequence[PassOrders]) -> None:
        self.streams = tuple(streams)
        self.per_stream = np.array([stream.samples for stream in streams])
        self.samples = int(self.per_stream.sum())
        self.at_hand: AtHand | None = None

    @property
    def parts(self) -> list[StreamOrder]:
        """Orders behind it that take long to compute."""
        return [part for stream in self.streams for part in stream.parts]

    def lookup(self) -> Lookup:
        """Return a function from positions to sample ids, which is fastest when turns ascend."""
        return TurnLookup(self)

    def materialize(self) -> Lookup:
        """Return the same as `lookup`."""
        return self.lookup()

    def find(self, sample: int) -> Ids:
        """Return all positions of a sample among the wanted turns."""
        positions = [np.zeros((2, 0), np.int64)]
        for number, stream in enumerate(self.streams):
            turns = stream.find(sample)
            positions.append(np.stack([np.full(len(turns), number), turns]))
        return np.concatenate(positions, axis=1)

    @cached_property
    def has_together(self) -> NDArray[np.bool_]:
        """Mask of the streams that can be asked together with others."""
        return np.array([stream.can_be_together for stream in self.streams])

    def take_up(self, streams: Ids, passes: Ids) -> AtHand:
        """Keep the latest of these passes of each stream ready, if it can be kept."""
        latest = np.full(len(self.streams), -1)
        np.maximum.at(latest, streams, passes)
        latest[~self.has_together] = -1
        # As one value, since threads may ask at the same time.
        self.at_hand = (self.at_hand or self._all_first()).at_passes(latest)
        return self.at_hand

    def _all_first(self) -> AtHand:
        """Return a pass of each stream that can be asked together with others."""
        passes, first = np.full(len(self.streams), -1), np.zeros(len(self.streams), np.int64)
        shuffles = {}
        for number in np.flatnonzero(self.has_together).tolist():
            order = self.streams[number].first_order()
            passes[number], first[number] = order.params.epoch, order.first_id
            shuffles[number] = order.shuffle
        return AtHand(passes, first, next(iter(shuffles.values())).group(shuffles))

    def elements_to_positions(self, streams: Ids, elements: Ids) -> Ids:
        """Return positions in the orders of passes, whose canonical nodes are read side by side."""
        nodes = self.streams[0].canonical
        if nodes == 1:
            return elements
        samples = self.per_stream[streams]
        column = elements // nodes
        row = elements - column * nodes
        remainder = samples % nodes
        # The last column has only the nodes that are longer than others by one.
        late = np.flatnonzero(column * nodes + remainder == samples)
        late = late[remainder[late] > 0]
        row[late] = -(-(row[late] + 1) * nodes // remainder[late]) - 1
        column += row * samples // nodes
        return column


class AtHand(NamedTuple):
    """Passes that are kept ready: the number for each stream, -1 for none, and the first id."""

    passes: Ids
    first: Ids
    group: ShuffleGroup

    def at_passes(self, latest: Ids) -> AtHand:
        """Return the same with other passes of some streams, -1 for those that stay."""
        changed = np.flatnonzero((latest >= 0) & (latest != self.passes))
        if not len(changed):
            return self
        passes = np.where(latest >= 0, latest, self.passes)
        return self._replace(passes=passes, group=self.group.at_epochs(changed, latest[changed]))


class TurnLookup:
    """Lookup of sample ids from streams and turns."""

    def __init__(self, passes: StreamPasses) -> None:
        self._passes = passes
        self._alone: dict[int, Lookup] = {}

    def __call__(self, positions: Ids) -> Ids:
        """Return the sample ids of positions."""
        streams, turns = positions
        if not self._passes.has_together.any():
            return self._one_by_one(streams, turns)
        samples, at_hand = self._passes.per_stream[streams], self._passes.at_hand
        numbers = turns // samples
        if at_hand is None or not (is_there := at_hand.passes[streams] == numbers).all():
            at_hand = self._passes.take_up(streams, numbers)
            is_there = at_hand.passes[streams] == numbers
        elements = turns - numbers * samples
        if is_there.all():
            return self._together(at_hand, streams, elements)
        out = np.empty(len(turns), np.int64)
        out[is_there] = self._together(at_hand, streams[is_there], elements[is_there])
        out[~is_there] = self._one_by_one(streams[~is_there], turns[~is_there])
        return out

    def _one_by_one(self, streams: Ids, turns: Ids) -> Ids:
        """Return the sample ids of turns, one stream after the other."""
        small = streams.astype(np.min_scalar_type(len(self._passes.streams)))
        out = np.empty(len(turns), np.int64)
        for stream in np.flatnonzero(np.bincount(small)).tolist():
            mine = np.flatnonzero(small == stream)
            if stream not in self._alone:
                self._alone[stream] = self._passes.streams[stream].lookup()
            out[mine] = self._alone[stream](turns[mine])
        return out

    def _together(self, at_hand: AtHand, streams: Ids, elements: Ids) -> Ids:
        """Return the sample ids of elements of the passes that are kept ready."""
        if not len(elements):
            return elements
        positions = self._passes.elements_to_positions(streams, elements)
        ids = at_hand.group.ids_at(streams, positions)
        ids += at_hand.first[streams]
        return ids
