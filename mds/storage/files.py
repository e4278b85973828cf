"""Files that appear whole or not at all.

Everything that the library leaves on a disk is written under a temporary name in the same folder
and renamed when it is complete, so a reader never meets half a file and a killed process leaves
at most a temporary one, which its name gives away. This is the only place that renames.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from mds.errors import NoSpaceError, ReplacedError, StoreError, VanishedError
from mds.storage.regular import open_regular

_TEMPORARY = re.compile(r"^\..+\.([0-9]{1,10})-[0-9a-f]{12}\.mds-part$")
_LARGEST_PROCESS = 2**31 - 1  # what the system takes; names can be made by others
_FULL = {errno.ENOSPC, errno.EDQUOT}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_IN_THE_WAY = {errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
_EXCHANGED = {errno.ELOOP, errno.ENXIO, errno.EISDIR}  # for a link, a pipe, a folder
_UNFOLLOWED = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_LONGEST = 200  # bytes of a name that its temporary name repeats
_PIECE = 1 << 20
MAX_DELETIONS = 8  # while one thing is done

T = TypeVar("T")


def temporary_path(path: str) -> str:
    """Return a unique temporary path beside ``path`` that `temporary_owner` recognises."""
    folder, name = os.path.split(path)
    # A name may be as long as file systems allow, and this one is longer.
    name = os.fsencode(name)[:_LONGEST].decode("utf-8", "ignore")
    return os.path.join(folder, f".{name}.{os.getpid()}-{os.urandom(6).hex()}.mds-part")


def temporary_owner(path: str) -> int | None:
    """Return the id of the process that made a temporary name, or None for other names."""
    match = _TEMPORARY.match(os.path.basename(path))
    return int(match[1]) if match and 0 < int(match[1]) <= _LARGEST_PROCESS else None


def is_process(number: int) -> bool:
    """Whether a process of that number runs; one of another container may, unseen.

    One that has ended and was not waited for (a zombie) runs no more, and may stay for ever where
    the parent of all processes waits for none.
    """
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            # The name, in parentheses, may hold anything; the state is behind it.
            return file.read().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except (OSError, IndexError):  # another system, or it ended just now
        return not os.path.exists("/proc/self/stat")


@contextlib.contextmanager
def publish(path: str, *, durable: bool = False) -> Iterator[str]:
    """Give a temporary path to write to, which becomes ``path`` when the block ends well.

    The folder is made when it is missing. The block creates the file itself; when it raises, the
    temporary file is removed and whatever was at ``path`` stays. ``durable`` also brings the bytes
    and the name to the disk, which a power cut then cannot take back. Raises NoSpaceError when the
    disk is full, VanishedError when the file or the folder is deleted before the end.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "word")
    >>> with publish(path) as temporary:
    ...     _ = open(temporary, "w").write("whole")
    >>> open(path).read(), len(os.listdir(os.path.dirname(path)))
    ('whole', 1)
    """
    temporary = temporary_path(path)
    with disk(path):
        os.makedirs(os.path.dirname(temporary) or ".", exist_ok=True)
        try:
            yield temporary
            if durable:
                sync(temporary)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        if durable:
            sync(os.path.dirname(path) or ".")


@contextlib.contextmanager
def publish_in(directory: int, name: str) -> Iterator[str]:
    """`publish` in an open directory, whatever its path leads to by now.

    Gives a temporary name, which the block opens with ``dir_fd``.
    """
    temporary = temporary_path(name)
    try:
        yield temporary
        rename_in(directory, temporary, name)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        raise


def open_target(path: str) -> BinaryIO:
    """Open a file to write from its beginning; create it if it is missing.

    A temporary name of ours may lie in a folder where others write. They cannot guess it, but they
    can exchange what is there between two openings: a link or a file with a second name is
    refused, before a byte is changed. Raises StoreError; VanishedError for a file that is deleted.
    """
    if temporary_owner(path) is None:
        return open(path, "wb")
    try:
        handle = os.open(path, _UNFOLLOWED | os.O_WRONLY | os.O_CREAT, 0o666)
    except OSError as error:
        if error.errno in _EXCHANGED:
            raise _exchanged(path) from error
        raise
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode) or state.st_nlink != 1:
        os.close(handle)
        if not state.st_nlink:
            raise VanishedError(
                f"write {path}: it is gone. Did another process delete it?", url=path, verb="write"
            )
        raise _exchanged(path)
    os.ftruncate(handle, 0)
    return open(handle, "wb")


def _exchanged(path: str) -> StoreError:
    reason = "it was exchanged while it was written. Use a folder where others cannot write."
    return StoreError(f"write {path}: {reason}", url=path, verb="write")


def write_file(path: str, data: bytes | memoryview, *, durable: bool = False) -> None:
    """Publish ``data`` as the whole content of ``path``."""
    with publish(path, durable=durable) as temporary, open_target(temporary) as file:
        file.write(data)


def rename_in(directory: int, temporary: str, name: str) -> None:
    """Give a finished file of an open directory its name, in place of whatever had it."""
    os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)


def publish_first(path: str, data: bytes, mode: int) -> bool:
    """Publish ``data`` at ``path`` unless something is there; whether it was published.

    Of many that try at the same time, on whatever nodes, one succeeds. (Where a file system has no
    hard links they may all succeed, and the last one stays.)
    """
    temporary = temporary_path(path)
    with disk(path):
        try:
            with open(temporary, "xb") as file:
                os.fchmod(file.fileno(), mode)
                file.write(data)
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(path):
                return False
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    return True


@contextlib.contextmanager
def disk(path: str) -> Iterator[None]:
    """Tell what a disk does to a file that is being written.

    "No space left" becomes a NoSpaceError that names the folder and what is free there; a file or
    folder that is gone a VanishedError, so that it is not taken for a missing source; a folder or
    file in the place of the other a StoreError.
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise _full_error(path, error.errno) from error
        if error.errno == errno.EFBIG:
            raise StoreError(
                f"write {path}: {os.strerror(error.errno)}. Raise the limit on the size of files "
                f"(ulimit -f), choose another folder, or have smaller shards.",
                url=path,
                verb="write",
            ) from error
        if error.errno == errno.ENOENT and _is_near(error.filename, path):
            if (refusing := _refusing_folder(error.filename)) is not None:
                raise StoreError(
                    f"write {path}: no file or folder can be made in {refusing}. Choose another "
                    f"folder.",
                    url=path,
                    verb="write",
                ) from error
            raise VanishedError(
                f"write {path}: {error.filename} is gone. Did another process delete it?",
                url=path,
                verb="write",
            ) from error
        if error.errno in _IN_THE_WAY and _is_near(error.filename, path):
            raise StoreError(
                f"write {path}: {os.strerror(error.errno)}. Remove what is in the way, or choose "
                f"another folder.",
                url=path,
                verb="write",
            ) from error
        raise


