"""Prefetching under a ``cache_limit``: get each shard in the way that transfers the fewest bytes.

Per shard of a window, `WindowFetcher` takes the first of these that is possible:

1. Read the shard from the cache.
2. Fetch it whole, if there is space, or if that saves more bytes than fetching its victims again
   would cost (`mds._cache.policy.is_worth`).
3. Fetch only the window's rows into memory: by range, or out of one pass through the shard if it
   is compressed.

So a window needs no space in the cache, reserving space never waits, and workers cannot deadlock.
Windows are as large as the memory for rows allows. The next window is fetched during this one.

Times are positions in the order of the node (`mds._prefetch.next_use`), not seconds.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mds._cache import policy
from mds._cache.budget import Bid
from mds._cache.concurrency import ByteSemaphore, Pool
from mds._prefetch.lookahead import Lookahead, count_fitting, max_window_shards
from mds._prefetch.next_use import MergedOrder, NextUseIndex, join_index, leave_index
from mds._process.fork_safe import new_lock
from mds._readers.gather import unique_stable
from mds._redaction import get_logger
from mds._units import format_bytes
from mds._words import plural

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._cache.process_cache import ProcessCache
    from mds._readers.base import Reader

    Int64s = npt.NDArray[np.int64]


SAMPLED = 4096  # positions of the order from which the size of windows is chosen
_MAX_LAG = 8192  # samples: a worker that is farther behind the others is assumed to be stuck
_HORIZON = 32  # windows; with each window, next uses are computed for this many more

log = get_logger("mds.cache")


@dataclass(slots=True)
class _Window:
    """A window of ids and the requests for its shards.

    The result of a request is None if it was *postponed*: its shard should be fetched whole, but
    there was no space for it in the cache yet. See `WindowFetcher.acquire`.
    """

    size: int  # number of ids
    #: For each shard the request, and the time of its first use, which is the deadline.
    requests: dict[int, tuple[ShardRequest, float]]
    futures: dict[int, Future[ShardLease | None]]  # of the last request of each shard

    def postponed_shards(self) -> list[int]:
        """Return the shards whose requests ended without a lease, in the order of first use."""
        return [
            shard
            for shard, future in self.futures.items()
            if future.done()
            and not future.cancelled()
            and not future.exception()
            and future.result() is None
        ]


class LimitedPrefetch:
    """Strategy of a worker whose cache has a limit.

    For each window, `Prefetcher` calls `next_size`, `begin`, `open` for each shard, and `end`. The
    shards of the next window are requested when a window begins. A request may be *postponed* if
    the cache has no space for its shard. It is repeated later, at the latest when the shard is
    read.

    Positions count from the first id of this worker. The time of an id is its position plus
    ``_oracle.start``, so that workers which began at different places have the same times.

    Args:
        runtime: The cache of this process.
        ids: Sample ids of the worker.
        node: Merged order of all workers of the node; None: only this worker's order is known.
    """

    def __init__(self, runtime: ProcessCache, ids: Lookahead, node: MergedOrder | None) -> None:
        self._runtime, self._ids, self._node = runtime, ids, node
        self._oracle = join_index(runtime.budget, runtime.catalog.shards, ids, node)
        self._fetcher = WindowFetcher(runtime, self._oracle)
        self._pool = Pool(runtime.peers.threads)
        self._max_size = policy.MIN_WINDOW  # ids of a window, until a sample of the order is seen
        self._planned = 0  # shards of positions before this one have been requested
        self._size = policy.MIN_WINDOW  # ids of the next window
        self._jobs = 0  # number of training jobs that shared the folders when the size was chosen
        self._is_closed = False
        self._windows: deque[_Window] = deque()  # the current one and the next
        self._progress = ServedTime()
        self._window_start = 0  # position of the first id of the current window
        self._min_position = 0  # no worker of the node is assumed to be farther behind
        self._retried_at = -1  # time of the node when postponed shards were last requested again
        self._oracle.extend(SAMPLED)  # compute the first next uses

    def next_size(self) -> int:
        """Return the number of ids of the next window."""
        if not self._windows:
            self._plan_window()
        return self._windows[0].size if self._windows else 1  # 1: there are no ids any more

    def begin(self, shards: Int64s, rows: Int64s) -> None:
        """Begin the planned window, and request the shards of the one after it.

        ``shards`` and ``rows`` are those of its samples, both (n,).
        """
        del rows  # they equal the planned ones
        window = self._windows[0]
        self._window_start = self._ids.position - len(shards)  # its ids were taken already
        self._min_position = max(self._window_start - max(_MAX_LAG, 2 * len(shards)), 0)
        self._report_progress()
        jobs = self._runtime.peers.jobs()
        if jobs != self._jobs:  # each job has an equal part of the limit
            self._jobs = jobs
            self._choose_window_size()
        if not self._fetcher.fetches_whole_shards:
            # The shards in use do not all fit, so there will be no space later, either. Get the
            # rows of postponed shards in another way now.
            for shard in window.postponed_shards():
                self._request(window, shard, is_prefetch=False)
        self._plan_window()

    def open(self, shard: int) -> Reader:
        """Return the reader of a shard of the window; wait for its rows if needed."""
        window = self._windows[0]
        self._retry_postponed()
        lease = self._wait(window.futures[shard], shard)
        if lease is None:  # it was postponed, and is needed now
            self._request(window, shard, is_prefetch=False)
            lease = self._wait(window.futures[shard], shard)
        assert lease is not None
        return lease.reader

    def end(self) -> None:
        """Release the readers of the window."""
        if self._windows:
            self._release_window(self._windows.popleft())

    def close(self) -> None:
        """Stop fetching and release all readers. Closing twice is fine."""
        self._pool.close()
        while self._windows:
            self._release_window(self._windows.popleft())
        if not self._is_closed:
            self._is_closed = True
            leave_index(self._runtime.budget, self._oracle)
        self._runtime.peers.forget_reader(id(self))

    def __repr__(self) -> str:
        return f"{plural(len(self._windows), 'window')} up to sample {self._planned}"

    # ------------------------------------------------------------------ requests

    def _plan_window(self) -> None:
        """Plan the window after the last planned one, and request its shards."""
        start, origin = self._planned, self._oracle.start  # time = origin + position
        self._oracle.extend(_HORIZON * self._size)
        shards, rows = self._ids.look(start, start + self._size)
        if not len(shards):
            return
        # Two windows hold their shards at a time, the current one and the next.
        if (max_shards := max_window_shards(self._runtime.catalog, 2)) is not None:
            fitting = count_fitting(shards, max_shards)
            shards, rows = shards[:fitting], rows[:fitting]
        stop = start + len(shards)
        self._size = min(self._size * 4, self._max_size)  # windows grow from a small first one
        # Group the rows by shard: those of `values[i]` are `rows[order][begins[i]:begins[i + 1]]`,
        # and `order[begins[i]]` is the position in the window at which it is read first.
        order = np.argsort(shards, kind="stable")
        values, begins = np.unique(shards[order], return_index=True)
        first, last = origin + start, origin + stop
        requests = {
            shard: (ShardRequest(shard, group.tolist(), first, last), float(first + offset))
            for shard, group, offset in zip(
                values.tolist(),
                np.split(rows[order], begins[1:]),
                order[begins].tolist(),
                strict=True,
            )
        }
        window = _Window(len(shards), requests, {})
        for shard in unique_stable(shards):
            self._request(window, shard, is_prefetch=True)
        self._planned = stop  # positions before it without a pending request count as served
        self._windows.append(window)

    def _request(self, window: _Window, shard: int, *, is_prefetch: bool) -> None:
        """Request a shard of a window; threads get those first that are read first.

        ``is_prefetch`` is as in `WindowFetcher.acquire`. Until the request ends, no time after its
        first use is reported as read.
        """
        request, deadline = window.requests[shard]  # the deadline is the time of the first use
        self._progress.begin(int(deadline))
        future = self._pool.submit(self._fetcher.acquire, request, is_prefetch, deadline=deadline)
        window.futures[shard] = future
        future.add_done_callback(functools.partial(self._record_end, int(deadline)))

    def _record_end(self, time: int, future: Future[ShardLease | None]) -> None:
        """Record that the request with the deadline ``time`` ended, and report it to the node.

        A postponed request has None as its result, and is not served yet.
        """
        is_postponed = not future.cancelled() and not future.exception() and not future.result()
        self._progress.end(time, is_postponed=is_postponed)
        self._report_progress()

    def _report_progress(self) -> None:
        """Report this worker's progress to the node, and drop next uses that are past for all."""
        oracle, origin = self._oracle, self._oracle.start  # time = origin + position
        served = self._progress.first(origin + self._planned)  # this worker needs nothing before
        progress = self._runtime.peers.report_progress(id(self), oracle.team, served)
        served_by_all = progress.served
        if self._node is not None:
            # If more readers use the folders than have reported the progress of an order, the
            # order of some is unknown.
            oracle.is_whole = self._runtime.peers.processes <= progress.all_readers
            # If some workers of the order have not begun yet, they may need what this worker reads
            # now. (They may also have ended.)
            if progress.team_readers < oracle.workers:
                served_by_all = min(served_by_all, origin + self._window_start)
        # Past uses are dropped when all workers have read them, but do not wait for a stuck worker.
        oracle.advance(max(served_by_all, origin + self._min_position))

    def _retry_postponed(self) -> None:
        """Request the first postponed shard again, if the node's progress may have freed space."""
        if self._oracle.now == self._retried_at:  # no progress since the last call
            return
        self._retried_at = self._oracle.now
        # One shard at a time, the one that is needed first: others would take its space.
        for window in self._windows:
            postponed = window.postponed_shards()
            if postponed:
                self._request(window, postponed[0], is_prefetch=True)
                return

    def _wait(self, future: Future[ShardLease | None], shard: int) -> ShardLease | None:
        """Return the result of a request, and record the time of the wait."""
        if future.done():
            return future.result()
        with self._runtime.waiting_for(shard):
            return future.result()

    def _release_window(self, window: _Window) -> None:
        """Release the leases of a window: now, or when a request that is not done yet ends."""
        for future in window.futures.values():
            future.add_done_callback(self._release)

    def _release(self, future: Future[ShardLease | None]) -> None:
        """Release the lease that a request returned, if it returned one."""
        if future.cancelled() or future.exception() is not None:
            return
        lease = future.result()
        if lease is not None:
            self._fetcher.release(lease)

    # ------------------------------------------------------------------ size of windows

    def _choose_window_size(self) -> None:
        """Choose the size of windows from a sample of the order; warn if the limit is too small.

        Two costs are compared, in bytes fetched for the sample: small windows, whose shards the
        workers share through the cache (``lru_bytes``), and large windows, each of which passes
        through all of its shards (``pass_bytes``). Also choose whether each shard is fetched whole,
        and whether shards may stay mapped.
        """
        runtime, catalog = self._runtime, self._runtime.catalog
        # Bytes of the cache for the shards of this job.
        room = ((runtime.limit or 0) - runtime.control_bytes) // self._jobs
        # At least the workers of the order, some of which may not be registered yet.
        processes = max(runtime.peers.processes // self._jobs, self._oracle.workers)
        small, large = policy.window_sizes(max(catalog.mean_row_size, 1), room, processes)
        shards, _ = self._ids.look(self._ids.position, self._ids.position + SAMPLED)
        once = max(int(catalog.sizes[unique_stable(shards)].sum()), 1)  # if all are fetched once
        times, node_shards = self._sample_order()  # of all workers of the node
        lru_bytes = policy.lru_bytes(_rounds(times, node_shards, small), catalog.sizes, room)
        # Workers whose order is unknown are assumed to fetch as much as this one.
        pass_bytes = processes * sum(
            int(catalog.sizes[group].sum())
            for group in _rounds(np.arange(len(shards)), shards, large)
        )
        need = policy.working_set(node_shards, catalog.sizes)  # bytes of shards in use at a time
        # If all shards in use fit, each is fetched once, whole, and stays until its last use.
        self._fetcher.fetches_whole_shards = need <= room and self._node is not None
        # In a large window, rows that are fetched by range need fewer requests. With compressed
        # shards, a large window saves passes if the cache cannot hold all shards in use, and small
        # windows let the workers of a node share the shards that it holds.
        is_large = catalog.has_raw or pass_bytes < lru_bytes
        self._max_size = large if is_large and not self._fetcher.fetches_whole_shards else small
        if not catalog.has_raw:  # do not grow from small windows: each window costs passes
            self._size = self._max_size
        need += runtime.control_bytes  # now the limit with which each shard is fetched once
        # Pinned shards cannot be evicted, so pin only if those in use are a small part of it.
        self._fetcher.may_pin = 8 * need < (runtime.limit or 0)
        if need > (runtime.limit or 0) and not runtime.is_limit_warned:
            runtime.is_limit_warned = True
            self._warn_limit_too_small(max(min(lru_bytes, pass_bytes) / once, 1.0), need)

    def _sample_order(self) -> tuple[Int64s, Int64s]:
        """Return times and shards of the first reads of the node, each (n,), from time 0.

        These are the reads of all workers in the first `SAMPLED` times; without a merged order,
        those of this worker from now on.
        """
        if self._node is None:
            shards, _ = self._ids.look(self._ids.position, self._ids.position + SAMPLED)
            return np.arange(len(shards)), shards
        nothing = np.zeros(0, np.int64)  # so that there is always something to concatenate
        times, ids = [nothing], [nothing]
        for piece in self._node.pieces():
            if piece is None:  # the order of the next epoch is not known yet
                break
            piece_times, piece_ids = piece
            if piece_times[0] >= self._node.start + SAMPLED:
                break
            times.append(piece_times - self._node.start)
            ids.append(piece_ids)
        shards = self._ids.offsets.searchsorted(np.concatenate(ids), "right") - 1  # of each id
        read_times = np.concatenate(times)
        count = int(read_times.searchsorted(SAMPLED))  # the last piece may reach further
        return read_times[:count], shards[:count]

    def _warn_limit_too_small(self, times: float, need: int) -> None:
        """Warn, once a node, what the limit costs and which limit would cost nothing.

        ``times`` is how often each byte is fetched in an epoch; ``need`` is the better limit.
        """
        runtime = self._runtime
        if not runtime.peers.is_leader():
            return
        total = runtime.catalog.remote_bytes
        if runtime.catalog.has_raw:
            cost = (
                f"Samples of shards that do not fit are read one by one: still about "
                f"{format_bytes(total)} in an epoch, in many more requests."
            )
        else:
            cost = (
                f"About {format_bytes(times * total)} will be fetched in an epoch, {times:.1f} "
                f"times the size of the dataset."
            )
        log.warning(
            "cache_limit=%s is too small for the shards that are in use at one time. %s With "
            "cache_limit=%d (%s), each shard would be fetched once.",
            format_bytes(runtime.limit or 0),
            cost,
            need,
            format_bytes(need),
        )


def _rounds(times: Int64s, shards: Int64s, size: int) -> Iterator[list[int]]:
    """Yield the distinct shards that are read in each stretch of ``size`` times.

    ``times`` ascend from 0, and ``shards`` are read then, both (n,). For example, with size 2:

        times   0  0  1 | 2  3 | 4
        shards  7  8  7 | 7  9 | 8      yields [7, 8], [7, 9], [8]
    """
    starts = np.arange(0, int(times.max(initial=0)) + 1, size)  # times at which stretches begin
    bounds = times.searchsorted(starts)  # indices of the first time in each stretch
    for group in np.split(shards, bounds[1:]):  # the first bound is 0
        yield unique_stable(group)


class ServedTime:
    """Times of this worker's reads whose shards have been requested and not come. Thread-safe.

    A time is served when all its requests have ended and none is postponed. For example, if shards
    are requested for the times 10, 14 and 17 and only the first has come, `first` returns 14: this
    worker needs nothing before that time any more.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # number of pending requests by time
        self._postponed: set[int] = set()  # times of requests that must be repeated
        self._lock = new_lock()

    def begin(self, time: int) -> None:
        """Record a request for a time, perhaps a repeated one."""
        with self._lock:
            self._postponed.discard(time)
            self._open[time] = self._open.get(time, 0) + 1

    def end(self, time: int, *, is_postponed: bool) -> None:
        """Record that a request of a time ended; if it was postponed, the time is not served."""
        with self._lock:
            self._open[time] -= 1
            if not self._open[time]:
                del self._open[time]
            if is_postponed:
                self._postponed.add(time)

    def first(self, default: int) -> int:
        """Return the first time that is not served, or ``default`` if everything is."""
        with self._lock:
            return min((*self._open, *self._postponed), default=default)


# ---------------------------------------------------------------------- one shard of a window


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """Request for the rows of a shard that a window reads."""

    shard: int  # number in the dataset
    rows: list[int]  # numbers of the rows in the shard, in the order in which they are read
    start: int  # time (position in the order of the node) at which the window begins
    stop: int  # time after its last sample


@dataclass(frozen=True, slots=True)
class ShardLease:
    """A reader that serves a request, and what must be released after the window.

    A reader of copied or fetched rows has memory of its own, and nothing to release.
    """

    shard: int  # number in the dataset
    reader: Reader
    is_held: bool = False  # the reader is one of the mapped shard, from `ProcessCache.hold`
    is_pinned: bool = False  # the shard is counted in `WindowFetcher._pins`


class WindowFetcher:
    """Gets the shards or rows of windows, within this process's share of the limit.

    The result for a shard of a window is a lease: a reader, and what must be released when the
    window ends. A pin counts a shard that a window has mapped, and that cannot be evicted.

    The *oracle* tells at which time of the order a shard is used next. It knows the order of
    ``oracle.workers`` workers: of all that read these cache folders (``is_whole``), or of this one
    only. Readers of one known order are a team: each may evict what the team needs last.

    Args:
        runtime: The cache of this process.
        oracle: Next uses of the shards.
    """

    def __init__(self, runtime: ProcessCache, oracle: NextUseIndex) -> None:
        self._runtime, self._oracle = runtime, oracle
        # A function and not a method: in a reference cycle, files would stay open until a garbage
        # collection.
        share = functools.partial(_share, runtime)
        self._pins, self._bytes_in_flight = _Pins(share), ByteSemaphore(share)
        # `LimitedPrefetch` sets both attributes below whenever it chooses the size of a window.
        #: Whether the limit is so large that shards may stay mapped until their window ends. Else
        #: rows are copied, so that a shard can be evicted as soon as all windows have their rows.
        self.may_pin = False
        #: Whether the shards in use at one time fit. Then each is fetched whole when it is needed.
        self.fetches_whole_shards = False

    def acquire(self, request: ShardRequest, is_prefetch: bool) -> ShardLease | None:
        """Return a lease on a reader that has the rows of a request; fetch what is missing.

        The first of these that is possible: the mapped shard (if it can be pinned), copies of its
        rows (if it is or gets cached), or the rows alone, fetched into memory.

        With ``is_prefetch``, the rows are not needed now, and the result may be None, which
        postpones the request: the shard should be fetched whole, but the shards to evict for it are
        needed earlier. Then request it again later, when these may have been used.
        """
        runtime, shard = self._runtime, request.shard
        if not runtime.is_cacheable(shard):
            # The user's own file: there is nothing to fetch, to pin or to evict.
            return ShardLease(shard, runtime.hold(shard), is_held=True)
        # Count the pin before the shard is opened, since another thread may take the space.
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
            # Postpone rows that would be read out of a whole shard, which is expensive, or if the
            # shard will be needed whole by others.
            if is_prefetch and (self.fetches_whole_shards or not runtime.can_range(shard)):
                return None
            # Small gaps only: other workers, or this one later, fetch the rows in between.
            return ShardLease(
                shard, runtime.uncached.read_rows(shard, request.rows, policy.HEADERS)
            )
        try:
            return ShardLease(shard, runtime.copy_rows(shard, reader, request.rows))
        finally:
            runtime.release(shard)

    def release(self, lease: ShardLease) -> None:
        """Release the reader and the pin of a lease."""
        if lease.is_held:
            self._runtime.release(lease.shard)
        if lease.is_pinned:
            self._pins.remove(lease.shard)

    def _fetch(self, request: ShardRequest) -> bool:
        """Fetch the whole shard of a request if that saves bytes; return whether it is cached now.

        The shard is not fetched if there is no space, or if fetching the shards that it would evict
        again costs more bytes than it saves.
        """
        oracle, runtime, shard = self._oracle, self._runtime, request.shard
        size, rows = int(runtime.catalog.sizes[shard]), len(request.rows)
        can_range = runtime.can_range(shard)
        is_shared = self._is_shared(request)
        if not can_range or (self.fetches_whole_shards and is_shared):
            # Without ranges, or if all shards in use fit, fetch it whole whatever that costs, and
            # evict only shards that are needed later. This window gets its rows now in any case, so
            # the shard is needed next by other workers in this window (if shared), or after it.
            needed_at = oracle.next_after(shard, request.start if is_shared else request.stop)
            # Limit the bytes in flight, or the shards being fetched would evict each other.
            with self._bytes_in_flight.acquire(size):
                return runtime.fetcher.ensure_local(shard, Bid(needed_at, team=oracle.team))
        # If the orders of other processes are unknown, they are assumed to read as many rows of
        # the shard as the workers whose order is known.
        processes_per_worker = (
            1 if oracle.is_whole else -(-runtime.peers.processes // oracle.workers)
        )

        def rows_before(until: float) -> int:
            """Return the number of rows that would be fetched by range before a time."""
            return max(oracle.rows_before(shard, until) * processes_per_worker, rows)

        bid = Bid(
            oracle.next_after(shard, request.stop),
            runtime.catalog.row_size(shard),
            rows_before,
            oracle.team,
        )
        is_worth_it = policy.is_worth(size, rows_before(policy.NEVER), bid.row_size)
        return is_worth_it and runtime.fetcher.ensure_local(shard, bid)

    def _is_shared(self, request: ShardRequest) -> bool:
        """Whether other workers need the shard too, before the window of the request ends."""
        if not self._oracle.is_whole:  # the order of others is unknown; most likely they need it
            return self._runtime.peers.processes > 1
        # Rows that all workers read; more than those requested are rows of other workers.
        rows = self._oracle.rows_before(request.shard, request.stop)
        return rows > len(request.rows)


def _share(runtime: ProcessCache) -> int:
    """Return the bytes in the cache that this process may have in use, and as many in transfer."""
    return policy.share(runtime.limit or 0, runtime.peers.processes)


class _Pins:
    """Shards that the windows of this process hold mapped, bounded by its share of the limit.

    ``share`` is a function that returns the bound in bytes, which may change.
    """

    def __init__(self, share: Callable[[], int]) -> None:
        self._share = share
        self._counts: dict[int, int] = {}  # pins by shard
        self._sizes: dict[int, int] = {}  # bytes by shard
        self._used = 0  # bytes of all pinned shards
        self._lock = new_lock()

    def add(self, shard: int, size: int) -> bool:
        """Add a pin of a shard of ``size`` bytes; return False if it does not fit into the share.

        A single shard always fits, and so does another pin of a pinned one.
        """
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
        """Remove one pin of a shard."""
        with self._lock:
            self._counts[shard] -= 1
            if not self._counts[shard]:
                del self._counts[shard]
                self._used -= self._sizes.pop(shard)
