"""When each shard is needed next, as far as the order is known.

Time is the position of a sample in the order of its worker; the workers of a node run side by side.
It is cut into buckets, and of a bucket each distinct shard is an entry: when it is first and last
needed there, how many rows of it, and which entry is the next of the same shard. All of it is
numpy, 32 bytes an entry, worked out once as the horizon moves on and dropped as time passes. Pure:
it has never met a cache.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache import policy

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

_NONE = -1
_COLUMNS = (
    ("_shard", np.int32),
    ("_count", np.int32),
    ("_from", np.int64),
    ("_upto", np.int64),
    ("_after", np.int64),
)


class Future:
    """The uses of ``shards`` shards from position ``now`` to before position ``end``."""

    _shard: npt.NDArray[np.int32]
    _count: npt.NDArray[np.int32]
    _from: Int64s
    _upto: Int64s
    _after: Int64s

    def __init__(self, shards: int) -> None:
        self.now = self.end = 0
        #: Rows of each shard from now to the horizon, those of the bucket of now included.
        self.rows = np.zeros(shards, np.int64)
        # Entries are numbered for ever; `_base` is the number of the first one in the arrays.
        self._first = np.full(shards, _NONE, np.int64)
        self._last = np.full(shards, _NONE, np.int64)
        self._buckets: deque[tuple[int, int]] = deque()  # (end position, number of the entry after)
        self._base = self._start = self._stop = 0
        for name, kind in _COLUMNS:
            setattr(self, name, np.zeros(1024, kind))

    @property
    def entries(self) -> int:
        """How much is remembered."""
        return self._stop - self._start

    def append(self, workers: list[Int64s]) -> None:
        """Add a bucket: the shards of the next rows of each worker, in their order."""
        shards = np.concatenate(workers)
        positions = np.concatenate([np.arange(len(row)) for row in workers]) + self.end
        order = np.lexsort((positions, shards))
        shards, positions = shards[order], positions[order]
        begins = np.flatnonzero(np.diff(shards, prepend=-1))
        ends = np.append(begins[1:], len(shards))
        distinct = shards[begins]
        self._make_room(len(distinct))
        numbers = np.arange(self._stop, self._stop + len(distinct))
        here = slice(self._stop - self._base, self._stop - self._base + len(distinct))
        self._shard[here], self._count[here] = distinct, ends - begins
        self._from[here], self._upto[here] = positions[begins], positions[ends - 1]
        self._after[here] = _NONE
        before = self._last[distinct]
        is_linked = before >= self._start
        self._after[before[is_linked] - self._base] = numbers[is_linked]
        self._first[distinct[~is_linked]] = numbers[~is_linked]
        self._last[distinct] = numbers
        self.rows[distinct] += ends - begins
        self._stop += len(distinct)
        self.end += max(map(len, workers))
        self._buckets.append((self.end, self._stop))

    def advance(self, now: int) -> None:
        """Let the time before ``now`` be past."""
        self.now = max(self.now, now)
        while self._buckets and self._buckets[0][0] <= self.now:
            _, stop = self._buckets.popleft()
            gone = slice(self._start - self._base, stop - self._base)
            shards = self._shard[gone]
            self._first[shards] = self._after[gone]
            self.rows[shards] -= self._count[gone]
            self._start = stop

    def next_use(self, shards: Int64s) -> npt.NDArray[np.float64]:
        """When each shard is needed next; `policy.NEVER` beyond the horizon."""
        entry = self._first[shards]
        # Of the bucket of now some shards are used up already.
        is_past = entry >= 0
        is_past[is_past] = self._upto[entry[is_past] - self._base] < self.now
        entry[is_past] = self._after[entry[is_past] - self._base]
        when = np.full(len(shards), policy.NEVER)
        is_known = entry >= 0
        when[is_known] = np.maximum(self._from[entry[is_known] - self._base], self.now)
        return when

    def is_done(self, shards: Int64s) -> npt.NDArray[np.bool_]:
        """Which shards were needed, and are not any more."""
        is_done: npt.NDArray[np.bool_] = self.next_use(shards) == policy.NEVER
        return is_done & (self._last[shards] >= 0)

    def next_after(self, shard: int, position: int) -> float:
        """When a shard is needed next from ``position`` on."""
        entry = int(self._first[shard])
        while entry >= 0 and self._upto[entry - self._base] < position:
            entry = int(self._after[entry - self._base])
        return float(max(self._from[entry - self._base], position)) if entry >= 0 else policy.NEVER

    def rows_before(self, shard: int, position: float) -> int:
        """The rows of a shard that are needed before ``position``, to the end of its bucket."""
        if position >= self.end:
            return int(self.rows[shard])
        entry, rows = int(self._first[shard]), 0
        while entry >= 0 and self._from[entry - self._base] < position:
            rows += int(self._count[entry - self._base])
            entry = int(self._after[entry - self._base])
        return rows

    def _make_room(self, count: int) -> None:
        capacity, used = len(self._shard), self.entries
        if self._stop - self._base + count <= capacity:
            return
        capacity = max(capacity, 2 * (used + count))
        for name, kind in _COLUMNS:
            old: npt.NDArray[Any] = getattr(self, name)
            new = np.zeros(capacity, kind)
            new[:used] = old[self._start - self._base : self._stop - self._base]
            setattr(self, name, new)
        self._base = self._start
