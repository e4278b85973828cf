"""Batches made next to their samples, each with its bookkeeping of what it used up.

Where a sample is nothing but the readers' columns and the batch is torch's usual one, the batch is
gathered column by column into the memory that becomes the tensor, without a Python object for
each sample. Everything else goes through the samples and the caller's collate function.
"""

from __future__ import annotations

import copy
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from mds.dataset.reading import read_windows
from mds.dataset.streaming import StreamingDataset
from mds.dataset.worker_epoch import PaddedWorkerEpoch, WorkerEpoch
from mds.encodings import DecodeKind, parse_encoding
from mds.loader.batch_groups import (
    MAX_GROUP_BATCHES,
    MAX_GROUP_BYTES,
    BatchGroup,
    BatchIterator,
    batch_info,
)
from mds.loader.batch_maker import BatchMaker
from mds.loader.batch_masks import mask_padding
from mds.loader.tensor_buffers import Allocator, TensorPool
from mds.process.fork_safe import cached_property
from mds.process.stopwatch import Stopwatch
from mds.readers import gather
from mds.transforms.chain import FunctionChain
from mds.transforms.columns import join_columns, tensors_of
from mds.world import worker_group, worker_place

if TYPE_CHECKING:
    from mds.dataset.worker_epoch import KeyStream
    from mds.index import ShardSchema
    from mds.loader.batch_groups import Batch, Message
    from mds.loader.function_groups import FunctionBatch
    from mds.prefetch.prefetcher import Window
    from mds.process.stopwatch import Clock

    Columns = dict[str, Any]


