"""py1e: shards in random order, shuffled inside, then every sample moved a bounded way at random.

The spread of a shard over its neighbours is as wide as a block, but there are no block borders, so
shards are needed, and let go, one after the other.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError
from mds.shuffle.spans import epoch_spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mds.shuffle.spans import ShuffleSpec


def py1e(spec: ShuffleSpec) -> Iterator[NDArray[np.int64]]:
    """A window for each node. Raises PlanError for a block of no samples."""
    low, high = int(0.75 * spec.block_size), int(1.25 * spec.block_size)
    if low >= high:
        raise PlanError(f"shuffle_block_size {spec.block_size}: py1e needs at least 1 sample.")
    spans, rng = epoch_spans(spec)
    narrow = False
    for node in range(spec.num_canonical_nodes):
        begins, sizes = spans.of_node(node)
        total = int(sizes.sum())
        ids = np.empty(total, np.int64)
        at = 0
        for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True):
            part = np.arange(begin, begin + size)
            rng.shuffle(part)
            ids[at : at + size] = part
            at += size
        places = np.arange(total, dtype=np.float64)
        at = 0
        for size in sizes.tolist():
            half = (int(rng.integers(low, high)) - size) / 2
            narrow |= half < 0
            half = max(half, 0)
            places[at : at + size] += rng.uniform(
                max(-half, -at), min(half, total - at - size), size=size
            )
            at += size
        yield ids[np.argsort(places, kind="stable")]
    if narrow:
        warnings.warn(
            f"Shuffle block size was smaller than shard size: {spec.block_size} samples. "
            "Samples of a larger shard stay together; take a larger shuffle_block_size.",
            stacklevel=2,
        )
