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
    """What was dropped of an epoch, sorted: ``ids``, from where on (``begins``), and what comes.

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
        """That of an epoch: what is dropped in it later, or was in an earlier one."""
        given = [drop for drop in drops if drop.epoch <= epoch and len(drop.ids)]
        if not given:
            return cls(*(np.zeros(0, np.int64) for _ in range(3)))
        every = np.concatenate([drop.ids for drop in given])
        begins = np.repeat(
            [drop.begin if drop.epoch == epoch else 0 for drop in given],
            [len(drop.ids) for drop in given],
        )
        edits = np.repeat(np.arange(len(given)), [len(drop.ids) for drop in given])
        ids, first, of = np.unique(every, return_index=True, return_inverse=True)
        earliest = np.full(len(ids), np.iinfo(np.int64).max)
        np.minimum.at(earliest, of, begins)
        follow = np.empty(len(ids), np.int64)
        ends = np.cumsum(np.asarray(per_stream, np.int64))
        stream = np.searchsorted(ends, ids, side="right")
        for one in np.unique(stream).tolist():
            mine = np.flatnonzero(stream == one)
            mine = mine[np.argsort(first[mine], kind="stable")]
            size = int(per_stream[one])
            key = derive_key(_RESERVE, seed, epoch, one)
            follow[mine] = _from_reserve(
                ids[mine], edits[first[mine]], int(ends[one]) - size, size, key
            )
        return cls(ids, earliest, follow)

    def __len__(self) -> int:
        return len(self.ids)

    def replace(self, ids: Ids, marks: Callable[[], Ids]) -> Ids:
        """The ids of steps and slots with what comes for those that are dropped there.

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
        """What comes for samples at places of the epoch; themselves, where they are not dropped."""
        ids = ids.copy()
        moving = np.arange(len(ids) if len(self.ids) else 0)
        while len(moving):
            found = self._find(ids[moving])
            gone = (found >= 0) & (self.begins[found] <= marks[moving])
            moving = moving[gone]
            ids[moving] = self.follow[found[gone]]
        return ids

    def sources(self, sample: int) -> list[int]:
        """The samples for which this one comes somewhere, itself among them."""
        found, waiting = [], [sample]
        while waiting:
            found.append(waiting.pop())
            waiting += self.ids[self.follow == found[-1]].tolist()
        return found

    def _find(self, ids: Ids) -> Ids:
        """Where in the table ids are; -1 for those that are not."""
        at = np.searchsorted(self.ids, ids)
        at[at == len(self.ids)] = 0
        found: Ids = np.where(self.ids[at] == ids, at, -1)
        return found


class DroppedBatches:
    """Global batches of an epoch in which samples are dropped; see `GlobalBatches`."""

    def __init__(self, batches: GlobalBatches, table: DropTable) -> None:
        self._batches, self._table = batches, table
        self.count, self.shares, self.filled = batches.count, batches.shares, batches.filled
        self.marks = batches.marks
        self.canonical_nodes_of = batches.canonical_nodes_of

    def block(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Sample ids of steps and slots."""
        ids = self._batches.block(steps, slots, lookups)
        return self._table.replace(ids, lambda: self.marks(steps, slots))

    def whole(self, first: int, last: int, lookups: Sequence[Lookup]) -> Ids:
        """Sample ids of all slots of the steps ``first`` to ``last`` - 1."""
        ids = self._batches.whole(first, last, lookups)
        slots = np.arange(ids.shape[1])
        return self._table.replace(ids, lambda: self.marks(np.arange(first, last), slots))

    def find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Steps and slots at which positions of a stream's order are, whatever comes there."""
        return self._batches.find(stream, positions)


class _Candidate(NamedTuple):
    sample: int
    edit: int  # that drops it, counted on for those that none does


def _from_reserve(ids: Ids, edits: Ids, first: int, size: int, key: int) -> list[int]:
    """The samples of a stream that come for ``ids``, dropped by edits in this order."""
    reserve = _reserve(dict(zip(ids.tolist(), edits.tolist(), strict=True)), first, size, key)
    found = []
    for edit in edits.tolist():
        taken = next((one for one in reserve if one.edit > edit), None)
        if taken is None:
            raise PlanError(
                f"more samples are dropped than the {size:,} samples of their stream can stand in "
                "for: leave them out with select()."
            )
        found.append(taken.sample)
    return found


def _reserve(dropped: dict[int, int], first: int, size: int, key: int) -> Iterator[_Candidate]:
    """The samples of a stream in the order of the reserve, and by which edit each is dropped."""
    never, size = 1 << 62, min(size, _MAX_RESERVE)
    for at in range(0, size, _AT_ONCE):
        numbers = np.arange(at, min(at + _AT_ONCE, size))
        keys = np.full(len(numbers), key, np.uint64)
        sizes = np.full(len(numbers), size, np.int64)
        for sample in (permute_below(numbers, sizes, keys) + first).tolist():
            yield _Candidate(sample, dropped.get(sample, never))
