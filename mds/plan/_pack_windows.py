"""Windows of documents, and the packs of a window.

A window is a number of documents that are packed together. Windows exchange nothing, so any of them
can be packed alone, from the lengths of its own documents. In an order each canonical node has its
own windows of consecutive documents (`OrderWindows`), or with a schedule of documents of its own
part of every stream (`ScheduledWindows`). `pack_window` packs a window.

A document that is longer than a pack may be cut into *pieces*; any other document is one piece. A
pack is a list of pieces.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from mds._process.fork_safe import cached_property
from mds._shardfile.hashing import digest
from mds._words import plural
from mds.errors import PlanError
from mds.plan._packers import cut_at_packs, find_packer, radix_argsort
from mds.shuffle._permutation import derive_key, join_ranges, keyed_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds.plan._pack_schedule import DocumentRows
    from mds.plan._packing import Packing
    from mds.plan._passes import StreamPasses
    from mds.plan._schedule import ScheduledEpoch
    from mds.plan._stream_orders import Lookup, StreamOrder

    Ids = NDArray[np.int64]


_PACK_KEY = 0x7061636B  # keys that shuffle packs are derived from it


class DocumentWindows(Protocol):
    """Windows of documents of an epoch, in a row for each canonical node."""

    #: Number of windows of each row, int64.
    counts: Ids

    @property
    def are_apart(self) -> bool:
        """Whether each row has documents of its own."""

    def ids(self, row: int, window: int) -> Ids:
        """Return the sample ids of the documents of a window, in their order."""

    def find(self, sample: int) -> list[tuple[int, int]]:
        """Return the row and the window in it of each occurrence of a document in the epoch."""

    def key(self) -> str:
        """Return a text that two epochs share only if all their windows have the same documents."""


class OrderWindows:
    """Windows of consecutive documents of an order, a row for each canonical node.

    Args:
        order: Order of the documents; None for an epoch without any.
        size: Documents of a window. The last window of a row may have fewer.
    """

    def __init__(self, order: StreamOrder | None, size: int) -> None:
        self._order, self._size = order, size
        self._starts = order.starts() if order is not None else np.zeros(1, np.int64)
        self.counts = -(-np.diff(self._starts) // size)

    @cached_property
    def _lookup(self) -> Lookup:
        """Function from positions of the order to sample ids."""
        assert self._order is not None
        return self._order.lookup()

    @property
    def are_apart(self) -> bool:
        """Whether each row has documents of its own: always."""
        return True

    def ids(self, row: int, window: int) -> Ids:
        """Return the sample ids of the documents of a window, in their order."""
        first = int(self._starts[row]) + window * self._size
        return self._lookup(np.arange(first, min(first + self._size, int(self._starts[row + 1]))))

    def find(self, sample: int) -> list[tuple[int, int]]:
        """Return the row and the window of each occurrence of a document."""
        if self._order is None:
            return []
        windows = []
        for position in self._order.find(sample).tolist():
            row = int(np.searchsorted(self._starts, position, side="right")) - 1
            windows.append((row, (position - int(self._starts[row])) // self._size))
        return windows

    def key(self) -> str:
        """Return a text that is equal for equal documents in all windows."""
        return self._order.key() if self._order is not None else ""


class ScheduledWindows:
    """Windows of a schedule, a row for each canonical node.

    A step of the schedule is a window of all rows here, since `PackFilling` counts its schedule
    in windows.

    Args:
        epoch: Part of the schedule that the epoch has: the windows ``first`` to ``last`` - 1 of the
            training, and the mixture of the streams.
        passes: Orders of the documents of all streams; None for an epoch without any.
        rows: Number of canonical nodes.
        name: Text that is equal for equal orders.
    """

    def __init__(
        self, epoch: ScheduledEpoch, passes: StreamPasses | None, rows: int, name: str
    ) -> None:
        self._epoch, self._passes, self._name = epoch, passes, name
        self.counts = np.full(rows, epoch.last - epoch.first if passes else 0)

    @cached_property
    def _lookup(self) -> Lookup:
        """Function from positions, as those of `StreamPasses`, to sample ids."""
        assert self._passes is not None
        return self._passes.lookup()

    @property
    def are_apart(self) -> bool:
        """Whether each row has documents of its own: not if a stream has too few for rows."""
        return self._passes is None or bool(self._rows.has_rows.all())

    @property
    def _rows(self) -> DocumentRows:
        """Documents that each row gives."""
        from mds.plan._pack_schedule import DocumentRows

        assert self._passes is not None
        assert isinstance(self._passes.rows, DocumentRows)
        return self._passes.rows

    def ids(self, row: int, window: int) -> Ids:
        """Return the sample ids of a window: the due documents of all streams, evenly mixed."""
        step = self._epoch.first + window
        first, last = self._rows.counts(row, np.array([step, step + 1]))
        # Documents of each stream in the window. Document i of n of a stream comes at (2i + 1) / 2n
        # of the window, so that each stream is spread evenly: two documents at 1/4 and 3/4.
        sizes = last - first
        streams = np.repeat(np.arange(len(sizes)), sizes)
        within = np.arange(len(streams)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # i above
        places = ((2 * within + 1) << 32) // (2 * sizes[streams])
        order = np.argsort(places, kind="stable")
        numbers = self._rows.numbers(row, streams, first[streams] + within)
        return self._lookup(np.stack([streams, np.full(len(streams), row), numbers])[:, order])

    def find(self, sample: int) -> list[tuple[int, int]]:
        """Return the row and the window of each occurrence of a document."""
        if self._passes is None:
            return []
        places = [self._rows.find(*position) for position in self._passes.find(sample).T.tolist()]
        return [(row, window - self._epoch.first) for row, window in places]

    def key(self) -> str:
        """Return a text that is equal for equal documents in all windows."""
        return digest(self._name, self._epoch.first, self._epoch.last)


class Pieces(NamedTuple):
    """Pieces of several packs, end to end; a piece is a document or a part of it.

    Attributes:
        ids: Sample id of each piece's document.
        starts: First token of each piece in its document.
        sizes: Tokens of each piece.
        places: Number of each piece's document among all documents of the epoch, as
            `PackFilling.load` counts them.
        counts: Number of pieces of each pack, int64 of shape (packs,); the others have the shape
            (pieces,).
    """

    ids: Ids
    starts: Ids
    sizes: Ids
    places: Ids
    counts: Ids


@dataclasses.dataclass(frozen=True, eq=False)
class TakenPacks:
    """Consecutive places of an epoch, with packs from several windows. Some places may be empty.

    Attributes:
        windows: The windows that these packs are from. Each is packed when one of its packs is
            asked for.
        window_of: For each place the index in ``windows`` of the window of its pack, int64.
        numbers: For each place the number of its pack in the window, int64; -1 for an empty place.
    """

    windows: Sequence[PackWindow]
    window_of: Ids
    numbers: Ids

    def __len__(self) -> int:
        return len(self.window_of)

    @cached_property
    def count(self) -> int:
        """Number of the packs."""
        return int(np.count_nonzero(self.numbers >= 0))

    @property
    def filled(self) -> int:
        """Number of places up to the last pack."""
        if self.count == len(self):
            return len(self)
        return int(np.flatnonzero(self.numbers >= 0)[-1]) + 1 if self.count else 0

    def has_pack(self, places: Ids) -> NDArray[np.bool_]:
        """Return a mask of the indexes into these places that have a pack; later ones have none."""
        mask: NDArray[np.bool_] = places < len(self)
        if self.count < len(self):  # else no place is empty
            mask[mask] = self.numbers[places[mask]] >= 0
        return mask

    @classmethod
    def joined(cls, parts: Sequence[TakenPacks]) -> TakenPacks:
        """Return the packs of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        windows: list[PackWindow] = []
        window_of = []
        for part in parts:
            window_of.append(part.window_of + len(windows))
            windows += part.windows
        return cls(
            windows, np.concatenate(window_of), np.concatenate([part.numbers for part in parts])
        )

    def weights(self, places: Ids, kind: str) -> Ids:
        """Return the attention work, or the tokens, of the packs at ``places``, int64.

        ``places`` are indexes into these places, in any order; one without a pack has 0. ``kind``
        is "attention" or "tokens".
        """
        totals = np.zeros(len(places), np.int64)
        real = np.flatnonzero(self.has_pack(places))
        window_of, numbers = self.window_of[places[real]], self.numbers[places[real]]
        for window in np.unique(window_of).tolist():
            mine = window_of == window
            packs = self.windows[window].packs
            weights = packs.work if kind == "attention" else packs.tokens
            totals[real[mine]] = weights[numbers[mine]]
        return totals

    def pieces(self, places: Ids) -> Pieces:
        """Return the pieces of the packs at ``places``, pack after pack.

        ``places`` are indexes into these places, in any order; one without a pack has no pieces.
        """
        # First find where each pack begins in the pieces of its window, and how many pieces it has.
        counts = np.zeros(len(places), np.int64)
        real = np.flatnonzero(self.has_pack(places))
        window_of, numbers = self.window_of[places[real]], self.numbers[places[real]]
        begins = np.zeros(len(real), np.int64)
        windows = np.unique(window_of).tolist()
        for window in windows:
            mine = window_of == window
            bounds = self.windows[window].packs.bounds
            begins[mine] = bounds[numbers[mine]]
            counts[real[mine]] = bounds[numbers[mine] + 1] - begins[mine]
        sizes = counts[real]
        if len(windows) == 1:  # the usual case: no copy from window to window
            packs, indices = self.windows[windows[0]].packs, join_ranges(begins, sizes)
            return Pieces(
                packs.ids[indices],
                packs.starts[indices],
                packs.sizes[indices],
                packs.places[indices],
                counts,
            )
        # Then copy the pieces of each window to the places of its packs in the result: new arrays
        # for ids, starts, sizes and places.
        columns_out = [np.empty(int(sizes.sum()), np.int64) for _ in range(4)]
        firsts = np.cumsum(sizes) - sizes
        for window in windows:
            mine, packs = window_of == window, self.windows[window].packs
            indices = join_ranges(begins[mine], sizes[mine])
            targets = join_ranges(firsts[mine], sizes[mine])
            columns = packs.ids, packs.starts, packs.sizes, packs.places
            for column, values in zip(columns_out, columns, strict=True):
                column[targets] = values[indices]
        ids, starts, piece_sizes, document_places = columns_out
        return Pieces(ids, starts, piece_sizes, document_places, counts)


