"""Functions over samples and batches: the chain of the caller's, and collate functions of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds.lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds.transforms.collate import pad, ragged, stack
    from mds.transforms.image_columns import images
    from mds.transforms.randomness import RowGenerator, seeded

_HOMES = {
    "RowGenerator": "randomness",
    "images": "image_columns",
    "pad": "collate",
    "ragged": "collate",
    "seeded": "randomness",
    "stack": "collate",
}

__all__ = ["RowGenerator", "images", "pad", "ragged", "seeded", "stack"]

__getattr__, __dir__ = on_first_touch(__name__, _HOMES)
