"""Merged order of the documents that the workers of a node read for their packs.

Eviction goes by it as by the order of samples. The time of a document is its place in the order of
its worker; workers have about as many documents in a step each, and what is told is sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mds.dataset.node_order import NodeOrder, begin_time

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.dataset.shard_map import ShardMap
    from mds.plan import EpochPlan, PackPlan

    Ids = npt.NDArray[np.int64]


class _Whole(NamedTuple):
    """A plan from where it begins."""

    plan: EpochPlan
    start: int = 0


class PackedNodeOrder(NodeOrder):
    """What all workers of the node read for the packs of ``packs``, from where that begins."""

    def __init__(self, packs: PackPlan, shards: ShardMap) -> None:
        super().__init__(_Whole(packs.plan), shards)
        self._packs = packs

    def _fingerprint(self) -> str:
        return f"{super()._fingerprint()} {self._packs.order_facts()}"

    def pieces(self) -> Iterator[tuple[Ids, Ids] | None]:
        """Times that rise, and the stored samples that are read then."""
        for packs in (self._packs, self._packs.following()):
            for times, documents in _merged(packs, self._node, self.every):
                yield times + begin_time(packs.plan), self._shards.stored(documents)


def _merged(packs: PackPlan, node: int, every: int) -> Iterator[tuple[Ids, Ids]]:
    """Places in the orders of workers, rising, and the documents that are there."""
    shape = packs.shape
    done = np.zeros((len(range(0, shape.ranks, every)), shape.workers), np.int64)
    times, documents = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for step, of_ranks in enumerate(packs.node_documents(node, every)):
        worker = step % shape.workers
        for rank, ids in enumerate(of_ranks):
            times.append(done[rank, worker] + np.arange(len(ids)))
            documents.append(ids)
            done[rank, worker] += len(ids)
        if worker == shape.workers - 1:
            told, ids = _sorted(times, documents)
            cut = int(np.searchsorted(told, done.min()))
            if cut:
                yield told[:cut], ids[:cut]
            times, documents = [told[cut:]], [ids[cut:]]
    told, ids = _sorted(times, documents)
    if len(told):
        yield told, ids


def _sorted(times: list[Ids], documents: list[Ids]) -> tuple[Ids, Ids]:
    told, ids = np.concatenate(times), np.concatenate(documents)
    order = np.argsort(told, kind="stable")
    return told[order], ids[order]
