"""What the processes of a node share about a cache folder: a small file and the locks around it.

The file is a memory-mapped file. It holds, for every shard, the bytes that its files take or may
yet take, its owner, and how to recognise the files that we made. Bytes are entered before
they are written and struck out after they are gone, so the sum never falls short of the disk. All
changes happen under one lock of the folder and are a few stores to memory. A killed process drops
its kernel locks; the next process that looks finds entries of an owner that no longer holds its
folder, and settles them by looking at the disk. The price is 56 bytes a shard and one system call a
change.

A shard in use is pinned by a shared lock on its byte of the lock file; to evict it takes an
exclusive one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache.ledger_file import (
    EVICTING,
    FETCHING,
    MANAGED,
    SLOTS,
    UNMANAGED,
    LedgerFile,
    former_entries,
    ledger_size,
    make_ledger_file,
    open_ledger_file,
    team_mark,
)
from mds.cache.process_table import ProcessTable
from mds.errors import CacheError
from mds.process.fork_safe import new_rlock
from mds.storage.control_files import make_control_folder, make_shared_folder
from mds.storage.files import despite_deletion, translate_write_errors
from mds.storage.locks import LockFile, describe_processes, holders_of, lock_within, open_locks

if TYPE_CHECKING:
    import numpy.typing as npt

_FORMER = 1 << 20  # entries that are looked at in a ledger of another index

# Bytes of the lock file; shards are numbered below 2**40.
_LEDGER, _LEADER = 0, 1
PIN_AT = 1 << 42
_FETCH_AT = 1 << 43


class Ledger:
    """The ledger of one cache folder, as seen by this process."""

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
        self._lock_timeout = lock_timeout  # seconds; the lock is normally held for microseconds
        self._choose_control = choose_control  # returns the present control folder, at each opening
        self.shards = shards
        self.fingerprint = fingerprint[:16].ljust(16, b"\0")
        self._mode = mode
        self._move(control)
        self._threads = new_rlock()
        self._depth = 0
        self._pins: dict[int, int] = {}
        self._evicting: set[int] = set()  # shards that this process is evicting
        self._reserved: dict[int, int] = {}  # bytes entered for the shards that it fetches
        self._locks: LockFile | None = None
        self._owner = os.getpid()
        self._file: LedgerFile | None = None
        self._table: ProcessTable | None = None
        self.was_made = False
        #: Bytes of the folder's own files, which are written again when the folder was deleted.
        self.own_bytes = ledger_size(shards) if own_bytes is None else own_bytes
        #: Entries of files that the ledger before this one knew as ours.
        self.former: npt.NDArray[Any] | None = None
        #: Records the files that are in the folder already; called when a ledger was made.
        self.survey: Callable[[], None] | None = None

    def open(self) -> None:
        """Map the ledger, making it when there is none for this index."""
        with self._threads:
            despite_deletion(self._open)

    def _move(self, control: str) -> None:
        self.control = control
        self._path = os.path.join(control, "ledger")
        self.lock_path = os.path.join(control, "lock")

    def _open(self) -> None:
        if self._choose_control is not None:
            self._move(self._choose_control())
        with translate_write_errors(self._path):
            make_shared_folder(os.path.dirname(self.control))
            make_control_folder(self.control)
            self._locks = open_locks(self.lock_path, self._mode)
            with self._held():
                self._open_or_make_file()
                self._claim_slot()
                if self.is_alone():  # what an earlier run saw at the store counts no more
                    self.entries["versions"] = 0
                if self.was_made and self.survey is not None:
                    self.survey()  # before the folder is taken for empty

    def close(self) -> None:
        """Give back the slot, the pins and the map. Closing twice is fine."""
        with self._threads:
            locks, self._locks = self._locks, None
            self._pins.clear()
            self._evicting.clear()
            if locks is None or self._owner != os.getpid():
                return  # a child's copy: the slot in the file is the parent's
            if self._table is not None:  # threads that end later may still ask it
                self._table.leave(is_done=not self._reserved)
            locks.close()

    @contextlib.contextmanager
    def change(self) -> Iterator[npt.NDArray[Any]]:
        """Hold the exclusive lock and yield the entries; delete and fetch files after it."""
        with self._threads:
            if not self._depth and not self._is_current():
                # The folder was deleted under us, or another job brought another index.
                self.close()
                self.open()
                for shard, size in self._reserved.items():
                    self._note(shard, FETCHING, size)
            with self._held():
                yield self.entries

    def refresh(self) -> npt.NDArray[Any]:
        """Return the entries without the lock; they may change at any time."""
        if not self._is_current():
            with self.change():
                pass
        return self.entries

    def _is_current(self) -> bool:
        file = self._file  # none yet when an opening failed
        return self._locks is not None and file is not None and file.is_at(self._path)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        if self._depth:  # a change inside a change of the same thread
            yield
            return
        owner = self._wait(_LEDGER)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if owner is self._locks:
                owner.unlock(_LEDGER)
            else:
                owner.close()

    def _wait(self, offset: int) -> LockFile:
        assert self._locks is not None
        if self._locks.try_lock(offset):
            return self._locks
        owner = lock_within(self.lock_path, offset, self._lock_timeout, self._mode)
        if owner is None:
            owners = describe_processes(holders_of(self.lock_path, offset) or self.processes())
            raise CacheError(
                f"{self.lock_path}: the lock of the cache folder has been held for "
                f"{self._lock_timeout:.0f} s, which takes microseconds. Let it go on (kill -CONT) "
                f"or end it: {owners}."
            )
        return owner

    def _open_or_make_file(self) -> None:
        file = open_ledger_file(self._path)
        is_sound = file is not None and file.is_sound()
        if file is not None and is_sound and self._is_current_file(file):
            self.was_made, self._file = False, file
            return
        self.was_made = True
        former = former_entries(self._path, max(4 * self.shards, _FORMER))
        if file is None or not is_sound or not file.is_of_this_boot:
            # Files written just before a power cut may have the right size and no content.
            former["is_checked"] = 0
        self.former = former if len(former) else None
        make_ledger_file(self._path, self.fingerprint, self.shards, self.own_bytes, self._mode)
        file = open_ledger_file(self._path)
        if file is None or not self._is_ours(file):
            raise CacheError(f"{self._path}: cannot be read back after it was written.")
        self._file = file

    def _is_ours(self, file: LedgerFile) -> bool:
        return (file.fingerprint, file.shards) == (self.fingerprint, self.shards)

    def _is_current_file(self, file: LedgerFile) -> bool:
        """Whether it is of this index, and of this run of the machine.

        Containers may be told different ones of the same machine, so one that is in use counts.
        """
        assert self._locks is not None
        return self._is_ours(file) and (
            file.is_of_this_boot or ProcessTable(file.slots, self._locks).is_used()
        )

    @property
    def entries(self) -> npt.NDArray[Any]:
        """Entries of the shards."""
        return self._open_file.entries

    @property
    def table(self) -> ProcessTable:
        """The processes that use the folder."""
        assert self._table is not None
        return self._table

    @property
    def _open_file(self) -> LedgerFile:
        assert self._file is not None
        return self._file

    @property
    def size(self) -> int:
        """Bytes of the files that are the folder's own: file, index and the like."""
        return self._open_file.size

    @size.setter
    def size(self, value: int) -> None:
        self._open_file.size = value

    @property
    def used(self) -> int:
        """Bytes that the folder takes, or may take any moment."""
        return self.size + int(self.entries["size"].sum())

    # --------------------------------------------------------------------- processes

    def _claim_slot(self) -> None:
        assert self._locks is not None
        self._table = ProcessTable(self._open_file.slots, self._locks)
        owners = self.entries["owner"]
        # Not np.unique: its first call imports numpy.ma, which takes 20 ms of every worker.
        if not self._table.claim({owner - 1 for owner in owners[owners > 0].tolist()}):
            raise CacheError(
                f"{self.control}: {SLOTS} processes use this cache folder, and no more can. Give "
                f"some of them another local folder."
            )

    @property
    def slot(self) -> int:
        """The number of this process among those that use the folder; -1 when it does not."""
        return self._table.mine if self._table is not None else -1

    def processes(self) -> list[int]:
        """Return the process ids in the ledger; some may have died since the last check."""
        file = self._file or open_ledger_file(self._path)  # asked for before it is open, too
        return [int(pid) for pid in file.slots["pid"] if pid] if file is not None else []

    def is_alone(self) -> bool:
        """Whether no other process has the folder open."""
        return not self.table.is_used()

    def count_reader(self, change: int) -> None:
        """Note that this process began (1) or ended (-1) to read an epoch."""
        if self._owner == os.getpid():
            self.table.count_reader(change)

    def take_over_orphans(self) -> list[int]:
        """Take over the entries of the dead; the caller looks at the disk, in the same change.

        What no living process answers for is among them, however it came into the file.
        """
        with self.change() as entries:
            self.table.bury()
            busy = np.flatnonzero((entries["owner"] > 0) | (entries["state"] >= FETCHING))
            owners = entries["owner"][busy].astype(int) - 1
            living = {slot for slot in set(owners.tolist()) if self.table.is_alive(slot)}
            own_shards = self._reserved.keys() | self._evicting
            orphans = [
                shard
                for shard, slot in zip(busy.tolist(), owners.tolist(), strict=True)
                if (shard not in own_shards if slot == self.slot else slot not in living)
            ]
            # Evictions first: the bytes of a fetch include those of the shards that it evicts.
            orphans.sort(key=lambda shard: -int(entries["state"][shard]))
            entries["owner"][orphans] = self.slot + 1
        return orphans

    def reserve(self, shard: int, size: int, team: int = 0) -> None:
        """Enter the bytes of a shard that this process is about to fetch, inside a change.

        ``team``: the readers for whom it comes.
        """
        self._reserved[shard] = size
        self._note(shard, FETCHING, size)
        self.entries["team"][shard] = team_mark(team)
        self.touch(shard)

    def commit(
        self, shard: int, state: int, size: int, stamp: int = 0, *, is_checked: bool = False
    ) -> None:
        """Note how a shard that was this process's to deal with ended."""
        with self.change() as entries:
            self._reserved.pop(shard, None)
            self._note(shard, state, size)
            entries["stamp"][shard], entries["is_checked"][shard] = stamp, is_checked
            entries["owner"][shard] = 0  # last: until here the entry has an owner

    def set_identity(self, shard: int, name: int, tag: int) -> None:
        """Note which file and which content a shard is, for ledgers to come; inside a change."""
        self.entries["name"][shard], self.entries["content"][shard] = name, tag

    def _note(self, shard: int, state: int, size: int) -> None:
        entry = self.entries[shard]
        # In this order, since a process may be killed between any two stores.
        entry["owner"] = self.slot + 1
        entry["size"] = size
        entry["state"] = state

    def pin(self, shard: int) -> bool:
        """Keep a shard from being evicted; False while it is being evicted."""
        with self._threads:
            if self._locks is None:
                self.refresh()  # an opening failed: open it, or raise the reason again
            assert self._locks is not None
            count = self._pins.get(shard, 0)
            # Our own lock for an eviction would not be in the way of our other thread.
            if shard in self._evicting:
                return False
            if not count and not self._locks.try_lock(PIN_AT + shard, is_shared=True):
                return False
            self._pins[shard] = count + 1
            return True

    def touch(self, shard: int) -> None:
        """Note that a shard was acquired just now."""
        self.entries["used"][shard] = time.time()

    def unpin(self, shard: int) -> None:
        """Take one pin away."""
        with self._threads:
            count = self._pins.get(shard, 0)
            if count > 1:
                self._pins[shard] = count - 1
            elif count == 1:
                del self._pins[shard]
                if self._locks is not None:
                    self._locks.unlock(PIN_AT + shard)

    def lock_for_eviction(self, shard: int) -> bool:
        """Take a shard for eviction, inside a change; False while it is pinned."""
        if shard in self._pins or self._locks is None or not self._locks.try_lock(PIN_AT + shard):
            return False
        self._evicting.add(shard)
        self._note(shard, EVICTING, int(self.entries["size"][shard]))
        return True

    def finish_eviction(self, shard: int, state: int, size: int, stamp: int = 0) -> None:
        """Note how an eviction ended, and let others pin the shard again."""
        is_checked = bool(self.entries["is_checked"][shard])
        self.commit(shard, state, size, stamp, is_checked=is_checked)
        with self._threads:
            self._evicting.discard(shard)
            if self._locks is not None:
                self._locks.unlock(PIN_AT + shard)

    def fetch_lock(self, shard: int, seconds: float) -> LockFile | None:
        """Take the lock to fetch a shard; return None if its owner keeps it or is stopped."""
        self.refresh()
        path, offset, owners = (
            self.lock_path,
            _FETCH_AT + shard,
            functools.partial(self.owners, shard),
        )
        return lock_within(path, offset, seconds, self._mode, past_stopped=True, suspects=owners)

    def owners(self, shard: int) -> list[int]:
        """Return the processes that fetch a shard, as far as they are visible."""
        slot = int(self.entries["owner"][shard]) - 1
        holders = holders_of(self.lock_path, _FETCH_AT + shard)
        return holders or ([int(self._open_file.slots["pid"][slot])] if slot >= 0 else [])

    def is_leader(self) -> bool:
        """Whether this process is the one of the node that tells what concerns all."""
        with self._threads:
            return self._locks is not None and self._locks.try_lock(_LEADER)

    def __repr__(self) -> str:
        if self._locks is None or self._file is None:
            return f"<Ledger {self.control}: closed>"
        states = np.bincount(self.entries["state"], minlength=5)
        local = states[MANAGED] + states[UNMANAGED]
        return (
            f"<Ledger {self.control}: {self.used} bytes, {local} local, "
            f"{states[FETCHING]} fetching, {states[EVICTING]} leaving>"
        )
