"""Sample ids of a worker, with their shards, before they are read.

Also the sizes of windows: how many ids fit into memory, and how many shards may be mapped.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.process import mmaps

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.folder import Catalog

    Int64s = npt.NDArray[np.int64]


# Ids whose shards are looked up at a time: a plan's block may hold millions, and the first sample
# should not wait for all of them.
_PIECE = 4096


class Lookahead:
    """A worker's sample ids in reading order, with the shard and row of each.

    Ids are taken from ``blocks`` (int64 arrays; negative ids are skipped) when they are needed, and
    are buffered between `look` and `take`. ``offsets`` is the number of samples before each shard,
    shape (shards + 1,).
    """

    def __init__(self, blocks: Iterable[Int64s], offsets: Int64s) -> None:
        #: Number of ids taken so far.
        self.position = 0
        self.offsets = offsets
        self._pieces = _pieces(blocks)
        self._buffer: deque[tuple[Int64s, Int64s]] = deque()  # ids and their shards
        self._buffered = 0  # ids in the buffer

    def look(self, start: int, stop: int) -> tuple[Int64s, Int64s]:
        """Return the shards and rows of the ids at positions ``start`` to ``stop``, each (n,).

        Positions count from the first id of all. There are fewer at the end of the order. Ids at
        ``start`` and after must not have been taken yet.
        """
        self._fill(stop - self.position)
        nothing = np.zeros(0, np.int64)
        ids, shards, position = [nothing], [nothing], self.position
        for piece_ids, piece_shards in self._buffer:
            if position >= stop:
                break
            if position + len(piece_ids) > start:
                part = slice(max(start - position, 0), stop - position)
                ids.append(piece_ids[part])
                shards.append(piece_shards[part])
            position += len(piece_ids)
        id_shards = np.concatenate(shards)
        return id_shards, np.concatenate(ids) - self.offsets[id_shards]

    def take(self, count: int) -> tuple[Int64s, Int64s, Int64s]:
        """Remove and return the next ids, at most ``count``, with their shards and rows."""
        self._fill(count)
        ids, shards = [], []
        missing = count
        while missing and self._buffer:
            piece_ids, piece_shards = self._buffer.popleft()
            if len(piece_ids) > missing:
                self._buffer.appendleft((piece_ids[missing:], piece_shards[missing:]))
                piece_ids, piece_shards = piece_ids[:missing], piece_shards[:missing]
            ids.append(piece_ids)
            shards.append(piece_shards)
            missing -= len(piece_ids)
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
        """Buffer at least ``count`` ids, or all that remain."""
        while self._buffered < count:
            ids = next(self._pieces, None)
            if ids is None:
                return
            shards = self.offsets.searchsorted(ids, "right") - 1
            self._buffer.append((ids, shards))
            self._buffered += len(ids)


def _pieces(blocks: Iterable[Int64s]) -> Iterator[Int64s]:
    """Cut the nonnegative ids of all blocks into pieces of up to `_PIECE`."""
    for block in blocks:
        ids = np.asarray(block, np.int64).reshape(-1)
        if len(ids) and ids.min() < 0:
            ids = ids[ids >= 0]
        for start in range(0, len(ids), _PIECE):
            yield ids[start : start + _PIECE]


# ---------------------------------------------------------------------- sizes of windows

#: Readers of this process that hold the shards of a window mapped.
_readers: weakref.WeakSet[Any] = weakref.WeakSet()


def register_reader(reader: object) -> None:
    """Count a reader that maps the shards of its windows, until it is collected or unregistered."""
    _readers.add(reader)


def unregister_reader(reader: object) -> None:
    """Stop counting a reader. Calling it twice is fine."""
    _readers.discard(reader)


def max_window_shards(catalog: Catalog, windows: int) -> int | None:
    """Return the most shards that a window may map, or None if it may map all.

    ``windows`` is the number of windows that each reader of this process holds at one time.
    """
    files = max((folder.files_per_shard for folder in catalog.folders), default=1)
    parts = 2 * max(len(_readers), 1) * windows * files
    if catalog.shards * parts <= mmaps.MIN_MAPS:
        return None
    max_shards = max(1, mmaps.max_maps() // parts)
    return max_shards if catalog.shards > max_shards else None


def count_fitting(shards: Int64s, max_shards: int) -> int:
    """Return how many of the first ids have at most ``max_shards`` distinct shards together.

    ``shards`` is the shard of each id, shape (n,).
    """
    if len(shards) <= max_shards:
        return len(shards)
    first = np.unique(shards, return_index=True)[1]
    if len(first) <= max_shards:
        return len(shards)
    return int(np.partition(first, max_shards)[max_shards])
