"""py2s: as py1s, with the samples of every shard shuffled a first time before nodes are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.shuffle.spans import divide

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mds.shuffle.spans import ShuffleSpec


def py2s(spec: ShuffleSpec) -> Iterator[NDArray[np.int64]]:
    """A window for each part of a shard."""
    first = np.random.default_rng(spec.seed)
    order = np.arange(len(spec.sizes))
    first.shuffle(order)
    begin = np.cumsum(spec.sizes) - spec.sizes
    ids = [np.arange(begin[k], begin[k] + spec.sizes[k], dtype=np.int64) for k in order]
    for unit in ids:
        first.shuffle(unit)
    flat = np.concatenate([*ids, np.zeros(0, np.int64)])
    sizes = spec.sizes[order]
    spans = divide(np.cumsum(sizes) - sizes, sizes, spec)
    rng = np.random.default_rng(spec.seed + spec.epoch)
    for node in range(spec.num_canonical_nodes):
        starts, lengths = spans.of_node(node)
        parts = np.arange(len(starts))
        rng.shuffle(parts)
        for k in parts:
            part = flat[starts[k] : starts[k] + lengths[k]].copy()
            rng.shuffle(part)
            yield part
