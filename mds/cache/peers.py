"""The peers of a process: the others on its machine that read from the same cache folders."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mds.process.fork_safe import new_lock

if TYPE_CHECKING:
    from mds.cache.recovery import OpenFolder


def fetch_threads(processes: int, *, total: int = 48, limit: int = 16) -> int:
    """Return the fetching threads of each of ``processes`` if the node has about ``total``."""
    return max(2, min(limit, total // max(processes, 1)))


class Peers:
    """The processes of this machine that share our cache folders, and this one among them."""

    def __init__(self, folders: Sequence[OpenFolder]) -> None:
        self._folders = folders  # grows as folders are opened
        self._served: dict[int, tuple[int, int]] = {}  # team and time, by reader of this process
        self._lock = new_lock()

    @property
    def processes(self) -> int:
        """Number of readers of our cache folders, including those of this process."""
        return max((opened.ledger.table.readers() for opened in self._folders), default=1) or 1

    @property
    def threads(self) -> int:
        """Number of transfers that this process may run at a time."""
        return fetch_threads(self.processes)

    @contextlib.contextmanager
    def register_reader(self) -> Iterator[None]:
        """Count this process among those that read an epoch."""
        folders = list(self._folders)
        for opened in folders:
            opened.ledger.count_reader(1)
        try:
            yield
        finally:
            for opened in folders:
                opened.ledger.count_reader(-1)

    def report_progress(self, reader: int, team: int, time: int) -> tuple[int, int, int]:
        """Tell up to which time of an order, which all of a ``team`` read, a reader is served.

        Gives the least time of the readers of the node that are of the team, how many of them there
        are, and how many there are of all teams.
        """
        with self._lock:
            self._served[reader] = team, time
            mine = [served for other, served in self._served.values() if other == team]
            reader_count = len(self._served)
        reports = [opened.ledger.table.report_progress(team, min(mine)) for opened in self._folders]
        return (
            min([min(mine), *(served for served, _, _ in reports)]),
            max([len(mine), *(readers for _, readers, _ in reports)]),
            max([reader_count, *(readers for _, _, readers in reports)]),
        )

    def jobs(self) -> int:
        """Return the number of orders that are read through our folders, each by its own job."""
        return max((len(opened.ledger.table.teams()) for opened in self._folders), default=1) or 1

    def forget_reader(self, reader: int) -> None:
        """Record that a reader of this process ended."""
        with self._lock:
            self._served.pop(reader, None)

    def is_leader(self) -> bool:
        """Whether this process says once what all processes could say."""
        return all(opened.ledger.is_leader() for opened in self._folders)
