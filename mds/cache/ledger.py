"""What the processes of a node share about a cache folder: a small book and the locks around it.

The book is a memory-mapped file. It holds, for every shard, the bytes that its files take or may
yet take, who is busy with it, and how to recognise the files that we made. Bytes are entered before
they are written and struck out after they are gone, so the sum never falls short of the disk. All
changes happen under one lock of the folder and are a few stores to memory. Whoever is killed drops
its kernel locks; the next process that looks finds entries of an owner that no longer holds its
place, and settles them by looking at the disk. The price is 48 bytes a shard and one system call a
change.

A shard that somebody reads is pinned by a shared lock on its byte of the lock file; to evict one
needs that byte alone.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache.book import (
    EVICTING,
    FETCHING,
    FOREIGN,
    PRESENT,
    SLOTS,
    Book,
    book_size,
    make_book,
    open_book,
)
from mds.cache.locks import LockFile, lock_within, open_locks
from mds.errors import CacheError
from mds.storage.files import despite_deletion, disk

if TYPE_CHECKING:
    import numpy.typing as npt

PATIENCE = 60.0  # seconds for a lock that is held for microseconds

# Bytes of the lock file; shards are numbered below 2**40.
_LEDGER, _SPEAKER = 0, 1
_SLOT_AT = 1 << 41
_PIN_AT = 1 << 42
_FETCH_AT = 1 << 43


class Ledger:
    """The account of one cache folder, as seen by this process."""

    def __init__(
        self,
        control: str,
        shards: int,
        fingerprint: bytes,
        mode: int = 0o666,
        own_bytes: int | None = None,
    ) -> None:
        self.control = control
        self.shards = shards
        self.fingerprint = fingerprint[:16].ljust(16, b"\0")
        self._mode = mode
        self._path = os.path.join(control, "ledger")
        self.lock_path = os.path.join(control, "lock")
        self._threads = threading.RLock()
        self._depth = 0
        self._pins: dict[int, int] = {}
        self._claimed: set[int] = set()  # which this process is evicting
        self._mine: dict[int, int] = {}  # bytes that this process entered for what it fetches
        self._locks: LockFile | None = None
        self._owner = os.getpid()
        self._book: Book | None = None
        self.slot = -1
        self.was_made = False
        #: Bytes of the folder's own files, which come back when the folder was deleted.
        self.own_bytes = book_size(shards) if own_bytes is None else own_bytes
        #: The entries of the ledger before this one, when the index changed.
        self.former: npt.NDArray[Any] | None = None

    # ------------------------------------------------------------------ opening

    def open(self) -> None:
        """Map the ledger, making it when there is none for this index."""
        with self._threads:
            despite_deletion(self._open)

    def _open(self) -> None:
        with disk(self._path):
            os.makedirs(self.control, exist_ok=True)
            self._locks = open_locks(self.lock_path, self._mode)
            with self._held():
                self._open_or_make_book()
                self._claim_slot()

    def close(self) -> None:
        """Give back the slot, the pins and the map. Closing twice is fine."""
        with self._threads:
            locks, self._locks = self._locks, None
            self._pins.clear()
            self._claimed.clear()
            if locks is None or self._owner != os.getpid():
                return  # a child's copy: the slot in the book is the parent's
            if self.slot >= 0 and not self._mine:
                self._slots["pid"][self.slot] = 0
            self.slot = -1
            locks.close()

    @contextlib.contextmanager
    def change(self) -> Iterator[npt.NDArray[Any]]:
        """The entries, with nobody else looking: decide and note inside, act outside."""
        with self._threads:
            if not self._depth and not self._is_current():
                # The folder was deleted under us, or another job brought another index.
                self.close()
                self.open()
                for shard, size in self._mine.items():
                    self._note(shard, FETCHING, size)
            with self._held():
                yield self.entries

    def refresh(self) -> npt.NDArray[Any]:
        """The entries to look at, without the lock: good as advice."""
        if not self._is_current():
            with self.change():
                pass
        return self.entries

    def _is_current(self) -> bool:
        book = self._book  # none yet when an opening failed
        return self._locks is not None and book is not None and book.is_at(self._path)

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

    def _wait(self, at: int) -> LockFile:
        assert self._locks is not None
        if self._locks.try_lock(at):
            return self._locks
        started = time.monotonic()
        owner = lock_within(self.lock_path, at, PATIENCE, self._mode)
        if owner is None:
            raise CacheError(
                f"{self.lock_path}: another process has held the lock of the cache folder for "
                f"{time.monotonic() - started:.0f} s, which takes microseconds. Is one of these "
                f"stopped: {self.processes()}?"
            )
        return owner

    def _open_or_make_book(self) -> None:
        book = open_book(self._path)
        self.was_made = book is None or not self._is_ours(book)
        if self.was_made:
            if book is not None:
                self.former = book.entries[book.entries["name"] != 0].copy()
            make_book(self._path, self.fingerprint, self.shards, self.own_bytes, self._mode)
            book = open_book(self._path)
        if book is None or not self._is_ours(book):
            raise CacheError(f"{self._path}: cannot be read back after it was written.")
        self._book = book

    def _is_ours(self, book: Book) -> bool:
        return (book.fingerprint, book.shards) == (self.fingerprint, self.shards)

    # ------------------------------------------------------------------ the book

    @property
    def entries(self) -> npt.NDArray[Any]:
        """What is noted of each shard."""
        return self._open_book.entries

    @property
    def _slots(self) -> npt.NDArray[Any]:
        return self._open_book.slots

    @property
    def _open_book(self) -> Book:
        assert self._book is not None
        return self._book

    @property
    def size(self) -> int:
        """Bytes of the files that are the folder's own: book, index and the like."""
        return self._open_book.size

    @size.setter
    def size(self, value: int) -> None:
        self._open_book.size = value

    @property
    def used(self) -> int:
        """Bytes that the folder takes, or may take any moment."""
        return self.size + int(self.entries["size"].sum())

    # ------------------------------------------------------------------ who is there

    def _claim_slot(self) -> None:
        assert self._locks is not None
        # The dead are settled first: their slots may have entries that nobody answers for.
        order = np.argsort(self._slots["pid"] != 0, kind="stable")
        for slot in order.tolist():
            is_owner = bool((self.entries["owner"] == slot + 1).any())
            if not is_owner and self._locks.try_lock(_SLOT_AT + slot):
                self.slot = slot
                self._slots[slot] = (os.getpid(), 0, 0)
                return
        raise CacheError(
            f"{self.control}: {SLOTS} processes use this cache folder, which is as many as can. "
            f"Give some of them another local folder."
        )

    def processes(self) -> list[int]:
        """The process ids in the book; the dead are among them until somebody looks."""
        book = self._book or open_book(self._path)  # whoever waits to open it asks, too
        return [int(pid) for pid in book.slots["pid"] if pid] if book is not None else []

    def count_reader(self, change: int) -> None:
        """Note that this process began (1) or ended (-1) to read an epoch."""
        if self.slot >= 0 and self._owner == os.getpid():
            self._slots["readers"][self.slot] += change

    def readers(self) -> int:
        """How many are reading an epoch, in all processes; the dead count until somebody looks."""
        return int(self._slots["readers"][self._slots["pid"] != 0].sum())

    def note_served(self, position: int) -> int:
        """Note up to which of its samples this process has what it needs; the least of all."""
        if self.slot >= 0:
            self._slots["served"][self.slot] = position
        is_reading = (self._slots["readers"] > 0) & (self._slots["pid"] != 0)
        return int(self._slots["served"][is_reading].min(initial=position))

    def adopt_orphans(self) -> list[int]:
        """Take over the entries of the dead; the caller looks at the disk, in the same change."""
        assert self._locks is not None
        orphans: list[int] = []
        with self.change() as entries:
            for slot in np.flatnonzero(self._slots["pid"]).tolist():
                if slot == self.slot or not self._locks.try_lock(_SLOT_AT + slot):
                    continue
                shards = np.flatnonzero(entries["owner"] == slot + 1)
                # What was leaving comes first: what was coming answers for its bytes.
                shards = shards[np.argsort(-entries["state"][shards].astype(int), kind="stable")]
                entries["owner"][shards] = self.slot + 1
                self._slots["pid"][slot] = 0
                self._locks.unlock(_SLOT_AT + slot)
                orphans += shards.tolist()
        return orphans

    def begin(self, shard: int, size: int) -> None:
        """Enter the bytes of a shard that this process is about to fetch, inside a change."""
        self._mine[shard] = size
        self._note(shard, FETCHING, size)
        self.touch(shard)

    def settle(
        self, shard: int, state: int, size: int, mark: int = 0, *, is_checked: bool = False
    ) -> None:
        """Note how a shard that was this process's to deal with ended."""
        with self.change() as entries:
            self._mine.pop(shard, None)
            self._note(shard, state, size)
            entries["mark"][shard], entries["owner"][shard] = mark, 0
            entries["is_checked"][shard] = is_checked

    def describe(self, shard: int, name: int, tag: int) -> None:
        """Note which file and which content a shard is, for ledgers to come; inside a change."""
        self.entries["name"][shard], self.entries["tag"][shard] = name, tag

    def _note(self, shard: int, state: int, size: int) -> None:
        entry = self.entries[shard]
        entry["state"], entry["size"], entry["owner"] = state, size, self.slot + 1

    # ------------------------------------------------------------------ pins and fetch locks

    def pin(self, shard: int) -> bool:
        """Keep a shard from being evicted; False while somebody is just evicting it."""
        with self._threads:
            assert self._locks is not None
            count = self._pins.get(shard, 0)
            # Our own lock for an eviction would not be in the way of our other thread.
            if shard in self._claimed:
                return False
            if not count and not self._locks.try_lock(_PIN_AT + shard, is_shared=True):
                return False
            self._pins[shard] = count + 1
            return True

    def touch(self, shard: int) -> None:
        """Note that a shard was taken in hand just now."""
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
                    self._locks.unlock(_PIN_AT + shard)

    def claim(self, shard: int) -> bool:
        """Take a shard for eviction, inside a change; False while anybody has it pinned."""
        if shard in self._pins or self._locks is None:
            return False
        if not self._locks.try_lock(_PIN_AT + shard):
            return False
        self._claimed.add(shard)
        self._note(shard, EVICTING, int(self.entries["size"][shard]))
        return True

    def unclaim(self, shard: int, state: int, size: int, mark: int = 0) -> None:
        """Note how an eviction ended, and let others pin the shard again."""
        is_checked = bool(self.entries["is_checked"][shard])
        self.settle(shard, state, size, mark, is_checked=is_checked)
        with self._threads:
            self._claimed.discard(shard)
            if self._locks is not None:
                self._locks.unlock(_PIN_AT + shard)

    def fetch_lock(self, shard: int, seconds: float) -> LockFile | None:
        """The right to fetch a shard, or None when its owner did not let go in time."""
        self.refresh()
        return lock_within(self.lock_path, _FETCH_AT + shard, seconds, self._mode)

    def is_speaker(self) -> bool:
        """Whether this process is the one of the node that tells what concerns all."""
        with self._threads:
            return self._locks is not None and self._locks.try_lock(_SPEAKER)

    def __repr__(self) -> str:
        if self._locks is None or self._book is None:
            return f"<Ledger {self.control}: closed>"
        states = np.bincount(self.entries["state"], minlength=5)
        local = states[PRESENT] + states[FOREIGN]
        return (
            f"<Ledger {self.control}: {self.used} bytes, {local} local, "
            f"{states[FETCHING]} fetching, {states[EVICTING]} leaving>"
        )
