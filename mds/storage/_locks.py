"""Locks on bytes of a file and on folders, which the kernel drops when their owner ends.

A *byte lock* is a byte of a lock file. One file serves any number of shards and stays empty,
because locks may be beyond its end. On Linux these are "open file description" locks, which belong
to the opened file and not to the process, unlike classic record locks. Elsewhere each byte is a
small file that is locked whole. After a `kill -9` there is nothing to clean up. A lock costs a
system call, about a microsecond.

An open lock file takes a descriptor, of which a process may have only some hundreds. So the lock
files of thousands of folders become names (hard links) of one file, which a process opens once
(`share_locks`). The folder is a part of the number of a byte, so that folders do not share bytes:

    bit 62 ... 28                 27 ... 0
    inode of the folder, 35 bits  number of the byte within the folder

A negative number is a byte that all folders of the file have in common.

A *folder lock* opens the folder itself and locks it (flock). It leaves no file behind, and
`Directory.is_in_place` tells if the folder was deleted and made again meanwhile. Network file
systems lock only files that are open for writing: there the file `.mds-writer.lock` is locked in
place of the folder, and deleted with the lock. If nothing can be locked at all, the folder counts
as locked by its caller. A folder lock costs five system calls.

A forked child closes the descriptors that it inherits (`abandon`), so a lock never outlives the
process that took it.

A lock does not say which process holds it, but Linux lists the locks of each open file
(``/proc/PID/fdinfo``). The list is read once a wait has become long: it takes some ten
milliseconds on a machine with hundreds of processes. Processes of other users or containers are not
visible.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Protocol

from mds._process.fork_safe import call_in_child, new_condition, new_rlock
from mds._redaction import printable
from mds.errors import StoreError
from mds.storage._control_files import (
    make_control_folder,
    make_shared_folder,
    open_control_file,
)
from mds.storage._files import (
    Directory,
    despite_deletion,
    make_folder,
    publish,
    translate_write_errors,
)
from mds.storage._waiting import waiting

_BUSY = {errno.EAGAIN, errno.EACCES}


# ----------------------------------------------------------------------------------- locks on bytes


_LOOK_SECONDS = 2.0  # between two looks at which process has a lock
_STOPPED_SECONDS = 3.0  # after which a stopped process is no longer waited for
# The argument of fcntl's lock commands on 64-bit systems: l_type, l_whence, l_start, l_len, l_pid.
# The length 0 means all bytes from l_start on, and l_pid has to be 0.
_FLOCK = struct.Struct("hhqqi4x")
HAS_RANGES = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")


class LockFile(Protocol):
    """An owner of locks on bytes of one file; other processes and threads have owners of their own.

    A lock is exclusive, or shared with other owners of shared locks on the same byte. An owner does
    not wait for its own locks: to lock a byte again changes the kind of its lock.
    """

    def try_lock(self, offset: int, *, is_shared: bool = False) -> bool:
        """Lock byte ``offset`` if no other owner prevents it; return whether it is locked."""

    def unlock(self, offset: int) -> None:
        """Release byte ``offset``."""

    def close(self) -> None:
        """Release all locks. Closing twice is fine."""

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the file, or of its folder if each byte is a file."""

    def is_at(self, path: str) -> bool:
        """Whether the lock file is still the one at ``path``."""


