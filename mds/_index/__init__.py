"""``index.json`` and the columnar table of shards that it becomes.

A dataset of half a million shards is a few NumPy arrays, not half a million Python objects: counts
and sizes are int64 columns, names are packed text, and digests are packed bytes. The part that all
shards of a writer share (columns, compression, hashes) is one :class:`ShardSchema`. The parser
reads one shard object at a time, so it needs the memory of the table, not that of a parsed JSON
document. Every value of an index is checked before it is used.
"""
