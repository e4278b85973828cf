"""Chunks of a worker's order on their way to a batch: how they are read, cut and joined.

A batch is made in stages: ``read -> filter -> map -> collate | pack -> mask -> transport``. A stage
takes an iterator of `Rows` and returns one: it is a generator, or a function under ``map()`` that
sets the values of its `Rows` and returns them. It keeps no reference to what it has handed on, so
that the memory of one chunk can be that of the next.

Terms: a *place* is the number of a sample in this worker's order of the epoch, from 0. Padding has
places, too; its mask is False. A `WorkerEpoch` is this worker's part of an epoch: the order of its
samples. A `Window` is a run of places whose shards are open for reading. A *row key* is a uint64
for each place, from which functions that take random numbers draw them.

Where a sample is nothing but the readers' columns, columns are gathered for several batches at
once, into the memory that becomes the tensor. A `TensorPool` uses the memory of earlier batches
again: new megabytes cost a page fault for every 4 KB, three times as much as copying the samples.

Samples are decoded a third of a batch at a time if functions are called with them: that bounds the
memory of what waits for the functions, and needs few readings of the clock.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from mds._iteration.filtering import SkippedSample
from mds._iteration.reading import SampleSource, read_windows
from mds._iteration.worker_epoch import PaddedWorkerEpoch
from mds._process.stopwatch import Making, join_makings
from mds._readers.gather import gather
from mds._readers.iterate import cut_growing, iterate_samples
from mds.errors import ConfigError
from mds.transforms._columns import join_columns

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._index.shard_object import ShardSchema
    from mds._iteration.worker_epoch import KeyStream, WorkerEpoch
    from mds._prefetch.prefetcher import Window
    from mds._process.stopwatch import Stopwatch
    from mds._readers.fields import ColumnSelection
    from mds.plan._state import Position
    from mds.transforms._randomness import Keys

    Mask = npt.NDArray[np.bool_]
    Ids = npt.NDArray[np.int64]
    FixedColumns = Sequence[tuple[str, np.dtype[Any], tuple[int, ...]]]
    Columns = dict[str, Any]

Allocator = Callable[[tuple[int, ...], "np.dtype[Any]"], torch.Tensor]

#: Maximum number of batches that are made together, and of bytes of their tensors. A single batch
#: may be larger.
MAX_GROUP_BATCHES = 8
MAX_GROUP_BYTES = 4 << 20
#: Mask that takes the sum of an order hash modulo 2**64.
SUM_BITS = (1 << 64) - 1
# The heap uses smaller blocks again by itself. A column of 8 packs of 8,192 tokens has 512 KB.
_MIN_POOLED_BYTES = 256 << 10
_MAX_FREE_BLOCKS = 8  # of a pool


class BatchInfo(NamedTuple):
    """Bookkeeping of a batch, which comes with it from its worker.

    Attributes:
        samples: Places of the order that the batch took.
        order: What the batch adds to the order hash: (sum of the hashes of its samples modulo
            2**64, number of samples without padding).
        begin: Position at which the worker's iteration began, the same in all its batches.
        skipped: Descriptions of the first samples that were dropped from the batch.
        dropped: Number of all samples that were dropped from the batch.
        is_empty: Whether no sample was kept; the batch then has one masked sample.
        making: Seconds of making the batch, by phase. In a message of several batches, the first
            one has the seconds of all, and the others None.
        end: With packs, the position after the batch's step; else None.
        wrapper_samples: Number of samples in the batch if a user's class around the dataset made
            them, else (0, 0). The class may return lists of samples, which are counted in two ways:
            (2, 16) for two lists of 8 samples each.
    """

    samples: int
    order: tuple[int, int]
    begin: Position | None = None
    skipped: tuple[SkippedSample, ...] = ()
    dropped: int = 0
    is_empty: bool = False
    making: Making | None = None
    end: Position | None = None
    wrapper_samples: tuple[int, int] = (0, 0)


def batch_info(
    epoch: WorkerEpoch, position: int, count: int, making: Making | None = None
) -> BatchInfo:
    """Return the bookkeeping of a batch.

    Args:
        epoch: The worker's part of the epoch.
        position: First place of the batch, counted from the beginning of the worker's order.
        count: Places of the batch.
        making: Seconds of making it.
    """
    # The hash of a stretch of the order is a difference of sums, as every sample adds to the sum.
    earlier = epoch.checksum_until(position)
    added = (epoch.checksum_until(position + count) - earlier) & SUM_BITS
    return BatchInfo(count, (added, count), epoch.begin, making=making)


def merge_making(infos: Sequence[BatchInfo], crossing: float) -> list[BatchInfo]:
    """Return the bookkeeping of a message, with the seconds of all its batches in the first one.

    The trainer waits for all of them when it takes the first batch, and not at all for the others.

    Args:
        infos: Bookkeeping of each batch of the message.
        crossing: Seconds of sending the message to another process.
    """
    makings = [info.making for info in infos if info.making is not None]
    if not makings:
        return [*infos]
    first = infos[0]._replace(making=join_makings(makings, crossing))
    return [first, *(i if i.making is None else i._replace(making=None) for i in infos[1:])]


class Rows:
    """Consecutive places of a worker's order: part of a batch, a batch, or several batches.

    Attributes:
        first: The first of the places, counted from the beginning of the worker's order.
        size: Number of places.
        values: Columns (a dict), samples (a list), or the finished batch.
        keys: Row keys of the places, uint64; None if no function takes random numbers.
        mask: Which values count, bool, False for padding; None if all do.
        ends_batch: Whether a batch ends with these places.
        info: Bookkeeping of the batch; None if it follows from ``first`` and ``size``
            (`batch_info`).
        sources: Tensors of a whole chunk of several batches if these columns were cut out of them.
            A stage that joins these batches again returns views of the tensors, without a copy.
        ends_sources: Whether these are the last rows that are cut out of ``sources``.
    """

    __slots__ = (
        "ends_batch", "ends_sources", "first", "info", "keys", "mask", "size", "sources", "values",
    )  # fmt: skip

    def __init__(
        self,
        first: int,
        size: int,
        values: Any,
        keys: Keys | None = None,
        mask: Mask | None = None,
        ends_batch: bool = True,
        info: BatchInfo | None = None,
        sources: Sequence[torch.Tensor] = (),
        ends_sources: bool = True,
    ) -> None:
        self.first, self.size, self.values = first, size, values
        self.keys, self.mask, self.ends_batch, self.info = keys, mask, ends_batch, info
        self.sources, self.ends_sources = sources, ends_sources


def timed(stage: Iterable[Rows], watch: Stopwatch, phase: int) -> Iterator[Rows]:
    """Return the rows of a stage, and charge its time to ``phase`` (an index of `PHASES`).

    The stages take turns in one thread, so the time between two readings of the clock is that of
    the stage between them.
    """

    def charge(rows: Rows) -> Rows:
        watch.charge(phase)
        return rows

    return map(charge, stage)


def cut_columns(
    chunks: Iterable[Rows], batch_size: int, min_size: int, keys: KeyStream | None
) -> Iterator[Rows]:
    """Cut chunks of columns into batches, as views; leave out one of fewer than ``min_size`` rows.

    Tensors become arrays.

    Args:
        chunks: Columns of several batches.
        batch_size: Rows of a batch.
        min_size: Minimum number of rows of a batch.
        keys: Stream of row keys if a function takes random numbers, else None.
    """
    for chunk in chunks:
        columns = chunk.values
        if chunk.sources:
            columns = {name: tensor.numpy() for name, tensor in columns.items()}
        for start in range(0, chunk.size, batch_size):
            count = min(batch_size, chunk.size - start)
            # Keys come in the order of the places, so those of a batch that is left out are taken.
            row_keys = keys.take(count) if keys is not None else None
            if count < min_size:
                continue
            values = {name: column[start : start + count] for name, column in columns.items()}
            mask = chunk.mask[start : start + count] if chunk.mask is not None else None
            is_last = chunk.size - start - count < min_size  # no batch of this chunk follows
            rows = Rows(
                chunk.first + start, count, values, row_keys, mask,
                sources=chunk.sources, ends_sources=is_last,
            )  # fmt: skip
            del values
            yield rows
            del rows
        del chunk, columns


def join_samples(chunks: Iterable[Rows], min_size: int = 0) -> Iterator[Rows]:
    """Yield each batch of samples in one piece, except one of fewer than ``min_size`` places."""
    parts: list[Rows] = []
    size = 0
    for rows in chunks:
        parts.append(rows)
        size += rows.size
        is_end = rows.ends_batch
        del rows
        if is_end:
            if size >= min_size:
                yield _join(parts)
            parts, size = [], 0
    if parts and size >= min_size:  # the order ends in the middle of a batch
        yield _join(parts)


def _join(parts: list[Rows]) -> Rows:
    """Return the parts of a batch as one, with the samples of all, and release the parts."""
    if len(parts) == 1:
        return parts.pop()
    joined = Rows(
        parts[0].first,
        sum(rows.size for rows in parts),
        [*itertools.chain.from_iterable(rows.values for rows in parts)],
        _join_arrays([rows.keys for rows in parts]),
        _join_arrays([rows.mask for rows in parts]),
    )
    for rows in parts:
        rows.values = None  # generators may still hold their last rows
    parts.clear()
    return joined


def _join_arrays(arrays: Sequence[Any]) -> Any:
    return None if arrays[0] is None else np.concatenate(arrays)


def add_mask(rows: Rows) -> Rows:
    """Add the mask of a batch, if there is one, to its values."""
    if rows.mask is not None:
        rows.values = with_mask(rows.values, rows.mask)
    return rows


def with_mask(batch: Any, mask: Mask) -> Any:
    """Return a batch with its mask: as column ``mask`` of a dict, else as a pair.

    Raises ConfigError for a batch that has a column of this name.
    """
    tensor = torch.from_numpy(mask)
    if not isinstance(batch, dict):
        return batch, tensor
    if "mask" in batch:
        raise ConfigError(
            "remainder='mask', filter() and on_error='skip' add a column 'mask' to batches, but "
            "the samples already have one. Leave it out with columns=, or rename it in a collate "
            "function."
        )
    return {**batch, "mask": tensor}


def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
    """Return an uninitialised tensor in new memory."""
    return torch.from_numpy(np.empty(shape, dtype))


class TensorPool:
    """Allocator of uninitialised tensors, which uses the memory of earlier ones again.

    A block of memory is free again when the last tensor, view or array on it is deleted, in any
    thread.
    """

    def __init__(self) -> None:
        self._free: collections.deque[np.ndarray[Any, Any]] = collections.deque(
            maxlen=_MAX_FREE_BLOCKS
        )
        # By the id() of a lent block, a weak reference to the array on it, which calls back when
        # the array is deleted.
        self._lent: dict[int, weakref.ref[Any]] = {}

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
        """Return an uninitialised tensor."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size < _MIN_POOLED_BYTES:
            return allocate(shape, dtype)
        block = self._fitting(size)
        # A new array for each tensor: when torch deletes it, the block is free.
        array = np.ndarray(shape, dtype, block)

        def come_back(_: object) -> None:
            """Add the block to the free ones, when Python deletes the last view of ``array``."""
            del self._lent[id(block)]
            self._free.append(block)

        self._lent[id(block)] = weakref.ref(array, come_back)
        return torch.from_numpy(array)

    def _fitting(self, size: int) -> np.ndarray[Any, Any]:
        """Return a free block of ``size`` to ``2 * size`` bytes, or a new one of ``size``."""
        for _ in range(len(self._free)):
            block = self._free.popleft()
            # Blocks of another size are not put back: those of the first batches, for example,
            # which are smaller than later ones and would never be used again.
            if size <= len(block) <= 2 * size:
                return block
        return np.empty(size, np.uint8)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is only numbers in the memory of this process, as NumPy reads them.

    Subclasses, tensors on a GPU, sparse and quantized tensors, and tensors with gradients are not.
    """
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
    )


@functools.cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any] | None:
    """Return the NumPy dtype of a torch dtype, or None if NumPy has none."""
    with contextlib.suppress(TypeError):
        return torch.empty(0, dtype=dtype).numpy().dtype
    return None


class ChunkSize:
    """Number of rows to gather at once: one or more whole batches, more if they are small.

    For example, chunks of batches of 100 KB have 1, 2, 4, 8, 8, ... batches.

    ``batch_size``: rows of a batch. ``most_batches``: maximum number of batches.
    """

    def __init__(self, batch_size: int, most_batches: int = MAX_GROUP_BATCHES) -> None:
        self._batch_size, self._limit = batch_size, most_batches
        self._batches = 1  # the first batch is made alone, so that it comes at once

    def __call__(self) -> int:
        """Return the number of rows of the next chunk."""
        return self._batch_size * self._batches

    def adapt(self, columns: Columns, count: int) -> None:
        """Set the next size from the columns of a chunk of ``count`` rows.

        It at most doubles, and its tensors have at most `MAX_GROUP_BYTES`.
        """
        nbytes = sum(v.nbytes for v in columns.values() if isinstance(v, torch.Tensor))
        # Batches whose tensors have MAX_GROUP_BYTES together: a row has nbytes / count bytes.
        fit = MAX_GROUP_BYTES * count // (max(nbytes, 1) * self._batch_size)
        self._batches = max(1, min(self._batches * 2, self._limit, fit))


def read_columns(
    windows: Iterable[Window],
    size: ChunkSize,
    fixed: FixedColumns,
    allocate: Allocator,
    epoch: WorkerEpoch,
    *,
    copy: bool = False,
) -> Iterator[Rows]:
    """Yield chunks of columns of an epoch; the last one has the rows that remain.

    Columns are tensors if all are of fixed width, else what `gather` returns.

    Args:
        windows: Samples to read, with the readers of their shards.
        size: Returns the number of rows of the next chunk.
        fixed: Name, dtype and shape of each column if all are of fixed width, else empty.
        allocate: Allocates the tensors.
        epoch: The worker's part of the epoch.
        copy: Whether arrays are copied. If not, the arrays of a list may be views of the files.
    """
    first = epoch.start
    chunks = gather_chunks(windows, size, fixed, allocate, epoch.most_samples, copy=copy)
    for count, columns in chunks:
        mask = epoch.next_mask(count) if isinstance(epoch, PaddedWorkerEpoch) else None
        sources = [*columns.values()] if fixed else []
        size.adapt(columns, count)  # before the next chunk, whose size it sets
        first += count
        yield Rows(first - count, count, columns, mask=mask, sources=sources)
        del columns, sources


def gather_chunks(
    windows: Iterable[Window],
    size: Callable[[], int],
    fixed: FixedColumns = (),
    allocate: Allocator = allocate,
    most_rows: int = sys.maxsize,
    *,
    copy: bool = False,
) -> Iterator[tuple[int, Columns]]:
    """Yield the rows of windows in chunks of ``size()`` rows: their number and their columns.

        windows:  |  window 0  |  window 1  |  window 2  |
        chunks:   |    chunk 0     |    chunk 1    | ...        each joined of one or more parts

    Columns of fixed width are written part by part into tensors of the whole chunk. Of all other
    columns, the parts are joined when the chunk is complete.

    ``most_rows``: an upper bound of the rows of all windows, so that a short epoch gets no larger
    tensors. For the other arguments, see `read_columns`.
    """
    parts: list[Columns] = []  # columns of the parts of this chunk
    filled = rows = 0  # rows that the chunk has, and rows of the complete chunk
    tensors: Columns = {}  # columns of fixed width
    for window in windows:
        start, end = 0, len(window.ids)
        while start < end:
            if not filled:
                rows = size()
                tensors = {
                    name: allocate((min(rows, most_rows), *shape), dtype)
                    for name, dtype, shape in fixed
                }
            stop = min(end, start + rows - filled)
            shards, stored_rows = window.shards[start:stop], window.rows[start:stop]
            filled_next = filled + stop - start
            # Columns of fixed width are written into the tensors, all others are returned.
            out = {name: tensor[filled:filled_next].numpy() for name, tensor in tensors.items()}
            parts.append(gather(window.readers, shards, stored_rows, out=out, copy=copy))
            filled, start = filled_next, stop
            if filled == rows:
                yield rows, tensors or join_columns(parts)
                del tensors, out  # the consumer of the chunk is their only owner
                parts, filled, tensors = [], 0, {}
    if filled:
        remaining = {name: tensor[:filled] for name, tensor in tensors.items()}
        yield filled, remaining or join_columns(parts)


class BatchParts:
    """Cutter of windows of places into parts of batches.

    For example, windows of 10 and 6 places, and batches of 8 places in 2 parts:

        windows:  |        10         |     6     |
        batches:  |       8       |       8       |
        parts:    |   4   |   4   | 2 | 2 |   4   |        each is one `Rows`

    Args:
        size: Returns the number of places of the next batch.
        parts: Number of parts of a batch; windows that end inside a batch make more.
        first: The first place.
        keys: Returns the row keys of the next n places; None if no function takes random numbers.
        masks: Returns the mask of the next n places, False for padding; None without padding.
    """

    def __init__(
        self,
        size: Callable[[], int],
        parts: int = 1,
        first: int = 0,
        keys: Callable[[int], Keys] | None = None,
        masks: Callable[[int], npt.NDArray[np.bool_]] | None = None,
    ) -> None:
        self._size, self._parts, self._place = size, parts, first
        self._keys, self._masks = keys, masks
        self._missing = 0  # places until the batch is complete
        self._limit = 0  # most places of a part

    def cut(self, count: int) -> Iterator[Rows]:
        """Yield rows without values for the next ``count`` places, those of a window."""
        while count:
            if not self._missing:  # begin a batch
                self._missing = self._size()
                self._limit = -(-self._missing // self._parts)  # rounded up
            length = min(self._limit, self._missing, count)
            count -= length
            self._missing -= length
            rows = Rows(self._place, length, None, ends_batch=not self._missing)
            self._place += length
            if self._keys is not None:
                rows.keys = self._keys(length)
            if self._masks is not None:
                rows.mask = self._masks(length)
            yield rows
            del rows


def read_samples(
    source: SampleSource, epoch: WorkerEpoch, blocks: Iterable[Ids], parts: BatchParts
) -> Iterator[Rows]:
    """Yield parts of batches with their decoded samples.

    Args:
        source: Samples to read.
        epoch: The worker's part of the epoch.
        blocks: Ids of the samples, in the worker's order.
        parts: Cuts the samples into parts of batches.
    """
    windows = read_windows(source, blocks, epoch)
    # The first samples are decoded in small pieces, so that the first batch comes early.
    for readers, shards, numbers in cut_growing((w.readers, w.shards, w.rows) for w in windows):
        samples, _ = iterate_samples(readers, shards, numbers, epoch.fail)
        for rows in parts.cut(len(numbers)):
            rows.values = [*itertools.islice(samples, rows.size)]
            yield rows
            del rows


def read_numbers(
    source: SampleSource, epoch: WorkerEpoch, blocks: Iterable[Ids], parts: BatchParts
) -> Iterator[Rows]:
    """Yield parts of batches with sample numbers, for functions that read samples by number.

    The shards of these samples stay open until the next rows are asked for. Until then, a function
    that ``epoch.lend`` has returned reads the samples from these open shards. The arguments are
    those of `read_samples`.
    """
    try:
        for window in read_windows(source, blocks, epoch):
            epoch.begin_window(source.cache, window)
            # Ids count all stored samples; numbers count those that `select` has chosen.
            numbers = iter(source.shards.selected(window.ids).tolist())
            for rows in parts.cut(len(window.ids)):
                rows.values = [*itertools.islice(numbers, rows.size)]
                yield rows
                del rows
            del window
    finally:
        epoch.end_windows()


def count_places(epoch: WorkerEpoch, stage: Iterable[Rows]) -> Iterator[Rows]:
    """Yield rows of samples, and count their places.

    Args:
        epoch: The worker's part of the epoch, whose attributes hold the count.
        stage: Rows of samples.
    """

    def count(rows: Rows) -> Rows:
        epoch.end_index = rows.first + rows.size
        return rows

    try:
        yield from map(count, stage)
        epoch.is_finished = True  # not after an error, or if the iteration is left early
    finally:
        epoch.is_closed = True


def fixed_columns(selection: ColumnSelection, schemas: Sequence[ShardSchema]) -> FixedColumns:
    """Return name, dtype and shape of each column that is read if all are of fixed width, else [].

    ``selection``: columns that are read. ``schemas``: schemas of all shards, which have the same
    columns.
    """
    from mds.encodings import parse_encoding

    if any(schema.is_split for schema in schemas):  # lines of text, whose values must be parsed
        return []
    columns = schemas[0].columns
    encodings = [parse_encoding(text) for text in columns.encodings]
    fixed = []
    for name, encoding in zip(columns.names, encodings, strict=True):
        if encoding.size is None or encoding.dtype is None or encoding.shape is None:
            return []
        if name in selection:
            fixed.append((name, encoding.dtype, encoding.shape))
    return fixed
