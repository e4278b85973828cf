"""The front door of the cache: shards of several sources by one number, held while they are used.

A ShardCache is plain configuration: making one opens nothing and starts nothing, it pickles, and
every process that uses it (forked, spawned, or the one that made it) has a runtime of its own.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mds.cache import policy
from mds.cache.accounts import control_bytes
from mds.cache.filesystem import network_kind
from mds.cache.places import Place
from mds.cache.runtime import Runtime
from mds.errors import CacheLimitError, ShardError
from mds.readers import Choice
from mds.readers.fields import check_columns
from mds.units import format_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mds.readers import Reader
    from mds.stream import Source


log = logging.getLogger("mds.cache")


class ShardCache:
    """The shards of several sources, kept in their folders below ``limit`` bytes in all.

    Shards are numbered through all sources in order. Raises UnsafeTypeError and ConfigError (both
    ValueErrors) for columns that may not be or are not there, and CacheLimitError (a ValueError)
    for a limit that cannot work.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        limit: int | None = None,
        allow_unsafe_types: bool = False,
        columns: Choice = Choice(),  # noqa: B008 - it is frozen
    ) -> None:
        self.sources = tuple(sources)
        self.limit = limit
        self.allow_unsafe_types = allow_unsafe_types
        self.columns = columns
        self._places = self._make_places()
        for place in self._places:
            place.index.check_safe(allow_unsafe_types, place.remote)
            for schema in place.index.schemas:
                check_columns(schema.columns, columns.names)
        self._check_limit()
        self._runtime: Runtime | None = None
        _caches.add(self)

    def _make_places(self) -> list[Place]:
        places, first = [], 0
        for number, source in enumerate(self.sources):
            places.append(Place(source, number, first))
            first += len(source.index)
        return places

    def _check_limit(self) -> None:
        if self.limit is None:
            return
        cached = [place for place in self._places if place.is_cached]
        if not cached:
            return
        control = sum(control_bytes(place) for place in cached)
        for place in cached:
            if place.home is None and (kind := network_kind(place.folder)) is not None:
                log.warning(
                    "%s is on a network file system (%s). cache_limit holds for each node by "
                    "itself there, and a node must not evict what another has mapped: give every "
                    "node a folder of its own, best on its own disk.",
                    place.folder,
                    kind,
                )
        largest = max(place.largest() for place in cached)
        least = policy.least_limit(control, largest)
        if self.limit < least:
            raise CacheLimitError(
                f"cache_limit={self.limit} ({format_bytes(self.limit)}) is too small: the indexes "
                f"and the books of the cache take {control} bytes and the largest shard {largest}. "
                f"Set cache_limit to {least} ({format_bytes(least)}) or more."
            )

    # ------------------------------------------------------------------ one process

    @property
    def runtime(self) -> Runtime:
        """What this process has of the cache, made when it is first needed."""
        runtime = self._runtime
        if runtime is None:
            with _making:
                runtime = self._runtime
                if runtime is None:
                    runtime = Runtime(
                        self._places, self.limit, self.allow_unsafe_types, self.columns
                    )
                    self._runtime = runtime
        return runtime

    def start_anew(self) -> None:
        """Forget what the parent process has open; for the child of a fork."""
        if self._runtime is not None:
            _inherited.append(self._runtime)
            self._runtime = None

    def __getstate__(self) -> dict[str, Any]:
        return {
            "sources": self.sources,
            "limit": self.limit,
            "allow_unsafe_types": self.allow_unsafe_types,
            "columns": self.columns,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._places = self._make_places()
        self._runtime = None
        _caches.add(self)

    # ------------------------------------------------------------------ shards

    def hold(self, shard: int) -> Reader:
        """An open reader of a whole shard, fetched and checked first if need be.

        It is safe from eviction until `release` was called as often. Raises NotFoundError,
        CorruptError and the other StoreErrors, and ShardError (a ValueError) for a broken shard.
        """
        return self.runtime.hold(shard)

    def release(self, shard: int) -> None:
        """Say that a reader from `hold` is not used any more."""
        runtime = self._runtime
        if runtime is not None:
            runtime.release(shard)

    def sample(self, shard: int, row: int) -> dict[str, Any]:
        """One sample, by ranged read when its shard is not here and need not come for it."""
        runtime = self._runtime
        if runtime is not None:
            # What is open without a limit needs no holding.
            reader = runtime.hands.open.get(shard)
            if reader is not None:
                try:
                    return reader.get(row)
                except ShardError:
                    if runtime.hands.open.get(shard) is reader:
                        raise  # else another thread closed it just now
        return self.samples(shard, [row])[0]

    def samples(self, shard: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Several samples of one shard, in the order asked for."""
        return self.runtime.scattered.samples(shard, rows)

    def samples_many(
        self, shards: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> list[dict[str, Any]]:
        """Samples of many shards in the order asked for, fetched side by side."""
        return self.runtime.scattered.samples_many(shards, rows)

    @property
    def usage(self) -> int:
        """Bytes in the cache folders, those that are being fetched included."""
        return self.runtime.usage()

    def evict(self, shard: int) -> bool:
        """Delete the cached files of a shard, if they are ours and nobody has them in hand."""
        return self.runtime.evict(shard)

    def evict_coldest(self) -> bool:
        """Delete the cached files of the shard that is needed last, as `evict` does."""
        return self.runtime.evict_coldest()

    def stats(self) -> dict[str, Any]:
        """Counts of this process; see docs/cache.md."""
        runtime = self._runtime
        return runtime.stats() if runtime is not None else {}

    def close(self) -> None:
        """Let go of everything that this process holds. Closing twice is fine."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.close()

    def __enter__(self) -> ShardCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        shards = sum(map(len, self._places))
        state = repr(self._runtime) if self._runtime is not None else f"{shards} shards, not in use"
        return f"<ShardCache {state}>"


_caches: weakref.WeakSet[ShardCache] = weakref.WeakSet()
_making = threading.Lock()


def _start_anew() -> None:
    """In a forked child: what the parent has open is the parent's."""
    global _making  # noqa: PLW0603 - the old lock may be held by a thread that was not copied
    _making = threading.Lock()
    for cache in list(_caches):
        cache.start_anew()


def live_caches() -> list[ShardCache]:
    """The caches of this process that somebody still has, for a look at their state."""
    return list(_caches)


_inherited: list[Runtime] = []  # kept, so that no destructor of the parent's things runs here
os.register_at_fork(after_in_child=_start_anew)
