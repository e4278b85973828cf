"""Layout of the ledger of a cache folder, and of the locks beside it.

`.mds/ledger` is a file that all processes of a node map into memory. It is written as a whole and
renamed into place, so no process ever maps an incomplete file. Afterwards it is changed in memory.

    byte     content
    0        header: magic, fingerprint of the index, boot of the machine, number of shards, number
             of changes, bytes of files that are no shards, header digest
    64       a slot for each process that uses the folder, `SLOTS` of 24 bytes (`_SLOT`)
    12352    an entry for each shard of the index, 56 bytes each (`_ENTRY`)

An entry is in one of five states:

    ABSENT ----reserve----> FETCHING ---commit----> MANAGED ---lock_for_eviction---> EVICTING
       ^                        |      (our file)      ^                                |
       |                        |                      +---- not evicted after all -----+
       +----failed, no file-----+                                                       |
       +<------------------------------- files deleted ---------------------------------+

    UNMANAGED: a file that this library did not write. It counts toward the limit and stays.

`.mds/lock` is an empty file. A process locks single bytes of it; when the process dies, the kernel
releases them.

    byte          lock                 held
    0             `LEDGER_LOCK`        while entries are changed (exclusive)
    1             `LEADER_LOCK`        by the process that prints warnings for all (exclusive)
    2             `FOLDER_LOCK`        while it is decided which source owns the folder (exclusive)
    2**10 + slot  `SLOT_LOCKS`         by a living process, for its slot (exclusive)
    2**26 + shard `PIN_LOCKS`          by readers of a shard (shared); to evict it (exclusive)
    2**27 + shard `FETCH_LOCKS`        by the process that fetches a shard (exclusive)
    -1            `SPACE_LOCK`         while space is reserved (exclusive)

The lock files of several folders may be one file, see `mds.storage._locks.share_locks`. Then they
have the last of these locks in common, and each has the others for itself.

The numbers of the file change all the time, so it has no digest of its content. Instead, the header
contains a digest of the fingerprint, the number of shards and the file's inode, which a copy does
not have, and all numbers are checked when the file is opened: a millisecond for 100,000 shards. A
file that fails is replaced. Which cached files are ours is then known from their ownership markers
(`mds._cache.folder`) and from their stamps in the old file.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import mmap
import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds._process.mmaps import map_descriptor
from mds.storage._control_files import open_control_file, publish_control_file
from mds.storage._files import write_at
from mds.storage._locks import LockFile, open_locks

if TYPE_CHECKING:
    import numpy.typing as npt

#: States of a shard in the cache folder.
ABSENT, MANAGED, UNMANAGED, FETCHING, EVICTING = range(5)

# Bytes of the lock file, below 2**28. The last three are the first byte of a range. Shards number
# below 2**26: an index of so many has gigabytes.
LEDGER_LOCK = 0
LEADER_LOCK = 1
FOLDER_LOCK = 2
SLOT_LOCKS = 1 << 10
PIN_LOCKS = 1 << 26
FETCH_LOCKS = 1 << 27
SPACE_LOCK = -1  # of all folders that share the lock file

SLOTS = 512  # processes that can use a folder at once
_MAX_BYTES = 1 << 56  # larger numbers of bytes are taken for damage

_MAGIC = b"mds-ledger-4\n\0\0\0"
# magic, fingerprint, boot, shards, number of changes, bytes of other files, header digest
_HEADER = struct.Struct("16s16s8sIIq8s")
_CHANGES_OFFSET = 44
_SIZE_OFFSET = 48  # of the bytes of other files
_SLOTS_OFFSET = 64
_SLOT = np.dtype(
    [
        ("pid", "i4"),
        ("readers", "i4"),  # number of iterations under way
        ("served", "i8"),  # time of the order before which the process has read everything
        ("team", "u8"),  # number of the team: the readers of one order
    ]
)
_ENTRIES_OFFSET = _SLOTS_OFFSET + SLOTS * _SLOT.itemsize
_ENTRY = np.dtype(
    [
        ("name", "u8"),  # digest of the file's name; a later index may number shards differently
        ("content", "u8"),  # digest of the listed content
        ("stamp", "u8"),  # digest of inode, time and size, which identifies a file of ours
        ("size", "i8"),  # bytes on the disk now or soon
        ("used", "f8"),  # seconds since 1970 at which a reader was last opened
        ("owner", "u2"),  # slot + 1 of the process that fetches or evicts the shard, else 0
        ("state", "u1"),
        ("is_checked", "u1"),  # whether the digest was checked since the machine was started
        ("versions", "u4", (2,)),  # of data and meta file at the store, while a process uses it
        ("team", "u4"),  # low bits of the team that fetched it; 0: unknown
    ]
)


def ledger_size(shards: int) -> int:
    """Return the bytes of a ledger file with so many shards."""
    return _ENTRIES_OFFSET + shards * _ENTRY.itemsize


def make_ledger_file(path: str, fingerprint: bytes, shards: int, size: int, mode: int) -> None:
    """Write a ledger in which all shards are absent; replace a file that exists.

    Args:
        path: Path of the file.
        fingerprint: Digest of the index, 16 bytes.
        shards: Number of shards of the index.
        size: Bytes of the folder's files that are no shards.
        mode: Permissions of the file.
    """
    with publish_control_file(path, mode & 0o666) as file:
        # Allocate all blocks now: later a full disk would end the process by SIGBUS.
        _allocate(file.fileno(), ledger_size(shards))
        digest = _header_digest(fingerprint, shards, os.fstat(file.fileno()).st_ino)
        file.write(_HEADER.pack(_MAGIC, fingerprint, boot(), shards, 0, size, digest))


def open_ledger_file(path: str, flags: int = os.O_RDWR) -> LedgerFile | None:
    """Map a ledger file of any index; return None if there is none or its layout is wrong.

    With the ``flags`` `os.O_RDONLY` nothing can be changed in it, also on a read-only disk.
    """
    try:
        fd = open_control_file(path, flags)
    except FileNotFoundError:
        return None
    try:
        state = os.fstat(fd)
        if state.st_size < _ENTRIES_OFFSET:
            return None
        view = map_descriptor(fd, state.st_size, is_shared=flags != os.O_RDONLY)
    finally:
        os.close(fd)
    magic, _, _, shards, *_ = _HEADER.unpack_from(view)
    if magic != _MAGIC or state.st_size != ledger_size(shards):
        return None
    return LedgerFile(view, (state.st_dev, state.st_ino))


def former_entries(path: str, max_entries: int) -> npt.NDArray[Any]:
    """Return the entries of our files in a ledger that may be damaged, old or of another index.

    At most ``max_entries`` entries are read. An entry proves nothing by itself: the caller compares
    its stamp with the file. Returns an array of `_ENTRY`, shape (n,).
    """
    data = b""
    with contextlib.suppress(FileNotFoundError), open(open_control_file(path), "rb") as file:
        size = min(os.fstat(file.fileno()).st_size, ledger_size(max_entries))
        data = file.read(size)[_ENTRIES_OFFSET:]
    entries: npt.NDArray[Any] = np.frombuffer(
        data[: len(data) // _ENTRY.itemsize * _ENTRY.itemsize], _ENTRY
    )
    is_ours = np.isin(entries["state"], (MANAGED, EVICTING))
    identified = entries[is_ours & (entries["name"] != 0) & (entries["stamp"] != 0)]
    return np.array(identified)


def team_mark(team: int) -> int:
    """Return the 32 bits of a team number that entries store."""
    return team & 0xFFFFFFFF


class LedgerFile:
    """A mapped ledger file: a value written to its arrays is seen by all processes at once.

    Args:
        view: The map of the whole file.
        identity: Device and inode of the file.
    """

    def __init__(self, view: mmap.mmap, identity: tuple[int, int]) -> None:
        _, self.fingerprint, self._boot, self.shards, *_, self._digest_in_header = (
            _HEADER.unpack_from(view)
        )
        self._view = view
        #: Number of changes of the entries modulo 2**32, shape (1,).
        self.changes = memoryview(view)[_CHANGES_OFFSET : _CHANGES_OFFSET + 4].cast("I")
        self._identity = identity
        self.slots: npt.NDArray[Any] = np.frombuffer(view, _SLOT, SLOTS, _SLOTS_OFFSET)
        self.entries: npt.NDArray[Any] = np.frombuffer(view, _ENTRY, self.shards, _ENTRIES_OFFSET)

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the machine has not been restarted since the file was written."""
        return bool(self._boot == boot())

    def is_sound(self) -> bool:
        """Whether the file is no copy (by its inode) and all of its numbers are possible."""
        entries = self.entries
        sizes = entries["size"]
        return bool(
            self._digest_in_header
            == _header_digest(self.fingerprint, self.shards, self._identity[1])
            and 0 <= self.size <= _MAX_BYTES
            and ((sizes >= 0) & (sizes <= _MAX_BYTES)).all()
            and sizes.sum(dtype=np.float64) <= _MAX_BYTES
            and (entries["state"] <= EVICTING).all()
            and (entries["owner"] <= SLOTS).all()
            and (entries["is_checked"] <= 1).all()
            and np.isfinite(entries["used"]).all()
        )

    @property
    def size(self) -> int:
        """Bytes of the folder's files that are no shards: this file, the index and the like."""
        return int(struct.unpack_from("q", self._view, _SIZE_OFFSET)[0])

    @size.setter
    def size(self, value: int) -> None:
        struct.pack_into("q", self._view, _SIZE_OFFSET, value)

    def count_change(self) -> None:
        """Count a change, before it is made and under the lock of the folder."""
        self.changes[0] = (self.changes[0] + 1) % (1 << 32)

    def is_at(self, path: str) -> bool:
        """Whether the mapped file is the one at ``path``."""
        try:
            state = os.stat(path)
        except OSError:
            return False
        return (state.st_dev, state.st_ino) == self._identity


