"""EpochPlan: the order of one epoch, from (node, rank, worker, place) to sample ids.

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
`stream_batches`) deal the positions of that order to steps, ranks and workers. With packs, windows
of the order are packed first (`pack_filling`). A *lookup* is a function from positions of an order
to sample ids. A *slot* is the index of a sample, or of a pack, in its global batch.

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
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._process.fork_safe import cached_property
from mds._shardfile.hashing import digest
from mds._units import parse_count
from mds._words import plural
from mds.errors import ConfigError, PlanError
from mds.plan._audit import OrderHash, Place, StepContents
from mds.plan._spec import EpochInputs, OrderSpec
from mds.plan._state import VERSION, ResumePoint, json_of, parse_state
from mds.plan._stream_orders import SMALL_ORDER_SAMPLES
from mds.plan._weights import resolve_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mds.plan._audit import StepSample
    from mds.plan._edits import DropTable
    from mds.plan._filling import Filling
    from mds.plan._global_batches import GlobalBatches, Lookup, Shape
    from mds.plan._pack_filling import DocumentLengths
    from mds.plan._passes import StreamPasses
    from mds.plan._schedule import ScheduledEpoch, ScheduledRun
    from mds.plan._state import Position
    from mds.plan._stream_orders import StreamOrder
    from mds.plan._weights import Weights
    from mds.world import World

    Ids = NDArray[np.int64]

_FIRST_BLOCK_IDS = 1 << 10  # ids of the first block of a worker, which should come soon
_BLOCK_IDS = 1 << 14  # ids of later blocks
_AUDIT_IDS = 1 << 16  # ids that an audit computes at once


def _inputs_class(schedule: ScheduledRun | None) -> Callable[..., EpochInputs]:
    """Return the class of the inputs of epochs with this schedule, or without one."""
    if schedule is None:
        return EpochInputs
    from mds.plan._scheduled_inputs import ScheduledInputs

    return ScheduledInputs


class SampleBatches:
    """Steps of an epoch of samples, which are all of its global batches; a `StepBatches`.

    Args:
        batches: Global batches of the epoch, or of its rest.
        inputs: Data and settings of the epoch.

    Attributes:
        count: Number of steps.
    """

    def __init__(self, batches: GlobalBatches, inputs: EpochInputs) -> None:
        self._batches, self._inputs = batches, inputs
        self.count = batches.count

    @property
    def full(self) -> int:
        """Number of steps without padded ones at the end."""
        batches, inputs = self._batches, self._inputs
        if batches.is_full:
            return batches.count
        first = max(batches.count - inputs.shape.nodes - 1, 0)  # no earlier one has padding
        # Lookups that return 0 for every position, as only padding (-1) matters here. These cost
        # less than an order.
        ids = batches.whole(first, batches.count, [np.zeros_like] * len(inputs.orders))
        is_padded = np.asarray((ids < 0).any(axis=1))
        return batches.count - int(np.logical_and.accumulate(is_padded[::-1]).sum())

    def batch_of(self, step: int) -> int:
        """Return the global batch of a step: the same number."""
        return step

    def step_at(self, batch: int) -> int:
        """Return the step of a global batch: the same number."""
        return batch


class SampleFilling:
    """Steps of an epoch of samples: one sample at each place; a `Filling`.

    Args:
        inputs: Data and settings of the epoch.

    Attributes:
        inputs: The same.
        begin: Position at which the steps begin.
        has_equal_epochs: True: all epochs have equally many steps.
    """

    has_equal_epochs = True
    user_packer = None

    def __init__(self, inputs: EpochInputs) -> None:
        self.inputs, self.begin = inputs, inputs.point.position

    @cached_property
    def global_batches(self) -> GlobalBatches:
        """Global batches that remain, without skipped steps and with dropped samples replaced."""
        if not self.inputs.edits:
            return self.inputs.batches(self.begin.place)
        from mds.plan._edits import DroppedBatches

        batches = self.inputs.batches(self.begin.place, self.inputs.skips)
        return DroppedBatches(batches, self.drops) if len(self.drops) else batches

    @cached_property
    def drops(self) -> DropTable:
        """Table of dropped samples, and of those that replace them in this epoch."""
        from mds.plan._edits import DropTable, drops_of

        drops, seed = drops_of(self.inputs.edits), self.inputs.params.seed
        return DropTable.of(drops, self.inputs.stream_samples, seed, self.inputs.epoch)

    @cached_property
    def batches(self) -> SampleBatches:
        """Global batches that remain, the last of which may be short."""
        return SampleBatches(self.global_batches, self.inputs)

    @cached_property
    def epoch_batches(self) -> SampleBatches:
        """Global batches of the whole epoch, seen and skipped ones included."""
        return SampleBatches(self.inputs.batches(0), self.inputs)

    @property
    def length(self) -> int:
        """Number of ids of one worker that remain, padding included."""
        microbatches = self.global_batches.count * self.inputs.spec.microbatches
        return -(-microbatches // self.inputs.shape.workers) * self.inputs.microbatch

    def blocks(
        self, node: int, rank: int, worker: int, start: int = 0, *, is_padded: bool = True
    ) -> Iterator[Ids]:
        """Yield the ids of a worker, see `EpochPlan.blocks`."""
        batches, batch = self.global_batches, self.inputs.microbatch
        lookups = [order.lookup() for order in self.inputs.orders]
        count = batches.count * self.inputs.spec.microbatches
        width = min(batches.filled, batch)
        # Count the batches of this worker; of the first one ``skip`` ids are left out.
        first, skip = divmod(start, batch)
        last = self.length // batch
        size = _FIRST_BLOCK_IDS
        while first < last:
            end = min(first + max(1, size // batch), last)  # of this piece, in batches
            # Batch k of worker w is micro-batch k * workers + w of the rank.
            numbers = np.arange(first, end) * self.inputs.shape.workers + worker
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
        """Yield the samples that the workers of a node read, see `EpochPlan.node_reads`."""
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
        batches, shape = self.global_batches, self.inputs.shape
        parts = self.inputs.spec.microbatches
        workers, ranks = shape.workers, range(0, shape.ranks, every)
        lookups = [order.lookup() for order in self.inputs.orders]
        # Slots of each rank, and of each of its micro-batches.
        rank_width = batches.filled if parts == 1 else shape.batch
        width = rank_width // parts
        slots = np.concatenate([self._slots(node, rank, rank_width) for rank in ranks])
        # Count the batches of each worker; of the first one ``skip`` ids are left out.
        first, skip = divmod(start, self.inputs.microbatch)
        last = self.length // self.inputs.microbatch
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
        batch = self.inputs.microbatch
        # Batch of the worker that has the id ``start``, and the ids of it that come before.
        first, skip = divmod(start, batch)
        # Batch k of worker w is micro-batch k * workers + w of the rank.
        numbers = np.arange(first, -(-stop // batch)) * self.inputs.shape.workers + worker
        # All places of a batch, or only the first ones if all ids are in a single batch.
        width = min(stop - first * batch, batch)
        steps, slots = self._steps_and_slots(numbers, node, rank, width)
        marks = self.global_batches.marks(steps, slots).reshape(-1)
        return marks[skip : skip + stop - start]

    def worker_samples(self, node: int, rank: int) -> list[int]:
        """Return the number of samples that each worker of a rank gets in the whole epoch.

        ``rank`` counts within the ``node``. Padding does not count.
        """
        shape, batches = self.inputs.shape, self.inputs.batches(0)
        # Only the last steps may have padding, no more than nodes + 1 of them: look at these.
        full_steps = max(batches.count - shape.nodes - 1, 0)
        last_steps = np.arange(full_steps, batches.count)
        real = self._samples_in(batches, last_steps, node, rank)
        # Samples of each micro-batch of the last steps, since those of a step fill the first ones.
        size, parts = self.inputs.microbatch, self.inputs.spec.microbatches
        real = np.clip(real[:, None] - np.arange(parts) * size, 0, size).reshape(-1)
        # Micro-batch n is for worker n % workers: full ones of the worker, then the last ones.
        full = full_steps * parts
        numbers = np.arange(full, full + len(real))
        return [
            len(range(worker, full, shape.workers)) * size
            + int(real[numbers % shape.workers == worker].sum())
            for worker in range(shape.workers)
        ]

    def remaining_samples(self, node: int, rank: int) -> int:
        """Return the number of samples that a rank gets in the global batches that remain.

        ``rank`` counts within the ``node``. Padding does not count, except under masks.
        """
        batches = self.global_batches
        # Besides the last steps, as in `worker_samples`, the first one may lack samples: those that
        # were seen.
        last_steps = np.arange(max(batches.count - self.inputs.shape.nodes - 1, 1), batches.count)
        steps = np.concatenate([np.arange(min(batches.count, 1)), last_steps])
        samples = self._samples_in(batches, steps, node, rank)
        return (batches.count - len(steps)) * self.inputs.shape.batch + int(samples.sum())

    def _samples_in(self, batches: GlobalBatches, steps: Ids, node: int, rank: int) -> Ids:
        """Return the number of samples that a rank gets in each of some steps, int64 (steps,)."""
        # If all batches are full, nothing is looked up; masks fill them.
        if self.inputs.spec.remainder == "mask" or batches.is_full:
            return np.full(len(steps), self.inputs.shape.batch)
        slots = self._slots(node, rank, batches.filled)
        # Lookups that return 0 for every position, as in `SampleBatches.full`.
        ids = batches.block(steps, slots, [np.zeros_like] * len(self.inputs.orders))
        return np.asarray((ids >= 0).sum(axis=1))

    def position_after(self, begin: Position, count: int) -> Position:
        """Return the position ``count`` samples of all ranks after ``begin``."""
        from mds.plan._edits import position_after

        return position_after(begin, count, self.inputs.edits)

    def contents(self, first: int = 0, last: int | None = None) -> Iterator[StepContents]:
        """Yield the samples of the steps ``first`` to ``last`` - 1, some steps at a time."""
        count = self.global_batches.count
        last = count if last is None else min(last, count)
        lookups = [order.lookup() for order in self.inputs.orders]
        steps_at_once = max(1, _AUDIT_IDS // self.inputs.shape.global_batch)
        for begin in range(first, last, steps_at_once):
            yield self._contents(begin, min(begin + steps_at_once, last), lookups)[0]

    def dealt(self, step: int) -> tuple[StepContents, Ids]:
        """Return the samples of a step, and the slot of each, int64."""
        return self._contents(step, step + 1, [order.lookup() for order in self.inputs.orders])

    def _contents(
        self, first: int, last: int, lookups: Sequence[Lookup]
    ) -> tuple[StepContents, Ids]:
        """Return the samples of the steps ``first`` to ``last`` - 1, and the slot of each."""
        ids = self.global_batches.whole(first, last, lookups)
        marks = self.global_batches.marks(np.arange(first, last), np.arange(ids.shape[1]))
        is_real = ids >= 0
        counts = is_real.sum(axis=1)
        contents = StepContents(counts, counts, ids[is_real], marks[is_real])
        return contents, np.nonzero(is_real)[1]

    def steps_with(self, sample: int) -> set[int]:
        """Return the steps that may have a sample: it may replace dropped ones, or be replaced."""
        return {
            step
            for source in self.drops.sources(sample)
            for stream, order in enumerate(self.inputs.orders)
            for step in self.global_batches.find(stream, order.find(source))[0].tolist()
        }

    def order_facts(self) -> dict[str, Any]:
        """Return the settings that a state records and compares, as plain JSON."""
        facts = self.inputs.order_facts()
        if self.inputs.spec.batching_method == "per_stream":
            facts["batches_of_streams"] = self._batches_of_streams
        return facts

    def data_facts(self) -> dict[str, Any]:
        """Return nothing: `order_facts` are enough to make the order again."""
        return {}

    @cached_property
    def _batches_of_streams(self) -> str:
        """Number of batches of all streams, and a digest of the number of each, as one text.

        A state records it, as in ``"120 (3f9a01bc)"``, and is refused if it differs in another
        world: `per_stream` shuffles the batches, so other numbers would mean another order.
        """
        from mds.plan._stream_batches import full_batches

        counts = full_batches(
            [order.samples for order in self.inputs.orders], self.inputs.partition(0)
        )
        return f"{sum(counts)} ({digest(*counts)[:8]})"

    def _slots(self, node: int, rank: int, width: int) -> Ids:
        """Return the first ``width`` slots of a rank of a node in a global batch, int64."""
        device = node * self.inputs.shape.ranks + rank
        return self.inputs.shape.slots(device, device + 1, width)

    def _steps_and_slots(self, numbers: Ids, node: int, rank: int, width: int) -> tuple[Ids, Ids]:
        """Return the steps and slots of micro-batches of a rank, for `GlobalBatches.block`.

        Args:
            numbers: Numbers of the micro-batches among those of the rank.
            node, rank: Node, and rank within it.
            width: Number of slots of each micro-batch, the first ones.
        """
        parts, slots = self.inputs.spec.microbatches, self._slots(node, rank, width)
        if parts == 1:
            return numbers, slots
        steps, part = np.divmod(numbers, parts)
        return steps, slots + part[:, None] * self.inputs.microbatch


class EpochPlan:
    """Order of one epoch from a position on: a function of settings, world and data alone.

    The order is one of samples, or with ``lengths`` one of packs of documents. Nothing is computed
    before it is asked for. Nodes, ranks and workers are counted after replication, as in
    `World.replicate`: a rank within its node and a worker within its rank.

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
      then a number of full global batches, or of windows of packs.
    - ``edits`` (Sequence[Mapping], default ()): Steps that were skipped and samples that were
      dropped (`mds.plan._edits`).
    - ``lengths`` (DocumentLengths | None, default None): Lengths of the samples, with ``packing``.

    Attributes:
        inputs: Data and settings of the epoch.
        filling: What is at each place of the epoch: a sample, or a pack.
        begin: Position at which this order begins, in the middle of its epoch after a resume.

    Raises ConfigError, PlanError or UnknownNameError for settings that make no order, at once or
    when ids are asked for, and StateError for a ``resume`` that is not a state of such an order.

    >>> world = mds.World(num_nodes=1, ranks_per_node=2, workers_per_rank=1, worker=0)
    >>> plan = EpochPlan([{"shards": [4, 4]}], world, batch_size=2)
    >>> plan.steps
    2
    >>> plan.batch(1).tolist()  # the samples of rank 0 and of rank 1
    [[4, 6], [5, 7]]
    """

    inputs: EpochInputs
    filling: Filling

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
        lengths: DocumentLengths | None = None,
        **order: Any,
    ) -> None:
        if spec is None or order:
            spec = dataclasses.replace(spec or OrderSpec(), **order)
        world = world if replication is None else world.replicate(replication)
        sizes = [np.asarray(s["shards"], np.int64).reshape(-1) for s in streams]
        size = None if epoch_size is None else parse_count(epoch_size)
        if weights is None:
            per_stream = [int(each.sum()) for each in sizes]
            weights = resolve_weights(
                per_stream, streams, size, spec.shuffle_seed, schedule=schedule
            )
            if not weights.epoch_size:
                raise ConfigError("the streams give no samples. Raise their repeat or choose.")
        point = spec.resume_point(world, epoch, resume, initial_physical_nodes)
        self._lengths = lengths
        # As they were given; packs have another schedule, and costs.
        self._own_inputs = _inputs_class(schedule)(
            streams, sizes, weights, spec, world, point, small_order, dataset, schedule, (*edits,)
        )
        self._fill()

    def _fill(self) -> None:
        """Set the filling of the epoch, and the inputs that it uses."""
        packing = self.spec.packing
        if packing is None:
            self.filling = SampleFilling(self._own_inputs)
        elif self._lengths is None:
            raise ConfigError("packing needs lengths=, the length of each document.")
        else:
            from mds.plan._pack_filling import PackFilling

            self.filling = PackFilling(self._own_inputs, packing, self._lengths)
        self.inputs, self.begin = self.filling.inputs, self.filling.begin

    @property
    def spec(self) -> OrderSpec:
        """Settings of the order."""
        return self._own_inputs.spec

    @property
    def world(self) -> World:
        """Nodes, ranks and workers, after replication."""
        return self._own_inputs.world

    @property
    def shape(self) -> Shape:
        """Nodes, ranks, workers and batch size, after replication."""
        return self.inputs.shape

    @property
    def epoch(self) -> int:
        """Epoch that is planned."""
        return self._own_inputs.epoch

    @property
    def shuffle_seed(self) -> int:
        """Seed of the run."""
        return self._own_inputs.params.seed

    @property
    def num_canonical_nodes(self) -> int:
        """Number of canonical nodes of the run."""
        return self._own_inputs.params.nodes

    @property
    def schedule(self) -> ScheduledRun | None:
        """Schedule of the run; its steps are global batches, or windows of packs."""
        return self.inputs.schedule

    @property
    def scheduled(self) -> ScheduledEpoch | None:
        """Part of the schedule that the epoch has; None without a schedule."""
        return self.inputs.scheduled

    @property
    def choose(self) -> tuple[int, ...]:
        """Samples that each stream gives to an epoch, or to a pass through it with a schedule."""
        return self._own_inputs.choose

    @property
    def epoch_size(self) -> int:
        """Samples that the epoch takes of all streams."""
        return self._own_inputs.weights.epoch_size

    @property
    def orders(self) -> Sequence[StreamOrder | StreamPasses]:
        """Orders from which the steps take samples; see `EpochInputs.orders`."""
        return self.inputs.orders

    @property
    def long_orders(self) -> list[StreamOrder]:
        """Orders that take long to compute, so that the processes of a node share them in files."""
        return self.inputs.long_orders

    # ------------------------------------------------------------------ steps

    @property
    def steps(self) -> int:
        """Number of global batches that remain; the last ones may be short."""
        return self.filling.batches.count

    @property
    def epoch_steps(self) -> int:
        """Number of global batches of the whole epoch, seen and skipped ones included."""
        return self.filling.epoch_batches.count

    def blocks(
        self, node: int, rank: int, worker: int, start: int = 0, *, is_padded: bool = True
    ) -> Iterator[Ids]:
        """Yield the ids of a worker from its ``start``-th on, in pieces: int64 of shape (n,).

        With packs these are the documents of its batches, in one piece for each batch.

        - ``node`` (int): Node, after replication as the other numbers.
        - ``rank`` (int): Rank within the node.
        - ``worker`` (int): Worker within the rank.
        - ``start`` (int, default 0, samples): Ids of the worker that are left out.
        - ``is_padded`` (bool, default True): Whether each worker gets as many ids, with -1 for
          padding at the end. Otherwise padding after the last id may be left out.
        """
        return self.filling.blocks(node, rank, worker, start, is_padded=is_padded)

    def batch(self, step: int) -> Ids:
        """Return the ids of a global batch, int64 (ranks, batch size), -1 for padding.

        Steps count from the beginning of this plan. Raises IndexError after the last one, and
        PlanError with packs, which have several documents: see `step_rows`.
        """
        contents, slots = self._step(step)
        if contents.starts is not None:
            raise PlanError("a pack has several documents: use step_rows(step) for its samples.")
        ids = np.full(self.shape.global_batch, -1, np.int64)
        ids[slots] = contents.ids
        return ids.reshape(self.shape.world, self.shape.batch)

    # ------------------------------------------------------------------ what a node reads

    def nodes_read(self, node: int) -> Ids:
        """Return the canonical nodes whose samples a node reads, sorted."""
        return self.filling.nodes_read(node)

    def node_reads(self, node: int, start: int = 0, every: int = 1) -> Iterator[tuple[Ids, Ids]]:
        """Yield the samples that the workers of a node read, from the ``start``-th of each on.

        Each item is (times, ids), both int64 of shape (n,). A time is a place in the order of a
        worker; times ascend. The id at the same index is the sample that some worker reads then.
        Only the ranks 0, ``every``, 2 * ``every``, ... of the node take part. This saves time if an
        estimate suffices, such as when a shard is read next. With packs, ``start`` must be 0.
        """
        return self.filling.node_reads(node, start, every)

    # ------------------------------------------------------------------ audits

    def step_rows(self, step: int) -> list[StepSample]:
        """Return the samples of a global batch, or the pieces of documents, rank by rank.

        Steps count from the beginning of this plan. Raises IndexError after the last one.
        """
        contents, slots = self._step(step)
        ranks = slots // self.shape.batch
        return [contents.rows(ranks)[i] for i in np.argsort(slots, kind="stable").tolist()]

    def step_reads(self) -> Iterator[Ids]:
        """Yield for each remaining global batch a sorted int64 array that identifies its samples.

        Audits compare it between runs whose worlds differ, as worlds deal the samples of a step in
        different ways. For samples it has their ids.
        """
        for contents in self.filling.contents():
            for keys in np.split(contents.keys, np.cumsum(contents.sizes)[:-1]):
                yield np.sort(keys)

    def locate(self, sample: int) -> list[Place]:
        """Return every place of a sample in the rest of the epoch, in the order of steps.

        Mostly it is one. There are more if a sample is repeated, is cut into pieces, or replaces
        dropped samples, and none if it was seen before, or is not chosen, or was dropped.
        """
        shape, places = self.shape, []
        for step in sorted(self.filling.steps_with(sample)):
            contents, slots = self._step(step)
            for slot in np.unique(slots[contents.ids == sample]).tolist():
                rank, place = divmod(slot, shape.batch)
                number = step * self.spec.microbatches + place // self.inputs.microbatch
                places.append(Place(step, rank, number % shape.workers, place))
        return places

    def order_hash(self, steps: int) -> OrderHash:
        """Return the hash of the next ``steps`` global batches, without reading any data.

        It is the hash that the runs report that train on these batches, see `OrderHash`.
        """
        order_hash = OrderHash()
        for contents in self.filling.contents(0, steps):
            order_hash.take(
                int(contents.summands().sum(dtype=np.uint64)), int(contents.filled.sum())
            )
        return order_hash

    def _step(self, step: int) -> tuple[StepContents, Ids]:
        """Return the samples of a global batch, and the slot of each.

        Raises IndexError if there is no such step.
        """
        if not 0 <= step < self.steps:
            raise IndexError(
                f"there is no step {step}: the epoch has {plural(self.steps, 'step')}."
            )
        return self.filling.dealt(step)

    # ------------------------------------------------------------------ states

    def dataset_facts(self) -> dict[str, Any]:
        """Return facts about the data, which a state records and compares, as plain JSON."""
        return self._own_inputs.dataset_facts()

    def order_facts(self) -> dict[str, Any]:
        """Return the settings that a state records and compares, as plain JSON."""
        return self.filling.order_facts()

    def data_facts(self) -> dict[str, Any]:
        """Return settings that a state records only to make the order again, as plain JSON."""
        return self.filling.data_facts()

    def fingerprint(self) -> str:
        """Return a digest of the data and the settings."""
        return digest(repr(self.dataset_facts()), repr(self.order_facts()))

    def check(self, state: Mapping[str, Any] | ResumePoint) -> None:
        """Raise StateError for a state of other data or another order, naming the differences.

        A state is checked once, when it is loaded. Making a plan from it checks nothing.
        """
        point = parse_state(state)
        point.check_unit(self.spec.unit)
        point.check(self.dataset_facts(), self.order_facts())

    def state(self, count: int, order_hash: OrderHash | str | None = None) -> ResumePoint:
        """Return the resume point after the next ``count`` samples of this plan, or packs.

        Args:
            count: Samples, or packs, of all ranks since the beginning of this plan.
            order_hash: Hash of the samples since the run began, if it is known.
        """
        inputs, nodes = self._own_inputs, self._own_inputs.point.initial_physical_nodes
        return ResumePoint(
            self.filling.position_after(self.begin, count),
            self.num_canonical_nodes,
            self.shuffle_seed,
            self.world.num_nodes if nodes is None else nodes,
            version=VERSION,
            dataset=self.dataset_facts(),
            order=self.order_facts(),
            order_hash=None if order_hash is None else str(order_hash),
            schedule=json_of(inputs.schedule),
            edits=inputs.edits,
        )

    def following(self) -> EpochPlan:
        """Return the plan of the next epoch, with the settings of a loaded state in force."""
        # Without __init__, which would resolve the weights again and parse a state.
        plan = object.__new__(EpochPlan)
        point = self._own_inputs.point.at(self.begin.following())
        plan._own_inputs = dataclasses.replace(self._own_inputs, point=point)
        plan._lengths = self._lengths
        plan._fill()
        return plan

    def __repr__(self) -> str:
        return (
            f"<EpochPlan of epoch {self.epoch} from {self.spec.unit[:-1]} {self.begin.place}: "
            f"{plural(self.epoch_size, 'sample')}, {self.world!r}>"
        )
