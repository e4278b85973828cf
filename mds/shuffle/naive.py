"""naive: one permutation of everything. The best mixing and the worst locality."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mds.shuffle.spans import ShuffleSpec


def naive(spec: ShuffleSpec) -> Iterator[NDArray[np.int64]]:
    """The whole permutation as one window: no part of it can be had without the rest."""
    yield np.random.default_rng(spec.seed + spec.epoch).permutation(spec.samples)
