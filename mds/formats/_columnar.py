"""Formats whose shards are record batches of Arrow: Parquet, Arrow files, and tables of them.

A format inherits `Columnar` and turns a shard into record batches. The samples in the cache and the
records of a conversion are both made of these batches.

The second half converts a batch to the bytes of MDS samples. Numbers are one view of Arrow's
buffer; text and bytes are slices of it, cut at its offsets. Nested values, dates and times are
converted one by one. The bytes of a column (`ColumnBytes`) are uint8 of shape (rows, size) if all
values have one size, else a list with the bytes of each row.
"""

from __future__ import annotations

import dataclasses
import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.encodings import parse_encoding
from mds.errors import EncodingError, FormatError, MdsError
from mds.formats._arrow_values import is_file, list_dtype, numbers_of, plain, pyarrow, values_for
from mds.formats._base import Format
from mds.formats._encode import Bytes, ColumnBytes, join_columns
from mds.formats._facts import Block, FilePlan, ShardPlace

if TYPE_CHECKING:
    import pyarrow as pa

    from mds._shardfile.layout import Columns
    from mds.formats._source import Files


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columnar(Format):
    """A format of record batches. Inherit it and write `plan_file` and `batches`."""

    @abstractmethod
    def batches(
        self, shard: ShardPlace, names: Sequence[str], files: Files, location: str
    ) -> Iterator[Any]:
        """Yield the rows of a shard as record batches of Arrow.

        - ``names`` (Sequence[str]): The wanted columns; those that the file lacks are left out.
        - ``location`` (str): Name of the shard, for errors.

        Raises FormatError for a shard that cannot be decoded.
        """

    def known_nulls(self, plan: FilePlan) -> frozenset[str]:
        """Return the names of the columns of a file that certainly hold None or an empty list.

        The columns of ``plan`` are ``optional`` also if the file has no statistics of nulls; a
        format that knows better overrides this.
        """
        return frozenset(
            name for name, kind in plan.columns.items() if kind.startswith(("optional[", "tensor:"))
        )

    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block]:
        """Yield the rows of a shard as MDS samples. Raises FormatError for damaged data."""
        location = f"{files.url(shard.file)}, {self.shard_of(shard)}"
        try:
            for batch in self.batches(shard, shard.columns.names, files, location):
                yield block_of_batch(batch, shard, location)
        except (MdsError, MemoryError):
            raise
        except Exception as error:
            raise unreadable(location, "it cannot be decoded", error) from error
        finally:
            # Otherwise each thread that decodes keeps the memory of one shard.
            pyarrow().default_memory_pool().release_unused()

    def slow_columns(self, columns: Columns) -> Sequence[str]:
        """Return the nested columns, which are decoded to JSON value by value."""
        pairs = zip(columns.names, columns.encodings, strict=True)
        return [name for name, kind in pairs if kind in ("json", "optional[json]")]


# --------------------------------------------------------------------- bytes of columns


def bytes_of(column: pa.Array, encoding: str) -> ColumnBytes:
    """Encode all values of an Arrow column.

    Returns uint8 of shape (rows, size) if all values have ``size`` bytes, else a list with the
    bytes of each row. Raises EncodingError for a value that the encoding does not take.
    """
    column = plain(column)
    if encoding.startswith("optional["):
        return _optional(column, encoding[len("optional[") : -1])
    if column.null_count and encoding != "json":
        raise EncodingError(
            "a value is null, but the statistics of the file say that none is; read the column "
            f"with format=Parquet(encodings={{NAME: 'optional[{encoding}]'}})."
        )
    return _present(column, encoding)


def block_of_batch(batch: Any, shard: ShardPlace, location: str) -> Block:
    """Encode the rows of a record batch as MDS samples with the columns of a shard.

    - ``batch`` (pyarrow.RecordBatch): Some rows; a column that the batch lacks is None.
    - ``shard`` (ShardPlace): Its ``columns`` are the names and encodings.
    - ``location`` (str): Name of the shard, for errors.

    Raises FormatError for a value that its column does not take.
    """
    values: list[ColumnBytes] = []
    for name, encoding in zip(shard.columns.names, shard.columns.encodings, strict=True):
        position = batch.schema.get_field_index(name)
        if position < 0:
            # None, as `json` and as `optional[...]` store it.
            values.append([b"null" if encoding == "json" else b"\0"] * batch.num_rows)
            continue
        try:
            values.append(bytes_of(batch.column(position), encoding))
        except (EncodingError, UnicodeDecodeError) as error:
            reason = str(error).replace("NAME", repr(name))
            raise FormatError(f"{location}, column {name!r}: {reason}") from error
    return join_columns(batch.num_rows, values)


