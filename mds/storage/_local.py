"""A folder on a mounted disk: plain paths and file:// URLs.

Its data can be read in place (`local_path`). Writes are published by rename, so a reader on the
same file system sees an object whole or not at all.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from mds.errors import CorruptError, StoreError, TransientError
from mds.storage._base import CHUNK, Body, ObjectInfo, OnBytes, Store, check_key, replaced_error
from mds.storage._files import (
    blocked_error,
    check_regular,
    open_regular,
    open_target,
    publish,
    read_back,
    temporary_owner,
    translate_write_errors,
    version_of,
)
from mds.storage._translate import translate_chunks, translate_errors
from mds.storage._url import absolute_place, local_path

_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "9p", "lustre", "ceph", "beegfs"),
    *("glusterfs", "gpfs", "panfs", "orangefs", "pvfs2", "wekafs", "ocfs2", "gfs2", "virtiofs"),
}
_LOCAL_FUSE = {"fuseblk", "fuse.ntfs", "fuse.ntfs-3g", "fuse.exfat", "fuse.fuse-overlayfs"}
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}  # ELOOP: a link to itself
#: Reasons for which a listing leaves out entries, in plural.
BROKEN_LINKS, SPECIAL_FILES = "broken links", "pipes, sockets or devices"


class LocalStore(Store):
    """Files below a folder, which is created by the first write.

    ``url`` is a path or a file:// URL. Options and the timeout have no meaning for files.
    """

    def __init__(
        self, url: str, options: Mapping[str, Any] | None = None, timeout: float = 60.0
    ) -> None:
        del options, timeout
        self.url = absolute_place(url)  # a pickled store is opened anew from it
        self._root = local_path(self.url)
        self.local_path = self._root

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the file, or its bytes from ``start`` to before ``end``, in chunks."""
        path, url = self._path(key), self.url_of(key)
        with translate_errors("get", url):
            file = open_regular(path)
        try:
            info = info_of(key, os.fstat(file.fileno()))
            self._check_range(info, start, end)
        except BaseException:
            file.close()
            raise
        length = (info.size if end is None else end) - start
        chunks = self._check_unchanged(
            file, info, translate_chunks(_chunks(file, start, length), url)
        )
        return Body(info, chunks, length, url=url, close=file.close)

    def head(self, key: str) -> ObjectInfo:
        """Return the size of a file, and its time of change as the version."""
        path = self._path(key)
        with translate_errors("head", self.url_of(key)):
            try:
                state = os.stat(path)
            except OSError as error:
                if (blocked := blocked_error(path, error)) is not None:
                    raise blocked from error
                raise
            check_regular(path, state)
            return info_of(key, state)

    def get_file(
        self, key: str, path: str, size: int | None = None, on_bytes: OnBytes | None = None
    ) -> ObjectInfo:
        """Copy the file to ``path``, by the kernel if it can; see `Store.get_file`."""
        url = self.url_of(key)
        before = self.head(key)
        if size is not None and before.size != size:
            raise _other_size(url, before.size, size)
        with (
            translate_errors("get", url),
            translate_write_errors(path),
            open_regular(self._path(key)) as source,
            open_target(path) as target,
        ):
            copied = _copy(source, target)
        if copied != before.size:
            raise _other_size(url, copied, before.size)
        now = self.head(key)
        if now != before:
            raise replaced_error(url, before, now)
        if on_bytes is not None:
            read_back(path, on_bytes)
        return before

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List all files below the folder except temporary files of this library.

        Raises StoreError for a folder that cannot be listed.
        """
        for info in list_files(self._root, prefix):
            if temporary_owner(info.key) is None:
                yield info

    def delete(self, key: str) -> None:
        """Delete the file; a missing one is no error."""
        with translate_errors("delete", self.url_of(key)):
            try:
                os.unlink(self._path(key))
            except FileNotFoundError:
                return

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Write a file that is renamed when it is complete; see `Store._write`."""
        path, url = self._path(key), self.url_of(key)
        with (
            translate_errors("put", url),
            publish(path) as temporary,
            open_target(temporary) as target,
        ):
            shutil.copyfileobj(file, target, CHUNK)
            if target.tell() != size:
                raise StoreError(
                    f"put {url}: the source changed while it was read: {target.tell()} bytes "
                    f"instead of {size}",
                    url=url,
                    verb="put",
                )

    def _verify(self, key: str, size: int) -> ObjectInfo:
        # The file was closed without an error before it was renamed, so its size is known.
        return ObjectInfo(key, size)

    def _check_unchanged(
        self, file: BinaryIO, before: ObjectInfo, chunks: Iterator[bytes]
    ) -> Iterator[bytes]:
        """Yield the chunks. Raises ReplacedError if the file was written to meanwhile."""
        yield from chunks
        now = info_of(before.key, os.fstat(file.fileno()))
        if now != before:
            raise replaced_error(self.url_of(before.key), before, now)

    def _path(self, key: str) -> str:
        """Return the path of an object's file; '' is the folder itself."""
        return os.path.join(self._root, *check_key(key).split("/")) if key else self._root


