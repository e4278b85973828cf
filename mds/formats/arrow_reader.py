"""A reader of a record batch in a file of this disk: rows are made of its buffers as they lie.

The batch is mapped, and nothing of it is decoded before a row is asked for. Numbers, text, bytes
and lists of numbers are cut out of the buffers; all else goes through the bytes of an MDS sample,
row by row. Columns of many rows are taken at once. A file that says of itself what cannot be is
refused before a row is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.encodings import parse_encoding
from mds.encodings.base import DecodeKind
from mds.formats.arrow_bytes import block_of_batch, bytes_of, unreadable
from mds.formats.arrow_types import is_bytes, list_dtype, number_name, pyarrow
from mds.formats.arrow_values import check_batch, numbers_of, places_of
from mds.formats.made_reader import MadeReader
from mds.process.mmaps import map_descriptor
from mds.readers.base import Batch, Rows
from mds.readers.fields import ColumnSelection, Field, fields_of
from mds.readers.fixed import joint_reader

if TYPE_CHECKING:
    import pyarrow as pa

    from mds.formats.facts import ShardPlace

Get = Callable[[int], Any]


def map_batch(
    path: str, span: tuple[int, int], schema: bytes, names: Sequence[str], location: str
) -> pa.RecordBatch:
    """Map the columns ``names`` of the record batch in these bytes of a file.

    ``schema`` is the message of its schema. What is not wanted is neither looked at nor taken.

    Raises FormatError for one that is damaged.
    """
    pa = pyarrow()
    start, end = span
    page = start - start % os.sysconf("SC_PAGE_SIZE")
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        mapped = map_descriptor(descriptor, end - page, start=page)
    except ValueError as error:
        raise unreadable(location, "the file is shorter than it was", error) from error
    finally:
        os.close(descriptor)
    try:
        body = pa.BufferReader(pa.py_buffer(memoryview(mapped)[start - page :]))
        file_schema = pa.ipc.read_schema(pa.py_buffer(schema))
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(body), file_schema)
        batch = batch.select([name for name in file_schema.names if name in names])
        check_batch(batch)
    except Exception as error:
        raise unreadable(location, "it cannot be decoded", error) from error
    return batch


class ArrowReader(MadeReader):
    """The rows of a record batch."""

    def __init__(
        self, shard: ShardPlace, batch: pa.RecordBatch, location: str, selection: ColumnSelection
    ) -> None:
        self._batch: pa.RecordBatch | None = batch
        self._shard = shard

        def make(row: int) -> bytes:
            return block_of_batch(batch.slice(row, 1), shard, location).data

        getters = [
            (field.name, _getter(field, batch)) for field in fields_of(
                shard.columns, selection
            ).wanted
        ]  # fmt: skip

        def sample(row: int) -> dict[str, Any]:
            return {name: get(row) for name, get in getters}

        super().__init__(shard.columns, shard.samples, location, make, selection, sample)

    def rows(self, rows: Rows, *, copy: bool = True) -> Batch:
        """Many samples as columns; see Reader.rows."""
        self._check_open()
        assert self._batch is not None
        numbers = self._numbers(rows)
        pa, places = pyarrow(), np.ascontiguousarray(numbers, np.int64)
        row_numbers = pa.Array.from_buffers(pa.int64(), len(places), [None, pa.py_buffer(places)])
        sizes, data = block_of_batch(self._batch.take(row_numbers), self._shard, self.where)
        offsets = np.zeros(len(numbers) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        reader = joint_reader(
            self.schema,
            len(numbers),
            data,
            self.where,
            columns=self._selection,
            offsets=offsets,  # type: ignore[arg-type]  # wider ones hold more
        )
        return reader.rows(range(len(numbers)), copy=copy)

    def close(self) -> None:
        """Release the file; values that were given out have memory of their own."""
        super().close()
        self._batch = None


def _getter(field: Field, batch: pa.RecordBatch) -> Get:
    """Return a getter of a column's values that agrees with readers of MDS shards."""
    position = batch.schema.get_field_index(field.name)
    if position < 0:
        return lambda _: None
    column, encoding = batch.column(position), field.encoding.name
    inner = field
    if encoding.startswith("optional["):
        kind = parse_encoding(encoding[len("optional[") : -1])
        inner = field._replace(encoding=kind, kind=kind.decode_kind)
    get = _from_buffers(inner, column)
    if get is None:
        return lambda row: field.decode(memoryview(_stored(column, row, encoding)))
    if not column.null_count:
        return get
    if inner is field:
        raise ValueError("a null where none was planned")
    get_valid, is_valid = get, numbers_of(column.is_valid()).data
    return lambda row: get_valid(row) if is_valid[row] else None


def _stored(column: pa.Array, row: int, encoding: str) -> bytes:
    (value,) = bytes_of(column.slice(row, 1), encoding)
    return bytes(value)


def _from_buffers(field: Field, column: pa.Array) -> Get | None:
    """Return a zero-copy getter for a column, or None if its type has none."""
    types, kind = pyarrow().types, column.type
    if field.kind in (DecodeKind.INT, DecodeKind.SCALAR) and not field.encoding.shape:
        dtype = field.encoding.dtype
        if dtype is None or number_name(kind) != dtype.name:
            return None
        values = np.frombuffer(column.buffers()[1], dtype)[column.offset :][: len(column)]
        if field.kind is DecodeKind.INT:
            return values.data.__getitem__
        return values.__getitem__
    places = places_of(column)
    if places is None:
        return None
    starts = places.data
    if field.kind is DecodeKind.VECTOR:
        dtype = field.encoding.element_dtype
        inner = column.values
        if dtype is None or list_dtype(kind) != dtype.name or inner.null_count:
            return None
        flat = np.frombuffer(inner.buffers()[1] or b"", dtype)[inner.offset :][: len(inner)]
        if field.is_copied:
            return lambda row: flat[starts[row] : starts[row + 1]].copy()
        return lambda row: flat[starts[row] : starts[row + 1]]
    body = memoryview(column.buffers()[2] or b"") if not types.is_list(kind) else None
    if body is None or types.is_large_list(kind):
        return None
    if field.kind is DecodeKind.TEXT and not is_bytes(kind):
        return lambda row: str(body[starts[row] : starts[row + 1]], "utf-8")
    if field.kind is DecodeKind.BYTES:
        return lambda row: bytes(body[starts[row] : starts[row + 1]])
    return None
