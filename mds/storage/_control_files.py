"""Control files: locks, ledgers and folders of this library where other users may write.

Another user can create such a name first: as a link to a file of this user, as a pipe that blocks
its reader, or as a folder. So the functions here do not follow a link at the name, open only
regular files with one name, and change the mode only of files that they created. In a sticky folder
such as /tmp, where other users can create files that this user cannot delete, the owner is checked
too. Elsewhere every user with write access could replace any file, so the owner proves nothing.
Opening costs two more system calls.

The *mode* of a file or folder are its permissions (0o664), which at the creation are reduced by the
umask and set right afterwards. In between, other processes cannot open it: they see that permission
is missing, and wait for the lock on the folder, which the creator holds.

The names of a file are its hard links.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from typing import BinaryIO

from mds._process.fork_safe import new_event
from mds.errors import CacheError
from mds.storage._files import publish, translate_write_errors

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BUSY = {errno.EAGAIN, errno.EACCES, errno.EINTR}
_LOCK_SECONDS, _PAUSE_SECONDS = 2.0, 0.005
_ATTEMPTS = 8  # of opening: others may create and delete the name at any time
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_WAY_OUT = "Remove it, or use another folder."  # end of messages


def open_control_file(
    path: str,
    flags: int = os.O_RDWR,
    *,
    create_mode: int | None = None,
    max_names: int | None = 1,
) -> int:
    """Open a control file and return its descriptor.

    Args:
        path: Path of the file.
        flags: Flags of `os.open`.
        create_mode: Mode with which a missing file is created; None does not create it.
        max_names: Largest number of hard links that the file may have. A second name may be one of
            a file of this user elsewhere, which another user linked here. None: any number for an
            empty file, such as a lock file, and one for others.

    Raises CacheError for anything that this library would not have created, FileNotFoundError for a
    missing file or folder, and OSError for a file that this user may not open.
    """
    for _ in range(_ATTEMPTS):
        try:
            fd = os.open(path, flags | _FLAGS)
        except FileNotFoundError:
            if create_mode is None:
                raise
            descriptor = _create(path, flags, create_mode)
            if descriptor is not None:
                return descriptor
            continue  # another process created it: open that file
        except PermissionError:
            # Its creator may not have set its mode yet; wait for the lock on the folder.
            with _locked_folder(os.path.dirname(path)):
                fd = _open(path, flags)
        except OSError as error:
            raise _refusal_error(path, error) from error
        return _check_trusted(fd, path, max_names)
    raise CacheError(f"{path}: other processes create and delete it again and again. {_WAY_OUT}")


def read_control_file(path: str, max_size: int, *, max_names: int = 1) -> bytes:
    """Return the bytes of a control file, of which there may be at most ``max_size``.

    ``max_names=2`` also accepts a file that `publish_first` is publishing at this moment, under its
    final and its temporary name. Raises CacheError for anything that this library would not have
    created, and the OSErrors of `open_control_file`.
    """
    fd = open_control_file(path, os.O_RDONLY, max_names=max_names)
    try:
        # `read` allocates what it is asked for: never more than the file has, and one byte.
        end = min(os.fstat(fd).st_size, max_size) + 1
        data = os.read(fd, end)
        while len(data) < end and (piece := os.read(fd, end - len(data))):
            data += piece
    finally:
        os.close(fd)
    if len(data) > max_size:
        raise CacheError(
            f"{path}: has more than {max_size} bytes, so mds did not write it. {_WAY_OUT}"
        )
    return data


@contextlib.contextmanager
def publish_control_file(path: str, mode: int) -> Iterator[BinaryIO]:
    """Yield a new file with ``mode``, whatever the umask; it replaces ``path`` at the block's end.

    A link at ``path`` is replaced, not followed.
    """
    with publish(path) as temporary:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
        with open(fd, "w+b") as file:
            os.fchmod(fd, mode)
            yield file


def mode_of(folder: str) -> int:
    """Return the mode for a control file in ``folder``: the folder's own, without execution.

    The owner may always read and write.
    """
    return (stat.S_IMODE(os.stat(folder).st_mode) & 0o666) | 0o600


def make_control_folder(path: str) -> None:
    """Create a folder for control files with the mode of its parent, unless it exists.

    Raises CacheError for a link, a file, or a folder of an untrusted user.
    """
    with translate_write_errors(os.path.join(path, "")):
        if not os.access(path, os.W_OK | os.X_OK):  # missing, or its mode is not set yet
            parent = os.path.dirname(path)
            with _locked_folder(parent), contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
                set_created_mode(path, stat.S_IMODE(os.stat(parent or ".").st_mode) | 0o700)
        state = _folder_state(path)
        if is_untrusted(state, path):
            raise CacheError(
                f"{path}: belongs to user {state.st_uid}, in a folder where anyone can create "
                f"folders, so it is not used. {_WAY_OUT}"
            )


def make_shared_folder(path: str) -> None:
    """Create a folder and its parents; below a shared folder of a group they are shared too.

    A shared folder has the set-group-id bit, and its group may write to it. Raises CacheError if a
    file has the name.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent not in {"", path}:
        make_shared_folder(parent)
    try:
        os.mkdir(path)
    except FileExistsError as error:
        if not os.path.isdir(path):
            raise CacheError(f"{path}: is a file, but must be a folder. {_WAY_OUT}") from error
        return
    parent_mode = stat.S_IMODE(os.stat(parent or ".").st_mode)
    if parent_mode & stat.S_ISGID and parent_mode & stat.S_IWGRP:
        set_created_mode(path, parent_mode)


