"""``index.json`` and the columnar table of shards that it becomes.

A dataset of half a million shards is a few numpy arrays here and never half a million Python
objects: counts and sizes are int64 columns, names are packed text, digests packed bytes, and what
all shards of a writer share (columns, compression, hashes) is one :class:`ShardSchema`. The parser
walks the text object by object, so its memory is that of the table and not that of a parsed JSON
document. Everything that an index says is distrusted until it was checked.
"""

from __future__ import annotations

from mds.index.shard_object import (
    FileInfo,
    ShardInfo,
    ShardSchema,
    Stored,
    refuse_unsafe,
)
from mds.index.table import Index, read_index
from mds.shardfile.layout import Columns

__all__ = [
    "Columns",
    "FileInfo",
    "Index",
    "ShardInfo",
    "ShardSchema",
    "Stored",
    "read_index",
    "refuse_unsafe",
]
