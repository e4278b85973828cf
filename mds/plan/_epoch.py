"""EpochPlan: the order of the samples of one epoch, from (node, rank, worker, place) to sample ids.

A run makes a plan for each epoch, in every process. Making it costs nothing: ids are computed when
they are asked for. A dataset uses it like this::

    plan = EpochPlan(streams, world, epoch=next_epoch, resume=state, weights=weights, ...)
    for ids in plan.blocks(node, rank, worker, start): ...
    checkpoint = plan.state(samples_seen)
    plan = plan.following()

``resume`` is a loaded state, or None. If the state is of ``epoch`` or a later one, the plan begins
at the state's position, with its canonical nodes, seed and number of initial nodes. Plans from
`following` keep these settings. A state of an earlier epoch is an error if it is of this library. A
state of mosaicml-streaming is then ignored with a warning, as mosaicml-streaming itself does.

``weights`` are resolved once, with the seed of the run. They keep the shares of the streams when a
state brings another seed.

How ids come about, from the inside out: a resampling (`sampling`, `keyed_sampling`) chooses the
samples of the epoch; a `StreamOrder` shuffles them; global batches (`global_batches`,
`stream_batches`) deal the positions of that order to steps, ranks and workers. A *lookup* is a
function from positions of an order to sample ids. A *slot* is the index of a sample in its global
batch.

What a rank has of a step is one batch or, with ``microbatches``, several parts of equal size, which
are batches for its loader. These *micro-batches* are numbered through the steps of the rank, and
number n is for worker n % workers. With 2 in a step, and 3 workers::

    step            0  0  1  1  2  2
    micro-batch     0  1  2  3  4  5
    worker          0  1  2  0  1  2
"""

from __future__ import annotations

import dataclasses
import math
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds._process.fork_safe import cached_property
from mds._shardfile.hashing import digest
from mds._units import parse_count
from mds._words import plural
from mds.errors import ConfigError, PlanError, StreamPlanError
from mds.plan._audit import OrderHash, Place, StepSample
from mds.plan._global_batches import NoBatches, PartitionSpec, RandomBatches, Shape, all_batches
from mds.plan._sampling import ResamplingParams, SequentialResampling, StreamShare
from mds.plan._spec import OrderSpec
from mds.plan._state import VERSION, Position, ResumePoint, parse_state
from mds.plan._stream_orders import (
    SMALL_ORDER_SAMPLES,
    RandomAccessOrder,
    SequentialOrder,
    ShuffleParams,
    StreamOrder,
    UnshuffledOrder,
)
from mds.plan._weights import Weights, resolve_passes, resolve_weights, stream_title
from mds.shuffle._permutation import derive_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mds.plan._edits import DropTable
    from mds.plan._global_batches import GlobalBatches
    from mds.plan._passes import StreamPasses, StreamRows
    from mds.plan._schedule import ScheduledEpoch, ScheduledRun
    from mds.plan._stream_orders import SampleCosts
    from mds.plan._weights import Weights
    from mds.world import World

    Ids = NDArray[np.int64]


