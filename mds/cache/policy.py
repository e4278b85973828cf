"""Every decision of the cache, as functions of plain numbers.

Nothing here reads a clock, a disk or a lock: the ledger asks under its lock what must be done and
does it outside. The rule of eviction is Belady's: what is needed last goes first, and only for
something that is needed earlier. Where just the needed samples can be fetched by range, bringing a
whole shard has to pay: the ranges that it saves before something else needs the room must cost more
than it does, and more than fetching its victims again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, SupportsInt

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


class Sizes(Protocol):
    """Bytes of shards by number: a list or an array."""

    def __getitem__(self, shard: int, /) -> SupportsInt: ...


NEVER = float("inf")
NOW = -1.0  # before every time that a plan knows

#: Cost of one more request, in bytes that could be transferred in its time.
REQUEST = 8 << 10

#: Bytes of the headers of a request and its answer. Ranges with gaps up to this size are
#: merged even if the bytes between them are read separately at another time.
HEADERS = 512

#: Shards up to this size in bytes are fetched completely when some of their rows are needed.
SMALL_SHARD = 2 * REQUEST

#: Most bytes of a window's samples that were fetched by range and wait in memory.
ROWS_IN_MEMORY = 32 << 20


class Resident(NamedTuple):
    """A whole shard in the cache that is not in use."""

    shard: int
    size: int
    next_use: float = NEVER  # any unit of time, as long as all residents use the same


def eviction_order(
    next_uses: npt.NDArray[np.float64],
    last_uses: npt.NDArray[np.float64],
    is_done: npt.NDArray[np.bool_],
) -> npt.NDArray[np.int64]:
    """Return the indices of residents in the order of eviction: needed last, evicted first.

    Among equals, what was used longest ago goes first, since it was served to all that need it now
    (LRU). But of what this epoch ``is_done`` with, what was used last goes first, so that the same
    part of the dataset stays from epoch to epoch.
    """
    is_done = is_done & (next_uses == NEVER)
    return np.lexsort((np.where(is_done, -last_uses, last_uses), ~is_done, -next_uses))


def shares_of_others(
    teams: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    last_uses: npt.NDArray[np.float64],
    other_teams: Sequence[int],
    share: int,
) -> npt.NDArray[np.bool_]:
    """Return a mask of the residents that belong to ``other_teams``, each within its ``share``.

    What these read next is not known, so what a job fetched is its own to evict. Of one that has
    more than its share, what was used longest ago is free for all.
    """
    is_kept = np.zeros(len(teams), np.bool_)
    for team in other_teams:
        mine = np.flatnonzero(teams == team)
        latest = mine[np.argsort(-last_uses[mine], kind="stable")]
        is_kept[latest[np.cumsum(sizes[latest]) <= share]] = True
    return is_kept


def victims(missing: int, residents: Sequence[Resident], needed_at: float) -> list[Resident] | None:
    """Choose the residents to evict for ``missing`` bytes that are needed at ``needed_at``.

    Residents come in the order in which they should go. None when those needed later than
    ``needed_at`` do not hold so many bytes: then nothing should be evicted at all.
    """
    evicted: list[Resident] = []
    for resident in residents:
        if missing <= 0:
            break
        if resident.next_use > needed_at:
            evicted.append(resident)
            missing -= resident.size
    return evicted if missing <= 0 else None


def pays(size: int, range_cost: int, refetch: int) -> bool:
    """Whether a whole shard of ``size`` bytes is cheaper than ranges that cost ``range_cost``.

    ``refetch`` is what must be fetched again later because it had to go.
    """
    return size + refetch <= range_cost


def first_use(residents: Sequence[Resident]) -> float:
    """When the first of some residents is needed; `NEVER` when none is, as far as is known."""
    return min((resident.next_use for resident in residents), default=NEVER)


def is_worth(size: int, rows: int, row_size: float, victims: Sequence[Resident] = ()) -> bool:
    """Whether a whole shard is cheaper than the ``rows`` that are needed before its victims are."""
    refetch = sum(victim.size for victim in victims if victim.next_use < NEVER)
    return pays(size, range_cost(rows, row_size), refetch)


def range_cost(rows: int, row_size: float) -> int:
    """Return the cost, in bytes, of fetching so many scattered rows."""
    return int(rows * (row_size + REQUEST))


def least_limit(control: int, largest: int) -> int:
    """Return the smallest allowed ``cache_limit``: a shard in use, and room for the next."""
    return control + 2 * largest


def lru_bytes(turns: Iterable[Iterable[int]], sizes: Sizes, capacity: int) -> int:
    """Return the bytes fetched if whole shards are kept by last use, for a sequence of needs."""
    resident_sizes: OrderedDict[int, int] = OrderedDict()
    used = fetched = 0
    for turn in turns:
        for shard in turn:
            if shard in resident_sizes:
                resident_sizes.move_to_end(shard)
                continue
            resident_sizes[shard] = size = int(sizes[shard])
            fetched += size
            used += size
            while used > capacity and len(resident_sizes) > 1:
                used -= resident_sizes.popitem(last=False)[1]
    return fetched


def share(limit: int, processes: int) -> int:
    """Return the bytes that one of ``processes`` may have in use, and as many in transfer.

    Together they leave three quarters of the limit to what is kept for later.
    """
    return limit // (8 * max(processes, 1))
