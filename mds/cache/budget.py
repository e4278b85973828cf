"""One limit over the cache folders of a dataset: room is made before a byte is written.

What goes is decided by `policy`, under the locks of all folders; outside of them files are deleted;
under the locks again their bytes become the newcomer's, so no other process can take the room that
was made. Folders are locked in the order of their names, so datasets that share some cannot
deadlock. Without a limit nothing is decided and only the newcomer's folder is locked.

A folder that already holds more than a new ``cache_limit`` is brought below it when it is opened.
Files that this library did not fetch are never deleted, and neither is what another job uses: that
job may have a larger limit. A warning names what prevents the limit from being met.

Jobs with different limits on one folder each make room down to their own limit before they add a
byte. So the folder never holds more than the largest limit, and the job with a smaller one reads
without keeping what does not fit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from mds.cache import policy
from mds.cache.ledger import PIN_AT
from mds.cache.ledger_file import ABSENT, EVICTING, MANAGED, UNMANAGED, team_mark
from mds.events import Evicted, emit
from mds.process.fork_safe import new_lock
from mds.redaction import get_logger
from mds.storage.locks import lock_within
from mds.units import format_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.counters import Counters
    from mds.cache.open_readers import ReaderPool
    from mds.cache.peers import Peers
    from mds.cache.recovery import OpenFolder


log = get_logger("mds.cache")

_EVICTION_SECONDS = 60.0  # until it is looked whether the evictor lives


class NextUseOracle(Protocol):
    """Oracle of next uses (Belady): when a shard is needed again."""

    def next_use(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """When shards are needed next, `policy.NEVER` when that is not known."""

    def is_done(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return a mask of the shards that this epoch does not need any more."""

    @property
    def team(self) -> int:
        """The readers whose order it knows."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bid:
    """Reasons to evict other shards for a shard: when it is needed, and what it saves.

    ``team``: the readers of the order for which it comes.

    Without ``rows_before`` (how many of its rows are needed before a time, which would come by
    range otherwise) it has to come whole, whatever must go for it.
    """

    needed_at: float = policy.NOW
    row_size: float = 0.0
    rows_before: Callable[[float], int] | None = None
    team: int = 0


#: For a shard that has to come now.
URGENT = Bid()


class _Residents(NamedTuple):
    """Whole shards in the cache folders, and the order in which they should go."""

    folders: npt.NDArray[np.int64]
    shards: npt.NDArray[np.int64]
    next_uses: npt.NDArray[np.float64]
    order: npt.NDArray[np.int64]


class _Victim(NamedTuple):
    """A resident that is locked against all others until it is evicted or released."""

    opened: OpenFolder
    shard: int  # its number in the folder
    resident: policy.Resident
    stamp: int


class Budget:
    """The open folders of a dataset under one limit in bytes, or under none."""

    def __init__(
        self,
        limit: int | None,
        readers: ReaderPool,
        folders: Sequence[OpenFolder],
        counters: Counters,
    ) -> None:
        self.limit = limit
        self._readers = readers
        #: The folders that count, by name; more may be opened.
        self.folders = folders
        #: What each reader of this process knows of the time to come.
        self.oracles: list[NextUseOracle] = []
        self._counters = counters
        self.oracles_lock = new_lock()

    @property
    def used(self) -> int:
        """Bytes of all folders, those that are being fetched included."""
        return sum(opened.ledger.used for opened in self.folders)

    def reserve(self, opened: OpenFolder, shard: int, size: int, bid: Bid = URGENT) -> bool:
        """Enter ``size`` bytes for a shard that is about to be fetched, and evict for it.

        False when there is no room, or when it is worth less than those that would have to go.
        """
        victims = self._enter(opened, shard, size, bid)
        if victims is None:  # perhaps the room is held by the dead
            for each in self.folders:
                each.recover_entries()
            victims = self._enter(opened, shard, size, bid)
        for victim in victims or ():
            self._delete(victim)
        return victims is not None

    def _enter(self, opened: OpenFolder, shard: int, size: int, bid: Bid) -> list[_Victim] | None:
        """Enter the newcomer; what must be deleted before it is written, None without room."""
        while True:
            with self._locked(opened):
                # While a shard is being evicted, its evictor would erase a new entry.
                if not _is_leaving(opened, shard):
                    return self._make_room(opened, shard, size, bid)
            _await_eviction(opened, shard)
            opened.recover_entries()  # the evictor may have died

    def _make_room(
        self, opened: OpenFolder, shard: int, size: int, bid: Bid
    ) -> list[_Victim] | None:
        """Return what `reserve` returns, while the ledgers are being changed already."""
        missing = self._missing(opened, shard, size)
        victims = self._lock_victims(missing, bid, size) if missing > 0 else []
        if missing > 0 and not victims:
            return None
        # From now on the newcomer answers for bytes of those that go, so the room cannot be
        # taken between their deletion and its arrival; the sum stays at the limit. It is entered
        # first: a process that is killed in between leaves a sum that is too large, never one
        # that is smaller than the disk.
        opened.ledger.reserve(shard, size, bid.team)
        for victim in victims:
            part = min(missing, victim.resident.size)
            victim.opened.ledger.entries["size"][victim.shard] -= part
            missing -= part
        return victims

    def evict_for_disk(self, root: str, size: int) -> bool:
        """Evict what is needed last although the limit leaves room: the disk has none."""
        disk = os.statvfs(root)
        return self.evict_coldest(size - disk.f_bavail * disk.f_frsize)

    def evict_coldest(self, missing: int = 1) -> bool:
        """Evict what is needed last and is not in use: so many bytes, one shard at least."""
        with self._locked(None):
            victims = self._lock_victims(max(missing, 1), URGENT)
        for victim in victims:
            self._delete(victim)
        return bool(victims)

    def evict_above_limit(self) -> int:
        """Evict what may go until the limit holds; the bytes that are above it still."""
        if self.limit is None:
            return 0
        with self._locked(None):
            above = self.used - self.limit
            victims = self._lock_until(above, policy.NOW) if above > 0 else []
        for victim in victims:
            self._delete(victim)
        return self.used - self.limit

    def evict(self, opened: OpenFolder, shard: int) -> bool:
        """Evict one shard, if it is ours and not in use."""
        with self._locked(opened):
            entry = opened.ledger.entries[shard]
            if entry["state"] != MANAGED or entry["owner"]:
                return False
            opened.folder.check_inside(opened.folder.index.shard(shard))
            victim = self._try_lock(opened, shard, policy.NEVER)
        return victim is not None and self._delete(victim)

    def _missing(self, opened: OpenFolder, shard: int, size: int) -> int:
        if self.limit is None:
            return 0
        entered = int(opened.ledger.entries["size"][shard])
        return self.used - entered + size - self.limit

    def _lock_victims(self, missing: int, bid: Bid, size: int = 0) -> list[_Victim]:
        """Lock the residents that shall go for a bid; none when they should stay."""
        locked = self._lock_until(missing, bid.needed_at)
        residents = [victim.resident for victim in locked]
        candidates = policy.victims(missing, residents, bid.needed_at)
        if candidates is not None and bid.rows_before is not None:
            rows = bid.rows_before(policy.first_use(candidates))
            if not policy.is_worth(size, rows, bid.row_size, candidates):
                candidates = None
        if candidates is None:
            for victim in locked:
                size_kept = victim.resident.size
                victim.opened.ledger.finish_eviction(victim.shard, MANAGED, size_kept, victim.stamp)
            return []
        return locked

    def _lock_until(self, missing: int, needed_at: float) -> list[_Victim]:
        """Lock those that should go first and are not in use, until they hold so many bytes."""
        victims: list[_Victim] = []
        if not self.folders:
            return victims
        folders, shards, next_uses, order = self._residents(is_urgent=needed_at == policy.NOW)
        for position in order.tolist():  # a few of many
            next_use = float(next_uses[position])
            if missing <= 0 or next_use <= needed_at:
                break
            opened = self.folders[folders[position]]
            shard = int(shards[position]) - opened.folder.first_shard
            victim = self._try_lock(opened, shard, next_use)
            if victim is not None:
                victims.append(victim)
                missing -= victim.resident.size
        return victims

    def _try_lock(self, opened: OpenFolder, shard: int, next_use: float) -> _Victim | None:
        """Lock a resident for eviction; None while it is in use."""
        entry = opened.ledger.entries[shard]
        size, stamp = int(entry["size"]), int(entry["stamp"])
        number = shard + opened.folder.first_shard
        # Without a limit there are no pins; what this process uses stays all the same.
        if not self._readers.evict_if_idle(number) or not opened.ledger.lock_for_eviction(shard):
            return None
        return _Victim(opened, shard, policy.Resident(number, size, next_use), stamp)

    def _residents(self, *, is_urgent: bool) -> _Residents:
        """Return the shards that are ours and complete, in the order of eviction.

        What belongs to other jobs goes last, and only where it ``is_urgent``.
        """
        shards_by_folder = [_whole_shards(opened) for opened in self.folders]
        pairs = list(zip(shards_by_folder, self.folders, strict=True))
        shards = np.concatenate([ids + opened.folder.first_shard for ids, opened in pairs])
        used = np.concatenate([opened.ledger.entries["used"][ids] for ids, opened in pairs])
        folders = np.repeat(
            np.arange(len(shards_by_folder)), [len(ids) for ids in shards_by_folder]
        )
        next_uses = np.full(len(shards), policy.NEVER)
        oracles = list(self.oracles)
        is_done = np.full(len(shards), bool(oracles))
        for oracle in oracles:
            next_uses = np.minimum(next_uses, oracle.next_use(shards))
            is_done &= oracle.is_done(shards)
        order = policy.eviction_order(next_uses, used, is_done)
        foreign = self._shares_of_others(shards_by_folder, used)
        if foreign is not None:
            is_last = foreign[order]
            spared = order[is_last] if is_urgent else order[:0]
            order = np.concatenate([order[~is_last], spared])
        return _Residents(folders, shards, next_uses, order)

    def _shares_of_others(
        self, shards_by_folder: Sequence[npt.NDArray[np.int64]], used: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the residents that other jobs may keep, or None without other jobs."""
        mine = {team_mark(oracle.team) for oracle in list(self.oracles)}
        teams = {team_mark(t) for each in self.folders for t in each.ledger.table.teams()}
        other_teams = sorted(teams - mine)
        if not other_teams or not mine or self.limit is None:
            return None
        pairs = list(zip(shards_by_folder, self.folders, strict=True))
        resident_teams, sizes = (
            np.concatenate([each.ledger.entries[name][ids].astype(np.int64) for ids, each in pairs])
            for name in ("team", "size")
        )
        room = self.limit - sum(each.ledger.size for each in self.folders)
        return policy.shares_of_others(
            resident_teams, sizes, used, other_teams, room // len(teams | mine)
        )

    def _delete(self, victim: _Victim) -> bool:
        folder, ledger = victim.opened.folder, victim.opened.ledger
        info = folder.index.shard(victim.shard)
        remaining_bytes = folder.remove(info, victim.stamp)
        # Files that were exchanged under us are not ours, and stay.
        ledger.finish_eviction(
            victim.shard, UNMANAGED if remaining_bytes else ABSENT, remaining_bytes
        )
        if not remaining_bytes:
            self._counters.add(evicted_shards=1, evicted_bytes=victim.resident.size)
            emit(Evicted(folder.path(info.raw), victim.resident.size))
        return not remaining_bytes

    @contextlib.contextmanager
    def _locked(self, opened: OpenFolder | None) -> Iterator[None]:
        """Lock the ledgers that a change needs, always in the same order to avoid deadlocks."""
        is_alone = self.limit is None and opened is not None
        with contextlib.ExitStack() as stack:
            for each in [opened] if is_alone and opened else list(self.folders):
                stack.enter_context(each.ledger.change())
            yield


