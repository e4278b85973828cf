"""Batches of a filtered dataset: what is kept of as many places of the order as a batch has.

A batch is never filled up from later places, so every rank takes as many steps as without a
filter. One of which nothing is kept cannot be left out for the same reason, and tensors of no
samples break most models: it is one sample with a mask that says False.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.dataset.filtering import Fate
from mds.dataset.reading import judge_numbers, judge_samples
from mds.dataset.worker_epoch import take_dropped
from mds.errors import ConfigError, EncodingError, FormatError, FunctionError
from mds.loader.batch_groups import batch_info
from mds.loader.batch_masks import with_mask

if TYPE_CHECKING:
    from mds.dataset.samples import Samples
    from mds.dataset.worker_epoch import WorkerEpoch
    from mds.loader.batch_groups import Batch
    from mds.loader.batch_maker import BatchMaker
    from mds.process.stopwatch import Stopwatch

_MAX_TRIED_SAMPLES = 1000


def filtered_batches(
    dataset: Samples,
    epoch: WorkerEpoch,
    watch: Stopwatch,
    batch_size: int | None,
    drop_last: bool,
    maker: BatchMaker,
) -> Iterator[Batch]:
    """The batches of one worker, each with its bookkeeping and its mask."""
    places = judge_samples(dataset, epoch, is_keyed=maker.is_keyed)
    position, size = epoch.start, batch_size or 1
    spare: tuple[Any, ...] = ()  # a sample that could be read, to be masked
    while True:
        watch.start()
        batch = [*itertools.islice(places, size)]
        if not batch:
            return
        watch.end_samples(len(batch))
        if len(batch) < size and drop_last:
            continue
        kept = [sample for sample, fate, _ in batch if fate is Fate.KEPT]
        keys = [key for _, fate, key in batch if fate is Fate.KEPT] or [0]
        spare = next(((s,) for s, fate, _ in batch if fate in _READ), spare)
        if not kept:
            spare = spare or (any_sample(dataset),)
        info = batch_info(epoch, position, len(batch))
        skipped, dropped = take_dropped([epoch])
        real = sum(fate is not Fate.PADDING for _, fate, _ in batch)
        info = info._replace(
            order=(info.order[0], real),
            skipped=skipped,
            dropped=dropped,
            is_empty=not kept,
        )
        where = functools.partial(epoch.describe, position, len(batch))
        position += len(batch)
        shown = kept or [*spare]
        mask = np.full(len(shown), bool(kept))
        del batch, kept
        whole = shown if batch_size is not None else shown[0]
        made = maker.of_samples(whole, np.array(keys, np.uint64), where, watch)
        yield info._replace(making=watch.take()), with_mask(made, mask)
        del shown, whole, made


_READ = (Fate.KEPT, Fate.DROPPED)


def any_sample(dataset: Samples, numbers: Iterable[int] | None = None) -> Any:
    """A sample that all functions have seen, for a worker that has met none yet.

    The first one, of ``numbers``, that the filters keep or that nothing but a filter keeps from it.
    """
    faults, number = [], -1
    for number in itertools.islice(
        range(dataset.num_samples) if numbers is None else numbers, _MAX_TRIED_SAMPLES
    ):
        try:
            judged = judge_numbers(dataset, [number], dataset._filter, dataset._stored_item)
            ((_, sample, fate),) = judged
        except (EncodingError, FormatError, FunctionError) as error:
            faults.append(error)
            continue
        if fate in _READ:
            return sample
    why = f" The first of them: {faults[0]}" if faults else ""
    raise ConfigError(
        f"none of the first {number + 1} samples can stand for a batch of which nothing is kept: "
        "they are broken, or refused by a filter() before map(). Let filter() be the last link; "
        f"say on_error='raise' to see why they are broken.{why}"
    )
