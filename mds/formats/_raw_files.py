"""Files that are one sample each, listed by a manifest: consecutive files make a shard.

    photos/labels.parquet    path          label        content (read from the file)
                             a/0001.jpg    cat          <bytes of photos/a/0001.jpg>
                             a/0002.jpg    dog          <bytes of photos/a/0002.jpg>

The manifest is a Parquet, CSV, TSV or JSON Lines file with a column of paths and any columns beside
it. The files of a shard are fetched side by side and kept as one MDS file, so a second epoch is as
fast as one of MDS, and the cache holds one file for 256 samples. On a local disk they are read in
place. The rows of the manifest are kept, compressed, in one piece per shard, so reading a shard
does not parse a table of millions of rows.

These pieces are the note of the manifest's plan, and the span of a shard is the first byte of its
piece in the note and the byte after it. `Rows` are rows of the manifest: dicts from column to
value.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import io
import itertools
import json
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mds._readers.codegen import load_json
from mds.errors import (
    ConfigError,
    FormatError,
    MdsError,
    MissingDependencyError,
    NotFoundError,
    StoreError,
)
from mds.formats._base import Format
from mds.formats._columns import infer_columns
from mds.formats._encode import encode_records, sample_encoder
from mds.formats._facts import Block, DataFile, FilePlan, ShardPlace
from mds.formats._made_reader import MadeReader
from mds.formats._source import FilePlace
from mds.formats._tar_samples import encoding_by_ending, split_name
from mds.storage._base import check_key
from mds.storage._files import open_regular

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection
    from mds.formats._source import Files

#: Files whose sizes are looked up to estimate those of all, and the estimate if none is known.
_LOOKED_AT, _SUPPOSED = 16, 64 << 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneFileEach(Format):
    """Base of formats in which each sample is a file, with a row of a table about it.

    A shard is some rows of the table. A format that inherits from this class says how the rows of a
    shard are found (`_rows`) and how their files are fetched (`_fetched`).
    """

    @property
    @abstractmethod
    def _content_column(self) -> str:
        """Name of the column with the contents of the files."""

    @abstractmethod
    def _rows(self, shard: ShardPlace) -> Rows:
        """Return the rows of a shard, checked since the table may be from anywhere."""

    @abstractmethod
    def _fetched(self, rows: Rows, shard: ShardPlace, files: Files) -> Iterator[Mapping[str, Any]]:
        """Yield rows with the contents of their files, fetched side by side, if wanted."""

    @abstractmethod
    def _describe_row(
        self, number: int, row: Mapping[str, Any], location: str, files: Files
    ) -> str:
        """Describe a sample for errors.

        Args:
            number: Number of the row in its shard.
            row: The row itself.
            location: URL of the file that stands for the shard.
            files: Files of the dataset.
        """

    def share(self, shard: ShardPlace) -> float:
        """Return 1, or 0 if the contents of files are not wanted."""
        return 1.0 if self._content_column in shard.columns.names else 0.0

    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block]:
        """Yield the files of a shard, fetched side by side."""
        records = self._fetched(self._rows(shard), shard, files)
        location = f"{files.url(shard.file)}, {self.shard_of(shard)}"
        yield from encode_records(shard.columns, records, location)

    def can_range(self, shard: ShardPlace) -> bool:
        """Return True: a sample is a file."""
        del shard
        return True

    def rows(self, shard: ShardPlace, rows: Sequence[int], files: Files) -> Mapping[int, bytes]:
        """Return the samples of some rows, fetching their files alone."""
        location, encode = files.url(shard.file), sample_encoder(shard.columns)
        rows_of_shard = self._rows(shard)
        records = self._fetched([rows_of_shard[row] for row in rows], shard, files)
        describe = self._describe_row
        return {
            row: encode(
                record, functools.partial(describe, row, rows_of_shard[row], location, files)
            )
            for row, record in zip(rows, records, strict=True)
        }

    def is_read_in_place(self, files: Sequence[DataFile]) -> bool:
        """Return True: a file on a local disk is read when its sample is asked for."""
        del files
        return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawFiles(OneFileEach):
    """Files below a folder, one sample each, in the order of a manifest.

    - ``manifest`` (str): Path of the manifest below the folder: a ``.parquet``, ``.csv``, ``.tsv``
      or ``.jsonl`` file with a column of paths and any other columns.
    - ``path`` (str, default "path"): The column of paths, which are relative to the folder.
    - ``content`` (str, default "content"): Name of the column with the contents of the files. They
      are images or text if all paths have such an ending, else bytes.
    - ``size`` (str | None, default None): The column with the size of each file in bytes. Without
      it the sizes of sixteen files are looked up, to estimate the sizes of shards. On Amazon S3,
      fetching a file of known size takes a quarter of the CPU time.
    - ``samples_per_shard`` (int, default 256): Number of consecutive files in a shard. Another
      number changes the order of an epoch.
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode; without
      ``content`` no file is read.

    Raises ConfigError for a number of samples below one.

    >>> StreamingDataset(
    ...     remote="s3://bucket/photos", format=RawFiles(manifest="labels.parquet"), batch_size=32
    ... )  # doctest: +SKIP
    """

    name: ClassVar[str] = "files"
    endings: ClassVar[tuple[str, ...]] = ()

    manifest: str
    path: str = "path"
    content: str = "content"
    size: str | None = None
    samples_per_shard: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples_per_shard < 1:
            raise ConfigError(f"samples_per_shard={self.samples_per_shard} must be at least 1.")

    @property
    def _content_column(self) -> str:
        return self.content

    def narrow(self, place: FilePlace) -> FilePlace:
        """Narrow the place to the manifest, so that no folder of millions of files is listed."""
        return FilePlace(place.root, literal=self.manifest)

    def settings(self) -> Mapping[str, Any]:
        """Return all settings but ``size``, which changes no sample."""
        return {name: value for name, value in super().settings().items() if name != "size"}

    def takes(self, key: str) -> bool:
        """Whether a key is that of the manifest."""
        return key == self.manifest

    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Cut the rows of the manifest into shards. It is read whole; no file of it is read."""
        location = files.url(file)
        columns, rows = read_manifest(files.get(file), file.key, location)
        if self.content in columns:
            raise FormatError(
                f"{location}: the manifest already has a column {self.content!r}. Choose another "
                f"name for the bytes of the files with content=."
            )
        check_paths(rows, self.path, location)
        # A shard is `step` rows. The note has their rows, packed, one shard after the other; the
        # span of a shard is its part of the note.
        step = self.samples_per_shard
        pieces = [pack_rows(rows[row : row + step], location) for row in range(0, len(rows), step)]
        counts = [min(step, len(rows) - row) for row in range(0, len(rows), step)]
        cuts = range(step, len(rows), step)
        ends = [*itertools.accumulate(map(len, pieces))]
        return FilePlan(
            columns={**columns, self.content: _content_of(rows, self.path)},
            samples=counts,
            sizes=[int(each.sum()) for each in np.split(self._sizes(rows, location, files), cuts)],
            spans=[(end - len(piece), end) for end, piece in zip(ends, pieces, strict=True)],
            note=b"".join(pieces),
        )

    def shard_of(self, shard: ShardPlace) -> str:
        """Describe a shard by its number of files and its first file."""
        return f"{shard.samples:,} files from {self._rows(shard)[0].get(self.path)!r}"

    def reader(self, shard: ShardPlace, path: str, columns: ColumnSelection) -> Reader:
        """Return a reader that opens a file for each sample.

        ``path`` is the local path of the manifest, from which the dataset's folder follows.
        """
        root = path[: -len(shard.file.key)]
        rows, encode = self._rows(shard), sample_encoder(shard.columns)
        reads_files = self.content in shard.columns.names

        def mds_bytes(row: int) -> bytes:
            """Return the bytes of a sample as in an MDS shard; read its file if that is wanted."""
            record = rows[row]
            if reads_files:
                place = os.path.join(root, record[self.path])
                try:
                    with open_regular(place) as file:
                        record = {**record, self.content: file.read()}
                except (FileNotFoundError, NotADirectoryError) as error:
                    raise self._missing(path, record[self.path], place) from error
                except OSError as error:
                    raise FormatError(
                        f"{path}: the file {record[self.path]!r} of a row cannot be read: "
                        f"{error.strerror}. Remove the row, or add the file."
                    ) from error
            return encode(record, lambda: f"{path}, row of {rows[row][self.path]!r}")

        return MadeReader(shard.columns, shard.samples, path, mds_bytes, columns)

    def _fetched(self, rows: Rows, shard: ShardPlace, files: Files) -> Iterator[Mapping[str, Any]]:
        """Yield rows of the manifest with the contents of their files, fetched side by side."""
        if self.content not in shard.columns.names:
            yield from rows
            return
        location = files.url(shard.file)

        def fetch(row: Mapping[str, Any]) -> Mapping[str, Any]:
            """Return a row of the manifest with the content of its file as a further column."""
            path = row[self.path]
            size = row[self.size] if self.size else -1
            try:
                # A range avoids the costly way in which SDKs fetch whole objects.
                file = DataFile(path, size)
                data = files.range(file, 0, size) if size > 0 else files.get(file)
            except NotFoundError as error:
                raise self._missing(location, path, files.url(path)) from error
            return {**row, self.content: data}

        yield from files.map(fetch, rows)

    def _sizes(self, rows: Rows, location: str, files: Files) -> npt.NDArray[np.int64]:
        """Return the size of each file, int64: from the manifest, or the mean of some files."""
        if self.size is not None:
            return np.array(check_sizes(rows, self.size, location), np.int64)
        step = -(-len(rows) // _LOOKED_AT)  # so that sixteen files, spread evenly, are looked up

        def look(row: Mapping[str, Any]) -> int:
            """Return the size of a row's file, or -1 if it cannot be looked up."""
            with contextlib.suppress(StoreError):  # reading the file reports the error
                return files.store.head(row[self.path]).size
            return -1

        sizes = [size for size in files.map(look, rows[::step]) if size >= 0]
        return np.full(len(rows), sum(sizes) // len(sizes) if sizes else _SUPPOSED)

    def _rows(self, shard: ShardPlace) -> Rows:
        """Return the manifest rows of a shard, checked since the table may be from anywhere."""
        location = shard.file.key
        rows = unpack_rows(shard.note[shard.span[0] : shard.span[1]], location)
        if len(rows) != shard.samples:
            raise FormatError(
                f"the table of files has {len(rows):,} rows for a shard of {shard.samples:,} in "
                f"{location}. Delete the table, or run mds index again."
            )
        check_paths(rows, self.path, location)
        if self.size is not None:
            check_sizes(rows, self.size, location)
        return rows

    def _describe_row(
        self, number: int, row: Mapping[str, Any], location: str, files: Files
    ) -> str:
        """Name the row of the manifest."""
        del row, files
        return f"{location}, sample {number}"

    @staticmethod
    def _missing(location: str, path: str, url: str) -> NotFoundError:
        """Return the error for a file that the manifest lists and that does not exist."""
        return NotFoundError(
            f"get {url}: there is no such file, but {location} has a row with {path!r}. Remove the "
            f"row, or add the file.",
            url=url,
            verb="get",
        )


def _content_of(rows: Rows, path: str) -> str:
    """Return the encoding of the files' content by their endings; "bytes" if these differ.

    ``path`` is the name of the column of paths in the manifest's rows.
    """
    kinds = {encoding_by_ending(split_name(row[path])[1]) or "bytes" for row in rows}
    return kinds.pop() if len(kinds) == 1 else "bytes"


# --------------------------------------------------------------------- the manifest


Rows = list[dict[str, Any]]

_LARGEST_FILE = 1 << 40
_LARGEST_ROWS = 1 << 30  # bytes of the rows of a shard as JSON


def read_manifest(data: bytes, name: str, location: str) -> tuple[dict[str, str], Rows]:
    """Return the encodings of a manifest's columns by name, and its rows.

    - ``data`` (bytes): Content of the manifest.
    - ``name`` (str): Its file name, whose ending is that of its format.
    - ``location`` (str): Its URL, for errors.

    Raises FormatError for a manifest that cannot be read, and for a name with another ending.
    """
    lower = name.lower()
    read = next((reader for ending, reader in _READERS.items() if lower.endswith(ending)), None)
    if read is None:
        raise FormatError(f"{location}: the name of a manifest must end in {', '.join(_READERS)}.")
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
    """Raise FormatError unless every row has a path that stays below the dataset's folder.

    ``column`` is the column of paths, ``location`` names the manifest.
    """
    for number, row in enumerate(rows):
        path = row.get(column)
        if not isinstance(path, str) or not path:
            raise FormatError(
                f"{location}, row {number:,}: column {column!r} has no path. The columns are "
                f"{', '.join(map(repr, row))}; name the one with the paths by path=."
            )
        try:
            check_key(path)
        except ValueError as error:
            raise FormatError(f"{location}, row {number:,}: {error}") from error


def check_sizes(rows: Rows, column: str, location: str) -> list[int]:
    """Return the size of each row's file in bytes. Raises FormatError for a row without a size.

    ``column`` is the column of sizes, ``location`` names the manifest.
    """
    sizes = [row.get(column) for row in rows]
    for number, size in enumerate(sizes):
        if type(size) is not int or not 0 <= size < _LARGEST_FILE:
            raise FormatError(
                f"{location}, row {number:,}: column {column!r} has {size!r}, which is not a "
                f"number of bytes. Name the column of sizes with size=, or leave size= out."
            )
    return sizes  # type: ignore[return-value]  # each was looked at


def pack_rows(rows: Sequence[Mapping[str, Any]], location: str) -> bytes:
    """Compress rows as JSON. Raises FormatError for a value that JSON does not have."""
    import zstandard

    try:
        text = json.dumps(rows)
    except TypeError as error:
        raise FormatError(
            f"{location}: {error}; a manifest may have numbers, texts, and lists of them."
        ) from error
    return zstandard.ZstdCompressor().compress(text.encode())


def unpack_rows(data: bytes, location: str) -> Rows:
    """Return the rows that `pack_rows` packed. Raises FormatError for other bytes."""
    import zstandard

    unpack = zstandard.ZstdDecompressor().decompress
    try:
        rows: Rows = [dict(row) for row in json.loads(unpack(data, max_output_size=_LARGEST_ROWS))]
    except (ValueError, TypeError, RecursionError, zstandard.ZstdError) as error:
        raise FormatError(
            f"the table of files has no rows of {location}: {error}. Delete the table, or run mds "
            "index again."
        ) from error
    return rows


def _read_parquet(data: bytes) -> tuple[dict[str, str], Rows]:
    """Return the encodings of the columns, and the rows, of a Parquet file."""
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


def _read_json_lines(data: bytes) -> tuple[dict[str, str], Rows]:
    """Return the encodings of the columns, and the rows, of a JSON Lines file."""
    rows: Rows = []
    # Not splitlines(): texts may hold the other characters at which it splits.
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
    for row in rows:  # a column that a row lacks is None there
        if len(row) < len(kinds):
            row.update(dict.fromkeys(kinds.keys() - row.keys()))
    return kinds, rows


def _read_delimited(separator: str) -> Callable[[bytes], tuple[dict[str, str], Rows]]:
    """Return a function that reads a CSV file with this separator."""

    def read(data: bytes) -> tuple[dict[str, str], Rows]:
        """Return the encodings of the columns, and the rows with their numbers parsed."""
        reader = csv.DictReader(
            io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter=separator, strict=True
        )
        _check_header(reader.fieldnames or ())
        rows: Rows = []
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"line {reader.line_num} does not have as many cells as the first")
            rows.append(row)
        kinds = {column.name: column.encoding for column in infer_columns(rows, is_text=True)}
        for name, kind in kinds.items():
            parse_number = {"int": int, "float64": float}.get(kind)
            if parse_number is not None:
                for row in rows:
                    row[name] = parse_number(row[name])
        return kinds, rows

    return read


def _check_header(names: Sequence[str]) -> None:
    """Raise ValueError for a column without a name, and for a name that occurs twice."""
    for position, name in enumerate(names):
        if not name or name in names[:position]:
            problem = "exists twice" if name else "has no name"
            raise ValueError(
                f"column {position + 1} ({name!r}) {problem}; give every column its own name"
            )


def _columns_of(rows: Rows) -> dict[str, str]:
    """Return encodings that hold the values of all rows; JSON for one that some rows lack."""
    return {column.name: column.encoding for column in infer_columns(rows)}


_READERS: dict[str, Callable[[bytes], tuple[dict[str, str], Rows]]] = {
    ".parquet": _read_parquet,
    ".csv": _read_delimited(","),
    ".tsv": _read_delimited("\t"),
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
}
