"""The open readers of a process: reference-counted, with an LRU of those not in use.

A reader in use is never closed. An idle one stays open within three bounds: the number of readers
of files, the number of memory maps of the process (`mds._process.mmaps`), and the bytes of shards
in memory. Opening and closing a reader takes the same time whatever their number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from mds._process.fork_safe import new_lock
from mds._process.mmaps import make_room

if TYPE_CHECKING:
    from mds._readers.base import Reader

Unpin = Callable[[], None]

MAX_OPEN_READERS = 4096  # of files
MAX_IDLE_BYTES = 64 << 20  # bytes of idle shards in memory


class OpenReader:
    """An open reader with its reference count, the attribute ``count``.

    Args:
        reader: Reader of a shard.
        unpin: Function that unpins the shard, called after the reader is closed; None (default):
            it is not pinned.
        in_memory: Bytes of the shard if it is in memory; 0 (default): it is in a file.
    """

    __slots__ = ("count", "in_memory", "reader", "unpin")

    def __init__(self, reader: Reader, unpin: Unpin | None = None, in_memory: int = 0) -> None:
        self.reader, self.unpin, self.in_memory = reader, unpin, in_memory
        self.count = 0


class ReaderPool:
    """Pool of open readers by shard. Thread-safe.

    ``max_open`` (default 4096): idle readers are closed while more readers are open.
    """

    def __init__(self, max_open: int = MAX_OPEN_READERS) -> None:
        #: Readers of files that have no pin, since there is no limit: a fast path for single
        #: samples. They may be used without `acquire`. If that fails because another thread has
        #: closed the reader meanwhile, use `acquire`.
        self.open: dict[int, Reader] = {}
        self._max_open = max_open
        self._readers: dict[int, OpenReader] = {}
        # Idle readers of files and of memory, the last used one at the end.
        self._idle_files: OrderedDict[int, None] = OrderedDict()
        self._idle_memory: OrderedDict[int, None] = OrderedDict()
        self._memory = 0  # bytes of all shards in memory
        self._opening: dict[int, Future[None]] = {}  # done when a thread has opened the shard
        self._lock = new_lock()

    def __contains__(self, shard: int) -> bool:
        return shard in self._readers

    def acquire(self, shard: int, open_shard: Callable[[int], OpenReader]) -> Reader:
        """Return a reader and count one more use; open it with ``open_shard`` if it is not open.

        One thread opens a shard, while others that need it wait. Call `release` after the use.
        """
        while True:
            with self._lock:
                entry = self._readers.get(shard)
                if entry is not None:
                    self._use(shard, entry)
                    return entry.reader
                opening = self._opening.get(shard)
                if opening is None:  # this thread opens it
                    mine = self._opening[shard] = Future()
                    break
            opening.result()  # raises the error of the thread that opens it
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
        """Add an opened reader and count one use; return the reader that is in the pool now.

        If another thread has added one for the shard meanwhile, that one is returned, and ``entry``
        is closed.
        """
        dropped: list[OpenReader] = []
        with self._lock:
            other = self._readers.get(shard)
            if other is None:
                self._readers[shard] = entry
                self._memory += entry.in_memory
                if entry.unpin is None and not entry.in_memory:  # see `open`
                    self.open[shard] = entry.reader
            else:
                dropped.append(entry)
            pooled = other or entry
            self._use(shard, pooled)
        _close_readers(dropped)
        self._trim()
        return pooled.reader

    def release(self, shard: int) -> None:
        """End one use of a reader; after the last use, a pinned one is closed."""
        with self._lock:
            entry = self._readers.get(shard)
            if entry is None or not entry.count:
                return
            entry.count -= 1
            if entry.count:
                return
            if entry.unpin is None:
                self._idle_of(entry)[shard] = None  # it stays open until `_trim`
                return
            dropped = self._drop(shard)
        _close_readers(dropped)

    def evict_if_idle(self, shard: int) -> bool:
        """Close a reader so that its file can be deleted; return False while it is in use."""
        with self._lock:
            entry = self._readers.get(shard)
            if entry is None:
                return True
            if entry.count:
                return False
            dropped = self._drop(shard)
        _close_readers(dropped)
        return True

    @property
    def opening(self) -> list[int]:
        """Shards that threads are opening now."""
        with self._lock:
            return sorted(self._opening)

    def counts(self) -> tuple[int, int]:
        """Return the number of open readers, and how many of them are in use."""
        with self._lock:
            idle = len(self._idle_files) + len(self._idle_memory)
            return len(self._readers), len(self._readers) - idle

    def close(self) -> None:
        """Close all readers."""
        with self._lock:
            dropped = [entry for shard in list(self._readers) for entry in self._drop(shard)]
        _close_readers(dropped)

    def _use(self, shard: int, entry: OpenReader) -> None:
        """Count one more use of a reader, which is not idle then; the caller holds the lock."""
        entry.count += 1
        self._idle_of(entry).pop(shard, None)

    def _idle_of(self, entry: OpenReader) -> OrderedDict[int, None]:
        """Return the idle readers of the same kind as ``entry``: in memory, or of files."""
        return self._idle_memory if entry.in_memory else self._idle_files

    def drop_idle(self) -> bool:
        """Close the idle reader of files that was used longest ago; return False without any."""
        with self._lock:
            dropped = self._drop(next(iter(self._idle_files))) if self._idle_files else []
        _close_readers(dropped)
        return bool(dropped)

    def _trim(self) -> None:
        """Close idle readers, those used longest ago first, until all bounds hold."""
        while True:
            with self._lock:
                if not self._idle_memory or self._memory <= MAX_IDLE_BYTES:
                    break
                dropped = self._drop(next(iter(self._idle_memory)))
            _close_readers(dropped)
        while len(self._readers) > self._max_open and self.drop_idle():
            continue
        make_room(self)

    def _drop(self, shard: int) -> list[OpenReader]:
        """Remove a reader from the pool; return it in a list, to be closed outside of the lock."""
        entry = self._readers.pop(shard)
        self._memory -= entry.in_memory
        self._idle_of(entry).pop(shard, None)
        self.open.pop(shard, None)
        return [entry]


def _close_readers(entries: list[OpenReader]) -> None:
    """Close and unpin readers.

    Without the lock of the pool: threads that hold the lock of a ledger call `evict_if_idle`.
    """
    for entry in entries:
        # Close it now rather than at a garbage collection: a map keeps its file on the disk.
        entry.reader.close()
        if entry.unpin is not None:
            entry.unpin()
