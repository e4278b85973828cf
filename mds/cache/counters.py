"""What a process did with its cache, as numbers that only grow."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any


@dataclasses.dataclass
class Counters:
    """Counts of one process since it first used its cache. Bytes, seconds, or times."""

    fetched_shards: int = 0
    fetched_bytes: int = 0
    ranged_reads: int = 0
    ranged_bytes: int = 0
    hits: int = 0  # shards that were there when they were asked for
    misses: int = 0
    in_memory_shards: int = 0  # for want of room
    replaced_files: int = 0  # damaged, or of another dataset
    retries: int = 0
    evicted_shards: int = 0
    evicted_bytes: int = 0
    waits: int = 0
    waited_seconds: float = 0.0
    longest_wait: float = 0.0
    longest_wait_for: str = ""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def add(self, **amounts: float) -> None:
        """Add to several counts at once."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def waited(self, seconds: float, what: str) -> None:
        """The consumer waited so long for something."""
        with self._lock:
            self.waits += 1
            self.waited_seconds += seconds
            if seconds > self.longest_wait:
                self.longest_wait, self.longest_wait_for = seconds, what

    def as_dict(self) -> dict[str, Any]:
        """All counts by name."""
        with self._lock:
            return dataclasses.asdict(self)
