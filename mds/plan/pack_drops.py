"""Dropped documents of packs: padding in windows that had begun, left out of later windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.plan.edits import drops_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from mds.plan.edits import Edit

    Ids = NDArray[np.int64]

_NOT_HERE = 1 << 62


class PackDrops:
    """Documents that are dropped in an epoch of packs, by the edits of its run."""

    def __init__(self, edits: Iterable[Edit], epoch: int) -> None:
        self._drops = [drop for drop in drops_of(edits) if drop.epoch <= epoch and len(drop.ids)]
        self._epoch = epoch
        nothing = np.zeros(0, np.int64)
        every = np.concatenate([nothing, *(drop.ids for drop in self._drops)])
        begins = [drop.begin if drop.epoch == epoch else 0 for drop in self._drops]
        self._ids, positions = np.unique(every, return_inverse=True)
        self._begins = np.full(len(self._ids), _NOT_HERE)
        np.minimum.at(
            self._begins, positions, np.repeat(begins, [len(drop.ids) for drop in self._drops])
        )

    def remaining(self, ids: Ids, node: int, window: int) -> Ids:
        """Return the samples of a window of a canonical node that are packed."""
        dropped = [
            drop.ids
            for drop in self._drops
            if drop.epoch < self._epoch or not drop.windows or window >= drop.windows[node]
        ]
        return ids[~np.isin(ids, np.concatenate(dropped))] if dropped else ids

    def mask(self, ids: Ids, places: Ids) -> NDArray[np.bool_]:
        """Return a mask of the pieces that are padding, of packs at places of the epoch."""
        if not len(self._ids):
            return np.zeros(len(ids), bool)
        nearest = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        mask: NDArray[np.bool_] = (self._ids[nearest] == ids) & (self._begins[nearest] <= places)
        return mask
