"""Readers of json, csv, tsv and xsv shards: a data file of lines and a meta file of offsets.

A line is a sample. Separator and line end of an xsv shard are those in its schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mds._index.shard_object import ShardSchema
from mds._readers.base import Batch, Reader, Rows
from mds._readers.codegen import load_json
from mds._readers.fields import ColumnSelection, check_columns
from mds._shardfile.layout import parse_meta_offsets
from mds._words import plural
from mds.errors import EncodingError, ShardError

if TYPE_CHECKING:
    from mds._readers.base import Data

_DTYPES = {"int": np.int64, "float": np.float64}
_BOOLS = {"True": True, "False": False}


class SplitReader(Reader):
    """Reader of a json, csv, tsv or xsv shard.

    Args:
        schema: Columns and format of the shard.
        samples: Number of samples, which are lines.
        data: The file of lines.
        meta: The file with the offsets of the lines.
        source: Name of the shard in errors.
        columns: Columns that samples have.
        offsets: Byte offsets of lines, shape (samples + 1,), instead of ``meta``.
    """

    def __init__(
        self,
        schema: ShardSchema,
        samples: int,
        data: Data,
        meta: Data,
        source: str,
        *,
        columns: ColumnSelection = ColumnSelection(),  # noqa: B008 - it is frozen
        offsets: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        super().__init__(schema, samples, source)
        self._data: Data = data
        self._meta: Data = meta
        self._parse = line_decoder(schema, columns, source)
        self._columns = schema.columns.names if columns.names is None else columns.names
        self._offsets = offsets

    def offsets(self) -> npt.NDArray[np.uint32]:
        """Return the checked byte offsets of lines, uint32 of shape (samples + 1,)."""
        if self._offsets is None:
            self._check_open()
            self._offsets = parse_meta_offsets(
                memoryview(self._meta), self._count, len(self._data), f"{self.source}.meta"
            )
        return self._offsets

    def _open(self) -> Callable[[int], dict[str, Any]]:
        """Return the function that parses the line of a row; see Reader._open."""
        offsets, data, parse = self.offsets().data, self._data, self._parse
        decode_slowly = self._slow_decoder()

        def get(row: int) -> dict[str, Any]:
            """Parse a line without checks; `_decode_slowly` repeats whatever fails here.

            It also takes negative rows, and its errors name the shard and the row.
            """
            try:
                if row < 0:
                    return decode_slowly(row)
                return parse(str(data[offsets[row] : offsets[row + 1]], "utf-8"))
            except Exception:  # noqa: BLE001 - raised again with its position
                return decode_slowly(row)

        return get

    def rows(self, rows: Rows, *, copy: bool = True) -> Batch:
        """Return the samples of many rows as columns.

        Ints and floats are arrays of shape (rows,) if NumPy can hold them; others are lists.
        """
        del copy  # no value of a line is a view of the file
        return self.as_columns(self.samples(self._numbers(rows)))

    def as_columns(self, samples: list[dict[str, Any]]) -> Batch:
        """Convert samples of this schema to columns; see Reader.as_columns."""
        encodings = dict(zip(self.schema.columns.names, self.schema.columns.encodings, strict=True))
        out: Batch = {}
        for name in self._columns:
            values = [sample[name] for sample in samples]
            out[name] = _as_array(values, _DTYPES.get(encodings[name]))
        return out

    def sample_bytes(self, row: int) -> memoryview:
        """Return the line of one sample as it is stored, as a view."""
        number, offsets = self._number(row), self.offsets()
        return memoryview(self._data)[int(offsets[number]) : int(offsets[number + 1])]

    def _decode_slowly(self, row: Any) -> dict[str, Any]:
        """Parse the line of a row, which may be negative; see Reader._decode_slowly."""
        number = self._number(row)
        return decode_line(
            self._parse, self.sample_bytes(number), f"{self.source}, sample {number}"
        )

    def close(self) -> None:
        """Release the mappings."""
        super().close()
        self._data = self._meta = b""
        self._offsets = None


def decode_line(
    parse: Callable[[str], dict[str, Any]], line: memoryview | bytes, source: str
) -> dict[str, Any]:
    """Parse the line of a sample. Raises EncodingError, which begins with ``source``."""
    try:
        return parse(str(line, "utf-8"))
    except RecursionError as error:
        raise EncodingError(f"{source}: the value is nested too deeply.") from error
    except (ValueError, ShardError) as error:
        raise EncodingError(f"{source}: {error}") from error


def line_decoder(
    schema: ShardSchema, columns: ColumnSelection, source: str
) -> Callable[[str], dict[str, Any]]:
    """Return a function that parses a line, its line end included, to a sample.

    ``schema`` says the format, ``columns`` the selection, and ``source`` the shard in errors.
    """
    check_columns(schema.columns.names, columns.names, source)
    return _json_lines(schema, columns) if schema.format == "json" else _xsv_lines(schema, columns)


def _json_lines(schema: ShardSchema, columns: ColumnSelection) -> Callable[[str], dict[str, Any]]:
    """Return the parser of lines of a json shard; see `line_decoder`."""
    names, selected = set(schema.columns.names), columns.names

    def parse(line: str) -> dict[str, Any]:
        """Return the sample in a line, a JSON object. Raises ShardError."""
        sample = load_json(line)
        if not isinstance(sample, dict) or not names <= sample.keys():
            raise ShardError(f"expected an object with {sorted(names)}, got {line[:80]!r}.")
        return sample if selected is None else {name: sample[name] for name in selected}

    return parse


def _xsv_lines(schema: ShardSchema, columns: ColumnSelection) -> Callable[[str], dict[str, Any]]:
    """Return the parser of lines of a csv, tsv or xsv shard; see `line_decoder`."""
    newline, separator = schema.newline or "", schema.separator or ""
    count = len(schema.columns.names)
    # Position in the line, name and conversion of each selected column.
    makers = [
        (position, name, _MAKERS[encoding])
        for position, (name, encoding) in enumerate(
            zip(schema.columns.names, schema.columns.encodings, strict=True)
        )
        if name in columns
    ]

    def parse(line: str) -> dict[str, Any]:
        """Return the sample in a line that ends with ``newline``. Raises ShardError."""
        if not line.endswith(newline):
            raise ShardError(f"the line does not end with {newline!r}: {line[-80:]!r}.")
        words = line[: len(line) - len(newline)].split(separator)
        if len(words) != count:
            raise ShardError(f"expected {plural(count, 'value')}, got {len(words)}: {line[:80]!r}.")
        return {name: make(words[position]) for position, name, make in makers}

    return parse


def _int(word: str) -> int:
    # A writer accepts a bool as an int and stores its name.
    value = _BOOLS.get(word)
    return int(word) if value is None else value


_MAKERS: dict[str, Callable[[str], Any]] = {"str": str, "int": _int, "float": float}


def _as_array(values: list[Any], dtype: Any) -> npt.NDArray[Any] | list[Any]:
    """Return the values of a column as an array of ``dtype``, or as they are.

    They stay a list if ``dtype`` is None, if a value has another type (int for np.int64, float for
    np.float64), or if an int exceeds 64 bits: an array would alter these values.
    """
    kind = {np.int64: int, np.float64: float}.get(dtype)
    if kind is None or any(type(value) is not kind for value in values):
        return values
    try:
        return np.array(values, dtype)
    except OverflowError:
        return values
