"""py2s: as py1s, with the samples of every shard shuffled a first time before nodes are cut.

The first shuffle is the same in every epoch: one generator goes through all shards. An epoch reads
the shards in another order. So the state of that generator at each shard is kept, in 24 bytes, and
the first shuffle of a shard is repeated from it when the shard is read.

The second shuffle is as that of py1s: the parts of shards that a canonical node has are shuffled,
and the samples within each part. It differs in each epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.shuffle._sequential import SequentialShuffle, advance_parts, group_parts
from mds.shuffle._shard_parts import seeded_sequence, split_at_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

# State of a PCG64 generator: a 128-bit number in two halves, and half of a 64-bit draw that is kept
# for the next 32-bit draw.
_STATE = np.dtype([("high", "<u8"), ("low", "<u8"), ("half", "<u4"), ("has_half", "?")])


class Py2s(SequentialShuffle):
    """Two shuffles within shards, before and after nodes are cut.

    The memory that is needed depends on the size of a shard.
    """

    # It mixes little within a node, so a machine reads many canonical nodes side by side.
    canonical_nodes_per_node = 64

    # Within a shard the first shuffle moves samples, so a cut by cost is exact to a shard only.
    shard_sequence = staticmethod(seeded_sequence)

    def prepare(self) -> np.random.Generator:
        """Shuffle the shards once, and keep the state of the generator at each of them.

        Returns the generator of the second shuffle, in which epochs differ.
        """
        spec = self.spec
        rng = np.random.default_rng(spec.seed)
        self._order = np.arange(len(spec.sizes))
        rng.shuffle(self._order)
        # First id and samples of each shard, in shuffled order.
        self._begin = (np.cumsum(spec.sizes) - spec.sizes)[self._order]
        self._size = spec.sizes[self._order]
        # A PCG64 generator adds a constant at each step, which follows from the seed.
        self._increment = rng.bit_generator.state["state"]["inc"]
        self._states = np.empty(len(self._size), _STATE)
        # Draw what the first shuffle of each shard draws: that depends only on the size, so the
        # array that is shuffled does not matter.
        scratch = np.empty(int(self._size.max(initial=0)), np.int64)
        for i, size in enumerate(self._size.tolist()):
            self._states[i] = _pack_state(rng)
            rng.shuffle(scratch[:size])
        # Cut the shuffled shards, laid end to end, where nodes end. Here ``begin`` of a part is not
        # an id but a place in this line, since the first shuffle moves the ids within a shard.
        self._shard_starts = np.cumsum(self._size) - self._size
        self._parts = split_at_nodes(self._shard_starts, self._size, spec)
        # Shard of each part.
        self._shard = np.searchsorted(self._shard_starts, self._parts.begin, side="right") - 1
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
        """Return the ids of the part with number ``part``, in the order of the first shuffle.

        The first shuffle of its whole shard is repeated from the recorded state of the generator,
        and the part cut out.
        """
        shard = int(self._shard[part])
        begin, size = int(self._begin[shard]), int(self._size[shard])
        ids = np.arange(begin, begin + size, dtype=np.int64)
        _restore_state(self._states[shard], self._increment, self._replay)
        self._replay.shuffle(ids)
        offset = int(self._parts.begin[part] - self._shard_starts[shard])
        return ids[offset : offset + int(self._parts.size[part])]


def _pack_state(rng: np.random.Generator) -> tuple[int, int, int, bool]:
    """Return the state of a PCG64 generator as a row of `_STATE`: high, low, half, has_half.

    The increment is left out, because it is the same in all states of a generator.
    """
    state = rng.bit_generator.state
    number = state["state"]["state"]
    return number >> 64, number & (2**64 - 1), state["uinteger"], bool(state["has_uint32"])


def _restore_state(packed: np.void, increment: int, rng: np.random.Generator) -> None:
    """Set the state of a PCG64 generator to one that `_pack_state` returned.

    ``packed`` is a row of `_STATE`, which lacks the ``increment`` of the generator.
    """
    high, low, half, has_half = packed.item()  # Python's integers
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": increment},
        "has_uint32": int(has_half),
        "uinteger": half,
    }
