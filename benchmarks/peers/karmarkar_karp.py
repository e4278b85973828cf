"""Karmarkar-Karp largest differencing, of any number of items in any number of groups.

What its authors call a partition is a list of groups here, kept with their sums. The two partitions
whose sums differ most are joined, the heaviest group of one with the lightest of the other, until
one is left. Groups need not have equally many items.
"""

from __future__ import annotations

import heapq
import itertools


def partition(weights: list[int], groups: int) -> list[list[int]]:
    """The items of each group, as indexes of ``weights``."""
    counter = itertools.count()
    heap: list[tuple[int, int, list[tuple[int, list[int]]]]] = []

    def push(parts: list[tuple[int, list[int]]]) -> None:
        parts.sort(key=lambda part: part[0])
        heapq.heappush(heap, (parts[0][0] - parts[-1][0], next(counter), parts))

    for item, weight in enumerate(weights):
        push([*((0, []) for _ in range(groups - 1)), (weight, [item])])
    while len(heap) > 1:
        _, _, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        pairs = zip(first, reversed(second), strict=True)
        push([(a + b, [*these, *those]) for (a, these), (b, those) in pairs])
    return [items for _, items in heap[0][2]] if heap else [[] for _ in range(groups)]