def with_wide_times(batch: Any, other: Any, location: str) -> Any:
    """Replace the times in a batch that overflowed when they were read as nanoseconds.

    64 bits of nanoseconds only reach from 1677 to 2262. ``other`` has the same rows (all or some of
    the columns) with times in microseconds. A column of timestamps becomes text, in which
    overflowed times come from ``other``; a nested column with such a time is taken from ``other``.
    Raises FormatError for a year that Python's datetime does not have.
    """
    pa = pyarrow()
    for name in other.schema.names:
        position = batch.schema.get_field_index(name)
        narrow, wide = batch.column(position), other.column(name)
        if not pa.types.is_timestamp(narrow.type):
            if not _can_hold(narrow.type, wide):
                batch = batch.set_column(position, name, wide)
            continue
        nanoseconds = numbers_of(narrow.cast("int64").fill_null(0))
        microseconds = numbers_of(wide.cast("int64").fill_null(0))
        is_same = nanoseconds // 1000 == microseconds  # False where the nanoseconds overflowed
        if is_same.all():
            continue
        texts = np.datetime_as_string(nanoseconds.view("<M8[ns]")).tolist()
        try:
            for row in np.flatnonzero(~is_same).tolist():
                (texts[row],) = values_for(wide.slice(row, 1), "str")
        except EncodingError as error:
            raise FormatError(f"{location}, column {name!r}: {error}") from error
        is_valid = narrow.is_valid().to_pylist()
        corrected = [text if has else None for text, has in zip(texts, is_valid, strict=True)]
        batch = batch.set_column(position, name, pa.array(corrected, pa.string()))
    return batch


def _can_hold(kind: pa.DataType, column: pa.Array) -> bool:
    """Whether a nested type with times in nanoseconds can hold all values of a column."""
    try:
        column.cast(kind)
    except pyarrow().ArrowException:
        return False
    return True


def unreadable(location: str, problem: str, error: BaseException) -> FormatError:
    """Return a FormatError of one line for an error of a library, such as pyarrow.

    ``location`` names the file or shard, ``problem`` says in words what failed.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return FormatError(f"{location}: {problem}: {lines[0][:300]}")


def _optional(column: pa.Array, inner: str) -> ColumnBytes:
    """Encode a column as ``optional[inner]``: a zero byte for null, else a one and the value.

    Values that are not null are encoded together, as a column of encoding ``inner``.
    """
    if column.null_count:
        present = column.drop_null()
        marks = numbers_of(column.is_valid()).tolist()
    else:
        present, marks = column, [True] * len(column)
    pieces = iter(_pieces(_present(present, inner)))
    return [b"\1" + bytes(next(pieces)) if is_valid else b"\0" for is_valid in marks]


def _pieces(values: ColumnBytes) -> list[Any]:
    """Return the bytes of each row, whether or not the encoding has a fixed size."""
    if not isinstance(values, np.ndarray):
        return list(values)
    data, width = values.tobytes(), values.shape[1]
    return [data[offset : offset + width] for offset in range(0, len(data), width)]


def _present(column: pa.Array, encoding: str) -> ColumnBytes:
    """Encode a column without nulls; see `bytes_of`. The fastest way that fits is taken."""
    kind = parse_encoding(encoding)
    dtype = list_dtype(column.type)
    if kind.dtype is not None and not kind.shape:  # numbers
        return _numbers(column, kind.dtype)
    # Lists of one length, which are arrays of one shape:
    if dtype is not None and kind.dtype is not None and kind.shape:
        flat = _elements(column)
        if len(flat) != len(column) * kind.shape[0]:
            raise EncodingError(f"a list does not have {kind.shape[0]} elements like the others.")
        return _as_bytes(_cast(flat, kind.dtype).reshape(len(column), kind.shape[0]))
    if dtype is not None and kind.element_dtype is not None:  # lists of several lengths
        return _arrays(column, encoding)
    if (
        encoding in ("str", "bytes", "jpeg", "png", "audio")
        and (pieces := _slices(column)) is not None
    ):
        return pieces
    return [kind.encode(value) for value in values_for(column, encoding)]


def _numbers(column: pa.Array, dtype: np.dtype[Any]) -> Bytes:
    values = _cast(numbers_of(column), dtype)
    return _as_bytes(values.reshape(-1, 1))


def _cast(values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Convert numbers to another type. Floats may lose digits, nothing else may change.

    Raises EncodingError for a number that the type cannot hold.
    """
    if values.dtype == dtype or not values.size:
        return values.astype(dtype, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        converted = values.astype(dtype)
        if dtype.kind == "f":  # became infinite
            is_wrong = np.isinf(converted) & ~np.isinf(values.astype(np.float64))
        elif {values.dtype.kind, dtype.kind} == {"i", "u"}:  # equal bits, but another sign
            is_wrong = (converted != values) | ((converted < 0) != (values < 0))
        else:
            is_wrong = converted != values
    if is_wrong.any():
        raise EncodingError(
            f"{values[is_wrong].flat[0]} is not a {dtype.name}; give another type with "
            "format=Parquet(encodings={NAME: ENCODING})."
        )
    return converted


def _as_bytes(values: np.ndarray[Any, Any]) -> Bytes:
    """Return the bytes of each row of numbers, uint8 of shape (rows, bytes of a row)."""
    if not values.size:
        return np.zeros((len(values), values.shape[1] * values.itemsize), np.uint8)
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)


