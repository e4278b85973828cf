"""Shards ahead of the reader: the next distinct ones of a worker, nearest deadline first.

A worker's ids are cut into windows. What a window needs is on its way before the window begins,
and a shard that is not there yet is waited for when its first sample is asked for, not earlier.
Without a limit whole shards are fetched ahead and stay; the very first samples come by ranged
reads of their own meanwhile. With a limit every window gets, shard by shard, what is cheapest: the
shard that is there, the whole shard if there is room and it pays, or just its rows, which then
wait in memory. Reservations never block, so workers cannot deadlock.

Everything local costs one array operation a window: no thread is started.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mds.prefetch.lookahead import Lookahead, join, leave
from mds.prefetch.unlimited import UnlimitedPrefetch
from mds.readers import unique_stable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mds.cache import ShardCache
    from mds.prefetch.limited import LimitedPrefetch
    from mds.prefetch.next_use import MergedOrder
    from mds.readers import Reader

    Int64s = npt.NDArray[np.int64]


class Window(NamedTuple):
    """A stretch of a worker's ids: sample ids, the shard and row of each, and readers by shard.

    ``readers[shard]`` waits for the shard if need be. All of it is good until the next window is
    asked for.
    """

    ids: Int64s
    shards: Int64s
    rows: Int64s
    readers: Mapping[int, Reader]


class _Readers(dict[int, "Reader"]):
    """Readers of a window, opened when they are first asked for."""

    def __init__(self, window_shards: Iterable[int], opener: Callable[[int], Reader]) -> None:
        super().__init__()
        self._window_shards = frozenset(window_shards)
        self._opener = opener

    def __missing__(self, shard: int) -> Reader:
        if shard not in self._window_shards:
            raise KeyError(shard)
        reader = self[shard] = self._opener(shard)
        return reader

    def get(self, shard: int, default: Any = None) -> Any:
        """Return the reader of a shard of the window, after a wait if needed, else ``default``."""
        return self[shard] if shard in self._window_shards else default


class Prefetcher:
    """Windows of a worker's ids with the readers that they need; a context manager.

    ``blocks`` are sample ids in order (int64 arrays; negative ones are left out), ``offsets``
    (shards + 1,) the number of samples before each shard, ``predownload`` how many samples ahead
    shards are fetched at least. ``node`` is the merged order of all workers of the node, from where
    this one begins and on into the next epoch: what eviction goes by.
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
        self._plan: UnlimitedPrefetch | LimitedPrefetch
        join(self)
        if self._runtime.is_bounded:
            from mds.prefetch.limited import LimitedPrefetch

            self._plan = LimitedPrefetch(self._runtime, self._ids, node)
        else:
            self._plan = UnlimitedPrefetch(self._runtime, self._ids, predownload)

    def windows(self) -> Iterator[Window]:
        """Iterate over the ids window by window, until they end.

        Raises, when a shard is asked for, what went wrong with it in the background.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            stack.enter_context(self._runtime.peers.register_reader())
            while True:
                window = self._ids.take(self._plan.next_size())
                if not len(window[0]):
                    return
                window_shards = unique_stable(window[1])
                self._plan.begin(window[1], window[2])
                yield Window(*window, _Readers(window_shards, self._plan.open))
                self._plan.end()

    def close(self) -> None:
        """Give everything back and let the threads end. Closing twice is fine."""
        leave(self)
        if self._owner == os.getpid():  # what a forked child has of it is its parent's
            self._plan.close()

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Prefetcher at sample {self._ids.position}: {self._plan!r}>"
