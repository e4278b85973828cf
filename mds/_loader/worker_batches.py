"""Batches of worker processes: messages of several batches, in shared memory that is used again.

torch's DataLoader starts the processes, asks them for messages and watches over them. Here it is
decided what a message is. A message through torch's queue costs some 150 us in both processes
together, whatever its size. So small batches that were made quickly share a message; a batch that
took long, or is large, has its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import IterableDataset

from mds._iteration.rows import (
    MAX_GROUP_BATCHES,
    MAX_GROUP_BYTES,
    Allocator,
    TensorPool,
    is_plain,
    merge_making,
    numpy_dtype,
)
from mds._loader.batch_codec import Encoded, Layout, decode, encode
from mds._loader.messages import MAX_GROUP_SECONDS, BatchGroup, BatchList
from mds._loader.segments import Segment, SegmentFile, SegmentPool, SegmentReader, find_reader
from mds._process.fork_safe import end_with_parent
from mds.world import worker_group, worker_place

if TYPE_CHECKING:
    from mds._loader.batches import Batches
    from mds._loader.messages import Batch, Message

_SLACK = 16  # batches may differ in size by a sixteenth
#: For `tune_malloc`.
MMAP_THRESHOLD_BYTES = 4 << 20  # bytes; smaller ones would be mapped anew too often
TRIM_THRESHOLD_BYTES = 64 << 20  # bytes that may be free at the heap's end
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
# What a user may have chosen for the whole program.
_CHOICES = (
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
)


class WorkerBatches(IterableDataset[Any]):
    """Messages of worker processes: the dataset of torch's DataLoader in the trainer's process.

    It is pickled to each worker process, where torch iterates over it. An attribute that it does
    not have is looked up on the user's dataset (`__getattr__`), for code of the user that asks
    torch for the dataset.

    ``batches``: batches of the dataset. ``workers``: number of worker processes.
    """

    def __init__(self, batches: Batches, workers: int) -> None:
        self._batches = batches
        # Shared memory of each worker. Empty if the system has none: batches are pickled then.
        self._files: list[SegmentFile] = []
        with contextlib.suppress(OSError):
            self._files = [SegmentFile() for _ in range(workers)]
        # Kept for the trainer: when it unpickles a message, `find_reader` finds the file's reader.
        self._readers = [SegmentReader(file) for file in self._files]
        self._pool: SegmentPool | None = None  # the worker's

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch in a worker process, and return its messages; torch calls this there."""
        worker, workers = worker_place()
        if self._pool is None:  # in the first epoch of this process
            # torch checks for a parent that has ended only after it has waited for a message.
            end_with_parent()
            tune_malloc()
            stack_into(TensorPool())  # for collate functions of the user that call torch's
            if self._files:
                self._pool = SegmentPool(self._files[worker])
        batches = self._batches.begin_epoch(worker, workers, worker_group(), TensorPool())
        return MessageSender(worker, self._pool).send(batches)

    def __getstate__(self) -> dict[str, Any]:
        # Only the trainer reads messages; a spawned worker process writes them.
        return {**self.__dict__, "_readers": []}

    def __getattr__(self, name: str) -> Any:
        # An object that is being unpickled has no batches yet.
        if name.startswith("__") or "_batches" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["_batches"], name)


class SharedMessage:
    """Message of encoded batches, which the trainer unpickles as a BatchGroup or a BatchList.

    The batches are in a segment from ``pool`` or, if it has none, in the pickle.

    Args:
        worker: Number of the worker.
        pool: Segments of the worker; None without shared memory.
        size: Bytes for the encoded batches.
    """

    def __init__(self, worker: int, pool: SegmentPool | None, size: int) -> None:
        self._worker = worker
        lent = pool.take(size) if pool is not None else None
        self._file = pool.name if pool is not None else -1
        self._place: Segment | None  # None if the batches go with the pickle
        self._place, self._memory = lent or (None, memoryview(bytearray(size)))
        self._layouts: list[Layout] = []  # of each batch
        self._end = 0  # bytes of the memory that are filled
        #: Seconds of encoding and copying.
        self.seconds = 0.0

    def has_room(self, encoded: Encoded) -> bool:
        """Return True if one more batch fits."""
        return self._end + encoded.size <= len(self._memory)

    def add(self, encoded: Encoded) -> None:
        """Copy one more batch, or a group of batches, into the message."""
        self._end = encoded.write(self._memory, self._end)
        self._layouts.append(encoded.layout)

    def __len__(self) -> int:
        return len(self._layouts)

    def __reduce__(self) -> Any:
        """Return the call of `open_message` that the trainer makes when it unpickles the message.

        Named tuples are sent as tuples, whose pickles are smaller.
        """
        block = bytes(self._memory[: self._end]) if self._place is None else None
        place = None if self._place is None else tuple(self._place)
        layouts = [tuple(layout) for layout in self._layouts]
        return open_message, (self._worker, self._file, place, layouts, block, self.seconds)


