"""Every decision of the cache, as functions of plain numbers.

Nothing here reads a clock, a disk or a lock: the ledger asks under its lock what must be done and
does it outside. The rule of eviction is Belady's: what is needed last goes first, and only for
something that is needed earlier. Where just the needed samples can be fetched by range, bringing a
whole shard has to pay: the ranges that it saves before something else needs the room must cost more
than it does, and more than fetching its victims again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, SupportsInt


class Sizes(Protocol):
    """Bytes of shards by number: a list or an array."""

    def __getitem__(self, shard: int, /) -> SupportsInt: ...


NEVER = float("inf")
NOW = -1.0  # before every time that a plan knows

#: What one more request costs, in bytes that could have come meanwhile; ranges that are nearer to
#: each other than this are fetched as one.
REQUEST = 8 << 10

#: A window's samples that were fetched by range wait in memory; at most so many bytes a window.
ROWS_IN_MEMORY = 32 << 20


class Resident(NamedTuple):
    """A whole shard in the cache that nobody has in hand."""

    shard: int
    size: int
    next_use: float = NEVER  # any unit of time, as long as all residents use the same


def victims(missing: int, residents: Iterable[Resident], needed_at: float) -> list[Resident] | None:
    """Which residents to evict for ``missing`` bytes that are needed at ``needed_at``.

    Residents come in the order in which they should go. None when those needed later than
    ``needed_at`` do not hold so many bytes: then nothing should be evicted at all.
    """
    chosen: list[Resident] = []
    for resident in residents:
        if missing <= 0:
            break
        if resident.next_use > needed_at:
            chosen.append(resident)
            missing -= resident.size
    return chosen if missing <= 0 else None


def pays(size: int, range_cost: int, refetch: int) -> bool:
    """Whether a whole shard of ``size`` bytes is cheaper than ranges that cost ``range_cost``.

    ``refetch`` is what must be fetched again later because it had to go.
    """
    return size + refetch <= range_cost


def range_cost(rows: int, row_size: float) -> int:
    """What fetching so many scattered rows costs, in bytes."""
    return int(rows * (row_size + REQUEST))


def coalesce(
    spans: Sequence[tuple[int, int]], gap: int = REQUEST, longest: int = 8 << 20
) -> Iterator[tuple[int, int]]:
    """Fewer ranges that cover the half-open ``spans``, which come in rising order.

    Neighbours are joined over gaps of up to ``gap`` bytes, as long as the result stays below
    ``longest``, so that several connections share a long stretch.
    """
    if not spans:
        return
    start, end = spans[0]
    for first, last in spans[1:]:
        if first - end <= gap and last - start <= longest:
            end = max(end, last)
        else:
            yield start, end
            start, end = first, last
    yield start, end


def least_limit(control: int, largest: int) -> int:
    """The smallest ``cache_limit`` that is taken: a shard in use, and room for the next."""
    return control + 2 * largest


def lru_bytes(turns: Iterable[Iterable[int]], sizes: Sizes, capacity: int) -> int:
    """The bytes that come when whole shards are kept by last use, each turn needing some shards."""
    kept: OrderedDict[int, int] = OrderedDict()
    used = came = 0
    for turn in turns:
        for shard in turn:
            if shard in kept:
                kept.move_to_end(shard)
                continue
            kept[shard] = size = int(sizes[shard])
            came += size
            used += size
            while used > capacity and len(kept) > 1:
                used -= kept.popitem(last=False)[1]
    return came


def share(limit: int, processes: int) -> int:
    """The bytes that one of ``processes`` may have in hand, and as many on their way.

    Together they leave half of the limit to what is kept for later.
    """
    return limit // (4 * max(processes, 1))


def threads(processes: int, *, total: int = 48, most: int = 16) -> int:
    """Fetching threads of each of ``processes``, so that the node has about ``total``."""
    return max(2, min(most, total // max(processes, 1)))
