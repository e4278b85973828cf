"""Formats of files that are read in place, without conversion. `_base.py` says how to add one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds._lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds.formats._arrow import Arrow
    from mds.formats._audio import AudioFiles
    from mds.formats._base import Format
    from mds.formats._csv import Csv
    from mds.formats._delta import Delta
    from mds.formats._encode import encode_records, join_columns
    from mds.formats._facts import Block, DataFile, FilePlan, Problem, ShardPlace
    from mds.formats._iceberg import Iceberg
    from mds.formats._images import ImageFiles
    from mds.formats._lines import JsonLines, TextLines
    from mds.formats._megatron import Megatron
    from mds.formats._metadata import MetadataFiles
    from mds.formats._paired_files import PairedFiles
    from mds.formats._parquet import Parquet
    from mds.formats._raw_files import RawFiles
    from mds.formats._registry import format_names, register_format
    from mds.formats._source import Files
    from mds.formats._tar import Tar
    from mds.formats._text_files import TextFiles

_HOMES = {
    "Arrow": "_arrow",
    "AudioFiles": "_audio",
    "Block": "_facts",
    "Csv": "_csv",
    "DataFile": "_facts",
    "Delta": "_delta",
    "FilePlan": "_facts",
    "Files": "_source",
    "Format": "_base",
    "Iceberg": "_iceberg",
    "ImageFiles": "_images",
    "JsonLines": "_lines",
    "Megatron": "_megatron",
    "MetadataFiles": "_metadata",
    "PairedFiles": "_paired_files",
    "Parquet": "_parquet",
    "Problem": "_facts",
    "RawFiles": "_raw_files",
    "ShardPlace": "_facts",
    "Tar": "_tar",
    "TextFiles": "_text_files",
    "TextLines": "_lines",
    "encode_records": "_encode",
    "format_names": "_registry",
    "join_columns": "_encode",
    "register_format": "_registry",
}

__all__ = [
    "Arrow",
    "AudioFiles",
    "Block",
    "Csv",
    "DataFile",
    "Delta",
    "FilePlan",
    "Files",
    "Format",
    "Iceberg",
    "ImageFiles",
    "JsonLines",
    "Megatron",
    "MetadataFiles",
    "PairedFiles",
    "Parquet",
    "Problem",
    "RawFiles",
    "ShardPlace",
    "Tar",
    "TextFiles",
    "TextLines",
    "encode_records",
    "format_names",
    "join_columns",
    "register_format",
]

__getattr__, __dir__ = on_first_touch(__name__, _HOMES)
