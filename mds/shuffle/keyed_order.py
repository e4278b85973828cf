"""Keyed orders: numbers sorted by the hash of each, such as the shards of an epoch.

Sorting numbers that carry their index in their lowest bits is three times as fast as an argsort.
"""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING

import numpy as np

from mds.shuffle.permutation import hash_counters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Keys = NDArray[np.uint64]


def keyed_order(key: int, count: int, groups: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Keyed order of the numbers below ``count``, by hash; ascending ``groups`` stay apart."""
    return KeyedOrders([(count, groups)]).orders(np.asarray(key, np.uint64))


class KeyedOrders:
    """Keyed orders of several ranges of numbers from 0 on, made together.

    ``ranges``: how many numbers each has, and ascending groups of them that stay apart, if any.
    """

    def __init__(self, ranges: Sequence[tuple[int, NDArray[np.int64] | None]]) -> None:
        counts = [count for count, _ in ranges]
        self.starts = np.cumsum([0, *counts])
        self._numbers, self._groups = (np.zeros(sum(counts), np.uint64) for _ in range(2))
        below, highs = [], []
        for at, (count, groups) in zip(self.starts.tolist(), ranges, strict=False):
            self._numbers[at : at + count] = np.arange(count)
            below.append((1 << max(count - 1, 1).bit_length()) - 1)
            high = int(groups[-1]).bit_length() if groups is not None and count else 0
            if groups is not None and high:
                self._groups[at : at + count] = groups.astype(np.uint64) << np.uint64(64 - high)
            highs.append(high)
        self._below, self._highs = (
            np.repeat(np.array(each, np.uint64), counts) for each in (below, highs)
        )

    def some(self, which: Ids) -> KeyedOrders:
        """Return the orders of some of the ranges."""
        made = copy.copy(self)
        sizes = np.diff(self.starts)[which]
        parts = ranges(self.starts[which], sizes)
        for name in ("_numbers", "_groups", "_below", "_highs"):
            setattr(made, name, getattr(self, name)[parts])
        made.starts = np.concatenate([[0], sizes.cumsum()])
        return made

    def orders(self, keys: Keys) -> NDArray[np.int64]:
        """Return the orders one after the other, by one key or that of each number."""
        packed = hash_counters(keys, self._numbers)
        packed >>= self._highs
        packed |= self._groups
        packed &= ~self._below
        packed |= self._numbers
        for first, last in itertools.pairwise(self.starts.tolist()):
            packed[first:last].sort()
        packed &= self._below
        return packed.astype(np.int64)


def ranges(begins: Ids, sizes: Ids) -> Ids:
    """Return the numbers of ranges, one range after the other."""
    ends: Ids = sizes.cumsum()
    found: Ids = np.repeat(begins - (ends - sizes), sizes) + np.arange(int(sizes.sum()))
    return found
