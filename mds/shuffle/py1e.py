"""py1e: shards in random order, shuffled inside, then every sample moved a bounded way at random.

The spread of a shard over its neighbours is as wide as a block, but there are no block borders, so
shards are needed, and let go, one after the other.

A node draws in two phases: the shuffles of all its shards, then the moves of all its samples. What
the first phase gives is kept if it is small and replayed from a saved generator state if not, so
the memory is that of a few blocks. Equal places, which two samples may get beyond about 1e8
samples, are ordered as the samples were before.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError
from mds.shuffle.bucket_sort import StreamingBucketSort
from mds.shuffle.sequential import (
    CHUNK,
    SequentialShuffle,
    advance_parts,
    group_parts,
    restore_generator,
    save_generator,
    shuffle_parts,
)
from mds.shuffle.shard_parts import epoch_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


class Py1e(SequentialShuffle):
    """Shuffle by bounded displacement of every sample: memory by block and shard size.

    Up to ``keep`` samples of a node the first phase is kept, in 4 or 8 bytes a sample. Raises
    PlanError for a block of no samples.
    """

    uses_blocks = True

    def prepare(self) -> np.random.Generator:
        """Shuffle the shards."""
        block = self.spec.block_size
        self._low, self._high = int(0.75 * block), int(1.25 * block)
        if self._low >= self._high:
            raise PlanError(f"shuffle_block_size {block}: py1e needs blocks of at least 1 sample.")
        self._parts, rng = epoch_parts(self.spec)
        self._kind = np.min_scalar_type(max(self.spec.samples - 1, 0))
        self._has_warned = False
        return rng

    def generate(self, node: int, rng: np.random.Generator) -> Iterator[NDArray[np.integer]]:
        """Yield the samples of a node, merged by their places."""
        begin, size = self._parts.of_node(node)
        total = int(size.sum())
        shuffled, replay = np.zeros(0, self._kind), None
        if total <= self.keep:
            shuffled = self._shuffled(begin, size, rng)
        else:
            replay = restore_generator(save_generator(rng))
            advance_parts(size, rng)
        sorter = StreamingBucketSort(self.spec.samples, (self._high - 1) // 2 + 1)
        start = 0
        for first, last in group_parts(size, CHUNK):
            lengths = size[first:last]
            until = start + int(lengths.sum())
            if replay is None:
                ids = shuffled[start:until]
            else:
                ids = shuffle_parts(begin[first:last], lengths, replay)
            if until > start:
                sorter.push(start, self._places(lengths, start, total, rng), ids)
                start = until
                # No sample from here on moves further back than half of the longest block.
                yield from sorter.pop(start - (self._high - 1) / 2 if start < total else np.inf)

    def advance(self, node: int, rng: np.random.Generator) -> None:
        """Both phases, without their ids."""
        _, size = self._parts.of_node(node)
        advance_parts(size, rng)
        bits = rng.bit_generator
        for count in size.tolist():
            rng.integers(self._low, self._high)
            bits.random_raw(count, output=False)

    def _shuffled(
        self, begin: NDArray[np.int64], size: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.unsignedinteger]:
        """Return the first phase, shuffled."""
        shuffled = np.empty(int(size.sum()), self._kind)
        offset = 0
        for first, last in group_parts(size, CHUNK):
            ids = shuffle_parts(begin[first:last], size[first:last], rng)
            shuffled[offset : offset + len(ids)] = ids
            offset += len(ids)
        return shuffled

    def _places(
        self, size: NDArray[np.int64], at: int, total: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Return the new places of samples of parts. The first part is number ``at``."""
        places = np.arange(at, at + int(size.sum()), dtype=np.float64)
        done = 0
        for count in size.tolist():
            half = (int(rng.integers(self._low, self._high)) - count) / 2
            if half < 0:
                half = 0.0
                self._warn_small_block()
            back, ahead = max(-half, -at), min(half, total - at - count)
            places[done : done + count] += rng.uniform(back, ahead, size=count)
            at += count
            done += count
        return places

    def _warn_small_block(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "Shuffle block size was smaller than shard size: some shards are larger than "
                f"shuffle_block_size {self.spec.block_size} and keep together. Enlarge it.",
                stacklevel=4,
            )
