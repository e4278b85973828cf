"""Order of a stream over all its passes: after the last sample comes the first of the next pass.

Each pass is an order of its own, shuffled by its number as an epoch is. A *turn* is the number of a
sample since the training began: pass ``turn // samples``, and in it the canonical nodes read side
by side. Orders of passes are made when a turn of theirs is asked for, and few are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.plan.partition import ExactGrid, Partition
from mds.plan.stream_orders import RandomAccessOrder

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeGuard

    from numpy.typing import NDArray

    from mds.plan.stream_orders import Lookup, StreamOrder

    Ids = NDArray[np.int64]

_KEPT = 4  # orders of passes that are kept; an iteration is in one or two


class PassOrders:
    """Orders of the passes of one stream, of ``samples`` samples each.

    ``make`` makes the order of a pass. ``turns``: those that are asked for, first and behind last.
    """

    def __init__(
        self,
        make: Callable[[int], StreamOrder],
        samples: int,
        canonical: int,
        turns: tuple[int, int],
    ) -> None:
        self._make, self.samples, self.canonical, self.turns = make, samples, canonical, turns
        self._partition = Partition(ExactGrid(samples, canonical), 1, 1, is_even=False)
        self._orders: dict[int, StreamOrder] = {}
        first, last = turns
        self._passes = range(first // samples, -(-last // samples)) if samples else range(0)

    @property
    def parts(self) -> list[StreamOrder]:
        """Orders behind it that take long to compute; all of them are kept."""
        if not self._passes or self._order(self._passes[0]).is_cheap:
            return []
        return [self._order(number) for number in self._passes]

    @property
    def can_be_together(self) -> bool:
        """Whether `first_order` gives the order of a pass."""
        return bool(self._passes) and _is_plain(self._order(self._passes[0]))

    def first_order(self) -> RandomAccessOrder:
        """Return the order of the first pass, for a random-access order with every sample once."""
        order = self._order(self._passes[0])
        assert _is_plain(order)
        return order

    def lookup(self) -> Lookup:
        """Return a function from turns to sample ids, which is fastest when turns ascend."""
        lookups: dict[int, Lookup] = {}

        def take(turns: Ids) -> Ids:
            if not len(turns):
                return turns
            first, last = int(turns.min()) // self.samples, int(turns.max()) // self.samples
            if first == last:  # as mostly, and a division for each turn would cost as much again
                elements = turns - first * self.samples
                return self._held(lookups, first)(self._partition.positions(elements))
            numbers, elements = np.divmod(turns, self.samples)
            positions = self._partition.positions(elements)
            out = np.empty(len(turns), np.int64)
            for number in np.unique(numbers).tolist():
                mine = numbers == number
                out[mine] = self._held(lookups, number)(positions[mine])
            return out

        return take

    def find(self, sample: int) -> Ids:
        """Return all turns of a sample among the wanted ones."""
        parts = [np.zeros(0, np.int64)]
        for number in self._passes:
            elements = self._partition.find(self._order(number).find(sample))
            parts.append(np.sort(elements) + number * self.samples)
        turns = np.concatenate(parts)
        return turns[(turns >= self.turns[0]) & (turns < self.turns[1])]

    def _held(self, lookups: dict[int, Lookup], number: int) -> Lookup:
        if number not in lookups:
            while len(lookups) >= _KEPT:
                del lookups[min(lookups)]
            lookups[number] = self._order(number).lookup()
        return lookups[number]

    def _order(self, number: int) -> StreamOrder:
        if number not in self._orders:
            plain_order = next((each for each in self._orders.values() if _is_plain(each)), None)
            # Much of a random-access order is the same in every pass.
            order = plain_order.at_epoch(number) if plain_order is not None else self._make(number)
            if order.is_cheap and len(self._orders) >= _KEPT:
                self._orders.pop(min(self._orders))
            self._orders[number] = order
        return self._orders[number]


def _is_plain(order: StreamOrder) -> TypeGuard[RandomAccessOrder]:
    """Whether an order is computed at any position and has every sample once."""
    return isinstance(order, RandomAccessOrder) and order.resampling.is_plain