class RangeLockFile:
    """A `LockFile` on Linux: the locks belong to an open file description.

    Args:
        path: Lock file; a missing one is created.
        mode: Permissions of a new file.
    """

    def __init__(self, path: str, mode: int = 0o666) -> None:
        self._fd = -1
        _lock_files.add(self)  # first: a fork right after the opening must find it
        self._fd = _open(path, mode)
        self._base = _first_byte(path)

    def try_lock(self, offset: int, *, is_shared: bool = False) -> bool:
        """Lock byte ``offset`` if no other owner prevents it; return whether it is locked."""
        kind = fcntl.F_RDLCK if is_shared else fcntl.F_WRLCK
        return self.set_lock(_byte(self._base, offset), kind)

    def wait_lock(self, offset: int) -> None:
        """Lock byte ``offset``; wait for it without a limit."""
        self._set(fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, _byte(self._base, offset))

    def unlock(self, offset: int) -> None:
        """Release byte ``offset``, if the file is still open."""
        if self._fd >= 0:  # the garbage collector may close this file before a lock is released
            self._set(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, _byte(self._base, offset))

    def set_lock(self, byte: int, kind: int) -> bool:
        """Set or release the lock on a byte, counted from the beginning of the file.

        Returns False if another owner prevents it. ``kind`` is F_RDLCK, F_WRLCK or F_UNLCK.
        """
        try:
            self._set(fcntl.F_OFD_SETLK, kind, byte)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True

    def try_lock_all(self) -> bool:
        """Lock all bytes, of all folders, if no other owner has locked any."""
        whole_file = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, whole_file)
        except OSError:
            return False
        return True

    def unlock_all(self) -> None:
        """Release all locks."""
        whole_file = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, whole_file)

    def is_at(self, path: str) -> bool:
        """Whether the lock file is still the one at ``path``."""
        try:
            return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(self._fd))
        except OSError:
            return False

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the file."""
        state = os.fstat(self._fd)
        return state.st_dev, state.st_ino

    @property
    def descriptor(self) -> int:
        """The open file; -1 once it is closed."""
        return self._fd

    def close(self) -> None:
        """Release all locks. Closing twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # Unlock all bytes explicitly: a child forked a moment ago may still hold a copy of the
            # descriptor, and closing ours alone would leave the locks with it.
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
            os.close(fd)

    def abandon(self) -> None:
        """Close the descriptors in a forked child; the parent keeps its locks."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # An owner that is garbage must not keep others waiting. At the end of the interpreter the
        # process ends anyway, and the modules that closing needs may be gone already. `is_over` is
        # a default argument because `sys` may be gone too.
        if getattr(self, "_fd", -1) >= 0 and not is_over():
            self.close()

    def _set(self, command: int, kind: int, offset: int) -> None:
        """Set or release the lock on byte ``offset`` of the file.

        ``command`` is F_OFD_SETLK, which fails if another owner has the byte, or F_OFD_SETLKW,
        which waits. ``kind`` is F_RDLCK (shared), F_WRLCK (exclusive) or F_UNLCK (none).
        """
        fcntl.fcntl(self._fd, command, _FLOCK.pack(kind, os.SEEK_SET, offset, 1, 0))


class FileLockFile:
    """A `LockFile` for systems without open file description locks: one small file for each byte.

    Byte n is the file ``{path}.n``, which is created with the permissions ``mode``, and locked.
    """

    def __init__(self, path: str, mode: int = 0o666) -> None:
        self._path, self._mode = path, mode
        self._fds: dict[int, int] = {}  # by number of the byte: the open file
        _lock_files.add(self)

    def try_lock(self, offset: int, *, is_shared: bool = False) -> bool:
        """Lock byte ``offset`` if no other owner prevents it; return whether it is locked."""
        kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._file(offset), kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True

    def wait_lock(self, offset: int) -> None:
        """Lock byte ``offset``; wait for it without a limit."""
        fcntl.flock(self._file(offset), fcntl.LOCK_EX)

    def unlock(self, offset: int) -> None:
        """Release byte ``offset``."""
        fd = self._fds.pop(offset, -1)
        if fd >= 0:
            os.close(fd)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the folder; zeros if it was deleted."""
        with contextlib.suppress(FileNotFoundError):
            state = os.stat(os.path.dirname(self._path))
            return state.st_dev, state.st_ino
        return 0, 0

    def is_at(self, path: str) -> bool:
        """Whether the lock file is still the one at ``path``: it is named by its path."""
        return path == self._path

    def close(self) -> None:
        """Release all locks. Closing twice is fine."""
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)

    def abandon(self) -> None:
        """Close the descriptors in a forked child; the parent keeps its locks."""
        self.close()

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # See `RangeLockFile.__del__`.
        if not is_over():
            self.close()

    def _file(self, offset: int) -> int:
        """Return the descriptor of the file for a byte, opened at its first use."""
        if offset not in self._fds:
            self._fds[offset] = _open(f"{self._path}.{offset}", self._mode)
        return self._fds[offset]


