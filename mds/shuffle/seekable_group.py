"""Group of seekable orders that are asked together, as the streams of a global batch are.

What costs time in a small request is the number of calls and not that of ids. Here the numbers of
all orders lie side by side, so many orders take as many calls as one.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.shuffle.base import ShuffleGroup
from mds.shuffle.cells import Cells
from mds.shuffle.line import shuffle_long

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]


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
        parts = [len(each.line.size) for each in given]
        self._before, self._node, self._part = map(
            _starts, (self._samples, self._nodes, np.array(parts))
        )
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
        self._first, self._size, self._ends = (np.empty(sum(parts), np.int64) for _ in range(3))
        for number in shuffles:
            self._fill(number)

    def changed(self, shuffles: Mapping[int, Any]) -> ShuffleGroup:
        """Another group, with other shuffles under some numbers."""
        known = self.shuffles
        if not all(k in known and known[k].dealt is each.dealt for k, each in shuffles.items()):
            return super().changed(shuffles)
        # Other epochs of the same orders: all numbers keep their places.
        made = copy.copy(self)
        made.shuffles = {**known, **shuffles}
        cells = self._cells
        made._cells = cells._replace(  # noqa: SLF001 - of the same class
            slot_key=cells.slot_key.copy(), cell_key=cells.cell_key.copy()
        )
        for name in ("_keys", "_first", "_size", "_ends"):
            setattr(made, name, getattr(self, name).copy())
        for number in shuffles:
            made._fill(number)  # noqa: SLF001 - of the same class
        return made

    def _fill(self, number: int) -> None:
        """Take over what changes with the epoch of an order."""
        shuffle, order = self.shuffles[number], int(self._order[number])
        node, part = int(self._node[order]), int(self._part[order])
        nodes = slice(node, node + int(self._nodes[order]))
        self._cells.slot_key[nodes] = shuffle.cells.slot_key
        self._cells.cell_key[nodes] = shuffle.cells.cell_key
        line = shuffle.line
        self._keys[order] = line.key
        parts = slice(part, part + len(line.size))
        self._first[parts], self._size[parts] = line.first, line.size
        np.add(line.ends, self._before[order], out=self._ends[parts])

    def ids_at(self, numbers: Ids, positions: Ids) -> Ids:
        """The ids at positions of the shuffles of these numbers."""
        order = self._order[numbers]
        # Node k begins at k * samples // nodes, so this is the last that begins at or before it.
        node = ((positions + 1) * self._nodes[order] - 1) // self._samples[order]
        node += self._node[order]
        start = self._node_starts[node]
        line = self._lines(order, node, positions - start)
        line += start
        line += self._before[order]
        part = np.searchsorted(self._ends, line, side="right")
        size = self._size[part]
        line -= self._ends[part] - size
        if self._has_long:
            own = part - self._part[order]
            shuffle_long(line, size, own, self._long[order], self._keys[order])
        line += self._first[part]
        return line

    def _lines(self, order: Ids, node: Ids, places: Ids) -> Ids:
        """The places in the lines of their nodes."""
        if len(self._kinds) == 1:
            return self._cells._replace(rounds=self._kinds[0]).of(node).lines(places)
        rounds, out = self._rounds[order], np.empty(len(places), np.int64)
        for kind in self._kinds:
            mine = np.flatnonzero(rounds == kind)
            out[mine] = self._cells._replace(rounds=kind).of(node[mine]).lines(places[mine])
        return out


def _starts(lengths: NDArray[np.int64]) -> Ids:
    """Where each of these begins when they lie one after the other."""
    return np.cumsum(lengths) - lengths
