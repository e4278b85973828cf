"""Order of a dataset: its settings, the epochs that have begun, and its state.

`OrderState` joins the settings of the user, the world of the launcher and the state of a checkpoint
into the `Order` of an epoch. Its `state` leads back to the same position. `SharedEpochCounter`
carries the next position to the copies of the dataset in worker processes. Nothing here reads a
shard or needs torch.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import numbers
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from mds._arguments import shown
from mds._dataset.stream import name_data, other_files, other_shards
from mds._dataset.worker_point import refuse_worker_state
from mds._process.fork_safe import cached_property
from mds._redaction import get_logger
from mds._shardfile.hashing import digest
from mds._words import plural
from mds.errors import ConfigError, PlanError, StateError
from mds.plan import EpochPlan
from mds.plan._epoch import SampleFilling
from mds.plan._spec import OrderSpec
from mds.plan._state import (
    MAX_SAMPLES,
    VERSION,
    Position,
    ResumePoint,
    emit_state,
    json_of,
    parse_state,
)
from mds.plan._weights import no_weights, resolve_weights
from mds.world import RankFile

if TYPE_CHECKING:
    from mds._cache.source import Source
    from mds._dataset.lengths import SelectedLengths
    from mds._dataset.stream import Stream
    from mds._iteration.shard_map import ShardMap
    from mds._iteration.worker_epoch import EpochProgress, WorkerEpoch
    from mds._readers.fields import ColumnSelection
    from mds.plan._schedule import ScheduledRun
    from mds.world import World

log = get_logger("mds.dataset")

#: Names of the settings of an order that are also arguments of a dataset.
SETTING_NAMES = tuple(
    field.name
    for field in dataclasses.fields(OrderSpec)
    if field.name not in {"microbatches", "skip_empty_streams"}
)


class RunningLoop(Protocol):
    """Iteration of a StreamingDataLoader."""

    @property
    def is_under_way(self) -> bool:
        """True if batches were given and more may come."""

    @property
    def position(self) -> Position | None:
        """Position of all ranks after the last batch that was given."""

    @property
    def is_exact(self) -> bool:
        """True if a change of the order can begin with any batch; else only with an epoch."""
        ...

    def change_at(self, epoch: int, place: int) -> None:
        """Follow the changed order from a place of an epoch on."""

    def warn_if_inexact(self) -> None:
        """Warn once if a class of the user makes the position inexact."""


class Iteration(Protocol):
    """Iteration that states may be about: of samples, of packs, or of the batches of a loader.

    It outlives the loop, and refers to neither the dataset nor a loader, which it would keep.
    """

    @property
    def progress(self) -> EpochProgress | None:
        """Progress of all ranks; None before the first pack or batch."""

    @property
    def worker_count(self) -> tuple[WorkerEpoch, Position, int, int] | None:
        """What this worker took: arguments of `Run.worker_point`; None for a loader."""

    @property
    def is_finished(self) -> bool:
        """True if it came to the end of the epoch."""
        ...

    @property
    def is_under_way(self) -> bool:
        """True if something was given and more may come."""
        ...


def no_loop() -> None:
    """Return None: no loader has begun an iteration."""


class OrderState:
    """Order settings of a dataset, and the progress of its epochs.

    Args:
        spec: Settings of the order.
        shares: Requested proportion, repeat or choose of each stream; empty without a request.
        epoch_size: Requested size of an epoch, in samples.
        schedule: Schedule as the user gave it, before any `set_weights`.
        may_lack_batches: Whether one process without a batch size reads samples one by one.

    Attributes:
        find_loop: Returns the iteration of the loader whose batches are trained on, or None.

    The shards and the counter of epochs are set by `reset`.
    """

    epochs: SharedEpochCounter
    _shards: ShardMap
    _sources: Sequence[Source]
    _data: dict[str, Any]
    _file_changes: list[tuple[str, str]]

    def __init__(
        self,
        spec: OrderSpec,
        shares: Sequence[Mapping[str, float]] = (),
        epoch_size: int | None = None,
        schedule: ScheduledRun | None = None,
        *,
        may_lack_batches: bool = True,
    ) -> None:
        self.spec, self.schedule = spec, schedule
        self.may_lack_batches = may_lack_batches and schedule is None
        self._shares, self._epoch_size = shares, epoch_size
        self.weights = no_weights(len(shares))
        self._names: list[str | None] = [None] * len(shares)
        self._lengths: SelectedLengths | None = None
        self.find_loop: Callable[[], RunningLoop | None] = no_loop

    def reset(
        self, shards: ShardMap, streams: Sequence[Stream], sources: Sequence[Source]
    ) -> OrderState:
        """Return an order with the same settings for these shards, of which no epoch has begun.

        It also sets the weights of ``streams``. Raises ConfigError if there are no samples, and for
        weights that do not fit the samples.
        """
        fresh = OrderState(
            self.spec,
            self._shares,
            self._epoch_size,
            self.schedule,
            may_lack_batches=self.may_lack_batches,
        )
        fresh._use(shards, streams, sources)
        return fresh

    def _use(self, shards: ShardMap, streams: Sequence[Stream], sources: Sequence[Source]) -> None:
        """Set shards, weights, names and data; see `reset`, which calls it on a new object."""
        self._shards, self._sources, self.epochs = shards, sources, SharedEpochCounter()
        self._names = [stream._name for stream in streams]  # None without a dict of streams
        samples = shards.samples_per_stream.tolist()
        is_chosen = shards.selection is not None
        if not sum(samples) and not is_chosen:
            raise ConfigError(
                f"there are no samples in {', '.join(map(repr, streams))}. Leave this source out, "
                "or write it again."
            )
        contents = [source.content() for source in sources]
        self._data = name_data(streams, shards, contents, self._shares, self._epoch_size)
        if 0 in samples and not is_chosen and self.schedule is None:
            entry = self._data["streams"][samples.index(0)]
            title = [*self.samples_by_stream()][samples.index(0)]
            raise ConfigError(
                f"stream {title} has no samples: {self._data.get('root', '')}{entry['at']}. Leave "
                "the stream out, or write it again."
            )
        proportion = self._begin_weights(samples, is_chosen=is_chosen)
        for i, stream in enumerate(streams):
            stream._take_weights(proportion[i], self.weights.repeat[i], self.weights.choose[i])
        self._file_changes = [stream._file_changes for stream in streams]

    def _begin_weights(self, samples: Sequence[int], *, is_chosen: bool) -> Sequence[float]:
        """Set the weights of the streams; return the share of each as the training begins.

        ``samples`` are those that each stream has, ``is_chosen`` whether a selection chose them.
        """
        if sum(samples) and self._epoch_size != 0:
            # A selection may leave a stream without samples; its weight then no longer counts.
            # With a schedule, the weights are for one pass of each stream.
            self.weights = resolve_weights(
                samples,
                [
                    {**share, "name": name}
                    for share, name in zip(self._shares, self._names, strict=True)
                ],
                self._epoch_size,
                self.spec.shuffle_seed,
                skip_empty=is_chosen,
                schedule=self.schedule,
            )
        if self.schedule is None or not sum(samples):
            return self.weights.proportion
        from mds.plan._pack_schedule import first_shares

        # The shares change later; a Stream shows those with which the training begins.
        return first_shares(self.schedule, self.weights.choose)

    # ------------------------------------------------------------------ the order of an epoch

    def check_packer(self, plan: EpochPlan, group: int) -> None:
        """Raise PlanError if a packer of the user packs the same documents in several ways.

        The first window is packed again, twice in each worker, and compared among the workers of an
        iteration (``group``). Documents would be lost if workers had other packs.
        """
        packer, cursor = plan.filling.user_packer, plan.begin.cursor
        if packer is None:
            return
        from mds.plan._pack_filling import packs_of

        filling = packs_of(plan.filling)
        window = cursor.windows[0][0] if cursor is not None else 0
        if not len(filling.windows) or window >= int(filling.windows[0]):
            return
        digests = set()
        for _ in range(2):
            packs = filling.load(0, window)
            digests.add(digest(packs.ids, packs.starts, packs.sizes, packs.bounds))
        if len(digests) > 1 or not self.epochs.agree(group, digests.pop()):
            raise PlanError(
                f"packer {packer.name!r} packed the same documents in two ways, so workers and "
                "ranks would lose documents. It must depend on its arguments alone. For random "
                "numbers, call np.random.default_rng(0) in it."
            )

    def warn_of_late_milestones(self, plan: EpochPlan) -> None:
        """Warn about milestones of a schedule that take effect only after their step."""
        run = plan.schedule
        milestones = run.late_milestones() if run is not None else []
        if run is not None and milestones:
            unit = run.schedule.unit[:-1]
            clauses = [f"{unit} {step:,} at {effect:,}" for step, effect in milestones[:3]]
            ellipsis = f" and {len(milestones) - 3} more" if len(milestones) > 3 else ""
            warnings.warn(
                "milestones of the schedule take effect only at the start of a window of "
                f"documents: {', '.join(clauses)}{ellipsis}. Packing(window=...) with fewer than "
                "1,024 packs makes windows shorter.",
                stacklevel=2,
            )

    def epoch_plan(self, epoch: int, world: World) -> EpochPlan:
        """Return the order of a whole epoch."""
        return self.plan(ResumePoint(Position(epoch)), world)

    def plan(
        self,
        start: ResumePoint,
        world: World,
        spec: OrderSpec | None = None,
        *,
        is_edited: bool = True,
    ) -> EpochPlan:
        """Return the order of an epoch from ``start`` on, which is the same in every process.

        If ``start`` has no settings, those of the state that was loaded last are used.

        Args:
            start: Point of the run at which the epoch begins, in the middle of it after a resume.
            world: Nodes, ranks and workers among which samples are dealt.
            spec: Settings to use in place of those of the dataset.
            is_edited: Whether the order has the edits made so far.
        """
        spec = spec or self.spec
        if self._lacks_batches(spec, world):
            spec = dataclasses.replace(spec, batch_size=1)
        epoch = max(start.position.epoch, 0)  # a state that was saved before epoch 0 has epoch -1
        position = start.position._replace(epoch=epoch)
        # Only the point of a loaded state has settings. They hold for all later epochs too.
        has_settings = start.num_canonical_nodes is not None
        settings = start if has_settings else self.epochs.loaded
        resume = None
        if settings is not None:
            resume = settings.at(position)
        elif position.place:
            resume = start.at(position)
        edits, schedule = self.epochs.edits if is_edited else [], self.schedule
        if edits:
            from mds.plan._edits import apply_weights

            schedule = apply_weights(schedule, edits)
        return EpochPlan(
            [
                {"shards": sizes, **share, "name": name}
                for sizes, share, name in zip(
                    self._shards.sizes_per_stream, self._shares, self._names, strict=True
                )
            ],
            world,
            spec,
            epoch=epoch,
            resume=resume,
            weights=self.weights,
            dataset=self._shards.fingerprint,
            schedule=schedule,
            edits=edits,
            lengths=self.lengths,
        )

    @property
    def num_samples(self) -> int:
        """Samples of all streams."""
        return self._shards.num_samples

    @property
    def lengths(self) -> SelectedLengths | None:
        """Lengths of the documents, read when first used; None without packing."""
        packing = self.spec.packing
        if packing is None:
            return None
        if self._lengths is None:
            from mds._dataset.lengths import SelectedLengths, open_lengths
            from mds.plan._packing import column_of

            joined = open_lengths(self._sources, column_of(packing))
            self._lengths = SelectedLengths(joined, self._shards)
        return self._lengths

    def with_token_column(self, spec: OrderSpec, columns: ColumnSelection) -> OrderSpec:
        """Return settings whose packing names the column of the tokens, if they have a packing.

        ``columns`` are the columns that are read. Raises ConfigError if the column is not named and
        the data have none, or several that it could be.
        """
        packing = spec.packing
        if packing is None or packing.column is not None:
            return spec
        from mds._dataset.lengths import find_token_column

        column = find_token_column(self._sources, columns, packing)
        return dataclasses.replace(spec, packing=dataclasses.replace(packing, column=column))

    def _lacks_batches(self, spec: OrderSpec, world: World) -> bool:
        """Return True if samples are read one by one, because no batch size is given or needed.

        This is possible in a single process without a loader. Several ranks or workers get whole
        batches, so their order depends on the batch size.
        """
        is_free = spec.batch_size is None and spec.batching_method == "random"
        return is_free and world.num_workers == 1 and self.may_lack_batches

    def _has_order(self, world: World) -> bool:
        """Return True if all settings of the order are known, so that it can be computed."""
        return bool(self.spec.batch_size) or self._lacks_batches(self.spec, world)

    def _samples(self, world: World, begin: Position) -> SampleFilling:
        """Return the steps of an epoch of samples from ``begin`` on."""
        filling = self.plan(ResumePoint(begin), world).filling
        assert isinstance(filling, SampleFilling)
        return filling

    def shares(self, world: World, begin: Position) -> tuple[int, int]:
        """Return the minimum and maximum number of samples of a rank from ``begin`` to the end."""
        return self._samples(world, begin).global_batches.shares

    def remaining_samples(self, world: World, begin: Position) -> int:
        """Return the number of samples of this rank from ``begin`` to the end of the epoch."""
        return self._samples(world, begin).remaining_samples(world.node, world.rank_of_node)

    def full_step_samples(self, world: World, begin: Position) -> int:
        """Return the samples of a rank from ``begin`` on, without padded steps at the end."""
        plan = self.plan(ResumePoint(begin), world)
        return plan.filling.batches.full * plan.shape.batch

    def worker_samples(self, world: World) -> list[int]:
        """Return the number of samples of each worker of this rank in a whole epoch."""
        samples = self._samples(world, Position(0))
        return samples.worker_samples(world.node, world.rank_of_node)

    @property
    def may_stop(self) -> bool:
        """Whether the schedule may end the training."""
        return self.schedule is not None and self.schedule.schedule.exhausted == "stop"

    @property
    def counts_batches(self) -> bool:
        """Whether ``len(loader)`` has the number of batches, and not that of mosaicml-streaming.

        That follows from the number of samples alone.
        """
        spec = self.spec
        return spec.is_exact or spec.packing is not None or self.schedule is not None

    def samples_by_stream(self) -> dict[str, int]:
        """Return the number of samples of each stream, by its quoted name or its number.

        The keys are for messages: "'web'" for a stream with a name, else "0", "1", ...
        """
        titles = (
            str(number) if name is None else repr(name) for number, name in enumerate(self._names)
        )
        return dict(zip(titles, self._shards.samples_per_stream.tolist(), strict=True))

    # ------------------------------------------------------------------ positions

    @property
    def positions(self) -> SamplePositions | PackPositions:
        """Positions in this order, of samples or of packs."""
        return _POSITIONS[self.spec.unit](self)

    def position(
        self,
        world: World,
        num_samples: int | None,
        from_beginning: bool,
        iteration: Iteration | None,
        coming_epoch: int = -1,
    ) -> Position:
        """Return the position after ``num_samples`` samples of all ranks.

        Args:
            world: World, whose number of ranks is multiplied with the samples of ``iteration``.
            num_samples: Samples that all ranks have seen; None: those of ``iteration``.
            from_beginning: Whether they are counted from the beginning of the epoch, instead of
                from where this epoch was resumed.
            iteration: The iteration that states are about, or None.
            coming_epoch: Its epoch, also if no worker has begun it yet; -1 if unknown.
        """
        # First find the position from which ``num_samples`` counts.
        pending, last = self.epochs.pending, self.epochs.last
        # Beginning of the current epoch.
        position = Position(max(self.epochs.next_epoch - 1, coming_epoch))
        if pending is not None:  # a state was loaded, and no iteration has begun from it
            position = pending.position
        elif num_samples is None and iteration is not None and iteration.progress is not None:
            position = iteration.progress.begin
            num_samples = iteration.progress.share * world.num_ranks
        elif last is not None and last.position.epoch == position.epoch:
            position = last.position  # where the current epoch was resumed
        count: Any = num_samples or 0
        if not _is_real(count) or not 0 <= count <= MAX_SAMPLES:
            raise ConfigError(
                "num_samples of state_dict() must be the number of samples that all ranks have "
                f"seen, got {shown(num_samples)}."
            )
        return self.positions.of_state(position, int(count), from_beginning, iteration, world)

    def position_of(self, iteration: Iteration, ranks: int) -> Position | None:
        """Return the position of all ``ranks`` in an iteration; None before its first batch."""
        progress = iteration.progress
        if progress is None:
            return None
        end = progress.end or self.positions.after(progress.begin, progress.share * ranks)
        return end._replace(is_finished=progress.is_finished)

    def given_before(self, epoch: int, begin: int, place: int) -> int:
        """Return the number of samples from ``begin`` to ``place`` that are not skipped.

        Both are places of the epoch. The result is 0 if ``place`` comes first.
        """
        edits = self.epochs.edits
        if not edits:
            return max(place - begin, 0)
        from mds.plan._edits import given_before, skips_of

        return given_before(skips_of(edits, epoch), begin, place)

    # ------------------------------------------------------------------ states

    def state(self, world: World, position: Position) -> dict[str, Any]:
        """Return the state of this run at a position, as plain JSON."""
        return emit_state(self.point(world, position))

    @cached_property
    def _contents(self) -> dict[str, Any]:
        """Digests of the shards, computed for the first state."""
        from mds._dataset.contents import Contents

        return Contents(self._shards.indexes).emit()

    def point(self, world: World, position: Position) -> ResumePoint:
        """Return a position of this run with its settings, the edits and the data.

        Facts of the order are part of it if the order is known, that is with a batch size.
        """
        loaded = self.epochs.loaded
        initial = loaded.initial_physical_nodes if loaded is not None else None
        point = ResumePoint(
            position,
            num_canonical_nodes=self.spec.canonical_nodes(world.num_nodes),
            shuffle_seed=self.spec.shuffle_seed,
            initial_physical_nodes=initial or world.num_nodes,
            version=VERSION,
            schedule=json_of(self.schedule),
            edits=tuple(self.epochs.edits),
            data={**copy.deepcopy(self._data), "contents": {**self._contents}},
        )
        if self._has_order(world):
            order = self.epoch_plan(max(position.epoch, 0), world)
            point = dataclasses.replace(
                point,
                dataset=order.dataset_facts(),
                order=order.order_facts(),
                data={**(point.data or {}), **self._world_facts(world), **order.data_facts()},
            )
        return point

    def _world_facts(self, world: World) -> dict[str, Any]:
        """Return the facts that determine global batches: ranks, nodes and the batch size.

        ``"padded_for"`` is the world in which the run began. Some batching methods pad each stream
        to full global batches of that world, also after a resume in another one.
        """
        facts: dict[str, Any] = {"ranks": world.num_ranks, "nodes": world.num_nodes}
        if self.spec.batch_size is not None:
            facts["batch_size"] = self.spec.batch()
        if self.spec.partition_algo != "relaxed":
            facts["partition_algo"] = self.spec.partition_algo
        loaded = self.epochs.loaded
        initial = loaded.initial_ranks if loaded is not None else None
        current = (world.num_nodes, world.num_ranks)
        is_padded = self.spec.batching_method in {"per_stream", "stratified"}
        if is_padded and initial is not None and initial != current:
            facts["padded_for"] = dict(zip(("nodes", "ranks"), initial, strict=True))
        return facts

    def load(
        self,
        state: Mapping[str, Any],
        world: World,
        *,
        other_data: bool = False,
        is_strict: bool = True,
    ) -> ResumePoint:
        """Begin the next iteration from a state; return its point.

        Args:
            state: State to load.
            world: Nodes and ranks of this run.
            other_data: Whether the data may have other contents than those of the state.
            is_strict: Whether a state of a finished epoch begins the next one, and shards with
                other contents are an error. Otherwise, as in mosaicml-streaming, the next iteration
                is empty, and other contents are a warning.

        Raises StateError if the state does not fit this dataset or its settings.
        """
        point, clauses = self._checked(state, world, other_data=other_data, is_strict=is_strict)
        refuse_worker_state(point)
        position = point.position
        if clauses and world.is_local_leader:
            _warn_of_other_data(clauses, is_allowed=other_data)
        self._follow(point, world)
        if position.is_finished and is_strict:
            point = point.at(position._replace(epoch=max(position.epoch, 0)).following())
        self.epochs.load(point)
        return point

    def load_in_worker(
        self, state: Mapping[str, Any] | ResumePoint, world: World, *, has_edits: bool
    ) -> ResumePoint:
        """Keep the settings of a state that a worker process loads; return its point.

        The worker itself goes to the position. All workers of a rank load equal settings, each its
        own state. ``has_edits``: whether the edits of the state replace those of the dataset.

        Raises StateError if the state does not fit this dataset or its settings.
        """
        point, _ = self._checked(state, world)
        self._follow(point, world)
        self.epochs.follow(point, has_edits=has_edits)
        return point

    def _checked(
        self,
        state: Mapping[str, Any] | ResumePoint,
        world: World,
        *,
        other_data: bool = False,
        is_strict: bool = True,
    ) -> tuple[ResumePoint, list[str]]:
        """Return the point of a state, and clauses on data that differ, for a warning.

        Raises StateError if the state does not fit this dataset. For the arguments, see `load`.
        """
        point = parse_state(state)
        # A worker counts from a place in ``data``, so its state needs them.
        remedy = "" if "worker" in (point.data or {}) else _OTHER_DATA
        files = other_files(point.data, self._data, self._file_changes)
        if files and not other_data:
            raise StateError(f"the state belongs to {'. '.join(files[0])}{remedy}")
        point.check_unit(self.spec.unit)
        if point.edits:
            from mds.plan._edits import check_edits

            assert point.num_canonical_nodes is not None
            check_edits(
                point.edits,
                self.schedule,
                self.samples_by_stream(),
                point.num_canonical_nodes,
                self.spec.unit,
            )
        self.positions.check(point, world)
        known, possible = other_shards(point.data, self._data, self._shards)
        if known and is_strict and not other_data:
            raise StateError(
                f"the state was saved with other data: {_shorten(known)}. Give the dataset the "
                f"data of the state.{remedy}"
            )
        return point, [f"the state is of {clause}" for clause, _ in files] + known + possible

    def _follow(self, point: ResumePoint, world: World) -> None:
        """Take the settings that a run keeps from the point of a state.

        Warn on one rank of a node if they are not those of the dataset's arguments.
        """
        assert point.shuffle_seed is not None
        kept = {
            "num_canonical_nodes": point.num_canonical_nodes,
            "shuffle_seed": point.shuffle_seed,
        }
        ignored = [
            f"{name}={getattr(self.spec, name)} (the state has {value})"
            for name, value in kept.items()
            if getattr(self.spec, name) not in {None, value}
        ]
        if ignored and world.is_local_leader:
            log.warning(
                "A resumed run keeps the order of its state, so this is ignored: %s. For another "
                "order, start a new run.",
                ", ".join(ignored),
            )
        self.spec = dataclasses.replace(
            self.spec,
            num_canonical_nodes=point.num_canonical_nodes,
            shuffle_seed=point.shuffle_seed,
        )

    def worker_facts(self, world: World) -> dict[str, int]:
        """Return what the samples of a worker of ``world`` depend on, see `WorkerPoint`."""
        microbatches = self.spec.microbatches
        size = 1 if self._lacks_batches(self.spec, world) else self.spec.batch() // microbatches
        return {
            "nodes": world.num_nodes,
            "ranks": world.num_ranks,
            "workers": world.workers_per_rank,
            "batch_size": size,
            "microbatches": microbatches,
        }

    def begin_again(self, world: World, position: Position) -> None:
        """Begin the next iteration at a position, in the order with all edits made so far."""
        self.epochs.load(parse_state(self.state(world, position)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lengths": None, "find_loop": no_loop}


class SamplePositions:
    """Positions in an order of samples, which follow from the number of samples that came.

    Args:
        order: Order of the dataset.

    Attributes:
        other_way: End of a message: another way to the position of worker processes.
    """

    other_way = (
        " Or call state_dict(num_samples) with the number of samples that all ranks have seen."
    )

    def __init__(self, order: OrderState) -> None:
        self._order = order

    def usable_count(self, num_samples: int | None, from_beginning: bool) -> int | None:
        """Return the argument ``num_samples`` of `Run.state`, from which a position follows."""
        del from_beginning
        return num_samples

    def after(self, begin: Position, count: int) -> Position:
        """Return the position ``count`` samples of all ranks after ``begin``."""
        from mds.plan._edits import position_after

        return position_after(begin, count, self._order.epochs.edits)

    def of_state(
        self,
        begin: Position,
        count: int,
        from_beginning: bool,
        iteration: Iteration | None,
        world: World,
    ) -> Position:
        """Return the position of a state after ``count`` samples of all ranks.

        Args:
            begin: Where this epoch began, or was resumed.
            count: Number of samples.
            from_beginning: Whether they are counted from the beginning of the epoch, instead of
                from ``begin``.
            iteration: The iteration that states are about, or None.
            world: Nodes and ranks.
        """
        end = self.after(Position(begin.epoch) if from_beginning else begin, count)
        return end._replace(is_finished=self._has_ended(iteration, end, world))

    def _has_ended(self, iteration: Iteration | None, position: Position, world: World) -> bool:
        """Return True if ``iteration`` has finished its epoch at ``position`` or before it.

        A state at such a position says that the epoch is finished.
        """
        if iteration is None or self._order.epochs.pending is not None:
            return False
        end = self._order.position_of(iteration, world.num_ranks)
        if end is None or not end.is_finished:
            return False
        return end.epoch == position.epoch and end.place <= position.place

    def check(self, point: ResumePoint, world: World) -> None:
        """Raise StateError if a state does not fit the order, as far as the order is known.

        Warn if a state is so far past the end of its epoch that padding cannot explain it.
        """
        order, position = self._order, point.position
        size = order.weights.epoch_size
        point.check_place(size)
        batch = order.spec.batch() if order.spec.batch_size else 1
        if position.place > size + world.num_ranks * batch:
            warnings.warn(
                f"the state has sample_in_epoch {position.place:,}, but an epoch has only "
                f"{plural(size, 'sample')}, so epoch {position.epoch} has no samples left. "
                "Compare the "
                "dataset and epoch_size= with those of the saved run.",
                stacklevel=5,
            )
        if order._has_order(world):
            # The order uses the state's number of canonical nodes: other settings depend on it.
            order.plan(point, world).check(point)

    def facts_behind_filter(self, world: World) -> dict[str, int]:
        """Return what the samples of a worker depend on as well if a filter drops some.

        Ranks take different numbers of samples for equally many that they keep.
        """
        return {"rank": world.rank}


class PackPositions:
    """Positions in an order of packs; for its methods see `SamplePositions`.

    Only batches know how many packs they took, so a position comes with a batch, and follows from
    no number.

    Args:
        order: Order of the dataset.

    Attributes:
        other_way: Nothing: there is no other way to the position of worker processes.
    """

    other_way = ""

    def __init__(self, order: OrderState) -> None:
        self._order = order

    def usable_count(self, num_samples: int | None, from_beginning: bool) -> int | None:
        """Return None for a number of samples since the epoch began, as the loader knows better.

        Raises ConfigError for one since the resume.
        """
        if num_samples and not from_beginning:
            raise ConfigError(
                f"state_dict(num_samples={num_samples}): with packing=, a position counts "
                "packs, which only the loader knows. Use state_dict() of the "
                "StreamingDataLoader."
            )
        return None if num_samples else num_samples

    def after(self, begin: Position, count: int) -> Position:
        """Return ``begin``: a number of samples leads to no other position."""
        del count
        return begin._replace(unit="packs")

    def of_state(
        self,
        begin: Position,
        count: int,
        from_beginning: bool,
        iteration: Iteration | None,
        world: World,
    ) -> Position:
        """Return ``begin``, where no pack of the iteration has come."""
        del from_beginning, iteration, world
        return self.after(begin, count)._replace(is_finished=False)

    def check(self, point: ResumePoint, world: World) -> None:
        """Raise StateError if a state does not fit the order, which packs need to be made again."""
        self._order.plan(point, world).check(point)

    def facts_behind_filter(self, world: World) -> dict[str, int]:
        """Return nothing: every rank counts its packs after a filter."""
        del world
        return {}


#: Positions by their unit, that of `OrderSpec.unit`.
_POSITIONS: dict[str, type[SamplePositions | PackPositions]] = {
    "samples": SamplePositions,
    "packs": PackPositions,
}


#: Remedy for a state of other data.
_OTHER_DATA = (
    " To go on with these data, call load_state_dict(state, other_data=True); where a trainer calls"
    " it, set state['data'] = None first."
)


def _warn_of_other_data(clauses: Sequence[str], *, is_allowed: bool) -> None:
    """Warn of the data that differ from those of a state.

    ``is_allowed``: whether the user wants to go on with other contents.
    """
    advice = "as other_data=True allows"
    if not is_allowed:
        advice = "but continue only if the samples are the same, too"
    log.warning(
        "The state was written with other data: %s. The shards have the same numbers of samples, "
        "so the run resumes at the same position, %s.",
        _shorten(clauses),
        advice,
    )


def _shorten(clauses: Sequence[str]) -> str:
    """Return the first three clauses as one text, and the number of those left out."""
    ellipsis = f", and {len(clauses) - 3} more streams" if len(clauses) > 3 else ""
    return "; ".join(clauses[:3]) + ellipsis


def _is_real(value: object) -> bool:
    return isinstance(value, numbers.Real)


_MAX_REMEMBERED_STARTS = 8  # iterations whose workers may still be arriving


class SharedEpochCounter:
    """Counter of epochs that a dataset shares with its copies in worker processes.

    A DataLoader gives every worker a copy of the dataset, and the object in the main process does
    not see that an epoch began. So the record of a rank is JSON in a nameless file that its
    processes share. A worker reads it once an epoch. Ranks that were forked from one process share
    the file, which has a record for each of them.

    A record has these entries:

    - ``next_epoch``: epoch of the next iteration, unless a state is pending.
    - ``pending``: loaded state at which no iteration has begun yet, or None.
    - ``loaded``: state from which an iteration began last, or None.
    - ``starts``: the last iterations: group, workers that joined, epoch, and state if resumed.
    - ``edits``: changes of the order, oldest first.
    """

    def __init__(self) -> None:
        self._write_first(_blank_record())

    def begin_epoch(self, group: int, worker: int) -> ResumePoint:
        """Begin an iteration, or join it as a worker; return the point at which it begins.

        All workers of an iteration get the same point, even if other iterations begin in between. A
        worker that comes twice with the same group begins another iteration. The point has settings
        only if it comes from a loaded state.

        Args:
            group: Number that all workers of one iteration share.
            worker: Number of this worker in its rank.
        """
        with self._record() as record:
            starts, start = record["starts"], _next_start(record, group, worker)
            if not start["workers"]:  # a new iteration
                if start["resume"] is not None:
                    record["loaded"] = start["resume"]
                record["pending"] = None
                starts.append(start)
                del starts[:-_MAX_REMEMBERED_STARTS]
                record["next_epoch"] = start["epoch"] + 1
            start["workers"].append(worker)
            return _parse_start(start)

    def agree(self, group: int, packs: str) -> bool:
        """Record the digest of the first packs of an iteration that has begun.

        Returns False if another worker of it recorded another digest.
        """
        with self._record() as record:
            start = next(each for each in reversed(record["starts"]) if each["group"] == group)
            return bool(start.setdefault("packs", packs) == packs)

    def load(self, point: ResumePoint) -> None:
        """Begin the next iteration at ``point``, in whatever epoch it is."""
        with self._record() as record:
            record["pending"] = emit_state(point)
            record["edits"] = [dict(edit) for edit in point.edits]

    def upcoming(self, group: int, worker: int) -> ResumePoint:
        """Return the point at which `begin_epoch` would begin, without beginning."""
        with self._record() as record:
            return _parse_start(_next_start(record, group, worker))

    def follow(self, point: ResumePoint, *, has_edits: bool) -> None:
        """Keep the settings of a state that a worker loads, and its edits if ``has_edits``."""
        with self._record() as record:
            record["loaded"] = emit_state(point)
            if has_edits:
                record["edits"] = [dict(edit) for edit in point.edits]

    @property
    def pending(self) -> ResumePoint | None:
        """Loaded point at which no iteration has begun yet."""
        with self._record() as record:
            return _parse_point(record["pending"])

    @property
    def is_in_workers(self) -> bool:
        """True if worker processes began the iteration that was started last."""
        with self._record() as record:
            return bool(record["starts"]) and record["starts"][-1]["group"] >= 0

    @property
    def loaded(self) -> ResumePoint | None:
        """Point that was loaded last, whose seed and canonical nodes all later epochs keep."""
        with self._record() as record:
            return _parse_point(record["pending"] or record["loaded"])

    @property
    def edits(self) -> list[dict[str, Any]]:
        """Changes of the order by `OrderEdits`, oldest first."""
        with self._record() as record:
            return list(record["edits"])

    def edit(self, edits: Iterable[Mapping[str, Any]]) -> None:
        """Add changes of the order, which iterations that begin from now on follow."""
        with self._record() as record:
            record["edits"].extend(map(dict, edits))

    @property
    def last(self) -> ResumePoint | None:
        """Beginning of the iteration that was started last."""
        with self._record() as record:
            return _parse_start(record["starts"][-1]) if record["starts"] else None

    @property
    def next_epoch(self) -> int:
        """Epoch of the next iteration, unless a state is loaded."""
        with self._record() as record:
            return int(record["next_epoch"])

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        with self._record() as record:
            record["next_epoch"] = int(epoch)

    @contextmanager
    def _record(self) -> Iterator[dict[str, Any]]:
        """Give this rank's record under the lock, and store what the block changes in it."""
        with self._file.locked():
            records = _read(self._file.descriptor)
            owner = str(self._file.owner)
            # A rank that was forked from the maker continues with the maker's record.
            before = json.dumps(records.get(owner, records[records["maker"]]))
            record = json.loads(before)
            yield record
            if json.dumps(record) != before:
                records[owner] = record
                _write(self._file.descriptor, records)

    def __getstate__(self) -> dict[str, Any]:
        # A worker process that is spawned shares the file ("_file"). Any other pickle, such as a
        # deep copy, is independent: it has the values of now ("record").
        if self._file.is_handed_on():
            return {"_file": self._file}
        with self._record() as record:
            return {"record": dict(record)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "record" in state:  # an independent copy, which gets a file of its own
            self._write_first(state["record"])
        else:
            # The copy in a spawned worker process, which uses the file of its parent.
            self._file: RankFile = state["_file"]

    def _write_first(self, record: Mapping[str, Any]) -> None:
        """Make the file, with the record of this rank; ranks that are forked later begin with it.

        The file has records by rank, ``{"17": {...}}``, and the maker's number as ``"maker"``.
        """
        self._file = RankFile("mds-epochs")
        maker = str(self._file.owner)
        _write(self._file.descriptor, {"maker": maker, maker: record})

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._file.close()


def _parse_point(state: Mapping[str, Any] | None) -> ResumePoint | None:
    return parse_state(state) if state is not None else None


def _next_start(record: Mapping[str, Any], group: int, worker: int) -> dict[str, Any]:
    """Return the entry in ``starts`` of a record that a worker joins, or a new one."""
    starts: list[dict[str, Any]] = [s for s in record["starts"] if s["group"] == group]
    if starts and worker not in starts[-1]["workers"]:
        return starts[-1]
    resume, epoch = record["pending"], record["next_epoch"]
    if resume is not None:
        # A state that was saved before the first epoch has epoch -1.
        epoch = max(parse_state(resume).position.epoch, 0)
    return {"group": group, "workers": [], "epoch": epoch, "resume": resume}


def _parse_start(start: Mapping[str, Any]) -> ResumePoint:
    """Return the point at which an iteration began, from its entry in ``starts`` of a record."""
    if start["resume"] is None:
        return ResumePoint(Position(start["epoch"]))
    point = parse_state(start["resume"])
    return point.at(point.position._replace(epoch=start["epoch"]))


def _blank_record() -> dict[str, Any]:
    return {"next_epoch": 0, "pending": None, "loaded": None, "starts": [], "edits": []}


def _read(fd: int) -> dict[str, Any]:
    """Return the records of a file by rank, and the rank that made it as ``"maker"``."""
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    records: dict[str, Any] = json.loads(data) if data else {}
    return records


def _write(fd: int, records: Mapping[str, Any]) -> None:
    """Replace the contents of a file, see `_read`."""
    data = json.dumps(records).encode()
    # Padded with blanks, which JSON ignores, so that nothing of a longer record remains.
    size = os.fstat(fd).st_size
    os.pwrite(fd, data.ljust(size), 0)
