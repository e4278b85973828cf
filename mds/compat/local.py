"""The incumbent's ``base.local``: our LocalDataset, whose shards are readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mds.compat.dataset_parts import LocalShardReaders
from mds.compat.shapes import Array, Spanner
from mds.dataset.local import LocalDataset as Dataset
from mds.dataset.shard_map import ShardMap


class LocalDataset(Dataset, Array):
    """As `mds.LocalDataset`."""

    __doc__ = Dataset.__doc__
    size = 0  # each object sets its own

    def __getitem__(self, at: Any) -> Any:
        """A sample, or lists of samples for slices, lists and arrays; True is sample 1."""
        return super().__getitem__(int(at) if isinstance(at, bool) else at)

    @property
    def shards(self) -> Sequence[Any]:  # type: ignore[override]
        """A reader of each shard, made when it is first asked for."""
        found: LocalShardReaders | None = self.__dict__.get("_shard_readers")
        if found is None:
            found = LocalShardReaders(ShardMap([self._index]), self._folder)
            self._shard_readers = found
        return found

    @property
    def spanner(self) -> Spanner:  # type: ignore[override]
        """``spanner[sample]`` is (shard, row)."""
        return Spanner(self._index.samples)
