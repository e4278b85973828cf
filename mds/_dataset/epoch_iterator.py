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

from mds._dataset.reading import ReadableDataset, read_stretches
from mds._process.fork_safe import call_in_child
from mds.errors import IterationError, StateError
from mds.plan._state import MAX_SAMPLES, ResumePoint, emit_state, parse_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from mds._dataset.worker_epoch import WorkerEpoch

    #: Returns the part of this worker in the epoch of a point, from a place of it on.
    Seek = Callable[[ResumePoint, int], WorkerEpoch]


class EpochIterator(itertools.chain[Any]):
    """Stateful iterator over one worker's samples in one epoch.

    Torchdata's StatefulDataLoader calls `state_dict` of the iterator of each worker after each
    batch, and `load_state_dict` of the same worker after a restart, with the same number of
    workers. It inherits from `itertools.chain`, whose ``next`` is written in C: one in Python would
    cost a fifth of a small sample.

    After an error every further ``next`` raises it again, until a state is loaded. The position is
    after the last sample that was returned.
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
        """Return the position of this worker, for `load_state_dict`, as plain JSON.

        ``"turn"`` is a state of all ranks at the beginning of the epoch, ``"taken"`` the places of
        this worker that came since then, and ``"world"`` what they depend on. The keys are in
        checkpoints of users.
        """
        epoch = self._stretches.epoch
        return {
            "turn": emit_state(epoch.plan.state(0)),
            "taken": epoch.position,
            "world": self._world_facts(),
        }

    def _world_facts(self) -> dict[str, int]:
        """Return nodes, ranks, workers and batch size, on which this worker's samples depend."""
        shape = self._stretches.epoch.plan.shape
        return {
            "nodes": shape.nodes,
            "ranks": shape.world,
            "workers": shape.workers,
            "batch_size": shape.batch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state_dict` of the same worker.

        Raises StateError if the number of nodes, ranks or workers or the batch size has changed.
        """
        recorded, current = state.get("world"), self._world_facts()
        changes = [
            f"{name} {str(recorded[name])[:20]} then and {count} now"
            for name, count in current.items()
            if isinstance(recorded, Mapping) and recorded.get(name, count) != count
        ]
        if changes:
            raise StateError(
                "the state of a worker counts only the samples of that worker, but this run "
                f"divides samples differently: {', '.join(changes)}. Use the same numbers as "
                "before, or use mds.StreamingDataLoader, whose state does not depend on them."
            )
        start, place = parse_state(state.get("turn", {})), state.get("taken")
        if type(place) is not int or not 0 <= place <= MAX_SAMPLES:
            raise StateError(
                f"the state of a worker has {str(place)[:60]} as its number of samples; expected a "
                "number."
            )
        self._stretches.seek(start, place)

    def close(self) -> None:
        """End the iteration and release its shards; closing twice is fine."""
        self._stretches.close()


class _Stretches:
    """Source of the stretches of an EpochIterator, which can move to another position.

    Args:
        dataset: Dataset whose samples are read.
        epoch: Part of this worker in the epoch at which to begin.
        seek: Returns the part of this worker in another epoch. It is called with the point of the
            run at which that epoch begins, and with the number of places to leave out.
    """

    def __init__(self, dataset: ReadableDataset, epoch: WorkerEpoch, seek: Seek) -> None:
        self._dataset, self.epoch, self._seek = dataset, epoch, seek
        self._begin(epoch)
        _living.add(self)

    def _begin(self, epoch: WorkerEpoch) -> None:
        """Set up the reading of ``epoch``, without reading any sample yet."""
        self.epoch = epoch
        self._stretches = read_stretches(self._dataset, epoch)
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
            except BaseException as error:  # noqa: BLE001 - the next stretch raises it
                self.epoch.fail(error)
                failure = error

    def seek(self, start: ResumePoint, position: int) -> None:
        """Continue in the epoch of ``start``, after ``position`` places of this worker."""
        self.close()
        self._begin(self._seek(start, position))

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
    raise error
    yield  # type: ignore[unreachable]