class EpochInputs(NamedTuple):
    """Data and settings of one epoch, from which its orders and global batches are made.

    Attributes:
        sizes: Samples of each shard of each stream.
        weights: Samples that each stream gives.
        spec: Settings of the order.
        params: Parameters of the shuffle in this epoch.
        small_order: Samples below which every process computes an order for itself.
        scheduled: Part of the schedule that the epoch has, if there is a schedule.
        costs: Cost of each sample, by which canonical nodes are cut; None (default) for nodes of
            equally many samples.
    """

    sizes: Sequence[NDArray[np.int64]]
    weights: Weights
    spec: OrderSpec
    params: ShuffleParams
    small_order: int
    scheduled: ScheduledEpoch | None = None
    costs: SampleCosts | None = None

    def streams(self) -> list[int]:
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

    def orders(self) -> Sequence[StreamOrder | StreamPasses]:
        """Return the orders from which global batches take samples.

        For random batching that is one order of the samples of all streams. For batching by stream
        it is an order for each stream that gives samples. For a schedule it is one lookup of all
        streams, over all their passes.
        """
        giving = self.streams()
        if not giving:
            return []
        # Sample ids count through the streams, so each begins after the samples of those before.
        first_ids = np.cumsum([0] + [int(sizes.sum()) for sizes in self.sizes]).tolist()
        shares = [
            StreamShare(sizes, first_ids[i], self.weights.choose[i])
            for i, sizes in enumerate(self.sizes)
        ]
        if self.scheduled is not None:
            from mds.plan._passes import PassOrders, StreamPasses

            epoch = self.scheduled
            params = [self._params_of_passes(i, share) for i, share in enumerate(shares)]
            passes = [
                PassOrders(partial(self._order_of_pass, share, each), share.choose, sample_range)
                for share, each, sample_range in zip(
                    shares, params, epoch.sample_ranges(), strict=True
                )
            ]
            rows: StreamRows | None = epoch.rows
            if rows is None:
                from mds.plan._pack_schedule import DocumentRows, TokenMixture

                assert isinstance(epoch.mixture, TokenMixture)
                starts = [p.starts(s.choose) for p, s in zip(params, shares, strict=True)]
                rows = DocumentRows(epoch.mixture, starts)
            return [StreamPasses(passes, rows, epoch.first, epoch.last)]
        if self.spec.batching_method == "random":
            order = self._order(shares, self.params)
            if self.costs is not None:
                order.cut_by(self.costs)
            return [order]
        return [
            self._order([shares[i]], self.params._replace(block=self._block(i))) for i in giving
        ]

    def global_batches(self, samples: Sequence[int], partition: PartitionSpec) -> GlobalBatches:
        """Return the global batches of the epoch, by the batching method.

        Args:
            samples: Number of samples of each of the `orders`.
            partition: Settings by which their positions are dealt to ranks.
        """
        method = self.spec.batching_method
        if not samples:
            return NoBatches()
        if self.scheduled is not None:
            from mds.plan._stream_batches import ScheduledBatches

            epoch = self.scheduled
            assert epoch.rows is not None  # packs have no global batches of samples
            return ScheduledBatches(epoch.rows, epoch.first, epoch.last, partition)
        if method == "random":
            return RandomBatches(samples[0], partition)
        if method == "stratified":
            proportions = [self.weights.proportion[i] for i in self.streams()]
            from mds.plan._stream_batches import StratifiedBatches

            return StratifiedBatches(samples, proportions, partition)
        rng = np.random.default_rng(self._choice_seed())
        if method == "per_stream":
            from mds.plan._stream_batches import PerStreamBatches

            return PerStreamBatches(samples, partition, rng)
        from mds.plan._stream_batches import DevicePerStreamBatches

        return DevicePerStreamBatches(samples, partition, rng)

    def _order(self, shares: Sequence[StreamShare], params: ShuffleParams) -> StreamOrder:
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

    def _order_of_pass(self, share: StreamShare, params: ShuffleParams, number: int) -> StreamOrder:
        """Return the order of a pass through a stream.

        Args:
            share: Samples that a pass takes of the stream.
            params: Parameters of the shuffle, as `_params_of_passes` returns them.
            number: Number of the pass. Passes take the role of epochs: each one is shuffled anew.
        """
        return self._order([share], params._replace(epoch=number))

    def _params_of_passes(self, stream: int, share: StreamShare) -> ShuffleParams:
        """Return the parameters of the shuffle that all passes through a stream have in common.

        ``stream`` is the number of the stream, ``share`` the samples that a pass takes of it.
        """
        assert self.scheduled is not None
        # The shuffle block of all streams is shared out, as in `_block`. A share changes in a
        # schedule, but a pass has one block size: take the largest share, or an equal one if that
        # is more.
        part = max(self.scheduled.largest_shares[stream], 1 / len(self.sizes))
        params = self.params._replace(block=max(int(self.params.block * part), 1))
        if self.costs is None:
            return params
        # All passes are cut as the first one, so that rows have equally long parts in each.
        first_pass = self._order_of_pass(share, params, 0)
        first_pass.cut_by(self.costs)
        return first_pass.params

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


_FIRST_BLOCK_IDS = 1 << 10  # ids of the first block of a worker, which should come soon
_BLOCK_IDS = 1 << 14  # ids of later blocks
_AUDIT_IDS = 1 << 16  # ids that an audit computes at once


