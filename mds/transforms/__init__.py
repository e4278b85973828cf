"""Functions over samples and batches: the chain of the caller's, and collate functions of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds._lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds.transforms._collate import pad, ragged, stack
    from mds.transforms._image_columns import images
    from mds.transforms._randomness import RowGenerator, seeded

_HOMES = {
    "RowGenerator": "_randomness",
    "images": "_image_columns",
    "pad": "_collate",
    "ragged": "_collate",
    "seeded": "_randomness",
    "stack": "_collate",
}

__all__ = ["RowGenerator", "images", "pad", "ragged", "seeded", "stack"]

__getattr__, __dir__ = on_first_touch(__name__, _HOMES)
