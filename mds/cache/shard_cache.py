"""The front door of the cache: shards of several sources by one number, held while they are used.

A ShardCache is plain configuration: making one opens nothing and starts nothing, it pickles, and
every process that uses it (forked, spawned, or the one that made it) has a runtime of its own.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mds.cache import policy
from mds.cache.counters import Counters, CounterTable, folder_ids, read_node_rows, sum_rows
from mds.cache.folder import CacheFolder
from mds.cache.process_cache import ProcessCache
from mds.cache.tuning import CacheTuning
from mds.errors import CacheLimitError, MdsError
from mds.process.fork_safe import call_in_child, new_lock
from mds.readers import ColumnSelection
from mds.readers.fields import check_columns
from mds.redaction import get_logger
from mds.storage.files import is_process
from mds.units import format_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mds.cache.random_access import RandomAccess
    from mds.cache.source import Source
    from mds.readers import Reader


log = get_logger("mds.cache")


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
        columns: ColumnSelection = ColumnSelection(),  # noqa: B008 - it is frozen
        tuning: CacheTuning = CacheTuning(),  # noqa: B008 - it is frozen
    ) -> None:
        self.sources = tuple(sources)
        self.limit = limit
        self.allow_unsafe_types = allow_unsafe_types
        self.columns = columns
        self.tuning = tuning
        self._folders = self._make_folders()
        for folder in self._folders:
            folder.index.check_safe(allow_unsafe_types, folder.remote)
            for schema in folder.index.schemas:
                check_columns(schema.columns.names, columns.names, folder.remote)
                check_columns(schema.columns.names, columns.image_columns, "images=")
        self._check_limit()
        self._counters = CounterTable()
        self._runtime: ProcessCache | None = None
        self._random_access: RandomAccess | None = None
        _caches.add(self)

    @property
    def _folder_ids(self) -> list[int]:
        return folder_ids([folder.source.folder for folder in self._folders if folder.is_cached])

    def _make_folders(self) -> list[CacheFolder]:
        folders, first = [], 0
        for number, source in enumerate(self.sources):
            folders.append(CacheFolder(source, number, first))
            first += len(source.index)
        return folders

    def _check_limit(self) -> None:
        if self.limit is None:
            return
        cached = [folder for folder in self._folders if folder.is_cached]
        if not cached:
            return
        from mds.cache.filesystem import network_kind
        from mds.cache.recovery import control_bytes

        control = sum(control_bytes(folder) for folder in cached)
        for folder in cached:
            if folder.source_folder is None and (kind := network_kind(folder.root)) is not None:
                log.warning(
                    "%s is on a network file system (%s). There each node keeps to cache_limit "
                    "by itself, and must not evict files that another node has mapped. Give every "
                    "node its own folder, best on its own disk.",
                    folder.root,
                    kind,
                )
        largest = max(folder.largest() for folder in cached)
        min_limit = policy.least_limit(control, largest)
        if self.limit < min_limit:
            raise CacheLimitError(
                f"cache_limit={self.limit} ({format_bytes(self.limit)}) is too small: the indexes "
                f"and the books of the cache take {control} bytes and the largest shard {largest}. "
                f"Set cache_limit to {min_limit} ({format_bytes(min_limit)}) or more."
            )

    # ------------------------------------------------------------------ one process

    @property
    def runtime(self) -> ProcessCache:
        """State of the cache in this process, created when it is first needed."""
        runtime = self._runtime
        if runtime is None:
            with _making:
                runtime = self._runtime
                if runtime is None:
                    runtime = ProcessCache(
                        self._folders,
                        self.limit,
                        self.allow_unsafe_types,
                        self.columns,
                        self.tuning,
                        self._count(),
                    )
                    self._runtime = runtime
        return runtime

    def _count(self) -> Counters:
        """Return new counters of this process, which are visible to its rank."""
        return Counters(self._counters.claim_row(self._folder_ids))

    def start_anew(self) -> None:
        """Forget what the parent process has open; for the child of a fork."""
        if self._runtime is not None:
            _inherited.append(self._runtime)
            self._runtime = self._random_access = None

    def __getstate__(self) -> dict[str, Any]:
        return {
            "sources": self.sources,
            "limit": self.limit,
            "allow_unsafe_types": self.allow_unsafe_types,
            "columns": self.columns,
            "tuning": self.tuning,
            "_counters": self._counters,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._folders = self._make_folders()
        self._runtime = self._random_access = None
        _caches.add(self)

    # ------------------------------------------------------------------ shards

    def prepare(self, shard: int, *, blocking: bool = True) -> None:
        """Fetch a shard; without ``blocking``, start to fetch it in a thread and return at once.

        An error of the thread is logged, and raised where the shard is read.
        """
        if not blocking:
            threading.Thread(target=self._prepare_or_log, args=(shard,), daemon=True).start()
            return
        self.hold(shard)
        self.release(shard)

    def _prepare_or_log(self, shard: int) -> None:
        try:
            self.prepare(shard)
        except MdsError as error:
            log.warning(
                "Shard %d was not fetched ahead, and will be when it is read: %s", shard, error
            )

    def hold(self, shard: int) -> Reader:
        """Return an open reader of a whole shard, fetched and checked first if needed.

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
            # Without a limit an open shard needs no use count.
            reader = runtime.readers.open.get(shard)
            if reader is not None:
                try:
                    return reader.get(row)
                except Exception:
                    if runtime.readers.open.get(shard) is reader:
                        raise  # else another thread closed it just now
        return self.samples(shard, [row])[0]

    def _by_number(self) -> RandomAccess:
        """Random access in this process, made when it is first used."""
        access, runtime = self._random_access, self.runtime
        if access is None:
            with _making:
                access = self._random_access
                if access is None:
                    from mds.cache.random_access import RandomAccess

                    access = self._random_access = RandomAccess(runtime)
        return access

    def samples(self, shard: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Several samples of one shard, in the order asked for."""
        return self._by_number().samples(shard, rows)

    def samples_many(
        self, shards: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> list[dict[str, Any]]:
        """Return samples of many shards in the requested order, fetched concurrently."""
        return self._by_number().samples_many(shards, rows)

    @property
    def usage(self) -> int:
        """Bytes in the cache folders, those that are being fetched included."""
        return self.runtime.usage()

    def evict(self, shard: int) -> bool:
        """Delete the cached files of a shard, if they are ours and not in use."""
        return self.runtime.evict(shard)

    def evict_coldest(self) -> bool:
        """Delete the cached files of the shard that is needed last, as `evict` does."""
        return self.runtime.evict_coldest()

    def stats(self, *, node: bool = False) -> dict[str, Any]:
        """Return the counts of this rank and its workers, and the present state of the cache.

        With ``node`` those of all processes that use one of the cache folders at this moment.
        """
        from mds.cache.recovery import used_bytes

        table = self._counters
        if node and (folders := self._folder_ids):
            from mds.cache.recovery import processes_using

            users = {pid for folder in self._folders for pid in processes_using(folder)}
            rows = read_node_rows(users, folders, {table.inode: table.rows_of_all()})
        else:
            rows = table.rows_of_rank()
        runtime = self._runtime
        out = {**sum_rows(rows), "processes": sum(map(is_process, rows["process"].tolist()))}
        out["used_bytes"] = sum(map(used_bytes, self._folders)) if len(rows) else 0
        out["limit"] = self.limit
        return {**out, **(_NOTHING_OPEN if runtime is None else runtime.stats())}

    def close(self) -> None:
        """Close everything that this process has open. Closing twice is fine."""
        runtime, self._runtime = self._runtime, None
        self._random_access = None
        if runtime is not None:
            runtime.close()

    def __enter__(self) -> ShardCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        shards = sum(map(len, self._folders))
        state = repr(self._runtime) if self._runtime is not None else f"{shards} shards, not in use"
        return f"<ShardCache {state}>"


_NOTHING_OPEN = {"open_shards": 0, "held_shards": 0, "opening_shards": []}

_caches: weakref.WeakSet[ShardCache] = weakref.WeakSet()
_making = new_lock()


def _start_anew() -> None:
    """In a forked child: what the parent has open is the parent's."""
    for cache in list(_caches):
        cache.start_anew()


def live_caches() -> list[ShardCache]:
    """Return the caches of this process that are still referenced."""
    return list(_caches)


_inherited: list[ProcessCache] = []  # kept, so that no destructor of the parent's things runs here
call_in_child(_start_anew)
