"""The packs of one worker in one epoch, and what packing does not go together with."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mds.dataset.epoch_counter import EpochStart
from mds.dataset.lengths import SelectedLengths, open_lengths
from mds.dataset.pack_counts import count_packs
from mds.dataset.worker_epoch import OpenWindows
from mds.errors import ConfigError
from mds.plan import PackPlan

if TYPE_CHECKING:
    from mds.plan.pack_plan import RankPacks
    from mds.world import World


class PackedEpoch(OpenWindows):
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
    total, _, is_exact = count_packs(plan)
    if not is_exact:
        warnings.warn(
            f"len() is an estimate: about {total:,} packs an epoch. It is exact once a thread of "
            "this process has packed the epoch, and when this run starts again.",
            stacklevel=3,
        )
    batch = plan.shape.global_batch
    return total // batch if drop_last else -(-total // batch)


def check_packed(dataset: Any) -> None:
    """Refuse what packs cannot be made with (ConfigError)."""
    packing = dataset.packing
    is_made = dataset._filter.chain.maps or dataset._has_own_items
    if not is_made and packing.lengths not in dataset._columns:
        raise ConfigError(
            f"Packing counts the lengths of column {packing.lengths!r}, and columns= leaves it out."
        )
    if packing.budget is not None and dataset.batch_size not in (None, 1):
        raise ConfigError(
            f"Packing(budget=...) makes a batch of each pack, and batch_size is "
            f"{dataset.batch_size}: use batch_size=1."
        )
