"""Part of a worker in an epoch: its sample ids, its progress, and sums for the order hash.

All state of an iteration is here and not in the dataset, so a dataset may be iterated several times
at once.

A *place* is a number in this worker's order, counted from 0. A *mark* is the number of the same
place in the epoch of all ranks. With two ranks of one worker each, whose batches have one sample::

    mark             0  1  2  3  4  5
    rank             0  1  0  1  0  1
    place            0  0  1  1  2  2

Some places have no sample: they are *padding*, -1 in the plan, so that ranks get equally many
places. A *block* is an array of some thousand consecutive ids, and a *stretch* an iterator over the
samples of consecutive places. Worker n of a rank has its batches n, n + workers, ...
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
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._process.fork_safe import call_in_child
from mds.errors import IterationError, repeatable
from mds.plan._audit import summands
from mds.transforms._randomness import keys_of_places

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._cache.shard_cache import ShardCache
    from mds._dataset.filtering import DropCount, SkippedSample
    from mds._prefetch.prefetcher import Window
    from mds._readers.base import Reader
    from mds.plan import EpochPlan
    from mds.plan._order import Order
    from mds.plan._pack_plan import RankPacks
    from mds.plan._state import Position, ResumePoint
    from mds.world import World

    Ids = npt.NDArray[np.int64]

_NOTHING: Iterator[Any] = iter(())
_ADVICE = (
    "To start the next epoch, iterate the dataset again. To continue this epoch, call "
    "dataset.load_state_dict(dataset.state_dict()) first."
)
_ALL = slice(None)


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

    def begin_window(self, cache: ShardCache, window: Window, places: slice = _ALL) -> None:
        """Use the readers of ``window`` from now on, for its samples at ``places``."""
        self.cache, self.readers = cache, window.readers
        self.shards = {*window.shards[places].tolist()}

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
        order: Order of the epoch.
        world: World, with the number of this worker.
        start: Number of places of this worker that were taken before a resume. They are left out.
        is_counted: Whether a loader asks for sums of its batches for the order hash.

    Attributes:
        filled_places: Places whose samples were handed to the iteration.
        dropped: Samples that a filter dropped and no batch has reported yet; None without a filter.
        is_over: Whether the iteration has ended or was abandoned.
        is_exhausted: Whether the iteration came to the end of the epoch.
        failure: Error that ended the iteration.
        resume_point: Settings of the run in states of this worker, once one was made.
        is_end_reported: Whether a state of this worker process said that the epoch has ended.
        is_between_stretches: False while a stretch is a Python generator that has not ended. (For
            other stretches `remaining` says so.) A signal may raise an error in its middle.
    """

    def __init__(
        self, order: Order, world: World, start: int = 0, *, is_counted: bool = False
    ) -> None:
        super().__init__()
        self.order, self.world, self.start = order, world, start
        # Arguments of the methods of a plan that are about one worker.
        self._worker_numbers = (world.node, world.rank_of_node, world.worker_of_rank)
        self.is_counted = is_counted
        self.filled_places = start
        self.dropped: DropCount | None = None
        self.is_over = self.is_exhausted = False
        self.is_between_stretches = True
        self.failure: Exception | None = None
        self.resume_point: ResumePoint | None = None
        self.is_end_reported = False
        self._remaining_samples = _NOTHING
        self._key_streams: list[KeyStream] = []
        # Blocks that are not summed yet, for `_sum_block`: the first place, which places have a
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
    def plan(self) -> EpochPlan:
        """Order of the epoch as a plan of samples; only for an epoch without packing."""
        assert self.order.packs is None
        return self.order.samples

    def packs(self) -> Iterator[RankPacks]:
        """Return an iterator over the packs of this worker, one item for each of its steps.

        It is only for an epoch with packing.
        """
        packs = self.order.packs
        assert packs is not None
        return packs.rank_packs(*self._worker_numbers)

    @property
    def most_samples(self) -> int:
        """Maximum number of samples of this worker."""
        # The plan has ``length`` places for each worker, in full batches. At most ``filled`` places
        # of a step have a sample: fewer than all if the epoch has less than a global batch.
        batch = self.plan.microbatch
        return self.plan.length // batch * min(self.plan.global_batches.filled, batch)

    @property
    def position(self) -> int:
        """Number of places of this worker that were taken so far, with those before ``start``."""
        return self.filled_places - self.remaining

    @property
    def remaining(self) -> int:
        """Number of samples that were counted in advance and are not given yet, see `give`."""
        return operator.length_hint(self._remaining_samples)

    @property
    def is_broken_off(self) -> bool:
        """Whether a stretch of samples was left before its last one, as a signal may do."""
        return self.remaining > 0 or not self.is_between_stretches

    @property
    def share(self) -> int:
        """Number of places that every rank has taken, as this rank can tell for a state.

        Each rank has one worker here. Ranks take equally many places, so it is the own `position`.
        But with ``remainder="short"``, some ranks get fewer: of 9 samples, 2 ranks get 5 and
        4. At the end both count 5, so that their states are equal.
        """
        if not self.is_exhausted or not self._is_uneven:
            return self.position
        _, maximum = self.plan.global_batches.shares
        return max(self.position, maximum)

    @property
    def _is_uneven(self) -> bool:
        """Whether ranks may get different numbers of places; all ranks get as many packs."""
        return self.order.spec.is_exact and self.order.spec.packing is None

    @property
    def is_finished(self) -> bool:
        """Whether the epoch is finished on all ranks, as far as this rank can tell.

        With ``remainder="short"`` and 9 samples, 2 ranks get 5 and 4. The one with 4 sees that its
        iteration ends. The other has finished once it has taken 5, even if nobody asks for a sixth
        sample. If all ranks get equally many, all of them see the end in the same step.
        """
        if self.is_exhausted or not self._is_uneven:
            return self.is_exhausted
        minimum, maximum = self.plan.global_batches.shares
        return minimum < maximum <= self.position

    @property
    def is_under_way(self) -> bool:
        """Whether samples were given and more may come."""
        return not self.is_over and self.position > self.start

    def give(self, places: int, samples: Iterator[Any]) -> None:
        """Count a stretch of samples before they are given.

        A counter in the loop would cost a fifth of a small sample. Instead, the position is this
        count less the samples that remain.

        Args:
            places: Number of the samples.
            samples: Iterator that gives them; its length hint is the number that remain.
        """
        self.filled_places += places
        self._remaining_samples = samples

    def take_back(self, error: BaseException) -> None:
        """Uncount the last sample, because making it failed, and end the iteration by the error."""
        self.filled_places -= 1
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the iteration by an error, and release its shards."""
        self.leave()
        self.is_over = True
        # Every later ``next()`` raises a copy, which does not keep the failed frames alive.
        self.failure = repeatable(error, _ADVICE)
        self.close_windows()

    def interrupt(self) -> None:
        """End the iteration after a signal whose error is not known."""
        self.fail(IterationError(f"a signal interrupted this iteration. {_ADVICE}"))

    def leave(self) -> None:
        """Discard the samples that were counted in advance, and do not count them."""
        self.filled_places = self.position
        # Exhaust the iterator, so that code that still holds it gets no more samples.
        collections.deque(self._remaining_samples, maxlen=0)
        self._remaining_samples = _NOTHING

    def blocks(self) -> Iterator[Ids]:
        """Yield the sample ids of this worker in 1-D int64 arrays, without padding.

        Each block is also kept for the order hash and the row keys, if these are wanted.
        """
        place = self.start
        for block in self.plan.blocks(*self._worker_numbers, self.start, is_padded=False):
            real = block >= 0  # the last step may have padding (-1) between its samples
            ids = block[real]
            if self.is_counted:
                self._blocks.append((place, real, ids))
            for stream in self._key_streams:
                stream.add_block(place, real, ids)
            place += len(block)
            yield ids

    def key_stream(self) -> KeyStream:
        """Return a stream of row keys for the ids that `blocks` yields from now on."""
        stream = KeyStream(self)
        self._key_streams.append(stream)
        return stream

    def marks(self, first: int, count: int) -> Ids:
        """Return the marks of ``count`` places of this worker from the place ``first`` on, int64.

        A mark is the number of a place in the epoch of all ranks, see the module's docstring.
        """
        return self.plan.marks(*self._worker_numbers, first, first + count)

    def describe(self, position: int, count: int = 1) -> str:
        """Describe ``count`` samples from the place ``position`` on, for an error message.

        An example is "sample 17 (place 2,048 of epoch 0)", where the place is a mark.
        """
        ids: list[int] = []
        for block in self.plan.blocks(*self._worker_numbers, position, is_padded=False):
            ids += block[block >= 0][: count - len(ids)].tolist()
            if len(ids) >= count:
                break
        place_text = f"(place {int(self.marks(position, 1)[0]):,} of epoch {self.plan.epoch})"
        if count == 1:
            return f"sample {ids[0] if ids else 'of padding'} {place_text}"
        listed = ", ".join(map(str, ids[:8])) + ", ..." * (len(ids) > 8)
        return f"a batch of {count} samples {place_text}: {listed}"

    def checksum_until(self, position: int) -> int:
        """Return the sum of the order hash over the ids before ``position``, modulo 2**64.

        ``position`` must not be smaller than in an earlier call, and ``is_counted`` must be set.
        The running sums of a whole block are computed at its first batch, so that every other batch
        costs a lookup.
        """
        if position == self.start:
            return 0
        # Sum blocks until one contains the position; then find that block among the summed ones.
        while position > self._summed_ids:
            self._sum_block(*self._blocks.popleft())
        blocks = self._sums
        ids_before, sums_in_block = blocks[0]
        while position > ids_before + len(sums_in_block):
            blocks.popleft()
            ids_before, sums_in_block = blocks[0]
        last_id = position - ids_before - 1  # its index in the block
        return int(sums_in_block[last_id])

    def _sum_block(self, first: int, real: npt.NDArray[np.bool_], ids: Ids) -> None:
        """Append a block to ``_sums``: the sum of the order hash up to each of its ids.

        The order hash is the sum of a number for each id (its summand), modulo 2**64. So the sum
        over a batch is the difference of two running sums, and ranks add their sums in any order.

        Args:
            first: Place at which the block begins.
            real: Which places of the block have a sample, bool; the others are padding.
            ids: Ids of the block, as `blocks` yields them.
        """
        marks = self.marks(first, len(real))
        sums = np.cumsum(self._summands(marks, real, ids), dtype=np.uint64) + self._sum
        if len(sums):
            self._sums.append((self._summed_ids, sums))
            self._summed_ids += len(sums)
            self._sum = sums[-1]

    def _summands(
        self, marks: Ids, real: npt.NDArray[np.bool_], ids: Ids
    ) -> npt.NDArray[np.uint64]:
        """Return the summand of the order hash for each of ``ids``, uint64.

        ``marks`` and ``real`` have an entry for each place of the block, and ``ids`` one for each
        place that has a sample.
        """
        return summands(marks[real], ids)


class PaddedWorkerEpoch(WorkerEpoch):
    """Part of one worker for ``remainder="mask"``: padded so that all batches are full.

    In the place of padding comes the id before it, or sample 0 if there is none; that sample is
    read and then masked. The arguments are those of WorkerEpoch.

    Attributes:
        masks: For each block whose mask was not taken yet, which ids are no padding, bool.
    """

    def __init__(
        self, order: Order, world: World, start: int = 0, *, is_counted: bool = False
    ) -> None:
        super().__init__(order, world, start, is_counted=is_counted)
        self.masks: collections.deque[npt.NDArray[np.bool_]] = collections.deque()

    @property
    def most_samples(self) -> int:
        """Number of samples of this worker, with padding."""
        return self.plan.length

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
        batches_of_rank = range(self.plan.steps * self.plan.spec.microbatches)
        batches = len(batches_of_rank[world.worker_of_rank :: world.workers_per_rank])
        place, remaining = self.start, batches * self.plan.microbatch - self.start
        for padded_block in self.plan.blocks(*self._worker_numbers, self.start):
            block = padded_block[: max(remaining, 0)]
            remaining -= len(block)
            real = block >= 0
            # Index of the last real id up to each place of the block, -1 if there is none; then
            # the last id of the blocks before is repeated.
            sources = np.maximum.accumulate(np.where(real, np.arange(len(block)), -1))
            filled = np.where(sources >= 0, block[sources], last_id)
            if len(filled):
                last_id = filled[-1]
                self.masks.append(real)
                if self.is_counted:
                    self._blocks.append((place, real, filled))
                for stream in self._key_streams:
                    stream.add_block(place, np.ones(len(filled), bool), filled)
                place += len(filled)
                yield filled

    def _summands(
        self, marks: Ids, real: npt.NDArray[np.bool_], ids: Ids
    ) -> npt.NDArray[np.uint64]:
        """Return the summand of the order hash for each of ``ids``, uint64; 0 for padding.

        Here ``ids`` has an entry for each place of the block, as ``marks`` and ``real`` have.
        """
        return np.where(real, summands(marks, ids), np.uint64(0))

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
    epoch, the sample and its place in the epoch of all ranks.

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
        """Add a block of consecutive places of the worker.

        Args:
            first: The first place.
            is_given: Which places have an id that is given to the iteration, bool of shape
                (places,). The others are padding.
            ids: Ids of the places that have one, int64.
        """
        self._blocks.append((first, is_given, ids))

    def take(self, count: int) -> npt.NDArray[np.uint64]:
        """Return the keys of the next ``count`` ids of the blocks that were added, uint64."""
        parts = [self._remaining_keys]
        count_so_far = len(self._remaining_keys)
        while count_so_far < count:
            first, is_given, ids = self._blocks.popleft()
            plan = self._epoch.plan
            # Keys depend on the numbers in the epoch of all ranks, so another world draws the same.
            marks = self._epoch.marks(first, len(is_given))[is_given]
            parts.append(keys_of_places(plan.shuffle_seed, plan.epoch, marks, ids))
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
