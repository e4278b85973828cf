"""Shard files to samples. Readers map files; they never fetch and never delete.

``open_reader`` opens a shard of an index, ``make_decoder`` gives the function for samples whose
bytes came by themselves, ``open_sparse`` makes a reader of such samples, and ``gather`` makes one
batch of rows of several readers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mds.index import ShardInfo, ShardSchema, refuse_unsafe
from mds.readers.base import Batch, Reader, Rows
from mds.readers.fields import ColumnSelection, fields_of
from mds.readers.fixed import joint_reader
from mds.readers.gather import gather, unique_stable
from mds.readers.iterate import cut_growing, iterate_samples
from mds.readers.joint import sample_decoder
from mds.readers.mmap_file import map_file

if TYPE_CHECKING:
    Decoder = Callable[[memoryview], dict[str, Any]]

__all__ = [
    "Batch",
    "ColumnSelection",
    "Reader",
    "Rows",
    "cut_growing",
    "gather",
    "iterate_samples",
    "make_decoder",
    "open_reader",
    "open_sparse",
    "unique_stable",
]


def open_reader(
    folder: str,
    info: ShardInfo,
    *,
    allow_unsafe_types: bool = False,
    columns: Sequence[str] | ColumnSelection | None = None,
) -> Reader:
    """Return a reader of a shard whose raw files are in ``folder``.

    With ``columns`` samples have only these, and the others are not decoded. Raises
    UnsafeTypeError, ConfigError (no such column), ShardError (all ValueErrors) and NotFoundError
    (a FileNotFoundError).
    """
    where = info.raw.basename.under(folder)
    refuse_unsafe([info.schema], allow_unsafe_types, where)
    chosen = ColumnSelection.parse(columns)
    data = map_file(folder, info.raw)
    if info.raw_meta is None:
        return joint_reader(info.schema, info.samples, data, where, columns=chosen)
    meta = map_file(folder, info.raw_meta)
    from mds.readers.split import SplitReader

    return SplitReader(info.schema, info.samples, data, meta, where, columns=chosen)


def open_sparse(
    info: ShardInfo,
    samples: Mapping[int, bytes],
    where: str,
    *,
    allow_unsafe_types: bool = False,
    columns: Sequence[str] | ColumnSelection | None = None,
) -> Reader:
    """Return a reader of some rows of a shard, whose stored bytes are given by row.

    ``where`` names the shard in errors. Raises as ``open_reader``; IndexError for other rows.
    """
    from mds.readers.sparse import SparseReader

    refuse_unsafe([info.schema], allow_unsafe_types, where)
    return SparseReader(info, samples, where, ColumnSelection.parse(columns))


def make_decoder(
    schema: ShardSchema,
    *,
    allow_unsafe_types: bool = False,
    columns: Sequence[str] | ColumnSelection | None = None,
    where: str = "a sample",
) -> Decoder:
    """Return a function from the stored bytes of one sample to the sample.

    ``where`` names the place in errors. Raises UnsafeTypeError and ConfigError; the function
    raises ShardError and EncodingError (all ValueErrors).
    """
    refuse_unsafe([schema], allow_unsafe_types, where)
    chosen = ColumnSelection.parse(columns)
    if not schema.is_split:
        return sample_decoder(fields_of(schema.columns, chosen), where)
    from mds.readers.split import decode_line, line_decoder

    parse = line_decoder(schema, chosen, where)
    return lambda data: decode_line(parse, data, where)
