"""Writers: samples in, shards and an index out."""

from __future__ import annotations

from mds.lazy_imports import on_first_touch
from mds.writers.mds import MDSWriter
from mds.writers.merge import merge_index
from mds.writers.text import CSVWriter, JSONWriter, TSVWriter, XSVWriter
from mds.writers.writer import Writer

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "MDSWriter",
    "TSVWriter",
    "Writer",
    "XSVWriter",
    "merge_index",
]

__getattr__, __dir__ = on_first_touch(__name__, {}, ("convert", "engines"))
