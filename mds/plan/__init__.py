"""From streams, order parameters, world, epoch and position to sample ids. Pure arithmetic.

Frozen values go in and numpy arrays come out: no I/O, no lock, no dataset. Trainer, simulator,
tests and audit ask the same functions.
"""

from mds.plan.audit import OrderHash, Place, summands
from mds.plan.epoch import EpochPlan
from mds.plan.sampling import get_sampling
from mds.plan.spec import OrderSpec
from mds.plan.weights import Weights, resolve_weights
from mds.plan.whole import epoch_order, get_partitions

__all__ = [
    "EpochPlan",
    "OrderHash",
    "OrderSpec",
    "Place",
    "Weights",
    "epoch_order",
    "get_partitions",
    "get_sampling",
    "resolve_weights",
    "summands",
]
