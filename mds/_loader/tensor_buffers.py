"""Memory of the tensors of a batch, into which columns of a fixed width are gathered.

A `TensorPool` uses the memory of earlier batches again: new megabytes cost a page fault for every
4 KB, three times as much as copying the samples.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Allocator = Callable[[tuple[int, ...], "np.dtype[Any]"], torch.Tensor]

# The heap uses smaller blocks again by itself. A column of 8 packs of 8,192 tokens has 512 KB.
_MIN_POOLED_BYTES = 256 << 10
_MAX_FREE_BLOCKS = 8  # of a pool


def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
    """Return an uninitialised tensor in new memory."""
    return torch.from_numpy(np.empty(shape, dtype))


class TensorPool:
    """Allocator of uninitialised tensors, which uses the memory of earlier ones again.

    A block of memory is free again when the last tensor, view or array on it is deleted, in any
    thread.
    """

    def __init__(self) -> None:
        self._free: collections.deque[np.ndarray[Any, Any]] = collections.deque(
            maxlen=_MAX_FREE_BLOCKS
        )
        # By the id() of a lent block, a weak reference to the array on it, which calls back when
        # the array is deleted.
        self._lent: dict[int, weakref.ref[Any]] = {}

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
        """Return an uninitialised tensor."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size < _MIN_POOLED_BYTES:
            return allocate(shape, dtype)
        block = self._fitting(size)
        # A new array for each tensor: when torch deletes it, the block is free.
        array = np.ndarray(shape, dtype, block)

        def come_back(_: object) -> None:
            """Add the block to the free ones, when Python deletes the last view of ``array``."""
            del self._lent[id(block)]
            self._free.append(block)

        self._lent[id(block)] = weakref.ref(array, come_back)
        return torch.from_numpy(array)

    def _fitting(self, size: int) -> np.ndarray[Any, Any]:
        """Return a free block of ``size`` to ``2 * size`` bytes, or a new one of ``size``."""
        for _ in range(len(self._free)):
            block = self._free.popleft()
            # Blocks of another size are not put back: those of the first batches, for example,
            # which are smaller than later ones and would never be used again.
            if size <= len(block) <= 2 * size:
                return block
        return np.empty(size, np.uint8)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is numbers in this process's memory, which NumPy can read, and no more.

    Subclasses, tensors on a GPU, sparse and quantized tensors, and tensors with gradients are not.
    """
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
    )


@functools.cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any] | None:
    """Return the NumPy dtype of a torch dtype, or None if NumPy has none."""
    with contextlib.suppress(TypeError):
        return torch.empty(0, dtype=dtype).numpy().dtype
    return None
