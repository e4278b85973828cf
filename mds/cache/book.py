"""The file behind the ledger of a cache folder: its layout, how it is made and how it is mapped.

A header, a line for every process that uses the folder, and an entry for every shard of the index,
48 bytes each. The file is made whole and renamed into place, so that nobody maps half of one; what
is in it afterwards is changed in memory that all processes share.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.storage.files import publish, write_at

if TYPE_CHECKING:
    import numpy.typing as npt

#: What a shard of the folder may be.
ABSENT, PRESENT, FOREIGN, FETCHING, EVICTING = range(5)

SLOTS = 512  # processes that can use a folder at once

_MAGIC = b"mds-ledger-1\n\0\0\0"
_HEADER = struct.Struct("16s16s8sqq")  # magic, fingerprint, boot, shards, bytes of other files
_BOOT_AT, _SIZE_AT = 32, _HEADER.size - 8
_SLOTS_AT = 64
_SLOT = np.dtype([("pid", "i8"), ("readers", "i8"), ("served", "i8")])
_ENTRIES_AT = _SLOTS_AT + SLOTS * _SLOT.itemsize
_ENTRY = np.dtype(
    [
        ("name", "u8"),  # which file, also for a later index that numbers its shards otherwise
        ("tag", "u8"),  # which content
        ("mark", "u8"),  # which inode and time: how the file that we made is told from others
        ("size", "i8"),  # bytes on the disk now or soon
        ("used", "f8"),  # when somebody last took it in hand
        ("owner", "u2"),  # slot + 1 of the process that is busy with it
        ("state", "u1"),
        ("is_checked", "u1"),  # the digest was right, since the machine was started
        ("pad", "u1", (4,)),
    ]
)


def book_size(shards: int) -> int:
    """The bytes of the book of so many shards."""
    return _ENTRIES_AT + shards * _ENTRY.itemsize


def make_book(path: str, fingerprint: bytes, shards: int, size: int, mode: int) -> None:
    """Write the book of an index in which no shard is there yet, in place of any other."""
    with publish(path) as temporary, open(temporary, "wb") as file:
        os.fchmod(file.fileno(), mode & 0o666)
        # All blocks now: a full disk is an error here, and would be a signal in a map.
        _allocate(file.fileno(), book_size(shards))
        file.write(_HEADER.pack(_MAGIC, fingerprint, _boot(), shards, size))


def open_book(path: str) -> Book | None:
    """Map the book at ``path``, of whatever index; None when there is none or it is damaged."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        state = os.fstat(fd)
        if state.st_size < _ENTRIES_AT:
            return None
        view = mmap.mmap(fd, state.st_size)
    finally:
        os.close(fd)
    magic, _, _, shards, _ = _HEADER.unpack_from(view)
    if magic != _MAGIC or state.st_size != book_size(shards):
        return None
    return Book(view, (state.st_dev, state.st_ino))


class Book:
    """A mapped book: what is written to its arrays is there for every process at once."""

    def __init__(self, view: mmap.mmap, identity: tuple[int, int]) -> None:
        _, self.fingerprint, boot, self.shards, _ = _HEADER.unpack_from(view)
        self._view = view
        self._identity = identity
        self.slots: npt.NDArray[Any] = np.frombuffer(view, _SLOT, SLOTS, _SLOTS_AT)
        self.entries: npt.NDArray[Any] = np.frombuffer(view, _ENTRY, self.shards, _ENTRIES_AT)
        if boot != _boot():
            # What was written just before a power cut may have the right size and no content.
            self.entries["is_checked"] = 0
            view[_BOOT_AT : _BOOT_AT + len(boot)] = _boot()

    @property
    def size(self) -> int:
        """Bytes of the files that are the folder's own: this one, the index and the like."""
        return int(struct.unpack_from("q", self._view, _SIZE_AT)[0])

    @size.setter
    def size(self, value: int) -> None:
        struct.pack_into("q", self._view, _SIZE_AT, value)

    def is_at(self, path: str) -> bool:
        """Whether the file that is mapped is the one at ``path``."""
        try:
            state = os.stat(path)
        except OSError:
            return False
        return (state.st_dev, state.st_ino) == self._identity


def _allocate(file: int, size: int) -> None:
    try:
        os.posix_fallocate(file, 0, size)
    except (AttributeError, OSError) as error:  # not everywhere, and not on every file system
        if getattr(error, "errno", None) in {errno.ENOSPC, errno.EDQUOT}:
            raise
        write_at(file, bytes(size), 0)


@functools.lru_cache(maxsize=1)
def _boot() -> bytes:
    """What tells one run of the machine from another."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().replace(b"-", b"")[:8]
    except OSError:
        return b"unknown "
