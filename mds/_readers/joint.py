"""Readers of mds shards, whose one file holds offsets and samples.

`FixedReader` is used if all columns have a fixed width: each column is a strided view on the file.
`JointReader` finds the values of all other shards by the offsets of samples and the sizes in front
of them.

Many rows are read column by column. A fixed-width column takes one numpy call, wherever its values
are: the file is viewed as an array of elements as wide as the value, one beginning at every byte,
and indexing that array with byte positions copies each value once. That is as fast as indexing an
aligned array (measured for 8 KB rows: 0.141 us each, against 0.149 us).

``fields`` (`Fields`) are the columns of a schema with their decoders, ``offsets`` the bytes of the
file at which samples begin and the last one ends. A viewer decodes arrays as views of the file.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mds._index.shard_object import ShardSchema
from mds._readers.base import Batch, Reader, Rows
from mds._readers.codegen import (
    compile_offsets,
    compile_sample,
    compile_views,
    load_json,
    vector_decoder,
)
from mds._readers.fields import ColumnSelection, Field, Fields, fields_of
from mds._shardfile.layout import broken_reason, parse_offsets, split_sample
from mds.encodings import DecodeKind
from mds.errors import EncodingError, FormatError, MissingDependencyError, ShardError

if TYPE_CHECKING:
    from mds._readers.base import Data

    Positions = npt.NDArray[np.int64]  # of bytes in the file, shape (rows,)
    Cells = dict[str, npt.NDArray[Any]]


class JointReader(Reader):
    """Reader of an mds shard, or of samples that were fetched from one.

    Offsets are read from the file and checked when the first sample is read.

    Args:
        schema: Columns of the shard.
        samples: Number of samples.
        data: The whole file of the shard. With ``offsets`` any buffer of samples.
        source: Name of the shard in errors.
        columns: Columns that samples have.
        offsets: Byte offsets in ``data``, shape (samples + 1,): sample i is
            ``data[offsets[i]:offsets[i + 1]]`` (default: those in the file).
    """

    def __init__(
        self,
        schema: ShardSchema,
        samples: int,
        data: Data,
        source: str,
        *,
        columns: ColumnSelection = ColumnSelection(),  # noqa: B008 - it is frozen
        offsets: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        super().__init__(schema, samples, source)
        self.fields: Fields = fields_of(schema.columns, columns)
        self._selection = columns
        self._viewing_fields: Fields | None = None
        self._viewer: Callable[[int], dict[str, Any]] | None = None
        self.is_stacked = self.fields.are_stacked
        self._data: Data = data
        self._offsets = offsets
        self._is_checked = False

    def offsets(self) -> npt.NDArray[np.uint32]:
        """Return the checked byte offsets of samples, uint32 of shape (samples + 1,)."""
        if not self._is_checked:
            self._check_open()
            if self._offsets is None:
                self._offsets = parse_offsets(
                    memoryview(self._data), self._count, len(self._data), self.source
                )
            self._check_rows(self._offsets)
            self._is_checked = True
        assert self._offsets is not None
        return self._offsets

    def _check_rows(self, offsets: npt.NDArray[np.uint32]) -> None:
        """Raise ShardError if all columns are fixed and a sample has another size than they.

        A sample that stands for a broken record (`broken_sample`) is an error when it is read.
        """
        size = self.fields.row_size
        if size is None:
            return
        view = memoryview(self._data)
        for row in np.flatnonzero(np.diff(offsets) != size).tolist():
            if broken_reason(view[offsets[row] : offsets[row + 1]], size) is not None:
                continue
            raise ShardError(
                f"{self.source}: sample {row} has {offsets[row + 1] - offsets[row]} bytes, but its "
                f"columns have {size} in total."
            )

    def _viewing(self) -> Fields:
        """Return the columns with decoders whose arrays are views of the file, not copies."""
        if self._viewing_fields is None:
            self._viewing_fields = fields_of(self.schema.columns, self._selection.viewing)
        return self._viewing_fields

    def _open(self) -> Callable[[int], dict[str, Any]]:
        return self._make_getter(self.fields)

    def viewer(self) -> Callable[[int], dict[str, Any]]:
        """Return a ``get`` whose arrays may be views of the file; see Reader.viewer.

        It is made at the first call and kept until the reader is closed.
        """
        if self._viewer is None:
            self._viewer = self._make_getter(self._viewing())
        return self._viewer

    def _make_getter(self, fields: Fields) -> Callable[[int], dict[str, Any]]:
        """Return a function from a row to its sample, compiled for the columns ``fields``."""
        offsets, make_getter = self.offsets(), compile_offsets(fields)
        # Compiled code takes texts and bytes from the file itself, whose slices are copies (bytes),
        # and views of arrays from the memoryview, whose slices are not copied. For negative rows
        # and for any error it calls the slow decoder, which also finds the message.
        decode_slowly, data, view = self._slow_decoder(), self._data, memoryview(self._data)
        return make_getter(decode_slowly, data, view, offsets.data)

    def rows(self, rows: Rows, *, copy: bool = True) -> Batch:
        """Return the samples of many rows as columns; see Reader.rows."""
        numbers = self._numbers(rows)
        offsets = self.offsets()
        fields = self.fields if copy else self._viewing()
        try:
            return gather_columns(fields, self._data, offsets, numbers)
        except Exception:
            # Decode one by one: the first bad sample raises an error with its number and column.
            for row in numbers.tolist():
                self._decode_slowly(row)
            raise

    def as_columns(self, samples: list[dict[str, Any]]) -> Batch:
        """Convert samples of this schema to columns; see Reader.as_columns."""
        return {field.name: _stack_column(field, samples) for field in self.fields.selected}

    def sample_bytes(self, row: int) -> memoryview:
        """Return the stored bytes of one sample, as a view."""
        number, offsets = self._number(row), self.offsets()
        return memoryview(self._data)[int(offsets[number]) : int(offsets[number + 1])]

    def _decode_slowly(self, row: Any) -> dict[str, Any]:
        """Decode a sample whose row may be negative, or raise an error that says what is wrong."""
        number = self._number(row)
        return decode(self.fields, self.sample_bytes(number), lambda: self.where(number))

    def release_pages(self) -> None:
        """Give the pages of the mapped file back to the system; see `Reader.release_pages`."""
        if isinstance(self._data, mmap.mmap):
            self._data.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Release the mapping. Views that were returned keep it alive."""
        super().close()
        self._data, self._offsets, self._is_checked = b"", None, False
        self._viewer = None