def private_temporary_folder() -> str:
    """Return this user's private folder below the temporary one; create it if missing.

    All processes of a user must find the same folder, so others can guess its name and create it
    first. Raises CacheError for a folder of another user or one that others can write to.
    """
    path = os.path.join(tempfile.gettempdir(), f"mds-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.makedirs(path, 0o700)  # the mode of this folder, not of missing ones above it
    state = _folder_state(path)
    if state.st_uid != os.geteuid() or state.st_mode & _WRITABLE_BY_OTHERS:
        raise CacheError(
            f"{path}: belongs to user {state.st_uid} with mode {stat.S_IMODE(state.st_mode):o}, "
            f"but must be a folder that only user {os.geteuid()} can write to. Remove it, or set "
            f"TMPDIR to your own folder."
        )
    return path


def set_created_mode(path: str, mode: int) -> None:
    """Set the mode of a file or folder that this process just created, whatever the umask.

    A link at ``path`` is not followed.

    Raises CacheError if another process put something else at ``path`` meanwhile.
    """
    fd = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        state = os.fstat(fd)
        if not stat.S_ISDIR(state.st_mode) and (
            not stat.S_ISREG(state.st_mode) or state.st_nlink > 1
        ):
            raise CacheError(f"{path}: was replaced while mds created it. {_WAY_OUT}")
        if stat.S_IMODE(state.st_mode) != mode:
            os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _create(path: str, flags: int, mode: int) -> int | None:
    """Create a file with ``mode`` and return its descriptor; None if another process was faster.

    Other processes that wait for the lock on the folder see the file only with its final mode.
    """
    with _locked_folder(os.path.dirname(path)):
        try:
            fd = os.open(path, flags | _FLAGS | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            return None
        os.fchmod(fd, mode)
        return fd


def _open(path: str, flags: int) -> int:
    """Open an existing file and return its descriptor.

    Raises CacheError for a link, a folder or a pipe, and other OSErrors unchanged.
    """
    try:
        return os.open(path, flags | _FLAGS)
    except OSError as error:
        raise _refusal_error(path, error) from error


def _check_trusted(fd: int, path: str, max_names: int | None) -> int:
    """Return ``fd`` if it is a file that this library may have created.

    Else close it and raise CacheError. ``max_names`` is that of `open_control_file`.
    """
    state = os.fstat(fd)
    reason = ""
    if not stat.S_ISREG(state.st_mode):
        reason = "is not a regular file"
    elif state.st_nlink > _most_names(state, max_names):
        reason = f"has {state.st_nlink} hard links, so it may be a file of another folder"
    elif is_untrusted(state, path):
        reason = f"belongs to user {state.st_uid}, in a folder where anyone can create files"
    if reason:
        os.close(fd)
        raise CacheError(f"{path}: {reason}, so mds does not open it. {_WAY_OUT}")
    return fd


def _most_names(state: os.stat_result, max_names: int | None) -> int:
    """Return the largest number of hard links for ``max_names`` of `open_control_file`."""
    if max_names is not None:
        return max_names
    return 1 if state.st_size else state.st_nlink


def _folder_state(path: str) -> os.stat_result:
    """Return the status of a folder. Raises CacheError for a link or a file at its path."""
    state = os.lstat(path)
    if not stat.S_ISDIR(state.st_mode):
        kind = "a link" if stat.S_ISLNK(state.st_mode) else "a file"
        raise CacheError(f"{path}: is {kind}, but must be a folder. {_WAY_OUT}")
    return state


def is_untrusted(state: os.stat_result, path: str) -> bool:
    """Whether a file is of an untrusted user, in a sticky folder that others can write to.

    Trusted are this user, root and the owner of the folder. ``state`` is the status of the file.
    """
    if state.st_uid in {os.geteuid(), 0}:
        return False
    above = os.stat(os.path.dirname(path) or ".")
    is_sticky = above.st_mode & stat.S_ISVTX and above.st_mode & _WRITABLE_BY_OTHERS
    return bool(is_sticky) and state.st_uid != above.st_uid


def _refusal_error(path: str, error: OSError) -> Exception:
    """Return a CacheError for a name that another user may have created, else ``error`` itself."""
    kinds = {
        errno.ELOOP: "is a link",
        errno.EISDIR: "is a folder",
        errno.ENXIO: "is not a regular file",
        errno.ENOTDIR: "is below a path that is not a folder",
    }
    kind = kinds.get(error.errno or 0)
    if kind is None:
        from mds._process.mmaps import explain_limit

        return explain_limit(error, path)
    return CacheError(f"{path}: {kind}, so mds does not open it. {_WAY_OUT}")


def _try_lock(fd: int) -> None:
    """Lock the open folder ``fd``, or return without the lock after `_LOCK_SECONDS`.

    Not every file system can lock folders, and other processes may hold the lock for long, as a
    writer does. Without the lock, the worst case is a file that is opened before it has its mode.
    """
    deadline = time.monotonic() + _LOCK_SECONDS
    pause = new_event()  # never set: its `wait` sleeps
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _BUSY or time.monotonic() >= deadline:
                return
        else:
            return
        pause.wait(_PAUSE_SECONDS)


@contextlib.contextmanager
def _locked_folder(folder: str) -> Iterator[None]:
    """Lock ``folder`` during the block, if possible (`_try_lock`).

    The block creates a file there and sets its mode, or opens a file after all such blocks of other
    processes.
    """
    fd = os.open(folder or ".", _FOLDER)
    try:
        _try_lock(fd)
        yield
    finally:
        os.close(fd)
