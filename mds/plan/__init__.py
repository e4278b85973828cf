"""Planner of the sample order: pure functions from streams, settings, world and epoch to ids.

Frozen values go in and numpy arrays come out: no I/O, no lock, no dataset. Trainer, simulator,
tests and audit ask the same functions.
"""

from mds.plan.audit import OrderHash, Place, summands
from mds.plan.epoch import EpochPlan
from mds.plan.full_epoch import epoch_order, get_partitions
from mds.plan.pack_plan import PackPlan
from mds.plan.packing import Packing
from mds.plan.sampling import get_sampling
from mds.plan.schedule import Schedule
from mds.plan.spec import OrderSpec
from mds.plan.weights import Weights, no_weights, resolve_passes, resolve_weights

__all__ = [
    "EpochPlan",
    "OrderHash",
    "OrderSpec",
    "PackPlan",
    "Packing",
    "Place",
    "Schedule",
    "Weights",
    "epoch_order",
    "get_partitions",
    "get_sampling",
    "no_weights",
    "resolve_passes",
    "resolve_weights",
    "summands",
]
