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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mds._words import plural
from mds.encodings import parse_encoding
from mds.encodings._audio import is_sound
from mds.errors import EncodingError, FormatError, MdsError
from mds.formats._arrow_values import (
    file_contents,
    has_no_elements,
    is_bytes,
    is_file,
    is_list,
    is_number,
    is_text,
    list_dtype,
    numbers_of,
    offsets_of,
    plain,
    pyarrow,
    python_values,
    values_for,
)
from mds.formats._base import Format
from mds.formats._columns import as_optional
from mds.formats._encode import REFUSED, Bytes, ColumnBytes, join_columns
from mds.formats._facts import Block, FilePlan, Problem, ShardPlace
from mds.formats._fit import find_coercer
from mds.formats._partitions import partition_values
from mds.formats._suggestions import wider_encoding

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from mds._shardfile.layout import Columns
    from mds.formats._source import Files


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columnar(Format):
    """A format of record batches. Inherit it and write `plan_file` and `batches`."""

    omits_underscored: ClassVar[bool] = True
    takes_other_endings: ClassVar[bool] = True
    has_partitions: ClassVar[bool] = True

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

    def first_row(self, shard: ShardPlace, files: Files) -> int:
        """Return the number of a shard's first row in its file; used for errors."""
        del shard, files
        return 0

    def location_of(self, shard: ShardPlace, row: int, files: Files) -> str:
        """Return the file and the row in it, from 0."""
        return f"{files.url(shard.file)}, row {self.first_row(shard, files) + row}"

    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block | Problem]:
        """Yield the rows of a shard as MDS samples, and a problem for a row that is none.

        Raises FormatError for data that cannot be decoded.
        """
        location = f"{files.url(shard.file)}, {self.shard_of(shard)}"
        encode = BatchEncoder(shard, self.encodings or ())
        row = 0
        try:
            for batch in self.batches(shard, shard.columns.names, files, location):

                def locate(position: int, first: int = row) -> str:
                    return self.location_of(shard, first + position, files)

                yield from encode.blocks(batch, locate)
                row += batch.num_rows
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


class BatchEncoder:
    """Encoder of record batches as MDS samples with the columns of a shard.

    Args:
        shard: The shard. A column that a batch lacks is one that the folder of the file names, as
            in ``lang=en/``, else None.
        chosen: Columns whose encoding the user chose: texts are parsed, and integers may be rounded
            to its floats. For `json`, texts of a column that has other types in other files are
            values of JSON themselves, so that such files can be joined.
    """

    def __init__(self, shard: ShardPlace, chosen: Collection[str] = ()) -> None:
        columns = shard.columns
        self._columns = [*zip(columns.names, columns.encodings, strict=True)]
        self.chosen = frozenset(chosen)
        #: Columns whose texts are parsed as JSON if the encoding is `json`.
        self.parsed = self.chosen - shard.mixed
        values = partition_values(shard.file.key, dict(self._columns))
        #: The encoded values of columns that a batch may lack, by name.
        self.absent = {
            name: parse_encoding(encoding).encode(values.get(name))
            for name, encoding in self._columns
            if name in values or encoding == as_optional(encoding)
        }

    def block(self, batch: Any, location: str) -> Block:
        """Encode all rows of a batch; ``location`` is for errors.

        Raises ``FormatError(problem)`` for a value that its column does not take.
        """
        values: list[ColumnBytes] = []
        for name, encoding in self._columns:
            position = batch.schema.get_field_index(name)
            try:
                if position >= 0:
                    values.append(self.bytes_of(name, batch.column(position), encoding))
                elif name in self.absent:
                    values.append(_repeated(self.absent[name], encoding, batch.num_rows))
                else:
                    raise EncodingError("the file does not have this column.")  # noqa: TRY301
            except (EncodingError, UnicodeDecodeError) as error:
                reason = str(error).replace("NAME", repr(name))
                raise FormatError(Problem(f"{location}, column {name!r}", reason)) from error
        return join_columns(batch.num_rows, values)

    def bytes_of(self, name: str, column: pa.Array, encoding: str) -> ColumnBytes:
        """Encode all values of the column ``name``; see the function `bytes_of`."""
        is_chosen, parses = name in self.chosen, name in self.parsed
        return bytes_of(column, encoding, is_chosen=is_chosen, parses_json=parses)

    def blocks(self, batch: Any, locate: Callable[[int], str]) -> Iterator[Block | Problem]:
        """Yield the rows of a batch in blocks, and a problem in place of a row that is no sample.

        ``locate`` returns the location of a row. A batch with a wrong row is halved until the row
        is found.
        """
        try:
            yield self.block(batch, locate(0) if batch.num_rows == 1 else "")
        except FormatError as error:
            if batch.num_rows == 1:
                yield Problem.of(error, locate(0))
                return
            middle = batch.num_rows // 2
            yield from self.blocks(batch.slice(0, middle), locate)
            yield from self.blocks(batch.slice(middle), lambda row: locate(middle + row))


