"""Random access to samples by number: cached shards are read, a handful of rows comes by range.

A shard whose rows are asked for again and again will be wanted whole: when its ranges have cost as
much as the shard, the shard is fetched.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache import policy
from mds.cache.concurrency import Pool
from mds.errors import ShardError
from mds.process.fork_safe import new_lock

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.process_cache import ProcessCache

_REMEMBERED = 4096  # shards whose ranges are counted
_SIDE_BY_SIDE = 16


class RandomAccess:
    """Random access to the shards of a runtime."""

    def __init__(self, runtime: ProcessCache) -> None:
        # Not its owner: a runtime lets go of its files when its cache does, not at a collection.
        self._owner = weakref.ref(runtime)
        self._spent: OrderedDict[int, int] = OrderedDict()
        self._lock = new_lock()

    @property
    def _runtime(self) -> ProcessCache:
        runtime = self._owner()
        if runtime is None:
            raise ShardError("the cache of these samples is closed.")
        return runtime

    def samples(self, shard: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples of one shard, in the requested order."""
        runtime = self._runtime
        if self._prefers_ranges(shard, len(rows)):
            return runtime.read_rows(shard, rows).samples(rows)
        reader = runtime.hold(shard)
        try:
            return reader.samples(rows)
        finally:
            runtime.release(shard)

    def samples_many(
        self, shards: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> list[dict[str, Any]]:
        """Return samples of many shards, in the requested order, fetched concurrently."""
        order = np.argsort(shards, kind="stable")
        values, begins = np.unique(shards[order], return_index=True)
        groups = np.split(order, begins[1:]) if len(order) else []
        is_local = self._runtime.is_local(values)
        out: list[Any] = [None] * len(order)

        def read(shard: int, group: npt.NDArray[np.int64]) -> None:
            samples = self.samples(shard, rows[group].tolist())
            for position, sample in zip(group.tolist(), samples, strict=True):
                out[position] = sample

        with contextlib.closing(Pool(_SIDE_BY_SIDE, "mds-random")) as pool:
            coming = []
            for shard, group, is_here in zip(values.tolist(), groups, is_local, strict=True):
                if is_here:
                    read(shard, group)
                else:
                    coming.append(pool.submit(read, shard, group))
            for promise in coming:
                promise.result()
        return out

    def _prefers_ranges(self, shard: int, rows: int) -> bool:
        """Whether to fetch some rows alone rather than the whole shard for them."""
        runtime = self._runtime
        if shard in runtime.readers or not runtime.can_range(shard):
            return False
        if runtime.is_local(np.array([shard], np.int64))[0]:
            return False
        catalog = runtime.catalog
        cost = policy.range_cost(rows, catalog.row_size(shard))
        with self._lock:
            cost += self._spent.pop(shard, 0)
            self._spent[shard] = cost
            while len(self._spent) > _REMEMBERED:
                self._spent.popitem(last=False)
        return not policy.pays(int(catalog.sizes[shard]), cost, 0)
