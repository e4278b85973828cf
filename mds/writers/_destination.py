"""Output of one writer: a locked folder, a store, and which old files in them may be replaced.

Old files are deleted only with `exist_ok=True`, and only those of a dataset: its index, its shards,
and the unfinished files of a killed writer. Other files stay. The new index is published last, when
every shard was found in its place, and an old index is deleted first, so that no index ever names
files that are being replaced.

A local folder is locked while its writer exists, and is accessed through the locked descriptor: a
folder that took its place belongs to another writer. A store has no locks that end with a process.
There the writer stops if a file of the next name or an index appears, because another writer must
be at work.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from mds._index.sidecar import find_sidecars, sidecars_of
from mds._shardfile.layout import INDEX_NAME
from mds.errors import DeniedError, MdsError, NotFoundError, WriterError
from mds.events import Uploaded, emit
from mds.storage import ObjectInfo, RetryPolicy, Store, open_store
from mds.storage._base import CHUNK
from mds.storage._files import Directory, sync, sync_file, temporary_owner
from mds.storage._locks import LOCK_NAME, FolderLock, is_locked_here, try_lock_folder
from mds.storage._url import redact
from mds.writers._leftovers import Leftovers, is_shard, make_staging_folder

if TYPE_CHECKING:
    from mds.writers._spec import OutSpec

#: Up to this number, files in a store are asked for one by one instead of listing them.
_MAX_SINGLE_REQUESTS = 8
#: Number of such requests at the same time.
_CONNECTIONS = 16


class Destination:
    """The folder and the store to which one writer writes; locked until it is closed.

    Every file is first written to ``directory``, a locked folder: the user's, or a temporary one if
    the output is a store alone. `upload` then brings it to the remote, which is a store or a second
    locked folder, if there is a remote. `publish_index` publishes the index in both.

    - ``spec`` (OutSpec): The folder and the store, and whether old datasets are replaced.
    - ``durable`` (bool): Whether files in folders are synced to the disk before the index appears.

    Raises FileExistsError for a place that is not empty, unless ``spec.exist_ok``, and WriterError
    for a folder that another writer has locked.
    """

    def __init__(self, spec: OutSpec, *, durable: bool) -> None:
        self._spec = spec
        self._is_durable = durable
        self._store: Store | None = None
        #: Locks of all folders, released by `close`.
        self._locks: list[FolderLock] = []
        #: Lock of the remote, if it is a folder as well.
        self._remote_lock: FolderLock | None = None
        #: Folders that were created here, and are deleted if the constructor fails.
        self._new_folders: list[str] = []
        #: Shards that an unfinished writer left in the store, by name.
        self._leftover_names: set[str] = set()
        self._is_temporary = spec.local is None
        if spec.remote is not None:
            self._store = open_store(spec.remote, retry=RetryPolicy(attempts=spec.retry))
        try:
            self._prepare_places()
        except BaseException:
            self._release_after_failure()
            raise

    def _prepare_places(self) -> None:
        """Lock both places, check that they may be written to, and delete old files in them.

        Sets ``directory`` and ``folder``. Raises FileExistsError and WriterError.
        """
        # Both places are locked and checked before files in either are deleted.
        store, local = self._store, self._spec.local
        if store is not None and store.local_path is not None:
            self._remote_lock = self._lock(store.local_path)
        is_occupied = store is not None and self._has_dataset(store)
        local_folder = None if local is None else self._lock(local)
        old_names = [] if local_folder is None else _check_empty(local_folder, self._spec.exist_ok)
        if is_occupied:
            self._delete_old_dataset()
        if store is not None:
            leftovers = Leftovers.find(store, self.name)
            leftovers.warn()
            self._leftover_names = set(leftovers.shards)
        if local_folder is not None:
            _delete_old_files(local_folder, old_names)
        else:
            # Shards for a store alone wait for their upload in a temporary folder.
            local_folder = make_staging_folder(store.url if store is not None else "")
            self._locks.append(local_folder)
        #: The locked folder in which shards are written, and its path.
        self.directory, self.folder = local_folder, local_folder.folder

    def _delete_old_dataset(self) -> None:
        """Delete the old dataset of the store, its index first."""
        if self._remote_lock is not None:
            with self._remote_lock.open(INDEX_NAME) as file:
                shards = _shard_names(file.read())
            for name in (
                INDEX_NAME,
                *shards,
                *_sidecars_in(self._remote_lock, self._remote_lock.names()),
            ):
                with contextlib.suppress(FileNotFoundError):
                    self._remote_lock.unlink(name)
        elif self._store is not None:
            shards = _shard_names(self._store.get(INDEX_NAME))
            sidecars = list(find_sidecars(sidecars_of(self._store), self._store.get))
            for name in (INDEX_NAME, *shards, *sidecars):
                self._store.delete(name)

    def _lock(self, folder: str) -> FolderLock:
        """Lock a folder, which is created if it is missing, until the destination is closed.

        Raises WriterError if a writer holds the lock, and DeniedError if it cannot be written to.
        """
        is_new = not os.path.lexists(folder)
        try:
            lock = try_lock_folder(folder)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise denied_error(folder, error.strerror) from error
        if lock is None:
            owner = (
                "a writer of this process still holds it; call its finish() or abort()"
                if is_locked_here(folder)
                else "another process writes a dataset to it; wait until it has finished"
            )
            raise WriterError(
                f"the folder {folder!r} is in use: {owner}, or choose another folder."
            )
        self._locks.append(lock)
        if not os.access(folder, os.W_OK | os.X_OK):
            # Check this now, and not when the first shard is full.
            raise denied_error(folder, "it is not writable")
        if is_new:
            self._new_folders.append(folder)
        return lock

    @property
    def name(self) -> str:
        """The final place of the dataset, without passwords."""
        return redact(self._spec.remote) if self._spec.remote else self.folder

    @property
    def syncs_shards(self) -> bool:
        """Whether shards in the folder are synced to the disk before the index is published."""
        return self._is_durable and self._keeps_local

    def _has_dataset(self, store: Store) -> bool:
        """Return whether the remote holds an index. Raises FileExistsError unless `exist_ok`."""
        try:
            if self._remote_lock is not None:
                # Raises if the locked folder has no index. The store would look at its path, where
                # another folder may be by now.
                self._remote_lock.size(INDEX_NAME)
            else:
                store.head(INDEX_NAME)
        except FileNotFoundError:
            return False
        except DeniedError:
            # With credentials that may only write, an old dataset cannot be detected.
            return False
        if not self._spec.exist_ok:
            raise FileExistsError(
                f"{self.name} already holds a dataset ({INDEX_NAME}). Choose another place, or "
                "replace it with exist_ok=True."
            )
        return True

    def upload(self, file: ExpectedFile) -> ExpectedFile:
        """Upload a file of the folder to the store, if there is one. Raises WriterError.

        Returns the file with the version that the store gave it.
        """
        if self._store is None:
            return file
        began = time.monotonic()
        self.check_in_place()
        self._check_untouched(self._store, file.name)
        try:
            if self._remote_lock is not None:
                self._copy(file, self._remote_lock)
                version = ""
            else:
                path = os.path.join(self.folder, file.name)
                version = self._store.put_file(file.name, path).version
        except Exception as error:
            raise WriterError(
                f"{file.name} could not be uploaded to {self.name}: {error}"
            ) from error
        emit(Uploaded(f"{self.name}/{file.name}", file.size, time.monotonic() - began))
        if not self._keeps_local:
            self.directory.unlink(file.name)
        return ExpectedFile(file.name, file.size, version)

    def _copy(self, file: ExpectedFile, remote: Directory) -> None:
        """Copy a file to a remote that is a folder. Raises WriterError if its size is not right."""
        with self.directory.open(file.name) as source, remote.publish(file.name) as target:
            shutil.copyfileobj(source, target, CHUNK)
            if target.tell() != file.size:
                raise WriterError(f"it has {target.tell()} bytes instead of {file.size}")
            if self._is_durable:
                sync_file(target)

    def publish_sidecar(self, name: str, data: bytes) -> None:
        """Write a file beside the index, before the index is published. Raises WriterError.

        - ``name`` (str): The name of the sidecar, such as that of a file of lengths.
        """
        self.check_in_place()
        try:
            # A remote that is a folder is accessed through its lock, as every locked folder.
            if self._store is not None and self._remote_lock is None:
                self._store.put(name, data)
            for folder in (self._remote_lock, self.directory if self._keeps_local else None):
                if folder is not None:
                    with folder.publish(name) as file:
                        file.write(data)
                        if self._is_durable:
                            file.flush()
                            sync_file(file)
        except (OSError, MdsError) as error:
            raise WriterError(f"{name} could not be uploaded to {self.name}: {error}") from error

    def publish_index(self, data: bytes, files: Sequence[ExpectedFile]) -> None:
        """Publish the index last: in the store first, then in a folder that is kept.

        - ``data`` (bytes): The content of index.json.
        - ``files`` (Sequence[ExpectedFile]): All files that the index names.

        Raises WriterError unless all files are in their places.
        """
        self.check_in_place()
        if self._store is not None:
            self._check_untouched(self._store, INDEX_NAME)
        if self._is_durable:
            self._sync_folders()
        if self._store is not None:
            self._put_index(self._store, data, files)
        if self._keeps_local:
            self._write_index(self.directory, data, files)

    def check_in_place(self) -> None:
        """Raise WriterError if a folder is no longer the one that was locked.

        This is checked before every file, because another folder may have taken the place.
        """
        for lock in self._locks:
            if not lock.is_in_place():
                raise WriterError(
                    f"the folder {lock.folder!r} was deleted or replaced while the dataset was "
                    "written; no index is published. Write the dataset again."
                )

    def _sync_folders(self) -> None:
        """Sync the names of the shards to the disk, and the names of new folders."""
        local_folder = self.directory if self._keeps_local else None
        for place in (self._remote_lock, local_folder):
            if place is not None:
                place.sync()
                if place.folder in self._new_folders:
                    # The name of a new folder is stored in the folder above.
                    sync(os.path.dirname(place.folder) or ".")

    def _put_index(self, store: Store, data: bytes, files: Sequence[ExpectedFile]) -> None:
        """Publish the index in the store, if all files are there. Raises WriterError."""
        try:
            if self._remote_lock is not None:
                self._write_index(self._remote_lock, data, files)
            else:
                check_presence(files, store, self.name)
                store.put(INDEX_NAME, data)
        except WriterError:
            raise
        except Exception as error:
            raise WriterError(
                f"{INDEX_NAME} could not be uploaded to {self.name}: {error}"
            ) from error

    def _write_index(self, folder: Directory, data: bytes, files: Sequence[ExpectedFile]) -> None:
        """Write the index of a folder, after checking once more that the shards exist."""
        try:
            # The file gets its name when the block ends, unless a check raises before.
            with folder.publish(INDEX_NAME) as file:
                file.write(data)
                file.flush()
                if self._is_durable:
                    sync_file(file)
                check_presence(files, folder, folder.folder)
                self.check_in_place()
            if self._is_durable:
                folder.sync()
        except OSError as error:
            raise WriterError(
                f"{INDEX_NAME} could not be written to {folder.folder}: {error}"
            ) from error

    def _check_untouched(self, store: Store, name: str) -> None:
        """Raise WriterError if a file of another writer appeared in a store, which has no lock."""
        # Files of the killed writer were there from the beginning, and are replaced.
        if store.local_path is not None or name in self._leftover_names:
            return
        # NotFoundError is the good case. After DeniedError, the state is unknown: raise nothing.
        with contextlib.suppress(NotFoundError, DeniedError):
            store.head(name)
            raise WriterError(
                f"{name} appeared in {self.name} during writing: another writer uses the same "
                "place. No index is published. Give each writer its own place, and write both "
                "datasets again."
            )

    @property
    def _keeps_local(self) -> bool:
        """Whether the local folder is a place of the dataset, and not only for staging."""
        return not self._is_temporary and (self._store is None or self._spec.keep_local)

    def close(self) -> None:
        """Close the store, release the locks, and delete the folder if it was only for staging."""
        if self._store is not None:
            self._store.close()
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)
        elif not self._keeps_local:
            # The folder is empty if all went well; other files in it are kept.
            with contextlib.suppress(OSError):
                if self.directory.is_in_place():
                    os.rmdir(self.folder)
        self._release_locks()

    def _release_after_failure(self) -> None:
        """Undo what a constructor that failed has created and locked."""
        if self._store is not None:
            self._store.close()
        for folder in self._new_folders:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        self._release_locks()

    def _release_locks(self) -> None:
        for lock in self._locks:
            lock.close()
        self._locks = []


def denied_error(folder: str, reason: str | None) -> DeniedError:
    """Return the error for a folder that cannot be written to."""
    return DeniedError(
        f"a dataset cannot be written to the folder {folder!r}: {reason}. Choose a folder that you "
        "may write to.",
        url=folder,
        verb="write",
    )


def _check_empty(folder: Directory, exist_ok: bool) -> list[str]:
    """Return the names of the old files in a folder, except that of its lock.

    Raises FileExistsError if there are any and ``exist_ok`` is False.
    """
    names = [name for name in folder.names() if name != LOCK_NAME]
    if not names or exist_ok:
        return names
    is_unfinished = INDEX_NAME not in names and any(map(is_shard, names))
    raise FileExistsError(
        f"the folder {folder.folder!r} is not empty ({len(names)} entries, such as {names[0]!r}"
        + ("; a writer left shards and never finished" if is_unfinished else "")
        + "). Choose another, or replace the dataset in it with exist_ok=True."
    )


def _delete_old_files(folder: Directory, names: list[str]) -> None:
    """Delete those of the ``names`` in a folder that belong to a dataset; others stay."""
    # Shards, and the temporary files of killed writers.
    ours = [name for name in names if is_shard(name) or temporary_owner(name) is not None]
    ours += _sidecars_in(folder, names)
    # The old index goes first, because it would name files that are deleted next.
    if INDEX_NAME in names:
        folder.unlink(INDEX_NAME)
    for name in ours:
        folder.unlink(name)


def _sidecars_in(folder: Directory, names: Iterable[str]) -> list[str]:
    """Return those of the ``names`` in a folder that are sidecars of an index, by their content."""

    def read(name: str) -> bytes:
        """Return the content of a file of the folder."""
        with folder.open(name) as file:
            return file.read()

    return list(find_sidecars(names, read))


def _shard_names(index: bytes) -> list[str]:
    """Return the files of an old index that are safe to delete: ``["shard.00000.mds", ...]``.

    Other names are left out. A name such as "photo.jpg" or "../shard.00000.mds" in a wrong index
    would delete a file of somebody else. The list is empty for a damaged index.
    """
    try:
        shards: list[dict[str, Any]] = json.loads(index)["shards"]
        infos = [
            shard.get(key)
            for shard in shards
            for key in ("raw_data", "zip_data", "raw_meta", "zip_meta")
        ]
        names = {info["basename"] for info in infos if info}
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
    return sorted(name for name in names if isinstance(name, str) and is_shard(name))


# ---------------------------------------------------------------------- files that must be there


@dataclass(frozen=True, slots=True)
class ExpectedFile:
    """A file that must exist before an index that names it is published.

    - ``name`` (str): The path or key below a folder or a store.
    - ``size`` (int): Bytes.
    - ``version`` (str): The version that the store gave to its content; '' if unknown.
    """

    name: str
    size: int
    version: str = ""


def check_presence(
    files: Iterable[ExpectedFile],
    place: Store | Directory,
    location: str,
    again: str = "exist_ok=True",
) -> None:
    """Check that all files are below a place. Raises WriterError for the first that is not.

    - ``place`` (Store | Directory): A store, or an open folder.
    - ``location`` (str): Its name in messages.
    - ``again`` (str): The option that replaces the dataset, for the message.
    """
    for _, fault in find_faults(files, place):
        raise WriterError(
            f"{fault} in {location}: it was deleted or replaced while the dataset was written. No "
            f"index is published; write the dataset again, with {again}."
        )


def find_faults(
    files: Iterable[ExpectedFile], place: Store | Directory
) -> Iterator[tuple[ExpectedFile, str]]:
    """Yield the files below a place that are not as expected, and what is wrong."""
    if isinstance(place, Directory):
        return _check_files(files, place.size)
    if place.local_path is not None:
        folder = place.local_path
        return _check_files(files, lambda name: os.path.getsize(os.path.join(folder, name)))
    return _check_objects(list(files), place)


def _check_files(
    files: Iterable[ExpectedFile], size_of: Callable[[str], int]
) -> Iterator[tuple[ExpectedFile, str]]:
    """Yield the files of a folder that are not as expected, and what is wrong."""
    for file in files:
        if fault := _check_file(file, size_of):
            yield file, fault


def _check_file(file: ExpectedFile, size_of: Callable[[str], int]) -> str:
    """Return what is wrong with a file of a folder, or ''.

    - ``size_of`` (function): Returns the size of a name in bytes, or raises OSError.
    """
    try:
        size = size_of(file.name)
    except (FileNotFoundError, NotADirectoryError):
        return f"{file.name} is missing"
    except OSError as error:
        return f"{file.name} cannot be checked ({error.strerror})"
    return _size_fault(file, size) if size != file.size else ""


def _check_objects(files: list[ExpectedFile], store: Store) -> Iterator[tuple[ExpectedFile, str]]:
    """Yield the objects of a store that are not as expected, and what is wrong.

    Many files are listed in one request; those that the listing does not confirm, and few files,
    take a request each.
    """
    listed: dict[str, ObjectInfo] | None = None
    if store.can_list and len(files) > _MAX_SINGLE_REQUESTS:
        names = {file.name for file in files}
        try:
            objects = store.list(_common_prefix(names))
            listed = {info.key: info for info in objects if info.key in names}
        except DeniedError:
            listed = None  # credentials that may write, but not list
    if listed is not None:
        # Some stores list a new object late, or with another version than a request returns.
        files = [file for file in files if not _matches_listing(file, listed.get(file.name))]
    with ThreadPoolExecutor(_CONNECTIONS, "mds-presence") as pool:
        faults = pool.map(lambda file: _check_object(file, store), files)
        for file, fault in zip(files, faults, strict=True):
            if fault:
                yield file, fault


def _matches_listing(file: ExpectedFile, info: ObjectInfo | None) -> bool:
    return info is not None and info.size == file.size and info.version == file.version


def _check_object(file: ExpectedFile, store: Store) -> str:
    """Return what is wrong with an object of a store, or ''."""
    try:
        info = store.head(file.name)
    except NotFoundError:
        return f"{file.name} is missing"
    except DeniedError:
        return ""  # credentials that may only write; the upload was confirmed
    if info.size not in (file.size, -1):  # -1: the store does not report the size
        return _size_fault(file, info.size)
    if file.version and info.version and info.version != file.version:
        return f"{file.name} is not the object that was uploaded"
    return ""


def _size_fault(file: ExpectedFile, size: int) -> str:
    return f"{file.name} has {size} bytes instead of {file.size}"


def _common_prefix(names: set[str]) -> str:
    """Return the longest common prefix of the keys in characters, not in folders."""
    # All keys are between the first and the last in alphabetical order, and share their prefix.
    first, last = min(names), max(names)
    same_letters = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return first[: sum(1 for _ in same_letters)]
