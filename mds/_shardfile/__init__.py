"""The bytes of a shard file: layout, compression, digests."""
