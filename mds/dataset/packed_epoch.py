"""The packs of one worker in one epoch, and what packing does not go together with."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mds.dataset.epoch_counter import EpochStart
from mds.dataset.lengths import SelectedLengths, open_lengths
from mds.errors import ConfigError
from mds.plan import PackPlan
from mds.process.fork_safe import new_lock

if TYPE_CHECKING:
    from mds.plan.pack_plan import RankPacks
    from mds.world import World

_COUNTED_AT_ONCE = 1_000_000  # samples, about a second's work
_FILLED = 0.9995  # of a pack, by measurements


class PackedEpoch:
    """Packs of worker ``world.worker`` in one epoch, from where its plan begins."""

    def __init__(self, plan: PackPlan, world: World) -> None:
        self.plan, self.world = plan, world

    @property
    def begun(self) -> tuple[int, int]:
        """The epoch, and the pack of all ranks at which its plan begins."""
        return self.plan.epoch, self.plan.position

    def steps(self) -> Iterator[RankPacks]:
        """The packs of this worker, batch by batch."""
        world = self.world
        return self.plan.rank_packs(world.node, world.rank_of_node, world.worker_of_rank)


def document_lengths(dataset: Any) -> SelectedLengths:
    """The lengths of a dataset's samples, found when they are first asked for."""
    packing = dataset.packing
    assert packing is not None
    if dataset._lengths is None:
        joined = open_lengths(dataset._cache.sources, packing.lengths)
        dataset._lengths = SelectedLengths(joined, dataset._shards)
    found: SelectedLengths = dataset._lengths
    return found


def packed_steps(dataset: Any, *, drop_last: bool = False) -> int:
    """Batches of an epoch of packs: of the one under way, or else of the next.

    A small dataset is packed for it, once an epoch. Of a large one it is an estimate, with a
    warning that says so, until a thread of this process has packed the epoch.
    """
    start = dataset._order.epochs.last or EpochStart(max(dataset.next_epoch, 0), None)
    plan = PackPlan(
        dataset._order.plan(EpochStart(start.epoch, None), dataset._world()),
        document_lengths(dataset),
    )
    total = _tables.total(plan, dataset.num_samples)
    if total is None:
        total = estimate_packs(plan, dataset.num_samples)
        warnings.warn(
            f"len() is an estimate: about {total:,} packs an epoch. It is exact once a thread of "
            "this process has packed the epoch.",
            stacklevel=3,
        )
    batch = plan.shape.global_batch
    return total // batch if drop_last else -(-total // batch)


def count_packs(plan: PackPlan) -> int:
    """How many packs an epoch has; a process packs it once for that."""
    return _tables.count(plan)


def estimate_packs(plan: PackPlan, samples: int) -> int:
    """About how many packs an epoch has, by the sum of all lengths."""
    share = plan.plan.epoch_size / max(samples, 1)
    return math.ceil(plan.lengths.total * share / plan.packing.room / _FILLED)


class _Tables:
    """How many packs epochs of this process have, counted once each."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._totals: dict[str, int] = {}
        self._counting: dict[str, threading.Thread] = {}

    def total(self, plan: PackPlan, samples: int) -> int | None:
        """The packs of an epoch; None where a thread is at work to count them."""
        key = plan.key()
        with self._lock:
            if key in self._totals or key in self._counting:
                return self._totals.get(key)
            if samples > _COUNTED_AT_ONCE:
                thread = threading.Thread(target=self._count, args=(key, plan), daemon=True)
                self._counting[key] = thread
                thread.start()
                return None
        return self.count(plan)

    def count(self, plan: PackPlan) -> int:
        """The packs of an epoch, counted here unless they were."""
        key = plan.key()
        with self._lock:
            is_known = key in self._totals
        if not is_known:
            self._count(key, plan)
        return self._totals[key]

    def _count(self, key: str, plan: PackPlan) -> None:
        total: int = plan.table.total
        with self._lock:
            self._totals[key] = total
            self._counting.pop(key, None)


_tables = _Tables()


def check_packed(dataset: Any) -> None:
    """Refuse what packs cannot be made with (ConfigError)."""
    packing = dataset.packing
    chain = dataset._filter.chain
    if chain.maps or chain.of_batches or not dataset._filter.keeps_everything:
        raise ConfigError(
            "packing= decides on lengths as they are stored, and map(), filter() and "
            "on_error='skip' change samples after that: convert the dataset with them first, or "
            "change the batches of the loader."
        )
    if dataset._has_own_items:
        raise ConfigError(
            f"packing= reads samples as they are stored, and {type(dataset).__name__} makes its "
            "own in __getitem__ or get_item: use a plain StreamingDataset."
        )
    if packing.lengths not in dataset._columns:
        raise ConfigError(
            f"Packing counts the lengths of column {packing.lengths!r}, and columns= leaves it out."
        )
    if packing.budget is not None and dataset.batch_size not in (None, 1):
        raise ConfigError(
            f"Packing(budget=...) makes a batch of each pack, and batch_size is "
            f"{dataset.batch_size}: use batch_size=1."
        )