def _elements(column: pa.Array) -> np.ndarray[Any, Any]:
    """Return the numbers of all lists of a column, one after the other, as one array.

    Raises EncodingError for a list with a null.
    """
    flat = column.flatten()
    if flat.null_count:
        raise EncodingError(
            "a list holds a null; read the column with format=Parquet(encodings={NAME: 'json'}), "
            "or leave it out with columns=."
        )
    return numbers_of(flat)


def _arrays(column: pa.Array, encoding: str) -> list[bytes]:
    """Encode lists of numbers as arrays of varying length: head with the length, elements."""
    kind = parse_encoding(encoding)
    dtype = kind.element_dtype
    assert dtype is not None
    data = _cast(_elements(column), dtype).tobytes()
    if pyarrow().types.is_fixed_size_list(column.type):
        lengths = [column.type.list_size] * len(column)
    else:
        lengths = numbers_of(column.value_lengths()).tolist()
    heads: dict[int, bytes] = {}  # by length: the bytes before the elements of an encoded array
    out, offset = [], 0
    for length in lengths:
        head = heads.get(length)
        if head is None:
            encoded = kind.encode(np.zeros(length, dtype))
            head = heads[length] = encoded[: len(encoded) - length * dtype.itemsize]
        end = offset + length * dtype.itemsize
        out.append(head + data[offset:end])
        offset = end
    return out


def _slices(column: pa.Array) -> list[memoryview] | list[bytes] | None:
    """Return the bytes of each row of a column of text or bytes, as views of Arrow's buffer.

    The column has no nulls. Returns None for columns of other types.
    """
    pa = pyarrow()
    types, kind = pa.types, column.type
    if is_file(kind):
        return _slices(_file_bytes(column))
    if str(kind) in ("string_view", "binary_view"):
        column = column.cast(pa.large_binary())
        kind = column.type
    if types.is_fixed_size_binary(kind):
        data, width = memoryview(column.buffers()[1] or b""), kind.byte_width
        first = column.offset
        return [data[row * width : (row + 1) * width] for row in range(first, first + len(column))]
    is_long = types.is_large_string(kind) or types.is_large_binary(kind)
    if not is_long and not types.is_string(kind) and not types.is_binary(kind):
        return None
    if not len(column):
        return []
    # Row n has the bytes from offset n to before offset n + 1; a sliced column skips the first.
    _, offset_buffer, body = column.buffers()
    count = len(column) + 1 + column.offset
    offsets = np.frombuffer(offset_buffer, "<i8" if is_long else "<i4", count)[column.offset :]
    view = memoryview(body) if body is not None else memoryview(b"")
    return [view[start:end] for start, end in itertools.pairwise(offsets.tolist())]


def _file_bytes(column: pa.Array) -> pa.Array:
    """Return the bytes of images or audio that `datasets` stored.

    Raises EncodingError for a file of which only the path is stored.
    """
    # If the column is a slice, `field` returns the rows of the whole, `flatten` those of the slice.
    contents = (
        column.field("bytes")
        if not column.offset
        else column.flatten()[column.type.get_field_index("bytes")]
    )
    if contents.null_count:
        raise EncodingError(
            "a value is the path of a file whose bytes are not in the table; embed the files "
            "(datasets: embed_external_files=True)."
        )
    return contents
