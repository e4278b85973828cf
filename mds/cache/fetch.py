"""Fetches each shard exactly once per node: into its cache folder, or says that there is no room.

The process that holds the fetch lock of a shard fetches it; the others wait in the kernel and then
find it there. When the owner dies the lock passes on by itself. Files that were there before any
process of ours are checked against the index's digest once and are then as good as fetched.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from mds.cache.download import NoRoomError, ShardDownloader
from mds.cache.folder import check_file
from mds.cache.ledger_file import MANAGED, UNMANAGED
from mds.errors import (
    CacheError,
    CorruptError,
    NoSpaceError,
    ReplacedError,
    ShardError,
    StoreError,
    VanishedError,
)
from mds.events import Replaced, emit
from mds.process.fork_safe import new_rlock
from mds.redaction import get_logger
from mds.shardfile.layout import is_shard_name
from mds.storage import redact
from mds.storage.files import MAX_DELETIONS

if TYPE_CHECKING:
    from mds.cache.budget import Bid, Budget
    from mds.cache.catalog import Catalog
    from mds.cache.counters import Counters
    from mds.cache.folder import CacheFolder
    from mds.cache.open_readers import ReaderPool
    from mds.cache.recovery import OpenFolder
    from mds.cache.tuning import CacheTuning
    from mds.index import FileInfo, ShardInfo

log = get_logger("mds.cache")


class ShardFetcher:
    """Fetches the shards of a dataset, each by one process of the node, within the budget."""

    def __init__(
        self,
        catalog: Catalog,
        limit: int | None,
        readers: ReaderPool,
        counters: Counters,
        tuning: CacheTuning,
    ) -> None:
        self._catalog, self._limit = catalog, limit
        self._readers, self._counters, self._tuning = readers, counters, tuning
        self.downloaders = [_make_downloader(folder, counters) for folder in catalog.folders]
        #: The folders that are open, by name: in this order they are locked.
        self.folders: list[OpenFolder] = []
        self._opened: dict[int, OpenFolder | None] = {}
        self._budget: Budget | None = None
        self._lock = new_rlock()
        self._verified: set[tuple[int, int]] = set()  # whose digest this process found right

    def open(self, folder: CacheFolder) -> OpenFolder | None:
        """Return a folder with its ledger, opened when first needed, or None if read-only."""
        with self._lock:
            if folder.number not in self._opened:
                from mds.cache.recovery import open_folder

                opened = open_folder(folder, self._tuning.lock_timeout_seconds)
                self._opened[folder.number] = opened
                if opened is not None:
                    self.downloaders[folder.number].versions.ledger = opened.ledger
                    self.folders.append(opened)
                    self.folders.sort(key=lambda each: each.ledger.control)
            return self._opened[folder.number]

    @property
    def budget(self) -> Budget:
        """Budget of the open folders, created when a shard may have to be evicted."""
        with self._lock:
            if self._budget is None:
                from mds.cache.budget import Budget

                self._budget = Budget(self._limit, self._readers, self.folders, self._counters)
            return self._budget

    def is_ready(self, opened: OpenFolder, shard: int, info: ShardInfo) -> bool:
        """Whether a shard lies in the cache folder and is known to be what the index says."""
        folder, entries = opened.folder, opened.ledger.entries
        if not entries["is_checked"][shard] or entries["state"][shard] not in (MANAGED, UNMANAGED):
            return False
        if folder.validate_hash and (folder.number, shard) not in self._verified:
            return False
        # Files with the stamp that was noted are those that were checked then.
        return int(entries["stamp"][shard]) == folder.stat(info)[1]

    def ensure_local(self, number: int, bid: Bid | None = None, *, is_ahead: bool = False) -> bool:
        """Fetch a shard to the disk unless it is there; return False if there is no room for it.

        With ``is_ahead`` it is enough that another process is fetching it, which is not waited for.
        Raises the StoreError that its remote met, NoSpaceError when the disk is full and nothing
        can be evicted.
        """
        folder, shard = self._catalog.locate(number)
        info = folder.index.shard(shard)
        if folder.in_place(info) is not None:
            return True
        opened = self.open(folder)
        if opened is None:
            return False
        if self.is_ready(opened, shard, info):
            return True
        ledger, started = opened.ledger, time.monotonic()
        lock = ledger.fetch_lock(shard, 0.0 if is_ahead else self._tuning.peer_timeout_seconds)
        if lock is None and is_ahead:
            return True  # another process fetches it
        if lock is None:
            # Alive but stuck. Two downloads of one shard are better than none; under a limit there
            # is room for one, so the second is not kept.
            from mds.storage.locks import describe_processes

            log.warning(
                "Shard %s of %s is being fetched by %s, which did not end in %.0f s; this one %s.",
                shard,
                folder.root,
                describe_processes(ledger.owners(shard)),
                time.monotonic() - started,
                "fetches it too" if self._limit is None else "reads it without keeping it",
            )
            if self._limit is not None:
                return False
        try:
            if ledger.entries["owner"][shard]:
                opened.recover_entries()
            if self._is_present(opened, shard, info):
                return True
            return self._fetch(opened, shard, info, bid, is_ahead=is_ahead)
        finally:
            if lock is not None:
                lock.close()

    def _is_present(self, opened: OpenFolder, shard: int, info: ShardInfo) -> bool:
        """Whether the files are in the folder and valid; delete damaged ones.

        Only for the owner of the fetch lock.
        """
        if self.is_ready(opened, shard, info):
            return True
        folder, entries = opened.folder, opened.ledger.entries
        if folder.folder_of(info) != folder.root or not self._is_right(opened, shard, info):
            return False
        with opened.ledger.change():
            # Looked at once more in here: it may have been evicted while we read it.
            size, stamp = folder.stat(info)
            if entries["owner"][shard] or not size:
                return False
            is_ours = folder.is_ours(info, stamp, _managed_stamp(entries[shard]))
            state = MANAGED if is_ours else UNMANAGED
            opened.ledger.commit(shard, state, size, stamp, is_checked=True)
        self._verified.add((folder.number, shard))
        return True

    def _fetch(
        self, opened: OpenFolder, shard: int, info: ShardInfo, bid: Bid | None, *, is_ahead: bool
    ) -> bool:
        """Make room and download, anew when the folder is deleted under it; False without room."""
        folder, deletions = opened.folder, 0
        entered = folder.peak(info)

        def grow(size: int) -> bool:
            """Enter more bytes of a shard that turns out to be larger than was thought."""
            nonlocal entered
            if size <= entered:
                return True
            entered = size + size // 8
            return self._reserve(opened, shard, entered, bid)

        self._refuse_user_files(opened, shard, info)
        self._delete_stale_files(opened, info)
        while True:
            try:
                if not self._reserve(opened, shard, entered, bid):
                    return False
                try:
                    received = self.downloaders[folder.number].download(info, grow)
                except BaseException:
                    opened.rescan(shard)
                    raise
                break
            except NoRoomError:
                return False
            except NoSpaceError:
                # Without a limit it is not known which shards are needed, and prefetched
                # shards would evict each other.
                is_waiting = is_ahead and self._limit is None
                size = folder.peak(info)
                if is_waiting or not self.budget.evict_for_disk(folder.root, size):
                    if self._limit is not None:
                        return False
                    raise
            except (VanishedError, FileExistsError) as error:
                deletions += 1
                # The remote has another object by now, and further tries cannot change that.
                if isinstance(error, ReplacedError) or deletions > MAX_DELETIONS:
                    raise
        size, stamp = folder.stat(info)
        with opened.ledger.change():
            opened.ledger.set_identity(shard, folder.name_id(info), folder.content_id(info))
            opened.ledger.commit(shard, MANAGED, size, stamp, is_checked=True)
        self._verified.add((folder.number, shard))
        self._counters.add(fetched_shards=1, fetched_bytes=received)
        return True

    def _reserve(self, opened: OpenFolder, shard: int, size: int, bid: Bid | None) -> bool:
        """Enter the bytes of a shard before they come; False when there is no room for them."""
        if self._limit is not None:
            bids = () if bid is None else (bid,)
            return self.budget.reserve(opened, shard, size, *bids)
        with opened.ledger.change():
            opened.ledger.reserve(shard, size)
        return True

    def _is_right(self, opened: OpenFolder, shard: int, info: ShardInfo) -> bool:
        """Check the digests of files that were in the folder; delete damaged ones.

        Files without digests are used if the ledger or their ownership marker identifies them. A
        name and a size prove nothing: all datasets of blocks of tokens have the same.
        """
        folder, entries = opened.folder, opened.ledger.entries
        if not folder.has_digests(info) and not folder.believes(info):
            is_known = entries["state"][shard] in (MANAGED, UNMANAGED)
            is_known = is_known and int(entries["stamp"][shard]) == folder.stat(info)[1]
            return is_known or folder.has_ownership_marker(info)
        for raw, _ in info.files:
            path = folder.path(raw)
            try:
                check_file(raw, path, folder.hash_of(raw), path)
            except CorruptError as error:
                self._refuse_user_files(opened, shard, info)
                self._delete_wrong_file(opened, raw, str(error))
                return False
            except FileNotFoundError:
                return False  # just evicted
        return True

    def _delete_stale_files(self, opened: OpenFolder, info: ShardInfo) -> None:
        """Delete stale or partial files at this shard's paths."""
        folder = opened.folder
        folder.check_inside(info)
        for raw, packed in info.files:
            path = folder.path(raw)
            try:
                size = os.lstat(path).st_size
            except OSError:
                continue
            if size != raw.size and not folder.is_decoded:
                reason = f"{path}: the index says {raw.size} bytes, found {size}"
            elif folder.hash_of(raw) is None:
                reason = f"{path}: nothing tells whose it is"
                if not folder.is_decoded:
                    # It may be the only copy: it goes when the remote says that it has another.
                    try:
                        self.downloaders[folder.number].store.head((packed or raw).basename)
                    except StoreError as error:
                        reason = (
                            f"{path} lies there without a digest and was not fetched into this "
                            f"folder, so it is not used. To read what is there without the "
                            f"remote, give local={folder.root!r} alone."
                        )
                        error.args = (f"{error} {reason}",)
                        raise
            else:
                continue
            with contextlib.suppress(OSError):
                self._delete_wrong_file(opened, raw, reason)

    def _refuse_user_files(self, opened: OpenFolder, shard: int, info: ShardInfo) -> None:
        """Raise CacheError for a file in the way that is the user's own by its name.

        An index may name any file in a folder. What is called as shards are is a damaged or old
        one; whatever else we did not make ourselves stays.
        """
        folder, recorded_stamp = opened.folder, _managed_stamp(opened.ledger.entries[shard])
        folder.check_inside(info)
        for file in folder.files(info):
            path = folder.path(file)
            if is_shard_name(file.basename) or not os.path.lexists(path):
                continue
            if folder.is_ours(info, folder.stat(info)[1], recorded_stamp):
                continue
            raise CacheError(
                f"{path} is in the way of a shard of {redact(folder.remote)} and is not the "
                "library's, as far as its books say. Move it, or choose another local folder."
            )

    def _delete_wrong_file(self, opened: OpenFolder, file: FileInfo, reason: str) -> None:
        path = opened.folder.path(file)
        if os.path.isdir(path):
            raise ShardError(f"{path} is a folder. Remove it, or choose another local folder.")
        with contextlib.suppress(FileNotFoundError):
            from mds.storage.relative_name import unlink_beneath

            unlink_beneath(opened.folder.root, file.basename)
        remote = redact(opened.folder.remote)
        log.warning("%s; it is fetched anew from %s.", reason, remote)
        self._counters.add(replaced_files=1)
        emit(Replaced(path, reason))

    def close(self) -> None:
        """Close the ledgers. Closing twice is fine."""
        with self._lock:
            for opened in self.folders:
                opened.ledger.close()


def _managed_stamp(entry: Any) -> int:
    """Return the recorded stamp of files that the ledger lists as ours, or 0."""
    return int(entry["stamp"]) if entry["state"] == MANAGED else 0


def _make_downloader(folder: CacheFolder, counters: Counters) -> ShardDownloader:
    if not folder.is_decoded:
        return ShardDownloader(folder, counters)
    from mds.cache.decode import ShardDecoder

    return ShardDecoder(folder, counters)