def open_locks(path: str, mode: int = 0o666) -> RangeLockFile | FileLockFile:
    """Return a new owner of locks on the bytes of ``path``; a missing file is created."""
    return RangeLockFile(path, mode) if HAS_RANGES else FileLockFile(path, mode)


class _SharedLockFile:
    """A lock file that this process opens once, for the locks of many folders.

    Args:
        file: The open file.
        key: Its device and inode, by which `_shared_files` has it.
    """

    def __init__(self, file: RangeLockFile, key: tuple[int, int]) -> None:
        self.file, self.key = file, key
        self.users = 0
        #: Number of shared locks of this process on a byte, or -1 for an exclusive one.
        self.counts: dict[int, int] = {}


class SharedLocks:
    """A `LockFile` that shares its open file with other folders, see `share_locks`.

    The kernel sees one owner for all of them. Which one has a byte is therefore recorded here.

    Args:
        shared: The open file.
        base: Number of the first byte of the folder.
    """

    # The garbage collector may run `__del__` at any moment, also while this thread is in a method.
    # So a byte is counted before the kernel locks it, and the lock is reentrant.

    def __init__(self, shared: _SharedLockFile, base: int) -> None:
        self._shared, self._base = shared, base
        self._held: dict[int, bool] = {}  # by byte of the file: whether the lock is shared
        self._is_closed = False
        shared.users += 1

    def try_lock(self, offset: int, *, is_shared: bool = False) -> bool:
        """Lock byte ``offset`` if no other owner prevents it; return whether it is locked."""
        byte, counts = _byte(self._base, offset), self._shared.counts
        with _shared_lock:
            if byte in self._held:  # change its kind, if no other folder's owner has it too
                if self._held[byte] == is_shared:
                    return True
                if counts[byte] > 1:
                    return False
            elif (count := counts.get(byte, 0)) < 0 or (count and not is_shared):
                return False
            old = self._held.get(byte)
            self._count(byte, is_shared)
            kind = fcntl.F_RDLCK if is_shared else fcntl.F_WRLCK
            is_locked = False
            try:
                is_locked = self._shared.file.set_lock(byte, kind)
            finally:
                if not is_locked:
                    self._count(byte, old)
        return is_locked

    def unlock(self, offset: int) -> None:
        """Release byte ``offset``, if it is locked."""
        self._release(_byte(self._base, offset))

    def close(self) -> None:
        """Release all locks. Closing twice is fine."""
        with _shared_lock:
            for byte in list(self._held):
                self._release(byte)
            if self._is_closed:
                return
            self._is_closed, shared = True, self._shared
            shared.users -= 1
            if not shared.users:
                if _shared_files.get(shared.key) is shared:
                    del _shared_files[shared.key]
                shared.file.close()

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the file."""
        return self._shared.key

    def is_at(self, path: str) -> bool:
        """Whether the lock file is still the one at ``path``."""
        return self._shared.file.is_at(path)

    def _count(self, byte: int, is_shared: bool | None) -> None:
        """Record that this folder has a shared lock on a byte, an exclusive one, or none (None)."""
        counts, old = self._shared.counts, self._held.get(byte)
        others = counts.get(byte, 0) - (0 if old is None else 1 if old else -1)
        count = others + (0 if is_shared is None else 1 if is_shared else -1)
        if is_shared is None:
            self._held.pop(byte, None)
        else:
            self._held[byte] = is_shared
        if count:
            counts[byte] = count
        else:
            counts.pop(byte, None)

    def _release(self, byte: int) -> None:
        """Release a byte of the file; the kernel too if no other folder's owner has it."""
        with _shared_lock:
            if byte not in self._held:
                return
            self._count(byte, None)
            if byte not in self._shared.counts and self._shared.file.descriptor >= 0:
                self._shared.file.set_lock(byte, fcntl.F_UNLCK)

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # See `RangeLockFile.__del__`.
        if not is_over():
            self.close()


