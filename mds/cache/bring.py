"""Getting one shard into its cache folder, or saying that there is no room.

Whoever holds the fetch lock of a shard fetches it; the others wait in the kernel and then find it
there. When the owner dies the lock passes on by itself. Files that were there before anybody of
ours came are checked against the index's digest once and are then as good as fetched.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mds.cache import policy
from mds.cache.book import FOREIGN, PRESENT
from mds.cache.places import check_file
from mds.errors import CorruptError, NoSpaceError, ShardError
from mds.events import Replaced, emit
from mds.storage.files import despite_deletion

if TYPE_CHECKING:
    from mds.cache.budget import Account, Budget
    from mds.cache.counters import Counters
    from mds.cache.fetch import Fetcher
    from mds.index import ShardInfo

log = logging.getLogger("mds.cache")

PATIENCE = 600.0  # seconds that another process may take for one shard


class Bringer:
    """Fetches shards of all places of a process, one process of the node at a time each."""

    def __init__(self, budget: Budget, fetchers: Sequence[Fetcher], counters: Counters) -> None:
        self._budget = budget
        self._fetchers = fetchers
        self._counters = counters
        self._seen: set[tuple[int, int]] = set()  # whose digest this process found right

    def is_ready(self, account: Account, shard: int, info: ShardInfo) -> bool:
        """Whether a shard lies in the cache folder and is known to be what the index says."""
        place, entries = account.place, account.ledger.entries
        if not entries["is_checked"][shard] or entries["state"][shard] not in (PRESENT, FOREIGN):
            return False
        if place.check and (place.number, shard) not in self._seen:
            return False
        return place.folder_of(info) == place.folder and (
            int(entries["mark"][shard]) == place.measure(info)[1]
        )

    def bring(
        self,
        account: Account,
        shard: int,
        info: ShardInfo,
        needed_at: float = policy.NOW,
        is_worth: Callable[[Sequence[policy.Resident]], bool] = lambda _: True,
        *,
        is_ahead: bool = False,
    ) -> bool:
        """Have a shard fetched, by us or by somebody else; False when there is no room for it.

        With ``is_ahead`` it is enough that somebody else is fetching it, who is not waited for.
        Raises the StoreError that its remote met, NoSpaceError when the disk is full and nothing
        can be evicted.
        """
        ledger, started = account.ledger, time.monotonic()
        lock = ledger.fetch_lock(shard, 0.0 if is_ahead else PATIENCE)
        if lock is None and is_ahead:
            return True  # somebody else is at it
        if lock is None:
            # Alive but stuck. Two downloads of one shard are better than none.
            log.warning(
                "Shard %s of %s was being fetched for %.0f s by another process (one of %s); this "
                "one fetches it too.",
                shard,
                account.place.folder,
                time.monotonic() - started,
                ledger.processes(),
            )
        try:
            if account.ledger.entries["owner"][shard]:
                account.settle_orphans()
            return self._is_there(account, shard, info) or self._fetch(
                account, shard, info, needed_at, is_worth
            )
        finally:
            if lock is not None:
                lock.close()

    def _is_there(self, account: Account, shard: int, info: ShardInfo) -> bool:
        """Whether the files lie there and are right; what is damaged is deleted.

        Only for the owner of the fetch lock.
        """
        if self.is_ready(account, shard, info):
            return True
        place, entries = account.place, account.ledger.entries
        if place.folder_of(info) != place.folder or not self._is_right(account, info):
            return False
        with account.ledger.change():
            # Looked at once more in here: somebody may have evicted it while we read it.
            size, mark = place.measure(info)
            if entries["owner"][shard] or not size:
                return False
            is_ours = entries["state"][shard] == PRESENT and int(entries["mark"][shard]) == mark
            state = PRESENT if is_ours else FOREIGN
            account.ledger.settle(shard, state, size, mark, is_checked=True)
        self._seen.add((place.number, shard))
        return True

    def _fetch(
        self,
        account: Account,
        shard: int,
        info: ShardInfo,
        needed_at: float,
        is_worth: Callable[[Sequence[policy.Resident]], bool],
    ) -> bool:
        place = account.place
        self._clear(account, info)

        def try_it() -> int | None:
            """The bytes that came; None when there is no room."""
            while True:
                if not self._budget.reserve(account, shard, place.peak(info), needed_at, is_worth):
                    return None
                try:
                    return self._fetchers[place.number].whole(info)
                except NoSpaceError:
                    account.look(shard)
                    if not self._budget.evict_for_disk(place.folder, place.peak(info)):
                        raise
                except BaseException:
                    account.look(shard)
                    raise

        came = despite_deletion(try_it)
        if came is None:
            return False
        size, mark = place.measure(info)
        with account.ledger.change():
            account.ledger.describe(shard, place.name(info), place.tag(info))
            account.ledger.settle(shard, PRESENT, size, mark, is_checked=True)
        self._seen.add((place.number, shard))
        self._counters.add(fetched_shards=1, fetched_bytes=came)
        return True

    def _is_right(self, account: Account, info: ShardInfo) -> bool:
        """Check the digests of files that were there; what is damaged goes."""
        place = account.place
        for raw, _ in info.files:
            path = place.path(raw)
            try:
                check_file(raw, path, place.hash_of(raw), path)
            except CorruptError as error:
                self._throw_away(account, path, str(error))
                return False
            except FileNotFoundError:
                return False  # just evicted
        return True

    def _clear(self, account: Account, info: ShardInfo) -> None:
        """Delete what lies under the names of a shard that is not there as it should be."""
        for raw, _ in info.files:
            path = account.place.path(raw)
            with contextlib.suppress(OSError):
                size = os.lstat(path).st_size
                if size != raw.size:
                    reason = f"{path}: the index says {raw.size} bytes, found {size}"
                    self._throw_away(account, path, reason)

    def _throw_away(self, account: Account, path: str, reason: str) -> None:
        if os.path.isdir(path):
            raise ShardError(f"{path} is a folder. Remove it, or choose another local folder.")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        log.warning("%s; it is fetched anew from %s.", reason, account.place.remote)
        self._counters.add(replaced_files=1)
        emit(Replaced(path, reason))
