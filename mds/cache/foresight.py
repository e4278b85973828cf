"""The future of the node as this process knows it, and what follows from it for a shard.

Known are the orders of all workers of the node when somebody gave them, else this worker's own. The
horizon moves ahead of the reader, faster than time, until it reaches the end of what is known or
of what memory is for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mds.cache.future import Future
from mds.cache.lookahead import Lookahead, locate
from mds.readers import distinct

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

BUCKET = 64  # samples of each worker that are entered together
_ENTRIES = 400_000  # 28 bytes each
_OWN_AHEAD = 1 << 18  # ids of this worker that may wait in memory


class Foresight:
    """Thread-safe answers about the time to come; times are positions of its samples."""

    def __init__(
        self, shards: int, ids: Lookahead, orders: Sequence[Iterable[Int64s]] | None
    ) -> None:
        #: Whether all processes of the node are in it.
        self.is_whole = orders is not None
        self._future = Future(shards)
        self._lock = threading.Lock()
        self._ids = ids
        self._orders: list[Iterator[Int64s]] | None = None
        if orders is not None:
            self._orders = [locate(order, ids.offsets, BUCKET) for order in orders]
        self._is_at_end = False
        #: The first buckets as they came, by worker, to see what the order is like.
        self._sample: list[list[Int64s]] = []

    def extend(self, buckets: int, *, is_sampled: bool = False) -> None:
        """Look so many buckets further, if there is more to know and room for it."""
        for _ in range(buckets):
            if self._is_at_end or self._future.entries > _ENTRIES:
                return
            parts = self._next()
            if parts is None:
                return
            if is_sampled:
                self._sample.append(parts)
            with self._lock:
                self._future.append(parts)

    def turns(self, size: int, stop: int, *, is_apart: bool = False) -> Iterator[list[int]]:
        """The distinct shards of each turn of the sample, in which every worker has ``size`` ids.

        Of each worker the first ``stop`` ids count. With ``is_apart`` a turn is of one worker.
        """
        workers = len(self._sample[0]) if self._sample else 0
        rows = [
            np.concatenate([parts[at] for parts in self._sample if at < len(parts)])[:stop]
            for at in range(workers)
        ]
        for start in range(0, max(map(len, rows), default=0), size):
            turn = [row[start : start + size] for row in rows]
            yield from map(distinct, turn if is_apart else [np.concatenate(turn)])

    def forget_sample(self) -> None:
        """Give its memory back."""
        self._sample = []

    def advance(self, position: int) -> None:
        """All workers have what they need up to ``position``."""
        with self._lock:
            self._future.advance(position)

    def next_use(self, shards: Int64s) -> npt.NDArray[np.float64]:
        """When shards are needed next; `policy.NEVER` where that is not known."""
        with self._lock:
            return self._future.next_use(shards)

    def is_done(self, shards: Int64s) -> npt.NDArray[np.bool_]:
        """Which shards nobody needs any more, as far as that is known."""
        if self.is_whole:
            return np.ones(len(shards), np.bool_)
        with self._lock:
            return self._future.is_done(shards)

    def next_after(self, shard: int, position: int) -> float:
        """When a shard is needed next by anybody, beyond what this worker has up to a position."""
        with self._lock:
            return self._future.next_after(shard, position)

    def is_shared(self, shard: int, rows: int, position: int, processes: int) -> bool:
        """Whether others need a shard too, up to a position of which this worker has ``rows``."""
        if not self.is_whole:
            return processes > 1  # they do, unless their order is a strange one
        return self.rows_before(shard, position) > rows

    def rows_before(self, shard: int, when: float) -> int:
        """The rows of a shard that are needed before a time."""
        with self._lock:
            return self._future.rows_before(shard, when)

    def _next(self) -> list[Int64s] | None:
        """The shards of the next bucket, by worker; None when there is no more, or not yet."""
        if self._orders is not None:
            parts = [part for order in self._orders if (part := next(order, None)) is not None]
            self._is_at_end = not parts
            return parts or None
        start = self._future.end
        if start - self._ids.position > _OWN_AHEAD:
            return None
        shards, _ = self._ids.look(start, start + BUCKET)
        self._is_at_end = not len(shards)
        return [shards] if len(shards) else None
