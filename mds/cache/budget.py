"""One limit over the cache folders of a dataset: room is made before a byte is written.

Under the locks of all folders it is decided what goes; outside of them files are deleted; under
the locks again their bytes become the newcomer's, so nobody else can take the room that was made.
Folders are locked in the order of their names, so two datasets that share some never wait in a
circle. Without a limit nothing is decided and only the newcomer's folder is locked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from mds.cache import policy
from mds.cache.book import ABSENT, FOREIGN, PRESENT
from mds.cache.ledger import Ledger
from mds.events import Evicted, emit

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.hands import Hands
    from mds.cache.places import Place


class Foresight(Protocol):
    """What is known of the time to come."""

    def next_use(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """When shards are needed next, `policy.NEVER` when that is not known."""

    def is_done(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of those are not needed any more in this epoch."""


@dataclasses.dataclass(slots=True)
class Account:
    """A place and its ledger."""

    place: Place
    ledger: Ledger

    def settle_orphans(self) -> None:
        """Finish what processes that died were doing: look at the disk, and note what is there.

        All in one change: what was coming answers for bytes of what was leaving, so nobody may take
        the one in hand before the other was looked at.
        """
        with self.ledger.change():
            for shard in self.ledger.adopt_orphans():
                self.look(shard)

    def look(self, shard: int) -> None:
        """Note what is on the disk of a shard whose files nobody answers for."""
        info = self.place.index.shard(shard)
        self.place.remove_parts(info, set(self.ledger.processes()))
        size, mark = self.place.measure(info)
        is_whole = size and self.place.folder_of(info) == self.place.folder
        self.ledger.settle(shard, PRESENT if is_whole else FOREIGN if size else ABSENT, size, mark)


class _Claim(NamedTuple):
    """A resident that nobody else can touch until it is evicted or let go."""

    account: Account
    shard: int  # in its account
    resident: policy.Resident
    mark: int


