"""The incumbent's ``base.batching``, and its tables of algorithms by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mds.plan import OrderSpec, epoch_order, get_partitions
from mds.plan.rows import ALGORITHMS
from mds.plan.spec import BATCHING
from mds.shuffle import algos as shuffles
from mds.shuffle import get_shuffle

if TYPE_CHECKING:
    from mds.world import World

_SPEC = (
    "batch_size",
    "num_canonical_nodes",
    "partition_algo",
    "sampling_granularity",
    "sampling_method",
    "shuffle",
    "shuffle_algo",
    "shuffle_block_size",
    "shuffle_seed",
)


def generate_work(
    batching_method: str, dataset: Any, world: World, epoch: int, sample_in_epoch: int
) -> NDArray[np.int64]:
    """All sample ids of an epoch of a dataset, as (nodes, ranks, workers, batches, batch).

    ``world`` counts as it is, after replication. -1 is padding.
    """
    sizes = dataset.samples_per_shard
    ends = [*dataset.shard_offset_per_stream[1:], len(sizes)]
    spec = {name: getattr(dataset, name) for name in _SPEC}
    nodes = spec["num_canonical_nodes"] or 0
    resume = None
    if sample_in_epoch:
        resume = {
            "epoch": epoch,
            "sample_in_epoch": sample_in_epoch,
            "num_canonical_nodes": nodes or _canonical(spec, world),
            "shuffle_seed": spec["shuffle_seed"],
            "initial_physical_nodes": dataset.initial_physical_nodes,
        }
    return epoch_order(
        [
            {"shards": sizes[start:end], "choose": stream.choose}
            for start, end, stream in zip(
                dataset.shard_offset_per_stream, ends, dataset.streams, strict=True
            )
        ],
        world,
        epoch=epoch,
        resume=resume,
        batching_method=batching_method,
        **spec,
    )


def _canonical(spec: dict[str, Any], world: World) -> int:
    return OrderSpec(None, shuffle_algo=spec["shuffle_algo"]).canonical_nodes(world.num_nodes)


Algorithms = dict[str, Callable[..., NDArray[np.int64]]]

batching_methods: Algorithms = {name: partial(generate_work, name) for name in BATCHING}
shuffle_algos: Algorithms = {name: partial(get_shuffle, name) for name in shuffles}
partition_algos: Algorithms = {name: partial(get_partitions, name) for name in ALGORITHMS}
