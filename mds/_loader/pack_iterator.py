"""Packs of a dataset without a loader, one by one: ``for pack in dataset`` with ``packing=``.

A pack is what a loader makes a batch of: the batch of this pack alone. With ``layout="dense"`` it
is the row of the pack, without the axis of the batch, so that torch's DataLoader makes the same
batches of such packs.

The order is that of a StreamingDataLoader: steps of ``batch_size`` packs for each rank, which are
dealt to the workers in turns. Between two packs of a step the position is known only if there is
one rank, because other ranks have taken other packs of the step.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import default_convert

from mds._dataset.epoch_iterator import fork_error
from mds._loader.batches import Batches
from mds._loader.packed_batches import check_packed_dataset
from mds._loader.tensor_buffers import TensorPool
from mds._process.fork_safe import abandon, call_in_child
from mds._process.stopwatch import Stopwatch
from mds.errors import ConfigError, repeatable
from mds.world import worker_group, worker_place

if TYPE_CHECKING:
    from mds._dataset.order_state import OrderState
    from mds._dataset.samples import Samples
    from mds._dataset.worker_epoch import WorkerEpoch
    from mds._dataset.worker_point import WorkerPoint
    from mds.plan._pack_plan import PackPlan
    from mds.plan._state import Position

_ADVICE = (
    "Iterate the dataset again for the next epoch; to continue this one, call "
    "dataset.load_state_dict(dataset.state_dict()) first."
)


class _Progress(NamedTuple):
    """Packs that came: ``packs`` places of the step after ``begin``; None for the whole step.

    ``end`` is the position after the step.
    """

    begin: Position
    packs: int | None
    end: Position


class IteratedPacks:
    """Count of the packs of one iteration; a `LoopCount`, for ``dataset.state_dict()``.

    Args:
        plan: Order of the epoch.
        workers: Number of workers of the rank.
        lane: Worker of the rank that has the first step, see `WorkerPoint`.

    Attributes:
        begin: Position at which the iteration began; None before the first pack.
        progress: Position after the packs that came last.
        is_over: Whether the iteration has ended, by the end of the epoch or an error.
        is_finished: Whether it came to the end of the epoch.
    """

    def __init__(self, plan: PackPlan, workers: int, lane: int) -> None:
        self._plan = plan
        self._workers, self._lane = workers, lane
        self.begin: Position | None = None
        self.progress = _Progress(plan.begin, None, plan.begin)
        self.is_over = self.is_finished = False

    @property
    def is_under_way(self) -> bool:
        """Whether packs were given and more may come."""
        return self.begin is not None and not self.is_over

    def add(self, progress: _Progress) -> None:
        """Count a pack. After a whole step, the next step of this worker is that of the last lane.

        For example, with 3 workers, worker 0 has steps 0, 3, 6. Counted from step 1 on, step 3 is
        number 2, which is a step of worker 2.
        """
        if self.progress.packs is None and self.progress.end != self._plan.begin:
            self._lane = self._workers - 1
        self.progress = progress

    @property
    def worker_place(self) -> tuple[Position, int, int]:
        """Position of this worker: where it counts from, packs of the next step, and lane."""
        begin, packs, end = self.progress
        if packs is not None:
            return begin, packs, self._lane
        return end, 0, self._lane if end == self._plan.begin else self._workers - 1

    def position(self, order: OrderState, ranks: int) -> Position | None:
        """Return the position of all ranks after the last pack; None before the first one.

        Raises ConfigError in the middle of a step of several ranks.
        """
        del order
        if self.begin is None:
            return None
        begin, packs, end = self.progress
        if packs is not None:
            if ranks > 1:
                size = self._plan.shape.batch
                raise ConfigError(
                    f"state_dict(): {packs} of the {size} packs of a step were read, but {ranks} "
                    "ranks take a step together, so no position is between its packs. Call it "
                    "after the last pack of a step, write batch_size=1, or iterate "
                    "StreamingDataLoader(dataset), whose batches are steps."
                )
            end = self._plan.position_after(begin, packs)
        return end._replace(is_finished=self.is_finished)


class PackIterator(Iterator[dict[str, Any]]):
    """Iterator over this worker's packs of the next epoch, which begins here.

    Several ranks get equally many packs, unless ``remainder="short"``: where the last step has
    fewer packs, some ranks get packs of padding. One rank gets none.

    An error ends the iteration: shards are released, and every further ``next`` raises it again.

    ``dataset``: StreamingDataset with packing.
    """

    def __init__(self, dataset: Samples) -> None:
        check_packed_dataset(dataset)
        self._dataset = dataset
        self._is_padded = dataset.num_ranks > 1 and dataset.remainder != "short"
        self._start(dataset._begin_epoch(*worker_place(), worker_group(), for_loader=True))
        point, dataset._worker_start = dataset._worker_start, None
        if point is not None:
            self._seek(point)
        _living.add(self)

    def _start(self, epoch: WorkerEpoch, taken: int = 0) -> None:
        """Read ``epoch`` from now on, without the first ``taken`` packs of its first step."""
        plan, world = epoch.order.packs, epoch.world
        assert plan is not None
        self._epoch = epoch
        self._count = IteratedPacks(plan, world.workers_per_rank, world.worker_of_rank)
        if taken:
            self._count.progress = _Progress(plan.begin, taken, plan.begin)
        self._packs: Iterator[tuple[_Progress, dict[str, Any]]] = self._read(epoch, taken)
        self._failure: Exception | None = None

    def _seek(self, point: WorkerPoint) -> None:
        """Continue from the point of a worker."""
        self._epoch.close_windows()
        self._start(self._dataset._seek(point), point.taken)

    def __iter__(self) -> PackIterator:
        return self

    def __next__(self) -> dict[str, Any]:
        """Return the next pack, after it was counted."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        try:
            progress, pack = next(self._packs)
        except StopIteration:
            self._begin()
            self._count.is_over = self._count.is_finished = True
            raise
        except BaseException as error:
            self._failure = repeatable(error, _ADVICE)
            self._count.is_over = True
            raise
        self._begin()
        self._count.add(progress)
        return pack

    def _begin(self) -> None:
        """Make this the iteration that ``dataset.state_dict()`` is about."""
        count = self._count
        if count.begin is None:
            count.begin = count.progress.begin
        if self._dataset._loop_count is not count and not count.is_over:
            self._dataset._loop_count = count

    def _read(self, epoch: WorkerEpoch, taken: int) -> Iterator[tuple[_Progress, dict[str, Any]]]:
        """Yield the packs of the epoch, each with the position after it.

        ``taken``: places of the first step that are left out.
        """
        dataset = self._dataset
        batches = Batches(dataset, dataset.batch_size, False, default_convert)
        watch = Stopwatch(time.perf_counter)
        packer, steps = batches.pack_stages(epoch, watch, TensorPool())
        begin = end = epoch.begin
        first = 0  # place in the step of the first pack of a batch
        try:
            watch.start()
            for step in steps:
                if step[0].end != end:  # else it is another micro-batch of the step
                    begin, end, first = end, step[0].end, 0
                # One pack is held back: after the last one of a step comes the end of the step.
                waiting: tuple[int, dict[str, Any]] | None = None
                for place, pack in packer.split(step, is_padded=self._is_padded):
                    if begin is epoch.begin and first + place < taken:
                        continue
                    if waiting is not None:
                        yield _Progress(begin, first + waiting[0] + 1, end), waiting[1]
                    waiting = place, pack
                is_end = first + len(step[0].counts) == epoch.order.shape.batch
                if waiting is not None:
                    packs = None if is_end else first + waiting[0] + 1
                    yield _Progress(begin, packs, end), waiting[1]
                first += len(step[0].counts)
        finally:
            epoch.close_windows()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this worker, as `EpochIterator.state_dict` does.

        Raises ConfigError if several workers share a step, because none has a position after it.
        """
        spec, world = self._epoch.order.spec, self._epoch.world
        if spec.microbatches > 1 and world.workers_per_rank > 1:
            raise ConfigError(
                f"a worker of packs with microbatches={spec.microbatches} has no position, because "
                "other workers have parts of its steps. Iterate the StreamingDataLoader that has "
                "microbatches=, or create another dataset for this loader."
            )
        return self._dataset._worker_point(self._epoch, *self._count.worker_place).emit()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state_dict`, as `EpochIterator.load_state_dict` does."""
        self._seek(self._dataset._load_worker_point(state))


_living: weakref.WeakSet[PackIterator] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """End the parent's iterations in a forked child: their threads exist only in the parent."""
    for packs in list(_living):
        abandon(packs._packs)  # closing it would wait for threads
        packs._packs = iter(())
        packs._failure = fork_error()
        packs._count.is_over = True


call_in_child(_leave_to_parent)
