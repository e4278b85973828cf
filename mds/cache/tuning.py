"""The tuning constants of a cache, in one place; the values are right for all but tests."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class CacheTuning:
    """Waiting times and transfer limits of a cache."""

    #: How long a reader may wait for a shard without a word.
    slow_wait_seconds: float = 5.0
    #: How long another process may take for one shard before it is fetched twice.
    peer_timeout_seconds: float = 600.0
    #: How long the lock of a ledger may be held, which takes microseconds.
    lock_timeout_seconds: float = 60.0
    #: How long whole shards let the first rows of an epoch go ahead, at most.
    head_start_seconds: float = 0.5
    max_range_requests: int = 16
    #: Bytes of whole shards under way through memory.
    max_bytes_in_flight: int = 256 << 20
