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

from mds.errors import PlanError
from mds.plan.sampling import shares_key
from mds.process.fork_safe import cached_property
from mds.shuffle.permutation import derive_key, hash_counters, keyed_order, permute_below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mds.plan.sampling import ResamplingParams, StreamShare

    Ids = NDArray[np.int64]

_TAG = 0x5A3B1E  # first number of all keys, so that no other algorithm has the same ones
# Last number of a key: what the key is for.
_FOR_SHARDS, _FOR_OFFSETS, _FOR_PICKS, _FOR_PHASE, _FOR_LAST = range(5)


class KeyedResampling:
    """Resampling by keyed permutations; see `Resampling`. Each shard is one virtual shard.

    Args:
        shares: Samples to choose of one stream or several; streams follow each other.
        params: Granularity and seeds.
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
        """First sample id of each shard."""
        starts: Ids = self._first + np.cumsum(self._sizes) - self._sizes
        return starts

    @cached_property
    def _ends(self) -> Ids:
        """End of each virtual shard in virtual ids."""
        return np.cumsum(self.virtual_shards)

    def to_sample_ids(self, virtual: Ids) -> Ids:
        """Return the sample id of each virtual id, int64.

        The virtual ids of a shard are full copies of its samples, then a partial copy, whose
        samples are chosen by hashes.
        """
        if self.is_plain:
            return virtual + self._first if self._first else virtual
        shard = np.searchsorted(self._ends, virtual, side="right")
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
        """Return all virtual ids of a sample."""
        if not self._first <= sample < self.top:
            return np.zeros(0, np.int64)
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

        ``offset`` counts the chosen samples of the ``shard`` beside it.
        """
        size, grain = self._sizes[shard], self._params.granularity
        whole_picks = size // grain
        pick, inside = offset // grain, offset % grain
        # Permute the whole picks of each shard; the shorter rest of a shard stays behind them.
        is_whole = np.flatnonzero(pick < whole_picks)
        keys = hash_counters(derive_key(self._key, _FOR_PICKS), shard[is_whole])
        pick[is_whole] = permute_below(pick[is_whole], whole_picks[is_whole], keys)
        # Picks are counted from a keyed offset on, around the end of the shard, so that the samples
        # after the last whole pick are not always the same ones.
        shift = hash_counters(derive_key(self._key, _FOR_OFFSETS), shard) >> np.uint64(1)
        rows: Ids = (pick * grain + inside + shift.astype(np.int64) % size) % size
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
    low, high = -(-remainder // granularity), line.picks
    while low < high:
        # Find the fewest marks that give enough samples, as the last pick of a shard may be short.
        middle = (low + high) // 2
        if int(line.count_samples(middle).sum()) >= remainder:
            high = middle
        else:
            low = middle + 1
    chosen_counts = line.count_samples(low)
    # The last shards of the line give fewer samples, so that the sum is exact.
    excess = int(chosen_counts.sum()) - remainder
    chosen_after = np.cumsum(chosen_counts[::-1])[::-1] - chosen_counts
    chosen_counts -= np.minimum(np.maximum(excess - chosen_after, 0), chosen_counts)
    counts[order] += chosen_counts
    return counts


class _SystematicSample:
    """Line of the picks of all shards, on which evenly spaced marks choose some.

    Args:
        sizes: Samples of each shard, in the order of the line.
        granularity: Samples of a pick.
        key: Key that decides where the first mark is.
    """

    def __init__(self, sizes: Ids, granularity: int, key: int) -> None:
        self._sizes, self._granularity = sizes, granularity
        self._picks = -(-sizes // granularity)
        self._ends = np.cumsum(self._picks)
        self.picks = int(self._ends[-1])
        self._missing = self._picks * granularity - sizes  # of the last pick of each shard
        # Random numbers below the picks of each shard.
        random_bits = hash_counters(derive_key(key, _FOR_LAST), np.arange(len(sizes)))
        self._thresholds = random_bits.astype(np.float64) / 2.0**64 * self._picks
        self._phase = derive_key(key, _FOR_PHASE) / 2.0**64

    def count_samples(self, marks: int) -> Ids:
        """Return the number of samples that each shard gives with so many marks."""
        if marks >= self.picks:
            return np.array(self._sizes)
        # Marks up to the end of each shard; their differences are the marks on each shard.
        # Rounding moves a mark by a pick at most, and never past another one.
        below = np.floor(self._ends * (marks / self.picks) + self._phase).astype(np.int64)
        below[-1] = marks
        picks = np.minimum(np.diff(below, prepend=0), self._picks)
        # The short last pick of a shard is chosen as likely as any other.
        counts: Ids = picks * self._granularity - self._missing * (self._thresholds < picks)
        return counts
