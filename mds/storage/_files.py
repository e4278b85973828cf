"""Files that appear whole or not at all, and are regular files when they are read.

Everything that the library writes to a disk has a temporary name in the same folder until it is
complete, and is renamed then. So a reader never meets half a file, and a killed process leaves at
most a temporary file, recognised by its name. This is the only module that renames.

A folder that others write to may have a pipe where a file should be, and opening a pipe blocks
until another process writes to it. So files are opened without blocking, and checked before they
are read: one more system call than plain opening.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader, FileIO
from typing import BinaryIO, TypeVar

from mds.errors import (
    DeniedError,
    NoSpaceError,
    NotFoundError,
    ReplacedError,
    StoreError,
    VanishedError,
)

_TEMPORARY = re.compile(r"^\..+\.([0-9]{1,10})-[0-9a-f]{12}\.mds-part$")
_MAX_PROCESS = 2**31 - 1  # of the system; anyone can make a name with a larger number
_SHOWN_PATH = 100  # characters of a path that is too long
_MAX_REPEATED = 200  # bytes of a name that its temporary name repeats
_PIECE = 1 << 20  # bytes that `read_back` reads at a time
_FULL = {errno.ENOSPC, errno.EDQUOT}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_IN_THE_WAY = {errno.EISDIR, errno.ENOTDIR, errno.ELOOP}
_NOT_REGULAR = {errno.ELOOP, errno.ENXIO, errno.EISDIR}  # for a link, a pipe, a folder
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_UNFOLLOWED = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
MAX_DELETIONS = 8  # of a folder that `despite_deletion` survives

T = TypeVar("T")


# ------------------------------------------------------------------------------------- write a file


def temporary_path(path: str) -> str:
    """Return a unique temporary path beside ``path`` that `temporary_owner` recognises."""
    folder, name = os.path.split(path)
    # The name may already have the greatest length, and the temporary one is longer.
    name = os.fsencode(name)[:_MAX_REPEATED].decode("utf-8", "ignore")
    return os.path.join(folder, f".{name}.{os.getpid()}-{os.urandom(6).hex()}.mds-part")


def temporary_owner(path: str) -> int | None:
    """Return the id of the process that made a temporary name, or None for other names."""
    match = _TEMPORARY.match(os.path.basename(path))
    return int(match[1]) if match and 0 < int(match[1]) <= _MAX_PROCESS else None


@contextlib.contextmanager
def publish(path: str, *, durable: bool = False) -> Iterator[str]:
    """Yield a temporary path for a new file, which is renamed to ``path`` when the block ends.

    The block creates the file. If it raises, the temporary file is deleted and ``path`` keeps what
    it had. A missing folder is created.

    Args:
        path: Final path of the file.
        durable: Whether to sync the bytes and the name to the disk, so that they survive a power
            cut.

    Raises NoSpaceError when the disk is full, and VanishedError when the file or the folder is
    deleted before the end.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "word")
    >>> with publish(path) as temporary:
    ...     _ = open(temporary, "w").write("whole")
    >>> open(path).read(), len(os.listdir(os.path.dirname(path)))
    ('whole', 1)
    """
    temporary = temporary_path(path)
    with translate_write_errors(path):
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


def write_file(path: str, data: bytes | memoryview, *, durable: bool = False) -> None:
    """Publish ``data`` as the whole content of ``path``."""
    with publish(path, durable=durable) as temporary, open_target(temporary) as file:
        file.write(data)


def publish_first(path: str, data: bytes, mode: int) -> bool:
    """Publish ``data`` with ``mode`` at ``path`` unless it exists; return whether it did publish.

    The whole file gets its name by a hard link, which unlike a renaming fails if the name exists.
    So if several processes try at the same time, on any nodes, one succeeds. (On a file system
    without hard links all may succeed, and the last file stays.)
    """
    temporary = temporary_path(path)
    with translate_write_errors(path):
        try:
            with open(temporary, "xb") as file:
                os.fchmod(file.fileno(), mode)  # whatever the umask
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


def open_target(path: str) -> BinaryIO:
    """Open an empty file for writing, in place of an existing file's content.

    A temporary path is checked: in a folder where others write, they may have exchanged the file
    since it was created. A link, or a file with a second name, raises StoreError before a byte is
    changed; a deleted file raises VanishedError.
    """
    if temporary_owner(path) is None:
        return open(path, "wb")
    try:
        handle = os.open(path, _UNFOLLOWED | os.O_WRONLY | os.O_CREAT, 0o666)
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise _exchanged_error(path) from error
        raise
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode) or state.st_nlink != 1:
        os.close(handle)
        if not state.st_nlink:
            raise VanishedError(
                f"write {path}: it is gone. Did another process delete it?", url=path, verb="write"
            )
        raise _exchanged_error(path)
    os.ftruncate(handle, 0)
    return open(handle, "wb")


def _exchanged_error(path: str) -> StoreError:
    """Return the error for a temporary file that another user replaced."""
    reason = "it was replaced while mds wrote it. Use a folder where others cannot write."
    return StoreError(f"write {path}: {reason}", url=path, verb="write")


def write_at(file: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data`` at ``offset`` of an open file descriptor."""
    written = os.pwrite(file, data, offset)
    while written < len(data):
        # A disk that becomes full first writes fewer bytes than requested, and fails at the next
        # call.
        written += os.pwrite(file, memoryview(data)[written:], offset + written)


