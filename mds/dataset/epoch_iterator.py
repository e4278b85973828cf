"""Iterator over a worker's samples in one epoch, with a state to be saved and loaded."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mds.dataset.reading import ReadableDataset, read_stretches
from mds.errors import IterationError, StateError
from mds.plan.state import MAX_SAMPLES, ResumePoint, emit_state, parse_state
from mds.process.fork_safe import call_in_child

if TYPE_CHECKING:
    from collections.abc import Callable

    from mds.dataset.worker_epoch import WorkerEpoch

    #: Returns the part of this worker in the epoch of a point, from a place of it on.
    Seek = Callable[[ResumePoint, int], WorkerEpoch]


class EpochIterator(itertools.chain[Any]):
    """Stateful iterator over one worker's samples in one epoch.

    Torchdata's StatefulDataLoader asks the iterator of each worker for a state after each batch,
    and loads it into the iterator of the same worker later; the number of workers must then be the
    same. The loop is itertools': a ``__next__`` in Python would cost a fifth of a small sample.

    After an error every further ``next`` raises it again, until a state is loaded. The position is
    behind the last sample that was handed out.
    """

    _stretches: _Stretches

    @classmethod
    def over(cls, dataset: ReadableDataset, epoch: WorkerEpoch, seek: Seek) -> EpochIterator:
        """Return an iterator over the samples of ``epoch``."""
        stretches = _Stretches(dataset, epoch, seek)
        iterator = cls.from_iterable(stretches.generate())
        assert isinstance(iterator, cls)
        iterator._stretches = stretches  # noqa: SLF001 - of this class
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """Return the place in this worker's part of the epoch."""
        epoch = self._stretches.epoch
        return {
            "turn": emit_state(epoch.plan.state(0)),
            "taken": epoch.position,
            "world": self._world_facts(),
        }

    def _world_facts(self) -> dict[str, int]:
        """Return what the samples of this worker depend on beside the order."""
        shape = self._stretches.epoch.plan.shape
        return {
            "nodes": shape.nodes,
            "ranks": shape.world,
            "workers": shape.workers,
            "batch_size": shape.batch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a place that ``state_dict`` gave to the same worker of equally many.

        Raises StateError for another number of nodes, ranks or workers, and for another batch size.
        """
        recorded, current = state.get("world"), self._world_facts()
        changes = [
            f"{name} {str(recorded[name])[:20]} then and {count} now"
            for name, count in current.items()
            if isinstance(recorded, Mapping) and recorded.get(name, count) != count
        ]
        if changes:
            raise StateError(
                "the state of a worker counts the samples of that worker alone, and this run deals "
                f"them out in another way: {', '.join(changes)}. Give the same numbers as then, or "
                "use mds.StreamingDataLoader, whose state may be loaded on others."
            )
        start, place = parse_state(state.get("turn", {})), state.get("taken")
        if type(place) is not int or not 0 <= place <= MAX_SAMPLES:
            raise StateError(f"a worker's state has taken {str(place)[:60]}; expected a number.")
        self._stretches.seek(start, place)

    def close(self) -> None:
        """End the iteration and release its shards; closing twice is fine."""
        self._stretches.close()


class _Stretches:
    """Iterators over the samples of one window after the other."""

    def __init__(self, dataset: ReadableDataset, epoch: WorkerEpoch, seek: Seek) -> None:
        self._dataset, self.epoch, self._seek = dataset, epoch, seek
        self._begin(epoch)
        _living.add(self)

    def _begin(self, epoch: WorkerEpoch) -> None:
        self.epoch = epoch
        self._stretches = read_stretches(self._dataset, epoch)
        self._current: Iterator[Any] = iter(())

    def generate(self) -> Iterator[Iterator[Any]]:
        """Yield iterators over samples until the epoch ends; after an error, they raise it.

        It raises nothing itself: the chain would give StopIteration ever after. An iterator that
        was ended by an error is asked once more, and then this generator. A signal may raise at any
        place.
        """
        failure: BaseException | None = None  # that no iterator has raised yet
        while True:
            try:
                if self.epoch.failure is None and self.epoch.is_broken_off:
                    self.epoch.interrupt()
                if self.epoch.failure is not None:
                    self._current = _raise(failure or self.epoch.failure.with_traceback(None))
                    failure = None
                else:
                    samples = next(self._stretches, None)
                    if samples is None:
                        return
                    self._current = samples
                yield self._current
            except GeneratorExit:  # noqa: PERF203 - once a stretch
                raise
            except BaseException as error:  # noqa: BLE001 - the next iterator raises it
                self.epoch.fail(error)
                failure = error

    def seek(self, start: ResumePoint, position: int) -> None:
        """Continue with the samples from a place of an epoch on."""
        self.close()
        self._begin(self._seek(start, position))

    def close(self) -> None:
        """Yield nothing more, not even of this window."""
        self.epoch.leave()
        self.epoch.is_between = True
        for each in (self._current, self._stretches):
            if isinstance(each, Generator):
                each.close()


_living: weakref.WeakSet[_Stretches] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """End the iterators of the parent process, whose threads get their shards."""
    for stretches in list(_living):
        stretches.epoch.fail(of_parent())
        with contextlib.suppress(ValueError):  # a function of the iteration forked
            stretches.close()


call_in_child(_leave_to_parent)


def of_parent() -> IterationError:
    """Return the error for an iterator that a forked child has from its parent."""
    return IterationError(
        "this iterator was made before the process forked, and only the parent can go on with it. "
        "Call iter() in the child."
    )


def _raise(error: BaseException) -> Iterator[Any]:
    """Raise an error at the first `next`."""
    raise error
    yield  # type: ignore[unreachable]
