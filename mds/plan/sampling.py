"""Which samples of each shard take part in an epoch, when a stream gives fewer or more than it has.

The result is a list of *units* (runs of consecutive numbers that play the part of shards in the
shuffle) and a *table* from those numbers, the big ids, to sample ids. Without resampling the units
are the shards and the table is nothing. Full copies of a shard cost a few numbers; only the
samples of a copy that is not full are listed one by one, and that only when somebody asks.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mds.errors import PlanError
from mds.plan.digests import digest

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
    """How many samples to take from each shard, int64, to have ``choose`` in all.

    ``granularity``: how many consecutive samples are picked together. Raises PlanError for
    negative numbers or a granularity below one.
    """
    for what, value in (("choose", choose), ("seed", seed), ("epoch", epoch)):
        if value < 0:
            raise PlanError(f"{what} {value} must not be negative.")
    if granularity <= 0:
        raise PlanError(f"sampling_granularity {granularity} must be at least 1.")
    sizes = np.asarray(samples_per_shard, np.int64).reshape(-1)
    total = int(sizes.sum())
    if not total:
        raise PlanError("no sample can be taken from shards without samples.")
    copies, rest = divmod(choose, total)
    taken = sizes * copies
    if rest:
        taken += _picked(sizes, rest, granularity, seed + epoch if use_epoch else seed)
    return taken


def _picked(sizes: Ids, wanted: int, granularity: int, seed: int) -> Ids:
    picks = -(-sizes // granularity)
    ends = np.cumsum(picks)
    total = int(ends[-1])
    order = np.arange(total, dtype=np.min_scalar_type(total))
    np.random.default_rng(seed).shuffle(order)
    # Almost always the first few picks suffice; those at the end of a shard may be short.
    enough = min(2 * (wanted // granularity + 1), total)
    while True:
        chosen = order[:enough].astype(np.int64)
        shard = np.searchsorted(ends, chosen, side="right")
        size = np.full(len(chosen), granularity, np.int64)
        last = chosen == ends[shard] - 1
        size[last] = (sizes - (picks - 1) * granularity)[shard[last]]
        reached = np.cumsum(size)
        if reached[-1] >= wanted:
            break
        enough = min(2 * enough, total)
    cut = int(np.searchsorted(reached, wanted, side="left"))
    size, shard = size[: cut + 1], shard[: cut + 1]
    size[cut] -= int(reached[cut]) - wanted
    return np.bincount(shard, size, minlength=len(sizes)).astype(np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """What one stream gives: its shard sizes, its first sample id, how many samples to choose."""

    sizes: Ids
    first: int
    choose: int

    @property
    def is_plain(self) -> bool:
        """Whether every sample is taken once."""
        return self.choose == int(self.sizes.sum())


class Draws(NamedTuple):
    """Where the random numbers of a resampling come from."""

    granularity: int
    shard_seed: int  # how many of each shard
    sample_seed: int  # which of a shard


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """From big ids to sample ids.

    ``ends``: where each unit ends in big ids. ``shift``: what to add to a big id of a unit to have
    its sample id, or, for a unit that ``is_listed``, its place in ``samples``.
    """

    ends: Ids
    shift: Ids
    is_listed: NDArray[np.bool_]
    samples: Ids

    def look_up(self, big: Ids) -> Ids:
        """Sample ids of big ids."""
        unit = np.searchsorted(self.ends, big, side="right")
        ids = big + self.shift[unit]
        listed = np.flatnonzero(self.is_listed[unit])
        ids[listed] = self.samples[ids[listed]]
        return ids

    def find(self, sample: int) -> Ids:
        """All big ids of a sample."""
        starts = self.ends - np.diff(self.ends, prepend=0)
        first = starts + self.shift
        inside = (first <= sample) & (sample < self.ends + self.shift) & ~self.is_listed
        found = sample - self.shift[inside]
        places = np.flatnonzero(self.samples == sample)
        units = np.flatnonzero(self.is_listed)
        unit = units[np.searchsorted((self.ends + self.shift)[units], places, side="right")]
        return np.sort(np.concatenate([found, places - self.shift[unit]]))


class Sampled:
    """The samples of an epoch as the incumbent chooses them, from one stream or several."""

    def __init__(self, parts: Sequence[Part], draws: Draws) -> None:
        self.parts, self.draws = tuple(parts), draws
        self.samples = sum(part.choose for part in parts)
        self.is_plain = all(part.is_plain for part in parts)
        self.is_same = self.is_plain and parts[0].first == 0
        self.top = max(part.first + int(part.sizes.sum()) for part in parts)
        self._first = parts[0].first

    @property
    def units(self) -> Ids:
        """The sizes of the units, int64."""
        return self._made[0]

    def look_up(self, big: Ids) -> Ids:
        """Sample ids of big ids."""
        if self.is_plain:
            return big + self._first if self._first else big
        return self._made[1].look_up(big)

    def find(self, sample: int) -> Ids:
        """All big ids of a sample."""
        if self.is_plain:
            big = sample - self._first
            return np.array([big] if 0 <= big < self.samples else [], np.int64)
        return self._made[1].find(sample)

    def key(self) -> str:
        """A name for all that the samples depend on."""
        return parts_key("drawn", self.parts, self.draws)

    def data_key(self) -> str:
        """A name for what they are chosen from, the same in every epoch."""
        return parts_key("data", self.parts, None)

    @functools.cached_property
    def _made(self) -> tuple[Ids, Table]:
        if self.is_plain:
            # Streams of a plain epoch follow each other, so ids and big ids run in parallel.
            units = np.concatenate([part.sizes for part in self.parts])
            nothing = np.zeros(0, np.int64)
            return units[units > 0], Table(nothing, nothing, np.zeros(0, bool), nothing)
        rng = np.random.default_rng(self.draws.sample_seed)
        found = []
        placed = chosen = 0
        for part in self.parts:
            found.append(_take(part, self.draws, rng, placed, chosen))
            placed += part.choose
            chosen += len(found[-1][3])
        units, shifts, listed, samples = (
            np.concatenate(column) for column in zip(*found, strict=True)
        )
        return units, Table(np.cumsum(units), shifts, listed, samples)


def _take(
    part: Part, draws: Draws, rng: np.random.Generator, placed: int, chosen: int
) -> tuple[Ids, Ids, NDArray[np.bool_], Ids]:
    """Unit sizes, shifts, which units are listed, and the listed samples of one stream.

    ``placed`` big ids and ``chosen`` listed samples were there before.
    """
    sizes = part.sizes
    starts = part.first + np.cumsum(sizes) - sizes
    taken = get_sampling(sizes, part.choose, draws.granularity, draws.shard_seed, 0)
    safe = np.maximum(sizes, 1)
    copies, rest = taken // safe, taken % safe
    counts = copies + (rest > 0)
    shard = np.repeat(np.arange(len(sizes)), counts)
    partial = np.flatnonzero(rest)
    listed = np.zeros(len(shard), bool)
    listed[np.cumsum(counts)[partial] - 1] = True
    units = np.where(listed, rest[shard], sizes[shard])
    begin = np.cumsum(units) - units
    samples = np.empty(int(rest.sum()), np.int64)
    at = 0
    for start, size, count in zip(
        starts[partial].tolist(), sizes[partial].tolist(), rest[partial].tolist(), strict=True
    ):
        picked = rng.choice(size, count, replace=False)
        picked.sort()
        samples[at : at + count] = picked
        samples[at : at + count] += start
        at += count
    place = np.cumsum(rest)[shard] - rest[shard]
    shift = np.where(listed, place + chosen, starts[shard]) - begin - placed
    return units, shift, listed, samples


def parts_key(how: str, parts: Sequence[Part], draws: Draws | None) -> str:
    """A name for samples chosen from parts: by ``how``, and by the draws unless all are plain."""
    names: list[str | int | Ids] = [how]
    for part in parts:
        names += [part.sizes, part.first, part.choose]
    if draws is not None and not all(part.is_plain for part in parts):
        names += [draws.granularity, draws.shard_seed, draws.sample_seed]
    return digest(*names)
