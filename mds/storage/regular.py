"""Files that are read only if they are regular ones.

A folder of a dataset, or one that others write to, may have a pipe where a file should be, and to
open one for reading blocks until another process writes to it. So files are opened without
blocking, and looked at before they are read: one system call more than a plain opening.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader

from mds.errors import NotFoundError

_NONBLOCK = getattr(os, "O_NONBLOCK", 0)


def open_regular(path: str) -> BufferedReader:
    """Open a file to read, which must be a regular one.

    Others may put a pipe in its place, and to open one blocks until it is written to. Raises
    NotFoundError for a pipe, a socket or a device, IsADirectoryError for a folder.
    """
    return open(path, "rb", opener=open_checked)


def open_checked(path: str, flags: int, directory: int | None = None) -> int:
    """Open a regular file, as ``opener=`` of `open`; below a ``directory`` if given.

    Raises what `open_regular` does.
    """
    try:
        handle = os.open(path, flags | _NONBLOCK, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _no_file(path) from error
        raise
    try:
        check_regular(path, os.fstat(handle))
    except BaseException:
        os.close(handle)
        raise
    return handle


def check_regular(path: str, state: os.stat_result) -> None:
    """Refuse what is no regular file, as `open_regular` does."""
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(state.st_mode):
        raise _no_file(path)


def _no_file(path: str) -> NotFoundError:
    return NotFoundError(
        f"open {path}: there is a pipe, a socket or a device of this name, and no file.",
        url=path,
        verb="open",
    )