def _repeated(value: bytes, encoding: str, rows: int) -> ColumnBytes:
    """Return the bytes of a column that has one value in all rows."""
    if parse_encoding(encoding).size is None:
        return [value] * rows
    return np.broadcast_to(np.frombuffer(value, np.uint8), (rows, len(value)))


def bytes_of(
    column: pa.Array, encoding: str, *, is_chosen: bool = False, parses_json: bool = False
) -> ColumnBytes:
    """Encode all values of an Arrow column.

    Returns uint8 of shape (rows, size) if all values have ``size`` bytes, else a list with the
    bytes of each row. Raises EncodingError for a value that the encoding does not take.
    ``is_chosen`` says that the user chose the encoding, so that texts are parsed, and integers may
    become rounded floats; ``parses_json`` that texts are parsed as JSON, too.
    """
    column = plain(column)
    if is_file(column.type):
        column = file_contents(column)
    if encoding.startswith("optional["):
        inner = encoding[len("optional[") : -1]
        return _optional(column, inner, is_chosen=is_chosen, parses_json=parses_json)
    if column.null_count and encoding != "json":
        reason = "" if is_chosen else ", but the statistics of the file say that none is"
        raise EncodingError(
            f"a value is null{reason}; read the column with "
            f"encodings={{NAME: 'optional[{encoding}]'}}."
        )
    return _present(column, encoding, is_chosen=is_chosen, parses_json=parses_json)


def with_wide_times(batch: Any, other: Any) -> Iterator[Any]:
    """Replace the times in a batch that overflowed when they were read as nanoseconds.

    64 bits of nanoseconds only reach from 1677 to 2262. ``other`` has the same rows (all or some of
    the columns) with times in microseconds. A column of timestamps becomes text, in which
    overflowed times come from ``other``; a nested column with such a time is taken from ``other``.
    Yields the rows in order. A row with a year that Python's datetime does not have is a batch of
    its own, with the times of ``other``, so that its encoding fails alone.
    """
    pa = pyarrow()
    impossible: set[int] = set()  # rows with such a year
    original = batch
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
        for row in np.flatnonzero(~is_same).tolist():
            try:
                (texts[row],) = values_for(wide.slice(row, 1), "str")
            except EncodingError:  # noqa: PERF203 - one time hides no other
                impossible.add(row)
        is_valid = narrow.is_valid().to_pylist()
        corrected = [text if has else None for text, has in zip(texts, is_valid, strict=True)]
        batch = batch.set_column(position, name, pa.array(corrected, pa.string()))
    start = 0
    for row in sorted(impossible):
        if row > start:
            yield batch.slice(start, row - start)
        single = original.slice(row, 1)
        for name in other.schema.names:
            column = other.column(name).slice(row, 1)
            single = single.set_column(single.schema.get_field_index(name), name, column)
        yield single
        start = row + 1
    if start < batch.num_rows:
        yield batch.slice(start)


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


def _optional(column: pa.Array, inner: str, *, is_chosen: bool, parses_json: bool) -> ColumnBytes:
    """Encode a column as ``optional[inner]``: a zero byte for null, else a one and the value.

    Values that are not null are encoded together, as a column of encoding ``inner``.
    """
    if column.null_count:
        present = column.drop_null()
        marks = numbers_of(column.is_valid()).tolist()
    else:
        present, marks = column, [True] * len(column)
    encoded = _present(present, inner, is_chosen=is_chosen, parses_json=parses_json)
    pieces = iter(_pieces(encoded))
    return [b"\1" + bytes(next(pieces)) if is_valid else b"\0" for is_valid in marks]


