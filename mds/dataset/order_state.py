"""The order of a dataset: its settings, the epochs begun, and the point where it resumes.

It joins what a user set, what the launcher says and what a checkpoint brought into an EpochPlan,
and gives the state that leads back to the same place. It has never met a shard's bytes, nor torch.
"""

from __future__ import annotations

import copy
import dataclasses
import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from mds.arguments import check_arguments, shown
from mds.dataset.data_names import check_files, name_data, other_data
from mds.dataset.epoch_counter import EpochStart, SharedEpochCounter
from mds.dataset.settings import DATASET_RULES
from mds.errors import ConfigError
from mds.plan import EpochPlan, OrderSpec, PackPlan, no_weights, resolve_passes, resolve_weights
from mds.plan.edits import apply_weights, check_edits, given_before, place_after, skips_of
from mds.plan.pack_schedule import first_shares
from mds.plan.state import (
    EXTENDED_VERSION,
    MAX_SAMPLES,
    VERSION,
    ResumePoint,
    emit_state,
    parse_state,
)
from mds.text.redaction import get_logger

if TYPE_CHECKING:
    from mds.dataset.shard_map import ShardMap
    from mds.dataset.stream import Stream
    from mds.dataset.worker_epoch import WorkerEpoch
    from mds.plan.pack_plan import DocumentLengths
    from mds.plan.schedule import ScheduledRun
    from mds.world import World


log = get_logger("mds.dataset")

#: The settings that a dataset takes under these names.
SETTING_NAMES = tuple(
    field.name for field in dataclasses.fields(OrderSpec) if field.name != "skip_empty_streams"
)


