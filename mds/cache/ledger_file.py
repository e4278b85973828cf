"""The file behind the ledger of a cache folder: its layout, how it is made and how it is mapped.

A header, a line for every process that uses the folder, and an entry for every shard of the index,
56 bytes each. The file is made whole and renamed into folder, so that half of one is never mapped;
what is in it afterwards is changed in memory that all processes share.

A digest over numbers that change all the time would cost more than they do. So the header is sealed
with the inode, which a copy does not have, and every number of an entry is looked at when the file
is opened: one pass over the arrays, a millisecond for 100,000 shards. A file that fails is not used
as a ledger; what it knew of files of ours can be shown by each file itself, through its stamp.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import mmap
import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.process.mmaps import map_descriptor
from mds.storage.control_files import open_control_file, publish_control_file
from mds.storage.files import write_at

if TYPE_CHECKING:
    import numpy.typing as npt

#: What a shard of the folder may be.
ABSENT, MANAGED, UNMANAGED, FETCHING, EVICTING = range(5)

SLOTS = 512  # processes that can use a folder at once
_MOST = 1 << 56  # bytes that a folder may be believed to hold

_MAGIC = b"mds-ledger-3\n\0\0\0"
# magic, fingerprint, boot, shards, bytes of other files, seal
_HEADER = struct.Struct("16s16s8sqq8s")
_SIZE_AT = 48
_SLOTS_AT = 64
_SLOT = np.dtype(
    [
        ("pid", "i4"),
        ("readers", "i4"),  # iterations under way
        ("served", "i8"),  # the time of their order up to which they have what they need
        ("team", "u8"),  # which order that is
    ]
)
_ENTRIES_AT = _SLOTS_AT + SLOTS * _SLOT.itemsize
_ENTRY = np.dtype(
    [
        ("name", "u8"),  # digest of the file's name; a later index may number shards differently
        ("content", "u8"),  # digest of the listed content
        ("stamp", "u8"),  # digest of inode, time and size, which identifies our file
        ("size", "i8"),  # bytes on the disk now or soon
        ("used", "f8"),  # when it was last acquired
        ("owner", "u2"),  # slot + 1 of the process that is busy with it
        ("state", "u1"),
        ("is_checked", "u1"),  # the digest was right, since the machine was started
        ("versions", "u4", (2,)),  # of its data and meta file at the store, while a process uses it
        ("team", "u4"),  # the readers of one order, for which it came; 0: not known
    ]
)


def ledger_size(shards: int) -> int:
    """Return the size in bytes of the ledger of so many shards."""
    return _ENTRIES_AT + shards * _ENTRY.itemsize


def make_ledger_file(path: str, fingerprint: bytes, shards: int, size: int, mode: int) -> None:
    """Write the file of an index in which no shard is there yet, in place of any other."""
    with publish_control_file(path, mode & 0o666) as file:
        # All blocks now: a full disk is an error here, and would be a signal in a map.
        _allocate(file.fileno(), ledger_size(shards))
        seal = _seal(fingerprint, shards, os.fstat(file.fileno()).st_ino)
        file.write(_HEADER.pack(_MAGIC, fingerprint, boot(), shards, size, seal))


def open_ledger_file(path: str) -> LedgerFile | None:
    """Map the file at ``path``, of whatever index; None when there is none or it is damaged."""
    try:
        fd = open_control_file(path)
    except FileNotFoundError:
        return None
    try:
        state = os.fstat(fd)
        if state.st_size < _ENTRIES_AT:
            return None
        view = map_descriptor(fd, state.st_size, is_shared=True)
    finally:
        os.close(fd)
    magic, _, _, shards, _, _ = _HEADER.unpack_from(view)
    if magic != _MAGIC or state.st_size != ledger_size(shards):
        return None
    return LedgerFile(view, (state.st_dev, state.st_ino))


def former_entries(path: str, max_entries: int) -> npt.NDArray[Any]:
    """Return the entries of our files in a ledger that may be damaged, old or of another index.

    ``max_entries`` entries are looked at. Each has to be believed by its stamp alone.
    """
    data = b""
    with contextlib.suppress(FileNotFoundError), open(open_control_file(path), "rb") as file:
        data = file.read(ledger_size(max_entries))[_ENTRIES_AT:]
    entries: npt.NDArray[Any] = np.frombuffer(
        data[: len(data) // _ENTRY.itemsize * _ENTRY.itemsize], _ENTRY
    )
    is_made = np.isin(entries["state"], (MANAGED, EVICTING))
    identified = entries[is_made & (entries["name"] != 0) & (entries["stamp"] != 0)]
    return np.array(identified)


def team_mark(team: int) -> int:
    """Return the 32 bits of a team number that entries store."""
    return team & 0xFFFFFFFF


class LedgerFile:
    """A mapped file: what is written to its arrays is there for every process at once."""

    def __init__(self, view: mmap.mmap, identity: tuple[int, int]) -> None:
        _, self.fingerprint, self._boot, self.shards, _, self._digest_in_header = (
            _HEADER.unpack_from(view)
        )
        self._view = view
        self._identity = identity
        self.slots: npt.NDArray[Any] = np.frombuffer(view, _SLOT, SLOTS, _SLOTS_AT)
        self.entries: npt.NDArray[Any] = np.frombuffer(view, _ENTRY, self.shards, _ENTRIES_AT)

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the machine was not started anew since it was made."""
        return bool(self._boot == boot())

    def is_sound(self) -> bool:
        """Whether it is the file that was made here, and all numbers are possible."""
        entries = self.entries
        sizes = entries["size"]
        return bool(
            self._digest_in_header == _seal(self.fingerprint, self.shards, self._identity[1])
            and 0 <= self.size <= _MOST
            and ((sizes >= 0) & (sizes <= _MOST)).all()
            and sizes.sum(dtype=np.float64) <= _MOST
            and (entries["state"] <= EVICTING).all()
            and (entries["owner"] <= SLOTS).all()
            and (entries["is_checked"] <= 1).all()
            and np.isfinite(entries["used"]).all()
        )

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


def _seal(fingerprint: bytes, shards: int, inode: int) -> bytes:
    facts = struct.pack("16sqQ", fingerprint, shards, inode)
    return hashlib.blake2b(facts, digest_size=8).digest()


@functools.lru_cache(maxsize=1)
def boot() -> bytes:
    """Return 8 bytes that identify the present boot of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().replace(b"-", b"")[:8]
    except OSError:
        return b"unknown "
