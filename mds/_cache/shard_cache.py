"""The public side of the cache: the shards of several sources, under one limit.

A `ShardCache` is configuration. Creating one opens nothing and starts nothing, and it pickles.
Every process that uses it (forked, spawned, or the one that created it) has its own `ProcessCache`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mds._cache.counters import Counters, CounterTable, folder_ids, read_node_rows, sum_rows
from mds._cache.folder import CacheFolder
from mds._cache.process_cache import CacheTuning, ProcessCache
from mds._process.fork_safe import call_in_child, new_lock
from mds._readers.fields import ColumnSelection, check_columns
from mds._redaction import get_logger
from mds._words import plural
from mds.errors import CacheLimitError, MdsError
from mds.storage._files import is_process

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mds._cache.source import Source
    from mds._readers.base import Reader


log = get_logger("mds.cache")


class ShardCache:
    """The shards of several sources, numbered from 0 through all sources in order.

    Args:
        sources: The sources of the dataset.
        limit: Most bytes in all cache folders together; None (default): no limit.
        allow_unsafe_types: Whether columns may be decoded that can run code, such as pickles
            (default False).
        columns: Columns to decode (default: all).
        tuning: Waiting times and transfer limits.

    Raises:
        UnsafeTypeError: A column can run code, and ``allow_unsafe_types`` is False.
        ConfigError: A column in ``columns`` does not exist.
        CacheLimitError: The limit is too small for two shards.
        All of them are ValueErrors.
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
        _caches.add(self)  # so that a forked child can reset it

    @property
    def _folder_ids(self) -> list[int]:
        """Numbers of the cache folders, see `folder_ids`."""
        return folder_ids([folder.source.folder for folder in self._folders if folder.is_cached])

    def _make_folders(self) -> list[CacheFolder]:
        """Return the cache folder of each source, which is not created or opened yet."""
        folders, first = [], 0
        for number, source in enumerate(self.sources):
            folders.append(CacheFolder(source, number, first))
            first += len(source.index)
        return folders

    def _check_limit(self) -> None:
        """Raise CacheLimitError for a limit that is too small; warn of network file systems."""
        if self.limit is None:
            return
        cached = [folder for folder in self._folders if folder.is_cached]
        if not cached:
            return
        from mds._cache import policy
        from mds._cache.recovery import control_bytes
        from mds._units import format_bytes
        from mds.storage._local import network_kind

        control = sum(control_bytes(folder) for folder in cached)
        for folder in cached:
            if folder.source_folder is None and (kind := network_kind(folder.root)) is not None:
                log.warning(
                    "%s is on a network file system (%s), where nodes do not share cache_limit "
                    "and could evict files that another node reads. Give every node its own "
                    "folder, best on its own disk.",
                    folder.root,
                    kind,
                )
        largest = max(folder.largest() for folder in cached)
        min_limit = policy.least_limit(control, largest)
        if self.limit < min_limit:
            raise CacheLimitError(
                f"cache_limit={self.limit} ({format_bytes(self.limit)}) is too small: the indexes "
                f"and ledgers take {control} bytes, and the largest shard takes {largest} bytes. "
                f"Set cache_limit to {min_limit} ({format_bytes(min_limit)}) or more."
            )

    # ------------------------------------------------------------------ one process

    @property
    def runtime(self) -> ProcessCache:
        """State of the cache in this process, created when it is first used."""
        runtime = self._runtime
        if runtime is None:
            with _runtime_lock:
                runtime = self._runtime
                if runtime is None:
                    runtime = ProcessCache(
                        self._folders,
                        self.limit,
                        self.allow_unsafe_types,
                        self.columns,
                        self.tuning,
                        self._new_counters(),
                    )
                    self._runtime = runtime
        return runtime

    def _new_counters(self) -> Counters:
        """Return new counters of this process, which the other processes of its rank can read."""
        return Counters(self._counters.claim_row(self._folder_ids))

    def start_anew(self) -> None:
        """Forget the readers and folders of the parent process, in a forked child.

        They are kept unused, since closing them would close those of the parent too.
        """
        if self._runtime is not None:
            _inherited.append(self._runtime)
            self._runtime = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the configuration, without what this process has open."""
        return {
            "sources": self.sources,
            "limit": self.limit,
            "allow_unsafe_types": self.allow_unsafe_types,
            "columns": self.columns,
            "tuning": self.tuning,
            "_counters": self._counters,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the configuration; nothing is opened."""
        self.__dict__.update(state)
        self._folders = self._make_folders()
        self._runtime = None
        _caches.add(self)  # so that a forked child can reset it

    # ------------------------------------------------------------------ shards

    def prepare(self, shard: int, *, blocking: bool = True) -> None:
        """Fetch a shard; without ``blocking``, start to fetch it in a thread and return at once.

        An error in the thread is logged, and raised when the shard is read.
        """
        if not blocking:
            threading.Thread(target=self._prepare_or_log, args=(shard,), daemon=True).start()
            return
        self.hold(shard)
        self.release(shard)

    def _prepare_or_log(self, shard: int) -> None:
        """Fetch a shard in a thread. No caller can catch its error, so log it."""
        try:
            self.prepare(shard)
        except MdsError as error:
            log.warning(
                "Shard %d could not be fetched ahead and is fetched when it is read: %s",
                shard,
                error,
            )

    def hold(self, shard: int) -> Reader:
        """Return an open reader of a whole shard, fetched and checked if needed.

        The shard is not evicted until `release` has been called as often.

        Raises:
            StoreError: The remote failed; among others NotFoundError and CorruptError.
            ShardError: The shard is damaged (a ValueError).
        """
        return self.runtime.hold(shard)

    def release(self, shard: int) -> None:
        """End one use of a reader that `hold` returned."""
        runtime = self._runtime
        if runtime is not None:
            runtime.release(shard)

    def sample(self, shard: int, row: int) -> dict[str, Any]:
        """Return the sample at ``row`` of a shard.

        If the shard is not local, the sample is fetched by range, unless the whole shard is worth
        fetching.
        """
        runtime = self._runtime
        if runtime is not None:
            # Without a limit a reader may be used without counting its uses.
            reader = runtime.readers.open.get(shard)
            if reader is not None:
                try:
                    return reader.get(row)
                except Exception:
                    if runtime.readers.open.get(shard) is reader:
                        raise  # else another thread closed it meanwhile
        return self.samples(shard, [row])[0]

    def samples(self, shard: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples of one shard, in the requested order."""
        return self.runtime.samples(shard, rows)

    def samples_many(
        self, shards: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> list[dict[str, Any]]:
        """Return the samples at ``rows`` of ``shards``, both (n,), fetched concurrently."""
        return self.runtime.samples_many(shards, rows)

    @property
    def usage(self) -> int:
        """Bytes in the cache folders, including those that are being fetched."""
        return self.runtime.usage()

    def evict(self, shard: int) -> bool:
        """Delete the cached files of a shard, if they are ours and not in use.

        Returns whether they are deleted.
        """
        return self.runtime.evict(shard)

    def evict_coldest(self) -> bool:
        """Delete the cached files of the shard that is needed last, as `evict` does."""
        return self.runtime.evict_coldest()

    def stats(self, *, node: bool = False) -> dict[str, Any]:
        """Return the counters of this rank and its workers, and the state of the cache.

        With ``node`` (default False), the counters are those of all processes of the machine that
        use one of the cache folders now.
        """
        cached = [folder for folder in self._folders if folder.is_cached]
        table = self._counters
        if node and (folders := self._folder_ids):
            from mds._cache.recovery import processes_using

            # Counters of other processes are read from files; those of this rank are in memory.
            users = {pid for folder in cached for pid in processes_using(folder)}
            rows = read_node_rows(users, folders, {table.inode: table.rows_of_all()})
        else:
            rows = table.rows_of_rank()
        runtime = self._runtime
        out = {**sum_rows(rows), "processes": sum(map(is_process, rows["process"].tolist()))}
        out["used_bytes"] = _used_bytes(cached) if len(rows) else 0
        out["limit"] = self.limit
        return {**out, **(_NOTHING_OPEN if runtime is None else runtime.stats())}

    def close(self) -> None:
        """Close everything that this process has open. Closing twice is fine."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.close()

    def __enter__(self) -> ShardCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        shards = sum(map(len, self._folders))
        state = (
            repr(self._runtime)
            if self._runtime is not None
            else f"{plural(shards, 'shard')}, not in use"
        )
        return f"<ShardCache {state}>"


def _used_bytes(folders: Sequence[CacheFolder]) -> int:
    """Return the bytes in cache folders, by their ledgers."""
    if not folders:
        return 0
    from mds._cache.recovery import used_bytes

    return used_bytes(folders)


_NOTHING_OPEN = {"open_shards": 0, "held_shards": 0, "opening_shards": []}

_caches: weakref.WeakSet[ShardCache] = weakref.WeakSet()
_runtime_lock = new_lock()


def _start_anew() -> None:
    """Forget what the parent process has open, in all caches of a forked child."""
    for cache in list(_caches):
        cache.start_anew()


def live_caches() -> list[ShardCache]:
    """Return the caches of this process that are still referenced."""
    return list(_caches)


#: Caches of the parent process, kept so that nothing of them is closed here.
_inherited: list[ProcessCache] = []
call_in_child(_start_anew)
