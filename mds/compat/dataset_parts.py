"""Parts of the door's StreamingDataset: shards as readers, numbers as NumPy's, work of a user's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from mds.compat.format_readers import reader_from_json
from mds.compat.overrides import find_remedy, refuse
from mds.dataset.indexing import normal, resolve
from mds.dataset.shard_map import ShardList, ShardMap
from mds.dataset.worker_epoch import WorkerEpoch
from mds.errors import ConfigError

if TYPE_CHECKING:
    from mds.cache import ShardCache
    from mds.compat.readers import Reader
    from mds.index import FileInfo, ShardInfo
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


class ShardReaders(Sequence[Any]):
    """A reader of each shard of a dataset, made when it is first asked for."""

    def __init__(self, shards: ShardMap, cache: ShardCache | None = None) -> None:
        self._shards, self._cache = shards, cache
        self._infos = ShardList(shards)
        self._made: dict[int, Reader] = {}

    def __len__(self) -> int:
        return len(self._infos)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        place = normal(int(at), len(self))
        if place not in self._made:
            self._made[place] = self._make(place)
        return self._made[place]

    def __setitem__(self, at: Any, reader: Any) -> NoReturn:
        refuse(f"dataset.shards[{at!r}]", find_remedy("Reader"))

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def _make(self, place: int) -> Reader:
        folder, sample = "", None
        if self._cache is not None:
            source = self._cache.sources[int(self._shards.stream_per_shard[place])]
            folder, sample = source.folder, functools.partial(self._cache.sample, place)
        reader = reader_from_json(folder, "", entry_of(self._infos[place]))
        reader.sample = sample
        return reader


class LocalShardReaders(ShardReaders):
    """A reader of each shard of a folder."""

    def __init__(self, shards: ShardMap, folder: str) -> None:
        super().__init__(shards)
        self._folder = folder

    def _make(self, place: int) -> Reader:
        return reader_from_json(self._folder, "", entry_of(self._infos[place]))


def entry_of(info: ShardInfo) -> dict[str, Any]:
    """What an index says of a shard."""
    schema = info.schema
    entry: dict[str, Any] = {
        "version": schema.version,
        "format": schema.format,
        "compression": schema.compression,
        "hashes": list(schema.hashes),
        "samples": info.samples,
        "size_limit": schema.size_limit,
        "raw_data": _file(info.raw),
        "zip_data": _file(info.zip),
    }
    names, encodings = list(schema.columns.names), list(schema.columns.encodings)
    if schema.is_split:
        entry["newline"] = schema.newline
        entry["raw_meta"], entry["zip_meta"] = _file(info.raw_meta), _file(info.zip_meta)
    if schema.format == "json":
        entry["columns"] = dict(zip(names, encodings, strict=True))
    else:
        entry["column_names"], entry["column_encodings"] = names, encodings
    if schema.format == "xsv":
        entry["separator"] = schema.separator
    if not schema.is_split:
        entry["column_sizes"] = list(schema.columns.sizes)
    return entry


def _file(info: FileInfo | None) -> dict[str, Any] | None:
    if info is None:
        return None
    return {"basename": str(info.basename), "bytes": info.size, "hashes": dict(info.hashes)}


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
