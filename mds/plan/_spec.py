"""Settings of an order, with the defaults that depend on the world, and inputs of an epoch."""

from __future__ import annotations

import dataclasses
import numbers
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from mds._arguments import did_you_mean, plain_fields
from mds._process.fork_safe import cached_property
from mds._shardfile.hashing import digest
from mds._words import BatchingMethod, PartitionAlgo, Remainder, SamplingMethod
from mds.errors import ConfigError, PlanError, StateError, StreamPlanError, UnknownNameError
from mds.plan._global_batches import NoBatches, PartitionSpec, RandomBatches, Shape
from mds.plan._sampling import ResamplingParams, SequentialResampling, StreamShare
from mds.plan._state import MAX_CANONICAL_NODES, VERSION, Position, ResumePoint, parse_state
from mds.plan._stream_orders import (
    RandomAccessOrder,
    SequentialOrder,
    ShuffleParams,
    StreamOrder,
    UnshuffledOrder,
)
from mds.plan._weights import stream_title
from mds.shuffle._permutation import derive_key
from mds.shuffle._registry import algos, find_shuffle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mds.plan._global_batches import GlobalBatches
    from mds.plan._pack_windows import DocumentWindows
    from mds.plan._packing import Packing
    from mds.plan._passes import StreamPasses
    from mds.plan._schedule import ScheduledEpoch, ScheduledRun
    from mds.plan._stream_orders import SampleCosts
    from mds.plan._weights import Weights
    from mds.shuffle import Shuffle
    from mds.world import World

PARTITION_ALGOS = get_args(PartitionAlgo)
BATCHING_METHODS = get_args(BatchingMethod)
SAMPLING_METHODS = get_args(SamplingMethod)
REMAINDERS = get_args(Remainder)


