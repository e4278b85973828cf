"""Whole shards ahead of the reader, where there is no limit: what was fetched stays.

Looked through are so many samples as the user asked for, and beyond them as many as it takes to
keep the wire busy. The first few rows come by ranged reads of their own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future as Promise
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache.lookahead import Lookahead
from mds.cache.pool import Pool
from mds.errors import NoSpaceError
from mds.readers import distinct

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.runtime import Runtime
    from mds.readers import Reader

    Int64s = npt.NDArray[np.int64]

LARGEST = 8192  # ids of a window when everything is here
COLD = 512  # ids of a window while shards are on their way
FIRST = 64  # ids of the first window at most, when shards are far,
FIRST_BYTES = 4 << 20  # and bytes, since they come twice
HEAD_START = 0.5  # seconds at most that whole shards let the first rows go ahead
AHEAD = 1 << 16  # ids to look through for shards that keep the wire busy


class Unbounded:
    """Without a limit: whole shards, ahead of the reader, and they stay."""

    def __init__(self, runtime: Runtime, ids: Lookahead, predownload: int) -> None:
        self._runtime, self._ids = runtime, ids
        self._predownload = predownload
        self._pool: Pool | None = None
        self._changed = threading.Event()
        self._awaited: Promise[Any] | None = None
        self._looked = 0  # positions before this one are here or on their way
        self._known = np.zeros(runtime.catalog.shards, np.bool_)
        for place in runtime.catalog.places:
            if place.home is not None and not place.index.zip_size.any():
                self._known[place.first : place.first + len(place)] = True  # read where they are
        self._coming: dict[int, Promise[Any]] = {}
        self._rows: dict[int, Promise[Reader]] = {}  # of the first window
        self._held: list[int] = []
        self._is_first = True

    def next_size(self) -> int:
        """How many ids the next window has."""
        if self._is_first:
            few = FIRST_BYTES // max(self._runtime.catalog.mean_row_size, 1)
            few = max(1, min(self._predownload // 8, FIRST, few))
            shards, _ = self._ids.look(0, few)
            return few if not self._runtime.is_local(shards).all() else COLD
        if not self._coming and self._known.all():
            # Looking ahead would be two thirds of what a window costs.
            return LARGEST
        self._schedule()
        return COLD if self._coming else LARGEST

    def begin(self, shards: Int64s, rows: Int64s) -> None:
        """A window begins."""
        if self._is_first:
            self._is_first = False
            self._fetch_first(shards, rows)
            self._send_for(shards, 0)
            self._schedule()

    def open(self, shard: int) -> Reader:
        """The reader of a shard of the window."""
        if shard in self._rows:
            sparse: Reader = self._wait(self._rows[shard], shard)
            return sparse
        if shard in self._coming:
            # A disk that was full of what was in hand then may have room now.
            with contextlib.suppress(NoSpaceError):
                self._wait(self._coming[shard], shard)
        reader = self._runtime.hold(shard)
        self._held.append(shard)
        return reader

    def end(self) -> None:
        """The window is used up."""
        for shard in self._held:
            self._runtime.release(shard)
        self._held.clear()
        self._rows.clear()

    def close(self) -> None:
        """Stop fetching and give back what is held."""
        self.end()
        if self._pool is not None:
            self._pool.close()
        self._coming.clear()

    def _schedule(self) -> None:
        """Send for the shards that come next: so many samples ahead, and enough to do."""
        for shard in [shard for shard, promise in self._coming.items() if promise.done()]:
            # A failure stays for whoever asks for the shard.
            if not self._coming[shard].exception():
                del self._coming[shard]
        position = self._ids.position
        while self._looked < position + AHEAD:
            is_busy = self._pool is not None and len(self._coming) >= 2 * self._pool.threads
            if self._looked >= position + self._predownload + COLD and (
                is_busy or not self._coming
            ):
                return
            start = max(self._looked, position)
            shards, _ = self._ids.look(start, start + COLD)
            if not len(shards):
                return
            self._looked = start + len(shards)
            self._send_for(shards, start)

    def _send_for(self, shards: Int64s, position: int) -> None:
        shards = np.array(distinct(shards[~self._known[shards]]), np.int64)
        if not len(shards):
            return
        self._known[shards] = True
        for shard in shards[~self._runtime.is_local(shards)].tolist():
            self._coming[shard] = self._submit(
                self._runtime.fetch_ahead, shard, deadline=float(position)
            )

    def _fetch_first(self, shards: Int64s, rows: Int64s) -> None:
        """Have the very first rows come by themselves: a whole shard takes longer.

        Before anything else, too: beside whole shards, which fill the wire, they would come last.
        """
        wanted = np.array(distinct(shards), np.int64)
        for shard in wanted[~self._runtime.is_local(wanted)].tolist():
            if self._runtime.can_range(shard) and self._runtime.is_far(shard):
                mine = rows[shards == shard].tolist()
                self._rows[shard] = self._submit(self._runtime.rows, shard, mine, deadline=-1.0)
        if self._rows:
            with self._runtime.waiting_for(next(iter(self._rows))):
                wait(self._rows.values(), timeout=HEAD_START)

    def _submit(self, act: Callable[..., Any], *args: Any, deadline: float) -> Promise[Any]:
        if self._pool is None:
            self._pool = Pool(self._runtime.node.threads)
        promise = self._pool.submit(act, *args, deadline=deadline)
        promise.add_done_callback(self._note_done)
        return promise

    def _note_done(self, promise: Promise[Any]) -> None:
        """Wake the reader for what it waits for, and when there is little left to do."""
        pool = self._pool
        if promise is self._awaited or pool is None or pool.waiting <= pool.threads // 2:
            self._changed.set()

    def _wait(self, promise: Promise[Any], shard: int) -> Any:
        """The result of a promise; meanwhile the threads get more to do."""
        if promise.done():
            return promise.result()
        self._awaited = promise
        with self._runtime.waiting_for(shard):
            while not promise.done():
                self._changed.clear()
                self._schedule()
                if not promise.done():
                    self._changed.wait()
        return promise.result()

    def __repr__(self) -> str:
        return f"{len(self._coming)} shards on their way"
