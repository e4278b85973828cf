"""Functions of the caller over samples and batches, and functions of ours for batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds.lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds.transforms.image_columns import images
    from mds.transforms.padding import pad
    from mds.transforms.ragged_columns import ragged
    from mds.transforms.row_generator import RowGenerator
    from mds.transforms.seeding import seeded
    from mds.transforms.stacking import stack

_HOMES = {
    "RowGenerator": "row_generator",
    "images": "image_columns",
    "pad": "padding",
    "ragged": "ragged_columns",
    "seeded": "seeding",
    "stack": "stacking",
}

__all__ = ["RowGenerator", "images", "pad", "ragged", "seeded", "stack"]

__getattr__, __dir__ = on_first_touch(__name__, _HOMES)
