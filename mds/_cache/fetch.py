"""Fetches each shard once per node into its cache folder.

The process that holds the fetch lock of a shard fetches it. The others wait for that lock, and then
find the shard in the folder. When the process dies, the kernel gives the lock to the next one.

Files that were in the folder before are checked against the digest in the index once. Afterwards
they are used like files that were fetched.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from mds._cache.download import NoRoomError, ShardDownloader
from mds._cache.folder import check_file
from mds._cache.ledger_file import MANAGED, UNMANAGED
from mds._process.fork_safe import new_rlock
from mds._redaction import get_logger
from mds._shardfile.layout import is_shard_name
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
from mds.storage._files import MAX_DELETIONS
from mds.storage._url import redact

if TYPE_CHECKING:
    from mds._cache.budget import Bid, Budget
    from mds._cache.counters import Counters
    from mds._cache.folder import CacheFolder, Catalog
    from mds._cache.open_readers import ReaderPool
    from mds._cache.recovery import OpenFolder
    from mds._index.shard_object import FileInfo, ShardInfo

log = get_logger("mds.cache")


class ShardFetcher:
    """Fetches the shards of a dataset, each in one process of the node, within the limit.

    Shards are numbered in the dataset, and within their cache folder. ``shard`` is the number in
    the folder where a folder is given, too (``opened``).

    Args:
        catalog: The shards of the dataset.
        limit: Most bytes in all cache folders; None: no limit.
        readers: Open readers of this process.
        counters: Counters of this process.
        open_folders: List to which the cache folders are added when they are opened. It is sorted
            by path, the order in which they are locked.
        peer_timeout: Seconds to wait for another process that fetches the same shard.
        lock_timeout: Seconds to wait for the lock of a ledger.
    """

    def __init__(
        self,
        catalog: Catalog,
        limit: int | None,
        readers: ReaderPool,
        counters: Counters,
        open_folders: list[OpenFolder],
        *,
        peer_timeout: float,
        lock_timeout: float,
    ) -> None:
        self._catalog, self._limit = catalog, limit
        self._readers, self._counters = readers, counters
        self._peer_timeout, self._lock_timeout = peer_timeout, lock_timeout
        #: The downloader of each cache folder, by its number.
        self.downloaders = [_make_downloader(folder, counters) for folder in catalog.folders]
        self._open_folders = open_folders
        self._opened: dict[int, OpenFolder | None] = {}  # by number of the folder
        self._budget: Budget | None = None
        self._lock = new_rlock()
        # Folder and shard whose digest this process has checked.
        self._verified: set[tuple[int, int]] = set()

    def open(self, folder: CacheFolder) -> OpenFolder | None:
        """Return a cache folder with its open ledger; None if the folder is read-only.

        The ledger is opened at the first call.
        """
        with self._lock:
            if folder.number not in self._opened:
                from mds._cache.recovery import open_folder

                opened = open_folder(folder, self._lock_timeout)
                self._opened[folder.number] = opened
                if opened is not None:
                    # Downloads compare the versions of objects with those in the ledger.
                    self.downloaders[folder.number].versions.ledger = opened.ledger
                    # In one step: a list is empty for other threads while it is sorted.
                    self._open_folders[:] = sorted(
                        [*self._open_folders, opened], key=lambda each: each.ledger.control
                    )
            return self._opened[folder.number]

    @property
    def budget(self) -> Budget:
        """Budget of the open folders, created at the first use."""
        with self._lock:
            if self._budget is None:
                from mds._cache.budget import Budget

                self._budget = Budget(
                    self._limit, self._readers, self._open_folders, self._counters
                )
            return self._budget

    def is_ready(self, opened: OpenFolder, shard: int, info: ShardInfo) -> bool:
        """Whether the files of a shard are in the cache folder and were checked.

        Args:
            opened: The cache folder.
            shard: Number of the shard in the folder.
            info: Entry of the shard in its index.
        """
        folder, entries = opened.folder, opened.ledger.entries
        if not entries["is_checked"][shard] or entries["state"][shard] not in (MANAGED, UNMANAGED):
            return False
        # With validate_hash, every process checks the digest itself, once.
        if folder.validate_hash and (folder.number, shard) not in self._verified:
            return False
        # Files with the recorded stamp are the ones that were checked.
        return int(entries["stamp"][shard]) == folder.stat(info)[1]

    def ensure_local(self, number: int, bid: Bid | None = None, *, is_ahead: bool = False) -> bool:
        """Fetch a shard unless it is on this machine; return False if it cannot be kept there.

        It cannot if there is no space for it or the cache folder is read-only. If another process
        is fetching it, wait for that process.

        Args:
            number: Number of the shard in the dataset.
            bid: When it is needed and what it saves; None (default): evict what is needed for it.
            is_ahead: Whether to return True at once if another process is fetching it (default
                False).

        Raises:
            StoreError: The remote failed.
            NoSpaceError: The disk is full and nothing can be evicted.
        """
        folder, shard = self._catalog.locate(number)
        info = folder.index.shard(shard)
        if folder.in_place(info) is not None:  # it is read in the user's own folder
            return True
        opened = self.open(folder)
        if opened is None:
            return False
        if self.is_ready(opened, shard, info):
            return True
        ledger, started = opened.ledger, time.monotonic()
        lock = ledger.fetch_lock(shard, 0.0 if is_ahead else self._peer_timeout)
        if lock is None and is_ahead:
            return True  # another process fetches it
        if lock is None:
            # The other process is alive but stuck. Fetch the shard twice rather than never. Under a
            # limit there is space for one copy, so ours is not kept.
            from mds.storage._locks import describe_processes

            log.warning(
                "Shard %s of %s is being fetched by %s, which did not finish in %.0f s. This "
                "process %s.",
                shard,
                folder.root,
                describe_processes(ledger.owners(shard)),
                time.monotonic() - started,
                "fetches it too" if self._limit is None else "reads it without caching it",
            )
            if self._limit is not None:
                return False
        try:
            # We hold the fetch lock, so a process that is still recorded as the owner has died.
            if ledger.entries["owner"][shard]:
                opened.recover_entries()
            if self._is_present(opened, shard, info):
                return True
            return self._fetch(opened, shard, info, bid, is_ahead=is_ahead)
        finally:
            if lock is not None:
                lock.close()

    def _is_present(self, opened: OpenFolder, shard: int, info: ShardInfo) -> bool:
        """Check files that are in the folder already; delete damaged ones.

        Returns whether the shard is ready. The caller holds the fetch lock of the shard.
        """
        if self.is_ready(opened, shard, info):
            return True
        folder, entries = opened.folder, opened.ledger.entries
        if folder.folder_of(info) != folder.root or not self._is_valid(opened, shard, info):
            return False
        with opened.ledger.change():
            # Look again under the lock: it may have been evicted while its digest was computed, or
            # another process may be working on it now (it has an owner).
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
        """Reserve space and download a shard; return False if there is no space.

        If the folder is deleted meanwhile, it is created again and the download is repeated.
        """
        folder, deletions = opened.folder, 0
        reserved = folder.peak(info)  # bytes

        def grow(size: int) -> bool:
            """Reserve space for ``size`` bytes of the shard in total; return whether there is any.

            Called while a shard is decoded, whose size is not in the index: before it grows.
            """
            nonlocal reserved
            if size <= reserved:
                return True
            reserved = size + size // 8  # an eighth more, since reserving locks the folders
            return self._reserve(opened, shard, reserved, bid)

        self._refuse_user_files(opened, shard, info)
        self._delete_stale_files(opened, info)
        while True:
            try:
                if not self._reserve(opened, shard, reserved, bid):
                    return False
                try:
                    received = self.downloaders[folder.number].download(info, grow)
                except BaseException:
                    opened.rescan(shard)  # give back the reserved space
                    raise
                break
            except NoRoomError:
                return False
            except NoSpaceError:
                # The disk is full: evict shards and try again. But not for a prefetch without a
                # limit: it is not known which shards are needed, and prefetched shards would evict
                # each other. The shard is then fetched when it is read.
                is_prefetch = is_ahead and self._limit is None
                size = folder.peak(info)
                if is_prefetch or not self.budget.evict_for_disk(folder.root, size):
                    if self._limit is not None:
                        return False
                    raise
            except (VanishedError, FileExistsError) as error:
                deletions += 1
                # The remote has another object by now, and further tries cannot change that.
                if isinstance(error, ReplacedError) or deletions > MAX_DELETIONS:
                    raise
        size, stamp = folder.stat(info)
        # Counted first: as soon as the ledger has it, another thread may read the last sample.
        self._counters.add(fetched_shards=1, fetched_bytes=received)
        with opened.ledger.change():
            opened.ledger.set_identity(shard, folder.name_id(info), folder.content_id(info))
            opened.ledger.commit(shard, MANAGED, size, stamp, is_checked=True)
        self._verified.add((folder.number, shard))
        return True

    def _reserve(self, opened: OpenFolder, shard: int, size: int, bid: Bid | None) -> bool:
        """Add the bytes of a shard to the ledger; return False if there is no space for them.

        Under a limit, other shards may be evicted. The arguments are as in `Budget.reserve`;
        ``bid=None``: the shard is needed now.
        """
        if self._limit is not None:
            if bid is None:
                return self.budget.reserve(opened, shard, size)
            return self.budget.reserve(opened, shard, size, bid)
        with opened.ledger.change():
            opened.ledger.reserve(shard, size)
        return True

    def _is_valid(self, opened: OpenFolder, shard: int, info: ShardInfo) -> bool:
        """Whether files in the folder have the content that the index lists; delete damaged ones.

        Files without digests are used if the ledger or their ownership marker identifies them.
        Equal names and sizes prove nothing: shards of different datasets often have both in common,
        for example if all samples are blocks of as many tokens.
        """
        folder, entries = opened.folder, opened.ledger.entries
        if not folder.has_digests(info) and not folder.accepts_unverified(info):
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
                return False  # evicted meanwhile
        return True

    def _delete_stale_files(self, opened: OpenFolder, info: ShardInfo) -> None:
        """Delete files at the paths of a shard that have a wrong size or cannot be verified.

        Raises StoreError if a file cannot be verified and the remote does not have it either: it
        may be the only copy, and stays.
        """
        folder = opened.folder
        folder.check_inside(info)
        for raw, packed in info.files:
            path = folder.path(raw)
            try:
                size = os.lstat(path).st_size
            except OSError:
                continue
            if size != raw.size and not folder.is_decoded:  # the index lacks sizes of decoded ones
                reason = f"{path}: the index says {raw.size} bytes, found {size}"
            elif folder.hash_of(raw) is None:
                reason = f"{path}: no digest shows to which dataset it belongs"
                if not folder.is_decoded:
                    # It may be the only copy: delete it only if the remote has the object.
                    try:
                        self.downloaders[folder.number].store.head((packed or raw).basename)
                    except StoreError as error:
                        reason = (
                            f"{path} has no digest and was not fetched into this folder, so it is "
                            "not used. To read the local files without the remote, give only "
                            f"local={folder.root!r}."
                        )
                        error.args = (f"{error} {reason}",)
                        raise
            else:
                continue
            with contextlib.suppress(OSError):
                self._delete_wrong_file(opened, raw, reason)

    def _refuse_user_files(self, opened: OpenFolder, shard: int, info: ShardInfo) -> None:
        """Raise CacheError if a file of another program has the name of a file of a shard.

        An index may list any name. A file with a usual name of shards is taken for an old or
        damaged shard; any other file that this library did not write stays.
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
                f"{path} has the name of a shard of {redact(folder.remote)}, but mds did not "
                "write it. Move the file, or choose another local folder."
            )

    def _delete_wrong_file(self, opened: OpenFolder, file: FileInfo, reason: str) -> None:
        """Delete a file of a shard that will be fetched again, and log the reason."""
        path = opened.folder.path(file)
        if os.path.isdir(path):
            raise ShardError(
                f"{path} is a folder, but a shard has this name. Remove the folder, or choose "
                "another local folder."
            )
        with contextlib.suppress(FileNotFoundError):
            from mds.storage._relative_name import unlink_beneath

            unlink_beneath(opened.folder.root, file.basename)
        remote = redact(opened.folder.remote)
        log.warning("%s. mds fetches the file again from %s.", reason.rstrip("."), remote)
        self._counters.add(replaced_files=1)
        emit(Replaced(path, reason))

    def close(self) -> None:
        """Close the ledgers. Closing twice is fine."""
        with self._lock:
            for opened in self._open_folders:
                opened.ledger.close()


def _managed_stamp(entry: Any) -> int:
    """Return the recorded stamp of files that the ledger lists as ours, or 0."""
    return int(entry["stamp"]) if entry["state"] == MANAGED else 0


def _make_downloader(folder: CacheFolder, counters: Counters) -> ShardDownloader:
    """Return the downloader of a folder, which decodes if the source has another format."""
    if not folder.is_decoded:
        return ShardDownloader(folder, counters)
    from mds._cache.decode import ShardDecoder

    return ShardDecoder(folder, counters)
