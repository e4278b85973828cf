"""py1s: shards in random order, the samples of each shard shuffled among themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds.shuffle._sequential import SequentialShuffle, advance_parts, group_parts, shuffle_parts
from mds.shuffle._shard_parts import epoch_parts, seeded_sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray


class Py1s(SequentialShuffle):
    """Shuffle of shards and within shards; a window is a few parts, so memory is by shard size."""

    # It mixes little within a node, so a machine reads many canonical nodes side by side.
    canonical_nodes_per_node = 64

    shard_sequence = staticmethod(seeded_sequence)

    def prepare(self) -> np.random.Generator:
        """Shuffle and cut the shards for this epoch, and return the generator."""
        self._parts, rng = epoch_parts(self.spec)
        return rng

    def generate(self, node: int, rng: np.random.Generator) -> Iterator[NDArray[np.integer]]:
        """Yield the ids of a node, a few parts at a time, each part shuffled within itself."""
        begin, size = self._parts.of_node(node)
        for first, last in group_parts(size, self.chunk):
            yield shuffle_parts(begin[first:last], size[first:last], rng)

    def advance(self, node: int, rng: np.random.Generator) -> None:
        """Advance the generator by the shuffles of the parts of a node."""
        advance_parts(self._parts.of_node(node)[1], rng)
