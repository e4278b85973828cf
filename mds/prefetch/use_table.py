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
    ("_begin", np.int64),
    ("_end", np.int64),
    ("_next_entry", np.int64),
)


class UseTable:
    """The uses of ``shards`` shards from position ``now`` to before position ``end``."""

    _shard: npt.NDArray[np.int32]
    _count: npt.NDArray[np.int32]
    _begin: Int64s
    _end: Int64s
    _next_entry: Int64s

    def __init__(self, shards: int, start: int = 0) -> None:
        self.now = self.end = start
        #: Rows of each shard from now to the horizon, those of the bucket of now included.
        self.rows = np.zeros(shards, np.int64)
        # Entries are numbered for ever; `_base` is the number of the first one in the arrays.
        self._first_entry = np.full(shards, _NONE, np.int64)
        self._last_entry = np.full(shards, _NONE, np.int64)
        self._buckets: deque[tuple[int, int]] = deque()  # (end position, number of the entry after)
        self._base = self._start = self._stop = 0
        for name, kind in _COLUMNS:
            setattr(self, name, np.zeros(1024, kind))

    @property
    def entries(self) -> int:
        """How much is remembered."""
        return self._stop - self._start

    def append(self, times: Int64s, shards: Int64s) -> None:
        """Add a bucket: the shards that are needed next, and the times of that, which rise."""
        order = np.argsort(shards, kind="stable")
        self.end = int(times[-1]) + 1
        shards, positions = shards[order], times[order]
        begins = np.flatnonzero(np.diff(shards, prepend=-1))
        ends = np.append(begins[1:], len(shards))
        distinct = shards[begins]
        self._make_room(len(distinct))
        numbers = np.arange(self._stop, self._stop + len(distinct))
        here = slice(self._stop - self._base, self._stop - self._base + len(distinct))
        self._shard[here], self._count[here] = distinct, ends - begins
        self._begin[here], self._end[here] = positions[begins], positions[ends - 1]
        self._next_entry[here] = _NONE
        before = self._last_entry[distinct]
        is_linked = before >= self._start
        self._next_entry[before[is_linked] - self._base] = numbers[is_linked]
        self._first_entry[distinct[~is_linked]] = numbers[~is_linked]
        self._last_entry[distinct] = numbers
        self.rows[distinct] += ends - begins
        self._stop += len(distinct)
        self._buckets.append((self.end, self._stop))

    def advance(self, now: int) -> None:
        """Let the time before ``now`` be past."""
        self.now = max(self.now, now)
        while self._buckets and self._buckets[0][0] <= self.now:
            _, stop = self._buckets.popleft()
            gone = slice(self._start - self._base, stop - self._base)
            shards = self._shard[gone]
            self._first_entry[shards] = self._next_entry[gone]
            self.rows[shards] -= self._count[gone]
            self._start = stop

    def next_use(self, shards: Int64s) -> npt.NDArray[np.float64]:
        """When each shard is needed next; `policy.NEVER` beyond the horizon."""
        entry = self._first_entry[shards]
        # Of the bucket of now some shards are used up already.
        is_past = entry >= 0
        is_past[is_past] = self._end[entry[is_past] - self._base] < self.now
        entry[is_past] = self._next_entry[entry[is_past] - self._base]
        when = np.full(len(shards), policy.NEVER)
        is_known = entry >= 0
        when[is_known] = np.maximum(self._begin[entry[is_known] - self._base], self.now)
        return when

    def is_done(self, shards: Int64s) -> npt.NDArray[np.bool_]:
        """Which shards were needed, and are not any more."""
        is_done: npt.NDArray[np.bool_] = self.next_use(shards) == policy.NEVER
        return is_done & (self._last_entry[shards] >= 0)

    def next_after(self, shard: int, position: int) -> float:
        """When a shard is needed next from ``position`` on."""
        entry = int(self._first_entry[shard])
        while entry >= 0 and self._end[entry - self._base] < position:
            entry = int(self._next_entry[entry - self._base])
        return float(max(self._begin[entry - self._base], position)) if entry >= 0 else policy.NEVER

    def rows_before(self, shard: int, position: float) -> int:
        """The rows of a shard that are needed before ``position``, to the end of its bucket."""
        if position >= self.end:
            return int(self.rows[shard])
        entry, rows = int(self._first_entry[shard]), 0
        while entry >= 0 and self._begin[entry - self._base] < position:
            rows += int(self._count[entry - self._base])
            entry = int(self._next_entry[entry - self._base])
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
