"""Batches of a class of the caller's that iterates by itself and goes through ours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mds.dataset.worker_epoch import PaddedWorkerEpoch, collect_epochs, take_dropped
from mds.errors import ConfigError
from mds.loader.batch_groups import SUM_BITS, BatchInfo
from mds.loader.wrapping import find_streaming

if TYPE_CHECKING:
    from mds.dataset.streaming import StreamingDataset
    from mds.dataset.worker_epoch import WorkerEpoch
    from mds.loader.batch_groups import Batch
    from mds.loader.batch_maker import BatchMaker
    from mds.process.stopwatch import Stopwatch


def begin_custom(
    dataset: Any,
    watch: Stopwatch,
    size: int | None,
    drop_last: bool,
    maker: BatchMaker,
    epochs: list[WorkerEpoch],
) -> Iterator[Batch]:
    """Batches of what the caller's code makes of our samples, whose epoch begins now.

    ``size`` None gives single samples. Epochs that the caller's code begins go to ``epochs``.
    """
    source = find_streaming(dataset)
    assert source is not None
    with collect_epochs(source, epochs):
        samples = iter(dataset)
    return _custom_batches(dataset, source, samples, epochs, watch, size, drop_last, maker)


def _custom_batches(
    dataset: Any,
    source: StreamingDataset,
    samples: Iterator[Any],
    epochs: list[WorkerEpoch],
    watch: Stopwatch,
    size: int | None,
    drop_last: bool,
    maker: BatchMaker,
) -> Iterator[Batch]:
    """What each batch took from the order is found by how far the epoch is.

    ``epochs``: those that the caller's code has begun; it goes through the last one.
    """
    from mds.loader.batch_masks import mask_padding

    taken = summed = 0
    count = size or 1
    while True:
        watch.start()
        with collect_epochs(source, epochs):  # generators begin ours when they like
            batch = [*itertools.islice(samples, count)]
        if not batch:
            return
        watch.end_functions()  # which have our samples decoded
        if len(batch) < count and drop_last:
            continue
        before, earlier = taken, summed
        epoch = epochs[-1] if epochs else None
        if epoch is not None:
            taken, summed = epoch.position, epoch.checksum_until(epoch.position)
        skipped, dropped = take_dropped(epochs)
        del epochs[:-1]
        info = BatchInfo(
            taken - before,
            ((summed - earlier) & SUM_BITS, taken - before),
            epoch.begin if epoch is not None else None,
            skipped,
            dropped,
            given=(len(batch), sum(len(one) if type(one) is list else 1 for one in batch)),
        )
        if isinstance(epoch, PaddedWorkerEpoch) and info.samples != len(batch):
            name = type(dataset).__name__
            raise ConfigError(
                f"exact='mask' marks every place of the order, and {name} made {len(batch)} "
                f"samples of {info.samples} places. Use exact=True."
            )
        collated = maker.of_samples(batch if size is not None else batch[0], None, str, watch)
        del batch  # decoded images are large
        info = info._replace(making=watch.take())
        yield (
            mask_padding(info, collated, epoch)
            if isinstance(epoch, PaddedWorkerEpoch)
            else (info, collated)
        )
        del collated