class Batches(IterableDataset[Any]):
    """Batches of a dataset, as pairs of their bookkeeping and the collated batch.

    ``batch_size`` None gives single samples. ``clock`` times what a batch takes. Other attributes
    are the dataset's, so that code in workers which asks torch for "the dataset" finds what it
    knows.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None,
        drop_last: bool,
        collate: Callable[[Any], Any],
        clock: Clock = time.perf_counter,
        pack_as: str | None = None,
    ) -> None:
        self.dataset = dataset
        self._pack_as = pack_as
        self._clock = clock
        self._size, self._drop_last = batch_size, drop_last
        is_streaming = isinstance(dataset, StreamingDataset)
        chain = dataset._filter.chain if is_streaming else FunctionChain()
        # The incumbent's users get what torch makes of dicts and lists.
        self._transposes = not getattr(dataset, "_is_strict", True)
        self._maker = BatchMaker(collate, batch_size, chain, transposes=self._transposes)

    def __iter__(self) -> Iterator[Message]:
        return self.begin_epoch(*worker_place(), worker_group())

    def begin_epoch(
        self, worker: int, workers: int, group: int, allocate: Allocator | None = None
    ) -> Iterator[Message]:
        """Begin the epoch of one worker of ``workers`` at once, and give its batches.

        With ``allocate`` they are made elsewhere than where they are used, and come in groups.
        """
        epochs: list[WorkerEpoch] = []
        messages = self._begin_messages(worker, workers, group, allocate, epochs)
        return _close_windows_after(messages, epochs)

    def _begin_messages(
        self,
        worker: int,
        workers: int,
        group: int,
        allocate: Allocator | None,
        epochs: list[Any],
    ) -> Iterator[Message]:
        """Do what `begin_epoch` says, and add what was begun to ``epochs``."""
        if not self._is_ours:
            watch, maker = Stopwatch(self._clock), self._maker
            from mds.loader.custom_batches import begin_custom

            return begin_custom(self.dataset, watch, self._size, self._drop_last, maker, epochs)
        dataset = self.dataset
        epoch = dataset._begin_epoch(worker, workers, group, for_loader=True)
        epochs.append(epoch)
        epoch.watch = watch = Stopwatch(self._clock)
        if self._pack_as is not None:
            from mds.loader.packed_batches import PackedBatches

            return iter(
                PackedBatches(
                    dataset,
                    epoch,
                    self._maker,
                    watch,
                    self._pack_as,
                    allocate or TensorPool(),
                    drop_last=self._drop_last,
                )
            )
        if not dataset._filter.keeps_everything:
            from mds.loader.filtered_batches import filtered_batches

            return filtered_batches(dataset, epoch, watch, self._size, self._drop_last, self._maker)
        maker, size = self._maker, self._size
        keys = epoch.key_stream() if maker.is_keyed else None
        if not (self.is_plain and size is not None and maker.takes_columns and self._is_columnar):
            from mds.dataset.epoch_iterator import EpochIterator

            samples = EpochIterator.over(dataset, epoch, dataset._seek)
            return _with_info(epoch, watch, self._collated_batches(epoch, watch, samples, keys))
        windows = read_windows(dataset, epoch.blocks(), epoch)
        least = size if self._drop_last else 1
        if maker.has_functions:
            results = self._function_batches(epoch, watch, windows, size, keys)
            if allocate is not None and not isinstance(epoch, PaddedWorkerEpoch):
                from mds.loader.function_groups import group_function_batches

                return group_function_batches(worker, epoch, watch, results, least)
            from mds.loader.function_groups import function_batches

            return _with_info(epoch, watch, function_batches(results, watch), least)
        into = allocate or TensorPool()
        if self._is_sliceable and not isinstance(epoch, PaddedWorkerEpoch):
            groups = self._grouped_batches(worker, epoch, watch, windows, size, into)
            return BatchIterator(groups, workers) if allocate is None else groups
        columns = self._columns(windows, lambda: size, epoch.most_samples, into)
        return _with_info(
            epoch, watch, _as_tensors(columns, watch, transposes=self._transposes), least
        )

    @property
    def _is_ours(self) -> bool:
        """Whether the library iterates, and asks the caller's code for samples at most."""
        dataset = self.dataset
        return (
            isinstance(dataset, StreamingDataset)
            and type(dataset).__iter__ is StreamingDataset.__iter__
        )

    @property
    def is_of_order(self) -> bool:
        """Whether a batch is as many places of the order as it is large."""
        return self._is_ours

    @property
    def is_plain(self) -> bool:
        """Whether the samples are the readers' own, with no code of the caller on the way."""
        return isinstance(self.dataset, StreamingDataset) and self.dataset._is_plain

    @property
    def may_use_threads(self) -> bool:
        """Whether the library iterates: the caller's code for one sample may run in threads."""
        return self._is_ours

    def of_thread(self) -> Batches:
        """The same for one thread among several, as a worker process would have them.

        Where code is called for each sample, it is that of a copy of the dataset, so that what an
        iteration keeps there is that thread's alone.
        """
        if not self._is_ours or (self.is_plain and self._maker.takes_columns):
            return self
        own = copy.copy(self)
        own.dataset = copy.copy(self.dataset)
        return own

    @property
    def is_made_here(self) -> bool:
        """Whether the batches too are made by the library alone, without a collate function."""
        return self.is_plain and self._maker.is_ours

    @property
    def _schemas(self) -> list[ShardSchema]:
        return [schema for index in self.dataset._shards.indexes for schema in index.schemas]

    @property
    def _is_columnar(self) -> bool:
        """Whether all streams have the same columns, so that a batch can be one gather."""
        first, *others = (schema.columns for schema in self._schemas)
        return all(
            columns.names == first.names and columns.encodings == first.encodings
            for columns in others
        )

    @property
    def _is_sliceable(self) -> bool:
        """Whether a batch is rows of a larger one: no shape or nesting depends on the batch."""
        encodings = map(parse_encoding, self._schemas[0].columns.encodings)
        plain = {DecodeKind.TEXT, DecodeKind.BYTES}
        return all(e.decode_kind in plain or (e.size and e.dtype is not None) for e in encodings)

    def _columns(
        self,
        windows: Iterable[Window],
        wanted: Callable[[], int],
        most: int,
        allocate: Allocator,
        *,
        copy: bool = False,
    ) -> Iterator[tuple[int, Columns]]:
        """Columns of as many samples as ``wanted`` says each time; of what is left at the end.

        ``most``: samples that the windows have in all, at the most.
        Tensors where all columns are of fixed width, else what `gather` gives; without ``copy``
        arrays in lists may be views of the files.
        """
        pieces: list[Columns] = []
        waiting, size = 0, wanted()  # samples in the pieces, and how many there are to be
        tensors: Columns = {}
        for window in windows:
            at, end = 0, len(window.ids)
            while at < end:
                if not waiting:
                    tensors = self._allocate(min(size, most), allocate)
                stop = min(end, at + size - waiting)
                shards, rows = window.shards[at:stop], window.rows[at:stop]
                filled = waiting + stop - at
                out = {name: t[waiting:filled].numpy() for name, t in tensors.items()}
                pieces.append(gather(window.readers, shards, rows, out=out, copy=copy))
                waiting, at = filled, stop
                if waiting == size:
                    yield size, tensors or join_columns(pieces)
                    del tensors, out  # the consumer of the batch is their only owner
                    pieces, waiting, size = [], 0, wanted()
        if waiting:
            left = {name: tensor[:waiting] for name, tensor in tensors.items()}
            yield waiting, left or join_columns(pieces)

    def _allocate(self, samples: int, allocate: Allocator) -> dict[str, torch.Tensor]:
        """Tensors for so many samples where all columns are of fixed width, else none."""
        return {
            name: allocate((samples, *shape), dtype) for name, dtype, shape in self._fixed_columns
        }

    @cached_property
    def _fixed_columns(self) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        """Name, dtype and shape of a sample's value of each column; none unless all are fixed."""
        columns = self._schemas[0].columns
        encodings = [parse_encoding(text) for text in columns.encodings]
        out = []
        for name, encoding in zip(columns.names, encodings, strict=True):
            if encoding.size is None or encoding.dtype is None or encoding.shape is None:
                return []
            if name in self.dataset._columns:
                out.append((name, encoding.dtype, encoding.shape))
        return out if not any(schema.is_split for schema in self._schemas) else []

    def _grouped_batches(
        self,
        worker: int,
        epoch: WorkerEpoch,
        watch: Stopwatch,
        windows: Iterable[Window],
        size: int,
        allocate: Allocator,
    ) -> Iterator[BatchGroup]:
        """Batches of `_columns`, several in a message."""
        position, count = epoch.start, 1  # ids, and batches of the next message

        def wanted() -> int:
            return size * count

        watch.start()
        for samples, found in self._columns(windows, wanted, epoch.most_samples, allocate):
            watch.end_samples()
            columns = tensors_of(found, transposes=self._transposes)
            infos = []
            for at in range(0, samples, size):
                some = min(size, samples - at)
                if some == size or not self._drop_last:
                    infos.append(batch_info(epoch, position, some))
                    position += some
            count = _batches_of_next(count, columns, samples, size)
            if infos:
                watch.end_collating()
                infos[0] = infos[0]._replace(making=watch.take())
                yield BatchGroup(worker, tuple(infos), columns)
            del columns, found  # before the next ones are made, so that their memory can be those'
            watch.start()
        yield BatchGroup(worker, (), {})

    def _function_batches(
        self,
        epoch: WorkerEpoch,
        watch: Stopwatch,
        windows: Iterable[Window],
        size: int,
        keys: KeyStream | None,
    ) -> Iterator[FunctionBatch]:
        """Batches that functions of columns make.

        Columns of fixed width are gathered for several batches at once, as in `_grouped_batches`.
        """
        from mds.loader.function_groups import FunctionBatch

        position, count, maker = epoch.start, 1, self._maker
        copy = not maker.is_ours and self.dataset._columns.copy

        def wanted() -> int:
            return size * count

        for samples, gathered in self._columns(
            windows, wanted, epoch.most_samples, TensorPool(), copy=copy
        ):
            watch.end_samples()
            found, sources = gathered, list[torch.Tensor]()
            if self._fixed_columns:
                count = _batches_of_next(count, gathered, samples, size)
                sources = [*gathered.values()]
                found = {name: tensor.numpy() for name, tensor in gathered.items()}
            for at in range(0, samples, size):
                some = min(size, samples - at)
                columns = {name: values[at : at + some] for name, values in found.items()}
                of_rows = keys.take(some) if keys is not None else None
                where = functools.partial(epoch.describe, position, some)
                made = maker.apply(columns, of_rows, where, watch)
                position += some
                is_last = at + size >= samples
                yield FunctionBatch(some, made, sources, is_last)
                del made
            # Before the next ones are made, so that their memory can be those'.
            del gathered, found, columns, sources

    def _collated_batches(
        self,
        epoch: WorkerEpoch,
        watch: Stopwatch,
        samples: Iterator[Any],
        keys: KeyStream | None,
    ) -> Iterator[tuple[int, Any]]:
        position, make = epoch.start, self._maker.of_samples
        if self._size is None:
            watch.expect(1)
            for sample in samples:
                watch.end_samples(1)
                yield 1, make(sample, None, str, watch)
                watch.expect(1)
            return
        while batch := self._next_samples(samples, watch):
            count = len(batch)
            watch.end_samples(count)
            of_rows = keys.take(count) if keys is not None else None
            if count == self._size or not self._drop_last:
                where = functools.partial(epoch.describe, position, count)
                collated = make(batch, of_rows, where, watch)
                # Decoded images are large: let go of these before the next ones are made.
                del batch
                yield count, collated
                del collated
            position += count

    def _next_samples(self, samples: Iterator[Any], watch: Stopwatch) -> list[Any]:
        watch.expect(self._size or 1)
        return [*itertools.islice(samples, self._size)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["dataset"], name)


