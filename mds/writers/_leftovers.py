"""Crash recovery of writers: shards without an index, unfinished uploads, staging folders.

A new writer warns of such files and names the command that removes them (`mds clean`); it removes
nothing itself. Finding them costs a request that lists shards, and one that lists uploads.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import blake2b

from mds._redaction import get_logger
from mds._shardfile.layout import INDEX_NAME
from mds._words import plural
from mds.errors import NotFoundError, StoreError
from mds.storage import Store
from mds.storage._base import Upload
from mds.storage._files import temporary_owner
from mds.storage._locks import FolderLock, try_lock_folder
from mds.storage._url import source_name

log = get_logger("mds.writers")

_SHARD = re.compile(r"shard\.\d{5,}\.(mds|json|csv|tsv|xsv)(\.meta)?(\.(br|bz2|gz|snappy|zstd))?")


#: A folder that a task of Ray or Spark writes: its job, task and attempt (`PartedDataset`).
_PART = re.compile(r"part-[0-9a-f]{12}-\d{6,}-[0-9a-f]{8}")


def is_part(name: str) -> bool:
    """Return whether the name of a folder is that of a task of Ray or Spark."""
    return _PART.fullmatch(name) is not None


def is_shard(name: str) -> bool:
    """Return whether a file name is that of a shard."""
    return _SHARD.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Files and folders of a place that belong to no dataset there.

    - ``location`` (str): The place, for messages.
    - ``shards`` (list[str]): Shards without an index.
    - ``uploads`` (list[Upload]): Unfinished uploads to the store.
    - ``folders`` (list[str]): Staging folders on this machine that no process uses any more.
    - ``parts`` (list[str]): Folders of tasks of Ray or Spark without an index.
    """

    location: str
    shards: list[str] = field(default_factory=list)
    uploads: list[Upload] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    @classmethod
    def find(
        cls,
        store: Store,
        location: str,
        named: frozenset[str] = frozenset(),
        *,
        has_parts: bool = False,
    ) -> Leftovers:
        """Find the leftovers at a place.

        - ``named`` (frozenset[str]): Files of the dataset there, which are no leftovers.
        - ``has_parts`` (bool, default False): Whether to list the folders of tasks, too.

        Shards or uploads that the store does not list are left out.
        """
        shards = [name for name in _shards(store) if name not in named]
        parts = _parts(store, named) if has_parts else []
        return cls(location, shards, _uploads(store), find_dead_staging_folders(store.url), parts)

    def __bool__(self) -> bool:
        return bool(self.shards or self.uploads or self.folders or self.parts)

    def describe(self) -> str:
        """Describe the leftovers for a message."""
        parts = []
        if self.shards:
            parts.append(f"{plural(len(self.shards), 'shard')} in no index ({_some(self.shards)})")
        if self.uploads:
            parts.append(
                f"{len(self.uploads)} unfinished uploads ({_some([u.key for u in self.uploads])})"
            )
        if self.folders:
            parts.append(f"unused folders on this machine ({_some(self.folders)})")
        if self.parts:
            parts.append(
                f"{plural(len(self.parts), 'folder')} of tasks that no index names "
                f"({_some(self.parts)})"
            )
        return "; ".join(parts)

    def warn(self) -> None:
        """Log a warning with the leftovers and the command that removes them, if there are any."""
        if self:
            log.warning(
                "%s: a writer that did not finish left %s. Delete them with: mds clean %s --remove",
                self.location,
                self.describe(),
                self.location,
            )

    def remove(self, store: Store) -> None:
        """Delete the leftovers. No writer may be at work at the place."""
        for name in self.shards:
            store.delete(name)
        for upload in self.uploads:
            store.abort_upload(upload)
        for part in self.parts:
            delete_parts(store, part, ())
        for folder in self.folders:
            lock = try_lock_folder(folder, make=False)
            if lock is not None:  # no process has begun to use it meanwhile
                shutil.rmtree(folder, ignore_errors=True)
                lock.close()


def _shards(store: Store) -> list[str]:
    """Return the names of shards in a store, and in a folder also unfinished temporary files."""
    if store.local_path is not None:
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(store.local_path)
            return sorted(n for n in names if is_shard(n) or temporary_owner(n) is not None)
        return []
    with contextlib.suppress(StoreError):  # such as credentials that may only write
        if store.can_list:
            return sorted(info.key for info in store.list("shard.") if is_shard(info.key))
    return []


def _parts(store: Store, named: frozenset[str]) -> list[str]:
    """Return the folders of tasks in a store without those that have a file of ``named``."""
    folders: set[str] = set()
    with contextlib.suppress(StoreError, FileNotFoundError):
        if store.local_path is not None:
            folders.update(os.listdir(store.local_path))
        elif store.can_list:
            folders.update(info.key.partition("/")[0] for info in store.list("part-"))
    used = {name.partition("/")[0] for name in named}
    return sorted(name for name in folders - used if is_part(name))


def delete_parts(store: Store, prefix: str, keep: Collection[str]) -> None:
    """Delete the parts whose names begin with ``prefix``, but for those to keep.

    Nothing is deleted in a store that cannot list its objects.
    """
    folder = store.local_path
    if folder is not None:
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(folder):
                if name.startswith(prefix) and name not in keep:
                    shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        return
    if not store.can_list:
        return
    for info in list(store.list(prefix)):
        if info.key.partition("/")[0] not in keep:
            store.delete(info.key)
    with contextlib.suppress(StoreError):  # a store without multipart uploads
        for upload in store.list_uploads():
            if upload.key.startswith(prefix) and upload.key.partition("/")[0] not in keep:
                store.abort_upload(upload)


def _uploads(store: Store) -> list[Upload]:
    """Return the unfinished uploads of shards and indexes; none if the store does not list them."""
    with contextlib.suppress(StoreError):
        uploads = store.list_uploads()
        return [each for each in uploads if is_shard(each.key) or each.key == INDEX_NAME]
    return []


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


# ------------------------------------------------------------------------------ staging folders


def make_staging_folder(url: str) -> FolderLock:
    """Create a locked temporary folder for shards that are uploaded to a URL."""
    folder = tempfile.mkdtemp(prefix=_staging_prefix(url))
    lock = try_lock_folder(folder)
    assert lock is not None, "its name is ours alone"
    return lock


def find_dead_staging_folders(url: str) -> list[str]:
    """Return temporary folders for a URL whose writer ended without removing them."""
    prefixes = (_staging_prefix(url), work_folder_name(url))
    patterns = [os.path.join(glob.escape(tempfile.gettempdir()), f"{each}*") for each in prefixes]
    folders = [folder for pattern in patterns for folder in sorted(glob.glob(pattern))]
    return [folder for folder in folders if _is_dead(folder)]


def work_folder_name(url: str) -> str:
    """Return the name of the temporary work folder of a conversion to a URL."""
    return f"mds-convert-{os.getuid()}-{_digest(url)}"


def _is_dead(folder: str) -> bool:
    """Return whether a folder belongs to this user and no running process has locked it."""
    try:
        state = os.lstat(folder)
        if os.path.islink(folder) or state.st_uid != os.geteuid():
            return False
        lock = try_lock_folder(folder, make=False)
    except (OSError, NotFoundError):
        return False
    if lock is None:
        return False
    lock.close()
    return True


def _staging_prefix(url: str) -> str:
    return f"mds-writer-{_digest(url)}-"


def _digest(url: str) -> str:
    return blake2b(source_name(url).encode(), digest_size=8).hexdigest()
