"""Messages of worker processes: several batches in one segment, which the trainer reads in place.

A message through torch's queue costs some 150 us in both processes together, whatever is in it. So
small batches that are quickly made travel together; one that took long, or is large, goes alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from torch._utils import ExceptionWrapper

from mds.loader.batch_codec import Encoded, Layout, decode, encode
from mds.loader.messages import MAX_GROUP_SECONDS, BatchGroup, BatchList
from mds.loader.rows import MAX_GROUP_BATCHES, MAX_GROUP_BYTES, tell_making
from mds.loader.segments import Segment, SegmentPool, find_reader

if TYPE_CHECKING:
    from mds.loader.messages import Batch, Message

_SLACK = 16  # batches may differ in size by a sixteenth


class Parcel:
    """Batches for the trainer, where unpickling returns a BatchGroup or a BatchList.

    They lie in a segment of ``size`` bytes from ``pool``, or in the message where there is none.
    """

    def __init__(self, worker: int, pool: SegmentPool | None, size: int) -> None:
        self._worker = worker
        lent = pool.take(size) if pool is not None else None
        self._file = pool.name if pool is not None else -1
        self._place: Segment | None
        self._place, self._memory = lent or (None, memoryview(bytearray(size)))
        self._layouts: list[Layout] = []
        self._end = 0
        #: Seconds of encoding and copying.
        self.seconds = 0.0

    def has_room(self, encoded: Encoded) -> bool:
        """Whether one more fits."""
        return self._end + encoded.size <= len(self._memory)

    def add(self, encoded: Encoded) -> None:
        """Copy one more batch, or a group of them."""
        self._end = encoded.write(self._memory, self._end)
        self._layouts.append(encoded.layout)

    def __len__(self) -> int:
        return len(self._layouts)

    def __reduce__(self) -> Any:
        block = bytes(self._memory[: self._end]) if self._place is None else None
        place = None if self._place is None else tuple(self._place)
        layouts = [tuple(layout) for layout in self._layouts]
        return open_parcel, (self._worker, self._file, place, layouts, block, self.seconds)


def open_parcel(
    worker: int,
    file: int,
    place: tuple[int, int, int] | None,
    layouts: list[tuple[Any, Any]],
    block: bytes | None,
    seconds: float,
) -> BatchGroup | BatchList:
    """Return the batches of a message as views of its memory; sending them took ``seconds``."""
    if place is not None:
        memory = find_reader(file).borrow(Segment(*place))
    else:
        memory = np.frombuffer(bytearray(block or b""), np.uint8)
    items, offset = [], 0
    for layout in layouts:
        item, offset = decode(memory, offset, Layout(*layout))
        items.append(item)
    if isinstance(items[0], BatchGroup):
        group = items[0]
        return group._replace(infos=tuple(tell_making(group.infos, seconds)))
    infos = tell_making([info for info, _ in items], seconds)
    return BatchList(worker, [(i, batch) for i, (_, batch) in zip(infos, items, strict=True)])


class ParcelSender:
    """Sender of the batches of one worker, in messages.

    ``pool``: its segments; None where the system gives no shared memory. ``clock``
    times the making of a batch.
    """

    def __init__(
        self,
        worker: int,
        pool: SegmentPool | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._worker, self._pool, self._clock = worker, pool, clock

    def send(self, batches: Iterator[Message]) -> Iterator[Any]:
        """Yield the messages of an epoch; the last one is empty, or has an error.

        Batches that were made before an error are sent before it.
        """
        self._failure: Any = None
        parcel: Parcel | None = None
        batch_count = 0  # of this message
        clock = self._clock
        for encoded, seconds, end, is_group in self._encoded(_unlisted(batches)):
            if parcel is not None and (is_group or not parcel.has_room(encoded)):
                yield parcel
                parcel = None
            if parcel is None:
                batch_count = 1 if is_group else _next_count(batch_count, encoded.size, seconds)
                slack = encoded.size * batch_count // _SLACK if batch_count > 1 else 0
                parcel = Parcel(self._worker, self._pool, encoded.size * batch_count + slack)
            parcel.add(encoded)
            parcel.seconds += clock() - end
            del encoded  # before the next one is made, so that its memory can be that one's
            if len(parcel) >= batch_count or seconds > MAX_GROUP_SECONDS / MAX_GROUP_BATCHES:
                yield parcel
                parcel = None
        if parcel is not None:
            yield parcel
        yield BatchList(self._worker, [], self._failure)

    def _encoded(
        self, batches: Iterator[Batch | BatchGroup]
    ) -> Iterator[tuple[Encoded, float, float, bool]]:
        """Yield each batch or group, its seconds, when it was done, and whether it is a group."""
        clock = self._clock
        while True:
            begin = clock()
            try:
                batch = next(batches)
                end = clock()
                is_group = isinstance(batch, BatchGroup)
                encoded = encode(batch)
            except StopIteration:
                return
            except Exception:  # noqa: BLE001 - it is raised in the trainer
                place = f"in DataLoader worker process {self._worker}"
                self._failure = ExceptionWrapper(where=place)  # type: ignore[no-untyped-call]
                return
            if not (isinstance(batch, BatchGroup) and batch.is_last):
                del batch
                yield encoded, end - begin, end, is_group
            del encoded


def _unlisted(messages: Iterator[Message]) -> Iterator[Batch | BatchGroup]:
    """Yield batches of lists one by one, which are put together again by their sizes."""
    for message in messages:
        if isinstance(message, BatchList):
            yield from message.items
        else:
            yield message
        del message  # before the next one is made, so that its memory can be that one's


def _next_count(last: int, size: int, seconds: float) -> int:
    """Return the number of batches of the next message, if all are as the first."""
    fit = min(MAX_GROUP_BYTES // max(size, 1), int(MAX_GROUP_SECONDS / max(seconds, 1e-9)))
    return max(1, min(2 * last, MAX_GROUP_BATCHES, fit))
