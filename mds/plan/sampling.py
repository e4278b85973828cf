"""Which samples of each shard take part in an epoch, when a stream gives fewer or more than it has.

The result is a list of *units* (runs of consecutive numbers that play the part of shards in the
shuffle) and a *table* from those numbers, the big ids, to sample ids. Without resampling the units
are the shards and the table is the identity. Full copies of a shard cost three numbers; only the
samples of a copy that is not full are listed one by one.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def get_sampling(
    samples_per_shard: ArrayLike,
    choose: int,
    granularity: int,
    seed: int,
    epoch: int,
    use_epoch: bool = True,
) -> NDArray[np.int64]:
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


def _picked(
    sizes: NDArray[np.int64], wanted: int, granularity: int, seed: int
) -> NDArray[np.int64]:
    picks = -(-sizes // granularity)
    ends = np.cumsum(picks)
    order = np.random.default_rng(seed).permutation(int(ends[-1]))
    # So many picks always suffice: only the last pick of a shard is smaller than the others.
    shard = np.searchsorted(ends, order, side="right")
    size = np.full(len(order), granularity, np.int64)
    last = order == ends[shard] - 1
    size[last] = (sizes - (picks - 1) * granularity)[shard[last]]
    reached = np.cumsum(size)
    cut = int(np.searchsorted(reached, wanted, side="left"))
    size, shard = size[: cut + 1], shard[: cut + 1]
    size[cut] -= int(reached[cut]) - wanted
    taken = np.zeros(len(sizes), np.int64)
    np.add.at(taken, shard, size)
    return taken


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """From big ids to sample ids.

    ``ends``: where each unit ends in big ids. ``source``: for a full unit the difference from big
    id to sample id. ``listed``: for a unit whose samples are listed, the difference from big id to
    a place in ``samples``; elsewhere -1 is in ``is_listed`` False.
    """

    ends: NDArray[np.int64]
    shift: NDArray[np.int64]
    is_listed: NDArray[np.bool_]
    samples: NDArray[np.int64]
    is_identity: bool

    def look_up(self, big: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample ids of big ids."""
        if self.is_identity:
            return big
        unit = np.searchsorted(self.ends, big, side="right")
        ids = big + self.shift[unit]
        listed = self.is_listed[unit]
        ids[listed] = self.samples[ids[listed]]
        return ids


@dataclasses.dataclass(frozen=True, eq=False)
class Selected:
    """The units of an epoch, int64 sizes, and the table behind them."""

    units: NDArray[np.int64]
    table: Table

    @property
    def samples(self) -> int:
        """Samples in the epoch."""
        return int(self.units.sum())


def select(
    sizes: NDArray[np.int64],
    starts: NDArray[np.int64],
    taken: NDArray[np.int64],
    rng: np.random.Generator,
) -> Selected:
    """Units and table for ``taken`` samples of shards of ``sizes``, whose first ids are ``starts``.

    Draws from ``rng`` once for each shard that gives a part of its samples.
    """
    if np.array_equal(taken, sizes):
        full = sizes > 0
        units, shift = sizes[full], np.zeros(0, np.int64)
        if not len(starts) or np.array_equal(starts - starts[0], np.cumsum(sizes) - sizes):
            base = int(starts[0]) if len(starts) else 0
            shift = np.full(len(units), base, np.int64)
            listed = np.zeros(len(units), bool)
            table = Table(np.cumsum(units), shift, listed, np.zeros(0, np.int64), base == 0)
            return Selected(units, table)
    safe = np.maximum(sizes, 1)
    copies, rest = taken // safe, taken % safe
    counts = copies + (rest > 0)
    shard = np.repeat(np.arange(len(sizes)), counts)
    listed = np.zeros(len(shard), bool)
    partial = np.flatnonzero(rest)
    listed[np.cumsum(counts)[partial] - 1] = True
    units = np.where(listed, rest[shard], sizes[shard])
    begin = np.cumsum(units) - units
    pieces = [
        start + np.sort(rng.choice(size, part, replace=False))
        for start, size, part in zip(
            starts[partial].tolist(), sizes[partial].tolist(), rest[partial].tolist(), strict=True
        )
    ]
    samples = np.concatenate([*pieces, np.zeros(0, np.int64)])
    place = np.cumsum(np.where(listed, units, 0)) - np.where(listed, units, 0)
    shift = np.where(listed, place, starts[shard]) - begin
    return Selected(units, Table(np.cumsum(units), shift, listed, samples, is_identity=False))
