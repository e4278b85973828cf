"""Every decision of the cache, as pure functions of numbers: no clock, no disk, no lock.

- Which shards are evicted: `eviction_order`, `shares_of_others`, `victims`.
- Whether a shard is fetched whole or only some of its rows: `is_worth`, `pays`, `range_cost`.
- How a limit is divided: `least_limit`, `share`, `window_sizes`.
- What a limit costs: `working_set`, `lru_bytes`.

Eviction follows Belady's rule: evict the shard that is needed last, and only for one that is needed
earlier. Where single rows can be fetched by range, a whole shard must save more than it costs:

    size + bytes of victims that must be fetched again <= rows * (row size + cost of a request)

``rows`` are those needed before the first victim is needed again. `mds._cache.budget` applies these
decisions under the locks of the cache folders.
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
NOW = -1.0  # earlier than every time of an order

#: Cost of one more request, in bytes that could be transferred in its time.
REQUEST = 8 << 10

#: Bytes of the headers of a request and its response. Ranges with gaps up to this size are
#: merged even if the bytes between them are read separately at another time.
HEADERS = 512

#: Shards up to this size in bytes are fetched completely when some of their rows are needed.
SMALL_SHARD = 2 * REQUEST

#: Most bytes of rows that a window may hold in memory.
ROWS_IN_MEMORY = 32 << 20

MIN_WINDOW = 32  # ids of the first window under a limit, so that the first sample arrives early
MAX_WINDOW = 4096  # ids of a window under a limit


# ---------------------------------------------------------------------- eviction


class Resident(NamedTuple):
    """A whole shard in the cache that is not in use."""

    shard: int
    size: int  # bytes
    next_use: float = NEVER  # in any unit of time that all residents share


def eviction_order(
    next_uses: npt.NDArray[np.float64],
    last_uses: npt.NDArray[np.float64],
    is_done: npt.NDArray[np.bool_],
) -> npt.NDArray[np.int64]:
    """Return the indices of residents in the order of eviction: the one needed last comes first.

    Among residents with equal next uses, the one that was used longest ago comes first (LRU): all
    readers that need it now have read it. But among those that this epoch does not need any more,
    the one that was used last comes first, so that the same shards stay from epoch to epoch.

    Args:
        next_uses: Time at which each resident is needed next, or `NEVER`, shape (n,).
        last_uses: Seconds since 1970 at which each was last used, shape (n,).
        is_done: Mask of the residents that this epoch does not need any more, shape (n,).
    """
    is_done = is_done & (next_uses == NEVER)
    # `lexsort` sorts by its last key first: latest next use, then shards that are done, then last
    # use (newest first among those that are done, else oldest first).
    return np.lexsort((np.where(is_done, -last_uses, last_uses), ~is_done, -next_uses))


def shares_of_others(
    teams: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    last_uses: npt.NDArray[np.float64],
    other_teams: Sequence[int],
    share: int,
) -> npt.NDArray[np.bool_]:
    """Return a mask of the residents to keep for other jobs, up to ``share`` bytes for each.

    A team is the set of readers of one order. When other teams need their shards next is unknown,
    so only the job that fetched a shard evicts it. If a team has more than its share, the shards
    that it used longest ago are free for all.

    Args:
        teams: Number of the team that fetched each resident, shape (n,).
        sizes: Bytes of each resident, shape (n,).
        last_uses: Seconds since 1970 at which each was last used, shape (n,).
        other_teams: Numbers of the other teams.
        share: Bytes of one team.
    """
    is_kept = np.zeros(len(teams), np.bool_)
    for team in other_teams:
        of_team = np.flatnonzero(teams == team)
        newest_first = of_team[np.argsort(-last_uses[of_team], kind="stable")]
        # Keep those used last, as long as the sum of their bytes is within the share.
        is_kept[newest_first[np.cumsum(sizes[newest_first]) <= share]] = True
    return is_kept


def victims(missing: int, residents: Sequence[Resident], needed_at: float) -> list[Resident] | None:
    """Choose the residents to evict for ``missing`` bytes that are needed at time ``needed_at``.

    ``residents`` are in the order of eviction. Returns None if those needed later than
    ``needed_at`` hold fewer bytes: then nothing should be evicted at all.
    """
    evicted: list[Resident] = []
    for resident in residents:
        if missing <= 0:
            break
        if resident.next_use > needed_at:
            evicted.append(resident)
            missing -= resident.size
    return evicted if missing <= 0 else None


def first_use(residents: Sequence[Resident]) -> float:
    """Return the time at which the first of some residents is needed, or `NEVER`."""
    return min((resident.next_use for resident in residents), default=NEVER)


# ---------------------------------------------------------------------- whole shards or rows


def is_worth(size: int, rows: int, row_size: float, victims: Sequence[Resident] = ()) -> bool:
    """Whether fetching a whole shard costs no more than fetching its needed rows by range.

    Args:
        size: Bytes of the shard.
        rows: Number of rows that are needed before the first victim is needed again.
        row_size: Mean bytes of a row.
        victims: Residents that would be evicted for the shard.
    """
    refetch = sum(victim.size for victim in victims if victim.next_use < NEVER)
    return pays(size, range_cost(rows, row_size), refetch)


def pays(size: int, range_cost: int, refetch: int) -> bool:
    """Whether a whole shard of ``size`` bytes costs no more than ranges of ``range_cost`` bytes.

    ``refetch`` is the number of bytes of victims that must be fetched again later.
    """
    return size + refetch <= range_cost


def range_cost(rows: int, row_size: float) -> int:
    """Return the cost, in bytes, of fetching ``rows`` scattered rows by range."""
    return int(rows * (row_size + REQUEST))


# ---------------------------------------------------------------------- shares of a limit


def least_limit(control: int, largest: int) -> int:
    """Return the smallest allowed ``cache_limit``: space for a shard in use and for the next.

    ``control`` is the number of bytes of indexes and ledgers, ``largest`` that of the largest
    shard.
    """
    return control + 2 * largest


def share(limit: int, processes: int) -> int:
    """Return the bytes that each of ``processes`` may have in use, and as many in transfer.

    An eighth of the limit is divided for shards in use, and another eighth for transfers. Three
    quarters are left for shards that are kept for later.
    """
    return limit // (8 * max(processes, 1))


def window_sizes(row_size: int, room: int, processes: int) -> tuple[int, int]:
    """Return a small and a large size of windows, in ids.

    A large window fills the memory for rows, of which a process holds two windows at a time. In a
    small one, the rows of the windows of all processes take 1/32 of ``room`` (bytes of the cache),
    so that their shards, which are larger, are likely to fit. ``row_size`` is the mean bytes of a
    row.
    """
    large = max(MIN_WINDOW, min(MAX_WINDOW, ROWS_IN_MEMORY // (2 * row_size)))
    return max(MIN_WINDOW, min(large, room // (32 * processes * row_size))), large


# ---------------------------------------------------------------------- cost of a limit


def working_set(shards: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> int:
    """Return the most bytes of shards that are in use at one time in an order.

    A shard is in use from its first to its last read.

    Args:
        shards: The shard that is read at each position, shape (n,).
        sizes: Bytes of each shard, shape (all shards,).

    >>> working_set(np.array([0, 1, 0, 2]), np.array([10, 20, 40]))
    40
    """
    # Add the size of a shard at its first position, subtract it after its last one, and sum up.
    used, first = np.unique(shards, return_index=True)
    last = len(shards) - 1 - np.unique(shards[::-1], return_index=True)[1]
    change = np.zeros(len(shards) + 1, np.int64)
    np.add.at(change, first, sizes[used])
    np.add.at(change, last + 1, -sizes[used])
    return int(np.cumsum(change).max(initial=0))


def lru_bytes(rounds: Iterable[Iterable[int]], sizes: Sizes, capacity: int) -> int:
    """Return the bytes fetched if whole shards are kept by last use (LRU).

    Args:
        rounds: Distinct shards that are needed in each stretch of an order.
        sizes: Bytes of each shard.
        capacity: Bytes that the cache holds.
    """
    resident_sizes: OrderedDict[int, int] = OrderedDict()
    used = fetched = 0
    for shards in rounds:
        for shard in shards:
            if shard in resident_sizes:
                resident_sizes.move_to_end(shard)
                continue
            resident_sizes[shard] = size = int(sizes[shard])
            fetched += size
            used += size
            while used > capacity and len(resident_sizes) > 1:  # the new shard stays in any case
                used -= resident_sizes.popitem(last=False)[1]
    return fetched
