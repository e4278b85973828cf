"""Which processes of this machine hold a lock, and whether they run at all.

A lock of a file does not say which process has it, but the system tells for each open file which
locks it holds (``/proc/PID/fdinfo``, Linux). That is read when a wait has become long, not before:
it takes some ten milliseconds on a machine with hundreds of processes. Processes of other users, or
of other containers, cannot be looked into.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence

from mds.text.redaction import printable

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
