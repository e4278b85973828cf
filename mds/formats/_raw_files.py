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
import dataclasses
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mds._index.table import TABLE_NAME
from mds._shardfile.layout import INDEX_NAME
from mds._words import plural
from mds.errors import (
    ConfigError,
    FormatError,
    MdsError,
    MissingDependencyError,
    StoreError,
)
from mds.formats._columns import infer_columns, without_optional
from mds.formats._csv import Csv
from mds.formats._facts import DataFile, FilePlan, FoundFiles, ShardPlace
from mds.formats._fit import as_json, find_coercer
from mds.formats._lines import JsonLines
from mds.formats._media import media_column
from mds.formats._names import drop_companions
from mds.formats._rows_of_files import (
    ARRAYS,
    FileRow,
    ListedRows,
    RowsOfFiles,
    check_count,
    damaged_table,
    pack_rows,
    unpack_rows,
)
from mds.formats._source import FilePlace
from mds.formats._tar_samples import encoding_by_ending, split_name
from mds.formats._unpack import compression_of, unpack_document
from mds.storage._base import check_key

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.formats._source import Files

#: Column of the content of files that are neither pictures nor sounds.
_CONTENT = "content"
#: Files that belong to an index of the files, not to the files.
_OF_INDEXES = (INDEX_NAME, TABLE_NAME)
#: Files whose sizes are looked up to estimate those of all, and the estimate if none is known.
_LOOKED_AT, _SUPPOSED = 16, 64 << 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawFiles(RowsOfFiles):
    """Files below a folder, one sample each: all of them, or those that a manifest lists.

    With a manifest, a sample has the columns of a row, in the order of the manifest; the column of
    paths is named ``path``. Without one, it has ``path`` and ``bytes``, in the order of the paths.

    - ``manifest`` (str | None, default None): Path of the manifest below the folder: a
      ``.parquet``, ``.csv``, ``.tsv`` or ``.jsonl`` file with a column of paths and any other
      columns.
    - ``path`` (str, default "path"): The column of paths, which are relative to the folder.
    - ``content`` (str | None, default None): Name of the column with the contents of the files.
      None: ``image`` or ``audio`` if all files of a manifest are pictures or sounds, else
      ``content``. The contents are images or text if all paths have such an ending, else bytes.
    - ``size`` (str | None, default None): The column with the size of each file in bytes. Without
      it the sizes of sixteen files are looked up, to estimate the sizes of shards. On Amazon S3,
      fetching a file of known size takes a quarter of the CPU time.
    - ``companions`` (bool, default True): Whether files that describe a dataset, such as README,
      LICENSE, ``_SUCCESS`` and ``.crc``, are samples. False leaves them out if there are others, as
      where the format is detected.
    - ``encodings`` (Mapping[str, str] | None, default None): Encodings by column.
    - ``samples_per_shard`` (int, default 256): Number of consecutive files in a shard. Another
      number changes the order of an epoch.
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode; without the
      contents no file is read.

    Raises ConfigError for a number of samples below one, and for ``companions`` that is no bool or
    has no effect.

    >>> StreamingDataset(
    ...     remote="s3://bucket/photos", format=RawFiles(manifest="labels.parquet"), batch_size=32
    ... )  # doctest: +SKIP
    """

    name: ClassVar[str] = "files"
    title: ClassVar[str] = "files"
    endings: ClassVar[tuple[str, ...]] = ()
    omits_companions: ClassVar[bool] = False

    manifest: str | None = None
    path: str = "path"
    content: str | None = None
    size: str | None = None
    companions: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        # Texts come from a command line. The dataclass is frozen.
        value: Any = self.companions
        flags = {"true": True, "false": False}
        flag = flags.get(value) if isinstance(value, str) else value
        if not isinstance(flag, bool):
            raise ConfigError(f"companions= must be True or False, got {value!r}.")
        if self.manifest is not None and not flag:
            raise ConfigError(
                "companions=False would have no effect, because manifest= lists the files. Leave "
                "it out."
            )
        object.__setattr__(self, "companions", flag)

    @property
    def lists_files(self) -> bool:
        """Return False if a manifest names the files."""
        return self.manifest is None

    def narrow(self, place: FilePlace) -> FilePlace:
        """Narrow the place to the manifest, so that no folder of millions of files is listed."""
        return place if self.manifest is None else FilePlace(place.root, literal=self.manifest)

    def settings(self) -> Mapping[str, Any]:
        """Return all settings but ``size``, which changes no sample, and those without a value.

        ``companions`` is left out if it is True, as in states and indexes of earlier versions.
        ``content`` has its name of files that are neither pictures nor sounds, as in states and
        indexes that know no other.
        """
        settings = {**super().settings(), "content": self.content or (self.manifest and _CONTENT)}
        omitted = {"size", "companions"} if self.companions else {"size"}
        return {
            name: value
            for name, value in settings.items()
            if name not in omitted and (value is not None or name == "missing")
        }

    def takes(self, key: str) -> bool:
        """Return True for the manifest, or for any file if there is no manifest."""
        return key == self.manifest if self.manifest is not None else key not in _OF_INDEXES

    def choose(self, files: Iterable[DataFile], source: Files) -> list[DataFile]:
        """Return the files that are samples, without companions if they are none."""
        chosen_files = super().choose(files, source)
        if self.companions:
            return chosen_files
        return drop_companions(
            chosen_files, lambda file: file.key, source.leave_out, in_subfolders=True
        )

    def find(self, place: FilePlace, source: Files) -> FoundFiles:
        """Find the manifest, or list all files."""
        if self.manifest is not None:
            return FoundFiles(self.choose(source.find(place), source))
        return super().find(place, source)

    def list_rows(self, place: FilePlace, files: Files) -> ListedRows:
        """Return a row for each file of a folder."""
        found_files, column = self.choose(files.find(place), files), self.content or "bytes"
        rows = [FileRow({"path": file.key}, {column: file}) for file in found_files]
        return ListedRows({"path": "str", column: "bytes"}, rows)

    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Cut the rows of the manifest into shards. It is read whole; no file of it is read."""
        if self.manifest is None:
            return super().plan_file(file, files)
        location = files.url(file)
        rows, is_text = read_rows(file, files)
        if not rows:
            raise FormatError(f"{location}: the manifest has no rows.")
        check_paths(rows, self.path, location)
        chosen = {name: each for name, each in (self.encodings or {}).items() if name != self.size}
        columns = fit_rows(rows, is_text=is_text, encodings=chosen)
        content, encoding = self._content_of(rows)
        columns = _named_by_path(columns, self.path)
        self._check_names(columns, rows, content, location)
        # A shard is `step` rows. The note has their rows, packed, one shard after the other; the
        # span of a shard is its part of the note.
        step = self.samples_per_shard
        pieces = [pack_rows(rows[row : row + step], location) for row in range(0, len(rows), step)]
        counts = [min(step, len(rows) - row) for row in range(0, len(rows), step)]
        cuts = range(step, len(rows), step)
        ends = [*itertools.accumulate(map(len, pieces))]
        return FilePlan(
            columns={**columns, content: encoding},
            samples=counts,
            sizes=[int(each.sum()) for each in np.split(self._sizes(rows, location, files), cuts)],
            spans=[(end - len(piece), end) for end, piece in zip(ends, pieces, strict=True)],
            note=b"".join(pieces),
        )

    def shard_of(self, shard: ShardPlace) -> str:
        """Describe a shard by its number of files and its first file."""
        return f"{plural(shard.samples, 'file')} from {self.rows_of(shard)[0].path!r}"

    def rows_of(self, shard: ShardPlace) -> Sequence[FileRow]:
        """Return the rows of a shard, checked since the table may be from anywhere."""
        if self.manifest is None:
            return super().rows_of(shard)
        location = shard.file.key
        rows = unpack_dicts(shard.note[shard.span[0] : shard.span[1]], location)
        check_count(rows, shard)
        check_paths(rows, self.path, location)
        sizes = [-1] * len(rows) if self.size is None else check_sizes(rows, self.size, location)
        # An index has "content" where the user named no column.
        column = self.content or _CONTENT
        if column == _CONTENT:
            column = _default_content(shard, rows)
        return [
            FileRow(_named_by_path(row, self.path), {column: DataFile(row[self.path], size)})
            for row, size in zip(rows, sizes, strict=True)
        ]

    def cut(self, shard: ShardPlace, files: Files, size: int) -> Iterator[ShardPlace]:
        """Yield runs of rows; those of a manifest are few, and their sizes are estimates."""
        if self.manifest is None:
            yield from super().cut(shard, files, size)
        else:
            yield shard

    def _lister(self, shard: ShardPlace) -> str:
        return shard.file.key if self.manifest is not None else ""

    def _check_names(
        self, columns: Mapping[str, str], rows: Rows, content: str, location: str
    ) -> None:
        """Raise FormatError if the manifest itself has a column that is added to it."""
        if content in columns:
            raise FormatError(
                f"{location}: the manifest already has a column {content!r}. Choose another "
                f"name for the bytes of the files with content=."
            )
        if self.path != "path" and "path" in rows[0]:
            raise FormatError(
                f"{location}: the paths of the column {self.path!r} become a column 'path', which "
                "the manifest already has. Rename that one in the manifest."
            )

    def _content_of(self, rows: Rows) -> tuple[str, str]:
        """Return the column of the files' content and its encoding, by the endings of all paths."""
        media = media_column(row[self.path] for row in rows)
        kinds = {encoding_by_ending(split_name(row[self.path])[1]) or "bytes" for row in rows}
        column, encoding = media or (_CONTENT, kinds.pop() if len(kinds) == 1 else "bytes")
        return self.content or column, encoding

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


