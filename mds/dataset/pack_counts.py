"""Number of packs of an epoch: known, in a file, or counted by a thread."""

from __future__ import annotations

import math
import os
import threading
import warnings
from typing import TYPE_CHECKING, NamedTuple

from mds.cache.computed_files import PackFile
from mds.cache.source import cache_root
from mds.plan import PackPlan
from mds.process.fork_safe import new_lock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mds.dataset.order_state import OrderState
    from mds.world import World

    Counts = list[NDArray[np.int64]]

_COUNTED_AT_ONCE = 1_000_000  # samples, about a second's work


class PackCount(NamedTuple):
    """Packs of an epoch, exact or estimated."""

    packs: int
    #: The share of all places that have a token.
    filled: float
    is_exact: bool


def count_packs(plan: PackPlan) -> PackCount:
    """Count the packs of an epoch, or estimate them if that would take long.

    A large epoch is counted by a thread, once on a node.
    """
    counts = _counts_by_key.find(plan)
    if counts is None and plan.plan.epoch_size <= _COUNTED_AT_ONCE:
        counts = _counts_by_key.count(plan)
    if counts is not None:
        packs = sum(int(of_node.sum()) for of_node in counts)
    else:
        _counts_by_key.begin(plan)
        packs = estimate_packs(plan)
    filled = min(_tokens(plan) / max(packs * plan.packing.room, 1), 1.0)
    return PackCount(packs, filled, is_exact=counts is not None)


def count_steps(order: OrderState, world: World, *, drop_last: bool = False) -> int:
    """Return the batches of an epoch of packs: of the one under way, or else of the next.

    A small dataset is packed for it, once an epoch. Of a large one it is an estimate, with a
    warning, until a thread of this process has packed the epoch.
    """
    last = order.epochs.last
    epoch = last.position.epoch if last is not None else max(order.epochs.next_epoch, 0)
    plan = order.epoch_order(epoch, world)
    assert isinstance(plan, PackPlan)
    total, _, is_exact = count_packs(plan)
    if not is_exact:
        warnings.warn(
            f"len() is an estimate: about {total:,} packs an epoch. It is exact once a thread of "
            "this process has packed the epoch, and when this run starts again.",
            stacklevel=3,
        )
    batch = plan.shape.global_batch
    return total // batch if drop_last else -(-total // batch)


def load_counts(plan: PackPlan) -> PackPlan:
    """Return the plan with the packs of each window, which are counted unless they are known."""
    plan.counts = _counts_by_key.count(plan)
    return plan


def estimate_packs(plan: PackPlan) -> int:
    """Estimate the packs of an epoch by the mean length, with half a pack of padding a window."""
    return math.ceil(_tokens(plan) / plan.packing.room + int(plan.windows.sum()) / 2)


def _tokens(plan: PackPlan) -> float:
    count = plan.lengths.count
    tokens = plan.packing.estimate_tokens(plan.lengths.total, count)
    return plan.plan.epoch_size * tokens / max(count, 1)


class _KnownCounts:
    """Packs of each window, by the key of the plan."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._counts: dict[str, Counts] = {}
        self._threads: dict[str, threading.Thread] = {}

    def find(self, plan: PackPlan) -> Counts | None:
        """Return the counts known in this process or in a file, or None."""
        key = plan.key()
        with self._lock:
            if key in self._counts:
                return self._counts[key]
        counts = self._file(key, plan).read()
        return None if counts is None else self._keep(key, counts)

    def count(self, plan: PackPlan) -> Counts:
        """Return the counts, after packing the epoch unless they are known."""
        key = plan.key()
        with self._lock:
            if key in self._counts:
                return self._counts[key]
        return self._keep(key, self._file(key, plan).ensure(plan.count))

    def begin(self, plan: PackPlan) -> None:
        """Count in a thread of this process, once."""
        key = plan.key()
        with self._lock:
            thread = self._threads.get(key)
            if thread is None or not thread.is_alive():
                # It ends with the process, whatever it is at.
                thread = threading.Thread(
                    target=self.count, args=(plan,), name="mds-packs", daemon=True
                )
                self._threads = {key: thread}
                thread.start()

    def join(self) -> None:
        """Wait for the threads that count."""
        for thread in list(self._threads.values()):
            thread.join()

    def _keep(self, key: str, counts: Counts) -> Counts:
        with self._lock:
            while len(self._counts) > 8:
                del self._counts[next(iter(self._counts))]
            self._counts[key] = counts
        return counts

    @staticmethod
    def _file(key: str, plan: PackPlan) -> PackFile:
        return PackFile(key, plan.windows, os.path.join(cache_root(), "orders"))


_counts_by_key = _KnownCounts()
