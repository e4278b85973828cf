"""Sample ids of a worker, with their shards, before they are read.

Also the sizes of windows: how many ids fit into memory, and how many shards may be mapped.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._process import mmaps

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._cache.folder import Catalog

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

        Nothing is removed. Positions count from the first id of all; the last one is before
        ``stop``. At the end of the order, fewer ids are returned. Ids at ``start`` and after must
        not have been taken yet.
        """
        self._fill(stop - self.position)
        nothing = np.zeros(0, np.int64)  # so that there is always something to concatenate
        ids, shards = [nothing], [nothing]
        position = self.position  # of the first id of the piece
        for piece_ids, piece_shards in self._buffer:
            if position >= stop:
                break
            if position + len(piece_ids) > start:
                # The part of the piece between `start` and `stop`, which count from the first id.
                part = slice(max(start - position, 0), stop - position)
                ids.append(piece_ids[part])
                shards.append(piece_shards[part])
            position += len(piece_ids)
        id_shards = np.concatenate(shards)
        return id_shards, np.concatenate(ids) - self.offsets[id_shards]

    def take(self, count: int) -> tuple[Int64s, Int64s, Int64s]:
        """Remove the next ids, at most ``count``; return them, their shards and rows, each (n,)."""
        self._fill(count)
        ids, shards = [], []
        missing = count
        while missing and self._buffer:
            piece_ids, piece_shards = self._buffer.popleft()
            if len(piece_ids) > missing:  # put the rest of the piece back
                self._buffer.appendleft((piece_ids[missing:], piece_shards[missing:]))
                piece_ids, piece_shards = piece_ids[:missing], piece_shards[:missing]
            ids.append(piece_ids)
            shards.append(piece_shards)
            missing -= len(piece_ids)
        if not ids:
            nothing = np.zeros(0, np.int64)
            return nothing, nothing, nothing
        # A single array need not be copied.
        window_ids, window_shards = (
            arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for arrays in (ids, shards)
        )
        self.position += len(window_ids)
        self._buffered -= len(window_ids)
        return window_ids, window_shards, window_ids - self.offsets[window_shards]

    def _fill(self, count: int) -> None:
        """Buffer at least ``count`` ids with their shards, or all that remain."""
        while self._buffered < count:
            ids = next(self._pieces, None)
            if ids is None:
                return
            shards = self.offsets.searchsorted(ids, "right") - 1  # last one that begins before
            self._buffer.append((ids, shards))
            self._buffered += len(ids)


def _pieces(blocks: Iterable[Int64s]) -> Iterator[Int64s]:
    """Yield the nonnegative ids of all blocks, in pieces of at most `_PIECE` ids.

    ``blocks`` are int64 arrays of any shape.
    """
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
    """Return the most shards that a window may map into memory, or None if it may map all.

    The readers of this process share half of the maps that the process may have; the other half is
    for idle shards.

    For example, with 4,000 maps, 5 readers of 2 windows each, and 1 file for each shard: a window
    may have 4,000 / (2 * 5 * 2 * 1) = 200 shards.

    Args:
        catalog: The shards of the dataset.
        windows: Number of windows that each reader holds at one time.
    """
    files = max((folder.files_per_shard for folder in catalog.folders), default=1)
    parts = 2 * max(len(_readers), 1) * windows * files  # maps divided by shards of a window
    if catalog.shards * parts <= mmaps.MIN_MAPS:  # few shards: spare the look at the system
        return None
    max_shards = max(1, mmaps.max_maps() // parts)
    return max_shards if catalog.shards > max_shards else None


def count_fitting(shards: Int64s, max_shards: int) -> int:
    """Return how many of the first ids have at most ``max_shards`` distinct shards together.

    ``shards`` is the shard of each id, shape (n,).
    """
    if len(shards) <= max_shards:
        return len(shards)
    first = np.unique(shards, return_index=True)[1]  # position of the first id of each shard
    if len(first) <= max_shards:
        return len(shards)
    # Stop before the first id of the shard that would be one too many.
    return int(np.partition(first, max_shards)[max_shards])
