"""Parts of shards for each canonical node: shards are shuffled, then cut where a node ends.

    shards in shuffled order   |   7   |  2  |    5    |  0  |   9   |
    canonical nodes            |    node 0     |    node 1     | ...      5 is cut in two parts

A *shard* is any run of consecutive ids, also a virtual one of a resampled epoch. Shards are
shuffled once for the whole run, by the seed alone, so a node has the same samples in all epochs.
Each function here is one numpy pass over the shards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mds.shuffle._base import ShuffleSpec


_COSTS_AT_ONCE = 1 << 20  # samples


class ShardParts(NamedTuple):
    """Parts of shards in shuffled order, canonical node after canonical node.

    A part is a whole shard, or what a canonical node has of a shard that it shares with others.

    Attributes:
        begin: First id of each part, shape (parts,).
        size: Samples of each part, shape (parts,).
        edges: Node k has the parts ``edges[k]`` to ``edges[k + 1]`` - 1; shape (nodes + 1,).
    """

    begin: NDArray[np.int64]
    size: NDArray[np.int64]
    edges: NDArray[np.int64]

    def of_node(self, node: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first ids and the sizes of the parts of one node."""
        part = slice(int(self.edges[node]), int(self.edges[node + 1]))
        return self.begin[part], self.size[part]


def split_at_nodes(
    begin: NDArray[np.int64], size: NDArray[np.int64], spec: ShuffleSpec
) -> ShardParts:
    """Return the parts of shards after cutting them at the ends of the canonical nodes.

    ``begin`` and ``size`` are the first ids and the samples of the shards, in shuffled order. Two
    nodes of 8 samples and shards of 7, 2 and 7 give parts of 7, 1, 1 and 7 and the edges 0, 2, 4.
    """
    # Places count samples of the shards laid end to end.
    node_ends = spec.node_starts()[1:]
    ends = np.cumsum(size)
    starts = ends - size
    # A node that ends strictly inside a shard cuts it; zero-length shards are never cut.
    shard = np.searchsorted(ends, node_ends, side="left")  # in which each node ends
    cuts = shard < len(ends)
    cuts[cuts] = (starts[shard[cuts]] < node_ends[cuts]) & (node_ends[cuts] < ends[shard[cuts]])
    # Several nodes may end at the same place if there are fewer samples than nodes; cut once there.
    cut_ends, first = np.unique(node_ends[cuts], return_index=True)
    cut_shards = shard[cuts][first]
    # A cut is a further end of a part, before the end of its shard.
    part_ends = np.insert(ends, cut_shards, cut_ends)
    shard_of_part = np.insert(np.arange(len(size)), cut_shards, cut_shards)
    part_starts = np.concatenate([np.zeros(1, np.int64), part_ends[:-1]])
    # A node has the parts that end after the node before it, up to its own end.
    edges = np.concatenate([[0], np.searchsorted(part_ends, node_ends, side="right")])
    part_begin = begin[shard_of_part] + part_starts - starts[shard_of_part]
    return ShardParts(part_begin, part_ends - part_starts, edges)


