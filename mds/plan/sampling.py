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

from mds.errors import PlanError
from mds.process.fork_safe import cached_property
from mds.shardfile.hashing import digest

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
    """
    for name, value in (("choose", choose), ("seed", seed), ("epoch", epoch)):
        if value < 0:
            raise PlanError(f"{name} {value} must not be negative.")
    if granularity <= 0:
        raise PlanError(f"sampling_granularity {granularity} must be at least 1.")
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
    shards are shuffled, and the first ones are taken.
    """
    picks = -(-sizes // granularity)  # of each shard
    ends = np.cumsum(picks)
    total = int(ends[-1])
    order = np.arange(total, dtype=np.min_scalar_type(total))
    np.random.default_rng(seed).shuffle(order)
    # So many picks nearly always suffice; the last pick of a shard may be short.
    enough = min(2 * (count // granularity + 1), total)
    while True:
        first_picks = order[:enough].astype(np.int64)
        shard = np.searchsorted(ends, first_picks, side="right")
        size = np.full(len(first_picks), granularity, np.int64)
        is_last = first_picks == ends[shard] - 1
        size[is_last] = (sizes - (picks - 1) * granularity)[shard[is_last]]
        reached = np.cumsum(size)
        if reached[-1] >= count:
            break
        enough = min(2 * enough, total)
    # Cut the pick that reaches the count, and leave out those after it.
    last_pick = int(np.searchsorted(reached, count, side="left"))
    size, shard = size[: last_pick + 1], shard[: last_pick + 1]
    size[last_pick] -= int(reached[last_pick]) - count
    return np.bincount(shard, size, minlength=len(sizes)).astype(np.int64)


class StreamShare(NamedTuple):
    """Samples that an epoch chooses of a stream.

    Attributes:
        sizes: Samples of each shard.
        first: First sample id of the stream.
        choose: Number of samples to choose.
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
        sample_seed: Seed that decides which samples of a shard come.
    """

    granularity: int
    shard_seed: int
    sample_seed: int


class VirtualIdTable(NamedTuple):
    """Table from virtual ids to sample ids.

    Attributes:
        ends: End of each virtual shard in virtual ids.
        shift: Number that turns virtual ids of each virtual shard into sample ids when added. For a
            listed one it turns them into indexes of ``samples``.
        is_listed: Whether the samples of each virtual shard are listed one by one.
        samples: Listed sample ids.
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
        starts = self.ends - np.diff(self.ends, prepend=0)
        first_samples = starts + self.shift
        # Full copies of shards: their sample ids are a range.
        has_sample = (first_samples <= sample) & (sample < self.ends + self.shift)
        in_copies = sample - self.shift[has_sample & ~self.is_listed]
        # Listed samples: by the virtual shard that each place in the list belongs to.
        places = np.flatnonzero(self.samples == sample)
        listed = np.flatnonzero(self.is_listed)
        shard = listed[np.searchsorted((self.ends + self.shift)[listed], places, side="right")]
        return np.sort(np.concatenate([in_copies, places - self.shift[shard]]))


class SequentialResampling:
    """Resampling by one generator, as in mosaicml-streaming; see `Resampling`.

    Args:
        shares: Samples to choose of one stream or several; streams follow each other.
        params: Granularity and seeds.
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
        """Return the sample id of each virtual id."""
        if self.is_plain:
            return virtual + self._first if self._first else virtual
        return self._tables[1].to_sample_ids(virtual)

    def find(self, sample: int) -> Ids:
        """Return all virtual ids of a sample."""
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
            # Streams of a plain epoch follow each other, so ids and virtual ids run in parallel.
            virtual_shards = np.concatenate([share.sizes for share in self.shares])
            nothing = np.zeros(0, np.int64)
            table = VirtualIdTable(nothing, nothing, np.zeros(0, bool), nothing)
            return virtual_shards[virtual_shards > 0], table
        rng = np.random.default_rng(self.params.sample_seed)
        parts = []
        chosen_before = listed_before = 0
        for share in self.shares:
            parts.append(_resample_stream(share, self.params, rng, chosen_before, listed_before))
            chosen_before += share.choose
            listed_before += len(parts[-1][3])
        virtual_shards, shifts, listed, samples = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        return virtual_shards, VirtualIdTable(np.cumsum(virtual_shards), shifts, listed, samples)


def _resample_stream(
    share: StreamShare,
    params: ResamplingParams,
    rng: np.random.Generator,
    chosen_before: int,
    listed_before: int,
) -> tuple[Ids, Ids, NDArray[np.bool_], Ids]:
    """Return the virtual shards of a stream: sizes, shifts, which are listed, and listed samples.

    They are the columns of a `VirtualIdTable` for this stream. A shard has a virtual shard for each
    full copy, and a last one of listed samples for a partial copy.

    Args:
        share: Samples to choose of the stream.
        params: Granularity and seeds.
        rng: Generator that draws samples of partial copies.
        chosen_before: Samples that were chosen of earlier streams.
        listed_before: Samples that were listed of earlier streams.
    """
    sizes = share.sizes
    starts = share.first + np.cumsum(sizes) - sizes
    chosen_counts = get_sampling(sizes, share.choose, params.granularity, params.shard_seed, 0)
    divisors = np.maximum(sizes, 1)  # empty shards give no samples
    copies, remainders = chosen_counts // divisors, chosen_counts % divisors
    counts = copies + (remainders > 0)  # virtual shards of each shard
    shard = np.repeat(np.arange(len(sizes)), counts)
    partial = np.flatnonzero(remainders)
    listed = np.zeros(len(shard), bool)
    listed[np.cumsum(counts)[partial] - 1] = True
    virtual_shards = np.where(listed, remainders[shard], sizes[shard])
    begin = np.cumsum(virtual_shards) - virtual_shards
    # Draw the samples of the partial copies, shard after shard.
    samples = np.empty(int(remainders.sum()), np.int64)
    first = 0
    for start, size, count in zip(
        starts[partial].tolist(), sizes[partial].tolist(), remainders[partial].tolist(), strict=True
    ):
        picked = rng.choice(size, count, replace=False)
        picked.sort()
        samples[first : first + count] = picked
        samples[first : first + count] += start
        first += count
    # A listed virtual shard begins at this place among the listed samples of the stream.
    place = np.cumsum(remainders)[shard] - remainders[shard]
    shift = np.where(listed, place + listed_before, starts[shard]) - begin - chosen_before
    return virtual_shards, shift, listed, samples


def shares_key(kind: str, shares: Sequence[StreamShare], params: ResamplingParams | None) -> str:
    """Return a digest of all that chosen samples depend on.

    Args:
        kind: Name of the algorithm, or of another use of the digest.
        shares: Samples to choose of each stream.
        params: Granularity and seeds; None leaves them out, as does a choice of every sample once.
    """
    names: list[str | int | Ids] = [kind]
    for share in shares:
        names += [share.sizes, share.first, share.choose]
    if params is not None and not all(share.is_plain for share in shares):
        names += [params.granularity, params.shard_seed, params.sample_seed]
    return digest(*names)
