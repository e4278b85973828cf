"""Whether the ledger of a cache folder says what is on the disk.

A ledger may be older than its folder (a backup, a copy), or the folder may have been changed
while no process used it. The first process of a node that opens it looks: the size of every file is
compared with the entry of its shard, and entries that differ are made anew. A file is ours only if
its stamp (inode, time and size) is the one in the ledger or if it is sealed, so no number that is
wrong can have a file of another origin deleted. The price is one listing, and five microseconds a
file.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache.folder import size_of
from mds.cache.ledger_file import ABSENT, MANAGED, UNMANAGED
from mds.text.redaction import get_logger

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.folder import CacheFolder
    from mds.cache.ledger import Ledger

log = get_logger("mds.cache")


def compare_with_disk(folder: CacheFolder, ledger: Ledger, names: set[str], own_bytes: int) -> None:
    """Enter anew what is there in another size than the ledger says, or is not there.

    ``names`` are the files in the folder, ``own_bytes`` the size of those that are no shards. Only
    for a ledger that no other process uses.
    """
    with ledger.change() as entries:
        found, others = _sizes_on_disk(folder, names)
        states = entries["state"]
        is_wrong = (entries["size"] != found) | ((states == ABSENT) != (found == 0))
        is_wrong |= (states == UNMANAGED) & (entries["name"] != 0)  # ours once
        wrong = np.flatnonzero(is_wrong).tolist()
        for shard in wrong:
            known = entries[shard].copy()
            entries[shard] = 0
            enter(folder, ledger, entries, shard, known if known["state"] == MANAGED else None)
        ledger.size = own_bytes + others
        # Times to come, from before the clock was set back, would keep a shard the longest.
        np.minimum(entries["used"], time.time(), out=entries["used"])
    if wrong:
        log.info("%s: %d shards were not as noted; they are noted anew.", folder.root, len(wrong))


def enter(
    folder: CacheFolder, ledger: Ledger, entries: npt.NDArray[Any], shard: int, known: Any
) -> None:
    """Enter the files of one shard whose entry is empty; ``known`` is an older entry of it."""
    info = folder.index.shard(shard)
    size, stamp = folder.stat(info)
    if not stamp:
        return  # there are none
    is_known = known is not None and int(known["stamp"]) == stamp
    is_sealed = folder.is_sealed(info)
    is_ours = is_known or is_sealed
    is_believed = not folder.has_digests(info) and folder.believes(info)
    is_right = (
        is_believed or is_sealed or (is_known and int(known["content"]) == folder.content_id(info))
    )
    if is_ours and not is_right:  # the remote has other content under this name now
        size = folder.remove(info, stamp)
        if not size:
            return
        is_ours = False
    entries["state"][shard] = MANAGED if is_ours else UNMANAGED
    # What nothing tells of what it is counts, but is not used.
    is_usable = is_ours or is_believed or folder.has_digests(info)
    entries["size"][shard], entries["stamp"][shard] = size, stamp if is_usable else 0
    if is_ours:
        ledger.set_identity(shard, folder.name_id(info), folder.content_id(info))
        entries["is_checked"][shard] = known["is_checked"] if is_known else 0


def _sizes_on_disk(folder: CacheFolder, names: set[str]) -> tuple[npt.NDArray[np.int64], int]:
    """The bytes of the files that we make of each shard, and of all others that the index names."""
    sizes, others = np.zeros(len(folder), np.int64), 0
    for shard, files in enumerate(folder.index.file_names() if names else ()):
        for kind, name in files:
            if name not in names:
                continue
            size = max(size_of(os.path.join(folder.root, name)), 0)
            if kind.startswith("raw") or folder.keep_zip:
                sizes[shard] += size
            else:
                others += size
    return sizes, others
