"""A worker's sample ids, looked at before they are used; each is turned into its shard once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

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
        ids, shards, at = [nothing], [nothing], self.position
        for some_ids, some_shards in self._buffer:
            if at >= stop:
                break
            if at + len(some_ids) > start:
                part = slice(max(start - at, 0), stop - at)
                ids.append(some_ids[part])
                shards.append(some_shards[part])
            at += len(some_ids)
        whose = np.concatenate(shards)
        return whose, np.concatenate(ids) - self.offsets[whose]

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
        taken, whose = (one[0] if len(one) == 1 else np.concatenate(one) for one in (ids, shards))
        self.position += len(taken)
        self._buffered -= len(taken)
        return taken, whose, taken - self.offsets[whose]

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
