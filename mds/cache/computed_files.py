"""Files that one process of a node computes and all of its processes read.

A file appears by rename when it is complete. The process that computes it holds a lock that the
kernel releases when the process dies. The others wait for that lock, but not for a process that is
stopped.

`PackFile` is such a file: the number of packs in each window of an epoch. Its name is a digest of
everything that the packs depend on, and a damaged file is recognised by its digest and counted
again. Where the folder cannot be used, every process counts for itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from mds.errors import CacheError, IndexFileError
from mds.index.sidecar import pack_sidecar, parse_sidecar
from mds.storage.control_files import (
    make_control_folder,
    make_shared_folder,
    mode_of,
    publish_control_file,
    read_control_file,
)
from mds.storage.files import despite_deletion
from mds.storage.locks import describe_processes, holders_of, lock_within, open_locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]

_PACKS = "packs"
_PACKS_NAME = re.compile(r"^packs-[0-9a-f]{32}\.bin$")
_MAX_PACK_FILES = 16  # in a folder
_PACKS_LOCK_SECONDS = 300.0  # to wait for another process that counts


class ComputedFiles:
    """The files of a folder; a process waits at most ``lock_seconds`` for one that computes."""

    def __init__(self, folder: str, lock_seconds: float) -> None:
        self.folder = folder
        self._lock_seconds = lock_seconds
        self._lock_path = os.path.join(folder, "lock")

    @contextlib.contextmanager
    def alone(self, offset: int, path: str) -> Iterator[None]:
        """Hold the lock at byte ``offset``, with which one process computes the file ``path``.

        Raises TimeoutError where another one does not end, OSError or CacheError where the folder
        cannot be used.
        """
        self._make_folder()
        mode = mode_of(self.folder)
        lock = lock_within(self._lock_path, offset, self._lock_seconds, mode, past_stopped=True)
        if lock is None:
            owners = describe_processes(holders_of(self._lock_path, offset))
            raise TimeoutError(f"another process holds the lock of {path}: {owners}")
        try:
            yield
        finally:
            lock.close()

    @contextlib.contextmanager
    def alone_at_once(self, offset: int) -> Iterator[bool]:
        """Try to take the lock at byte ``offset`` without waiting; yield whether it was free."""
        self._make_folder()
        lock = open_locks(self._lock_path, mode_of(self.folder))
        try:
            yield lock.try_lock(offset)
        finally:
            lock.close()

    def publish(self, path: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open a new file that becomes ``path``, with the mode of the folder's users."""
        return publish_control_file(path, mode_of(self.folder))

    def keep_newest(self, name: re.Pattern[str], max_files: int) -> None:
        """Remove the oldest files of such names beyond ``max_files``."""
        ages = []
        for path in self.paths(name):
            with contextlib.suppress(OSError):
                ages.append((os.stat(path).st_mtime_ns, path))
        # A process that still reads a removed file keeps its map.
        for _, path in sorted(ages)[:-max_files]:
            remove(path)

    def paths(self, name: re.Pattern[str]) -> list[str]:
        """Return the paths of the files with such names."""
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


class PackFile:
    """The file of one epoch: of so many ``windows`` in each canonical node, in a folder."""

    def __init__(self, key: str, windows: Ids, folder: str) -> None:
        self._key, self._windows = key, windows
        self._files = ComputedFiles(folder, _PACKS_LOCK_SECONDS)
        self.path = os.path.join(folder, f"packs-{key}.bin")

    def read(self) -> list[Ids] | None:
        """Return the packs of each window of each canonical node, or None if not known."""
        window_count = int(self._windows.sum())
        try:
            content = read_control_file(self.path, 4 * window_count + 2048)
            content_file = parse_sidecar(content, self.path, _PACKS, self._key)
        except (OSError, CacheError, IndexFileError):
            return None
        if len(content_file.payload) != 4 * window_count:
            return None
        counts = np.frombuffer(content_file.payload, "<u4").astype(np.int64)
        return np.split(counts, np.cumsum(self._windows)[:-1])

    def ensure(self, count: Callable[[], list[Ids]]) -> list[Ids]:
        """Return the result of `read`, else that of ``count``, which is then stored."""
        counts = self.read()
        if counts is not None:
            return counts
        with (
            contextlib.suppress(OSError, CacheError),
            self._files.alone(int(self._key[:7], 16), self.path),
        ):
            counts = self.read()
            if counts is None:
                counts = count()
                self._write(counts)
        return counts if counts is not None else count()

    def _write(self, counts: list[Ids]) -> None:
        payload = np.concatenate([np.zeros(0, np.int64), *counts]).astype("<u4").tobytes()
        with self._files.publish(self.path) as file:
            file.write(pack_sidecar(_PACKS, 1, self._key, payload))
        self._files.keep_newest(_PACKS_NAME, _MAX_PACK_FILES)
