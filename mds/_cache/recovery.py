"""Opens a cache folder and makes its ledger agree with the disk.

When a folder is opened:

- Entries of dead processes are corrected by what is on the disk (`OpenFolder.recover_entries`).
- If there is no ledger for this index, the folder is scanned (`scan_folder`). A file with the name
  and size of a shard is used after a check of its digest, but counts as the user's: it is never
  evicted. Files that the previous ledger recorded as ours stay ours if the new index lists the same
  content for them; otherwise they are deleted.
- The first process of a node compares the sizes of all files with the ledger, and records those
  that differ anew (`compare_with_disk`). The ledger may be older than its folder (a backup, a
  copy), or the folder may have changed while no process used it. This costs one listing, and five
  microseconds a file.
- The first process also deletes fallback folders (`mds._cache.ownership`) that no job uses now.

A wrong ledger never deletes a user's file: files count as ours only if their stamp (inode, time and
size) is the recorded one or if they have our ownership marker (`mds._cache.folder`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
import shutil
import time
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._cache.folder import CacheFolder, file_stamp, remove_parts, size_of
from mds._cache.ledger import Ledger
from mds._cache.ledger_file import (
    ABSENT,
    MANAGED,
    SPACE_LOCK,
    UNMANAGED,
    LedgerFile,
    is_in_use,
    ledger_size,
    open_ledger_file,
)
from mds._cache.ownership import CONTROL, control_folder, folder_below, folders_below, read_origin
from mds._redaction import get_logger
from mds.errors import CacheError, ConfigError, FormatError
from mds.storage._locks import LockFile, lock_within
from mds.storage._relative_name import RelativeName, unlink_beneath

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._cache.folder import CacheFolder


log = get_logger("mds.cache")

_READ_SECONDS = 1.0  # to wait for the lock of a ledger that is only read

#: Errors of a folder that this user cannot write.
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@dataclasses.dataclass(slots=True)
class OpenFolder:
    """A cache folder with its open ledger."""

    folder: CacheFolder
    ledger: Ledger

    def recover_entries(self) -> None:
        """Correct the entries of dead processes by what is on the disk."""
        with self.ledger.change():
            for shard in self.ledger.take_over_orphans():
                self.rescan(shard)

    def rescan(self, shard: int) -> None:
        """Record what the disk has of a shard, and delete temporary files of dead processes.

        Called after a failed or interrupted fetch. This process must be the owner of the entry of
        the shard; afterwards the entry has no owner. ``shard`` is the number in the folder.
        """
        info = self.folder.index.shard(shard)
        self.folder.remove_parts(info, set(self.ledger.processes()))
        size, stamp = self.folder.stat(info)
        is_ours = self.folder.is_ours(info, stamp, int(self.ledger.entries["stamp"][shard]))
        is_whole = is_ours and self.folder.folder_of(info) == self.folder.root
        # A part of a shard counts as not ours: it is not used, and fetching the shard replaces it.
        state = UNMANAGED if size else ABSENT
        if is_whole:
            state = MANAGED
        self.ledger.commit(shard, state, size, stamp if is_ours else 0)


def open_folder(folder: CacheFolder, lock_timeout: float = 60.0) -> OpenFolder | None:
    """Open a folder with its ledger, created if missing; return None if it is read-only.

    ``lock_timeout`` is the number of seconds to wait for the lock of the folder (default 60).
    """
    own_bytes = control_bytes(folder)
    ledger = Ledger(
        folder.control,
        len(folder),
        folder.fingerprint(),
        folder.mode(),
        own_bytes,
        folder.choose_control,
        lock_timeout,
    )
    opened = OpenFolder(folder, ledger)
    # A weak reference: in a reference cycle, the ledger would keep its locks until a collection.
    ledger.scan = functools.partial(_scan, folder, weakref.ref(ledger))
    try:
        ledger.open()
    except OSError as error:
        if folder.source_folder is not None:  # the user's own data can be read without a cache
            log.warning("%s Shards are decompressed in memory each time they are used.", error)
        elif error.errno not in _READ_ONLY:
            raise
        return None
    with ledger.change():
        ledger.size = max(ledger.size, own_bytes)
        opened.recover_entries()
        if ledger.is_alone():  # the first process of the node
            _tidy(opened, own_bytes)
    return opened


def _tidy(opened: OpenFolder, own_bytes: int) -> None:
    """Delete files of ended jobs in a folder, and correct its ledger by what is on the disk.

    Only for the first process of a node. ``own_bytes`` are those of ledger, index and note.
    """
    folder, ledger = opened.folder, opened.ledger
    living = set(ledger.processes())
    if fallbacks := folders_below(folder.root):
        delete_fallback_folders(folder.root, fallbacks)
    remove_parts(os.path.join(folder.root, CONTROL), living)
    if not ledger.is_new:
        # Not only those of shards in the ledger: a process may have been killed after the folder
        # had been deleted and created again.
        remove_parts(folder.root, living)
        compare_with_disk(folder, ledger, _names_in(folder), own_bytes)


def unwritable(folder: CacheFolder) -> CacheError:
    """Return the error for a shard that must be fetched into a folder that cannot be written."""
    return CacheError(
        f"{folder.root} lacks shards of {folder.remote}, and this user cannot write to it. Give "
        f"the user write permission, or choose another local folder."
    )


def control_bytes(folder: CacheFolder) -> int:
    """Return the bytes of the ledger, the index, its binary copy and the note.

    All but the ledger count twice, because two copies exist while one is replaced.
    """
    total = ledger_size(len(folder))
    control = os.path.join(folder.root, CONTROL)
    for path in (
        os.path.join(folder.root, "index.json"),
        os.path.join(control, "index.mds"),
        os.path.join(control, "origin.json"),
    ):
        with contextlib.suppress(OSError):
            total += 2 * os.path.getsize(path)
    return total


def used_bytes(folders: Iterable[CacheFolder]) -> int:
    """Return the bytes of cache folders by their ledgers; a folder without a ledger counts 0.

    This process does not register in the ledgers.
    """
    with contextlib.ExitStack() as stack:
        files: dict[str, LedgerFile] = {}
        paths: dict[tuple[int, int], str] = {}  # of a lock file, by device and inode
        for folder in folders:
            if (file := _look_at_ledger(folder)) is not None:
                files[folder.control] = file
                path = os.path.join(folder.control, "lock")
                with contextlib.suppress(OSError):
                    state = os.stat(path)
                    paths[state.st_dev, state.st_ino] = path
        # A process that evicts shards for a new one adds its bytes before it subtracts theirs, so
        # without the locks the sum may be above the limit for a moment. `Budget` takes them in the
        # same order.
        for identity in sorted(paths):
            if (lock := _lock_to_read(paths[identity])) is not None:
                stack.callback(lock.close)
        # Bytes of files that are no shards, such as the index, and of all shards.
        return sum(file.size + int(file.entries["size"].sum()) for file in files.values())


def _lock_to_read(path: str) -> LockFile | None:
    """Take the space lock of a lock file, to read the bytes of its folders at one moment.

    Returns None if this user cannot write to the lock file, or if another process holds the lock
    for longer than `_READ_SECONDS`: a report must not wait for a process that is stopped.
    """
    with contextlib.suppress(OSError, CacheError):
        return lock_within(path, SPACE_LOCK, _READ_SECONDS)
    return None


def processes_using(folder: CacheFolder) -> list[int]:
    """Return the ids of the processes in the ledger of a cache folder; some may be dead."""
    file = _look_at_ledger(folder)
    return [int(pid) for pid in file.slots["pid"] if pid > 0] if file is not None else []


def _look_at_ledger(folder: CacheFolder) -> LedgerFile | None:
    """Map the ledger of a folder to read it; return None if there is none, or it is not ours."""
    if not folder.is_cached:  # the user's own folder, without compressed shards
        return None
    path = os.path.join(folder.choose_control(), "ledger")
    try:
        return open_ledger_file(path, os.O_RDONLY)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
        return None  # of another user, who does not let this one read it


def _scan(folder: CacheFolder, ledger: weakref.ref[Ledger]) -> None:
    """Scan a folder for a ledger that still exists; the function `Ledger.scan`."""
    living_ledger = ledger()
    if living_ledger is not None:
        scan_folder(OpenFolder(folder, living_ledger))


def scan_folder(opened: OpenFolder) -> None:
    """Record the files in a folder whose ledger is new.

    Files of ours that the index does not list any more, and temporary files, are deleted.
    """
    folder, ledger = opened.folder, opened.ledger
    names = _names_in(folder)  # of files that are not recorded yet
    names.discard("index.json")
    with ledger.change() as entries:
        # Entries of the ledger that was replaced, by the digest of the shard's name.
        former, ledger.former = ledger.former, None
        ours = {int(entry["name"]): entry for entry in former} if former is not None else {}
        foreign_bytes = 0
        for shard in range(len(folder)):
            if not names:  # all files are recorded
                break
            info = folder.index.shard(shard)
            if any(file.basename in names for file in folder.files(info)):
                names.difference_update(file.basename for file in folder.files(info))
                old_entry = ours.pop(folder.name_id(info), None)
                record_files(folder, ledger, entries, shard, old_entry)
            # Compressed files that were here before are used and count toward the limit, but are
            # not ours.
            for _, packed in info.files:
                if packed is not None and packed.basename in names:
                    names.discard(packed.basename)
                    foreign_bytes += max(size_of(folder.path(packed)), 0)
        ledger.size = ledger.own_bytes + foreign_bytes
    _delete_orphans(folder, names, {key: int(entry["stamp"]) for key, entry in ours.items()})
    remove_parts(folder.root, set(ledger.processes()))


def _delete_orphans(folder: CacheFolder, names: set[str], stamps: dict[int, int]) -> None:
    """Delete files that this library wrote for an earlier index, whose shards had other names.

    Args:
        folder: The cache folder.
        names: Names of files in it that the index does not list.
        stamps: Recorded stamp of each file of ours, by the digest of its name.
    """
    for name in names if stamps else ():
        stamp = stamps.get(folder.name_id_of(name))
        if stamp is None or stamp != file_stamp([os.path.join(folder.root, name)]):
            continue
        # A name that no index may contain is not ours, even if the ledger says so.
        with contextlib.suppress(OSError, FormatError, ConfigError):
            unlink_beneath(folder.root, RelativeName(name))


def _names_in(folder: CacheFolder) -> set[str]:
    """Return the relative names of all files in a folder, with subfolders if the index has any."""
    if not np.any(folder.index.names == ord("/")):
        return set(_files(folder.root, ""))
    names: set[str] = set()
    for path, below, _ in os.walk(folder.root):
        if CONTROL in below:
            below.remove(CONTROL)  # so that `os.walk` does not descend into it
        inside = os.path.relpath(path, folder.root).replace(os.sep, "/")
        names.update(_files(path, "" if inside == "." else inside + "/"))
    return names


def _files(folder: str, prefix: str) -> list[str]:
    """Return the names of the files in a folder, with ``prefix`` before each; [] without it."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [prefix + entry.name for entry in entries if entry.is_file()]
    return []