class OrderState:
    """Order settings of a dataset, and how far its epochs are; a part of the dataset.

    ``shares``: what was asked for of each stream. ``epoch_size``: what was asked for of an epoch.
    ``may_lack_batches``: without a batch size samples come one by one, where one process reads.
    ``schedule``: as it was written. It is of no shards, and counts no epochs, before `reset`.
    """

    epochs: SharedEpochCounter
    _shards: ShardMap
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

    def reset(
        self, shards: ShardMap, streams: Sequence[Stream], contents: Sequence[str]
    ) -> OrderState:
        """That of a dataset of these shards that has not begun; tells the streams their weights.

        ``contents``: a digest for the data of each stream. Raises ConfigError when there are no
        samples, and for weights that do not fit.
        """
        fresh = OrderState(
            self.spec,
            self._shares,
            self._epoch_size,
            self.schedule,
            may_lack_batches=self.may_lack_batches,
        )
        fresh._shards, fresh.epochs = shards, SharedEpochCounter()
        fresh._names = [stream._name for stream in streams]
        samples = shards.samples_per_stream.tolist()
        is_chosen = shards.selection is not None
        if not sum(samples) and not is_chosen:
            raise ConfigError(f"there are no samples in {', '.join(map(repr, streams))}.")
        if sum(samples) and self._epoch_size != 0:
            # A selection may leave nothing of a stream; what was asked of it counts no more.
            resolve = resolve_weights if self.schedule is None else resolve_passes
            fresh.weights = resolve(
                samples,
                [
                    {**share, "name": name}
                    for share, name in zip(self._shares, fresh._names, strict=True)
                ],
                self._epoch_size,
                self.spec.shuffle_seed,
                skip_empty=is_chosen,
            )
        proportion: Sequence[float] = fresh.weights.proportion
        if self.schedule is not None and sum(samples):
            proportion = first_shares(self.schedule, fresh.weights.choose)
        for i, stream in enumerate(streams):
            stream._take_weights(proportion[i], fresh.weights.repeat[i], fresh.weights.choose[i])
        fresh._file_changes = [stream._file_changes for stream in streams]
        fresh._data = name_data(streams, shards, contents, self._shares, self._epoch_size)
        return fresh

    def plan(self, start: EpochStart, world: World, spec: OrderSpec | None = None) -> EpochPlan:
        """The order of one epoch in a world, as every process computes it."""
        spec = spec or self.spec
        if self._lacks_batches(spec, world):
            spec = dataclasses.replace(spec, batch_size=1)
        point = start.resume or self.epochs.loaded
        if point is not None:
            # What a state brought stays in force after its epoch; its position does not.
            point = point.at(start.epoch, point.sample_in_epoch if start.resume is not None else 0)
        edits = self.epochs.edits
        return EpochPlan(
            [
                {"shards": sizes, **share, "name": name}
                for sizes, share, name in zip(
                    self._shards.sizes_per_stream, self._shares, self._names, strict=True
                )
            ],
            world,
            spec,
            epoch=start.epoch,
            resume=point,
            weights=self.weights,
            dataset=self._shards.fingerprint,
            schedule=apply_weights(self.schedule, edits) if edits else self.schedule,
            edits=edits,
        )

    def _lacks_batches(self, spec: OrderSpec, world: World) -> bool:
        """Whether there is no batch size, and the order of samples can do without.

        One process that has no loader takes samples one by one; several ranks and workers are dealt
        whole batches, so their order depends on the size.
        """
        is_free = spec.batch_size is None and spec.batching_method == "random"
        return is_free and world.num_workers == 1 and self.may_lack_batches

    def _has_order(self, world: World) -> bool:
        """Whether the order is settled, so that a state can be held against it."""
        return bool(self.spec.batch_size) or self._lacks_batches(self.spec, world)

    def position(
        self,
        world: World,
        num_samples: int | None,
        from_beginning: bool,
        running: WorkerEpoch | None,
    ) -> tuple[int, int, bool]:
        """Return the epoch, the sample in it, and whether its iteration has ended.

        That is after ``num_samples`` samples of all ranks; without them, where ``running`` is. They
        count from the beginning of the epoch, or else from where this epoch was resumed.
        """
        pending, last = self.epochs.pending, self.epochs.last
        epoch, offset = self.epochs.next_epoch - 1, 0
        if pending is not None:
            epoch, offset = pending.epoch, pending.sample_in_epoch
        elif num_samples is None and running is not None:
            epoch, offset = running.begun
            num_samples = running.share * world.num_ranks
        elif last is not None and last.epoch == epoch and last.resume is not None:
            offset = last.resume.sample_in_epoch
        count: Any = num_samples or 0
        if not _is_real(count) or not 0 <= count <= MAX_SAMPLES:
            raise ConfigError(
                f"state_dict(num_samples={shown(num_samples)}): it is the number of samples that "
                "all ranks have seen."
            )
        place = self.place_after(epoch, 0 if from_beginning else offset, int(count))
        return epoch, place, self._has_ended(running, epoch, place, world)

    def _has_ended(self, running: WorkerEpoch | None, epoch: int, place: int, world: World) -> bool:
        """Whether ``running`` is of this epoch, has ended, and did so at ``place`` or before."""
        if running is None or not running.is_finished or self.epochs.pending is not None:
            return False
        begun, first = running.begun
        end = self.place_after(begun, first, running.share * world.num_ranks)
        return begun == epoch and end <= place

    def place_after(self, epoch: int, begin: int, given: int) -> int:
        """The place of an epoch that comes after ``given`` samples from ``begin`` on."""
        return place_after(skips_of(self.epochs.edits, epoch), begin, given)

    def given_before(self, epoch: int, begin: int, place: int) -> int:
        """How many samples from ``begin`` on come before a place of an epoch."""
        return given_before(skips_of(self.epochs.edits, epoch), begin, place)

    def state(
        self, world: World, epoch: int, sample_in_epoch: int, is_finished: bool = False
    ) -> dict[str, Any]:
        """The state at a sample of an epoch, whose iteration may have ended."""
        in_force = self.epochs.loaded
        initial = in_force.initial_physical_nodes if in_force is not None else None
        plan = None
        if self._has_order(world):
            plan = self.plan(EpochStart(max(epoch, 0), in_force), world)
        return emit_state(
            ResumePoint(
                epoch=epoch,
                sample_in_epoch=sample_in_epoch,
                num_canonical_nodes=self.spec.canonical_nodes(world.num_nodes),
                shuffle_seed=self.spec.shuffle_seed,
                initial_physical_nodes=initial or world.num_nodes,
                version=VERSION,
                dataset=plan.dataset_facts() if plan is not None else None,
                order=plan.order_facts() if plan is not None else None,
                schedule=None if self.schedule is None else self.schedule.to_json(),
                edits=tuple(self.epochs.edits),
                data=self._named(world if plan is not None else None),
                is_finished=is_finished,
            )
        )

    def _named(self, world: World | None) -> dict[str, Any]:
        """What names the data, for a state of its own, and of a world how batches are cut by it."""
        return copy.deepcopy(self._data) | (self._world_facts(world) if world else {})

    def _world_facts(self, world: World) -> dict[str, Any]:
        """What global batches are cut by: ranks, nodes and the batch size."""
        found: dict[str, Any] = {"ranks": world.num_ranks, "nodes": world.num_nodes}
        if self.spec.batch_size is not None:
            found["batch_size"] = self.spec.batch()
        if self.spec.partition_algo != "relaxed":
            found["partition_algo"] = self.spec.partition_algo
        in_force = self.epochs.loaded
        begun = in_force.world_begun if in_force is not None else None
        if self.spec.batching_method in {"per_stream", "stratified"} and begun is not None:
            here = (world.num_nodes, world.num_ranks)
            if begun != here:
                found["padded_for"] = dict(zip(("nodes", "ranks"), begun, strict=True))
        return found

    def packed_state(
        self,
        world: World,
        lengths: DocumentLengths,
        begun: tuple[int, int] | None,
        packs: tuple[int, Any, int] | None,
        *,
        is_finished: bool = False,
    ) -> dict[str, Any]:
        """The state of a run of packs: behind ``packs`` (position, cursors, turn) of an epoch.

        Without them where the next iteration begins, or the last one began.
        """
        pending, last, in_force = self.epochs.pending, self.epochs.last, self.epochs.loaded
        epoch = self.epochs.next_epoch - 1
        point = pending
        if packs is not None and begun is not None:
            epoch, point = begun[0], None
        elif point is None and last is not None and last.epoch == epoch:
            point = last.resume
        initial = in_force.initial_physical_nodes if in_force is not None else None
        fresh = ResumePoint(
            epoch,
            0,
            self.spec.canonical_nodes(world.num_nodes),
            self.spec.shuffle_seed,
            initial or world.num_nodes,
            version=EXTENDED_VERSION,
            unit="packs",
            schedule=None if self.schedule is None else self.schedule.to_json(),
            edits=tuple(self.epochs.edits),
        )
        if packs is not None and begun is not None:
            position, cursors, turn = packs
            of_nodes = tuple((int(window), int(pack)) for window, pack in cursors)
            fresh = dataclasses.replace(
                fresh,
                sample_in_epoch=position,
                cursors=of_nodes,
                turn=turn,
                is_finished=is_finished,
            )
        elif point is not None:
            names = ("epoch", "sample_in_epoch", "cursors", "turn")
            fresh = dataclasses.replace(fresh, **{name: getattr(point, name) for name in names})
        if self._has_order(world):
            plan = PackPlan(self.plan(EpochStart(max(epoch, 0), None), world), lengths)
            facts, order = plan.plan.dataset_facts(), plan.order_facts()
            packing = plan.packing
            named = {"lengths": packing.lengths, "balance": packing.balance}
            data = self._named(world) | {"packing": named}
            fresh = dataclasses.replace(fresh, dataset=facts, order=order, data=data)
        return emit_state(fresh)

    def samples_by_stream(self) -> dict[str, int]:
        """Count the samples of each stream, by what a message calls it."""
        titles = (
            str(number) if name is None else repr(name) for number, name in enumerate(self._names)
        )
        return dict(zip(titles, self._shards.samples_per_stream.tolist(), strict=True))

    def load(
        self,
        state: Mapping[str, Any],
        world: World,
        lengths: DocumentLengths | None = None,
        *,
        follows_finished: bool = True,
    ) -> ResumePoint:
        """Let the next iteration begin from a state. Raises StateError where it does not fit.

        ``lengths``: of the documents, where packs are counted. ``follows_finished``: after a
        finished epoch the next one comes, and not an empty rest as in the incumbent.
        """
        point = parse_state(state)
        check_files(point.data, self._data, self._file_changes)
        is_packed = lengths is not None
        point.check_unit(is_packed=is_packed)
        check_edits(point.edits, self.schedule, self.samples_by_stream(), is_packed=is_packed)
        if lengths is not None:
            plan = self.plan(EpochStart(max(point.epoch, 0), point), world)
            PackPlan(plan, lengths).check(point)
        else:
            point.check_position(self.weights.epoch_size)
            self._warn_past_end(point, world)
        if lengths is None and self._has_order(world):
            # With the state's own canonical nodes, on which the default block size depends.
            self.plan(EpochStart(max(point.epoch, 0), point), world).check(point)
        self.spec = dataclasses.replace(
            self.spec,
            num_canonical_nodes=point.num_canonical_nodes,
            shuffle_seed=point.shuffle_seed,
        )
        self._tell_other_data(point, world)
        if point.is_finished and follows_finished:
            point = point.at(max(point.epoch, 0) + 1, 0)
        self.epochs.load(point)
        return point

    def shares(self, world: World, epoch: int, first: int) -> tuple[int, int]:
        """Return the fewest and the most samples that a rank gets of an epoch from ``first`` on."""
        loaded = self.epochs.loaded
        point = loaded.at(epoch, first) if loaded is not None else None
        return self.plan(EpochStart(epoch, point), world).global_batches.shares

    def worker_samples(self, world: World) -> list[int]:
        """Return how many samples each worker of this rank gets in a whole epoch."""
        plan = self.plan(EpochStart(0, None), world)
        return plan.worker_samples(world.node, world.rank_of_node)

    def _tell_other_data(self, point: ResumePoint, world: World) -> None:
        """Say once a node which data are not those of a state, though as many samples."""
        found = other_data(point.data, self._data) if world.is_local_leader else []
        if found:
            more = f", and {len(found) - 3} more streams" if len(found) > 3 else ""
            log.warning(
                "The state was written with other data: %s%s. Each shard has as many samples as "
                "then, so the position is taken; go on only if the samples are the same too.",
                "; ".join(found[:3]),
                more,
            )

    def _warn_past_end(self, point: ResumePoint, world: World) -> None:
        """Say when nothing is left of the epoch of a state, beyond what padding explains."""
        size = self.weights.epoch_size
        if point.sample_in_epoch > size + world.num_ranks * (self.spec.batch_size or 1):
            warnings.warn(
                f"the state has sample_in_epoch {point.sample_in_epoch:,}, and an epoch has "
                f"{size:,} samples: nothing of epoch {point.epoch} is left. Is the state of a "
                "larger dataset, or epoch_size= smaller than it was?",
                stacklevel=4,
            )


def _is_real(value: object) -> bool:
    return isinstance(value, numbers.Real)


_T = TypeVar("_T")


class _Ordered(Protocol):
    _order: OrderState
    _is_strict: bool


class OrderSetting(Generic[_T]):
    """Descriptor of one order setting of a dataset: it lies in the OrderSpec of its OrderState.

    Setting it makes a new spec, so it is checked there and then.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, dataset: None, owner: type | None = None) -> OrderSetting[_T]: ...
    @overload
    def __get__(self, dataset: _Ordered, owner: type | None = None) -> _T: ...
    def __get__(self, dataset: _Ordered | None, owner: type | None = None) -> OrderSetting[_T] | _T:
        if dataset is None:
            return self
        value: _T = getattr(dataset._order.spec, self._name)
        return value

    def __set__(self, dataset: _Ordered, value: _T) -> None:
        change: dict[str, Any] = {self._name: value}
        if dataset._is_strict:
            check_arguments(type(dataset).__name__, change, DATASET_RULES)
        # A subclass may set what it likes before it calls our constructor.
        if "_order" not in vars(dataset):
            dataset._order = OrderState(OrderSpec())
        dataset._order.spec = dataclasses.replace(dataset._order.spec, **change)
