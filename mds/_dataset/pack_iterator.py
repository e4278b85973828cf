"""Packs of a dataset without a loader, one by one: ``for pack in dataset`` with ``packing=``.

A pack is what a loader makes a batch of: the batch of this pack alone. With ``layout="dense"`` it
is the row of the pack, without the axis of the batch, so that torch's DataLoader makes the same
batches of such packs.

The order is that of a StreamingDataLoader: steps of ``batch_size`` packs for each rank, which are
dealt to the workers in turns. Between two packs of a step the position is known only if there is
one rank, because other ranks have taken other packs of the step.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import default_convert

from mds._dataset.epoch_iterator import fork_error
from mds._dataset.run import HasRun, begin_epoch, run_of, seek, source_of
from mds._iteration.batch_maker import BatchMaker
from mds._iteration.packed_batches import check_packing
from mds._iteration.rows import TensorPool
from mds._iteration.stages import Stages
from mds._iteration.worker_epoch import EpochProgress
from mds._process.fork_safe import abandon, call_in_child
from mds._process.stopwatch import Stopwatch
from mds._words import plural
from mds.errors import ConfigError, repeatable
from mds.world import worker_group, worker_place

if TYPE_CHECKING:
    from mds._iteration.reading import SampleSource
    from mds._iteration.worker_epoch import WorkerEpoch
    from mds.plan._state import Position

_ADVICE = (
    "Iterate the dataset again for the next epoch; to continue this one, call "
    "dataset.load_state_dict(dataset.state_dict()) first."
)


class _Taken(NamedTuple):
    """Packs that came: all before ``begin``, and ``places`` of the step that begins there.

    After a whole step, ``begin`` is its end, and ``places`` is 0.
    """

    begin: Position
    places: int


class IteratedPacks:
    """Packs that came in one iteration, for ``dataset.state_dict()``.

    Args:
        epoch: This worker's part of the epoch.
        taken: Packs of its first step that came before a resume.

    Attributes:
        taken: The packs that came last.
        has_begun: Whether a pack came.
        is_closed: Whether no more packs come, for whatever reason.
        is_finished: Whether the iteration came to the end of the epoch.
    """

    def __init__(self, epoch: WorkerEpoch, taken: int = 0) -> None:
        self._epoch, self._start = epoch, epoch.begin
        # The worker of the rank that has the next step, counted from where this one counts, see
        # `WorkerPoint`.
        self._lane = epoch.world.worker_of_rank
        self.taken = _Taken(self._start, taken)
        self.has_begun = self.is_closed = self.is_finished = False

    @property
    def is_under_way(self) -> bool:
        """True if packs were given and more may come."""
        return self.has_begun and not self.is_closed

    def add(self, taken: _Taken) -> None:
        """Count a pack. After a whole step, the next step of this worker is that of the last lane.

        For example, with 3 workers, worker 0 has steps 0, 3, 6. Counted from step 1 on, step 3 is
        number 2, which is a step of worker 2.
        """
        if not self.taken.places and self.taken.begin != self._start:
            self._lane = self._last_lane
        self.taken = taken

    @property
    def _last_lane(self) -> int:
        return self._epoch.world.workers_per_rank - 1

    @property
    def worker_count(self) -> tuple[WorkerEpoch, Position, int, int]:
        """What this worker took: arguments of `Run.worker_point`."""
        begin, places = self.taken
        lane = self._lane if places or begin == self._start else self._last_lane
        return self._epoch, begin, places, lane

    @property
    def progress(self) -> EpochProgress | None:
        """Progress of all ranks after the last pack; None before the first one.

        Raises ConfigError in the middle of a step of several ranks.
        """
        if not self.has_begun:
            return None
        begin, places = self.taken
        order, ranks = self._epoch.order, self._epoch.world.num_ranks
        if places and ranks > 1:
            size = order.shape.batch
            raise ConfigError(
                f"state_dict(): {places} of the {plural(size, 'pack')} of a step were read, "
                f"but {ranks} "
                "ranks take a step together, so no position is between its packs. Call it "
                "after the last pack of a step, write batch_size=1, or iterate "
                "StreamingDataLoader(dataset), whose batches are steps."
            )
        end = order.filling.position_after(begin, places)
        return EpochProgress(self._start, 0, end, self.is_finished)


class PackIterator(Iterator[dict[str, Any]]):
    """Iterator over this worker's packs of the next epoch, which begins here.

    Several ranks get equally many packs, unless ``remainder="short"``: where the last step has
    fewer packs, some ranks get packs of padding. One rank gets none.

    An error ends the iteration: shards are released, and every further ``next`` raises it again.

    ``dataset``: StreamingDataset with packing.
    """

    def __init__(self, dataset: HasRun) -> None:
        self._dataset, self._run = dataset, run_of(dataset)
        order = self._run.order
        check_packing(source_of(dataset), order.spec, order.samples_by_stream())
        epoch = begin_epoch(dataset, *worker_place(), worker_group(), for_loader=True)
        point, self._run.worker_start = self._run.worker_start, None
        if point is None:
            self._read(epoch)
        else:
            self._read(seek(dataset, point, for_loader=True), point.taken)
        _living.add(self)

    def _read(self, epoch: WorkerEpoch, taken: int = 0) -> None:
        """Read ``epoch`` from now on, without the first ``taken`` packs of its first step."""
        self._epoch = epoch
        self._count = IteratedPacks(epoch, taken)
        self._run.begin(self._count)
        self._packs = _read_packs(source_of(self._dataset), epoch, taken)
        self._failure: Exception | None = None

    def __iter__(self) -> PackIterator:
        return self

    def __next__(self) -> dict[str, Any]:
        """Return the next pack, after it was counted."""
        if self._failure is not None:
            raise repeatable(self._failure).with_traceback(None)
        count = self._count
        try:
            taken, pack = next(self._packs)
        except StopIteration:
            self._take_over()
            count.is_closed = count.is_finished = True
            raise
        except BaseException as error:
            self._failure = repeatable(error, _ADVICE)
            count.is_closed = True
            raise
        self._take_over()
        count.add(taken)
        return pack

    def _take_over(self) -> None:
        """Make this the iteration that ``dataset.state_dict()`` is about."""
        count = self._count
        count.has_begun = True
        if self._run.iteration is not count and not count.is_closed:
            self._run.take_over(count)

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
        return self._run.worker_point(*self._count.worker_count).emit()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state_dict`, as `EpochIterator.load_state_dict` does."""
        point = self._run.load_worker_point(state)
        self._epoch.close_windows()
        self._read(seek(self._dataset, point, for_loader=True), point.taken)


