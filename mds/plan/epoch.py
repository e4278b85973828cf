"""EpochPlan: lazy plan of one epoch, from (node, rank, worker, position) to sample ids.

A run makes one for each epoch, in every process, for free: nothing is computed before ids are
asked for. At the start of an iteration a dataset says

    plan = EpochPlan(streams, world, epoch=next_epoch, resume=state, weights=weights, ...)
    for ids in plan.blocks(node, rank, worker, start): ...
    checkpoint = plan.state(samples_seen)
    plan = plan.following()

``state`` is what was loaded, or None. A plan begins where a state of its epoch or a later one says,
with the canonical nodes, seed and initial nodes of the state; ``following`` keeps these for the
next epochs. To go back to a state of an earlier epoch, ask for that epoch: a state that is older
than ``epoch`` is an error, or, if it is the incumbent's, used up as there, with a warning.
``weights``, resolved once with the seed that the run was made with, keep the shares of the streams
when a state brings another seed.
"""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.errors import ConfigError, PlanError, StreamPlanError
from mds.plan.audit import OrderHash, Place
from mds.plan.global_batches import NoBatches, PartitionSpec, RandomBatches, Shape, all_batches
from mds.plan.order import StepSample
from mds.plan.sampling import ResamplingParams, SequentialResampling, StreamShare
from mds.plan.spec import OrderSpec
from mds.plan.state import VERSION, Position, ResumePoint, parse_state
from mds.plan.stream_orders import (
    SMALL_ORDER_SAMPLES,
    RandomAccessOrder,
    SequentialOrder,
    ShuffleParams,
    StreamOrder,
    UnshuffledOrder,
)
from mds.plan.weights import Weights, resolve_passes, resolve_weights, stream_title
from mds.process.fork_safe import cached_property
from mds.shardfile.hashing import digest
from mds.shuffle.permutation import derive_key
from mds.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mds.plan.edits import DropTable
    from mds.plan.global_batches import GlobalBatches
    from mds.plan.passes import StreamPasses
    from mds.plan.schedule import ScheduledEpoch, ScheduledRun
    from mds.plan.stream_orders import StreamOrder
    from mds.plan.weights import Weights
    from mds.world import World

    Ids = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class EpochInputs:
    """Inputs of one epoch: its data, and the parameters in force."""

    sizes: Sequence[NDArray[np.int64]]
    weights: Weights
    spec: OrderSpec
    params: ShuffleParams
    small_order: int
    scheduled: ScheduledEpoch | None = None

    def streams(self) -> list[int]:
        """Return the streams that take part. Raises PlanError if a required one is empty."""
        giving = [i for i, count in enumerate(self.weights.choose) if count]
        by_stream = self.spec.batching_method != "random"
        if by_stream and len(giving) < len(self.sizes) and not self.spec.skip_empty_streams:
            empty = next(i for i in range(len(self.sizes)) if i not in giving)
            raise StreamPlanError(
                f"stream {empty} gives no samples, and batching_method "
                f"{self.spec.batching_method!r} needs some of every stream: leave it out.",
                empty,
            )
        return giving

    def orders(self) -> Sequence[StreamOrder | StreamPasses]:
        """Return one order of all streams for random batching, else one for each that takes part.

        With a schedule one of all streams, over all their passes.
        """
        giving = self.streams()
        if not giving:
            return []
        first = np.cumsum([0] + [int(sizes.sum()) for sizes in self.sizes]).tolist()
        shares = [
            StreamShare(sizes, first[i], self.weights.choose[i])
            for i, sizes in enumerate(self.sizes)
        ]
        if self.scheduled is not None:
            from mds.plan.passes import PassOrders, StreamPasses

            passes = [
                PassOrders(self._pass_of(i, share), share.choose, self.params.nodes, turns)
                for (i, share), turns in zip(enumerate(shares), self.scheduled.turns(), strict=True)
            ]
            return [StreamPasses(passes)]
        if self.spec.batching_method == "random":
            return [self._order(shares, self.params)]
        return [
            self._order([shares[i]], self.params._replace(block=self._block(i))) for i in giving
        ]

    def global_batches(self, samples: Sequence[int], partition: PartitionSpec) -> GlobalBatches:
        """Return the global batches, made of orders of so many samples."""
        method = self.spec.batching_method
        if not samples:
            return NoBatches()
        if self.scheduled is not None:
            stretch = self.scheduled
            from mds.plan.stream_batches import ScheduledBatches

            return ScheduledBatches(stretch.mixture, stretch.first, stretch.last, partition)
        if method == "random":
            return RandomBatches(samples[0], partition)
        if method == "stratified":
            proportions = [self.weights.proportion[i] for i in self.streams()]
            from mds.plan.stream_batches import StratifiedBatches

            return StratifiedBatches(samples, proportions, partition)
        rng = np.random.default_rng(self._choice_seed())
        if method == "per_stream":
            from mds.plan.stream_batches import PerStreamBatches

            return PerStreamBatches(samples, partition, rng)
        from mds.plan.stream_batches import DevicePerStreamBatches

        return DevicePerStreamBatches(samples, partition, rng)

    def _order(self, shares: Sequence[StreamShare], params: ShuffleParams) -> StreamOrder:
        name, algorithm = self.spec.shuffle_algo, self.spec.algorithm if self.spec.shuffle else None
        if algorithm is not None and algorithm.is_random_access:
            from mds.plan.keyed_sampling import KeyedResampling

            keyed = KeyedResampling(shares, self._keyed_params(params))
            return RandomAccessOrder(keyed, params, name, algorithm, self.small_order)
        resampling = SequentialResampling(shares, self._resampling_params(params))
        if algorithm is not None:
            return SequentialOrder(resampling, params, name, algorithm, self.small_order)
        return UnshuffledOrder(resampling, params, self.small_order)

    def _pass_of(self, stream: int, share: StreamShare) -> Callable[[int], StreamOrder]:
        """Return a function that makes the order of a pass through a stream."""

        def make(number: int) -> StreamOrder:
            return self._order([share], self.params._replace(epoch=number, block=block))

        assert self.scheduled is not None
        # As long as the others' in time where it has most of the mixture.
        part = max(self.scheduled.largest_shares[stream], 1 / len(self.sizes))
        block = max(int(self.params.block * part), 1)
        return make

    def _block(self, stream: int) -> int:
        block = int(self.params.block * self.weights.proportion[stream])
        if self.spec.shuffle and not block and self.spec.batching_method == "device_per_stream":
            raise PlanError(
                f"shuffle_block_size {self.params.block} leaves no block to stream {stream}: "
                "enlarge it."
            )
        return block

    def _choice_seed(self) -> int:
        return self._seed_of(self.params, moves=self.spec.shuffle and self._is_balanced)

    @property
    def _is_balanced(self) -> bool:
        return self.spec.sampling_method == "balanced"

    @staticmethod
    def _seed_of(params: ShuffleParams, *, moves: bool) -> int:
        return params.seed + (params.epoch if moves else 0)

    def _resampling_params(self, params: ShuffleParams) -> ResamplingParams:
        return ResamplingParams(
            self.spec.sampling_granularity,
            self._seed_of(params, moves=self.spec.shuffle and self._is_balanced),
            self._seed_of(params, moves=self._is_balanced),
        )

    def _keyed_params(self, params: ShuffleParams) -> ResamplingParams:
        seed = derive_key(params.seed, params.epoch + 1 if self._is_balanced else 0)
        return ResamplingParams(self.spec.sampling_granularity, seed, seed)


