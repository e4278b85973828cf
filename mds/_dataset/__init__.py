"""What a user holds: streams, samples by number and in order, an epoch of one worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds._lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds._dataset.streaming import StreamingDataset

__all__ = ["StreamingDataset"]

__getattr__, __dir__ = on_first_touch(__name__, {"StreamingDataset": "streaming"})
