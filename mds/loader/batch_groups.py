"""Several batches made together, handed out one by one.

Crossing to another process costs per tensor (a file in memory, its descriptor over a socket, a
map, page faults) and hardly per byte: eight batches of 32 token rows in one tensor arrive 2 to 4
times as fast as in eight. Between threads it is the waking up that costs, in one thread what a
gather does beside copying (15 of 61 us a batch). So a few consecutive batches are gathered into one
column each, and cut where they are used. The first ones are made alone, so that the first arrives
at once. A batch is a view that keeps its group alive, which is at most a few megabytes.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mds.dataset.filtering import SkippedSample
from mds.process.stopwatch import Making, join_makings

if TYPE_CHECKING:
    from mds.dataset.worker_epoch import WorkerEpoch
    from mds.plan.position import Position

    Batch = tuple["BatchInfo", Any]
    Message: TypeAlias = "Batch | BatchGroup | BatchList"

MAX_GROUP_BATCHES = 8
MAX_GROUP_BYTES = 4 << 20  # of its tensors, if one batch is not larger
SUM_BITS = (1 << 64) - 1


class BatchInfo(NamedTuple):
    """Bookkeeping of a batch, which travels with it.

    ``samples``: places of the order that it took. ``order``: what it adds to the order hash, as
    (sum modulo 2**64, samples). ``begin``: the position at which this iteration began.
    ``skipped``: the first samples that were dropped on the way, and ``dropped``: how many there
    were. ``is_empty``: nothing was kept; one masked sample stands for the batch. ``making``: how it
    was made; of several batches in a message the first one tells it. ``end``: of a batch of packs,
    the position after its step. ``given``: how many samples a wrapper made of them, with each list
    of samples counted as one, and by its entries.
    """

    samples: int
    order: tuple[int, int]
    begin: Position | None = None
    skipped: tuple[SkippedSample, ...] = ()
    dropped: int = 0
    is_empty: bool = False
    making: Making | None = None
    end: Position | None = None
    given: tuple[int, int] = (0, 0)


def batch_info(
    epoch: WorkerEpoch, position: int, count: int, making: Making | None = None
) -> BatchInfo:
    """The bookkeeping of a batch of ``count`` places from ``position`` on."""
    earlier = epoch.checksum_until(position)
    added = (epoch.checksum_until(position + count) - earlier) & SUM_BITS
    return BatchInfo(count, (added, count), epoch.begin, making=making)


def tell_making(infos: Sequence[BatchInfo], crossing: float) -> list[BatchInfo]:
    """The bookkeeping of a message, whose first batch tells how all of them were made and sent.

    The trainer waited for the message, and so for all of its batches.
    """
    made = [info.making for info in infos if info.making is not None]
    if not made:
        return [*infos]
    first = infos[0]._replace(making=join_makings(made, crossing))
    return [first, *(i if i.making is None else i._replace(making=None) for i in infos[1:])]


class BatchGroup(NamedTuple):
    """Consecutive batches of one worker: their bookkeeping, and their columns end to end."""

    worker: int
    infos: tuple[BatchInfo, ...]
    columns: dict[str, Any]

    @property
    def is_last(self) -> bool:
        """Whether the worker has no more: the last message is empty."""
        return not self.infos

    def batches(self) -> Iterator[Batch]:
        """The batches one by one, as views."""
        start = 0
        for info in self.infos:
            stop = start + info.samples
            yield info, {name: values[start:stop] for name, values in self.columns.items()}
            start = stop


class BatchList(NamedTuple):
    """Consecutive batches of one worker as they are, and the error after them if there is one.

    ``failure``: torch's ExceptionWrapper.
    """

    worker: int
    items: list[Batch]
    failure: Any = None

    @property
    def is_last(self) -> bool:
        """Whether the worker has no more."""
        return not self.items

    def batches(self) -> Iterator[Batch]:
        """The batches one by one."""
        return iter(self.items)


class BatchIterator:
    """Iterator over the batches of a loader's workers in turn, out of the messages that they send.

    Messages that are no groups are batches themselves and pass through. An error is raised where
    the batch would have come that it prevented.
    """

    def __init__(self, messages: Iterable[Any], workers: int) -> None:
        self._messages = iter(messages)
        self._waiting: dict[int, collections.deque[Batch]] = {
            worker: collections.deque() for worker in range(workers)
        }
        # The workers that have more to give, in the order of their turns.
        self._turns = collections.deque(range(workers))
        self._ended: set[int] = set()
        self._failures: dict[int, Any] = {}

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Batch:
        try:
            return self._next()
        except StopIteration:
            raise
        except Exception as error:  # noqa: BLE001 - raised again
            # The frame in which torch raises what a worker met keeps the exception, and this its
            # frames: the iterator would live until a collection, which shuts the queues before the
            # workers are told to end. They would be waited for, five seconds each.
            raise error.with_traceback(None) from error.__cause__

    def _next(self) -> Batch:
        while self._turns:
            worker = self._turns[0]
            waiting = self._waiting[worker]
            if waiting:
                self._turns.rotate(-1)
                return waiting.popleft()
            if worker in self._ended:
                self._turns.popleft()
                if worker in self._failures:
                    self._failures.pop(worker).reraise()
                continue
            message = next(self._messages)
            if not isinstance(message, (BatchGroup, BatchList)):
                batch: Batch = message
                return batch
            if message.is_last:
                self._ended.add(message.worker)
            if isinstance(message, BatchList) and message.failure is not None:
                self._failures[message.worker] = message.failure
            self._waiting[message.worker].extend(message.batches())
        raise StopIteration

    def __getattr__(self, name: str) -> Any:
        # Tools look into a DataLoader's iterator (for its workers, say): show them the real one.
        return getattr(self._messages, name)