def _is_leaving(opened: OpenFolder, shard: int) -> bool:
    """Whether a process is evicting a shard, by its entry."""
    entry = opened.ledger.entries[shard]
    return bool(entry["state"] == EVICTING and entry["owner"])


def _await_eviction(opened: OpenFolder, shard: int) -> None:
    """Wait, outside of changes, until the process that evicts a shard has done so or died."""
    lock = lock_within(opened.ledger.lock_path, PIN_AT + shard, _EVICTION_SECONDS)
    if lock is not None:
        lock.close()


def _whole_shards(opened: OpenFolder) -> npt.NDArray[np.int64]:
    entries = opened.ledger.entries
    return np.flatnonzero((entries["state"] == MANAGED) & (entries["owner"] == 0))


def keep_limit(budget: Budget, peers: Peers) -> None:
    """Evict until the limit holds; say what is in the way when it does not."""
    if budget.limit is None or budget.evict_above_limit() <= 0 or not peers.is_leader():
        return
    foreign, other_processes = 0, set[int]()
    for opened in budget.folders:
        entries = opened.ledger.entries
        foreign += int(entries["size"][entries["state"] == UNMANAGED].sum())
        foreign += opened.ledger.size - opened.ledger.own_bytes
        other_processes.update(opened.ledger.processes())
    other_processes.discard(os.getpid())
    reasons = []
    if foreign > 0:
        reasons.append(
            f"{format_bytes(foreign)} are files that this library did not fetch, which it never "
            f"deletes: remove them"
        )
    if other_processes:
        pids = ", ".join(map(str, sorted(other_processes)))
        reasons.append(
            f"what processes {pids} use stays: end them, or give this job another folder"
        )
    log.warning(
        "cache_limit=%s does not hold: the cache folders have %s (%s). %s; or set cache_limit to "
        "%d or more. Until then nothing is added.",
        format_bytes(budget.limit),
        format_bytes(budget.used),
        ", ".join(opened.folder.root for opened in budget.folders),
        "; ".join(reasons) or "Nothing can be evicted",
        budget.used,
    )
