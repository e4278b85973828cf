"""Performance counters of a cache: sums that only grow, by process, rank and node.

Each process counts for itself. What it counts it also adds to rows of numbers in memory that others
see, those of its rank (`CounterTable`). So the process that asks for them has those of its workers,
also of workers that have ended.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.process.fork_safe import new_lock

if TYPE_CHECKING:
    import numpy.typing as npt

MAX_FOLDERS = 32  # of a dataset that are noted
#: Counts and bytes.
COUNTS = (
    "fetched_shards",
    "fetched_bytes",
    "ranged_reads",
    "ranged_bytes",
    "hits",  # shards that were there when they were asked for
    "misses",
    "in_memory_shards",  # for want of room
    "replaced_files",  # damaged, or of another dataset
    "retries",
    "evicted_shards",
    "evicted_bytes",
    "waits",
)
ROW = np.dtype(
    [
        ("owner", "i8"),  # process of the rank; 0 is a row that was never used
        ("process", "i8"),  # which counts here now, or did last
        ("folders", "u8", (MAX_FOLDERS,)),  # cache folders of the dataset, see `folder_ids`
        *((name, "i8") for name in COUNTS),
        ("waited_seconds", "f8"),
        ("longest_wait", "f8"),
        ("longest_wait_for", "S64"),  # the end of a longer name
    ]
)
SUMMED = (*COUNTS, "waited_seconds")


class Counters:
    """Counts of one process since it first used its cache. Bytes, seconds, or times."""

    def __init__(self, row: npt.NDArray[Any] | None = None) -> None:
        self._own = np.zeros(1, ROW)
        #: Also the row that others see.
        self._rows = [self._own] if row is None else [self._own, row]
        self._lock = new_lock()

    def add(self, **amounts: float) -> None:
        """Add to several counts at once."""
        with self._lock:
            for row in self._rows:
                for name, amount in amounts.items():
                    row[name] += amount

    def add_wait(self, seconds: float, what: str) -> None:
        """The consumer waited so long for something."""
        with self._lock:
            for row in self._rows:
                row["waits"] += 1
                row["waited_seconds"] += seconds
                if seconds > row["longest_wait"][0]:
                    row["longest_wait"] = seconds
                    row["longest_wait_for"] = what.encode()[-ROW["longest_wait_for"].itemsize :]

    def __getitem__(self, name: str) -> int:
        """A count of this process alone."""
        return int(self._own[name][0])


def sum_rows(rows: npt.NDArray[Any]) -> dict[str, Any]:
    """The counts of several rows by name: sums, and the longest of all waits."""
    out: dict[str, Any] = {name: rows[name].sum().item() for name in SUMMED}
    longest = rows[int(rows["longest_wait"].argmax())] if len(rows) else np.zeros(1, ROW)[0]
    out["longest_wait"] = float(longest["longest_wait"])
    out["longest_wait_for"] = bytes(longest["longest_wait_for"]).decode(errors="replace")
    return out


def folder_ids(folders: Sequence[str]) -> list[int]:
    """Numbers of cache folders, the same in every process, by which path soever they are named."""
    paths = [os.path.realpath(folder).encode() for folder in folders[:MAX_FOLDERS]]
    digests = [hashlib.blake2s(path, digest_size=8).digest() for path in paths]
    return [int.from_bytes(digest, "little") | 1 for digest in digests]
