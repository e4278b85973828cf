"""Reference-counted LRU of the readers that a process has open.

A reader in use is never dropped. One that is not stays open while there is room: for files up to
so many readers, and as many maps as the process may have (mds/process/mmaps.py); for shards in
memory up to so many bytes. Opening and dropping one costs the same whatever their number.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from mds.process.fork_safe import new_lock
from mds.process.mmaps import make_room

if TYPE_CHECKING:
    from mds.readers import Reader

Unpin = Callable[[], None]

MAX_OPEN_READERS = 4096
IN_MEMORY = 64 << 20  # bytes of whole shards kept in memory that are not in use


@dataclasses.dataclass(slots=True)
class OpenReader:
    """An open reader, its reference count and its pin."""

    reader: Reader
    unpin: Unpin | None = None  # what to call when it is not in use any more
    in_memory: int = 0  # bytes of it that are in this process's memory
    count: int = 0


class ReaderPool:
    """Pool of open readers by shard, reference-counted; up to ``max_open`` idle ones stay open."""

    def __init__(self, max_open: int = MAX_OPEN_READERS) -> None:
        #: Readers that may be used without holding them, while they are in here.
        self.open: dict[int, Reader] = {}
        self._max_open = max_open
        self._held: dict[int, OpenReader] = {}
        # Those that are not in use, the one that was used last at the end.
        self._idle_files: OrderedDict[int, None] = OrderedDict()
        self._idle_memory: OrderedDict[int, None] = OrderedDict()
        self._memory = 0
        self._opening: dict[int, Future[None]] = {}
        self._lock = new_lock()

    def __contains__(self, shard: int) -> bool:
        return shard in self._held

    def acquire(self, shard: int, open_shard: Callable[[int], OpenReader]) -> Reader:
        """Return a reader and count one more use; one thread opens it, and others wait."""
        while True:
            with self._lock:
                held = self._held.get(shard)
                if held is not None:
                    self._use(shard, held)
                    return held.reader
                opening = self._opening.get(shard)
                if opening is None:
                    mine = self._opening[shard] = Future()
                    break
            opening.result()  # raises what the thread met that opens it
        try:
            reader = self.add(shard, open_shard(shard))
        except BaseException as error:
            with self._lock:
                del self._opening[shard]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._opening[shard]
        mine.set_result(None)
        return reader

    def acquire_open(self, shard: int) -> Reader | None:
        """Return an open reader and count one more use, or return None if it is not open."""
        with self._lock:
            held = self._held.get(shard)
            if held is None:
                return None
            self._use(shard, held)
            return held.reader

    def add(self, shard: int, held: OpenReader) -> Reader:
        """Take an opened reader into use, or the one of another thread that was faster."""
        gone: list[OpenReader] = []
        with self._lock:
            other = self._held.get(shard)
            if other is None:
                self._held[shard] = held
                self._memory += held.in_memory
                if held.unpin is None and not held.in_memory:
                    self.open[shard] = held.reader
            else:
                gone.append(held)
            kept = other or held
            self._use(shard, kept)
        _end(gone)
        self._trim()
        return kept.reader

    def release(self, shard: int) -> None:
        """One use of a reader ends; with the last of them a pinned one is dropped."""
        with self._lock:
            held = self._held.get(shard)
            if held is None or not held.count:
                return
            held.count -= 1
            if held.count:
                return
            if held.unpin is None:
                self._idle_of(held)[shard] = None
                return
            gone = self._drop(shard)
        _end(gone)

    def evict_if_idle(self, shard: int) -> bool:
        """Drop a reader, so that its file can go; False when it is in use."""
        with self._lock:
            held = self._held.get(shard)
            if held is None:
                return True
            if held.count:
                return False
            gone = self._drop(shard)
        _end(gone)
        return True

    @property
    def opening(self) -> list[int]:
        """The shards that threads are opening just now."""
        with self._lock:
            return sorted(self._opening)

    def counts(self) -> tuple[int, int]:
        """Return the number of open readers, and of those in use."""
        with self._lock:
            idle = len(self._idle_files) + len(self._idle_memory)
            return len(self._held), len(self._held) - idle

    def close(self) -> None:
        """Drop all readers."""
        with self._lock:
            gone = [held for shard in list(self._held) for held in self._drop(shard)]
        _end(gone)

    def _use(self, shard: int, held: OpenReader) -> None:
        held.count += 1
        self._idle_of(held).pop(shard, None)

    def _idle_of(self, held: OpenReader) -> OrderedDict[int, None]:
        return self._idle_memory if held.in_memory else self._idle_files

    def drop_idle(self) -> bool:
        """Drop the reader of files that was not used for longest; False when all are in use."""
        with self._lock:
            gone = self._drop(next(iter(self._idle_files))) if self._idle_files else []
        _end(gone)
        return bool(gone)

    def _trim(self) -> None:
        """Drop those that were not used for longest, over what may stay open."""
        while True:
            with self._lock:
                if not self._idle_memory or self._memory <= IN_MEMORY:
                    break
                gone = self._drop(next(iter(self._idle_memory)))
            _end(gone)
        while len(self._held) > self._max_open and self.drop_idle():
            continue
        make_room(self)

    def _drop(self, shard: int) -> list[OpenReader]:
        held = self._held.pop(shard)
        self._memory -= held.in_memory
        self._idle_of(held).pop(shard, None)
        self.open.pop(shard, None)
        return [held]


def _end(gone: list[OpenReader]) -> None:
    """Close and unpin outside of the lock: the ledger has one too, whose owners ask us things."""
    for held in gone:
        # At once, and not when the garbage collector comes by: a map keeps its file on the disk.
        held.reader.close()
        if held.unpin is not None:
            held.unpin()
