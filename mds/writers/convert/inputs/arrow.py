"""Parquet files and Arrow files (IPC files and streams, as `datasets` writes them too).

A part is a run of row groups or of record batches. Types map to the encodings of the same width;
what the format has no narrow word for (structs, maps, lists of anything but numbers, booleans,
columns with nulls) becomes `json`, dates and times become text.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mds.errors import SourceError, need
from mds.formats.infer import Column, show_value
from mds.writers.convert.inputs.base import InputPart, Record
from mds.writers.convert.inputs.file_input import FileInput
from mds.writers.convert.inputs.listing import Listing

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows that are turned into Python values at a time.
_ROWS = 1024
_SAME = {
    "int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
}  # fmt: skip
_NUMPY = {"halffloat": "float16", "float": "float32", "double": "float64"}


class ArrowInput(FileInput):
    """Columnar files of one schema."""

    title: ClassVar[str] = "Arrow or Parquet table"
    endings: ClassVar[frozenset[str]] = frozenset({".parquet", ".pq", ".arrow", ".feather", ".ipc"})

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        self._first = listing.names[0]
        with self._open(self._first) as table:
            self._schema = table.schema
            self._rows = table.rows
            self._nulls = table.nulls()
        for name in listing.names[1:]:
            with self._open(name) as table:
                self._check(name, table.schema)
                self._rows = self._rows + table.rows if self._rows and table.rows else 0
                self._nulls |= table.nulls()

    def infer_columns(self) -> Sequence[Column]:
        """A column a field."""
        rows = [record for _, record in zip(range(100), self.probe(), strict=False)]
        nulls = self._nulls | {key for row in rows for key in row if row[key] is None}
        columns = []
        for field in self._schema:
            values = [row[field.name] for row in rows]
            encoding, note = encoding_of_type(field.type, values)
            if field.name in nulls and encoding != "json":
                encoding, note = "json", "sometimes null"
            example = show_value(values[0]) if values else ""
            columns.append(Column(field.name, encoding, example, note))
        return sorted(columns, key=lambda column: column.name)

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Runs of row groups or record batches, each of one file."""
        number = 0
        for name, length in zip(self.listing.names, self.listing.sizes, strict=True):
            with self._open(name) as table:
                groups = max(table.groups, 1)
                step = max(1, groups * size // max(length, 1))
                row = 0
                for start in range(0, table.groups, step):
                    end = min(start + step, groups)
                    yield InputPart(
                        number,
                        length * (end - start) // groups,
                        (name, start, end, row),
                        self.split_of.get(name),
                    )
                    number += 1
                    row += sum(table.rows_of(group) for group in range(start, end))

    def read(self, part: InputPart) -> Iterator[Record]:
        """One sample a row."""
        name, start, end, row = part.address
        with self._open(name) as table:
            for batch in table.batches(start, end):
                for begin in range(0, batch.num_rows, _ROWS):
                    piece = batch.slice(begin, _ROWS)
                    columns = [python_values(column) for column in piece.columns]
                    for values in zip(*columns, strict=True):
                        yield row, dict(zip(piece.schema.names, values, strict=True))
                        row += 1

    def locate(self, part: InputPart, position: Any) -> str:
        """File and row, from 0."""
        return f"{os.path.join(self.root, part.address[0])}, row {position}"

    def describe(self) -> str:
        """Files, bytes and rows."""
        return f"{self.listing}, {self._rows:,} rows" if self._rows else str(self.listing)

    def _check(self, name: str, schema: pa.Schema) -> None:
        if schema.equals(self._schema):
            return
        for field in self._schema:
            at = schema.get_field_index(field.name)
            if at < 0 or not schema.field(at).type.equals(field.type):
                found = f"{schema.field(at).type}" if at >= 0 else "missing"
                raise SourceError(
                    f"{self.listing.path(name)}: column {field.name!r} is {found}, in "
                    f"{self._first} it is {field.type}. Convert the files one by one."
                )
        extra = set(schema.names) - set(self._schema.names)
        raise SourceError(
            f"{self.listing.path(name)}: column {min(extra, default='?')!r} is not in "
            f"{self._first}."
        )

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[_Table]:
        path = self.listing.path(name)
        pa = pyarrow()
        try:
            table = (
                _ParquetTable(path) if name.lower().endswith((".parquet", ".pq")) else _ipc(path)
            )
        except (pa.ArrowInvalid, OSError) as error:
            raise SourceError(f"{path}: this is no Arrow or Parquet file: {error}") from error
        try:
            yield table
        finally:
            table.close()


class _Table:
    """Open file of columns, in groups of rows."""

    schema: Any
    groups: int
    #: Rows in all; 0 when only reading tells.
    rows: int = 0

    def batches(self, start: int, end: int) -> Iterator[Any]:
        raise NotImplementedError

    def rows_of(self, group: int) -> int:
        raise NotImplementedError

    def nulls(self) -> set[str]:
        """Columns known to hold nulls."""
        return set()

    def close(self) -> None:
        raise NotImplementedError


class _ParquetTable(_Table):
    def __init__(self, path: str) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(path, memory_map=True)
        self.schema = self._file.schema_arrow
        self.groups = self._file.num_row_groups
        self.rows = self._file.metadata.num_rows

    def batches(self, start: int, end: int) -> Iterator[Any]:
        groups = list(range(start, end))
        yield from self._file.iter_batches(batch_size=_ROWS, row_groups=groups, use_threads=False)

    def rows_of(self, group: int) -> int:
        return int(self._file.metadata.row_group(group).num_rows)

    def nulls(self) -> set[str]:
        found = set()
        for group in range(self.groups):
            meta = self._file.metadata.row_group(group)
            for number in range(meta.num_columns):
                column = meta.column(number)
                statistics = column.statistics
                if "." not in column.path_in_schema and statistics and statistics.null_count:
                    found.add(column.path_in_schema)
        return found

    def close(self) -> None:
        self._file.close()


class _IpcTable(_Table):
    def __init__(self, path: str) -> None:
        pa = pyarrow()
        self._map = pa.memory_map(path)
        try:
            self._open()
        except BaseException:
            self._map.close()
            raise

    def _open(self) -> None:
        self._reader = pyarrow().ipc.open_file(self._map)
        self.schema = self._reader.schema
        self.groups = self._reader.num_record_batches

    def batches(self, start: int, end: int) -> Iterator[Any]:
        for group in range(start, end):
            yield self._reader.get_batch(group)

    def rows_of(self, group: int) -> int:
        return int(self._reader.get_batch(group).num_rows)

    def close(self) -> None:
        self._map.close()


class _StreamTable(_IpcTable):
    """A stream has no table of its batches: it is one group, read from its beginning."""

    def _open(self) -> None:
        self._reader = pyarrow().ipc.open_stream(self._map)
        self.schema = self._reader.schema
        self.groups = 1

    def batches(self, start: int, end: int) -> Iterator[Any]:
        del start, end
        yield from self._reader

    def rows_of(self, group: int) -> int:
        del group
        return 0


def pyarrow() -> Any:
    """The package. Raises MissingDependencyError."""
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ImportError as error:
        raise need("pyarrow", "arrow", "Parquet and Arrow files") from error
    return pa


def encoding_of_type(kind: pa.DataType, values: Sequence[Any] = ()) -> tuple[str, str]:
    """The encoding for an Arrow type, and a note; ``values`` tell what arrays look like."""
    types = pyarrow().types
    if types.is_dictionary(kind) or isinstance(kind, pyarrow().BaseExtensionType):
        inner = kind.value_type if types.is_dictionary(kind) else kind.storage_type
        return encoding_of_type(inner, values)
    if types.is_int64(kind):
        return "int", ""
    if (name := _NUMPY.get(str(kind), str(kind))) in _SAME:
        return name, ""
    if types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view":
        return "str", ""
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return encoding_of_bytes(values)
    if _is_file(kind):
        return encoding_of_bytes(values)
    if types.is_decimal(kind):
        return "str_decimal", ""
    if types.is_temporal(kind):
        return "str", f"{kind} as text"
    if (dtype := _numbers(kind)) is not None:
        if any(value is None or len(value) == 0 for value in values):
            return "json", "some lists are empty"
        fixed = f":{kind.list_size}" if types.is_fixed_size_list(kind) else ""
        return f"ndarray:{dtype}{fixed}", ""
    return "json", str(kind) if len(str(kind)) < 40 else str(kind)[:37] + "..."


def encoding_of_bytes(values: Sequence[Any]) -> tuple[str, str]:
    """`jpeg` or `png` where every value is such a file, else `bytes`."""
    starts = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
    for encoding, start in starts.items():
        if values and all(isinstance(v, bytes) and v.startswith(start) for v in values):
            return encoding, "stored as it is"
    return "bytes", ""


def _is_file(kind: pa.DataType) -> bool:
    # How `datasets` stores images and sound: a struct of the file's bytes and its path.
    return pyarrow().types.is_struct(kind) and {f.name for f in kind.fields} == {"bytes", "path"}


def _numbers(kind: pa.DataType) -> str | None:
    types = pyarrow().types
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return None
    name = _NUMPY.get(str(kind.value_type), str(kind.value_type))
    return name if name in _SAME or name == "int64" else None


def python_values(column: pa.Array) -> Sequence[Any]:
    """The values of a column; lists of numbers as arrays that share its memory."""
    kind = column.type
    if isinstance(kind, pyarrow().BaseExtensionType):
        return python_values(column.storage)
    if _is_file(kind):
        return [value and value["bytes"] for value in column.to_pylist()]
    if _numbers(kind) is None or column.null_count or column.flatten().null_count:
        return column.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]
    flat = column.flatten().to_numpy(zero_copy_only=False)
    if pyarrow().types.is_fixed_size_list(kind):
        return list(flat.reshape(len(column), kind.list_size))
    ends = np.cumsum(column.value_lengths().to_numpy(zero_copy_only=False))
    return np.split(flat, ends[:-1]) if len(ends) else []


def _ipc(path: str) -> _Table:
    pa = pyarrow()
    try:
        return _IpcTable(path)
    except pa.ArrowInvalid:
        return _StreamTable(path)