def compare_with_disk(folder: CacheFolder, ledger: Ledger, names: set[str], own_bytes: int) -> None:
    """Record those shards anew whose size on the disk differs from the ledger's.

    Only while no other process uses the ledger.

    Args:
        folder: The cache folder.
        ledger: Its ledger.
        names: Relative names of the files in the folder.
        own_bytes: Bytes of the ledger, the index and the note.
    """
    with ledger.change() as entries:
        sizes, other_bytes = _sizes_on_disk(folder, names)
        states = entries["state"]
        is_wrong = (entries["size"] != sizes) | ((states == ABSENT) != (sizes == 0))
        is_wrong |= (states == UNMANAGED) & (entries["name"] != 0)  # it was ours before
        wrong = np.flatnonzero(is_wrong).tolist()
        for shard in wrong:
            old_entry = entries[shard].copy()
            entries[shard] = 0  # absent
            record_files(
                folder, ledger, entries, shard, old_entry if old_entry["state"] == MANAGED else None
            )
        ledger.size = own_bytes + other_bytes
        # After the clock was set back, last uses may be in the future; they would count as newest.
        np.minimum(entries["used"], time.time(), out=entries["used"])
    if wrong:
        log.info(
            "%s: corrected the ledger, which differed from the files of %d shards.",
            folder.root,
            len(wrong),
        )


