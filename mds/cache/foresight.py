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

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

BUCKET = 128  # samples of each worker in a unit of time
_ENTRIES = 500_000  # 16 bytes each
_OWN_AHEAD = 1 << 18  # ids of this worker that may wait in memory


class Foresight:
    """Thread-safe answers about the time to come; times are in buckets of this worker's samples."""

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

    def extend(self, buckets: int) -> None:
        """Look so many buckets further, if there is more to know and room for it."""
        for _ in range(buckets):
            if self._is_at_end or self._future.entries > _ENTRIES:
                return
            shards = self._next()
            if shards is None:
                self._is_at_end = True
            elif len(shards):
                with self._lock:
                    self._future.append(shards)
            else:
                return

    def advance(self, position: int) -> None:
        """This worker took all samples before ``position``."""
        with self._lock:
            self._future.advance(position // BUCKET)

    def next_use(self, shards: Int64s) -> npt.NDArray[np.float64]:
        """When shards are needed next; `policy.NEVER` where that is not known."""
        with self._lock:
            return self._future.next_use(shards)

    def next_after(self, shard: int, position: int) -> float:
        """When a shard is needed next by anybody, beyond what this worker has up to a position."""
        with self._lock:
            return self._future.next_after(shard, -(-position // BUCKET))

    def rows_before(self, shard: int, when: float) -> int:
        """The rows of a shard that are needed before a time."""
        with self._lock:
            return self._future.rows_before(shard, when)

    def working_set(self, sizes: Int64s) -> int:
        """The most bytes of shards that are in use at one time."""
        with self._lock:
            return self._future.working_set(sizes)

    @property
    def horizon(self) -> int:
        """The position up to which everything is known."""
        return self._future.end * BUCKET

    def _next(self) -> Int64s | None:
        """The shards of the next bucket; None at the end, nothing when that must wait."""
        if self._orders is not None:
            parts = [part for order in self._orders if (part := next(order, None)) is not None]
            return np.concatenate(parts) if parts else None
        start = self._future.end * BUCKET
        if start - self._ids.position > _OWN_AHEAD:
            return np.zeros(0, np.int64)
        shards, _ = self._ids.look(start, start + BUCKET)
        return shards if len(shards) else None
