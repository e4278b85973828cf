"""Output of a conversion: lock it, check that it is free, delete old files, publish the index."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, Any

from mds._index.column_notes import NAME as NOTES_NAME
from mds._index.column_notes import pack_notes
from mds._index.lengths import emit_lengths_file, lengths_name
from mds._index.sidecar import find_sidecars, sidecars_of
from mds._index.table import Index, fingerprint_of
from mds._shardfile.layout import INDEX_NAME
from mds.errors import ConfigError, DeniedError, MdsError, NotFoundError, WriterError
from mds.storage import Store, open_store
from mds.storage._files import sync, sync_file
from mds.storage._locks import LOCK_NAME, FolderLock, try_lock_folder
from mds.storage._url import join, redact
from mds.writers._destination import ExpectedFile, check_presence, denied_error
from mds.writers._leftovers import Leftovers, is_shard
from mds.writers.convert._checkpoint import NAME, remove_temporaries
from mds.writers.convert._spec import ConvertSpec
from mds.writers.convert._write_shard import Output, replaced_error

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ConversionLocks:
    """Exclusive locks of one conversion on its output, splits and work folder; a context manager.

    The locks end with the process; until then no other conversion or writer can use the folders.
    A folder that was created only to be locked is removed again if nothing was written to it.

    - ``output`` (Output): The target of the conversion.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._local = open_store(output.url).local_path
        self._locks: dict[str, FolderLock] = {}  # by folder
        #: Folders that were created here, the outer ones first.
        self._new_folders: list[str] = []

    def __enter__(self) -> ConversionLocks:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # An error of the system may come from a folder that someone deleted: say so.
        # An MdsError names its cause, and a conversion that raises one may have removed its work
        # folder itself.
        was_deleted = (
            isinstance(error, Exception)
            and not isinstance(error, MdsError)
            and not self._are_in_place()
        )
        self._release()
        if was_deleted:
            raise replaced_error(self._output) from error

    def _release(self) -> None:
        """Release the locks, and delete folders that were created and stayed empty."""
        for lock in self._locks.values():
            lock.close()
        for folder in reversed(self._new_folders):
            # Only an empty folder is removed.
            if os.path.isdir(folder) and not os.listdir(folder):
                os.rmdir(folder)

    def lock_output(self) -> None:
        """Lock the output, and the work folder if it exists, before the files in them are read."""
        local, work = self._local, self._output.checkpoint.folder
        if local is not None and os.path.lexists(local) and not os.path.isdir(local):
            raise ConfigError(f"{redact(self._output.url)} is a file. The output must be a folder.")
        if local is not None:
            self._lock(local)
        if os.path.lexists(work):
            self._lock_work(work)

    def lock_rest(self) -> None:
        """Lock the work folder and the folders of the splits, and create those that are missing.

        Raises DeniedError if a folder cannot be written to.
        """
        for folder in self._locks:  # overwrite=True has removed an old work folder
            if os.path.lexists(folder) and not os.access(folder, os.W_OK | os.X_OK):
                raise denied_error(folder, "it is not writable")
        self._lock_work(self._output.checkpoint.folder)
        for split in self._output.splits if self._local is not None else ():
            if split:
                self._lock(self._path(split))

    def folder(self, split: str) -> FolderLock | None:
        """Return the locked folder of a split, or None if the output is not a folder."""
        return None if self._local is None else self._locks[self._path(split)]

    def identities(self) -> tuple[tuple[int, int], ...]:
        """Return device and inode number of the folder of each split."""
        folders = [self.folder(split) for split in self._output.splits]
        return tuple(folder.identity for folder in folders if folder is not None)

    def check_in_place(self) -> None:
        """Raise WriterError if a folder is no longer the one that was locked."""
        if not self._are_in_place():
            raise replaced_error(self._output)

    def _path(self, split: str) -> str:
        """Return the path of the folder of a split in a local output."""
        return os.path.join(self._local or "", split) if split else self._local or ""

    def _are_in_place(self) -> bool:
        return all(lock.is_in_place() for lock in self._locks.values())

    def _lock_work(self, folder: str) -> None:
        """Lock the work folder; a private one is created, and must belong to this user."""
        if self._output.checkpoint.is_private:
            # Another user can guess its name in the temporary folder, and create it first.
            if not os.path.lexists(folder):
                os.mkdir(folder, 0o700)
                self._new_folders.append(folder)
            state = os.lstat(folder)
            if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid():
                raise ConfigError(
                    f"{folder} belongs to another user. Choose your own work folder with --work."
                )
        self._lock(folder)

    def _lock(self, folder: str) -> None:
        """Lock a folder, and create it if it is missing. Raises ConfigError if it is in use."""
        if (existing_lock := self._locks.get(folder)) is not None:
            if existing_lock.is_in_place():
                return
            existing_lock.close()  # an old work folder, which was removed to start again
        is_new = not os.path.lexists(folder)
        try:
            lock = try_lock_folder(folder)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise denied_error(folder, error.strerror) from error
        if lock is None:
            raise ConfigError(
                f"{folder}: another process is converting or writing to this output. Wait for it, "
                "or choose another output."
            )
        self._locks[folder] = lock
        if is_new:
            self._new_folders.append(folder)


