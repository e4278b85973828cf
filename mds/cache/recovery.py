"""Opening a cache folder: crash recovery, and a comparison of the ledger with the disk.

A folder without a ledger for this index is scanned once. Files with the name and size of a shard
are used after a check, but are not ours: they count toward the limit and are never evicted. Files
that the previous ledger recorded as ours stay ours if their content is what the new index lists.
Otherwise they are deleted.

A ledger may be older than its folder (a backup, a copy), or the folder may have changed while no
process used it. So the first process of a node compares the size of every file with the entry of
its shard, and writes entries that differ anew. A file counts as ours only if its stamp (inode, time
and size) is the recorded one or if it has our marker, so a wrong number in the ledger never deletes
a file of another origin. The comparison costs one listing, and five microseconds a file.

The same process deletes the fallback folders below the folder: those that a job made for itself
when the dataset was published anew, and whose index no running job reads.
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

from mds.cache.filesystem import control_folder
from mds.cache.folder import CacheFolder, file_stamp, remove_parts, size_of
from mds.cache.ledger import Ledger
from mds.cache.ledger_file import (
    ABSENT,
    MANAGED,
    UNMANAGED,
    LedgerFile,
    ledger_size,
    open_ledger_file,
)
from mds.cache.origin import CONTROL, apart, parts_of, read_origin
from mds.cache.process_table import is_in_use
from mds.errors import CacheError, ConfigError, FormatError
from mds.redaction import get_logger
from mds.storage.relative_name import RelativeName, unlink_beneath

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.folder import CacheFolder


log = get_logger("mds.cache")

_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@dataclasses.dataclass(slots=True)
class OpenFolder:
    """A cache folder and its ledger, as one process has them open."""

    folder: CacheFolder
    ledger: Ledger

    def recover_entries(self) -> None:
        """Settle the entries of processes that died by recording what is on the disk.

        All in one change: what was coming answers for bytes of what was leaving, so the one may
        not be taken over before the other was looked at.
        """
        with self.ledger.change():
            for shard in self.ledger.take_over_orphans():
                self.rescan(shard)

    def rescan(self, shard: int) -> None:
        """Record the files on the disk of a shard whose entry has no owner."""
        info = self.folder.index.shard(shard)
        self.folder.remove_parts(info, set(self.ledger.processes()))
        size, stamp = self.folder.stat(info)
        is_ours = self.folder.is_ours(info, stamp, int(self.ledger.entries["stamp"][shard]))
        is_whole = is_ours and self.folder.folder_of(info) == self.folder.root
        state = MANAGED if is_whole else UNMANAGED if size else ABSENT
        self.ledger.commit(shard, state, size, stamp if is_ours else 0)


def open_folder(folder: CacheFolder, lock_timeout: float = 60.0) -> OpenFolder | None:
    """Open a folder with its ledger, created if missing; return None if it is read-only."""
    own = control_bytes(folder)
    ledger = Ledger(
        folder.control,
        len(folder),
        folder.fingerprint(),
        folder.mode(),
        own,
        folder.choose_control,
        lock_timeout,
    )
    opened = OpenFolder(folder, ledger)
    # Not the ledger itself: one that refers to itself keeps its lock until a collection.
    ledger.survey = functools.partial(_survey, folder, weakref.ref(ledger))
    try:
        ledger.open()
    except OSError as error:
        if folder.source_folder is not None:  # optional: the user's data can be read without it
            log.warning("%s Shards are decompressed in memory, each time they are used.", error)
        elif error.errno not in _READ_ONLY:
            raise
        return None
    with ledger.change():
        ledger.size = max(ledger.size, own)
        opened.recover_entries()
        if ledger.is_alone():
            _tidy(opened, own)
    return opened


def _tidy(opened: OpenFolder, own: int) -> None:
    """Clean up a folder and its ledger; only for the first process of a node."""
    folder, ledger = opened.folder, opened.ledger
    living = set(ledger.processes())
    if fallbacks := parts_of(folder.root):
        delete_fallback_folders(folder.root, fallbacks)
    remove_parts(os.path.join(folder.root, CONTROL), living)
    if not ledger.was_made:
        # Also what a killed process wrote into a folder that had been deleted under it. The folder
        # may have a great many files.
        remove_parts(folder.root, living)
        compare_with_disk(folder, ledger, _names_in(folder), own)


def unwritable(folder: CacheFolder) -> CacheError:
    """Return the error for a shard to be fetched into a folder that cannot be written."""
    return CacheError(
        f"{folder.root} cannot be written by this user and does not hold the whole of "
        f"{folder.remote}. Give it the rights, or choose another local folder."
    )


def control_bytes(folder: CacheFolder) -> int:
    """Return the bytes besides shards; the index counts twice, for the moment it is replaced."""
    out = ledger_size(len(folder))
    for path, times in (
        (os.path.join(folder.root, "index.json"), 2),
        *((os.path.join(folder.root, CONTROL, name), 2) for name in ("index.mds", "origin.json")),
    ):
        with contextlib.suppress(OSError):
            out += times * os.path.getsize(path)
    return out


def used_bytes(folder: CacheFolder) -> int:
    """Return the bytes of a cache folder according to its ledger, without joining it."""
    file = _look_at_ledger(folder)
    return file.size + int(file.entries["size"].sum()) if file is not None else 0


def processes_using(folder: CacheFolder) -> list[int]:
    """Return the processes that use a cache folder by its ledger; some may be dead."""
    file = _look_at_ledger(folder)
    return [int(pid) for pid in file.slots["pid"] if pid > 0] if file is not None else []


def _look_at_ledger(folder: CacheFolder) -> LedgerFile | None:
    if not folder.is_cached:
        return None
    return open_ledger_file(os.path.join(folder.choose_control(), "ledger"))


def _survey(folder: CacheFolder, ledger: weakref.ref[Ledger]) -> None:
    living_ledger = ledger()
    if living_ledger is not None:
        scan_folder(OpenFolder(folder, living_ledger))


def scan_folder(opened: OpenFolder) -> None:
    """Record the files in a folder whose ledger is new."""
    folder, ledger = opened.folder, opened.ledger
    names = _names_in(folder)
    names.discard("index.json")
    with ledger.change() as entries:
        former, ledger.former = ledger.former, None
        ours = {int(entry["name"]): entry for entry in former} if former is not None else {}
        foreign = 0
        for shard in range(len(folder)):
            if not names:
                break
            info = folder.index.shard(shard)
            if any(file.basename in names for file in folder.files(info)):
                names.difference_update(file.basename for file in folder.files(info))
                enter(folder, ledger, entries, shard, ours.pop(folder.name_id(info), None))
            # Compressed files that lay here before are used, and count, and are not ours.
            for _, packed in info.files:
                if packed is not None and packed.basename in names:
                    names.discard(packed.basename)
                    foreign += max(size_of(folder.path(packed)), 0)
        ledger.size = ledger.own_bytes + foreign
    _delete_orphans(folder, names, {key: int(entry["stamp"]) for key, entry in ours.items()})
    remove_parts(folder.root, set(ledger.processes()))


def _delete_orphans(folder: CacheFolder, names: set[str], stamps: dict[int, int]) -> None:
    """Delete files that we made for an index that named other shards."""
    for name in names if stamps else ():
        stamp = stamps.get(folder.name_id_of(name))
        if stamp is None or stamp != file_stamp([os.path.join(folder.root, name)]):
            continue
        # What an index cannot name is not ours, whatever the ledger says.
        with contextlib.suppress(OSError, FormatError, ConfigError):
            unlink_beneath(folder.root, RelativeName(name))


def _names_in(folder: CacheFolder) -> set[str]:
    """Return the relative names of the files in the folders that the index names."""
    if not np.any(folder.index.names == ord("/")):
        return set(_files(folder.root, ""))
    names: set[str] = set()
    for path, below, _ in os.walk(folder.root):
        if CONTROL in below:
            below.remove(CONTROL)
        inside = os.path.relpath(path, folder.root).replace(os.sep, "/")
        names.update(_files(path, "" if inside == "." else inside + "/"))
    return names


def _files(folder: str, prefix: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [prefix + entry.name for entry in entries if entry.is_file()]
    return []


def compare_with_disk(folder: CacheFolder, ledger: Ledger, names: set[str], own_bytes: int) -> None:
    """Rewrite the entries of shards whose size on the disk differs from the ledger's.

    ``names`` are the files in the folder, ``own_bytes`` the size of those that are no shards. Only
    for a ledger that no other process uses.
    """
    with ledger.change() as entries:
        sizes, other_bytes = _sizes_on_disk(folder, names)
        states = entries["state"]
        is_wrong = (entries["size"] != sizes) | ((states == ABSENT) != (sizes == 0))
        is_wrong |= (states == UNMANAGED) & (entries["name"] != 0)  # ours once
        wrong = np.flatnonzero(is_wrong).tolist()
        for shard in wrong:
            old_entry = entries[shard].copy()
            entries[shard] = 0
            enter(
                folder, ledger, entries, shard, old_entry if old_entry["state"] == MANAGED else None
            )
        ledger.size = own_bytes + other_bytes
        # Times to come, from before the clock was set back, would keep a shard the longest.
        np.minimum(entries["used"], time.time(), out=entries["used"])
    if wrong:
        log.info("%s: %d shards were not as noted; they are noted anew.", folder.root, len(wrong))


def enter(
    folder: CacheFolder, ledger: Ledger, entries: npt.NDArray[Any], shard: int, old_entry: Any
) -> None:
    """Enter the files of one shard whose entry is empty; ``old_entry`` is an older entry of it."""
    info = folder.index.shard(shard)
    size, stamp = folder.stat(info)
    if not stamp:
        return  # there are none
    is_known = old_entry is not None and int(old_entry["stamp"]) == stamp
    has_ownership_marker = folder.has_ownership_marker(info)
    is_ours = is_known or has_ownership_marker
    is_believed = not folder.has_digests(info) and folder.believes(info)
    is_right = (
        is_believed
        or has_ownership_marker
        or (is_known and int(old_entry["content"]) == folder.content_id(info))
    )
    if is_ours and not is_right:  # the remote has other content under this name now
        size = folder.remove(info, stamp)
        if not size:
            return
        is_ours = False
    entries["state"][shard] = MANAGED if is_ours else UNMANAGED
    # Files of unknown content count toward the limit, and are not used.
    is_usable = is_ours or is_believed or folder.has_digests(info)
    entries["size"][shard], entries["stamp"][shard] = size, stamp if is_usable else 0
    if is_ours:
        ledger.set_identity(shard, folder.name_id(info), folder.content_id(info))
        entries["is_checked"][shard] = old_entry["is_checked"] if is_known else 0


def _sizes_on_disk(folder: CacheFolder, names: set[str]) -> tuple[npt.NDArray[np.int64], int]:
    """Return the bytes of our files of each shard, and of all others that the index names."""
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
    """Delete unused fallback folders of other indexes of the folder's own source."""
    owner = read_origin(folder)
    if owner is None:
        return
    for part in parts:
        origin = read_origin(part)
        if origin is None or origin.source != owner.source or origin.identity == owner.identity:
            continue
        # Only fallback folders, which are named by an identity. The folder of a second source is
        # named by that source, and may be used again at any time.
        control = control_folder(part, CONTROL)
        if part == apart(folder, origin.identity) and not is_in_use(control):
            for path in {control, part}:
                shutil.rmtree(path, ignore_errors=True)