class EpochPlan:
    """Order of the samples of one epoch; an `Order`.

    - ``streams`` (Sequence[Mapping]): For each stream ``shards``, the samples of each shard, and at
      most one of ``proportion``, ``repeat`` and ``choose``.
    - ``world`` (World): Nodes, ranks and workers, before replication.
    - ``spec`` (OrderSpec | None, default None): Settings of the order. They may be given one by one
      as well, as the other keyword arguments.
    - ``epoch`` (int, default 0): Epoch that is planned.
    - ``resume`` (Mapping | ResumePoint | None, default None): State to continue from.
    - ``epoch_size`` (int | str | None, default None, samples): Samples of an epoch.
    - ``replication`` (int | None, default None, ranks): Neighbouring ranks with the same samples.
    - ``initial_physical_nodes`` (int | None, default None): Nodes with which the run began.
    - ``weights`` (Weights | None, default None): Samples of each stream, if they are resolved.
    - ``dataset`` (str | None, default None): Fingerprint of the data, for states.
    - ``small_order`` (int, default 2,000,000, samples): Orders of fewer samples are computed by
      every process for itself.
    - ``schedule`` (ScheduledRun | None, default None): Shares of streams that change. An epoch is
      then a number of full global batches.
    - ``edits`` (Sequence[Mapping], default ()): Steps that were skipped and samples that were
      dropped (`mds.plan._edits`).

    Raises ConfigError, PlanError or UnknownNameError for settings that make no order, at once or
    when ids are asked for, and StateError for a ``resume`` that is not a state.

    >>> world = mds.World(num_nodes=1, ranks_per_node=2, workers_per_rank=1, worker=0)
    >>> plan = EpochPlan([{"shards": [4, 4]}], world, batch_size=2)
    >>> plan.steps
    2
    >>> plan.batch(1).tolist()  # the samples of rank 0 and of rank 1
    [[4, 6], [5, 7]]
    """

    unit = "samples"

    def __init__(
        self,
        streams: Sequence[Mapping[str, Any]],
        world: World,
        spec: OrderSpec | None = None,
        *,
        epoch: int = 0,
        resume: Mapping[str, Any] | ResumePoint | None = None,
        epoch_size: int | str | None = None,
        replication: int | None = None,
        initial_physical_nodes: int | None = None,
        weights: Weights | None = None,
        dataset: str | None = None,
        small_order: int = SMALL_ORDER_SAMPLES,
        schedule: ScheduledRun | None = None,
        edits: Sequence[Mapping[str, Any]] = (),
        **order: Any,
    ) -> None:
        if spec is None or order:
            spec = dataclasses.replace(spec or OrderSpec(), **order)
        self.spec, self.schedule, self.edits = spec, schedule, tuple(edits)
        self.world = world if replication is None else world.replicate(replication)
        self._sizes = [np.asarray(s["shards"], np.int64).reshape(-1) for s in streams]
        self._streams = streams
        per_stream = self.stream_samples
        size = None if epoch_size is None else parse_count(epoch_size)
        if weights is None:
            resolve = resolve_weights if schedule is None else resolve_passes
            weights = resolve(per_stream, streams, size, self.spec.shuffle_seed)
            if not weights.epoch_size:
                raise ConfigError("the streams give no samples. Raise their repeat or choose.")
        self.weights = weights
        self.num_samples = sum(per_stream)
        self._dataset = dataset
        self._costs: SampleCosts | None = None  # see `with_costs`
        self.small_order = small_order
        self._init_from(self.spec.resume_point(self.world, epoch, resume, initial_physical_nodes))

    def _init_from(self, point: ResumePoint) -> None:
        """Set the position, and the settings that a loaded state may decide, from a point.

        `OrderSpec.resume_point` has filled in the settings that a state may lack.
        """
        assert point.num_canonical_nodes is not None
        assert point.shuffle_seed is not None
        self.resume_point = point
        self.begin, self.epoch = point.position, point.position.epoch
        self.num_canonical_nodes, self.shuffle_seed = point.num_canonical_nodes, point.shuffle_seed
        self.initial_physical_nodes = point.initial_physical_nodes
        self.shuffle_block_size = self.spec.block_size(point.num_canonical_nodes)

    @property
    def choose(self) -> tuple[int, ...]:
        """Samples that each stream gives."""
        return self.weights.choose

    @property
    def proportions(self) -> tuple[float, ...]:
        """Share of each stream in the epoch."""
        return self.weights.proportion

    @property
    def epoch_size(self) -> int:
        """Samples that the epoch takes of all streams."""
        return self.weights.epoch_size

    @property
    def stream_samples(self) -> list[int]:
        """Samples that each stream has."""
        return [int(sizes.sum()) for sizes in self._sizes]

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
    def inputs(self) -> EpochInputs:
        """Data and parameters of the epoch."""
        params = ShuffleParams(
            self.num_canonical_nodes, self.shuffle_seed, self.epoch, self.shuffle_block_size
        )
        return EpochInputs(
            self._sizes,
            self.weights,
            self.spec,
            params,
            self.small_order,
            self.scheduled,
            self._costs,
        )

    @cached_property
    def scheduled(self) -> ScheduledEpoch | None:
        """Global batches of a schedule that the epoch has."""
        if self.schedule is None:
            return None
        batch = self.shape.global_batch
        from mds.plan._schedule import scheduled_epoch

        return scheduled_epoch(
            self.schedule,
            self.choose,
            batch,
            self.epoch,
            self.epoch_size,
            self.num_canonical_nodes,
        )

    @cached_property
    def orders(self) -> Sequence[StreamOrder | StreamPasses]:
        """Orders from which the global batches take samples; see `EpochInputs.orders`."""
        # `inputs` knows streams by number only; its errors get their names here.
        with self._named_streams():
            return self.inputs.orders()

    @cached_property
    def long_orders(self) -> list[StreamOrder]:
        """Orders that take long to compute, so that the processes of a node share them in files."""
        parts = (part for order in self.orders for part in order.parts)
        return [part for part in parts if not part.is_cheap]

    @property
    def is_cheap(self) -> bool:
        """Whether no order of a stream takes long to compute."""
        return not self.long_orders

    @cached_property
    def global_batches(self) -> GlobalBatches:
        """Global batches that remain, without skipped steps and with dropped samples replaced."""
        if not self.edits:
            return self._batches(self.begin.place)
        from mds.plan._edits import DroppedBatches

        batches = self._batches(self.begin.place, self.skips)
        return DroppedBatches(batches, self.drops) if len(self.drops) else batches

    def _batches(self, place: int, skips: tuple[tuple[int, int], ...] = ()) -> GlobalBatches:
        """Return the global batches from a place of the epoch on.

        ``skips`` are ranges of places that are left out, each as its first and its end.
        """
        partition = self._partition(place, skips)
        samples = [order.samples for order in self.orders]
        with self._named_streams():
            return self.inputs.global_batches(samples, partition)

    @contextmanager
    def _named_streams(self) -> Iterator[None]:
        """Replace the number of a stream by its name in an error raised in the ``with`` block."""
        try:
            yield
        except StreamPlanError as error:
            title = stream_title(self._streams, error.stream)
            error.args = (str(error).replace(f"stream {error.stream} ", f"stream {title} ", 1),)
            raise

    def _partition(self, place: int, skips: tuple[tuple[int, int], ...] = ()) -> PartitionSpec:
        """Return the settings by which positions are dealt to ranks from a place of the epoch on.

        ``skips`` are ranges of places that are left out, each as its first and its end.
        """
        return PartitionSpec(
            self.shape,
            self.num_canonical_nodes,
            self.spec.partition_algo,
            self.initial_physical_nodes,
            drop=place,
            # A state without a version is one of mosaicml-streaming. That library rounds the place
            # at which it continues, and so the same samples come.
            is_precise=self.resume_point.version is not None,
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
        initial, size = self.resume_point.initial_ranks, self.shape.global_batch
        if initial is None:
            return None
        nodes, ranks = initial
        if size % ranks:  # the state has other global batches, and will be refused
            return None
        return Shape(nodes, ranks // nodes, self.shape.workers, size // ranks)

    @property
    def epoch_steps(self) -> int:
        """Number of global batches of the whole epoch, seen and skipped ones included."""
        if self.schedule is not None:
            return self.schedule.epoch_steps(self.epoch_size, self.shape.global_batch)
        return self._batches(0).count

    def worker_samples(self, node: int, rank: int) -> list[int]:
        """Return the number of samples that each worker of a rank gets in the whole epoch.

        ``rank`` counts within the ``node``. Padding does not count.
        """
        shape, batches = self.shape, self._batches(0)
        # Only the last steps may have padding, no more than nodes + 1 of them: look at these.
        full_steps = max(batches.count - shape.nodes - 1, 0)
        last_steps = np.arange(full_steps, batches.count)
        real = self._samples_in(batches, last_steps, node, rank)
        # Samples of each micro-batch of the last steps, since those of a step fill the first ones.
        size, parts = self.microbatch, self.spec.microbatches
        real = np.clip(real[:, None] - np.arange(parts) * size, 0, size).reshape(-1)
        # Micro-batch n is for worker n % workers: full ones of the worker, then the last ones.
        full = full_steps * parts
        numbers = np.arange(full, full + len(real))
        return [
            len(range(worker, full, shape.workers)) * size
            + int(real[numbers % shape.workers == worker].sum())
            for worker in range(shape.workers)
        ]

    def _samples_in(self, batches: GlobalBatches, steps: Ids, node: int, rank: int) -> Ids:
        """Return the number of samples that a rank gets in each of some steps, int64 (steps,)."""
        # With masks or a schedule all batches are full, so nothing is looked up.
        if self.spec.remainder == "mask" or self.schedule is not None:
            return np.full(len(steps), self.shape.batch)
        slots = self._slots(node, rank, batches.filled)
        # Lookups that return 0 for every position, as only padding (-1) matters here. These cost
        # less than an order.
        ids = batches.block(steps, slots, [np.zeros_like] * len(self.orders))
        return np.asarray((ids >= 0).sum(axis=1))

    def remaining_samples(self, node: int, rank: int) -> int:
        """Return the number of samples that a rank gets in the global batches that remain.

        ``rank`` counts within the ``node``. Padding does not count, except under masks.
        """
        batches = self.global_batches
        # Besides the last steps, as in `worker_samples`, the first one may lack samples: those that
        # were seen.
        last_steps = np.arange(max(batches.count - self.shape.nodes - 1, 1), batches.count)
        steps = np.concatenate([np.arange(min(batches.count, 1)), last_steps])
        samples = self._samples_in(batches, steps, node, rank)
        return (batches.count - len(steps)) * self.shape.batch + int(samples.sum())

    @property
    def full_steps(self) -> int:
        """Number of the global batches that remain, without padded ones at the end."""
        batches = self.global_batches
        if self.schedule is not None:
            return batches.count  # a schedule fills all of them
        first = max(batches.count - self.shape.nodes - 1, 0)  # no earlier one has padding
        # Lookups that return 0 for every position, as in `_samples_in`.
        ids = batches.whole(first, batches.count, [np.zeros_like] * len(self.orders))
        is_padded = np.asarray((ids < 0).any(axis=1))
        return batches.count - int(np.logical_and.accumulate(is_padded[::-1]).sum())

    @cached_property
    def skips(self) -> tuple[tuple[int, int], ...]:
        """Ranges of places of the epoch that were skipped, each as its first and its end."""
        if not self.edits:
            return ()
        from mds.plan._edits import skips_of

        return skips_of(self.edits, self.epoch)

    @cached_property
    def drops(self) -> DropTable:
        """Table of dropped samples, and of those that replace them in this epoch."""
        from mds.plan._edits import DropTable, drops_of

        drops, seed = drops_of(self.edits), self.shuffle_seed
        return DropTable.of(drops, self.stream_samples, seed, self.epoch)

    @property
    def steps(self) -> int:
        """Global batches that remain, the last of which may be short."""
        return self.global_batches.count

    @property
    def length(self) -> int:
        """Number of ids of one worker that remain, padding included."""
        microbatches = self.global_batches.count * self.spec.microbatches
        return -(-microbatches // self.shape.workers) * self.microbatch

    def blocks(
        self, node: int, rank: int, worker: int, start: int = 0, *, is_padded: bool = True
    ) -> Iterator[Ids]:
        """Yield the ids of a worker from its ``start``-th on, in pieces: int64 of shape (n,).

        - ``node`` (int): Node, after replication as the other numbers.
        - ``rank`` (int): Rank within the node.
        - ``worker`` (int): Worker within the rank.
        - ``start`` (int, default 0, samples): Ids of the worker that are left out.
        - ``is_padded`` (bool, default True): Whether each worker gets as many ids, with -1 for
          padding at the end. Otherwise padding after the last id may be left out.
        """
        batches, batch = self.global_batches, self.microbatch
        lookups = [order.lookup() for order in self.orders]
        count = batches.count * self.spec.microbatches
        width = min(batches.filled, batch)
        # Count the batches of this worker; of the first one ``skip`` ids are left out.
        first, skip = divmod(start, batch)
        last = self.length // batch
        size = _FIRST_BLOCK_IDS
        while first < last:
            end = min(first + max(1, size // batch), last)  # of this piece, in batches
            # Batch k of worker w is micro-batch k * workers + w of the rank.
            numbers = np.arange(first, end) * self.shape.workers + worker
            steps, slots = self._steps_and_slots(numbers[numbers < count], node, rank, width)
            ids = batches.block(steps, slots, lookups).reshape(-1)
            missing = len(numbers) * batch - len(ids)
            if missing and is_padded:
                ids = np.concatenate([ids, np.full(missing, -1, np.int64)])
            yield ids[skip:]
            first, skip, size = end, 0, _BLOCK_IDS

    def nodes_read(self, node: int) -> Ids:
        """Return the canonical nodes whose samples a node reads, sorted."""
        return np.sort(self.global_batches.canonical_nodes_of(node))

    def node_reads(self, node: int, start: int = 0, every: int = 1) -> Iterator[tuple[Ids, Ids]]:
        """Yield the samples that the workers of a node read, from the ``start``-th of each on.

        Each item is (times, ids), both int64 of shape (n,). A time is a place in the order of a
        worker; times ascend. The id at the same index is the sample that some worker reads then.
        Only the ranks 0, ``every``, 2 * ``every``, ... of the node take part. This saves time if an
        estimate suffices, such as when a shard is read next.
        """
        for block in self.node_blocks(node, start, every):
            times = np.repeat(np.arange(start, start + len(block)), block.shape[1])
            start += len(block)
            ids = block.reshape(-1)
            if ids.min(initial=0) < 0:
                times, ids = times[ids >= 0], ids[ids >= 0]
            yield times, ids

    def node_blocks(self, node: int, start: int = 0, every: int = 1) -> Iterator[Ids]:
        """Yield the ids of all workers of a node side by side, from the ``start``-th of each on.

        Each item has a column for each worker, those of the first rank first: int64 of shape
        (ids of a worker, workers of all ranks), with -1 for padding. Padding after the last id may
        be left out. Only the ranks 0, ``every``, 2 * ``every``, ... of the node take part.
        """
        shape, batches, parts = self.shape, self.global_batches, self.spec.microbatches
        workers, ranks = shape.workers, range(0, shape.ranks, every)
        lookups = [order.lookup() for order in self.orders]
        # Slots of each rank, and of each of its micro-batches.
        rank_width = batches.filled if parts == 1 else shape.batch
        width = rank_width // parts
        slots = np.concatenate([self._slots(node, rank, rank_width) for rank in ranks])
        # Count the batches of each worker; of the first one ``skip`` ids are left out.
        first, skip = divmod(start, self.microbatch)
        last = self.length // self.microbatch
        # An item has a multiple of so many rounds, so that it ends with the last part of a step.
        multiple = parts // math.gcd(parts, workers)
        size = _FIRST_BLOCK_IDS
        while first < last:
            wanted = max(1, size // (len(ranks) * width * workers))
            end = min(first + -(-wanted // multiple) * multiple, last)
            rounds = end - first  # batches of each worker in this item
            first_step = first * workers // parts
            steps = np.arange(first_step, min(-(-end * workers // parts), batches.count))
            ids_of_steps = batches.block(steps, slots, lookups)
            # From (step, rank, part of the step, place) to (micro-batch, rank, place).
            by_rank = ids_of_steps.reshape(len(steps), len(ranks), parts, width)
            microbatches = by_rank.swapaxes(1, 2).reshape(-1, len(ranks), width)
            begin = first * workers - first_step * parts  # of the first step
            microbatches = microbatches[begin : begin + rounds * workers]
            # The last round may lack micro-batches; their ids stay padding.
            ids = np.full((rounds * workers, len(ranks), width), -1, np.int64)
            ids[: len(microbatches)] = microbatches
            # From (batch, worker, rank, place in the batch) to (batch, place, rank, worker).
            by_worker = ids.reshape(rounds, workers, len(ranks), width).transpose(0, 3, 2, 1)
            yield by_worker.reshape(rounds * width, -1)[skip:]
            first, skip, size = end, 0, _BLOCK_IDS

    def marks(self, node: int, rank: int, worker: int, start: int, stop: int) -> Ids:
        """Return the places in the epoch of a worker's ids ``start`` to ``stop`` - 1, int64 (n,).

        A place counts the samples of all ranks since the epoch began, so it is the same in every
        world. ``start`` and ``stop`` count the ids of `blocks`. ``rank`` counts within the
        ``node``, ``worker`` within the rank.
        """
        batch = self.microbatch
        # Batch of the worker that has the id ``start``, and the ids of it that come before.
        first, skip = divmod(start, batch)
        # Batch k of worker w is micro-batch k * workers + w of the rank.
        numbers = np.arange(first, -(-stop // batch)) * self.shape.workers + worker
        # All places of a batch, or only the first ones if all ids are in a single batch.
        width = min(stop - first * batch, batch)
        steps, slots = self._steps_and_slots(numbers, node, rank, width)
        marks = self.global_batches.marks(steps, slots).reshape(-1)
        return marks[skip : skip + stop - start]

    def batch(self, step: int) -> Ids:
        """Return the ids of a global batch, int64 (ranks, batch size), -1 for padding.

        Steps count from the beginning of this plan. Raises IndexError after the last one.
        """
        if not 0 <= step < self.steps:
            raise IndexError(
                f"there is no step {step}: the epoch has {plural(self.steps, 'step')}."
            )
        lookups = [order.lookup() for order in self.orders]
        ids = self.global_batches.whole(step, step + 1, lookups)
        return ids.reshape(self.shape.world, self.shape.batch)

    def step_rows(self, step: int) -> list[StepSample]:
        """Return the samples of a global batch, rank by rank.

        Steps count from the beginning of this plan. Raises IndexError after the last one.
        """
        ranks = self.batch(step).tolist()
        return [StepSample(rank, id_) for rank, ids in enumerate(ranks) for id_ in ids if id_ >= 0]

    def step_reads(self) -> Iterator[Ids]:
        """Yield for each remaining global batch its sample ids, sorted, -1 for padding.

        Each item is int64 (samples of a global batch,). Audits compare it between runs whose
        worlds differ, as worlds deal the samples of a step in different ways.
        """
        lookups = [order.lookup() for order in self.orders]
        size = max(1, _AUDIT_IDS // self.shape.global_batch)
        for first in range(0, self.steps, size):
            last = min(first + size, self.steps)
            yield from np.sort(self.global_batches.whole(first, last, lookups), axis=1)

    def locate(self, sample: int) -> list[Place]:
        """Return every place of a sample in the rest of the epoch, in the order of steps.

        Mostly it is one. There are more if a sample is repeated, or replaces dropped samples, and
        none if it was seen before, or is not chosen, or was dropped.
        """
        batches, drops = self.global_batches, self.drops
        places = set()
        # The sample may come where the order has it, or a dropped sample that it replaces.
        for source in drops.sources(sample):
            for stream, order in enumerate(self.orders):
                steps, slots = batches.find(stream, order.find(source))
                for step, slot in zip(steps.tolist(), slots.tolist(), strict=True):
                    # A sample is dropped from a place on, so what comes here depends on the place.
                    mark = batches.marks(np.array([step]), np.array([slot]))[0]
                    sample_here = drops.at(np.array([source]), mark)[0]
                    if sample_here == sample:
                        rank, place_in_batch = divmod(slot, self.shape.batch)
                        number = step * self.spec.microbatches + place_in_batch // self.microbatch
                        worker = number % self.shape.workers
                        places.add(Place(step, rank, worker, place_in_batch))
        return sorted(places)

    def place_after(self, num_samples: int) -> int:
        """Return the place in the epoch after the next ``num_samples`` samples of this plan.

        Samples of all ranks count. Skipped places are passed over.
        """
        if not self.skips:
            return self.begin.place + num_samples
        from mds.plan._edits import place_after

        return place_after(self.skips, self.begin.place, num_samples)

    def order_hash(self, steps: int) -> OrderHash:
        """Return the hash of the next ``steps`` global batches, without reading any data.

        It is the hash that the runs report that train on these batches, see `OrderHash`.
        """
        order_hash = OrderHash()
        lookups = [order.lookup() for order in self.orders]
        slots = np.arange(self.shape.global_batch)
        steps_at_once = max(1, _BLOCK_IDS // self.shape.global_batch)
        for first in range(0, min(steps, self.steps), steps_at_once):
            last = min(first + steps_at_once, steps, self.steps)
            ids = self.global_batches.whole(first, last, lookups)
            marks = self.global_batches.marks(np.arange(first, last), slots)
            order_hash.add(marks.reshape(-1), ids.reshape(-1))
        return order_hash

    def dataset_facts(self) -> dict[str, Any]:
        """Return facts about the data, which a state records and compares, as plain JSON."""
        return {
            "samples": self.num_samples,
            "shards": sum(len(sizes) for sizes in self._sizes),
            "streams": len(self._sizes),
            "choose": digest(*self.choose),
            "fingerprint": self._dataset or digest(*self._sizes),
        }

    def order_facts(self) -> dict[str, Any]:
        """Return the settings that a state records and compares, as plain JSON."""
        shape = self.shape
        facts = self.spec.facts(self.shuffle_block_size, shape.ranks, shape.nodes)
        if self.schedule is not None:
            facts |= self.schedule.facts(self.choose, shape.global_batch, self.epoch_size)
        if self.spec.batching_method == "per_stream":
            facts["batches_of_streams"] = self._batches_of_streams
        return facts

    @cached_property
    def _batches_of_streams(self) -> str:
        """Number of batches of all streams, and a digest of the number of each, as one text.

        A state records it, as in ``"120 (3f9a01bc)"``, and is refused if it differs in another
        world: `per_stream` shuffles the batches, so other numbers would mean another order.
        """
        from mds.plan._stream_batches import full_batches

        counts = full_batches([order.samples for order in self.orders], self._partition(0))
        return f"{sum(counts)} ({digest(*counts)[:8]})"

    def data_facts(self) -> dict[str, Any]:
        """Return nothing: `order_facts` are enough to make the order again."""
        return {}

    def fingerprint(self) -> str:
        """Return a digest of the data and the settings."""
        return digest(repr(self.dataset_facts()), repr(self.order_facts()))

    def check(self, state: Mapping[str, Any] | ResumePoint) -> None:
        """Raise StateError for a state of other data or another order, naming the differences.

        A state is checked once, when it is loaded. Making a plan from it checks nothing.
        """
        point = parse_state(state)
        point.check(self.dataset_facts(), self.order_facts())

    def state(self, num_samples: int, order_hash: OrderHash | str | None = None) -> ResumePoint:
        """Return the resume point after the next ``num_samples`` samples of this plan.

        Args:
            num_samples: Samples of all ranks since the beginning of this plan.
            order_hash: Hash of the samples since the run began, if it is known.
        """
        nodes = self.initial_physical_nodes
        return ResumePoint(
            Position(self.epoch, self.place_after(num_samples)),
            self.num_canonical_nodes,
            self.shuffle_seed,
            self.world.num_nodes if nodes is None else nodes,
            version=VERSION,
            dataset=self.dataset_facts(),
            order=self.order_facts(),
            order_hash=None if order_hash is None else str(order_hash),
            schedule=None if self.schedule is None else self.schedule.to_json(),
            edits=self.edits,
        )

    @property
    def samples(self) -> EpochPlan:
        """This order."""
        return self

    @property
    def packs(self) -> None:
        """Order of packs, which a plan of samples does not have: always None."""
        return None

    def following(self) -> EpochPlan:
        """Return the plan of the next epoch, with the settings of a loaded state in force."""
        return self._like(self.resume_point.at(self.begin.following()), self.schedule, self._costs)

    def with_run(self, run: ScheduledRun) -> EpochPlan:
        """Return the same plan with ``run`` as its schedule, such as one counted in windows."""
        return self._like(self.resume_point, run, self._costs)

    def with_costs(self, costs: SampleCosts) -> EpochPlan:
        """Return the same plan, whose canonical nodes are cut by the cost of the samples."""
        return self._like(self.resume_point, self.schedule, costs)

    def _like(
        self, point: ResumePoint, schedule: ScheduledRun | None, costs: SampleCosts | None
    ) -> EpochPlan:
        """Return a plan of the same data and settings at another position, with these other two."""
        # Without __init__, which would resolve the weights anew and parse a state. Properties that
        # were computed for this plan are not copied, as they depend on the position.
        plan = object.__new__(EpochPlan)
        plan.spec, plan.world, plan.weights = self.spec, self.world, self.weights
        plan._streams = self._streams
        plan.schedule, plan.edits = schedule, self.edits
        plan.num_samples, plan._dataset = self.num_samples, self._dataset
        plan._costs = costs
        plan._sizes, plan.small_order = self._sizes, self.small_order
        plan._init_from(point)
        return plan

    def _slots(self, node: int, rank: int, width: int) -> Ids:
        """Return the first ``width`` slots of a rank of a node in a global batch, int64."""
        device = node * self.shape.ranks + rank
        return self.shape.slots(device, device + 1, width)

    def _steps_and_slots(self, numbers: Ids, node: int, rank: int, width: int) -> tuple[Ids, Ids]:
        """Return the steps and slots of micro-batches of a rank, for `GlobalBatches.block`.

        Args:
            numbers: Numbers of the micro-batches among those of the rank.
            node, rank: Node, and rank within it.
            width: Number of slots of each micro-batch, the first ones.
        """
        parts, slots = self.spec.microbatches, self._slots(node, rank, width)
        if parts == 1:
            return numbers, slots
        steps, part = np.divmod(numbers, parts)
        return steps, slots + part[:, None] * self.microbatch

    def __repr__(self) -> str:
        return (
            f"<EpochPlan of epoch {self.epoch} from sample {self.begin.place}: "
            f"{plural(self.epoch_size, 'sample')}, {self.world!r}>"
        )


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
    lookups = [each.materialize() for each in plan.orders]
    if plan.spec.microbatches == 1:
        return all_batches(plan.shape, plan.global_batches, lookups)
    # All micro-batches of each rank, which are then dealt to its workers.
    nodes, ranks, workers, _ = plan.shape
    ids = all_batches(plan.shape._replace(workers=1), plan.global_batches, lookups)
    microbatches = ids.reshape(nodes, ranks, -1, plan.microbatch)
    lacking = -microbatches.shape[2] % workers  # of the last round
    microbatches = np.pad(microbatches, ((0, 0), (0, 0), (0, lacking), (0, 0)), constant_values=-1)
    rounds = microbatches.reshape(nodes, ranks, -1, workers, plan.microbatch)
    by_worker: Ids = rounds.swapaxes(2, 3)
    return by_worker
