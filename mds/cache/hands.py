"""The readers that a process has open, and how many have each in hand."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mds.readers import Reader

Unpin = Callable[[], None]

MAX_OPEN = 4096  # the kernel allows some 65,000 maps a process
IN_MEMORY = 64 << 20  # bytes of whole shards kept in memory that nobody has in hand


@dataclasses.dataclass(slots=True)
class Held:
    """An open reader."""

    reader: Reader
    unpin: Unpin | None = None  # what to call when nobody has it in hand
    in_memory: int = 0  # bytes of it that are in this process's memory
    count: int = 0


class Hands:
    """Open readers by shard. Those that are not pinned stay open, up to a bound."""

    def __init__(self) -> None:
        #: Readers that may be used without holding them, while they are in here.
        self.open: dict[int, Reader] = {}
        self._held: OrderedDict[int, Held] = OrderedDict()
        self._memory = 0
        self._lock = threading.Lock()

    def __contains__(self, shard: int) -> bool:
        return shard in self._held

    def take(self, shard: int) -> Reader | None:
        """An open reader, once more in hand; None when it is not open."""
        with self._lock:
            held = self._held.get(shard)
            if held is None:
                return None
            held.count += 1
            return held.reader

    def add(self, shard: int, held: Held) -> Reader:
        """Take an opened reader in hand, or the one of another thread that was faster."""
        gone: list[Held] = []
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
            kept.count += 1
            gone += self._trim()
        _end(gone)
        return kept.reader

    def give_back(self, shard: int) -> None:
        """One less has it in hand; who was pinned is let go when nobody has."""
        with self._lock:
            held = self._held.get(shard)
            if held is None or not held.count:
                return
            held.count -= 1
            if held.count:
                return
            if held.unpin is None:
                self._held.move_to_end(shard)
                return
            gone = self._drop(shard)
        _end(gone)

    def let_go(self, shard: int) -> bool:
        """Drop a reader, so that its file can go; False when somebody has it in hand."""
        with self._lock:
            held = self._held.get(shard)
            if held is None:
                return True
            if held.count:
                return False
            gone = self._drop(shard)
        _end(gone)
        return True

    def counts(self) -> tuple[int, int]:
        """How many are open, and how many of them in hand."""
        with self._lock:
            return len(self._held), sum(held.count > 0 for held in self._held.values())

    def close(self) -> None:
        """Drop all readers."""
        with self._lock:
            gone = [held for shard in list(self._held) for held in self._drop(shard)]
        _end(gone)

    def _trim(self) -> list[Held]:
        """Drop the oldest readers that nobody has in hand, over what may stay open."""
        # An eighth at a time, so that most openings need not look for what to drop.
        if len(self._held) <= MAX_OPEN + MAX_OPEN // 8 and self._memory <= IN_MEMORY:
            return []
        gone = []
        for shard in [shard for shard, held in self._held.items() if not held.count]:
            is_over = self._memory > IN_MEMORY and self._held[shard].in_memory
            if len(self._held) > MAX_OPEN or is_over:
                gone += self._drop(shard)
        return gone

    def _drop(self, shard: int) -> list[Held]:
        held = self._held.pop(shard)
        self._memory -= held.in_memory
        self.open.pop(shard, None)
        return [held]


def _end(gone: list[Held]) -> None:
    """Close and unpin outside of the lock: the ledger has one too, whose owners ask us things."""
    for held in gone:
        # At once, and not when the garbage collector comes by: a map keeps its file on the disk.
        held.reader.close()
        if held.unpin is not None:
            held.unpin()
