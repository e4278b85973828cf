"""Reader of the samples of a user's class that iterates by itself, through our dataset."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mds.dataset.worker_epoch import PaddedWorkerEpoch, collect_epochs, take_dropped
from mds.errors import ConfigError
from mds.loader.rows import SUM_BITS, BatchInfo, Rows
from mds.loader.wrapping import find_streaming

if TYPE_CHECKING:
    from mds.dataset.streaming import StreamingDataset
    from mds.dataset.worker_epoch import WorkerEpoch


def begin_custom(
    dataset: Any, batch_size: int | None, drop_last: bool, epochs: list[WorkerEpoch]
) -> Iterator[Rows]:
    """Begin the epoch, and return the batches of samples that the user's code makes of ours.

    ``batch_size`` None gives single samples. Epochs that the user's code begins are added to
    ``epochs``.
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
    """Yield batches of samples; their places follow from how far the last epoch is."""
    position = checksum = 0
    count = batch_size or 1
    while True:
        with collect_epochs(source, epochs):  # generators begin ours when they like
            batch = [*itertools.islice(samples, count)]
        if not batch:
            return
        if len(batch) < count and drop_last:
            continue
        first, earlier = position, checksum
        epoch = epochs[-1] if epochs else None
        if epoch is not None:
            position, checksum = epoch.position, epoch.checksum_until(epoch.position)
        skipped, dropped = take_dropped(epochs)
        del epochs[:-1]
        places = position - first
        mask = None
        if isinstance(epoch, PaddedWorkerEpoch):
            if places != len(batch):
                name = type(dataset).__name__
                raise ConfigError(
                    f"exact='mask' marks every place of the order, and {name} made {len(batch)} "
                    f"samples of {places} places. Use exact=True."
                )
            mask = epoch.next_mask(places)
        entries = sum(len(each) if type(each) is list else 1 for each in batch)
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