def share_locks(path: str, mode: int = 0o666) -> LockFile:
    """Return a new owner of locks on the bytes of ``path``, in a file that is opened only once.

    If no process has locked a byte of the file, ``path`` becomes a name of a lock file that this
    process has open already. So a process needs one descriptor for the locks of any number of
    folders. The caller locks a byte and then calls `LockFile.is_at`: another process may have
    replaced the file between the opening and the lock.
    """
    if not HAS_RANGES:
        return FileLockFile(path, mode)
    with _shared_lock:
        shared = _find_shared(path)
        if shared is None:
            file = RangeLockFile(path, mode)
            shared = _join_shared(path, file) or _add_shared(file)
        return SharedLocks(shared, _first_byte(path))


def _find_shared(path: str) -> _SharedLockFile | None:
    """Return the open file at ``path``, if this process has it open."""
    try:
        state = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return _shared_files.get((state.st_dev, state.st_ino))


def _add_shared(file: RangeLockFile) -> _SharedLockFile:
    """Remember an open lock file, whose name other lock files of its disk may get."""
    state = os.fstat(file.descriptor)
    key = (state.st_dev, state.st_ino)
    shared = _shared_files[key] = _SharedLockFile(file, key)
    return shared


def _join_shared(path: str, file: RangeLockFile) -> _SharedLockFile | None:
    """Make ``path``, which is open as ``file``, a name of a lock file that is open already.

    Returns that file, or None if there is none on this disk with the same owner and mode, if the
    file system has no hard links, or if a process has locked a byte of ``file``.
    """
    own = os.fstat(file.descriptor)
    for shared in reversed(_shared_files.values()):  # the newest is most likely to have a name
        state = os.fstat(shared.file.descriptor)
        facts = [(s.st_dev, s.st_uid, s.st_gid, s.st_mode) for s in (own, state)]
        if facts[0] == facts[1] and state.st_nlink and own.st_ino != state.st_ino:
            break
    else:
        return None
    if not file.try_lock_all():
        return None
    # Now no other process has locked a byte of the old file. One that has opened it and locks a
    # byte later notices by `is_at` that the file was replaced.
    try:
        if not file.is_at(path):
            return None
        with publish(path) as temporary:
            # By its descriptor, since its names may be gone. Python follows the link in /proc only
            # if a folder is given, which an absolute path does not use.
            fd = shared.file.descriptor
            os.link(f"/proc/self/fd/{fd}", temporary, src_dir_fd=fd, follow_symlinks=True)
    except OSError:
        return None
    finally:
        file.unlock_all()
    file.close()
    return shared


def _first_byte(path: str) -> int:
    """Return the number of the first byte of a lock file's folder, in all files it may share."""
    return (os.stat(os.path.dirname(path) or ".").st_ino % (1 << 35)) << 28


def _byte(base: int, offset: int) -> int:
    """Return the number in its file of byte ``offset`` of the folder whose first byte is ``base``.

    A negative ``offset`` is a byte that all folders of the file have in common.
    """
    return base + offset if offset >= 0 else -offset


def lock_within(
    path: str,
    offset: int,
    seconds: float,
    mode: int = 0o666,
    *,
    past_stopped: bool = False,
    suspects: Callable[[], Sequence[int]] = list,
) -> LockFile | None:
    """Lock byte ``offset`` of ``path``, or return None after ``seconds``.

    The kernel wakes the waiter when the owner releases the lock or dies. A wait in the kernel
    cannot be interrupted, so a helper thread waits, and releases a lock that comes too late.

    Args:
        path: Lock file; a missing one is created with ``mode``.
        offset: Number of the byte.
        seconds: Longest wait; 0 tries once.
        mode: Permissions of a new lock file.
        past_stopped: Whether to give up early, after `_STOPPED_SECONDS`, if the process that holds
            the lock is stopped by a signal or a debugger.
        suspects: Function that returns the ids of processes that may hold the lock. It is called if
            the holder is not visible.
    """
    end = time.monotonic() + seconds
    while True:
        locks = _lock_once(path, offset, end - time.monotonic(), mode, past_stopped, suspects)
        if locks is None or locks.is_at(path):
            return locks
        # Another process replaced the file between the opening and the lock, see `share_locks`.
        locks.close()


