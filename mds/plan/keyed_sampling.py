"""Resampling without drawing, for orders that are computed alone at any place.

Which shards give how many follows from where evenly spaced marks fall on the shards, laid out in
an order that the key decides; which samples of a shard, from a keyed permutation of its picks,
counted from a keyed place on. What is kept is a few numbers a shard, and a sample id is computed
when it is asked for.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError
from mds.plan.sampling import parts_key
from mds.shuffle.keyed import derive, hashes, permute_below, shuffled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mds.plan.sampling import Draws, Part

    Ids = NDArray[np.int64]

_TAG = 0x5A3B1E
_SHARDS, _OFFSETS, _PICKS, _PHASE, _LAST = range(5)


class KeyedSampled:
    """The samples of an epoch, one unit a shard, from one stream or several."""

    def __init__(self, parts: Sequence[Part], draws: Draws) -> None:
        self._parts, self._draws = tuple(parts), draws
        self.samples = sum(part.choose for part in parts)
        self.is_plain = all(part.is_plain for part in parts)
        self._first = parts[0].first
        self.is_same = self.is_plain and not self._first
        self._sizes = np.concatenate([part.sizes for part in parts])
        self.top = self._first + int(self._sizes.sum())
        self._key = derive(_TAG, draws.sample_seed, self._first)

    @functools.cached_property
    def units(self) -> Ids:
        """The sizes of the units: one a shard, also where it gives nothing."""
        if self.is_plain:
            return self._sizes
        grain, seed = self._draws.granularity, self._draws.shard_seed
        return np.concatenate(
            [
                keyed_counts(part.sizes, part.choose, grain, derive(_TAG, seed, part.first))
                for part in self._parts
            ]
        )

    @functools.cached_property
    def _starts(self) -> Ids:
        # Streams that are chosen from together follow each other.
        starts: Ids = self._first + np.cumsum(self._sizes) - self._sizes
        return starts

    @functools.cached_property
    def _ends(self) -> Ids:
        return np.cumsum(self.units)

    def look_up(self, big: Ids) -> Ids:
        """Sample ids of big ids."""
        if self.is_plain:
            return big + self._first if self._first else big
        shard = np.searchsorted(self._ends, big, side="right")
        offset: Ids = big - (self._ends[shard] - self.units[shard])
        size = self._sizes[shard]
        offset %= size
        partial = np.flatnonzero(big - offset + size > self._ends[shard])
        if len(partial):
            offset[partial] = self._chosen(offset[partial], shard[partial])
        offset += self._starts[shard]
        return offset

    def find(self, sample: int) -> Ids:
        """All big ids of a sample."""
        if not self._first <= sample < self.top:
            return np.zeros(0, np.int64)
        full = np.flatnonzero(self._sizes)
        shard = int(full[np.searchsorted(self._starts[full], sample, side="right") - 1])
        end, taken = int(self._ends[shard]), int(self.units[shard])
        # A shard's units are few enough to be looked at.
        big = np.arange(end - taken, end)
        there: Ids = big[self.look_up(big) == sample]
        return there

    def key(self) -> str:
        """A name for all that the samples depend on."""
        return parts_key("keyed", self._parts, self._draws)

    def data_key(self) -> str:
        """A name for what they are chosen from, the same in every epoch."""
        return parts_key("data", self._parts, None)

    def _chosen(self, offset: Ids, shard: Ids) -> Ids:
        """Samples of shards that give a part of theirs: the ``offset``-th chosen."""
        size, grain = self._sizes[shard], self._draws.granularity
        whole = size // grain
        pick, inside = offset // grain, offset % grain
        picked = np.flatnonzero(pick < whole)
        keys = hashes(derive(self._key, _PICKS), shard[picked])
        pick[picked] = permute_below(pick[picked], whole[picked], keys)
        # The samples left over by whole picks come last, so they are others in each shard's turn.
        turn = hashes(derive(self._key, _OFFSETS), shard) >> np.uint64(1)
        chosen: Ids = (pick * grain + inside + turn.astype(np.int64) % size) % size
        return chosen


def keyed_counts(sizes: Ids, choose: int, granularity: int, key: int) -> Ids:
    """How many samples each shard gives, int64, ``choose`` in all, in picks of ``granularity``.

    Raises PlanError when there is nothing to choose from.
    """
    total = int(sizes.sum())
    if not total:
        raise PlanError("no sample can be taken from shards without samples.")
    copies, rest = divmod(choose, total)
    counts: Ids = sizes * copies
    if not rest:
        return counts
    order = shuffled(derive(key, _SHARDS), len(sizes))
    line = _Line(sizes[order], granularity, key)
    few, many = -(-rest // granularity), line.picks
    while few < many:
        # The fewest marks that give enough: the last pick of a shard may be short.
        middle = (few + many) // 2
        if int(line.marked(middle).sum()) >= rest:
            many = middle
        else:
            few = middle + 1
    taken = line.marked(few)
    # What is too much is taken back from the last shards of the line that give something.
    over = int(taken.sum()) - rest
    before = np.cumsum(taken[::-1])[::-1] - taken
    taken -= np.minimum(np.maximum(over - before, 0), taken)
    counts[order] += taken
    return counts


class _Line:
    """Shards in a row, cut in picks, on which evenly spaced marks fall."""

    def __init__(self, sizes: Ids, granularity: int, key: int) -> None:
        self._sizes, self._granularity = sizes, granularity
        self._picks = -(-sizes // granularity)
        self._ends = np.cumsum(self._picks)
        self.picks = int(self._ends[-1])
        self._missing = self._picks * granularity - sizes  # of the last pick of each shard
        chance = hashes(derive(key, _LAST), np.arange(len(sizes))).astype(np.float64)
        self._luck = chance / 2.0**64 * self._picks
        self._phase = derive(key, _PHASE) / 2.0**64

    def marked(self, marks: int) -> Ids:
        """How many samples each shard gives when so many marks fall."""
        if marks >= self.picks:
            return np.array(self._sizes)
        # Rounding moves a mark by a pick at most, and never past another.
        below = np.floor(self._ends * (marks / self.picks) + self._phase).astype(np.int64)
        below[-1] = marks
        picks = np.minimum(np.diff(below, prepend=0), self._picks)
        # The short pick is as likely among the chosen as any other.
        taken: Ids = picks * self._granularity - self._missing * (self._luck < picks)
        return taken
