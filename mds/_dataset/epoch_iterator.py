"""Iterator over a worker's samples in one epoch, with a state to be saved and loaded.

A *stretch* is an iterator over the samples of consecutive places of the worker, such as those of
some rows of a shard. `itertools.chain` joins the stretches of `_Stretches`.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mds._dataset.run import HasRun, run_of, seek, source_of
from mds._iteration.reading import read_stretches
from mds._process.fork_safe import call_in_child
from mds.errors import IterationError, repeatable

if TYPE_CHECKING:
    from mds._dataset.worker_point import WorkerPoint
    from mds._iteration.worker_epoch import WorkerEpoch


class EpochIterator(itertools.chain[Any]):
    """Stateful iterator over one worker's samples in one epoch.

    Torchdata's StatefulDataLoader calls `state_dict` of the iterator of each worker after each
    batch, and `load_state_dict` of the same worker after a restart; see `WorkerPoint`. The class
    inherits from `itertools.chain`, whose ``next`` is written in C: one in Python would cost a
    fifth of a small sample.

    After an error every further ``next`` raises it again, until a state is loaded. The position is
    after the last sample that was returned.
    """

    _stretches: _Stretches

    @classmethod
    def over(cls, dataset: HasRun, epoch: WorkerEpoch) -> EpochIterator:
        """Return an iterator over the samples of ``epoch``."""
        stretches = _Stretches(dataset, epoch)
        iterator = cls.from_iterable(stretches.generate())
        assert isinstance(iterator, cls)
        iterator._stretches = stretches
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this worker, for `load_state_dict`, as plain JSON."""
        return self._stretches.worker_point().emit()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state_dict` of the same worker.

        Ranks and batch size may differ if all workers together take the same global batches.
        Raises StateError for another number of workers, and for other data or another order.
        """
        self._stretches.seek(state)

    def close(self) -> None:
        """End the iteration and release its shards; closing twice is fine."""
        self._stretches.close()


class _Stretches:
    """Source of the stretches of an EpochIterator, which can move to another position.

    Args:
        dataset: Dataset whose samples are read.
        epoch: Part of this worker in the epoch at which to begin.
    """

    def __init__(self, dataset: HasRun, epoch: WorkerEpoch) -> None:
        self._dataset, self.epoch = dataset, epoch
        self._begin(epoch)
        _living.add(self)

    def _begin(self, epoch: WorkerEpoch) -> None:
        """Set up the reading of ``epoch``, without reading any sample yet."""
        self.epoch, self._has_begun = epoch, False
        self._stretches = read_stretches(source_of(self._dataset), epoch)
        self._current: Iterator[Any] = iter(())  # the stretch that the chain reads now

    def generate(self) -> Iterator[Iterator[Any]]:
        """Yield stretches until the epoch ends; after an error, stretches that only raise it.

        The generator itself must not raise an error: the chain would only raise StopIteration from
        then on. After an error in a stretch, the chain calls ``next`` of that stretch once more,
        and then of this generator. A signal may raise an exception at any line.
        """
        failure: BaseException | None = None  # an error that no stretch has raised yet
        while True:
            try:
                # The chain asks for the next stretch although the last one has samples left: the
                # handler of a signal, such as Ctrl-C, has raised an error inside of it.
                if self.epoch.failure is None and self.epoch.is_broken_off:
                    self.epoch.interrupt()
                if self.epoch.failure is not None:
                    # The first time the error itself is raised, later its copy in ``epoch``.
                    self._current = _raise(
                        failure or repeatable(self.epoch.failure).with_traceback(None)
                    )
                    failure = None
                else:
                    if not self._has_begun and not self.epoch.is_counted:
                        run_of(self._dataset).take_over(self.epoch)
                    self._has_begun = True
                    samples = next(self._stretches, None)
                    if samples is None:
                        return
                    self._current = samples
                yield self._current
            except GeneratorExit:  # noqa: PERF203 - once a stretch
                raise
            except BaseException as error:  # noqa: BLE001 - the next stretch raises it
                self.epoch.fail(error)
                failure = error

    def worker_point(self) -> WorkerPoint:
        """Return the position of this worker."""
        return run_of(self._dataset).worker_point(*self.epoch.worker_count)

    def seek(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a worker."""
        point = run_of(self._dataset).load_worker_point(state)
        self.close()
        self._begin(seek(self._dataset, point))

    def close(self) -> None:
        """End the iteration at once, and release its shards."""
        self.epoch.leave()
        self.epoch.is_between_stretches = True  # ended on purpose, and not by a signal
        for iterator in (self._current, self._stretches):
            # Iterators written in C have no close(), and hold no shards themselves.
            if isinstance(iterator, Generator):
                iterator.close()


_living: weakref.WeakSet[_Stretches] = weakref.WeakSet()


def _end_in_child() -> None:
    """End, in a forked child, the iterators of the parent: their threads exist only there."""
    for stretches in list(_living):
        stretches.epoch.fail(fork_error())
        # close() raises ValueError inside a running generator: a function of the caller, which the
        # iteration called, has forked.
        with contextlib.suppress(ValueError):
            stretches.close()


call_in_child(_end_in_child)


def fork_error() -> IterationError:
    """Return the error that an iterator made before a fork raises in the forked child."""
    return IterationError(
        "this iterator was created before the process forked, so only the parent process can use "
        "it. Call iter() in the child process."
    )


def _raise(error: BaseException) -> Iterator[Any]:
    """Raise an error at the first `next`."""
    try:
        raise error
    finally:
        del error  # its traceback has this frame
    yield  # type: ignore[unreachable]