def _lock_once(
    path: str,
    offset: int,
    seconds: float,
    mode: int,
    past_stopped: bool,
    suspects: Callable[[], Sequence[int]],
) -> LockFile | None:
    """Lock byte ``offset`` of the file that is at ``path`` now; see `lock_within`."""
    locks = open_locks(path, mode)
    if locks.try_lock(offset):
        return locks
    if seconds <= 0:
        locks.close()
        return None
    waiter = _Waiter(locks, offset)
    threading.Thread(target=waiter.run, name="mds-lock", daemon=True).start()
    with waiting("the owner of a lock in", os.path.dirname(path)) as wait:

        def is_hopeless() -> bool:
            """Return whether to give up because all processes that hold the lock are stopped.

            `result` calls this every `_LOOK_SECONDS`. So the log line of the wait is also kept up
            to date here: its note names the processes that hold the lock now.
            """
            holders = holders_of(path, offset) or list(suspects())
            wait.note = describe_processes(holders) if holders else ""
            # A list, not a generator: each call of `is_stuck` records the state.
            are_stuck = [_Stopped.is_stuck(pid) for pid in holders]
            return past_stopped and bool(are_stuck) and all(are_stuck)

        return waiter.result(seconds, is_hopeless)


class _Stopped:
    """Process ids of stopped processes, with the time at which each was first seen stopped.

    Times are those of `time.monotonic`.
    """

    since: ClassVar[dict[int, float]] = {}

    @classmethod
    def is_stuck(cls, pid: int) -> bool:
        """Whether a process is stopped, and was at all earlier calls for `_STOPPED_SECONDS`.

        A process that was seen running in between has to be stopped for that long again.
        """
        if not is_stopped(pid):
            cls.since.pop(pid, None)
            return False
        now = time.monotonic()
        return now - cls.since.setdefault(pid, now) >= _STOPPED_SECONDS


class _Waiter:
    """Wait for the lock on byte ``offset`` of ``locks``, with a time limit.

    A wait in the kernel has no time limit. So a helper thread waits there (`run`), and the caller
    waits for that thread (`result`) and may give up.
    """

    def __init__(self, locks: RangeLockFile | FileLockFile, offset: int) -> None:
        self._locks, self._offset = locks, offset
        self._state = new_condition()
        self._is_held = self._is_given_up = False
        self._error: OSError | None = None

    def run(self) -> None:
        """Lock the byte, in the helper thread; release it if the caller gave up."""
        try:
            self._locks.wait_lock(self._offset)
        except OSError as error:
            self._error = error
        with self._state:
            self._is_held = True  # or the wait failed, with `_error`
            self._state.notify()
            if not self._is_given_up:
                return
        self._locks.close()

    def result(self, seconds: float, is_hopeless: Callable[[], bool]) -> LockFile | None:
        """Return the owner of the lock, or None after ``seconds`` or once ``is_hopeless()``.

        Raises the OSError with which the wait of the helper thread failed.
        """
        end = time.monotonic() + seconds
        while not self._is_done_within(min(_LOOK_SECONDS, end - time.monotonic())):
            if time.monotonic() < end and not is_hopeless():
                continue
            # Give up, unless the helper thread locked the byte between the check and here.
            with self._state:
                if self._is_held:
                    break
                self._is_given_up = True  # so `run` releases a lock that comes later
                return None
        if self._error is not None:
            self._locks.close()
            raise self._error
        return self._locks

    def _is_done_within(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the end of the helper's wait; return whether it ended."""
        with self._state:
            return self._state.wait_for(lambda: self._is_held, max(seconds, 0.0))


def _open(path: str, mode: int) -> int:
    """Return a descriptor of a lock file, even if its folder is deleted at this moment."""
    return despite_deletion(lambda: _open_or_make(path, mode & 0o666))


def _open_or_make(path: str, mode: int) -> int:
    """Return a descriptor of a lock file; create the file and its folders if they are missing."""
    try:
        return open_control_file(path, create_mode=mode, max_names=None)
    except FileNotFoundError:
        # The folder is missing. Lock files are in a control folder (.mds) of this library below a
        # folder of the user, whose permissions follow other rules.
        with translate_write_errors(path):
            make_shared_folder(os.path.dirname(os.path.dirname(path)))
            make_control_folder(os.path.dirname(path))
            return open_control_file(path, create_mode=mode, max_names=None)


# --------------------------------------------------------------------------------- holders of locks


_STOPPED = {b"T", b"t"}  # by a signal, and by a debugger
_MAX_COMMAND = 80  # letters of a command that are shown


def holders_of(path: str, offset: int) -> list[int]:
    """Return the visible processes that hold an exclusive lock on byte ``offset`` of a file."""
    try:
        inode, byte = b"%d" % os.stat(path).st_ino, _byte(_first_byte(path), offset)
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
    except OSError:
        return []
    return [pid for pid in pids if any(_holds(pid, inode, byte))]


def _holds(pid: int, inode: bytes, offset: int) -> Iterator[bool]:
    """Yield for each lock of a process whether it is an exclusive one on a byte.

    Linux lists the locks of an open file in ``/proc/PID/fdinfo/FD``, one per line. The byte is at
    ``offset`` in the file whose inode number is ``inode``, in decimal digits.
    """
    folder = f"/proc/{pid}/fdinfo"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError), open(os.path.join(folder, name), "rb") as info:
                for line in info:
                    if line.startswith(b"lock:"):
                        yield _is_lock(line.split(), inode, offset)


