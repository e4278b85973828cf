"""Random-access resampling: sample ids that are computed at any position, by keyed hashes.

How many samples a shard gives is decided by systematic sampling. Shards are laid out on a line, in
an order that the key decides, and evenly spaced marks on the line choose *picks* of ``granularity``
consecutive samples::

    line     | shard 4     | shard 0 | shard 2          | shard 1   |
    marks          x           x            x             x              one pick each

Which samples a shard gives is decided by a keyed permutation of its picks. Only a few numbers are
kept for each shard, and a sample id is computed when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds._process.fork_safe import cached_property
from mds.errors import PlanError
from mds.plan._sampling import shares_key
from mds.shuffle._permutation import derive_key, hash_counters, keyed_order, permute_below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mds.plan._sampling import ResamplingParams, StreamShare

    Ids = NDArray[np.int64]

_TAG = 0x5A3B1E  # first number of all keys, so that no other algorithm has the same ones
# Last number of a key: what the key is for.
_FOR_SHARDS, _FOR_OFFSETS, _FOR_PICKS, _FOR_PHASE, _FOR_LAST = range(5)


class KeyedResampling:
    """Resampling by keyed permutations; see `Resampling`. Each shard is one virtual shard.

    Args:
        shares: Samples to choose of one stream or several; sample ids of a stream follow those of
            the stream before.
        params: Granularity and seeds.

    Attributes:
        samples: Number of chosen samples.
        is_plain: Whether every sample is chosen once. Then a sample id is the virtual id plus the
            first sample id of the streams.
        is_identity: Whether virtual ids are sample ids.
        top: Sample id after the last one of the streams.
    """

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
        """Samples of each virtual shard, one for each shard; 0 for a shard that gives none."""
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
        """First sample id of each shard, int64 (shards,)."""
        starts: Ids = self._first + np.cumsum(self._sizes) - self._sizes
        return starts

    @cached_property
    def _ends(self) -> Ids:
        """End of each virtual shard in virtual ids."""
        return np.cumsum(self.virtual_shards)

    def to_sample_ids(self, virtual: Ids) -> Ids:
        """Return the sample id of each virtual id, int64.

        The virtual ids of a shard are full copies of its samples, then a partial copy, whose
        samples are chosen by hashes. So 10 virtual ids of a shard of 4 have these offsets in it::

            0 1 2 3   0 1 2 3   1 3
        """
        if self.is_plain:
            return virtual + self._first if self._first else virtual
        shard = np.searchsorted(self._ends, virtual, side="right")
        # Offset in the virtual shard, then in its copy of the shard.
        offset: Ids = virtual - (self._ends[shard] - self.virtual_shards[shard])
        size = self._sizes[shard]
        offset %= size
        # A copy that would end after the virtual shard is its partial copy.
        partial = np.flatnonzero(virtual - offset + size > self._ends[shard])
        if len(partial):
            offset[partial] = self._choose(offset[partial], shard[partial])
        offset += self._starts[shard]
        return offset

    def find(self, sample: int) -> Ids:
        """Return all virtual ids of a sample, ascending."""
        if not self._first <= sample < self.top:
            return np.zeros(0, np.int64)
        # The shard of the sample. An empty shard begins at the same sample id as the next one.
        nonempty = np.flatnonzero(self._sizes)
        shard = int(nonempty[np.searchsorted(self._starts[nonempty], sample, side="right") - 1])
        end, count = int(self._ends[shard]), int(self.virtual_shards[shard])
        # The virtual ids of a shard are few enough to compute all.
        virtual = np.arange(end - count, end)
        matches: Ids = virtual[self.to_sample_ids(virtual) == sample]
        return matches

    def key(self) -> str:
        """Return a digest of all that the samples depend on."""
        return shares_key("keyed", self._shares, self._params)

    def data_key(self) -> str:
        """Return a digest of the data from which samples are chosen, the same in every epoch."""
        return shares_key("data", self._shares, None)

    def _choose(self, offset: Ids, shard: Ids) -> Ids:
        """Return the offset in its shard of each chosen sample of a partial copy.

        The shard is cut into picks, whose order is permuted; the partial copy has the first ones.
        At last all are moved on by a number, around the end of the shard. A shard of 7 samples with
        picks of 2, the permutation 2 0 1 and the number 3::

            offset in the partial copy     0 1   2 3   4 5   6
            pick                           2     0     1     3       the short pick stays last
            offset in the shard            4 5   0 1   2 3   6
            moved on by 3                  0 1   3 4   5 6   2

        Args:
            offset: Offset of each sample in its partial copy, int64 (n,).
            shard: Shard of each of these samples, int64 (n,).
        """
        size, grain = self._sizes[shard], self._params.granularity
        whole_picks = size // grain
        pick, inside = offset // grain, offset % grain
        # Permute the whole picks of each shard. All have one size, so any order of them fits.
        is_whole = np.flatnonzero(pick < whole_picks)
        keys = hash_counters(derive_key(self._key, _FOR_PICKS), shard[is_whole])
        pick[is_whole] = permute_below(pick[is_whole], whole_picks[is_whole], keys)
        # Move on, so that the samples of the short pick, which come last, are not always the same.
        # Without its highest bit a hash is not negative as int64.
        moved_by = hash_counters(derive_key(self._key, _FOR_OFFSETS), shard) >> np.uint64(1)
        rows: Ids = (pick * grain + inside + moved_by.astype(np.int64) % size) % size
        return rows


def keyed_counts(sizes: Ids, choose: int, granularity: int, key: int) -> Ids:
    """Return the number of samples that each shard gives, int64 of shape (shards,).

    Args:
        sizes: Samples of each shard.
        choose: Samples to take in all.
        granularity: Consecutive samples that are picked together.
        key: Key that decides the shards.

    Raises PlanError if the shards have no samples.
    """
    total = int(sizes.sum())
    if not total:
        raise PlanError("no sample can be taken from shards without samples.")
    copies, remainder = divmod(choose, total)
    counts: Ids = sizes * copies
    if not remainder:
        return counts
    order = keyed_order(derive_key(key, _FOR_SHARDS), len(sizes))
    line = _SystematicSample(sizes[order], granularity, key)
    # Find the fewest marks that give enough samples, by bisection: short picks give fewer than
    # others, so a division does not tell.
    low, high = -(-remainder // granularity), line.picks
    while low < high:
        middle = (low + high) // 2
        if int(line.count_samples(middle).sum()) >= remainder:
            high = middle
        else:
            low = middle + 1
    chosen_counts = line.count_samples(low)
    # The last mark may give too many samples. Take the excess from the end of the line: a shard
    # gives up what the shards after it do not have.
    excess = int(chosen_counts.sum()) - remainder
    chosen_after = np.cumsum(chosen_counts[::-1])[::-1] - chosen_counts
    chosen_counts -= np.minimum(np.maximum(excess - chosen_after, 0), chosen_counts)
    counts[order] += chosen_counts
    return counts


class _SystematicSample:
    """Line of the picks of all shards, on which evenly spaced marks choose some.

    Two shards of 5 samples, in picks of 2, and 3 marks for the 6 picks::

        line     | 2 2 1 | 2 2 1 |        samples of each pick
        marks      x   x     x            shard 0 gives two picks, shard 1 one

    A mark only decides from which shard a pick comes. Which of its picks are taken, and so whether
    the short one is among them, is random for each shard.

    Args:
        sizes: Samples of each shard, in the order of the line.
        granularity: Samples of a pick.
        key: Key that decides where the first mark is, and which shards give their short pick.

    Attributes:
        picks: Number of picks of all shards.
    """

    def __init__(self, sizes: Ids, granularity: int, key: int) -> None:
        self._sizes, self._granularity = sizes, granularity
        self._picks = -(-sizes // granularity)
        self._ends = np.cumsum(self._picks)
        self.picks = int(self._ends[-1])
        # Samples by which the last pick of each shard is short.
        self._missing = self._picks * granularity - sizes
        # For each shard a random number from 0 to its number of picks. The short pick is taken if
        # more picks are taken than this number: k of n picks have it with probability k / n.
        random_bits = hash_counters(derive_key(key, _FOR_LAST), np.arange(len(sizes)))
        self._thresholds = random_bits.astype(np.float64) / 2.0**64 * self._picks
        # Offset of all marks, from 0 to 1, as a part of the distance between two of them.
        self._phase = derive_key(key, _FOR_PHASE) / 2.0**64

    def count_samples(self, marks: int) -> Ids:
        """Return the number of samples that each shard gives with so many marks, int64 (shards,).

        ``marks`` is the number of marks on the line; each takes a pick.
        """
        if marks >= self.picks:
            return np.array(self._sizes)
        # Marks up to the end of each shard; their differences are the marks on each shard.
        # Rounding moves a mark by a pick at most, and never past another one.
        marks_up_to_end = np.floor(self._ends * (marks / self.picks) + self._phase).astype(np.int64)
        marks_up_to_end[-1] = marks
        picks = np.minimum(np.diff(marks_up_to_end, prepend=0), self._picks)
        has_short_pick = self._thresholds < picks
        counts: Ids = picks * self._granularity - self._missing * has_short_pick
        return counts
