"""Facts for a diagnosis: a trainer's waits, the settings of its loader, the use of the cache.

Each wait is charged to the phases of making its batch. A batch comes with the seconds that each
phase took (`mds._process.stopwatch`), and a wait is divided among the phases in the same
proportions, because the trainer waits for workers that are busy with them. The time between two
batches is the trainer's own work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from mds._process.stopwatch import PHASES
from mds._words import plural

if TYPE_CHECKING:
    from mds._process.stopwatch import Making

MUCH_IDLE = 0.75  # of `WaitAccount.idle`; two other programs on the same cores make it 0.5


class LoaderSetup(NamedTuple):
    """Settings of a loader.

    ``workers`` is their number in a rank and ``kind`` "processes" or "threads"; ``cores`` is the
    number of cores for each rank of the machine. ``functions`` and ``collate`` are names of the
    caller's code, ``collate`` '' if there is none. ``columns`` holds (name, encoding) of columns.
    """

    workers: int = 0
    kind: str = "processes"
    cores: int = 1
    functions: tuple[str, ...] = ()
    collate: str = ""
    columns: tuple[tuple[str, str], ...] = ()


class CacheUse(NamedTuple):
    """Shards and bytes that a rank fetched.

    Attributes:
        limit: `cache_limit` in bytes, or None.
        total: Size of the dataset on disk in bytes.
        shards: Number of shards of the dataset.
        is_compressed: Whether shards are stored compressed.
        fetches: Number of fetches of whole shards, repeated ones included.
        needed: Estimated number of different shards that have the samples read so far.
        evictions: Number of shards that were evicted or never kept.
        bytes_fetched: Bytes that were fetched.
        ranged_bytes: The part of them that was fetched row by row, for lack of space in the cache.
    """

    limit: int | None = None
    total: int = 0
    shards: int = 1
    is_compressed: bool = False
    fetches: int = 0
    needed: float = 0.0
    evictions: int = 0
    bytes_fetched: int = 0
    ranged_bytes: int = 0

    @property
    def wasted(self) -> float:
        """Share of the fetched shards that were fetched again because they were evicted, 0 to 1."""
        if self.limit is None or not self.fetches:
            return 0.0
        # Each needed shard may be evicted once at no cost, after its last use. Every further
        # eviction means that some shard was fetched again. For example, 30 evictions and 10 needed
        # shards: 20 of the fetches were repeated.
        return min(1.0, max(0.0, self.evictions - self.needed) / self.fetches)

    @property
    def ranged(self) -> float:
        """Share of the fetched bytes that were fetched row by row for lack of room, 0 to 1."""
        if self.limit is None or not self.bytes_fetched:
            return 0.0
        return self.ranged_bytes / self.bytes_fetched


class WaitAccount:
    """Sums of one iteration of a loader, in seconds.

    The trainer requests a batch, waits until it arrives, and works until it requests the next one.
    A batch comes with its `Making`: the seconds of each phase of making it.

    Attributes:
        batches: Number of batches that arrived.
        first: Wait for the first batch, in which workers start.
        waited: Sum of the waits for all later batches.
        worked: Sum of the times from the arrival of a batch to the request of the next one.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.first = self.waited = self.worked = 0.0
        self._charged = [0.0] * len(PHASES)  # seconds waited, by phase
        self._making_seconds = [0.0] * len(PHASES)  # seconds of making the batches, by phase
        self._processor = 0.0  # processor time of making the batches
        self._last = 0.0  # when the last batch arrived

    @property
    def charged(self) -> dict[str, float]:
        """Seconds waited, by the phase of `PHASES` to which they are charged."""
        return _by_phase(self._charged)

    @property
    def making_seconds(self) -> dict[str, float]:
        """Seconds of making the batches, by phase, summed over all workers."""
        return _by_phase(self._making_seconds)

    @property
    def idle(self) -> float:
        """Share of decoding, functions and collating in which the processor did nothing, 0 to 1."""
        elapsed = sum(self.making_seconds[phase] for phase in ("decode", "functions", "collate"))
        return max(0.0, elapsed - self._processor) / elapsed if elapsed > 0.0 else 0.0

    @property
    def cores(self) -> float:
        """Cores that the makers of batches kept busy on average while the trainer ran."""
        elapsed = self.waited + self.worked
        return self._processor / elapsed if elapsed > 0.0 else 0.0

    def add(self, request_time: float, arrival_time: float, making: Making | None) -> None:
        """Record when a batch was requested and when it arrived, in seconds of one clock.

        ``making`` has the seconds of each phase of making it, and the processor time last; it is
        None if the batch was made together with an earlier one.
        """
        self.batches += 1
        if making is not None:
            *phases, processor = making
            pairs = zip(self._making_seconds, phases, strict=True)
            self._making_seconds = [a + b for a, b in pairs]
            self._processor += processor
        if self.batches == 1:
            self.first = arrival_time - request_time
        else:
            self.worked += max(0.0, request_time - self._last)
            self.waited += max(0.0, arrival_time - request_time)
            self._charge(max(0.0, arrival_time - request_time), making)
        self._last = arrival_time

    def _charge(self, wait: float, making: Making | None) -> None:
        """Divide ``wait`` (seconds) among the phases, in proportion to the seconds that each took.

        ``making`` is as in `add`. For example, a wait of 1 s for a batch that took 3 s of decoding
        and 1 s of collating: 0.75 s are charged to decoding and 0.25 s to collating.
        """
        phases = () if making is None else making[:-1]  # without the processor time
        total = sum(phases)
        if total <= 0.0:
            self._charged[-1] += wait  # it was made before: the wait is for sending it ("crossing")
            return
        self._charged = [a + wait * b / total for a, b in zip(self._charged, phases, strict=True)]

    def __repr__(self) -> str:
        return (
            f"<WaitAccount: {plural(self.batches, 'batch')}, {self.waited:.3g} s waited, "
            f"{self.worked:.3g} s at work>"
        )


def _by_phase(seconds: Sequence[float]) -> dict[str, float]:
    """Return sums by phase, none of which is below zero.

    The time of functions is estimated from some samples and subtracted from decoding, whose sum may
    fall below zero. The functions then took that much less: -1 s of decoding and 5 s of functions
    become 0 s and 4 s.
    """
    by_phase = dict(zip(PHASES, seconds, strict=True))
    below_zero = min(by_phase["decode"], 0.0)
    by_phase["decode"] -= below_zero
    by_phase["functions"] += below_zero
    return by_phase
