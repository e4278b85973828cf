"""Table of the performance counters of a rank, in memory that its processes share.

A process takes a row that no living process has, and adds to what is in it: the row of a worker
that ended goes on with the next worker, so the table holds as many rows as processes live at once,
and the sum over the rows is that of all processes that there ever were.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache.counters import ROW
from mds.cache.rank_file import RankFile
from mds.storage.files import is_process

if TYPE_CHECKING:
    import numpy.typing as npt

ROWS = 512  # processes of the ranks that were forked from one process


class CounterTable:
    """Rows of counters, one for each living process of a rank."""

    def __init__(self) -> None:
        self._open(RankFile("mds-counters"))

    def _open(self, file: RankFile) -> None:
        size = ROWS * ROW.itemsize
        with file.locked():
            if os.fstat(file.descriptor).st_size < size:
                os.ftruncate(file.descriptor, size)  # zeros that take no memory until they are used
        self._file = file
        self._rows: npt.NDArray[Any] = np.frombuffer(mmap.mmap(file.descriptor, size), ROW)

    def claim_row(self, folders: Sequence[int]) -> npt.NDArray[Any] | None:
        """A row for this process alone, as an array of one; None when all are taken.

        ``folders``: the numbers of the cache folders that it reads through.
        """
        owner, process = self._file.owner, os.getpid()
        with self._file.locked():
            for number in range(ROWS):
                row = self._rows[number : number + 1]
                found = int(row["process"][0])
                is_free = not found or (row["owner"][0] == owner and not is_process(found))
                if is_free or found == process:
                    row["owner"], row["process"] = owner, process
                    row["folders"][0, : len(folders)] = folders
                    return row
        return None

    @property
    def inode(self) -> int:
        """The number by which the file is known to the system."""
        return os.fstat(self._file.descriptor).st_ino

    def rows_of_all(self) -> npt.NDArray[Any]:
        """A copy of the rows of all ranks that share the table."""
        rows: npt.NDArray[Any] = self._rows.copy()
        return rows

    def rows_of_rank(self) -> npt.NDArray[Any]:
        """A copy of the rows of this rank."""
        rows: npt.NDArray[Any] = self._rows[self._rows["owner"] == self._file.owner]
        return rows

    def __getstate__(self) -> dict[str, Any]:
        return {"_file": self._file} if self._file.is_handed_on() else {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(state["_file"] if "_file" in state else RankFile("mds-counters"))
