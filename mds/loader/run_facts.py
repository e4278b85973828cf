"""Facts of a loader and its dataset that an explanation of its waits goes by."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch.utils.data import default_collate, default_convert

from mds.report.account import CacheUse, LoaderSetup
from mds.transforms.chain import name_of

if TYPE_CHECKING:
    from mds.dataset.streaming import StreamingDataset


def setup_of(loader: Any, dataset: StreamingDataset, *, is_threaded: bool) -> LoaderSetup:
    """Return the settings of a loader that a report needs."""
    ranks = dataset._world().ranks_per_node
    collate = loader.collate_fn
    is_own = collate not in {default_collate, default_convert}
    columns = {
        (name, encoding.partition(":")[0])
        for index in dataset._shards.indexes
        for schema in index.schemas
        for name, encoding in zip(schema.columns.names, schema.columns.encodings, strict=True)
    }
    return LoaderSetup(
        workers=loader.num_workers,
        kind="threads" if is_threaded else "processes",
        cores=max(1, _usable_cores() // max(ranks, 1)),
        functions=tuple(link.name for link in dataset._filter.chain.links),
        collate=name_of(collate) if is_own else "",
        columns=tuple(sorted(columns)),
    )


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cache_use_of(dataset: StreamingDataset, samples: int) -> CacheUse:
    """Return what this rank fetched for ``samples`` samples in all its epochs."""
    stats, indexes = dataset.stats(), dataset._shards.indexes
    shards = sum(len(index) for index in indexes)
    world = dataset._world()
    # A rank fetches its part of what all need.
    part = min(samples * world.num_ranks / max(dataset.num_samples, 1), 1.0) / world.num_ranks
    fetches = int(stats["fetched_shards"] + stats["in_memory_shards"])
    return CacheUse(
        limit=dataset.cache_limit,
        total=sum(int(index.raw_size.sum()) for index in indexes) // max(world.num_nodes, 1),
        shards=shards,
        is_compressed=any(index.zip_size.any() for index in indexes),
        fetches=fetches,
        needed=part * shards,
        evictions=int(stats["evicted_shards"] + stats["in_memory_shards"]),
        bytes_fetched=int(stats["fetched_bytes"] + stats["ranged_bytes"]),
        ranged_bytes=int(stats["ranged_bytes"]),
    )
