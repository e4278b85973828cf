"""Merged order of the workers of a node, from which eviction knows when a shard is needed next.

It depends on the settings alone, so every process of the node computes the same order, and
processes only exchange how far they are. The *time* of a read is the place of the sample in the
order of its worker, plus `EPOCH_TIME` for each epoch before it, so that workers in different epochs
agree on it. With two workers in epoch 0::

    time                 0  0  1  1  2  2
    worker               0  1  0  1  0  1
    sample              17 40 18 41 19 42

The order is generated on demand in *pieces*, each with the times and samples of a few thousand
reads, to the end of the next epoch at most.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mds._cache.source import cache_root
from mds._process.fork_safe import cached_property
from mds._shardfile.hashing import digest
from mds.world import in_worker

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mds._iteration.shard_map import ShardMap
    from mds.plan import EpochPlan

    Ids = npt.NDArray[np.int64]

EPOCH_TIME = 1 << 36  # more than the samples of a worker in an epoch
_JOB_NAMES = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "PMIX_NAMESPACE")
_MAX_WORKERS = 16  # whose samples are looked at; an id costs each process 0.2 us


class NodeOrder:
    """Merged order of all workers of this node, for an epoch and the next one.

    Args:
        order: EpochPlan of the epoch.
        shards: Shards of the dataset.
        start: Number of samples of each worker that were read before; they are left out.

    Attributes:
        workers: Number of workers of the node.
        every: The order has only each ``every``-th rank of the node: all of them (1) with up to 16
            workers, fewer with more, because each read costs every process 0.2 us.
        start: Time of the first read.
    """

    def __init__(self, order: EpochPlan, shards: ShardMap, start: int = 0) -> None:
        self._order, self._shards, self._first = order, shards, start
        self._node = order.world.node
        self.workers = order.world.workers_per_node
        self.every = min(max(self.workers // _MAX_WORKERS, 1), order.world.ranks_per_node)
        self.start = begin_time(order) + start

    @cached_property
    def team(self) -> int:
        """Number that identifies the processes which exchange how far they are, below 2**60.

        It is equal in all processes of this job that read this order on this node, in any epoch.
        """
        order, shape = self._order, self._order.shape
        world = shape.nodes, shape.ranks, shape.workers, self._node
        facts = (order.fingerprint(), order.shuffle_seed, *world, *self._job())
        return int(digest(*facts)[:15], 16)  # 15 hexadecimal digits of 4 bits

    def _job(self) -> list[int | str]:
        """Return values that differ between this job and another one with the same settings.

        The other job is at another place of the order, so its times must not be used. With one rank
        on the node, its main process is the job. The processes of several ranks share what their
        launcher put into the environment.
        """
        if self._order.world.ranks_per_node == 1:
            return [os.getppid() if in_worker() else os.getpid()]
        return [os.environ.get(name, "") for name in _JOB_NAMES]

    def pieces(self) -> Iterator[tuple[Ids, Ids] | None]:
        """Yield the times and the samples of the next reads, int64 arrays of shape (reads,).

        Times ascend. Samples have their numbers among all stored samples, also in a selection.
        After the reads of this epoch come those of the next one. Yields None as long as a thread
        still computes the order of the next epoch.
        """
        yield from self._pieces_of(self._order, self._first)
        following = self._order.following()
        if following.long_orders:  # too large for each process: they share a file of the order
            folder = os.path.join(cache_root(), "orders")
            from mds._cache.order_files import is_prepared, share_order

            while not is_prepared(following, folder):
                yield None
            following = share_order(following, folder)
        yield from self._pieces_of(following, 0)

    def _pieces_of(self, order: EpochPlan, start: int) -> Iterator[tuple[Ids, Ids]]:
        """Yield the pieces of one epoch, without the first ``start`` samples of each worker."""
        begin = begin_time(order)
        for times, ids in order.node_reads(self._node, start, self.every):
            yield times + begin, self._shards.stored(ids)


def begin_time(order: EpochPlan) -> int:
    """Return the time at which an order begins: later than its epoch after a resume.

    A resume at place 1,000 of epoch 2 with 5 workers of all ranks is ``2 * EPOCH_TIME + 200``,
    because each of them has read 200 samples.
    """
    world = order.world
    samples_of_worker = order.begin.place // (world.num_ranks * world.workers_per_rank)
    return order.epoch * EPOCH_TIME + samples_of_worker
