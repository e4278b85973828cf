"""When each shard is needed next on this node: the oracle of Belady's eviction rule.

The order that counts is the merged order of all workers of the node, or the reader's own order if
the merged order is unknown. `NextUseIndex` computes it ahead of the readers, up to a horizon. The
readers of one process that read the same order share one index.

`UseTable` is the data structure below it and knows no cache. Time is the position of a sample in
the order of its worker; the workers of a node run side by side. Time is cut into buckets. A bucket
has one entry for each of its distinct shards, and an entry refers to the next one of its shard:

    time       now                                        horizon
    bucket   |  0 ........ 63 |  64 ...... 127 | 128 ..... 191 |
    entries    shard 3 ------> shard 3 -----------> shard 3
               shard 8 ---------------------------> shard 8
                               shard 5

    entry    first and last time at which the shard is read in the bucket, number of its rows
             that are read, number of the next entry

The entries are columns of numpy arrays, 32 bytes each. They are added as the horizon moves on and
dropped as time passes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mds._cache import policy
from mds._process.fork_safe import new_lock

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._cache.budget import Budget
    from mds._prefetch.lookahead import Lookahead

    Int64s = npt.NDArray[np.int64]

_NONE = -1
_COLUMNS = (
    ("_shard", np.int32),
    ("_count", np.int32),
    ("_begin", np.int64),
    ("_end", np.int64),
    ("_next_entry", np.int64),
)
BUCKET_SAMPLES = 64  # times in a bucket
_MAX_ENTRIES = 400_000
_MAX_OWN_AHEAD = 1 << 18  # ids of this worker that may be held in memory


class MergedOrder(Protocol):
    """Reads of all workers of a node, from the time at which this worker begins.

    A time is the position of a sample in the order of its worker. With two workers, the samples
    that both read third have the same time.
    """

    @property
    def workers(self) -> int:
        """Number of workers."""

    @property
    def every(self) -> int:
        """Sampling step of ranks: `pieces` has the reads of every ``every``-th rank only.

        These represent the reads of all ranks. 1: all ranks.
        """

    @property
    def start(self) -> int:
        """Time of this worker's first sample."""

    @property
    def team(self) -> int:
        """Number that all readers of this order have in common."""

    def pieces(self) -> Iterator[tuple[Int64s, Int64s] | None]:
        """Yield ascending times and the sample ids that are read then, both (n,).

        None is yielded as long as the next piece is not known, because it is being computed.
        """


