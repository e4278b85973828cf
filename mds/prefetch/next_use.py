"""Next use of each shard on this node, as far as the order is known (Belady's oracle).

The order is the merged order of all workers of the node where the reader has one, else the reader's
own order. The readers of one process that read the same order share one `NextUseIndex`.

`UseTable` is the data structure below it. Time is the position of a sample in the order of its
worker; the workers of a node run side by side. Time is cut into buckets. A bucket has one entry for
each distinct shard: when it is first and last needed there, how many of its rows are read, and the
number of the next entry of the same shard. The table is numpy arrays with 32 bytes an entry,
computed once as the horizon moves on and dropped as time passes. It knows no cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mds.cache import policy
from mds.process.fork_safe import new_lock

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.budget import Budget
    from mds.prefetch.lookahead import Lookahead

    Int64s = npt.NDArray[np.int64]

_NONE = -1
_COLUMNS = (
    ("_shard", np.int32),
    ("_count", np.int32),
    ("_begin", np.int64),
    ("_end", np.int64),
    ("_next_entry", np.int64),
)
BUCKET_SAMPLES = 64  # samples of each worker that are entered together
_ENTRIES = 400_000  # 28 bytes each
_OWN_AHEAD = 1 << 18  # ids of this worker that may wait in memory


class MergedOrder(Protocol):
    """Reads of all workers of a node, from the time at which this one begins."""

    @property
    def workers(self) -> int:
        """Number of workers."""

    @property
    def every(self) -> int:
        """Number of ranks that one rank of the order represents."""

    @property
    def start(self) -> int:
        """The time of this worker's first sample; that of each other is one later."""

    @property
    def team(self) -> int:
        """A number that all readers of this order have in common."""

    def pieces(self) -> Iterator[tuple[Int64s, Int64s] | None]:
        """Iterate over rising times and the samples read then; None: not known yet."""


