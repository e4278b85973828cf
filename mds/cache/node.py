"""The other processes of the node, as the ledgers of a cache know them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mds.cache import policy

if TYPE_CHECKING:
    from mds.cache.budget import Budget


class Node:
    """What the processes that share our cache folders tell each other."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._served: dict[int, int] = {}  # by reader of this process
        self._lock = threading.Lock()

    @property
    def processes(self) -> int:
        """How many readers there are of our cache folders, those of this process included."""
        return max((account.ledger.readers() for account in self._budget.accounts), default=1) or 1

    @property
    def threads(self) -> int:
        """How many transfers this process may have under way at a time."""
        return policy.threads(self.processes)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Count this process among those that read an epoch."""
        accounts = list(self._budget.accounts)
        for account in accounts:
            account.ledger.count_reader(1)
        try:
            yield
        finally:
            for account in accounts:
                account.ledger.count_reader(-1)

    def note_served(self, reader: int, position: int) -> int:
        """Tell up to which of its samples a reader has what it needs; the least of the node."""
        with self._lock:
            self._served[reader] = position
            least = min(self._served.values())
        return min(
            (account.ledger.note_served(least) for account in self._budget.accounts),
            default=least,
        )

    def forget(self, reader: int) -> None:
        """A reader of this process ended."""
        with self._lock:
            self._served.pop(reader, None)

    def is_speaker(self) -> bool:
        """Whether this process says once what all processes could say."""
        return all(account.ledger.is_speaker() for account in self._budget.accounts)
