"""Parts of shards for each canonical node: whole shards shuffled, then split at node borders.

A *shard* is any run of consecutive ids, also a virtual one of a resampled epoch. Shards are
shuffled once for the whole run, with the seed alone, and cut where a canonical node ends, so that a
node keeps its share of the data over all epochs. Everything here is one numpy pass over the shards.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds.shuffle.base import ShuffleSpec


@dataclasses.dataclass(frozen=True, eq=False)
class ShardParts:
    """Parts of shards in shuffled order, node after node.

    ``begin``: first id of each part; ``size``: its samples; ``edges``: parts of node k are
    ``edges[k]`` to ``edges[k + 1]``.
    """

    begin: NDArray[np.int64]
    size: NDArray[np.int64]
    edges: NDArray[np.int64]

    def of_node(self, node: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First ids and sizes of the parts of one node."""
        part = slice(int(self.edges[node]), int(self.edges[node + 1]))
        return self.begin[part], self.size[part]


def split_at_nodes(
    begin: NDArray[np.int64], size: NDArray[np.int64], spec: ShuffleSpec
) -> ShardParts:
    """Cut shards, given in their shuffled order, at the ends of the canonical nodes."""
    node_ends = spec.node_starts()[1:]
    ends = np.cumsum(size)
    starts = ends - size
    # A node that ends strictly inside a shard cuts it; zero-length shards are never cut.
    shard = np.searchsorted(ends, node_ends, side="left")
    cuts = shard < len(ends)
    cuts[cuts] = (starts[shard[cuts]] < node_ends[cuts]) & (node_ends[cuts] < ends[shard[cuts]])
    # Several nodes may end at the same place when there are fewer samples than nodes.
    where, first = np.unique(node_ends[cuts], return_index=True)
    at = shard[cuts][first]
    part_ends = np.insert(ends, at, where)
    owner = np.insert(np.arange(len(size)), at, at)
    part_starts = np.concatenate([np.zeros(1, np.int64), part_ends[:-1]])
    # The earliest node whose end is not before the part's end takes it, also when it is empty.
    edges = np.concatenate([[0], np.searchsorted(part_ends, node_ends, side="right")])
    return ShardParts(begin[owner] + part_starts - starts[owner], part_ends - part_starts, edges)


def shuffled_parts(spec: ShuffleSpec) -> ShardParts:
    """Return the shards shuffled by the seed and cut at the nodes."""
    order = np.arange(len(spec.sizes))
    np.random.default_rng(spec.seed).shuffle(order)
    begin = np.cumsum(spec.sizes) - spec.sizes
    return split_at_nodes(begin[order], spec.sizes[order], spec)


def epoch_parts(spec: ShuffleSpec) -> tuple[ShardParts, np.random.Generator]:
    """Return the parts of each node in their order of this epoch, and the generator."""
    parts = shuffled_parts(spec)
    rng = np.random.default_rng(spec.seed + spec.epoch)
    order = np.arange(len(parts.size))
    for first, last in zip(parts.edges[:-1].tolist(), parts.edges[1:].tolist(), strict=True):
        rng.shuffle(order[first:last])
    return ShardParts(parts.begin[order], parts.size[order], parts.edges), rng


def part_ids(
    begin: NDArray[np.int64], size: NDArray[np.int64], kind: np.dtype[Any] | type = np.int64
) -> NDArray[Any]:
    """Return the ids of parts, one after the other."""
    if len(size) == 1:
        return np.arange(begin[0], begin[0] + size[0], dtype=kind)
    # Differences may be negative; in unsigned numbers they wrap, and wrap back in the sum.
    ids = np.repeat((begin - (np.cumsum(size) - size)).astype(kind), size)
    ids += np.arange(len(ids), dtype=kind)
    return ids