def _pieces(values: ColumnBytes) -> list[Any]:
    """Return the bytes of each row, whether or not the encoding has a fixed size."""
    if not isinstance(values, np.ndarray):
        return list(values)
    data, width = values.tobytes(), values.shape[1]
    return [data[offset : offset + width] for offset in range(0, len(data), width)]


def _present(column: pa.Array, encoding: str, *, is_chosen: bool, parses_json: bool) -> ColumnBytes:
    """Encode a column without nulls; see `bytes_of`. The fastest way that fits is taken."""
    kind = parse_encoding(encoding)
    has_numbers = list_dtype(column.type) is not None or has_no_elements(column.type)
    if kind.dtype is not None and not kind.shape and is_number(column.type):
        values = _cast(numbers_of(column), kind.dtype, is_chosen=is_chosen)
        return _as_bytes(values.reshape(-1, 1))
    # Lists of one length, which are arrays of one shape:
    if has_numbers and kind.dtype is not None and kind.shape:
        flat = _elements(column)
        if len(flat) != len(column) * kind.shape[0]:
            raise EncodingError(
                f"a list does not have {plural(kind.shape[0], 'element')} like the others."
            )
        flat = _cast(flat, kind.dtype, is_chosen=is_chosen)
        return _as_bytes(flat.reshape(len(column), kind.shape[0]))
    if has_numbers and kind.element_dtype is not None:  # lists of several lengths
        return _arrays(column, encoding, is_chosen=is_chosen)
    if (
        encoding in ("str", "bytes", "jpeg", "png", "audio")
        and (pieces := _slices(column)) is not None
    ):
        if encoding == "str":
            _check_utf8(column, pieces)
        if encoding == "audio" and not all(map(is_sound, pieces)):
            raise EncodingError(
                "a sound is neither WAV nor FLAC; keep the bytes of the files with "
                "encodings={NAME: 'bytes'}."
            )
        return pieces
    encoded = (
        _fitted(column, encoding, parses_json=parses_json)
        if is_chosen
        else [kind.encode(value) for value in values_for(column, encoding)]
    )
    if kind.size is None:
        return encoded
    return np.frombuffer(b"".join(encoded), np.uint8).reshape(len(encoded), kind.size)


def _fitted(column: pa.Array, encoding: str, *, parses_json: bool) -> list[bytes]:
    """Encode the values of a column one by one, fitted to an encoding that the user chose.

    With ``parses_json``, `json` is parsed from the values of a column of texts. Dates and the texts
    inside of lists and structs are texts of JSON themselves.

    Raises EncodingError with a remedy for a value that the encoding does not take.
    """
    family = encoding.partition(":")[0]
    if family in ("ndarray", "tensor") and is_list(column.type):
        values = python_values(column)  # with the types of the elements
    elif pyarrow().types.is_temporal(column.type) and encoding != "json":
        values = values_for(column, "str")
    else:
        values = values_for(column, "" if encoding == "str" else encoding)
    from_text = encoding != "json" or (parses_json and is_text(column.type))
    fit = find_coercer(encoding, from_text=from_text)
    pack = parse_encoding(encoding).pack_checked
    encoded = []
    for value in values:
        try:
            encoded.append(pack(value if fit is None else fit(value)))
        except REFUSED as error:  # noqa: PERF203 - it ends the loop
            wider = wider_encoding(encoding, value, is_cell=isinstance(value, str), is_json=False)
            remedy = f"encodings={{NAME: {wider!r}}}" if wider else "encodings={NAME: ENCODING}"
            reason = str(error).rstrip(".")
            raise EncodingError(f"{reason}; give another type with {remedy}.") from error
    return encoded


