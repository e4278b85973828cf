"""py1b: shards in random order, then each block of ``block_size`` samples shuffled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds.errors import PlanError
from mds.shuffle._sequential import SequentialShuffle, advance_ranges, shuffle_ranges
from mds.shuffle._shard_parts import epoch_parts, seeded_sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray


class Py1b(SequentialShuffle):
    """Shuffle within blocks; a window is a block. Raises PlanError for a block of no samples."""

    uses_blocks = True

    shard_sequence = staticmethod(seeded_sequence)

    def prepare(self) -> np.random.Generator:
        """Shuffle and cut the shards for this epoch, and return the generator."""
        if self.spec.block_size == 0:
            raise PlanError("shuffle_block_size 0: py1b needs blocks of at least one sample.")
        self._parts, rng = epoch_parts(self.spec)
        return rng

    def generate(self, node: int, rng: np.random.Generator) -> Iterator[NDArray[np.integer]]:
        """Yield the blocks of a node."""
        yield from shuffle_ranges(self._parts.of_node(node), self._ranges(node), rng)

    def advance(self, node: int, rng: np.random.Generator) -> None:
        """Advance the generator by the shuffles of the blocks of a node."""
        advance_ranges(self._ranges(node), rng)

    def _ranges(self, node: int) -> list[tuple[int, int]]:
        """Return the first place and the end of each block of a node, counting its samples."""
        total, block = int(self._parts.of_node(node)[1].sum()), self.spec.block_size
        # A negative block size makes no blocks, so nothing is shuffled, as in mosaicml-streaming.
        return [(start, min(start + block, total)) for start in range(0, total, block)]
