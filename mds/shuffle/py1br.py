"""py1br: as py1b, with blocks of random length that begin staggered from node to node.

As in the incumbent, the second block reaches back into the first, and the last samples of a node,
up to the stagger, may stay unshuffled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds.errors import PlanError
from mds.shuffle.sequential import SequentialShuffle, advance_ranges, shuffle_ranges
from mds.shuffle.shard_parts import epoch_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray


class Py1br(SequentialShuffle):
    """Block shuffle with random, staggered blocks, each of which is a window.

    Raises PlanError for a block size below 2.
    """

    uses_blocks = True

    def prepare(self) -> np.random.Generator:
        """Shuffle the shards and draw how much each node is staggered."""
        block = self.spec.block_size
        self._low, self._high = int(0.75 * block), int(1.25 * block)
        if self._low < 1:
            raise PlanError(
                f"shuffle_block_size {block}: py1br needs blocks of at least 2 samples."
            )
        self._parts, rng = epoch_parts(self.spec)
        self._staggers = rng.integers(0, self._low, size=(self.spec.num_canonical_nodes,))
        return rng

    def generate(self, node: int, rng: np.random.Generator) -> Iterator[NDArray[np.integer]]:
        """Yield the blocks of a node: first all their lengths are drawn, then they are shuffled."""
        ranges = self._ranges(node, rng)
        yield from shuffle_ranges(self._parts.of_node(node), ranges, rng)

    def advance(self, node: int, rng: np.random.Generator) -> None:
        """Return the blocks of a node, without their ids."""
        advance_ranges(self._ranges(node, rng), rng)

    def _ranges(self, node: int, rng: np.random.Generator) -> list[tuple[int, int]]:
        total, stagger = int(self._parts.of_node(node)[1].sum()), int(self._staggers[node])
        ranges, place = [], 0
        while place < total:
            length = int(rng.integers(self._low, self._high))
            first, last = max(place - stagger, 0), min(place + length - stagger, total)
            ranges.append((first, last))
            place += last - first
        return ranges
