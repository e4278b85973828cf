"""Iterator over a worker's samples in one epoch, with a state to be saved and loaded."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from mds.dataset.epoch_counter import EpochStart
from mds.dataset.reading import ReadableDataset, read_stretches
from mds.errors import StateError
from mds.plan.state import MAX_SAMPLES, emit_state, parse_state

if TYPE_CHECKING:
    from mds.dataset.worker_epoch import WorkerEpoch


class SeekableDataset(ReadableDataset, Protocol):
    """What the iterator needs of a dataset."""

    def _seek(self, start: EpochStart, position: int) -> WorkerEpoch: ...


class EpochIterator(itertools.chain[Any]):
    """Stateful iterator over one worker's samples in one epoch.

    Torchdata's StatefulDataLoader asks the iterator of each worker for a state after each batch,
    and loads it into the iterator of the same worker later; the number of workers must then be the
    same. The loop is itertools': a ``__next__`` in Python would cost a fifth of a small sample.
    """

    _stretches: _Stretches

    @classmethod
    def over(cls, dataset: SeekableDataset, epoch: WorkerEpoch) -> EpochIterator:
        """The samples of ``epoch``."""
        stretches = _Stretches(dataset, epoch)
        iterator = cls.from_iterable(stretches)
        assert isinstance(iterator, cls)
        iterator._stretches = stretches
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """The place in this worker's part of the epoch."""
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
        """Go to a place that ``state_dict`` gave to the same worker of as many.

        Raises StateError for another number of nodes, ranks or workers, and for another batch size.
        """
        then, now = state.get("world"), self._world_facts()
        changes = [
            f"{name} {str(then[name])[:20]} then and {count} now"
            for name, count in now.items()
            if isinstance(then, Mapping) and then.get(name, count) != count
        ]
        if changes:
            raise StateError(
                "the state of a worker counts the samples of that worker alone, and this run deals "
                f"them out in another way: {', '.join(changes)}. Give the same numbers as then, or "
                "use mds.StreamingDataLoader, whose state may be loaded on others."
            )
        begun, taken = parse_state(state.get("turn", {})), state.get("taken")
        if type(taken) is not int or not 0 <= taken <= MAX_SAMPLES:
            raise StateError(f"a worker's state has taken {str(taken)[:60]}; expected a number.")
        self._stretches.seek(EpochStart(begun.epoch, begun), taken)

    def close(self) -> None:
        """Let go of the shards; no sample comes any more. Closing twice is fine."""
        self._stretches.close()


class _Stretches:
    """Iterators over the samples of one window after the other."""

    def __init__(self, dataset: SeekableDataset, epoch: WorkerEpoch) -> None:
        self._dataset, self.epoch = dataset, epoch
        self._begin(epoch)

    def _begin(self, epoch: WorkerEpoch) -> None:
        self.epoch = epoch
        self._stretches = read_stretches(self._dataset, epoch)
        self._current: Iterator[Any] = iter(())

    def __iter__(self) -> _Stretches:
        return self

    def __next__(self) -> Iterator[Any]:
        self._current = next(self._stretches)
        return self._current

    def seek(self, start: EpochStart, position: int) -> None:
        """Go on with the samples from a place of an epoch on."""
        self.close()
        self._begin(self._dataset._seek(start, position))

    def close(self) -> None:
        """Give nothing more, of this window either."""
        self.epoch.leave()
        for each in (self._current, self._stretches):
            if isinstance(each, Generator):
                each.close()