def sync(path: str) -> None:
    """Write a file, or the names in a folder, from the system's memory to the disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(file: BinaryIO) -> None:
    """Flush an open file and sync it to the disk."""
    file.flush()
    os.fsync(file.fileno())


def make_folder(path: str) -> None:
    """Create a folder and its parents unless they exist."""

    def make() -> None:
        with translate_write_errors(os.path.join(path, "")):
            try:
                os.makedirs(path, exist_ok=True)
            except FileExistsError as error:  # a file, or a link to no folder
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from error

    despite_deletion(make)  # another process may delete a parent between two steps of `makedirs`


# -------------------------------------------------------------------------------------- read a file


def open_regular(path: str) -> BufferedReader:
    """Open a regular file for reading.

    Raises NotFoundError for a pipe, a socket or a device, IsADirectoryError for a folder, and
    DeniedError for a file that this user may not read.
    """
    try:
        return open(path, "rb", opener=open_checked)
    except OSError as error:
        if (blocked := blocked_error(path, error)) is not None:
            raise blocked from error
        raise


def open_checked(path: str, flags: int, directory: int | None = None) -> int:
    """Open a regular file and return its descriptor; serves as ``opener=`` of `open`.

    Args:
        path: Path of the file.
        flags: Flags of `os.open`.
        directory: Descriptor of the folder that a relative path begins at (default: the current
            folder).

    Raises as `open_regular`.
    """
    return open_with_state(path, flags, directory)[0]


def open_with_state(
    path: str, flags: int, directory: int | None = None
) -> tuple[int, os.stat_result]:
    """Open a regular file, and return its descriptor and its status; see `open_checked`."""
    try:
        handle = os.open(path, flags | _NONBLOCK, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _no_file(path) from error
        if error.errno == errno.EMFILE:
            from mds._process.mmaps import explain_limit

            raise explain_limit(error, path) from error
        raise
    try:
        state = os.fstat(handle)
        check_regular(path, state)
    except BaseException:
        os.close(handle)
        raise
    return handle, state


def check_regular(path: str, state: os.stat_result) -> None:
    """Raise as `open_regular` unless ``state``, the status of ``path``, is of a regular file."""
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(state.st_mode):
        raise _no_file(path)


def version_of(state: os.stat_result) -> str:
    """Return the version of a local file, which is its time of change and size."""
    return f"{state.st_mtime_ns:x}-{state.st_size:x}"


def _no_file(path: str) -> NotFoundError:
    """Return the error for a path that is a pipe, a socket or a device."""
    return NotFoundError(
        f"open {path}: this is a pipe, a socket or a device, not a file.",
        url=path,
        verb="open",
    )


def blocked_error(path: str, error: OSError) -> StoreError | None:
    """Return the error for a path that cannot be opened, with the remedy.

    That is a path without permission, with a link to itself, or with too many letters. None is
    returned for any other ``error`` of the system.
    """
    if error.errno in (errno.EACCES, errno.EPERM):
        return DeniedError(
            f"open {path}: {error.strerror}. Its owner can allow it: {reading_command(path)}",
            url=path,
            verb="open",
        )
    if error.errno == errno.ELOOP:
        return NotFoundError(
            f"open {path}: a link in this path leads to itself. Replace it by the file or folder.",
            url=path,
            verb="open",
        )
    if error.errno == errno.ENAMETOOLONG:
        return StoreError(
            f"open {path[:_SHOWN_PATH]}...: the path has {len(os.fsencode(path)):,} bytes. Linux "
            "opens at most 4,095, and 255 of each name. Give a shorter path, or move the dataset.",
            url=path,
            verb="open",
        )
    return None


def reading_command(path: str) -> str:
    """Return the command by which the owner of a path allows all users to read it."""
    path = os.path.abspath(path)
    parents = [path[:end] for end in range(1, len(path)) if path[end] == "/"]
    is_effective = os.access in os.supports_effective_ids
    blocked = next(
        (
            folder
            for folder in parents
            if not os.access(folder, os.X_OK, effective_ids=is_effective)
        ),
        path,
    )
    return f"chmod -R a+rX {shlex.quote(blocked)}"


def read_back(path: str, on_bytes: Callable[[memoryview], object]) -> None:
    """Call ``on_bytes`` with all bytes of a file in order, such as to compute its digest.

    All pieces share one buffer, so a piece is valid only until the next call.
    """
    buffer = memoryview(bytearray(_PIECE))
    with open_regular(path) as file:
        while count := file.readinto(buffer):
            on_bytes(buffer[:count])


# -------------------------------------------------------------------------------- an open directory


class Directory:
    """An open directory, whose files are reached by its descriptor ``fd`` instead of paths.

    If the directory is moved and another one takes its path, all operations stay in the directory
    that was opened. ``folder`` is the path at that time. The caller closes ``fd``. Each ``name`` is
    the name of a file in the directory, without folders.
    """

    def __init__(self, folder: str, fd: int) -> None:
        self.folder = folder
        self._fd = fd
        state = os.fstat(fd)
        #: Device and inode number of the directory.
        self.identity = state.st_dev, state.st_ino

    def is_in_place(self) -> bool:
        """Whether the path still leads to this directory."""
        try:
            state = os.stat(self.folder)
        except OSError:
            return False
        return (state.st_dev, state.st_ino) == self.identity

    def names(self) -> list[str]:
        """List the entries of the directory, sorted by name."""
        with self._with_whole_paths():
            return sorted(os.listdir(self._fd))

    def size(self, name: str) -> int:
        """Return the size of a file. Raises OSError."""
        with self._with_whole_paths():
            return os.stat(name, dir_fd=self._fd).st_size

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading. Raises OSError."""
        with self._with_whole_paths():
            return open(name, "rb", opener=self._reader)

    def unlink(self, name: str) -> None:
        """Remove a file. Raises OSError."""
        with self._with_whole_paths():
            os.unlink(name, dir_fd=self._fd)

    def sync(self) -> None:
        """Sync the names in the directory to the disk."""
        with translate_write_errors(os.path.join(self.folder, "")):
            os.fsync(self._fd)

    @contextlib.contextmanager
    def publish(self, name: str) -> Iterator[BinaryIO]:
        """Yield a new file, which gets its name when the block ends; else it is deleted.

        Raises as `publish` does.
        """
        temporary = temporary_path(name)
        with self.explaining(name):
            try:
                with open(temporary, "xb", opener=self._opener) as file:
                    yield file
                self._rename(temporary, name)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=self._fd)
                raise

    def begin(self, name: str) -> PendingFile:
        """Open a new file for a long write; it gets its name by `PendingFile.publish`.

        Raises as `publish` does.
        """
        temporary = temporary_path(name)
        with self.explaining(name):
            file = open(temporary, "x+b", buffering=0, opener=self._opener)  # noqa: SIM115
        return PendingFile(self, name, temporary, file)

    @contextlib.contextmanager
    def explaining(self, name: str) -> Iterator[None]:
        """Translate errors of writing the file of that name, as `translate_write_errors` does."""
        with translate_write_errors(os.path.join(self.folder, name)), self._with_whole_paths():
            yield

    def rename(self, temporary: str, name: str) -> None:
        """Rename a finished file, replacing an existing one."""
        with self.explaining(name):
            self._rename(temporary, name)

    def _rename(self, temporary: str, name: str) -> None:
        """Rename without the translation of errors, for blocks that already translate them."""
        os.replace(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def _reader(self, name: str, flags: int) -> int:
        """Open a regular file of the directory; serves as ``opener=`` of `open`."""
        return open_checked(name, flags, self._fd)

    def _opener(self, name: str, flags: int) -> int:
        """Open a file of the directory; serves as ``opener=`` of `open`."""
        return os.open(name, flags, 0o666, dir_fd=self._fd)

    @contextlib.contextmanager
    def _with_whole_paths(self) -> Iterator[None]:
        """Replace relative names in OSErrors of the block by whole paths, for messages."""
        try:
            yield
        except OSError as error:
            name = error.filename
            if isinstance(name, str) and name and not os.path.isabs(name):
                error.filename = os.path.join(self.folder, name)
            elif isinstance(name, int):  # a call on the descriptor itself
                error.filename = self.folder
            raise


class PendingFile:
    """A file with a temporary name until `publish` or `discard` is called; see `Directory.begin`.

    It is no context manager or generator: a forked child would have a copy, and its end in the
    child would delete the parent's file.

    Args:
        directory: Directory of the file.
        name: Final name.
        temporary: Name until then.
        file: The file, open for reading and writing.
    """

    def __init__(self, directory: Directory, name: str, temporary: str, file: FileIO) -> None:
        self.name = name
        self._directory = directory
        self._temporary = temporary
        self._file = file

    @property
    def fd(self) -> int:
        """The open descriptor, for reading and writing."""
        return self._file.fileno()

    def explaining(self) -> contextlib.AbstractContextManager[None]:
        """Translate errors of writing the file, as `translate_write_errors` does."""
        return self._directory.explaining(self.name)

    def publish(self) -> None:
        """Close the file and rename it to its final name."""
        self._file.close()
        self._directory.rename(self._temporary, self.name)

    def discard(self) -> None:
        """Delete the file unless it was published."""
        if not self._file.closed:
            self._file.close()
            with contextlib.suppress(FileNotFoundError):
                self._directory.unlink(self._temporary)


@contextlib.contextmanager
def open_directory(folder: str) -> Iterator[Directory]:
    """Open a directory for the duration of the block. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Directory(folder, fd)
    finally:
        os.close(fd)


# ----------------------------------------------------------------------------------------- failures


@contextlib.contextmanager
def translate_write_errors(path: str) -> Iterator[None]:
    """Translate errors of the block, which writes the file ``path``, to errors of this library.

    "No space left" becomes a NoSpaceError with the folder and its free space. A deleted file or
    folder becomes a VanishedError, so that it is not mistaken for a missing source. A folder where
    a file should be, or the other way round, becomes a StoreError.
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
                f"(ulimit -f), choose another folder, or write smaller shards.",
                url=path,
                verb="write",
            ) from error
        if error.errno == errno.ENOENT and _is_near(error.filename, path):
            if (refusing := _refusing_folder(error.filename)) is not None:
                raise StoreError(
                    f"write {path}: no file or folder can be created in {refusing}. Choose another "
                    f"folder.",
                    url=path,
                    verb="write",
                ) from error
            raise VanishedError(
                f"write {path}: {error.filename} is gone. Did another process delete it?",
                url=path,
                verb="write",
            ) from error
        if error.errno == errno.ENAMETOOLONG and (blocked := blocked_error(path, error)):
            raise blocked from error
        if error.errno in _IN_THE_WAY and _is_near(error.filename, path):
            raise StoreError(
                f"write {path}: {os.strerror(error.errno)}. Remove the file or folder of this "
                "name, or choose another folder.",
                url=path,
                verb="write",
            ) from error
        raise


