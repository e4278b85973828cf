"""Planner of the sample order: pure functions from streams, settings, world and epoch to ids.

Frozen values go in and numpy arrays come out: no I/O, no lock, no dataset. Trainer, simulator,
tests and audit ask the same functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds.lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds.plan.audit import OrderHash, Place, summands
    from mds.plan.epoch import EpochPlan, epoch_order
    from mds.plan.global_batches import get_partitions
    from mds.plan.pack_plan import PackPlan
    from mds.plan.packers import register_packer
    from mds.plan.packing import Packing
    from mds.plan.sampling import get_sampling
    from mds.plan.schedule import Schedule
    from mds.plan.spec import OrderSpec
    from mds.plan.weights import Weights, no_weights, resolve_passes, resolve_weights

_HOMES = {
    "EpochPlan": "epoch",
    "OrderHash": "audit",
    "OrderSpec": "spec",
    "PackPlan": "pack_plan",
    "Packing": "packing",
    "Place": "audit",
    "Schedule": "schedule",
    "Weights": "weights",
    "epoch_order": "epoch",
    "get_partitions": "global_batches",
    "get_sampling": "sampling",
    "no_weights": "weights",
    "register_packer": "packers",
    "resolve_passes": "weights",
    "resolve_weights": "weights",
    "summands": "audit",
}

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
    "register_packer",
    "resolve_passes",
    "resolve_weights",
    "summands",
]

__getattr__, __dir__ = on_first_touch(__name__, _HOMES)
