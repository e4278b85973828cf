"""The incumbent's ``base.array`` and ``base.spanner``: what is indexed, and where samples lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mds.compat.overrides import Sealed
from mds.dataset.indexing import resolve
from mds.errors import ConfigError


class Array(metaclass=Sealed):
    """Something of a ``size`` whose ``get_item`` gives one item; indexing comes with it."""

    @property
    def size(self) -> int:
        """How many items there are."""
        raise NotImplementedError

    def get_item(self, idx: int) -> Any:
        """One item by its number from 0."""
        raise NotImplementedError

    def _each_slice_index(self, at: slice) -> Iterator[int]:
        return iter(range(*at.indices(self.size)))

    def __getitem__(self, at: Any) -> Any:
        """An item, or lists of them for slices, lists and arrays."""
        return resolve(at, self.size, self.get_item)


class SpanError(ConfigError, IndexError):
    """A sample that no shard has."""


class Spanner(metaclass=Sealed):
    """Sample number -> (shard, row), from the samples of each shard."""

    def __init__(self, shard_sizes: npt.ArrayLike, span_size: int = 1 << 10) -> None:
        self.shard_sizes = np.asarray(shard_sizes, np.int64)
        self.span_size = span_size
        self.shard_bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.shard_sizes)])
        self.num_samples = int(self.shard_bounds[-1])

    def __getitem__(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self.num_samples:
            raise SpanError(f"there is no sample {index} among {self.num_samples}.")
        shard = int(np.searchsorted(self.shard_bounds, index, "right")) - 1
        return shard, int(index - self.shard_bounds[shard])
