"""Facts of a run that the diagnosis of its waits uses; plain values, not measured here."""

from __future__ import annotations

from typing import NamedTuple


class LoaderSetup(NamedTuple):
    """Settings of a loader.

    ``workers`` is their number in a rank and ``kind`` "processes" or "threads"; ``cores`` is the
    number of cores for each rank of the machine. ``functions`` and ``collate`` are names of the
    caller's code, ``collate`` '' if there is none. ``columns`` holds (name, encoding) of columns.
    """

    workers: int = 0
    kind: str = "processes"
    cores: int = 1
    functions: tuple[str, ...] = ()
    collate: str = ""
    columns: tuple[tuple[str, str], ...] = ()


class CacheUse(NamedTuple):
    """Shards and bytes that a rank fetched.

    ``limit`` is `cache_limit` in bytes, or None. ``total`` is the size of the dataset on disk in
    bytes, ``fetches`` the number of fetched shards. ``needed`` counts the shards of the samples
    read so far, each once. ``evictions`` counts shards that were evicted or never kept.
    """

    limit: int | None = None
    total: int = 0
    shards: int = 1
    is_compressed: bool = False
    fetches: int = 0
    needed: float = 0.0
    evictions: int = 0
    bytes_fetched: int = 0
    ranged_bytes: int = 0

    @property
    def wasted(self) -> float:
        """Share of the fetched shards that were fetched again because they were evicted, 0 to 1."""
        if self.limit is None or not self.fetches:
            return 0.0
        return min(1.0, max(0.0, self.evictions - self.needed) / self.fetches)

    @property
    def ranged(self) -> float:
        """Share of the fetched bytes that were fetched row by row for lack of room, 0 to 1."""
        if self.limit is None or not self.bytes_fetched:
            return 0.0
        return self.ranged_bytes / self.bytes_fetched
