"""The cache as one process has it: its open readers, open folders and transfers.

`ProcessCache` joins the parts of the cache:

- `ReaderPool`: which readers are open;
- `ShardFetcher`: how a shard gets into its cache folder;
- `UncachedReads`: how samples are read of shards that are not in the cache;
- `Peers`: which other processes read from the same folders.

The parts that only remote data need are created when they are first used. Under a limit, a shard in
use is pinned so that no process evicts it. Without a limit nothing is evicted, and thousands of
readers stay open, since a mapped file needs no descriptor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._cache import policy
from mds._cache.concurrency import Paced
from mds._cache.folder import CacheFolder, Catalog
from mds._cache.open_readers import OpenReader, ReaderPool
from mds._process.fork_safe import new_lock, new_rlock
from mds._process.stopwatch import TIMES, running_watch
from mds._readers import open_reader, open_sparse
from mds._redaction import get_logger
from mds.errors import NotFoundError
from mds.events import Waited, emit

log = get_logger("mds.cache")

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._cache.budget import Budget
    from mds._cache.counters import Counters
    from mds._cache.fetch import ShardFetcher
    from mds._cache.ledger_file import NodeProgress
    from mds._cache.recovery import OpenFolder
    from mds._cache.uncached import UncachedReads
    from mds._index.shard_object import ShardInfo
    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection

#: Counts in the warning of a slow wait, in its order.
_WARNED_COUNTS = ("fetched_shards", "ranged_reads", "retries", "evicted_shards", "in_memory_shards")
MAX_OPEN_ATTEMPTS = 8  # other processes may evict a shard after it was fetched
_MAX_RANGED_SHARDS = 4096  # shards whose ranges are counted
_RANDOM_THREADS = 16  # threads that read the shards of one `samples_many`


@dataclasses.dataclass(frozen=True, slots=True)
class CacheTuning:
    """Waiting times and transfer limits of a cache; the defaults are right for all but tests."""

    #: Seconds that a reader may wait for a shard before a warning.
    slow_wait_seconds: float = 5.0
    #: Seconds that another process may take to fetch a shard before it is fetched twice.
    peer_timeout_seconds: float = 600.0
    #: Seconds that the lock of a ledger may be held, which takes microseconds normally.
    lock_timeout_seconds: float = 60.0
    #: Seconds at most that the first rows of an epoch are fetched before any whole shard is.
    head_start_seconds: float = 0.5
    #: Number of requests for ranges at one time.
    max_range_requests: int = 16
    #: Bytes of whole shards that are being read into memory at one time.
    max_bytes_in_flight: int = 256 << 20


class ProcessCache:
    """State of a `ShardCache` in one process. Thread-safe.

    ``shard`` is the number of a shard in the dataset, and ``number`` its number in its folder.

    Args:
        folders: The cache folders of the sources, in order.
        limit: Most bytes in all cache folders; None: no limit.
        allow_unsafe_types: Whether columns may be decoded that can run code, such as pickles.
        columns: Columns to decode.
        tuning: Waiting times and transfer limits.
        counters: Counters of this process.
    """

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
        #: Cache folders that this process has open, sorted by path: they are locked in this order.
        self.open_folders: list[OpenFolder] = []
        self.peers = Peers(self.open_folders)
        self._unsafe, self._columns = allow_unsafe_types, columns
        self._fetcher: ShardFetcher | None = None
        self._uncached: UncachedReads | None = None
        self._parts_lock = new_rlock()  # while one of the two above is created
        self._verified: set[int] = set()  # shards of the user's own folder with the right digest
        self._range_costs: OrderedDict[int, int] = OrderedDict()  # bytes spent so far, by shard
        self._range_lock = new_lock()
        self._awaited: int | None = None  # the shard that a reader waits for, for `repr`
        self._warned_at = -10 * tuning.slow_wait_seconds  # so the first slow wait warns
        #: Whether a warning said that the limit is too small.
        self.is_limit_warned = False
        if limit is not None:
            self._open_folders()
            from mds._cache.budget import keep_limit

            keep_limit(self.budget)

    # ------------------------------------------------------------------ parts

    @property
    def fetcher(self) -> ShardFetcher:
        """Fetcher of whole shards, and the open cache folders."""
        if self._fetcher is None:
            with self._parts_lock:
                if self._fetcher is None:
                    from mds._cache.fetch import ShardFetcher

                    self._fetcher = ShardFetcher(
                        self.catalog,
                        self.limit,
                        self.readers,
                        self.counters,
                        self.open_folders,
                        peer_timeout=self.tuning.peer_timeout_seconds,
                        lock_timeout=self.tuning.lock_timeout_seconds,
                    )
        return self._fetcher

    @property
    def uncached(self) -> UncachedReads:
        """Reads of shards that are not in the cache."""
        if self._uncached is None:
            with self._parts_lock:
                if self._uncached is None:
                    from mds._cache.uncached import UncachedReads

                    self._uncached = UncachedReads(
                        self.catalog,
                        self.fetcher.downloaders,
                        self.counters,
                        self._columns,
                        allow_unsafe_types=self._unsafe,
                        max_requests=self.tuning.max_range_requests,
                        max_bytes=self.tuning.max_bytes_in_flight,
                    )
        return self._uncached

    @property
    def budget(self) -> Budget:
        """Budget that keeps the folders below the limit."""
        return self.fetcher.budget

    # ------------------------------------------------------------------ facts about shards

    def is_local(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return a mask of the shards that are on this machine, by the ledgers, shape (n,).

        Cheap for thousands of shards.
        """
        out = np.zeros(len(shards), np.bool_)
        for folder, mask, numbers in self.catalog.groups(shards):
            if folder.source_folder is not None:  # read in place, unless it is compressed
                out[mask] = folder.index.zip_size[numbers] == 0
                continue
            opened = self.fetcher.open(folder)
            if opened is not None:
                out[mask] = opened.ledger.has_files(numbers)
        return out

    @property
    def is_bounded(self) -> bool:
        """Whether shards may have to be evicted."""
        return self.limit is not None and self.catalog.is_cached

    @property
    def control_bytes(self) -> int:
        """Bytes in the cache folders that are no shards."""
        return sum(opened.ledger.size for opened in self.open_folders)

    def is_cacheable(self, shard: int) -> bool:
        """Whether a shard is kept in a cache folder, and not read in the user's own folder."""
        folder, number = self.catalog.locate(shard)
        return folder.in_place(folder.index.shard(number)) is None

    def is_far(self, shard: int) -> bool:
        """Whether a shard is fetched over a network."""
        return self.fetcher.downloaders[self.catalog.locate(shard)[0].number].is_far

    def can_range(self, shard: int) -> bool:
        """Whether rows of a shard can be fetched alone, see `CacheFolder.can_range`."""
        folder, number = self.catalog.locate(shard)
        return folder.can_range(number)

    # ------------------------------------------------------------------ whole shards

    def hold(self, shard: int) -> Reader:
        """Return an open reader of a whole shard, fetched if needed.

        Call `release` once for each call.
        """
        return self.readers.acquire(shard, self._open)

    def hold_local(self, shard: int) -> Reader | None:
        """Return an open reader of a cached shard, or None if it is not cached or being evicted.

        Nothing is fetched. Call `release` once for each reader.
        """
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
        """End one use of a reader that `hold` returned."""
        self.readers.release(shard)

    def _open(self, shard: int) -> OpenReader:
        """Open a shard, fetched if needed; a function for `ReaderPool.acquire`.

        It is read in the user's own folder or in the cache. If it cannot be kept in the cache, it
        is fetched into memory.
        """
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
            return self._open_read_only(folder, info)
        # Another process may evict the shard after it was fetched and before it is opened.
        for attempt in range(MAX_OPEN_ATTEMPTS):
            entry = self._open_cached(opened, number, info)
            if entry is not None:
                # A hit if the shard was there at the first attempt.
                self.counters.add(hits=not attempt, misses=bool(attempt))
                return entry
            with self._record_wait(shard):
                if not self.fetcher.ensure_local(shard):  # it cannot be kept
                    break
        with self._record_wait(shard):
            return self.uncached.open_in_memory(folder, info)

    def _open_cached(self, opened: OpenFolder, number: int, info: ShardInfo) -> OpenReader | None:
        """Return a reader of a cached shard, or None if it is not cached or is being evicted.

        Under a limit, the shard is pinned until the reader is closed.

        Args:
            opened: The cache folder.
            number: Number of the shard in the folder.
            info: Entry of the shard in its index.
        """
        ledger = opened.ledger
        reader, is_limited = None, self.limit is not None
        if is_limited and not ledger.pin(number):
            return None
        try:
            if self.fetcher.is_ready(opened, number, info):
                info_on_disk = opened.folder.with_size_on_disk(info)
                reader = self._open_files(opened.folder.root, info_on_disk, opened.folder)
                if not self.fetcher.is_ready(opened, number, info):
                    reader.close()  # the file was replaced meanwhile
                    reader = None
        except NotFoundError:
            reader = None  # another job evicted it meanwhile
        finally:
            if is_limited and reader is None:
                ledger.unpin(number)
        if reader is None:
            return None
        ledger.touch(number)
        return OpenReader(reader, (lambda: ledger.unpin(number)) if is_limited else None)

    def _open_read_only(self, folder: CacheFolder, info: ShardInfo) -> OpenReader:
        """Open a shard whose cache folder cannot be written.

        A shard of the user's own folder is decompressed in memory. Any other one must be complete
        in the cache folder, else CacheError is raised.
        """
        if folder.source_folder is not None:
            return self.uncached.open_in_memory(folder, info)
        if folder.folder_of(info) is None:
            from mds._cache.recovery import unwritable

            raise unwritable(folder)
        folder.check_files(info, folder.root)
        return OpenReader(self._open_files(folder.root, info, folder))

    def _open_files(self, root: str, info: ShardInfo, folder: CacheFolder) -> Reader:
        """Open the raw files of a shard in the folder ``root``."""
        data = folder.source.data
        # A source in another format is read as it is, unless its shards are decoded to MDS.
        if data is not None and not folder.is_decoded:
            return data.reader(info.number, root, self._columns)
        reader = open_reader(root, info, allow_unsafe_types=self._unsafe, columns=self._columns)
        remote = folder.source.remote
        if data is not None and remote is not None:
            options = folder.source.options
            reader.locate = functools.partial(data.locate, info.number, remote, options)
        return reader

    # ------------------------------------------------------------------ some rows of a shard

    def samples(self, shard: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples of one shard, in the requested order.

        A few rows of a shard that is not local are fetched by range. When the ranges of a shard
        have cost as much as the shard, it is fetched whole.
        """
        if self._prefers_ranges(shard, len(rows)):
            return self.uncached.read_rows(shard, rows).samples(rows)
        reader = self.hold(shard)
        try:
            return reader.samples(rows)
        finally:
            self.release(shard)

    def samples_many(
        self, shards: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> list[dict[str, Any]]:
        """Return the samples at ``rows`` of ``shards``, both (n,), in the requested order.

        Shards that are not local are fetched concurrently.
        """
        # Group the samples by shard: each group has the indices in ``rows`` of one shard.
        order = np.argsort(shards, kind="stable")
        values, begins = np.unique(shards[order], return_index=True)
        groups = np.split(order, begins[1:]) if len(order) else []
        is_local = self.is_local(values)
        out: list[Any] = [None] * len(order)

        def read(shard: int, group: npt.NDArray[np.int64]) -> None:
            """Read the samples of one shard into their places in the result."""
            samples = self.samples(shard, rows[group].tolist())
            for position, sample in zip(group.tolist(), samples, strict=True):
                out[position] = sample

        requests = list(zip(values.tolist(), groups, is_local.tolist(), strict=True))
        # Threads fetch remote shards, while this one reads the local ones.
        with contextlib.ExitStack() as stack:
            futures = []
            if not is_local.all():
                from mds._cache.concurrency import Pool

                pool = stack.enter_context(contextlib.closing(Pool(_RANDOM_THREADS, "mds-random")))
                for shard, group, is_here in requests:
                    if not is_here:
                        futures.append(pool.submit(read, shard, group))
            for shard, group, is_here in requests:
                if is_here:
                    read(shard, group)
            for future in futures:
                future.result()
        return out

    def _prefers_ranges(self, shard: int, rows: int) -> bool:
        """Whether to fetch so many rows by range rather than the whole shard; count their cost.

        The costs (in bytes) of all calls for a shard are added. When they reach the size of the
        shard, it is fetched whole, so at most twice its size is transferred in total.
        """
        if shard in self.readers or not self.can_range(shard):
            return False
        if self.is_local(np.array([shard], np.int64))[0]:
            return False
        cost = policy.range_cost(rows, self.catalog.row_size(shard))
        with self._range_lock:
            cost += self._range_costs.pop(shard, 0)
            self._range_costs[shard] = cost
            while len(self._range_costs) > _MAX_RANGED_SHARDS:  # forget the oldest
                self._range_costs.popitem(last=False)
        return not policy.pays(int(self.catalog.sizes[shard]), cost, 0)

    def copy_rows(self, shard: int, reader: Reader, rows: Sequence[int]) -> Reader:
        """Return a reader of copies of some rows, which works after ``reader`` is closed."""
        samples = {row: bytes(reader.sample_bytes(row)) for row in sorted(set(rows))}
        return open_sparse(
            self.catalog.info(shard),
            samples,
            reader.source,
            allow_unsafe_types=self._unsafe,
            columns=self._columns,
        )

    # ------------------------------------------------------------------ waits

    @contextlib.contextmanager
    def waiting_for(self, shard: int) -> Iterator[None]:
        """Record the time of the block as a wait of the reader for a shard.

        It is added to the counters, to the phases of the batch that this thread makes, and emitted
        as an event.
        """
        started, before = time.monotonic(), TIMES.now()
        self._awaited = shard
        try:
            yield
        finally:
            self._awaited = None
            seconds = time.monotonic() - started
            watch = running_watch()
            if watch is not None:
                # Divide the wait into requests, transfers and decompression like the transfers that
                # ended meanwhile. If none did, because another process fetched the shard, divide it
                # like all transfers of this process so far.
                now = TIMES.now()
                watch.add_wait(seconds, now.since(before).shares if now != before else now.shares)
            name = self.catalog.info(shard).raw.basename
            self.counters.add_wait(seconds, name)
            emit(Waited(shard, seconds))
            self._warn_if_slow(seconds, shard, name)

    def _record_wait(self, shard: int) -> contextlib.AbstractContextManager[None]:
        """Record a wait for a shard if this thread makes batches, and not if it fetches ahead."""
        return contextlib.nullcontext() if running_watch() is None else self.waiting_for(shard)

    def _warn_if_slow(self, seconds: float, shard: int, name: str) -> None:
        """Warn about a wait longer than ``slow_wait_seconds``, once in ten times that span.

        Args:
            seconds: Length of the wait.
            shard: The shard that the reader waited for.
            name: Name of its file.
        """
        now = time.monotonic()
        slow = self.tuning.slow_wait_seconds
        if seconds < slow or now < self._warned_at + 10 * slow:
            return
        from mds._units import format_bytes
        from mds.storage._url import redact

        self._warned_at = now
        folder, number = self.catalog.locate(shard)
        size = int(folder.index.zip_size[number] or folder.index.raw_size[number])
        counts = self.counters
        log.warning(
            "The reader waited %.1f s for %s (%s from %s); so far: %d shards and %d ranges "
            "fetched, %d requests retried, %d shards evicted, %d read in memory.",
            seconds,
            name,
            format_bytes(size),
            redact(folder.remote),
            *map(counts.__getitem__, _WARNED_COUNTS),
        )

    # ------------------------------------------------------------------ the cache folders

    @property
    def used(self) -> int:
        """Bytes in the open cache folders, including those that are being fetched."""
        return sum(opened.ledger.used for opened in self.open_folders)

    def usage(self) -> int:
        """Open all cache folders and return their bytes, also of those that are read-only."""
        from mds._cache.recovery import used_bytes

        self._open_folders()
        opened = {each.folder.number for each in self.open_folders}
        read_only = [
            each
            for each in self.catalog.folders
            if each.source_folder is None and each.number not in opened
        ]
        return self.used + used_bytes(read_only)

    def evict(self, shard: int) -> bool:
        """Delete the cached files of a shard, if they are ours and not in use.

        Returns whether they are deleted.
        """
        folder, number = self.catalog.locate(shard)
        opened = None if folder.source_folder is not None else self.fetcher.open(folder)
        return opened is not None and self.budget.evict(opened, number)

    def evict_coldest(self) -> bool:
        """Delete the cached files of the shard that is needed last, as `evict` does."""
        self._open_folders()
        return self.budget.evict_coldest()

    def _open_folders(self) -> None:
        """Open the cache folders of all sources, except of those in the user's own folders."""
        for folder in self.catalog.folders:
            if folder.source_folder is None:
                self.fetcher.open(folder)

    def stats(self) -> dict[str, Any]:
        """Return the state of this process's readers.

        ``open_shards`` is the number of open readers, ``held_shards`` of those in use.
        ``opening_shards`` lists the shards that are being opened.
        """
        open_shards, held_shards = self.readers.counts()
        opening = self.readers.opening
        return {"open_shards": open_shards, "held_shards": held_shards, "opening_shards": opening}

    def close(self) -> None:
        """Close all readers and ledgers. Closing twice is fine."""
        if self._uncached is not None:
            self._uncached.close()
        self.readers.close()
        if self._fetcher is not None:
            self._fetcher.close()

    def __repr__(self) -> str:
        from mds._units import format_bytes

        opening, awaited = len(self.readers.opening), self._awaited
        open_, in_use = self.readers.counts()
        limit = "no limit" if self.limit is None else format_bytes(self.limit)
        waiting = "" if awaited is None else f", waiting for shard {awaited}"
        return (
            f"{format_bytes(self.used)} of {limit}: {open_} open, {in_use} in use, "
            f"{opening} opening{waiting} | {self.counters['fetched_shards']} fetched, "
            f"{self.counters['evicted_shards']} evicted"
        )


def fetch_threads(processes: int, *, total: int = 48, limit: int = 16) -> int:
    """Return the number of fetching threads of each process: from 2 to ``limit`` (default 16).

    All ``processes`` of the machine together should have about ``total`` threads (default 48).
    """
    return max(2, min(limit, total // max(processes, 1)))


class Peers:
    """The processes of this machine that read from the same cache folders, including this one.

    A *reader* is one iteration over an epoch. A process may have several of them, and one slot in
    the ledger of each folder. A *team* is all readers of one order, normally of one training job.

    ``open_folders`` is the list of folders that this process has open; it may grow.
    """

    def __init__(self, open_folders: Sequence[OpenFolder]) -> None:
        self._folders = open_folders
        self._progress: dict[int, tuple[int, int]] = {}  # team and time, by reader of this process
        self._lock = new_lock()
        # Looks at the ledgers of all folders, which take milliseconds for thousands of them.
        self._readers, self._jobs = Paced[int](), Paced[int]()
        self._reports: dict[int, Paced[list[NodeProgress]]] = {}  # by team

    @property
    def processes(self) -> int:
        """Number of readers of our cache folders, normally one in each process; at least 1."""
        # 0 before this process has registered its reader.
        return self._readers.get(
            lambda: max((opened.ledger.table.readers() for opened in self._folders), default=1) or 1
        )

    @property
    def threads(self) -> int:
        """Number of transfers that this process may run at a time."""
        return fetch_threads(self.processes)

    @contextlib.contextmanager
    def register_reader(self) -> Iterator[None]:
        """Count one more reader of an epoch in this process while the block runs."""
        folders = list(self._folders)
        for opened in folders:
            opened.ledger.count_reader(1)
        self._forget_looks()
        try:
            yield
        finally:
            for opened in folders:
                opened.ledger.count_reader(-1)
            self._forget_looks()

    def _forget_looks(self) -> None:
        """Look at the ledgers again at the next call of any method."""
        self._readers.forget()
        self._jobs.forget()
        self._reports.clear()

    def report_progress(self, reader: int, team: int, time: int) -> NodeProgress:
        """Report the progress of a reader; return that of all readers of the same order.

        Args:
            reader: Number of the reader, unique in this process.
            team: Number of the team: all readers of one order have the same.
            time: Time of the order before which the reader has read everything.
        """
        from mds._cache.ledger_file import NodeProgress

        with self._lock:
            if self._progress.get(reader, (None,))[0] != team:  # others must notice it at once
                self._forget_looks()
            self._progress[reader] = team, time
            # A process has one slot in each ledger, so of its readers of one order the slowest
            # counts.
            own_times = [served for other, served in self._progress.values() if other == team]
            reader_count = len(self._progress)
            look = self._reports.setdefault(team, Paced())
        reports = look.get(
            lambda: [
                opened.ledger.table.report_progress(team, min(own_times))
                for opened in self._folders
            ]
        )
        # Processes may share only some of the folders, so the widest view counts.
        return NodeProgress(
            min([min(own_times), *(report.served for report in reports)]),
            max([len(own_times), *(report.team_readers for report in reports)]),
            max([reader_count, *(report.all_readers for report in reports)]),
        )

    def jobs(self) -> int:
        """Return the number of orders that are read through our folders, one for each job."""
        return self._jobs.get(
            lambda: (
                max((len(opened.ledger.table.teams()) for opened in self._folders), default=1) or 1
            )
        )

    def forget_reader(self, reader: int) -> None:
        """Record that a reader of this process ended."""
        with self._lock:
            self._progress.pop(reader, None)

    def is_leader(self) -> bool:
        """Whether this process prints the warnings that concern all processes of the node."""
        return all(opened.ledger.is_leader() for opened in self._folders)
