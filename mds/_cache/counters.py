"""Performance counters of a cache: sums that only grow, by process, rank and machine.

Each process counts for itself, and adds the same amounts to its row of a table (`CounterTable`) in
memory that the processes of its rank share. So the process that reads the counters includes those
of its workers, also of workers that have exited: a new process takes over the row of a dead one and
adds to its values. The sum of all rows is that of all processes the rank ever had.

The counters of a machine (`read_node_rows`) are the sum over the tables of all ranks. A ledger
lists the processes that use its folder, and on Linux a user can open, through /proc, the files that
the user's own processes have open. So tables need no names and are never left behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._process.fork_safe import new_lock
from mds._process.mmaps import map_descriptor
from mds.storage._files import is_process
from mds.world import RankFile

if TYPE_CHECKING:
    import numpy.typing as npt


MAX_FOLDERS = 32  # cache folders of a dataset that are recorded
#: Names of the counts.
COUNTS = (
    "fetched_shards",
    "fetched_bytes",
    "ranged_reads",
    "ranged_bytes",
    "hits",  # shards that were local when they were opened
    "misses",
    "in_memory_shards",  # shards read without keeping them
    "replaced_files",  # files that were damaged or of another dataset
    "retries",
    "evicted_shards",
    "evicted_bytes",
    "waits",
)
ROW = np.dtype(
    [
        ("owner", "i8"),  # id of the rank's main process; 0: the row was never used
        ("process", "i8"),  # id of the process that counts here now, or did last
        ("folders", "u8", (MAX_FOLDERS,)),  # cache folders of the dataset, see `folder_ids`
        *((name, "i8") for name in COUNTS),
        ("waited_seconds", "f8"),
        ("longest_wait", "f8"),
        ("longest_wait_for", "S64"),  # name of the shard; of a long name the end
    ]
)
#: Names of the numbers that are summed over processes.
SUMMED = (*COUNTS, "waited_seconds")


class Counters:
    """Counters of one process since it first used its cache. Thread-safe.

    ``row`` is the row of the process in a `CounterTable`, shape (1,); None (default): no table.
    """

    def __init__(self, row: npt.NDArray[Any] | None = None) -> None:
        # Each count is added to two rows: that of this process alone, and the one in the table,
        # which other processes see and which may begin with the counts of an earlier process.
        self._own = np.zeros(1, ROW)
        self._rows = [self._own] if row is None else [self._own, row]
        self._lock = new_lock()

    def add(self, **amounts: float) -> None:
        """Add to several counts at once; each name is one of `SUMMED`."""
        with self._lock:
            for row in self._rows:
                for name, amount in amounts.items():
                    row[name] += amount

    def add_wait(self, seconds: float, name: str) -> None:
        """Record that the reader waited so many seconds for the shard with the file ``name``."""
        with self._lock:
            for row in self._rows:
                row["waits"] += 1
                row["waited_seconds"] += seconds
                if seconds > row["longest_wait"][0]:
                    row["longest_wait"] = seconds
                    # Keep the end of a name that is too long, in which shards differ.
                    row["longest_wait_for"] = name.encode()[-ROW["longest_wait_for"].itemsize :]

    def __getitem__(self, name: str) -> int:
        """Return a count of this process, without those of its workers."""
        return int(self._own[name][0])


def sum_rows(rows: npt.NDArray[Any]) -> dict[str, Any]:
    """Return the counts of several rows by name: sums, and the longest wait of all rows.

    ``rows`` has the dtype `ROW`, shape (n,).
    """
    out: dict[str, Any] = {name: rows[name].sum().item() for name in SUMMED}
    longest = rows[int(rows["longest_wait"].argmax())] if len(rows) else np.zeros(1, ROW)[0]
    out["longest_wait"] = float(longest["longest_wait"])
    out["longest_wait_for"] = bytes(longest["longest_wait_for"]).decode(errors="replace")
    return out


def folder_ids(folders: Sequence[str]) -> list[int]:
    """Return a number for each cache folder, the same in every process and for every path to it.

    At most `MAX_FOLDERS` folders are numbered.
    """
    paths = [os.path.realpath(folder).encode() for folder in folders[:MAX_FOLDERS]]
    digests = [hashlib.blake2s(path, digest_size=8).digest() for path in paths]
    # Never 0, which fills the unused fields of a row.
    return [int.from_bytes(digest, "little") | 1 for digest in digests]


ROWS = 512  # processes of all ranks that were forked from one process


class CounterTable:
    """Table of counters in shared memory: a row for each living process of a rank.

    The memory is a file without a name. Forked workers inherit it, and spawned workers receive it
    with the pickle of this object. Other pickles, such as copies that are saved, create a new table
    when they are loaded.
    """

    def __init__(self) -> None:
        self._open(RankFile("mds-counters"))

    def _open(self, file: RankFile) -> None:
        """Map the table, which is in a file in memory that the processes of a rank share."""
        size = ROWS * ROW.itemsize
        with file.locked():
            if os.fstat(file.descriptor).st_size < size:
                os.ftruncate(file.descriptor, size)  # zeros that take no memory until they are used
        self._file = file
        # A map without a descriptor of its own.
        view = map_descriptor(file.descriptor, size, is_shared=True)
        self._rows: npt.NDArray[Any] = np.frombuffer(view, ROW)

    def claim_row(self, folders: Sequence[int]) -> npt.NDArray[Any] | None:
        """Return a row for this process, shape (1,), or None if all are used.

        A row of a dead process of this rank keeps its counts, to which the new process adds.
        ``folders`` are the numbers of its cache folders, see `folder_ids`.
        """
        owner, process = self._file.owner, os.getpid()  # main process of the rank, this process
        with self._file.locked():
            for number in range(ROWS):
                row = self._rows[number : number + 1]
                pid = int(row["process"][0])
                is_free = not pid or (row["owner"][0] == owner and not is_process(pid))
                if is_free or pid == process:
                    row["owner"], row["process"] = owner, process
                    row["folders"][0, : len(folders)] = folders
                    return row
        return None

    @property
    def inode(self) -> int:
        """Inode of the table's file."""
        return os.fstat(self._file.descriptor).st_ino

    def rows_of_all(self) -> npt.NDArray[Any]:
        """Return a copy of all rows, shape (ROWS,): of all ranks that share the table."""
        rows: npt.NDArray[Any] = self._rows.copy()
        return rows

    def rows_of_rank(self) -> npt.NDArray[Any]:
        """Return a copy of the rows of this rank, shape (n,)."""
        rows: npt.NDArray[Any] = self._rows[self._rows["owner"] == self._file.owner]
        return rows

    def __getstate__(self) -> dict[str, Any]:
        return {"_file": self._file} if self._file.is_handed_on() else {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(state["_file"] if "_file" in state else RankFile("mds-counters"))


_LINK = "/memfd:mds-counters (deleted)"  # what /proc shows as the path of a table


def read_node_rows(
    processes: Iterable[int], folders: Sequence[int], own: Mapping[int, npt.NDArray[np.void]]
) -> npt.NDArray[np.void]:
    """Return the rows of living ranks that use one of some cache folders, shape (n,).

    Processes of other users and in other containers are not visible.

    Args:
        processes: Ids of the processes that use the folders, by their ledgers.
        folders: Numbers of the folders, see `folder_ids`.
        own: Rows of this process's table, by the inode of the table.
    """
    tables = dict(own)  # by inode, since several processes have the same table open
    for process in processes:
        for path in _tables_of(process):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode not in tables:
                    data = file.read()
                    tables[inode] = np.frombuffer(data, ROW, len(data) // ROW.itemsize)
    rows = np.concatenate([*tables.values()])
    rows = rows[np.isin(rows["folders"], list(folders)).any(axis=1)]
    return rows[[is_process(int(owner)) for owner in rows["owner"]]]


def _tables_of(process: int) -> Iterator[str]:
    """Yield the paths in /proc of the counter tables that a process has open.

    ``process`` is its id. Nothing is yielded if the process is not visible or has ended.
    """
    folder = f"/proc/{process}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                if os.readlink(path) == _LINK:
                    yield path
