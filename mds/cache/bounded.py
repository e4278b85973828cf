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
from mds.cache.lookahead import Lookahead, distinct
from mds.cache.pool import Pool
from mds.units import format_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.runtime import Runtime
    from mds.readers import Reader

    Int64s = npt.NDArray[np.int64]

FIRST = 32  # ids of the first window, so that the first sample comes at once
MOST = 4096  # ids of a window
LOOK = 64  # buckets to look ahead before the first decision

log = logging.getLogger("mds.cache")


@dataclass(frozen=True, slots=True)
class _Obtained:
    """A reader for one shard of a window, and what has to be given back after it."""

    reader: Reader
    is_held: bool = False
    is_pinned: bool = False


class Bounded:
    """The plan of a worker whose cache has a limit."""

    def __init__(
        self, runtime: Runtime, ids: Lookahead, orders: Sequence[Iterable[Int64s]] | None
    ) -> None:
        self._runtime, self._ids = runtime, ids
        self._sight = Foresight(runtime.catalog.shards, ids, orders)
        runtime.budget.foresight = self._sight
        self._pool = Pool(runtime.threads)
        self._pins = _Pins(policy.share(runtime.limit, runtime.processes))
        most = policy.ROWS_IN_MEMORY // (2 * max(runtime.catalog.mean_row_size, 1))
        self._most = max(FIRST, min(MOST, most))
        self._planned = 0  # positions before this one have been sent for
        # A compressed shard has to come whole for the first row too: let it serve many.
        self._size = FIRST if runtime.catalog.has_raw else self._most
        #: The windows that are used and planned: how many ids, and what is got for each shard.
        self._windows: deque[tuple[int, dict[int, Promise[_Obtained]]]] = deque()
        self._is_announced = False
        self._sight.extend(LOOK)

    def next_size(self) -> int:
        """How many ids the next window has."""
        self._sight.advance(self._ids.position)
        if not self._windows:
            self._plan()
        return self._windows[0][0] if self._windows else 1

    def begin(self, shards: Int64s, rows: Int64s) -> None:
        """A window begins, so the one after it is sent for."""
        del shards, rows  # they are what was planned
        self._plan()
        self._announce()

    def open(self, shard: int) -> Reader:
        """The reader of a shard of the window."""
        promise = self._windows[0][1][shard]
        if not promise.done():
            with self._runtime.waiting_for(shard):
                promise.result()
        return promise.result().reader

    def end(self) -> None:
        """The window is used up."""
        if self._windows:
            self._give_back(self._windows.popleft()[1])

    def close(self) -> None:
        """Stop fetching and give back what is held. Closing twice is fine."""
        self._pool.close()
        while self._windows:
            self._give_back(self._windows.popleft()[1])
        if self._runtime.budget.foresight is self._sight:
            self._runtime.budget.foresight = None

    def __repr__(self) -> str:
        return f"{len(self._windows)} windows up to sample {self._planned}"

    # ------------------------------------------------------------------ planning

    def _plan(self) -> None:
        """Send for what the next window needs."""
        self._sight.extend(4 * -(-self._size // BUCKET))
        start, stop = self._planned, self._planned + self._size
        shards, rows = self._ids.look(start, stop)
        if not len(shards):
            return
        self._planned = stop = start + len(shards)
        self._size = min(self._size * 4, self._most)
        order = np.argsort(shards, kind="stable")
        values, begins = np.unique(shards[order], return_index=True)
        rows_of = dict(zip(values.tolist(), np.split(rows[order], begins[1:]), strict=True))
        first = dict(zip(values.tolist(), (start + order[begins]).tolist(), strict=True))
        promises = {
            shard: self._pool.submit(
                self._obtain, shard, rows_of[shard].tolist(), stop, deadline=float(first[shard])
            )
            for shard in distinct(shards).tolist()
        }
        self._windows.append((len(shards), promises))

    def _give_back(self, promises: dict[int, Promise[_Obtained]]) -> None:
        for shard, promise in promises.items():
            # Also what nobody asked for and is still on its way.
            promise.add_done_callback(functools.partial(self._release, shard))

    def _release(self, shard: int, promise: Promise[_Obtained]) -> None:
        if promise.cancelled() or promise.exception() is not None:
            return
        if promise.result().is_held:
            self._runtime.release(shard)
        if promise.result().is_pinned:
            self._pins.remove(shard)

    # ------------------------------------------------------------------ one shard of a window

    def _obtain(self, shard: int, rows: list[int], stop: int) -> _Obtained:
        runtime = self._runtime
        if not runtime.is_cacheable(shard):
            # The user's own file: nothing to fetch, to pin or to evict.
            return _Obtained(runtime.hold(shard), is_held=True)
        size = int(runtime.catalog.sizes[shard])
        if not self._pins.add(shard, size):
            local = runtime.local_rows(shard, rows)
            if local is not None:
                return _Obtained(local)
        else:
            reader = runtime.hold_local(shard)
            if reader is None and self._fetch(shard, size, len(rows), stop):
                reader = runtime.hold_local(shard)
            if reader is not None:
                return _Obtained(reader, is_held=True, is_pinned=True)
            self._pins.remove(shard)
        return _Obtained(runtime.rows(shard, rows))

    def _fetch(self, shard: int, size: int, rows: int, stop: int) -> bool:
        """Fetch a whole shard if there is or can be room and it is worth it."""
        sight, runtime = self._sight, self._runtime
        again = sight.next_after(shard, stop)
        if not runtime.can_range(shard):
            # It has to come whole now; what counts is when it would be needed again.
            return runtime.fetch(shard, again)
        row_size = runtime.catalog.row_size(shard)
        others = 1 if sight.is_whole else runtime.processes

        def saved(until: float) -> int:
            """Bytes of the ranges that a whole shard spares until a time."""
            ahead = max(sight.rows_before(shard, until) * others, rows)
            return policy.range_cost(ahead, row_size)

        def is_worth(victims: Sequence[policy.Resident]) -> bool:
            until = min((victim.next_use for victim in victims), default=policy.NEVER)
            refetch = sum(v.size for v in victims if v.next_use < policy.NEVER)
            return policy.pays(size, saved(until), refetch)

        if not policy.pays(size, saved(policy.NEVER), 0):
            return False
        return runtime.fetch(shard, again, is_worth)

    # ------------------------------------------------------------------ what it costs

    def _announce(self) -> None:
        """Say once what the limit costs, when enough of the order is known to tell."""
        if self._is_announced or self._sight.horizon < self._planned + 4 * BUCKET:
            return
        self._is_announced = True
        runtime = self._runtime
        limit, need = runtime.limit or 0, self._sight.working_set(runtime.catalog.sizes)
        if need > limit - runtime.control_bytes:
            log.warning(
                "cache_limit=%s does not hold the %s of shards that are in use at one time, so "
                "parts of them are fetched by range or again. With cache_limit=%d (%s) or more "
                "each would be fetched once an epoch.",
                format_bytes(limit),
                format_bytes(need),
                need + runtime.control_bytes,
                format_bytes(need + runtime.control_bytes),
            )


class _Pins:
    """The shards that the windows of this process have pinned, within its share of the limit."""

    def __init__(self, share: int | None) -> None:
        self._share = share
        self._counts: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._used = 0
        self._lock = threading.Lock()

    def add(self, shard: int, size: int) -> bool:
        """Count a pin, if there is room for the shard or nothing else is pinned."""
        with self._lock:
            count = self._counts.get(shard, 0)
            if not count:
                is_over = self._share is not None and self._used + size > self._share
                if is_over and self._counts:
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