def _is_lock(words: Sequence[bytes], inode: bytes, offset: int) -> bool:
    """Whether a line of fdinfo, split into words, is an exclusive lock on a byte.

    The line ``lock: 1: OFDLCK ADVISORY WRITE -1 08:01:77 5 9`` locks bytes 5 to 9 of the file with
    inode number 77. The device before it is ignored: layered file systems show another one here.
    """
    if len(words) != 9 or words[4] != b"WRITE" or words[6].rpartition(b":")[2] != inode:
        return False
    first, last = words[7], words[8]
    return int(first) <= offset and (last == b"EOF" or offset <= int(last))


def is_stopped(pid: int) -> bool:
    """Whether a visible process is stopped by a signal or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The line is "id (name) state ...", and the name may contain anything.
            return file.read().rpartition(b")")[2].split()[0] in _STOPPED
    except (OSError, IndexError):
        return False


def describe_processes(pids: Sequence[int]) -> str:
    """Describe processes for a message: "process 17 (python train.py, stopped) on host1"."""
    names = [
        "another thread of this process"
        if pid == os.getpid()
        else f"process {pid} ({', '.join(_command_and_state(pid))})"
        for pid in pids
    ]
    processes = ", ".join(names) or "a process that is not visible here"
    return f"{processes} on {printable(socket.gethostname())}"


def _command_and_state(pid: int) -> list[str]:
    """Return the command of a process, such as "python train.py", and "stopped" if it is."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        words = []
    # The program and its script. Leave the arguments out: they may contain secrets.
    names = [os.path.basename(os.fsdecode(word)) for word in words[:1]]
    names += [os.path.basename(os.fsdecode(word)) for word in words[1:] if word.endswith(b".py")]
    command = printable(" ".join(names[:2]))[:_MAX_COMMAND] or "in another container, or ended"
    return [command, "stopped"] if is_stopped(pid) else [command]


# --------------------------------------------------------------------------------- locks on folders


LOCK_NAME = ".mds-writer.lock"
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_TRIES = 64  # of folders that are deleted between their opening and their locking