def list_files(
    root: str,
    prefix: str = "",
    enters: Callable[[str], bool] | None = None,
    omit: Callable[[str, str], object] | None = None,
    why_not: Callable[[str, os.DirEntry[str], bool], str] | None = None,
) -> Iterator[ObjectInfo]:
    """Yield the files below a folder, those of a folder before those of its subfolders.

    Args:
        root: Path of the folder. A missing one has no files.
        prefix: Beginning of the keys of the files. Keys are paths below the root.
        enters: Whether to list a subfolder, by its key. None (default): all are listed.
        omit: Called with the key of an entry that is left out, and with the reason in plural.
        why_not: Returns the reason to leave out an entry, or '' to take it. Called with its key,
            with the entry, and with True if it is a folder or a link to one. None (default): links
            to files are files, and links to folders are not followed.

    Raises StoreError for a folder that cannot be listed, unless its name or that of a folder above
    is hidden: such a folder is left out.
    """
    omit = omit or (lambda *_: None)
    why_not = why_not or _is_linked_folder
    pending = [""]  # keys of folders to list, the next one last, with a slash at the end
    while pending:
        folder = pending.pop()
        path = os.path.join(root, folder)
        try:
            with os.scandir(path or ".") as entries:
                sorted_entries = sorted(entries, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it was deleted after it was listed, or the root does not exist
        except OSError as error:
            if "/." not in f"/{folder}":
                raise unlisted_error(path, error) from error
            continue
        subfolders = []
        for entry in sorted_entries:
            key = folder + entry.name
            is_folder = _is_folder(entry)
            if is_folder:
                if not f"{key}/".startswith(prefix) and not prefix.startswith(f"{key}/"):
                    continue
                if enters is not None and not enters(key):
                    continue
            elif not key.startswith(prefix):
                continue
            if reason := why_not(key, entry, is_folder):
                omit(key, reason)
            elif is_folder:
                subfolders.append(f"{key}/")
            else:
                try:
                    state = os.stat(entry.path)
                except OSError as error:
                    if error.errno not in _MISSING:
                        raise unlisted_error(entry.path, error) from error
                    if entry.is_symlink():  # else it was deleted after it was listed
                        omit(key, BROKEN_LINKS)
                    continue
                if stat.S_ISREG(state.st_mode):
                    yield info_of(key, state)
                else:
                    omit(key, SPECIAL_FILES)
        pending += reversed(subfolders)


def _is_linked_folder(_: str, entry: os.DirEntry[str], is_folder: bool) -> str:
    """Return a reason to leave out a link to a folder; '' for other entries."""
    return "links to folders" if is_folder and entry.is_symlink() else ""


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or a target that cannot be looked at
        return False


def unlisted_error(path: str, error: OSError) -> StoreError:
    """Return the error for a folder that cannot be listed, or a file that cannot be looked at."""
    return blocked_error(path, error) or TransientError(
        f"list {path}: {error.strerror}, so its files would be left out. Repair or mount the file "
        "system again, then restart.",
        url=path,
        verb="list",
    )


def info_of(key: str, state: os.stat_result) -> ObjectInfo:
    """Return the facts about a file, given its state."""
    return ObjectInfo(key, state.st_size, version_of(state), f"{state.st_ino:x}")


def _chunks(file: BinaryIO, start: int, length: int) -> Iterator[bytes]:
    """Yield ``length`` bytes of a file from ``start`` on; end early if the file does."""
    file.seek(start)
    while length > 0:
        chunk = file.read(min(CHUNK, length))
        if not chunk:
            return
        length -= len(chunk)
        yield chunk


def _other_size(url: str, size: int, expected_size: int) -> StoreError:
    """Return the error for a file of ``size`` bytes instead of ``expected_size``."""
    return CorruptError(
        f"get {url}: it has {size} bytes, {expected_size} were expected", url=url, verb="get"
    )


def _copy(source: BinaryIO, target: BinaryIO) -> int:
    """Copy all bytes of one file to an empty one, by the kernel if it can; return their number."""
    copied = 0
    try:
        # Each call copies at most 1 GB from offset `copied` on, and returns the number of bytes.
        while count := os.sendfile(target.fileno(), source.fileno(), copied, 1 << 30):
            copied += count
    except OSError:  # unsupported between these file systems, or on this system
        if copied:  # it is supported, so this is another error
            raise
        shutil.copyfileobj(source, target, CHUNK)
        copied = target.tell()
    return copied


def revised_version(info: ObjectInfo, folder: str | None = None) -> str:
    """Return a text that differs if an object was written again, perhaps with the same content.

    - ``info`` (ObjectInfo): Facts about the object.
    - ``folder`` (str | None): Folder of an object on a mounted disk; None (default): it is behind a
      network.
    """
    revision = info.revision
    if folder is not None and (network_kind(folder) or "").startswith("fuse"):
        revision = ""  # the inode of a file may differ at each mount
    return " ".join(filter(None, (info.version, revision)))


def version_at(path: str) -> str:
    """Return `revised_version` of a local file, or "" if it does not exist."""
    try:
        state = os.stat(path)
    except OSError:
        return ""
    return revised_version(info_of("", state), os.path.dirname(path))


def network_kind(folder: str, mounts: str | None = None) -> str | None:
    """Return the type of the network file system of a folder, or None if it is local.

    ``mounts`` is the text of /proc/self/mounts; None (default): it is read. On systems without that
    file, every file system counts as local.
    """
    if mounts is None:
        return _network_kind_of_disk(folder)
    path = os.path.realpath(folder)
    mount_point, kind = "", ""
    for line in mounts.splitlines():  # device, mount point, type, options ...
        _, point, point_kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")  # spaces are written in octal
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        # The longest mount point counts. Of several mounts on one point, the last one is visible.
        if is_above and len(point) >= len(mount_point):
            mount_point, kind = point, point_kind
    is_network = kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)
    return kind if is_network else None


#: Type of the network file system or None, and when it was found, by the number of the disk.
_disks: dict[int, tuple[str | None, float]] = {}
_DISK_SECONDS = 5.0  # until the mounts are read again: a number may be given to another disk


def _network_kind_of_disk(folder: str) -> str | None:
    """Return `network_kind` of a folder, which may not exist yet.

    All folders on one disk have the same kind, so thousands of them take one look at the mounts.
    """
    existing, device = folder or ".", -1  # -1: of a link that leads nowhere
    while device < 0:
        try:
            device = os.stat(existing).st_dev
        except OSError:  # noqa: PERF203 - mostly the first try succeeds
            existing = os.path.abspath(existing)
            above = os.path.dirname(existing)
            if above == existing or os.path.lexists(existing):
                break
            existing = above
    now = time.monotonic()
    kind, found_at = _disks.get(device, (None, -_DISK_SECONDS))
    if device < 0 or now - found_at >= _DISK_SECONDS:
        try:
            with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
                mounts = file.read()
        except OSError:
            return None
        kind = network_kind(folder, mounts)
        _disks[device] = kind, now
    return kind
