"""Belady's oracle of a process: when the node needs each shard next, as far as that is known.

What is known is the merged order of all workers of the node where the reader has one, else the
reader's own order. The readers of one process that read the same order share one index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mds.prefetch.use_table import UseTable
from mds.process.fork_safe import new_lock

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.budget import Budget
    from mds.prefetch.lookahead import Lookahead

    Int64s = npt.NDArray[np.int64]

BUCKET_SAMPLES = 64  # samples of each worker that are entered together
_ENTRIES = 400_000  # 28 bytes each
_OWN_AHEAD = 1 << 18  # ids of this worker that may wait in memory


class MergedOrder(Protocol):
    """What all workers of a node read, from the time at which this one begins."""

    @property
    def workers(self) -> int:
        """How many there are."""

    @property
    def every(self) -> int:
        """Of so many ranks one is in it, and stands for the others."""

    @property
    def start(self) -> int:
        """The time of this worker's first sample; that of each other is one later."""

    @property
    def team(self) -> int:
        """A number that all readers of this order have in common."""

    def pieces(self) -> Iterator[tuple[Int64s, Int64s] | None]:
        """Times that rise, and the samples that are read then; None: not known yet."""


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
        """Which shards no worker needs any more, as far as that is known."""
        if self.is_whole:
            return np.ones(len(shards), np.bool_)
        with self._lock:
            return self._uses.is_done(shards)

    def next_after(self, shard: int, time: int) -> float:
        """When any worker needs a shard, from a time on."""
        with self._lock:
            return self._uses.next_after(shard, time)

    def rows_before(self, shard: int, time: float) -> int:
        """The rows of a shard that are needed before a time."""
        with self._lock:
            return self._uses.rows_before(shard, time) * self._every

    def _next(self) -> tuple[Int64s, Int64s] | None:
        """Times and shards of the next bucket; None when there is no more, or not yet."""
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
                (times[at : at + size], shards[at : at + size]) for at in range(0, len(ids), size)
            )
        return self._waiting.popleft()


def join_index(
    budget: Budget, shards: int, ids: Lookahead, node: MergedOrder | None
) -> NextUseIndex:
    """The index of this order in this process, made if there is none, which the budget asks."""
    with budget.oracles_lock:
        for known in budget.oracles:
            if (
                node is not None
                and isinstance(known, NextUseIndex)
                and (known.team, known.start) == (node.team, node.start)
            ):
                break
        else:
            known = NextUseIndex(shards, ids, node)
            budget.oracles.append(known)
        known.users += 1
        return known


def leave_index(budget: Budget, index: NextUseIndex) -> None:
    """One reader less goes by it; the last one takes it along."""
    with budget.oracles_lock:
        index.users -= 1
        if not index.users:
            budget.oracles.remove(index)
