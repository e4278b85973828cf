"""py1e: shards in random order, shuffled inside, then each sample moved a bounded way at random.

    before    | A A A A | B B B B | C C C C | D D D D |     samples of shuffled shards
    moves         each by at most about half a block, back or ahead
    after       A A B A B A C B C B D C C D D D             sorted by the new places

So the samples of a shard are spread over about a block. There are no borders of blocks, so a reader
needs one shard after the other, and a few at a time.

A node draws in two phases: the shuffles of all its shards, then the moves of all its samples. The
ids of the first phase are kept if they are few; else the phase is repeated from a saved state of
the generator, so that memory is needed for a few blocks only. Two samples get equal places only
beyond about 1e8 samples; they keep their order.

`StreamingBucketSort` sorts the samples by their new places while they come.

A *place* counts the samples of the node. New places are fractions, as drawn.
"""

from __future__ import annotations

import itertools
import warnings
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mds.errors import PlanError
from mds.shuffle._sequential import (
    CHUNK,
    SequentialShuffle,
    advance_parts,
    group_parts,
    restore_generator,
    save_generator,
    shuffle_parts,
)
from mds.shuffle._shard_parts import epoch_parts, seeded_sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


class Py1e(SequentialShuffle):
    """Shuffle by a bounded move of every sample. Memory depends on the sizes of block and shard.

    The ids of the first phase are kept for nodes of up to ``keep`` samples, in 4 or 8 bytes each.
    Raises PlanError for a block of no samples.
    """

    uses_blocks = True

    shard_sequence = staticmethod(seeded_sequence)

    def prepare(self) -> np.random.Generator:
        """Shuffle and cut the shards for this epoch, and return the generator."""
        block = self.spec.block_size
        self._low, self._high = int(0.75 * block), int(1.25 * block)
        if self._low >= self._high:  # no length can be drawn
            raise PlanError(f"shuffle_block_size {block}: py1e needs blocks of at least 1 sample.")
        self._parts, rng = epoch_parts(self.spec)
        # The narrowest integers that hold all ids.
        self._kind = np.min_scalar_type(max(self.spec.samples - 1, 0))
        self._has_warned = False
        return rng

    def generate(self, node: int, rng: np.random.Generator) -> Iterator[NDArray[np.integer]]:
        """Yield the ids of a node, sorted by their new places, in windows of any length."""
        begin, size = self._parts.of_node(node)
        total = int(size.sum())
        # First phase: shuffle all parts and keep the ids. For a large node only take the draws, and
        # shuffle each part later, by a second generator (`replay`) that repeats these draws.
        shuffled, replay = np.zeros(0, self._kind), None
        if total <= self.keep:
            shuffled = self._shuffled(begin, size, rng)
        else:
            replay = restore_generator(save_generator(rng))
            advance_parts(size, rng)
        # Second phase: move the samples of a few parts at a time. A sample moves by at most half of
        # the longest block, rounded up to whole places.
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
                sorter.push(start, self._new_places(lengths, start, total, rng), ids)
                start = until
                # No later sample moves further back than half of the longest block, so the samples
                # before that place are complete. After the last part all are.
                yield from sorter.pop(start - (self._high - 1) / 2 if start < total else np.inf)

    def advance(self, node: int, rng: np.random.Generator) -> None:
        """Draw from the generator what both phases of `generate` draw for a node."""
        _, size = self._parts.of_node(node)
        advance_parts(size, rng)
        bits = rng.bit_generator
        # As `_new_places`: a part draws an integer, and for each sample a float, for which the
        # generator takes one 64-bit number.
        for count in size.tolist():
            rng.integers(self._low, self._high)
            bits.random_raw(count, output=False)

    def _shuffled(
        self, begin: NDArray[np.int64], size: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.unsignedinteger]:
        """Return the ids of all parts end to end, each part shuffled within itself.

        ``begin`` and ``size`` are the first ids and the samples of the parts.
        """
        shuffled = np.empty(int(size.sum()), self._kind)
        offset = 0
        for first, last in group_parts(size, CHUNK):
            ids = shuffle_parts(begin[first:last], size[first:last], rng)
            shuffled[offset : offset + len(ids)] = ids
            offset += len(ids)
        return shuffled

    def _new_places(
        self, size: NDArray[np.int64], start: int, total: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Return the new places of the samples of consecutive parts, float64.

        Each part draws a block length. If it is longer than the part, samples move by up to half of
        the difference: those of a part of 60 with a block of 100 by -20 to 20, so that they are
        spread over about a block.

        Args:
            size: Samples of each part.
            start: Place of the first sample of the first part.
            total: Samples of the node. No sample moves beyond the ends of the node.
            rng: Generator of the moves.
        """
        places = np.arange(start, start + int(size.sum()), dtype=np.float64)
        filled = 0  # samples of the parts that were moved
        for count in size.tolist():
            half = (int(rng.integers(self._low, self._high)) - count) / 2
            if half < 0:
                half = 0.0
                self._warn_small_block()
            back, ahead = max(-half, -start), min(half, total - start - count)
            places[filled : filled + count] += rng.uniform(back, ahead, size=count)
            start += count
            filled += count
        return places

    def _warn_small_block(self) -> None:
        """Warn once that a shard is larger than a block, so that its samples do not move."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "Shuffle block size was smaller than shard size: the samples of shards larger "
                f"than shuffle_block_size {self.spec.block_size} stay close together. Enlarge "
                "shuffle_block_size.",
                stacklevel=4,
            )


