"""How one shard of a window is got under a limit: whole where that is best, else just its rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mds.cache import policy
from mds.cache.budget import Bid
from mds.cache.concurrency import ByteSemaphore
from mds.process.fork_safe import new_lock

if TYPE_CHECKING:
    from mds.cache.process_cache import ProcessCache
    from mds.prefetch.next_use import NextUseIndex
    from mds.readers import Reader


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """A shard of a window, which is from time ``start`` to ``stop``, and the rows needed."""

    shard: int
    rows: list[int]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ShardLease:
    """A reader for a request, and what has to be given back after it."""

    shard: int
    reader: Reader
    is_held: bool = False
    is_pinned: bool = False


class WindowFetcher:
    """Gets what windows need, within this process's share of the limit."""

    def __init__(self, runtime: ProcessCache, oracle: NextUseIndex) -> None:
        self._runtime, self._oracle = runtime, oracle
        # Not a method: what refers to itself lets go of its files at a collection, not at its end.
        share = functools.partial(_share, runtime)
        self._pins, self._bytes_in_flight = _Pins(share), ByteSemaphore(share)
        #: Whether there is so much room that what windows read may stay mapped until they end;
        #: where it is scarce rows are copied, so that a shard can go as soon as all have theirs.
        self.may_pin = False
        #: Whether the shards in use at one time fit. Then each is fetched completely, when needed.
        self.comes_whole = False

    def acquire(self, request: ShardRequest, is_prefetch: bool) -> ShardLease | None:
        """Return a reader that has the rows, or None if ``is_prefetch`` and better retried later.

        That is so for a shard that should come whole and finds no room while what it would have to
        go for is needed earlier: when its time comes, that may be used up.
        """
        runtime, shard = self._runtime, request.shard
        if not runtime.is_cacheable(shard):
            # The user's own file: nothing to fetch, to pin or to evict.
            return ShardLease(shard, runtime.hold(shard), is_held=True)
        is_pinned = self.may_pin and self._pins.add(shard, int(runtime.catalog.sizes[shard]))
        try:
            reader = runtime.hold_local(shard)
            if reader is None and self._fetch(request):
                reader = runtime.hold_local(shard)
        except BaseException:
            if is_pinned:
                self._pins.remove(shard)
            raise
        if reader is not None and is_pinned:
            return ShardLease(shard, reader, is_held=True, is_pinned=True)
        if is_pinned:
            self._pins.remove(shard)
        if reader is None:
            if is_prefetch and (self.comes_whole or not runtime.can_range(shard)):
                return None
            # Other workers, or this one later, read the rows between: fetch each byte once.
            return ShardLease(shard, runtime.read_rows(shard, request.rows, policy.HEADERS))
        try:
            return ShardLease(shard, runtime.copy_rows(shard, reader, request.rows))
        finally:
            runtime.release(shard)

    def release(self, lease: ShardLease) -> None:
        """Release everything that the window holds."""
        if lease.is_held:
            self._runtime.release(lease.shard)
        if lease.is_pinned:
            self._pins.remove(lease.shard)

    def _fetch(self, request: ShardRequest) -> bool:
        """Fetch a whole shard if there is or can be room and it is worth it."""
        oracle, runtime, shard = self._oracle, self._runtime, request.shard
        size, rows = int(runtime.catalog.sizes[shard]), len(request.rows)
        can_range = runtime.can_range(shard)
        is_shared = self._is_shared(request)
        if not can_range or (self.comes_whole and is_shared):
            # In the cache other workers of the node find it now, or a later window does.
            needed_at = oracle.next_after(shard, request.start if is_shared else request.stop)
            # One by one, or those under way would crowd each other out.
            with self._bytes_in_flight.acquire(size):
                return runtime.fetcher.ensure_local(shard, Bid(needed_at, team=oracle.team))
        processes_per_worker = (
            1 if oracle.is_whole else -(-runtime.peers.processes // oracle.workers)
        )

        def rows_before(until: float) -> int:
            """Rows that would come by range before a time."""
            return max(oracle.rows_before(shard, until) * processes_per_worker, rows)

        bid = Bid(
            oracle.next_after(shard, request.stop),
            runtime.catalog.row_size(shard),
            rows_before,
            oracle.team,
        )
        return policy.is_worth(
            size, rows_before(policy.NEVER), bid.row_size
        ) and runtime.fetcher.ensure_local(shard, bid)

    def _is_shared(self, request: ShardRequest) -> bool:
        """Whether others need a shard too, before the window of this worker ends."""
        if not self._oracle.is_whole:  # they do, unless their order is a strange one
            return self._runtime.peers.processes > 1
        rows = self._oracle.rows_before(request.shard, request.stop)
        return rows > len(request.rows)


def _share(runtime: ProcessCache) -> int:
    """Return the bytes on the disk that this process may have in use or in transfer."""
    return policy.share(runtime.limit or 0, runtime.peers.processes)


class _Pins:
    """The shards that the windows of this process have pinned, within its share of the limit."""

    def __init__(self, share: Callable[[], int]) -> None:
        self._share = share
        self._counts: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._used = 0
        self._lock = new_lock()

    def add(self, shard: int, size: int) -> bool:
        """Count a pin, if there is room for the shard or nothing else is pinned."""
        with self._lock:
            count = self._counts.get(shard, 0)
            if not count:
                if self._counts and self._used + size > self._share():
                    return False
                self._used += size
                self._sizes[shard] = size
            self._counts[shard] = count + 1
            return True

    def remove(self, shard: int) -> None:
        """Take a pin away."""
        with self._lock:
            self._counts[shard] -= 1
            if not self._counts[shard]:
                del self._counts[shard]
                self._used -= self._sizes.pop(shard)
