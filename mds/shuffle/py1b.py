"""py1b: shards in random order, then every block of so many samples shuffled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds.errors import PlanError
from mds.shuffle.drawn import DrawnShuffle
from mds.shuffle.slices import shuffled_slices, skip_slices
from mds.shuffle.spans import epoch_spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray


class Py1b(DrawnShuffle):
    """A window is a block. Raises PlanError for a block of no samples."""

    def begin(self) -> np.random.Generator:
        """Shuffle the shards."""
        if self.spec.block_size == 0:
            raise PlanError("shuffle_block_size 0: py1b needs blocks of at least one sample.")
        self._spans, rng = epoch_spans(self.spec)
        return rng

    def draw(self, node: int, rng: np.random.Generator) -> Iterator[NDArray[np.integer]]:
        """The blocks of a node."""
        yield from shuffled_slices(self._spans.of_node(node), self._slices(node), rng)

    def skip(self, node: int, rng: np.random.Generator) -> None:
        """The blocks of a node, for the random numbers alone."""
        skip_slices(self._slices(node), rng)

    def _slices(self, node: int) -> list[tuple[int, int]]:
        total, block = int(self._spans.of_node(node)[1].sum()), self.spec.block_size
        # A negative size made no blocks at all in the incumbent, so none is shuffled.
        return [(start, min(start + block, total)) for start in range(0, total, block)]
