"""Locks on numbered bytes of one file, which the kernel drops with their owner.

A lock is a byte of a lock file, so one file serves any number of shards and stays empty: locks may
lie beyond its end. They are "open file description" locks where the system has them (Linux), which
unlike classic record locks belong to the opened file and not to the process, and otherwise whole
locks on one small file a byte. Nothing has to be cleaned up after a `kill -9`, and a lock costs a
system call, about a microsecond.

A forked child inherits descriptors; they are closed in the child at once, so that a lock never
outlives the process that took it.

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
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Protocol

from mds.process.fork_safe import call_in_child, new_condition
from mds.redaction import printable
from mds.storage.control_files import (
    make_control_folder,
    make_shared_folder,
    open_control_file,
)
from mds.storage.files import despite_deletion, disk
from mds.storage.waiting import waiting

_LOOK_SECONDS = 2.0  # between two looks at which process has a lock
_STOPPED_SECONDS = 3.0  # for which a process must have been stopped before it is given up
_BUSY = {errno.EAGAIN, errno.EACCES}
_FLOCK = struct.Struct("hhqqi4x")  # l_type, l_whence, l_start, l_len, l_pid of 64-bit systems
HAS_RANGES = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")


class LockFile(Protocol):
    """Locks on bytes of one file, by one owner. An owner never conflicts with itself."""

    def try_lock(self, offset: int, *, is_shared: bool = False) -> bool:
        """Take the lock on byte ``offset`` if no other owner is in the way."""

    def wait_lock(self, offset: int) -> None:
        """Take the lock on byte ``offset``, however long it takes."""

    def unlock(self, offset: int) -> None:
        """Release byte ``offset``."""

    def close(self) -> None:
        """Release all locks. Closing twice is fine."""


class RangeLockFile:
    """Byte locks of an open file description (Linux)."""

    def __init__(self, path: str, mode: int = 0o666) -> None:
        self._fd = -1
        _opened.add(self)  # first: a fork right after the opening must find it
        self._fd = _open(path, mode)

    def try_lock(self, offset: int, *, is_shared: bool = False) -> bool:
        """Take the lock on byte ``offset`` if no other owner is in the way."""
        try:
            self._set(fcntl.F_OFD_SETLK, fcntl.F_RDLCK if is_shared else fcntl.F_WRLCK, offset)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True

    def wait_lock(self, offset: int) -> None:
        """Take the lock on byte ``offset``, however long it takes."""
        self._set(fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, offset)

    def unlock(self, offset: int) -> None:
        """Release byte ``offset``; closing released all."""
        if self._fd >= 0:  # the garbage collector may close it before what holds a lock
            self._set(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, offset)

    def close(self) -> None:
        """Release all locks. Closing twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # Unlock explicitly: a child forked a moment ago may still hold a copy of the
            # descriptor, and closing ours alone would leave the locks with it.
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
            os.close(fd)

    def abandon(self) -> None:
        """In a forked child: close what is the parent's, whose locks stay."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # A forgotten owner must not keep others waiting: its locks go with it. When the interpreter
        # ends so does the process, and the modules that closing needs may be gone already.
        if getattr(self, "_fd", -1) >= 0 and not is_over():
            self.close()

    def _set(self, command: int, kind: int, offset: int) -> None:
        fcntl.fcntl(self._fd, command, _FLOCK.pack(kind, os.SEEK_SET, offset, 1, 0))


class FileLockFile:
    """The same with one small file for each byte, where ranges cannot be locked by description."""

    def __init__(self, path: str, mode: int = 0o666) -> None:
        self._path, self._mode = path, mode
        self._fds: dict[int, int] = {}
        _opened.add(self)

    def try_lock(self, offset: int, *, is_shared: bool = False) -> bool:
        """Take the lock on byte ``offset`` if no other owner is in the way."""
        kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._file(offset), kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True

    def wait_lock(self, offset: int) -> None:
        """Take the lock on byte ``offset``, however long it takes."""
        fcntl.flock(self._file(offset), fcntl.LOCK_EX)

    def unlock(self, offset: int) -> None:
        """Release byte ``offset``."""
        fd = self._fds.pop(offset, -1)
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Release all locks. Closing twice is fine."""
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)

    def abandon(self) -> None:
        """In a forked child: close what is the parent's, whose locks stay."""
        self.close()

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # As above.
        if not is_over():
            self.close()

    def _file(self, offset: int) -> int:
        if offset not in self._fds:
            self._fds[offset] = _open(f"{self._path}.{offset}", self._mode)
        return self._fds[offset]


