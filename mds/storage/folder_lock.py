"""An exclusive lock on a folder, which the kernel drops with its owner and which leaves no file.

The folder itself is opened and locked (flock), so nothing has to be cleaned up and a folder that
is deleted and made anew is another one, which `is_in_place` tells. Network file systems lock only
files that are open for writing: there a file `.mds-writer.lock` stands for the folder, and is
removed with the lock. Where nothing can be locked at all, the folder counts as locked.

A forked child closes what it inherited: the lock never outlives the process that took it. Costs
five system calls.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
import weakref
from collections.abc import Callable

from mds.errors import StoreError
from mds.process.fork_safe import call_in_child
from mds.storage.directory import Directory
from mds.storage.files import make_folder

LOCK_NAME = ".mds-writer.lock"
_BUSY = {errno.EAGAIN, errno.EACCES}
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_TRIES = 64  # of folders that are deleted between their opening and their locking


class FolderLock(Directory):
    """A locked folder; closed by its owner, or by the kernel."""

    def __init__(self, folder: str, fd: int, file_fd: int = -1) -> None:
        super().__init__(folder, fd)
        self._file_fd = file_fd
        _held_locks.add(self)

    def close(self) -> None:
        """Release the lock. Closing twice is fine."""
        fd, self._fd = self._fd, -1
        file_fd, self._file_fd = self._file_fd, -1
        if file_fd >= 0:
            # Removed while it is locked: a waiting process sees that its file is gone.
            with contextlib.suppress(OSError):
                os.unlink(LOCK_NAME, dir_fd=fd)
        for each in (file_fd, fd):
            if each >= 0:
                # Closing alone leaves the lock to a child that was forked a moment ago.
                with contextlib.suppress(OSError):
                    fcntl.flock(each, fcntl.LOCK_UN)
                os.close(each)

    def abandon(self) -> None:
        """In a forked child: close the parent's descriptors, whose lock stays."""
        for each in (self._file_fd, self._fd):
            if each >= 0:
                os.close(each)
        self._fd = self._file_fd = -1

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_fd", -1) >= 0 and not is_over():
            self.close()


def try_lock_folder(folder: str, *, make: bool = True, on_folder: bool = True) -> FolderLock | None:
    """Lock a folder; None when it is locked already.

    One that is missing is made, or without ``make`` a FileNotFoundError. ``on_folder=False`` locks
    the file that stands for it, as on a network file system.
    """
    for _ in range(_TRIES):
        if make:
            make_folder(folder)
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            if make:
                continue
            raise
        lock = FolderLock(folder, fd)
        try:
            is_taken = _flock(fd) if on_folder else None
            if is_taken is None:
                is_taken = _lock_file(lock)
        except FileNotFoundError:
            is_taken = True  # deleted meanwhile: not in place, so once more
        except BaseException:
            lock.close()
            raise
        if not is_taken:
            lock.abandon()
            return None
        if lock.is_in_place():
            return lock
        lock.close()
    raise StoreError(f"lock {folder}: it is deleted again and again.", url=folder, verb="lock")


def is_locked_here(folder: str) -> bool:
    """Whether it is this process that holds the lock on a folder."""
    with contextlib.suppress(OSError):
        state = os.stat(folder)
        identity = state.st_dev, state.st_ino
        return any(lock.identity == identity and lock._fd >= 0 for lock in list(_held_locks))  # noqa: SLF001
    return False


def _flock(fd: int) -> bool | None:
    """Whether the lock was taken; None where only files open for writing can be locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if error.errno == errno.EBADF:
            return None
        if error.errno not in _UNSUPPORTED:
            raise
    return True


def _lock_file(lock: FolderLock) -> bool:
    """Lock a folder by a file in it."""
    folder = lock._fd  # noqa: SLF001 - made here
    for _ in range(_TRIES):
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(LOCK_NAME, flags, 0o666, dir_fd=folder)
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode) or not _flock(fd):
            os.close(fd)
            return False
        with contextlib.suppress(FileNotFoundError):
            if os.stat(LOCK_NAME, dir_fd=folder, follow_symlinks=False).st_ino == state.st_ino:
                lock._file_fd = fd  # noqa: SLF001 - made here
                return True
        os.close(fd)  # its owner removed it, and another may have made a new one
    return False


_held_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _close_inherited() -> None:
    for lock in list(_held_locks):
        lock.abandon()
    _held_locks.clear()


call_in_child(_close_inherited)
