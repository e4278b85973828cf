"""Part of a worker in an epoch: its sample ids, its progress, and sums for the order hash.

All state of an iteration is here and not in the dataset, so a dataset may be iterated several times
at once.

A sample has an *index* in this worker's order, counted from 0, and a *position* in the epoch of all
ranks. With two ranks of one worker each, whose batches have one sample::

    position         0  1  2  3  4  5
    rank             0  1  0  1  0  1
    index            0  0  1  1  2  2

At some indexes there is no sample but *padding*, -1 in the plan, so that ranks get equally many. A
*block* is an array of some thousand consecutive ids, and a *stretch* an iterator over the samples
of consecutive indexes. Worker n of a rank has its batches n, n + workers, ...
"""

from __future__ import annotations

import collections
import operator
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds._process.fork_safe import call_in_child
from mds.errors import IterationError, repeatable
from mds.plan._audit import summands
from mds.plan._epoch import SampleFilling
from mds.transforms._randomness import keys_of_places

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._cache.shard_cache import ShardCache
    from mds._iteration.filtering import DropCount, SkippedSample
    from mds._prefetch.prefetcher import Window
    from mds._readers.base import Reader
    from mds.plan import EpochPlan
    from mds.plan._pack_filling import PackFilling, RankPacks
    from mds.plan._state import Position, ResumePoint
    from mds.world import World

    Ids = npt.NDArray[np.int64]

_NOTHING: Iterator[Any] = iter(())
_ADVICE = (
    "To start the next epoch, iterate the dataset again. To continue this epoch, call "
    "dataset.load_state_dict(dataset.state_dict()) first."
)


class EpochProgress(NamedTuple):
    """How far all ranks are in an epoch.

    Attributes:
        begin: Position at which the iteration began.
        share: Number of samples that every rank has taken since then.
        end: Position after these samples; None if it follows from ``begin`` and ``share``.
        is_finished: Whether the epoch is finished on all ranks.
    """

    begin: Position
    share: int
    end: Position | None
    is_finished: bool


class OpenWindows:
    """Mixin of an iteration: its generator of windows, which can be closed from outside."""

    # A weak reference to the generator; before `open_windows`, a function that returns None too.
    _windows: Callable[[], Generator[Window, None, None] | None] = staticmethod(lambda: None)

    def open_windows(self, windows: Generator[Window, None, None]) -> None:
        """Remember the generator of windows, without keeping it alive."""
        self._windows = weakref.ref(windows)

    def close_windows(self) -> None:
        """Release the shards and threads of the windows; closing twice is fine.

        This is needed after an error, whose traceback keeps unfinished generators alive.
        """
        windows = self._windows()
        if windows is not None:
            with suppress(ValueError):  # another thread, or the parent process, is inside
                windows.close()


class ReadersAtHand:
    """Readers of the current window of an iteration, which ``dataset[i]`` may use during a call.

    A class of the user may read samples by number inside an iteration. Functions from `lend` make
    the open readers available to such reads, in the calling thread and until the call returns. The
    iteration waits for the call, so the window stays open.
    """

    def __init__(self) -> None:
        self.cache: ShardCache | None = None  # the cache whose shard numbers these are
        self.shards: AbstractSet[int] = frozenset()
        self.readers: Mapping[int, Reader] = {}

    def begin_window(self, cache: ShardCache, window: Window) -> None:
        """Use the readers of ``window`` from now on."""
        self.cache, self.readers = cache, window.readers
        self.shards = {*window.shards.tolist()}

    def end_windows(self) -> None:
        """Forget the readers of the last window."""
        self.cache, self.shards, self.readers = None, frozenset(), {}

    def lend(self, get: Callable[[int], Any]) -> Callable[[int], Any]:
        """Return a function that calls ``get`` while these readers are in `lent`.

        ``get`` returns the sample of a number, and may use the readers in the meantime.
        """

        def get_with_readers(number: int) -> Any:
            # Calls may be nested, if ``get`` iterates another dataset.
            before = lent.readers
            lent.readers = self
            try:
                return get(number)
            finally:
                lent.readers = before

        return get_with_readers


class LentReaders(threading.local):
    """Readers that the running call of a function from `ReadersAtHand.lend` may use, by thread."""

    readers: ReadersAtHand | None = None