def record_files(
    folder: CacheFolder, ledger: Ledger, entries: npt.NDArray[Any], shard: int, old_entry: Any
) -> None:
    """Record the files of one shard whose entry is empty; delete ours with outdated content.

    Args:
        folder: The cache folder.
        ledger: Its ledger.
        entries: Entries of the ledger, which is being changed.
        shard: Number of the shard in the folder.
        old_entry: Earlier entry of the shard as a file of ours, or None.
    """
    info = folder.index.shard(shard)
    size, stamp = folder.stat(info)
    if not stamp:
        return  # there are no files
    # Ours: files with the recorded stamp or our marker. Valid: files with the listed content.
    is_known = old_entry is not None and int(old_entry["stamp"]) == stamp
    has_ownership_marker = folder.has_ownership_marker(info)
    is_ours = is_known or has_ownership_marker
    is_accepted = not folder.has_digests(info) and folder.accepts_unverified(info)
    is_valid = (
        is_accepted
        or has_ownership_marker
        or (is_known and int(old_entry["content"]) == folder.content_id(info))
    )
    if is_ours and not is_valid:  # the index lists other content for this name now
        size = folder.remove(info, stamp)
        if not size:
            return
        is_ours = False
    entries["state"][shard] = MANAGED if is_ours else UNMANAGED
    # Files of unknown content count toward the limit, but are not used.
    is_usable = is_ours or is_accepted or folder.has_digests(info)
    entries["size"][shard], entries["stamp"][shard] = size, stamp if is_usable else 0
    if is_ours:
        ledger.set_identity(shard, folder.name_id(info), folder.content_id(info))
        entries["is_checked"][shard] = old_entry["is_checked"] if is_known else 0