def _cast(
    values: np.ndarray[Any, Any], dtype: np.dtype[Any], *, is_chosen: bool
) -> np.ndarray[Any, Any]:
    """Convert numbers to another type. Floats may lose digits, nothing else may change.

    If the user chose the type (``is_chosen``), integers may lose digits, too. Raises EncodingError
    for a number that the type cannot hold.
    """
    if values.dtype == dtype or not values.size:
        return values.astype(dtype, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        converted = values.astype(dtype)
        if dtype.kind == "f":  # became infinite
            is_wrong = np.isinf(converted) & ~np.isinf(values.astype(np.float64))
            if values.dtype.kind in "iu" and not is_chosen:
                is_wrong |= _is_rounded(values, converted)
        elif {values.dtype.kind, dtype.kind} == {"i", "u"}:  # equal bits, but another sign
            is_wrong = (converted != values) | ((converted < 0) != (values < 0))
        else:
            is_wrong = converted != values
    if is_wrong.any():
        raise EncodingError(
            f"{values[is_wrong].flat[0]} is not a {dtype.name}; give another type with "
            "encodings={NAME: ENCODING}."
        )
    return converted


def _is_rounded(
    integers: np.ndarray[Any, Any], floats: np.ndarray[Any, Any]
) -> npt.NDArray[np.bool_]:
    """Return which integers became another number as a float."""
    is_rounded = np.zeros(len(integers), np.bool_)
    # Smaller ones have no more bits than the float: 53 for a float64.
    largest = 1 << (np.finfo(floats.dtype).nmant + 1)
    for position in np.flatnonzero((integers > largest) | (integers < -largest)).tolist():
        is_rounded[position] = int(integers[position]) != float(floats[position])
    return is_rounded


def _as_bytes(values: np.ndarray[Any, Any]) -> Bytes:
    """Return the bytes of each row of numbers, uint8 of shape (rows, bytes of a row)."""
    if not values.size:
        return np.zeros((len(values), values.shape[1] * values.itemsize), np.uint8)
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)


def _elements(column: pa.Array) -> np.ndarray[Any, Any]:
    """Return the numbers of all lists of a column, one after the other, as one array.

    Raises EncodingError for a list with a null.
    """
    offsets = offsets_of(column)
    if offsets is None:
        flat = column.flatten()
    else:  # `flatten` imports much more of pyarrow
        flat = column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    if has_no_elements(column.type) and not len(flat):
        return np.zeros(0, np.int8)
    if flat.null_count:
        raise EncodingError(
            "a list holds a null; read the column with encodings={NAME: 'json'}, "
            "or leave it out with columns=."
        )
    return numbers_of(flat)


def _arrays(column: pa.Array, encoding: str, *, is_chosen: bool) -> list[bytes]:
    """Encode lists of numbers as arrays of varying length: head with the length, elements."""
    kind = parse_encoding(encoding)
    dtype = kind.element_dtype
    assert dtype is not None
    data = _cast(_elements(column), dtype, is_chosen=is_chosen).tobytes()
    if pyarrow().types.is_fixed_size_list(column.type):
        lengths = [column.type.list_size] * len(column)
    else:
        offsets = offsets_of(column)
        lengths = [0] * len(column) if offsets is None else np.diff(offsets).tolist()
    heads: dict[int, bytes] = {}  # by length: the bytes before the elements of an encoded array
    for length in set(lengths):
        encoded = kind.encode(np.zeros(length, dtype))
        heads[length] = encoded[: len(encoded) - length * dtype.itemsize]
    ends = (np.cumsum(lengths, dtype=np.int64) * dtype.itemsize).tolist()
    bounds = zip(lengths, [0, *ends[:-1]], ends, strict=False)  # no `ends` without rows
    return [heads[length] + data[start:end] for length, start, end in bounds]


def _check_utf8(column: pa.Array, pieces: Iterable[memoryview | bytes]) -> None:
    """Raise EncodingError for text that is not UTF-8, which a file may hold all the same.

    ``pieces`` are the bytes of each row.
    """
    try:
        if is_bytes(column.type):
            for piece in pieces:
                str(piece, "utf-8")
        else:
            column.validate(full=True)
    except (pyarrow().ArrowInvalid, UnicodeDecodeError) as error:
        raise EncodingError(
            "the text is not UTF-8; read the bytes with encodings={NAME: 'bytes'}."
        ) from error


def _slices(column: pa.Array) -> list[memoryview] | list[bytes] | None:
    """Return the bytes of each row of a column of text or bytes, as views of Arrow's buffer.

    The column has no nulls. Returns None for columns of other types.
    """
    pa = pyarrow()
    types, kind = pa.types, column.type
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
