"""Resampling: the samples of each shard that an epoch takes, drawn as in mosaicml-streaming.

The result is a list of *virtual shards*, which the shuffle treats as shards, and a table from
*virtual ids* to sample ids. Virtual ids count the chosen samples from 0 on, shard after shard::

    a shard of 4 samples, of which 10 are chosen: two full copies, and 2 drawn samples

    virtual shard       |     0     |     1     |  2  |
    virtual ids         | 0 1 2 3   | 4 5 6 7   | 8 9 |
    sample ids          | 0 1 2 3   | 0 1 2 3   | 1 3 |

Without resampling the virtual shards are the shards, and the table is empty. A full copy of a shard
costs a few numbers. Only the drawn samples of a partial copy are listed one by one, when they are
first looked up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mds._process.fork_safe import cached_property
from mds._shardfile.hashing import digest
from mds.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    Ids = NDArray[np.int64]


def get_sampling(
    samples_per_shard: ArrayLike,
    choose: int,
    granularity: int,
    seed: int,
    epoch: int,
    use_epoch: bool = True,
) -> Ids:
    """Return the number of samples to take from each shard, int64 of shape (shards,).

    - ``samples_per_shard`` (array of integers): Samples of each shard.
    - ``choose`` (int): Samples to take in all.
    - ``granularity`` (int, samples): Consecutive samples that are picked together.
    - ``seed`` (int): Seed of the run.
    - ``epoch`` (int): Number of the epoch.
    - ``use_epoch`` (bool, default True): Whether each epoch picks others.

    Raises PlanError for negative numbers or a granularity below one.

    >>> get_sampling([4, 4, 4], choose=6, granularity=1, seed=1, epoch=0)
    array([1, 3, 2])
    """
    for name, value in (("choose", choose), ("seed", seed), ("epoch", epoch)):
        if value < 0:
            raise PlanError(f"{name} must not be negative, got {value}.")
    if granularity <= 0:
        raise PlanError(f"sampling_granularity must be at least 1, got {granularity}.")
    sizes = np.asarray(samples_per_shard, np.int64).reshape(-1)
    total = int(sizes.sum())
    if not total:
        raise PlanError("no sample can be taken from shards without samples.")
    copies, remainder = divmod(choose, total)
    counts = sizes * copies
    if remainder:
        counts += _draw_counts(sizes, remainder, granularity, seed + epoch if use_epoch else seed)
    return counts


def _draw_counts(sizes: Ids, count: int, granularity: int, seed: int) -> Ids:
    """Return how many of ``count`` samples are drawn from each shard, by a seed.

    Each shard is cut into picks of ``granularity`` samples; its last one may be short. Picks of all
    shards are shuffled, and the first ones are taken. For example, 6 samples of two shards of 5, in
    picks of 2::

        shard                 0 0 0 1 1 1
        pick                  0 1 2 3 4 5
        samples               2 2 1 2 2 1
        shuffled picks        4 2 0 5 3 1
        samples, summed up    2 3 5 6           so shard 0 gives 1 + 2 samples, shard 1 gives 2 + 1
    """
    picks = -(-sizes // granularity)  # of each shard
    ends = np.cumsum(picks)
    total = int(ends[-1])
    # A narrow type, as there may be many picks.
    shuffled_picks = np.arange(total, dtype=np.min_scalar_type(total))
    np.random.default_rng(seed).shuffle(shuffled_picks)
    # Twice as many picks as needed if none is short: they nearly always suffice.
    picks_to_try = min(2 * (count // granularity + 1), total)
    while True:
        first_picks = shuffled_picks[:picks_to_try].astype(np.int64)
        shard = np.searchsorted(ends, first_picks, side="right")
        size = np.full(len(first_picks), granularity, np.int64)
        is_last = first_picks == ends[shard] - 1  # the last pick of its shard
        size[is_last] = (sizes - (picks - 1) * granularity)[shard[is_last]]
        sizes_summed = np.cumsum(size)
        if sizes_summed[-1] >= count:
            break
        picks_to_try = min(2 * picks_to_try, total)
    # Cut the pick that reaches the count, and leave out those after it.
    last_pick = int(np.searchsorted(sizes_summed, count, side="left"))
    size, shard = size[: last_pick + 1], shard[: last_pick + 1]
    size[last_pick] -= int(sizes_summed[last_pick]) - count
    return np.bincount(shard, size, minlength=len(sizes)).astype(np.int64)


class StreamShare(NamedTuple):
    """Samples that an epoch chooses of a stream.

    Attributes:
        sizes: Samples of each shard of the stream, int64 (shards,).
        first: First sample id of the stream.
        choose: Number of samples to choose. More than the stream has give repetitions.
    """

    sizes: Ids
    first: int
    choose: int

    @property
    def is_plain(self) -> bool:
        """Whether every sample is taken once."""
        return self.choose == int(self.sizes.sum())


class ResamplingParams(NamedTuple):
    """Parameters of a resampling.

    Attributes:
        granularity: Consecutive samples that are picked together.
        shard_seed: Seed that decides how many samples each shard gives.
        sample_seed: Seed that decides which samples of each shard these are.
    """

    granularity: int
    shard_seed: int
    sample_seed: int


class VirtualIdTable(NamedTuple):
    """Table from virtual ids to sample ids.

    A full copy needs a single number, its shift: virtual id + shift = sample id. For a partial copy
    virtual id + shift is an index of the list ``samples``. In the example of the file::

        virtual shard       0      1      2
        ends                4      8     10
        shift               0     -4     -8        virtual id 5 is sample 5 - 4 = 1
        is_listed          no     no    yes        virtual id 9 is samples[9 - 8] = 3
        samples                          1 3

    Attributes:
        ends: End of each virtual shard in virtual ids, int64.
        shift: Number that is added to the virtual ids of each virtual shard, int64.
        is_listed: Whether the samples of each virtual shard are listed one by one.
        samples: Listed sample ids of all partial copies, one copy after the other, int64.
    """

    ends: Ids
    shift: Ids
    is_listed: NDArray[np.bool_]
    samples: Ids

    def to_sample_ids(self, virtual: Ids) -> Ids:
        """Return the sample id of each virtual id."""
        shard = np.searchsorted(self.ends, virtual, side="right")
        ids = virtual + self.shift[shard]
        listed = np.flatnonzero(self.is_listed[shard])
        ids[listed] = self.samples[ids[listed]]
        return ids

    def find(self, sample: int) -> Ids:
        """Return all virtual ids of a sample, ascending."""
        # Sample ids of a full copy, or indexes in the list of a partial one: a range for each.
        starts = self.ends - np.diff(self.ends, prepend=0)
        range_starts, range_ends = starts + self.shift, self.ends + self.shift
        # Full copies whose range has the sample.
        has_sample = (range_starts <= sample) & (sample < range_ends)
        in_full_copies = sample - self.shift[has_sample & ~self.is_listed]
        # Indexes of the sample in the list, and the partial copy to whose range each belongs.
        indexes = np.flatnonzero(self.samples == sample)
        partial_copies = np.flatnonzero(self.is_listed)
        copy = partial_copies[np.searchsorted(range_ends[partial_copies], indexes, side="right")]
        in_partial_copies = indexes - self.shift[copy]
        return np.sort(np.concatenate([in_full_copies, in_partial_copies]))


class SequentialResampling:
    """Resampling by one generator, as in mosaicml-streaming; see `Resampling`.

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
        self.shares, self.params = tuple(shares), params
        self.samples = sum(share.choose for share in shares)
        self.is_plain = all(share.is_plain for share in shares)
        self.is_identity = self.is_plain and shares[0].first == 0
        self.top = max(share.first + int(share.sizes.sum()) for share in shares)
        self._first = shares[0].first

    @property
    def virtual_shards(self) -> Ids:
        """Samples of each virtual shard, int64."""
        return self._tables[0]

    def to_sample_ids(self, virtual: Ids) -> Ids:
        """Return the sample id of each virtual id, int64."""
        if self.is_plain:
            return virtual + self._first if self._first else virtual  # mostly no copy is needed
        return self._tables[1].to_sample_ids(virtual)

    def find(self, sample: int) -> Ids:
        """Return all virtual ids of a sample, int64 of shape (n,)."""
        if self.is_plain:
            virtual = sample - self._first
            return np.array([virtual] if 0 <= virtual < self.samples else [], np.int64)
        return self._tables[1].find(sample)

    def key(self) -> str:
        """Return a digest of all that the samples depend on."""
        return shares_key("drawn", self.shares, self.params)

    def data_key(self) -> str:
        """Return a digest of the data from which samples are chosen, the same in every epoch."""
        return shares_key("data", self.shares, None)

    @cached_property
    def _tables(self) -> tuple[Ids, VirtualIdTable]:
        """Samples of each virtual shard, and the table of all virtual ids."""
        if self.is_plain:
            # No table is needed: `to_sample_ids` and `find` add or subtract the first sample id.
            virtual_shards = np.concatenate([share.sizes for share in self.shares])
            nothing = np.zeros(0, np.int64)
            table = VirtualIdTable(nothing, nothing, np.zeros(0, bool), nothing)
            return virtual_shards[virtual_shards > 0], table
        rng = np.random.default_rng(self.params.sample_seed)
        parts = []
        chosen_before = listed_before = 0
        for share in self.shares:
            part = _resample_stream(share, self.params, rng, chosen_before, listed_before)
            parts.append(part)
            chosen_before += share.choose
            _, _, _, listed_samples = part
            listed_before += len(listed_samples)
        virtual_shards, shifts, is_listed, samples = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        ends = np.cumsum(virtual_shards)
        return virtual_shards, VirtualIdTable(ends, shifts, is_listed, samples)