class FolderLock(Directory):
    """A folder that this process has locked, until `close` or the end of the process.

    It becomes invalid if the folder is deleted and made again (`is_in_place`).

    Args:
        folder: Path of the folder.
        fd: Its descriptor.
        file_fd: Descriptor of the file `LOCK_NAME` if that is locked in place of the folder, or -1.
    """

    def __init__(self, folder: str, fd: int, file_fd: int = -1) -> None:
        super().__init__(folder, fd)
        self._file_fd = file_fd
        _folder_locks.add(self)

    def close(self) -> None:
        """Release the lock. Closing twice is fine."""
        fd, self._fd = self._fd, -1
        file_fd, self._file_fd = self._file_fd, -1
        if file_fd >= 0:
            # Delete the file while it is locked. A process that opened it before and locks it next
            # sees that the name is gone, and tries again (`_lock_file`).
            with contextlib.suppress(OSError):
                os.unlink(LOCK_NAME, dir_fd=fd)
        for descriptor in (file_fd, fd):
            if descriptor >= 0:
                # Closing alone leaves the lock to a child that was forked a moment ago.
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)

    def abandon(self) -> None:
        """Close the descriptors in a forked child; the parent keeps its lock."""
        for descriptor in (self._file_fd, self._fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._fd = self._file_fd = -1

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_fd", -1) >= 0 and not is_over():
            self.close()


def try_lock_folder(folder: str, *, make: bool = True, on_folder: bool = True) -> FolderLock | None:
    """Lock a folder, or return None if it is locked already.

    Args:
        folder: Path of the folder.
        make: Whether to create a missing folder; else FileNotFoundError is raised.
        on_folder: Whether to lock the folder itself if its file system can; else the file
            `LOCK_NAME` in it is locked, as on a network file system.

    Raises StoreError if the folder is deleted again and again.
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
            is_locked = _flock(fd) if on_folder else None
            if is_locked is None:  # the folder itself cannot be locked
                is_locked = _lock_file(lock)
        except FileNotFoundError:
            is_locked = True  # the folder was deleted, so `is_in_place` fails below: try again
        except BaseException:
            lock.close()
            raise
        if not is_locked:
            lock.abandon()
            return None
        # Between opening and locking, the folder may have been deleted and made again. Then this is
        # the lock on a deleted folder, which protects nothing.
        if lock.is_in_place():
            return lock
        lock.close()
    raise StoreError(f"lock {folder}: it is deleted again and again.", url=folder, verb="lock")


def is_locked_here(folder: str) -> bool:
    """Whether this process holds the lock on a folder."""
    with contextlib.suppress(OSError):
        state = os.stat(folder)
        identity = state.st_dev, state.st_ino
        locks = list(_folder_locks)
        return any(lock.identity == identity and lock._fd >= 0 for lock in locks)  # noqa: SLF001
    return False


def _flock(fd: int) -> bool | None:
    """Lock an open folder or file, unless another process has locked it.

    Return True if it is locked by this process now, False if by another one, and None if the file
    system locks only files that are open for writing. On a file system without locks return True:
    then nothing protects the folder.
    """
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
    """Lock the file `LOCK_NAME` in the folder of ``lock``; return whether no other process had it.

    If it is locked, its descriptor is stored in ``lock``, which closes it.
    """
    folder = lock._fd  # noqa: SLF001 - made here
    for _ in range(_TRIES):
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(LOCK_NAME, flags, 0o666, dir_fd=folder)
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode) or not _flock(fd):
            os.close(fd)
            return False
        with contextlib.suppress(FileNotFoundError):
            current = os.stat(LOCK_NAME, dir_fd=folder, follow_symlinks=False)
            if current.st_ino == state.st_ino:  # the locked file still has the name
                lock._file_fd = fd  # noqa: SLF001 - made here
                return True
        # The owner before deleted this file when it released the lock, so this lock is on a file
        # without a name. Another process may have created a new one: try that.
        os.close(fd)
    return False


# -------------------------------------------------------------------------------------------- forks


_lock_files: weakref.WeakSet[RangeLockFile | FileLockFile] = weakref.WeakSet()
_folder_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()
#: The lock files that `share_locks` has open, by device and inode, and the lock on their counts.
_shared_files: dict[tuple[int, int], _SharedLockFile] = {}
_shared_lock = new_rlock()


def _close_inherited() -> None:
    """Close the descriptors of the parent's locks, in a forked child."""
    for lock_file in list(_lock_files):
        lock_file.abandon()
    for folder_lock in list(_folder_locks):
        folder_lock.abandon()
    _lock_files.clear()
    _folder_locks.clear()
    _shared_files.clear()  # the child opens them itself


call_in_child(_close_inherited)
