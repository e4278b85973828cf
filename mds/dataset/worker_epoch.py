"""Part of a worker in an epoch: its ids, its progress, and sums for the order hash.

All state of a running iteration is here and not on the dataset, so a dataset may be iterated
several times at once.
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

from mds.errors import IterationError, repeatable
from mds.plan import summands
from mds.process.fork_safe import call_in_child
from mds.transforms.randomness import keys_of_places

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache import ShardCache
    from mds.dataset.filtering import DropCount, SkippedSample
    from mds.plan import EpochPlan
    from mds.plan.order import Order
    from mds.plan.pack_plan import RankPacks
    from mds.plan.state import Position
    from mds.prefetch.prefetcher import Window
    from mds.readers import Reader
    from mds.world import World

    Ids = npt.NDArray[np.int64]

_NOTHING: Iterator[Any] = iter(())
_ADVICE = (
    "Iterate the dataset again for the next epoch; to go on with this one, call "
    "dataset.load_state_dict(dataset.state_dict()) first."
)
_ALL = slice(None)


class OpenWindows:
    """Windows that an iteration reads, which can be closed from outside the iteration."""

    _windows: Callable[[], Generator[Window, None, None] | None] = staticmethod(lambda: None)

    def open_windows(self, windows: Generator[Window, None, None]) -> None:
        """Remember the generator of windows, without keeping it alive."""
        self._windows = weakref.ref(windows)

    def close_windows(self) -> None:
        """Release the shards and threads of the windows; closing twice is fine.

        An error keeps the frames that it passed through, and so generators that are not finished.
        """
        windows = self._windows()
        if windows is not None:
            with suppress(ValueError):  # another thread, or the parent process, is inside
                windows.close()


class ReadersAtHand:
    """Readers of the current window of an iteration, by shard, and the shards of the window.

    Only a call of a function from `lend` sees them, in the thread that makes the call. The
    iteration waits for the call, so the window stays open until the call returns.
    """

    def __init__(self) -> None:
        self.cache: ShardCache | None = None  # which numbers the shards
        self.shards: AbstractSet[int] = frozenset()
        self.readers: Mapping[int, Reader] = {}

    def begin_window(self, cache: ShardCache, window: Window, places: slice = _ALL) -> None:
        """Take the readers of ``window`` for the samples at ``places``."""
        self.cache, self.readers = cache, window.readers
        self.shards = {*window.shards[places].tolist()}

    def end_windows(self) -> None:
        """Forget the readers of the last window."""
        self.cache, self.shards, self.readers = None, frozenset(), {}

    def lend(self, get: Callable[[int], Any]) -> Callable[[int], Any]:
        """Return ``get`` with these readers at hand while it runs."""

        def get_with_readers(number: int) -> Any:
            before = lent.readers
            lent.readers = self
            try:
                return get(number)
            finally:
                lent.readers = before

        return get_with_readers


class LentReaders(threading.local):
    """Readers that the running call of `ReadersAtHand.lend` has at hand, for each thread."""

    readers: ReadersAtHand | None = None


lent = LentReaders()


def _forget_lent_readers() -> None:
    """Leave readers to the parent process, whose threads fill them."""
    lent.readers = None


call_in_child(_forget_lent_readers)


class WorkerEpoch(ReadersAtHand, OpenWindows):
    """Part of worker ``world.worker`` in the order of an epoch, from its ``start``-th place on.

    Attributes:
        filled_places: Places of the order that were filled.
        dropped: Samples that a filter dropped and no batch has reported yet, if there is a filter.
        is_over: Whether the iteration has ended or was left; ``is_exhausted``: whether it has
            ended; ``failure``: the error that ended it.
        is_between: Whether no samples that are counted one by one are still to be given.
        is_counted: Whether a loader sums what its batches take of the order.
    """

    def __init__(
        self, order: Order, world: World, start: int = 0, *, is_counted: bool = False
    ) -> None:
        super().__init__()
        self.order, self.world, self.start = order, world, start
        self._place = (world.node, world.rank_of_node, world.worker_of_rank)
        self.is_counted = is_counted
        self.filled_places = start
        self.dropped: DropCount | None = None
        self.is_over = self.is_exhausted = False
        self.is_between = True
        self.failure: Exception | None = None
        self._remaining_samples = _NOTHING
        self._key_streams: list[KeyStream] = []
        # Blocks that are not summed yet: the first place, which places are real, and the ids.
        self._noted: collections.deque[tuple[int, npt.NDArray[np.bool_], Ids]] = collections.deque()
        # Per block: ids before it, and the sums after each of its ids.
        self._sums: collections.deque[tuple[int, npt.NDArray[np.uint64]]] = collections.deque()
        self._summed = start
        self._sum = np.uint64(0)

    @property
    def begin(self) -> Position:
        """Position of all ranks at which the order begins."""
        return self.order.begin

    @property
    def plan(self) -> EpochPlan:
        """Order of the samples, of an order that is not of packs."""
        assert self.order.packs is None
        return self.order.samples

    def packs(self) -> Iterator[RankPacks]:
        """Yield the packs of this worker, step by step, of an order of packs."""
        packs = self.order.packs
        assert packs is not None
        return packs.rank_packs(*self._place)

    @property
    def most_samples(self) -> int:
        """Maximum number of samples of this worker."""
        shape = self.plan.shape
        return self.plan.length // shape.batch * self.plan.global_batches.filled

    @property
    def position(self) -> int:
        """Places of this worker's order filled so far, from the beginning of its plan."""
        return self.filled_places - self.remaining

    @property
    def remaining(self) -> int:
        """Number of samples that were counted together and are still to be given."""
        return operator.length_hint(self._remaining_samples)

    @property
    def is_broken_off(self) -> bool:
        """Whether the samples that are being given ended before the last one."""
        return self.remaining > 0 or not self.is_between

    @property
    def share(self) -> int:
        """Places by which the position of all ranks is counted, if ranks have one worker.

        With ``exact`` ranks get different numbers of samples; at the end each counts the most.
        """
        if not self.is_exhausted or not self._is_uneven:
            return self.position
        return max(self.position, self.plan.global_batches.shares[1])

    @property
    def _is_uneven(self) -> bool:
        """Whether ranks may get different numbers of places; all ranks get as many packs."""
        return bool(self.order.spec.exact) and self.order.spec.packing is None

    @property
    def is_finished(self) -> bool:
        """Whether the iteration has ended, on all ranks where they get different numbers."""
        if self.is_exhausted or not self._is_uneven:
            return self.is_exhausted
        minimum, maximum = self.plan.global_batches.shares
        return minimum < maximum <= self.position

    @property
    def is_under_way(self) -> bool:
        """Whether samples were given and more may come."""
        return not self.is_over and self.position > self.start

    def give(self, places: int, left: Iterator[Any]) -> None:
        """Count places, of which those in ``left`` are still to be given.

        A counter in the loop would cost a fifth of a small sample; an iterator of samples that are
        there already knows how many are left in it.
        """
        self.filled_places += places
        self._remaining_samples = left

    def take_back(self, error: BaseException) -> None:
        """End the iteration by an error in making the sample that was counted last."""
        self.filled_places -= 1
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the iteration by an error and give back its shards."""
        self.leave()
        self.is_over = True
        self.failure = repeatable(error, _ADVICE)
        self.close_windows()

    def interrupt(self) -> None:
        """End the iteration after a signal whose error is not known."""
        self.fail(IterationError(f"this iteration was interrupted by a signal. {_ADVICE}"))

    def leave(self) -> None:
        """Give none of the remaining samples."""
        self.filled_places = self.position
        collections.deque(self._remaining_samples, maxlen=0)
        self._remaining_samples = _NOTHING

    def blocks(self) -> Iterator[Ids]:
        """Yield the ids in 1-D arrays, without padding."""
        place = self.start
        for block in self.plan.blocks(*self._place, self.start, is_padded=False):
            real = block >= 0
            ids = block[real]
            if self.is_counted:
                self._noted.append((place, real, ids))
            for stream in self._key_streams:
                stream.note(place, real, ids)
            place += len(block)
            yield ids

    def key_stream(self) -> KeyStream:
        """Return row keys of the ids that ``blocks`` gives from now on."""
        stream = KeyStream(self)
        self._key_streams.append(stream)
        return stream

    def marks(self, first: int, count: int) -> Ids:
        """Return the places in the epoch of so many places of this worker."""
        return self.plan.marks(*self._place, first, first + count)

    def describe(self, position: int, count: int = 1) -> str:
        """Describe the samples from ``position`` on for an error."""
        ids: list[int] = []
        for block in self.plan.blocks(*self._place, position, is_padded=False):
            ids += block[block >= 0][: count - len(ids)].tolist()
            if len(ids) >= count:
                break
        place_text = f"(place {int(self.marks(position, 1)[0]):,} of epoch {self.plan.epoch})"
        if count == 1:
            return f"sample {ids[0] if ids else 'of padding'} {place_text}"
        listed = ", ".join(map(str, ids[:8])) + ", ..." * (len(ids) > 8)
        return f"a batch of {count} samples {place_text}: {listed}"

    def checksum_until(self, position: int) -> int:
        """Return the order hash's sum of the ids before ``position``, which never goes down.

        Modulo 2**64; only where ``is_counted``. The running sums of a block are made in one go when
        they are first asked for, so that a batch costs a lookup.
        """
        if position == self.start:
            return 0
        while position > self._summed:
            self._sum_block(*self._noted.popleft())
        sums = self._sums
        while position > sums[0][0] + len(sums[0][1]):
            sums.popleft()
        before, block = sums[0]
        return int(block[position - before - 1])

    def _sum_block(self, first: int, real: npt.NDArray[np.bool_], ids: Ids) -> None:
        marks = self.marks(first, len(real))
        sums = np.cumsum(self._summands(marks, real, ids), dtype=np.uint64) + self._sum
        if len(sums):
            self._sums.append((self._summed, sums))
            self._summed += len(sums)
            self._sum = sums[-1]

    def _summands(
        self, marks: Ids, real: npt.NDArray[np.bool_], ids: Ids
    ) -> npt.NDArray[np.uint64]:
        return summands(marks[real], ids)


class PaddedWorkerEpoch(WorkerEpoch):
    """Sample ids of one worker, padded so that all batches are full; a mask tells padding.

    In the place of padding comes the id before it, or sample 0 for a worker without any; such a
    sample is read and then masked.
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
        """Yield the ids in 1-D arrays, as many on every rank."""
        world, last = self.world, np.int64(0)
        batch, workers = self.plan.shape.batch, world.workers_per_rank
        # Whole batches that are padding on all ranks come from cutting the steps by workers.
        mine = len(range(world.worker_of_rank, self.plan.steps, workers)) * batch
        place, remaining = self.start, mine - self.start
        for padded_block in self.plan.blocks(*self._place, self.start):
            block = padded_block[: max(remaining, 0)]
            remaining -= len(block)
            real = block >= 0
            places = np.maximum.accumulate(np.where(real, np.arange(len(block)), -1))
            filled = np.where(places >= 0, block[places], last)
            if len(filled):
                last = filled[-1]
                self.masks.append(real)
                if self.is_counted:
                    self._noted.append((place, real, filled))
                for stream in self._key_streams:
                    stream.note(place, np.ones(len(filled), bool), filled)
                place += len(filled)
                yield filled

    def _summands(
        self, marks: Ids, real: npt.NDArray[np.bool_], ids: Ids
    ) -> npt.NDArray[np.uint64]:
        return np.where(real, summands(marks, ids), np.uint64(0))

    def next_mask(self, size: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the next ``size`` samples, False for padding."""
        parts = []
        while size:
            mask = self.masks.popleft()
            parts.append(mask[:size])
            if len(mask) > size:
                self.masks.appendleft(mask[size:])
            size -= len(parts[-1])
        return np.concatenate(parts)


class KeyStream:
    """Row keys of the ids of a worker, in their order; computed block by block when asked for."""

    def __init__(self, epoch: WorkerEpoch) -> None:
        self._epoch = epoch
        self._noted: collections.deque[tuple[int, npt.NDArray[np.bool_], Ids]] = collections.deque()
        self._remaining_samples = np.empty(0, np.uint64)

    def note(self, first: int, is_given: npt.NDArray[np.bool_], ids: Ids) -> None:
        """Add a block: its first place, which of its places were given, and their ids."""
        self._noted.append((first, is_given, ids))

    def take(self, count: int) -> npt.NDArray[np.uint64]:
        """Return the keys of the next ``count`` ids, of blocks that were given."""
        parts = [self._remaining_samples]
        have = len(self._remaining_samples)
        while have < count:
            first, is_given, ids = self._noted.popleft()
            plan = self._epoch.plan
            marks = self._epoch.marks(first, len(is_given))[is_given]
            parts.append(keys_of_places(plan.shuffle_seed, plan.epoch, marks, ids))
            have += len(ids)
        keys = np.concatenate(parts) if len(parts) > 1 else self._remaining_samples
        self._remaining_samples = keys[count:]
        return keys[:count]


def take_dropped(epochs: Iterable[WorkerEpoch]) -> tuple[tuple[SkippedSample, ...], int]:
    """Return what filters dropped in epochs since the last call: listed, and counted."""
    dropped = [epoch.dropped.take() for epoch in epochs if epoch.dropped is not None]
    return tuple(s for listed, _ in dropped for s in listed), sum(count for _, count in dropped)


_collected: ContextVar[tuple[object, list[WorkerEpoch]] | None] = ContextVar(
    "mds_collected_epochs", default=None
)


@contextmanager
def collect_epochs(dataset: object, epochs: list[WorkerEpoch]) -> Iterator[None]:
    """Add to ``epochs`` those of a dataset that the block begins, in this thread.

    For a loader that runs a caller's ``__iter__``: it counts what that code takes of the order,
    and marks padding.
    """
    token = _collected.set((dataset, epochs))
    try:
        yield
    finally:
        _collected.reset(token)


def collected_epochs(dataset: object) -> list[WorkerEpoch] | None:
    """Return the list of the `collect_epochs` around this call, if it is for this dataset."""
    collection = _collected.get()
    return collection[1] if collection is not None and collection[0] is dataset else None
