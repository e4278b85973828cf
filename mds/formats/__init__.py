"""Formats of files that are read in place, without conversion. `base.py` says how to add one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds.lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds.formats.arrow import Arrow
    from mds.formats.base import Format
    from mds.formats.delta import Delta
    from mds.formats.encode import encode_records, join_columns
    from mds.formats.facts import Block, DataFile, FilePlan, ShardPlace
    from mds.formats.iceberg import Iceberg
    from mds.formats.images import ImageFiles
    from mds.formats.lines import JsonLines, TextLines
    from mds.formats.megatron import Megatron
    from mds.formats.parquet import Parquet
    from mds.formats.raw_files import RawFiles
    from mds.formats.registry import find_format, format_names, register_format
    from mds.formats.source import Files
    from mds.formats.tar import Tar

_HOMES = {
    "Arrow": "arrow",
    "Block": "facts",
    "DataFile": "facts",
    "Delta": "delta",
    "FilePlan": "facts",
    "Files": "source",
    "Format": "base",
    "Iceberg": "iceberg",
    "ImageFiles": "images",
    "JsonLines": "lines",
    "Megatron": "megatron",
    "Parquet": "parquet",
    "RawFiles": "raw_files",
    "ShardPlace": "facts",
    "Tar": "tar",
    "TextLines": "lines",
    "encode_records": "encode",
    "find_format": "registry",
    "format_names": "registry",
    "join_columns": "encode",
    "register_format": "registry",
}

__all__ = [
    "Arrow",
    "Block",
    "DataFile",
    "Delta",
    "FilePlan",
    "Files",
    "Format",
    "Iceberg",
    "ImageFiles",
    "JsonLines",
    "Megatron",
    "Parquet",
    "RawFiles",
    "ShardPlace",
    "Tar",
    "TextLines",
    "encode_records",
    "find_format",
    "format_names",
    "join_columns",
    "register_format",
]

__getattr__, __dir__ = on_first_touch(__name__, _HOMES)
