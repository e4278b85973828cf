"""Merged order of the workers of a node, in this epoch and the next: what eviction goes by.

It is a function of the settings, as each worker's own order is, so every process of the node
computes the same one and nothing has to be said between them but how far they are. Time is the
place of a sample in the order of its worker, and goes on from epoch to epoch, so that workers in
different ones understand each other. It is generated as it is asked for, a few thousand ids at
once, and never further than the next epoch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mds.cache.order_files import are_prepared, shared_plan
from mds.cache.source import cache_root
from mds.format.hashing import digest
from mds.process.fork_safe import cached_property
from mds.world import in_worker

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.dataset.shard_map import ShardMap
    from mds.plan import EpochPlan

    Ids = npt.NDArray[np.int64]

EPOCH_TIME = 1 << 36  # more than the samples of a worker in an epoch
_JOB_NAMES = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "PMIX_NAMESPACE")
_WORKERS = 16  # whose samples are looked at; an id costs each process 0.2 us


class BegunEpoch(Protocol):
    """The plan of an epoch, and with which place of a worker it begins."""

    @property
    def plan(self) -> EpochPlan:
        """The plan."""

    @property
    def start(self) -> int:
        """The place."""


class NodeOrder:
    """What all workers of the node of ``epoch`` read, from where that begins."""

    def __init__(self, epoch: BegunEpoch, shards: ShardMap) -> None:
        self._plan, self._shards, self._first = epoch.plan, shards, epoch.start
        world = epoch.plan.world
        self._node = world.node
        #: How many there are.
        self.workers = world.workers_per_node
        #: Of so many ranks one is looked at: where there are many, some stand for all.
        self.every = min(max(self.workers // _WORKERS, 1), world.ranks_per_node)
        #: The time of the first sample.
        self.start = begin_time(epoch.plan) + epoch.start

    @cached_property
    def team(self) -> int:
        """A number that all readers of this order in a job have in common, whatever their epoch."""
        plan, shape = self._plan, self._plan.shape
        world = shape.nodes, shape.ranks, shape.workers, self._node
        return int(digest(self._fingerprint(), plan.shuffle_seed, *world, *self._job())[:15], 16)

    def _fingerprint(self) -> str:
        return self._plan.fingerprint()

    def _job(self) -> list[int | str]:
        """What tells the processes of one job from those of another with the same settings.

        Another job is elsewhere in the order, so that its times mean nothing here.
        """
        if self._plan.world.ranks_per_node == 1:
            return [os.getppid() if in_worker() else os.getpid()]
        return [os.environ.get(name, "") for name in _JOB_NAMES]

    def pieces(self) -> Iterator[tuple[Ids, Ids] | None]:
        """Times that rise, and the stored samples that are read then; None: not known yet."""
        yield from self._pieces_of(self._plan, self._first)
        following = self._plan.following()
        if not following.is_cheap:
            folder = os.path.join(cache_root(), "orders")
            while not are_prepared(following, folder):
                yield None  # a thread computes it; another epoch's samples do not wait for it
            following = shared_plan(following, folder)
        yield from self._pieces_of(following, 0)

    def _pieces_of(self, plan: EpochPlan, start: int) -> Iterator[tuple[Ids, Ids]]:
        time = begin_time(plan) + start
        for ids in plan.node_blocks(self._node, start, self.every):
            times = np.repeat(np.arange(time, time + len(ids)), ids.shape[1])
            time += len(ids)
            numbers = ids.reshape(-1)
            if numbers.min(initial=0) < 0:
                times, numbers = times[numbers >= 0], numbers[numbers >= 0]
            yield times, self._shards.stored(numbers)


def begin_time(plan: EpochPlan) -> int:
    """When a plan begins, which may be one that goes on from the middle of its epoch."""
    done = plan.sample_in_epoch // (plan.world.num_ranks * plan.world.workers_per_rank)
    return plan.epoch * EPOCH_TIME + done
