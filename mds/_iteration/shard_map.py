"""Shards and samples of a dataset, from the indexes of its streams.

Samples are numbered through all streams in order. In a selection only the selected samples have
numbers; they are translated to numbers of stored samples last. Facts about shards are in arrays,
without an object for each shard.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._shardfile.hashing import hexdigest

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._index.table import Index

#: Names of arrays of a ShardMap that are also attributes of a dataset.
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

    Shards and samples are numbered through all streams. With two streams, of two shards and one::

        stream_per_shard           0   0   1
        samples_per_shard          5   3   4
        sample_offset_per_shard    0   5   8        first sample of each shard
        stored_ends                0   5   8  12    with all samples, also in a selection

        samples_per_stream         8   4            two streams
        sample_offset_per_stream   0   8
        shards_per_stream          2   1
        shard_offset_per_stream    0   2
        sizes_per_stream           [5, 3], [4]      samples per shard of each stream

    Args:
        indexes: Index of each stream.
        selection: Stored samples that the dataset has; None for all.

    Attributes:
        num_samples: Number of samples, in a selection of the selected ones.
        num_shards: Number of shards, also of those that have no selected sample.
        fingerprint: Digest of ``samples_per_shard`` and of the selection.

    The other attributes are those of the table: int64 arrays, which count only selected samples,
    but for ``stored_ends``.
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
        if selection is None:  # not "if selection": an empty selection is false
            self.samples_per_shard, ends = stored, self.stored_ends
        else:
            self.samples_per_shard = selection.per_shard(self.stored_ends)
            ends = _ends(self.samples_per_shard)
        self.sample_offset_per_shard = ends[:-1]
        end_shards = self.shard_offset_per_stream + self.shards_per_stream
        self.samples_per_stream = ends[end_shards] - ends[self.shard_offset_per_stream]
        self.sample_offset_per_stream = _offsets(self.samples_per_stream)
        self.num_samples = int(ends[-1])
        self.num_shards = len(self.samples_per_shard)
        self.fingerprint = self._fingerprint()
        self._make_views()

    def _fingerprint(self) -> str:
        """Return a digest of the samples per shard and of the selection."""
        numbers = np.ascontiguousarray(self.samples_per_shard, "<i8").data.cast("B")
        if self.selection is None:
            return hexdigest("xxh3_64", numbers)
        return hexdigest("xxh3_64", bytes(numbers) + self.selection.fingerprint().encode())

    def _make_views(self) -> None:
        """Set the attributes that share the memory of arrays; a pickle leaves them out."""
        bounds = [*self.shard_offset_per_stream.tolist(), self.num_shards]
        self.sizes_per_stream = [
            self.samples_per_shard[first:last] for first, last in itertools.pairwise(bounds)
        ]
        # A memoryview returns Python integers, the array NumPy scalars: bisecting 50,000 shards
        # takes 0.7 us with the one and 4 us with the other.
        self._bounds: memoryview = memoryview(self.stored_ends)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        views = ("sizes_per_stream", "_bounds")
        return {name: value for name, value in self.__dict__.items() if name not in views}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_views()

    def part(self, samples: npt.NDArray[np.int64]) -> ShardMap:
        """Return the map of some samples only, which are numbered anew from 0.

        ``samples``: their numbers in this map, sorted and distinct.
        """
        if self.selection is None:
            return ShardMap(self.indexes, Selection(samples))
        return ShardMap(self.indexes, self.selection.within(samples))

    def stored_bytes(self, samples: int) -> int:
        """Return the average bytes of ``samples`` samples in uncompressed shards."""
        stored = sum(int(index.raw_size.sum()) for index in self.indexes)
        return stored * samples // max(int(self.stored_ends[-1]), 1)

    def groups(self, count: int) -> list[range]:
        """Return at most ``count`` ranges of samples that divide the dataset between shards.

        The shards of each range have about the same bytes together. No range is empty.
        """
        sizes = np.concatenate([np.asarray(index.raw_size, np.int64) for index in self.indexes])
        stored = np.diff(self.stored_ends)
        ends = _ends(sizes * self.samples_per_shard // np.maximum(stored, 1))
        # Cut behind the first shard that ends at or after each share of the bytes.
        cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count)
        samples = _ends(self.samples_per_shard)
        bounds = np.unique([0, *samples[cuts].tolist(), self.num_samples]).tolist()
        return [range(first, last) for first, last in itertools.pairwise(bounds)]

    def locate(self, sample: int) -> tuple[int, int]:
        """Return the shard of a sample, and its row in the shard.

        ``sample`` is a number from 0 to ``num_samples`` - 1, which is not checked.
        """
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


class Selection:
    """Sorted, distinct numbers of stored samples, as an int64 array or a memory-mapped file."""

    def __init__(self, ids: npt.NDArray[np.int64]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def per_shard(self, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of selected samples of each shard, int64 of shape (shards,).

        ``ends``: first stored sample of each shard, and the end, int64 of shape (shards + 1,).
        """
        return np.diff(np.searchsorted(self.ids, ends)).astype(np.int64)

    def stored(self, sample: int) -> int:
        """Return the stored number of a selected sample."""
        return int(self.ids[sample])

    def stored_many(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the stored numbers of selected samples, int64."""
        return np.asarray(self.ids[samples], np.int64)

    def numbers(self, stored: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the positions in the selection of stored samples, all of which are selected."""
        return np.searchsorted(self.ids, stored).astype(np.int64)

    def within(self, samples: npt.NDArray[np.int64]) -> Selection:
        """Return the selection of those stored samples that have these positions in this one."""
        return Selection(self.stored_many(samples))

    def fingerprint(self) -> str:
        """Return a digest of the numbers."""
        return hexdigest("xxh3_64", np.ascontiguousarray(self.ids, "<i8").tobytes())


def _ends(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sums of the first 0, 1, 2, ... counts: [5, 3, 4] gives [0, 5, 8, 12]."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def _offsets(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return _ends(counts)[:-1]
