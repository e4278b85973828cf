"""Batches of an epoch as the trainer gets them: counted, and their waits charged."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from mds.plan import OrderHash
from mds.report import WaitAccount


class EpochCount:
    """What one iteration of a loader has taken of the order."""

    def __init__(self) -> None:
        self.samples = self.steps = self.empty_steps = 0
        self.order_hash = OrderHash()
        self.begun: tuple[int, int] | None = None  # the epoch, and the sample where it began
        self.is_over = False
        self.waits = WaitAccount()

    @property
    def is_under_way(self) -> bool:
        """Whether batches were given and more may come."""
        return self.steps > 0 and not self.is_over


class CountedBatches:
    """Iterator of one epoch of a loader, which counts what the batches took of the order."""

    def __init__(self, loader: Any, inner: Iterator[Any]) -> None:
        self._loader, self._inner = loader, inner
        self._clock = loader._clock
        self.count = EpochCount()

    def __iter__(self) -> CountedBatches:
        return self

    def __next__(self) -> Any:
        count = self.count
        asked = self._clock()
        try:
            info, batch = next(self._inner)
        except StopIteration:
            count.is_over = True
            self._warn_if_empty()
            raise
        count.waits.add(asked, self._clock(), info.making)
        self._loader._count = count  # the state is of the iteration that gave a batch last
        count.samples += info.samples
        count.order_hash.take(*info.order)
        count.steps += 1
        count.begun = info.begun
        self._loader._samples_read += info.samples
        if info.dropped or info.is_empty:
            count.empty_steps += info.is_empty
            self._loader._note_dropped(info)
        return batch

    def _warn_if_empty(self) -> None:
        """Say when a filter left nothing of an epoch."""
        steps = self.count.steps
        if steps and steps == self.count.empty_steps:
            warnings.warn(
                f"all {steps} batches of this rank are empty: the filter, or on_error='skip',"
                " dropped every sample. dataset.skipped says why.",
                stacklevel=3,
            )

    def __del__(self) -> None:
        self.count.is_over = True

    def __getattr__(self, name: str) -> Any:
        # Tools look into a DataLoader's iterator (for its workers, say): show them the real one.
        if name in {"_inner", "count"}:  # of one that was not made
            raise AttributeError(name)
        return getattr(self._inner, name)
