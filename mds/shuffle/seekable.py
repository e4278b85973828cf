"""seekable: a random-access shuffle, of which any position is computed alone.

Shards are put in a random line, anew in every epoch, and dealt to canonical nodes, whose shares
stay the same. A node's line is cut in cells (`mds.shuffle.cells`), and each cell of the output
takes its samples from a window of them. Each step can be undone, so every sample comes exactly
once, and a sample's whereabouts can be asked as well.

The samples of a shard are spread evenly over a block, as by py1e, and shards are needed and let go
one after the other. The window wraps around at the ends of a node, so no sample is mixed less than
another. A shard that is large against the block is shuffled in itself first. Nothing is drawn, and
what is kept is a few numbers a shard; an id costs about 0.1 us.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mds.errors import PlanError
from mds.shuffle.base import RandomAccessShuffle
from mds.shuffle.cells import NODE_SHIFT, Cells
from mds.shuffle.keyed_order import keyed_order
from mds.shuffle.line import Line
from mds.shuffle.permutation import derive_key, partial_key, rounds_for
from mds.shuffle.seekable_group import SeekableGroup
from mds.shuffle.shard_parts import split_at_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from mds.shuffle.base import ShuffleGroup, ShuffleSpec

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
        self.dealt = _deal(spec)
        samples, shards = spec.samples, max(len(self.dealt.first), 1)
        smallest = min(spec.block_size, max(samples // spec.num_canonical_nodes, 1))
        # A cell of at least the root of the block: then every cell of the window is reached.
        bits = (smallest - 1).bit_length() + 1 >> 1
        mean = samples // shards
        # A shard then lives for about a block, its own length included, as with py1e.
        spread = max(spec.block_size - mean, spec.block_size // 2)
        lengths = np.diff(self.starts)
        count = np.maximum(-(-lengths >> bits), 1)
        window = np.minimum(max(spread >> bits, 1), count)
        counters = np.arange(spec.num_canonical_nodes) << NODE_SHIFT
        self.cells = Cells(bits, lengths, count, window, counters, 0, 0, rounds_for(bits))
        self._begin_epoch()

    def at_epoch(self, epoch: int) -> Seekable:
        """Return the same shards in the order of another epoch, sharing what all epochs share."""
        made = copy.copy(self)
        made.spec = dataclasses.replace(self.spec, epoch=epoch)
        made._begin_epoch()  # noqa: SLF001 - of the same class
        return made

    def _begin_epoch(self) -> None:
        """Return the keys of the epoch, and its line."""
        dealt, block = self.dealt, self.spec.block_size
        self.cells = self.cells._replace(slot_key=self._key(_SLOT), cell_key=self._key(_CELL))
        order = keyed_order(self._key(_LINE), len(dealt.first), dealt.nodes)
        # Neighbours in a shard are then as far apart as with py1e (measured: 4 % less for shards
        # of a fifth of a block without this, 0.4 % for a tenth).
        long = max(block // 16, 1)
        self.line = Line(dealt.first[order], dealt.size[order], long, self._key(_SHARD))

    @classmethod
    def group(cls, shuffles: Mapping[int, RandomAccessShuffle]) -> ShuffleGroup:
        """Several orders that are asked together, by the same arithmetic."""
        return SeekableGroup(shuffles)

    def partial_keys(self) -> list[int]:
        """Return the keys of an epoch without its number: of the line, slots, cells and shards."""
        return [partial_key(_TAG, what, self.spec.seed) for what in (_LINE, _SLOT, _CELL, _SHARD)]

    def _key(self, what: int) -> int:
        return derive_key(_TAG, what, self.spec.seed, self.spec.epoch)

    def ids_at(self, positions: Ids) -> Ids:
        """Return the ids at positions of the order, int64."""
        node = self._node(positions)
        start = self.starts[node]
        return self.line.ids(self.cells.of(node).lines(positions - start) + start)

    def find(self, ids: Ids) -> Ids:
        """Return the positions in the order of ids: the inverse of `ids_at`."""
        line = self.line.places(ids)
        node = self._node(line)
        start = self.starts[node]
        return self.cells.of(node).outputs(line - start) + start

    def _node(self, positions: Ids) -> Ids:
        if self.spec.num_canonical_nodes == 1 or not len(positions):
            return np.zeros((), np.int64)
        ends = np.array([positions.min(), positions.max()])
        first, last = np.searchsorted(self.starts, ends, side="right") - 1
        # A worker mostly reads one node, and arithmetic with its numbers alone is quicker.
        if first == last:
            return np.asarray(first)
        return np.searchsorted(self.starts, positions, side="right") - 1


class _Dealt(NamedTuple):
    """Parts of shards by their first ids and sizes, and the node of each where there are many."""

    first: Ids
    size: Ids
    nodes: Ids | None


def _deal(spec: ShuffleSpec) -> _Dealt:
    """Deal shards to canonical nodes, the same in every epoch."""
    size = spec.sizes
    first = np.cumsum(size) - size
    if len(size) and not int(size.min()):
        first, size = first[size > 0], size[size > 0]
    if spec.num_canonical_nodes == 1:
        return _Dealt(first, size, None)
    order = keyed_order(derive_key(_TAG, _DEAL, spec.seed), len(size))
    parts = split_at_nodes(first[order], size[order], spec)
    nodes = np.repeat(np.arange(spec.num_canonical_nodes), np.diff(parts.edges))
    return _Dealt(parts.begin, parts.size, nodes)
