"""py1b: shards in random order, then every block of so many samples shuffled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError
from mds.shuffle.spans import epoch_spans, fill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mds.shuffle.spans import ShuffleSpec


def py1b(spec: ShuffleSpec) -> Iterator[NDArray[np.int64]]:
    """A window for each block. Raises PlanError for a block of no samples."""
    block = spec.block_size
    if block == 0:
        raise PlanError("shuffle_block_size 0: py1b needs blocks of at least one sample.")
    spans, rng = epoch_spans(spec)
    for node in range(spec.num_canonical_nodes):
        ids = fill(*spans.of_node(node))
        # A negative size made no blocks at all in the incumbent, so none is shuffled.
        for start in range(0, len(ids), block):
            rng.shuffle(ids[start : start + block])
        yield ids
