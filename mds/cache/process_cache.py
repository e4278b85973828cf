"""The cache as one process has it: open folders, open readers, and work under way.

It joins the three parts of the cache: which readers are open (`ReaderPool`), how a shard gets here
(`ShardFetcher`), and what is on the disk (`CacheFolder` and its ledger). A shard is pinned while it
is in use, if there is a limit; without one nothing is evicted, and readers stay open in thousands,
since a mapped file costs no descriptor.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache import policy
from mds.cache.catalog import Catalog
from mds.cache.concurrency import ByteSemaphore, Pool
from mds.cache.counters import Counters
from mds.cache.fetch import ShardFetcher
from mds.cache.folder import CacheFolder
from mds.cache.ledger_file import MANAGED, UNMANAGED
from mds.cache.open_readers import OpenReader, ReaderPool
from mds.cache.peers import Peers
from mds.cache.ranged import RangeReader, memory_reader
from mds.cache.tuning import CacheTuning
from mds.errors import NotFoundError
from mds.events import Waited, emit
from mds.process.stopwatch import running_watch
from mds.readers import open_reader, open_sparse
from mds.redaction import get_logger
from mds.storage.transfer_times import TIMES
from mds.units import format_bytes

log = get_logger("mds.cache")

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.budget import Budget
    from mds.cache.recovery import OpenFolder
    from mds.index import ShardInfo
    from mds.readers import ColumnSelection, Reader

#: Counts that the log line of a slow wait tells, in its order.
_TOLD = ("fetched_shards", "ranged_reads", "retries", "evicted_shards", "in_memory_shards")
MAX_OPEN_ATTEMPTS = 8  # others may evict a shard between our fetch and our look


class ProcessCache:
    """Everything of a ShardCache that belongs to one process."""

    def __init__(
        self,
        folders: Sequence[CacheFolder],
        limit: int | None,
        allow_unsafe_types: bool,
        columns: ColumnSelection,
        tuning: CacheTuning,
        counters: Counters,
    ) -> None:
        self.catalog = Catalog(folders)
        self.limit = limit
        self.tuning = tuning
        self.counters = counters
        self.readers = ReaderPool()
        self.fetcher = ShardFetcher(self.catalog, limit, self.readers, self.counters, tuning)
        self.peers = Peers(self.fetcher.folders)
        self._unsafe, self._columns = allow_unsafe_types, columns
        self._verified: set[int] = set()  # shards of the user's own whose digest was right
        self._bytes_in_flight = ByteSemaphore(lambda: tuning.max_bytes_in_flight)
        self._range_pool = Pool(tuning.max_range_requests, "mds-range")
        self._ranges = RangeReader(self._range_pool)
        self._awaited: int | None = None
        self._warned_at = -10 * tuning.slow_wait_seconds
        self.is_limit_warned = False
        if limit is not None:
            self._open_folders()
            from mds.cache.budget import keep_limit

            keep_limit(self.budget, self.peers)

    # ------------------------------------------------------------------ folders

    @property
    def budget(self) -> Budget:
        """Budget that keeps the folders below the limit."""
        return self.fetcher.budget

    def is_local(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return a mask of the shards that the ledgers list as present; cheap for thousands."""
        out = np.zeros(len(shards), np.bool_)
        for folder, mine, numbers in self.catalog.groups(shards):
            if folder.source_folder is not None:
                out[mine] = folder.index.zip_size[numbers] == 0
                continue
            opened = self.fetcher.open(folder)
            if opened is not None:
                state = opened.ledger.refresh()["state"][numbers]
                out[mine] = (state == MANAGED) | (state == UNMANAGED)
        return out

    @property
    def is_bounded(self) -> bool:
        """Whether anything may have to be evicted."""
        return self.limit is not None and self.catalog.is_cached

    @property
    def control_bytes(self) -> int:
        """Bytes in the cache folders that are no shards."""
        return sum(opened.ledger.size for opened in self.fetcher.folders)

    def is_cacheable(self, shard: int) -> bool:
        """Whether a shard is not simply the user's own file."""
        folder, number = self.catalog.locate(shard)
        return folder.in_place(folder.index.shard(number)) is None

    def is_far(self, shard: int) -> bool:
        """Whether a shard is behind a network."""
        return self.fetcher.downloaders[self.catalog.locate(shard)[0].number].is_far

    def can_range(self, shard: int) -> bool:
        """Whether rows of a shard can be fetched by themselves, and digests are not wanted."""
        folder, number = self.catalog.locate(shard)
        if folder.is_decoded and folder.source.data is not None:
            return folder.source.data.can_range(number)
        return not (
            folder.validate_hash
            or folder.source_folder is not None
            or folder.index.zip_size[number]
        )

    # ------------------------------------------------------------------ whole shards

    def hold(self, shard: int) -> Reader:
        """Return an open reader of a whole shard, fetched if needed; `release` it once a call."""
        return self.readers.acquire(shard, self._open)

    def hold_local(self, shard: int) -> Reader | None:
        """`hold` a shard that is in the cache; None when it is not, or is just being evicted."""
        reader = self.readers.acquire_open(shard)
        if reader is not None:
            return reader
        folder, number = self.catalog.locate(shard)
        opened = self.fetcher.open(folder)
        if opened is None:
            return None
        entry = self._open_cached(opened, number, folder.index.shard(number))
        if entry is None:
            return None
        self.counters.add(hits=1)
        return self.readers.add(shard, entry)

    def release(self, shard: int) -> None:
        """Give a held shard back."""
        self.readers.release(shard)

    def _open(self, shard: int) -> OpenReader:
        folder, number = self.catalog.locate(shard)
        info = folder.index.shard(number)
        in_place = folder.in_place(info)
        if in_place is not None:
            if folder.validate_hash and shard not in self._verified:
                folder.check_files(info, in_place)
                self._verified.add(shard)
            self.counters.add(hits=1)
            return OpenReader(self._open_files(in_place, info, folder))
        opened = self.fetcher.open(folder)
        if opened is None:
            return self._open_unwritable(folder, info)
        for attempt in range(MAX_OPEN_ATTEMPTS):
            entry = self._open_cached(opened, number, info)
            if entry is not None:
                self.counters.add(hits=not attempt, misses=bool(attempt))
                return entry
            with self._waiting_here(shard):
                if not self.fetcher.ensure_local(shard):
                    break
        with self._waiting_here(shard):
            return self._open_in_memory(folder, info)

    def _open_cached(self, opened: OpenFolder, number: int, info: ShardInfo) -> OpenReader | None:
        """Return a reader of a cached shard, pinned under a limit, or None if it is not cached."""
        ledger = opened.ledger
        reader, is_limited = None, self.limit is not None
        if is_limited and not ledger.pin(number):
            return None
        try:
            if self.fetcher.is_ready(opened, number, info):
                info_on_disk = opened.folder.as_found(info)
                reader = self._open_files(opened.folder.root, info_on_disk, opened.folder)
                if not self.fetcher.is_ready(opened, number, info):
                    reader.close()  # exchanged just now
                    reader = None
        except NotFoundError:
            reader = None  # evicted by a job with a limit, just now
        finally:
            if is_limited and reader is None:
                ledger.unpin(number)
        if reader is None:
            return None
        ledger.touch(number)
        return OpenReader(reader, (lambda: ledger.unpin(number)) if is_limited else None)

    def _open_in_memory(self, folder: CacheFolder, info: ShardInfo) -> OpenReader:
        downloader = self.fetcher.downloaders[folder.number]
        with self._bytes_in_flight.acquire(info.raw.size):
            parts, received = downloader.download_to_memory(info)
        self.counters.add(in_memory_shards=1, fetched_bytes=received)
        reader = memory_reader(info, parts, downloader.url(info.raw), self._columns)
        return OpenReader(reader, in_memory=sum(map(len, parts)))

    def _open_unwritable(self, folder: CacheFolder, info: ShardInfo) -> OpenReader:
        if folder.source_folder is not None:
            return self._open_in_memory(folder, info)
        if folder.folder_of(info) is None:
            from mds.cache.recovery import unwritable

            raise unwritable(folder)
        folder.check_files(info, folder.root)
        return OpenReader(self._open_files(folder.root, info, folder))

    def _open_files(self, root: str, info: ShardInfo, folder: CacheFolder) -> Reader:
        data = folder.source.data
        if data is not None and not folder.is_decoded:
            return data.reader(info.number, root, self._columns)
        return open_reader(root, info, allow_unsafe_types=self._unsafe, columns=self._columns)

    # ------------------------------------------------------------------ some rows

    def read_rows(self, shard: int, rows: Sequence[int], gap: int = policy.REQUEST) -> Reader:
        """Return a reader of some rows of a shard that is not in the cache.

        Ranges are joined over gaps of up to ``gap`` bytes.
        """
        folder, number = self.catalog.locate(shard)
        info, downloader = folder.index.shard(number), self.fetcher.downloaders[folder.number]
        url = downloader.url(info.raw)
        if folder.is_decoded and self.can_range(shard):
            from mds.cache.decode import ShardDecoder

            assert isinstance(downloader, ShardDecoder)
            row_bytes, received = downloader.rows(info, sorted(set(rows)))
            samples = dict(row_bytes)
            self.counters.add(ranged_reads=1, ranged_bytes=received)
        elif self.can_range(shard) and info.raw.size > policy.SMALL_SHARD:
            samples, ranges, received = self._ranges.read(downloader, shard, info, rows, gap)
            self.counters.add(ranged_reads=ranges, ranged_bytes=received)
        else:
            with self._bytes_in_flight.acquire(info.raw.size):
                parts, received = downloader.download_to_memory(info)
                reader = memory_reader(info, parts, url, self._columns)
                samples = {row: bytes(reader.sample_bytes(row)) for row in sorted(set(rows))}
            self.counters.add(in_memory_shards=1, fetched_bytes=received)
        return self._open_sparse(info, samples, url)

    def copy_rows(self, shard: int, reader: Reader, rows: Sequence[int]) -> Reader:
        """Return a reader of copies of some rows of an open shard, which may be closed then."""
        samples = {row: bytes(reader.sample_bytes(row)) for row in sorted(set(rows))}
        return self._open_sparse(self.catalog.info(shard), samples, reader.source)

    def _open_sparse(self, info: ShardInfo, samples: dict[int, bytes], name: str) -> Reader:
        return open_sparse(
            info, samples, name, allow_unsafe_types=self._unsafe, columns=self._columns
        )

    # ------------------------------------------------------------------ care

    @contextlib.contextmanager
    def waiting_for(self, shard: int) -> Iterator[None]:
        """Note how long the consumer waits for a shard."""
        started, before = time.monotonic(), TIMES.now()
        self._awaited = shard
        try:
            yield
        finally:
            self._awaited = None
            seconds = time.monotonic() - started
            watch = running_watch()
            if watch is not None:
                # Of the transfers that ended meanwhile; of all if another process has fetched it.
                now = TIMES.now()
                watch.add_wait(seconds, now.since(before).shares if now != before else now.shares)
            name = self.catalog.info(shard).raw.basename
            self.counters.add_wait(seconds, name)
            emit(Waited(shard, seconds))
            self._warn_if_slow(seconds, shard, name)

    def _waiting_here(self, shard: int) -> contextlib.AbstractContextManager[None]:
        """Note a wait for a shard if this thread makes batches, and not if it fetches ahead."""
        return contextlib.nullcontext() if running_watch() is None else self.waiting_for(shard)

    def _warn_if_slow(self, seconds: float, shard: int, name: str) -> None:
        now = time.monotonic()
        slow = self.tuning.slow_wait_seconds
        if seconds < slow or now < self._warned_at + 10 * slow:
            return
        from mds.storage import redact

        self._warned_at = now
        folder, number = self.catalog.locate(shard)
        size = int(folder.index.zip_size[number] or folder.index.raw_size[number])
        counts = self.counters
        log.warning(
            "The reader waited %.1f s for %s (%s from %s); so far %d shards and %d ranges came, "
            "%d requests were tried again, %d shards were evicted, %d read in memory.",
            seconds,
            name,
            format_bytes(size),
            redact(folder.remote),
            *map(counts.__getitem__, _TOLD),
        )

    def usage(self) -> int:
        """Bytes in the cache folders, those that are being fetched included."""
        self._open_folders()
        return self.budget.used

    def evict(self, shard: int) -> bool:
        """Delete the cached files of a shard, if they are ours and not in use."""
        folder, number = self.catalog.locate(shard)
        opened = None if folder.source_folder is not None else self.fetcher.open(folder)
        return opened is not None and self.budget.evict(opened, number)

    def evict_coldest(self) -> bool:
        """Delete the cached files of the shard that is needed last, as `evict` does."""
        self._open_folders()
        return self.budget.evict_coldest()

    def _open_folders(self) -> None:
        for folder in self.catalog.folders:
            if folder.source_folder is None:
                self.fetcher.open(folder)

    def stats(self) -> dict[str, Any]:
        """Return the numbers of open and used readers of this process."""
        open_shards, held_shards = self.readers.counts()
        opening = self.readers.opening
        return {"open_shards": open_shards, "held_shards": held_shards, "opening_shards": opening}

    def close(self) -> None:
        """Close all readers and ledgers. Closing twice is fine."""
        self._range_pool.close()
        self.readers.close()
        self.fetcher.close()

    def __repr__(self) -> str:
        opening, awaited = len(self.readers.opening), self._awaited
        open_, in_use = self.readers.counts()
        limit = "no limit" if self.limit is None else format_bytes(self.limit)
        waiting = "" if awaited is None else f", waiting for shard {awaited}"
        return (
            f"{format_bytes(self.budget.used)} of {limit}: {open_} open, {in_use} in hand, "
            f"{opening} opening{waiting} | {self.counters['fetched_shards']} fetched, "
            f"{self.counters['evicted_shards']} evicted"
        )
