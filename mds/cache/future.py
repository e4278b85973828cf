"""When each shard is needed next, as far as the order is known.

Time is cut into buckets of so many samples of every worker of the node, which run side by side. A
bucket is its distinct shards, each an entry: how many rows of it, and which entry is the next of
the same shard. All of it is numpy, 20 bytes an entry, worked out once as the horizon moves on and
dropped as time passes. Pure: it has never met a cache.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache import policy

if TYPE_CHECKING:
    import numpy.typing as npt

_NONE = -1


class Future:
    """The uses of ``shards`` shards from bucket ``now`` to before bucket ``end``."""

    def __init__(self, shards: int) -> None:
        self.now = self.end = 0
        #: Rows of each shard from now to the horizon.
        self.rows = np.zeros(shards, np.int64)
        # Entries are numbered for ever; `_base` is the number of the first one in the arrays.
        self._first = np.full(shards, _NONE, np.int64)
        self._last = np.full(shards, _NONE, np.int64)
        self._ends: deque[int] = deque()  # the number of the entry after each bucket
        self._base = self._start = self._stop = 0
        self._shard = np.zeros(1024, np.int32)
        self._count = np.zeros(1024, np.int32)
        self._bucket = np.zeros(1024, np.int32)
        self._after = np.zeros(1024, np.int64)

    @property
    def entries(self) -> int:
        """How much is remembered."""
        return self._stop - self._start

    def append(self, shards: npt.NDArray[np.int64]) -> None:
        """Add a bucket: the shard of each of its rows, in any order."""
        distinct, counts = np.unique(shards, return_counts=True)
        self._make_room(len(distinct))
        numbers = np.arange(self._stop, self._stop + len(distinct))
        here = slice(self._stop - self._base, self._stop - self._base + len(distinct))
        self._shard[here], self._count[here] = distinct, counts
        self._bucket[here], self._after[here] = self.end, _NONE
        before = self._last[distinct]
        is_linked = before >= self._start
        self._after[before[is_linked] - self._base] = numbers[is_linked]
        self._first[distinct[~is_linked]] = numbers[~is_linked]
        self._last[distinct] = numbers
        self.rows[distinct] += counts
        self._stop += len(distinct)
        self._ends.append(self._stop)
        self.end += 1

    def advance(self, now: int) -> None:
        """Let the buckets before ``now`` be past."""
        while self.now < now and self._ends:
            stop = self._ends.popleft()
            gone = slice(self._start - self._base, stop - self._base)
            shards = self._shard[gone]
            self._first[shards] = self._after[gone]
            self.rows[shards] -= self._count[gone]
            self._start = stop
            self.now += 1

    def next_use(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The bucket in which each shard is needed next; `policy.NEVER` beyond the horizon."""
        first = self._first[shards]
        when = np.full(len(shards), policy.NEVER)
        is_known = first >= 0
        when[is_known] = self._bucket[first[is_known] - self._base]
        return when

    def next_after(self, shard: int, bucket: int) -> float:
        """When a shard is needed next from ``bucket`` on."""
        entry = int(self._first[shard])
        while entry >= 0 and self._bucket[entry - self._base] < bucket:
            entry = int(self._after[entry - self._base])
        return float(self._bucket[entry - self._base]) if entry >= 0 else policy.NEVER

    def rows_before(self, shard: int, bucket: float) -> int:
        """The rows of a shard that are needed before ``bucket``."""
        if bucket >= self.end:
            return int(self.rows[shard])
        entry, rows = int(self._first[shard]), 0
        while entry >= 0 and self._bucket[entry - self._base] < bucket:
            rows += int(self._count[entry - self._base])
            entry = int(self._after[entry - self._base])
        return rows

    def working_set(self, sizes: npt.NDArray[np.int64]) -> int:
        """The most bytes of shards that are between their first and last use at one time."""
        used = np.flatnonzero(self._first >= 0)
        change = np.zeros(self.end - self.now + 1, np.int64)
        np.add.at(change, self._bucket[self._first[used] - self._base] - self.now, sizes[used])
        np.add.at(change, self._bucket[self._last[used] - self._base] - self.now + 1, -sizes[used])
        return int(np.cumsum(change).max(initial=0))

    def _make_room(self, count: int) -> None:
        capacity, used = len(self._shard), self.entries
        if self._stop - self._base + count <= capacity:
            return
        capacity = max(capacity, 2 * (used + count))
        for name in ("_shard", "_count", "_bucket", "_after"):
            old: npt.NDArray[Any] = getattr(self, name)
            new = np.zeros(capacity, old.dtype)
            new[:used] = old[self._start - self._base : self._stop - self._base]
            setattr(self, name, new)
        self._base = self._start