def _close_windows_after(
    messages: Iterator[Message], epochs: list[WorkerEpoch]
) -> Iterator[Message]:
    """The same messages; after the last one, and after an error, no shard is held."""
    try:
        yield from messages
    finally:
        for epoch in epochs:
            epoch.close_windows()


def _batches_of_next(last: int, columns: Columns, samples: int, size: int) -> int:
    """How many batches of ``size`` to gather at once next, by what ``samples`` took this time."""
    bytes_ = sum(v.nbytes for v in columns.values() if isinstance(v, torch.Tensor))
    fit = MAX_GROUP_BYTES * samples // (max(bytes_, 1) * size)
    return max(1, min(last * 2, MAX_GROUP_BATCHES, fit))


def _as_tensors(
    columns: Iterator[tuple[int, Columns]], watch: Stopwatch, *, transposes: bool
) -> Iterator[tuple[int, Columns]]:
    for count, found in columns:
        watch.end_samples()
        tensors = tensors_of(found, transposes=transposes)
        del found
        watch.end_collating()
        yield count, tensors
        del tensors


def _with_info(
    epoch: WorkerEpoch, watch: Stopwatch, batches: Iterator[tuple[int, Any]], least: int = 1
) -> Iterator[Batch]:
    """Batches of (samples, batch) with their bookkeeping, but those of fewer than ``least``."""
    position = epoch.start
    watch.start()
    for count, batch in batches:
        if count >= least:
            info = batch_info(epoch, position, count, watch.take())
            position += count
            if isinstance(epoch, PaddedWorkerEpoch):
                yield mask_padding(info, batch, epoch)
            else:
                yield info, batch
        del batch  # before the next one is made, so that its memory can be that one's
        watch.start()