class PackWindow:
    """Window of documents that is packed when its packs are asked for.

    Args:
        load: Packs the window.
        known_count: Number of its packs, if they were counted before.
    """

    def __init__(self, load: Callable[[], Packs], known_count: int | None = None) -> None:
        self._load, self._known_count = load, known_count

    @property
    def count(self) -> int:
        """Number of its packs."""
        return len(self.packs) if self._known_count is None else self._known_count

    @cached_property
    def packs(self) -> Packs:
        """Packs of the window.

        Raises PlanError if they are not as many as were counted before.
        """
        packs = self._load()
        if self._known_count not in (None, len(packs)):
            raise PlanError(
                f"a window of documents has {plural(len(packs), 'pack')}, but "
                f"{self._known_count:,} were counted before. A packer must depend on its arguments "
                "alone. If yours has changed, register it under another name."
            )
        return packs


@dataclasses.dataclass(frozen=True, eq=False)
class Packs:
    """Packs of a window.

    Piece i has the tokens ``starts[i]`` to ``starts[i] + sizes[i]`` - 1 of sample ``ids[i]``, and
    pack k has the pieces ``bounds[k]`` to ``bounds[k + 1]`` - 1.

    Attributes:
        ids, starts, sizes: Document, first token and number of tokens of each piece.
        bounds: First piece of each pack, and the end.
        places: Number of each piece's document among all documents of the epoch, as
            `PackFilling.load` counts them.
        dropped: Number of documents that were left out.
        cut_tokens: Number of tokens that were cut off.
    """

    ids: Ids
    starts: Ids
    sizes: Ids
    bounds: Ids
    places: Ids
    dropped: int = 0
    cut_tokens: int = 0

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def packs_with(self, sample: int) -> list[int]:
        """Return the packs that have pieces of a document, one for each piece."""
        pieces = np.flatnonzero(self.ids == sample)
        return [int(pack) for pack in np.searchsorted(self.bounds, pieces, side="right") - 1]

    @cached_property
    def tokens(self) -> Ids:
        """Tokens of each pack."""
        return _sums(self.sizes, self.bounds)

    @cached_property
    def work(self) -> Ids:
        """Attention work of each pack: the sum of the squares of its pieces' lengths."""
        return _sums(self.sizes * self.sizes, self.bounds)


