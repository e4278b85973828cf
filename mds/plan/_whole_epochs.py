"""Whole epochs of samples in one array, for small orders and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mds.plan._epoch import EpochPlan, SampleFilling
from mds.plan._global_batches import PartitionSpec, RandomBatches, Shape
from mds.plan._spec import PARTITION_ALGOS, check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from mds._words import PartitionAlgo
    from mds.plan._global_batches import GlobalBatches
    from mds.world import World

    Ids = NDArray[np.int64]

_CHUNK_IDS = 1 << 18  # ids that are looked up at once


def epoch_order(streams: Sequence[Mapping[str, Any]], world: World, **order: Any) -> Ids:
    """Return all ids of an epoch, int64 (nodes, ranks, workers, batches, batch), -1 for padding.

    Use it for small orders and tests: all ids are in memory. `EpochPlan` computes any part alone.

    - ``streams`` (Sequence[Mapping]): As those of `EpochPlan`, with the samples of each shard.
    - ``world`` (World): Nodes, ranks and workers, before replication.
    - ``order``: Further arguments of `EpochPlan`, such as ``batch_size`` and ``shuffle``.

    Raises the errors of `EpochPlan`.

    >>> world = mds.World(num_nodes=1, ranks_per_node=2, workers_per_rank=1, worker=0)
    >>> epoch_order([{"shards": [4, 4]}], world, batch_size=2)[0, 1, 0].tolist()  # node 0, rank 1
    [[1, 3], [5, 7]]
    """
    plan = EpochPlan(streams, world, **order)
    filling = plan.filling
    assert isinstance(filling, SampleFilling)
    batches = filling.global_batches
    lookups = [each.materialize() for each in plan.orders]
    if plan.spec.microbatches == 1:
        return all_batches(plan.shape, batches, lookups)
    # All micro-batches of each rank, which are then dealt to its workers.
    nodes, ranks, workers, _ = plan.shape
    ids = all_batches(plan.shape._replace(workers=1), batches, lookups)
    microbatches = ids.reshape(nodes, ranks, -1, plan.inputs.microbatch)
    lacking = -microbatches.shape[2] % workers  # of the last round
    microbatches = np.pad(microbatches, ((0, 0), (0, 0), (0, lacking), (0, 0)), constant_values=-1)
    rounds = microbatches.reshape(nodes, ranks, -1, workers, plan.inputs.microbatch)
    by_worker: Ids = rounds.swapaxes(2, 3)
    return by_worker


def get_partitions(
    algo: PartitionAlgo,
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> Ids:
    """Return the positions that each worker gets, -1 for padding.

    - ``algo`` (str): ``"orig"`` or ``"relaxed"``.
    - ``num_samples`` (int): Positions to deal, from 0 on.
    - ``num_canonical_nodes`` (int): Canonical nodes.
    - ``num_physical_nodes`` (int): Nodes of the world.
    - ``ranks_per_node`` (int): Ranks of a node.
    - ``workers_per_rank`` (int): Workers of a rank.
    - ``batch_size`` (int): Samples of a batch of one rank.
    - ``drop_first`` (int, default 0): Samples that were seen before.
    - ``initial_physical_nodes`` (int | None, default None): Nodes with which the run began.

    Returns int64 of shape (nodes, ranks, workers, batches, batch size). Raises UnknownNameError for
    an unknown ``algo`` and PlanError for numbers that do not fit.

    >>> ids = get_partitions("relaxed", 8, 1, 1, ranks_per_node=2, workers_per_rank=1, batch_size=2)
    >>> ids[0, 1, 0].tolist()  # node 0, rank 1, worker 0
    [[1, 3], [5, 7]]
    """
    check_name("partition_algo", algo, PARTITION_ALGOS)
    shape = Shape(num_physical_nodes, ranks_per_node, workers_per_rank, batch_size)
    spec = PartitionSpec(shape, num_canonical_nodes, algo, initial_physical_nodes, drop_first)
    return all_batches(shape, RandomBatches(num_samples, spec), [_identity])


def all_batches(
    shape: Shape, batches: GlobalBatches, lookups: Sequence[Callable[[Ids], Ids]]
) -> Ids:
    """Return the ids of all global batches as one array.

    Args:
        shape: Shape of the world.
        batches: Global batches.
        lookups: For each order a function from positions to sample ids.

    The array is int64 of shape (nodes, ranks, workers, batches, batch size), -1 for padding.
    """
    # A round is a step for each worker, so rounds are batches of a worker.
    rounds = -(-batches.count // shape.workers)
    out = np.empty((shape.nodes, shape.ranks, shape.workers, rounds, shape.batch), np.int64)
    # A view of the same memory, ordered by steps: (round, worker, node, rank, place in the batch).
    by_step = out.transpose(3, 2, 0, 1, 4)
    out[:, :, :, rounds - 1 :] = -1  # the last round may lack steps
    rounds_at_once = max(1, _CHUNK_IDS // (shape.global_batch * shape.workers))
    for first in range(0, rounds, rounds_at_once):
        last = min(first + rounds_at_once, rounds)
        ids = batches.whole(
            first * shape.workers, min(last * shape.workers, batches.count), lookups
        )
        full_rounds = len(ids) // shape.workers
        grid = (shape.workers, shape.nodes, shape.ranks, shape.batch)
        full_ids = ids[: full_rounds * shape.workers]
        by_step[first : first + full_rounds] = full_ids.reshape(full_rounds, *grid)
        # Steps of a last round that has no step for some workers.
        for worker, batch in enumerate(ids[full_rounds * shape.workers :]):
            by_step[first + full_rounds, worker] = batch.reshape(grid[1:])
    return out


def _identity(positions: Ids) -> Ids:
    """Return positions as they are: a lookup of an order without a shuffle."""
    return positions
