"""The shards of all folders by one number: which folder, how many bytes, how many samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mds.process.fork_safe import cached_property
from mds.readers import unique_stable

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.folder import CacheFolder
    from mds.index import ShardInfo


class Catalog:
    """Facts about shards that never change; arrays, made when they are first needed."""

    def __init__(self, folders: Sequence[CacheFolder]) -> None:
        self.folders = folders
        self._starts = np.array([folder.first_shard for folder in folders], np.int64)

    @property
    def shards(self) -> int:
        """Number of shards."""
        return sum(map(len, self.folders))

    def locate(self, shard: int) -> tuple[CacheFolder, int]:
        """Return the folder of a shard, and its number there."""
        folder = self.folders[int(self._starts.searchsorted(shard, "right")) - 1]
        return folder, shard - folder.first_shard

    def groups(
        self, shards: npt.NDArray[np.int64]
    ) -> list[tuple[CacheFolder, npt.NDArray[np.bool_], npt.NDArray[np.int64]]]:
        """(folder, which of ``shards`` it has, their numbers there) for each folder with some."""
        folder_numbers = self._starts.searchsorted(shards, "right") - 1
        out = []
        for number in unique_stable(folder_numbers):
            folder, mine = self.folders[number], folder_numbers == number
            out.append((folder, mine, shards[mine] - folder.first_shard))
        return out

    def info(self, shard: int) -> ShardInfo:
        """Return the entry of a shard in its index."""
        folder, number = self.locate(shard)
        return folder.index.shard(number)

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each shard in a cache folder."""
        return np.concatenate([folder.sizes() for folder in self.folders])

    def row_size(self, shard: int) -> float:
        """Bytes of a sample of a shard, on average."""
        folder, number = self.locate(shard)
        return int(folder.index.raw_size[number]) / max(int(folder.index.samples[number]), 1)

    @property
    def samples(self) -> int:
        """Number of samples of all shards."""
        return sum(folder.index.total_samples for folder in self.folders)

    @cached_property
    def mean_row_size(self) -> int:
        """Bytes of a sample, on average over all shards."""
        raw = sum(int(folder.index.raw_size.sum()) for folder in self.folders)
        return raw // max(self.samples, 1)

    @property
    def remote_bytes(self) -> int:
        """Bytes of all shards as they are stored."""
        total = 0
        for folder in self.folders:
            index = folder.index
            packed = index.zip_size > 0
            total += int(np.where(packed, index.zip_size, index.raw_size).sum())
        return total

    @property
    def has_raw(self) -> bool:
        """Whether some shards are stored uncompressed."""
        return any(not folder.index.zip_size.all() for folder in self.folders)

    @property
    def is_cached(self) -> bool:
        """Whether anything has to be kept in a cache folder."""
        return any(folder.is_cached for folder in self.folders)
