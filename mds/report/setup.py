"""Facts of a run that an explanation of its waits goes by: plain values, nothing is measured."""

from __future__ import annotations

from typing import NamedTuple


class LoaderSetup(NamedTuple):
    """How a loader is set.

    ``workers`` of a rank, which are ``kind`` ("processes" or "threads"); ``cores`` of the machine
    for each rank on it. ``functions`` and ``collate`` are names of the caller's code, ``collate``
    '' where there is none; ``columns`` tells each column's encoding.
    """

    workers: int = 0
    kind: str = "processes"
    cores: int = 1
    functions: tuple[str, ...] = ()
    collate: str = ""
    columns: tuple[tuple[str, str], ...] = ()


class CacheUse(NamedTuple):
    """What a rank had fetched, counted in shards and bytes.

    ``limit`` is None without one. ``needed``: shards that the samples read so far lie in, each
    counted once. ``total``: bytes of the dataset on the disk of a node. ``gone``: shards that were
    evicted, or were never kept.
    """

    limit: int | None = None
    total: int = 0
    shards: int = 1
    is_compressed: bool = False
    came: int = 0
    needed: float = 0.0
    gone: int = 0
    bytes_came: int = 0
    ranged_bytes: int = 0

    @property
    def wasted(self) -> float:
        """Share of the shards that came and were fetched for want of room, 0 to 1."""
        if self.limit is None or not self.came:
            return 0.0
        return min(1.0, max(0.0, self.gone - self.needed) / self.came)

    @property
    def ranged(self) -> float:
        """Share of the bytes that came row by row for want of room, 0 to 1."""
        if self.limit is None or not self.bytes_came:
            return 0.0
        return self.ranged_bytes / self.bytes_came