def _resample_stream(
    share: StreamShare,
    params: ResamplingParams,
    rng: np.random.Generator,
    chosen_before: int,
    listed_before: int,
) -> tuple[Ids, Ids, NDArray[np.bool_], Ids]:
    """Return the part of a `VirtualIdTable` that one stream has.

    A shard has a virtual shard for each full copy, and a last one of listed samples for a partial
    copy: with 10 samples of a shard of 4 they have 4, 4 and 2 samples.

    Args:
        share: Samples to choose of the stream.
        params: Granularity and seeds.
        rng: Generator that draws samples of partial copies.
        chosen_before: Number of samples that were chosen of earlier streams.
        listed_before: Number of samples that were listed of earlier streams.

    Returns:
        Samples of each virtual shard, and its shift; a mask of those with listed samples; and the
        listed sample ids.
    """
    sizes = share.sizes
    starts = share.first + np.cumsum(sizes) - sizes
    chosen_counts = get_sampling(sizes, share.choose, params.granularity, params.shard_seed, 0)
    divisors = np.maximum(sizes, 1)  # empty shards give no samples
    copies, remainders = chosen_counts // divisors, chosen_counts % divisors
    counts = copies + (remainders > 0)  # virtual shards of each shard
    shard = np.repeat(np.arange(len(sizes)), counts)  # of each virtual shard
    partial = np.flatnonzero(remainders)
    is_listed = np.zeros(len(shard), bool)
    is_listed[np.cumsum(counts)[partial] - 1] = True  # the last virtual shard of these shards
    virtual_shards = np.where(is_listed, remainders[shard], sizes[shard])
    # Draw the samples of the partial copies, shard after shard.
    samples = np.empty(int(remainders.sum()), np.int64)
    first = 0  # place of the next drawn sample
    for start, size, count in zip(
        starts[partial].tolist(), sizes[partial].tolist(), remainders[partial].tolist(), strict=True
    ):
        picked = rng.choice(size, count, replace=False)
        picked.sort()
        samples[first : first + count] = picked
        samples[first : first + count] += start
        first += count
    # The shift leads from the first virtual id of a virtual shard to its first sample id or, if it
    # is listed, to its place in the list.
    first_virtual_ids = chosen_before + np.cumsum(virtual_shards) - virtual_shards
    place_in_list = listed_before + np.cumsum(remainders)[shard] - remainders[shard]
    shift = np.where(is_listed, place_in_list, starts[shard]) - first_virtual_ids
    return virtual_shards, shift, is_listed, samples


def shares_key(kind: str, shares: Sequence[StreamShare], params: ResamplingParams | None) -> str:
    """Return a digest of all that chosen samples depend on.

    Args:
        kind: Name of the algorithm, or of another use of the digest, so that digests of different
            uses differ.
        shares: Samples to choose of each stream.
        params: Granularity and seeds, or None for a digest that does not depend on them. They are
            left out, too, if every sample is chosen once, as nothing is drawn then.
    """
    hashed_values: list[str | int | Ids] = [kind]
    for share in shares:
        hashed_values += [share.sizes, share.first, share.choose]
    if params is not None and not all(share.is_plain for share in shares):
        hashed_values += [params.granularity, params.shard_seed, params.sample_seed]
    return digest(*hashed_values)