#: Index entry of a shard, and the version that the store gave its file ('' if unknown).
Entry = tuple[dict[str, Any], str]


def check_output(output: Output, spec: ConvertSpec) -> bool:
    """Return True if this dataset is complete in the output; else check that the output is free.

    - ``output`` (Output), ``spec`` (ConvertSpec): The target and the options of the conversion.

    Raises FileExistsError if the output holds other files and neither `resume` nor `overwrite` is
    given. With `overwrite` shards and indexes are removed, and no other files.
    """
    place = redact(output.url)
    plan = output.checkpoint.load_plan()
    if plan is not None and spec.resume:
        return output.checkpoint.is_finished()
    if spec.overwrite:
        output.checkpoint.remove()
        _delete_old_datasets(output)
        return False
    if plan is not None:
        raise FileExistsError(
            f"{place}: a conversion was started here and not finished. Continue with --resume, or "
            "start again with --overwrite."
        )
    # Indexes without a work folder: a dataset that is complete, or another one.
    published = [
        split for split in range(len(output.splits)) if read_index(output, split) is not None
    ]
    if spec.resume and len(published) == len(output.splits):
        return True
    if published:
        raise FileExistsError(
            f"{place}: this folder already has a dataset. Choose another folder, or replace it "
            "with --overwrite."
        )
    local = open_store(output.url).local_path
    if local is None:
        warn_of_leftovers(output)
        return False
    if inside := sorted(set(os.listdir(local)) - {NAME, LOCK_NAME}):
        raise FileExistsError(
            f"{place}: the folder is not empty (it holds {inside[0]!r}"
            f"{f' and {len(inside) - 1} more' if len(inside) > 1 else ''}). Choose another one, or "
            "give --overwrite: files that are not shards stay."
        )
    return False


def warn_of_leftovers(output: Output) -> None:
    """Log the files of unfinished writers in the outputs of the splits, and how to remove them."""
    for split in output.splits:
        place = join(output.url, split) if split else output.url
        Leftovers.find(open_store(place), redact(place)).warn()


def publish_index(
    output: Output,
    split: int,
    entries: list[Entry],
    locks: ConversionLocks,
    lengths: NDArray[Any] | None = None,
) -> None:
    """Publish the index of a split, and its sidecars before it.

    - ``split`` (int): Its number.
    - ``entries`` (list[Entry]): Index entry and file version of each shard, in order.
    - ``lengths`` (NDArray | None, default None): Length of each sample, stored beside the index.

    Raises WriterError if a shard is missing, or if another writer has published an index here.
    """
    data = Index.build(entry for entry, _ in entries).to_json()
    folder = locks.folder(output.splits[split])
    # These files come before the index, so that a dataset that has an index has them too.
    _put_notes(output, split, fingerprint_of(data))
    _put_lengths(output, split, fingerprint_of(data), lengths)
    if folder is None:
        _put_index(output, output.key(split, INDEX_NAME), data)
        return
    if output.durable:
        folder.sync()
        sync(os.path.dirname(folder.folder) or ".")
    with folder.publish(INDEX_NAME) as file:
        file.write(data)
        file.flush()
        if output.durable:
            sync_file(file)
        # Check again right before the index appears, because syncing takes a while.
        check_shards(output, split, entries, locks)
        locks.check_in_place()
    if output.durable:
        folder.sync()