def pack_window(ids: Ids, lengths: Ids, packing: Packing, key: int | None, place: int = 0) -> Packs:
    """Return the packs of a window: cut documents into pieces, pack these, and order the packs.

    Args:
        ids: Sample ids of the documents of the window, in their order.
        lengths: Tokens of each document.
        packing: Settings of the packing.
        key: Key by which packs are shuffled; None keeps the order of their first documents.
        place: Number of the first document among all documents of the epoch; the others follow it.

    Raises PlanError for a document that is longer than a pack under ``overflow="error"``.
    """
    lengths, packer = packing.packed_lengths(lengths), find_packer(packing.packer)
    # Make pieces. ``places`` has for each piece the index of its document in the window.
    if packer.cuts:
        places, starts, sizes = cut_at_packs(lengths, packing.room)
        dropped = cut_tokens = 0
    else:
        places, starts, sizes, dropped, cut_tokens = _fit(ids, lengths, packing)
    # Give each piece the number of its pack. With ``budget`` in place of ``capacity`` documents are
    # not joined but padded to the longest one of their pack.
    pack = packer.pack if packing.capacity else _like_lengths
    pack_of, count = pack(sizes, packing.room)
    # Choose the order of the packs: by the first piece of each, or shuffled.
    if key is None:
        first = np.full(count, len(pack_of), np.int64)
        np.minimum.at(first, pack_of, np.arange(len(pack_of)))
        order_of_packs = np.argsort(first, kind="stable")
    else:
        order_of_packs = keyed_order(derive_key(_PACK_KEY, key), count)
    # Number the packs in their new order, then sort the pieces by pack.
    new_number = np.empty(count, np.int64)
    new_number[order_of_packs] = np.arange(count)
    pack_of = new_number[pack_of]
    order = radix_argsort(pack_of, count)
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(pack_of, minlength=count), out=bounds[1:])
    places = places[order]
    return Packs(
        ids[places], starts[order], sizes[order], bounds, place + places, dropped, cut_tokens
    )


