"""The whole epoch as one array: every global batch materialized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mds.plan.epoch import EpochPlan
from mds.plan.global_batches import PartitionSpec, RandomBatches, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from mds.plan.global_batches import GlobalBatches
    from mds.world import World

    Ids = NDArray[np.int64]

_CHUNK_IDS = 1 << 18


def epoch_order(streams: Sequence[Mapping[str, Any]], world: World, **order: Any) -> Ids:
    """Return all ids of an epoch, int64 (nodes, ranks, workers, batches, batch), -1 for padding.

    Takes the arguments of EpochPlan and raises what it raises.
    """
    plan = EpochPlan(streams, world, **order)
    return all_batches(
        plan.shape, plan.global_batches, [each.materialize() for each in plan.orders]
    )


def get_partitions(
    algo: str,
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> Ids:
    """Return positions, int64 (nodes, ranks, workers, batches, batch size), -1 for padding.

    Raises UnknownNameError for an unknown ``algo`` and PlanError for numbers that do not fit.
    """
    shape = Shape(num_physical_nodes, ranks_per_node, workers_per_rank, batch_size)
    spec = PartitionSpec(shape, num_canonical_nodes, algo, initial_physical_nodes, drop_first)
    return all_batches(shape, RandomBatches(num_samples, spec), [_identity])


def all_batches(
    shape: Shape, batches: GlobalBatches, lookups: Sequence[Callable[[Ids], Ids]]
) -> Ids:
    """Return all global batches, cut for workers."""
    count = -(-batches.count // shape.workers)
    out = np.empty((shape.nodes, shape.ranks, shape.workers, count, shape.batch), np.int64)
    # The same memory, step by step.
    by_step = out.transpose(3, 2, 0, 1, 4)
    out[:, :, :, count - 1 :] = -1
    step = max(1, _CHUNK_IDS // (shape.global_batch * shape.workers))
    for first in range(0, count, step):
        last = min(first + step, count)
        ids = batches.whole(
            first * shape.workers, min(last * shape.workers, batches.count), lookups
        )
        full = len(ids) // shape.workers
        grid = (shape.workers, shape.nodes, shape.ranks, shape.batch)
        by_step[first : first + full] = ids[: full * shape.workers].reshape(full, *grid)
        for worker, batch in enumerate(ids[full * shape.workers :]):
            by_step[first + full, worker] = batch.reshape(grid[1:])
    return out


def _identity(positions: Ids) -> Ids:
    return positions