lent = LentReaders()


def _forget_lent_readers() -> None:
    """Forget, in a forked child, the readers of the parent process."""
    lent.readers = None


call_in_child(_forget_lent_readers)


class WorkerEpoch(ReadersAtHand, OpenWindows):
    """Part of one worker in the order of an epoch: its sample ids, and its progress.

    Args:
        order: EpochPlan of the epoch.
        world: World, with the number of this worker.
        start: Index at which the worker begins after a resume; what comes before it is left out.
        is_counted: Whether a loader asks for sums of its batches for the order hash.

    Attributes:
        end_index: Index after the last sample that was handed to the iteration.
        dropped: Samples that a filter dropped and no batch has reported yet; None without a filter.
        is_closed: Whether the iteration gives no more samples, for whatever reason.
        is_finished: Whether this worker came to the end of the epoch.
        failure: Error that ended the iteration.
        resume_point: Settings of the run in states of this worker, once one was made.
        is_between_stretches: False while a stretch is a Python generator that has not ended. (For
            other stretches `remaining` says so.) A signal may raise an error in its middle.
    """

    def __init__(
        self, order: EpochPlan, world: World, start: int = 0, *, is_counted: bool = False
    ) -> None:
        super().__init__()
        self.order, self.world, self.start = order, world, start
        # Arguments of the methods of a plan that are about one worker.
        self._worker_numbers = (world.node, world.rank_of_node, world.worker_of_rank)
        self.is_counted = is_counted
        self.end_index = start
        self.dropped: DropCount | None = None
        self.is_closed = self.is_finished = False
        self.is_between_stretches = True
        self.failure: Exception | None = None
        self.resume_point: ResumePoint | None = None
        self._remaining_samples = _NOTHING
        self._key_streams: list[KeyStream] = []
        # Blocks that are not summed yet, for `_sum_block`: the first index, at which indexes is a
        # sample (False for padding), and the ids.
        self._blocks: collections.deque[tuple[int, npt.NDArray[np.bool_], Ids]] = (
            collections.deque()
        )
        # Summed blocks: the number of ids before the block, and the sum of the order hash over all
        # ids of the iteration up to each id of the block.
        self._sums: collections.deque[tuple[int, npt.NDArray[np.uint64]]] = collections.deque()
        self._summed_ids = start  # ids before the end of the last summed block
        self._sum = np.uint64(0)  # sum over them

    @property
    def begin(self) -> Position:
        """Position of all ranks at which the order begins."""
        return self.order.begin

    @property
    def samples(self) -> SampleFilling:
        """Samples of the steps of the epoch; only without packing."""
        filling = self.order.filling
        assert isinstance(filling, SampleFilling)
        return filling

    @property
    def packs(self) -> PackFilling:
        """Packs of the steps of the epoch; only with packing."""
        from mds.plan._pack_filling import packs_of

        return packs_of(self.order.filling)

    def rank_packs(self) -> Iterator[RankPacks]:
        """Return an iterator over the packs of this worker, one item for each of its batches."""
        return self.packs.rank_packs(*self._worker_numbers)

    @property
    def most_samples(self) -> int:
        """Maximum number of samples of this worker."""
        # The plan has ``length`` indexes for each worker, in full batches. At most ``filled`` of a
        # step have a sample: fewer than all if the epoch has less than a global batch.
        samples, batch = self.samples, self.order.inputs.microbatch
        return samples.length // batch * min(samples.global_batches.filled, batch)

    @property
    def index(self) -> int:
        """Index of the next sample of this worker, which has taken all samples before it."""
        return self.end_index - self.remaining

    @property
    def remaining(self) -> int:
        """Number of samples that were counted in advance and are not given yet, see `give`."""
        return operator.length_hint(self._remaining_samples)

    @property
    def is_broken_off(self) -> bool:
        """True if a stretch of samples was left before its last one, as a signal may do."""
        return self.remaining > 0 or not self.is_between_stretches

    @property
    def share(self) -> int:
        """Number of samples that every rank has taken, as this rank can tell for a state.

        Each rank has one worker here. Ranks take equally many samples, so it is the own `index`.
        But with ``remainder="short"``, some ranks get fewer: of 9 samples, 2 ranks get 5 and
        4. At the end both count 5, so that their states are equal.
        """
        if not self.is_finished or not self.order.spec.is_uneven:
            return self.index
        _, maximum = self.samples.global_batches.shares
        return max(self.index, maximum)

    @property
    def _is_finished_on_all_ranks(self) -> bool:
        """True if the epoch is finished on all ranks, as far as this rank can tell.

        With ``remainder="short"`` and 9 samples, 2 ranks get 5 and 4. The one with 4 sees that its
        iteration ends. The other has finished once it has taken 5, even if nobody asks for a sixth
        sample. If all ranks get equally many, all of them see the end in the same step.
        """
        if self.is_finished or not self.order.spec.is_uneven:
            return self.is_finished
        minimum, maximum = self.samples.global_batches.shares
        return minimum < maximum <= self.index

    @property
    def progress(self) -> EpochProgress:
        """Progress of all ranks, as this rank can tell for a state."""
        return EpochProgress(self.begin, self.share, None, self._is_finished_on_all_ranks)

    @property
    def worker_count(self) -> tuple[WorkerEpoch, Position, int, int]:
        """What this worker took: arguments of `Run.worker_point`."""
        return self, self.begin, self.index, self.world.worker_of_rank

    @property
    def is_under_way(self) -> bool:
        """True if samples were given and more may come."""
        return not self.is_closed and self.index > self.start

    def give(self, count: int, samples: Iterator[Any]) -> None:
        """Count a stretch of samples before they are given.

        A counter in the loop would cost a fifth of a small sample. Instead, the index is this
        count less the samples that remain.

        Args:
            count: Number of the samples.
            samples: Iterator that gives them; its length hint is the number that remain.
        """
        self.end_index += count
        self._remaining_samples = samples

    def take_back(self, error: BaseException) -> None:
        """Uncount the last sample, because making it failed, and end the iteration by the error."""
        self.end_index -= 1
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the iteration by an error, and release its shards."""
        self.leave()
        self.is_closed = True
        # Every later ``next()`` raises a copy, which does not keep the failed frames alive.
        self.failure = repeatable(error, _ADVICE)
        self.close_windows()

    def interrupt(self) -> None:
        """End the iteration after a signal whose error is not known."""
        self.fail(IterationError(f"a signal interrupted this iteration. {_ADVICE}"))

    def leave(self) -> None:
        """Discard the samples that were counted in advance, and do not count them."""
        self.end_index = self.index
        # Exhaust the iterator, so that code that still holds it gets no more samples.
        collections.deque(self._remaining_samples, maxlen=0)
        self._remaining_samples = _NOTHING

    def blocks(self) -> Iterator[Ids]:
        """Yield the sample ids of this worker in 1-D int64 arrays, without padding.

        Each block is also kept for the order hash and the row keys, if these are wanted.
        """
        index = self.start
        for block in self.order.blocks(*self._worker_numbers, self.start, is_padded=False):
            real = block >= 0  # the last step may have padding (-1) between its samples
            ids = block[real]
            if self.is_counted:
                self._blocks.append((index, real, ids))
            for stream in self._key_streams:
                stream.add_block(index, real, ids)
            index += len(block)
            yield ids

    def key_stream(self) -> KeyStream:
        """Return a stream of row keys for the ids that `blocks` yields from now on."""
        stream = KeyStream(self)
        self._key_streams.append(stream)
        return stream

    def positions(self, first: int, count: int) -> Ids:
        """Return the positions of ``count`` indexes of this worker from ``first`` on, int64."""
        return self.samples.marks(*self._worker_numbers, first, first + count)

    def describe(self, index: int, count: int = 1) -> str:
        """Describe ``count`` samples from an index on, for an error message.

        An example is "sample 17 (place 2,048 of epoch 0)", where the place is a position.
        """
        ids: list[int] = []
        for block in self.order.blocks(*self._worker_numbers, index, is_padded=False):
            ids += block[block >= 0][: count - len(ids)].tolist()
            if len(ids) >= count:
                break
        position = int(self.positions(index, 1)[0])
        place_text = f"(place {position:,} of epoch {self.order.epoch})"
        if count == 1:
            return f"sample {ids[0] if ids else 'of padding'} {place_text}"
        listed = ", ".join(map(str, ids[:8])) + ", ..." * (len(ids) > 8)
        return f"a batch of {count} samples {place_text}: {listed}"

    def checksum_until(self, index: int) -> int:
        """Return the sum of the order hash over the ids before ``index``, modulo 2**64.

        ``index`` must not be smaller than in an earlier call, and ``is_counted`` must be set.
        The running sums of a whole block are computed at its first batch, so that every other batch
        costs a lookup.
        """
        if index == self.start:
            return 0
        # Sum blocks until one contains the index; then find that block among the summed ones.
        while index > self._summed_ids:
            self._sum_block(*self._blocks.popleft())
        blocks = self._sums
        ids_before, sums_in_block = blocks[0]
        while index > ids_before + len(sums_in_block):
            blocks.popleft()
            ids_before, sums_in_block = blocks[0]
        last_id = index - ids_before - 1  # its number in the block
        return int(sums_in_block[last_id])

    def _sum_block(self, first: int, real: npt.NDArray[np.bool_], ids: Ids) -> None:
        """Append a block to ``_sums``: the sum of the order hash up to each of its ids.

        The order hash is the sum of a number for each id (its summand), modulo 2**64. So the sum
        over a batch is the difference of two running sums, and ranks add their sums in any order.

        Args:
            first: Index at which the block begins.
            real: At which indexes of the block is a sample, bool; at others is padding.
            ids: Ids of the block, as `blocks` yields them.
        """
        positions = self.positions(first, len(real))
        sums = np.cumsum(self._summands(positions, real, ids), dtype=np.uint64) + self._sum
        if len(sums):
            self._sums.append((self._summed_ids, sums))
            self._summed_ids += len(sums)
            self._sum = sums[-1]

    def _summands(
        self, positions: Ids, real: npt.NDArray[np.bool_], ids: Ids
    ) -> npt.NDArray[np.uint64]:
        """Return the summand of the order hash for each of ``ids``, uint64.

        ``positions`` and ``real`` have an entry for each index of the block, and ``ids`` one for
        each index with a sample.
        """
        return summands(positions[real], ids)


class PaddedWorkerEpoch(WorkerEpoch):
    """Part of one worker for ``remainder="mask"``: padded so that all batches are full.

    Instead of padding comes the id before it, or sample 0 if there is none; that sample is
    read and then masked. The arguments are those of WorkerEpoch.

    Attributes:
        masks: For each block whose mask was not taken yet, which ids are no padding, bool.
    """

    def __init__(
        self, order: EpochPlan, world: World, start: int = 0, *, is_counted: bool = False
    ) -> None:
        super().__init__(order, world, start, is_counted=is_counted)
        self.masks: collections.deque[npt.NDArray[np.bool_]] = collections.deque()

    @property
    def most_samples(self) -> int:
        """Number of samples of this worker, with padding."""
        return self.samples.length

    def blocks(self) -> Iterator[Ids]:
        """Yield the ids of this worker in 1-D int64 arrays, as many ids on every rank.

        ::

            block of the plan    7  5 -1 -1      -1 is padding
            yielded ids          7  5  5  5
            mask                 1  1  0  0      kept in ``masks``
        """
        world, last_id = self.world, np.int64(0)
        # The plan pads all workers of a rank to the same number of batches. Batches beyond this
        # worker's last one are padding on all ranks, so they are left out.
        batches_of_rank = range(self.order.steps * self.order.spec.microbatches)
        batches = len(batches_of_rank[world.worker_of_rank :: world.workers_per_rank])
        index, remaining = self.start, batches * self.order.inputs.microbatch - self.start
        for padded_block in self.order.blocks(*self._worker_numbers, self.start):
            block = padded_block[: max(remaining, 0)]
            remaining -= len(block)
            real = block >= 0
            # Number of the last real id up to each id of the block, -1 if there is none; then
            # the last id of the blocks before is repeated.
            sources = np.maximum.accumulate(np.where(real, np.arange(len(block)), -1))
            filled = np.where(sources >= 0, block[sources], last_id)
            if len(filled):
                last_id = filled[-1]
                self.masks.append(real)
                if self.is_counted:
                    self._blocks.append((index, real, filled))
                for stream in self._key_streams:
                    stream.add_block(index, np.ones(len(filled), bool), filled)
                index += len(filled)
                yield filled

    def _summands(
        self, positions: Ids, real: npt.NDArray[np.bool_], ids: Ids
    ) -> npt.NDArray[np.uint64]:
        """Return the summand of the order hash for each of ``ids``, uint64; 0 for padding.

        Here ``ids`` has an entry for each index of the block, as ``positions`` and ``real`` have.
        """
        return np.where(real, summands(positions, ids), np.uint64(0))

    def next_mask(self, size: int) -> npt.NDArray[np.bool_]:
        """Return the mask of the next ``size`` samples, bool, False for padding."""
        parts = []
        while size:
            mask = self.masks.popleft()
            parts.append(mask[:size])
            if len(mask) > size:
                self.masks.appendleft(mask[size:])
            size -= len(parts[-1])
        return np.concatenate(parts)


class KeyStream:
    """Stream of row keys of a worker's ids, in their order, computed block by block on demand.

    A row key is a uint64 from which a function draws random numbers. Keys depend on the seed, the
    epoch, the sample and its position in the epoch of all ranks.

    Args:
        epoch: Part of the worker whose ids are added.
    """

    def __init__(self, epoch: WorkerEpoch) -> None:
        self._epoch = epoch
        # Blocks whose keys are not computed yet, as the arguments of `add_block`.
        self._blocks: collections.deque[tuple[int, npt.NDArray[np.bool_], Ids]] = (
            collections.deque()
        )
        self._remaining_keys = np.empty(0, np.uint64)  # computed and not taken yet

    def add_block(self, first: int, is_given: npt.NDArray[np.bool_], ids: Ids) -> None:
        """Add a block of consecutive indexes of the worker.

        Args:
            first: The first index.
            is_given: At which indexes is an id that is given to the iteration, bool of shape
                (indexes,). At others is padding.
            ids: Ids of the indexes that have one, int64.
        """
        self._blocks.append((first, is_given, ids))

    def take(self, count: int) -> npt.NDArray[np.uint64]:
        """Return the keys of the next ``count`` ids of the blocks that were added, uint64."""
        parts = [self._remaining_keys]
        count_so_far = len(self._remaining_keys)
        while count_so_far < count:
            first, is_given, ids = self._blocks.popleft()
            order = self._epoch.order
            # Keys depend on the numbers in the epoch of all ranks, so another world draws the same.
            positions = self._epoch.positions(first, len(is_given))[is_given]
            parts.append(keys_of_places(order.shuffle_seed, order.epoch, positions, ids))
            count_so_far += len(ids)
        keys = np.concatenate(parts) if len(parts) > 1 else self._remaining_keys
        self._remaining_keys = keys[count:]
        return keys[:count]


def take_dropped(epochs: Iterable[WorkerEpoch]) -> tuple[tuple[SkippedSample, ...], int]:
    """Return the samples that filters dropped in some epochs since the last call.

    Returns:
        The first of these samples with the reasons, and the number of all.
    """
    dropped = [epoch.dropped.take() for epoch in epochs if epoch.dropped is not None]
    return tuple(s for listed, _ in dropped for s in listed), sum(count for _, count in dropped)


_collected: ContextVar[tuple[object, list[WorkerEpoch]] | None] = ContextVar(
    "mds_collected_epochs", default=None
)


@contextmanager
def collect_epochs(dataset: object, epochs: list[WorkerEpoch]) -> Iterator[None]:
    """Append each epoch of ``dataset`` that the ``with`` block begins in this thread to ``epochs``.

    A user's class may call ``super().__iter__()`` in its ``__iter__``. A loader that runs that code
    learns from the collected epochs how far the code has read, and gets padding with its mask.
    """
    token = _collected.set((dataset, epochs))
    try:
        yield
    finally:
        _collected.reset(token)


def collected_epochs(dataset: object) -> list[WorkerEpoch] | None:
    """Return the list that an enclosing `collect_epochs` of this dataset fills, or None."""
    collection = _collected.get()
    return collection[1] if collection is not None and collection[0] is dataset else None
