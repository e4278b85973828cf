"""Streaming bucket sort of samples by place, when places arrive nearly in order.

Sorting numbers is three times as fast as an argsort (measured: 4 and 12 ns a sample within the
second-level cache), so a place, rounded down, and the id of its sample are packed into one 64-bit
key. Samples are thrown into buckets of places as they come, and a bucket is sorted when nothing can
fall into it any more: all within the cache, and without large temporary arrays, whose page faults
would cost more than the sorting. The few keys whose places become equal by rounding are ordered by
the true places, and equal true places by the order of arrival (the sort is stable).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_BUCKET_BITS = 17
BUCKET_PLACES = 1 << _BUCKET_BITS  # places of a bucket: a megabyte of keys


class _Run(NamedTuple):
    """Run of one batch in one bucket: its keys, and where in the batch each came from."""

    keys: NDArray[np.int64]
    sources: NDArray[np.unsignedinteger]
    places: NDArray[np.float64]
    first: int


class StreamingBucketSort:
    """Streaming bucket sort: holds ids until nothing can come before them.

    ``samples``: ids are below it. ``reach``: how far a place may be from the number of its sample.
    Memory is about 20 bytes for each of twice the reach and a batch.
    """

    def __init__(self, samples: int, reach: int) -> None:
        self._id_bits = max(samples - 1, 1).bit_length()
        self._reach = reach
        # As fine as fits beside the id: a power of two, so that scaling rounds nothing.
        self._shift = max(min(63 - _BUCKET_BITS - self._id_bits, 32), 0)
        self._buckets: defaultdict[int, list[_Run]] = defaultdict(list)
        self._next = 0

    def push(self, first: int, places: NDArray[np.float64], ids: NDArray[np.integer]) -> None:
        """Add samples, the first of which is number ``first``, with their places."""
        base = max(first - self._reach - 1, 0) >> _BUCKET_BITS
        scaled = places - (base << _BUCKET_BITS)
        scaled *= 2.0**self._shift
        keys = scaled.astype(np.int64)
        buckets = keys >> (_BUCKET_BITS + self._shift)
        top = int(buckets.max())
        width = (len(keys) - 1).bit_length()
        wide = width + (top + 1).bit_length() > 32
        order = buckets.astype(np.uint64 if wide else np.uint32)
        order <<= width
        order |= np.arange(len(keys), dtype=order.dtype)
        order.sort()
        cuts = np.searchsorted(order, np.arange(top + 2, dtype=order.dtype) << width).tolist()
        order &= (1 << width) - 1
        keys &= (1 << (_BUCKET_BITS + self._shift)) - 1
        keys <<= self._id_bits
        keys |= ids
        keys = keys[order]
        for i, (a, b) in enumerate(itertools.pairwise(cuts)):
            if a < b:
                self._buckets[base + i].append(_Run(keys[a:b], order[a:b], places, first))

    def pop(self, until: float) -> Iterator[NDArray[np.int64]]:
        """Yield the ids of all buckets that end at ``until`` or before, in order."""
        while self._buckets and (self._next + 1) * BUCKET_PLACES <= until:
            runs = self._buckets.pop(self._next, None)
            self._next += 1
            if runs:
                keys = np.concatenate([run.keys for run in runs])
                # Where the batches stand in ``keys`` is needed to tell equal ones apart.
                ordered = np.sort(keys)
                equal = np.flatnonzero((ordered[1:] ^ ordered[:-1]) >> self._id_bits == 0)
                if len(equal):
                    _order_ties(ordered, equal, keys, runs, self._id_bits)
                ordered &= (1 << self._id_bits) - 1
                yield ordered


def _order_ties(
    ordered: NDArray[np.int64],
    equal: NDArray[np.intp],
    keys: NDArray[np.int64],
    runs: list[_Run],
    id_bits: int,
) -> None:
    """Resolve ties: order keys that are ``equal`` to the next one but for the id."""
    ends = np.cumsum([len(run.keys) for run in runs])
    slots = np.union1d(equal, equal + 1)
    found = []
    for key in ordered[slots].tolist():
        at = int(np.flatnonzero(keys == key)[0])
        number = int(np.searchsorted(ends, at, side="right"))
        run = runs[number]
        source = int(run.sources[at - int(ends[number]) + len(run.keys)])
        found.append((key >> id_bits, float(run.places[source]), run.first + source, key))
    # Runs of equal keys stay where they are; inside a run true places decide.
    ordered[slots] = [key for *_, key in sorted(found)]
