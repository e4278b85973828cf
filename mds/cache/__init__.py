"""A bounded folder of shards that all processes of a machine share; see docs/cache.md."""

from __future__ import annotations

from mds.cache.identity import fetch_index
from mds.cache.shards import ShardCache

__all__ = ["ShardCache", "fetch_index"]
