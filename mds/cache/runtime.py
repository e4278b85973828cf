"""The cache as one process has it: open folders, open readers, and work under way.

A shard is opened by the first thread that asks; others wait for that thread. It is pinned as long
as somebody has it in hand, if there is a limit; without one nobody evicts, and readers stay open
in thousands, since a mapped file costs no descriptor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache import policy
from mds.cache.accounts import open_account, unwritable
from mds.cache.bring import Bringer
from mds.cache.budget import Account, Budget
from mds.cache.counters import Counters
from mds.cache.fetch import Fetcher
from mds.cache.ledger import FOREIGN, PRESENT
from mds.cache.places import Place, check_file
from mds.cache.pool import Pool
from mds.cache.rows import RangeReader, memory_reader
from mds.errors import NotFoundError
from mds.events import Waited, emit
from mds.readers import open_reader, open_sparse
from mds.units import format_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.index import ShardInfo
    from mds.readers import Reader

MAX_OPEN = 4096  # the kernel allows some 65,000 maps a process
IN_MEMORY = 64 << 20  # bytes of whole shards kept in memory that nobody has in hand
WIRES = 16  # ranges under way at once
_OPENINGS = 8  # others may evict a shard between our fetch and our look


@dataclasses.dataclass(slots=True)
class Held:
    """An open reader and how many have it in hand."""

    reader: Reader
    account: Account | None = None  # where it is pinned
    in_memory: int = 0  # bytes of it that are in this process's memory
    count: int = 0


class Runtime:
    """Everything of a ShardCache that belongs to one process."""

    def __init__(
        self,
        places: Sequence[Place],
        limit: int | None,
        allow_unsafe_types: bool,
        columns: tuple[str, ...] | None,
    ) -> None:
        self.places = places
        self.limit = limit
        self.counters = Counters()
        self.budget = Budget(limit)
        self.fetchers = [Fetcher(place) for place in places]
        #: Readers that may be used without holding them; they stay good when dropped from here.
        self.open: dict[int, Reader] = {}
        self._starts = np.array([place.first for place in places], np.int64)
        self._unsafe, self._columns = allow_unsafe_types, columns
        self._bringer = Bringer(self.budget, self.fetchers, self.counters)
        self._lock = threading.RLock()
        self._accounts: dict[int, Account | None] = {}
        self._opening: dict[int, Future[None]] = {}
        self._held: OrderedDict[int, Held] = OrderedDict()
        self._memory = 0  # bytes of held shards that are in memory
        self._awaited: int | None = None
        self._spent: dict[int, int] = {}  # bytes of random ranged reads, by shard
        self._seen: set[int] = set()  # shards of the user's own whose digest was right
        self._wires = Pool(WIRES, "mds-range")
        self._ranges = RangeReader(self._wires)
        for place in places if limit is not None else ():
            if place.home is None:
                self.account(place)

    # ------------------------------------------------------------------ where things are

    def place_of(self, shard: int) -> tuple[Place, int]:
        """The place of a shard by its global number, and its number there."""
        place = self.places[int(self._starts.searchsorted(shard, "right")) - 1]
        return place, shard - place.first

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
        whose = self._starts.searchsorted(shards, "right") - 1
        for number in np.unique(whose).tolist():
            place, mine = self.places[number], whose == number
            local = shards[mine] - place.first
            if place.home is not None:
                out[mine] = place.index.zip_size[local] == 0
                continue
            account = self.account(place)
            if account is not None:
                state = account.ledger.entries["state"][local]
                out[mine] = (state == PRESENT) | (state == FOREIGN)
        return out

    # ------------------------------------------------------------------ whole shards

    def hold(self, shard: int) -> Reader:
        """An open reader of a whole shard, fetched if need be; `release` it as often."""
        while True:
            with self._lock:
                held = self._held.get(shard)
                if held is not None:
                    held.count += 1
                    return held.reader
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
            reader = self._keep(shard, held)
            del self._opening[shard]
        mine.set_result(None)
        return reader

    def release(self, shard: int) -> None:
        """Give a held shard back."""
        with self._lock:
            held = self._held.get(shard)
            if held is None:
                return
            held.count = max(held.count - 1, 0)
            if held.count == 0 and held.account is not None:
                self._drop(shard)
            elif held.count == 0:
                self._held.move_to_end(shard)

    def hold_local(self, shard: int) -> Reader | None:
        """`hold` a shard that is in the cache; None when it is not, or is just being evicted."""
        place, number = self.place_of(shard)
        with self._lock:
            if shard in self._held:
                return self.hold(shard)
        account = self.account(place)
        if account is None:
            return self.hold(shard) if place.home is None else None
        held = self._open_cached(account, number, place.index.shard(number))
        if held is None:
            return None
        self.counters.add(hits=1)
        return self._keep(shard, held)

    def _keep(self, shard: int, held: Held) -> Reader:
        """Enter an opened shard, unless another thread was faster."""
        with self._lock:
            other = self._held.get(shard)
            if other is not None:
                if held.account is not None:
                    held.account.ledger.unpin(shard - held.account.place.first)
                held = other
            else:
                self._held[shard] = held
                self._memory += held.in_memory
                if held.account is None and not held.in_memory:
                    self.open[shard] = held.reader
            held.count += 1
            self._trim()
            return held.reader

    def fetch(
        self,
        shard: int,
        needed_at: float = policy.NOW,
        is_worth: Callable[[Sequence[policy.Resident]], bool] = lambda _: True,
    ) -> bool:
        """Have a shard on the disk; False when there is no room for it."""
        place, number = self.place_of(shard)
        info = place.index.shard(number)
        if self._home_of(place, info) is not None:
            return True
        account = self.account(place)
        if account is None:
            return False
        if self._bringer.is_ready(account, number, info):
            return True
        return self._bringer.bring(account, number, info, needed_at, is_worth)

    def _open(self, shard: int) -> Held:
        place, number = self.place_of(shard)
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
        is_limited = self.limit is not None
        if is_limited and not account.ledger.pin(number):
            return None
        reader = None
        try:
            if self._bringer.is_ready(account, number, info):
                reader = self._reader(account.place.folder, info)
        except NotFoundError:
            reader = None  # evicted by a job with a limit, just now
        finally:
            if is_limited and reader is None:
                account.ledger.unpin(number)
        return Held(reader, account if is_limited else None) if reader is not None else None

    def _open_in_memory(self, place: Place, info: ShardInfo) -> Held:
        fetcher = self.fetchers[place.number]
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
        if place.home is None or place.folder_of(info) == place.home:
            return place.home
        # A missing or broken shard of the user's is reported by the reader, unless its compressed
        # form is all that there is meant to be.
        return place.home if info.zip is None or place.has_raw(info) else None

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
        place, number = self.place_of(shard)
        info, fetcher = place.index.shard(number), self.fetchers[place.number]
        where = fetcher.url(info.raw)
        if info.zip is None:
            samples, ranges, came = self._ranges.read(fetcher, shard, info, rows)
            self.counters.add(ranged_reads=ranges, ranged_bytes=came)
        else:
            parts, came = fetcher.in_memory(info)
            self.counters.add(in_memory_shards=1, fetched_bytes=came)
            whole = memory_reader(info, parts, where, self._columns)
            samples = {row: bytes(whole.sample_bytes(row)) for row in sorted(set(rows))}
        return open_sparse(
            info, samples, where, allow_unsafe_types=self._unsafe, columns=self._columns
        )

    def is_far(self, shard: int) -> bool:
        """Whether a shard is behind a network."""
        return self.fetchers[self.place_of(shard)[0].number].is_far

    def can_range(self, shard: int) -> bool:
        """Whether rows of a shard can be fetched by themselves, and nobody asked for digests."""
        place, number = self.place_of(shard)
        return not (place.check or place.home is not None or place.index.zip_size[number])

    # ------------------------------------------------------------------ facts

    @property
    def num_shards(self) -> int:
        """Shards of all places."""
        return sum(map(len, self.places))

    @property
    def is_bounded(self) -> bool:
        """Whether anything may have to be evicted."""
        return self.limit is not None and any(place.is_cached for place in self.places)

    @property
    def processes(self) -> int:
        """How many processes use our cache folders, this one included."""
        counts = [len(account.ledger.processes()) for account in self.budget.accounts]
        return max(counts, default=1)

    @property
    def threads(self) -> int:
        """How many transfers this process has under way at a time."""
        return policy.threads(self.processes)

    @functools.cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each shard in the cache."""
        return np.concatenate([place.sizes() for place in self.places])

    @functools.cached_property
    def mean_row_size(self) -> int:
        """Bytes of a sample, on average."""
        samples = sum(place.index.total_samples for place in self.places)
        raw = sum(int(place.index.raw_size.sum()) for place in self.places)
        return raw // max(samples, 1)

    @property
    def control_bytes(self) -> int:
        """Bytes in the cache folders that are no shards."""
        return sum(account.ledger.size for account in self.budget.accounts)

    def size_of(self, shard: int) -> int:
        """Bytes of a shard in the cache."""
        return int(self.sizes[shard])

    def samples_of(self, shard: int) -> int:
        """Samples of a shard."""
        place, number = self.place_of(shard)
        return int(place.index.samples[number])

    def is_cacheable(self, shard: int) -> bool:
        """Whether a shard is not simply the user's own file."""
        place, number = self.place_of(shard)
        return place.home is None or self._home_of(place, place.index.shard(number)) is None

    @contextlib.contextmanager
    def waiting_for(self, shard: int) -> Iterator[None]:
        """Note how long the consumer waits for a shard."""
        started = time.monotonic()
        with self._lock:
            self._awaited = shard
        try:
            yield
        finally:
            seconds = time.monotonic() - started
            self._awaited = None
            place, number = self.place_of(shard)
            self.counters.waited(seconds, place.index.shard(number).raw.basename)
            emit(Waited(shard, seconds))

    # ------------------------------------------------------------------ random access and care

    def prefers_ranges(self, shard: int, rows: int) -> bool:
        """Whether to fetch some rows alone rather than the whole shard for them."""
        if shard in self._held or not self.can_range(shard):
            return False
        place, number = self.place_of(shard)
        if self.is_local(np.array([shard]))[0]:
            return False
        size, samples = int(place.index.raw_size[number]), int(place.index.samples[number])
        cost = policy.range_cost(rows, size / max(samples, 1))
        with self._lock:
            # Whoever asks again and again will want the rest too.
            spent = self._spent.pop(shard, 0) + cost
            self._spent[shard] = spent
            while len(self._spent) > MAX_OPEN:
                self._spent.pop(next(iter(self._spent)))
        return not policy.pays(size, spent, 0)

    def each(self, shards: Sequence[int], act: Callable[[int], None]) -> None:
        """Call ``act`` for every shard, side by side where there is fetching to do."""
        here = self.is_local(np.array(shards, np.int64)) if shards else np.zeros(0, np.bool_)
        with contextlib.closing(Pool(WIRES, "mds-random")) as pool:
            futures = [
                pool.submit(act, shard)
                for shard, local in zip(shards, here, strict=True)
                if not local
            ]
            for shard, local in zip(shards, here, strict=True):
                if local:
                    act(shard)
            for future in futures:
                future.result()

    def usage(self) -> int:
        """Bytes in the cache folders, those that are being fetched included."""
        for place in self.places:
            if place.home is None:
                self.account(place)
        return self.budget.used

    def evict(self, shard: int) -> bool:
        """Delete the cached files of a shard, if they are ours and nobody has them in hand."""
        place, number = self.place_of(shard)
        account = None if place.home is not None else self.account(place)
        with self._lock:
            held = self._held.get(shard)
            if account is None or (held is not None and held.count):
                return False
            if held is not None:
                self._drop(shard)
        return self.budget.evict(account, number)

    def stats(self) -> dict[str, Any]:
        """All counts, and the state of the budget."""
        out = self.counters.as_dict()
        out["evicted_shards"], out["evicted_bytes"] = self.budget.evicted, self.budget.evicted_bytes
        out["used_bytes"], out["limit"] = self.budget.used, self.limit
        with self._lock:
            out["open_shards"] = len(self._held)
            out["opening_shards"] = sorted(self._opening)
        return out

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""
        self._wires.close()
        with self._lock:
            for shard in list(self._held):
                self._drop(shard)
            for account in self._accounts.values():
                if account is not None:
                    account.ledger.close()

    # ------------------------------------------------------------------ which stay open

    def _trim(self) -> None:
        """Drop the oldest readers that nobody has in hand, over what may stay open."""
        # An eighth at a time, so that most openings need not look for what to drop.
        if len(self._held) <= MAX_OPEN + MAX_OPEN // 8 and self._memory <= IN_MEMORY:
            return
        for shard in [shard for shard, held in self._held.items() if not held.count]:
            is_over = self._memory > IN_MEMORY and self._held[shard].in_memory
            if len(self._held) > MAX_OPEN or is_over:
                self._drop(shard)

    def _drop(self, shard: int) -> None:
        # The reader is not closed: another thread may just be using it. Its map goes with it.
        held = self._held.pop(shard)
        self._memory -= held.in_memory
        self.open.pop(shard, None)
        if held.account is not None:
            held.account.ledger.unpin(shard - held.account.place.first)

    def __repr__(self) -> str:
        with self._lock:
            opening, held = len(self._opening), sum(h.count > 0 for h in self._held.values())
        limit = "no limit" if self.limit is None else format_bytes(self.limit)
        return (
            f"{format_bytes(self.budget.used)} of {limit}: {len(self._held)} open, {held} in hand, "
            f"{opening} opening | {self.counters.fetched_shards} fetched, {self.budget.evicted} "
            f"evicted"
        )