def _is_near(other_path: object, path: str) -> bool:
    """Whether a path is in the folder of the other, at whatever depth, or is above it."""
    folder = os.path.dirname(path)
    return isinstance(other_path, str) and (
        os.path.dirname(other_path) == folder
        or bool(folder and f"{other_path}/".startswith(f"{folder}/"))
        or f"{folder}/".startswith(f"{other_path}/")
    )


def despite_deletion(act: Callable[[], T]) -> T:
    """Call ``act`` and return its value; start over when a folder is deleted meanwhile.

    A disk may be cleaned while jobs run. Raises VanishedError when that happens again and
    again, or FileExistsError (which `os.makedirs` makes of it) from ``act``; a ReplacedError is of
    the remote, which another try does not bring back.
    """
    for remaining_tries in reversed(range(MAX_DELETIONS + 1)):
        try:
            return act()
        except (VanishedError, FileExistsError) as error:  # noqa: PERF203 - a try does much
            if isinstance(error, ReplacedError) or not remaining_tries:
                raise
    raise AssertionError("the last try returns or raises")


def make_folder(path: str) -> None:
    """Make a folder, and those above it, unless they are there."""

    def make() -> None:
        with disk(os.path.join(path, "")):
            os.makedirs(path, exist_ok=True)

    despite_deletion(make)


def read_back(path: str, on_bytes: Callable[[memoryview], object]) -> None:
    """Show all bytes of a file, in order and in pieces that are good until the next one."""
    buffer = memoryview(bytearray(_PIECE))
    with open_regular(path) as file:
        while count := file.readinto(buffer):
            on_bytes(buffer[:count])


def write_at(file: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data`` at ``offset`` of an open file descriptor."""
    written = os.pwrite(file, data, offset)
    while written < len(data):
        # A disk that fills up first writes less than asked and only then fails.
        written += os.pwrite(file, memoryview(data)[written:], offset + written)


def _full_error(path: str, number: int) -> NoSpaceError:
    """Return the error for a disk without room for a file's bytes or for another file."""
    folder = os.path.dirname(path) or "."
    try:
        state = os.statvfs(folder)
    except OSError:
        state = None
    if number == errno.ENOSPC and state is not None and state.f_files and not state.f_favail:
        text = (
            f"write {path}: no inodes left for another file (all {state.f_files:,} of the disk of "
            f"{folder} are in use, {state.f_bavail * state.f_frsize} bytes are free). Delete "
            "files or choose another folder; a dataset of larger shards has fewer files."
        )
    else:
        free = f"{state.f_bavail * state.f_frsize} bytes free " if state is not None else ""
        text = (
            f"write {path}: {os.strerror(number)} ({free}in {folder}). Free some space or choose "
            "another folder; a cache can also be given a lower cache_limit."
        )
    return NoSpaceError(text, url=path, verb="write")


def _refusing_folder(missing: str) -> str | None:
    """Return the folder above a missing one if its file system holds no files (/proc)."""
    parent = os.path.dirname(os.path.abspath(missing))
    try:
        state = os.statvfs(parent)
    except OSError:
        return None
    return parent if not state.f_blocks and not state.f_files else None


def sync(path: str) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