_BUCKET_BITS = 17
BUCKET_PLACES = 1 << _BUCKET_BITS  # places of a bucket, whose keys take a megabyte


class _Run(NamedTuple):
    """Samples of one batch (a call of `push`) that fall into one bucket.

    Attributes:
        keys: Key of each sample, as `StreamingBucketSort` packs it: its place in the bucket,
            rounded down, in the high bits, and its id in the low bits.
        sources: Index of each sample in the batch.
        places: Places of all samples of the batch, not rounded.
        first: Number of the first sample of the batch among all samples of the sort.
    """

    keys: NDArray[np.int64]
    sources: NDArray[np.unsignedinteger]
    places: NDArray[np.float64]
    first: int


class StreamingBucketSort:
    """Sort of samples by place, when places arrive nearly in order.

    Samples are put into buckets of consecutive places as they come. A bucket is sorted when no
    later sample can fall into it::

        places arriving ...  [ sorted and yielded | bucket | bucket | bucket ] ... places to come

    Sorting numbers is three times as fast as an argsort (measured: 4 and 12 ns a sample within the
    second-level cache), so a sample is one 64-bit key: its place, rounded down, and its id::

        bits 62 ...................................... 0
            | place in the bucket, in fractions |   id   |

    A bucket fits into the cache, and no large temporary arrays are needed, whose page faults would
    cost more than the sort. The few keys with equal rounded places are ordered by the true places,
    and samples with equal true places by their order of arrival (the sort is stable).

    Args:
        samples: Number above all ids, which decides how many bits of a key hold an id.
        reach: Largest distance between the place of a sample and the sample's number in order of
            arrival. Memory is about 20 bytes for each sample within twice the reach, and for each
            sample of a batch.
    """

    def __init__(self, samples: int, reach: int) -> None:
        self._id_bits = max(samples - 1, 1).bit_length()
        self._reach = reach
        # Bits of the fraction of a place, as many as fit into a key. Scaling by a power of two
        # rounds nothing.
        self._fraction_bits = max(min(63 - _BUCKET_BITS - self._id_bits, 32), 0)
        self._buckets: defaultdict[int, list[_Run]] = defaultdict(list)
        self._next = 0  # number of the bucket that is sorted next

    def push(self, first: int, places: NDArray[np.float64], ids: NDArray[np.integer]) -> None:
        """Add a batch of samples: pack their keys, and split them by bucket.

        Args:
            first: Number of the first sample of the batch among all samples of the sort.
            places: Place of each sample.
            ids: Id of each sample.
        """
        # Bucket b has the places from b << _BUCKET_BITS on. Here buckets are counted from ``base``,
        # the first one that a sample of the batch can fall into, so that the numbers are small.
        base = max(first - self._reach - 1, 0) >> _BUCKET_BITS
        scaled = places - (base << _BUCKET_BITS)
        scaled *= 2.0**self._fraction_bits
        # Bits of a key so far, from high to low: bucket, place in the bucket, fraction of a place.
        keys = scaled.astype(np.int64)
        order, cuts = _sort_by_bucket(keys >> (_BUCKET_BITS + self._fraction_bits))
        # Clear the bucket, and append the id.
        keys &= (1 << (_BUCKET_BITS + self._fraction_bits)) - 1
        keys <<= self._id_bits
        keys |= ids
        keys = keys[order]
        for bucket, (begin, end) in enumerate(itertools.pairwise(cuts), base):
            if begin < end:
                run = _Run(keys[begin:end], order[begin:end], places, first)
                self._buckets[bucket].append(run)

    def pop(self, until: float) -> Iterator[NDArray[np.int64]]:
        """Yield the ids of all buckets that end at the place ``until`` or before, in order.

        The caller promises that no later sample has a place before ``until``.
        """
        while self._buckets and (self._next + 1) * BUCKET_PLACES <= until:
            runs = self._buckets.pop(self._next, None)
            self._next += 1
            if runs:
                keys = np.concatenate([run.keys for run in runs])
                # `keys` itself stays in the order of arrival, which `_order_ties` needs.
                ordered = np.sort(keys)
                # Find neighbours whose rounded places are equal: only bits of their ids differ.
                equal = np.flatnonzero((ordered[1:] ^ ordered[:-1]) >> self._id_bits == 0)
                if len(equal):
                    _order_ties(ordered, equal, keys, runs, self._id_bits)
                ordered &= (1 << self._id_bits) - 1  # keeps the ids
                yield ordered


