"""Helpers of the tests of node order, in this folder and in tests/programs/dataset."""

from __future__ import annotations

from mds._iteration.worker_epoch import WorkerEpoch
from mds.plan import EpochPlan


def epoch_of(world, shards, epoch=0, start=0, resume=None, **settings):
    settings = {"shuffle": True, "batch_size": 4, **settings}
    plan = EpochPlan([{"shards": shards}], world, epoch=epoch, resume=resume, **settings)
    return WorkerEpoch(plan, world, start)