def _sizes_on_disk(folder: CacheFolder, names: set[str]) -> tuple[npt.NDArray[np.int64], int]:
    """Return the bytes on the disk of each shard, (shards,), and of other listed files together.

    Other files are compressed ones that are not kept, but were in the folder before.

    Args:
        folder: The cache folder.
        names: Relative names of the files in it.
    """
    sizes, other_bytes = np.zeros(len(folder), np.int64), 0
    for shard, files in enumerate(folder.index.file_names() if names else ()):
        for kind, name in files:
            if name not in names:
                continue
            size = max(size_of(os.path.join(folder.root, name)), 0)
            if kind.startswith("raw") or folder.keep_zip:
                sizes[shard] += size
            else:
                other_bytes += size
    return sizes, other_bytes


def delete_fallback_folders(folder: str, parts: Iterable[str]) -> None:
    """Delete the fallback folders below a folder that no process uses.

    A fallback folder has an older index of the same source, see `mds._cache.ownership`.

    Args:
        folder: The cache folder.
        parts: Paths of all folders of other sources and identities below it.
    """
    owner = read_origin(folder)
    if owner is None:
        return
    for part in parts:
        origin = read_origin(part)
        if origin is None or origin.source != owner.source or origin.identity == owner.identity:
            continue
        # Only fallback folders, whose names are digests of an identity. The folder of another
        # source is named by the source, and may be used again at any time.
        control = control_folder(part)
        if part == folder_below(folder, origin.identity) and not is_in_use(control):
            for path in {control, part}:
                shutil.rmtree(path, ignore_errors=True)
