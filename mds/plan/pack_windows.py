"""Windows of documents that are packed one by one: of an order, or of a schedule.

In an order each canonical node has its own windows of consecutive documents. A schedule has one
sequence of windows, with documents of every stream. A dropped document is padding in windows that
had begun, and left out of later ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from mds.plan.edits import drops_of
from mds.process.fork_safe import cached_property
from mds.shardfile.hashing import digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from mds.plan.edits import Edit
    from mds.plan.scheduled_batches import ScheduledEpoch
    from mds.plan.stream_orders import Lookup, StreamOrder
    from mds.plan.stream_passes import StreamPasses

    Ids = NDArray[np.int64]


class DocumentWindows(Protocol):
    """Windows of an epoch, in rows that are read side by side."""

    #: Number of windows of each row.
    counts: Ids

    def ids(self, row: int, window: int) -> Ids:
        """Return the documents of a window, in their order."""

    def find(self, sample: int) -> list[tuple[int, int]]:
        """Return the row and the window of each place of a document."""

    def key(self) -> str:
        """Return a name for all that the documents depend on."""


class OrderWindows:
    """Windows of ``size`` documents of an order, a row for each canonical node.

    Without an order there are none.
    """

    def __init__(self, order: StreamOrder | None, size: int) -> None:
        self._order, self._size = order, size
        self._starts = order.starts() if order is not None else np.zeros(1, np.int64)
        self.counts = -(-np.diff(self._starts) // size)

    @cached_property
    def _lookup(self) -> Lookup:
        assert self._order is not None
        return self._order.lookup()

    def ids(self, row: int, window: int) -> Ids:
        """Return the documents of a window, in their order."""
        first = int(self._starts[row]) + window * self._size
        return self._lookup(np.arange(first, min(first + self._size, int(self._starts[row + 1]))))

    def find(self, sample: int) -> list[tuple[int, int]]:
        """Return the row and the window of each place of a document."""
        windows = []
        for position in self._order.find(sample).tolist() if self._order is not None else ():
            row = int(np.searchsorted(self._starts, position, side="right")) - 1
            windows.append((row, (position - int(self._starts[row])) // self._size))
        return windows

    def key(self) -> str:
        """Return a name for all that the documents depend on."""
        return self._order.key() if self._order is not None else ""


class ScheduledWindows:
    """Windows of a schedule, all in one row; ``passes`` are the orders of all streams.

    ``name``: for what they depend on.
    """

    def __init__(self, epoch: ScheduledEpoch, passes: StreamPasses | None, name: str) -> None:
        self._epoch, self._passes, self._name = epoch, passes, name
        self.counts = np.array([epoch.last - epoch.first if passes else 0], np.int64)

    @cached_property
    def _lookup(self) -> Lookup:
        assert self._passes is not None
        return self._passes.lookup()

    def ids(self, row: int, window: int) -> Ids:
        """Return the documents of a window: those of each stream that are due, evenly spread."""
        del row
        step = self._epoch.first + window
        first, last = self._epoch.mixture.counts(np.array([step, step + 1]))
        sizes = last - first
        streams = np.repeat(np.arange(len(sizes)), sizes)
        within = np.arange(len(streams)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        places = ((2 * within + 1) << 32) // (2 * sizes[streams])
        order = np.argsort(places, kind="stable")
        return self._lookup(np.stack([streams, first[streams] + within])[:, order])

    def find(self, sample: int) -> list[tuple[int, int]]:
        """Return the row and the window of each place of a document."""
        windows = []
        for stream, turn in self._passes.find(sample).T if self._passes is not None else ():
            (window,) = self._epoch.mixture.steps_of_turns(int(stream), np.array([turn]))
            windows.append((0, int(window) - self._epoch.first))
        return windows

    def key(self) -> str:
        """Return a name for all that the documents depend on."""
        return digest(self._name, self._epoch.first, self._epoch.last)


_NOT_HERE = 1 << 62


class PackDrops:
    """Documents that are dropped in an epoch of packs, by the edits of its run."""

    def __init__(self, edits: Iterable[Edit], epoch: int) -> None:
        self._drops = [drop for drop in drops_of(edits) if drop.epoch <= epoch and len(drop.ids)]
        self._epoch = epoch
        nothing = np.zeros(0, np.int64)
        every = np.concatenate([nothing, *(drop.ids for drop in self._drops)])
        begins = [drop.begin if drop.epoch == epoch else 0 for drop in self._drops]
        self._ids, positions = np.unique(every, return_inverse=True)
        self._begins = np.full(len(self._ids), _NOT_HERE)
        np.minimum.at(
            self._begins, positions, np.repeat(begins, [len(drop.ids) for drop in self._drops])
        )

    def remaining(self, ids: Ids, node: int, window: int) -> Ids:
        """Return the samples of a window of a canonical node that are packed."""
        dropped = [
            drop.ids
            for drop in self._drops
            if drop.epoch < self._epoch or not drop.windows or window >= drop.windows[node]
        ]
        return ids[~np.isin(ids, np.concatenate(dropped))] if dropped else ids

    def mask(self, ids: Ids, places: Ids) -> NDArray[np.bool_]:
        """Return a mask of the pieces that are padding, of packs at places of the epoch."""
        if not len(self._ids):
            return np.zeros(len(ids), bool)
        nearest = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        mask: NDArray[np.bool_] = (self._ids[nearest] == ids) & (self._begins[nearest] <= places)
        return mask
