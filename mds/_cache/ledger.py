"""The ledger of a cache folder: what is in the folder, and which processes use it.

All processes of a node map one small file (`mds._cache.ledger_file` describes it and its locks).
For every shard it holds the bytes that its files take or will take, which process is busy with it,
and how to recognise files that this library wrote.

Bytes are added before they are written and subtracted after they are deleted, so the sum is never
below what is on the disk. All changes are a few stores to memory under one lock of the folder, and
cost one system call. A shard in use is pinned by a shared lock on its byte; evicting it takes an
exclusive one.

The kernel releases the locks of a process that dies. Its entries remain, with an owner that is not
alive. The next process that looks takes them over (`Ledger.take_over_orphans`) and corrects them by
what is on the disk (`mds._cache.recovery`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._cache.ledger_file import (
    EVICTING,
    FETCH_LOCKS,
    FETCHING,
    LEADER_LOCK,
    LEDGER_LOCK,
    MANAGED,
    PIN_LOCKS,
    SLOTS,
    SPACE_LOCK,
    UNMANAGED,
    LedgerFile,
    ProcessTable,
    former_entries,
    ledger_size,
    make_ledger_file,
    open_ledger_file,
    team_mark,
)
from mds._process.fork_safe import new_rlock
from mds.errors import CacheError
from mds.storage._control_files import make_control_folder, make_shared_folder
from mds.storage._files import despite_deletion, translate_write_errors
from mds.storage._locks import LockFile, describe_processes, holders_of, lock_within, share_locks

if TYPE_CHECKING:
    import numpy.typing as npt

_MIN_FORMER = 1 << 20  # entries that are read at least from a ledger of another index


class Ledger:
    """The ledger of one cache folder, as this process has it open. Thread-safe.

    It has an *entry* for each shard of the index (state, bytes, stamp, owner ...), and a *slot* for
    each process that uses the folder. The owner of an entry is the slot of the process that fetches
    or evicts the shard. Shards are given by their numbers in the folder.

    Args:
        control: Control folder, which holds the files ``ledger`` and ``lock``.
        shards: Number of shards of the index.
        fingerprint: Digest of the source and its index; the first 16 bytes count.
        mode: Permissions of the files.
        own_bytes: Bytes of the folder's files that are no shards. None (default): the ledger alone.
        choose_control: Function that returns the control folder, called at each opening. None
            (default): always ``control``.
        lock_timeout: Seconds to wait for the lock of the folder (default 60), which is normally
            held for microseconds.
    """

    #: Number of openings of all ledgers in this process.
    openings = 0

    def __init__(
        self,
        control: str,
        shards: int,
        fingerprint: bytes,
        mode: int = 0o666,
        own_bytes: int | None = None,
        choose_control: Callable[[], str] | None = None,
        lock_timeout: float = 60.0,
    ) -> None:
        self._lock_timeout = lock_timeout
        self._choose_control = choose_control
        self.shards = shards
        self.fingerprint = fingerprint[:16].ljust(16, b"\0")
        self._mode = mode
        self._set_control(control)
        self._threads = new_rlock()
        self._depth = 0  # number of nested changes of the thread that holds the lock
        self._pins: dict[int, int] = {}  # number of pins of this process, by shard
        self._evicting: set[int] = set()  # shards that this process is evicting
        self._reserved: dict[int, int] = {}  # bytes by shard that this process is fetching
        self._locks: LockFile | None = None
        self._owner = os.getpid()
        self._file: LedgerFile | None = None
        self._table: ProcessTable | None = None
        #: Whether the last opening wrote a new ledger file.
        self.is_new = False
        #: Bytes of the folder's files that are no shards, when the folder has no other files.
        self.own_bytes = ledger_size(shards) if own_bytes is None else own_bytes
        #: If the last opening replaced another ledger file (of another index, old or damaged): its
        #: entries of files that mds wrote, by which these are recognised. Else None.
        self.former: npt.NDArray[Any] | None = None
        #: Function that records the files in the folder; called when a new ledger was written.
        self.scan: Callable[[], None] | None = None

    def open(self) -> None:
        """Map the ledger; write one if there is none for this index."""
        with self._threads:
            despite_deletion(self._open)

    def _set_control(self, control: str) -> None:
        """Set the paths of the ledger and of the lock file, in the folder ``control``."""
        self.control = control
        self._path = os.path.join(control, "ledger")
        self.lock_path = os.path.join(control, "lock")

    def _open(self) -> None:
        """Open or write the ledger file, and take a slot for this process."""
        if self._choose_control is not None:
            self._set_control(self._choose_control())
        with translate_write_errors(self._path):
            make_shared_folder(os.path.dirname(self.control))
            make_control_folder(self.control)
            while True:
                self._locks = share_locks(self.lock_path, self._mode)
                with self._held():
                    # Another process may have replaced the lock file before this one locked it.
                    if self._locks.is_at(self.lock_path):
                        return self._open_locked()

    def _open_locked(self) -> None:
        """Do the same as `_open`, under the lock of the folder."""
        self._open_or_make_file()
        self._claim_slot()
        if self.is_alone():
            # Object versions must be equal within a run only. Forget those of earlier runs.
            self.entries["versions"] = 0
        if self.is_new and self.scan is not None:
            self.scan()  # under the lock: until then the folder seems empty

    def close(self) -> None:
        """Release the slot, the pins and the file. Closing twice is fine."""
        with self._threads:
            locks, self._locks = self._locks, None
            self._pins.clear()  # closing the lock file releases their locks
            self._evicting.clear()
            if locks is None or self._owner != os.getpid():
                return  # a forked child's copy: the slot belongs to the parent
            if self._table is not None:  # it stays, since threads that end later may ask it
                self._table.leave(is_done=not self._reserved)
            locks.close()

    @contextlib.contextmanager
    def change(self) -> Iterator[npt.NDArray[Any]]:
        """Hold the lock of the folder and yield the entries, so that they can be changed.

        Do not delete or fetch files in the block: all other processes wait for the lock. Changes
        may be nested: the lock is taken by the outermost one.
        """
        with self.look() as entries:
            self._open_file.count_change()
            yield entries

    @contextlib.contextmanager
    def look(self) -> Iterator[npt.NDArray[Any]]:
        """Hold the lock of the folder and yield the entries, which the block does not change."""
        with self._threads:
            if not self._depth and not self._is_current():  # the outermost change
                # The mapped file is not the ledger of the folder any more: the folder was deleted,
                # or another job replaced the ledger by that of another index. The new ledger does
                # not have the bytes of the fetches that this process has begun.
                self.close()
                self.open()
                with self._held():
                    self._open_file.count_change()
                    for shard, size in self._reserved.items():
                        self._set_entry(shard, FETCHING, size)
            with self._held():
                yield self.entries

    def refresh(self) -> npt.NDArray[Any]:
        """Return the entries without the lock; reopen a ledger that was deleted or replaced.

        Other processes may change the entries at any time.
        """
        if not self._is_current():
            with self.change():  # opens the present ledger at its beginning
                pass
        return self.entries

    def has_files(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return a mask of the shards whose files are complete, by their entries, shape (n,)."""
        states = self.refresh()["state"][shards]
        has_files: npt.NDArray[np.bool_] = (states == MANAGED) | (states == UNMANAGED)
        return has_files

    def _is_current(self) -> bool:
        """Whether the ledger is open and the mapped file still has its name."""
        file = self._file  # None when an opening failed
        return self._locks is not None and file is not None and file.is_at(self._path)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock of the folder during the block; blocks of one thread may be nested."""
        if self._depth:  # a change inside a change of the same thread
            yield
            return
        assert self._locks is not None
        lock = self._locks
        if not lock.try_lock(LEDGER_LOCK):
            lock = self._wait_for_lock(LEDGER_LOCK)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if lock is self._locks:
                lock.unlock(LEDGER_LOCK)  # the lock file also holds the locks of pins
            else:
                lock.close()

    def lock_space(self) -> LockFile:
        """Take the lock under which space is reserved; return the lock file to close afterwards.

        All folders whose lock files are one file (`lock_identity`) have it in common. Take it
        before the lock of any folder.
        """
        lock = share_locks(self.lock_path, self._mode)
        if lock.try_lock(SPACE_LOCK):
            return lock
        lock.close()
        return self._wait_for_lock(SPACE_LOCK)

    def _wait_for_lock(self, offset: int) -> LockFile:
        """Open a second lock file to wait for `LEDGER_LOCK` or `SPACE_LOCK`; return it.

        Raises CacheError if another process holds the lock too long.
        """
        lock = lock_within(self.lock_path, offset, self._lock_timeout, self._mode)
        if lock is None:
            holders = holders_of(self.lock_path, offset)
            owners = describe_processes(holders or self.processes())
            raise CacheError(
                f"{self.lock_path}: a process has held the lock of the cache folder for "
                f"{self._lock_timeout:.0f} s instead of microseconds. Continue it (kill -CONT) "
                f"or end it: {owners}."
            )
        return lock

    def _open_or_make_file(self) -> None:
        """Map the ledger file; write a new one if it is missing, damaged, old or of another index.

        Entries of a replaced file are kept in ``former``, so that our files are recognised.
        """
        file = open_ledger_file(self._path)
        is_sound = file is not None and file.is_sound()
        if file is not None and is_sound and self._is_usable(file):
            self.is_new, self._file = False, file
            Ledger.openings += 1
            return
        if file is not None and is_sound:
            file.count_change()  # so that processes that have it open look again
        self.is_new = True
        former = former_entries(self._path, max(4 * self.shards, _MIN_FORMER))
        if file is None or not is_sound or not file.is_of_this_boot:
            # Files written just before a power cut may have the right size and no content.
            former["is_checked"] = 0
        self.former = former if len(former) else None
        make_ledger_file(self._path, self.fingerprint, self.shards, self.own_bytes, self._mode)
        file = open_ledger_file(self._path)
        if file is None or not self._is_of_this_index(file):
            raise CacheError(f"{self._path} cannot be read after it was written.")
        self._file = file
        Ledger.openings += 1

    def _is_of_this_index(self, file: LedgerFile) -> bool:
        return (file.fingerprint, file.shards) == (self.fingerprint, self.shards)

    def _is_usable(self, file: LedgerFile) -> bool:
        """Whether a ledger file is of this index, and was written since the machine was started.

        Containers on one machine may see different boot ids, so a file in use counts too.
        """
        assert self._locks is not None
        return self._is_of_this_index(file) and (
            file.is_of_this_boot or ProcessTable(file.slots, self._locks).is_used()
        )

    @property
    def entries(self) -> npt.NDArray[Any]:
        """Entries of the shards, shape (shards,), of the dtype in `mds._cache.ledger_file`."""
        return self._open_file.entries

    @property
    def table(self) -> ProcessTable:
        """Table of the processes that use the folder."""
        assert self._table is not None
        return self._table

    @property
    def _open_file(self) -> LedgerFile:
        assert self._file is not None
        return self._file

    @property
    def size(self) -> int:
        """Bytes of the folder's files that are no shards: ledger, index and the like."""
        return self._open_file.size

    @size.setter
    def size(self, value: int) -> None:
        self._open_file.size = value

    @property
    def used(self) -> int:
        """Bytes of all files of the folder, including those that are being fetched."""
        return self.size + int(self.entries["size"].sum())

    @property
    def changes(self) -> memoryview:
        """Number of changes of the entries by all processes, shape (1,); of the open file."""
        return self._open_file.changes

    @property
    def lock_identity(self) -> tuple[int, int]:
        """Device and inode of the lock file, which several folders may share."""
        locks = self._locks
        if locks is None:
            self.refresh()  # an opening failed: try again, or raise the error again
            locks = self._locks
        assert locks is not None
        return locks.identity

    # --------------------------------------------------------------------- processes

    def _claim_slot(self) -> None:
        """Take a slot of the ledger; raise CacheError if all are used."""
        assert self._locks is not None
        self._table = ProcessTable(self._open_file.slots, self._locks)
        owners = self.entries["owner"]
        # Slots that still own entries are taken last: their processes have died, and the entries
        # would seem to be ours. The owner of an entry is recorded as slot + 1.
        # Not np.unique: its first call imports numpy.ma, which takes 20 ms of every worker.
        if not self._table.claim({owner - 1 for owner in owners[owners > 0].tolist()}):
            raise CacheError(
                f"{self.control}: {SLOTS} processes use this cache folder, which is the maximum. "
                f"Give some of them another local folder."
            )

    @property
    def slot(self) -> int:
        """Slot of this process in the ledger, or -1 if the ledger is closed."""
        return self._table.own_slot if self._table is not None else -1

    def processes(self) -> list[int]:
        """Return the process ids in the ledger; some may have died since the last check."""
        file = self._file or open_ledger_file(self._path)  # it may not be open yet
        return [int(pid) for pid in file.slots["pid"] if pid] if file is not None else []

    def is_alone(self) -> bool:
        """Whether no other process has the folder open."""
        return not self.table.is_used()

    def count_reader(self, change: int) -> None:
        """Record that this process began (1) or ended (-1) to read an epoch."""
        if self._owner == os.getpid():
            self.table.count_reader(change)

    def take_over_orphans(self) -> list[int]:
        """Make this process the owner of all entries whose owner is not alive; return the shards.

        Entries whose state says that they are being fetched or evicted but that have no owner are
        taken over, too. The caller corrects the entries by what is on the disk, in the same change.
        The result has numbers in the folder.
        """
        with self.change() as entries:
            self.table.clear_dead()
            busy = np.flatnonzero((entries["owner"] > 0) | (entries["state"] >= FETCHING))
            owners = entries["owner"][busy].astype(int) - 1
            living = {slot for slot in set(owners.tolist()) if self.table.is_alive(slot)}
            # This slot may have belonged to a dead process, so its entries are ours only if this
            # process is fetching or evicting them.
            own_shards = self._reserved.keys() | self._evicting
            orphans = [
                shard
                for shard, slot in zip(busy.tolist(), owners.tolist(), strict=True)
                if (shard not in own_shards if slot == self.slot else slot not in living)
            ]
            entries["owner"][orphans] = self.slot + 1
        return orphans

    def reserve(self, shard: int, size: int, team: int = 0) -> None:
        """Add the bytes of a shard that this process is about to fetch; call it inside a change.

        Args:
            shard: Number of the shard in the folder.
            size: Bytes that its files will have.
            team: Number of the team, the readers of one order, that needs it; 0 (default): unknown.
        """
        self._reserved[shard] = size
        self._set_entry(shard, FETCHING, size)
        self.entries["team"][shard] = team_mark(team)
        self.touch(shard)

    def commit(
        self, shard: int, state: int, size: int, stamp: int = 0, *, is_checked: bool = False
    ) -> None:
        """Record the result of a fetch or an eviction of this process.

        Args:
            shard: Number of the shard in the folder.
            state: ABSENT, MANAGED or UNMANAGED.
            size: Bytes of its files on the disk.
            stamp: Digest of inode, time and size of the files; 0 (default): not to be used.
            is_checked: Whether the digest of the content was checked (default False).
        """
        with self.change() as entries:
            self._reserved.pop(shard, None)
            self._set_entry(shard, state, size)
            entries["stamp"][shard], entries["is_checked"][shard] = stamp, is_checked
            entries["owner"][shard] = 0  # last: until here the entry has an owner

    def set_identity(self, shard: int, name: int, content: int) -> None:
        """Record the digests of a shard's name and content (64 bits); call it inside a change.

        A later ledger, of another index, recognises the shard by them.
        """
        self.entries["name"][shard], self.entries["content"][shard] = name, content

    def _set_entry(self, shard: int, state: int, size: int) -> None:
        """Set state and size (in bytes) of an entry, and make this process its owner."""
        entry = self.entries[shard]
        # In this order, since the process may be killed between any two stores: another process
        # corrects an entry whose owner is dead.
        entry["owner"] = self.slot + 1
        entry["size"] = size
        entry["state"] = state

    def pin(self, shard: int) -> bool:
        """Protect a shard from eviction until `unpin`; return False while it is being evicted."""
        with self._threads:
            if self._locks is None:
                self.refresh()  # an opening failed: try again, or raise the error again
            assert self._locks is not None
            count = self._pins.get(shard, 0)
            # File locks do not exclude other threads of the process that holds them.
            if shard in self._evicting:
                return False
            # The first pin takes a shared lock, which an eviction in another process excludes.
            if not count and not self._locks.try_lock(PIN_LOCKS + shard, is_shared=True):
                return False
            self._pins[shard] = count + 1
            return True

    def touch(self, shard: int) -> None:
        """Record that a shard is used now."""
        self.entries["used"][shard] = time.time()

    def unpin(self, shard: int) -> None:
        """Remove one pin of a shard."""
        with self._threads:
            count = self._pins.get(shard, 0)
            if count > 1:
                self._pins[shard] = count - 1
            elif count == 1:
                del self._pins[shard]
                if self._locks is not None:
                    self._locks.unlock(PIN_LOCKS + shard)

    def lock_for_eviction(self, shard: int) -> bool:
        """Lock a shard for eviction, inside a change; return False while any process pins it."""
        if (
            shard in self._pins
            or self._locks is None
            or not self._locks.try_lock(PIN_LOCKS + shard)
        ):
            return False
        self._evicting.add(shard)
        self._set_entry(shard, EVICTING, int(self.entries["size"][shard]))
        return True

    def finish_eviction(self, shard: int, state: int, size: int, stamp: int = 0) -> None:
        """Record the result of an eviction and unlock the shard; the arguments of `commit`."""
        is_checked = bool(self.entries["is_checked"][shard])
        self.commit(shard, state, size, stamp, is_checked=is_checked)
        with self._threads:
            self._evicting.discard(shard)
            if self._locks is not None:
                self._locks.unlock(PIN_LOCKS + shard)

    def fetch_lock(self, shard: int, seconds: float) -> LockFile | None:
        """Take the lock to fetch a shard, and wait for it up to ``seconds``.

        Returns None if another process holds it longer than that, or earlier if that process is
        stopped (by a signal or a debugger) and cannot release it.
        """
        self.refresh()
        return lock_within(
            self.lock_path,
            FETCH_LOCKS + shard,
            seconds,
            self._mode,
            past_stopped=True,
            suspects=functools.partial(self.owners, shard),  # if the system does not show holders
        )

    def owners(self, shard: int) -> list[int]:
        """Return the ids of processes that are fetching a shard, as far as they are visible.

        These are the holders of its fetch lock, according to the system. If it shows none, as in
        a container, return the process that the ledger records as the owner, if any.
        """
        slot = int(self.entries["owner"][shard]) - 1
        holders = holders_of(self.lock_path, FETCH_LOCKS + shard)
        return holders or ([int(self._open_file.slots["pid"][slot])] if slot >= 0 else [])

    def is_leader(self) -> bool:
        """Whether this process prints warnings for all processes; the first one that asks does."""
        with self._threads:
            return self._locks is not None and self._locks.try_lock(LEADER_LOCK)

    def __repr__(self) -> str:
        if self._locks is None or self._file is None:
            return f"<Ledger {self.control}: closed>"
        states = np.bincount(self.entries["state"], minlength=5)  # number of shards by state
        local = states[MANAGED] + states[UNMANAGED]
        return (
            f"<Ledger {self.control}: {self.used} bytes, {local} local, "
            f"{states[FETCHING]} fetching, {states[EVICTING]} evicting>"
        )
