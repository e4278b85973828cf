"""Shards of a dataset in its cache folders, one by one; these functions are methods of Samples."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mds.cache import ShardCache


class CachedDataset(Protocol):
    """What these functions need of a dataset."""

    _cache: ShardCache

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None: ...  # noqa: D102 - below


def prepare_shard(self: CachedDataset, shard_id: int, blocking: bool = True) -> None:
    """Have a shard fetched; without ``blocking`` it is there when it is there."""
    if blocking:
        self._cache.hold(shard_id)
        self._cache.release(shard_id)
    else:
        threading.Thread(target=self.prepare_shard, args=(shard_id,), daemon=True).start()


def evict_shard(self: CachedDataset, shard_id: int) -> None:
    """Take a shard out of the cache folder; what the library did not fetch stays."""
    self._cache.evict(shard_id)


def evict_coldest_shard(self: CachedDataset) -> None:
    """Take the shard that is needed last out of the cache folder, if one can go."""
    self._cache.evict_coldest()