def _sort_by_bucket(
    buckets: NDArray[np.int64],
) -> tuple[NDArray[np.unsignedinteger], list[int]]:
    """Return the stable order of samples by bucket, and where each bucket begins in it.

    For the buckets 1, 0, 1 these are the indexes 1, 0, 2 and the cuts 0, 1, 3: bucket 0 has the
    indexes 0 to 1 - 1 of the order, bucket 1 those from 1 to 3 - 1.

    Integers with the bucket in the high bits and the index of the sample in the low ones are
    sorted, which is quicker than an argsort.
    """
    last_bucket = int(buckets.max())
    index_bits = (len(buckets) - 1).bit_length()
    is_wide = index_bits + (last_bucket + 1).bit_length() > 32
    order = buckets.astype(np.uint64 if is_wide else np.uint32)
    order <<= index_bits
    order |= np.arange(len(buckets), dtype=order.dtype)
    order.sort()
    # The least integer of each bucket, and of one after the last.
    bucket_begins = np.arange(last_bucket + 2, dtype=order.dtype) << index_bits
    cuts: list[int] = np.searchsorted(order, bucket_begins).tolist()
    order &= (1 << index_bits) - 1  # keeps the index
    return order, cuts


def _order_ties(
    ordered: NDArray[np.int64],
    equal: NDArray[np.intp],
    keys: NDArray[np.int64],
    runs: list[_Run],
    id_bits: int,
) -> None:
    """Order keys with equal rounded places by their true places, by changing ``ordered``.

    Args:
        ordered: Sorted keys of a bucket.
        equal: Indexes in ``ordered`` of keys whose rounded place equals that of the next key.
        keys: The same keys as they arrived, run after run.
        runs: Runs of the bucket.
        id_bits: Number of the lowest bits of a key, which hold the id.
    """
    ends = np.cumsum([len(run.keys) for run in runs])
    tied = np.union1d(equal, equal + 1)  # indexes of all keys that share a rounded place
    ties = []
    for key in ordered[tied].tolist():
        # Find the sample of the key: its run, and its index in the run's batch.
        arrival = int(np.flatnonzero(keys == key)[0])
        number = int(np.searchsorted(ends, arrival, side="right"))
        run = runs[number]
        source = int(run.sources[arrival - int(ends[number]) + len(run.keys)])
        ties.append((key >> id_bits, float(run.places[source]), run.first + source, key))
    # Sort by rounded place, true place and order of arrival. As the rounded place comes first, keys
    # of different rounded places keep their order, and each group of ties keeps its indexes.
    ordered[tied] = [key for *_, key in sorted(ties)]
