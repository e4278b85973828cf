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
        self._readers: dict[int, OpenReader] = {}
        # Those that are not in use, the one that was used last at the end.
        self._idle_files: OrderedDict[int, None] = OrderedDict()
        self._idle_memory: OrderedDict[int, None] = OrderedDict()
        self._memory = 0
        self._opening: dict[int, Future[None]] = {}
        self._lock = new_lock()

    def __contains__(self, shard: int) -> bool:
        return shard in self._readers

    def acquire(self, shard: int, open_shard: Callable[[int], OpenReader]) -> Reader:
        """Return a reader and count one more use; one thread opens it, and others wait."""
        while True:
            with self._lock:
                entry = self._readers.get(shard)
                if entry is not None:
                    self._use(shard, entry)
                    return entry.reader
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
            entry = self._readers.get(shard)
            if entry is None:
                return None
            self._use(shard, entry)
            return entry.reader

    def add(self, shard: int, entry: OpenReader) -> Reader:
        """Take an opened reader into use, or the one of another thread that was faster."""
        dropped: list[OpenReader] = []
        with self._lock:
            other = self._readers.get(shard)
            if other is None:
                self._readers[shard] = entry
                self._memory += entry.in_memory
                if entry.unpin is None and not entry.in_memory:
                    self.open[shard] = entry.reader
            else:
                dropped.append(entry)
            pooled = other or entry
            self._use(shard, pooled)
        _end(dropped)
        self._trim()
        return pooled.reader

    def release(self, shard: int) -> None:
        """One use of a reader ends; with the last of them a pinned one is dropped."""
        with self._lock:
            entry = self._readers.get(shard)
            if entry is None or not entry.count:
                return
            entry.count -= 1
            if entry.count:
                return
            if entry.unpin is None:
                self._idle_of(entry)[shard] = None
                return
            dropped = self._drop(shard)
        _end(dropped)

    def evict_if_idle(self, shard: int) -> bool:
        """Drop a reader, so that its file can go; False when it is in use."""
        with self._lock:
            entry = self._readers.get(shard)
            if entry is None:
                return True
            if entry.count:
                return False
            dropped = self._drop(shard)
        _end(dropped)
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
            return len(self._readers), len(self._readers) - idle

    def close(self) -> None:
        """Drop all readers."""
        with self._lock:
            dropped = [entry for shard in list(self._readers) for entry in self._drop(shard)]
        _end(dropped)

    def _use(self, shard: int, entry: OpenReader) -> None:
        entry.count += 1
        self._idle_of(entry).pop(shard, None)

    def _idle_of(self, entry: OpenReader) -> OrderedDict[int, None]:
        return self._idle_memory if entry.in_memory else self._idle_files

    def drop_idle(self) -> bool:
        """Drop the reader of files that was not used for longest; False when all are in use."""
        with self._lock:
            dropped = self._drop(next(iter(self._idle_files))) if self._idle_files else []
        _end(dropped)
        return bool(dropped)

    def _trim(self) -> None:
        """Drop those that were not used for longest, over what may stay open."""
        while True:
            with self._lock:
                if not self._idle_memory or self._memory <= IN_MEMORY:
                    break
                dropped = self._drop(next(iter(self._idle_memory)))
            _end(dropped)
        while len(self._readers) > self._max_open and self.drop_idle():
            continue
        make_room(self)

    def _drop(self, shard: int) -> list[OpenReader]:
        entry = self._readers.pop(shard)
        self._memory -= entry.in_memory
        self._idle_of(entry).pop(shard, None)
        self.open.pop(shard, None)
        return [entry]


def _end(entries: list[OpenReader]) -> None:
    """Close and unpin outside of the lock: the ledger has one too, whose owners ask us things."""
    for entry in entries:
        # At once, and not when the garbage collector comes by: a map keeps its file on the disk.
        entry.reader.close()
        if entry.unpin is not None:
            entry.unpin()
