"""Batches of threads of this process, as of so many worker processes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from mds.loader.messages import BatchIterator
from mds.loader.tensor_buffers import TensorPool
from mds.loader.threads import ThreadedWorkers

if TYPE_CHECKING:
    from mds.loader.batches import Batches


class ThreadedBatches(IterableDataset[Any]):
    """Batches of ``workers`` threads of this process, as of so many worker processes."""

    def __init__(self, batches: Batches, workers: int, ahead: int) -> None:
        self._batches, self._workers, self._ahead = batches, workers, ahead

    def __iter__(self) -> Iterator[Any]:
        group = -2 - next(_iterations)
        parts = [
            self._batches.of_thread().begin_epoch(worker, self._workers, group, TensorPool())
            for worker in range(self._workers)
        ]
        workers = ThreadedWorkers([functools.partial(iter, part) for part in parts], self._ahead)
        return BatchIterator(workers, self._workers)


# Each iteration is a group in the epoch counter; its sign tells it from torch's seeds.
_iterations = itertools.count()
