"""Run of a dataset: how far a training has come in its order, on all ranks.

A dataset has one `Run`, from its first epoch to its last one. What an iteration reads is not part
of it: each iteration gets a `SampleSource` of its own. Nothing that a run keeps may refer to a
source, because that would keep the dataset until a garbage collection.

Other packages reach a dataset only by `run_of`, `source_of`, `begin_epoch` and `seek`. They are
functions, because a class of the user may have methods of any name.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from mds._arguments import ShuffleFlag, check_arguments
from mds._cache.source import cache_root
from mds._dataset.order_state import Iteration, OrderState
from mds._dataset.settings import DATASET_RULES
from mds._dataset.worker_point import WorkerPoint, parse_worker_point, point_of_state
from mds._iteration.filtering import DropCount
from mds._iteration.worker_epoch import PaddedWorkerEpoch, WorkerEpoch
from mds.errors import ConfigError
from mds.plan._spec import OrderSpec
from mds.world import find_ranks, has_late_ranks, in_worker, worker_group, worker_place

if TYPE_CHECKING:
    from mds._iteration.reading import SampleSource
    from mds._readers.fields import ColumnSelection
    from mds.plan._state import Position, ResumePoint
    from mds.world import Ranks, World

_T = TypeVar("_T")


class Run:
    """Position of a training in the order of a dataset, and what the position depends on.

    Args:
        order: Settings of the order, and the progress of its epochs.
        owner: Name of the dataset's class, for messages.
        topology: Argument of the dataset, by which ranks are found.
        replication: Number of neighbouring ranks that get the same samples; None for one.
        ranks: Ranks of this process, if they were found before.
        is_filtered: Whether samples of the order may be dropped.
        is_strict: Whether states follow the rules of mds, and not those of mosaicml-streaming.

    Attributes:
        dropped: Samples that were dropped.
        iteration: The iteration that states are about; None before the first.
        worker_start: Where the next iteration of this worker process begins, if it has loaded a
            state.
        has_loader: Whether a StreamingDataLoader of the dataset was made.
        has_row_per_sample: Whether batches of that loader have as many rows as they took samples.
    """

    def __init__(
        self,
        order: OrderState,
        *,
        owner: str = "",
        topology: Any = None,
        replication: int | None = None,
        ranks: Ranks | None = None,
        is_filtered: bool = False,
        is_strict: bool = True,
    ) -> None:
        self.order, self.owner, self.topology = order, owner, topology
        self.replication, self.ranks = replication, ranks
        self.is_filtered, self.is_strict = is_filtered, is_strict
        self.dropped = DropCount()
        self.iteration: Iteration | None = None
        self.worker_start: WorkerPoint | None = None
        self.has_loader = False
        self.has_row_per_sample = True
        self._coming_epoch = -1  # epoch of ``iteration``, if its workers may not have begun it yet
        self._has_reported_end = False  # whether a state of this worker said that the epoch ended

    def again(self, order: OrderState, *, is_filtered: bool) -> Run:
        """Return a run of the same dataset, or a part of it, of which no epoch has begun."""
        return type(self)(
            order,
            owner=self.owner,
            topology=self.topology,
            replication=self.replication,
            ranks=self.ranks,
            is_filtered=is_filtered,
            is_strict=self.is_strict,
        )

    # ------------------------------------------------------------------ ranks

    def world(self, workers: int = 1, worker: int = 0) -> World:
        """Return the world after replication, for worker number ``worker`` of ``workers``."""
        world = self.find_ranks().world(workers, worker)
        return world.replicate(self.replication) if self.replication is not None else world

    def find_ranks(self) -> Ranks:
        """Return the ranks, which are looked up once, when first needed."""
        if self.ranks is None:
            self.ranks = self._look_up(self.topology)
        return self.ranks

    @staticmethod
    def _look_up(topology: Any) -> Ranks:
        return find_ranks(topology)

    def check_ranks(self) -> None:
        """Find the ranks again if a process group has been initialized since."""
        if has_late_ranks(self.ranks):
            self.ranks = None

    # ------------------------------------------------------------------ iterations

    def begin(self, iteration: Iteration, epoch: int = -1) -> None:
        """Take an iteration that gave nothing yet for the present one, unless one is under way.

        ``epoch``: its epoch, if workers begin that later; -1 if it has begun.
        """
        if self.iteration is None or not self.iteration.is_under_way:
            self.take_over(iteration)
            self._coming_epoch = epoch

    def take_over(self, iteration: Iteration) -> None:
        """Take an iteration for the present one, as it gives samples or batches."""
        self.iteration, self._coming_epoch, self._has_reported_end = iteration, -1, False

    @property
    def _received(self) -> Iteration | None:
        """The present iteration if it is of batches or packs, which are counted as they arrive."""
        return None if isinstance(self.iteration, WorkerEpoch) else self.iteration

    def _position_of(self, iteration: Iteration) -> Position | None:
        return self.order.position_of(iteration, self.world().num_ranks)

    # ------------------------------------------------------------------ states

    def state(self, num_samples: int | None, from_beginning: bool) -> dict[str, Any]:
        """Return the position of all ranks as a state; for the arguments, see `Samples`."""
        num_samples = self.order.positions.usable_count(num_samples, from_beginning)
        if num_samples is None and self.is_strict and in_worker():
            return self._worker_state()
        position = None
        if from_beginning and num_samples == 0:
            position = self._end_of_epoch()
        elif self.is_strict and from_beginning and num_samples:
            position = self._position_for_rows(num_samples)
        if num_samples is None:
            position = self._received_position()
        world = self.world()
        if position is None:
            position = self.order.position(
                world, num_samples, from_beginning, self.iteration, self._coming_epoch
            )
        return self.order.state(world, position)

    def _end_of_epoch(self) -> Position | None:
        """Return the end of the last iteration of a loader, or None while it goes on.

        In `mds.compat` it is the beginning of the next epoch.
        """
        epochs, iteration = self.order.epochs, self._received
        if iteration is None or iteration.is_under_way:
            return None
        end = self._position_of(iteration)
        if end is None or epochs.pending is not None or epochs.next_epoch != end.epoch + 1:
            return None  # a state was loaded, or another iteration has begun since
        # Code of mosaicml-streaming would take a finished epoch for an empty one, see `load`.
        return end._replace(is_finished=True) if self.is_strict else end.following()

    def _position_for_rows(self, rows: int) -> Position | None:
        """Return the position of the loader if a number of rows cannot tell it, else None.

        For example, Composer counts 40 rows after 64 samples of which a filter dropped 24. With
        ``replication=2`` it counts 128 rows, because two ranks get the same 64 samples.

        ``rows``: rows of the epoch in the batches of all ranks, as the trainer counted them.
        """
        pending, position = self.order.epochs.pending, None
        if pending is not None:
            position = pending.position
        elif self._received is not None:
            position = self._position_of(self._received)
        if position is None or (self.has_row_per_sample and rows <= position.place):
            return None
        return position

    def _received_position(self) -> Position | None:
        """Return the position after the batches or packs that came last.

        It is None before the first batch, after a state was loaded, and if the last iteration was
        one of samples. Raises ConfigError if that was one of torch's worker processes.
        """
        epochs, iteration, position = self.order.epochs, self._received, None
        if epochs.pending is not None:
            return None
        if iteration is not None:
            position = self._position_of(iteration)
            if position is None:
                return None
        last = epochs.last
        is_elsewhere = epochs.is_in_workers and not in_worker()
        if position is not None and last is not None:
            # Every iteration has its own epoch, so another epoch belongs to another loader.
            is_elsewhere = is_elsewhere and last.position.epoch != position.epoch
        if is_elsewhere:
            raise ConfigError(
                f"{self.owner}.state_dict(): worker processes of torch's DataLoader read "
                "this dataset, and only they know their position. Use "
                "mds.StreamingDataLoader(dataset, num_workers=...), which counts the samples."
                + self.order.positions.other_way
            )
        loop = self.order.find_loop() if position is not None else None
        if loop is not None:
            loop.warn_if_inexact()
        return position

    def load(self, state: Mapping[str, Any], *, other_data: bool) -> ResumePoint | None:
        """Begin the next iteration from a state; return its point, or None in a worker process.

        For the arguments and errors, see `Samples.load_state_dict`.
        """
        if in_worker():
            # Torchdata's loader does this; the next iteration of this worker begins there. An
            # iterator of this class gets the position from that loader as well.
            if self.is_strict:
                self.worker_start = self.load_worker_point(state)
            return None
        point = self.order.load(
            state, self.world(), other_data=other_data, is_strict=self.is_strict
        )
        if self._received is not None:
            self.iteration, self._coming_epoch = None, -1
        return point

    # ------------------------------------------------------------------ states of a worker

    def worker_point(
        self, epoch: WorkerEpoch, begin: Position, taken: int, lane: int
    ) -> WorkerPoint:
        """Return the point of this worker, ``taken`` samples or packs after ``begin``.

        ``epoch``: the iteration of this worker; ``lane``: see `WorkerPoint`.
        """
        if epoch.resume_point is None:  # the same in the whole iteration, but for the edits
            epoch.resume_point = self.order.point(self.world(), begin)
        edits = tuple(self.order.epochs.edits)
        start = dataclasses.replace(epoch.resume_point.at(begin), edits=edits)
        return WorkerPoint(start, taken, lane, self._worker_facts(epoch.world))

    def load_worker_point(self, state: Any) -> WorkerPoint:
        """Return the point of a worker's state in the world of this run.

        ``state``: result of `WorkerPoint.emit`, or of `state` in a worker process. Raises
        StateError if it does not fit this dataset or this world.
        """
        worker, workers = worker_place()
        world = self.world(workers, worker)
        is_of_iterator = isinstance(state, Mapping) and "turn" in state
        if is_of_iterator:
            point = parse_worker_point(state, worker)
            self.order.load_in_worker(point.start, world, has_edits=False)
        else:
            start = self.order.load_in_worker(state, world, has_edits=True)
            point = point_of_state(start, worker)
        return point.moved(self._worker_facts(world), is_alone=not in_worker())

    def _worker_facts(self, world: World) -> dict[str, int]:
        """Return what the samples of a worker depend on, see `WorkerPoint`."""
        facts = self.order.worker_facts(world)
        if world.num_ranks > 1 and self.is_filtered:
            facts |= self.order.positions.facts_behind_filter(world)
        return facts

    def _worker_state(self) -> dict[str, Any]:
        """Return the position of this worker process as a state, for `load` in it.

        Torchdata's loader asks for it when it begins an epoch, after each batch and at the end. A
        wrapper around this dataset may not have begun its epoch then. So after the state of the
        end, the next one is that of the next epoch.
        """
        if self.worker_start is not None:  # loaded, and not begun
            return self.worker_start.as_state()
        iteration = self.iteration
        count = None if iteration is None else iteration.worker_count
        if iteration is not None and count is not None and not self._has_reported_end:
            self._has_reported_end = iteration.is_finished
            return self.worker_point(*count).as_state()
        worker, workers = worker_place()
        start = self.order.epochs.upcoming(worker_group(), worker)
        world = self.world(workers, worker)
        begin = self.order.plan(start, world).begin
        start = self.order.point(self.world(), begin)
        return WorkerPoint(start, 0, worker, self._worker_facts(world)).as_state()

    def __getstate__(self) -> dict[str, Any]:
        # ``topology`` may be a process group, which cannot be pickled and does not exist in worker
        # processes. So the ranks are found here, and the copy has them without the topology.
        self.find_ranks()
        return {
            **self.__dict__,
            "topology": None,
            "order": copy.copy(self.order),
            "iteration": None,
            "_coming_epoch": -1,
            "worker_start": None,
        }


class HasRun:
    """Base of a dataset: its run, and what an iteration asks of the dataset's class.

    Classes of `mds.compat` override some of these methods.
    """

    _dataset_run: Run
    _columns: ColumnSelection  # the columns that are read
    #: Whether an argument that breaks a rule is refused. The classes of `mds.compat` accept it.
    _is_strict = True

    def _sample_source(self) -> SampleSource:
        """Return what an iteration reads that begins now."""
        raise NotImplementedError

    def _worker_epoch(
        self, start: ResumePoint, world: World, position: int = 0, *, for_loader: bool = False
    ) -> WorkerEpoch:
        """Return the part of a worker in an epoch.

        Args:
            start: Point of the run at which the epoch begins.
            world: World, with the number of the worker.
            position: Samples of this worker that are left out, because they were taken before.
            for_loader: Whether a loader counts the samples, see `begin_epoch`.
        """
        order = self._dataset_run.order.plan(start, world)
        if order.long_orders:  # they take long to compute, so one process of the node does it
            from mds._cache.order_files import share_order

            order = share_order(order, os.path.join(cache_root(), "orders"))
        is_padded = for_loader and order.spec.remainder == "mask"
        kind = PaddedWorkerEpoch if is_padded else WorkerEpoch
        return kind(order, world, position, is_counted=for_loader)


def run_of(dataset: HasRun) -> Run:
    """Return the run of a dataset."""
    return dataset._dataset_run


def source_of(dataset: HasRun) -> SampleSource:
    """Return what an iteration of a dataset reads that begins now."""
    return dataset._sample_source()


def begin_epoch(
    dataset: HasRun, worker: int, workers: int, group: int, *, for_loader: bool = False
) -> WorkerEpoch:
    """Begin the next epoch, or that of a loaded state, and return this worker's part of it.

    It is called when an iteration starts and not at its first sample, because all workers of a
    loader must agree on the epoch, and the last of them may start much later than the first.

    Args:
        dataset: Dataset that is iterated.
        worker: Number of this worker of the rank.
        workers: Number of workers of the rank.
        group: Number that all workers of one iteration share.
        for_loader: Whether the samples are counted as batches or packs. Then padding of
            ``remainder="mask"`` is given with a mask; otherwise it is left out.
    """
    run = run_of(dataset)
    run.check_ranks()
    start = run.order.epochs.begin_epoch(group, worker)
    world = run.world(workers, worker)
    epoch = dataset._worker_epoch(start, world, for_loader=for_loader)
    run.order.check_packer(epoch.order, group)
    if world.is_leader and not start.position.epoch:
        run.order.warn_of_late_milestones(epoch.order)
    if not for_loader:
        run.begin(epoch)
    return epoch


def seek(dataset: HasRun, point: WorkerPoint, *, for_loader: bool = False) -> WorkerEpoch:
    """Return this worker's part of the epoch of ``point``, and set the next epoch after it.

    ``for_loader``: whether the samples are counted as batches or packs. Then ``point`` counts the
    packs of a step, which are left out later.
    """
    run = run_of(dataset)
    run.order.epochs.next_epoch = point.start.position.epoch + 1
    world = run.world(worker_place()[1], point.lane)
    if for_loader:
        return dataset._worker_epoch(point.start, world, for_loader=True)
    epoch = dataset._worker_epoch(point.start, world, point.taken)
    run.take_over(epoch)
    return epoch


class OrderSetting(Generic[_T]):
    """Descriptor of an order setting of a dataset, such as ``dataset.shuffle``.

    The value is stored in the spec of the dataset's OrderState. An assignment makes a new spec,
    which checks the value.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, dataset: None, owner: type | None = None) -> OrderSetting[_T]: ...
    @overload
    def __get__(self, dataset: HasRun, owner: type | None = None) -> _T: ...
    def __get__(self, dataset: HasRun | None, owner: type | None = None) -> OrderSetting[_T] | _T:
        if dataset is None:  # read from the class, as in ``Samples.shuffle``
            return self
        value: Any = getattr(run_of(dataset).order.spec, self._name)
        if self._name == "shuffle" and dataset._is_strict:
            value = ShuffleFlag(value)
        return value  # type: ignore[no-any-return]

    def __set__(self, dataset: HasRun, value: _T) -> None:
        change: dict[str, Any] = {self._name: value}
        if dataset._is_strict:
            check_arguments(type(dataset).__name__, change, DATASET_RULES)
        order = own_run(dataset).order
        spec = dataclasses.replace(order.spec, **change)
        if self._name == "packing" and "_shards" in vars(dataset):  # its constructor has ended
            spec = order.with_token_column(spec, dataset._columns)
        order.spec = spec


def own_run(dataset: HasRun) -> Run:
    """Return the run of a dataset, to change a setting of it.

    A subclass may assign a setting before it calls the constructor of this library, which makes the
    run. Then the setting gets a run of its own, which nothing reads but the subclass.
    """
    if "_dataset_run" not in vars(dataset):
        dataset._dataset_run = Run(OrderState(OrderSpec()))
    return run_of(dataset)
