"""Exclusive locks of a conversion: the output, its splits, the work folder.

Held by locks that end with the process, so that neither a second conversion nor a writer can come
between. What was made only to be held is removed again when nothing came of it.
"""

from __future__ import annotations

import os
import stat

from mds.errors import ConfigError, MdsError
from mds.storage import open_store, redact
from mds.storage.folder_lock import FolderLock, try_lock_folder
from mds.writers.convert.write_shard import Output, replaced_error


class ConversionLocks:
    """Locks of one conversion; a context manager."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._local = open_store(output.url).local_path
        self._locks: dict[str, FolderLock] = {}
        self._made: list[str] = []

    def __enter__(self) -> ConversionLocks:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # An error of ours tells what it is about; a conversion that ends by one may have removed
        # its work folder itself.
        was_deleted = (
            isinstance(error, Exception)
            and not isinstance(error, MdsError)
            and not self._are_in_place()
        )
        self._release()
        if was_deleted:
            raise replaced_error(self._output) from error

    def _release(self) -> None:
        for lock in self._locks.values():
            lock.close()
        for folder in reversed(self._made):
            # Empty where nothing came of it; a folder that holds something stays.
            if os.path.isdir(folder) and not os.listdir(folder):
                os.rmdir(folder)

    def lock_output(self) -> None:
        """Lock the output, and the work folder if there is one, before either is looked at."""
        local, work = self._local, self._output.checkpoint.folder
        if local is not None and os.path.lexists(local) and not os.path.isdir(local):
            raise ConfigError(f"{redact(self._output.url)} is a file. The output is a folder.")
        if local is not None:
            self._lock(local)
        if os.path.lexists(work):
            self._lock_work(work)

    def lock_rest(self) -> None:
        """Lock what is written to: the work folder, and the folders of the splits."""
        self._lock_work(self._output.checkpoint.folder)
        for split in self._output.splits if self._local is not None else ():
            if split:
                self._lock(self._path(split))

    def folder(self, split: str) -> FolderLock | None:
        """The locked folder of a split; None where the output is no folder."""
        return None if self._local is None else self._locks[self._path(split)]

    def identities(self) -> tuple[tuple[int, int], ...]:
        """What the system knows the folders of the splits by."""
        folders = [self.folder(split) for split in self._output.splits]
        return tuple(folder.identity for folder in folders if folder is not None)

    def check_in_place(self) -> None:
        """See that every folder is still the one that was locked. Raises WriterError."""
        if not self._are_in_place():
            raise replaced_error(self._output)

    def _path(self, split: str) -> str:
        return os.path.join(self._local or "", split) if split else self._local or ""

    def _are_in_place(self) -> bool:
        return all(lock.is_in_place() for lock in self._locks.values())

    def _lock_work(self, folder: str) -> None:
        if self._output.checkpoint.is_private:
            # Its name in the folder of all users can be known beforehand.
            if not os.path.lexists(folder):
                os.mkdir(folder, 0o700)
                self._made.append(folder)
            state = os.lstat(folder)
            if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid():
                raise ConfigError(
                    f"{folder} is not a folder of yours; another user made it. Choose a folder for "
                    "what is under way with --work."
                )
        self._lock(folder)

    def _lock(self, folder: str) -> None:
        if (held := self._locks.get(folder)) is not None:
            if held.is_in_place():
                return
            held.close()  # an old work folder, that was removed to begin anew
        is_new = not os.path.lexists(folder)
        lock = try_lock_folder(folder)
        if lock is None:
            raise ConfigError(
                f"{folder}: another process is converting or writing to this output. Wait for it, "
                "or choose another output."
            )
        self._locks[folder] = lock
        if is_new:
            self._made.append(folder)
