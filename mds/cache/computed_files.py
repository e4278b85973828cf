"""A folder of files that one process of a node computes and all of its processes read.

A file appears by rename when it is whole. The process that computes it holds a lock that the kernel
drops with its owner; the others wait for that lock, and go past a process that is stopped.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, BinaryIO

from mds.storage.control_files import (
    make_control_folder,
    make_shared_folder,
    mode_of,
    publish_control_file,
)
from mds.storage.files import despite_deletion
from mds.storage.lock_holders import describe_processes, holders_of
from mds.storage.locks import lock_within, open_locks

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator


class ComputedFiles:
    """The files of a folder; a process waits at most ``lock_seconds`` for one that computes."""

    def __init__(self, folder: str, lock_seconds: float) -> None:
        self.folder = folder
        self._lock_seconds = lock_seconds
        self._lock_path = os.path.join(folder, "lock")

    @contextlib.contextmanager
    def alone(self, at: int, path: str) -> Iterator[None]:
        """While no other process of the node computes the file ``path``, whose lock is at ``at``.

        Raises TimeoutError where another one does not end, OSError or CacheError where the folder
        cannot be used.
        """
        self._make_folder()
        mode = mode_of(self.folder)
        lock = lock_within(self._lock_path, at, self._lock_seconds, mode, past_stopped=True)
        if lock is None:
            told = describe_processes(holders_of(self._lock_path, at))
            raise TimeoutError(f"another process holds the lock of {path}: {told}")
        try:
            yield
        finally:
            lock.close()

    @contextlib.contextmanager
    def alone_at_once(self, at: int) -> Iterator[bool]:
        """Whether no other process computes the file whose lock is at ``at``; none does then."""
        self._make_folder()
        lock = open_locks(self._lock_path, mode_of(self.folder))
        try:
            yield lock.try_lock(at)
        finally:
            lock.close()

    def publish(self, path: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """A new file to write to, which becomes ``path``, for the users of the folder."""
        return publish_control_file(path, mode_of(self.folder))

    def keep_newest(self, name: re.Pattern[str], most: int) -> None:
        """Remove the oldest files of such names beyond ``most``."""
        found = []
        for path in self.paths(name):
            with contextlib.suppress(OSError):
                found.append((os.stat(path).st_mtime_ns, path))
        # A process that still reads a removed file keeps what it has mapped.
        for _, path in sorted(found)[:-most]:
            remove(path)

    def paths(self, name: re.Pattern[str]) -> list[str]:
        """The files of such names."""
        return [
            os.path.join(self.folder, each) for each in os.listdir(self.folder) if name.match(each)
        ]

    def _make_folder(self) -> None:
        def make() -> None:
            make_shared_folder(os.path.dirname(self.folder))
            make_control_folder(self.folder)

        despite_deletion(make)


def remove(path: str) -> None:
    """Remove a file, if that can be done."""
    with contextlib.suppress(OSError):
        os.unlink(path)
