"""Stages that make the batches of one worker in one epoch, joined for each kind of batch.

The stages are ``read -> filter -> map -> collate | pack -> mask``, see `rows.py`. If samples are as
stored and batches are collated by torch's default, columns are read, without a Python object for
each sample. All other batches are collated from samples, or packed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mds._iteration.batch_maker import make_tensors
from mds._iteration.filtering import DropCount
from mds._iteration.reading import SampleSource, read_windows
from mds._iteration.rows import (
    MAX_GROUP_BATCHES,
    Allocator,
    BatchParts,
    ChunkSize,
    Rows,
    TensorPool,
    count_places,
    cut_columns,
    fixed_columns,
    gather_chunks,
    join_samples,
    read_columns,
    read_numbers,
    read_samples,
    timed,
)
from mds._iteration.worker_epoch import PaddedWorkerEpoch, WorkerEpoch
from mds._process.fork_safe import cached_property
from mds._process.stopwatch import COLLATE, DECODE, FUNCTIONS, Stopwatch
from mds.encodings import DecodeKind, parse_encoding

if TYPE_CHECKING:
    from mds._index.shard_object import ShardSchema
    from mds._iteration.batch_maker import BatchMaker
    from mds._iteration.pack_documents import DocumentValues
    from mds._iteration.packed_batches import BatchPacker
    from mds._iteration.rows import FixedColumns
    from mds.plan._pack_filling import RankPacks

#: Number of parts into which a batch is split; a part is decoded before functions are called with
#: its samples.
_PARTS = 3


class Stages:
    """Stages of the batches of one worker in one epoch.

    Each method returns the stages of one kind of batch. Call one of them, once.

    Args:
        source: Samples to read.
        epoch: The worker's part of the epoch.
        maker: Makes a batch of samples or of columns.
        size: Samples of a batch; None gives single samples.
        drop_last: Whether the last batch of a worker is left out if it is smaller.
        watch: Stopwatch, to which the time of each stage is charged.
    """

    def __init__(
        self,
        source: SampleSource,
        epoch: WorkerEpoch,
        maker: BatchMaker,
        *,
        size: int | None,
        drop_last: bool,
        watch: Stopwatch,
    ) -> None:
        self._source, self._epoch, self._maker, self._watch = source, epoch, maker, watch
        self._has_size, self._size, self._drop_last = size is not None, size or 1, drop_last
        self._schemas = [schema for index in source.shards.indexes for schema in index.schemas]
        #: Minimum number of samples of a batch; smaller ones are left out.
        self.min_size = self._size if drop_last else 1

    @property
    def has_columns(self) -> bool:
        """True if batches can be gathered column by column."""
        return (
            self._has_size
            and self._source.is_plain
            and self._maker.takes_columns
            and self._source.filter.keeps_everything
            and _are_alike(self._schemas)
        )

    @property
    def is_sliceable(self) -> bool:
        """True if rows cut out of the columns of a larger batch are what a batch of them would be.

        It is false for arrays of any shape, for example: they are a tensor if all arrays of a batch
        happen to have one shape, else a list.
        """
        encodings = map(parse_encoding, self._schemas[0].columns.encodings)
        kinds_of_lists = {DecodeKind.TEXT, DecodeKind.BYTES}  # batches of these are lists
        return all(
            encoding.decode_kind in kinds_of_lists or (encoding.size and encoding.dtype is not None)
            for encoding in encodings
        )

    @cached_property
    def _fixed_columns(self) -> FixedColumns:
        return fixed_columns(self._source.columns, self._schemas)

    # ------------------------------------------------------------------ columns

    def gather(self, allocate: Allocator, most_batches: int = MAX_GROUP_BATCHES) -> Iterator[Rows]:
        """Read chunks of columns as tensors, each of at most ``most_batches`` batches.

        ``allocate``: allocates the memory of columns of fixed width.
        """
        chunks = self._read_columns(allocate, most_batches)
        tensors = functools.partial(make_tensors, transposes=self._maker.transposes)
        return timed(map(tensors, chunks), self._watch, COLLATE)

    def call_functions(self) -> Iterator[Rows]:
        """Read columns, cut them into batches, and call the functions of `map_batches`.

        Columns of fixed width are read for several batches at once, which costs less.
        """
        maker, epoch = self._maker, self._epoch
        keys = epoch.key_stream() if maker.is_keyed else None
        most_batches = MAX_GROUP_BATCHES if self._fixed_columns else 1
        chunks = self._read_columns(TensorPool(), most_batches)
        batches = cut_columns(chunks, self._size, self.min_size, keys)
        call = functools.partial(maker.call_functions, describe=epoch.describe, watch=self._watch)
        return map(call, batches)

    def _read_columns(self, allocate: Allocator, most_batches: int) -> Iterator[Rows]:
        """Read chunks of columns, each of at most ``most_batches`` batches."""
        source, epoch, maker = self._source, self._epoch, self._maker
        # The user's functions may change arrays, which must not be views of the files then.
        copy = maker.has_functions and not maker.is_ours and source.columns.copy
        windows = read_windows(source, epoch.blocks(), epoch)
        size = ChunkSize(self._size, most_batches)
        chunks = read_columns(windows, size, self._fixed_columns, allocate, epoch, copy=copy)
        return timed(chunks, self._watch, DECODE)

    # ------------------------------------------------------------------ samples

    def collate(self) -> Iterator[Rows]:
        """Read samples, call the functions of `map` and filters, and collate batches."""
        collate = functools.partial(
            self._maker.collate, describe=self._epoch.describe, watch=self._watch
        )
        return map(collate, self._read_samples())

    def _read_samples(self) -> Iterator[Rows]:
        """Read the samples of each batch, and call the functions of `map` and filters.

        There are two ways. Samples are read one by one, by number, if they can be dropped or if a
        class of the user reads them. Otherwise many are decoded at once.
        """
        source, epoch, watch = self._source, self._epoch, self._watch
        size, min_size, chain = self._size, self.min_size, source.filter.chain
        keys = epoch.key_stream() if chain.is_keyed or self._maker.is_keyed else None
        parts = BatchParts(
            size=lambda: size,
            parts=_PARTS if chain.maps else 1,
            first=epoch.start,
            keys=keys.take if keys is not None else None,
            masks=epoch.next_mask if isinstance(epoch, PaddedWorkerEpoch) else None,
        )
        if source.has_own_items or not source.filter.keeps_everything:
            from mds._iteration.sample_functions import SampleJudge, keep_samples

            judge = SampleJudge(source, epoch, watch, lambda index, _: epoch.describe(index))
            numbers = read_numbers(source, epoch, epoch.blocks(), parts)
            judged = count_places(epoch, map(judge.judge, numbers))
            batches = timed(join_samples(judged, min_size), watch, DECODE)
            if source.filter.keeps_everything:
                return batches
            keep = functools.partial(keep_samples, judge=judge, source=source, epoch=epoch)
            return map(keep, batches)
        samples = timed(read_samples(source, epoch, epoch.blocks(), parts), watch, DECODE)
        if chain.maps:
            from mds._iteration.sample_functions import SampleMapper

            samples = timed(map(SampleMapper(chain, epoch).map, samples), watch, FUNCTIONS)
        samples = count_places(epoch, samples)
        return samples if size == 1 else join_samples(samples, min_size)

    # ------------------------------------------------------------------ packs

    def pack(
        self, allocate: Allocator
    ) -> tuple[BatchPacker, Iterator[tuple[RankPacks, Rows | None]]]:
        """Return the stage that packs documents, and its input: each step with its documents.

        Documents are read as columns if they are used as stored, else as samples. Both ways end in
        ``documents``, which collects their values, and ``rows``, the documents of each step.

        ``allocate``: allocates the columns of packs.
        """
        from mds._iteration.pack_documents import SampleDocuments, StoredDocuments, is_columnar
        from mds._iteration.packed_batches import BatchPacker, PackSteps

        source, epoch, watch, order = self._source, self._epoch, self._watch, self._epoch.order
        packs = epoch.packs
        is_keyed = source.filter.chain.is_keyed
        steps = PackSteps(epoch, drop_last=self._drop_last, is_keyed=is_keyed)
        arguments = source, packs.packing, packs.lengths, allocate
        documents: DocumentValues
        if source.is_plain and is_columnar(source, packs.packing):
            documents, dropped = StoredDocuments(*arguments), DropCount()
            windows = read_windows(source, steps.blocks(), epoch)
            chunks = gather_chunks(windows, steps.next_size)
            rows: Iterator[Rows] = (Rows(0, count, columns) for count, columns in chunks)
        else:
            from mds._iteration.sample_functions import SampleJudge

            def describe(_: int, number: int) -> str:
                """Describe a document for an error, by its sample number.

                The index is ignored: it is that of the whole pack.
                """
                return f"sample {number} (of a pack of epoch {order.epoch})"

            documents = SampleDocuments(*arguments)
            parts = BatchParts(steps.next_size, _PARTS, keys=steps.take_keys if is_keyed else None)
            judge = SampleJudge(source, epoch, watch, describe)
            dropped = judge.dropped
            numbers = read_numbers(source, epoch, steps.blocks(), parts)
            rows = join_samples(map(judge.judge, numbers))
        packer = BatchPacker(source, epoch, self._maker, watch, allocate, documents, dropped)
        return packer, steps.join(timed(rows, watch, DECODE))


def _are_alike(schemas: list[ShardSchema]) -> bool:
    """Return True if all shards have the same columns, so that batches can be gathered from all."""
    first, *following = (schema.columns for schema in schemas)
    return all(
        columns.names == first.names and columns.encodings == first.encodings
        for columns in following
    )