def _is_near(other_path: object, path: str) -> bool:
    """Whether an error about ``other_path`` is one of writing ``path``.

    So is an error about a file in the same folder or below it, or about a folder above. For
    "/cache/a/shard" these are "/cache/a/x", "/cache/a/b/x" and "/cache", but not "/data/x": such an
    error comes from elsewhere in the block. ``other_path`` is the ``filename`` of an OSError, which
    may also be None or a descriptor.
    """
    folder = os.path.dirname(path)
    return isinstance(other_path, str) and (
        os.path.dirname(other_path) == folder
        or bool(folder and f"{other_path}/".startswith(f"{folder}/"))
        or f"{folder}/".startswith(f"{other_path}/")
    )


def _full_error(path: str, number: int) -> NoSpaceError:
    """Return the error for a full disk: no bytes are free for the file ``path``, or no inodes.

    ``number`` is the errno of the failed call.
    """
    folder = os.path.dirname(path) or "."
    try:
        state = os.statvfs(folder)
    except OSError:
        state = None
    has_no_inodes = state is not None and state.f_files and not state.f_favail
    if number == errno.ENOSPC and state is not None and has_no_inodes:
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
    """Return the folder above ``missing`` if no file can be created in it, else None.

    File systems such as /proc have neither blocks nor inodes for files of users.
    """
    parent = os.path.dirname(os.path.abspath(missing))
    try:
        state = os.statvfs(parent)
    except OSError:
        return None
    return parent if not state.f_blocks and not state.f_files else None


