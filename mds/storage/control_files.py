"""Files and folders of ours that lie where others may write: locks, ledgers, folders in /tmp.

Such a name can be planted before we come: as a link to a file of this user that must not be
touched, as a pipe that blocks its reader, as a folder. So nothing here follows a link at the name,
opens anything but a regular file with one name, or changes the mode of what it did not make just
now. In a sticky folder such as /tmp, where strangers make files that we cannot remove, the owner
must be trusted too; elsewhere all users with write access could exchange any file, so its owner
says nothing. The price is two system calls an opening.
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

from mds.errors import CacheError
from mds.process.fork_safe import new_event
from mds.storage.files import publish, translate_write_errors

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BUSY = {errno.EAGAIN, errno.EACCES, errno.EINTR}
_LOCK_SECONDS, _PAUSE_SECONDS = 2.0, 0.005
_ATTEMPTS = 8  # a name may be made and removed by others at any time
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_WAY_OUT = "Remove it, or use another folder."


def open_control_file(
    path: str, flags: int = os.O_RDWR, *, create_mode: int | None = None, max_names: int = 1
) -> int:
    """Open a control file, and create it with ``create_mode`` if it is missing.

    Raises CacheError for anything that we would not have made, FileNotFoundError for a missing
    file or folder, and the OSError of a file that this user may not open.
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
            continue
        except PermissionError:
            # Perhaps its maker has not come to let others in yet.
            with _changing(os.path.dirname(path)):
                fd = _open(path, flags)
        except OSError as error:
            raise _refusal(path, error) from error
        return _checked(fd, path, max_names)
    raise CacheError(f"{path}: it comes and goes while it is opened. {_WAY_OUT}")


def read_control_file(path: str, max_size: int, *, max_names: int = 1) -> bytes:
    """Read a control file, which has ``max_size`` bytes at most.

    With ``max_names=2`` it may be one that `publish_first` is publishing.

    Raises CacheError for anything that we would not have made.
    """
    with open(open_control_file(path, os.O_RDONLY, max_names=max_names), "rb") as file:
        data = file.read(max_size + 1)
    if len(data) > max_size:
        raise CacheError(f"{path}: has more than {max_size} bytes and is none of ours. {_WAY_OUT}")
    return data


@contextlib.contextmanager
def publish_control_file(path: str, mode: int) -> Iterator[BinaryIO]:
    """Open a new file that replaces ``path``, even a link there, when the block ends.

    It has its mode from the beginning, whatever the umask.
    """
    with publish(path) as temporary:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
        with open(fd, "w+b") as file:
            os.fchmod(fd, mode)
            yield file


def mode_of(folder: str) -> int:
    """Return the mode of a control file, which grants the same rights as its folder."""
    return stat.S_IMODE(os.stat(folder).st_mode) & 0o666 | 0o600


def make_control_folder(path: str) -> None:
    """Make a folder of ours with the mode of the folder above it, unless it is there.

    Raises CacheError for a link, a folder of a stranger, or whatever else is no folder.
    """
    with translate_write_errors(os.path.join(path, "")):
        if not os.access(path, os.W_OK | os.X_OK):
            parent = os.path.dirname(path)
            with _changing(parent), contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
                let_in(path, stat.S_IMODE(os.stat(parent or ".").st_mode) | 0o700)
        state = _folder_state(path)
        if _is_strange(state, path):
            raise CacheError(
                f"{path}: is of user {state.st_uid}, in a folder where anyone can make folders; it "
                f"is not used. {_WAY_OUT}"
            )


