"""Cache of shards on this machine, shared by all of its processes; see docs/cache.md."""

from __future__ import annotations

from mds._cache.index_copy import fetch_index, find_index
from mds._cache.shard_cache import ShardCache

__all__ = ["ShardCache", "fetch_index", "find_index"]
