"""Gaps of an order: places that are passed over, and the numbers of those that are left.

The beginning that a run saw before it was resumed is a gap, and so is each stretch of steps that
was skipped. All of it is a few numbers, so any place is found alone, in well below 1 us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]


class Gaps:
    """Gaps at ``ranges`` of places, each the first and the one behind the last.

    They may overlap and come in any order.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        merged: list[list[int]] = []
        for first, last in sorted(each for each in ranges if each[0] < each[1]):
            if merged and first <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], last)
            else:
                merged.append([first, last])
        pairs = np.array(merged, np.int64).reshape(-1, 2)
        self.firsts, self.lasts = pairs[:, 0], pairs[:, 1]
        self._passed = np.zeros(len(pairs) + 1, np.int64)
        np.cumsum(self.lasts - self.firsts, out=self._passed[1:])
        self._numbers = self.firsts - self._passed[:-1]
        # Mostly nothing is passed over but the beginning.
        self._is_beginning = not merged or (len(merged) == 1 and merged[0][0] == 0)
        self._total = int(self._passed[-1])

    def places(self, numbers: Ids) -> Ids:
        """The places of those that are left, by their numbers."""
        if self._is_beginning:
            return numbers + self._total if self._total else numbers
        found: Ids = numbers + self._passed[np.searchsorted(self._numbers, numbers, side="right")]
        return found

    def place(self, number: int) -> int:
        """The place of one of them."""
        return int(self.places(np.array([number]))[0])

    def numbers(self, places: Ids) -> Ids:
        """How many are left before places."""
        gap = np.searchsorted(self.firsts, places, side="right")
        found = places - self._passed[gap]
        inside = np.flatnonzero(gap)
        inside = inside[places[inside] < self.lasts[gap[inside] - 1]]
        found[inside] += self.lasts[gap[inside] - 1] - places[inside]
        return found

    def number(self, place: int) -> int:
        """How many are left before one place."""
        return int(self.numbers(np.array([place]))[0])

    def is_left(self, places: Ids) -> NDArray[np.bool_]:
        """Which places are in no gap."""
        gap = np.searchsorted(self.firsts, places, side="right")
        lasts = np.concatenate([[np.iinfo(np.int64).min], self.lasts])
        found: NDArray[np.bool_] = places >= lasts[gap]
        return found
