"""Group of seekable orders that are asked together, as the streams of a global batch are.

What costs time in a small request is the number of calls and not that of ids. Here the numbers of
all orders lie side by side, so many orders take as many calls as one.
"""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds.shuffle.base import ShuffleGroup
from mds.shuffle.cells import Cells
from mds.shuffle.keyed_order import KeyedOrders
from mds.shuffle.line import shuffle_long
from mds.shuffle.permutation import finish_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]

_KEPT_PARTS = 1 << 19  # of orders in other epochs, 24 bytes each


class _Epoch(NamedTuple):
    """Values of one epoch of an order: keys, and its parts with their ends among all."""

    keys: tuple[np.uint64, ...]  # of slots, cells and shards
    first: Ids
    size: Ids
    ends: Ids


class SeekableGroup(ShuffleGroup):
    """Seekable orders by number, with what they have by order, by canonical node and by part."""

    def __init__(self, shuffles: Mapping[int, Any]) -> None:
        super().__init__(shuffles)
        self.shuffles: dict[int, Any]
        given = list(shuffles.values())
        self._order = np.zeros(max(shuffles) + 1, np.int64)
        self._order[list(shuffles)] = np.arange(len(given))
        self._samples = np.array([each.spec.samples for each in given])
        self._nodes = np.array([each.spec.num_canonical_nodes for each in given])
        dealt = [each.dealt for each in given]
        self._lines_of = KeyedOrders([(len(each.first), each.nodes) for each in dealt])
        self._partial = np.array([each.partial_keys() for each in given], np.uint64).T
        self._before, self._node = _starts(self._samples), _starts(self._nodes)
        self._part = self._lines_of.starts[:-1]
        self._dealt_first = np.concatenate([each.first for each in dealt])
        self._dealt_size = np.concatenate([each.size for each in dealt])
        self._node_starts = np.concatenate([each.starts[:-1] for each in given])
        self._rounds = np.array([each.cells.rounds for each in given])
        self._kinds = np.unique(self._rounds).tolist()
        sizes = {each.cells.bits for each in given}
        # Shifts by one number are quicker.
        bits = np.repeat([each.cells.bits for each in given], self._nodes)
        samples, count, window, first = (
            np.concatenate([getattr(each.cells, name) for each in given])
            for name in ("samples", "count", "window", "first")
        )
        slot_key, cell_key = (np.empty(len(bits), np.uint64) for _ in range(2))
        self._cells = Cells(
            bits if len(sizes) > 1 else sizes.pop(),
            *(samples, count, window, first, slot_key, cell_key),
            rounds=0,
        )
        self._keys = np.empty(len(given), np.uint64)
        self._long = np.array([each.line.long for each in given])
        self._has_long = any(each.line.has_long for each in given)
        self._first, self._size, self._ends = (np.empty_like(self._dealt_first) for _ in range(3))
        self._kept: dict[tuple[int, int], _Epoch] = {}
        self._begin(np.arange(len(given)), np.array([each.spec.epoch for each in given]))

    def at_epochs(self, numbers: Ids, epochs: Ids) -> SeekableGroup:
        """Another group, in which the orders of some numbers are those of other epochs."""
        made = copy.copy(self)
        cells = self._cells
        made._cells = cells._replace(  # noqa: SLF001 - of the same class
            slot_key=cells.slot_key.copy(), cell_key=cells.cell_key.copy()
        )
        for name in ("_keys", "_first", "_size", "_ends"):
            setattr(made, name, getattr(self, name).copy())
        made._begin(self._order[numbers], epochs)  # noqa: SLF001 - of the same class
        return made

    def _begin(self, orders: Ids, epochs: Ids) -> None:
        """Take over what changes with the epochs of orders: their keys and lines."""
        wanted, kept = list(zip(orders.tolist(), epochs.tolist(), strict=True)), self._kept
        new = np.array([each not in kept for each in wanted])
        if new.any():
            if sum(len(each.size) for each in kept.values()) > _KEPT_PARTS:
                kept = {each: kept[each] for each in wanted if each in kept}
            # Another table each time, since threads may ask at the same time.
            self._kept = kept = {**kept, **self._make(orders[new], epochs[new])}
        for order, epoch in wanted:
            self._fill(order, kept[order, epoch])

    def _make(self, orders: Ids, epochs: Ids) -> dict[tuple[int, int], _Epoch]:
        """Orders in epochs, all with the calls of one."""
        line_keys, *keys = (finish_keys(partial[orders], epochs) for partial in self._partial)
        lines = self._lines_of.some(orders)
        lengths = np.diff(lines.starts)
        found = lines.orders(np.repeat(line_keys, lengths))
        found += np.repeat(self._part[orders], lengths)
        first, size = self._dealt_first[found], self._dealt_size[found]
        # Where a part ends among all orders, not only those that are made here.
        before = self._before[orders] - _starts(self._samples[orders])
        ends = size.cumsum() + np.repeat(before, lengths)
        edges = itertools.pairwise(lines.starts.tolist())
        epochs_of = zip(orders.tolist(), epochs.tolist(), strict=True)
        return {
            key: _Epoch(own, first[a:b].copy(), size[a:b].copy(), ends[a:b].copy())
            for key, (a, b), own in zip(epochs_of, edges, zip(*keys, strict=True), strict=True)
        }

    def _fill(self, order: int, epoch: _Epoch) -> None:
        """Take over one order in an epoch."""
        node, part = int(self._node[order]), int(self._part[order])
        nodes = slice(node, node + int(self._nodes[order]))
        self._cells.slot_key[nodes], self._cells.cell_key[nodes], self._keys[order] = epoch.keys
        parts = slice(part, part + len(epoch.size))
        self._first[parts], self._size[parts] = epoch.first, epoch.size
        self._ends[parts] = epoch.ends

    def ids_at(self, numbers: Ids, positions: Ids) -> Ids:
        """Return the ids at positions of the shuffles of these numbers."""
        order = self._order[numbers]
        # Node k begins at k * samples // nodes, so this is the last that begins at or before it.
        node = ((positions + 1) * self._nodes[order] - 1) // self._samples[order]
        node += self._node[order]
        start = self._node_starts[node]
        line = self._lines(order, node, positions - start)
        line += start
        line += self._before[order]
        part = self._ends.searchsorted(line, side="right")
        size = self._size[part]
        line -= self._ends[part] - size
        if self._has_long:
            own = part - self._part[order]
            shuffle_long(line, size, own, self._long[order], self._keys[order])
        line += self._first[part]
        return line

    def _lines(self, order: Ids, node: Ids, places: Ids) -> Ids:
        """Return the places in the lines of their nodes."""
        if len(self._kinds) == 1:
            return self._cells._replace(rounds=self._kinds[0]).of(node).lines(places)
        rounds, out = self._rounds[order], np.empty(len(places), np.int64)
        for kind in self._kinds:
            mine = np.flatnonzero(rounds == kind)
            out[mine] = self._cells._replace(rounds=kind).of(node[mine]).lines(places[mine])
        return out


def _starts(lengths: NDArray[np.int64]) -> Ids:
    """Return the start of each of these when they are laid end to end."""
    return np.cumsum(lengths) - lengths
