"""Windows under a limit: for each shard what is cheapest, one window ahead of the reader.

A shard that is in the cache is read there. One that is not is fetched whole if there is room, or if
it pays more than what would have to go for it; else only the rows of the window come, by range or
out of one pass through the decompressed shard, and wait in memory. So a window needs no room on the
disk at all, reservations never block, and no shard is fetched for a sample: windows are as large
as the memory for rows allows.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mds.cache import policy
from mds.cache.concurrency import Pool
from mds.prefetch.acquire import ShardLease, ShardRequest, WindowFetcher
from mds.prefetch.lookahead import (
    MIN_WINDOW,
    Lookahead,
    count_fitting,
    max_window_shards,
    sizes_under_limit,
    working_set,
)
from mds.prefetch.next_use import MergedOrder, join_index, leave_index
from mds.process.fork_safe import new_lock
from mds.readers import unique_stable
from mds.redaction import get_logger
from mds.units import format_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.process_cache import ProcessCache
    from mds.readers import Reader

    Int64s = npt.NDArray[np.int64]


SAMPLED = 4096  # positions that are looked at before the first decision
_LAG = 8192  # samples that a worker may be behind another before it is taken for stuck
_HORIZON = 32  # windows by which more is known of the order with each window

log = get_logger("mds.cache")


@dataclass(slots=True)
class _Window:
    """A window of ids, and the request for each of their shards, by its first use."""

    size: int
    requests: dict[int, tuple[ShardRequest, float]]
    futures: dict[int, Future[ShardLease | None]]

    def put_off(self) -> list[int]:
        """Return the shards that found no room yet, in the order in which they are needed."""
        return [
            shard
            for shard, future in self.futures.items()
            if future.done()
            and not future.cancelled()
            and not future.exception()
            and future.result() is None
        ]


class LimitedPrefetch:
    """The plan of a worker whose cache has a limit."""

    def __init__(self, runtime: ProcessCache, ids: Lookahead, node: MergedOrder | None) -> None:
        self._runtime, self._ids, self._node = runtime, ids, node
        self._oracle = join_index(runtime.budget, runtime.catalog.shards, ids, node)
        self._fetcher = WindowFetcher(runtime, self._oracle)
        self._pool = Pool(runtime.peers.threads)
        self._max_size = MIN_WINDOW  # until it was seen what the order is like
        self._planned = 0  # positions before this one have been sent for
        self._size = MIN_WINDOW
        self._jobs = 0  # that share the folders, when the size of windows was chosen
        self._is_closed = False
        self._windows: deque[_Window] = deque()  # the one in use and the next
        self._progress = ServedTime()
        self._window_start = 0  # the position at which the window in use begins
        self._floor = 0  # no worker of the node is assumed to be farther behind
        self._tried_at = -1  # the time of the node at the last retry of postponed shards
        self._oracle.extend(SAMPLED)

    def next_size(self) -> int:
        """Return the number of ids of the next window."""
        if not self._windows:
            self._plan()
        return self._windows[0].size if self._windows else 1

    def begin(self, shards: Int64s, rows: Int64s) -> None:
        """Begin a window, and request the one after it."""
        del rows  # equal to the planned ones
        window = self._windows[0]
        self._window_start = self._ids.position - len(shards)
        self._floor = max(self._window_start - max(_LAG, 2 * len(shards)), 0)
        self._report_progress()
        jobs = self._runtime.peers.jobs()
        if jobs != self._jobs:
            self._jobs = jobs
            self._choose_window_size()
        if not self._fetcher.comes_whole:  # no room is to be expected
            for shard in window.put_off():
                self._send(window, shard, is_prefetch=False)
        self._plan()

    def open(self, shard: int) -> Reader:
        """Return the reader of a shard of the window."""
        window = self._windows[0]
        self._try_again()
        lease = self._wait(window.futures[shard], shard)
        if lease is None:  # was put off, and its time is now
            self._send(window, shard, is_prefetch=False)
            lease = self._wait(window.futures[shard], shard)
        assert lease is not None
        return lease.reader

    def end(self) -> None:
        """Release the window."""
        if self._windows:
            self._release_window(self._windows.popleft())

    def close(self) -> None:
        """Stop fetching and give back what is held. Closing twice is fine."""
        self._pool.close()
        while self._windows:
            self._release_window(self._windows.popleft())
        if not self._is_closed:
            self._is_closed = True
            leave_index(self._runtime.budget, self._oracle)
        self._runtime.peers.forget_reader(id(self))

    def __repr__(self) -> str:
        return f"{len(self._windows)} windows up to sample {self._planned}"

    # ------------------------------------------------------------------ planning

    def _plan(self) -> None:
        """Send for what the next window needs."""
        start, origin = self._planned, self._oracle.start
        self._oracle.extend(_HORIZON * self._size)
        shards, rows = self._ids.look(start, start + self._size)
        if not len(shards):
            return
        if (max_shards := max_window_shards(self._runtime.catalog, 2)) is not None:
            fitting = count_fitting(shards, max_shards)
            shards, rows = shards[:fitting], rows[:fitting]
        stop = start + len(shards)
        self._size = min(self._size * 4, self._max_size)
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
            self._send(window, shard, is_prefetch=True)
        self._planned = stop  # positions before it without a pending request count as served
        self._windows.append(window)

    def _send(self, window: _Window, shard: int, *, is_prefetch: bool) -> None:
        request, deadline = window.requests[shard]
        self._progress.begin(int(deadline))
        future = self._pool.submit(self._fetcher.acquire, request, is_prefetch, deadline=deadline)
        window.futures[shard] = future
        future.add_done_callback(functools.partial(self._served, int(deadline)))

    def _served(self, time: int, future: Future[ShardLease | None]) -> None:
        """Record that a task ended; a postponed one is not served yet."""
        is_put_off = not future.cancelled() and not future.exception() and not future.result()
        self._progress.end(time, is_put_off=is_put_off)
        self._report_progress()

    def _report_progress(self) -> None:
        oracle, origin = self._oracle, self._oracle.start
        served = self._progress.first(origin + self._planned)
        served_by_all, readers, reader_count = self._runtime.peers.report_progress(
            id(self), oracle.team, served
        )
        if self._node is not None:
            # Of other jobs the order is not known; they have their own share of the room.
            oracle.is_whole = self._runtime.peers.processes <= reader_count
            if readers < oracle.workers:  # some have not begun yet, or have ended
                served_by_all = min(served_by_all, origin + self._window_start)
        oracle.advance(max(served_by_all, origin + self._floor))

    def _try_again(self) -> None:
        """Send for what was put off and is needed first, if others have used something up."""
        if self._oracle.now == self._tried_at:
            return
        self._tried_at = self._oracle.now
        for window in self._windows:
            for shard in window.put_off()[:1]:
                self._send(window, shard, is_prefetch=True)
                return

    def _wait(self, future: Future[ShardLease | None], shard: int) -> ShardLease | None:
        if future.done():
            return future.result()
        with self._runtime.waiting_for(shard):
            return future.result()

    def _release_window(self, window: _Window) -> None:
        for future in window.futures.values():
            # Includes shards that were not used and are still being fetched.
            future.add_done_callback(self._release)

    def _release(self, future: Future[ShardLease | None]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        lease = future.result()
        if lease is not None:
            self._fetcher.release(lease)

    # ------------------------------------------------------------------ costs

    def _choose_window_size(self) -> None:
        """Choose the size of windows by what the order and the limit are, and say what it costs."""
        runtime, catalog = self._runtime, self._runtime.catalog
        room = ((runtime.limit or 0) - runtime.control_bytes) // self._jobs
        processes = max(runtime.peers.processes // self._jobs, self._oracle.workers)  # or later
        small, large = sizes_under_limit(max(catalog.mean_row_size, 1), room, processes)
        shards, _ = self._ids.look(self._ids.position, self._ids.position + SAMPLED)
        once = max(int(catalog.sizes[unique_stable(shards)].sum()), 1)
        merged = self._sample()
        lru_bytes = policy.lru_bytes(_turns(*merged, small), catalog.sizes, room)
        # Of workers whose order is not known it is believed that they are no better.
        passes = processes * sum(
            int(catalog.sizes[turn].sum()) for turn in _turns(np.arange(len(shards)), shards, large)
        )
        need = working_set(merged[1], catalog.sizes)
        self._fetcher.comes_whole = need <= room and self._node is not None
        # In a large window, rows that are fetched by range need fewer requests. With compressed
        # shards, a large window saves passes if the cache cannot hold all shards in use, and small
        # windows let the workers of a node share the shards that it holds.
        is_large = catalog.has_raw or passes < lru_bytes
        self._max_size = large if is_large and not self._fetcher.comes_whole else small
        if not catalog.has_raw:
            self._size = self._max_size
        need += runtime.control_bytes
        self._fetcher.may_pin = 8 * need < (runtime.limit or 0)
        if need > (runtime.limit or 0) and not runtime.is_limit_warned:
            runtime.is_limit_warned = True
            self._warn_limit_too_small(max(min(lru_bytes, passes) / once, 1.0), need)

    def _sample(self) -> tuple[Int64s, Int64s]:
        """Return times and shards of the node's first reads."""
        if self._node is None:
            shards, _ = self._ids.look(self._ids.position, self._ids.position + SAMPLED)
            return np.arange(len(shards)), shards
        nothing = np.zeros(0, np.int64)
        times, ids = [nothing], [nothing]
        for piece in self._node.pieces():
            if piece is None or piece[0][0] >= self._node.start + SAMPLED:
                break
            times.append(piece[0] - self._node.start)
            ids.append(piece[1])
        shards = self._ids.offsets.searchsorted(np.concatenate(ids), "right") - 1
        when = np.concatenate(times)
        count = int(when.searchsorted(SAMPLED))
        return when[:count], shards[:count]

    def _warn_limit_too_small(self, times: float, need: int) -> None:
        """Say beforehand, once a node, what a limit costs and which one would cost nothing."""
        runtime = self._runtime
        if not runtime.peers.is_leader():
            return
        total = runtime.catalog.remote_bytes
        if runtime.catalog.has_raw:
            cost = (
                f"Samples whose shards find no room come by ranged reads of their own: still about "
                f"{format_bytes(total)} in an epoch, in many more requests."
            )
        else:
            cost = (
                f"About {format_bytes(times * total)} will be fetched in an epoch, {times:.1f} "
                f"times the dataset."
            )
        log.warning(
            "cache_limit=%s does not hold the shards that are in use at one time. %s With "
            "cache_limit=%d (%s) each would be fetched once.",
            format_bytes(runtime.limit or 0),
            cost,
            need,
            format_bytes(need),
        )


def _turns(times: Int64s, shards: Int64s, size: int) -> Iterator[list[int]]:
    """Iterate over the distinct shards of each stretch of ``size`` times."""
    bounds = times.searchsorted(np.arange(0, int(times.max(initial=0)) + 1, size))
    for turn in np.split(shards, bounds[1:]):
        yield unique_stable(turn)


class ServedTime:
    """Times of needs that are not served yet."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._put_off: set[int] = set()
        self._lock = new_lock()

    def begin(self, time: int) -> None:
        """Record a request, perhaps a repeated one."""
        with self._lock:
            self._put_off.discard(time)
            self._open[time] = self._open.get(time, 0) + 1

    def end(self, time: int, *, is_put_off: bool) -> None:
        """Record that the request of a time ended, or was postponed."""
        with self._lock:
            self._open[time] -= 1
            if not self._open[time]:
                del self._open[time]
            if is_put_off:
                self._put_off.add(time)

    def first(self, default: int) -> int:
        """Return the first time that is not served, or ``default`` if everything is."""
        with self._lock:
            return min((*self._open, *self._put_off), default=default)
