"""Writers: samples in, shards and an index out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds._lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds.writers._mds import MDSWriter
    from mds.writers._merge import merge_index
    from mds.writers._text import CSVWriter, JSONWriter, TSVWriter, XSVWriter
    from mds.writers.convert._dataframe import dataframe_to_mds

_HOMES = {
    "CSVWriter": "_text",
    "JSONWriter": "_text",
    "MDSWriter": "_mds",
    "TSVWriter": "_text",
    "XSVWriter": "_text",
    "dataframe_to_mds": "convert._dataframe",
    "merge_index": "_merge",
}

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "MDSWriter",
    "TSVWriter",
    "XSVWriter",
    "dataframe_to_mds",
    "merge_index",
]

__getattr__, __dir__ = on_first_touch(__name__, _HOMES, ("convert",))
