"""Map from sample numbers to shards and rows: the samples of all streams, numbered through.

Arrays, never objects per shard. A sample's number counts through all streams in order; behind a
selection it counts the selected ones only, and is translated at the last moment.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from mds.shardfile.hashing import hexdigest

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.dataset.selection import Selection
    from mds.index import Index, ShardInfo


#: Arrays of a ShardMap that a dataset shows under the same names.
SIZES = frozenset(
    (
        "samples_per_shard",
        "sample_offset_per_shard",
        "shards_per_stream",
        "shard_offset_per_stream",
        "samples_per_stream",
        "sample_offset_per_stream",
        "stream_per_shard",
    )
)


class ShardMap:
    """Map of the samples of several indexes, whole or selected, to shards and rows.

    Attributes, all int64: ``samples_per_shard``, ``sample_offset_per_shard``,
    ``shards_per_stream``, ``shard_offset_per_stream``, ``samples_per_stream``,
    ``sample_offset_per_stream``, ``stream_per_shard``, and ``stored_ends`` of shape (shards + 1,):
    where each shard's stored samples begin. ``sizes_per_stream`` are the samples per shard, stream
    by stream; ``fingerprint`` is a digest of them and of the selection.
    """

    def __init__(self, indexes: Sequence[Index], selection: Selection | None = None) -> None:
        self.indexes = tuple(indexes)
        self.selection = selection
        counts = [np.asarray(index.samples, np.int64) for index in indexes]
        self.shards_per_stream = np.array([len(c) for c in counts], np.int64)
        self.shard_offset_per_stream = _offsets(self.shards_per_stream)
        self.stream_per_shard = np.repeat(np.arange(len(counts)), self.shards_per_stream)
        stored = np.concatenate(counts)
        self.stored_ends = _ends(stored)
        if selection is None:  # an empty one is one, and false
            self.samples_per_shard, ends = stored, self.stored_ends
        else:
            self.samples_per_shard = selection.per_shard(self.stored_ends)
            ends = _ends(self.samples_per_shard)
        self.sample_offset_per_shard = ends[:-1]
        last = self.shard_offset_per_stream + self.shards_per_stream
        self.samples_per_stream = ends[last] - ends[self.shard_offset_per_stream]
        self.sample_offset_per_stream = _offsets(self.samples_per_stream)
        self.num_samples = int(ends[-1])
        self.num_shards = len(self.samples_per_shard)
        self.fingerprint = self._fingerprint()
        self._make_views()

    def _fingerprint(self) -> str:
        numbers = np.ascontiguousarray(self.samples_per_shard, "<i8").data.cast("B")
        if self.selection is None:
            return hexdigest("xxh3_64", numbers)
        return hexdigest("xxh3_64", bytes(numbers) + self.selection.fingerprint().encode())

    def _make_views(self) -> None:
        bounds = [*self.shard_offset_per_stream.tolist(), self.num_shards]
        self.sizes_per_stream = [
            self.samples_per_shard[first:last] for first, last in itertools.pairwise(bounds)
        ]
        # A memoryview gives Python integers without making numpy scalars: bisecting 50,000 shards
        # takes 0.7 us through it and 4 us through the array.
        self._bounds: memoryview = memoryview(self.stored_ends)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        views = ("sizes_per_stream", "_bounds")
        return {name: value for name, value in self.__dict__.items() if name not in views}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_views()

    def part(self, samples: npt.NDArray[np.int64]) -> ShardMap:
        """Return the map of these of the samples, sorted and distinct."""
        from mds.dataset.selection import Selection

        within = self.selection.within(samples) if self.selection is not None else None
        return ShardMap(self.indexes, Selection(samples) if within is None else within)

    def locate(self, sample: int) -> tuple[int, int]:
        """Return the shard of a sample and its row there; the number must be in range."""
        if self.selection is not None:
            sample = self.selection.stored(sample)
        shard = bisect_right(self._bounds, sample) - 1
        return shard, sample - self._bounds[shard]

    def stored(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers of selected samples among all stored samples."""
        return samples if self.selection is None else self.selection.stored_many(samples)

    def selected(self, stored: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers in the selection of stored samples: the inverse of ``stored``."""
        return stored if self.selection is None else self.selection.numbers(stored)


class ShardList(Sequence["ShardInfo"]):
    """Facts about each shard of a dataset, made on demand."""

    def __init__(self, shards: ShardMap) -> None:
        self._shards = shards

    def __len__(self) -> int:
        return self._shards.num_shards

    @overload
    def __getitem__(self, at: int) -> ShardInfo: ...
    @overload
    def __getitem__(self, at: slice) -> list[ShardInfo]: ...
    def __getitem__(self, at: int | slice) -> ShardInfo | list[ShardInfo]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        place = at + len(self) if at < 0 else at
        if not 0 <= place < len(self):
            raise IndexError(f"shard {at} of {len(self)}")
        stream = int(self._shards.stream_per_shard[place])
        index = self._shards.indexes[stream]
        return index.shard(place - int(self._shards.shard_offset_per_stream[stream]))

    def __iter__(self) -> Iterator[ShardInfo]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self)} shards>"


class Spanner:
    """Map from sample number to (shard, row), as in mosaicml-streaming: ``spanner[17]``."""

    def __init__(self, shards: ShardMap) -> None:
        self._shards = shards

    def __getitem__(self, sample: int) -> tuple[int, int]:
        if not 0 <= sample < self._shards.num_samples:
            raise ValueError(f"sample {sample} of {self._shards.num_samples}")
        return self._shards.locate(sample)


def _ends(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return a zero, followed by where each range ends."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def _offsets(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return _ends(counts)[:-1]
