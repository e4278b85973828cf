"""Reading of packs in the order in which they are dealt: canonical node after canonical node.

As with samples, the packs are thought of as a grid with a row for each canonical node, read column
by column; a row that ends drops out. How long rows are shows when they are packed. So there are two
ways through the grid. `PackReading` goes on from a cursor for each canonical node, a window at a
time, and needs nothing of what was before. `PackTable` counts the packs of every window once, and
then says where any of them is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mds.errors import StateError
from mds.plan.position import Cursor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds.plan.packing import Packs

    Ids = NDArray[np.int64]
    Load = Callable[[int, int], Packs]

_PASSED_AT_ONCE = 1 << 14


class Pieces(NamedTuple):
    """Pieces of packs, end to end; ``counts`` is the number of pieces of each pack.

    ``places``: of their documents in the order.
    """

    ids: Ids
    starts: Ids
    sizes: Ids
    places: Ids
    counts: Ids


@dataclasses.dataclass(frozen=True, eq=False)
class TakenPacks:
    """Consecutive packs of a reading: pack ``numbers[i]`` of ``windows[window_of[i]]``."""

    windows: Sequence[Packs]
    window_of: Ids
    numbers: Ids

    def __len__(self) -> int:
        return len(self.window_of)

    @classmethod
    def joined(cls, parts: Sequence[TakenPacks]) -> TakenPacks:
        """Return packs one after the other."""
        if len(parts) == 1:
            return parts[0]
        windows: list[Packs] = []
        window_of = []
        for part in parts:
            window_of.append(part.window_of + len(windows))
            windows += part.windows
        return cls(
            windows, np.concatenate(window_of), np.concatenate([part.numbers for part in parts])
        )

    def weights(self, places: Ids, kind: str) -> Ids:
        """Return the attention work or the tokens of packs; 0 for places after the last one."""
        totals = np.zeros(len(places), np.int64)
        real = np.flatnonzero(places < len(self))
        window_of, numbers = self.window_of[places[real]], self.numbers[places[real]]
        for window in np.unique(window_of).tolist():
            mine = window_of == window
            packs = self.windows[window]
            weights = packs.work if kind == "attention" else packs.tokens
            totals[real[mine]] = weights[numbers[mine]]
        return totals

    def pieces(self, places: Ids) -> Pieces:
        """Return the pieces of packs; places after the last one have none."""
        counts = np.zeros(len(places), np.int64)
        real = np.flatnonzero(places < len(self))
        window_of, numbers = self.window_of[places[real]], self.numbers[places[real]]
        begins = np.zeros(len(real), np.int64)
        windows = np.unique(window_of).tolist()
        for window in windows:
            mine = window_of == window
            bounds = self.windows[window].bounds
            begins[mine] = bounds[numbers[mine]]
            counts[real[mine]] = bounds[numbers[mine] + 1] - begins[mine]
        sizes = counts[real]
        if len(windows) == 1:
            packs, indices = self.windows[windows[0]], _ranges(begins, sizes)
            return Pieces(
                packs.ids[indices],
                packs.starts[indices],
                packs.sizes[indices],
                packs.places[indices],
                counts,
            )
        columns_out = [np.empty(int(sizes.sum()), np.int64) for _ in range(4)]
        firsts = np.cumsum(sizes) - sizes
        for window in windows:
            mine, packs = window_of == window, self.windows[window]
            indices, to = _ranges(begins[mine], sizes[mine]), _ranges(firsts[mine], sizes[mine])
            columns = packs.ids, packs.starts, packs.sizes, packs.places
            for column, values in zip(columns_out, columns, strict=True):
                column[to] = values[indices]
        ids, starts, of_pieces, of_places = columns_out
        return Pieces(ids, starts, of_pieces, of_places, counts)


def _ranges(begins: Ids, sizes: Ids) -> Ids:
    """Return the integers from each begin on, ``sizes`` of them, end to end."""
    ends = np.cumsum(sizes)
    numbers: Ids = np.repeat(begins - ends + sizes, sizes)
    numbers += np.arange(len(numbers))
    return numbers


class PackReading:
    """Reading of the packs of an epoch from a cursor on, all canonical nodes in turn.

    ``load`` packs a window of a canonical node, ``windows`` is the number of windows of each.
    Without a ``cursor`` it is the whole epoch. Raises StateError for a cursor beyond the end.
    """

    def __init__(self, load: Load, windows: Ids, cursor: Cursor | None = None) -> None:
        nodes = len(windows)
        self._load, self._windows = load, windows
        pairs, turn = cursor if cursor is not None else (((0, 0),) * nodes, 0)
        cursor_pairs = np.array(pairs, np.int64).reshape(-1, 2)
        if (
            len(cursor_pairs) != nodes
            or (cursor_pairs[:, 0] > windows).any()
            or not 0 <= turn < max(nodes, 1)
        ):
            raise StateError(
                "the cursors of the state do not fit this order: it has another number of "
                "canonical nodes, or their windows end earlier."
            )
        self._window, self._pack, self._turn = (
            cursor_pairs[:, 0].copy(),
            cursor_pairs[:, 1].copy(),
            turn,
        )
        self._packs: list[Packs | None] = [None] * nodes
        self._count = np.zeros(nodes, np.int64)
        self._alive = np.zeros(0, np.int64)
        self._has_loaded = False

    @property
    def cursor(self) -> Cursor:
        """Next pack of every canonical node."""
        windows = zip(self._window.tolist(), self._pack.tolist(), strict=True)
        return Cursor(tuple(windows), self._turn)

    def take(self, count: int) -> TakenPacks:
        """Return the next ``count`` packs, or as many as there are."""
        if not self._has_loaded:
            self._load_windows()
        window_of, numbers = np.empty(count, np.int64), np.empty(count, np.int64)
        windows: list[Packs] = []
        position_of = np.full(len(self._windows), -1, np.int64)  # of a node's window in `windows`
        filled = 0
        while filled < count and len(self._alive):
            alive = self._alive
            row = int(np.searchsorted(alive, self._turn)) % len(alive)
            columns_left = int((self._count[alive] - self._pack[alive]).min())
            columns = min(columns_left, (count - filled) // len(alive)) if row == 0 else 0
            nodes = alive if columns else alive[row : row + count - filled]
            for node in nodes[position_of[nodes] < 0].tolist():
                packs = self._packs[node]
                assert packs is not None
                position_of[node] = len(windows)
                windows.append(packs)
            columns = max(columns, 1)
            end = filled + columns * len(nodes)
            window_of[filled:end] = np.tile(position_of[nodes], columns)
            numbers[filled:end] = (self._pack[nodes] + np.arange(columns)[:, None]).reshape(-1)
            self._pack[nodes] += columns
            last = int(nodes[-1])
            self._turn = 0 if last == alive[-1] else last + 1
            filled = end
            for node in nodes[self._pack[nodes] == self._count[nodes]].tolist():
                self._window[node] += 1
                self._pack[node] = 0
                self._load_next_window(node)
                position_of[node] = -1
            if (self._count[nodes] == 0).any():
                self._alive = np.flatnonzero(self._count)
        return TakenPacks(windows, window_of[:filled], numbers[:filled])

    def skip(self, count: int) -> None:
        """Skip the next ``count`` packs."""
        while count and len(self.take(step := min(count, _PASSED_AT_ONCE))):
            count -= step

    def _load_windows(self) -> None:
        for node in range(len(self._windows)):
            before = int(self._window[node])
            self._load_next_window(node)
            is_same = int(self._window[node]) == before
            if self._pack[node] and not (is_same and self._pack[node] < self._count[node]):
                raise StateError(
                    f"the state has a cursor at pack {int(self._pack[node])} of window {before} of "
                    f"canonical node {node}, and that window has "
                    f"{int(self._count[node]) if is_same else 0} packs: the state is of another "
                    "order."
                )
        self._alive = np.flatnonzero(self._count)
        self._has_loaded = True

    def _load_next_window(self, node: int) -> None:
        """Pack the window of a node's cursor, or the next window that has packs."""
        while self._window[node] < self._windows[node]:
            packs = self._load(node, int(self._window[node]))
            if len(packs):
                self._packs[node], self._count[node] = packs, len(packs)
                return
            self._window[node] += 1
        self._packs[node], self._count[node] = None, 0


