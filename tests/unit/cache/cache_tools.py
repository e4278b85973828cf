"""Datasets in folders, and caches over them; imported by the tests of the cache."""

from __future__ import annotations

import os
import random

import numpy as np

from mds._cache.index_copy import find_index
from mds._cache.shard_cache import ShardCache
from mds._cache.source import Source
from mds._prefetch.prefetcher import Prefetcher
from mds.writers import MDSWriter

SIZE = 1000  # bytes of a sample; ten in a shard
SAMPLES = 200


def payload(number, size=SIZE):
    return random.Random(number).randbytes(size)


def write(out, samples=SAMPLES, size=SIZE, salt=0, **options):
    """A dataset of x = 0, 1, ... and b = payload(x), about ten samples in a shard."""
    options.setdefault("hashes", ["sha1"])
    options.setdefault("size_limit", 10 * (size + 40))
    with MDSWriter(out=str(out), columns={"x": "int", "b": "bytes"}, **options) as writer:
        for number in range(samples):
            writer.write({"x": number, "b": payload(number + salt, size)})
    return str(out)


def open_cache(remote, folder, limit=None, attempts=0, **options):
    """A cache over one source."""
    return open_caches(remote, [folder], limit, attempts, **options)


def open_caches(remote, folders, limit=None, attempts=0, **options):
    """A cache over sources with the same remote, each in a folder of its own."""
    shard_options = {k: options.pop(k) for k in ("keep_zip", "validate_hash") if k in options}
    sources = []
    for folder in folders:
        found = find_index(remote, str(folder), attempts=attempts, timeout=10.0)
        source = Source(
            found.index,
            remote,
            found.folder,
            attempts=attempts,
            timeout=10.0,
            version=found.version,
            **shard_options,
        )
        sources.append(source)
    return ShardCache(sources, limit=limit, **options)


class NodeOf:
    """The merged order of workers whose orders are given, this epoch's and on from there."""

    def __init__(self, *orders, start=0, piece=100):
        self.orders = [np.asarray(order, np.int64) for order in orders]
        self.workers, self.every, self.team = len(orders), 1, 17
        self.start, self._piece = start, piece

    def pieces(self):
        for at in range(0, max(map(len, self.orders)), self._piece):
            found = sorted(
                (self.start + at + place, sample)
                for order in self.orders
                for place, sample in enumerate(order[at : at + self._piece].tolist())
            )
            yield tuple(np.array(found, np.int64).T)


def read(cache, ids=None, *, predownload=16, node=None, size=SIZE, salt=0):
    """The numbers of the samples that come, whose bytes are checked."""
    index = cache.sources[0].index
    ids = np.arange(index.total_samples) if ids is None else np.asarray(ids)
    out = []
    with Prefetcher(cache, [ids], index.offsets, predownload=predownload, node=node) as prefetcher:
        for window in prefetcher.windows():
            for shard, row in zip(window.shards.tolist(), window.rows.tolist(), strict=True):
                sample = window.readers[shard][row]
                assert sample["b"] == payload(sample["x"] + salt, size)
                out.append(sample["x"])
    return out


def disk_usage(folder):
    """Bytes of all files in a folder."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(path, name))
            except OSError:
                continue
    return total


def contents(folder):
    """Every file in a folder with its bytes and time."""
    out = {}
    for path, _, names in os.walk(folder):
        for name in names:
            full = os.path.join(path, name)
            with open(full, "rb") as file:
                out[os.path.relpath(full, folder)] = (file.read(), os.stat(full).st_mtime_ns)
    return out


def shuffled(seed=1, samples=SAMPLES):
    """All sample ids in an order that has nothing to do with shards."""
    return np.random.default_rng(seed).permutation(samples)
