"""Sample order of an epoch: `streaming.base.batching`, `.shuffle` and `.partition`.

A dataset takes its order from its plan, of which each worker computes its own part. But if code has
replaced a function that makes the order, each worker computes the whole epoch with it, as in
mosaicml-streaming, and takes its part (`ids_of_worker`). The functions call each other as there:

    generate_work(batching_method, dataset, world, epoch, sample_in_epoch)
      -> batching_methods[batching_method](dataset, world, epoch, sample_in_epoch)
           -> dataset.resample_streams(epoch)                     "random" only
           -> get_partitions(...) -> partition_algos[partition_algo](...)
           -> get_shuffle(...) -> shuffle_algos[shuffle_algo](...)

The three registries are live: a function that code puts into one is used, under a name of its own
or in place of a built-in function.

In this package, 0.13 is mosaicml-streaming 0.13, "native" is the class of mds of the same name, and
"code" is code of the user that was written for 0.13.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import mds.plan
import mds.shuffle
from mds._dataset.run import run_of
from mds.compat._overrides import LiveRegistry, replacement
from mds.errors import ConfigError, SealedNameError, UnknownNameError
from mds.plan._spec import BATCHING_METHODS, PARTITION_ALGOS
from mds.plan._state import Position, ResumePoint, parse_state
from mds.shuffle import SequentialShuffle
from mds.shuffle._registry import algos as native_algos

if TYPE_CHECKING:
    from mds.world import World

SampleIds = NDArray[np.int64]
#: `mds.compat._dataset.StreamingDataset`; its module imports this one.
Dataset = Any
_RANDOM_BATCHING = "streaming.base.batching.random"


def _bind_name(
    function: Callable[..., Any], argument: str, name: str, doc: str
) -> Callable[..., Any]:
    """Return ``function`` with its first argument bound to ``argument``.

    The result has the given ``name`` and the docstring ``doc``, as functions of 0.13 have.
    """
    bound = functools.partial(function, argument)
    vars(bound).update(__name__=name, __qualname__=name, __module__=__name__)
    bound.__doc__ = doc
    return bound


# ---------------------------------------------------------------------- batching methods


def generate_work(
    batching_method: str, dataset: Dataset, world: World, epoch: int, sample_in_epoch: int
) -> SampleIds:
    """Return the sample ids of an epoch for all workers.

    - ``batching_method`` (str): key of `batching_methods`.
    - ``dataset`` (StreamingDataset): dataset whose samples are ordered.
    - ``world`` (World): nodes, ranks and workers, after replication.
    - ``epoch`` (int): epoch from 0.
    - ``sample_in_epoch`` (int, samples): samples of the epoch that all ranks have seen already.

    Returns int64 of shape (nodes, ranks, workers, batches, batch size), where -1 is padding. Raises
    UnknownNameError for an unknown method.
    """
    if batching_method not in batching_methods:
        raise UnknownNameError(
            f"no batching_method {batching_method!r}: choose one of {', '.join(batching_methods)}."
        )
    return batching_methods[batching_method](dataset, world, epoch, sample_in_epoch)


def _generate_work_by_method(
    method: str, dataset: Dataset, world: World, epoch: int, sample_in_epoch: int
) -> SampleIds:
    """Return the sample ids of an epoch, made by the plan or by functions that code has replaced.

    ``method``: batching method. For the other arguments and the result, see `generate_work`. Raises
    SealedNameError if functions are replaced that this batching method does not call.
    """
    if not has_replaced_parts(dataset):
        return _work_of_plan(method, dataset, world, epoch, sample_in_epoch)
    if method != "random":
        raise SealedNameError(
            f"resample_streams, partition.algos and functions of {_RANDOM_BATCHING} are called for "
            f"batching_method 'random' only, not for {method!r}. Put a function of your own "
            f"into streaming.base.batching.batching_methods[{method!r}] instead."
        )
    return _work_of_parts(dataset, world, epoch, sample_in_epoch)


batching_methods: LiveRegistry[str, Callable[..., SampleIds]] = LiveRegistry(
    f"{__name__}.batching_methods",
    {
        method: _bind_name(
            _generate_work_by_method,
            method,
            f"generate_work_{method}_batching",
            f"Return the sample ids of an epoch for all workers, in batches made by {method!r}.",
        )
        for method in BATCHING_METHODS
    },
)
generate_work_random_batching = batching_methods["random"]
generate_work_stratified_batching = batching_methods["stratified"]
generate_work_per_stream_batching = batching_methods["per_stream"]
generate_work_device_per_stream_batching = batching_methods["device_per_stream"]


def _work_of_plan(
    method: str, dataset: Dataset, world: World, epoch: int, sample_in_epoch: int
) -> SampleIds:
    """Return the order that the dataset's plan has for a batching method.

    For the arguments and the shape of the result, see `generate_work`.
    """
    order_state = run_of(dataset).order
    spec = dataclasses.replace(order_state.spec, batching_method=method)
    position = Position(epoch, sample_in_epoch)
    start = ResumePoint(position)
    if sample_in_epoch:
        # The order of the rest depends on the world in which the epoch began, which is in a state.
        start = parse_state(dataset.state_dict(sample_in_epoch, True)).at(position)
    plan = order_state.plan(start, world, spec)
    ids_per_worker = [
        np.concatenate([np.zeros(0, np.int64), *plan.blocks(node, rank, worker)])
        for node in range(world.num_nodes)
        for rank in range(world.ranks_per_node)
        for worker in range(world.workers_per_rank)
    ]
    shape = (world.num_nodes, world.ranks_per_node, world.workers_per_rank, -1, plan.shape.batch)
    return np.array(ids_per_worker).reshape(shape)


def _work_of_parts(dataset: Dataset, world: World, epoch: int, sample_in_epoch: int) -> SampleIds:
    """Return the order for batching_method "random", made by functions that code has replaced.

    First the positions 0, 1, 2, ... of the epoch are dealt out to the workers. Then the shuffle
    gives each position another one, and ``sample_ids`` gives that the id of a sample. For example,
    with ``sample_ids`` [10, 11, 12] and the shuffle [2, 0, 1], a worker with positions [0, 2] reads
    samples [12, 11]. Position -1 is padding and stays -1.

    For arguments and result, see `generate_work`.
    """
    partition: Callable[..., SampleIds] = (
        replacement(_RANDOM_BATCHING, "get_partitions") or get_partitions
    )
    shuffle: Callable[..., SampleIds] = replacement(_RANDOM_BATCHING, "get_shuffle") or get_shuffle
    shard_sizes, sample_ids = dataset.resample_streams(epoch)
    positions = partition(
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
            shard_sizes,
            dataset.num_canonical_nodes,
            dataset.shuffle_seed,
            epoch,
            dataset.shuffle_block_size,
        )
        positions = np.where(positions >= 0, order[positions], -1)
    return np.where(positions >= 0, sample_ids[positions], -1)


# ---------------------------------------------------------------------- parts of datasets


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
        dataset._has_own_resampling  # noqa: SLF001 - this module is a part of the dataset
        or replacement(_RANDOM_BATCHING, "get_partitions", "get_shuffle") is not None
        or not partition_algos.is_original(dataset.partition_algo)
    )


def ids_of_worker(dataset: Dataset, world: World, epoch: int, sample_in_epoch: int) -> SampleIds:
    """Return the sample ids of worker ``world.worker``, as the replaced functions order them.

    Calls `generate_work` or the function that code has put in its place. Returns int64 of shape
    (ids,), where -1 is padding. Raises ConfigError if that function returns anything but integers
    of shape (nodes, ranks, workers, batches, batch size) for this world.
    """
    generate = replacement("streaming.base.dataset", "generate_work") or generate_work
    work = np.asarray(generate(dataset.batching_method, dataset, world, epoch, sample_in_epoch))
    shape = (world.num_nodes, world.ranks_per_node, world.workers_per_rank)
    if work.ndim != 5 or work.shape[:3] != shape or work.dtype.kind not in "iu":
        raise ConfigError(
            f"the order of epoch {epoch} must be integers of shape (nodes, ranks, workers, batches,"
            f" batch) for (nodes, ranks, workers) = {shape}; "
            f"{getattr(generate, '__qualname__', repr(generate))} returned {work.dtype} of shape "
            f"{work.shape}."
        )
    part = work[world.node, world.rank_of_node, world.worker_of_rank]
    return np.ascontiguousarray(part.reshape(-1), np.int64)


def resample(
    dataset: Dataset, epoch: int, stream_id: int | None = None
) -> tuple[SampleIds, SampleIds]:
    """Return the samples that an epoch takes, before they are shuffled.

    ``stream_id``: index of one stream; None for all streams together. Returns two int64 arrays: the
    number of samples taken from each shard (a shard that is repeated may come several times), and
    the ids of the samples taken, in the order of the shards.
    """
    # A plan for "random" has one order for all streams, a plan for "per_stream" one for each.
    method = "random" if stream_id is None else "per_stream"
    order_state = run_of(dataset).order
    spec = dataclasses.replace(order_state.spec, batching_method=method)
    world = run_of(dataset).world()
    plan = order_state.plan(ResumePoint(Position(epoch)), world, spec)
    streams = plan.inputs.giving_streams()  # indexes of the streams that the epoch takes samples of
    if not streams or (stream_id is not None and stream_id not in streams):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    stream_order: Any = plan.orders[0 if stream_id is None else streams.index(stream_id)]
    resampling = stream_order.resampling
    ids = resampling.to_sample_ids(np.arange(resampling.samples, dtype=np.int64))
    # Virtual shards are the parts of shards that are taken, by their number of samples.
    return np.asarray(resampling.virtual_shards, np.int64), ids


# ---------------------------------------------------------------------- shuffles

_BUILT_IN_SHUFFLES = dict(native_algos.data)  # copied before code can replace an entry


class _FunctionShuffle(SequentialShuffle):
    """Shuffle by a function that code has put into `shuffle.algos`.

    A subclass is made for each such function. The function has the signature of `get_shuffle`
    without ``algo`` and returns the whole order.
    """

    function: ClassVar[Callable[..., Any]]
    needs_all_samples = True
    uses_blocks = True

    def prepare(self) -> np.random.Generator:
        """Call the function and keep its order, for `generate`.

        Returns a random generator that is never used: the function draws random numbers by itself.
        """
        spec = self.spec  # sizes of the shards and settings of the shuffle
        order = type(self).function(
            spec.sizes, spec.num_canonical_nodes, spec.seed, spec.epoch, spec.block_size
        )
        self._ids = np.asarray(order, np.int64).reshape(-1)
        if not np.array_equal(np.sort(self._ids), np.arange(spec.samples)):
            raise ConfigError(
                f"the shuffle {type(self).__name__} returned {len(self._ids)} ids, which are not "
                f"each of 0 to {spec.samples - 1} once."
            )
        return np.random.default_rng(0)

    def generate(self, node: int, rng: np.random.Generator) -> Iterator[SampleIds]:
        """Yield the part of the order that a canonical node has, int64, as one array."""
        del rng
        yield self._ids[self.starts[node] : self.starts[node + 1]]


def _apply_shuffle(name: str) -> None:
    """Make plans use the function that `shuffle_algos` has under a name now.

    Plans use classes, so a function becomes a class derived from `_FunctionShuffle`.
    """
    native_shuffles = native_algos.data
    function = shuffle_algos.get(name)
    if shuffle_algos.is_original(name) and name in _BUILT_IN_SHUFFLES:
        native_shuffles[name] = _BUILT_IN_SHUFFLES[name]
    elif function is None:  # the entry was deleted
        native_shuffles.pop(name, None)
    else:
        native_shuffles[name] = type(
            name, (_FunctionShuffle,), {"function": staticmethod(function)}
        )


shuffle_algos: LiveRegistry[str, Callable[..., SampleIds]] = LiveRegistry(
    f"{__name__}.shuffle_algos",
    {
        algo: _bind_name(
            mds.shuffle.get_shuffle,
            algo,
            f"get_shuffle_{algo}",
            f"Return the ids 0 to sum(shard_sizes) - 1 in the order of {algo!r}, as one array.",
        )
        for algo in native_algos
    },
    _apply_shuffle,
)
get_shuffle_naive = shuffle_algos["naive"]
get_shuffle_py1br = shuffle_algos["py1br"]
get_shuffle_py1e = shuffle_algos["py1e"]
get_shuffle_py1s = shuffle_algos["py1s"]
get_shuffle_py2s = shuffle_algos["py2s"]


def get_shuffle(
    algo: str,
    shard_sizes: SampleIds,
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int = 1 << 18,
) -> SampleIds:
    """Return the ids 0 to sum(shard_sizes) - 1 in the order of a shuffle, as one int64 array.

    - ``algo`` (str): key of `shuffle_algos`, or an algorithm that was registered with mds.
    - ``shard_sizes`` (array of int, samples): samples of each shard.
    - ``num_canonical_nodes`` (int): parts that are shuffled independently.
    - ``seed`` (int), ``epoch`` (int): what the random order depends on.
    - ``block_size`` (int, default 262144, samples): size of the blocks of py1br and py1e.

    Raises UnknownNameError (a KeyError) for an unknown algorithm.
    """
    if algo not in shuffle_algos:  # registered with mds after the registry was made
        return mds.shuffle.get_shuffle(
            algo, shard_sizes, num_canonical_nodes, seed, epoch, block_size
        )
    return shuffle_algos[algo](shard_sizes, num_canonical_nodes, seed, epoch, block_size)


# ---------------------------------------------------------------------- partitions

partition_algos: LiveRegistry[str, Callable[..., SampleIds]] = LiveRegistry(
    f"{__name__}.partition_algos",
    {
        algo: _bind_name(
            mds.plan.get_partitions,
            algo,
            f"get_partitions_{algo}",
            f"Return the positions of each worker in an epoch, as {algo!r} partitions it.",
        )
        for algo in PARTITION_ALGOS
    },
)
get_partitions_orig = partition_algos["orig"]
get_partitions_relaxed = partition_algos["relaxed"]


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
) -> SampleIds:
    """Return the positions of each worker in the order of an epoch.

    - ``algo`` (str): key of `partition_algos`.
    - ``num_samples`` (int): samples of the epoch.
    - ``num_canonical_nodes`` (int): parts into which the order is cut.
    - ``num_physical_nodes``, ``ranks_per_node``, ``workers_per_rank`` (int): processes that share
      the order.
    - ``batch_size`` (int, samples): batch of one rank.
    - ``drop_first`` (int, default 0, samples): samples of the epoch that were seen already.
    - ``initial_physical_nodes`` (int | None, default None): nodes when the epoch began.

    Returns int64 of shape (nodes, ranks, workers, batches, batch size), where -1 is padding. Raises
    UnknownNameError (a KeyError) for an unknown algorithm.
    """
    if algo not in partition_algos:
        raise UnknownNameError(
            f"no partition_algo {algo!r}: choose one of {', '.join(partition_algos)}."
        )
    return partition_algos[algo](
        num_samples,
        num_canonical_nodes,
        num_physical_nodes,
        ranks_per_node,
        workers_per_rank,
        batch_size,
        drop_first,
        initial_physical_nodes,
    )