def _default_content(shard: ShardPlace, rows: Rows) -> str:
    """Return the column of the content of a manifest's files, if the user named none."""
    names = {*shard.columns.names} - {*rows[0]}  # a manifest has no column of this name
    return next((name for name in ("image", "audio") if name in names), _CONTENT)


def _named_by_path(row: Mapping[str, Any], column: str) -> dict[str, Any]:
    """Return a row, or the encodings of one, whose column of paths is named "path"."""
    others = {name: value for name, value in row.items() if name != column}
    return {**others, "path": row[column]}


# --------------------------------------------------------------------- the manifest


Rows = list[dict[str, Any]]

_LARGEST_FILE = 1 << 40
#: Endings of tables.
_CSV, _JSON_LINES = (".csv", ".tsv"), (".jsonl", ".ndjson")
_ENDINGS = (".parquet", *_CSV, *_JSON_LINES)


def read_rows(file: DataFile, files: Files) -> tuple[Rows, bool]:
    """Return the rows of a table that names files, and whether all their values are text.

    Args:
        file: The table, perhaps compressed; the ending of its name is that of its format.
        files: Reads it.

    Raises FormatError for a table that cannot be read, and for a name with another ending.
    """
    location, ending = files.url(file), _ending_of_table(file.key)
    if ending is None:
        raise FormatError(f"{location}: the name of a manifest must end in {', '.join(_ENDINGS)}.")
    if file.size < 0:  # it was not listed
        info = files.store.head(file.key)
        file = DataFile(info.key, info.size, info.version)
    if ending in _CSV:
        return Csv().raw_records(file, files), True
    if ending in _JSON_LINES:
        return JsonLines().raw_records(file, files), False
    try:
        return _read_parquet(unpack_document(files.get(file), location)), False
    except MdsError:
        raise
    except Exception as error:  # errors differ by library
        raise FormatError(
            f"{location}: it cannot be read: {str(error).rstrip(chr(46))}."
        ) from error


