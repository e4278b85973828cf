"""Dropped samples: from a place of the run on, another sample of the stream comes for each.

Each epoch has a reserve for each stream: its samples in an order of their own, by the seed and the
epoch. The samples that are dropped take the next of it, in the order in which they were dropped,
and one that is dropped itself is passed over. So what takes a place depends on the edits up to then
and on nothing that comes later, on any world; every other place stays as it was. The next of the
reserve may come by itself in the epoch as well: rows stay full, and nothing moves.

What takes the place of a sample may be dropped later; then the one for it comes. A chain ends, as
each of its samples was dropped later than the one before.

It costs a look into a small table for each id, and more only for those that may be in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mds.errors import PlanError
from mds.shuffle.permutation import derive_key, permute_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from mds.plan.edits import Drop
    from mds.plan.global_batches import GlobalBatches, Lookup

    Ids = NDArray[np.int64]

_RESERVE = 0x72657376  # what the key is for
_HINT_BITS = 16
_HINT_MASK = (1 << _HINT_BITS) - 1
_AT_ONCE = 1 << 10  # candidates of a reserve
_MAX_RESERVE = 1 << 32  # samples of a stream that are in its reserve


class DropTable:
    """Dropped samples of an epoch, sorted by ``ids``, with the places from which they are dropped.

    ``follow``: the samples that take their places, which may be dropped themselves.
    """

    def __init__(self, ids: Ids, begins: Ids, follow: Ids) -> None:
        self.ids, self.begins, self.follow = ids, begins, follow
        self._hints = np.zeros(1 << _HINT_BITS, bool)
        self._hints[ids & _HINT_MASK] = True
        self._from_begin = not int(begins.max(initial=0))

    @classmethod
    def of(
        cls, drops: Iterable[Drop], per_stream: Sequence[int], seed: int, epoch: int
    ) -> DropTable:
        """Return the table of an epoch: samples dropped in it, or in an earlier one."""
        past_drops = [drop for drop in drops if drop.epoch <= epoch and len(drop.ids)]
        if not past_drops:
            return cls(*(np.zeros(0, np.int64) for _ in range(3)))
        every = np.concatenate([drop.ids for drop in past_drops])
        begins = np.repeat(
            [drop.begin if drop.epoch == epoch else 0 for drop in past_drops],
            [len(drop.ids) for drop in past_drops],
        )
        edits = np.repeat(np.arange(len(past_drops)), [len(drop.ids) for drop in past_drops])
        ids, first, positions = np.unique(every, return_index=True, return_inverse=True)
        earliest = np.full(len(ids), np.iinfo(np.int64).max)
        np.minimum.at(earliest, positions, begins)
        follow = np.empty(len(ids), np.int64)
        ends = np.cumsum(np.asarray(per_stream, np.int64))
        stream = np.searchsorted(ends, ids, side="right")
        for number in np.unique(stream).tolist():
            mine = np.flatnonzero(stream == number)
            mine = mine[np.argsort(first[mine], kind="stable")]
            size = int(per_stream[number])
            key = derive_key(_RESERVE, seed, epoch, number)
            follow[mine] = _replacements(
                ids[mine], edits[first[mine]], int(ends[number]) - size, size, key
            )
        return cls(ids, earliest, follow)

    def __len__(self) -> int:
        return len(self.ids)

    def replace(self, ids: Ids, marks: Callable[[], Ids]) -> Ids:
        """Return the ids of steps and slots with dropped samples replaced.

        ``marks`` gives their places in the epoch, where that matters.
        """
        may = np.flatnonzero(self._hints[ids & _HINT_MASK])
        if not len(may):
            return ids
        flat = ids.reshape(-1)
        may = may[self._find(flat[may]) >= 0]
        if len(may):
            when = np.zeros(len(may), np.int64) if self._from_begin else marks().reshape(-1)[may]
            flat = flat.copy() if not flat.flags.writeable else flat
            flat[may] = self.at(flat[may], when)
        return flat.reshape(ids.shape)

    def at(self, ids: Ids, marks: Ids) -> Ids:
        """Return what comes for samples at places of the epoch: themselves unless dropped there."""
        ids = ids.copy()
        moving = np.arange(len(ids) if len(self.ids) else 0)
        while len(moving):
            positions = self._find(ids[moving])
            is_dropped = (positions >= 0) & (self.begins[positions] <= marks[moving])
            moving = moving[is_dropped]
            ids[moving] = self.follow[positions[is_dropped]]
        return ids

    def sources(self, sample: int) -> list[int]:
        """Return the samples that this one replaces somewhere, and itself."""
        sources, waiting = [], [sample]
        while waiting:
            sources.append(waiting.pop())
            waiting += self.ids[self.follow == sources[-1]].tolist()
        return sources

    def _find(self, ids: Ids) -> Ids:
        """Return the positions of ids in the table, -1 for those that are not in it."""
        nearest = np.searchsorted(self.ids, ids)
        nearest[nearest == len(self.ids)] = 0
        positions: Ids = np.where(self.ids[nearest] == ids, nearest, -1)
        return positions


class DroppedBatches:
    """Global batches of an epoch in which samples are replaced; see `GlobalBatches`."""

    def __init__(self, batches: GlobalBatches, table: DropTable) -> None:
        self._batches, self._table = batches, table
        self.count, self.shares, self.filled = batches.count, batches.shares, batches.filled
        self.marks = batches.marks
        self.canonical_nodes_of = batches.canonical_nodes_of

    def block(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of steps and slots."""
        ids = self._batches.block(steps, slots, lookups)
        return self._table.replace(ids, lambda: self.marks(steps, slots))

    def whole(self, first: int, last: int, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of all slots of the steps ``first`` to ``last`` - 1."""
        ids = self._batches.whole(first, last, lookups)
        slots = np.arange(ids.shape[1])
        return self._table.replace(ids, lambda: self.marks(np.arange(first, last), slots))

    def find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of positions of a stream's order, whatever comes there."""
        return self._batches.find(stream, positions)


class _Candidate(NamedTuple):
    sample: int
    edit: int  # that drops it, counted on for those that none does


def _replacements(ids: Ids, edits: Ids, first: int, size: int, key: int) -> list[int]:
    """Return the samples of a stream that replace ``ids``, dropped by edits in this order."""
    reserve = _spare_samples(dict(zip(ids.tolist(), edits.tolist(), strict=True)), first, size, key)
    replacements = []
    for edit in edits.tolist():
        spare = next((candidate for candidate in reserve if candidate.edit > edit), None)
        if spare is None:
            raise PlanError(
                f"more samples are dropped than the {size:,} samples of their stream can stand in "
                "for: leave them out with select()."
            )
        replacements.append(spare.sample)
    return replacements


def _spare_samples(
    dropped: dict[int, int], first: int, size: int, key: int
) -> Iterator[_Candidate]:
    """Yield the spare samples of a stream in their order, and the edit that drops each."""
    never, size = 1 << 62, min(size, _MAX_RESERVE)
    for start in range(0, size, _AT_ONCE):
        numbers = np.arange(start, min(start + _AT_ONCE, size))
        keys = np.full(len(numbers), key, np.uint64)
        sizes = np.full(len(numbers), size, np.int64)
        for sample in (permute_below(numbers, sizes, keys) + first).tolist():
            yield _Candidate(sample, dropped.get(sample, never))
