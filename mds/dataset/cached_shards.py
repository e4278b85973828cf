"""Shards of a dataset in its cache folders, one by one; these functions are methods of Samples."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from mds.errors import MdsError
from mds.text.redaction import get_logger

if TYPE_CHECKING:
    from mds.cache import ShardCache

log = get_logger("mds.dataset")


class CachedDataset(Protocol):
    """What these functions need of a dataset."""

    _cache: ShardCache

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None: ...  # noqa: D102 - below


def prepare_shard(self: CachedDataset, shard_id: int, blocking: bool = True) -> None:
    """Fetch a shard; without ``blocking``, start to fetch it and return at once.

    A shard that could not be fetched in the background is fetched again when it is read, and its
    error is raised there.
    """
    if blocking:
        self._cache.hold(shard_id)
        self._cache.release(shard_id)
    else:
        threading.Thread(target=_try_to_prepare, args=(self, shard_id), daemon=True).start()


def _try_to_prepare(dataset: CachedDataset, shard_id: int) -> None:
    try:
        dataset.prepare_shard(shard_id)
    except MdsError as error:
        log.warning(
            "Shard %d was not fetched ahead, and will be when it is read: %s", shard_id, error
        )


def evict_shard(self: CachedDataset, shard_id: int) -> None:
    """Take a shard out of the cache folder; what the library did not fetch stays."""
    self._cache.evict(shard_id)


def evict_coldest_shard(self: CachedDataset) -> None:
    """Take the shard that is needed last out of the cache folder, if one can go."""
    self._cache.evict_coldest()
