"""How many ids a window may have: so many that its shards fit into the maps of the process.

A shuffle over everything meets another shard with every sample, so a window of 8,192 ids may hold
as many files mapped, in every thread that reads. They share half of what the process may have
(mds/process/mmaps.py); the rest is for readers that wait to be used again.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache import policy
from mds.process import mmaps

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.catalog import Catalog

MIN_WINDOW = 32  # ids of the first window under a limit, so that the first sample comes at once
MAX_WINDOW = 4096  # ids of a window under a limit

_sharing: weakref.WeakSet[Any] = weakref.WeakSet()


def join(reader: object) -> None:
    """One more goes through windows of the process, until it is collected or leaves."""
    _sharing.add(reader)


def leave(reader: object) -> None:
    """Remove a reader that has no more windows. Removing it twice is fine."""
    _sharing.discard(reader)


def max_window_shards(catalog: Catalog, windows: int) -> int | None:
    """Return the most shards that each of ``windows`` windows may have; None: all of them."""
    files = max((folder.files_per_shard for folder in catalog.folders), default=1)
    parts = 2 * max(len(_sharing), 1) * windows * files
    if catalog.shards * parts <= mmaps.MIN_MAPS:
        return None
    max_shards = max(1, mmaps.max_maps() // parts)
    return max_shards if catalog.shards > max_shards else None


def count_fitting(shards: npt.NDArray[np.int64], max_shards: int) -> int:
    """Return the number of first ids that have at most ``max_shards`` different shards."""
    if len(shards) <= max_shards:
        return len(shards)
    first = np.unique(shards, return_index=True)[1]
    if len(first) <= max_shards:
        return len(shards)
    return int(np.partition(first, max_shards)[max_shards])


def sizes_under_limit(row_size: int, room: int, processes: int) -> tuple[int, int]:
    """Return a small and a large window in ids, for the room of shards and rows in memory."""
    large = max(MIN_WINDOW, min(MAX_WINDOW, policy.ROWS_IN_MEMORY // (2 * row_size)))
    return max(MIN_WINDOW, min(large, room // (32 * processes * row_size))), large
