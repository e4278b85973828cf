"""Batches of a worker, made in stages where the samples are read, with their bookkeeping.

The stages are ``read -> filter -> map -> collate | pack -> mask -> transport``, see `rows.py`. This
file joins them. If samples are as stored and batches are collated by torch's default, columns are
read, without a Python object for each sample. All other batches are collated from samples.

Terms: a *worker* is a process or thread that makes batches, or the trainer's thread if there is
none. A `WorkerEpoch` is a worker's part of an epoch. A *place* is the number of a sample in the
order of this part, from 0. "Ours" is what runs without code of the user.
"""

from __future__ import annotations

import copy
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from mds._dataset.filtering import DropCount
from mds._dataset.reading import read_windows
from mds._dataset.streaming import StreamingDataset
from mds._dataset.worker_epoch import PaddedWorkerEpoch, WorkerEpoch, collect_epochs, take_dropped
from mds._loader.batch_maker import BatchMaker, make_tensors
from mds._loader.checks import find_streaming
from mds._loader.messages import BatchIterator, send_batches, send_chunks, send_joined
from mds._loader.rows import (
    MAX_GROUP_BATCHES,
    SUM_BITS,
    BatchInfo,
    BatchParts,
    ChunkSize,
    Rows,
    add_mask,
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
from mds._loader.tensor_buffers import Allocator, TensorPool
from mds._process.fork_safe import cached_property
from mds._process.stopwatch import COLLATE, DECODE, FUNCTIONS, Stopwatch
from mds.encodings import DecodeKind, parse_encoding
from mds.errors import ConfigError
from mds.transforms._chain import FunctionChain
from mds.world import worker_group, worker_place

if TYPE_CHECKING:
    from mds._index.shard_object import ShardSchema
    from mds._loader.messages import Message
    from mds._loader.pack_documents import DocumentValues
    from mds._loader.packed_batches import BatchPacker
    from mds._loader.rows import FixedColumns
    from mds._process.stopwatch import Clock
    from mds.plan._pack_plan import RankPacks

#: Number of parts into which a batch is split; a part is decoded before functions are called with
#: its samples.
_PARTS = 3


class Batches(IterableDataset[Any]):
    """Batches of a dataset, in messages from the worker to the trainer.

    A message is one pair (`BatchInfo`, batch), or several such pairs as a `BatchGroup` or a
    `BatchList`.

    In a worker process this object is torch's "dataset". An attribute that it does not have is
    looked up on the user's dataset (`__getattr__`), for code of the user that asks torch for the
    dataset.

    Args:
        dataset: A StreamingDataset, or a class of the user's that iterates one.
        batch_size: In samples; None gives single samples.
        drop_last: Whether the last batch of a worker is left out if it is smaller.
        collate: The loader's collate function.
        clock: Clock by which the making of batches is timed.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None,
        drop_last: bool,
        collate: Callable[[Any], Any],
        clock: Clock = time.perf_counter,
    ) -> None:
        self.dataset = dataset
        self._clock = clock
        self._size, self._drop_last = batch_size, drop_last
        is_streaming = isinstance(dataset, StreamingDataset)
        chain = dataset._filter.chain if is_streaming else FunctionChain()
        # Users of mosaicml-streaming get dicts and lists as torch collates them.
        self._transposes = not getattr(dataset, "_is_strict", True)
        self._maker = BatchMaker(collate, batch_size, chain, transposes=self._transposes)

    def __iter__(self) -> Iterator[Message]:
        return self.begin_epoch(*worker_place(), worker_group())

    def begin_epoch(
        self, worker: int, workers: int, group: int, allocate: Allocator | None = None
    ) -> Iterator[Message]:
        """Begin the epoch of one worker at once, and return its messages.

        Args:
            worker: Number of the worker of this rank.
            workers: Number of workers of this rank.
            group: Number of the iteration. All its workers give the same number, so that they make
                batches of the same epoch.
            allocate: Allocates the memory of batches if they are used in another thread or process
                than this one. Several batches may then come in one message. None if they are used
                in this thread: each message is then a single batch.
        """
        # Filled while messages are made: a class of the user may begin epochs at any time.
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
        """Begin an epoch, and return its messages; this chooses the stages of a batch.

        For the arguments, see `begin_epoch`. ``epochs`` is filled here, at once or while messages
        are made, with the worker's epochs of the StreamingDataset. The caller needs them when the
        messages end, to release the shards of their windows (the shards that are open for reading).
        The class of a user may begin several.
        """
        watch = Stopwatch(self._clock)
        # Samples that a class of the user makes by iterating.
        if not self._is_ours:
            custom = begin_custom(self.dataset, self._size, self._drop_last, epochs)
            samples = timed(custom, watch, FUNCTIONS)  # decoding our samples included
            return self._send_samples(samples, None, watch)
        epoch = self.dataset._begin_epoch(worker, workers, group, for_loader=True)
        epochs.append(epoch)
        pool = allocate or TensorPool()
        # Packs of documents.
        if self.dataset.packing is not None:
            packer, steps = self.pack_stages(epoch, watch, pool)
            packs = map(add_mask, map(packer.pack, steps))
            return send_batches(packs, epoch, watch, min_size=0)
        # Samples one by one, because code of the user is called with them.
        if not self._reads_columns:
            return self._send_samples(self._read_samples(epoch, watch), epoch, watch)
        # Columns, with functions of whole batches.
        is_masked = isinstance(epoch, PaddedWorkerEpoch)
        if self._maker.has_functions:
            batches = self._call_functions(epoch, watch)
            if allocate is not None and not is_masked:
                return send_joined(batches, worker, epoch, watch)
            tensors = timed(map(make_tensors, batches), watch, COLLATE)
            return send_batches(map(add_mask, tensors), epoch, watch)
        # Columns as stored. Several batches are gathered at once if they can be cut again.
        min_size = self._min_size
        if self._is_sliceable and not is_masked:
            chunks = self._read_tensors(epoch, watch, pool, MAX_GROUP_BATCHES)
            groups = send_chunks(chunks, self._size or 1, min_size, worker, epoch, watch)
            # In the trainer's thread, cut the groups into batches here; else the receiver does.
            return BatchIterator(groups, workers) if allocate is None else groups
        tensors = self._read_tensors(epoch, watch, pool, most_batches=1)
        return send_batches(map(add_mask, tensors), epoch, watch, min_size)

    def _send_samples(
        self, samples: Iterator[Rows], epoch: WorkerEpoch | None, watch: Stopwatch
    ) -> Iterator[Message]:
        """Collate batches of samples and send them; ``epoch`` is None for a class of the user."""
        describe = epoch.describe if epoch is not None else _describe_custom
        collate = functools.partial(self._maker.collate, describe=describe, watch=watch)
        return send_batches(map(add_mask, map(collate, samples)), epoch, watch)

    @property
    def _min_size(self) -> int:
        """Minimum number of places of a batch; smaller ones are left out."""
        return (self._size or 1) if self._drop_last else 1

    def _read_columns(
        self, epoch: WorkerEpoch, watch: Stopwatch, allocate: Allocator, most_batches: int
    ) -> Iterator[Rows]:
        """Read chunks of columns, each of at most ``most_batches`` batches.

        Args:
            epoch: The worker's part of the epoch.
            watch: Stopwatch, to which the time of decoding is charged.
            allocate: Allocates the memory of columns of fixed width.
            most_batches: Maximum number of batches of a chunk.
        """
        dataset, maker = self.dataset, self._maker
        # The user's functions may change arrays, which must not be views of the files then.
        copy = maker.has_functions and not maker.is_ours and dataset._columns.copy
        windows = read_windows(dataset, epoch.blocks(), epoch)
        size = ChunkSize(self._size or 1, most_batches)
        fixed = self._fixed_columns
        chunks = read_columns(windows, size, fixed, allocate, epoch, copy=copy)
        return timed(chunks, watch, DECODE)

    def _read_tensors(
        self, epoch: WorkerEpoch, watch: Stopwatch, allocate: Allocator, most_batches: int
    ) -> Iterator[Rows]:
        """Read chunks of columns as tensors, each of at most ``most_batches`` batches."""
        chunks = self._read_columns(epoch, watch, allocate, most_batches)
        tensors = functools.partial(make_tensors, transposes=self._transposes)
        return timed(map(tensors, chunks), watch, COLLATE)

    def _call_functions(self, epoch: WorkerEpoch, watch: Stopwatch) -> Iterator[Rows]:
        """Read columns, cut them into batches, and call the functions of `map_batches`.

        Columns of fixed width are read for several batches at once, which costs less.
        """
        keys = epoch.key_stream() if self._maker.is_keyed else None
        most_batches = MAX_GROUP_BATCHES if self._fixed_columns else 1
        chunks = self._read_columns(epoch, watch, TensorPool(), most_batches)
        batches = cut_columns(chunks, self._size or 1, self._min_size, keys)
        call = functools.partial(self._maker.call_functions, describe=epoch.describe, watch=watch)
        return map(call, batches)

    def _read_samples(self, epoch: WorkerEpoch, watch: Stopwatch) -> Iterator[Rows]:
        """Read the samples of each batch, and call the functions of `map` and filters.

        There are two ways. Samples are read one by one, by number, if they can be dropped or if a
        class of the user reads them. Otherwise many are decoded at once.
        """
        dataset, size, min_size = self.dataset, self._size or 1, self._min_size
        chain = dataset._filter.chain
        keys = epoch.key_stream() if chain.is_keyed or self._maker.is_keyed else None
        parts = BatchParts(
            size=lambda: size,
            parts=_PARTS if chain.maps else 1,
            first=epoch.start,
            keys=keys.take if keys is not None else None,
            masks=epoch.next_mask if isinstance(epoch, PaddedWorkerEpoch) else None,
        )
        if dataset._has_own_items or not dataset._filter.keeps_everything:
            from mds._loader.sample_functions import SampleJudge, keep_samples

            judge = SampleJudge(dataset, epoch, watch, lambda place, _: epoch.describe(place))
            numbers = read_numbers(dataset, epoch, epoch.blocks(), parts)
            judged = count_places(dataset, epoch, map(judge.judge, numbers))
            batches = timed(join_samples(judged, min_size), watch, DECODE)
            if dataset._filter.keeps_everything:
                return batches
            keep = functools.partial(keep_samples, judge=judge, dataset=dataset, epoch=epoch)
            return map(keep, batches)
        samples = timed(read_samples(dataset, epoch, epoch.blocks(), parts), watch, DECODE)
        if chain.maps:
            from mds._loader.sample_functions import SampleMapper

            samples = timed(map(SampleMapper(chain, epoch).map, samples), watch, FUNCTIONS)
        samples = count_places(dataset, epoch, samples)
        return samples if size == 1 else join_samples(samples, min_size)

    def pack_stages(
        self, epoch: WorkerEpoch, watch: Stopwatch, allocate: Allocator
    ) -> tuple[BatchPacker, Iterator[tuple[RankPacks, Rows | None]]]:
        """Return the stage that packs documents, and its input: each step with its documents.

        Documents are read as columns if they are used as stored, else as samples. Both ways end in
        ``documents``, which collects their values, and ``rows``, the documents of each step.
        """
        from mds._loader.pack_documents import SampleDocuments, StoredDocuments, is_columnar
        from mds._loader.packed_batches import BatchPacker, PackSteps

        dataset, order = self.dataset, epoch.order.packs
        assert order is not None
        is_keyed = dataset._filter.chain.is_keyed
        steps = PackSteps(epoch, drop_last=self._drop_last, is_keyed=is_keyed)
        arguments = dataset, order.packing, order.lengths, allocate
        documents: DocumentValues
        if self.is_plain and is_columnar(dataset):
            documents, dropped = StoredDocuments(*arguments), DropCount()
            windows = read_windows(dataset, steps.blocks(), epoch)
            chunks = gather_chunks(windows, steps.next_size)
            rows: Iterator[Rows] = (Rows(0, count, columns) for count, columns in chunks)
        else:
            from mds._loader.sample_functions import SampleJudge

            def describe(_: int, number: int) -> str:
                """Describe a document for an error, by its sample number.

                The place is ignored: it is the place of the whole pack.
                """
                return f"sample {number} (of a pack of epoch {order.epoch})"

            documents = SampleDocuments(*arguments)
            parts = BatchParts(steps.next_size, _PARTS, keys=steps.take_keys if is_keyed else None)
            judge = SampleJudge(dataset, epoch, watch, describe)
            dropped = judge.dropped
            numbers = read_numbers(dataset, epoch, steps.blocks(), parts)
            rows = join_samples(map(judge.judge, numbers))
        packer = BatchPacker(dataset, epoch, self._maker, watch, allocate, documents, dropped)
        return packer, steps.join(timed(rows, watch, DECODE))

    @property
    def _reads_columns(self) -> bool:
        """Whether batches are gathered column by column."""
        return (
            self.is_plain
            and self._size is not None
            and self._maker.takes_columns
            and bool(self.dataset._filter.keeps_everything)
            and self._is_columnar
        )

    @property
    def _is_ours(self) -> bool:
        """Whether this library iterates over the dataset, and no ``__iter__`` of the user.

        Code of the user may still make single samples (``map``, ``__getitem__``).
        """
        dataset = self.dataset
        return (
            isinstance(dataset, StreamingDataset)
            and type(dataset).__iter__ is StreamingDataset.__iter__
        )

    @property
    def is_of_order(self) -> bool:
        """Whether a batch of n samples takes n places of the order."""
        return self._is_ours

    @property
    def is_plain(self) -> bool:
        """Whether samples are as stored, without code of the user."""
        return isinstance(self.dataset, StreamingDataset) and self.dataset._is_plain

    @property
    def may_use_threads(self) -> bool:
        """Whether threads can make batches: this library iterates, not a class of the user."""
        return self._is_ours

    def of_thread(self) -> Batches:
        """Return these batches for one of several threads.

        If code of the user makes samples, the batches of each thread have a copy of the dataset, as
        in a worker process, so that threads do not share its attributes.
        """
        # A class that iterates by itself is never run in several threads: it is not copied either.
        if not self._is_ours or (self.is_plain and self._maker.takes_columns):
            return self
        thread_batches = copy.copy(self)
        thread_batches.dataset = copy.copy(self.dataset)
        return thread_batches

    @property
    def is_made_here(self) -> bool:
        """Whether samples and batches are made by this library alone, without code of the user."""
        return self.is_plain and self._maker.is_ours

    @property
    def has_row_per_sample(self) -> bool:
        """Whether a batch of n samples has n rows, because nothing drops or joins samples."""
        return self._is_ours and self.dataset._filter.keeps_everything and self._maker.is_ours

    @property
    def _schemas(self) -> list[ShardSchema]:
        return [schema for index in self.dataset._shards.indexes for schema in index.schemas]

    @property
    def _is_columnar(self) -> bool:
        """Whether all streams have the same columns, so that batches can be gathered from all."""
        first, *following = (schema.columns for schema in self._schemas)
        return all(
            columns.names == first.names and columns.encodings == first.encodings
            for columns in following
        )

    @property
    def _is_sliceable(self) -> bool:
        """Whether rows cut out of the columns of a larger batch are what a batch of them would be.

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
        return fixed_columns(self.dataset, self._schemas)

    def __getattr__(self, name: str) -> Any:
        # Ask the user's dataset; an object that is being copied or unpickled has none yet.
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["dataset"], name)


