"""Performance counters of all ranks of a node that share a cache folder, whatever job they are of.

A rank counts in nameless memory (`CounterTable`). The ledger of a cache folder knows the processes
that use it, and the system lets a user open what his own processes have open (Linux: /proc). So
nothing is kept for it, nothing has a name, and nothing is left.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mds.cache.counters import ROW
from mds.storage.files import is_process

if TYPE_CHECKING:
    import numpy.typing as npt

_LINK = "/memfd:mds-counters (deleted)"


def read_node_rows(
    processes: Iterable[int], folders: Sequence[int], own: Mapping[int, npt.NDArray[np.void]]
) -> npt.NDArray[np.void]:
    """The rows of living ranks that read through one of these cache folders.

    ``processes`` use the folders, by the numbers that their ledgers have; ``folders`` are numbers
    of `folder_ids`; ``own`` are the rows that are at hand, by the inode of their table. Processes
    of other users and containers are not seen.
    """
    tables = dict(own)
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
    """The tables of counters that a process has open; none where that cannot be seen."""
    folder = f"/proc/{process}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                if os.readlink(path) == _LINK:
                    yield path
