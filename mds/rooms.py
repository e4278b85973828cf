"""Where a batch of fixed-width columns is put: the memory that becomes its tensors.

In a worker process that is shared memory, from which the trainer takes the tensor without another
copy, as torch's own collate does it. Elsewhere it is memory of earlier batches: megabytes that are
new each time cost a page fault for every 4 KB, three times what copying the samples costs.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Room = Callable[[tuple[int, ...], "np.dtype[Any]"], torch.Tensor]

_LARGE = 512 << 10  # bytes from which memory is worth to be kept: smaller ones the heap gives again
_KEPT = 8  # blocks of one maker that wait to be used again


def plain_room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
    """An empty tensor of this process."""
    return torch.from_numpy(np.empty(shape, dtype))


def shared_room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
    """An empty tensor in memory that other processes can map."""
    kind = torch.from_numpy(np.empty(0, dtype))
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call] # noqa: SLF001 - as torch's own collate does
    return kind.set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]


class RecycledRooms:
    """Empty tensors in memory of earlier ones that nobody has in hand any more.

    A block comes back when the last tensor, view or array on it is gone, in whatever thread; until
    then it is its owner's alone.
    """

    def __init__(self) -> None:
        self._free: collections.deque[np.ndarray[Any, Any]] = collections.deque(maxlen=_KEPT)
        self._lent: dict[int, weakref.ref[Any]] = {}  # by the address of a block

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
        """An empty tensor."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size < _LARGE:
            return plain_room(shape, dtype)
        block = self._fitting(size)
        # A new array each time: when torch lets go of it, the block is free.
        array = np.ndarray(shape, dtype, block)

        def come_back(_: object) -> None:
            del self._lent[id(block)]
            self._free.append(block)

        self._lent[id(block)] = weakref.ref(array, come_back)
        return torch.from_numpy(array)

    def _fitting(self, size: int) -> np.ndarray[Any, Any]:
        for _ in range(len(self._free)):
            block = self._free.popleft()
            # The first batches are smaller than the later ones; theirs are let go.
            if size <= len(block) <= 2 * size:
                return block
        return np.empty(size, np.uint8)
