"""Opening the account of a cache folder: what lies there already, and what of it is still good.

A folder that has no ledger for this index is looked through once. Files with the name and size of
a shard are taken as they are, but they are somebody's: they count and are never evicted. Files
that the ledger before this one knew as ours stay ours if their content is what the new index says,
and are deleted if it is not.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache.book import FOREIGN, PRESENT, book_size
from mds.cache.budget import Account
from mds.cache.ledger import Ledger
from mds.cache.places import CONTROL, Place, mark_of, remove_parts, size_of
from mds.errors import CacheError
from mds.storage.files import make_folder

if TYPE_CHECKING:
    import numpy.typing as npt

log = logging.getLogger("mds.cache")

_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


def open_account(place: Place) -> Account | None:
    """The account of a place, made when there is none; None where nothing can be written."""
    own = control_bytes(place)
    ledger = Ledger(place.control, len(place), place.fingerprint(), place.mode(), own)
    try:
        make_folder(place.folder)
        ledger.open()
    except OSError as error:
        if place.home is not None:  # a convenience of ours; the data are at hand without it
            log.warning("%s Shards are decompressed in memory, each time they are used.", error)
        elif error.errno not in _READ_ONLY:
            raise
        return None
    account = Account(place, ledger)
    if ledger.was_made:
        look_around(account)
    else:
        with ledger.change():
            ledger.size = max(ledger.size, own)
    account.settle_orphans()
    living = set(ledger.processes())
    if len(living) == 1 and not ledger.was_made:
        # Also what a killed process wrote into a folder that had been deleted under it, which no
        # ledger knows. The first of a node looks; the folder may have a great many files.
        remove_parts(place.folder, living)
    return account


def unwritable(place: Place) -> CacheError:
    """The error for a shard that would have to be fetched into a folder that cannot be written."""
    return CacheError(
        f"{place.folder} cannot be written by this user and does not hold the whole of "
        f"{place.remote}. Give it the rights, or choose another local folder."
    )


def control_bytes(place: Place) -> int:
    """Bytes in the cache folder besides shards; the index twice, for the moment it is replaced."""
    out = book_size(len(place))
    for path, times in (
        (os.path.join(place.folder, "index.json"), 2),
        *((os.path.join(place.folder, CONTROL, name), 2) for name in ("index.mds", "origin.json")),
    ):
        with contextlib.suppress(OSError):
            out += times * os.path.getsize(path)
    return out


def look_around(account: Account) -> None:
    """Enter what lies in a folder whose ledger is new."""
    place, ledger = account.place, account.ledger
    names = _names_in(place)
    names.discard("index.json")
    with ledger.change() as entries:
        former, ledger.former = ledger.former, None
        ours = {int(entry["name"]): entry for entry in former} if former is not None else {}
        foreign = 0
        for shard in range(len(place)):
            if not names:
                break
            info = place.index.shard(shard)
            if any(file.basename in names for file in place.files(info)):
                names.difference_update(file.basename for file in place.files(info))
                _enter(account, entries, shard, ours.pop(place.name(info), None))
            # Compressed files that somebody left are used, and count, and are not ours.
            for _, packed in info.files:
                if packed is not None and packed.basename in names:
                    names.discard(packed.basename)
                    foreign += max(size_of(place.path(packed)), 0)
        ledger.size = ledger.own_bytes + foreign
    _delete_orphans(place, names, {key: int(entry["mark"]) for key, entry in ours.items()})
    remove_parts(place.folder, set(ledger.processes()))


def _enter(account: Account, entries: npt.NDArray[Any], shard: int, known: Any) -> None:
    """One shard of which there are files."""
    place = account.place
    info = place.index.shard(shard)
    size, mark = place.measure(info)
    is_ours = known is not None and int(known["mark"]) == mark
    is_right = is_ours and int(known["tag"]) == place.tag(info)
    if is_ours and not is_right:  # the remote has other content under this name now
        size = place.remove(info, mark)
        if not size:
            return
        is_ours = False
    entries["state"][shard] = PRESENT if is_ours else FOREIGN
    entries["size"][shard], entries["mark"][shard] = size, mark
    if is_ours:
        account.ledger.describe(shard, place.name(info), place.tag(info))
        entries["is_checked"][shard] = known["is_checked"]


def _delete_orphans(place: Place, names: set[str], marks: dict[int, int]) -> None:
    """Delete files that we made for an index that named other shards."""
    for name in names if marks else ():
        mark = marks.get(place.number_of(name))
        path = os.path.join(place.folder, *name.split("/"))
        if mark is not None and mark == mark_of([path]):
            with contextlib.suppress(OSError):
                os.unlink(path)


def _names_in(place: Place) -> set[str]:
    """The files in the folders that the index names, as relative names."""
    if not np.any(place.index.names == ord("/")):
        return set(_files(place.folder, ""))
    names: set[str] = set()
    for folder, folders, _ in os.walk(place.folder):
        if CONTROL in folders:
            folders.remove(CONTROL)
        inside = os.path.relpath(folder, place.folder).replace(os.sep, "/")
        names.update(_files(folder, "" if inside == "." else inside + "/"))
    return names


def _files(folder: str, prefix: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [prefix + entry.name for entry in entries if entry.is_file()]
    return []
