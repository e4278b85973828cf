"""py1br: as py1b, with blocks of random length, which each node begins at an offset of its own.

The offset is called *stagger*: the first block of a node is shorter by it. As in
mosaicml-streaming, the second block reaches back into the first one, and the last samples of a
node, as many as the stagger at most, may stay unshuffled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds.errors import PlanError
from mds.shuffle._sequential import SequentialShuffle, advance_ranges, shuffle_ranges
from mds.shuffle._shard_parts import epoch_parts, seeded_sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray


class Py1br(SequentialShuffle):
    """Shuffle within blocks of random length; a window is a block.

    Raises PlanError for a block size below 2.
    """

    uses_blocks = True

    shard_sequence = staticmethod(seeded_sequence)

    def prepare(self) -> np.random.Generator:
        """Shuffle and cut the shards, draw the stagger of each node, and return the generator."""
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
        """Yield the blocks of a node, after all their lengths were drawn."""
        ranges = self._ranges(node, rng)
        yield from shuffle_ranges(self._parts.of_node(node), ranges, rng)

    def advance(self, node: int, rng: np.random.Generator) -> None:
        """Advance the generator by the lengths and shuffles of the blocks of a node."""
        advance_ranges(self._ranges(node, rng), rng)

    def _ranges(self, node: int, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Return the first place and the end of each block of a node, of drawn lengths.

        Places count the samples of the node. ``place`` is where a block would begin without the
        stagger, by which both of its ends are moved back. With a stagger of 30 and the drawn
        lengths 100, 90, 110, 100, a node of 280 samples has the blocks 0 to 70, 40 to 130, 130 to
        240 and 240 to 280.
        """
        total, stagger = int(self._parts.of_node(node)[1].sum()), int(self._staggers[node])
        ranges, place = [], 0
        while place < total:
            length = int(rng.integers(self._low, self._high))
            first, last = max(place - stagger, 0), min(place + length - stagger, total)
            ranges.append((first, last))
            place += last - first
        return ranges
