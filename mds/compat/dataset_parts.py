"""Parts of the door's StreamingDataset: shards as readers, numbers as NumPy's, work of a user's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mds.dataset.indexing import normal, resolve
from mds.dataset.shard_map import ShardMap
from mds.dataset.worker_epoch import WorkerEpoch
from mds.errors import ConfigError

if TYPE_CHECKING:
    from mds.plan import EpochPlan
    from mds.world import World

    Ids = npt.NDArray[np.int64]


def resolve_numbers(at: Any, count: int, get: Callable[[int], Any]) -> Any:
    """As the library resolves what stands in brackets; NumPy's integers stay what they are."""
    if isinstance(at, bool):
        return get(normal(int(at), count))
    if isinstance(at, list) and any(isinstance(one, bool) for one in at):
        return [resolve_numbers(one, count, get) for one in at]
    if isinstance(at, np.integer):
        return get(np.int64(normal(int(at), count)))
    if isinstance(at, np.ndarray) and at.dtype.kind in "iu" and at.size:
        return [resolve_numbers(one, count, get) for one in at]
    if isinstance(at, slice):
        try:
            at.indices(count)
        except TypeError as error:
            raise SliceError(f"a slice of samples is made of integers, got {at!r}.") from error
    return resolve(at, count, get)


class SliceError(ConfigError, TypeError):
    """A slice of something else than integers."""


class _Numbers:
    """Ids that go out as NumPy's integers."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids

    def tolist(self) -> list[Any]:
        """The ids: subclasses call ``.item()`` on them."""
        return list(self._ids)


class NumberedShards(ShardMap):
    """A map whose selected numbers are NumPy's, as subclasses of 0.13's dataset are given them."""

    @classmethod
    def of(cls, shards: ShardMap) -> ShardMap:
        """The same map."""
        if isinstance(shards, cls):
            return shards
        made = cls.__new__(cls)
        made.__dict__.update(shards.__dict__)
        return made

    def selected(self, stored: Ids) -> Any:
        """See ShardMap.selected."""
        return _Numbers(super().selected(stored))


class GivenWork(WorkerEpoch):
    """Ids of a worker as `_get_work` returned them, without an order hash."""

    def __init__(
        self, plan: EpochPlan, world: World, ids: Ids, start: int = 0, *, is_counted: bool = False
    ) -> None:
        super().__init__(plan, world, start, is_counted=is_counted)
        self._ids = ids

    @property
    def most_samples(self) -> int:
        """Number of samples of this worker."""
        return int((self._ids >= 0).sum())

    def blocks(self) -> Iterator[Ids]:
        """Yield the ids without padding, as many at once as the cache should look ahead."""
        for place in range(self.start, len(self._ids), 1 << 14):
            block = self._ids[place : place + (1 << 14)]
            real = block >= 0
            for stream in self._key_streams:
                stream.note(place, real, block[real])
            yield block[real]

    def checksum_until(self, position: int) -> int:
        """Return 0: the order is the subclass's own."""
        del position
        return 0
