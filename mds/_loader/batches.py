"""Batches of a worker, made in stages where the samples are read, with their bookkeeping.

`Batches` chooses the stages of the batches, see `_iteration/stages.py`, and the messages in which
they are sent.

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

from mds._dataset.run import begin_epoch, run_of, source_of
from mds._dataset.streaming import StreamingDataset
from mds._iteration.batch_maker import BatchMaker, make_tensors
from mds._iteration.rows import SUM_BITS, Allocator, BatchInfo, Rows, TensorPool, add_mask, timed
from mds._iteration.stages import Stages
from mds._iteration.worker_epoch import PaddedWorkerEpoch, WorkerEpoch, collect_epochs, take_dropped
from mds._loader.checks import find_streaming
from mds._loader.messages import BatchIterator, send_batches, send_chunks, send_joined
from mds._process.stopwatch import COLLATE, FUNCTIONS, Stopwatch
from mds._words import plural
from mds.errors import ConfigError
from mds.transforms._chain import FunctionChain
from mds.world import worker_group, worker_place

if TYPE_CHECKING:
    from mds._loader.messages import Message
    from mds._process.stopwatch import Clock


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
        chain, transposes = FunctionChain(), False
        if isinstance(dataset, StreamingDataset):
            chain = source_of(dataset).filter.chain
            # Users of mosaicml-streaming get dicts and lists as torch collates them.
            transposes = not run_of(dataset).is_strict
        self._maker = BatchMaker(collate, batch_size, chain, transposes=transposes)

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
        maker, size, drop_last = self._maker, self._size, self._drop_last
        watch = Stopwatch(self._clock)
        # Samples that a class of the user makes by iterating.
        if not self._is_ours:
            samples = begin_custom(self.dataset, size, drop_last, epochs)
            samples = timed(samples, watch, FUNCTIONS)  # decoding our samples included
            collate = functools.partial(maker.collate, describe=_describe_custom, watch=watch)
            return send_batches(map(add_mask, map(collate, samples)), None, watch)
        epoch = begin_epoch(self.dataset, worker, workers, group, for_loader=True)
        epochs.append(epoch)
        source, pool = source_of(self.dataset), allocate or TensorPool()
        stages = Stages(source, epoch, maker, size=size, drop_last=drop_last, watch=watch)
        # Packs of documents.
        if epoch.order.spec.packing is not None:
            packer, steps = stages.pack(pool)
            packs = map(add_mask, map(packer.pack, steps))
            return send_batches(packs, epoch, watch, min_size=0)
        # Samples one by one, because code of the user is called with them.
        if not stages.has_columns:
            return send_batches(map(add_mask, stages.collate()), epoch, watch)
        # Columns, with functions of whole batches.
        is_masked = isinstance(epoch, PaddedWorkerEpoch)
        if maker.has_functions:
            batches = stages.call_functions()
            if allocate is not None and not is_masked:
                return send_joined(batches, worker, epoch, watch)
            tensors = timed(map(make_tensors, batches), watch, COLLATE)
            return send_batches(map(add_mask, tensors), epoch, watch)
        # Columns as stored. Several batches are gathered at once if they can be cut again.
        min_size = stages.min_size
        if stages.is_sliceable and not is_masked:
            groups = send_chunks(stages.gather(pool), size or 1, min_size, worker, epoch, watch)
            # In the trainer's thread, cut the groups into batches here; else the receiver does.
            return BatchIterator(groups, workers) if allocate is None else groups
        tensors = stages.gather(pool, most_batches=1)
        return send_batches(map(add_mask, tensors), epoch, watch, min_size)

    @property
    def _is_ours(self) -> bool:
        """True if this library iterates over the dataset, and no ``__iter__`` of the user.

        Code of the user may still make single samples (``map``, ``__getitem__``).
        """
        dataset = self.dataset
        return (
            isinstance(dataset, StreamingDataset)
            and type(dataset).__iter__ is StreamingDataset.__iter__
        )

    @property
    def is_of_order(self) -> bool:
        """True if a batch of n samples takes n places of the order."""
        return self._is_ours

    @property
    def is_plain(self) -> bool:
        """True if samples are as stored, without code of the user."""
        return isinstance(self.dataset, StreamingDataset) and source_of(self.dataset).is_plain

    @property
    def may_use_threads(self) -> bool:
        """True if threads can make batches: this library iterates, not a class of the user."""
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
        """True if samples and batches are made by this library alone, without code of the user."""
        return self.is_plain and self._maker.is_ours

    @property
    def has_row_per_sample(self) -> bool:
        """True if a batch of n samples has n rows, because nothing drops or joins samples."""
        if not self._is_ours or not self._maker.is_ours:
            return False
        return source_of(self.dataset).filter.keeps_everything

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
    return f"a batch of {plural(count, 'sample')}"


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
    index = checksum = 0  # index and sum of the order hash after the last batch
    count = batch_size or 1
    while True:
        with collect_epochs(source, epochs):  # a generator may begin an epoch at any sample
            batch = [*itertools.islice(samples, count)]
        if not batch:
            return
        if len(batch) < count and drop_last:
            continue  # the next round finds the end
        first, earlier = index, checksum
        epoch = epochs[-1] if epochs else None
        if epoch is not None:
            index, checksum = epoch.index, epoch.checksum_until(epoch.index)
        skipped, dropped = take_dropped(epochs)
        del epochs[:-1]  # only the last one still gives samples
        places = index - first
        mask = None
        if isinstance(epoch, PaddedWorkerEpoch):
            if places != len(batch):
                name = type(dataset).__name__
                raise ConfigError(
                    f"remainder='mask' needs one sample for every place of the order, but {name} "
                    f"returned {plural(len(batch), 'sample')} for {plural(places, 'place')}. Use "
                    "remainder='short'."
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
