"""Write datasets as Mosaic Data Shards and stream them into training.

The public names are loaded when they are first touched, so that ``import mds`` costs next to
nothing and brings in neither torch nor an image or cloud package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mds._version import __version__

if TYPE_CHECKING:
    from mds.dataloader import StreamingDataLoader
    from mds.dataset import StreamingDataset
    from mds.local import LocalDataset
    from mds.samples import Samples
    from mds.stream import Stream
    from mds.world import World
    from mds.writers import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter, merge_index

_HOMES = {
    "CSVWriter": "mds.writers",
    "JSONWriter": "mds.writers",
    "LocalDataset": "mds.local",
    "MDSWriter": "mds.writers",
    "Samples": "mds.samples",
    "Stream": "mds.stream",
    "StreamingDataLoader": "mds.dataloader",
    "StreamingDataset": "mds.dataset",
    "TSVWriter": "mds.writers",
    "World": "mds.world",
    "XSVWriter": "mds.writers",
    "merge_index": "mds.writers",
}

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "LocalDataset",
    "MDSWriter",
    "Samples",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "TSVWriter",
    "World",
    "XSVWriter",
    "__version__",
    "merge_index",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mds' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
