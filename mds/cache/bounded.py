"""Windows under a limit: for each shard what is cheapest, one window ahead of the reader.

A shard that is in the cache is read there. One that is not is fetched whole if there is room, or if
it pays more than what would have to go for it; else only the rows of the window come, by range or
out of one pass through the decompressed shard, and wait in memory. So a window needs no room on the
disk at all, nobody waits for room, and no shard is fetched for a sample: windows are as large as
the memory for rows allows.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future as Promise
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mds.cache import policy
from mds.cache.foresight import BUCKET, Foresight
from mds.cache.lookahead import Lookahead, working_set
from mds.cache.obtain import Need, Obtained, Obtainer
from mds.cache.pool import Pool
from mds.readers import distinct
from mds.units import format_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.runtime import Runtime
    from mds.readers import Reader

    Int64s = npt.NDArray[np.int64]

FIRST = 32  # ids of the first window, so that the first sample comes at once
MOST = 4096  # ids of a window
LOOK = 64  # buckets that are looked at before the first decision

log = logging.getLogger("mds.cache")


@dataclass(slots=True)
class _Window:
    """So many ids, and what is got for each of their shards, by its first use."""

    size: int
    needs: dict[int, tuple[Need, float]]
    promises: dict[int, Promise[Obtained | None]]


class Bounded:
    """The plan of a worker whose cache has a limit."""

    def __init__(
        self, runtime: Runtime, ids: Lookahead, orders: Sequence[Iterable[Int64s]] | None
    ) -> None:
        self._runtime, self._ids = runtime, ids
        self._sight = Foresight(runtime.catalog.shards, ids, orders)
        runtime.budget.sights.append(self._sight)
        self._obtainer = Obtainer(runtime, self._sight)
        self._pool = Pool(runtime.node.threads)
        self._most = FIRST  # until it was seen what the order is like
        self._planned = 0  # positions before this one have been sent for
        self._size = FIRST
        self._has_looked = False
        self._windows: deque[_Window] = deque()  # the one in use and the next
        self._progress = _Progress()
        self._floor = 0  # nobody of the node is believed to be farther behind
        self._sight.extend(LOOK, is_sampled=True)

    def next_size(self) -> int:
        """How many ids the next window has."""
        if not self._windows:
            self._plan()
        return self._windows[0].size if self._windows else 1

    def begin(self, shards: Int64s, rows: Int64s) -> None:
        """A window begins, so the one after it is sent for."""
        del rows  # they are what was planned
        window = self._windows[0]
        self._floor = max(self._ids.position - 2 * len(shards), 0)
        self._note_served()
        for shard, promise in list(window.promises.items()):
            if promise.done() and not promise.exception() and promise.result() is None:
                self._send(window, shard, is_early=False)
        if not self._has_looked:
            self._has_looked = True
            self._look_around()
        self._plan()

    def open(self, shard: int) -> Reader:
        """The reader of a shard of the window."""
        window = self._windows[0]
        obtained = self._wait(window.promises[shard], shard)
        if obtained is None:  # was put off until the window begins, just as it did
            self._send(window, shard, is_early=False)
            obtained = self._wait(window.promises[shard], shard)
        assert obtained is not None
        return obtained.reader

    def end(self) -> None:
        """The window is used up."""
        if self._windows:
            self._give_back(self._windows.popleft())

    def close(self) -> None:
        """Stop fetching and give back what is held. Closing twice is fine."""
        self._pool.close()
        while self._windows:
            self._give_back(self._windows.popleft())
        if self._sight in self._runtime.budget.sights:
            self._runtime.budget.sights.remove(self._sight)
        self._runtime.node.forget(id(self))

    def __repr__(self) -> str:
        return f"{len(self._windows)} windows up to sample {self._planned}"

    # ------------------------------------------------------------------ planning

    def _plan(self) -> None:
        """Send for what the next window needs."""
        self._sight.extend(4 * -(-self._size // BUCKET))
        start = self._planned
        shards, rows = self._ids.look(start, start + self._size)
        if not len(shards):
            return
        self._planned = stop = start + len(shards)
        self._size = min(self._size * 4, self._most)
        order = np.argsort(shards, kind="stable")
        values, begins = np.unique(shards[order], return_index=True)
        needs = {
            shard: (Need(shard, group.tolist(), start, stop), float(start + first))
            for shard, group, first in zip(
                values.tolist(),
                np.split(rows[order], begins[1:]),
                order[begins].tolist(),
                strict=True,
            )
        }
        window = _Window(len(shards), needs, {})
        for shard in distinct(shards):
            self._send(window, shard, is_early=True)
        self._windows.append(window)

    def _send(self, window: _Window, shard: int, *, is_early: bool) -> None:
        need, deadline = window.needs[shard]
        self._progress.begin(int(deadline))
        promise = self._pool.submit(self._obtainer.obtain, need, is_early, deadline=deadline)
        window.promises[shard] = promise
        promise.add_done_callback(functools.partial(self._served, int(deadline)))

    def _served(self, position: int, promise: Promise[Obtained | None]) -> None:
        """A task ended; what was put off is not served yet."""
        is_put_off = not promise.cancelled() and not promise.exception() and not promise.result()
        self._progress.end(position, is_put_off=is_put_off)
        self._note_served()

    def _note_served(self) -> None:
        least = self._runtime.node.note_served(id(self), self._progress.first(self._planned))
        self._sight.advance(max(least, self._floor))

    def _wait(self, promise: Promise[Obtained | None], shard: int) -> Obtained | None:
        if promise.done():
            return promise.result()
        with self._runtime.waiting_for(shard):
            return promise.result()

    def _give_back(self, window: _Window) -> None:
        for promise in window.promises.values():
            # Also what nobody asked for and is still on its way.
            promise.add_done_callback(self._take_back)

    def _take_back(self, promise: Promise[Obtained | None]) -> None:
        if promise.cancelled() or promise.exception() is not None:
            return
        obtained = promise.result()
        if obtained is not None:
            self._obtainer.give_back(obtained)

    # ------------------------------------------------------------------ what it costs

    def _look_around(self) -> None:
        """Choose the size of windows by what the order and the limit are, and say what it costs."""
        runtime, catalog = self._runtime, self._runtime.catalog
        row = max(catalog.mean_row_size, 1)
        large = max(FIRST, min(MOST, policy.ROWS_IN_MEMORY // (2 * row)))
        room = (runtime.limit or 0) - runtime.control_bytes
        small = max(FIRST, min(large, room // (8 * runtime.node.processes * row)))
        shards, _ = self._ids.look(self._ids.position, self._ids.position + LOOK * BUCKET)
        once = max(int(catalog.sizes[distinct(shards)].sum()), 1)
        # Of workers whose order is not known it is believed that they are no better.
        others = 1 if self._sight.is_whole else runtime.node.processes
        kept = policy.lru_bytes(self._sight.turns(small, len(shards)), catalog.sizes, room)
        passes = others * sum(
            int(catalog.sizes[turn].sum())
            for turn in self._sight.turns(large, len(shards), is_apart=True)
        )
        self._sight.forget_sample()
        # Rows that are fetched alone come in fewer requests when a window is large. Of compressed
        # shards a large window saves passes where the cache does not hold what is in use, and
        # small ones let the workers of a node share what it does hold.
        self._most = large if catalog.has_raw or passes < kept else small
        if not catalog.has_raw:
            self._size = self._most
        need = working_set(shards, catalog.sizes) + runtime.control_bytes
        self._obtainer.may_pin = 2 * need < (runtime.limit or 0)
        if need > (runtime.limit or 0) and not runtime.is_announced:
            runtime.is_announced = True
            self._announce(max(min(kept, passes) / once, 1.0), need)

    def _announce(self, times: float, need: int) -> None:
        """Say beforehand, once a node, what a limit costs and which one would cost nothing."""
        runtime = self._runtime
        if not runtime.node.is_speaker():
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


class _Progress:
    """The positions at which something is needed that is not there yet."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._put_off: set[int] = set()
        self._lock = threading.Lock()

    def begin(self, position: int) -> None:
        """Something is sent for, perhaps again."""
        with self._lock:
            self._put_off.discard(position)
            self._open[position] = self._open.get(position, 0) + 1

    def end(self, position: int, *, is_put_off: bool) -> None:
        """It came, or it was put off."""
        with self._lock:
            self._open[position] -= 1
            if not self._open[position]:
                del self._open[position]
            if is_put_off:
                self._put_off.add(position)

    def first(self, default: int) -> int:
        """The first of them; ``default`` when everything is there."""
        with self._lock:
            return min((*self._open, *self._put_off), default=default)
