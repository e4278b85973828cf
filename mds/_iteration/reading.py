"""Reading of samples in an order: windows of sample ids, the shards that have them, and samples.

Functions take a `SampleSource`, which says what is read, and a `WorkerEpoch`, which has the order
and the progress of the iteration.

A *window* has consecutive sample ids whose shards were fetched, and open readers of these shards.
A *stretch* is an iterator over the samples of consecutive ids. A *reader* decodes the rows of a
shard. Classes of the user may override ``__getitem__``; then samples come from it, and the readers
of the window are lent to it (`ReadersAtHand`).
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._iteration.filtering import DropCount, Fate, SampleFilter, SkippedSample
from mds._iteration.worker_epoch import KeyStream, PaddedWorkerEpoch, ReadersAtHand, WorkerEpoch
from mds._prefetch.prefetcher import Prefetcher, Window
from mds._readers.iterate import cut_growing, iterate_samples
from mds.transforms._randomness import key_of_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from mds._cache.shard_cache import ShardCache
    from mds._iteration.node_order import NodeOrder
    from mds._iteration.shard_map import ShardMap
    from mds._process.stopwatch import Stopwatch
    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection
    from mds.transforms._chain import FunctionChain
    from mds.transforms._runner import SampleRunner

    Ids = npt.NDArray[np.int64]


_NUMBERS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class SampleSource:
    """What an iteration reads: the samples of a dataset as they are when the iteration begins.

    It is made for one iteration and kept by nothing that outlives it, because ``get`` refers to the
    dataset: a dataset that keeps one lives until a garbage collection.

    Attributes:
        shards: Shards of the dataset, and which of them has each sample.
        cache: Cache of these shards.
        columns: Columns that are decoded.
        filter: Functions of the user, of which some may drop samples.
        dropped: Counts dropped samples for the dataset.
        predownload: Samples ahead of each worker whose shards are fetched.
        seed: Seed from which functions draw the random numbers of a sample read by its number.
        get: Returns a sample by its number, before the functions.
        has_own_items: Whether a class of the user makes the samples that ``get`` returns.
        is_plain: Whether samples are as stored: neither a class nor a function changes them.
        kind: Class of the dataset, for messages.
    """

    shards: ShardMap
    cache: ShardCache
    columns: ColumnSelection
    filter: SampleFilter
    dropped: DropCount
    predownload: int
    seed: int
    get: Callable[[int], Any]
    has_own_items: bool
    is_plain: bool
    kind: type


def read_windows(
    source: SampleSource,
    blocks: Iterable[Ids],
    epoch: WorkerEpoch | None = None,
) -> Iterator[Window]:
    """Return a generator of windows: sample ids with open readers of their shards.

    The generator is closed at the end of the program, or by ``epoch``, if the caller does not.

    Args:
        source: Samples to read.
        blocks: Sample ids in the order of reading, in int64 arrays of any lengths.
        epoch: Iteration that reads them; None for a read outside of an epoch.
    """
    windows = _generate_windows(source, blocks, epoch)
    _unfinished.add(windows)
    if epoch is not None:
        epoch.open_windows(windows)
    return windows


_unfinished: weakref.WeakSet[Generator[Window, None, None]] = weakref.WeakSet()


@atexit.register
def _close_unfinished() -> None:
    """Close the generators of windows that the program has left open, when the program ends.

    Python would close them later, when the modules that they use may be gone already.
    """
    for windows in list(_unfinished):
        with contextlib.suppress(ValueError):  # a daemon thread is in the middle of it
            windows.close()


def _generate_windows(
    source: SampleSource, blocks: Iterable[Ids], epoch: WorkerEpoch | None
) -> Generator[Window, None, None]:
    """Yield the windows of `read_windows`, fetching shards ahead until it is closed."""
    shards = source.shards
    ids = blocks if shards.selection is None else map(shards.stored, blocks)
    # A limited cache evicts shards, for which it needs the order of all workers of this node.
    node: NodeOrder | None
    if source.cache.limit is None or epoch is None:
        node = None
    else:
        from mds._iteration.node_order import NodeOrder

        node = NodeOrder(epoch.order, shards, epoch.start)
    with Prefetcher(
        source.cache, ids, shards.stored_ends, predownload=source.predownload, node=node
    ) as prefetcher:
        yield from prefetcher.windows()


def read_stretches(source: SampleSource, epoch: WorkerEpoch) -> Iterator[Iterator[Any]]:
    """Yield stretches: iterators over consecutive samples of an epoch, until its end.

    There are three ways, from slow to fast. With filters, and if the user's class has an own
    ``__getitem__``, a single generator makes all samples. Otherwise the readers make many samples
    at once, and each stretch is an iterator written in C, which costs less for each sample.

    All samples pass the functions of the dataset. The progress and the end of the iteration are
    recorded in ``epoch``.
    """
    from mds.transforms._runner import SampleRunner

    chain = source.filter.chain
    runner = SampleRunner(chain, lambda: epoch.describe(epoch.index - 1))
    stream = epoch.key_stream() if chain.is_keyed else None
    try:
        if not source.filter.keeps_everything:
            epoch.is_between_stretches = False
            yield (sample for sample, fate in judge_samples(source, epoch) if fate is Fate.KEPT)
        elif source.has_own_items:
            epoch.is_between_stretches = False
            yield _own_items(source, epoch, runner if chain.maps else None, stream)
        else:
            windows = read_windows(source, epoch.blocks(), epoch)
            # Short pieces first, so that the first sample is there early.
            for readers, shards, rows in cut_growing(
                (w.readers, w.shards, w.rows) for w in windows
            ):
                samples, remaining = iterate_samples(readers, shards, rows, epoch.take_back)
                epoch.give(len(rows), remaining)  # counts them all, less those in ``remaining``
                keys = stream.take(len(rows)).tolist() if stream is not None else None
                yield runner.over(samples, keys, epoch.take_back)
        epoch.is_finished = True
    finally:
        epoch.is_closed = True


def judge_samples(source: SampleSource, epoch: WorkerEpoch) -> Iterator[tuple[Any, Fate]]:
    """Yield each sample of this worker after all functions, and whether it is kept.

    Dropped samples, and padding of ``remainder="mask"``, are yielded too, with their `Fate`.
    They are reported to ``source.dropped`` and ``epoch.dropped``.
    """
    from mds.transforms._runner import SampleRunner

    epoch.dropped = dropped = DropCount()
    chain = source.filter.chain
    runner = SampleRunner(chain, lambda: epoch.describe(epoch.index - 1))
    stream = epoch.key_stream() if chain.is_keyed else None
    key, get = 0, epoch.lend(source.get)  # the key is 0 if no function needs one

    def report(skipped: SkippedSample) -> None:
        source.dropped.report(skipped)
        dropped.report(skipped)

    def judge(number: int, key: int) -> tuple[Any, Fate]:
        """Return a sample after all functions, and its fate; end the iteration by an error.

        ``number`` is that of the sample, and ``key`` determines the functions' random numbers.
        """
        try:
            return source.filter.judge(number, get, report, runner, key)
        except BaseException as error:
            epoch.take_back(error)  # the index does not count as taken: a resume tries it again
            raise

    try:
        for number in _numbers(source, epoch.blocks(), epoch):
            epoch.end_index += 1
            if stream is not None:
                key = int(stream.take(1)[0])  # taken for padding too, which has a key like samples
            if isinstance(epoch, PaddedWorkerEpoch) and not epoch.next_mask(1)[0]:
                yield None, Fate.PADDING
                continue
            yield judge(number, key)
        epoch.is_finished = True
    finally:
        epoch.is_closed = True


def judge_all(source: SampleSource, sample_filter: SampleFilter) -> Iterator[tuple[int, Any, Fate]]:
    """Apply all functions to every sample in stored order; yield number, result and fate of each.

    ``sample_filter`` has the functions, which may be others than those of the source.
    """
    at_hand = ReadersAtHand()
    get = at_hand.lend(source.get)
    numbers = _numbers(source, _all_numbers(source), at_hand)
    return judge_numbers(numbers, sample_filter, get, source.seed)


def judge_numbers(
    numbers: Iterable[int], sample_filter: SampleFilter, get: Callable[[int], Any], seed: int
) -> Iterator[tuple[int, Any, Fate]]:
    """Apply functions to samples by number; yield number, result and fate of each.

    Args:
        numbers: Numbers of the samples.
        sample_filter: The functions.
        get: Returns the sample of a number, before the functions.
        seed: Seed of the functions' random numbers.
    """
    from mds.transforms._runner import SampleRunner

    number, key, is_keyed = 0, 0, sample_filter.chain.is_keyed
    runner = SampleRunner(sample_filter.chain, lambda: f"sample {number}")
    for number in numbers:
        if is_keyed:
            key = key_of_number(seed, number)
        sample, fate = sample_filter.judge(number, get, lambda _: None, runner, key)
        yield number, sample, fate


def apply_functions(chain: FunctionChain, seed: int, number: int, sample: Any) -> Any:
    """Return ``sample``, which was read by its number, after the functions of `map`.

    ``seed`` determines the random numbers of the functions, together with the number.
    """
    from mds.transforms._runner import SampleRunner

    runner = SampleRunner(chain, lambda: f"sample {number}")
    return runner.run(sample, key_of_number(seed, number))


def all_items(source: SampleSource, get: Callable[[int], Any]) -> Iterator[Any]:
    """Yield ``get(number)`` for the numbers of all samples, reading each shard once."""
    at_hand = ReadersAtHand()
    return map(at_hand.lend(get), _numbers(source, _all_numbers(source), at_hand))


def all_rows(source: SampleSource) -> Iterator[tuple[Reader, Ids]]:
    """Yield the reader of each shard and the wanted rows in it, in the order of the samples.

    A shard comes several times if it has samples of several windows. The cache of the source is
    closed at the end.
    """
    with source.cache:
        for window in read_windows(source, _all_numbers(source)):
            first = 0
            for last in np.flatnonzero(np.diff(window.shards, append=-1)).tolist():
                yield window.readers[int(window.shards[last])], window.rows[first : last + 1]
                first = last + 1


def _all_numbers(source: SampleSource) -> Iterator[Ids]:
    """Yield the numbers of all samples, in arrays."""
    count = source.shards.num_samples
    return (
        np.arange(start, min(start + _NUMBERS_AT_ONCE, count))
        for start in range(0, count, _NUMBERS_AT_ONCE)
    )


def _own_items(
    source: SampleSource,
    epoch: WorkerEpoch,
    runner: SampleRunner | None,
    stream: KeyStream | None,
) -> Iterator[Any]:
    """Yield the samples that a user's class makes in ``__getitem__``, after the functions.

    ``runner`` calls the functions of `map`, and ``stream`` has the keys of their random numbers;
    both are None if not needed.
    """
    get = epoch.lend(source.get)

    def make(number: int) -> Any:
        """Return the sample of a number after the functions of `map`.

        An error ends the iteration.
        """
        try:
            sample = get(number)
            if runner is None:
                return sample
            # Take the key after the sample: the keys of a window are added when it is opened.
            return runner.run(sample, int(stream.take(1)[0]) if stream is not None else 0)
        except BaseException as error:
            epoch.take_back(error)  # the index does not count as taken: a resume tries it again
            raise

    for number in _numbers(source, epoch.blocks(), epoch):
        epoch.end_index += 1
        yield make(number)


def time_sample(at_hand: ReadersAtHand, watch: Stopwatch, act: Callable[[], Any]) -> Any:
    """Return ``act()``, which makes one sample, and measure its time.

    ``watch`` is charged with the time of the first read as decoding, and the rest as functions.
    """
    readers = at_hand.readers
    at_hand.readers = TimedReaders(readers, watch)  # type: ignore[assignment]
    watch.begin_sample()
    try:
        return act()
    finally:
        watch.end_sample()
        at_hand.readers = readers


def _numbers(source: SampleSource, blocks: Iterable[Ids], at_hand: ReadersAtHand) -> Iterator[int]:
    """Yield the sample numbers of ``blocks``, while ``at_hand`` has open readers of their shards.

    ``at_hand`` may be the WorkerEpoch whose samples these are; its progress is then recorded.
    """
    try:
        epoch = at_hand if isinstance(at_hand, WorkerEpoch) else None
        for window in read_windows(source, blocks, epoch):
            at_hand.begin_window(source.cache, window)
            yield from source.shards.selected(window.ids).tolist()
        if epoch is not None:
            epoch.is_between_stretches = True  # all samples were given: no signal ended the loop
    finally:
        at_hand.end_windows()


class TimedReaders:
    """Mapping of readers for one sample, which charges the first read to decoding.

    The object is both the mapping and the reader that its first access returns, so that it also
    sees when that reader is used. `Samples.get_item` calls ``readers[shard]``, then ``row in
    reader`` and ``reader.get(row)``.

    Args:
        readers: Open readers by shard.
        watch: Stopwatch that measures the sample.
    """

    def __init__(self, readers: Mapping[int, Reader], watch: Stopwatch) -> None:
        self._readers, self._watch = readers, watch
        self._is_timed = False

    def __getitem__(self, shard: int) -> Any:
        """Return the reader of a shard; at the first access this object, to time the read."""
        if self._is_timed:
            return self._readers[shard]
        self._is_timed = True
        self._watch.leave_functions()
        self._reader: Reader = self._readers[shard]
        return self

    def __contains__(self, row: int) -> bool:
        """Return True if the reader has a row; if not, it is not read here, and the timing ends."""
        if row in self._reader:
            return True
        self._watch.resume_functions()
        return False

    def get(self, row: int) -> Any:
        """Return the sample of a row."""
        sample = self._reader.get(row)
        self._watch.resume_functions()
        return sample