class Budget:
    """The accounts of a dataset under one limit in bytes, or under none."""

    def __init__(self, limit: int | None, hands: Hands) -> None:
        self.limit = limit
        self._hands = hands
        #: What each reader of this process knows of the time to come.
        self.sights: list[Foresight] = []
        self.evicted = self.evicted_bytes = 0
        self._accounts: list[Account] = []

    def add(self, account: Account) -> None:
        """Count another folder in."""
        self._accounts.append(account)
        self._accounts.sort(key=lambda one: one.ledger.control)

    @property
    def accounts(self) -> Sequence[Account]:
        """The folders that count."""
        return self._accounts

    @property
    def used(self) -> int:
        """Bytes of all folders, those that are being fetched included."""
        return sum(account.ledger.used for account in self._accounts)

    def reserve(
        self,
        account: Account,
        shard: int,
        size: int,
        needed_at: float = policy.NOW,
        is_worth: Callable[[Sequence[policy.Resident]], bool] = lambda _: True,
    ) -> bool:
        """Enter ``size`` bytes for a shard that is about to be fetched, and evict for it.

        What goes is needed later than ``needed_at``, in the order of farthest next use; of what
        this epoch is done with, what was used last goes first (so that a part of the dataset stays
        from epoch to epoch); of what nothing is known of, what was used longest ago. False when
        there is no room, or when it ``is_worth`` less than those that would have to go.
        """
        claims = self._enter(account, shard, size, needed_at, is_worth)
        if claims is None:  # perhaps the room is held by the dead
            for each in self._accounts:
                each.settle_orphans()
            claims = self._enter(account, shard, size, needed_at, is_worth)
        for claim in claims or ():
            self._delete(claim)
        return claims is not None

    def _enter(
        self,
        account: Account,
        shard: int,
        size: int,
        needed_at: float,
        is_worth: Callable[[Sequence[policy.Resident]], bool],
    ) -> list[_Claim] | None:
        """Book the newcomer, and what must be deleted before it is written; None without room."""
        with self._locked(account):
            missing = self._missing(account, shard, size)
            claims = self._claim(missing, needed_at, is_worth) if missing > 0 else []
            if missing > 0 and not claims:
                return None
            # From now on the newcomer answers for bytes of those that go, so nobody can take the
            # room between their deletion and its arrival; the sum stays at the limit.
            for claim in claims:
                part = min(missing, claim.resident.size)
                claim.account.ledger.entries["size"][claim.shard] -= part
                missing -= part
            account.ledger.begin(shard, size)
            return claims

    def evict_for_disk(self, folder: str, size: int) -> bool:
        """Evict what is needed last although the limit leaves room: the disk has none."""
        disk = os.statvfs(folder)
        return self.evict_coldest(size - disk.f_bavail * disk.f_frsize)

    def evict_coldest(self, missing: int = 1) -> bool:
        """Evict what is needed last and nobody has in hand: so many bytes, one shard at least."""
        with self._locked(None):
            claims = self._claim(max(missing, 1), policy.NOW, lambda _: True)
        for claim in claims:
            self._delete(claim)
        return bool(claims)

    def evict(self, account: Account, shard: int) -> bool:
        """Evict one shard, if it is ours and nobody has it in hand."""
        with self._locked(account):
            entry = account.ledger.entries[shard]
            if entry["state"] != PRESENT or entry["owner"]:
                return False
            if not self._hands.let_go(shard + account.place.first):
                return False
            if not account.ledger.claim(shard):
                return False
            size, mark = int(entry["size"]), int(entry["mark"])
        self._delete(_Claim(account, shard, policy.Resident(shard, size), mark))
        return True

    def _missing(self, account: Account, shard: int, size: int) -> int:
        if self.limit is None:
            return 0
        there = int(account.ledger.entries["size"][shard])
        return self.used - there + size - self.limit

    def _claim(
        self,
        missing: int,
        needed_at: float,
        is_worth: Callable[[Sequence[policy.Resident]], bool],
    ) -> list[_Claim]:
        """Take the residents that shall go away from everybody else; none when they should stay."""
        claims: list[_Claim] = []
        chosen = policy.victims(missing, self._residents(claims), needed_at)
        if chosen is not None and not is_worth(chosen):
            chosen = None
        going = {resident.shard for resident in chosen or ()}
        for claim in claims:
            if claim.resident.shard not in going:
                size = claim.resident.size
                claim.account.ledger.unclaim(claim.shard, PRESENT, size, claim.mark)
        return [claim for claim in claims if claim.resident.shard in going]

    def _residents(self, claims: list[_Claim]) -> Iterator[policy.Resident]:
        """Residents of ours that nobody has in hand, claimed as they are looked at."""
        found = [_present(account) for account in self._accounts]
        if not found:
            return
        shards = np.concatenate(
            [ids + a.place.first for ids, a in zip(found, self._accounts, strict=True)]
        )
        used = np.concatenate(
            [a.ledger.entries["used"][ids] for ids, a in zip(found, self._accounts, strict=True)]
        )
        whose = np.repeat(np.arange(len(found)), [len(ids) for ids in found])
        when = np.full(len(shards), policy.NEVER)
        sights = list(self.sights)
        is_done = np.full(len(shards), bool(sights))
        for sight in sights:
            when = np.minimum(when, sight.next_use(shards))
            is_done &= sight.is_done(shards)
        # Among equals, what was used longest ago has been served to all who need it now. But of
        # what this epoch is done with, the same part should stay from epoch to epoch.
        is_done &= when == policy.NEVER
        order = np.lexsort((np.where(is_done, -used, used), ~is_done, -when))
        for at in order.tolist():
            account = self._accounts[whose[at]]
            shard = int(shards[at]) - account.place.first
            entry = account.ledger.entries[shard]
            mark, size = int(entry["mark"]), int(entry["size"])
            # Without a limit nobody pins; what this process has in hand stays all the same.
            if self._hands.let_go(int(shards[at])) and account.ledger.claim(shard):
                resident = policy.Resident(int(shards[at]), size, float(when[at]))
                claims.append(_Claim(account, shard, resident, mark))
                yield resident

    def _delete(self, claim: _Claim) -> None:
        place, ledger = claim.account.place, claim.account.ledger
        info = place.index.shard(claim.shard)
        left = place.remove(info, claim.mark)
        # Files that were exchanged under us are somebody else's, and stay.
        ledger.unclaim(claim.shard, FOREIGN if left else ABSENT, left)
        if not left:
            self.evicted += 1
            self.evicted_bytes += claim.resident.size
            emit(Evicted(place.path(info.raw), claim.resident.size))

    @contextlib.contextmanager
    def _locked(self, account: Account | None) -> Iterator[None]:
        alone = self.limit is None and account is not None
        with contextlib.ExitStack() as stack:
            for one in [account] if alone and account else self._accounts:
                stack.enter_context(one.ledger.change())
            yield


def _present(account: Account) -> npt.NDArray[Any]:
    entries = account.ledger.entries
    return np.flatnonzero((entries["state"] == PRESENT) & (entries["owner"] == 0))
