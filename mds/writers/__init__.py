"""Writers: samples in, shards and an index out."""

from __future__ import annotations

from mds._lazy_imports import on_first_touch
from mds.writers._mds import MDSWriter
from mds.writers._merge import merge_index
from mds.writers._text import CSVWriter, JSONWriter, TSVWriter, XSVWriter

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "MDSWriter",
    "TSVWriter",
    "XSVWriter",
    "merge_index",
]

__getattr__, __dir__ = on_first_touch(__name__, {}, ("convert", "engines"))