def _allocate(file: int, size: int) -> None:
    """Reserve blocks of the disk for the first ``size`` bytes of a file; ``file`` is a descriptor.

    Raises OSError when the disk is full.
    """
    try:
        os.posix_fallocate(file, 0, size)
    except (AttributeError, OSError) as error:  # not everywhere, and not on every file system
        if getattr(error, "errno", None) in {errno.ENOSPC, errno.EDQUOT}:
            raise
        write_at(file, bytes(size), 0)


def _header_digest(fingerprint: bytes, shards: int, inode: int) -> bytes:
    """Return the 8 bytes that show that a header was written for the file with this inode."""
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


# ---------------------------------------------------------------------- processes


class NodeProgress(NamedTuple):
    """Progress of the readers of one order on this node."""

    #: Time of the order before which all of them have read everything.
    served: int
    #: Number of readers of this order.
    team_readers: int
    #: Number of readers of all known orders.
    all_readers: int


class ProcessTable:
    """The slots of a ledger: the processes that use a cache folder.

    A slot has the process id (``pid``, 0: free), the number of epochs that the process is reading
    (``readers``), the number of its order (``team``), and the time of that order before which it
    has read everything (``served``). A slot is used while its process holds the lock of the slot,
    so slots of dead processes remain until `clear_dead` is called.

    Args:
        slots: Array of `_SLOT`, shape (SLOTS,), shared by all processes.
        locks: The lock file of the folder.
    """

    def __init__(self, slots: npt.NDArray[Any], locks: LockFile) -> None:
        self.slots, self._locks = slots, locks
        #: The slot of this process, or -1.
        self.own_slot = -1

    def claim(self, owners: set[int]) -> bool:
        """Take a free slot for this process; return False if all slots are used.

        Slots in ``owners`` are taken last: they belonged to dead processes, whose entries have not
        been recovered yet and would seem to be ours.
        """
        # Free slots come first, then those with a process id, whose processes may have died.
        order = np.argsort(self.slots["pid"] != 0, kind="stable").tolist()
        for slot in sorted(order, key=lambda slot: slot in owners):
            if self._locks.try_lock(SLOT_LOCKS + slot):
                self.own_slot = slot
                self.slots[slot] = (os.getpid(), 0, 0, 0)  # pid, readers, served, team
                return True
        return False

    def leave(self, *, is_done: bool) -> None:
        """Give up the slot of this process; its lock is released when the lock file is closed.

        Without ``is_done``, the process has unfinished fetches. Then the slot looks like that of a
        dead process, so that another one recovers the entries.
        """
        if self.own_slot >= 0 and is_done:
            self.slots["pid"][self.own_slot] = 0
        self.own_slot = -1

    def is_alive(self, slot: int) -> bool:
        """Whether a living process holds a slot."""
        if slot == self.own_slot:
            return True
        if not 0 <= slot < SLOTS:
            return False
        if not self._locks.try_lock(SLOT_LOCKS + slot):
            return True  # its process holds the lock
        # It is free, so the process has ended.
        self._locks.unlock(SLOT_LOCKS + slot)
        return False

    def is_used(self) -> bool:
        """Whether another living process uses the folder."""
        return any(slot != self.own_slot and self.is_alive(slot) for slot in self._listed_slots())

    def clear_dead(self) -> None:
        """Clear the slots of dead processes."""
        for slot in self._listed_slots():
            if not self.is_alive(slot):
                self.slots["pid"][slot] = 0

    def processes(self) -> list[int]:
        """Return the process ids, including those of processes that died since `clear_dead`."""
        return [int(pid) for pid in self.slots["pid"] if pid]

    def count_reader(self, change: int) -> None:
        """Record that this process began (1) or ended (-1) to read an epoch."""
        if self.own_slot >= 0:
            self.slots["readers"][self.own_slot] += change

    def readers(self) -> int:
        """Return the number of epochs that all processes are reading."""
        return int(self.slots["readers"][self.slots["pid"] != 0].sum())

    def report_progress(self, team: int, time: int) -> NodeProgress:
        """Record the progress of this process; return that of all readers of the same order.

        Args:
            team: Number of the team, the readers of one order, to which this process belongs.
            time: Time of the order before which this process has read everything.
        """
        slots = self.slots
        if self.own_slot >= 0:
            slots["served"][self.own_slot], slots["team"][self.own_slot] = time, team
        is_reading = self._is_reading()
        is_mate = is_reading & (slots["team"] == team)  # readers of the same order
        readers = slots["readers"]
        # The slowest of them counts, and at least this process, which may have no slot.
        served = int(slots["served"][is_mate].min(initial=time))
        return NodeProgress(served, int(readers[is_mate].sum()), int(readers[is_reading].sum()))

    def teams(self) -> list[int]:
        """Return the distinct numbers of the teams that are reading."""
        return [int(team) for team in np.unique(self.slots["team"][self._is_reading()])]

    def _is_reading(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the slots whose processes are reading a known order, shape (SLOTS,)."""
        slots = self.slots
        mask: npt.NDArray[np.bool_] = (
            (slots["readers"] > 0) & (slots["pid"] != 0) & (slots["team"] != 0)
        )
        return mask

    def _listed_slots(self) -> list[int]:
        return list(np.flatnonzero(self.slots["pid"]).tolist())


def is_in_use(control: str) -> bool:
    """Whether a living process has the ledger in a control folder open."""
    file = open_ledger_file(os.path.join(control, "ledger"))
    if file is None or not file.slots["pid"].any():
        return False
    path = os.path.join(control, "lock")
    while True:
        locks = open_locks(path)
        try:
            is_used = ProcessTable(file.slots, locks).is_used()
            if is_used or locks.is_at(path):  # else another process replaced the file meanwhile
                return is_used
        finally:
            locks.close()
