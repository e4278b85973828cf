"""Batches as worker processes send them: in parcels, from memory that is used again.

torch's DataLoader starts the processes, asks them for messages and watches over them; only what a
message is, is decided here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from mds.loader.batch_codec import is_plain, numpy_dtype
from mds.loader.malloc import tune_malloc
from mds.loader.parcels import ParcelSender
from mds.loader.segments import SegmentFile, SegmentPool, SegmentReader
from mds.loader.tensor_buffers import Allocator, TensorPool
from mds.process.fork_safe import end_with_parent
from mds.world import worker_group, worker_place

if TYPE_CHECKING:
    from mds.loader.batches import Batches


class WorkerBatches(IterableDataset[Any]):
    """The messages of worker processes; made by the trainer before it starts them.

    Attributes are those of the ``batches``, so that code in workers which asks torch for "the
    dataset" finds what it knows.
    """

    def __init__(self, batches: Batches, workers: int) -> None:
        self._batches = batches
        self._files: list[SegmentFile] = []
        with contextlib.suppress(OSError):  # where there is none, batches go through the pipe
            self._files = [SegmentFile() for _ in range(workers)]
        # The trainer's, which has to live as long as messages may come.
        self._readers = [SegmentReader(file) for file in self._files]
        self._pool: SegmentPool | None = None  # the worker's

    def __iter__(self) -> Iterator[Any]:
        worker, workers = worker_place()
        if self._pool is None:  # and not in a later epoch
            # torch's own look at the parent comes too late where that is gone already.
            end_with_parent()
            tune_malloc()
            stack_into(TensorPool())
            if self._files:
                self._pool = SegmentPool(self._files[worker])
        batches = self._batches.begin_epoch(worker, workers, worker_group(), TensorPool())
        return ParcelSender(worker, self._pool).send(batches)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": []}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_batches" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["_batches"], name)


def stack_into(allocate: Allocator) -> None:
    """Make torch's default collate of this process stack arrays and tensors in such memory.

    In a worker process torch takes a new file of shared memory for each tensor that it stacks, to
    save a copy: opening, mapping and filling new pages costs more than the copy. It is told through
    the table of functions that it has for this purpose; what others have put there stays.
    """
    try:
        from torch.utils.data._utils import collate
    except ImportError:  # it has moved: torch allocates as it does
        return
    table: dict[Any, Callable[..., Any]] = collate.default_collate_fn_map

    def stack_arrays(batch: Any, *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        if first.dtype.kind not in "biufc" or not _are_alike(batch):
            return collate.collate_numpy_array_fn(batch, collate_fn_map=collate_fn_map)
        stacked = allocate((len(batch), *first.shape), first.dtype)
        np.stack(batch, out=stacked.numpy())
        return stacked

    def stack_tensors(batch: Any, *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        dtype = numpy_dtype(first.dtype)
        if dtype is None or any(not is_plain(each) for each in batch):
            return collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
        return torch.stack(batch, out=allocate((len(batch), *first.shape), dtype))

    if table.get(np.ndarray) is collate.collate_numpy_array_fn:
        table[np.ndarray] = stack_arrays
    if table.get(torch.Tensor) is collate.collate_tensor_fn:
        table[torch.Tensor] = stack_tensors


def _are_alike(arrays: Any) -> bool:
    first = arrays[0]
    return all(
        type(a) is np.ndarray and a.shape == first.shape and a.dtype == first.dtype for a in arrays
    )
