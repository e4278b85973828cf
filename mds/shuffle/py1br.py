"""py1br: as py1b, with blocks of random length that begin staggered from node to node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError
from mds.shuffle.spans import epoch_spans, fill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mds.shuffle.spans import ShuffleSpec


def py1br(spec: ShuffleSpec) -> Iterator[NDArray[np.int64]]:
    """A window for each node. Raises PlanError for a block size below 2."""
    low, high = int(0.75 * spec.block_size), int(1.25 * spec.block_size)
    if low < 1:
        raise PlanError(f"shuffle_block_size {spec.block_size}: py1br needs at least 2 samples.")
    spans, rng = epoch_spans(spec)
    staggers = rng.integers(0, low, size=(spec.num_canonical_nodes,))
    for node, stagger in enumerate(staggers.tolist()):
        ids = fill(*spans.of_node(node))
        end = len(ids)
        blocks = []
        place = 0
        while place < end:
            length = int(rng.integers(low, high))
            first, last = max(place - stagger, 0), min(place + length - stagger, end)
            blocks.append((first, last))
            place += last - first
        for first, last in blocks:
            rng.shuffle(ids[first:last])
        yield ids
