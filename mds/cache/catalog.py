"""The shards of all places by one number: which place, how many bytes, how many samples."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mds.readers import distinct

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.places import Place
    from mds.index import ShardInfo


class Catalog:
    """Facts about shards that never change; arrays, made when they are first needed."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = places
        self._starts = np.array([place.first for place in places], np.int64)

    @property
    def shards(self) -> int:
        """How many there are."""
        return sum(map(len, self.places))

    def place_of(self, shard: int) -> tuple[Place, int]:
        """The place of a shard, and its number there."""
        place = self.places[int(self._starts.searchsorted(shard, "right")) - 1]
        return place, shard - place.first

    def groups(
        self, shards: npt.NDArray[np.int64]
    ) -> list[tuple[Place, npt.NDArray[np.bool_], npt.NDArray[np.int64]]]:
        """(place, which of ``shards`` are there, their numbers there) for each place with some."""
        whose = self._starts.searchsorted(shards, "right") - 1
        out = []
        for number in distinct(whose):
            place, mine = self.places[number], whose == number
            out.append((place, mine, shards[mine] - place.first))
        return out

    def info(self, shard: int) -> ShardInfo:
        """What the index says of a shard."""
        place, number = self.place_of(shard)
        return place.index.shard(number)

    @functools.cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each shard in a cache folder."""
        return np.concatenate([place.sizes() for place in self.places])

    def samples_of(self, shard: int) -> int:
        """Samples of a shard."""
        place, number = self.place_of(shard)
        return int(place.index.samples[number])

    def row_size(self, shard: int) -> float:
        """Bytes of a sample of a shard, on average."""
        place, number = self.place_of(shard)
        return int(place.index.raw_size[number]) / max(int(place.index.samples[number]), 1)

    @functools.cached_property
    def mean_row_size(self) -> int:
        """Bytes of a sample, on average over all shards."""
        samples = sum(place.index.total_samples for place in self.places)
        raw = sum(int(place.index.raw_size.sum()) for place in self.places)
        return raw // max(samples, 1)

    @property
    def remote_bytes(self) -> int:
        """Bytes of all shards as they are stored."""
        total = 0
        for place in self.places:
            index = place.index
            packed = index.zip_size > 0
            total += int(np.where(packed, index.zip_size, index.raw_size).sum())
        return total

    @property
    def has_raw(self) -> bool:
        """Whether some shards are stored uncompressed."""
        return any(not place.index.zip_size.all() for place in self.places)

    @property
    def is_cached(self) -> bool:
        """Whether anything has to be kept in a cache folder."""
        return any(place.is_cached for place in self.places)
