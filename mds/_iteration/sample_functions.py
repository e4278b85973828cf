"""Stages that call the user's functions of samples: ``map``, and filters.

`SampleMapper` calls ``map`` where no sample can be dropped. Otherwise `SampleJudge` reads each
sample, calls its functions and puts `DROPPED` in the place of a dropped one, and `keep_samples`
removes these.

A stage takes and returns `Rows`: consecutive places of this worker's order with their samples. A
*place* is the number of a sample in that order, from 0; a row key is a uint64 for each place, from
which functions draw random numbers.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._iteration.filtering import DropCount, Fate, SkippedSample
from mds._iteration.reading import SampleSource, judge_numbers, time_sample
from mds._iteration.rows import batch_info
from mds._words import plural
from mds.errors import ConfigError, EncodingError, FormatError, FunctionError
from mds.transforms._runner import SampleRunner

if TYPE_CHECKING:
    from mds._iteration.rows import Rows
    from mds._iteration.worker_epoch import WorkerEpoch
    from mds._process.stopwatch import Stopwatch
    from mds.transforms._chain import FunctionChain

_MAX_TRIED_SAMPLES = 1000
#: Fates of samples with which all functions were called. Broken samples were dropped before that.
_COMPLETE = (Fate.KEPT, Fate.DROPPED)
#: Placeholder of a dropped sample in a list of samples.
DROPPED: Any = object()


class SampleMapper:
    """Stage that calls the functions of ``map``.

    An error names the sample by its place. A sample is released when its functions are called, so
    that stored and changed samples of a batch are not all in memory at once.

    ``chain``: functions of the dataset. ``epoch``: the worker's part of the epoch.
    """

    def __init__(self, chain: FunctionChain, epoch: WorkerEpoch) -> None:
        self._epoch = epoch
        self._waiting: collections.deque[Any] = collections.deque()  # samples not yet mapped
        self._end = [0]  # the index after the rows whose samples are being mapped
        # The sample that is being mapped comes before those that wait. The function does not refer
        # to this object, which would then refer to itself and live until a garbage collection.
        end, waiting = self._end, self._waiting
        self._runner = SampleRunner(chain, lambda: epoch.describe(end[0] - 1 - len(waiting)))

    def map(self, rows: Rows) -> Rows:
        """Replace samples by what the functions return for them."""
        self._end[0] = rows.first + rows.size
        waiting = self._waiting
        waiting.extend(rows.values)
        rows.values = None
        keys = rows.keys.tolist() if rows.keys is not None else None
        # An iterator that calls waiting.popleft() when the runner asks for the next sample. So no
        # list refers to samples whose functions were called, and len(waiting) tells the index of
        # the present one. A generator would do the same, more slowly.
        samples = itertools.starmap(waiting.popleft, itertools.repeat((), len(waiting)))
        rows.values = [*self._runner.over(samples, keys, self._epoch.fail)]
        return rows


class SampleJudge:
    """Stage that reads samples by number, calls their functions, and drops what a filter refuses.

    Samples come from the ``__getitem__`` of the user's class if it has one. With
    ``on_error="skip"``, samples that cannot be decoded are dropped too. If nothing can be dropped,
    samples in the place of padding are read as well.

    Args:
        source: Samples to read.
        epoch: The worker's part of an epoch, which lends the readers of its windows.
        watch: Stopwatch that times one sample of each batch.
        describe: Describes a sample for an error, from its index and its number.

    Attributes:
        dropped: Samples that were dropped and that no batch has reported yet.
        spare: List of at most one sample with which all functions were called, whether it was then
            kept or dropped; it has the columns that a batch needs. If no sample of a batch is kept,
            the batch is this sample with a mask of False, see `keep_samples`.
    """

    def __init__(
        self,
        source: SampleSource,
        epoch: WorkerEpoch,
        watch: Stopwatch,
        describe: Callable[[int, int], str],
    ) -> None:
        self._source, self._epoch, self._watch = source, epoch, watch
        self._filter = source.filter
        # Reads a sample by its number from the open shards of the present window.
        self._get = epoch.lend(source.get)
        # Index and number of the sample that is being judged, for `describe`, in a list: a function
        # that refers to this object would keep it until a garbage collection.
        self._current = current = [0, 0]
        self._runner = SampleRunner(self._filter.chain, lambda: describe(*current))
        self._has_functions = bool(self._filter.chain.of_samples) or source.has_own_items
        self.dropped = DropCount()
        self.spare: list[Any] = []
        self._drops = not self._filter.keeps_everything
        self._is_spare_due = self._drops  # whether this batch has not set `spare` yet

    def judge(self, rows: Rows) -> Rows:
        """Replace numbers by the samples after all functions, and dropped ones by `DROPPED`.

        The first sample of the batch that all functions were called with also becomes the spare
        sample. Each batch sets its own, so that an empty batch does not depend on earlier batches,
        which another worker may have made after a resume.

        ``rows``: places of a batch or of a part of one, with the numbers of their samples.
        """
        samples: list[Any] = []
        keys = rows.keys.tolist() if rows.keys is not None else [0] * rows.size
        # Padding is dropped without being read.
        is_skipped = [False] * rows.size
        if rows.mask is not None and self._drops:
            is_skipped = (~rows.mask).tolist()
        current = self._current
        for offset, number in enumerate(rows.values):
            current[0], current[1] = rows.first + offset, number
            if is_skipped[offset]:
                samples.append(DROPPED)
                continue
            sample, fate = self._judge(number, keys[offset])
            if self._is_spare_due and fate in _COMPLETE:
                self.spare, self._is_spare_due = [sample], False
            samples.append(sample if fate is Fate.KEPT else DROPPED)
        if rows.ends_batch:
            self._is_spare_due = self._drops  # the next batch sets a spare sample of its own
        rows.values = samples
        return rows

    def _judge(self, number: int, key: int) -> tuple[Any, Fate]:
        """Return the sample with this number after all functions, and its fate.

        One sample of each batch is timed, because reading the clock for all would be slow.

        ``key``: row key for random numbers; 0 if no function takes them.
        """
        judge = functools.partial(
            self._filter.judge, number, self._get, self._report, self._runner, key
        )
        watch = self._watch
        if watch.is_armed and self._has_functions:
            outcome: tuple[Any, Fate] = time_sample(self._epoch, watch, judge)
            return outcome
        return judge()

    def _report(self, skipped: SkippedSample) -> None:
        self._source.dropped.report(skipped)
        self.dropped.report(skipped)


def keep_samples(rows: Rows, judge: SampleJudge, source: SampleSource, epoch: WorkerEpoch) -> Rows:
    """Return a batch of the samples that were kept, with its mask.

    A batch is never filled from later places, so every rank takes as many steps as without a
    filter. If no sample of a batch is kept, it still comes, so that all ranks take the step: as one
    sample whose mask is False, because empty tensors break most models. That is the spare sample of
    the judge, or any sample after its functions.

    The info of the batch has its part of the order hash (`OrderHash` in `mds.plan._audit`): a sum
    over its samples and their count.

    Args:
        rows: Samples of a batch, with `DROPPED` in the place of dropped ones and of padding. The
            mask that it has until now, if any, is False for padding.
        judge: Judge of these samples; its ``spare`` is a list of at most one sample.
        source: Source of the samples.
        epoch: The worker's part of the epoch.
    """
    is_kept = np.array([sample is not DROPPED for sample in rows.values])
    samples = [sample for sample in rows.values if sample is not DROPPED]
    keys = rows.keys[is_kept] if rows.keys is not None else None
    is_empty = not samples
    if is_empty:
        judge.spare = judge.spare or [any_sample(source)]
        samples, keys = [*judge.spare], np.zeros(1, np.uint64)
    info = batch_info(epoch, rows.first, rows.size)
    # The count of the order hash has dropped samples, which are in the order, and no padding.
    places_with_samples = rows.size if rows.mask is None else int(rows.mask.sum())
    sum_of_hash, _ = info.order
    skipped, dropped = judge.dropped.take()
    info = info._replace(
        order=(sum_of_hash, places_with_samples),
        skipped=tuple(skipped),
        dropped=dropped,
        is_empty=is_empty,
    )
    rows.values, rows.keys, rows.info = samples, keys, info
    rows.mask = np.full(len(samples), not is_empty)
    return rows


def any_sample(source: SampleSource, numbers: Iterable[int] | None = None) -> Any:
    """Return any sample after all functions, whose columns show those of a batch.

    A worker needs it for a batch without samples if it has had no sample yet. It is the first of
    ``numbers`` (default: all) that is not broken and that no filter before a function of `map`
    refuses. Raises ConfigError if none of the first 1,000 is such a sample.
    """
    faults, number = [], -1
    for number in itertools.islice(
        range(source.shards.num_samples) if numbers is None else numbers, _MAX_TRIED_SAMPLES
    ):
        try:
            outcomes = judge_numbers([number], source.filter, source.get, source.seed)
            ((_, sample, fate),) = outcomes
        except (EncodingError, FormatError, FunctionError) as error:
            faults.append(error)
            continue
        if fate in _COMPLETE:
            return sample
    why = f" The first error: {faults[0]}" if faults else ""
    raise ConfigError(
        f"this batch has no samples left, and none of the first {plural(number + 1, 'sample')} "
        "can be its "
        "template: each is broken, or dropped by a filter() before map(). Call filter() last, or "
        f"use on_error='raise' to see why samples are broken.{why}"
    )
