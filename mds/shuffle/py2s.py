"""py2s: as py1s, with the samples of every shard shuffled a first time before nodes are cut.

The first shuffle is the same in every epoch and runs over all shards in one go, while an epoch
visits them in another order. So where its generator stood at each shard is kept, 24 bytes a
shard, and a shard's first shuffle is replayed when the shard is met.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.shuffle.sequential import SequentialShuffle, advance_parts, group_parts
from mds.shuffle.shard_parts import split_at_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_STATE = np.dtype([("high", "<u8"), ("low", "<u8"), ("half", "<u4"), ("has_half", "?")])


class Py2s(SequentialShuffle):
    """Two shuffles within shards, before and after nodes are cut: memory by shard size."""

    canonical_nodes_per_node = 64  # it mixes little, so more nodes are read side by side

    def prepare(self) -> np.random.Generator:
        """Shuffle the shards once to know where each begins in the stream of random numbers."""
        spec = self.spec
        rng = np.random.default_rng(spec.seed)
        self._order = np.arange(len(spec.sizes))
        rng.shuffle(self._order)
        self._begin = (np.cumsum(spec.sizes) - spec.sizes)[self._order]
        self._size = spec.sizes[self._order]
        self._increment = rng.bit_generator.state["state"]["inc"]
        self._states = np.empty(len(self._size), _STATE)
        scratch = np.empty(int(self._size.max(initial=0)), np.int64)
        for i, size in enumerate(self._size.tolist()):
            self._states[i] = _pack(rng)
            rng.shuffle(scratch[:size])
        # Places in the line of shuffled shards, cut at the nodes, and the shard of each part.
        self._line = np.cumsum(self._size) - self._size
        self._parts = split_at_nodes(self._line, self._size, spec)
        self._shard = np.searchsorted(self._line, self._parts.begin, side="right") - 1
        epoch = np.random.default_rng(spec.seed + spec.epoch)
        self._replay = np.random.Generator(np.random.PCG64(0))
        return epoch

    def generate(self, node: int, rng: np.random.Generator) -> Iterator[NDArray[np.integer]]:
        """Yield the parts of a node in their order of this epoch, each shuffled again."""
        first, last = int(self._parts.edges[node]), int(self._parts.edges[node + 1])
        parts = np.arange(first, last)
        rng.shuffle(parts)
        for a, b in group_parts(self._parts.size[parts], self.chunk):
            pieces = [self._first(part) for part in parts[a:b].tolist()]
            for piece in pieces:
                rng.shuffle(piece)
            yield np.concatenate(pieces)

    def advance(self, node: int, rng: np.random.Generator) -> None:
        """Only the second shuffle draws from ``rng``."""
        first, last = int(self._parts.edges[node]), int(self._parts.edges[node + 1])
        parts = np.arange(first, last)
        rng.shuffle(parts)
        advance_parts(self._parts.size[parts], rng)

    def _first(self, part: int) -> NDArray[np.int64]:
        """Return the ids of a part as the first shuffle leaves them."""
        shard = int(self._shard[part])
        begin, size = int(self._begin[shard]), int(self._size[shard])
        ids = np.arange(begin, begin + size, dtype=np.int64)
        _unpack(self._states[shard], self._increment, self._replay)
        self._replay.shuffle(ids)
        offset = int(self._parts.begin[part] - self._line[shard])
        return ids[offset : offset + int(self._parts.size[part])]


def _pack(rng: np.random.Generator) -> tuple[int, int, int, bool]:
    state = rng.bit_generator.state
    number = state["state"]["state"]
    return number >> 64, number & (2**64 - 1), state["uinteger"], bool(state["has_uint32"])


def _unpack(packed: np.void, increment: int, rng: np.random.Generator) -> None:
    high, low, half, has_half = packed.item()
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": increment},
        "has_uint32": int(has_half),
        "uinteger": half,
    }