def is_table(name: str) -> bool:
    """Return True for the name of a table that `read_rows` reads."""
    return _ending_of_table(name) is not None


def _ending_of_table(name: str) -> str | None:
    """Return the ending of a table without that of a compression; None for another file."""
    lower = name.lower()
    lower = lower.removesuffix(compression_of(lower) or "")
    return next((ending for ending in _ENDINGS if lower.endswith(ending)), None)


def fit_rows(
    rows: Rows,
    *,
    is_text: bool,
    nulls: Sequence[str] = (),
    encodings: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Give the values of rows the types of their columns, and return the encodings by column.

    Values are those of JSON. A column whose encoding the user chose keeps them as they are, until
    its samples are made.

    A value that does not fit is left as it is, so that reading its row raises an error. A row that
    lacks a column has None there.

    Args:
        rows: The rows, which are changed.
        is_text: All values are text, as in CSV.
        nulls: Texts of cells that are None.
        encodings: Encodings that the user gave, by column.
    """
    chosen = encodings or {}
    columns = {
        each.name: each.encoding for each in infer_columns(rows, is_text=is_text, nulls=nulls)
    }
    for name, inferred in columns.items():
        fit = None
        # Arrays and decimals are no JSON: they are made of lists and texts.
        is_json = not without_optional(inferred).startswith((*ARRAYS, "str_decimal"))
        if is_json and name not in chosen:
            fit = find_coercer(inferred, from_text=is_text, plain=not is_text)
        for row in rows:
            value = row.setdefault(name, None)
            if is_text and value in nulls:
                row[name] = None
            elif not is_text and isinstance(value, str) and chosen.get(name) == "json":
                row[name] = json.dumps(value)  # parsed again, as the text of a cell is
            elif fit is not None and value is not None:
                with contextlib.suppress(ValueError):
                    row[name] = fit(value)
    return columns


def check_paths(rows: Rows, column: str, location: str) -> None:
    """Raise FormatError unless every row has a path that stays below the dataset's folder.

    ``column`` is the column of paths, ``location`` names the manifest.
    """
    for number, row in enumerate(rows):
        path = row.get(column)
        if not isinstance(path, str) or not path:
            raise FormatError(
                f"{location}, row {number:,}: column {column!r} has no path. The columns are "
                f"{', '.join(map(repr, row)) or 'none'}; name the one with the paths by path=."
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


def unpack_dicts(data: bytes, location: str) -> Rows:
    """Return rows that are dicts, which `pack_rows` packed. Raises FormatError for other bytes."""
    rows = unpack_rows(data, location)
    if not all(isinstance(row, dict) for row in rows):
        raise damaged_table(location, "a row is no object")
    return rows


def _read_parquet(data: bytes) -> Rows:
    """Return the rows of a Parquet file."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependencyError(
            "a manifest of Parquet needs pyarrow: pip install 'mds-streaming[arrow]'."
        ) from error
    table = pq.read_table(io.BytesIO(data), use_threads=False)
    for position, name in enumerate(table.column_names):
        if name in table.column_names[:position]:
            raise ValueError(f"two columns have the name {name!r}")
    return [
        {
            name: value if isinstance(value, (bytes, Decimal, list, dict)) else as_json(value)
            for name, value in row.items()
        }
        for row in table.to_pylist()
    ]
