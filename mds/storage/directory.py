"""A directory that was opened once: its files are reached through the descriptor.

A path may lead elsewhere a moment later, when the directory is moved and another one takes its
place. What goes by a descriptor stays in the directory that was opened, wherever that is by then,
and never lands in the other. Costs what paths cost.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from io import FileIO
from typing import BinaryIO

from mds.storage.files import disk, publish_in, rename_in, temporary_path
from mds.storage.regular import open_checked


class Directory:
    """An open directory. ``folder`` is the path that led to it; closed by its owner."""

    def __init__(self, folder: str, fd: int) -> None:
        self.folder = folder
        self._fd = fd
        state = os.fstat(fd)
        #: The numbers by which the system knows it.
        self.identity = state.st_dev, state.st_ino

    def is_in_place(self) -> bool:
        """Whether the path still leads here."""
        try:
            state = os.stat(self.folder)
        except OSError:
            return False
        return (state.st_dev, state.st_ino) == self.identity

    def names(self) -> list[str]:
        """List the entries of the directory, sorted by name."""
        with self._telling():
            return sorted(os.listdir(self._fd))

    def size(self, name: str) -> int:
        """Return the size of a file. Raises OSError."""
        with self._telling():
            return os.stat(name, dir_fd=self._fd).st_size

    def open(self, name: str) -> BinaryIO:
        """Open a file to read. Raises OSError."""
        with self._telling():
            return open(name, "rb", opener=self._reader)

    def unlink(self, name: str) -> None:
        """Remove a file. Raises OSError."""
        with self._telling():
            os.unlink(name, dir_fd=self._fd)

    def sync(self) -> None:
        """Bring the names to the disk."""
        with disk(os.path.join(self.folder, "")):
            os.fsync(self._fd)

    @contextlib.contextmanager
    def publish(self, name: str) -> Iterator[BinaryIO]:
        """Give a file to write to, which is there by its name when the block ends well.

        Raises what `mds.storage.publish` raises.
        """
        with (
            self.telling(name),
            publish_in(self._fd, name) as temporary,
            open(temporary, "xb", opener=self._opener) as file,
        ):
            yield file

    def begin(self, name: str) -> PendingFile:
        """Open a file for a long write; its name appears when it is published.

        Raises what `mds.storage.publish` raises.
        """
        temporary = temporary_path(name)
        with self.telling(name):
            file = open(temporary, "x+b", buffering=0, opener=self._opener)  # noqa: SIM115
        return PendingFile(self, name, temporary, file)

    @contextlib.contextmanager
    def telling(self, name: str) -> Iterator[None]:
        """Tell what a disk does to the file of that name, as `publish` does."""
        with disk(os.path.join(self.folder, name)), self._telling():
            yield

    def rename(self, temporary: str, name: str) -> None:
        """Give a finished file its name."""
        with self.telling(name):
            rename_in(self._fd, temporary, name)

    def _reader(self, name: str, flags: int) -> int:
        return open_checked(name, flags, self._fd)

    def _opener(self, name: str, flags: int) -> int:
        return os.open(name, flags, 0o666, dir_fd=self._fd)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Add the whole path to errors."""
        try:
            yield
        except OSError as error:
            named = error.filename
            if isinstance(named, str) and named and not os.path.isabs(named):
                error.filename = os.path.join(self.folder, named)
            elif isinstance(named, int):
                error.filename = self.folder
            raise


class PendingFile:
    """A file under a temporary name, until one of `publish` and `discard` is called.

    No block and no generator holds it, so nothing happens to it in a forked child.
    """

    def __init__(self, directory: Directory, name: str, temporary: str, file: FileIO) -> None:
        self.name = name
        self._directory = directory
        self._temporary = temporary
        self._file = file

    @property
    def fd(self) -> int:
        """The descriptor, to read and write by."""
        return self._file.fileno()

    def telling(self) -> contextlib.AbstractContextManager[None]:
        """Tell what the disk does to the file."""
        return self._directory.telling(self.name)

    def publish(self) -> None:
        """Give the file its name."""
        self._file.close()
        self._directory.rename(self._temporary, self.name)

    def discard(self) -> None:
        """Remove the file, if it was not published."""
        if not self._file.closed:
            self._file.close()
            with contextlib.suppress(FileNotFoundError):
                self._directory.unlink(self._temporary)


@contextlib.contextmanager
def open_directory(folder: str) -> Iterator[Directory]:
    """Open a directory for as long as the block takes. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Directory(folder, fd)
    finally:
        os.close(fd)


def sync_file(file: BinaryIO) -> None:
    """Bring what was written to an open file to the disk."""
    file.flush()
    os.fsync(file.fileno())