def _close_windows_after(
    messages: Iterator[Message], epochs: list[WorkerEpoch]
) -> Iterator[Message]:
    """Yield messages; after the last one, and after an error, release all open shards.

    ``epochs`` may grow while messages are made; the shards of all its epochs are released.
    """
    try:
        yield from messages
    finally:
        for epoch in epochs:
            epoch.close_windows()


def _describe_custom(_: int, count: int) -> str:
    """Describe a batch of samples that the user's code made."""
    return f"a batch of {count} samples"


def begin_custom(
    dataset: Any, batch_size: int | None, drop_last: bool, epochs: list[WorkerEpoch]
) -> Iterator[Rows]:
    """Begin an epoch of a class that iterates by itself; return its samples, batch by batch.

    Args:
        dataset: Object of the user's class, which reads a StreamingDataset.
        batch_size: Samples of a batch; None gives single samples.
        drop_last: Whether a last batch that is not full is left out.
        epochs: List to which epochs of the StreamingDataset are added when the class begins them.
    """
    source = find_streaming(dataset)
    assert source is not None
    with collect_epochs(source, epochs):
        samples = iter(dataset)
    return _read_custom(dataset, source, samples, epochs, batch_size, drop_last)


def _read_custom(
    dataset: Any,
    source: StreamingDataset,
    samples: Iterator[Any],
    epochs: list[WorkerEpoch],
    batch_size: int | None,
    drop_last: bool,
) -> Iterator[Rows]:
    """Yield batches of samples that the user's class makes.

    The class may read more or fewer samples than it returns. So the places of a batch are those
    that the StreamingDataset gave out while the batch was made: if the class joins 20 samples into
    a batch of 8, the batch takes 20 places.

    Args:
        dataset: Object of the user's class, named in messages.
        source: StreamingDataset that the class reads.
        samples: Iterator of the class.
        epochs: Epochs that the class has begun; all but the last one are removed.
        batch_size: Samples of a batch; None gives single samples.
        drop_last: Whether a last batch that is not full is left out.
    """
    position = checksum = 0  # place and sum of the order hash after the last batch
    count = batch_size or 1
    while True:
        with collect_epochs(source, epochs):  # a generator may begin an epoch at any sample
            batch = [*itertools.islice(samples, count)]
        if not batch:
            return
        if len(batch) < count and drop_last:
            continue  # the next round finds the end
        first, earlier = position, checksum
        epoch = epochs[-1] if epochs else None
        if epoch is not None:
            position, checksum = epoch.position, epoch.checksum_until(epoch.position)
        skipped, dropped = take_dropped(epochs)
        del epochs[:-1]  # only the last one still gives samples
        places = position - first
        mask = None
        if isinstance(epoch, PaddedWorkerEpoch):
            if places != len(batch):
                name = type(dataset).__name__
                raise ConfigError(
                    f"remainder='mask' needs one sample for every place of the order, but {name} "
                    f"returned {len(batch)} samples for {places} places. Use remainder='short'."
                )
            mask = epoch.next_mask(places)
        # A class may return lists of samples; each list counts as one sample, or by its entries.
        entries = sum(len(sample) if type(sample) is list else 1 for sample in batch)
        info = BatchInfo(
            places,
            ((checksum - earlier) & SUM_BITS, places if mask is None else int(mask.sum())),
            epoch.begin if epoch is not None else None,
            skipped,
            dropped,
            wrapper_samples=(len(batch), entries),
        )
        rows = Rows(first, len(batch), batch, mask=mask, info=info)
        del batch  # decoded images are large
        yield rows
        del rows
