"""Keeps the cache folders of a dataset below one limit; evicts shards before others are fetched.

Fetching a shard takes three steps:

1. Under the space lock: `mds._cache.policy` chooses the victims, and they are locked. The new shard
   is entered with the bytes that are free, so that no other process can take them.
2. Without locks: the files of the victims are deleted.
3. Under the space lock: the new shard gets the bytes of the victims, and their entries are cleared.
   Then it is fetched.

Each entry has at least the bytes of its files at all times. So whenever a process dies, and in
whatever order others correct its entries, the sum is never below what is on the disk.

Thousands of folders have one lock file (`mds.storage._locks.share_locks`), and with it one space
lock. If their lock files are several, all of them are locked, in the order of their inodes, so
datasets that share some folders cannot deadlock. Only then are folders locked, one for each entry
that changes. Any other change locks one folder and waits for nothing. Without a limit, no space is
reserved, and nothing is evicted.

The bytes of a folder are summed again only after a change of its ledger (`Ledger.changes`), so the
cost of a fetch hardly depends on the number of folders. A folder that another program deletes is
noticed a moment later, since looking at thousands of them takes milliseconds.

A folder above a new ``cache_limit`` is brought below it when it is opened. Files that this library
did not fetch are never deleted. Neither are shards that another job uses, since that job may have a
larger limit. A warning names what keeps the folder above the limit.

Jobs with different limits on one folder each evict down to their own limit before they add a byte.
So the folder never exceeds the largest limit, and the job with a smaller one reads shards that do
not fit without keeping them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from mds._cache import policy
from mds._cache.concurrency import Paced
from mds._cache.ledger import Ledger
from mds._cache.ledger_file import (
    ABSENT,
    EVICTING,
    FETCHING,
    MANAGED,
    PIN_LOCKS,
    UNMANAGED,
    team_mark,
)
from mds._process.fork_safe import new_lock
from mds._redaction import get_logger
from mds._units import format_bytes
from mds.errors import VanishedError
from mds.events import Evicted, emit
from mds.storage._files import despite_deletion
from mds.storage._locks import lock_within

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._cache.counters import Counters
    from mds._cache.open_readers import ReaderPool
    from mds._cache.recovery import OpenFolder


log = get_logger("mds.cache")

_EVICTION_SECONDS = 60.0  # to wait for another process that evicts a shard


class NextUseOracle(Protocol):
    """Object that knows when shards are needed next, which Belady's rule of eviction requires.

    See `mds._prefetch.next_use`. Shards are given by their numbers in the dataset, shape (n,).
    """

    def next_use(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the time at which each shard is needed next, or `policy.NEVER`, shape (n,)."""

    def is_done(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return a mask of the shards that this epoch does not need any more, shape (n,)."""

    @property
    def team(self) -> int:
        """Number of the team, which is all readers of the order that the oracle knows."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bid:
    """Reasons to evict other shards for a shard: when it is needed, and what it saves."""

    #: Time of the order at which the shard is needed. Shards needed earlier stay.
    needed_at: float = policy.NOW
    #: Mean bytes of a row.
    row_size: float = 0.0
    #: Number of rows that would be fetched by range before a time, if the shard is not fetched.
    #: None: the shard must be fetched whole, whatever is evicted for it.
    rows_before: Callable[[float], int] | None = None
    #: Number of the team that needs it: the readers of one order. 0: unknown.
    team: int = 0


#: Bid for a shard that is needed now.
URGENT = Bid()


class _Residents(NamedTuple):
    """Whole shards in the cache folders, and the order in which they are evicted."""

    folders: npt.NDArray[np.int64]  # position in `Budget.folders` of each resident, shape (n,)
    shards: npt.NDArray[np.int64]  # number of each in the dataset, shape (n,)
    next_uses: npt.NDArray[np.float64]  # shape (n,)
    order: npt.NDArray[np.int64]  # indices into the arrays above, in the order of eviction


class _Victim(NamedTuple):
    """A shard that this process has locked, until it is evicted or unlocked."""

    opened: OpenFolder  # its cache folder
    shard: int  # its number in the folder
    resident: policy.Resident  # its number in the dataset, size and next use
    stamp: int  # digest of inode, time and size of its files, by the ledger


class _WholeShards(NamedTuple):
    """Complete shards of ours in a folder that no process is fetching or evicting."""

    shards: npt.NDArray[np.int64]  # numbers in the folder, shape (n,)
    numbers: npt.NDArray[np.int64]  # numbers in the dataset, shape (n,)
    used: npt.NDArray[np.float64]  # seconds since 1970 at which each was last used, shape (n,)
    is_busy: bool  # whether other entries have an owner, or should have one


_NO_SHARDS = _WholeShards(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), is_busy=False)


