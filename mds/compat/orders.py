"""Sample order of an epoch as a whole array, as `streaming.base.batching` makes it.

A dataset's own order comes from its plan, and each worker computes its part alone. Where code has
replaced a function of the order or overrides a method, each worker computes the whole epoch with
it, as in mosaicml-streaming, and takes its part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mds.compat.algorithms import get_partitions, get_shuffle, partition_algos
from mds.compat.overrides import LiveRegistry, replacement
from mds.errors import ConfigError, SealedNameError, UnknownNameError
from mds.plan.spec import BATCHING_METHODS
from mds.plan.state import Position, ResumePoint, parse_state

if TYPE_CHECKING:
    from mds.world import World

Ids = NDArray[np.int64]
#: A StreamingDataset of the door, whose module imports this one.
Dataset = Any
_RANDOM = "streaming.base.batching.random"


def generate_work(
    batching_method: str, dataset: Dataset, world: World, epoch: int, sample_in_epoch: int
) -> Ids:
    """Return all sample ids of an epoch as (nodes, ranks, workers, batches, batch).

    -1 is padding. ``world``: after replication. Raises UnknownNameError for an unknown method.
    """
    if batching_method not in batching_methods:
        raise UnknownNameError(
            f"no batching_method {batching_method!r}: choose one of {', '.join(batching_methods)}."
        )
    return batching_methods[batching_method](dataset, world, epoch, sample_in_epoch)


def _batching_of(method: str) -> Callable[..., Ids]:
    def generate(dataset: Dataset, world: World, epoch: int, sample_in_epoch: int) -> Ids:
        if not has_replaced_parts(dataset):
            return _planned(method, dataset, world, epoch, sample_in_epoch)
        if method != "random":
            raise SealedNameError(
                f"resample_streams, partition.algos and functions of {_RANDOM} are called for "
                f"batching_method 'random' only, not for {method!r}. Put a function of your own "
                f"into streaming.base.batching.batching_methods[{method!r}] instead."
            )
        return _composed(dataset, world, epoch, sample_in_epoch)

    generate.__name__ = generate.__qualname__ = f"generate_work_{method}_batching"
    generate.__doc__ = f"Return all sample ids of an epoch, in batches made by {method!r}."
    return generate


batching_methods: LiveRegistry[str, Callable[..., Ids]] = LiveRegistry(
    "batching_methods", {name: _batching_of(name) for name in BATCHING_METHODS}
)
generate_work_random_batching = batching_methods["random"]
generate_work_stratified_batching = batching_methods["stratified"]
generate_work_per_stream_batching = batching_methods["per_stream"]
generate_work_device_per_stream_batching = batching_methods["device_per_stream"]


def has_replaced_order(dataset: Dataset) -> bool:
    """Whether code has replaced a function that makes the order of this dataset."""
    return (
        replacement("streaming.base.dataset", "generate_work") is not None
        or not batching_methods.is_original(dataset.batching_method)
        or has_replaced_parts(dataset)
    )


def has_replaced_parts(dataset: Dataset) -> bool:
    """Whether code has replaced a function that `generate_work_random_batching` calls."""
    return (
        dataset._has_own_resampling  # noqa: SLF001 - a dataset's other half
        or replacement(_RANDOM, "get_partitions", "get_shuffle") is not None
        or not partition_algos.is_original(dataset.partition_algo)
    )


def work_of(dataset: Dataset, world: World, epoch: int, sample_in_epoch: int) -> Ids:
    """Return the ids of worker ``world.worker``: 1-D int64, -1 for padding.

    Calls `generate_work` or what code has put in its place. Raises ConfigError if that returns
    something else than an array for this world.
    """
    generate = replacement("streaming.base.dataset", "generate_work") or generate_work
    work = generate(dataset.batching_method, dataset, world, epoch, sample_in_epoch)
    work = np.asarray(work)
    places = (world.num_nodes, world.ranks_per_node, world.workers_per_rank)
    if work.ndim != 5 or work.shape[:3] != places or work.dtype.kind not in "iu":
        raise ConfigError(
            f"the order of epoch {epoch} must be integers of shape (nodes, ranks, workers, batches,"
            f" batch) for (nodes, ranks, workers) = {places}; {_name_of(generate)} returned "
            f"{work.dtype} of shape {work.shape}."
        )
    part = work[world.node, world.rank_of_node, world.worker_of_rank]
    return np.ascontiguousarray(part.reshape(-1), np.int64)


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", repr(function))


def _planned(method: str, dataset: Dataset, world: World, epoch: int, sample_in_epoch: int) -> Ids:
    """Return the order that the dataset's plan makes."""
    order = dataset._order  # noqa: SLF001 - a dataset's other half
    spec = dataclasses.replace(order.spec, batching_method=method)
    position = Position(epoch, sample_in_epoch)
    start = ResumePoint(position)
    if sample_in_epoch:
        start = parse_state(dataset.state_dict(sample_in_epoch, True)).at(position)
    plan = order.plan(start, world, spec)
    parts = [
        np.concatenate([np.zeros(0, np.int64), *plan.blocks(node, rank, worker)])
        for node in range(world.num_nodes)
        for rank in range(world.ranks_per_node)
        for worker in range(world.workers_per_rank)
    ]
    shape = (world.num_nodes, world.ranks_per_node, world.workers_per_rank, -1, plan.shape.batch)
    return np.array(parts).reshape(shape)


def _composed(dataset: Dataset, world: World, epoch: int, sample_in_epoch: int) -> Ids:
    """Return the order for batching_method 'random', made by functions that code has replaced."""
    partition: Callable[..., Ids] = replacement(_RANDOM, "get_partitions") or get_partitions
    shuffle: Callable[..., Ids] = replacement(_RANDOM, "get_shuffle") or get_shuffle
    sizes, sample_ids = dataset.resample_streams(epoch)
    places = partition(
        dataset.partition_algo,
        dataset.epoch_size,
        dataset.num_canonical_nodes,
        world.num_nodes,
        world.ranks_per_node,
        world.workers_per_rank,
        dataset.batch_size,
        sample_in_epoch,
        dataset.initial_physical_nodes,
    )
    if dataset.shuffle:
        order = shuffle(
            dataset.shuffle_algo,
            sizes,
            dataset.num_canonical_nodes,
            dataset.shuffle_seed,
            epoch,
            dataset.shuffle_block_size,
        )
        places = np.where(places >= 0, order[places], -1)
    return np.where(places >= 0, sample_ids[places], -1)


def resample(dataset: Dataset, epoch: int, stream_id: int | None = None) -> tuple[Ids, Ids]:
    """Return the samples of each shard to shuffle, and the sample id of each place before it.

    Both int64: (shards,) and (samples,), of one stream or of all.
    """
    method = "random" if stream_id is None else "per_stream"
    order = dataset._order  # noqa: SLF001 - a dataset's other half
    spec = dataclasses.replace(order.spec, batching_method=method)
    world = dataset._world()  # noqa: SLF001 - a dataset's other half
    plan = order.plan(ResumePoint(Position(epoch)), world, spec)
    streams = plan.inputs.streams()
    if not streams or (stream_id is not None and stream_id not in streams):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    stream: Any = plan.orders[0 if stream_id is None else streams.index(stream_id)]
    sampling = stream.resampling
    ids = sampling.to_sample_ids(np.arange(sampling.samples, dtype=np.int64))
    return np.asarray(sampling.virtual_shards, np.int64), ids