_FIRST_BLOCK_IDS = 1 << 10  # of a worker; its later blocks have more
_BLOCK_IDS = 1 << 14
_AUDIT_IDS = 1 << 16


class EpochPlan:
    """Lazy plan of the order of one epoch.

    ``streams``: a mapping per stream with ``shards`` (samples of each shard) and at most one of
    ``proportion``, ``repeat``, ``choose``. ``world``: before replication. ``epoch``: the one to be
    planned. ``initial_physical_nodes``: those the run began with, if a state said so before.
    ``small_order``: samples below which every process computes an order for itself.
    ``schedule``: how the shares of streams change; an epoch is then so many full global batches.
    ``edits``: what was skipped and dropped of the order (`mds.plan.edits`).
    ``spec``: the order settings, which may as well be given one by one, as those of OrderSpec.

    Raises ConfigError, PlanError or UnknownNameError for what makes no order, now or when ids are
    asked for, and StateError for a state that is none.
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
                raise ConfigError("the streams give no samples: raise their repeat or choose.")
        self.weights = weights
        self.num_samples = sum(per_stream)
        self._dataset = dataset
        self.small_order = small_order
        self._init_from(self.spec.resume_point(self.world, epoch, resume, initial_physical_nodes))

    def _init_from(self, point: ResumePoint) -> None:
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
        """Samples of the epoch."""
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

    @cached_property
    def inputs(self) -> EpochInputs:
        """Data and parameters of the epoch."""
        params = ShuffleParams(
            self.num_canonical_nodes, self.shuffle_seed, self.epoch, self.shuffle_block_size
        )
        return EpochInputs(
            self._sizes, self.weights, self.spec, params, self.small_order, self.scheduled
        )

    @cached_property
    def scheduled(self) -> ScheduledEpoch | None:
        """Global batches of a schedule that the epoch has."""
        if self.schedule is None:
            return None
        batch = self.shape.global_batch
        from mds.plan.schedule import scheduled_epoch

        return scheduled_epoch(self.schedule, self.choose, batch, self.epoch, self.epoch_size)

    @cached_property
    def orders(self) -> Sequence[StreamOrder | StreamPasses]:
        """Orders of the streams behind the global batches."""
        with self._named_streams():
            return self.inputs.orders()

    @cached_property
    def long_orders(self) -> list[StreamOrder]:
        """Orders of streams that take long to compute, which a node shares in files."""
        parts = (part for order in self.orders for part in order.parts)
        return [part for part in parts if not part.is_cheap]

    @property
    def is_cheap(self) -> bool:
        """Whether no order of a stream takes long to compute."""
        return not self.long_orders

    @cached_property
    def global_batches(self) -> GlobalBatches:
        """Global batches of the epoch."""
        if not self.edits:  # as in most runs
            return self._batches(self.begin.place)
        from mds.plan.edits import DroppedBatches

        batches = self._batches(self.begin.place, self.skips)

        return DroppedBatches(batches, self.drops) if len(self.drops) else batches

    def _batches(self, place: int, skips: tuple[tuple[int, int], ...] = ()) -> GlobalBatches:
        partition = self._partition(place, skips)
        samples = [order.samples for order in self.orders]
        with self._named_streams():
            return self.inputs.global_batches(samples, partition)

    @contextmanager
    def _named_streams(self) -> Iterator[None]:
        """Use the names of streams in errors about them."""
        try:
            yield
        except StreamPlanError as error:
            title = stream_title(self._streams, error.stream)
            error.args = (str(error).replace(f"stream {error.stream} ", f"stream {title} ", 1),)
            raise

    def _partition(self, place: int, skips: tuple[tuple[int, int], ...] = ()) -> PartitionSpec:
        return PartitionSpec(
            self.shape,
            self.num_canonical_nodes,
            self.spec.partition_algo,
            self.initial_physical_nodes,
            place,
            self.resume_point.version is not None,  # written by this library
            bool(self.spec.exact),
            skips,
            self._shape_begun,
        )

    @cached_property
    def _shape_begun(self) -> Shape | None:
        """Shape for which batches by stream are padded; None is that of this world.

        The padding decides how many batches a stream has, so a run keeps it on other ranks.
        """
        if self.spec.batching_method not in {"per_stream", "stratified"}:
            return None
        initial, size = self.resume_point.initial_ranks, self.shape.global_batch
        if initial is None:
            return None
        nodes, ranks = initial
        if size % ranks:  # of other global batches: such a state is refused
            return None
        return Shape(nodes, ranks // nodes, self.shape.workers, size // ranks)

    @property
    def epoch_steps(self) -> int:
        """Global batches of the whole epoch, with those that were seen or skipped."""
        if self.schedule is not None:
            return self.schedule.epoch_steps(self.epoch_size, self.shape.global_batch)
        return self._batches(0).count

    def worker_samples(self, node: int, rank: int) -> list[int]:
        """Return how many samples each worker of a rank gets in the whole epoch."""
        shape, batches = self.shape, self._batches(0)
        # Only the last steps have padding, of which no more than nodes + 1 are incomplete.
        regular = max(batches.count - shape.nodes - 1, 0)
        last = np.arange(regular, batches.count)
        real = np.full(len(last), shape.batch)
        if self.spec.exact != "mask" and self.schedule is None:  # whose batches are all full
            device = node * shape.ranks + rank
            slots = shape.slots(device, device + 1, batches.filled)
            ids = batches.block(last, slots, [np.zeros_like] * len(self.orders))
            real = (ids >= 0).sum(axis=1)
        return [
            len(range(worker, regular, shape.workers)) * shape.batch
            + int(real[last % shape.workers == worker].sum())
            for worker in range(shape.workers)
        ]

    @cached_property
    def skips(self) -> tuple[tuple[int, int], ...]:
        """Ranges of places of the epoch that were skipped, each as its first and its end."""
        if not self.edits:
            return ()
        from mds.plan.edits import skips_of

        return skips_of(self.edits, self.epoch)

    @cached_property
    def drops(self) -> DropTable:
        """Samples that were dropped, and what replaces them in this epoch."""
        from mds.plan.edits import DropTable, drops_of

        drops, seed = drops_of(self.edits), self.shuffle_seed
        return DropTable.of(drops, self.stream_samples, seed, self.epoch)

    @property
    def steps(self) -> int:
        """Global batches that remain, the last of which may be short."""
        return self.global_batches.count

    @property
    def length(self) -> int:
        """Number of ids of one worker, with padding."""
        return -(-self.global_batches.count // self.shape.workers) * self.shape.batch

    def blocks(
        self, node: int, rank: int, worker: int, start: int = 0, *, is_padded: bool = True
    ) -> Iterator[Ids]:
        """Yield the ids of a worker from its ``start``-th on: int64 of shape (n,), -1 for padding.

        ``rank`` counts within the node, ``worker`` within the rank, both after replication. Without
        ``is_padded``, what follows the last id of a worker may be left out.
        """
        shape, batches = self.shape, self.global_batches
        lookups = [order.lookup() for order in self.orders]
        slots = self._slots(node, rank)
        first, skip = divmod(start, shape.batch)
        last = self.length // shape.batch
        size = _FIRST_BLOCK_IDS
        while first < last:
            until = min(first + max(1, size // shape.batch), last)
            mine = np.arange(first, until) * shape.workers + worker
            real = mine[mine < batches.count]
            ids = batches.block(real, slots, lookups).reshape(-1)
            missing = len(mine) * shape.batch - len(ids)
            if missing and is_padded:
                ids = np.concatenate([ids, np.full(missing, -1, np.int64)])
            yield ids[skip:]
            first, skip, size = until, 0, _BLOCK_IDS

    def nodes_read(self, node: int) -> Ids:
        """Return the canonical nodes whose samples a node reads, sorted."""
        return np.sort(self.global_batches.canonical_nodes_of(node))

    def node_reads(self, node: int, start: int = 0, every: int = 1) -> Iterator[tuple[Ids, Ids]]:
        """Yield what the workers of a node read, from the ``start``-th sample of each on.

        Each item is (times, ids), both int64 of shape (n,): ascending places in the order of a
        worker, and the samples that are read then. Only each ``every``-th rank takes part.
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

        2-D int64 arrays (ids, workers), the workers of the first rank first; -1 for padding, of
        which what follows the last id may be left out. Of the ranks only each ``every``-th takes
        part.
        """
        shape, batches = self.shape, self.global_batches
        lookups = [order.lookup() for order in self.orders]
        slots = np.concatenate([self._slots(node, rank) for rank in range(0, shape.ranks, every)])
        width = batches.filled
        first, skip = divmod(start, shape.batch)
        last = self.length // shape.batch
        size = _FIRST_BLOCK_IDS
        while first < last:
            until = min(first + max(1, size // (len(slots) * shape.workers)), last)
            steps = np.arange(first * shape.workers, min(until * shape.workers, batches.count))
            ids = np.full(((until - first) * shape.workers, len(slots)), -1, np.int64)
            ids[: len(steps)] = batches.block(steps, slots, lookups)
            turns = ids.reshape(until - first, shape.workers, len(slots) // width, width)
            side_by_side = turns.transpose(0, 3, 2, 1).reshape((until - first) * width, -1)
            yield side_by_side[skip:]
            first, skip, size = until, 0, _BLOCK_IDS

    def marks(self, node: int, rank: int, worker: int, start: int, stop: int) -> Ids:
        """Return the places in the epoch of the ids ``start`` to ``stop`` - 1 of a worker."""
        batch = self.shape.batch
        first, skip = divmod(start, batch)
        mine = np.arange(first, -(-stop // batch)) * self.shape.workers + worker
        device = node * self.shape.ranks + rank
        slots = self.shape.slots(device, device + 1, min(stop - first * batch, batch))
        marks = self.global_batches.marks(mine, slots).reshape(-1)
        return marks[skip : skip + stop - start]

    def batch(self, step: int) -> Ids:
        """Return the ids of a global batch, int64 (ranks, batch size), -1 for padding.

        Steps are counted from where this plan begins. Raises IndexError beyond the last.
        """
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of an epoch of {self.steps} steps.")
        lookups = [order.lookup() for order in self.orders]
        ids = self.global_batches.whole(step, step + 1, lookups)
        return ids.reshape(self.shape.world, self.shape.batch)

    def step_rows(self, step: int) -> list[StepSample]:
        """Return the samples of a global batch, rank by rank.

        Steps count from where this plan begins. Raises IndexError after the last one.
        """
        ranks = self.batch(step).tolist()
        return [StepSample(rank, id_) for rank, ids in enumerate(ranks) for id_ in ids if id_ >= 0]

    def step_reads(self) -> Iterator[Ids]:
        """Yield for each remaining global batch its sample ids, sorted, -1 for padding."""
        lookups = [order.lookup() for order in self.orders]
        size = max(1, _AUDIT_IDS // self.shape.global_batch)
        for first in range(0, self.steps, size):
            last = min(first + size, self.steps)
            yield from np.sort(self.global_batches.whole(first, last, lookups), axis=1)

    def locate(self, sample: int) -> list[Place]:
        """Return every place where a sample is in the rest of the epoch, by step; often one."""
        places = set()
        for number, order in enumerate(self.orders):
            for source in self.drops.sources(sample):
                steps, slots = self.global_batches.find(number, order.find(source))
                for step, slot in zip(steps.tolist(), slots.tolist(), strict=True):
                    mark = self.global_batches.marks(np.array([step]), np.array([slot]))[0]
                    if self.drops.at(np.array([source]), mark)[0] == sample:
                        rank, slot_of_rank = divmod(slot, self.shape.batch)
                        places.add(Place(step, rank, step % self.shape.workers, slot_of_rank))
        return sorted(places)

    def place_after(self, num_samples: int) -> int:
        """Return the place ``num_samples`` of all ranks after the beginning of this plan."""
        if not self.skips:
            return self.begin.place + num_samples
        from mds.plan.edits import place_after

        return place_after(self.skips, self.begin.place, num_samples)

    def order_hash(self, steps: int) -> OrderHash:
        """Return the hash of the next ``steps`` global batches, without reading any data."""
        order_hash = OrderHash()
        lookups = [order.lookup() for order in self.orders]
        slots = np.arange(self.shape.global_batch)
        step = max(1, _BLOCK_IDS // self.shape.global_batch)
        for first in range(0, min(steps, self.steps), step):
            last = min(first + step, steps, self.steps)
            ids = self.global_batches.whole(first, last, lookups)
            marks = self.global_batches.marks(np.arange(first, last), slots)
            order_hash.add(marks.reshape(-1), ids.reshape(-1))
        return order_hash

    def dataset_facts(self) -> dict[str, Any]:
        """Return what a state records of the data, as plain JSON."""
        return {
            "samples": self.num_samples,
            "shards": sum(len(sizes) for sizes in self._sizes),
            "streams": len(self._sizes),
            "choose": digest(*self.choose),
            "fingerprint": self._dataset or digest(*self._sizes),
        }

    def order_facts(self) -> dict[str, Any]:
        """Return what a state records of the settings, as plain JSON."""
        shape = self.shape
        facts = self.spec.facts(self.shuffle_block_size, shape.ranks, shape.nodes)
        if self.schedule is not None:
            facts |= self.schedule.facts(self.choose, shape.global_batch, self.epoch_size)
        if self.spec.batching_method == "per_stream":
            facts["batches_of_streams"] = self._batches_of_streams
        return facts

    @cached_property
    def _batches_of_streams(self) -> str:
        """Number of batches of all streams, and a digest of those of each."""
        from mds.plan.stream_batches import full_batches

        counts = full_batches([order.samples for order in self.orders], self._partition(0))
        return f"{sum(counts)} ({digest(*counts)[:8]})"

    def data_facts(self) -> dict[str, Any]:
        """Return nothing: the facts of the order lead back to it."""
        return {}

    def fingerprint(self) -> str:
        """Return a name for the data and the order parameters."""
        return digest(repr(self.dataset_facts()), repr(self.order_facts()))

    def check(self, state: Mapping[str, Any] | ResumePoint) -> None:
        """Refuse a state of other data or another order, listing the differences (StateError).

        Not done when a plan is made: a state is checked once, when it is loaded.
        """
        point = parse_state(state)
        point.check(self.dataset_facts(), self.order_facts())

    def state(self, num_samples: int, order_hash: OrderHash | str | None = None) -> ResumePoint:
        """Return the resume point ``num_samples`` of all ranks after the beginning of this plan."""
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

    def following(self) -> EpochPlan:
        """Return the plan of the next epoch, with the settings of a loaded state in force."""
        return self._like(self.resume_point.at(self.begin.following()), self.schedule)

    def with_run(self, run: ScheduledRun) -> EpochPlan:
        """Return the same plan with a schedule that counts something else."""
        return self._like(self.resume_point, run)

    def _like(self, point: ResumePoint, schedule: ScheduledRun | None) -> EpochPlan:
        plan = object.__new__(EpochPlan)
        plan.spec, plan.world, plan.weights = self.spec, self.world, self.weights
        plan.schedule, plan.edits = schedule, self.edits
        plan.num_samples, plan._dataset = self.num_samples, self._dataset
        plan._sizes, plan.small_order = self._sizes, self.small_order
        plan._init_from(point)
        return plan

    def _slots(self, node: int, rank: int) -> Ids:
        """Return the slots of a rank that may have samples."""
        device = node * self.shape.ranks + rank
        return self.shape.slots(device, device + 1, self.global_batches.filled)

    def __repr__(self) -> str:
        return (
            f"<EpochPlan of epoch {self.epoch} from sample {self.begin.place}: "
            f"{self.epoch_size} samples, {self.world!r}>"
        )


def epoch_order(streams: Sequence[Mapping[str, Any]], world: World, **order: Any) -> Ids:
    """Return all ids of an epoch, int64 (nodes, ranks, workers, batches, batch), -1 for padding.

    Takes the arguments of EpochPlan and raises what it raises.
    """
    plan = EpochPlan(streams, world, **order)
    return all_batches(
        plan.shape, plan.global_batches, [each.materialize() for each in plan.orders]
    )
