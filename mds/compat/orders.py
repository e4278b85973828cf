"""The incumbent's ``base.batching``, a function for each method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mds.compat.overrides import SealedDict, find_remedy
from mds.plan.position import Position
from mds.plan.spec import BATCHING_METHODS
from mds.plan.state import ResumePoint, parse_state

if TYPE_CHECKING:
    from mds.dataset.samples import Samples
    from mds.world import World


def generate_work(
    batching_method: str, dataset: Samples, world: World, epoch: int, sample_in_epoch: int
) -> NDArray[np.int64]:
    """All sample ids of an epoch of a dataset, as (nodes, ranks, workers, batches, batch).

    ``world`` counts as it is, after replication. -1 is padding.
    """
    order = dataset._order  # noqa: SLF001 - a dataset's other half
    spec = dataclasses.replace(order.spec, batching_method=batching_method)
    position = Position(epoch, sample_in_epoch)
    start = ResumePoint(position)
    if sample_in_epoch:
        start = parse_state(dataset.state_dict(sample_in_epoch, True)).at(position)
    plan = order.plan(start, world, spec)
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


def _batching(method: str) -> Callable[..., NDArray[np.int64]]:
    def generate(
        dataset: Samples, world: World, epoch: int, sample_in_epoch: int
    ) -> NDArray[np.int64]:
        return generate_work(method, dataset, world, epoch, sample_in_epoch)

    generate.__name__ = generate.__qualname__ = f"generate_work_{method}_batching"
    generate.__doc__ = f"All sample ids of an epoch, in batches made by {method!r}."
    return generate


batching_methods = SealedDict(
    "streaming.base.batching.batching_methods",
    {name: _batching(name) for name in BATCHING_METHODS},
    find_remedy("batching_methods"),
)
generate_work_random_batching = batching_methods["random"]
generate_work_stratified_batching = batching_methods["stratified"]
generate_work_per_stream_batching = batching_methods["per_stream"]
generate_work_device_per_stream_batching = batching_methods["device_per_stream"]
