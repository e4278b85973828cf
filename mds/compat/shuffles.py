"""The incumbent's ``base.shuffle`` and ``base.partition``: a function for each algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mds.compat.overrides import SealedDict, find_remedy
from mds.errors import UnknownNameError
from mds.plan import get_partitions as our_partitions
from mds.plan.spec import PARTITION_ALGOS
from mds.shuffle import algos as known
from mds.shuffle import get_shuffle as our_shuffle

Ids = NDArray[np.int64]
Span = tuple[int, int]


def _shuffle_of(algo: str) -> Callable[..., Ids]:
    def get(
        shard_sizes: Ids, num_canonical_nodes: int, seed: int, epoch: int, block_size: int = 1 << 18
    ) -> Ids:
        return our_shuffle(algo, shard_sizes, num_canonical_nodes, seed, epoch, block_size)

    return _named(get, f"get_shuffle_{algo}", f"The order of samples that {algo!r} makes.")


def _partitions_of(algo: str) -> Callable[..., Ids]:
    def get(
        num_samples: int,
        num_canonical_nodes: int,
        num_physical_nodes: int,
        ranks_per_node: int,
        workers_per_rank: int,
        batch_size: int,
        drop_first: int = 0,
        initial_physical_nodes: int | None = None,
    ) -> Ids:
        return our_partitions(
            algo,
            num_samples,
            num_canonical_nodes,
            num_physical_nodes,
            ranks_per_node,
            workers_per_rank,
            batch_size,
            drop_first,
            initial_physical_nodes,
        )

    return _named(get, f"get_partitions_{algo}", f"The positions of workers, as {algo!r} deals.")


def _named(function: Callable[..., Ids], name: str, doc: str) -> Callable[..., Ids]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


#: The algorithms by name. ``get_shuffle`` and its like call further ones; datasets do not, and
#: refuse their names.
shuffle_algos: dict[str, Callable[..., Ids]] = SealedDict(
    "streaming.base.shuffle.algos",
    {name: _shuffle_of(name) for name in known},
    find_remedy("get_shuffle"),
    takes_new=True,
)
partition_algos: dict[str, Callable[..., Ids]] = SealedDict(
    "streaming.base.partition.algos",
    {name: _partitions_of(name) for name in PARTITION_ALGOS},
    find_remedy("get_partitions"),
    takes_new=True,
)
get_shuffle_naive = shuffle_algos["naive"]
get_shuffle_py1br = shuffle_algos["py1br"]
get_shuffle_py1e = shuffle_algos["py1e"]
get_shuffle_py1s = shuffle_algos["py1s"]
get_shuffle_py2s = shuffle_algos["py2s"]
get_partitions_orig = partition_algos["orig"]
get_partitions_relaxed = partition_algos["relaxed"]


def get_shuffle(
    algo: str,
    shard_sizes: Ids,
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int = 1 << 18,
) -> Ids:
    """The order of samples that an algorithm makes. Raises UnknownNameError (a KeyError)."""
    if algo not in shuffle_algos:  # one that was registered since
        return our_shuffle(algo, shard_sizes, num_canonical_nodes, seed, epoch, block_size)
    return shuffle_algos[algo](shard_sizes, num_canonical_nodes, seed, epoch, block_size)


def get_partitions(
    algo: str,
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> Ids:
    """The positions of each worker, as an algorithm deals. Raises UnknownNameError (a KeyError)."""
    if algo not in partition_algos:
        raise UnknownNameError(
            f"no partition_algo {algo!r}: choose one of {', '.join(partition_algos)}."
        )
    return partition_algos[algo](
        num_samples,
        num_canonical_nodes,
        num_physical_nodes,
        ranks_per_node,
        workers_per_rank,
        batch_size,
        drop_first,
        initial_physical_nodes,
    )


def divide_spans(
    spans: Sequence[Span], num_samples: int, num_parts: int
) -> tuple[list[Span], list[Span]]:
    """Spans cut where parts of equal size end, and for each part which of them it has."""
    ends = [num_samples * (part + 1) // num_parts for part in range(num_parts)]
    cut: list[Span] = []
    parts: list[Span] = []
    seen = first = part = 0
    for begin, end in spans:
        at = begin
        while (part < num_parts and seen + end - at > ends[part]) or (
            part < num_parts - 1 and seen + end - at == ends[part]
        ):
            until = at + ends[part] - seen
            if until > at:
                cut.append((at, until))
            seen, at = ends[part], until
            parts.append((first, len(cut)))
            first, part = len(cut), part + 1
        if end > at:
            cut.append((at, end))
            seen += end - at
    while len(parts) < num_parts:
        parts.append((first, len(cut)))
        first = len(cut)
    return cut, parts


class _Shard:
    """Samples of a shard, or of a part of one."""

    def __init__(self, index: int, samples: Ids) -> None:
        self.index, self.samples = index, samples


def create_shards(sizes: Ids) -> list[_Shard]:
    """A shard of each size, whose samples are numbered through."""
    ends = np.cumsum(sizes)
    return [
        _Shard(i, np.arange(end - size, end))
        for i, (size, end) in enumerate(zip(sizes, ends, strict=True))
    ]


def shards_to_samples(shards: Sequence[_Shard]) -> Ids:
    """The samples of shards, one shard after the other."""
    return np.concatenate([np.zeros(0, np.int64), *(shard.samples for shard in shards)])


def partition(shards: Sequence[_Shard], num_parts: int) -> list[list[_Shard]]:
    """Shards in parts of equally many samples; one that is in two parts is cut."""
    total = sum(len(shard.samples) for shard in shards)
    found: list[list[_Shard]] = []
    for part in range(num_parts):
        begin, end = total * part // num_parts, total * (part + 1) // num_parts
        found.append(_between(shards, begin, end))
    return found


def _between(shards: Sequence[_Shard], begin: int, end: int) -> list[_Shard]:
    found, at = [], 0
    for shard in shards:
        size = len(shard.samples)
        samples = shard.samples[max(begin - at, 0) : max(end - at, 0)]
        if len(samples):
            found.append(_Shard(shard.index, samples))
        at += size
    return found