class Budget:
    """The open cache folders of a dataset, under one limit.

    - Resident: a whole shard in the folders that this library wrote, and may evict.
    - Victim: a resident that is locked, to be evicted for a new shard.
    - Bid: why others should be evicted for the new shard: when it is needed, what it saves.
    - Oracle: knows when shards are needed next. Times are positions in an order, not seconds.

    Args:
        limit: Most bytes in all folders; None: no limit.
        readers: Open readers of this process, whose shards are not evicted.
        folders: The open folders, sorted by path; the list may grow.
        counters: Counters of this process.
    """

    def __init__(
        self,
        limit: int | None,
        readers: ReaderPool,
        folders: Sequence[OpenFolder],
        counters: Counters,
    ) -> None:
        self.limit = limit
        self._readers = readers
        self.folders = folders
        #: Oracles that know when a shard is needed next, one for each order that is read in this
        #: process. Empty between reads: then the shards used longest ago are evicted.
        self.oracles: list[NextUseOracle] = []
        self._counters = counters
        self.oracles_lock = new_lock()
        self._lock = new_lock()  # of the threads of this process that reserve space
        # By position in `_read`, a copy of `folders`: number of changes (of the open ledger, and
        # when it was last read), bytes, and whole shards. All are anew if a ledger was opened.
        self._counts: list[memoryview] = []
        self._seen: list[int] = []
        self._sums: list[int] = []
        self._whole: list[_WholeShards] = []
        self._read: list[OpenFolder] = []
        self._openings = -1
        # Looks at all folders: for deleted ones, for dead processes, and for the teams that read.
        self._deletions, self._deaths = Paced[None](), Paced[None]()
        self._all_deaths = Paced[None](500)
        self._teams = Paced[set[int]]()

    @property
    def used(self) -> int:
        """Bytes of all folders, including those that are being fetched."""
        return sum(opened.ledger.used for opened in self.folders)

    def _sum_bytes(self) -> int:
        """Return the bytes of all folders; the caller holds the space lock."""
        self._read_changes()
        return sum(self._sums)

    def _read_changes(self) -> None:
        """Read the bytes and the whole shards of those folders whose ledgers have changed."""
        if Ledger.openings != self._openings or len(self._counts) != len(self.folders):
            self._openings = Ledger.openings  # first: another ledger may be opened now
            self._read = list(self.folders)
            self._counts = [opened.ledger.changes for opened in self._read]
            count = len(self._counts)
            self._seen, self._sums, self._whole = [-1] * count, [0] * count, [_NO_SHARDS] * count
        # Thousands of folders: compare the numbers of changes in as few steps as possible.
        counts = [changes[0] for changes in self._counts]
        if counts == self._seen:
            return
        for position, (count, seen) in enumerate(zip(counts, self._seen, strict=True)):
            if count == seen:
                continue
            opened = self._read[position]
            with opened.ledger.look() as entries:
                self._seen[position] = self._counts[position][0]
                self._sums[position] = opened.ledger.used
                self._whole[position] = _whole_shards(opened, entries)

    def reserve(self, opened: OpenFolder, shard: int, size: int, bid: Bid = URGENT) -> bool:
        """Reserve space for a shard that is about to be fetched; evict others for it.

        Returns False if there is no space, or if the shard is worth less than its victims.

        Args:
            opened: Folder of the shard.
            shard: Its number in the folder.
            size: Bytes that its files will have.
            bid: When it is needed and what it saves.
        """
        victims = self._await_and_reserve(opened, shard, size, bid)
        if victims is None:  # dead processes may still occupy space
            self._recover_entries()
            victims = self._await_and_reserve(opened, shard, size, bid)
        if victims is None:
            return False
        if victims:
            remaining = [self._delete_files(victim) for victim in victims]
            with self._locked():
                # The new shard comes first: if the process is killed in between, the sum is too
                # large, never smaller than the disk.
                with opened.ledger.change():
                    opened.ledger.reserve(shard, size, bid.team)
                for victim, remaining_bytes in zip(victims, remaining, strict=True):
                    _unlock(victim, remaining_bytes)
            for victim, remaining_bytes in zip(victims, remaining, strict=True):
                self._report(victim, remaining_bytes)
        return True

    def _recover_entries(self) -> None:
        """Correct the entries of dead processes, in the folders that have entries with an owner.

        Look at the others less often: readers of dead processes should not count either.
        """
        self._deaths.get(self._recover_busy)
        self._all_deaths.get(self._recover_all)

    def _recover_busy(self) -> None:
        """Correct the entries of dead processes in folders with owned entries."""
        with self._locked():
            self._read_changes()
            folders = [o for o, whole in zip(self._read, self._whole, strict=True) if whole.is_busy]
        for opened in folders:
            opened.recover_entries()

    def _recover_all(self) -> None:
        """Correct the entries of dead processes in all folders."""
        for opened in self.folders:
            opened.recover_entries()

    def _refresh_all(self) -> None:
        """Open ledgers again that another program has deleted."""
        for opened in self.folders:
            opened.ledger.refresh()

    def _await_and_reserve(
        self, opened: OpenFolder, shard: int, size: int, bid: Bid
    ) -> list[_Victim] | None:
        """Reserve space for a shard, after any other process has finished to evict it.

        Returns the locked victims, whose files must be deleted before the shard is written, or None
        if there is no space. The arguments are as in `reserve`.
        """
        while True:
            # The lock of the folder too: while a shard is being evicted, its evictor would clear a
            # new entry.
            with self._locked(), opened.ledger.change():
                if not _is_evicting(opened, shard):
                    return self._lock_and_reserve(opened, shard, size, bid)
            _await_eviction(opened, shard)
            opened.recover_entries()  # the evictor may have died

    def _lock_and_reserve(
        self, opened: OpenFolder, shard: int, size: int, bid: Bid
    ) -> list[_Victim] | None:
        """Reserve space for a shard, while the caller holds the locks of space and folder.

        Returns the locked victims, or None if there is no space, like `_await_and_reserve`.
        """
        missing = self._missing(opened, shard, size)
        victims = self._lock_victims(missing, bid, size) if missing > 0 else []
        if missing > 0 and not victims:
            return None
        if victims:  # until they are deleted, their own entries have the bytes that are missing
            size = max(size - missing, int(opened.ledger.entries["size"][shard]))
        opened.ledger.reserve(shard, size, bid.team)
        return victims

    def evict_for_disk(self, root: str, size: int) -> bool:
        """Evict shards until ``size`` bytes fit on a full disk; return whether any was evicted.

        ``root`` is a folder on the disk.
        """
        disk = os.statvfs(root)
        free_bytes = disk.f_bavail * disk.f_frsize
        return self.evict_coldest(size - free_bytes)

    def evict_coldest(self, missing: int = 1) -> bool:
        """Evict the shards that are needed last and not in use; return whether any was evicted.

        ``missing`` is the number of bytes to evict; at least one shard is evicted (default).
        """
        with self._locked():
            victims = self._lock_victims(max(missing, 1), URGENT)
        for victim in victims:
            self._delete(victim)
        return bool(victims)

    def evict_above_limit(self) -> int:
        """Evict shards until the limit holds; return the bytes above it, 0 or less if it holds."""
        if self.limit is None:
            return 0
        with self._locked():
            above = self._sum_bytes() - self.limit
            victims = self._lock_until(above, policy.NOW) if above > 0 else []
        for victim in victims:
            self._delete(victim)
        return self.used - self.limit

    def evict(self, opened: OpenFolder, shard: int) -> bool:
        """Evict one shard, if it is ours and not in use; return whether its files are deleted.

        ``shard`` is its number in the folder.
        """
        if opened.ledger.refresh()["state"][shard] != MANAGED:
            return False
        opened.folder.check_inside(opened.folder.index.shard(shard))
        victim = self._try_lock(opened, shard, policy.NEVER)
        return victim is not None and self._delete(victim)

    def _missing(self, opened: OpenFolder, shard: int, size: int) -> int:
        """Return the bytes to evict before a shard of ``size`` bytes fits; 0 or less: none.

        ``shard`` is its number in the folder.
        """
        if self.limit is None:
            return 0
        # A part of it may be reserved already, and must not count twice.
        reserved = int(opened.ledger.entries["size"][shard])
        return self._sum_bytes() - reserved + size - self.limit

    def _lock_victims(self, missing: int, bid: Bid, size: int = 0) -> list[_Victim]:
        """Lock and return the victims to evict for a bid; return an empty list if they should stay.

        Args:
            missing: Number of bytes to evict.
            bid: Reasons to evict them; victims that are needed earlier or worth more stay.
            size: Bytes of the new shard (default 0, for a bid without ``rows_before``).
        """
        locked = self._lock_until(missing, bid.needed_at)
        residents = [victim.resident for victim in locked]
        candidates = policy.victims(missing, residents, bid.needed_at)
        if candidates is not None and bid.rows_before is not None:
            # The rows of the new shard could be fetched by range instead.
            rows = bid.rows_before(policy.first_use(candidates))
            if not policy.is_worth(size, rows, bid.row_size, candidates):
                candidates = None
        if candidates is None:  # unlock them and keep their entries
            for victim in locked:
                size_kept = victim.resident.size
                victim.opened.ledger.finish_eviction(victim.shard, MANAGED, size_kept, victim.stamp)
            return []
        return locked

    def _lock_until(self, missing: int, needed_at: float) -> list[_Victim]:
        """Lock residents in the order of eviction until they have ``missing`` bytes; return them.

        Residents in use, and those needed at time ``needed_at`` or before, stay. There may be too
        few of the others.
        """
        victims: list[_Victim] = []
        if not self.folders:
            return victims
        folders, shards, next_uses, order = self._residents(is_urgent=needed_at == policy.NOW)
        for index in order.tolist():
            next_use = float(next_uses[index])
            if missing <= 0 or next_use <= needed_at:  # the order has the latest next use first
                break
            opened = self._read[folders[index]]
            shard = int(shards[index]) - opened.folder.first_shard
            victim = self._try_lock(opened, shard, next_use)
            if victim is not None:
                victims.append(victim)
                missing -= victim.resident.size
        return victims

    def _try_lock(self, opened: OpenFolder, shard: int, next_use: float) -> _Victim | None:
        """Lock a resident for eviction; return None while a reader uses it, or if it is none now.

        ``shard`` is its number in the folder, ``next_use`` the time at which it is needed next.
        """
        number = shard + opened.folder.first_shard  # in the dataset
        with opened.ledger.change() as entries:
            entry = entries[shard]
            if entry["state"] != MANAGED or entry["owner"]:  # not ours, or a process works on it
                return None
            size, stamp = int(entry["size"]), int(entry["stamp"])
            # Without a limit there are no pins, so look at the readers of this process too.
            if not self._readers.evict_if_idle(number):
                return None
            if not opened.ledger.lock_for_eviction(shard):
                return None
        return _Victim(opened, shard, policy.Resident(number, size, next_use), stamp)

    def _residents(self, *, is_urgent: bool) -> _Residents:
        """Return the complete shards that this library wrote, in the order of eviction.

        Shards within the shares of other jobs come last, and only if ``is_urgent``: for a shard
        that is needed now.
        """
        self._read_changes()
        shards = np.concatenate([each.numbers for each in self._whole])
        if self.oracles:  # the last use decides only between shards that are needed equally late
            used = np.concatenate([each.used for each in self._whole])
        else:
            pairs = zip(self._whole, self._read, strict=True)
            used = np.concatenate(
                [opened.ledger.entries["used"][each.shards] for each, opened in pairs]
            )
        counts = [len(each.shards) for each in self._whole]
        folders = np.repeat(np.arange(len(counts)), counts)
        # A shard is needed when the first oracle needs it, and done when all oracles say so.
        next_uses = np.full(len(shards), policy.NEVER)
        oracles = list(self.oracles)
        is_done = np.full(len(shards), bool(oracles))
        for oracle in oracles:
            next_uses = np.minimum(next_uses, oracle.next_use(shards))
            is_done &= oracle.is_done(shards)
        order = policy.eviction_order(next_uses, used, is_done)  # indices into `shards`
        foreign = self._shares_of_others([each.shards for each in self._whole], used)
        if foreign is not None:  # move the shards of other jobs to the end, or leave them out
            is_foreign = foreign[order]
            last = order[is_foreign] if is_urgent else order[:0]
            order = np.concatenate([order[~is_foreign], last])
        return _Residents(folders, shards, next_uses, order)

    def _reading_teams(self) -> set[int]:
        """Return the marks of all teams that are reading; those of a moment ago if it costs much.

        The ledger has the low bits of a team only, `team_mark`.
        """
        return self._teams.get(
            lambda: {team_mark(t) for each in self.folders for t in each.ledger.table.teams()}
        )

    def _shares_of_others(
        self, shards_by_folder: Sequence[npt.NDArray[np.int64]], used: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the residents within the shares of other jobs, or None without any.

        A resident is a whole shard in the cache folders. A job is known by its team: the number
        that all readers of one order have in common, and that the ledger records for each shard.
        The limit, without the bytes that are no shards, is divided equally among all jobs, and a
        job should not evict what another one keeps within its share.

        Args:
            shards_by_folder: Numbers of the residents in each folder, in the order of the folders.
            used: Seconds since 1970 at which each resident was last used, shape (all residents,).
        """
        mine = {team_mark(oracle.team) for oracle in list(self.oracles)}
        teams = self._reading_teams()
        other_teams = sorted(teams - mine)
        if not other_teams or not mine or self.limit is None:
            return None
        pairs = list(zip(shards_by_folder, self._read, strict=True))
        resident_teams, sizes = (
            np.concatenate([each.ledger.entries[name][ids].astype(np.int64) for ids, each in pairs])
            for name in ("team", "size")
        )
        room = self.limit - sum(each.ledger.size for each in self.folders)
        return policy.shares_of_others(
            resident_teams, sizes, used, other_teams, room // len(teams | mine)
        )

    def _delete(self, victim: _Victim) -> bool:
        """Delete the files of a victim and unlock it; return False if files remain."""
        remaining_bytes = self._delete_files(victim)
        _unlock(victim, remaining_bytes)
        self._report(victim, remaining_bytes)
        return not remaining_bytes

    def _delete_files(self, victim: _Victim) -> int:
        """Delete the files of a victim; return the bytes that remain.

        The caller holds no locks, since deleting takes long.
        """
        folder = victim.opened.folder
        return folder.remove(folder.index.shard(victim.shard), victim.stamp)

    def _report(self, victim: _Victim, remaining_bytes: int) -> None:
        """Count an evicted victim and emit its event; the caller holds no locks."""
        if not remaining_bytes:
            folder = victim.opened.folder
            self._counters.add(evicted_shards=1, evicted_bytes=victim.resident.size)
            path = folder.path(folder.index.shard(victim.shard).raw)
            emit(Evicted(path, victim.resident.size))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the space locks of all folders; take it before the lock of any folder."""
        with self._lock:
            self._deletions.get(self._refresh_all)
            with despite_deletion(self._lock_space):
                yield

    def _lock_space(self) -> contextlib.ExitStack:
        """Take the space locks of all folders; return the stack that releases them.

        Raises VanishedError if another program deleted a folder meanwhile: its lock file may be
        another one now, which two folders would then lock, or which nobody else does.
        """
        ledgers = {opened.ledger.lock_identity: opened.ledger for opened in self.folders}
        with contextlib.ExitStack() as stack:
            for identity in sorted(ledgers):  # so that two processes cannot deadlock
                lock = ledgers[identity].lock_space()
                stack.callback(lock.close)
                if lock.identity != identity:
                    self._refresh_all()
                    path = ledgers[identity].lock_path
                    raise VanishedError(
                        f"lock {path}: it is deleted again and again.", url=path, verb="lock"
                    )
            return stack.pop_all()


def _unlock(victim: _Victim, remaining_bytes: int) -> None:
    """Unlock a victim whose files were deleted; record the bytes of those that remain.

    Files that another program has replaced are not ours, and remain.
    """
    state = UNMANAGED if remaining_bytes else ABSENT
    victim.opened.ledger.finish_eviction(victim.shard, state, remaining_bytes)


def _is_evicting(opened: OpenFolder, shard: int) -> bool:
    """Whether a process is evicting a shard, by its entry in the ledger."""
    entry = opened.ledger.entries[shard]
    return bool(entry["state"] == EVICTING and entry["owner"])


def _whole_shards(opened: OpenFolder, entries: npt.NDArray[Any]) -> _WholeShards:
    """Return the whole shards of a folder, by the entries of its ledger."""
    has_owner, states = entries["owner"] != 0, entries["state"]
    shards = np.flatnonzero((states == MANAGED) & ~has_owner)
    is_busy = bool((has_owner | (states >= FETCHING)).any())
    numbers = shards + opened.folder.first_shard
    return _WholeShards(shards, numbers, entries["used"][shards], is_busy)


def _await_eviction(opened: OpenFolder, shard: int) -> None:
    """Wait until the process that evicts a shard has finished or died; hold no lock meanwhile."""
    # The evicting process holds this lock until then, so it is taken and released at once.
    lock = lock_within(opened.ledger.lock_path, PIN_LOCKS + shard, _EVICTION_SECONDS)
    if lock is not None:
        lock.close()


def keep_limit(budget: Budget) -> None:
    """Evict shards until the limit holds; if that is impossible, warn about the reasons.

    One process of the node warns. Reasons are files of other programs, and shards in use.
    """
    if budget.limit is None or budget.evict_above_limit() <= 0:
        return
    if not all(opened.ledger.is_leader() for opened in budget.folders):
        return
    foreign, other_processes = 0, set[int]()
    for opened in budget.folders:
        entries = opened.ledger.entries
        foreign += int(entries["size"][entries["state"] == UNMANAGED].sum())
        # Bytes of files that are no shards: ours, and compressed files that were here before.
        foreign += opened.ledger.size - opened.ledger.own_bytes
        other_processes.update(opened.ledger.processes())
    other_processes.discard(os.getpid())
    reasons = []
    if foreign > 0:
        reasons.append(
            f"{format_bytes(foreign)} are files that mds did not fetch and never deletes: remove "
            "them"
        )
    if other_processes:
        pids = ", ".join(map(str, sorted(other_processes)))
        reasons.append(
            f"processes {pids} still use their shards: end them, or give this job another folder"
        )
    log.warning(
        "cache_limit=%s is exceeded: the cache folders use %s (%s). %s; or set cache_limit to "
        "%d or more. Until then, no shards are added to the cache.",
        format_bytes(budget.limit),
        format_bytes(budget.used),
        ", ".join(opened.folder.root for opened in budget.folders),
        "; ".join(reasons) or "No shard can be evicted",
        budget.used,
    )
