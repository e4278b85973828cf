"""py1s: shards in random order, the samples of each shard shuffled among themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds.shuffle.drawn import DrawnShuffle, groups, shuffle_parts, skip_parts
from mds.shuffle.spans import epoch_spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray


class Py1s(DrawnShuffle):
    """A window is some parts of shards: memory by shard size."""

    def begin(self) -> np.random.Generator:
        """Shuffle the shards."""
        self._spans, rng = epoch_spans(self.spec)
        return rng

    def draw(self, node: int, rng: np.random.Generator) -> Iterator[NDArray[np.integer]]:
        """The parts of a node, each shuffled."""
        begin, size = self._spans.of_node(node)
        for first, last in groups(size, self.chunk):
            yield shuffle_parts(begin[first:last], size[first:last], rng)

    def skip(self, node: int, rng: np.random.Generator) -> None:
        """The parts of a node, for the random numbers alone."""
        skip_parts(self._spans.of_node(node)[1], rng)
