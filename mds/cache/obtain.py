"""How one shard of a window is got under a limit: whole where that is best, else just its rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mds.cache import policy
from mds.cache.gate import Gate

if TYPE_CHECKING:
    from mds.cache.foresight import Foresight
    from mds.cache.runtime import Runtime
    from mds.readers import Reader


@dataclass(frozen=True, slots=True)
class Need:
    """A shard of a window, which is of the ids from ``start`` to ``stop``, and the rows needed."""

    shard: int
    rows: list[int]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Obtained:
    """A reader for a need, and what has to be given back after it."""

    shard: int
    reader: Reader
    is_held: bool = False
    is_pinned: bool = False


class Obtainer:
    """Gets what windows need, within this process's share of the limit."""

    def __init__(self, runtime: Runtime, sight: Foresight) -> None:
        self._runtime, self._sight = runtime, sight
        self._pins = _Pins(self._share)
        self._gate = Gate(self._share)
        #: Whether there is so much room that what windows read may stay mapped until they end;
        #: where it is scarce rows are copied, so that a shard can go as soon as all have theirs.
        self.may_pin = False

    def obtain(self, need: Need, is_early: bool) -> Obtained | None:
        """A reader that has the rows; None when it ``is_early`` and better tried again in time.

        That is so for a compressed shard that finds no room while what it would have to go for is
        in use: when its window begins, that may be used up.
        """
        runtime, shard = self._runtime, need.shard
        if not runtime.is_cacheable(shard):
            # The user's own file: nothing to fetch, to pin or to evict.
            return Obtained(shard, runtime.hold(shard), is_held=True)
        is_pinned = self.may_pin and self._pins.add(shard, int(runtime.catalog.sizes[shard]))
        try:
            reader = runtime.hold_local(shard)
            if reader is None and self._fetch(need):
                reader = runtime.hold_local(shard)
        except BaseException:
            if is_pinned:
                self._pins.remove(shard)
            raise
        if reader is not None and is_pinned:
            return Obtained(shard, reader, is_held=True, is_pinned=True)
        if is_pinned:
            self._pins.remove(shard)
        if reader is None:
            if is_early and not runtime.can_range(shard):
                return None
            return Obtained(shard, runtime.rows(shard, need.rows))
        try:
            return Obtained(shard, runtime.copied(shard, reader, need.rows))
        finally:
            runtime.release(shard)

    def give_back(self, obtained: Obtained) -> None:
        """The window is used up."""
        if obtained.is_held:
            self._runtime.release(obtained.shard)
        if obtained.is_pinned:
            self._pins.remove(obtained.shard)

    def _share(self) -> int:
        """The bytes on the disk that this process may have in hand, or under way."""
        return policy.share(self._runtime.limit or 0, self._runtime.node.processes)

    def _fetch(self, need: Need) -> bool:
        """Fetch a whole shard if there is or can be room and it is worth it."""
        sight, runtime, shard = self._sight, self._runtime, need.shard
        size = int(runtime.catalog.sizes[shard])
        again = sight.next_after(shard, need.stop)
        if not runtime.can_range(shard):
            # It has to come whole, in whatever way. In the cache others of the node find it now, or
            # else whoever needs it again.
            if sight.is_shared(shard, len(need.rows), need.stop, runtime.node.processes):
                again = sight.next_after(shard, need.start)
            with self._gate.passing(size):  # or those under way would crowd each other out
                return runtime.fetch(shard, again)
        row_size = runtime.catalog.row_size(shard)
        others = 1 if sight.is_whole else runtime.node.processes

        def saved(until: float) -> int:
            """Bytes of the ranges that a whole shard spares until a time."""
            ahead = max(sight.rows_before(shard, until) * others, len(need.rows))
            return policy.range_cost(ahead, row_size)

        def is_worth(victims: Sequence[policy.Resident]) -> bool:
            until = min((victim.next_use for victim in victims), default=policy.NEVER)
            refetch = sum(v.size for v in victims if v.next_use < policy.NEVER)
            return policy.pays(size, saved(until), refetch)

        return policy.pays(size, saved(policy.NEVER), 0) and runtime.fetch(shard, again, is_worth)


class _Pins:
    """The shards that the windows of this process have pinned, within its share of the limit."""

    def __init__(self, share: Callable[[], int]) -> None:
        self._share = share
        self._counts: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._used = 0
        self._lock = threading.Lock()

    def add(self, shard: int, size: int) -> bool:
        """Count a pin, if there is room for the shard or nothing else is pinned."""
        with self._lock:
            count = self._counts.get(shard, 0)
            if not count:
                if self._counts and self._used + size > self._share():
                    return False
                self._used += size
                self._sizes[shard] = size
            self._counts[shard] = count + 1
            return True

    def remove(self, shard: int) -> None:
        """Take a pin away."""
        with self._lock:
            self._counts[shard] -= 1
            if not self._counts[shard]:
                del self._counts[shard]
                self._used -= self._sizes.pop(shard)
