"""Whole shards ahead of the reader, where there is no limit: what was fetched stays.

Looked through are so many samples as the user asked for, at least so many as give every thread a
shard while those are small, and beyond them as many as it takes to keep the wire busy. The first
few rows come by ranged reads of their own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache.concurrency import Pool
from mds.errors import NoSpaceError
from mds.prefetch.lookahead import Lookahead, count_fitting, max_window_shards
from mds.process.fork_safe import new_event
from mds.readers import unique_stable
from mds.redaction import get_logger

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.catalog import Catalog
    from mds.cache.process_cache import ProcessCache
    from mds.readers import Reader

    Int64s = npt.NDArray[np.int64]

log = get_logger("mds.cache")

MAX_WINDOW = 8192  # ids of a window when everything is here
WARMUP_WINDOW = 512  # ids of a window while shards are on their way
MAX_FIRST_WINDOW = 64  # ids of the first window at most, when shards are far,
MAX_FIRST_BYTES = 4 << 20  # and bytes, since they are fetched twice
MAX_LOOKAHEAD = 1 << 16  # ids to look through for shards that keep the wire busy
STRETCH = 8192  # ids that are looked through at a time where it is known to be necessary
AHEAD_BYTES = 64 << 20  # of samples that are always looked through,
MAX_AHEAD = 1 << 20  # and ids, unless more were asked for


class UnlimitedPrefetch:
    """Without a limit: whole shards, ahead of the reader, and they stay."""

    def __init__(self, runtime: ProcessCache, ids: Lookahead, predownload: int) -> None:
        self._runtime, self._ids = runtime, ids
        self._fetch_ahead = functools.partial(runtime.fetcher.ensure_local, is_ahead=True)
        self._predownload = self._ahead = predownload
        self._pool: Pool | None = None
        self._changed = new_event()
        self._awaited: Future[Any] | None = None
        self._looked = 0  # positions before this one are here or on their way
        self._is_tracked = np.zeros(runtime.catalog.shards, np.bool_)
        for folder in runtime.catalog.folders:
            if folder.source_folder is not None and not folder.index.zip_size.any():
                self._is_tracked[folder.first_shard : folder.first_shard + len(folder)] = (
                    True  # read where they are
                )
        self._coming: dict[int, Future[Any]] = {}
        self._rows: dict[int, Future[Reader]] = {}  # of the first window
        self._held_shards: list[int] = []
        self._is_first = True
        self._is_full = False  # the disk, as far as a warning says
        self._window = np.zeros(0, np.int64), np.zeros(0, np.int64)  # shards and rows

    def next_size(self) -> int:
        """Return the number of ids of the next window."""
        size = self._wanted_size()
        max_shards = max_window_shards(self._runtime.catalog, 1)
        if max_shards is None or size <= max_shards:
            return size
        shards, _ = self._ids.look(self._ids.position, self._ids.position + size)
        return max(1, count_fitting(shards, max_shards))

    def _wanted_size(self) -> int:
        if self._is_first:
            first_rows = MAX_FIRST_BYTES // max(self._runtime.catalog.mean_row_size, 1)
            first_rows = max(1, min(self._predownload // 8, MAX_FIRST_WINDOW, first_rows))
            shards, _ = self._ids.look(0, first_rows)
            return first_rows if not self._runtime.is_local(shards).all() else WARMUP_WINDOW
        if not self._coming and self._is_tracked.all():
            # Looking ahead would be two thirds of what a window costs.
            return MAX_WINDOW
        self._schedule()
        return WARMUP_WINDOW if self._coming else MAX_WINDOW

    def begin(self, shards: Int64s, rows: Int64s) -> None:
        """Begin a window."""
        self._window = shards, rows
        if self._is_first:
            self._is_first = False
            self._fetch_first(shards, rows)
            self._send_for(shards, 0)
            self._schedule()

    def open(self, shard: int) -> Reader:
        """Return the reader of a shard of the window."""
        if shard in self._rows:
            sparse: Reader = self._wait(self._rows[shard], shard)
            return sparse
        if shard in self._coming:
            # A disk that was full at the time may have room now.
            with contextlib.suppress(NoSpaceError):
                self._wait(self._coming[shard], shard)
        try:
            reader = self._runtime.hold(shard)
        except NoSpaceError as error:
            return self._read_without_keeping(shard, error)
        self._held_shards.append(shard)
        return reader

    def _read_without_keeping(self, shard: int, error: NoSpaceError) -> Reader:
        """Return a reader of the window's rows of a shard for which the disk has no room."""
        if not self._is_full:
            self._is_full = True
            log.warning(
                "%s All shards of the cache are in use; what finds no room is read without being "
                "kept.",
                error,
            )
        shards, rows = self._window
        return self._runtime.read_rows(shard, rows[shards == shard].tolist())

    def end(self) -> None:
        """Release the window."""
        for shard in self._held_shards:
            self._runtime.release(shard)
        self._held_shards.clear()
        self._rows.clear()

    def close(self) -> None:
        """Stop fetching and give back what is held."""
        self.end()
        if self._pool is not None:
            self._pool.close()
        self._coming.clear()
        self._awaited = None

    def _schedule(self) -> None:
        """Send for the shards that come next: so many samples ahead, and enough to do."""
        for shard in [shard for shard, future in self._coming.items() if future.done()]:
            # A failure is kept until the shard is used.
            if not self._coming[shard].exception():
                del self._coming[shard]
        position = self._ids.position
        until = position + self._ahead + WARMUP_WINDOW
        while self._looked < max(until, position + MAX_LOOKAHEAD):
            is_busy = self._pool is not None and len(self._coming) >= 2 * self._pool.threads
            if self._looked >= until and (is_busy or not self._coming):
                return
            start = max(self._looked, position)
            count = min(max(until - start, WARMUP_WINDOW), STRETCH)
            shards, _ = self._ids.look(start, start + count)
            if not len(shards):
                return
            self._looked = start + len(shards)
            self._send_for(shards, start)

    def _send_for(self, shards: Int64s, position: int) -> None:
        shards = np.array(unique_stable(shards[~self._is_tracked[shards]]), np.int64)
        if not len(shards):
            return
        self._is_tracked[shards] = True
        for shard in shards[~self._runtime.is_local(shards)].tolist():
            self._coming[shard] = self._submit(self._fetch_ahead, shard, deadline=float(position))

    def _fetch_first(self, shards: Int64s, rows: Int64s) -> None:
        """Fetch the very first rows by range, since a whole shard takes longer.

        Before anything else, too: beside whole shards, which fill the wire, they would come last.
        """
        distinct_shards = np.array(unique_stable(shards), np.int64)
        for shard in distinct_shards[~self._runtime.is_local(distinct_shards)].tolist():
            if self._runtime.can_range(shard) and self._runtime.is_far(shard):
                mine = rows[shards == shard].tolist()
                self._rows[shard] = self._submit(
                    self._runtime.read_rows, shard, mine, deadline=-1.0
                )
        if self._rows:
            with self._runtime.waiting_for(next(iter(self._rows))):
                wait(self._rows.values(), timeout=self._runtime.tuning.head_start_seconds)

    def _submit(self, act: Callable[..., Any], *args: Any, deadline: float) -> Future[Any]:
        if self._pool is None:
            self._pool = Pool(self._runtime.peers.threads)
            enough = _samples_of_threads(self._runtime.catalog, self._pool.threads)
            self._ahead = max(self._predownload, enough)
        future = self._pool.submit(act, *args, deadline=deadline)
        future.add_done_callback(self._note_done)
        return future

    def _note_done(self, future: Future[Any]) -> None:
        """Wake the reader for what it waits for, and when there is little left to do."""
        pool = self._pool
        if future is self._awaited or pool is None or pool.waiting <= pool.threads // 2:
            self._changed.set()

    def _wait(self, future: Future[Any], shard: int) -> Any:
        """Return the result of a future; give the threads more work meanwhile."""
        if future.done():
            return future.result()
        self._awaited = future
        with self._runtime.waiting_for(shard):
            while not future.done():
                self._changed.clear()
                self._schedule()
                if not future.done():
                    self._changed.wait()
        self._awaited = None  # its callback refers to this plan, and so to all open files
        return future.result()

    def __repr__(self) -> str:
        return f"{len(self._coming)} shards on their way"


def _samples_of_threads(catalog: Catalog, threads: int) -> int:
    """Return the mean number of samples in one shard per thread, at most `AHEAD_BYTES`.

    A row group of a hundred thousand small rows is longer than any number of batches.
    """
    fitting = AHEAD_BYTES // max(catalog.mean_row_size, 1)
    return min(threads * catalog.samples // max(catalog.shards, 1), fitting, MAX_AHEAD)
