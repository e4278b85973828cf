"""Reading sample ids at positions, from an array in memory or from windows produced on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]

# Samples repeated to even out ranks come from shortly before the end: further back than this only
# with thousands of ranks on a node, and then the node is merely produced once more.
_BEHIND = 1 << 12


class Held:
    """Sample ids that are in memory."""

    def __init__(self, ids: NDArray[Any]) -> None:
        self._ids = ids

    def __call__(self, positions: Ids) -> Ids:
        """Sample ids at positions."""
        return self._ids[positions].astype(np.int64, copy=False)


class Windowed:
    """Sample ids produced while positions ascend; going far back begins a node anew.

    ``starts``: where each node begins, and the end. ``windows``: produces a node.
    """

    def __init__(self, starts: Ids, windows: Callable[[int], Iterator[NDArray[Any]]]) -> None:
        self._starts, self._windows = starts, windows
        self._cursors: dict[int, _Cursor] = {}

    def __call__(self, positions: Ids) -> Ids:
        """Sample ids at positions."""
        node = np.searchsorted(self._starts, positions, side="right") - 1
        out = np.empty(len(positions), np.int64)
        for k in np.unique(node).tolist():
            mine = node == k
            wanted = positions[mine] - self._starts[k]
            cursor = self._cursors.get(k)
            if cursor is None or int(wanted.min()) < cursor.first:
                cursor = self._cursors[k] = _Cursor(self._windows(k))
            out[mine] = cursor.take(wanted)
        return out


class _Cursor:
    """A place in the windows of one node, with a little of what was before."""

    def __init__(self, windows: Iterator[NDArray[Any]]) -> None:
        self._windows = windows
        self._held: NDArray[Any] = np.zeros(0, np.int64)
        self.first = 0

    def take(self, wanted: Ids) -> Ids:
        """Ids at places of the node, none of them before ``first``."""
        low, high = int(wanted.min()) - _BEHIND, int(wanted.max())
        pieces = [self._held] if len(self._held) else []
        end = self.first + len(self._held)
        while end <= high:
            # A copy: a window is good until the next one.
            pieces.append(next(self._windows).copy())
            end += len(pieces[-1])
            while pieces and self.first + len(pieces[0]) <= low:
                self.first += len(pieces.pop(0))
        self._held = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        out = self._held[wanted - self.first]
        if low - self.first > len(self._held) // 2:
            # A copy, so that the memory of what was before is given back.
            self._held = self._held[low - self.first :].copy()
            self.first = low
        return out
