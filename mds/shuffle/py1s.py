"""py1s: shards in random order, the samples of each shard shuffled among themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.shuffle.spans import epoch_spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mds.shuffle.spans import ShuffleSpec


def py1s(spec: ShuffleSpec) -> Iterator[NDArray[np.int64]]:
    """A window for each part of a shard."""
    spans, rng = epoch_spans(spec)
    for begin, size in zip(spans.begin.tolist(), spans.size.tolist(), strict=True):
        ids = np.arange(begin, begin + size, dtype=np.int64)
        rng.shuffle(ids)
        yield ids
