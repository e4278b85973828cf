"""Number of packs of an epoch: counted once, kept in a file of the cache folder, or estimated.

An epoch is packed to count its packs, which takes about a second for a million documents.
"""

from __future__ import annotations

import math
import os
import threading
from typing import TYPE_CHECKING, NamedTuple

from mds._cache.order_files import PackFile
from mds._cache.source import cache_root
from mds._process.fork_safe import new_lock
from mds.plan._pack_filling import packs_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mds.plan import EpochPlan
    from mds.plan._pack_filling import PackFilling

    #: Numbers of packs: an array of shape (windows,) for each canonical node.
    Counts = list[NDArray[np.int64]]

COUNTED_AT_ONCE = 1_000_000  # samples, about a second's work


class PackCount(NamedTuple):
    """Number of packs of an epoch, and of its global batches.

    ``filled`` is the share of the space for tokens in all packs that tokens fill, 0 to 1.
    ``is_exact`` is False if the epoch was not packed yet and ``packs`` and ``steps`` are estimates.
    """

    packs: int
    steps: int
    filled: float
    is_exact: bool


def count_packs(plan: EpochPlan) -> PackCount:
    """Count the packs of an epoch, or estimate them if that would take long.

    A large epoch is counted by a thread, once on a node.
    """
    packs = packs_of(plan.filling)
    counts = counts_by_key.find(packs)
    if counts is None and plan.epoch_size <= COUNTED_AT_ONCE:
        counts = counts_by_key.count(packs)
    if counts is not None:
        count, steps = sum(int(window_counts.sum()) for window_counts in counts), plan.epoch_steps
    else:
        counts_by_key.begin(packs)
        count = estimate_packs(packs)
        steps = -(-count // plan.shape.global_batch)
    # Share of the space in all packs that tokens fill; estimated tokens may exceed the space.
    filled = min(_tokens(packs) / max(count * packs.packing.room, 1), 1.0)
    return PackCount(count, steps, filled, is_exact=counts is not None)


def estimate_packs(packs: PackFilling) -> int:
    """Estimate the number of packs of an epoch from the mean length of a document.

    The last pack of each window of documents is taken to be half full.
    """
    return math.ceil(_tokens(packs) / packs.packing.room + int(packs.windows.sum()) / 2)


def _tokens(packs: PackFilling) -> float:
    """Estimate the tokens of an epoch, from the tokens of all documents of the dataset."""
    count = packs.lengths.count
    tokens = packs.packing.estimate_tokens(packs.lengths.total, count)
    return packs.inputs.weights.epoch_size * tokens / max(count, 1)


class _KnownCounts:
    """Numbers of packs of each window of documents, for the epochs that were packed.

    They are kept in memory for the last few epochs, and in a file of the cache folder for each.
    ``packs.key()`` is a text that is equal for epochs with the same packs.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._counts: dict[str, Counts] = {}
        self._threads: dict[str, threading.Thread] = {}

    def find(self, packs: PackFilling) -> Counts | None:
        """Return the counts known in this process or in a file, or None."""
        key = packs.key()
        with self._lock:
            if key in self._counts:
                return self._counts[key]
        counts = self._file(key, packs).read()
        return None if counts is None else self._keep(key, counts)

    def count(self, packs: PackFilling) -> Counts:
        """Return the counts of an epoch, packing it if they are not known yet."""
        key = packs.key()
        with self._lock:
            if key in self._counts:
                return self._counts[key]
        return self._keep(key, self._file(key, packs).ensure(packs.count))

    def begin(self, packs: PackFilling) -> None:
        """Begin to count the packs of an epoch in a thread, unless one does so already."""
        key = packs.key()
        with self._lock:
            thread = self._threads.get(key)
            if thread is None or not thread.is_alive():
                # A daemon, so that the program can end while it counts.
                thread = threading.Thread(
                    target=self.count, args=(packs,), name="mds-packs", daemon=True
                )
                self._threads = {key: thread}  # threads of earlier epochs end by themselves
                thread.start()

    def join(self) -> None:
        """Wait for the threads that count."""
        for thread in list(self._threads.values()):
            thread.join()

    def _keep(self, key: str, counts: Counts) -> Counts:
        """Keep counts in memory, in place of the oldest ones if there are many; return them."""
        with self._lock:
            while len(self._counts) > 8:
                del self._counts[next(iter(self._counts))]
            self._counts[key] = counts
        return counts

    @staticmethod
    def _file(key: str, packs: PackFilling) -> PackFile:
        return PackFile(key, packs.windows, os.path.join(cache_root(), "orders"))


counts_by_key = _KnownCounts()
