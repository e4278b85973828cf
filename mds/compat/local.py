"""The incumbent's ``base.local``: our LocalDataset, whose shards are readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mds.compat.readers import Array, ShardReaders, Spanner
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
        found: ShardReaders | None = self.__dict__.get("_shard_readers")
        if found is None:
            found = ShardReaders(ShardMap([self._index]), folder=self._folder)
            self._shard_readers = found
        return found

    @property
    def spanner(self) -> Spanner:  # type: ignore[override]
        """``spanner[sample]`` is (shard, row)."""
        return Spanner(self._index.samples)
