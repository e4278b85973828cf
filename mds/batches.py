"""Batches made next to their samples, each with the number of samples that it used up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, default_collate

from mds.dataset import StreamingDataset

if TYPE_CHECKING:
    Batch = tuple[int, Any]


class Batches(IterableDataset[Any]):
    """The batches of a dataset as (samples used up, collated batch), in this worker.

    ``batch_size`` None gives single samples. Other attributes are the dataset's, so that code in
    workers which asks torch for "the dataset" finds what it knows.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None,
        drop_last: bool,
        collate: Callable[[Any], Any],
    ) -> None:
        self.dataset = dataset
        self._batch_size, self._drop_last, self._collate = batch_size, drop_last, collate

    def __iter__(self) -> Iterator[Batch]:
        samples = iter(self.dataset)  # now, so that this worker takes its turn at once
        source = find_streaming(self.dataset)
        assert source is not None
        return self._single(samples, source) if self._batch_size is None else self._many(samples, source)

    def _single(self, samples: Iterator[Any], source: StreamingDataset) -> Iterator[Batch]:
        before = source.issued
        for sample in samples:
            yield source.issued - before, self._collate(sample)
            before = source.issued

    def _many(self, samples: Iterator[Any], source: StreamingDataset) -> Iterator[Batch]:
        batch: list[Any] = []
        before = source.issued
        for sample in samples:
            batch.append(sample)
            if len(batch) == self._batch_size:
                yield source.issued - before, self._collate(batch)
                before = source.issued
                batch = []
        if batch and not self._drop_last:
            yield source.issued - before, self._collate(batch)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["dataset"], name)


def find_streaming(dataset: Any) -> StreamingDataset | None:
    """The StreamingDataset that this is, or that it wraps under ``.dataset``."""
    seen = 0
    while dataset is not None and seen < 16:  # noqa: PLR2004 - wrappers may point in circles
        if isinstance(dataset, StreamingDataset):
            return dataset
        dataset, seen = getattr(dataset, "dataset", None), seen + 1
    return None