class FixedReader(JointReader):
    """Reader of samples of one size; each column is a strided view on the file, made once.

    The arguments are those of `JointReader`.
    """

    _cells: Cells | None = None

    @property
    def cells(self) -> Cells:
        """Views on the file by column: shape (samples,), one element of raw bytes for each value.

        Copying an element copies the bytes of a value, whatever its shape and alignment.
        """
        if self._cells is None:
            self._cells = {
                field.name: self._view(position, np.dtype(f"V{field.size}"), ())
                for field, position in self._first_positions()
            }
        return self._cells

    def rows(self, rows: Rows, *, copy: bool = True) -> Batch:
        """Return many samples as columns, which are always copies; see Reader.rows."""
        del copy
        # NumPy checks the range and counts negative rows from the end when it indexes the cells.
        numbers = np.asarray(rows)
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
            numbers = self._numbers(rows)
        cells = self.cells
        try:
            return {
                field.name: values_of(cells[field.name][numbers], field)
                for field in self.fields.selected
            }
        except IndexError:
            # numpy found a row out of range; raise the error that names it.
            self._numbers(rows)
            raise

    def _open(self) -> Callable[[int], dict[str, Any]]:
        """Return the function that reads a row from a view of each column; see Reader._open."""
        views = [
            self._view(position, field.encoding.dtype, field.encoding.shape)
            for field, position in self._first_positions()
        ]
        return compile_views(self.fields)(self._slow_decoder(), *views)

    def _first_positions(self) -> Iterator[tuple[Field, int]]:
        """Yield each selected column with the position of its first value in the file."""
        position = int(self.offsets()[0])
        for field in self.fields.stored:
            if field.is_selected:
                yield field, position
            position += field.size or 0

    def _view(self, position: int, dtype: Any, shape: Any) -> npt.NDArray[Any]:
        """Return the values of a column as a view of shape (samples, *shape) on the file.

        ``position`` is that of the first value in the file, in bytes.
        """
        if not len(self):  # no bytes to view
            return np.empty((0, *shape), dtype)
        # Strides in bytes: from sample to sample, and in C order inside a value.
        inner: list[int] = []
        step = dtype.itemsize
        for length in reversed(shape):
            inner.insert(0, step)
            step *= length
        row_size = self.fields.row_size or 0
        all_shape, strides = (len(self), *shape), (row_size, *inner)
        view: npt.NDArray[Any] = np.ndarray(all_shape, dtype, self._data, position, strides)
        return view

    def close(self) -> None:
        """Release the mapping. Views that were returned keep it alive."""
        super().close()
        self._cells = None


