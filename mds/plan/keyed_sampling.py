"""Random-access resampling: sample ids computed by keyed hashing at any position.

Which shards give how many follows from where evenly spaced marks fall on the shards, laid out in
an order that the key decides; which samples of a shard, from a keyed permutation of its picks,
counted from a keyed place on. What is kept is a few numbers a shard, and a sample id is computed
when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError
from mds.plan.sampling import shares_key
from mds.process.fork_safe import cached_property
from mds.shuffle.permutation import derive_key, hash_counters, keyed_order, permute_below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mds.plan.sampling import ResamplingParams, StreamShare

    Ids = NDArray[np.int64]

_TAG = 0x5A3B1E
_SHARDS, _OFFSETS, _PICKS, _PHASE, _LAST = range(5)


class KeyedResampling:
    """Resampling by keyed permutations, one virtual shard a shard, of one stream or several."""

    def __init__(self, shares: Sequence[StreamShare], params: ResamplingParams) -> None:
        self._shares, self._params = tuple(shares), params
        self.samples = sum(share.choose for share in shares)
        self.is_plain = all(share.is_plain for share in shares)
        self._first = shares[0].first
        self.is_identity = self.is_plain and not self._first
        self._sizes = np.concatenate([share.sizes for share in shares])
        self.top = self._first + int(self._sizes.sum())
        self._key = derive_key(_TAG, params.sample_seed, self._first)

    @cached_property
    def virtual_shards(self) -> Ids:
        """Samples of each virtual shard: one a shard, also where it gives nothing."""
        if self.is_plain:
            return self._sizes
        grain, seed = self._params.granularity, self._params.shard_seed
        return np.concatenate(
            [
                keyed_counts(share.sizes, share.choose, grain, derive_key(_TAG, seed, share.first))
                for share in self._shares
            ]
        )

    @cached_property
    def _starts(self) -> Ids:
        # Streams that are chosen from together follow each other.
        starts: Ids = self._first + np.cumsum(self._sizes) - self._sizes
        return starts

    @cached_property
    def _ends(self) -> Ids:
        return np.cumsum(self.virtual_shards)

    def to_sample_ids(self, virtual: Ids) -> Ids:
        """Return the sample ids of virtual ids."""
        if self.is_plain:
            return virtual + self._first if self._first else virtual
        shard = np.searchsorted(self._ends, virtual, side="right")
        offset: Ids = virtual - (self._ends[shard] - self.virtual_shards[shard])
        size = self._sizes[shard]
        offset %= size
        partial = np.flatnonzero(virtual - offset + size > self._ends[shard])
        if len(partial):
            offset[partial] = self._chosen(offset[partial], shard[partial])
        offset += self._starts[shard]
        return offset

    def find(self, sample: int) -> Ids:
        """Return all virtual ids of a sample."""
        if not self._first <= sample < self.top:
            return np.zeros(0, np.int64)
        full = np.flatnonzero(self._sizes)
        shard = int(full[np.searchsorted(self._starts[full], sample, side="right") - 1])
        end, count = int(self._ends[shard]), int(self.virtual_shards[shard])
        # A shard's virtual ids are few enough to be looked at.
        virtual = np.arange(end - count, end)
        matches: Ids = virtual[self.to_sample_ids(virtual) == sample]
        return matches

    def key(self) -> str:
        """Return a name for all that the samples depend on."""
        return shares_key("keyed", self._shares, self._params)

    def data_key(self) -> str:
        """Return a name for what they are chosen from, the same in every epoch."""
        return shares_key("data", self._shares, None)

    def _chosen(self, offset: Ids, shard: Ids) -> Ids:
        """Return the ``offset``-th chosen sample of shards that give a part of theirs."""
        size, grain = self._sizes[shard], self._params.granularity
        full_grains = size // grain
        pick, inside = offset // grain, offset % grain
        picked = np.flatnonzero(pick < full_grains)
        keys = hash_counters(derive_key(self._key, _PICKS), shard[picked])
        pick[picked] = permute_below(pick[picked], full_grains[picked], keys)
        # The samples left over by whole picks come last, so they are others in each shard's turn.
        shift = hash_counters(derive_key(self._key, _OFFSETS), shard) >> np.uint64(1)
        rows: Ids = (pick * grain + inside + shift.astype(np.int64) % size) % size
        return rows


def keyed_counts(sizes: Ids, choose: int, granularity: int, key: int) -> Ids:
    """Return the samples that each shard gives, int64, ``choose`` in all, by ``granularity``.

    Raises PlanError when there is nothing to choose from.
    """
    total = int(sizes.sum())
    if not total:
        raise PlanError("no sample can be taken from shards without samples.")
    copies, remainder = divmod(choose, total)
    counts: Ids = sizes * copies
    if not remainder:
        return counts
    order = keyed_order(derive_key(key, _SHARDS), len(sizes))
    line = _SystematicSample(sizes[order], granularity, key)
    low, high = -(-remainder // granularity), line.picks
    while low < high:
        # The fewest marks that give enough: the last pick of a shard may be short.
        middle = (low + high) // 2
        if int(line.marked(middle).sum()) >= remainder:
            high = middle
        else:
            low = middle + 1
    chosen_counts = line.marked(low)
    # The last shards of the line that give samples give fewer, so that the sum is exact.
    over = int(chosen_counts.sum()) - remainder
    before = np.cumsum(chosen_counts[::-1])[::-1] - chosen_counts
    chosen_counts -= np.minimum(np.maximum(over - before, 0), chosen_counts)
    counts[order] += chosen_counts
    return counts


class _SystematicSample:
    """Systematic sampling of shards: a line of picks, on which evenly spaced marks fall."""

    def __init__(self, sizes: Ids, granularity: int, key: int) -> None:
        self._sizes, self._granularity = sizes, granularity
        self._picks = -(-sizes // granularity)
        self._ends = np.cumsum(self._picks)
        self.picks = int(self._ends[-1])
        self._missing = self._picks * granularity - sizes  # of the last pick of each shard
        chance = hash_counters(derive_key(key, _LAST), np.arange(len(sizes))).astype(np.float64)
        self._luck = chance / 2.0**64 * self._picks
        self._phase = derive_key(key, _PHASE) / 2.0**64

    def marked(self, marks: int) -> Ids:
        """Return how many samples each shard gives when so many marks fall."""
        if marks >= self.picks:
            return np.array(self._sizes)
        # Rounding moves a mark by a pick at most, and never past another.
        below = np.floor(self._ends * (marks / self.picks) + self._phase).astype(np.int64)
        below[-1] = marks
        picks = np.minimum(np.diff(below, prepend=0), self._picks)
        # The short pick is as likely among the chosen as any other.
        counts: Ids = picks * self._granularity - self._missing * (self._luck < picks)
        return counts