class PackTable:
    """Table of the packs of an epoch, made of the number of packs of each window."""

    def __init__(self, counts: Sequence[Ids]) -> None:
        self._ends = [np.cumsum(of_node) for of_node in counts]
        self._totals = np.array([int(e[-1]) if len(e) else 0 for e in self._ends], np.int64)
        self.total = int(self._totals.sum())

    def find(self, node: int, window: int, pack: int) -> int:
        """Return the place of a pack of a window in the epoch."""
        before = int(self._ends[node][window - 1]) if window else 0
        column = before + pack
        earlier = int(np.minimum(self._totals, column).sum())
        return earlier + int((self._totals[:node] > column).sum())

    def places(self, first: int, last: int) -> tuple[Ids, Ids, Ids]:
        """Return canonical node, window and pack of the places ``first`` to ``last`` - 1."""
        last = min(last, self.total)
        low, high = 0, int(self._totals.max(initial=0))
        while low < high:  # the column of the first one
            middle = (low + high + 1) // 2
            if int(np.minimum(self._totals, middle).sum()) <= first:
                low = middle
            else:
                high = middle - 1
        skip = first - int(np.minimum(self._totals, low).sum())
        nodes, columns, filled, column = [], [], -skip, low
        while filled < last - first:
            alive = np.flatnonzero(self._totals > column)
            nodes.append(alive)
            columns.append(np.full(len(alive), column))
            filled += len(alive)
            column += 1
        nothing = np.zeros(0, np.int64)
        node = np.concatenate([nothing, *nodes])[skip:][: max(last - first, 0)]
        column_of = np.concatenate([nothing, *columns])[skip:][: max(last - first, 0)]
        window, pack = np.empty(len(node), np.int64), np.empty(len(node), np.int64)
        for canonical_node in np.unique(node).tolist():
            mine = node == canonical_node
            window[mine] = np.searchsorted(
                self._ends[canonical_node], column_of[mine], side="right"
            )
            pack[mine] = (
                column_of[mine] - np.concatenate([[0], self._ends[canonical_node]])[window[mine]]
            )
        return node, window, pack

    def at(self, places: Ids) -> tuple[Ids, Ids, Ids]:
        """Return canonical node, window and pack of ascending places."""
        runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
        parts = [self.places(int(run[0]), int(run[-1]) + 1) for run in runs if len(run)]
        if not parts:
            return self.places(0, 0)
        node, window, pack = (np.concatenate(each) for each in zip(*parts, strict=True))
        return node, window, pack

    def cursor(self, place: int) -> Cursor:
        """Return the cursor at a place of the epoch."""
        nodes, windows, packs = self.places(place, place + len(self._ends))
        next_packs = [(len(ends), 0) for ends in self._ends]
        pairs = zip(nodes.tolist(), windows.tolist(), packs.tolist(), strict=True)
        for node, window, pack in reversed([*pairs]):
            next_packs[node] = (window, pack)
        return Cursor(tuple(next_packs), int(nodes[0]) if len(nodes) else 0)