def _read_packs(
    source: SampleSource, epoch: WorkerEpoch, taken: int
) -> Iterator[tuple[_Taken, dict[str, Any]]]:
    """Yield the packs of an epoch, each with those that have come with it.

    Args:
        source: Samples to read.
        epoch: This worker's part of the epoch.
        taken: Packs of the first step that are left out.
    """
    spec, watch = epoch.order.spec, Stopwatch(time.perf_counter)
    size = spec.batch_size
    is_padded = epoch.world.num_ranks > 1 and spec.remainder != "short"
    maker = BatchMaker(default_convert, size, source.filter.chain)
    stages = Stages(source, epoch, maker, size=size, drop_last=False, watch=watch)
    packer, steps = stages.pack(TensorPool())
    begin = end = epoch.begin
    first = 0  # index in the step of the first pack of a batch
    try:
        watch.start()
        for step in steps:
            if step[0].end != end:  # else it is another micro-batch of the step
                begin, end, first = end, step[0].end, 0
            # One pack is held back: after the last one of a step comes the end of the step.
            waiting: tuple[int, dict[str, Any]] | None = None
            for index, pack in packer.split(step, is_padded=is_padded):
                if begin is epoch.begin and first + index < taken:
                    continue
                if waiting is not None:
                    yield _Taken(begin, first + waiting[0] + 1), waiting[1]
                waiting = index, pack
            is_end = first + len(step[0].counts) == epoch.order.shape.batch
            if waiting is not None:
                last = _Taken(end, 0) if is_end else _Taken(begin, first + waiting[0] + 1)
                yield last, waiting[1]
            first += len(step[0].counts)
    finally:
        epoch.close_windows()


_living: weakref.WeakSet[PackIterator] = weakref.WeakSet()


@atexit.register
def _close_unfinished() -> None:
    """Close the iterations that the program has left open, while the modules they use are there."""
    for packs in list(_living):
        packs._packs = iter(())


def _leave_to_parent() -> None:
    """End the parent's iterations in a forked child: their threads exist only in the parent."""
    for packs in list(_living):
        abandon(packs._packs)  # closing it would wait for threads
        packs._packs = iter(())
        packs._failure = fork_error()
        packs._count.is_closed = True


call_in_child(_leave_to_parent)