def make_shared_folder(path: str) -> None:
    """Make a folder and those above it; below a folder of a group they are the group's too.

    Such a folder is one with the set-group-id bit that its group may write to. Raises CacheError
    where a file is in the way.
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
            raise CacheError(f"{path}: is a file and has to be a folder. {_WAY_OUT}") from error
        return
    above = stat.S_IMODE(os.stat(parent or ".").st_mode)
    if above & stat.S_ISGID and above & stat.S_IWGRP:
        let_in(path, above)


def private_temporary_folder() -> str:
    """Return this user's private folder below the temporary one; create it if missing.

    All processes of a user must find the same, so it has a name that anyone can guess and plant.
    Raises CacheError for a folder that is another user's or that others can write to.
    """
    path = os.path.join(tempfile.gettempdir(), f"mds-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.makedirs(path, 0o700)  # those above get the mode that the umask gives
    state = _folder_state(path)
    if state.st_uid != os.geteuid() or state.st_mode & _WRITABLE_BY_OTHERS:
        raise CacheError(
            f"{path}: is of user {state.st_uid} with mode {stat.S_IMODE(state.st_mode):o}, and has "
            f"to be a folder that user {os.geteuid()} alone can write to. Remove it, or set TMPDIR "
            f"to a folder of your own."
        )
    return path


def let_in(path: str, mode: int) -> None:
    """Give a file or folder that this process has just made its mode; links are not followed."""
    fd = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        state = os.fstat(fd)
        if not stat.S_ISDIR(state.st_mode) and (
            not stat.S_ISREG(state.st_mode) or state.st_nlink > 1
        ):
            raise CacheError(f"{path}: was exchanged while it was made. {_WAY_OUT}")
        if stat.S_IMODE(state.st_mode) != mode:
            os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _create(path: str, flags: int, mode: int) -> int | None:
    """Create a file, or return None if another process just created it."""
    with _changing(os.path.dirname(path)):
        try:
            fd = os.open(path, flags | _FLAGS | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            return None
        os.fchmod(fd, mode)
        return fd


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | _FLAGS)
    except OSError as error:
        raise _refusal(path, error) from error


def _checked(fd: int, path: str, max_names: int) -> int:
    state = os.fstat(fd)
    reason = ""
    if not stat.S_ISREG(state.st_mode):
        reason = "is not a regular file"
    elif state.st_nlink > max_names:
        reason = f"has {state.st_nlink} names, so it may be a file of another place"
    elif _is_strange(state, path):
        reason = f"is of user {state.st_uid}, in a folder where anyone can make files"
    if reason:
        os.close(fd)
        raise CacheError(f"{path}: {reason}; it is not opened. {_WAY_OUT}")
    return fd


def _folder_state(path: str) -> os.stat_result:
    state = os.lstat(path)
    if not stat.S_ISDIR(state.st_mode):
        kind = "a link" if stat.S_ISLNK(state.st_mode) else "a file"
        raise CacheError(f"{path}: is {kind} and has to be a folder. {_WAY_OUT}")
    return state


def _is_strange(state: os.stat_result, path: str) -> bool:
    """Whether a file lies where every user may make files and only owners may remove them."""
    if state.st_uid in {os.geteuid(), 0}:
        return False
    above = os.stat(os.path.dirname(path) or ".")
    is_sticky = above.st_mode & stat.S_ISVTX and above.st_mode & _WRITABLE_BY_OTHERS
    return bool(is_sticky) and state.st_uid != above.st_uid


def _refusal(path: str, error: OSError) -> Exception:
    """Return the error for a name that another user may have planted."""
    kinds = {
        errno.ELOOP: "is a link",
        errno.EISDIR: "is a folder",
        errno.ENXIO: "is not a regular file",
        errno.ENOTDIR: "lies below what is not a folder",
    }
    kind = kinds.get(error.errno or 0)
    if kind is None:
        return error
    return CacheError(f"{path}: {kind}; it is not opened. {_WAY_OUT}")


def _try_lock(fd: int) -> None:
    """Lock an open folder, where that can be had in time.

    Not every file system locks folders, and every process that may open one can keep its lock: a
    writer does, as long as it writes there. Without it a file is opened too early at worst.
    """
    end, pause = time.monotonic() + _LOCK_SECONDS, new_event()
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _BUSY or time.monotonic() >= end:
                return
        else:
            return
        pause.wait(_PAUSE_SECONDS)


@contextlib.contextmanager
def _changing(folder: str) -> Iterator[None]:
    """Keep others out of the moment between the making of a file and its mode."""
    fd = os.open(folder or ".", _FOLDER)
    try:
        _try_lock(fd)
        yield
    finally:
        os.close(fd)
