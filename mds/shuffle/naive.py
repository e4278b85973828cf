"""naive: one permutation of everything. The best mixing and the worst locality."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.shuffle.drawn import DrawnShuffle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


class Naive(DrawnShuffle):
    """The whole permutation as one window: no part of it can be had without the rest."""

    is_whole = True

    def begin(self) -> np.random.Generator:
        """Nothing to prepare."""
        return np.random.default_rng(self.spec.seed + self.spec.epoch)

    def draw(self, node: int, rng: np.random.Generator) -> Iterator[NDArray[np.integer]]:
        """Everything, at node 0."""
        if node == 0:
            samples = self.spec.samples
            ids = np.arange(samples, dtype=np.min_scalar_type(max(samples - 1, 0)))
            rng.shuffle(ids)
            yield ids