@dataclasses.dataclass(frozen=True, slots=True)
class OrderSpec:
    """Settings that decide an order, apart from data, world and epoch.

    Most are the arguments of a dataset with the same names.

    Attributes:
        batch_size: Samples, or packs, of a batch of one rank; None if not given.
        shuffle: Whether samples are shuffled.
        shuffle_algo: Name of the shuffle, such as "py1e".
        shuffle_seed: Seed of all random choices.
        shuffle_block_size: Samples of a shuffle block; None for the default of `block_size`.
        num_canonical_nodes: Number of canonical nodes; None or 0 for the default of
            `canonical_nodes`.
        partition_algo: Name of the partition over ranks, "orig" or "relaxed".
        sampling_method: "balanced" to draw samples anew in each epoch, or "fixed".
        sampling_granularity: Consecutive samples that are drawn together.
        batching_method: How batches are made of streams, one of ``BATCHING_METHODS``.
        remainder: What the last batches of ranks have if the samples do not fill them: "repeat"
            repeats some samples, so that all ranks get equally many. With "short" and "mask" every
            chosen sample comes once over all ranks: with "short" some ranks get fewer, with "mask"
            all get equally many full batches, with padding that is masked.
        skip_empty_streams: Whether a stream that gives no samples is ignored. Otherwise methods
            that build batches by stream refuse it, as mosaicml-streaming does.
        packing: Settings of packs, which are then dealt instead of samples. A number of tokens
            becomes a Packing.
        microbatches: Batches of one rank in a step of the optimizer. They are consecutive parts of
            what one batch of all their samples would be, so the order does not depend on them.

    Raises ConfigError for numbers out of range, and UnknownNameError for unknown methods.
    """

    batch_size: int | None = None
    shuffle: bool = False
    shuffle_algo: str = "py1e"
    shuffle_seed: int = 9176
    shuffle_block_size: int | None = None
    num_canonical_nodes: int | None = None
    partition_algo: str = "relaxed"
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    batching_method: str = "random"
    remainder: str = "repeat"
    skip_empty_streams: bool = False
    packing: Packing | None = None
    microbatches: int = 1

    def __post_init__(self) -> None:
        plain_fields(self)
        for setting, name, names in (
            ("batching_method", self.batching_method, BATCHING_METHODS),
            ("sampling_method", self.sampling_method, SAMPLING_METHODS),
            ("partition_algo", self.partition_algo, PARTITION_ALGOS),
            ("remainder", self.remainder, REMAINDERS),
        ):
            check_name(setting, name, names)
        if self.shuffle:
            find_shuffle(self.shuffle_algo)
        if self.sampling_granularity <= 0:
            raise ConfigError(
                f"sampling_granularity must be at least 1, got {self.sampling_granularity}."
            )
        if self.num_canonical_nodes and self.num_canonical_nodes > MAX_CANONICAL_NODES:
            raise ConfigError(
                f"num_canonical_nodes must be at most {MAX_CANONICAL_NODES}, got "
                f"{self.num_canonical_nodes}."
            )
        if self.microbatches < 1:
            raise ConfigError(f"microbatches must be at least 1, got {self.microbatches}.")
        if self.shuffle_seed < 0:
            raise ConfigError(f"shuffle_seed must not be negative, got {self.shuffle_seed}.")
        if self.packing is not None:
            self._check_packing()
        if self.is_exact and self.batching_method != "random":
            raise PlanError(
                f"remainder={self.remainder!r} does not work with batching_method "
                f"{self.batching_method!r}, which drops samples that do not fill a batch. Use "
                "batching_method 'random'."
            )

    def _check_packing(self) -> None:
        """Make a Packing of a number of tokens, and check that packs can have these settings.

        Raises ConfigError for any other value, and PlanError for a method without packs.
        """
        from mds.plan._packing import packing_of

        object.__setattr__(self, "packing", packing_of(self.packing))
        if self.batching_method != "random":
            raise PlanError(
                f"packing does not work with batching_method {self.batching_method!r}, because a "
                "pack has documents of all streams. Use batching_method 'random' and give each "
                "stream its share."
            )

    @property
    def unit(self) -> str:
        """Unit of positions: "samples", or "packs" of documents."""
        return "samples" if self.packing is None else "packs"

    @property
    def is_exact(self) -> bool:
        """Whether every chosen sample comes exactly once over all ranks."""
        return self.remainder != "repeat"

    @property
    def is_uneven(self) -> bool:
        """Whether ranks may get different numbers of samples; all of them get as many packs."""
        return self.is_exact and self.packing is None

    @property
    def algorithm(self) -> type[Shuffle] | None:
        """Class of the shuffle, also if shuffling is off: it decides the canonical nodes.

        If shuffling is off, it is None for a name that is not registered. If shuffling is on, such
        a name is searched in entry points, and an unknown one raises UnknownNameError.
        """
        registered = algos.get(self.shuffle_algo)
        if registered is None and self.shuffle:
            return find_shuffle(self.shuffle_algo)
        return registered

    @property
    def is_random_access(self) -> bool:
        """Whether any position of the order can be computed alone."""
        algorithm = self.algorithm
        return self.shuffle and algorithm is not None and algorithm.is_random_access

    def batch(self) -> int:
        """Return the samples of a rank in a step: the batch size times ``microbatches``.

        Raises ConfigError if the batch size was not given or is below one.
        """
        size: Any = self.batch_size
        if isinstance(size, bool) or not isinstance(size, numbers.Integral):
            raise ConfigError(
                f"batch_size must be an integer, got {size!r}: the order depends on it. Write "
                "StreamingDataset(..., batch_size=32)."
            )
        if size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {size}.")
        return int(size) * self.microbatches

    def canonical_nodes(self, nodes: int) -> int:
        """Return the number of canonical nodes of a run that begins on ``nodes`` physical nodes.

        It is the setting, or a number for each physical node that the shuffle's class has.
        """
        if self.num_canonical_nodes:
            return int(self.num_canonical_nodes)
        return nodes * (self.algorithm.canonical_nodes_per_node if self.algorithm else 1)

    def block_size(self, canonical_nodes: int) -> int:
        """Return the samples of a shuffle block.

        By default these are max(4,000,000 / ``canonical_nodes``, 262,144).
        """
        if self.shuffle_block_size is not None:
            return int(self.shuffle_block_size)
        return max(4_000_000 // max(canonical_nodes, 1), 1 << 18)

    def facts(self, block_size: int, ranks: int, nodes: int) -> dict[str, Any]:
        """Return the settings that a resumed run must have too, as plain JSON.

        Args:
            block_size: Samples of a shuffle block.
            ranks: Ranks of a node.
            nodes: Number of nodes.
        """
        facts: dict[str, Any] = {"shuffle": self.shuffle}
        if self.shuffle:
            facts |= {"shuffle_algo": self.shuffle_algo, "shuffle_block_size": block_size}
        facts |= {
            "sampling_method": self.sampling_method,
            "sampling_granularity": self.sampling_granularity,
            "batching_method": self.batching_method,
            "exact": self.is_exact,
        }
        # With "random", samples are dealt to ranks one by one, so their order is the same with any
        # batch size. Batches by stream depend on it.
        if self.batching_method != "random":
            facts["global_batch_size"] = self.batch() * ranks * nodes
        if self.packing is not None:
            facts |= self.packing.facts()
        if self.batching_method == "device_per_stream":
            facts |= {"batch_size": self.batch(), "ranks_per_node": ranks}
        return facts

    def resume_point(
        self,
        world: World,
        epoch: int,
        resume: Mapping[str, Any] | ResumePoint | None = None,
        initial_physical_nodes: int | None = None,
    ) -> ResumePoint:
        """Return the position and settings with which the order of an epoch begins.

        Args:
            world: World, in which ranks that replicate the samples of each other count as one.
            epoch: Epoch that is planned.
            resume: State to continue from. If it is of a later epoch, that epoch is planned.
            initial_physical_nodes: Nodes with which the run began, if known.

        Raises StateError for a state of this library that is of an earlier epoch. Such a state of
        mosaicml-streaming is ignored with a warning.
        """
        if epoch < 0:
            raise ConfigError(f"epoch must not be negative, got {epoch}.")
        if resume is not None:
            state = parse_state(resume)
            position = state.position
            # A state from before the first epoch has epoch -1. In one of this library it stands
            # for epoch 0; one of mosaicml-streaming is not used then.
            first_epoch = max(position.epoch, 0)
            if (first_epoch if state.is_ours else position.epoch) >= epoch:
                point = state.at(position._replace(epoch=first_epoch))
                if state.num_canonical_nodes is not None:
                    return point
                return self._with_settings(point, world)
            text = (
                f"the state belongs to epoch {position.epoch}, but epoch {epoch} was requested. "
                f"Request epoch {position.epoch} to resume from the state"
            )
            if state.is_ours:
                raise StateError(f"{text}.")
            if position.epoch >= 0:
                warnings.warn(f"{text}; the state is not used.", stacklevel=3)
        start = ResumePoint(
            Position(epoch, 0, self.unit), initial_physical_nodes=initial_physical_nodes
        )
        return self._with_settings(start, world)

    def _with_settings(self, start: ResumePoint, world: World) -> ResumePoint:
        """Return a resume point with the settings of this order, for a run without a state.

        Args:
            start: Resume point without settings.
            world: World in which the run begins.
        """
        return dataclasses.replace(
            start,
            num_canonical_nodes=self.canonical_nodes(world.num_nodes),
            shuffle_seed=self.shuffle_seed,
            version=VERSION,
        )


def check_name(kind: str, name: str, names: Sequence[str]) -> None:
    """Raise UnknownNameError for a name that is not among ``names``.

    ``kind`` says in the message what is named, such as "batching_method".
    """
    if name not in names:
        raise UnknownNameError(
            f"no {kind} {name!r}: choose one of {', '.join(names)}.{did_you_mean(name, names)}"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class EpochInputs:
    """Data and settings of one epoch, and the orders and global batches that are made of them.

    With a schedule, the epoch has `ScheduledInputs`.

    Attributes:
        streams: Streams as `EpochPlan` was given them, with their names.
        sizes: Samples of each shard of each stream.
        weights: Samples that each stream gives.
        spec: Settings of the order.
        world: Nodes, ranks and workers, after replication.
        point: Position at which the order begins, and the settings that a state may decide.
        small_order: Samples below which every process computes an order for itself.
        dataset: Fingerprint of the data, if it is known.
        schedule: Schedule of the run, if it has one.
        edits: Changes that were made during the run.
        costs: Cost of each sample, by which canonical nodes are cut; None (default) for nodes of
            equally many samples.
    """

    streams: Sequence[Mapping[str, Any]]
    sizes: Sequence[NDArray[np.int64]]
    weights: Weights
    spec: OrderSpec
    world: World
    point: ResumePoint
    small_order: int
    dataset: str | None
    schedule: ScheduledRun | None
    edits: tuple[Mapping[str, Any], ...]
    costs: SampleCosts | None = None

    @property
    def epoch(self) -> int:
        """Epoch that is planned."""
        return self.point.position.epoch

    @property
    def choose(self) -> tuple[int, ...]:
        """Samples that each stream gives."""
        return self.weights.choose

    @property
    def stream_samples(self) -> list[int]:
        """Samples that each stream has."""
        return [int(sizes.sum()) for sizes in self.sizes]

    @cached_property
    def shape(self) -> Shape:
        """Nodes, ranks, workers and batch size, after replication."""
        world = self.world
        return Shape(
            world.num_nodes, world.ranks_per_node, world.workers_per_rank, self.spec.batch()
        )

    @property
    def microbatch(self) -> int:
        """Samples of a batch that a worker makes; a rank has `OrderSpec.microbatches` in a step."""
        return self.shape.batch // self.spec.microbatches

    @cached_property
    def params(self) -> ShuffleParams:
        """Parameters of the shuffle in this epoch."""
        nodes, seed = self.point.num_canonical_nodes, self.point.shuffle_seed
        assert nodes is not None
        assert seed is not None
        return ShuffleParams(nodes, seed, self.epoch, self.spec.block_size(nodes))

    @property
    def scheduled(self) -> ScheduledEpoch | None:
        """Part of the schedule that the epoch has: none here."""
        return None

    def dataset_facts(self) -> dict[str, Any]:
        """Return facts about the data, which a state records and compares, as plain JSON."""
        return {
            "samples": sum(self.stream_samples),
            "shards": sum(len(sizes) for sizes in self.sizes),
            "streams": len(self.sizes),
            "choose": digest(*self.choose),
            "fingerprint": self.dataset or digest(*self.sizes),
        }

    def order_facts(self) -> dict[str, Any]:
        """Return the settings that a state records and compares, as plain JSON."""
        shape = self.shape
        return self.spec.facts(self.params.block, shape.ranks, shape.nodes)

    @cached_property
    def skips(self) -> tuple[tuple[int, int], ...]:
        """Ranges of places of the epoch that were skipped, each as its first and its end."""
        if not self.edits:
            return ()
        from mds.plan._edits import skips_of

        return skips_of(self.edits, self.epoch)

    def giving_streams(self) -> list[int]:
        """Return the numbers of the streams that give samples, counted from 0.

        Raises StreamPlanError if a stream gives none and the batching method needs all of them.
        """
        giving = [i for i, count in enumerate(self.weights.choose) if count]
        by_stream = self.spec.batching_method != "random"
        has_empty = len(giving) < len(self.sizes)
        if by_stream and has_empty and not self.spec.skip_empty_streams:
            empty = next(i for i in range(len(self.sizes)) if i not in giving)
            raise StreamPlanError(
                f"stream {empty} gives no samples, but batching_method "
                f"{self.spec.batching_method!r} needs samples of every stream. Remove this stream.",
                empty,
            )
        return giving

    @cached_property
    def orders(self) -> Sequence[StreamOrder | StreamPasses]:
        """Orders from which global batches take samples.

        For random batching that is one order of the samples of all streams. For batching by stream
        it is an order for each stream that gives samples.
        """
        with self._named_streams():
            if not self.giving_streams():
                return []
            # Sample ids count through the streams, so each begins after the samples of those
            # before.
            first_ids = np.cumsum([0, *self.stream_samples]).tolist()
            return self.make_orders(
                [
                    StreamShare(sizes, first_ids[i], self.weights.choose[i])
                    for i, sizes in enumerate(self.sizes)
                ]
            )

    @cached_property
    def long_orders(self) -> list[StreamOrder]:
        """Orders that take long to compute, so that the processes of a node share them in files."""
        parts = (part for order in self.orders for part in order.parts)
        return [part for part in parts if not part.is_cheap]

    def make_orders(self, shares: Sequence[StreamShare]) -> Sequence[StreamOrder | StreamPasses]:
        """Return the `orders` of streams, some of which give samples.

        ``shares`` are the samples that the epoch chooses of each stream.
        """
        if self.spec.batching_method == "random":
            order = self.order(shares, self.params)
            if self.costs is not None:
                order.cut_by(self.costs)
            return [order]
        return [
            self.order([shares[i]], self.params._replace(block=self._block(i)))
            for i in self.giving_streams()
        ]

    def batches(self, place: int, skips: tuple[tuple[int, int], ...] = ()) -> GlobalBatches:
        """Return the global batches from a place of the epoch on, by the batching method.

        ``skips`` are ranges of places that are left out, each as its first and its end.
        """
        samples = [order.samples for order in self.orders]
        with self._named_streams():
            partition = self.partition(place, skips)
            return self.make_batches(samples, partition) if samples else NoBatches()

    def make_batches(self, samples: Sequence[int], partition: PartitionSpec) -> GlobalBatches:
        """Return global batches of the `orders`, which have so many ``samples`` each."""
        method = self.spec.batching_method
        if method == "random":
            return RandomBatches(samples[0], partition)
        if method == "stratified":
            proportions = [self.weights.proportion[i] for i in self.giving_streams()]
            from mds.plan._stream_batches import StratifiedBatches

            return StratifiedBatches(samples, proportions, partition)
        rng = np.random.default_rng(self._choice_seed())
        if method == "per_stream":
            from mds.plan._stream_batches import PerStreamBatches

            return PerStreamBatches(samples, partition, rng)
        from mds.plan._stream_batches import DevicePerStreamBatches

        return DevicePerStreamBatches(samples, partition, rng)

    def packed(
        self, costs: SampleCosts, count_windows: Callable[[ScheduledRun], ScheduledRun]
    ) -> EpochInputs:
        """Return the inputs of the same epoch with packs.

        Args:
            costs: Cost of each sample, by which canonical nodes are cut.
            count_windows: Function that makes a schedule count windows, if there is one.
        """
        del count_windows
        return dataclasses.replace(self, costs=costs)

    def windows(self, size: int) -> DocumentWindows:
        """Return the windows of ``size`` documents of the epoch, to be packed."""
        from mds.plan._pack_windows import OrderWindows

        order = self.orders[0] if self.orders else None
        assert order is None or isinstance(order, StreamOrder)
        return OrderWindows(order, size)

    @contextmanager
    def _named_streams(self) -> Iterator[None]:
        """Replace the number of a stream by its name in an error raised in the ``with`` block."""
        try:
            yield
        except StreamPlanError as error:
            title = stream_title(self.streams, error.stream)
            error.args = (str(error).replace(f"stream {error.stream} ", f"stream {title} ", 1),)
            raise

    def partition(self, place: int, skips: tuple[tuple[int, int], ...] = ()) -> PartitionSpec:
        """Return the settings by which positions are dealt to ranks from a place of the epoch on.

        ``skips`` are ranges of places that are left out, each as its first and its end.
        """
        return PartitionSpec(
            self.shape,
            self.params.nodes,
            self.spec.partition_algo,
            self.point.initial_physical_nodes,
            drop=place,
            # A state without a version is one of mosaicml-streaming. That library rounds the place
            # at which it continues, and so the same samples come.
            is_precise=self.point.version is not None,
            is_exact=self.spec.is_exact,
            skips=skips,
            initial_shape=self._initial_shape,
        )

    @cached_property
    def _initial_shape(self) -> Shape | None:
        """Shape of the world in which the run began, if batches by stream are padded for that.

        The padding depends on the world, and decides how many batches a stream has. So a run that
        continues in another world keeps the padding of its first one. None: use the shape of this
        world, as batches do not depend on the other, or the state does not tell it.
        """
        if self.spec.batching_method not in {"per_stream", "stratified"}:
            return None
        initial, size = self.point.initial_ranks, self.shape.global_batch
        if initial is None:
            return None
        nodes, ranks = initial
        if size % ranks:  # the state has other global batches, and will be refused
            return None
        return Shape(nodes, ranks // nodes, self.shape.workers, size // ranks)

    def order(self, shares: Sequence[StreamShare], params: ShuffleParams) -> StreamOrder:
        """Return the order of the samples of one stream or several.

        Args:
            shares: For each stream the samples that the epoch chooses.
            params: Parameters of the shuffle.
        """
        name, algorithm = self.spec.shuffle_algo, self.spec.algorithm if self.spec.shuffle else None
        if algorithm is not None and algorithm.is_random_access:
            from mds.plan._keyed_sampling import KeyedResampling

            keyed = KeyedResampling(shares, self._keyed_params(params))
            return RandomAccessOrder(keyed, params, name, algorithm, self.small_order)
        resampling = SequentialResampling(shares, self._resampling_params(params))
        if algorithm is not None:
            return SequentialOrder(resampling, params, name, algorithm, self.small_order)
        return UnshuffledOrder(resampling, params, self.small_order)

    def _block(self, stream: int) -> int:
        """Return the samples of a shuffle block of one stream, by its share of the epoch.

        A stream with a share of 1/4 gets 1/4 of the block, so that the blocks of all streams
        together have about ``shuffle_block_size`` samples.
        """
        block = int(self.params.block * self.weights.proportion[stream])
        if self.spec.shuffle and not block and self.spec.batching_method == "device_per_stream":
            raise PlanError(
                f"shuffle_block_size {self.params.block} is too small to give stream {stream} a "
                "block. Enlarge it."
            )
        return block

    def _choice_seed(self) -> int:
        """Return the seed that shuffles which stream each batch is from."""
        return self._seed(self.params, changes=self.spec.shuffle and self._is_balanced)

    @property
    def _is_balanced(self) -> bool:
        """Whether each epoch draws anew the samples of streams that give only some of theirs."""
        return self.spec.sampling_method == "balanced"

    @staticmethod
    def _seed(params: ShuffleParams, *, changes: bool) -> int:
        """Return a seed: that of the run, plus the epoch if it ``changes`` with the epoch."""
        return params.seed + (params.epoch if changes else 0)

    def _resampling_params(self, params: ShuffleParams) -> ResamplingParams:
        """Return the granularity and the seeds by which `SequentialResampling` chooses samples."""
        # When each seed changes is part of the order of mosaicml-streaming.
        return ResamplingParams(
            self.spec.sampling_granularity,
            self._seed(params, changes=self.spec.shuffle and self._is_balanced),
            self._seed(params, changes=self._is_balanced),
        )

    def _keyed_params(self, params: ShuffleParams) -> ResamplingParams:
        """Return the granularity and the seeds by which `KeyedResampling` chooses samples."""
        # Epochs count from 1 here, as 0 is the choice that all epochs have in common. One seed
        # suffices, since `KeyedResampling` derives different keys from it for shards and samples.
        seed = derive_key(params.seed, params.epoch + 1 if self._is_balanced else 0)
        return ResamplingParams(self.spec.sampling_granularity, seed, seed)
