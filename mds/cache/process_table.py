"""The processes that use a cache folder: a line for each in the ledger, and a lock that proves it.

The lines are numbers in memory that all share, so the dead are among them; what a process is alive
by is the lock on the byte of its slot, which the kernel drops with it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache.ledger_file import SLOTS, open_ledger_file
from mds.storage.locks import LockFile, open_locks

if TYPE_CHECKING:
    import numpy.typing as npt

SLOT_AT = 1 << 41  # the byte of the lock file of slot 0


class ProcessTable:
    """The lines of a ledger, as seen by one process."""

    def __init__(self, lines: npt.NDArray[Any], locks: LockFile) -> None:
        self.lines, self._locks = lines, locks
        self.mine = -1

    def claim(self, owners: set[int]) -> bool:
        """Take a slot; one that owns entries only if there is no other. False when all are used."""
        # Dead processes are settled first: their slots may have entries without an owner.
        order = np.argsort(self.lines["pid"] != 0, kind="stable").tolist()
        for slot in sorted(order, key=owners.__contains__):
            if self._locks.try_lock(SLOT_AT + slot):
                self.mine = slot
                self.lines[slot] = (os.getpid(), 0, 0, 0)
                return True
        return False

    def leave(self, *, is_done: bool) -> None:
        """Give the slot back, whose lock goes with the file; the line stays unless all is done."""
        if self.mine >= 0 and is_done:
            self.lines["pid"][self.mine] = 0
        self.mine = -1

    def is_alive(self, slot: int) -> bool:
        """Whether a process holds a slot, which only the kernel knows."""
        if slot == self.mine:
            return True
        if not 0 <= slot < SLOTS or not self._locks.try_lock(SLOT_AT + slot):
            return 0 <= slot < SLOTS
        self._locks.unlock(SLOT_AT + slot)
        return False

    def is_used(self) -> bool:
        """Whether another process than this one is alive."""
        return any(slot != self.mine and self.is_alive(slot) for slot in self._noted())

    def bury(self) -> None:
        """Strike out the dead."""
        for slot in self._noted():
            if not self.is_alive(slot):
                self.lines["pid"][slot] = 0

    def processes(self) -> list[int]:
        """Return the process ids, with those of processes that died since the last check."""
        return [int(pid) for pid in self.lines["pid"] if pid]

    def count_reader(self, change: int) -> None:
        """Note that this process began (1) or ended (-1) to read an epoch."""
        if self.mine >= 0:
            self.lines["readers"][self.mine] += change

    def readers(self) -> int:
        """Return the number of readers in an epoch, in all processes alive at the last check."""
        return int(self.lines["readers"][self.lines["pid"] != 0].sum())

    def report_progress(self, team: int, time: int) -> tuple[int, int, int]:
        """Note up to which time of an order this process has what it needs.

        Gives the least time of all processes that read the same order, their readers, and those of
        any order that is known.
        """
        lines = self.lines
        if self.mine >= 0:
            lines["served"][self.mine], lines["team"][self.mine] = time, team
        in_teams = self._in_teams()
        mates = in_teams & (lines["team"] == team)
        readers = lines["readers"]
        served = int(lines["served"][mates].min(initial=time))
        return served, int(readers[mates].sum()), int(readers[in_teams].sum())

    def teams(self) -> list[int]:
        """Return the numbers of the orders that are being read."""
        return [int(team) for team in np.unique(self.lines["team"][self._in_teams()])]

    def _in_teams(self) -> npt.NDArray[np.bool_]:
        lines = self.lines
        mask: npt.NDArray[np.bool_] = (
            (lines["readers"] > 0) & (lines["pid"] != 0) & (lines["team"] != 0)
        )
        return mask

    def _noted(self) -> list[int]:
        return list(np.flatnonzero(self.lines["pid"]).tolist())


def is_in_use(control: str) -> bool:
    """Whether a living process has the ledger of a folder open."""
    file = open_ledger_file(os.path.join(control, "ledger"))
    if file is None or not file.slots["pid"].any():
        return False
    locks = open_locks(os.path.join(control, "lock"))
    try:
        return ProcessTable(file.slots, locks).is_used()
    finally:
        locks.close()
