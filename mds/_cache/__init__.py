"""Cache of shards on this machine, shared by all of its processes; see docs/cache.md."""
