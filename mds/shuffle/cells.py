"""Cells of seekable: from a place in the output of a canonical node to a place in its line.

The line of a node is cut in *cells* of 2**bits samples. Output cell c takes one sample, or a few,
from each of the ``window`` line cells around c: slot s of the cell is sent to a lane by a
permutation keyed by c, the lane says how many cells to go back or ahead, and a permutation keyed by
the cell arrived at says which of its samples it is. Each step can be undone.

All of it is arithmetic on arrays. A number of it is that of one node, or an array with that of each
place, where places of several nodes or orders are asked for at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds.shuffle.permutation import hash_counters, permute, unpermute

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Numbers = Any  # one integer, or an array with one for each place

NODE_SHIFT = 40  # cells of a node are counted below it


class Cells(NamedTuple):
    """Cells of canonical nodes: one node's, or those of the node of each place.

    ``samples``: of the node; ``count``: its cells; ``window``: cells that one takes samples from;
    ``first``: the counter of its first cell; ``rounds``: of all the permutations.
    """

    bits: Numbers
    samples: Numbers
    count: Numbers
    window: Numbers
    first: Numbers
    slot_key: Numbers
    cell_key: Numbers
    rounds: int

    def of(self, numbers: Any) -> Cells:
        """Return the cells of other places, where there are several nodes."""
        fields: tuple[Any, ...] = self
        return Cells._make(each if np.ndim(each) == 0 else each[numbers] for each in fields)

    def lines(self, places: Ids) -> Ids:
        """Return the places in the lines that places in the output take their samples from."""
        return self._walk(places, Cells._forward)

    def outputs(self, lines: Ids) -> Ids:
        """Return the places in the output of places in the lines: the inverse of `lines`."""
        return self._walk(lines, Cells._backward)

    def _walk(self, places: Ids, step: Any) -> Ids:
        found: Ids = step(self, places)
        outside = np.flatnonzero(found >= self.samples)
        # The last cell of a node may be larger than its remaining samples.
        while len(outside):
            some = self.of(outside)
            again = step(some, found[outside])
            found[outside] = again
            outside = outside[again >= some.samples]
        return found

    def _forward(self, place: Ids) -> Ids:
        cell = place >> self.bits
        slot = (place - (cell << self.bits)).astype(np.uint32)
        lane = permute(slot, self._keys(self.slot_key, cell), self._words, self.rounds)
        source = self._wrap(cell - self._shift(lane))
        keys = self._keys(self.cell_key, source)
        sample = permute(lane, keys, self._words, self.rounds)
        source <<= self.bits
        source += sample
        return source

    def _backward(self, place: Ids) -> Ids:
        source = place >> self.bits
        sample = (place - (source << self.bits)).astype(np.uint32)
        keys = self._keys(self.cell_key, source)
        lane = unpermute(sample, keys, self._words, self.rounds)
        cell = self._wrap(source + self._shift(lane))
        slot = unpermute(lane, self._keys(self.slot_key, cell), self._words, self.rounds)
        cell <<= self.bits
        cell += slot
        return cell

    @property
    def _words(self) -> Any:
        return self.bits if np.ndim(self.bits) == 0 else self.bits.astype(np.uint32)

    def _keys(self, key: Numbers, cell: Ids) -> NDArray[np.uint64]:
        return hash_counters(key, cell + self.first)

    def _shift(self, lane: NDArray[np.uint32]) -> Ids:
        """Return how many cells a lane goes ahead: evenly from half a window back to half ahead."""
        ahead: Ids = np.multiply(lane, self.window, dtype=np.int64)
        ahead >>= self.bits
        ahead -= self.window >> 1
        return ahead

    def _wrap(self, cell: Ids) -> Ids:
        cell += (cell < 0) * self.count
        cell -= (cell >= self.count) * self.count
        return cell
