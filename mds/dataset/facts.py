"""What a dataset tells of itself: how much there is, of what shards, in which columns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mds.dataset.explain import describe
from mds.dataset.schema import HasColumns
from mds.dataset.shard_map import SIZES, ShardList, Spanner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mds.cache import ShardCache
    from mds.dataset.filtering import DropCount, SkippedSample
    from mds.dataset.shard_map import ShardMap
    from mds.dataset.stream import Stream
    from mds.index import Index
    from mds.storage import Store
    from mds.world import World


class DatasetFacts(HasColumns):
    """Properties of a dataset that follow from its shards; a base of Samples."""

    _shards: ShardMap
    _cache: ShardCache
    _dropped: DropCount
    streams: list[Stream]
    sampling_method: Any
    epoch_size: int

    def _world(self, workers: int = 1, worker: int = 0) -> World:
        """The place of this process among all."""
        raise NotImplementedError

    def _indexes(self) -> Iterator[tuple[Index, Store | None]]:
        from mds.storage import open_store

        for source in self._cache.sources:
            if source.data is not None:
                yield source.index, None  # files in a format, whose index was made of them
                continue
            place = source.remote or source.folder
            yield source.index, source.store or open_store(place, options=source.options)

    @property
    def num_samples(self) -> int:
        """Samples of all streams, before anything is left out or repeated."""
        return self._shards.num_samples

    @property
    def size(self) -> int:
        """The same as ``num_samples``."""
        return self._shards.num_samples

    @property
    def num_shards(self) -> int:
        """Shards of all streams."""
        return self._shards.num_shards

    @property
    def num_streams(self) -> int:
        """How many streams are mixed."""
        return len(self.streams)

    @property
    def shards(self) -> ShardList:
        """Facts about each shard, made when asked for."""
        return ShardList(self._shards)

    @property
    def spanner(self) -> Spanner:
        """``spanner[sample]`` is (shard, row)."""
        return Spanner(self._shards)

    @property
    def skipped(self) -> list[SkippedSample]:
        """Samples that were dropped by a filter or on_error="skip"; the first 10,000 of them."""
        return self._dropped.listed

    @property
    def length(self) -> int:
        """Samples of an epoch that this rank sees, rounded up."""
        return math.ceil(self.epoch_size / self._world().num_ranks)

    def __len__(self) -> int:
        return self.length

    def __getattr__(self, name: str) -> Any:
        # Sizes and maps that outside code reads live in one place.
        if name in SIZES and "_shards" in self.__dict__:
            return getattr(self._shards, name)
        if name == "left_out":  # the former name
            return self.skipped
        if "_shards" not in self.__dict__ and not name.startswith("__"):
            own = type(self).__name__
            raise AttributeError(
                f"{own!r} object has no attribute {name!r} yet: {own}.__init__ has not called "
                "super().__init__(local=..., batch_size=...). Call it first."
            )
        if name == "epoch_seed_change":  # the incumbent's
            return self.sampling_method == "balanced"
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return describe(self)
