"""Readers of a worker's order: its windows of ids, cut into chunks of columns or of samples.

Where a sample is nothing but the readers' columns, columns are gathered for several batches at
once, into the memory that becomes the tensor. Samples are decoded a third of a batch at a time if
functions are called with them: that bounds the memory of what waits for the functions, and needs
few readings of the clock.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mds.dataset.reading import read_windows
from mds.dataset.worker_epoch import PaddedWorkerEpoch
from mds.loader.batch_groups import MAX_GROUP_BATCHES, MAX_GROUP_BYTES
from mds.loader.rows import Rows
from mds.loader.tensor_buffers import allocate
from mds.readers import cut_growing, gather, iterate_samples
from mds.transforms.columns import join_columns

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.dataset.samples import Samples
    from mds.dataset.worker_epoch import WorkerEpoch
    from mds.loader.tensor_buffers import Allocator
    from mds.prefetch.prefetcher import Window
    from mds.transforms.row_keys import Keys

    Ids = npt.NDArray[np.int64]
    #: Name, dtype and shape of a sample's value, of each column of fixed width.
    FixedColumns = Sequence[tuple[str, np.dtype[Any], tuple[int, ...]]]
    Columns = dict[str, Any]


class ChunkSize:
    """Number of rows to gather at once: whole batches, more of them while they are small."""

    def __init__(self, batch_size: int, most_batches: int = MAX_GROUP_BATCHES) -> None:
        self._batch_size, self._most = batch_size, most_batches
        self._batches = 1  # the first batch is made alone, so that it comes at once

    def __call__(self) -> int:
        """Return the number of rows of the next chunk."""
        return self._batch_size * self._batches

    def adapt(self, columns: Columns, count: int) -> None:
        """Set the next size from a chunk of ``count`` rows."""
        nbytes = sum(v.nbytes for v in columns.values() if isinstance(v, torch.Tensor))
        fit = MAX_GROUP_BYTES * count // (max(nbytes, 1) * self._batch_size)
        self._batches = max(1, min(self._batches * 2, self._most, fit))


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

    Columns are tensors if all are of fixed width, else what `gather` returns. Without ``copy`` the
    arrays of a list may be views of the files.
    """
    first = epoch.start
    chunks = gather_chunks(windows, size, fixed, allocate, epoch.most_samples, copy=copy)
    for count, columns in chunks:
        mask = epoch.next_mask(count) if isinstance(epoch, PaddedWorkerEpoch) else None
        sources = [*columns.values()] if fixed else []
        size.adapt(columns, count)
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

    ``most_rows``: an upper bound of the rows of all windows.
    """
    parts: list[Columns] = []
    filled = rows = 0  # rows in the parts, and rows of the chunk
    tensors: Columns = {}
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
            until = filled + stop - start
            out = {name: t[filled:until].numpy() for name, t in tensors.items()}
            parts.append(gather(window.readers, shards, stored_rows, out=out, copy=copy))
            filled, start = until, stop
            if filled == rows:
                yield rows, tensors or join_columns(parts)
                del tensors, out  # the consumer of the chunk is their only owner
                parts, filled, tensors = [], 0, {}
    if filled:
        remaining = {name: tensor[:filled] for name, tensor in tensors.items()}
        yield filled, remaining or join_columns(parts)


class BatchParts:
    """Cutter of windows into parts of batches.

    Args:
        size: Returns the number of places of the next batch.
        parts: Number of parts of a batch, if it does not begin or end within a window.
        first: The first place.
        keys: Returns the row keys of the next places, if a function takes random numbers.
        masks: Returns which of the next places are no padding, if there is padding.
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
        self._missing = self._most = 0  # places until the batch is complete, and of a part

    def cut(self, count: int) -> Iterator[Rows]:
        """Yield rows without values for the next ``count`` places."""
        while count:
            if not self._missing:
                self._missing = self._size()
                self._most = -(-self._missing // self._parts)
            length = min(self._most, self._missing, count)
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
    dataset: Samples, epoch: WorkerEpoch, blocks: Iterable[Ids], parts: BatchParts
) -> Iterator[Rows]:
    """Yield decoded samples."""
    windows = read_windows(dataset, blocks, epoch)
    for readers, shards, numbers in cut_growing((w.readers, w.shards, w.rows) for w in windows):
        samples, _ = iterate_samples(readers, shards, numbers, epoch.fail)
        for rows in parts.cut(len(numbers)):
            rows.values = [*itertools.islice(samples, rows.size)]
            yield rows
            del rows


def read_numbers(
    dataset: Samples, epoch: WorkerEpoch, blocks: Iterable[Ids], parts: BatchParts
) -> Iterator[Rows]:
    """Yield sample numbers, whose shards are open for the functions that ``epoch`` lends to."""
    try:
        for window in read_windows(dataset, blocks, epoch):
            epoch.begin_window(dataset._cache, window)
            numbers = iter(dataset._shards.selected(window.ids).tolist())
            for rows in parts.cut(len(window.ids)):
                rows.values = [*itertools.islice(numbers, rows.size)]
                yield rows
                del rows
            del window
    finally:
        epoch.end_windows()


def count_places(dataset: Samples, epoch: WorkerEpoch, stage: Iterable[Rows]) -> Iterator[Rows]:
    """Yield rows of samples, and keep the position up to date that the dataset's state has."""

    def count(rows: Rows) -> Rows:
        epoch.filled_places = rows.first + rows.size
        return rows

    dataset._running = epoch
    try:
        yield from map(count, stage)
        epoch.is_exhausted = True
    finally:
        epoch.is_over = True


def fixed_columns(dataset: Any, schemas: Sequence[Any]) -> FixedColumns:
    """Return the columns that a dataset reads if all are of fixed width, else none."""
    from mds.encodings import parse_encoding

    columns = schemas[0].columns
    encodings = [parse_encoding(text) for text in columns.encodings]
    fixed = []
    for name, encoding in zip(columns.names, encodings, strict=True):
        if encoding.size is None or encoding.dtype is None or encoding.shape is None:
            return []
        if name in dataset._columns:
            fixed.append((name, encoding.dtype, encoding.shape))
    return fixed if not any(schema.is_split for schema in schemas) else []
