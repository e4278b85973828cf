"""Gaps of an order: places that are left out, and the numbers of the remaining places.

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
    """Gaps at ``ranges`` of places, each from its first place to the one after its last.

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
        # Most runs have one gap at most, at the beginning of the epoch.
        self._is_beginning = not merged or (len(merged) == 1 and merged[0][0] == 0)
        self._total = int(self._passed[-1])

    def places(self, numbers: Ids) -> Ids:
        """Return the remaining places with these numbers."""
        if self._is_beginning:
            return numbers + self._total if self._total else numbers
        places: Ids = numbers + self._passed[np.searchsorted(self._numbers, numbers, side="right")]
        return places

    def place(self, number: int) -> int:
        """Return the remaining place with a number."""
        return int(self.places(np.array([number]))[0])

    def numbers(self, places: Ids) -> Ids:
        """Return the number of remaining places before each place."""
        gap = np.searchsorted(self.firsts, places, side="right")
        numbers = places - self._passed[gap]
        inside = np.flatnonzero(gap)
        inside = inside[places[inside] < self.lasts[gap[inside] - 1]]
        numbers[inside] += self.lasts[gap[inside] - 1] - places[inside]
        return numbers

    def number(self, place: int) -> int:
        """Return the number of remaining places before a place."""
        return int(self.numbers(np.array([place]))[0])

    def is_in_no_gap(self, places: Ids) -> NDArray[np.bool_]:
        """Return a mask of the places that are in no gap."""
        gap = np.searchsorted(self.firsts, places, side="right")
        lasts = np.concatenate([[np.iinfo(np.int64).min], self.lasts])
        mask: NDArray[np.bool_] = places >= lasts[gap]
        return mask
