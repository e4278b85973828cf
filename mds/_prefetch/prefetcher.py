"""Fetch ahead of the reader the shards that a worker needs next.

A worker's sample ids are cut into windows. The shards of a window are requested before the window
begins. If a shard has not arrived when its first sample is read, only then does the reader wait.

Two strategies decide what is fetched, both with the methods ``next_size``, ``begin``, ``open``,
``end`` and ``close``, which are called in this order for every window:

- `UnlimitedPrefetch`, below, without a ``cache_limit``: whole shards, which stay in the cache.
- `mds._prefetch.limited.LimitedPrefetch`, with a ``cache_limit``: for each shard what is cheapest.

If everything is local, a window costs one array operation and no thread is started.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds._prefetch.lookahead import (
    Lookahead,
    count_fitting,
    max_window_shards,
    register_reader,
    unregister_reader,
)
from mds._process.fork_safe import new_event
from mds._readers.gather import unique_stable
from mds._redaction import get_logger
from mds._words import plural
from mds.errors import NoSpaceError

if TYPE_CHECKING:
    from concurrent.futures import Future

    import numpy.typing as npt

    from mds._cache.concurrency import Pool
    from mds._cache.folder import Catalog
    from mds._cache.process_cache import ProcessCache
    from mds._cache.shard_cache import ShardCache
    from mds._prefetch.limited import LimitedPrefetch
    from mds._prefetch.next_use import MergedOrder
    from mds._readers.base import Reader

    Int64s = npt.NDArray[np.int64]

log = get_logger("mds.cache")

LOCAL_WINDOW = 8192  # ids of a window when all shards are local
WARMUP_WINDOW = 512  # ids of a window while shards are being fetched
MAX_FIRST_WINDOW = 64  # ids of the first window of a distant dataset at most, and
MAX_FIRST_BYTES = 4 << 20  # bytes of its samples, since they are fetched twice
MAX_LOOKAHEAD = 1 << 16  # ids to search for shards that keep all threads busy
SEARCH_STEP = 8192  # ids that are searched at a time
AHEAD_BYTES = 64 << 20  # bytes of samples that are always searched, and
MAX_AHEAD = 1 << 20  # ids, unless the user asked for more


class Window(NamedTuple):
    """A stretch of a worker's samples, with readers of their shards.

    All of it is valid until the next window is requested.
    """

    #: Sample ids, shape (n,).
    ids: Int64s
    #: Shard of each sample, shape (n,).
    shards: Int64s
    #: Row of each sample within its shard, shape (n,).
    rows: Int64s
    #: Readers by shard; a lookup waits until the shard has arrived.
    readers: Mapping[int, Reader]


class _WindowReaders(dict[int, "Reader"]):
    """Readers of a window by shard, each opened when it is first looked up.

    Args:
        window_shards: Shards of the window.
        open_shard: Function that returns the reader of a shard, after a wait if needed.
    """

    def __init__(self, window_shards: Iterable[int], open_shard: Callable[[int], Reader]) -> None:
        super().__init__()
        self._window_shards = frozenset(window_shards)
        self._open_shard = open_shard

    def __missing__(self, shard: int) -> Reader:
        """Open and keep the reader of a shard of the window; called if a lookup finds none."""
        if shard not in self._window_shards:
            raise KeyError(shard)
        reader = self[shard] = self._open_shard(shard)
        return reader

    def get(self, shard: int, default: Any = None) -> Any:
        """Return the reader of a shard of the window, after a wait if needed, else ``default``."""
        return self[shard] if shard in self._window_shards else default


class Prefetcher:
    """Iterator over a worker's windows, which fetches their shards ahead; a context manager.

    Args:
        cache: The cache that holds the shards.
        blocks: Sample ids in reading order, int64 arrays. Negative ids are skipped.
        offsets: Number of samples before each shard, shape (shards + 1,).
        predownload: Number of samples ahead of the reader whose shards are fetched at least.
        node: Merged order of all workers of this node, from where this worker begins on into the
            next epoch. Eviction uses it. None (default): only this worker's order is known.
    """

    def __init__(
        self,
        cache: ShardCache,
        blocks: Iterable[Int64s],
        offsets: Int64s,
        *,
        predownload: int,
        node: MergedOrder | None = None,
    ) -> None:
        self._runtime = cache.runtime
        self._owner = os.getpid()
        self._ids = Lookahead(blocks, offsets)
        self._strategy: UnlimitedPrefetch | LimitedPrefetch
        register_reader(self)
        if self._runtime.is_bounded:
            from mds._prefetch.limited import LimitedPrefetch

            self._strategy = LimitedPrefetch(self._runtime, self._ids, node)
        else:
            self._strategy = UnlimitedPrefetch(self._runtime, self._ids, predownload)

    def windows(self) -> Iterator[Window]:
        """Yield the windows until the ids end. The readers of a window are released after it.

        An error that occurred while a shard was fetched is raised when its reader is looked up.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            stack.enter_context(self._runtime.peers.register_reader())  # other processes count it
            while True:
                ids, shards, rows = self._ids.take(self._strategy.next_size())
                if not len(ids):
                    return
                window_shards = unique_stable(shards)
                self._strategy.begin(shards, rows)
                readers = _WindowReaders(window_shards, self._strategy.open)
                yield Window(ids, shards, rows, readers)
                self._strategy.end()

    def close(self) -> None:
        """Release all readers and stop the threads. Closing twice is fine."""
        unregister_reader(self)
        if self._owner == os.getpid():  # a forked child's copy belongs to its parent
            self._strategy.close()

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Prefetcher at sample {self._ids.position}: {self._strategy!r}>"