class NextUseIndex:
    """Next uses of the shards of a dataset, in the merged order of a node. Thread-safe.

    Args:
        shards: Number of shards of the dataset.
        ids: Sample ids of the reader that creates the index.
        node: Merged order of all workers of the node. None: only the reader's own order is known,
            and times are positions in it.
    """

    def __init__(self, shards: int, ids: Lookahead, node: MergedOrder | None) -> None:
        #: Time of the reader's first sample: time = start + position in its ids.
        self.start = 0 if node is None else node.start
        #: Number that all readers of the same merged order have in common; 0: unknown.
        self.team = 0 if node is None else node.team
        #: Number of workers whose order is known.
        self.workers = 1 if node is None else node.workers
        # With many workers, the merged order has one rank in every `_every`; it represents all.
        self._every = 1 if node is None else node.every
        #: Whether the orders of all readers of the cache folders are known.
        self.is_whole = node is not None
        #: Number of readers of this process that use the index.
        self.users = 0
        self._uses = UseTable(shards, self.start)
        self._lock = new_lock()  # of the table
        self._extending = new_lock()  # held by the thread that computes the next buckets
        self._ids = ids
        # Iterator over the merged order: pairs of times and sample ids, see `MergedOrder.pieces`.
        self._pieces = None if node is None else node.pieces()
        # Times and shards of the buckets that are computed and not in the table yet.
        self._waiting: deque[tuple[Int64s, Int64s]] = deque()

    def extend(self, samples: int) -> None:
        """Move the horizon by so many samples of each worker, as far as the table may grow.

        The order continues into the next epoch: which shards should be kept at the end of an epoch
        depends on how the next one begins.
        """
        if not self._extending.acquire(blocking=False):  # held while the order is read
            return  # another reader of this process is extending the index
        try:
            while samples > 0 and self._uses.entries <= _MAX_ENTRIES:
                bucket = self._next_bucket()
                if bucket is None:
                    return
                samples -= BUCKET_SAMPLES
                with self._lock:  # not longer: evictions ask in between, while all processes wait
                    self._uses.append(*bucket)
        finally:
            self._extending.release()

    @property
    def now(self) -> int:
        """Time before which all workers have read everything."""
        return self._uses.now

    def advance(self, time: int) -> None:
        """Record that all workers have read everything before ``time``."""
        with self._lock:
            self._uses.advance(time)

    def next_use(self, shards: Int64s) -> npt.NDArray[np.float64]:
        """Return the time at which each shard is needed next, or `policy.NEVER`, (n,)."""
        with self._lock:
            return self._uses.next_use(shards)

    def is_done(self, shards: Int64s) -> npt.NDArray[np.bool_]:
        """Return a mask of the shards that no worker needs any more in this epoch, (n,).

        Only entries of shards without a next use count, see `policy.eviction_order`.
        """
        if self.is_whole:  # the order of all readers is known: no next use means not needed
            return np.ones(len(shards), np.bool_)
        with self._lock:
            return self._uses.is_done(shards)

    def next_after(self, shard: int, time: int) -> float:
        """Return the first time, not before ``time``, at which any worker needs a shard."""
        with self._lock:
            return self._uses.next_after(shard, time)

    def rows_before(self, shard: int, time: float) -> int:
        """Return the number of rows of a shard that are read from now to before a time."""
        with self._lock:
            return self._uses.rows_before(shard, time) * self._every  # sampled ranks represent all

    def _next_bucket(self) -> tuple[Int64s, Int64s] | None:
        """Return times and shards of the next bucket, each (n,), or None if it is not known yet."""
        if self._pieces is None:  # only the reader's own order is known
            start = self._uses.end
            if start - self._ids.position > _MAX_OWN_AHEAD:  # the ids are held in memory
                return None
            shards, _ = self._ids.look(start, start + BUCKET_SAMPLES)
            return (np.arange(start, start + len(shards)), shards) if len(shards) else None
        while not self._waiting:
            piece = next(self._pieces, None)
            if piece is None:
                return None
            times, ids = piece
            shards = self._ids.offsets.searchsorted(ids, "right") - 1  # of each sample id
            # Cut the piece into buckets with `BUCKET_SAMPLES` samples of each worker in it.
            size = BUCKET_SAMPLES * max(self.workers // self._every, 1)
            self._waiting.extend(
                (times[start : start + size], shards[start : start + size])
                for start in range(0, len(ids), size)
            )
        return self._waiting.popleft()


def join_index(
    budget: Budget, shards: int, ids: Lookahead, node: MergedOrder | None
) -> NextUseIndex:
    """Return this process's index of an order for one more reader; create it if needed.

    ``budget`` asks the index to choose the shards to evict. The other arguments are those of
    `NextUseIndex`. Readers share an index if their merged orders are equal. Call `leave_index` when
    the reader ends.
    """
    with budget.oracles_lock:
        for index in budget.oracles:
            # Equal team and start: the same order from the same time on.
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
    """Release an index for one reader; after the last one, the budget does not ask it any more."""
    with budget.oracles_lock:
        index.users -= 1
        if not index.users:
            budget.oracles.remove(index)


class UseTable:
    """Table of the uses of shards from time ``now`` to before time ``end``, the horizon.

    The docstring of the module has a picture of its buckets and entries. Entries are numbered from
    the first one ever. Their columns are arrays, in which entry k is at index k - ``_base``, since
    past entries are dropped from the front. Each shard has the number of its first and last entry.

    Args:
        shards: Number of shards of the dataset.
        start: Time at which the table begins (default 0).
    """

    _shard: npt.NDArray[np.int32]
    _count: npt.NDArray[np.int32]
    _begin: Int64s
    _end: Int64s
    _next_entry: Int64s

    def __init__(self, shards: int, start: int = 0) -> None:
        self.now = self.end = start
        #: Rows of each shard that are read from the bucket of ``now`` to the horizon.
        self.rows = np.zeros(shards, np.int64)
        # Entries `_start` to before `_stop` are in use; `_base` is the first one in the arrays.
        # `_NONE`: no entry.
        self._first_entry = np.full(shards, _NONE, np.int64)
        self._last_entry = np.full(shards, _NONE, np.int64)
        # End time of each bucket, and number of the entry after its last one.
        self._buckets: deque[tuple[int, int]] = deque()
        self._base = self._start = self._stop = 0
        # The columns of the entries: `_shard`, `_count` (rows), `_begin` and `_end` (first and last
        # time), `_next_entry` (number of the next entry of the shard).
        for name, kind in _COLUMNS:
            setattr(self, name, np.zeros(1024, kind))

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self._stop - self._start

    def append(self, times: Int64s, shards: Int64s) -> None:
        """Add a bucket: ascending times, and the shard that is read at each, both (n,).

        For example, times [0, 1, 2, 3, 4] and shards [7, 8, 7, 7, 8] become two entries: shard 7,
        times 0 to 3, 3 rows; and shard 8, times 1 to 4, 2 rows.
        """
        # Sort by shard, and by time within a shard. Each stretch of one shard becomes an entry.
        order = np.argsort(shards, kind="stable")
        self.end = int(times[-1]) + 1
        shards, times = shards[order], times[order]
        begins = np.flatnonzero(np.diff(shards, prepend=-1))  # where the stretches begin
        ends = np.append(begins[1:], len(shards))
        distinct = shards[begins]
        self._make_room(len(distinct))
        numbers = np.arange(self._stop, self._stop + len(distinct))
        new_entries = slice(self._stop - self._base, self._stop - self._base + len(distinct))
        self._shard[new_entries], self._count[new_entries] = distinct, ends - begins
        self._begin[new_entries], self._end[new_entries] = times[begins], times[ends - 1]
        self._next_entry[new_entries] = _NONE
        # Link the earlier entry of its shard to each new one. If there is none, or if it is in a
        # bucket that was dropped, the new entry is the first of its shard.
        previous = self._last_entry[distinct]
        is_linked = previous >= self._start
        self._next_entry[previous[is_linked] - self._base] = numbers[is_linked]
        self._first_entry[distinct[~is_linked]] = numbers[~is_linked]
        self._last_entry[distinct] = numbers
        self.rows[distinct] += ends - begins
        self._stop += len(distinct)
        self._buckets.append((self.end, self._stop))

    def advance(self, now: int) -> None:
        """Set the time, and drop the buckets that end at ``now`` or earlier."""
        self.now = max(self.now, now)
        while self._buckets and self._buckets[0][0] <= self.now:  # the end time of the first
            _, stop = self._buckets.popleft()
            # The oldest bucket has the entries from `_start` to before `stop`, one for each of its
            # shards. Their successors become the first entries of these shards.
            past = slice(self._start - self._base, stop - self._base)
            shards = self._shard[past]  # distinct
            self._first_entry[shards] = self._next_entry[past]
            self.rows[shards] -= self._count[past]
            self._start = stop

    def next_use(self, shards: Int64s) -> npt.NDArray[np.float64]:
        """Return the next use of each shard, or `policy.NEVER` beyond the horizon, (n,)."""
        entry = self._first_entry[shards]  # a copy, negative for shards without entries
        # If all uses in the bucket of `now` are past, the next entry counts. Masks are used instead
        # of a loop over the shards; entry k is at index k - _base of the arrays.
        is_past = entry >= 0
        is_past[is_past] = self._end[entry[is_past] - self._base] < self.now
        entry[is_past] = self._next_entry[entry[is_past] - self._base]
        next_uses = np.full(len(shards), policy.NEVER)
        is_known = entry >= 0
        # Of a bucket only the first and the last use are known. In the bucket of `now`, the next
        # one may be at any time between them, so it counts as now.
        next_uses[is_known] = np.maximum(self._begin[entry[is_known] - self._base], self.now)
        return next_uses

    def is_done(self, shards: Int64s) -> npt.NDArray[np.bool_]:
        """Return a mask of the shards that were used and have no use up to the horizon, (n,)."""
        is_done: npt.NDArray[np.bool_] = self.next_use(shards) == policy.NEVER
        return is_done & (self._last_entry[shards] >= 0)

    def next_after(self, shard: int, time: int) -> float:
        """Return the time of the first use of a shard at ``time`` or later, or `policy.NEVER`.

        Inside a bucket only its first and last use are known, so a time between them is returned
        as it is.
        """
        entry = int(self._first_entry[shard])
        while entry >= 0 and self._end[entry - self._base] < time:
            entry = int(self._next_entry[entry - self._base])
        return float(max(self._begin[entry - self._base], time)) if entry >= 0 else policy.NEVER

    def rows_before(self, shard: int, time: float) -> int:
        """Return the number of rows of a shard that are read before ``time``.

        The buckets of `now` and of ``time`` count as a whole.
        """
        if time >= self.end:  # all rows up to the horizon
            return int(self.rows[shard])
        entry, rows = int(self._first_entry[shard]), 0
        while entry >= 0 and self._begin[entry - self._base] < time:
            rows += int(self._count[entry - self._base])
            entry = int(self._next_entry[entry - self._base])
        return rows

    def _make_room(self, count: int) -> None:
        """Make room for ``count`` more entries: drop those that are past, enlarge the arrays."""
        capacity, used = len(self._shard), self.entries
        if self._stop - self._base + count <= capacity:
            return
        capacity = max(capacity, 2 * (used + count))  # doubling: each entry is copied a few times
        for name, kind in _COLUMNS:
            old: npt.NDArray[Any] = getattr(self, name)
            new = np.zeros(capacity, kind)
            new[:used] = old[self._start - self._base : self._stop - self._base]
            setattr(self, name, new)
        self._base = self._start
