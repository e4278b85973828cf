"""naive: one permutation of all samples. The best mixing and the worst locality."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.shuffle._sequential import SequentialShuffle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


class Naive(SequentialShuffle):
    """One Fisher-Yates permutation of all samples, whose ids are all in memory."""

    needs_all_samples = True

    def prepare(self) -> np.random.Generator:
        """Draw the permutation of all samples, and return the generator."""
        rng = np.random.default_rng(self.spec.seed + self.spec.epoch)
        samples = self.spec.samples
        # The narrowest integers that hold all ids, as they are all in memory.
        self._ids = np.arange(samples, dtype=np.min_scalar_type(max(samples - 1, 0)))
        rng.shuffle(self._ids)
        return rng

    def generate(self, node: int, rng: np.random.Generator) -> Iterator[NDArray[np.integer]]:
        """Yield the ids of a node: its positions of the permutation. Nothing is drawn."""
        del rng
        yield self._ids[int(self.starts[node]) : int(self.starts[node + 1])]
