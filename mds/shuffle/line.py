"""Line of shards, or parts of them, in the order of an epoch: from a place in it to an id.

A part that is long against the block is shuffled in itself. A look-up is a binary search in the
ends of the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mds.process.fork_safe import cached_property
from mds.shuffle.permutation import hash_counters, permute_below

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]


class Line:
    """Parts one after the other, by their ``first`` ids and their ``size``.

    Those of more than ``long`` samples are shuffled by ``key`` and their number.
    """

    def __init__(self, first: Ids, size: Ids, long: int, key: int) -> None:
        self.first, self.size, self.long, self.key = first, size, long, key
        self.ends = np.cumsum(size)
        self.has_long = bool(len(size)) and int(size.max()) > long

    def ids(self, places: Ids) -> Ids:
        """Return the ids at places."""
        part = np.searchsorted(self.ends, places, side="right")
        size = self.size[part]
        offset = places - (self.ends[part] - size)
        if self.has_long:
            shuffle_long(offset, size, part, self.long, self.key)
        offset += self.first[part]
        return offset

    def places(self, ids: Ids) -> Ids:
        """Return the places of ids: the inverse of `ids`."""
        order, firsts = self._by_id
        part = order[np.searchsorted(firsts, ids, side="right") - 1]
        size = self.size[part]
        offset = ids - self.first[part]
        if self.has_long:
            shuffle_long(offset, size, part, self.long, self.key, inverse=True)
        offset += self.ends[part] - size
        return offset

    @cached_property
    def _by_id(self) -> tuple[NDArray[np.intp], Ids]:
        order = np.argsort(self.first)
        return order, self.first[order]


def shuffle_long(
    offset: Ids, size: Ids, part: Ids, long: Any, key: Any, *, inverse: bool = False
) -> None:
    """Shuffle offsets in parts that are long, in place.

    ``long`` and ``key``: of all parts, or of each.
    """
    some = np.flatnonzero(size > long)
    if len(some):
        keys = hash_counters(key if np.ndim(key) == 0 else key[some], part[some])
        offset[some] = permute_below(offset[some], size[some], keys, inverse=inverse)
