"""py2s: as py1s, with the samples of every shard shuffled a first time before nodes are cut.

The first shuffle is the same in every epoch: one generator goes through all shards. An epoch reads
the shards in another order. So the state of that generator at each shard is kept, in 24 bytes, and
the first shuffle of a shard is repeated from it when the shard is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.shuffle.sequential import SequentialShuffle, advance_parts, group_parts
from mds.shuffle.shard_parts import split_at_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

# State of a PCG64 generator: a 128-bit number in two halves, and half of a 64-bit draw that is kept
# for the next 32-bit draw.
_STATE = np.dtype([("high", "<u8"), ("low", "<u8"), ("half", "<u4"), ("has_half", "?")])


class Py2s(SequentialShuffle):
    """Two shuffles within shards, before and after nodes are cut: memory by shard size."""

    canonical_nodes_per_node = 64  # it mixes little, so a batch takes samples of many nodes

    def prepare(self) -> np.random.Generator:
        """Shuffle the shards once, and keep the state of the generator at each of them.

        Returns the generator of the second shuffle, in which epochs differ.
        """
        spec = self.spec
        rng = np.random.default_rng(spec.seed)
        self._order = np.arange(len(spec.sizes))
        rng.shuffle(self._order)
        self._begin = (np.cumsum(spec.sizes) - spec.sizes)[self._order]
        self._size = spec.sizes[self._order]
        self._increment = rng.bit_generator.state["state"]["inc"]
        self._states = np.empty(len(self._size), _STATE)
        # Shuffle an array of each shard's size only to draw the same numbers as its shuffle.
        scratch = np.empty(int(self._size.max(initial=0)), np.int64)
        for i, size in enumerate(self._size.tolist()):
            self._states[i] = _pack_state(rng)
            rng.shuffle(scratch[:size])
        # Parts are places in the line of shuffled shards, cut at the nodes; each is of one shard.
        self._line = np.cumsum(self._size) - self._size
        self._parts = split_at_nodes(self._line, self._size, spec)
        self._shard = np.searchsorted(self._line, self._parts.begin, side="right") - 1
        # Generator that repeats the first shuffles; its state is set before each.
        self._replay = np.random.Generator(np.random.PCG64(0))
        return np.random.default_rng(spec.seed + spec.epoch)

    def generate(self, node: int, rng: np.random.Generator) -> Iterator[NDArray[np.integer]]:
        """Yield the parts of a node in their order of this epoch, each shuffled again."""
        first, last = int(self._parts.edges[node]), int(self._parts.edges[node + 1])
        parts = np.arange(first, last)
        rng.shuffle(parts)
        for begin, end in group_parts(self._parts.size[parts], self.chunk):
            ids_of_parts = [self._ids_after_first(part) for part in parts[begin:end].tolist()]
            for ids in ids_of_parts:
                rng.shuffle(ids)
            yield np.concatenate(ids_of_parts)

    def advance(self, node: int, rng: np.random.Generator) -> None:
        """Advance the generator by the second shuffles of a node, the only ones that use it."""
        first, last = int(self._parts.edges[node]), int(self._parts.edges[node + 1])
        parts = np.arange(first, last)
        rng.shuffle(parts)
        advance_parts(self._parts.size[parts], rng)

    def _ids_after_first(self, part: int) -> NDArray[np.int64]:
        """Return the ids of a part in the order of the first shuffle, which is repeated.

        ``part`` is the number of the part; the whole shard that it is a part of is shuffled.
        """
        shard = int(self._shard[part])
        begin, size = int(self._begin[shard]), int(self._size[shard])
        ids = np.arange(begin, begin + size, dtype=np.int64)
        _restore_state(self._states[shard], self._increment, self._replay)
        self._replay.shuffle(ids)
        offset = int(self._parts.begin[part] - self._line[shard])
        return ids[offset : offset + int(self._parts.size[part])]


def _pack_state(rng: np.random.Generator) -> tuple[int, int, int, bool]:
    """Return the state of a generator as a row of `_STATE`; all have the same increment."""
    state = rng.bit_generator.state
    number = state["state"]["state"]
    return number >> 64, number & (2**64 - 1), state["uinteger"], bool(state["has_uint32"])


def _restore_state(packed: np.void, increment: int, rng: np.random.Generator) -> None:
    """Set the state of a PCG64 generator to a row of `_STATE`; ``increment`` completes it."""
    high, low, half, has_half = packed.item()
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": increment},
        "has_uint32": int(has_half),
        "uinteger": half,
    }
