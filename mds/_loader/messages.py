"""Messages of several batches, which are made and sent together and returned one by one.

Sending to another process costs time for each tensor (a file in memory, its descriptor over a
socket, a map, page faults) and hardly for each byte: eight batches of 32 token rows in one tensor
arrive 2 to 4 times as fast as in eight tensors. Between threads, waking up costs; in one thread,
the work of a gather besides copying (15 of 61 us for a batch). So a few consecutive batches are
gathered into one column each, and cut where they are used. The first batch is made alone, so that
it arrives early. A batch is a view that keeps the memory of its group, at most a few megabytes.

Functions that cut columns, or change them in place, return views of the memory that was gathered
for several batches. Such batches are joined again by a view of that memory. Small new arrays are
copied end to end. All other batches are sent one by one.

A worker sends three kinds of messages, each with the bookkeeping (`BatchInfo`) of its batches: a
pair (info, batch), a `BatchGroup` of batches whose columns lie end to end, and a `BatchList` of
separate batches. An empty group or list says that the worker has no more.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from mds._iteration.rows import MAX_GROUP_BATCHES, BatchInfo, batch_info, is_plain, numpy_dtype
from mds._process.stopwatch import COLLATE
from mds.transforms._columns import batch_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._iteration.rows import Rows
    from mds._iteration.worker_epoch import WorkerEpoch
    from mds._process.stopwatch import Stopwatch

    Batch = tuple["BatchInfo", Any]
    Message: TypeAlias = "Batch | BatchGroup | BatchList"


MAX_GROUP_SECONDS = 0.02  # of making the batches of a message


class BatchGroup(NamedTuple):
    """Consecutive batches of one worker: their bookkeeping, and their columns end to end.

    ``worker``: number of the worker. ``infos``: bookkeeping of each batch. ``columns``: tensors or
    lists with the values of all batches, by name of the column.
    """

    worker: int
    infos: tuple[BatchInfo, ...]
    columns: dict[str, Any]

    @property
    def is_last(self) -> bool:
        """True if the worker has no more: the last message is empty."""
        return not self.infos

    def batches(self) -> Iterator[Batch]:
        """Yield the batches one by one, as views."""
        start = 0
        for info in self.infos:
            stop = start + info.samples
            yield info, {name: values[start:stop] for name, values in self.columns.items()}
            start = stop


class BatchList(NamedTuple):
    """Consecutive batches of one worker, one by one, and the error after them if there is one.

    ``worker``: number of the worker. ``items``: pairs of bookkeeping and batch.
    ``failure``: torch's ExceptionWrapper of the error, or None.
    """

    worker: int
    items: list[Batch]
    failure: Any = None

    @property
    def is_last(self) -> bool:
        """True if the worker has no more."""
        return not self.items

    def batches(self) -> Iterator[Batch]:
        """Return the batches one by one."""
        return iter(self.items)


class BatchIterator:
    """Iterator over the batches of a loader's workers in turn, from the messages that they send.

    A message that is neither a BatchGroup nor a BatchList is a single batch. An error is raised in
    the place of the batch that it prevented.

    Workers take turns batch by batch, but send several batches at once. So batches wait here: if
    workers 0 and 1 each send messages of two batches, their batches come as 0, 1, 0, 1.

    Args:
        messages: Messages of all workers, each worker's in its order.
        workers: Number of workers.
    """

    def __init__(self, messages: Iterable[Any], workers: int) -> None:
        self._messages = iter(messages)
        # By worker: batches that were received and wait for the worker's turn.
        self._waiting: dict[int, collections.deque[Batch]] = {
            worker: collections.deque() for worker in range(workers)
        }
        # Workers that have not ended, in the order of their turns.
        self._turns = collections.deque(range(workers))
        self._ended: set[int] = set()  # workers whose last message was received
        self._failures: dict[int, Any] = {}  # torch's ExceptionWrapper, by worker

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Batch:
        """Return the next batch with its bookkeeping, or raise the error in its place."""
        try:
            return self._next()
        except StopIteration:
            raise
        except Exception as error:  # noqa: BLE001 - raised again
            # Without its traceback. The frame in which torch raises a worker's exception refers to
            # the exception, whose traceback refers to the frame. This cycle would keep torch's
            # iterator until a garbage collection, which may close its queues before workers are
            # told to end; then torch waits five seconds for each of them.
            raise error.with_traceback(None) from error.__cause__

    def _next(self) -> Batch:
        """Return the next batch of the worker whose turn it is; receive messages until it comes."""
        while self._turns:
            worker = self._turns[0]
            waiting = self._waiting[worker]
            if waiting:
                self._turns.rotate(-1)
                return waiting.popleft()
            if worker in self._ended:  # it has no turns any more
                self._turns.popleft()
                if worker in self._failures:
                    self._failures.pop(worker).reraise()
                continue
            message = next(self._messages)
            # Single batches come already in turn, from threads or from this thread itself.
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


_MAX_COPIED_BYTES = 32 << 10  # of a column of a batch; copying more costs what a message does


def send_batches(
    batches: Iterable[Rows], epoch: WorkerEpoch | None, watch: Stopwatch, min_size: int = 1
) -> Iterator[Batch]:
    """Yield batches with their bookkeeping, except those of fewer than ``min_size`` places.

    Args:
        batches: Finished batches.
        epoch: The worker's part of the epoch; None if each of the rows has an ``info``.
        watch: Stopwatch of the batches, whose seconds are reported with each batch.
        min_size: Minimum number of places of a batch.
    """
    watch.start()
    for rows in batches:
        if rows.size >= min_size:
            info, making = rows.info, watch.take(rows.size)
            if info is not None:
                info = info._replace(making=making)
            else:
                assert epoch is not None
                info = batch_info(epoch, rows.first, rows.size, making)
                if rows.mask is not None:  # padding is no sample of the order hash
                    info = info._replace(order=(info.order[0], int(rows.mask.sum())))
            batch = info, rows.values
            del rows  # now and below: the consumer becomes the only owner of the memory
            yield batch
            del batch
        else:
            del rows
        watch.start()


def send_chunks(
    chunks: Iterable[Rows],
    batch_size: int,
    min_size: int,
    worker: int,
    epoch: WorkerEpoch,
    watch: Stopwatch,
) -> Iterator[BatchGroup]:
    """Yield a message for each chunk of columns; the last message is empty.

    Args:
        chunks: Columns of several batches, as tensors.
        batch_size: Places of a batch.
        min_size: Minimum number of places of a batch; a smaller one is left out.
        worker: Number of the worker.
        epoch: The worker's part of the epoch.
        watch: Stopwatch of the batches, whose seconds are reported with each message.
    """
    watch.start()
    for rows in chunks:
        infos = []
        for start in range(0, rows.size, batch_size):
            count = min(batch_size, rows.size - start)
            if count >= min_size:
                infos.append(batch_info(epoch, rows.first + start, count))
        if infos:
            infos[0] = infos[0]._replace(making=watch.take())
            message = BatchGroup(worker, tuple(infos), rows.values)
            del rows
            yield message
            del message
        else:
            del rows
        watch.start()
    yield BatchGroup(worker, (), {})


def send_joined(
    batches: Iterator[Rows], worker: int, epoch: WorkerEpoch, watch: Stopwatch
) -> Iterator[Message]:
    """Yield messages of batches that functions made, joined where they are views of one memory.

    Batches are collected until one ends the tensors that they were cut out of
    (``rows.ends_sources``). A batch that took long is sent at once with those before it, and so are
    batches that were made before an error.

    Args:
        batches: Batches of columns that the functions of `map_batches` returned.
        worker: Number of the worker.
        epoch: The worker's part of the epoch.
        watch: Stopwatch of the batches.
    """
    failure = None
    infos: list[BatchInfo] = []  # of the batches that are collected
    values: list[Any] = []
    watch.start()
    begin = watch.last  # time when the first of them was begun
    while True:
        rows = None  # stays None after the last batch, and after an error
        try:
            rows = next(batches, None) if failure is None else None
        except Exception as error:  # noqa: BLE001 - raised below
            failure = error
        if rows is not None:
            infos.append(batch_info(epoch, rows.first, rows.size))
            values.append(rows.values)
        is_slow = watch.last - begin > len(values) * MAX_GROUP_SECONDS / MAX_GROUP_BATCHES
        if values and (rows is None or rows.ends_sources or is_slow):
            sources = rows.sources if rows is not None else ()
            message = _join_message(worker, infos, values, sources, watch)
            # Released before the next batches are made, so that they can use this memory.
            infos, values = [], []
            del rows, sources
            yield message
            del message
            watch.start()
            begin = watch.last
        elif rows is None:
            break
        else:
            del rows
    if failure is not None:
        raise failure
    yield BatchGroup(worker, (), {})


def _join_message(
    worker: int,
    infos: list[BatchInfo],
    values: list[Any],
    sources: Sequence[torch.Tensor],
    watch: Stopwatch,
) -> Message:
    """Return one message of several batches; the arguments are those of `join_batches`."""
    columns = join_batches([info.samples for info in infos], values, sources)
    batches = [] if columns is not None else [batch_of(each) for each in values]
    watch.charge(COLLATE)
    infos[0] = infos[0]._replace(making=watch.take())
    if columns is None:
        return BatchList(worker, [*zip(infos, batches, strict=True)])
    return BatchGroup(worker, tuple(infos), columns)


def join_batches(
    rows: Sequence[int], batches: Sequence[Any], sources: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor] | None:
    """Return the columns of several batches end to end, or None if joining them does not pay.

    Args:
        rows: Number of rows of each batch.
        batches: Columns of each batch (a dict).
        sources: Tensors that the columns may be views of.
    """
    if len(batches) < 2 or any(type(batch) is not dict for batch in batches):
        return None
    first = batches[0]
    if not first or any(batch.keys() != first.keys() for batch in batches):
        return None
    joined = {}
    for name in first:
        column = _join_column(rows, [_as_array(batch[name]) for batch in batches], sources)
        if column is None:
            return None
        joined[name] = column
    return joined


_NOTHING = np.zeros((), np.uint8)


def _as_array(value: Any) -> npt.NDArray[Any]:
    """Return a tensor or array as an array of numbers that can be joined with others.

    For all other values it returns `_NOTHING`. Its shape () is that of no column of a batch, so
    `_join_column` then joins nothing.
    """
    if type(value) is torch.Tensor and is_plain(value) and numpy_dtype(value.dtype) is not None:
        value = value.resolve_conj().resolve_neg().numpy()
    if type(value) is np.ndarray and value.dtype.kind in "biufc" and value.dtype.isnative:
        return value
    return _NOTHING


def _join_column(
    rows: Sequence[int], pieces: Sequence[npt.NDArray[Any]], sources: Sequence[torch.Tensor]
) -> torch.Tensor | None:
    """Return the pieces of a column end to end, or None if they differ or are large to copy.

    If the pieces lie one after the other in a source, the result is a view of it:

        source:  | ... | piece 0 | piece 1 | piece 2 | ... |
                       begin                         end

    Args:
        rows: Number of rows of each piece.
        pieces: The column in each batch, as `_as_array` returns it.
        sources: Tensors that the pieces may be views of.
    """
    first = pieces[0]
    dtype, row_shape, strides = first.dtype, first.shape[1:], first.strides
    for count, piece in zip(rows, pieces, strict=True):
        if piece.shape != (count, *row_shape) or piece.dtype != dtype:
            return None
    begin = end = _address(first)  # in this process's memory, in bytes
    is_run = True  # whether each piece begins in memory where the one before ends
    for count, piece in zip(rows, pieces, strict=True):
        is_run = is_run and piece.strides == strides and _address(piece) == end
        end += count * strides[0]
    for source in sources if is_run else ():
        start, width = begin - source.data_ptr(), dtype.itemsize  # bytes
        is_inside = start >= 0 and 0 < end - begin <= source.nbytes - start + _row_gap(first)
        if is_inside and not start % width and numpy_dtype(source.dtype) == dtype:
            steps = [stride // width for stride in strides]
            return source.as_strided((sum(rows), *row_shape), steps, start // width)
    if first.nbytes > _MAX_COPIED_BYTES:
        return None
    return torch.from_numpy(np.concatenate(pieces))


def _row_gap(array: npt.NDArray[Any]) -> int:
    """Return how many bytes the last row of a view may seem to end after its source.

    For example, the source has 2 rows of 4 bytes, and a function has cut off the first byte of each
    row. The view begins at byte 1, and 2 rows at a distance of 4 bytes seem to end at byte 9:

        source:  | 0 1 2 3 | 4 5 6 7 |
        view:       1 2 3     5 6 7 (8)

    It is at most the distance of two rows less one value.
    """
    return max(0, array.strides[0] - array.itemsize)


def _address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