def _like_lengths(sizes: Ids, budget: int) -> tuple[Ids, int]:
    """Return the number of the pack of each document, and the number of packs, for a budget.

    A pack has documents of similar lengths. With all of them padded to the longest, it has at most
    ``budget`` tokens: a budget of 100 with documents of 40, 50, 10, 45 tokens gives the packs
    (50, 45) and (40, 10).

    Args:
        sizes: Tokens of each document, 1 to ``budget``.
        budget: Most tokens of a pack, padding included.
    """
    # Longest documents first. The first one of a pack then decides how many fit into it.
    order = radix_argsort(budget - sizes, budget)
    ordered = sizes[order].tolist()
    bounds, next_document = [0], 0
    while next_document < len(ordered):
        next_document += min(budget // ordered[next_document], len(ordered) - next_document)
        bounds.append(next_document)
    pack_of = np.empty(len(sizes), np.int64)
    pack_of[order] = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    return pack_of, len(bounds) - 1


def _fit(ids: Ids, lengths: Ids, packing: Packing) -> tuple[Ids, Ids, Ids, int, int]:
    """Return pieces that fit into packs, by the ``overflow`` of the packing.

    Documents without tokens have no piece. With room for 4 tokens and documents of 3 and 9 tokens,
    "split" gives pieces of 3, 4, 4 and 1 tokens, "truncate" of 3 and 4, and "drop" of 3.

    Args:
        ids: Documents of a window, for the message.
        lengths: Tokens of each document.
        packing: Settings of the packing.

    Returns the index of each piece's document, its first token and its size; the number of
    documents that were left out, and the number of tokens that were cut off. Raises PlanError for
    a document that is too long under ``overflow="error"``.
    """
    room, overflow, places = packing.room, packing.overflow, np.arange(len(lengths))
    if len(lengths) and int(lengths.min()) == 0:
        places = places[lengths > 0]
        lengths = lengths[places]
    if not len(lengths) or int(lengths.max()) <= room:
        return places, np.zeros(len(places), np.int64), lengths, 0, 0
    is_long = lengths > room
    if overflow == "error":
        worst = int(np.flatnonzero(is_long)[0])
        raise PlanError(
            f"sample {int(ids[places[worst]])} has {plural(int(lengths[worst]), 'token')}, but a "
            "pack has "
            f"only {room}. Write packing=Packing({packing.size_argument}, overflow='split'), or "
            "'truncate' or 'drop', or give more tokens than this document has."
        )
    if overflow == "drop":
        fits = ~is_long
        places, lengths = places[fits], lengths[fits]
        return places, np.zeros(len(places), np.int64), lengths, int(is_long.sum()), 0
    if overflow == "truncate":
        cut_tokens = int((lengths[is_long] - room).sum())
        return places, np.zeros(len(places), np.int64), np.minimum(lengths, room), 0, cut_tokens
    # "split": a document has pieces of a whole pack each, and a shorter last one.
    pieces = -(-lengths // room)
    ends = np.cumsum(pieces)
    number = np.arange(int(ends[-1])) - np.repeat(ends - pieces, pieces)
    starts = number * room
    sizes = np.minimum(np.repeat(lengths, pieces) - starts, room)
    return np.repeat(places, pieces), starts, sizes, 0, 0


def balance(weights: Ids, groups: int) -> Ids:
    """Return the group of each pack, int64, so that groups have similar sums of weights.

    Every group gets equally many packs, so ``groups`` must divide their number. Packs are given out
    heaviest first, each to the group with the smallest sum. Then the heaviest group exchanges packs
    with others while that makes it lighter. Weights 4, 3, 2, 1 and 2 groups give groups 0, 1, 1, 0.

    Args:
        weights: Weight of each pack, int64.
        groups: Number of groups: the ranks of a node.
    """
    group_of = np.empty(len(weights), np.int64)
    packs_per_group = len(weights) // groups
    order = np.argsort(-weights, kind="stable").tolist()
    loads = [0] * groups
    members: list[list[int]] = [[] for _ in range(groups)]
    values = weights.tolist()
    open_groups = list(range(groups))
    for pack in order:
        group = min(open_groups, key=loads.__getitem__)
        members[group].append(pack)
        loads[group] += values[pack]
        if len(members[group]) == packs_per_group:
            open_groups.remove(group)
    _exchange(values, members, loads)
    for group, packs in enumerate(members):
        group_of[packs] = group
    return group_of


def _exchange(values: list[int], members: list[list[int]], loads: list[int]) -> None:
    """Exchange packs of the heaviest group with others while that makes it lighter, in place.

    ``values`` are the weights of packs, ``members`` the packs of each group, ``loads`` their sums.
    """
    mean = sum(loads) / len(loads)
    for _ in range(4 * len(loads)):  # more rounds gain little
        heavy = max(range(len(loads)), key=loads.__getitem__)
        if loads[heavy] <= mean * 1.002:  # balanced well enough
            return
        # The exchange after which the heavier of both groups is lightest.
        # Heavier sum after it, lighter group, index of the pack in either group, difference.
        best = None
        for light in range(len(loads)):
            gap = loads[heavy] - loads[light]
            if gap <= 0:
                continue
            for i, mine in enumerate(members[heavy]):
                for j, other in enumerate(members[light]):
                    moved = values[mine] - values[other]
                    if 0 < moved < gap:
                        heavier = max(loads[heavy] - moved, loads[light] + moved)
                        if best is None or heavier < best[0]:
                            best = (heavier, light, i, j, moved)
        if best is None:
            return
        _, light, i, j, moved = best
        members[heavy][i], members[light][j] = members[light][j], members[heavy][i]
        loads[heavy] -= moved
        loads[light] += moved


def _sums(values: Ids, bounds: Ids) -> Ids:
    """Return the sum of the values from each bound to the next one, int64.

    Values 1, 2, 3 with the bounds 0, 2, 2, 3 have the sums 3, 0, 3.
    """
    # Differences of running sums; ``np.add.reduceat`` would be wrong for empty ranges.
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=ends[1:])
    sums: Ids = np.diff(ends[bounds])
    return sums
