"""Why a run is slow: where the trainer's waits come from, and which argument mends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds._lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds.report._diagnosis import WaitReport

_HOMES = {"WaitReport": "_diagnosis"}

__all__ = ["WaitReport"]

__getattr__, __dir__ = on_first_touch(__name__, _HOMES)