def joint_reader(
    schema: ShardSchema,
    samples: int,
    data: Data,
    source: str,
    *,
    columns: ColumnSelection = ColumnSelection(),  # noqa: B008 - it is frozen
    offsets: npt.NDArray[np.uint32] | None = None,
) -> JointReader:
    """Return the fastest reader of an mds shard for the columns of its schema.

    The arguments are those of `JointReader`.
    """
    fields = fields_of(schema.columns, columns)
    kind = (
        FixedReader
        if fields.are_views and _is_even(fields, samples, data, offsets)
        else JointReader
    )
    return kind(schema, samples, data, source, columns=columns, offsets=offsets)


def _is_even(
    fields: Fields, samples: int, data: Data, offsets: npt.NDArray[np.uint32] | None
) -> bool:
    """Return True if samples together have the bytes of ``samples`` rows of fixed size.

    Samples that stand for broken records are larger (`broken_sample`).
    """
    if offsets is not None:
        start, end = int(offsets[0]), int(offsets[-1])
    else:
        start, end = int.from_bytes(memoryview(data)[4:8], "little"), len(data)
    return end - start == samples * (fields.row_size or 0)


def sample_decoder(fields: Fields, source: str) -> Callable[[Any], dict[str, Any]]:
    """Return a compiled function from the bytes of one sample to the sample.

    ``source`` is the name of the sample in errors.
    """

    def decode_slowly(data: memoryview) -> dict[str, Any]:
        return decode(fields, data, lambda: source)

    return compile_sample(fields)(decode_slowly)


def decode(fields: Fields, data: memoryview, locate: Callable[[], str]) -> dict[str, Any]:
    """Decode the bytes of one sample, column by column; slow, but with good errors.

    Raises ShardError if its sizes do not add up, EncodingError, which names the column, for a
    value, and FormatError for a sample that stands for a broken record. ``locate`` returns the
    location of the sample, for errors.
    """
    reason = broken_reason(data, fields.row_size)
    if reason is not None:
        raise FormatError(reason)
    try:
        values = split_sample(data, [field.size for field in fields.stored], fields.variable)
    except ShardError as error:
        raise ShardError(f"{locate()}: {error}") from error
    sample = {}
    for field, value in zip(fields.stored, values, strict=True):
        if not field.is_selected:
            continue
        try:
            sample[field.name] = field.decode(value)
        except (MemoryError, MissingDependencyError):  # not the fault of the bytes
            raise
        except RecursionError as error:
            raise EncodingError(
                f"{locate()}, column {field.name!r}: it is nested too deeply."
            ) from error
        except Exception as error:
            kind = type(error) if isinstance(error, EncodingError) else EncodingError
            raise kind(f"{locate()}, column {field.name!r}: {error}") from error
    return sample


# ----------------------------------------------------------------------------- many rows as columns


