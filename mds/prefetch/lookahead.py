"""A worker's sample ids, looked at before they are used; each is turned into its shard once."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache import policy
from mds.process import mmaps

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.catalog import Catalog

    Int64s = npt.NDArray[np.int64]


_PIECE = 4096  # ids that are located at a time, so that the first need not wait for a whole block


class Lookahead:
    """Ids in order with their shards; ``position`` is how many were taken."""

    def __init__(self, blocks: Iterable[Int64s], offsets: Int64s) -> None:
        self.position = 0
        self._pieces = _pieces(blocks)
        self.offsets = offsets
        self._buffer: deque[tuple[Int64s, Int64s]] = deque()
        self._buffered = 0

    def look(self, start: int, stop: int) -> tuple[Int64s, Int64s]:
        """Shards and rows of the ids at positions ``start`` to ``stop`` of all, fewer at the end.

        ``start`` must not have been taken yet.
        """
        self._fill(stop - self.position)
        nothing = np.zeros(0, np.int64)
        ids, shards, position = [nothing], [nothing], self.position
        for some_ids, some_shards in self._buffer:
            if position >= stop:
                break
            if position + len(some_ids) > start:
                part = slice(max(start - position, 0), stop - position)
                ids.append(some_ids[part])
                shards.append(some_shards[part])
            position += len(some_ids)
        id_shards = np.concatenate(shards)
        return id_shards, np.concatenate(ids) - self.offsets[id_shards]

    def take(self, count: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return the next ids, at most ``count``, with their shards and rows."""
        self._fill(count)
        ids, shards = [], []
        missing = count
        while missing and self._buffer:
            some_ids, some_shards = self._buffer.popleft()
            if len(some_ids) > missing:
                self._buffer.appendleft((some_ids[missing:], some_shards[missing:]))
                some_ids, some_shards = some_ids[:missing], some_shards[:missing]
            ids.append(some_ids)
            shards.append(some_shards)
            missing -= len(some_ids)
        if not ids:
            nothing = np.zeros(0, np.int64)
            return nothing, nothing, nothing
        window_ids, window_shards = (
            arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for arrays in (ids, shards)
        )
        self.position += len(window_ids)
        self._buffered -= len(window_ids)
        return window_ids, window_shards, window_ids - self.offsets[window_shards]

    def _fill(self, count: int) -> None:
        while self._buffered < count:
            ids = next(self._pieces, None)
            if ids is None:
                return
            shards = self.offsets.searchsorted(ids, "right") - 1
            self._buffer.append((ids, shards))
            self._buffered += len(ids)


def working_set(shards: Int64s, sizes: Int64s) -> int:
    """Return the most bytes of shards that are between first and last use at one time."""
    used, first = np.unique(shards, return_index=True)
    last = len(shards) - 1 - np.unique(shards[::-1], return_index=True)[1]
    change = np.zeros(len(shards) + 1, np.int64)
    np.add.at(change, first, sizes[used])
    np.add.at(change, last + 1, -sizes[used])
    return int(np.cumsum(change).max(initial=0))


def _pieces(blocks: Iterable[Int64s]) -> Iterator[Int64s]:
    for block in blocks:
        ids = np.asarray(block, np.int64).reshape(-1)
        if len(ids) and ids.min() < 0:
            ids = ids[ids >= 0]
        for start in range(0, len(ids), _PIECE):
            yield ids[start : start + _PIECE]


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
