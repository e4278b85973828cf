"""Files of a shard as mapped memory."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from mds.errors import NotFoundError, ShardError, StoreError
from mds.index import FileInfo
from mds.process.mmaps import count_maps, map_descriptor

if TYPE_CHECKING:
    import mmap

    Data = mmap.mmap | bytes


def map_file(folder: str, file: FileInfo) -> Data:
    """Return the bytes of a file of a shard, which must have its size in the index.

    Raises NotFoundError (a FileNotFoundError), StoreError (an OSError) when it cannot be opened,
    and ShardError (a ValueError) when it is not a file of that size inside ``folder``.
    """
    path = file.basename.under(folder)
    if file.basename.directories:
        _check_inside(folder, path)
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | _NONBLOCK)
    except FileNotFoundError:
        raise NotFoundError(f"open {path}: there is no such file.", url=path, verb="open") from None
    except OSError as error:
        raise StoreError(f"open {path}: {error.strerror}.", url=path, verb="open") from error
    try:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            raise ShardError(f"{path}: the shard is not a file.")
        if state.st_size != file.size:
            raise ShardError(
                f"{path}: the shard has {state.st_size} bytes, but its index says {file.size}."
            )
        # An empty file cannot be mapped.
        return _mapped(handle, path, state.st_size) if state.st_size else b""
    finally:
        os.close(handle)


def _mapped(handle: int, path: str, size: int) -> Data:
    try:
        return map_descriptor(handle, size)
    except OSError as error:
        way_out = ""
        if error.errno in {errno.ENOMEM, errno.EMFILE}:
            way_out = (
                f" The process has {count_maps():,} files mapped: let go of samples that are views "
                "of them (copy=False), or raise vm.max_map_count."
            )
        raise StoreError(
            f"map {path}: {error.strerror}.{way_out}", url=path, verb="open"
        ) from error


# A name that turns out to be a pipe must not block the open.
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)


def _check_inside(folder: str, path: str) -> None:
    """Refuse a folder that is a link to somewhere else.

    The file itself may be a link: hubs keep their snapshots as folders of links, made by the owner
    of the disk. Nothing is ever written through one.
    """
    root = os.path.realpath(folder)
    parent = os.path.realpath(os.path.dirname(path))
    if os.path.commonpath([root, parent]) != root:
        raise ShardError(f"{path}: a link leads the shard outside of the folder {folder}.")
