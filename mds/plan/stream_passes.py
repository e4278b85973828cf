"""Orders of all streams of a schedule, asked together.

A global batch takes a few samples of each stream, so that asking one stream after the other would
cost as many times the calls. Where passes are computed at any position, those that the streams are
in now are asked at once; what belongs to another pass of a stream is asked of that stream alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mds.process.fork_safe import cached_property

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mds.plan.passes import PassOrders
    from mds.plan.stream_orders import Lookup, StreamOrder
    from mds.shuffle.base import ShuffleGroup

    Ids = NDArray[np.int64]


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