def despite_deletion(act: Callable[[], T]) -> T:
    """Call ``act`` and return its value; call it again if a folder is deleted meanwhile.

    A disk may be cleaned while jobs run. After `MAX_DELETIONS` repetitions the last error of
    ``act`` is raised: VanishedError, or FileExistsError, which `os.makedirs` raises for a folder
    that is deleted at that moment. A ReplacedError, which is a VanishedError too, is raised at
    once: it is about an object of a store, and no folder.
    """
    for remaining_tries in reversed(range(MAX_DELETIONS + 1)):
        try:
            return act()
        except (VanishedError, FileExistsError) as error:  # noqa: PERF203 - a try does much
            if isinstance(error, ReplacedError) or not remaining_tries:
                raise
    raise AssertionError("the last try returns or raises")


def is_process(number: int) -> bool:
    """Whether a process with the id ``number`` runs in this container.

    A zombie, which ended and was not waited for, does not run. It may stay forever if the first
    process of a container waits for no children.
    """
    try:
        os.kill(number, 0)  # signal 0 only checks
    except ProcessLookupError:
        return False
    except OSError:  # it is a process of another user
        return True
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            # The line is "id (name) state ...", and the name may contain anything. Z is a zombie,
            # and X is dead.
            return file.read().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except (OSError, IndexError):  # another system, or it ended just now
        return not os.path.exists("/proc/self/stat")
