"""Readers return samples from shard files. They map files, and never download or delete any.

``open_reader`` opens a shard of an index. ``open_sparse`` makes a reader of samples that were
fetched one by one, and ``make_decoder`` a function that decodes such a sample. ``gather`` makes a
batch of rows of several readers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mds._index.shard_object import ShardInfo, ShardSchema, refuse_unsafe
from mds._readers.base import Reader, map_file
from mds._readers.fields import ColumnSelection, fields_of
from mds._readers.joint import joint_reader, sample_decoder

if TYPE_CHECKING:
    Decoder = Callable[[memoryview], dict[str, Any]]


def open_reader(
    folder: str,
    info: ShardInfo,
    *,
    allow_unsafe_types: bool = False,
    columns: Sequence[str] | ColumnSelection | None = None,
) -> Reader:
    """Return a reader of a shard whose raw files are in ``folder``.

    Args:
        folder: Folder of the dataset, below which the index names the files.
        info: The shard, as its index describes it.
        allow_unsafe_types: Whether columns of pickles may be decoded, which can run any code.
        columns: Columns that samples have; the others are not decoded. None: all.

    Raises UnsafeTypeError for pickles that are not allowed, ConfigError for an unknown column,
    ShardError for a file of another size (all three are ValueErrors), and NotFoundError (a
    FileNotFoundError).

    >>> with open_reader("train", index.shard(0)) as reader:  # doctest: +SKIP
    ...     sample = reader[0]
    """
    source = info.raw.basename.under(folder)
    refuse_unsafe([info.schema], allow_unsafe_types, source)
    selection = ColumnSelection.parse(columns)
    data = map_file(folder, info.raw)
    if info.raw_meta is None:
        return joint_reader(info.schema, info.samples, data, source, columns=selection)
    meta = map_file(folder, info.raw_meta)
    from mds._readers.split import SplitReader

    return SplitReader(info.schema, info.samples, data, meta, source, columns=selection)


def open_sparse(
    info: ShardInfo,
    samples: Mapping[int, bytes],
    source: str,
    *,
    allow_unsafe_types: bool = False,
    columns: Sequence[str] | ColumnSelection | None = None,
) -> Reader:
    """Return a reader of some rows of a shard.

    Args:
        info: The shard, as its index describes it.
        samples: Stored bytes of a sample by row.
        source: Name of the shard in errors.
        allow_unsafe_types: As in `open_reader`.
        columns: As in `open_reader`.

    Raises as `open_reader`. The reader raises IndexError for other rows.
    """
    from mds._readers.sparse import SparseReader

    refuse_unsafe([info.schema], allow_unsafe_types, source)
    return SparseReader(info, samples, source, ColumnSelection.parse(columns))


def make_decoder(
    schema: ShardSchema,
    *,
    allow_unsafe_types: bool = False,
    columns: Sequence[str] | ColumnSelection | None = None,
    source: str = "a sample",
) -> Decoder:
    """Return a function that decodes the stored bytes of one sample.

    Args:
        schema: Columns and format of the shard.
        allow_unsafe_types: As in `open_reader`.
        columns: As in `open_reader`.
        source: Name of the sample in errors.

    Raises UnsafeTypeError and ConfigError; the function raises ShardError and EncodingError (all
    ValueErrors).
    """
    refuse_unsafe([schema], allow_unsafe_types, source)
    selection = ColumnSelection.parse(columns)
    if not schema.is_split:
        return sample_decoder(fields_of(schema.columns, selection), source)
    from mds._readers.split import decode_line, line_decoder

    parse = line_decoder(schema, selection, source)
    return lambda data: decode_line(parse, data, source)
