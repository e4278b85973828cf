"""Small classes and functions of the incumbent that code names: arrays, spans, shards, readers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mds.errors import IndexFileError
from mds.index import Index
from mds.indexing import resolve
from mds.readers import Reader as ShardReader
from mds.readers import open_reader

#: Seconds between two looks of the incumbent at its shared memory; nothing here looks.
TICK = 0.007


class _ArrayType(type):
    """Lets ``isinstance(dataset, Array)`` say yes to datasets, which know no Array."""

    def __instancecheck__(cls, instance: object) -> bool:
        if super().__instancecheck__(instance):
            return True
        if cls is not Array:
            return False
        from mds.dataset import StreamingDataset
        from mds.local import LocalDataset

        return isinstance(instance, (StreamingDataset, LocalDataset))


class Array(metaclass=_ArrayType):
    """Something of a ``size`` whose ``get_item`` gives one item; indexing comes with it."""

    @property
    def size(self) -> int:
        """How many items there are."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.size

    def get_item(self, idx: int) -> Any:
        """One item by its number from 0."""
        raise NotImplementedError

    def __getitem__(self, at: Any) -> Any:
        """An item, or lists of them for slices, lists and arrays."""
        return resolve(at, self.size, self.get_item)

    def __iter__(self) -> Iterator[Any]:
        return (self.get_item(i) for i in range(self.size))


class Spanner:
    """Sample number -> (shard, row), from the samples of each shard."""

    def __init__(self, shard_sizes: Sequence[int], span_size: int = 1 << 10) -> None:
        del span_size
        self._ends = np.cumsum(np.asarray(shard_sizes, np.int64))

    def __getitem__(self, index: int) -> tuple[int, int]:
        total = int(self._ends[-1]) if len(self._ends) else 0
        if not 0 <= index < total:
            raise ValueError(f"there is no sample {index} among {total}.")
        shard = int(np.searchsorted(self._ends, index, "right"))
        return shard, int(index - (self._ends[shard - 1] if shard else 0))


@dataclass
class FileInfo:
    """A file of a shard: its name, its bytes, its digests by hash name."""

    basename: str
    bytes: int
    hashes: Mapping[str, str]


class Reader(Array):
    """One shard of a folder as an array of samples; its raw file must be there."""

    def __init__(self, dirname: str, split: str | None, index: Index) -> None:
        self.dirname, self.split = dirname, split
        self.shard = index.shard(0)
        self.samples = self.shard.samples
        self._folder = os.path.join(dirname, split or "")
        self._reader: ShardReader | None = None

    @property
    def size(self) -> int:
        """The samples of the shard."""
        return self.samples

    @property
    def raw_data(self) -> FileInfo:
        """The uncompressed file."""
        return FileInfo(self.shard.raw.basename, self.shard.raw.size, self.shard.raw.hashes)

    @property
    def zip_data(self) -> FileInfo | None:
        """The compressed file, if there is one."""
        found = self.shard.zip
        return None if found is None else FileInfo(found.basename, found.size, found.hashes)

    def get_item(self, idx: int) -> Any:
        """One sample of the shard."""
        if self._reader is None:
            self._reader = open_reader(self._folder, self.shard)
        return self._reader[idx]


def reader_from_json(dirname: str, split: str | None, obj: Mapping[str, Any]) -> Reader:
    """The reader of one entry of an index's ``shards``. Raises IndexFileError (a ValueError)."""
    index = Index.build([dict(obj)], os.path.join(dirname, split or "", "index.json"))
    if len(index) != 1:
        raise IndexFileError(f"expected one shard, got {len(index)}.")
    return Reader(dirname, split, index)


def get_index_basename() -> str:
    """What an index is called."""
    return "index.json"