def cut_by_cost(
    sizes: NDArray[np.int64],
    sequence: NDArray[np.int64],
    nodes: int,
    costs: Callable[[NDArray[np.int64]], NDArray[np.int64]],
) -> tuple[int, ...] | None:
    """Return a cut by which all canonical nodes have about the same cost, see `ShuffleSpec.cut`.

    A node ends after the sample at which the summed cost is nearest to the node's share. Returns
    None if the samples cost nothing.

    Args:
        sizes: Samples of each shard.
        sequence: Shards in the sequence that is cut.
        nodes: Number of canonical nodes.
        costs: Function from ids to the cost of each sample, int64.

    >>> cut_by_cost(np.array([4, 2]), np.array([1, 0]), 2, lambda ids: 1 + 2 * (ids >= 4))
    (0, 2, 6)
    """
    id_ends = np.cumsum(sizes)
    first_ids = id_ends - sizes
    # Cost of all ids before each shard, a few ids at a time.
    before, total = np.zeros(len(sizes) + 1, np.int64), 0
    for start in range(0, int(id_ends[-1]) if len(sizes) else 0, _COSTS_AT_ONCE):
        ids = np.arange(start, min(start + _COSTS_AT_ONCE, int(id_ends[-1])))
        sums = np.concatenate([[0], np.cumsum(costs(ids))]) + total
        first, last = np.searchsorted(id_ends, [start, ids[-1] + 1], side="right")
        before[first + 1 : last + 1] = sums[id_ends[first:last] - start]
        total = int(sums[-1])
    if not total:
        return None
    # Summed cost, and number of samples, at the end of each shard of the sequence.
    cost_ends = np.cumsum(np.diff(before)[sequence])
    sample_ends = np.cumsum(sizes[sequence])
    node_starts, inside, last_shard = [0], np.zeros(0, np.int64), -1
    for node in range(1, nodes):
        share = node * total // nodes
        if not share:
            node_starts.append(0)
            continue
        place = int(np.searchsorted(cost_ends, share))  # of the shard in which the node ends
        shard = int(sequence[place])
        if shard != last_shard:  # several nodes may end in one shard
            inside = np.cumsum(costs(np.arange(first_ids[shard], id_ends[shard])))
            last_shard = shard
        missing = share - (int(cost_ends[place]) - int(inside[-1]))
        # The node has the samples before the first one that reaches its share, and also that one if
        # the sum is nearer then.
        count = int(np.searchsorted(inside, missing))
        if int(inside[count]) - missing < missing - (int(inside[count - 1]) if count else 0):
            count += 1
        node_starts.append(int(sample_ends[place] - sizes[shard]) + count)
    return (*node_starts, int(id_ends[-1]))


def seeded_sequence(spec: ShuffleSpec) -> NDArray[np.int64]:
    """Return the shards shuffled by the seed, the same in every epoch."""
    order = np.arange(len(spec.sizes))
    np.random.default_rng(spec.seed).shuffle(order)
    return order


def shuffled_parts(spec: ShuffleSpec) -> ShardParts:
    """Return the shards shuffled by the seed, the same in every epoch, and cut at the nodes."""
    order = seeded_sequence(spec)
    begin = np.cumsum(spec.sizes) - spec.sizes
    return split_at_nodes(begin[order], spec.sizes[order], spec)


def epoch_parts(spec: ShuffleSpec) -> tuple[ShardParts, np.random.Generator]:
    """Return the parts of each node in their order of this epoch, and the generator.

    The parts of a node are shuffled anew in each epoch, and stay within the node. The returned
    generator has drawn only these orders; a shuffle draws from it what follows.
    """
    parts = shuffled_parts(spec)
    rng = np.random.default_rng(spec.seed + spec.epoch)
    order = np.arange(len(parts.size))
    for first, last in zip(parts.edges[:-1].tolist(), parts.edges[1:].tolist(), strict=True):
        rng.shuffle(order[first:last])
    return ShardParts(parts.begin[order], parts.size[order], parts.edges), rng


def part_ids(
    begin: NDArray[np.int64], size: NDArray[np.int64], kind: np.dtype[Any] | type = np.int64
) -> NDArray[Any]:
    """Return the ids of parts end to end, as integers of type ``kind``.

    ``begin`` and ``size`` are the first ids and the samples of the parts: (20, 0) and (3, 2) give
    20, 21, 22, 0, 1.
    """
    if len(size) == 1:
        return np.arange(begin[0], begin[0] + size[0], dtype=kind)
    # Add to 0, 1, 2, 3, 4 for each part its first id less the place where it lies: 20 - 0 and
    # 0 - 3. Such a difference may be negative; unsigned numbers wrap around, and back in the sum.
    ids = np.repeat((begin - (np.cumsum(size) - size)).astype(kind), size)
    ids += np.arange(len(ids), dtype=kind)
    return ids