class NextUseIndex:
    """Index of next uses (Belady's oracle), thread-safe.

    Times are those of the merged order, or else positions of the reader's own.
    """

    def __init__(self, shards: int, ids: Lookahead, node: MergedOrder | None) -> None:
        self.start = 0 if node is None else node.start
        self.team = 0 if node is None else node.team
        self.workers = 1 if node is None else node.workers
        self._every = 1 if node is None else node.every
        #: Whether it knows what all readers of the folder will read.
        self.is_whole = node is not None
        #: Readers of this process that go by it.
        self.users = 0
        self._uses = UseTable(shards, self.start)
        self._lock, self._extending = new_lock(), new_lock()
        self._ids = ids
        self._pieces = None if node is None else node.pieces()
        self._waiting: deque[tuple[Int64s, Int64s]] = deque()  # looked up, not entered yet

    def extend(self, samples: int) -> None:
        """Look so many samples of each worker further, if there is more to know and room for it.

        The whole of this epoch and the next is known early on where that is little, since what is
        kept at the end of one is what the next begins with.
        """
        if not self._extending.acquire(blocking=False):
            return  # another reader of this process is at it
        try:
            while samples > 0 and self._uses.entries <= _ENTRIES:
                bucket = self._next()
                if bucket is None:
                    return
                samples -= BUCKET_SAMPLES
                with self._lock:  # evictions ask meanwhile, with all processes waiting for them
                    self._uses.append(*bucket)
        finally:
            self._extending.release()

    @property
    def now(self) -> int:
        """The time up to which all workers have what they need."""
        return self._uses.now

    def advance(self, time: int) -> None:
        """All workers have what they need up to ``time``."""
        with self._lock:
            self._uses.advance(time)

    def next_use(self, shards: Int64s) -> npt.NDArray[np.float64]:
        """When shards are needed next; `policy.NEVER` where that is not known."""
        with self._lock:
            return self._uses.next_use(shards)

    def is_done(self, shards: Int64s) -> npt.NDArray[np.bool_]:
        """Return a mask of the shards that no worker needs any more, as far as known."""
        if self.is_whole:
            return np.ones(len(shards), np.bool_)
        with self._lock:
            return self._uses.is_done(shards)

    def next_after(self, shard: int, time: int) -> float:
        """When any worker needs a shard, from a time on."""
        with self._lock:
            return self._uses.next_after(shard, time)

    def rows_before(self, shard: int, time: float) -> int:
        """Return the number of rows of a shard that are needed before a time."""
        with self._lock:
            return self._uses.rows_before(shard, time) * self._every

    def _next(self) -> tuple[Int64s, Int64s] | None:
        """Return times and shards of the next bucket, or None if there is none yet."""
        if self._pieces is None:
            start = self._uses.end
            if start - self._ids.position > _OWN_AHEAD:
                return None
            shards, _ = self._ids.look(start, start + BUCKET_SAMPLES)
            return (np.arange(start, start + len(shards)), shards) if len(shards) else None
        while not self._waiting:
            piece = next(self._pieces, None)
            if piece is None:
                return None
            times, ids = piece
            shards = self._ids.offsets.searchsorted(ids, "right") - 1
            size = BUCKET_SAMPLES * max(self.workers // self._every, 1)
            self._waiting.extend(
                (times[start : start + size], shards[start : start + size])
                for start in range(0, len(ids), size)
            )
        return self._waiting.popleft()


def join_index(
    budget: Budget, shards: int, ids: Lookahead, node: MergedOrder | None
) -> NextUseIndex:
    """Return the process's index of this order, created if needed; the budget queries it."""
    with budget.oracles_lock:
        for index in budget.oracles:
            if (
                node is not None
                and isinstance(index, NextUseIndex)
                and (index.team, index.start) == (node.team, node.start)
            ):
                break
        else:
            index = NextUseIndex(shards, ids, node)
            budget.oracles.append(index)
        index.users += 1
        return index


def leave_index(budget: Budget, index: NextUseIndex) -> None:
    """One reader less goes by it; the last one takes it along."""
    with budget.oracles_lock:
        index.users -= 1
        if not index.users:
            budget.oracles.remove(index)


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
        """Number of entries."""
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
        new_entries = slice(self._stop - self._base, self._stop - self._base + len(distinct))
        self._shard[new_entries], self._count[new_entries] = distinct, ends - begins
        self._begin[new_entries], self._end[new_entries] = positions[begins], positions[ends - 1]
        self._next_entry[new_entries] = _NONE
        before = self._last_entry[distinct]
        is_linked = before >= self._start
        self._next_entry[before[is_linked] - self._base] = numbers[is_linked]
        self._first_entry[distinct[~is_linked]] = numbers[~is_linked]
        self._last_entry[distinct] = numbers
        self.rows[distinct] += ends - begins
        self._stop += len(distinct)
        self._buckets.append((self.end, self._stop))

    def advance(self, now: int) -> None:
        """Drop all uses earlier than ``now``."""
        self.now = max(self.now, now)
        while self._buckets and self._buckets[0][0] <= self.now:
            _, stop = self._buckets.popleft()
            past = slice(self._start - self._base, stop - self._base)
            shards = self._shard[past]
            self._first_entry[shards] = self._next_entry[past]
            self.rows[shards] -= self._count[past]
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
        """Return a mask of the shards that were needed and are not any more."""
        is_done: npt.NDArray[np.bool_] = self.next_use(shards) == policy.NEVER
        return is_done & (self._last_entry[shards] >= 0)

    def next_after(self, shard: int, position: int) -> float:
        """When a shard is needed next from ``position`` on."""
        entry = int(self._first_entry[shard])
        while entry >= 0 and self._end[entry - self._base] < position:
            entry = int(self._next_entry[entry - self._base])
        return float(max(self._begin[entry - self._base], position)) if entry >= 0 else policy.NEVER

    def rows_before(self, shard: int, position: float) -> int:
        """Return the rows of a shard needed before ``position``, to the end of its bucket."""
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