def open_locks(path: str, mode: int = 0o666) -> LockFile:
    """Become another owner of locks on the bytes of ``path``, which is made when missing."""
    return RangeLockFile(path, mode) if HAS_RANGES else FileLockFile(path, mode)


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

    The kernel wakes the waiter when the owner lets go or dies. A wait in the kernel cannot be cut
    short, so it is done by a helper thread, which gives the lock back when it comes too late.
    ``past_stopped`` gives up after some seconds already when the process that has the lock does
    not run, by a signal or a debugger. ``suspects``: which one that may be, where it is not seen.
    """
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
            holders = holders_of(path, offset) or list(suspects())
            wait.note = describe_processes(holders) if holders else ""
            is_stuck = [_Stopped.is_stuck(number) for number in holders]  # each is looked at
            return past_stopped and bool(is_stuck) and all(is_stuck)

        return waiter.result(seconds, is_hopeless)


class _Stopped:
    """Processes that were seen stopped, and since when; those of one that ends are forgotten."""

    since: ClassVar[dict[int, float]] = {}

    @classmethod
    def is_stuck(cls, number: int) -> bool:
        """Whether a process was stopped at each look for some seconds."""
        if not is_stopped(number):
            cls.since.pop(number, None)
            return False
        now = time.monotonic()
        return now - cls.since.setdefault(number, now) >= _STOPPED_SECONDS


class _Waiter:
    """One wait for one lock, that may be given up."""

    def __init__(self, locks: LockFile, offset: int) -> None:
        self._locks, self._offset = locks, offset
        self._state = new_condition()
        self._is_held = self._is_given_up = False
        self._error: OSError | None = None

    def run(self) -> None:
        """Wait in the kernel."""
        try:
            self._locks.wait_lock(self._offset)
        except OSError as error:
            self._error = error
        with self._state:
            self._is_held = True
            self._state.notify()
            if not self._is_given_up:
                return
        self._locks.close()

    def result(self, seconds: float, is_hopeless: Callable[[], bool]) -> LockFile | None:
        """Return the lock, or None after that many seconds or once the wait ``is_hopeless``."""
        end = time.monotonic() + seconds
        while not self._comes(min(_LOOK_SECONDS, end - time.monotonic())):
            if time.monotonic() < end and not is_hopeless():
                continue
            with self._state:
                if self._is_held:
                    break
                self._is_given_up = True
                return None
        if self._error is not None:
            self._locks.close()
            raise self._error
        return self._locks

    def _comes(self, seconds: float) -> bool:
        with self._state:
            return self._state.wait_for(lambda: self._is_held, max(seconds, 0.0))


def _open(path: str, mode: int) -> int:
    return despite_deletion(lambda: _open_or_make(path, mode & 0o666))


def _open_or_make(path: str, mode: int) -> int:
    try:
        return open_control_file(path, create_mode=mode)
    except FileNotFoundError:  # the folder was deleted under us
        with disk(path):
            make_shared_folder(os.path.dirname(os.path.dirname(path)))
            make_control_folder(os.path.dirname(path))
            return open_control_file(path, create_mode=mode)


_opened: weakref.WeakSet[RangeLockFile | FileLockFile] = weakref.WeakSet()


def _close_inherited() -> None:
    for locks in list(_opened):
        locks.abandon()
    _opened.clear()


call_in_child(_close_inherited)


_STOPPED = {b"T", b"t"}  # by a signal, and by a debugger
_LONGEST = 80  # letters of a command that are shown


def holders_of(path: str, offset: int) -> list[int]:
    """Return the visible processes that hold an exclusive lock on byte ``offset`` of a file."""
    try:
        inode = b"%d" % os.stat(path).st_ino
        numbers = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
    except OSError:
        return []
    return [number for number in numbers if any(_holds(number, inode, offset))]


def _holds(number: int, inode: bytes, offset: int) -> Iterator[bool]:
    """For each lock of a process, whether it is an exclusive one on a byte of a file."""
    folder = f"/proc/{number}/fdinfo"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError), open(os.path.join(folder, name), "rb") as info:
                for line in info:
                    if line.startswith(b"lock:"):
                        yield _is_lock(line.split(), inode, offset)


def _is_lock(words: Sequence[bytes], inode: bytes, offset: int) -> bool:
    """Whether a line such as ``lock: 1: OFDLCK ADVISORY WRITE -1 08:01:77 5 5`` is that lock.

    The device before the inode is not looked at: layered file systems tell another one here.
    """
    if len(words) != 9 or words[4] != b"WRITE" or words[6].rpartition(b":")[2] != inode:
        return False
    first, last = words[7], words[8]
    return int(first) <= offset and (last == b"EOF" or offset <= int(last))


def is_stopped(number: int) -> bool:
    """Whether a process is stopped, by a signal or by a debugger, as far as it is seen."""
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            # The name, in parentheses, may hold anything; the state is behind it.
            return file.read().rpartition(b")")[2].split()[0] in _STOPPED
    except (OSError, IndexError):
        return False


def describe_processes(numbers: Sequence[int]) -> str:
    """Describe processes by their numbers, what each runs, whether it is stopped, and where."""
    names = [
        "another thread of this process"
        if number == os.getpid()
        else f"process {number} ({', '.join(_facts(number))})"
        for number in numbers
    ]
    return (
        f"{', '.join(names) or 'a process that is not seen'} on {printable(socket.gethostname())}"
    )


def _facts(number: int) -> list[str]:
    try:
        with open(f"/proc/{number}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        words = []
    # Leave the arguments out: they may contain secrets.
    names = [os.path.basename(os.fsdecode(word)) for word in words[:1]]
    names += [os.path.basename(os.fsdecode(word)) for word in words[1:] if word.endswith(b".py")]
    command = printable(" ".join(names[:2]))[:_LONGEST] or "of another container, or gone"
    return [command, "stopped"] if is_stopped(number) else [command]
