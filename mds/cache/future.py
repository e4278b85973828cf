"""When each shard is needed next, as far as the order is known.

Time is cut into buckets of so many samples of every worker of the node, which run side by side. A
bucket is its distinct shards, with the number of rows of each and where the same shard comes next;
all of it numpy, 16 bytes an entry, worked out once as the horizon moves on and forgotten as time
passes. Pure: it has never met a cache.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from mds.cache import policy

if TYPE_CHECKING:
    import numpy.typing as npt

_UNKNOWN = np.iinfo(np.int32).max


class Future:
    """The uses of ``shards`` shards from now to a horizon, in buckets.

    ``now`` is the bucket that is being used, ``end`` the first that is not known yet; ``entries``
    counts what is remembered.
    """

    def __init__(self, shards: int) -> None:
        self.now = self.end = self.entries = 0
        #: Rows of each shard from now to the horizon.
        self.rows = np.zeros(shards, np.int64)
        self._next = np.full(shards, _UNKNOWN, np.int32)
        self._last = np.full(shards, -1, np.int32)
        self._buckets: deque[_Bucket] = deque()
        self.is_whole = False

    def append(self, shards: npt.NDArray[np.int64]) -> None:
        """Add a bucket: the shard of each of its rows, in any order."""
        distinct, counts = np.unique(shards, return_counts=True)
        after = np.full(len(distinct), _UNKNOWN, np.int32)
        for bucket in np.unique(self._last[distinct]).tolist():
            if bucket >= self.now:
                self._buckets[bucket - self.now].link(
                    distinct[self._last[distinct] == bucket], self.end
                )
        self._last[distinct] = self.end
        self._next[distinct] = np.minimum(self._next[distinct], self.end)
        self.rows[distinct] += counts
        self._buckets.append(_Bucket(distinct, counts.astype(np.int32), after))
        self.entries += len(distinct)
        self.end += 1

    def advance(self, now: int) -> None:
        """Let the buckets before ``now`` be past."""
        while self.now < now and self._buckets:
            bucket = self._buckets.popleft()
            self._next[bucket.shards] = bucket.after
            self.rows[bucket.shards] -= bucket.counts
            self.entries -= len(bucket.shards)
            self.now += 1

    def next_use(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The bucket in which each shard is needed next; `policy.NEVER` beyond the horizon."""
        when = self._next[shards].astype(np.float64)
        when[when == _UNKNOWN] = policy.NEVER
        return when

    def next_after(self, shard: int, bucket: int) -> float:
        """When a shard is needed next from ``bucket`` on."""
        when = int(self._next[shard])
        while when < bucket:
            when = self._buckets[when - self.now].after_of(shard)
        return policy.NEVER if when == _UNKNOWN else float(when)

    def rows_before(self, shard: int, bucket: float) -> int:
        """The rows of a shard that are needed before ``bucket``."""
        if bucket >= self.end:
            return int(self.rows[shard])
        when, rows = int(self._next[shard]), 0
        while when < bucket:
            found = self._buckets[when - self.now]
            rows += found.rows_of(shard)
            when = found.after_of(shard)
        return rows

    def working_set(self, sizes: npt.NDArray[np.int64]) -> int:
        """The most bytes of shards that are between their first and last use at one time."""
        change = np.zeros(self.end - self.now + 1, np.int64)
        used = np.flatnonzero(self._next != _UNKNOWN)
        np.add.at(change, self._next[used] - self.now, sizes[used])
        np.add.at(change, self._last[used] - self.now + 1, -sizes[used])
        return int(np.cumsum(change).max(initial=0))


class _Bucket:
    """The distinct shards of a stretch of time, in rising order."""

    __slots__ = ("after", "counts", "shards")

    def __init__(
        self,
        shards: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int32],
        after: npt.NDArray[np.int32],
    ) -> None:
        self.shards, self.counts, self.after = shards, counts, after

    def link(self, shards: npt.NDArray[np.int64], bucket: int) -> None:
        """Note that these shards, which are here, come next in ``bucket``."""
        self.after[self.shards.searchsorted(shards)] = bucket

    def after_of(self, shard: int) -> int:
        return int(self.after[self.shards.searchsorted(shard)])

    def rows_of(self, shard: int) -> int:
        return int(self.counts[self.shards.searchsorted(shard)])
