"""seekable: a random-access shuffle, of which any position is computed alone.

Shards are put in a random line, anew in every epoch, and dealt to canonical nodes, whose shares
stay the same. A node's line is cut in *cells* of 2**bits samples. Output cell c takes one sample,
or a few, from each of the ``window`` line cells around c: slot s of the cell is sent to a lane by
a permutation keyed by c, the lane says how many cells to go back or ahead, and a permutation keyed
by the cell arrived at says which of its samples it is. Each step can be undone, so every sample
comes exactly once, and a sample's whereabouts can be asked as well.

The samples of a shard are spread evenly over a block, as by py1e, and shards are needed and let go
one after the other. The window wraps around at the ends of a node, so no sample is mixed less than
another. A shard that is large against the block is shuffled in itself first. Nothing is drawn, and
what is kept is a few numbers a shard; an id costs about 0.1 us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError
from mds.shuffle.base import RandomAccessShuffle
from mds.shuffle.permutation import (
    derive_key,
    hash_counters,
    keyed_order,
    permute,
    permute_below,
    unpermute,
)
from mds.shuffle.shard_parts import split_at_nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds.shuffle.base import ShuffleSpec

    Ids = NDArray[np.int64]

_TAG = 0x5EEC  # keys of this algorithm are its own
_DEAL, _LINE, _SLOT, _CELL, _SHARD = range(5)


class Seekable(RandomAccessShuffle):
    """Keyed permutation within a sliding window. Raises PlanError for a block of no samples."""

    uses_blocks = True

    def __init__(self, spec: ShuffleSpec) -> None:
        if spec.block_size < 1:
            raise PlanError(
                f"shuffle_block_size {spec.block_size}: seekable needs blocks of at least 1 sample."
            )
        super().__init__(spec)
        self._lay_out()
        samples, shards = spec.samples, max(len(self._first), 1)
        smallest = min(spec.block_size, max(samples // spec.num_canonical_nodes, 1))
        # A cell of at least the root of the block: then every cell of the window is reached.
        self._bits = (smallest - 1).bit_length() + 1 >> 1
        mean = samples // shards
        # A shard then lives for about a block, its own length included, as with py1e.
        spread = max(spec.block_size - mean, spec.block_size // 2)
        cells = -(-np.diff(self.starts) >> self._bits)
        self._cells = np.maximum(cells, 1)
        self._window = np.minimum(max(spread >> self._bits, 1), self._cells)
        self._slot_key, self._cell_key, self._shard_key = (
            derive_key(_TAG, what, spec.seed, spec.epoch) for what in (_SLOT, _CELL, _SHARD)
        )
        # Neighbours in a shard are then as far apart as with py1e (measured: 4 % less for shards
        # of a fifth of a block without this, 0.4 % for a tenth).
        self._long = max(spec.block_size // 16, 1)
        self._has_long = bool(len(self._size)) and int(self._size.max()) > self._long

    def _lay_out(self) -> None:
        """The line of this epoch: parts of shards, node after node."""
        spec = self.spec
        # First id and size of a shard side by side, so that both come with one access to memory.
        shards = np.empty((len(spec.sizes), 2), np.int64)
        shards[:, 1] = spec.sizes
        shards[:, 0] = np.cumsum(spec.sizes) - spec.sizes
        if len(shards) and not int(spec.sizes.min()):
            shards = shards[spec.sizes > 0]
        nodes = None
        if spec.num_canonical_nodes > 1:
            shards = shards.take(
                keyed_order(derive_key(_TAG, _DEAL, spec.seed), len(shards)), axis=0
            )
            parts = split_at_nodes(shards[:, 0], shards[:, 1], spec)
            shards = np.column_stack([parts.begin, parts.size])
            nodes = np.repeat(np.arange(spec.num_canonical_nodes), np.diff(parts.edges))
        shards = shards.take(
            keyed_order(derive_key(_TAG, _LINE, spec.seed, spec.epoch), len(shards), nodes), axis=0
        )
        self._size = shards[:, 1].copy()
        self._ends = np.cumsum(self._size)
        self._first = shards[:, 0].copy()

    def ids_at(self, positions: Ids) -> Ids:
        """The ids at positions of the order, int64."""
        node = self._node(positions)
        start = self.starts[node]
        place = self._forward(positions - start, node)
        outside = np.flatnonzero(place >= self.starts[node + 1] - start)
        # The last cell of a node may be larger than what is left for it.
        while len(outside):
            of = node if np.ndim(node) == 0 else node[outside]
            again = self._forward(place[outside], of)
            place[outside] = again
            limit = self.starts[of + 1] - self.starts[of]
            outside = outside[again >= limit]
        return self._ids(place + start)

    def find(self, ids: Ids) -> Ids:
        """The positions in the order of ids: the inverse of `ids_at`."""
        order = np.argsort(self._first)
        part = order[np.searchsorted(self._first[order], ids, side="right") - 1]
        offset = self._inside(ids - self._first[part], part, inverse=True)
        line = self._ends[part] - self._size[part] + offset
        node = self._node(line)
        start = self.starts[node]
        place = self._backward(line - start, node)
        outside = np.flatnonzero(place >= self.starts[node + 1] - start)
        while len(outside):
            of = node if np.ndim(node) == 0 else node[outside]
            again = self._backward(place[outside], of)
            place[outside] = again
            limit = self.starts[of + 1] - self.starts[of]
            outside = outside[again >= limit]
        return place + start

    def _node(self, positions: Ids) -> Ids:
        if self.spec.num_canonical_nodes == 1 or not len(positions):
            return np.zeros((), np.int64)
        ends = np.array([positions.min(), positions.max()])
        first, last = np.searchsorted(self.starts, ends, side="right") - 1
        # A worker mostly reads one node, and arithmetic with its numbers alone is quicker.
        if first == last:
            return np.asarray(first)
        return np.searchsorted(self.starts, positions, side="right") - 1

    def _forward(self, place: Ids, node: Ids) -> Ids:
        """From a place in the output of a node to a place in its line, rounded up to cells."""
        bits = self._bits
        cell = place >> bits
        slot = (place & ((1 << bits) - 1)).astype(np.uint32)
        lane = permute(slot, self._keys(self._slot_key, cell, node), bits)
        source = cell - self._shift(lane, node)
        source = self._wrap(source, node)
        sample = permute(lane, self._keys(self._cell_key, source, node), bits)
        return source << bits | sample

    def _backward(self, place: Ids, node: Ids) -> Ids:
        bits = self._bits
        source = place >> bits
        sample = (place & ((1 << bits) - 1)).astype(np.uint32)
        lane = unpermute(sample, self._keys(self._cell_key, source, node), bits)
        cell = self._wrap(source + self._shift(lane, node), node)
        slot = unpermute(lane, self._keys(self._slot_key, cell, node), bits)
        return cell << bits | slot

    def _shift(self, lane: NDArray[np.uint32], node: Ids) -> Ids:
        """How many cells a lane goes ahead: evenly from half a window back to half ahead."""
        window = self._window[node]
        ahead: Ids = lane * window
        ahead >>= self._bits
        ahead -= window // 2
        return ahead

    def _wrap(self, cell: Ids, node: Ids) -> Ids:
        cells = self._cells[node]
        cell += (cell < 0) * cells
        cell -= (cell >= cells) * cells
        return cell

    def _keys(self, key: int, cell: Ids, node: Ids) -> NDArray[np.uint64]:
        return hash_counters(key, cell + (node << 40))

    def _ids(self, line: Ids) -> Ids:
        """The ids at places of the line."""
        part = np.searchsorted(self._ends, line, side="right")
        offset = line - (self._ends[part] - self._size[part])
        ids: Ids = self._first[part] + self._inside(offset, part)
        return ids

    def _inside(self, offset: Ids, part: Ids, *, inverse: bool = False) -> Ids:
        """Offsets in parts, shuffled where the part is long."""
        if not self._has_long:
            return offset
        long = np.flatnonzero(self._size[part] > self._long)
        if len(long):
            keys = hash_counters(self._shard_key, part[long])
            sizes = self._size[part[long]]
            offset = offset.copy()
            offset[long] = permute_below(offset[long], sizes, keys, inverse=inverse)
        return offset
