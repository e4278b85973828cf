"""Planner of the sample order: pure functions from streams, settings, world and epoch to ids.

Frozen values go in and numpy arrays come out: no I/O, no lock, no dataset. Trainer, simulator,
tests and audit ask the same functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds._lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds.plan._audit import OrderHash, Place, summands
    from mds.plan._epoch import EpochPlan, epoch_order
    from mds.plan._global_batches import get_partitions
    from mds.plan._pack_plan import PackPlan
    from mds.plan._packers import register_packer
    from mds.plan._packing import Packing
    from mds.plan._sampling import get_sampling
    from mds.plan._schedule import Schedule
    from mds.plan._spec import OrderSpec
    from mds.plan._weights import Weights, no_weights, resolve_passes, resolve_weights

_HOMES = {
    "EpochPlan": "_epoch",
    "OrderHash": "_audit",
    "OrderSpec": "_spec",
    "PackPlan": "_pack_plan",
    "Packing": "_packing",
    "Place": "_audit",
    "Schedule": "_schedule",
    "Weights": "_weights",
    "epoch_order": "_epoch",
    "get_partitions": "_global_batches",
    "get_sampling": "_sampling",
    "no_weights": "_weights",
    "register_packer": "_packers",
    "resolve_passes": "_weights",
    "resolve_weights": "_weights",
    "summands": "_audit",
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