def _put_notes(output: Output, split: int, index: str) -> None:
    """Write the notes on columns for the index with the fingerprint ``index``."""
    store, key = open_store(output.url), output.key(split, NOTES_NAME)
    if output.notes:
        store.put(key, pack_notes(output.notes, index))
    else:
        store.delete(key)  # the notes of a dataset that was replaced


def _put_lengths(output: Output, split: int, index: str, lengths: NDArray[Any] | None) -> None:
    """Write the lengths of samples for the index with the fingerprint ``index``, if recorded."""
    if output.lengths is not None and lengths is not None:
        data = emit_lengths_file(output.lengths, lengths, index)
        open_store(output.url).put(output.key(split, lengths_name(output.lengths)), data)


def _put_index(output: Output, key: str, data: bytes) -> None:
    """Publish the index in a store. Raises WriterError if another dataset is there."""
    store = open_store(output.url)
    with contextlib.suppress(NotFoundError, DeniedError):
        # The same bytes are from an earlier run of this conversion, which was killed after this.
        if store.get(key) != data:
            raise WriterError(
                f"{redact(output.url)}: a dataset appeared at {key} during the conversion, so "
                "another one writes there too. It is not replaced; choose another output."
            )
    store.put(key, data)


def check_shards(output: Output, split: int, entries: list[Entry], locks: ConversionLocks) -> None:
    """Raise WriterError unless every shard of a split exists and has its size."""
    folder = locks.folder(output.splits[split])
    files = []
    for entry, version in entries:
        info = entry["zip_data"] or entry["raw_data"]
        name = output.key(split, info["basename"]) if folder is None else info["basename"]
        files.append(ExpectedFile(name, info["bytes"], version))
    place = redact(output.url) if folder is None else folder.folder
    check_presence(files, folder or open_store(output.url), place, "--overwrite")


def read_index(output: Output, split: int) -> Index | None:
    """Return the published index of a split, or None if there is none."""
    key = output.key(split, INDEX_NAME)
    try:
        data = open_store(output.url).get(key)
    except NotFoundError:
        return None
    return Index.parse(data, join(redact(output.url), key))


def remove_temporary_files(output: Output) -> None:
    """Remove the temporary files of killed processes from the output and the work folder."""
    local = open_store(output.url).local_path
    for split in output.splits if local is not None else ():
        remove_temporaries(os.path.join(local or "", split))
    for folder, _, _ in os.walk(output.checkpoint.folder):
        remove_temporaries(folder)


def _delete_old_datasets(output: Output) -> None:
    """Delete the old dataset of each split: its index, sidecars and shards."""
    store = open_store(output.url)
    for split in range(len(output.splits)):
        index = read_index(output, split)
        # The index goes first: without an index the other files are no dataset.
        store.delete(output.key(split, INDEX_NAME))
        split_store = open_store(
            join(output.url, output.splits[split]) if output.splits[split] else output.url
        )
        for name in find_sidecars(sidecars_of(split_store), split_store.get):
            split_store.delete(name)
        for shard in index or ():
            for raw, zipped in shard.files:
                name = (zipped or raw).basename
                # An index may name any file of the folder. Only shards are removed, not those in
                # folders below, which belong to datasets that were merged.
                if is_shard(name):
                    store.delete(output.key(split, name))
        _remove_shards(store, output.splits[split])


def _remove_shards(store: Store, split: str) -> None:
    """Delete the shards in a local folder of a split, after its index was deleted.

    Shards that no index named are leftovers of a conversion that was killed. Objects of a store are
    not listed for them: `mds clean` finds those.
    """
    if store.local_path is None:
        return
    folder = os.path.join(store.local_path, split)
    if os.path.isdir(folder):
        for name in os.listdir(folder):
            if is_shard(name):
                os.unlink(os.path.join(folder, name))
