"""Write datasets as Mosaic Data Shards and stream them into training.

The public names are loaded when they are first touched, so that ``import mds`` costs next to
nothing and brings in neither torch nor an image or cloud package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds._lazy_imports import on_first_touch
from mds._version import __version__

if TYPE_CHECKING:
    from mds import encodings as encodings
    from mds import errors as errors
    from mds import events as events
    from mds import formats as formats
    from mds import metrics as metrics
    from mds import plan as plan
    from mds import report as report
    from mds import shuffle as shuffle
    from mds import storage as storage
    from mds import testing as testing
    from mds import transforms as transforms
    from mds import writers as writers
    from mds._dataset.local import LocalDataset
    from mds._dataset.rewind import RunHistory
    from mds._dataset.samples import Samples
    from mds._dataset.stream import Stream
    from mds._dataset.streaming import StreamingDataset
    from mds._loader.dataloader import StreamingDataLoader
    from mds.plan._packing import Packing
    from mds.plan._schedule import Schedule
    from mds.world import World
    from mds.writers import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter, merge_index
    from mds.writers.convert import convert

_HOMES = {
    "CSVWriter": "writers",
    "JSONWriter": "writers",
    "LocalDataset": "_dataset.local",
    "MDSWriter": "writers",
    "Packing": "plan._packing",
    "RunHistory": "_dataset.rewind",
    "Samples": "_dataset.samples",
    "Schedule": "plan._schedule",
    "Stream": "_dataset.stream",
    "StreamingDataLoader": "_loader.dataloader",
    "StreamingDataset": "_dataset.streaming",
    "TSVWriter": "writers",
    "World": "world",
    "XSVWriter": "writers",
    "convert": "writers.convert",
    "merge_index": "writers",
}

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "LocalDataset",
    "MDSWriter",
    "Packing",
    "RunHistory",
    "Samples",
    "Schedule",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "TSVWriter",
    "World",
    "XSVWriter",
    "__version__",
    "convert",
    "merge_index",
]

#: Public modules that ``import mds`` makes attributes, each imported when it is touched.
_MODULES = (
    "encodings",
    "errors",
    "events",
    "formats",
    "metrics",
    "plan",
    "report",
    "shuffle",
    "storage",
    "testing",
    "transforms",
    "writers",
)

__getattr__, __dir__ = on_first_touch(__name__, _HOMES, _MODULES)
