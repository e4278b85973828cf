"""Write datasets as Mosaic Data Shards and stream them into training.

The public names are loaded when they are first touched, so that ``import mds`` costs next to
nothing and brings in neither torch nor an image or cloud package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds._version import __version__
from mds.lazy import on_first_touch

if TYPE_CHECKING:
    from mds.dataloader import StreamingDataLoader
    from mds.dataset import StreamingDataset
    from mds.local import LocalDataset
    from mds.samples import Samples
    from mds.stream import Stream
    from mds.world import World
    from mds.writers import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter, merge_index

_HOMES = {
    "CSVWriter": "writers",
    "JSONWriter": "writers",
    "LocalDataset": "local",
    "MDSWriter": "writers",
    "Samples": "samples",
    "Stream": "stream",
    "StreamingDataLoader": "dataloader",
    "StreamingDataset": "dataset",
    "TSVWriter": "writers",
    "World": "world",
    "XSVWriter": "writers",
    "merge_index": "writers",
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

__getattr__, __dir__ = on_first_touch(__name__, _HOMES)
