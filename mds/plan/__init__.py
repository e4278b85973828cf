"""Planner of the sample order: pure functions from streams, settings, world and epoch to ids.

Frozen values go in and numpy arrays come out: no I/O, no lock, no dataset. Trainer, simulator,
tests and audit ask the same functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds._lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds.plan._audit import OrderHash
    from mds.plan._epoch import EpochPlan
    from mds.plan._packers import register_packer
    from mds.plan._sampling import get_sampling
    from mds.plan._whole_epochs import epoch_order, get_partitions

_HOMES = {
    "EpochPlan": "_epoch",
    "OrderHash": "_audit",
    "epoch_order": "_whole_epochs",
    "get_partitions": "_whole_epochs",
    "get_sampling": "_sampling",
    "register_packer": "_packers",
}

__all__ = [
    "EpochPlan",
    "OrderHash",
    "epoch_order",
    "get_partitions",
    "get_sampling",
    "register_packer",
]

__getattr__, __dir__ = on_first_touch(__name__, _HOMES)