def gather_columns(
    fields: Fields, data: Data, offsets: npt.NDArray[np.uint32], numbers: Positions
) -> Batch:
    """Return the selected columns of the rows ``numbers``, all columns of a row in one pass.

    A sample begins with a uint32 size for each variable column; its values follow in order. So the
    positions of the values of one column, an array of shape (rows,), are computed from those of the
    column before. Raises ShardError if sizes do not add up.

    Args:
        fields: Columns of the samples.
        data: The file of the shard.
        offsets: Byte offsets of samples, shape (samples + 1,).
        numbers: Rows, shape (rows,).
    """
    starts = offsets[numbers].astype(np.int64)
    positions = starts + 4 * fields.variable
    sizes_of_values = None
    if fields.variable:
        sizes_of_values = _take_values(data, starts, 4 * fields.variable, "<u4").astype(np.int64)
        sizes_of_values = sizes_of_values.reshape(len(numbers), fields.variable)
        fixed = 4 * fields.variable + sum(field.size or 0 for field in fields.stored)
        sample_sizes = offsets[numbers + 1].astype(np.int64) - starts
        if not np.array_equal(sizes_of_values.sum(axis=1) + fixed, sample_sizes):
            raise ShardError("the sizes of the columns do not add up to those of their samples.")
    elif (offsets[numbers + 1] - offsets[numbers] != fields.row_size).any():
        raise ShardError("a sample has another size than its columns.")
    out: Batch = {}
    size_index = 0
    for field in fields.stored:
        start = positions
        if field.size is not None:
            positions = positions + field.size
        elif sizes_of_values is not None:
            positions = positions + sizes_of_values[:, size_index]
            size_index += 1
        if field.is_selected:
            out[field.name] = (
                _read_numbers(field, data, start)
                if field.is_columnar
                else _read_values(field, data, start, positions)
            )
    return out


def _read_numbers(field: Field, data: Data, starts: Positions) -> npt.NDArray[Any]:
    """Return the values of a fixed-width column, which begin at ``starts``, as an array."""
    dtype, shape = field.encoding.dtype, field.encoding.shape
    assert dtype is not None
    assert shape is not None
    assert field.size
    array = _take_values(data, starts, field.size, dtype).reshape(len(starts), *shape)
    if dtype.kind == "b" and (array.view(np.uint8) > 1).any():
        raise ShardError(f"column {field.name!r}: a byte of a bool is neither 0 nor 1.")
    return array


def _take_values(data: Data, starts: Positions, width: int, dtype: Any) -> npt.NDArray[Any]:
    """Return ``width`` bytes from each start as a flat array of ``dtype``.

    The file is viewed as overlapping elements of ``width`` bytes, one beginning at every byte.
    Raises IndexError for a start outside of it.
    """
    if not len(starts):
        return np.empty(0, dtype)
    # A stride of one byte: element i is data[i : i + width].
    overlapping = np.ndarray((len(data) - width + 1,), f"V{width}", data, 0, (1,))
    values_at_starts: npt.NDArray[Any] = overlapping[starts].view(dtype)
    return values_at_starts


def _stack_column(field: Field, samples: list[dict[str, Any]]) -> npt.NDArray[Any] | list[Any]:
    """Return a column of decoded samples: an array of numbers of fixed width, else a list."""
    cells = [sample[field.name] for sample in samples]
    shape = field.encoding.shape
    if not field.is_columnar or shape is None:
        return cells
    out = np.empty((len(cells), *shape), field.encoding.dtype)
    if not shape:
        out[:] = cells
        return out
    for row, value in enumerate(cells):
        out[row] = value
    return out


def _read_values(field: Field, data: Data, starts: Positions, ends: Positions) -> list[Any]:
    """Return the values of a column that does not become an array, as a list.

    Value i is decoded from ``data[starts[i]:ends[i]]``.
    """
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    if field.kind is DecodeKind.BYTES:
        return [data[start:end] for start, end in bounds]
    if field.kind is DecodeKind.TEXT:
        return [str(data[start:end], "utf-8") for start, end in bounds]
    if field.kind is DecodeKind.JSON:
        return [load_json(str(data[start:end], "utf-8")) for start, end in bounds]
    view, decode = memoryview(data), field.decode
    if field.kind is DecodeKind.VECTOR:
        vector = vector_decoder(field)
        return [vector(data, view, start, end) for start, end in bounds]
    return [decode(view[start:end]) for start, end in bounds]


def values_of(cells: npt.NDArray[Any], field: Field) -> npt.NDArray[Any]:
    """Return contiguous elements of `FixedReader.cells` as numbers, shape (rows, *shape)."""
    assert field.encoding.dtype is not None
    assert field.encoding.shape is not None
    values: npt.NDArray[Any] = cells.view(field.encoding.dtype)
    return values.reshape(len(cells), *field.encoding.shape)