def open_message(
    worker: int,
    file: int,
    place: tuple[int, int, int] | None,
    layouts: list[tuple[tuple[int, ...], tuple[tuple[int, int, int], ...]]],
    block: bytes | None,
    seconds: float,
) -> BatchGroup | BatchList:
    """Return the batches of a message, as views of its memory.

    Args:
        worker: Number of the worker.
        file: Name of its segment file.
        place: Segment of the batches, or None.
        layouts: Layout of each batch, or of the only BatchGroup, as a tuple.
        block: Bytes of the batches if there is no segment, else None.
        seconds: Seconds of encoding and copying, which count as sending.
    """
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
        return group._replace(infos=tuple(merge_making(group.infos, seconds)))
    infos = merge_making([info for info, _ in items], seconds)
    return BatchList(worker, [*zip(infos, [batch for _, batch in items], strict=True)])


class MessageSender:
    """Sender of the batches of one worker, several to a message if they are small.

    Args:
        worker: Number of the worker.
        pool: Segments of the worker; None without shared memory.
        clock: Clock, in seconds, that times the making of a batch.
    """

    def __init__(
        self,
        worker: int,
        pool: SegmentPool | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._worker, self._pool, self._clock = worker, pool, clock

    def send(self, batches: Iterator[Message]) -> Iterator[Any]:
        """Yield the messages of an epoch.

        The first batch of a message decides how many batches the message may have
        (`_next_count`). It is sent when it is full, when a batch took long, and before a group,
        which has a message of its own. The last message has no batch. If an error ended the epoch,
        it is in the last message.
        """
        self._failure: Any = None  # torch's ExceptionWrapper, set by _encoded()
        message: SharedMessage | None = None  # the message that is being filled
        batch_count = 0  # batches for which this message has memory
        clock = self._clock
        for encoded, seconds, ready_time, is_group in self._encoded(_unlisted(batches)):
            if message is not None and (is_group or not message.has_room(encoded)):
                yield message
                message = None
            if message is None:
                batch_count = 1 if is_group else _next_count(batch_count, encoded.size, seconds)
                # Room for later batches that are a little larger than the first one.
                slack = encoded.size * batch_count // _SLACK if batch_count > 1 else 0  # bytes
                message = SharedMessage(
                    self._worker, self._pool, encoded.size * batch_count + slack
                )
            message.add(encoded)
            message.seconds += clock() - ready_time  # encoding and copying
            del encoded  # now, so that the next batch can use its memory
            if len(message) >= batch_count or seconds > MAX_GROUP_SECONDS / MAX_GROUP_BATCHES:
                yield message
                message = None
        if message is not None:
            yield message
        yield BatchList(self._worker, [], self._failure)

    def _encoded(
        self, batches: Iterator[Batch | BatchGroup]
    ) -> Iterator[tuple[Encoded, float, float, bool]]:
        """Encode each batch or group of batches.

        Yields (encoded batch, seconds of making it, time when it was ready, whether it is a group).
        The time is a reading of the clock, before encoding. An error is stored in ``_failure`` and
        ends the batches, so that those before it are sent.
        """
        clock = self._clock
        while True:
            begin = clock()
            try:
                batch = next(batches)
                ready_time = clock()
                is_group = isinstance(batch, BatchGroup)
                encoded = encode(batch)
            except StopIteration:
                return
            except Exception:  # noqa: BLE001 - it is raised in the trainer
                place = f"in DataLoader worker process {self._worker}"
                # The wrapper takes the exception that is being handled, with its traceback.
                self._failure = ExceptionWrapper(where=place)  # type: ignore[no-untyped-call]
                return
            # The empty last group is not sent: send() ends each epoch with an empty BatchList.
            if not (isinstance(batch, BatchGroup) and batch.is_last):
                del batch
                yield encoded, ready_time - begin, ready_time, is_group
            del encoded


def _unlisted(messages: Iterator[Message]) -> Iterator[Batch | BatchGroup]:
    """Yield the batches of a BatchList one by one, and other messages as they are."""
    for message in messages:
        if isinstance(message, BatchList):
            yield from message.items
        else:
            yield message
        del message  # now, so that the next batch can use its memory


def _next_count(last: int, size: int, seconds: float) -> int:
    """Return the number of batches for the next message, if all are like its first one.

    Messages begin with one batch, which then comes early, and grow to 2, 4 and 8 batches if these
    are small and quickly made.

    Args:
        last: Number of batches of the last message, which at most doubles; 0 before the first.
        size: Bytes of the first batch.
        seconds: Seconds of making the first batch.
    """
    fit = min(MAX_GROUP_BYTES // max(size, 1), int(MAX_GROUP_SECONDS / max(seconds, 1e-9)))
    return max(1, min(2 * last, MAX_GROUP_BATCHES, fit))


def stack_into(allocate: Allocator) -> None:
    """Make torch's default collate of this process stack arrays and tensors in recycled memory.

    In a worker process, torch stacks tensors in a new file of shared memory, to save a copy.
    Opening and mapping the file and filling new pages cost more than the copy. The functions are
    set in torch's table of collate functions, unless other code has replaced those there.
    """
    try:
        from torch.utils.data._utils import collate
    except ImportError:  # another version of torch: its collate stays as it is
        return
    table: dict[Any, Callable[..., Any]] = collate.default_collate_fn_map

    def stack_arrays(batch: Any, *, collate_fn_map: Any = None) -> Any:
        """Return the tensor of a list of NumPy arrays of one shape; leave others to torch."""
        first = batch[0]
        if first.dtype.kind not in "biufc" or not _are_alike(batch):
            return collate.collate_numpy_array_fn(batch, collate_fn_map=collate_fn_map)
        stacked = allocate((len(batch), *first.shape), first.dtype)
        np.stack(batch, out=stacked.numpy())
        return stacked

    def stack_tensors(batch: Any, *, collate_fn_map: Any = None) -> Any:
        """Return the tensor of a list of plain tensors of one shape; leave others to torch."""
        first = batch[0]
        dtype = numpy_dtype(first.dtype)
        if dtype is None or any(not is_plain(each) for each in batch):
            return collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
        return torch.stack(batch, out=allocate((len(batch), *first.shape), dtype))

    if table.get(np.ndarray) is collate.collate_numpy_array_fn:
        table[np.ndarray] = stack_arrays
    if table.get(torch.Tensor) is collate.collate_tensor_fn:
        table[torch.Tensor] = stack_tensors


def _are_alike(arrays: Any) -> bool:
    """Return True if all are NumPy arrays of the same shape and dtype."""
    first = arrays[0]
    return all(
        type(a) is np.ndarray and a.shape == first.shape and a.dtype == first.dtype for a in arrays
    )


def tune_malloc() -> bool:
    """Make malloc give large free blocks back to the system; return False if it was not changed.

    glibc takes large blocks straight from the kernel, but every one that is freed raises the size
    from which it does so, up to 32 MB. Then batches of megabytes and smaller images are mixed in
    one heap, which fragments: a worker that decodes photographs grows to 260 MB. With a fixed size
    it stays at 40 MB, at the same rate (`python -m benchmarks --questions memory,images`). Memory
    that is free at the end of the heap is kept: the images of a batch are freed together, and new
    pages for the next batch would cost a fifth of the rate.

    Call it in worker processes only: the heap of the user's program is not the library's to change.
    Other C libraries have no such size. A choice of the user's, by an environment variable, stays.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _CHOICES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = (
        (_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        (_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
    )
    return all(mallopt(name, size) for name, size in settings)
