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
from collections.abc import Callable, Iterator
from typing import TypeVar

from mds.errors import NoSpaceError, StoreError, VanishedError

_TEMPORARY = re.compile(r"^\..+\.(\d+)-[0-9a-f]{12}\.mds-part$")
_FULL = {errno.ENOSPC, errno.EDQUOT}
_PIECE = 1 << 20
_DELETIONS = 8  # while one thing is done

T = TypeVar("T")


def temporary_path(path: str) -> str:
    """A name in the folder of ``path`` that no other writer uses; `temporary_owner` knows it."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{os.getpid()}-{os.urandom(6).hex()}.mds-part")


def temporary_owner(path: str) -> int | None:
    """The process id that made this temporary name; None when the name is not one of ours."""
    found = _TEMPORARY.match(os.path.basename(path))
    return int(found[1]) if found else None


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
                _sync(temporary)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        if durable:
            _sync(os.path.dirname(path) or ".")


def write_file(path: str, data: bytes | memoryview, *, durable: bool = False) -> None:
    """Publish ``data`` as the whole content of ``path``."""
    with publish(path, durable=durable) as temporary, open(temporary, "wb") as file:
        file.write(data)


@contextlib.contextmanager
def disk(path: str) -> Iterator[None]:
    """Tell what a disk does to a file that is being written.

    "No space left" becomes a NoSpaceError that names the folder and what is free there; a file or
    folder that is gone a VanishedError, so that nobody takes it for a missing source.
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise NoSpaceError(
                f"write {path}: {os.strerror(error.errno)} ({_free(path)}). Free some space or "
                f"choose another folder; a cache can also be given a lower cache_limit.",
                url=path,
                verb="write",
            ) from error
        if error.errno == errno.ENOENT and _is_near(error.filename, path):
            raise VanishedError(
                f"write {path}: {error.filename} is gone. Was it deleted by somebody else?",
                url=path,
                verb="write",
            ) from error
        raise


def _is_near(found: object, path: str) -> bool:
    """Whether a path is in the folder of the other, at whatever depth, or is above it."""
    folder = os.path.dirname(path)
    return isinstance(found, str) and (
        os.path.dirname(found) == folder
        or bool(folder and f"{found}/".startswith(f"{folder}/"))
        or f"{folder}/".startswith(f"{found}/")
    )


def despite_deletion(act: Callable[[], T]) -> T:
    """What ``act`` returns, which is begun anew when a folder is deleted under it.

    Somebody may clean a disk while jobs run. Raises VanishedError when that happens again and
    again, or FileExistsError (which `os.makedirs` makes of it) from ``act``.
    """
    for _ in range(_DELETIONS):
        with contextlib.suppress(VanishedError, FileExistsError):
            return act()
    return act()


def make_folder(path: str) -> None:
    """Make a folder, and those above it, unless they are there."""

    def make() -> None:
        with disk(os.path.join(path, "")):
            os.makedirs(path, exist_ok=True)

    despite_deletion(make)


def read_back(path: str, watch: Callable[[memoryview], object]) -> None:
    """Show all bytes of a file, in order and in pieces that are good until the next one."""
    buffer = memoryview(bytearray(_PIECE))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            watch(buffer[:count])


def write_at(file: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data`` at ``offset`` of an open file descriptor."""
    done = os.pwrite(file, data, offset)
    while done < len(data):
        # A disk that fills up first writes less than asked and only then fails.
        done += os.pwrite(file, memoryview(data)[done:], offset + done)


def _free(path: str) -> str:
    folder = os.path.dirname(path) or "."
    try:
        state = os.statvfs(folder)
    except OSError:
        return f"in {folder}"
    return f"{state.f_bavail * state.f_frsize} bytes free in {folder}"


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
