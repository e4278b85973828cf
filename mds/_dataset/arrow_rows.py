"""Rows of a dataset as record batches of Arrow, in the order in which they are stored.

DuckDB, Polars, pandas and pyarrow read these batches. Text and files, such as images, go from the
shard into Arrow's buffers without becoming Python objects::

    stored values    b"to be"  b""  b"or not"
    data             t o b e o r n o t ...
    offsets          0 5 5 11

Each encoding has one Arrow type (`arrow_type`); `_array` makes a column of it. A batch ends with
its shard, and after about 2 MB.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds._arguments import check_arguments
from mds._dataset.settings import ARROW_RULES
from mds._readers.fields import ColumnSelection, check_columns
from mds.encodings import Encoding, parse_encoding
from mds.errors import ConfigError, EncodingError
from mds.formats._arrow_values import pyarrow

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from mds._index.shard_object import ShardSchema
    from mds._index.table import Index
    from mds._readers.base import Reader, Rows

    #: Returns readers of all shards with the wanted rows of each, for a selection of columns.
    ReadRows = Callable[[ColumnSelection], Iterator[tuple[Reader, Rows]]]

#: Rows of a batch, if the caller does not say.
BATCH_ROWS = 16_384
_FIRST_ROWS = 256  # rows of the first batch, before the size of a row is known
_BATCH_BYTES = 2 << 20  # of larger batches, the memory is new to the process
_MAX_BYTES = (1 << 31) - 1  # Arrow's offsets of text and bytes have 32 bits
_TEXT = ("str", "json", "str_int", "str_float", "str_decimal")
_FILES = ("bytes", "jpeg", "png", "audio")


class _Column(NamedTuple):
    """A column of the result: its name, its Arrow type, and its encoding in the first shard."""

    name: str
    kind: pa.DataType
    encoding: Encoding


class ArrowRows:
    """The rows of a dataset as record batches.

    Args:
        owner: Name of the caller's class, for messages.
        indexes: Index of each stream.
        selected: Columns that the dataset reads, in their order.
        read: Returns readers of all shards and the wanted rows of each.
    """

    def __init__(
        self, owner: str, indexes: Sequence[Index], selected: Sequence[str], read: ReadRows
    ) -> None:
        self._owner, self._indexes, self._selected, self._read = owner, indexes, selected, read

    def reader(self, columns: Sequence[str] | None, batch_rows: int) -> pa.RecordBatchReader:
        """Return a reader of all rows. Nothing is read before its first batch.

        The arguments are those of `HasColumns.to_arrow_reader`.
        """
        call = f"{self._owner}.to_arrow_reader"
        check_arguments(call, {"columns": columns, "batch_rows": batch_rows}, ARROW_RULES)
        check_columns(self._selected, columns, call)
        names = self._selected if columns is None else columns
        if not names:
            raise ConfigError(f"{call}: columns= names no column. Name one, or leave it out.")
        parts = [self._column(name) for name in names]
        schema = pyarrow().schema([(part.name, part.kind) for part in parts])
        stored = frozenset(part.name for part in parts if _is_read_as_stored(part.encoding))
        # A shard without one of the columns refuses a selection that names it.
        is_everywhere = all(
            set(names) <= set(each.columns.names)
            for index in self._indexes
            for each in index.schemas
        )
        selection = ColumnSelection(tuple(names) if is_everywhere else None, stored=stored)
        batches = _make_batches(self._read(selection), schema, batch_rows)
        return pyarrow().RecordBatchReader.from_batches(schema, batches)

    def stream(self, requested: Any) -> Any:
        """Return a capsule with an Arrow C stream of all rows, for ``__arrow_c_stream__``.

        ``requested`` is a capsule with a schema or None. Its columns are read, and converted to its
        types: text to times, JSON to the values that it stands for. So the schema of a Parquet file
        that was converted gives its table back. The consumer gets pyarrow's error for a value that
        its type cannot hold.
        """
        if requested is None:
            return self.reader(None, BATCH_ROWS).__arrow_c_stream__()
        schema_class = pyarrow().Schema
        schema = schema_class._import_from_c_capsule(requested)  # noqa: SLF001 - of the protocol
        reader = self.reader(schema.names, BATCH_ROWS)
        parts = [self._column(name) for name in schema.names]

        def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
            arrays = [
                _as_requested(array, part.encoding, field.type)
                for array, part, field in zip(batch.columns, parts, schema, strict=True)
            ]
            return pyarrow().record_batch(arrays, schema=schema)

        batches = map(convert, reader)
        return pyarrow().RecordBatchReader.from_batches(schema, batches).__arrow_c_stream__()

    def _column(self, name: str) -> _Column:
        """Return a column of the result. Raises ConfigError if its shards differ in their types."""
        columns: list[_Column] = []
        for index in self._indexes:
            for schema in index.schemas:
                encoding = _encoding_of(schema, name)
                if encoding is None:
                    continue
                kind = arrow_type(encoding)
                if kind is None:
                    others = [other for other in self._selected if other != name]
                    leave_out = f"Leave it out with columns={others}."
                    remedy = leave_out if others else "Write it with another encoding."
                    raise ConfigError(
                        f"{self._owner}.to_arrow_reader: column {name!r} has the encoding "
                        f"{encoding.name!r}, for which Arrow has no type. {remedy}"
                    )
                columns.append(_Column(name, kind, encoding))
        different = [column for column in columns if column.kind != columns[0].kind]
        if different:
            raise ConfigError(
                f"{self._owner}.to_arrow_reader: column {name!r} is {columns[0].encoding.name!r} "
                f"in some shards and {different[0].encoding.name!r} in others. Read each stream by "
                "itself, or leave the column out with columns=."
            )
        return columns[0]


def arrow_type(encoding: Encoding) -> pa.DataType | None:
    """Return the Arrow type of a column with an encoding; None if there is none.

    | encoding                                 | Arrow                           |
    |------------------------------------------|---------------------------------|
    | numbers, ``bool``                        | the type of the same width      |
    | ``str``, and numbers stored as text      | string                          |
    | ``json``                                 | string, the JSON text           |
    | ``bytes``, ``jpeg``, ``png``, ``audio``  | binary, the bytes of the file   |
    | ``ndarray:int32:2048``                   | fixed_size_list                 |
    | ``ndarray:uint8:32,32,3``                | fixed_shape_tensor              |
    | ``ndarray:int32``, ``tensor:int32``      | list                            |
    | ``list[...]``                            | list                            |
    | ``optional[...]``                        | the type inside, with nulls     |
    """
    pa, name = pyarrow(), encoding.name
    if name in _TEXT:
        return pa.string()
    if name in _FILES:
        return pa.binary()
    if (inner := _inner(name, "optional")) is not None:
        return arrow_type(inner)
    if (inner := _inner(name, "list")) is not None:
        is_plain = inner.dtype is not None or inner.name in _TEXT
        kind = arrow_type(inner) if is_plain else None
        has_type = kind is not None and not isinstance(kind, pa.BaseExtensionType)
        return pa.list_(kind) if has_type else None  # pyarrow makes no lists of tensors
    if encoding.dtype is not None and encoding.shape is not None:
        number = pa.from_numpy_dtype(encoding.dtype)
        if not encoding.shape:
            return number
        if len(encoding.shape) == 1:
            return pa.list_(number, encoding.shape[0])
        return pa.fixed_shape_tensor(number, encoding.shape)
    if encoding.element_dtype is not None:
        return pa.list_(pa.from_numpy_dtype(encoding.element_dtype))
    return None


def _inner(name: str, family: str) -> Encoding | None:
    """Return the encoding inside of ``optional[...]`` or ``list[...]``; None for other families."""
    is_container = name.startswith(f"{family}[") and name.endswith("]")
    return parse_encoding(name[len(family) + 1 : -1]) if is_container else None


def _encoding_of(schema: ShardSchema, name: str) -> Encoding | None:
    """Return the encoding of a column of a shard; None if the shard does not have the column."""
    columns = schema.columns
    if name not in columns.names:
        return None
    word = columns.encodings[columns.names.index(name)]
    return parse_encoding("float64" if schema.is_split and word == "float" else word)


def _is_read_as_stored(encoding: Encoding) -> bool:
    """Whether the stored bytes of values are read, and not the values."""
    inner = _inner(encoding.name, "optional")
    return encoding.name in (*_TEXT, *_FILES) or inner is not None


def _make_batches(
    shards: Iterator[tuple[Reader, Rows]], schema: pa.Schema, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``shards``, each a reader and the wanted rows, as record batches.

    A batch has at most ``batch_rows`` rows, and fewer if they are large.
    """
    count = min(_FIRST_ROWS, batch_rows)
    for reader, rows in shards:
        present = frozenset(reader.schema.columns.names)
        position = 0
        while position < len(rows):
            batch = _make_batch(reader, rows[position : position + count], schema, present)
            yield batch
            position += batch.num_rows
            reader.release_pages()
            # The next batch has as many rows as fit if they are as large as these.
            row_bytes = max(batch.nbytes // batch.num_rows, 1)
            count = min(max(_BATCH_BYTES // row_bytes, 1), batch_rows)


def _make_batch(
    reader: Reader, rows: Rows, schema: pa.Schema, present: frozenset[str]
) -> pa.RecordBatch:
    """Return rows of one shard as a record batch, or fewer if they exceed Arrow's 2 GiB a column.

    ``present`` are the columns of the shard; any other is null. Raises EncodingError, which names
    the shard and the column, for a value that Arrow does not take.
    """
    pa = pyarrow()
    values = reader.rows(rows) if not present.isdisjoint(schema.names) else {}
    arrays = []
    for field in schema:
        if field.name not in present:
            arrays.append(pa.nulls(len(rows), field.type))
            continue
        encoding = _encoding_of(reader.schema, field.name)
        assert encoding is not None
        try:
            arrays.append(_array(values[field.name], encoding, field.type))
        except _TooLongError:
            if len(rows) > 1:
                return _make_batch(reader, rows[: len(rows) // 2], schema, present)
            raise EncodingError(
                f"{reader.source}, sample {rows[0]}, column {field.name!r}: a value of more than "
                "2 GiB, the largest that Arrow takes. Leave the column out with columns=."
            ) from None
        except (pa.ArrowException, EncodingError, OverflowError, ValueError, TypeError) as error:
            raise EncodingError(
                f"{reader.source}, samples {rows[0]} to {rows[-1]}, column {field.name!r}: {error}"
            ) from error
    return pa.record_batch(arrays, schema=schema)


class _TooLongError(Exception):
    """The values of a batch have more bytes together than Arrow's 32-bit offsets can reach."""


def _array(values: Any, encoding: Encoding, kind: pa.DataType) -> pa.Array:
    """Return a column as Arrow array.

    Args:
        values: The column as `Reader.rows` returns it: an array, or a list of values. For an
            encoding that is read as stored, a list of stored bytes; from shards of lines (JSON,
            csv), a list of values.
        encoding: Its encoding.
        kind: Its Arrow type.
    """
    pa = pyarrow()
    if isinstance(values, np.ndarray):
        return _of_numbers(values, kind)
    if values and not isinstance(values[0], bytes) and encoding.name in _TEXT:
        return pa.array(_as_texts(values, encoding), kind)
    if encoding.name in (*_TEXT, *_FILES):
        return _of_bytes(values, kind)
    if (inner := _inner(encoding.name, "optional")) is not None:
        return _of_optional(values, inner, kind)
    if encoding.element_dtype is not None:
        return _of_arrays(values, kind)
    return pa.array(_as_lists(values, encoding), kind)


def _as_texts(values: Sequence[Any], encoding: Encoding) -> list[str]:
    """Return decoded values as the texts that the encoding stores, such as JSON."""
    return [str(encoding.encode(value), "utf-8") for value in values]


def _as_lists(values: Sequence[Any], encoding: Encoding) -> Sequence[Any]:
    """Return values of ``list[...]``, with texts for items that are stored as text."""
    inner = _inner(encoding.name, "list")
    if inner is None or inner.name not in _TEXT:
        return values
    return [None if value is None else _as_texts(value, inner) for value in values]


def _of_numbers(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return numbers of shape (rows, ...) as an array that shares their memory."""
    pa = pyarrow()
    if values.ndim == 1:
        return pa.array(values, kind)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    width = values[0].size if len(values) else int(np.prod(values.shape[1:]))
    lists = pa.FixedSizeListArray.from_arrays(flat, width)
    is_tensor = isinstance(kind, pa.BaseExtensionType)
    return pa.ExtensionArray.from_storage(kind, lists) if is_tensor else lists


def _of_bytes(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Return stored texts or files as an array; its data are the values one after the other.

    Raises _TooLongError, and an error of pyarrow for text that is not UTF-8.
    """
    pa = pyarrow()
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([*map(len, values)], out=offsets[1:])
    if offsets[-1] > _MAX_BYTES:
        raise _TooLongError
    buffers = [None, pa.py_buffer(offsets.astype("<i4")), pa.py_buffer(b"".join(values))]
    array = pa.Array.from_buffers(kind, len(values), buffers)
    array.validate(full=True)
    return array


def _of_optional(values: Sequence[bytes], inner: Encoding, kind: pa.DataType) -> pa.Array:
    """Return values of ``optional[inner]`` as an array with nulls; ``values`` are stored bytes.

    A stored value is a zero byte for None, else a one and the bytes of the value.
    """
    pa = pyarrow()
    is_valid = np.array([value[:1] == b"\1" for value in values], bool)
    contents = [value[1:] for value in values]
    for value in values:
        if value != b"\0" and value[:1] != b"\1":
            raise EncodingError(f"a stored value begins with {value[:1]!r}, not with 0 or 1.")
    if inner.name in (*_TEXT, *_FILES):
        array = _of_bytes(contents, kind)
        bits = np.packbits(is_valid, bitorder="little")
        return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(bits), *array.buffers()[1:]])
    if inner.dtype is not None and inner.shape == () and inner.size is not None:
        data = b"".join(contents)
        if len(data) != inner.size * int(is_valid.sum()):
            raise EncodingError(
                f"a stored value does not have the {inner.size} bytes of {inner.name}."
            )
        numbers = np.zeros(len(values), inner.dtype)
        numbers[is_valid] = np.frombuffer(data, inner.dtype)
        return pa.array(numbers, kind, mask=~is_valid)
    decoded = [
        inner.decode(content) if valid else None
        for content, valid in zip(contents, is_valid.tolist(), strict=True)
    ]
    if isinstance(kind, pa.BaseExtensionType):  # a tensor: a list of its numbers
        lists = [None if value is None else value.reshape(-1) for value in decoded]
        return pa.ExtensionArray.from_storage(kind, pa.array(lists, kind.storage_type))
    return pa.array(_as_lists(decoded, inner), kind)


def _of_arrays(values: Sequence[npt.NDArray[Any]], kind: pa.DataType) -> pa.Array:
    """Return arrays of several lengths as an array of lists. Raises EncodingError for matrices."""
    pa = pyarrow()
    matrices = [value.shape for value in values if value.ndim != 1]
    if matrices:
        raise EncodingError(
            f"an array of shape {matrices[0]}, and not a list. Leave the column out with "
            "columns=, or write it as ndarray:DTYPE:SHAPE."
        )
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([*map(len, values)], out=offsets[1:])
    if offsets[-1] > _MAX_BYTES:
        raise _TooLongError
    flat = np.concatenate(values) if values else np.zeros(0)
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), pa.array(flat, kind.value_type), type=kind
    )


def _as_requested(array: pa.Array, encoding: Encoding, kind: pa.DataType) -> pa.Array:
    """Convert a column with an encoding to the type that the consumer of a stream requested."""
    pa = pyarrow()
    if encoding.name in ("json", "optional[json]"):
        texts = array.to_pylist()
        values = [None if text is None else json.loads(text) for text in texts]
        if all(value is None for value in values):
            return pa.nulls(len(values), kind)
        if all(value is None or isinstance(value, str) for value in values):
            array = pa.array(values, pa.string())  # text, or times as text
        elif not pa.types.is_string(kind):
            return pa.array(values, kind)
    if array.type == kind:
        return array
    return (array.storage if isinstance(array, pa.ExtensionArray) else array).cast(kind)
