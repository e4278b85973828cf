"""The incumbent's ``base.batching``, and its tables of algorithms by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mds.epochs import Turn
from mds.plan import get_partitions
from mds.plan.rows import ALGORITHMS
from mds.plan.spec import BATCHING
from mds.shuffle import algos as shuffles
from mds.shuffle import get_shuffle

if TYPE_CHECKING:
    from mds.plan import EpochPlan
    from mds.samples import Samples
    from mds.world import World

Algorithms = dict[str, Callable[..., NDArray[np.int64]]]


def generate_work(
    batching_method: str, dataset: Samples, world: World, epoch: int, sample_in_epoch: int
) -> NDArray[np.int64]:
    """All sample ids of an epoch of a dataset, as (nodes, ranks, workers, batches, batch).

    ``world`` counts as it is, after replication. -1 is padding.
    """
    view: Any = copy.copy(dataset)
    view.batching_method = batching_method
    resume = None
    if sample_in_epoch:
        resume = {**dataset.state_dict(sample_in_epoch, True), "epoch": epoch}
    plan: EpochPlan = view.plan(Turn(epoch, resume), world)
    return np.array(
        [
            [
                [
                    np.concatenate([np.zeros(0, np.int64), *plan.blocks(node, rank, worker)])
                    for worker in range(world.workers_per_rank)
                ]
                for rank in range(world.ranks_per_node)
            ]
            for node in range(world.num_nodes)
        ]
    ).reshape(world.num_nodes, world.ranks_per_node, world.workers_per_rank, -1, plan.shape.batch)


batching_methods: Algorithms = {name: partial(generate_work, name) for name in BATCHING}
shuffle_algos: Algorithms = {name: partial(get_shuffle, name) for name in shuffles}
partition_algos: Algorithms = {name: partial(get_partitions, name) for name in ALGORITHMS}
