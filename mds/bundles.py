"""Several batches made together, handed out one by one.

Crossing to another process costs per tensor (a file in memory, its descriptor over a socket, a
map, page faults) and hardly per byte: eight batches of 32 token rows in one tensor arrive 2 to 4
times as fast as in eight. Between threads it is the waking up that costs, in one thread what a
gather does beside copying (15 of 61 us a batch). So a few consecutive batches are gathered into one
column each, and cut where they are used. The first ones are made alone, so that the first arrives
at once. A batch is a view that keeps its bundle alive, which is at most a few megabytes.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from mds.sieve import LeftOut

if TYPE_CHECKING:
    Batch = tuple["Tag", Any]

MOST = 8  # batches of a message
LARGEST = 4 << 20  # bytes of its tensors, if one batch is not larger


class Tag(NamedTuple):
    """What travels with a batch.

    ``samples``: places of the order that it took. ``order``: what it adds to the order hash, as
    (sum modulo 2**64, samples). ``left_out``: samples that were left out on the way.
    """

    samples: int
    order: tuple[int, int]
    left_out: tuple[LeftOut, ...] = ()


class Bundle(NamedTuple):
    """Consecutive batches of one worker: their tags, and their columns end to end."""

    worker: int
    tags: tuple[Tag, ...]
    columns: dict[str, Any]

    @property
    def is_last(self) -> bool:
        """Whether the worker has no more: the last message is empty."""
        return not self.tags

    def batches(self) -> Iterator[Batch]:
        """The batches one by one, as views."""
        start = 0
        for tag in self.tags:
            stop = start + tag.samples
            yield tag, {name: values[start:stop] for name, values in self.columns.items()}
            start = stop


class Unbundled:
    """The batches of a loader's workers in turn, out of the messages that they send.

    Messages that are no bundles are batches themselves and pass through.
    """

    def __init__(self, messages: Iterable[Any], workers: int) -> None:
        self._messages = iter(messages)
        self._waiting: dict[int, collections.deque[Batch]] = {
            worker: collections.deque() for worker in range(workers)
        }
        # The workers that have more to give, in the order of their turns.
        self._turns = collections.deque(range(workers))
        self._ended: set[int] = set()

    def __iter__(self) -> Unbundled:
        return self

    def __next__(self) -> Batch:
        while self._turns:
            worker = self._turns[0]
            waiting = self._waiting[worker]
            if waiting:
                self._turns.rotate(-1)
                return waiting.popleft()
            if worker in self._ended:
                self._turns.popleft()
                continue
            message = next(self._messages)
            if not isinstance(message, Bundle):
                batch: Batch = message
                return batch
            if message.is_last:
                self._ended.add(message.worker)
            self._waiting[message.worker].extend(message.batches())
        raise StopIteration

    def __getattr__(self, name: str) -> Any:
        # Tools look into a DataLoader's iterator (for its workers, say): show them the real one.
        return getattr(self._messages, name)
