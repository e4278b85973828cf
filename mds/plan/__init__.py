"""From streams, order parameters, world, epoch and position to sample ids. Pure arithmetic."""

from mds.plan.epoch import EpochPlan, epoch_order
from mds.plan.partition import get_partitions
from mds.plan.sampling import get_sampling
from mds.plan.spec import OrderSpec
from mds.plan.weights import Weights, resolve_weights

__all__ = [
    "EpochPlan",
    "OrderSpec",
    "Weights",
    "epoch_order",
    "get_partitions",
    "get_sampling",
    "resolve_weights",
]
