"""A table of files that are samples: their paths, and any columns beside them.

It is a Parquet, CSV, TSV or JSON lines file. Its rows are kept, compressed, in pieces of as many as
a shard has, so that what a shard needs of a table of millions is a small part of it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mds.errors import FormatError, MdsError, MissingDependencyError
from mds.formats.infer import infer_columns
from mds.readers.codegen import load_json
from mds.storage.base import check_key

Rows = list[dict[str, Any]]

_LARGEST_FILE = 1 << 40
_LARGEST_ROWS = 1 << 30  # bytes of the rows of a shard as JSON


def read_manifest(data: bytes, name: str, location: str) -> tuple[dict[str, str], Rows]:
    """Return the encodings of a manifest's columns, and its rows; ``location`` names it.

    Raises FormatError for one that cannot be read, and for a name with another ending.
    """
    lower = name.lower()
    read = next((reader for ending, reader in _KINDS.items() if lower.endswith(ending)), None)
    if read is None:
        raise FormatError(f"{location}: a manifest is {', '.join(_KINDS)}, and ends so.")
    try:
        columns, rows = read(data)
    except MdsError:
        raise
    except Exception as error:  # errors differ by library
        raise FormatError(
            f"{location}: it cannot be read: {str(error).rstrip(chr(46))}."
        ) from error
    if not rows:
        raise FormatError(f"{location}: the manifest has no rows.")
    return columns, rows


def check_paths(rows: Rows, column: str, location: str) -> None:
    """Raise FormatError unless every row has a path that stays below the folder."""
    for number, row in enumerate(rows):
        path = row.get(column)
        if not isinstance(path, str) or not path:
            raise FormatError(
                f"{location}, row {number:,}: column {column!r} has no path. There are "
                f"{', '.join(map(repr, row))}; say with path= which holds the paths."
            )
        try:
            check_key(path)
        except ValueError as error:
            raise FormatError(f"{location}, row {number:,}: {error}") from error


def check_sizes(rows: Rows, column: str, location: str) -> list[int]:
    """Return the size of each row's file. Raises FormatError for a row without one."""
    sizes = [row.get(column) for row in rows]
    for number, size in enumerate(sizes):
        if type(size) is not int or not 0 <= size < _LARGEST_FILE:
            raise FormatError(
                f"{location}, row {number:,}: column {column!r} says {size!r}, which is not a "
                f"number of bytes; say with size= which column holds them, or leave it away."
            )
    return sizes  # type: ignore[return-value]  # each was looked at


def pack_rows(rows: Sequence[Mapping[str, Any]], location: str) -> bytes:
    """Rows as bytes. Raises FormatError for a value that JSON cannot say."""
    import zstandard

    try:
        text = json.dumps(rows)
    except TypeError as error:
        raise FormatError(
            f"{location}: {error}; a manifest holds numbers, texts, and lists of them."
        ) from error
    return zstandard.ZstdCompressor().compress(text.encode())


def unpack_rows(data: bytes, location: str) -> Rows:
    """Return the rows of `pack_rows`. Raises FormatError, which names ``location``, for others."""
    import zstandard

    unpack = zstandard.ZstdDecompressor().decompress
    try:
        rows: Rows = [dict(row) for row in json.loads(unpack(data, max_output_size=_LARGEST_ROWS))]
    except (ValueError, TypeError, RecursionError, zstandard.ZstdError) as error:
        raise FormatError(f"a table of {location} has no rows: {error}. Make it anew.") from error
    return rows


def _parquet(data: bytes) -> tuple[dict[str, str], Rows]:
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependencyError(
            "a manifest of Parquet needs pyarrow: pip install 'mds-streaming[arrow]'."
        ) from error
    table = pq.read_table(io.BytesIO(data), use_threads=False)
    _check_header(table.column_names)
    rows: Rows = table.to_pylist()
    return _columns_of(rows), rows


def _json_lines(data: bytes) -> tuple[dict[str, str], Rows]:
    rows: Rows = []
    # At newlines alone: a text may hold the other characters that end a line of a page.
    for number, line in enumerate(data.decode("utf-8-sig").split("\n"), 1):
        text = line.strip()
        if not text:
            continue
        try:
            row = load_json(text)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number}: expected an object")  # noqa: TRY004
        rows.append(row)
    kinds = _columns_of(rows)
    for row in rows:
        if len(row) < len(kinds):
            row.update(dict.fromkeys(kinds.keys() - row.keys()))
    return kinds, rows


def _delimited(separator: str) -> Callable[[bytes], tuple[dict[str, str], Rows]]:
    def read(data: bytes) -> tuple[dict[str, str], Rows]:
        reader = csv.DictReader(
            io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter=separator, strict=True
        )
        _check_header(reader.fieldnames or ())
        rows: Rows = []
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"line {reader.line_num}: another number of cells than the first")
            rows.append(row)
        kinds = {column.name: column.encoding for column in infer_columns(rows, is_text=True)}
        for name, kind in kinds.items():
            make = {"int": int, "float64": float}.get(kind)
            if make is not None:
                for row in rows:
                    row[name] = make(row[name])
        return kinds, rows

    return read


def _check_header(names: Sequence[str]) -> None:
    for position, name in enumerate(names):
        if not name or name in names[:position]:
            problem = "is there twice" if name else "has no name"
            raise ValueError(
                f"column {position + 1}, {name!r}, {problem}; give every column its own name"
            )


def _columns_of(rows: Rows) -> dict[str, str]:
    """Return encodings that hold the values of all rows; JSON for one that some rows lack."""
    return {column.name: column.encoding for column in infer_columns(rows)}


_KINDS: dict[str, Callable[[bytes], tuple[dict[str, str], Rows]]] = {
    ".parquet": _parquet,
    ".csv": _delimited(","),
    ".tsv": _delimited("\t"),
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
}
