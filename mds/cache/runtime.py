"""The cache as one process has it: open folders, open readers, and work under way.

A shard is opened by the first thread that asks; others wait for that thread. It is pinned as long
as somebody has it in hand, if there is a limit; without one nobody evicts, and readers stay open
in thousands, since a mapped file costs no descriptor.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache import policy
from mds.cache.accounts import open_account, unwritable
from mds.cache.book import FOREIGN, PRESENT
from mds.cache.bring import Bringer
from mds.cache.budget import Account, Budget
from mds.cache.catalog import Catalog
from mds.cache.counters import Counters
from mds.cache.fetch import Fetcher
from mds.cache.gate import Gate
from mds.cache.hands import Hands, Held
from mds.cache.node import Node
from mds.cache.places import Place, check_file
from mds.cache.pool import Pool
from mds.cache.rows import RangeReader, memory_reader
from mds.cache.scattered import Scattered
from mds.errors import NotFoundError
from mds.events import Waited, emit
from mds.readers import open_reader, open_sparse
from mds.units import format_bytes

log = logging.getLogger("mds.cache")

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.index import ShardInfo
    from mds.readers import Choice, Reader

    Worth = Callable[[Sequence[policy.Resident]], bool]

WIRES = 16  # ranges under way at once
SLOW = 5.0  # seconds that a reader may wait without a word
PASSING = 256 << 20  # bytes of whole shards under way through memory
_OPENINGS = 8  # others may evict a shard between our fetch and our look


class Runtime:
    """Everything of a ShardCache that belongs to one process."""

    def __init__(
        self,
        places: Sequence[Place],
        limit: int | None,
        allow_unsafe_types: bool,
        columns: Choice,
    ) -> None:
        self.catalog = Catalog(places)
        self.limit = limit
        self.counters = Counters()
        self.hands = Hands()
        self.budget = Budget(limit, self.hands)
        self.node = Node(self.budget)
        self.fetchers = [Fetcher(place, self.counters) for place in places]
        self._unsafe, self._columns = allow_unsafe_types, columns
        self._bringer = Bringer(self.budget, self.fetchers, self.counters)
        self._lock = threading.RLock()
        self._accounts: dict[int, Account | None] = {}
        self._opening: dict[int, Future[None]] = {}
        self._seen: set[int] = set()  # shards of the user's own whose digest was right
        self._gate = Gate(lambda: PASSING)
        self._wires = Pool(WIRES, "mds-range")
        self._ranges = RangeReader(self._wires)
        self._awaited: int | None = None
        self._warned = -10 * SLOW
        self.is_announced = False
        self.scattered = Scattered(self)
        for place in places if limit is not None else ():
            if place.home is None:
                self.account(place)

    # ------------------------------------------------------------------ folders

    def account(self, place: Place) -> Account | None:
        """The ledger of a place, opened when first needed; None where we cannot write."""
        with self._lock:
            if place.number not in self._accounts:
                account = open_account(place)
                self._accounts[place.number] = account
                if account is not None:
                    self.budget.add(account)
            return self._accounts[place.number]

    def is_local(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which shards need no fetching, as far as the books say; cheap for thousands."""
        out = np.zeros(len(shards), np.bool_)
        for place, mine, numbers in self.catalog.groups(shards):
            if place.home is not None:
                out[mine] = place.index.zip_size[numbers] == 0
                continue
            account = self.account(place)
            if account is not None:
                state = account.ledger.refresh()["state"][numbers]
                out[mine] = (state == PRESENT) | (state == FOREIGN)
        return out

    @property
    def is_bounded(self) -> bool:
        """Whether anything may have to be evicted."""
        return self.limit is not None and self.catalog.is_cached

    @property
    def control_bytes(self) -> int:
        """Bytes in the cache folders that are no shards."""
        return sum(account.ledger.size for account in self.budget.accounts)

    def is_cacheable(self, shard: int) -> bool:
        """Whether a shard is not simply the user's own file."""
        place, number = self.catalog.place_of(shard)
        return self._home_of(place, place.index.shard(number)) is None

    def is_far(self, shard: int) -> bool:
        """Whether a shard is behind a network."""
        return self.fetchers[self.catalog.place_of(shard)[0].number].is_far

    def can_range(self, shard: int) -> bool:
        """Whether rows of a shard can be fetched by themselves, and nobody asked for digests."""
        place, number = self.catalog.place_of(shard)
        return not (place.check or place.home is not None or place.index.zip_size[number])

    # ------------------------------------------------------------------ whole shards

    def hold(self, shard: int) -> Reader:
        """An open reader of a whole shard, fetched if need be; `release` it as often."""
        while True:
            with self._lock:
                reader = self.hands.take(shard)
                if reader is not None:
                    return reader
                opening = self._opening.get(shard)
                if opening is None:
                    mine = self._opening[shard] = Future()
                    break
            opening.result()  # raises what the opener met
        try:
            held = self._open(shard)
        except BaseException as error:
            with self._lock:
                del self._opening[shard]
            mine.set_exception(error)
            raise
        with self._lock:
            reader = self.hands.add(shard, held)
            del self._opening[shard]
        mine.set_result(None)
        return reader

    def hold_local(self, shard: int) -> Reader | None:
        """`hold` a shard that is in the cache; None when it is not, or is just being evicted."""
        reader = self.hands.take(shard)
        if reader is not None:
            return reader
        place, number = self.catalog.place_of(shard)
        account = self.account(place)
        if account is None:
            return None
        held = self._open_cached(account, number, place.index.shard(number))
        if held is None:
            return None
        self.counters.add(hits=1)
        return self.hands.add(shard, held)

    def release(self, shard: int) -> None:
        """Give a held shard back."""
        self.hands.give_back(shard)

    def fetch(
        self, shard: int, needed_at: float = policy.NOW, is_worth: Worth = lambda _: True
    ) -> bool:
        """Have a shard on the disk; False when there is no room for it."""
        place, number = self.catalog.place_of(shard)
        info = place.index.shard(number)
        if self._home_of(place, info) is not None:
            return True
        account = self.account(place)
        if account is None:
            return False
        if self._bringer.is_ready(account, number, info):
            return True
        return self._bringer.bring(account, number, info, needed_at, is_worth)

    def fetch_ahead(self, shard: int) -> None:
        """Have a shard on its way to the disk, if not by us then by another process."""
        place, number = self.catalog.place_of(shard)
        info = place.index.shard(number)
        account = self.account(place) if self._home_of(place, info) is None else None
        if account is not None and not self._bringer.is_ready(account, number, info):
            self._bringer.bring(account, number, info, is_ahead=True)

    def _open(self, shard: int) -> Held:
        place, number = self.catalog.place_of(shard)
        info = place.index.shard(number)
        home = self._home_of(place, info)
        if home is not None:
            self._check_home(place, shard, info, home)
            self.counters.add(hits=1)
            return Held(self._reader(home, info))
        account = self.account(place)
        if account is None:
            return self._open_unwritable(place, info)
        for attempt in range(_OPENINGS):
            held = self._open_cached(account, number, info)
            if held is not None:
                self.counters.add(hits=not attempt, misses=bool(attempt))
                return held
            if not self._bringer.bring(account, number, info):
                break
        return self._open_in_memory(place, info)

    def _open_cached(self, account: Account, number: int, info: ShardInfo) -> Held | None:
        """A reader of a shard in the cache folder, pinned if there is a limit; None without it."""
        ledger = account.ledger
        is_limited = self.limit is not None
        if is_limited and not ledger.pin(number):
            return None
        reader = None
        try:
            if self._bringer.is_ready(account, number, info):
                reader = self._reader(account.place.folder, info)
        except NotFoundError:
            reader = None  # evicted by a job with a limit, just now
        finally:
            if is_limited and reader is None:
                ledger.unpin(number)
        if reader is None:
            return None
        ledger.touch(number)
        return Held(reader, (lambda: ledger.unpin(number)) if is_limited else None)

    def _open_in_memory(self, place: Place, info: ShardInfo) -> Held:
        fetcher = self.fetchers[place.number]
        with self._gate.passing(info.raw.size):
            parts, came = fetcher.in_memory(info)
        self.counters.add(in_memory_shards=1, fetched_bytes=came)
        reader = memory_reader(info, parts, fetcher.url(info.raw), self._columns)
        return Held(reader, in_memory=sum(map(len, parts)))

    def _open_unwritable(self, place: Place, info: ShardInfo) -> Held:
        if place.home is not None:
            return self._open_in_memory(place, info)
        if place.folder_of(info) is None:
            raise unwritable(place)
        return Held(self._reader(place.folder, info))

    def _reader(self, folder: str, info: ShardInfo) -> Reader:
        return open_reader(folder, info, allow_unsafe_types=self._unsafe, columns=self._columns)

    def _home_of(self, place: Place, info: ShardInfo) -> str | None:
        """The user's own folder, if a shard is read there."""
        if place.home is None or info.zip is None or place.has_raw(info):
            # What is missing or broken there is reported by the reader.
            return place.home
        return None

    def _check_home(self, place: Place, shard: int, info: ShardInfo, home: str) -> None:
        if not place.check or shard in self._seen:
            return
        for raw, _ in info.files:
            path = place.path(raw, home)
            check_file(raw, path, place.check, path)
        self._seen.add(shard)

    # ------------------------------------------------------------------ some rows

    def rows(self, shard: int, rows: Sequence[int]) -> Reader:
        """A reader of some rows of a shard that is not in the cache."""
        place, number = self.catalog.place_of(shard)
        info, fetcher = place.index.shard(number), self.fetchers[place.number]
        where = fetcher.url(info.raw)
        if self.can_range(shard):
            samples, ranges, came = self._ranges.read(fetcher, shard, info, rows)
            self.counters.add(ranged_reads=ranges, ranged_bytes=came)
        else:
            with self._gate.passing(info.raw.size):
                parts, came = fetcher.in_memory(info)
                whole = memory_reader(info, parts, where, self._columns)
                samples = {row: bytes(whole.sample_bytes(row)) for row in sorted(set(rows))}
            self.counters.add(in_memory_shards=1, fetched_bytes=came)
        return self._sparse(info, samples, where)

    def copied(self, shard: int, reader: Reader, rows: Sequence[int]) -> Reader:
        """A reader of some rows alone of an open shard, which need not stay open for it."""
        samples = {row: bytes(reader.sample_bytes(row)) for row in sorted(set(rows))}
        return self._sparse(self.catalog.info(shard), samples, reader.where)

    def _sparse(self, info: ShardInfo, samples: dict[int, bytes], where: str) -> Reader:
        return open_sparse(
            info, samples, where, allow_unsafe_types=self._unsafe, columns=self._columns
        )

    # ------------------------------------------------------------------ care

    @contextlib.contextmanager
    def waiting_for(self, shard: int) -> Iterator[None]:
        """Note how long the consumer waits for a shard."""
        started = time.monotonic()
        self._awaited = shard
        try:
            yield
        finally:
            self._awaited = None
            seconds = time.monotonic() - started
            name = self.catalog.info(shard).raw.basename
            self.counters.waited(seconds, name)
            emit(Waited(shard, seconds))
            self._warn_if_slow(seconds, shard, name)

    def _warn_if_slow(self, seconds: float, shard: int, name: str) -> None:
        now = time.monotonic()
        if seconds < SLOW or now < self._warned + 10 * SLOW:
            return
        from mds.storage import redact

        self._warned = now
        place, number = self.catalog.place_of(shard)
        size = int(place.index.zip_size[number] or place.index.raw_size[number])
        counts = self.counters
        log.warning(
            "The reader waited %.1f s for %s (%s from %s); so far %d shards and %d ranges came, "
            "%d requests were tried again, %d shards were evicted, %d read in memory.",
            seconds,
            name,
            format_bytes(size),
            redact(place.remote),
            counts.fetched_shards,
            counts.ranged_reads,
            counts.retries,
            self.budget.evicted,
            counts.in_memory_shards,
        )

    def usage(self) -> int:
        """Bytes in the cache folders, those that are being fetched included."""
        self._open_accounts()
        return self.budget.used

    def evict(self, shard: int) -> bool:
        """Delete the cached files of a shard, if they are ours and nobody has them in hand."""
        place, number = self.catalog.place_of(shard)
        account = None if place.home is not None else self.account(place)
        return account is not None and self.budget.evict(account, number)

    def evict_coldest(self) -> bool:
        """Delete the cached files of the shard that is needed last, as `evict` does."""
        self._open_accounts()
        return self.budget.evict_coldest()

    def _open_accounts(self) -> None:
        for place in self.catalog.places:
            if place.home is None:
                self.account(place)

    def stats(self) -> dict[str, Any]:
        """All counts, and the state of the budget."""
        out = self.counters.as_dict()
        out["evicted_shards"], out["evicted_bytes"] = self.budget.evicted, self.budget.evicted_bytes
        out["used_bytes"], out["limit"] = self.budget.used, self.limit
        out["open_shards"], out["held_shards"] = self.hands.counts()
        with self._lock:
            out["opening_shards"] = sorted(self._opening)
        return out

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""
        self._wires.close()
        self.hands.close()
        with self._lock:
            for account in self._accounts.values():
                if account is not None:
                    account.ledger.close()

    def __repr__(self) -> str:
        with self._lock:
            opening, awaited = len(self._opening), self._awaited
        open_, held = self.hands.counts()
        limit = "no limit" if self.limit is None else format_bytes(self.limit)
        waiting = "" if awaited is None else f", waiting for shard {awaited}"
        return (
            f"{format_bytes(self.budget.used)} of {limit}: {open_} open, {held} in hand, {opening} "
            f"opening{waiting} | {self.counters.fetched_shards} fetched, {self.budget.evicted} "
            f"evicted"
        )