# ---------------------------------------------------------------------- without a limit


class UnlimitedPrefetch:
    """Strategy without a limit: fetch whole shards ahead of the reader; all of them stay.

    It searches the next ``predownload`` samples for shards to fetch. It searches further until
    every thread has a shard (while those are small), and further still while threads are idle. The
    first few rows of a distant dataset are fetched by range, because a whole shard takes longer.
    Positions count from the first id of the worker.

    Args:
        runtime: The cache of this process.
        ids: Sample ids of the worker.
        predownload: Number of samples ahead of the reader whose shards are fetched at least.
    """

    def __init__(self, runtime: ProcessCache, ids: Lookahead, predownload: int) -> None:
        self._runtime, self._ids = runtime, ids
        self._predownload = self._ahead = predownload  # `_ahead` grows with the first thread
        self._pool: Pool | None = None
        self._changed = new_event()  # wakes the reader, see `_wake_reader`
        # The reader is the thread that iterates over the windows.
        self._awaited: Future[Any] | None = None  # the future that the reader waits for
        self._searched = 0  # shards of positions before this one are local or being fetched
        # Shards that need no request any more. Those of the user's own folder never need one.
        self._is_tracked = np.zeros(runtime.catalog.shards, np.bool_)
        for folder in runtime.catalog.folders:
            if folder.source_folder is not None and not folder.index.zip_size.any():
                self._is_tracked[folder.first_shard : folder.first_shard + len(folder)] = True
        self._pending: dict[int, Future[Any]] = {}  # fetches by shard
        # Readers of the rows of the first window that are fetched by range, by shard.
        self._first_rows: dict[int, Future[Reader]] = {}
        self._held_shards: list[int] = []  # shards whose readers the window holds
        self._is_first = True  # whether no window has begun yet
        self._is_full = False  # whether a warning said that the disk is full
        self._window = np.zeros(0, np.int64), np.zeros(0, np.int64)  # shards and rows

    def next_size(self) -> int:
        """Return the number of ids of the next window, bounded by the number of memory maps."""
        size = self._preferred_size()
        max_shards = max_window_shards(self._runtime.catalog, 1)  # one window at a time
        if max_shards is None or size <= max_shards:
            return size
        shards, _ = self._ids.look(self._ids.position, self._ids.position + size)
        return max(1, count_fitting(shards, max_shards))

    def _preferred_size(self) -> int:
        """Return the number of ids of the next window if any number of maps were allowed.

        Windows are small while shards are fetched, so that requests follow the reader closely, and
        large when all is local, so that there are few of them.
        """
        if self._is_first:
            # The first window is small, so that the first batch arrives early.
            first_rows = MAX_FIRST_BYTES // max(self._runtime.catalog.mean_row_size, 1)
            first_rows = max(1, min(self._predownload // 8, MAX_FIRST_WINDOW, first_rows))
            shards, _ = self._ids.look(0, first_rows)
            return first_rows if not self._runtime.is_local(shards).all() else WARMUP_WINDOW
        if not self._pending and self._is_tracked.all():
            # All shards are local. Do not search: it would take two thirds of the time of a window.
            return LOCAL_WINDOW
        self._schedule()
        return WARMUP_WINDOW if self._pending else LOCAL_WINDOW

    def begin(self, shards: Int64s, rows: Int64s) -> None:
        """Begin a window, given the shard and row of each sample, both of shape (n,)."""
        self._window = shards, rows
        # `next_size` requests the shards of all later windows ahead of time.
        if self._is_first:
            self._is_first = False
            self._fetch_first_rows(shards, rows)
            self._request(shards, 0)  # they are at position 0 of the order, so the most urgent
            self._schedule()

    def open(self, shard: int) -> Reader:
        """Return the reader of a shard of the window; wait for the shard if needed."""
        if shard in self._first_rows:  # only the rows of the first window are fetched
            sparse: Reader = self._wait(self._first_rows[shard], shard)
            return sparse
        if shard in self._pending:
            # If the disk was full when the shard was fetched, it may have space now.
            with contextlib.suppress(NoSpaceError):
                self._wait(self._pending[shard], shard)
        try:
            reader = self._runtime.hold(shard)
        except NoSpaceError as error:
            return self._read_without_keeping(shard, error)
        self._held_shards.append(shard)
        return reader

    def _read_without_keeping(self, shard: int, error: NoSpaceError) -> Reader:
        """Return a reader of the window's rows of a shard for which the disk has no space."""
        if not self._is_full:
            self._is_full = True
            log.warning(
                "%s All shards of the cache are in use, so shards that do not fit are read "
                "without being cached.",
                error,
            )
        shards, rows = self._window
        return self._runtime.uncached.read_rows(shard, rows[shards == shard].tolist())

    def end(self) -> None:
        """Release the readers of the window."""
        for shard in self._held_shards:
            self._runtime.release(shard)
        self._held_shards.clear()
        self._first_rows.clear()

    def close(self) -> None:
        """Stop fetching and release all readers."""
        self.end()
        if self._pool is not None:
            self._pool.close()
        self._pending.clear()
        self._awaited = None

    def _schedule(self) -> None:
        """Request the shards of the next ``_ahead`` samples, and more while threads are idle.

        Samples after them are searched until each thread has a second shard to fetch, at most
        `MAX_LOOKAHEAD` samples ahead. They are not searched if nothing is being fetched: then the
        shards of the samples before them are local, and most likely theirs are, too.
        """
        for shard in [shard for shard, future in self._pending.items() if future.done()]:
            # A failed fetch is kept until its shard is read, which raises the error.
            if not self._pending[shard].exception():
                del self._pending[shard]
        position = self._ids.position
        until = position + self._ahead + WARMUP_WINDOW  # shards before it are always requested
        while self._searched < max(until, position + MAX_LOOKAHEAD):
            is_busy = self._pool is not None and len(self._pending) >= 2 * self._pool.threads
            if self._searched >= until and (is_busy or not self._pending):
                return
            # Search the next samples: up to `until` at first, then a step at a time.
            start = max(self._searched, position)
            count = min(max(until - start, WARMUP_WINDOW), SEARCH_STEP)
            shards, _ = self._ids.look(start, start + count)
            if not len(shards):
                return
            self._searched = start + len(shards)
            self._request(shards, start)

    def _request(self, shards: Int64s, position: int) -> None:
        """Start to fetch those of ``shards``, shape (n,), that are not local.

        ``position`` is where they are in the order; lower positions are fetched first.
        """
        shards = np.array(unique_stable(shards[~self._is_tracked[shards]]), np.int64)
        if not len(shards):
            return
        self._is_tracked[shards] = True
        for shard in shards[~self._runtime.is_local(shards)].tolist():
            fetch = functools.partial(self._runtime.fetcher.ensure_local, is_ahead=True)
            self._pending[shard] = self._submit(fetch, shard, deadline=float(position))

    def _fetch_first_rows(self, shards: Int64s, rows: Int64s) -> None:
        """Fetch the first rows by range, and wait for them up to ``head_start_seconds``.

        Other requests wait meanwhile: whole shards would take all of the bandwidth.
        """
        distinct_shards = np.array(unique_stable(shards), np.int64)
        for shard in distinct_shards[~self._runtime.is_local(distinct_shards)].tolist():
            if self._runtime.can_range(shard) and self._runtime.is_far(shard):
                shard_rows = rows[shards == shard].tolist()
                self._first_rows[shard] = self._submit(  # before all whole shards
                    self._runtime.uncached.read_rows, shard, shard_rows, deadline=-1.0
                )
        if self._first_rows:
            with self._runtime.waiting_for(next(iter(self._first_rows))):
                wait(self._first_rows.values(), timeout=self._runtime.tuning.head_start_seconds)

    def _submit(self, function: Callable[..., Any], *args: Any, deadline: float) -> Future[Any]:
        """Run ``function(*args)`` in a thread of the pool, which is created at the first call."""
        if self._pool is None:
            from mds._cache.concurrency import Pool

            self._pool = Pool(self._runtime.peers.threads)
            # Request enough samples ahead for each thread to have a shard to fetch.
            enough = _samples_of_threads(self._runtime.catalog, self._pool.threads)
            self._ahead = max(self._predownload, enough)
        future = self._pool.submit(function, *args, deadline=deadline)
        future.add_done_callback(self._wake_reader)
        return future

    def _wake_reader(self, future: Future[Any]) -> None:
        """Wake the reader if it waits for ``future``, or if the threads need more requests.

        Called in a thread of the pool when ``future`` is done. A reader that waits makes the
        requests itself (`_wait`), so it is woken when few tasks are left in the queue.
        """
        pool = self._pool
        if future is self._awaited or pool is None or pool.waiting <= pool.threads // 2:
            self._changed.set()

    def _wait(self, future: Future[Any], shard: int) -> Any:
        """Return the result of the request for a shard; request more shards while waiting."""
        if future.done():
            return future.result()
        self._awaited = future
        with self._runtime.waiting_for(shard):
            while not future.done():
                self._changed.clear()  # before the checks, so that no wake-up is lost
                self._schedule()
                if not future.done():
                    self._changed.wait()
        # Drop the future: its callback refers to this object. Such a cycle would keep all files
        # open until a garbage collection.
        self._awaited = None
        return future.result()

    def __repr__(self) -> str:
        return f"{plural(len(self._pending), 'shard')} being fetched"


def _samples_of_threads(catalog: Catalog, threads: int) -> int:
    """Return the number of samples in as many mean shards as there are threads.

    At most the samples of `AHEAD_BYTES` bytes: shards may have very many small rows, such as row
    groups of Parquet.
    """
    fitting = AHEAD_BYTES // max(catalog.mean_row_size, 1)
    return min(threads * catalog.samples // max(catalog.shards, 1), fitting, MAX_AHEAD)
