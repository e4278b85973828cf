"""The common start of the incumbent's shuffles: whole shards shuffled, then dealt to nodes.

A *unit* is what plays the part of a shard: a run of consecutive ids. The units are shuffled once
for the whole run, with the seed alone, and cut where a canonical node ends, so that a node keeps
its share of the data over all epochs. Everything here is one numpy pass over the units.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.errors import PlanError

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True, eq=False)
class ShuffleSpec:
    """What a shuffle depends on.

    ``sizes``: samples of each unit, int64. ``block_size``: samples. Raises PlanError for sizes,
    nodes, seeds or epochs that are no such numbers.
    """

    sizes: NDArray[np.int64]
    num_canonical_nodes: int
    seed: int
    epoch: int
    block_size: int

    def __post_init__(self) -> None:
        if self.num_canonical_nodes < 1:
            raise PlanError(
                f"canonical nodes {self.num_canonical_nodes}: there must be at least one."
            )
        if self.seed < 0 or self.epoch < 0:
            raise PlanError(
                f"shuffle seed {self.seed} and epoch {self.epoch} must not be negative."
            )
        if len(self.sizes) and int(self.sizes.min()) < 0:
            raise PlanError("a shard cannot have a negative number of samples.")

    @property
    def samples(self) -> int:
        """Samples of all units."""
        return int(self.sizes.sum())

    def node_starts(self) -> NDArray[np.int64]:
        """Where each canonical node begins, and the end: shape (nodes + 1,)."""
        nodes = self.num_canonical_nodes
        if self.samples > np.iinfo(np.int64).max // (nodes + 1):
            raise PlanError(f"{self.samples} samples on {nodes} canonical nodes are too many.")
        return np.arange(nodes + 1, dtype=np.int64) * self.samples // nodes


@dataclasses.dataclass(frozen=True, eq=False)
class Spans:
    """Parts of units in shuffled order, node after node.

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


def divide(begin: NDArray[np.int64], size: NDArray[np.int64], spec: ShuffleSpec) -> Spans:
    """Cut units, given in their shuffled order, at the ends of the canonical nodes."""
    node_ends = spec.node_starts()[1:]
    ends = np.cumsum(size)
    starts = ends - size
    # A node that ends strictly inside a unit cuts it; zero-length units are never cut.
    unit = np.searchsorted(ends, node_ends, side="left")
    cuts = unit < len(ends)
    cuts[cuts] = (starts[unit[cuts]] < node_ends[cuts]) & (node_ends[cuts] < ends[unit[cuts]])
    # Several nodes may end at the same place when there are fewer samples than nodes.
    where, first = np.unique(node_ends[cuts], return_index=True)
    at = unit[cuts][first]
    part_ends = np.insert(ends, at, where)
    owner = np.insert(np.arange(len(size)), at, at)
    part_starts = np.concatenate([np.zeros(1, np.int64), part_ends[:-1]])
    # The earliest node whose end is not before the part's end takes it, also when it is empty.
    edges = np.concatenate([[0], np.searchsorted(part_ends, node_ends, side="right")])
    return Spans(begin[owner] + part_starts - starts[owner], part_ends - part_starts, edges)


def shuffled_spans(spec: ShuffleSpec) -> Spans:
    """The units shuffled by the seed and cut at the nodes."""
    order = np.arange(len(spec.sizes))
    np.random.default_rng(spec.seed).shuffle(order)
    begin = np.cumsum(spec.sizes) - spec.sizes
    return divide(begin[order], spec.sizes[order], spec)


def epoch_spans(spec: ShuffleSpec) -> tuple[Spans, np.random.Generator]:
    """The parts of each node in their order of this epoch, and the generator to go on with."""
    spans = shuffled_spans(spec)
    rng = np.random.default_rng(spec.seed + spec.epoch)
    order = np.arange(len(spans.size))
    for first, last in zip(spans.edges[:-1].tolist(), spans.edges[1:].tolist(), strict=True):
        rng.shuffle(order[first:last])
    return Spans(spans.begin[order], spans.size[order], spans.edges), rng


def fill(
    begin: NDArray[np.int64], size: NDArray[np.int64], kind: np.dtype[Any] | type = np.int64
) -> NDArray[Any]:
    """The ids of parts, one after the other."""
    if len(size) == 1:
        return np.arange(begin[0], begin[0] + size[0], dtype=kind)
    # Differences may be negative; in unsigned numbers they wrap, and wrap back in the sum.
    ids = np.repeat((begin - (np.cumsum(size) - size)).astype(kind), size)
    ids += np.arange(len(ids), dtype=kind)
    return ids
