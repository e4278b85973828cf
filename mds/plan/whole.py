"""The whole of an epoch as one array, for those who want it so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mds.plan.epoch import EpochPlan
from mds.plan.rows import Dealing, RandomRows, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from mds.plan.rows import Rows
    from mds.world import World

    Ids = NDArray[np.int64]

_BLOCK = 1 << 18


def epoch_order(streams: Sequence[Mapping[str, Any]], world: World, **order: Any) -> Ids:
    """All ids of an epoch, int64 (nodes, ranks, workers, batches, batch size), -1 for padding.

    Takes the arguments of EpochPlan and raises what it raises.
    """
    plan = EpochPlan(streams, world, **order)
    return whole(plan.shape, plan.rows, [each.hold() for each in plan.orders])


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
    """Positions as int64 (nodes, ranks, workers, batches, batch size), -1 for padding.

    Raises UnknownNameError for an unknown ``algo`` and PlanError for numbers that do not fit.
    """
    shape = Shape(num_physical_nodes, ranks_per_node, workers_per_rank, batch_size)
    dealing = Dealing(shape, num_canonical_nodes, algo, initial_physical_nodes, drop_first)
    return whole(shape, RandomRows(num_samples, dealing), [_same])


def whole(shape: Shape, rows: Rows, takes: Sequence[Callable[[Ids], Ids]]) -> Ids:
    """All rows, cut for workers."""
    count = -(-rows.count // shape.workers)
    out = np.empty((shape.nodes, shape.ranks, shape.workers, count, shape.batch), np.int64)
    # The same memory, row by row.
    by_row = out.transpose(3, 2, 0, 1, 4)
    out[:, :, :, count - 1 :] = -1
    step = max(1, _BLOCK // (shape.row * shape.workers))
    for first in range(0, count, step):
        last = min(first + step, count)
        ids = rows.whole(first * shape.workers, min(last * shape.workers, rows.count), takes)
        full = len(ids) // shape.workers
        grid = (shape.workers, shape.nodes, shape.ranks, shape.batch)
        by_row[first : first + full] = ids[: full * shape.workers].reshape(full, *grid)
        for worker, row in enumerate(ids[full * shape.workers :]):
            by_row[first + full, worker] = row.reshape(grid[1:])
    return out


def _same(positions: Ids) -> Ids:
    return positions
