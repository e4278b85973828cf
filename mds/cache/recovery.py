"""Crash recovery of cache folders: what lies there when the ledger is opened, and what is good.

A folder that has no ledger for this index is looked through once. Files with the name and size of
a shard are taken as they are, but are not ours: they count and are never evicted. Files
that the ledger before this one knew as ours stay ours if their content is what the new index says,
and are deleted if it is not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
import weakref

import numpy as np

from mds.cache.disk_check import compare_with_disk, enter
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
from mds.cache.origin import CONTROL, parts_of
from mds.cache.refuges import remove_refuges
from mds.errors import CacheError, ConfigError, FormatError
from mds.storage.beneath import unlink_beneath
from mds.storage.relative_name import RelativeName
from mds.text.redaction import get_logger

log = get_logger("mds.cache")

_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@dataclasses.dataclass(slots=True)
class OpenFolder:
    """A cache folder and its ledger, as one process has them open."""

    folder: CacheFolder
    ledger: Ledger

    def recover_entries(self) -> None:
        """Finish what processes that died were doing: look at the disk, and note what is there.

        All in one change: what was coming answers for bytes of what was leaving, so the one may
        not be taken over before the other was looked at.
        """
        with self.ledger.change():
            for shard in self.ledger.take_over_orphans():
                self.rescan(shard)

    def rescan(self, shard: int) -> None:
        """Note what is on the disk of a shard whose entry has no owner."""
        info = self.folder.index.shard(shard)
        self.folder.remove_parts(info, set(self.ledger.processes()))
        size, stamp = self.folder.stat(info)
        is_ours = stamp == int(self.ledger.entries["stamp"][shard]) or self.folder.is_sealed(info)
        is_whole = is_ours and self.folder.folder_of(info) == self.folder.root
        state = MANAGED if is_whole else UNMANAGED if size else ABSENT
        self.ledger.commit(shard, state, size, stamp if is_ours else 0)


def open_folder(folder: CacheFolder, lock_timeout: float = 60.0) -> OpenFolder | None:
    """A folder with its ledger, made when there is none; None where nothing can be written."""
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
        if (
            folder.source_folder is not None
        ):  # a convenience of ours; the data are at hand without it
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
    """What only the first process of a node may do, since others would still use it."""
    folder, ledger = opened.folder, opened.ledger
    living = set(ledger.processes())
    if refuges := parts_of(folder.root):
        remove_refuges(folder.root, refuges)
    remove_parts(os.path.join(folder.root, CONTROL), living)
    if not ledger.was_made:
        # Also what a killed process wrote into a folder that had been deleted under it. The folder
        # may have a great many files.
        remove_parts(folder.root, living)
        compare_with_disk(folder, ledger, _names_in(folder), own)


def unwritable(folder: CacheFolder) -> CacheError:
    """The error for a shard that would have to be fetched into a folder that cannot be written."""
    return CacheError(
        f"{folder.root} cannot be written by this user and does not hold the whole of "
        f"{folder.remote}. Give it the rights, or choose another local folder."
    )


def control_bytes(folder: CacheFolder) -> int:
    """Bytes in the cache folder besides shards; the index twice, for the moment it is replaced."""
    out = ledger_size(len(folder))
    for path, times in (
        (os.path.join(folder.root, "index.json"), 2),
        *((os.path.join(folder.root, CONTROL, name), 2) for name in ("index.mds", "origin.json")),
    ):
        with contextlib.suppress(OSError):
            out += times * os.path.getsize(path)
    return out


def used_bytes(folder: CacheFolder) -> int:
    """Bytes that a cache folder takes by its ledger, which is looked at and not joined."""
    file = _look_at_ledger(folder)
    return file.size + int(file.entries["size"].sum()) if file is not None else 0


def processes_using(folder: CacheFolder) -> list[int]:
    """The processes that use a cache folder by its ledger; dead ones may be among them."""
    file = _look_at_ledger(folder)
    return [int(pid) for pid in file.slots["pid"] if pid > 0] if file is not None else []


def _look_at_ledger(folder: CacheFolder) -> LedgerFile | None:
    if not folder.is_cached:
        return None
    return open_ledger_file(os.path.join(folder.choose_control(), "ledger"))


def _survey(folder: CacheFolder, ledger: weakref.ref[Ledger]) -> None:
    found = ledger()
    if found is not None:
        scan_folder(OpenFolder(folder, found))


def scan_folder(opened: OpenFolder) -> None:
    """Enter what lies in a folder whose ledger is new."""
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
    """The files in the folders that the index names, as relative names."""
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
