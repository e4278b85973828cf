"""Pictures or sounds with a row each in a table of metadata.

    metadata.csv or metadata.jsonl, a.wav             audio or image, path, columns of the table
    train/metadata.csv, test/metadata.csv, ...        the same, with splits
    train.tsv, test.tsv, clips/a.mp3                  the same; tables of another name, which give
                                                      the splits if all are named after one
    metadata.csv of id|text|text, wavs/ID.wav         audio, path, id, text, normalized_text

Tables are CSV, TSV, JSON Lines or Parquet. The column ``file_name`` of ``metadata.*``, else the
first column in which a value is a file, has the path of a file. It is relative to the folder of the
table, or to the one folder that has the files. It becomes the column ``path``; if the table has
another column of this name, both keep their names.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from mds._words import plural
from mds.errors import FormatError
from mds.formats._labels import column_is_taken, without_names
from mds.formats._media import PICTURES, SOUNDS, ending_of, media_column
from mds.formats._names import find_splits, split_folder, split_in_name
from mds.formats._raw_files import Rows, fit_rows, is_table, read_rows
from mds.formats._rows_of_files import FileRow, ListedRows, RowsOfFiles, missing_reason

if TYPE_CHECKING:
    from mds.formats._facts import DataFile
    from mds.formats._source import FilePlace, Files

#: Name of a table as Hugging Face knows it, without its ending.
_METADATA = "metadata"
_FILE_NAME = "file_name"
_LJSPEECH = "metadata.csv"
_LJSPEECH_COLUMNS = ("id", "text", "normalized_text")
#: Reason for which a file is left out, in plural.
UNLISTED = "files that no table lists"
#: Rows in whose values the column of files is looked for.
_PROBED_ROWS = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetadataFiles(RowsOfFiles):
    """Pictures or sounds below a folder, each with a row of a table there.

    The columns are ``image`` or ``audio``, ``path``, and those of the table but the one that names
    the files. Samples are in the order of the paths.

    - ``labels`` (str | None, default None): Path of the table below the folder. None: the tables
      named ``metadata``, else those that name files of the folder.
    - ``null`` (Sequence[str], default ()): Texts of cells of CSV that mean a missing value.
    - ``samples_per_shard`` (int, default 256): Number of consecutive rows in a shard. Another
      number changes the order of an epoch.
    - ``encodings`` (Mapping[str, str] | None, default None): Encodings by column.
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode; without the
      pictures or sounds no file is read.

    Raises ConfigError for a number of samples below one.

    >>> StreamingDataset(local="speech", format="metadata", batch_size=32)  # doctest: +SKIP
    """

    name: ClassVar[str] = "metadata"
    title: ClassVar[str] = "files with a table of metadata"
    endings: ClassVar[tuple[str, ...]] = ()

    labels: str | None = None
    null: Sequence[str] = ()

    def takes(self, key: str) -> bool:
        """Return True: a file may be a table, or named by one."""
        del key
        return True

    def list_rows(self, place: FilePlace, files: Files) -> ListedRows:
        """Return a row for each picture or sound, and for each row of a table without its file."""
        file_of = {file.key: file for file in self.choose(files.find(place), files)}
        tables = _Tables.read(self.labels, file_of, files)
        column, encoding, endings = _media_of([*tables.row_of], files.url(""))
        media = [key for key in file_of if ending_of(key) in endings]
        if not media:
            raise FormatError(f"{files.url('')}: {tables.keys[0]} lists none of the chosen files.")
        if (known := media_column(media)) is not None:
            encoding = known[1]
        for key in sorted({*file_of} - {*media} - {*tables.keys}):
            files.leave_out(key, "files of another kind")
        columns = _columns_of(tables, column, self.null, self.encodings, files)
        rows = self._rows_of_media(media, column, tables, file_of, files)
        lost_rows = [
            FileRow({"path": key}, {}, missing_reason(table))
            for key, (table, _) in sorted(tables.row_of.items())
            if key not in file_of and not _exists(files, key)
        ]
        split_of = tables.split_of([row.path for row in rows])
        # A row without its file is no sample of any split: the first one reports it.
        first_split = min(split_of.values(), default="")
        split_of |= {row.path: first_split for row in lost_rows if split_of}
        columns = {"path": "str", **columns, column: encoding}
        return ListedRows(columns, [*rows, *lost_rows], split_of)

    @staticmethod
    def _rows_of_media(
        media: Sequence[str],
        column: str,
        tables: _Tables,
        file_of: Mapping[str, DataFile],
        files: Files,
    ) -> list[FileRow]:
        """Return the rows of the pictures or sounds that exist."""
        rows = []
        for key in media:
            if key in tables.row_of:
                values = {"path": key, **tables.row_of[key][1]}
                rows.append(FileRow(values, {column: file_of[key]}))
            elif tables.are_splits:
                files.leave_out(key, UNLISTED)
            else:
                reason = f"no row of {' or '.join(tables.keys)} lists it"
                rows.append(FileRow({"path": key}, {column: file_of[key]}, reason))
        return rows


class _Tables(NamedTuple):
    """The tables of a folder.

    - ``keys``: their paths.
    - ``row_of``: path of a table and its row, for each file that a table names.
    - ``is_text``: whether all values are text, as in CSV.
    - ``are_splits``: whether each table is named after a split.
    """

    keys: Sequence[str]
    row_of: Mapping[str, tuple[str, dict[str, Any]]]
    is_text: bool
    are_splits: bool = False

    @classmethod
    def read(cls, labels: str | None, file_of: Mapping[str, DataFile], files: Files) -> _Tables:
        """Read the tables that name files of a folder. Raises FormatError if there are none."""
        # A pattern that includes files need not match the tables.
        known_keys = sorted({*file_of, *files.not_included})
        keys = _find_tables(labels, known_keys, files)
        kinds = sorted({_kind_of(key) for key in keys})
        if len(kinds) > 1:
            raise FormatError(
                f"{files.url('')}: some tables are {kinds[0]}, others are {kinds[1]} "
                f"({', '.join(keys)}). Keep one of them with --exclude."
            )
        splits = find_splits(keys, by_file=True)
        media = {key for key in known_keys if ending_of(key) in {*PICTURES, *SOUNDS}}
        row_of: dict[str, tuple[str, dict[str, Any]]] = {}
        first_columns: list[str] = []
        is_text = False
        for key in keys:
            url = files.url(key)
            if keys == [_LJSPEECH] and _is_ljspeech(known_keys, files):
                is_text, rows = True, _read_ljspeech(files)
            else:
                rows, is_text = read_rows(file_of.get(key, _unlisted(key)), files)
            if not rows:
                continue  # its columns are unknown, and nothing is compared
            if is_text:
                first_columns = first_columns or sorted(rows[0])
                if extra := {*rows[0]} ^ {*first_columns}:
                    raise FormatError(
                        f"{url}: only one of {keys[0]} and this table has the column "
                        f"{min(extra)!r}. Convert their folders one by one."
                    )
            name_column = _FILE_NAME if _is_metadata(key) else _file_column(rows, media, url)
            folder = _folder_of(key, rows, name_column, media)
            for row, values in zip(rows, without_names(rows, name_column), strict=True):
                name = _resolve(folder, row, name_column, url)
                if name in row_of:
                    raise FormatError(f"{url}: {name} is listed twice.")
                row_of[name] = key, values
        if not row_of:
            raise FormatError(f"{files.url(keys[0])}: there are no records to convert.")
        are_splits = bool(splits) and not any(map(_is_metadata, keys))
        return cls(keys, row_of, is_text, are_splits)

    def split_of(self, names: Sequence[str]) -> dict[str, str]:
        """Return the split of each file, by the tables that are named after splits or by folder."""
        if self.are_splits:
            split_of_table = find_splits(self.keys, by_file=True)
            return {name: split_of_table[self.row_of[name][0]] for name in names}
        return find_splits(names, by_file=False)


def _find_tables(labels: str | None, keys: Sequence[str], files: Files) -> list[str]:
    """Return the paths of the tables of a folder. Raises FormatError if there are none."""
    if labels is not None:
        if labels not in keys:
            raise FormatError(f"{files.url(labels)}: this table of labels does not exist.")
        return [labels]
    tables = [key for key in keys if is_table(key)]
    named_tables = [key for key in tables if _is_metadata(key)]
    if named_tables:
        return named_tables
    # Of train.tsv, test.tsv and other.tsv, those that are named after splits.
    splits = [key for key in tables if _split_of_table(key)]
    if len(splits) > 1 or len(tables) == 1:
        return splits if len(splits) > 1 else tables
    if tables:
        raise FormatError(
            f"{files.url('')}: there are several tables ({', '.join(tables)}), none of which is "
            "named metadata. Name the one with the files by labels=."
        )
    raise FormatError(f"{files.url('')}: there is no metadata.csv or metadata.jsonl in the folder.")


def _split_of_table(key: str) -> str | None:
    """Return the split that a table is named after, by its folder or its own name."""
    *folders, name = key.split("/")
    return split_folder(folders) or split_in_name(name)


def _columns_of(
    tables: _Tables,
    column: str,
    nulls: Sequence[str],
    encodings: Mapping[str, str] | None,
    files: Files,
) -> dict[str, str]:
    """Return the encodings of the columns of the tables, and give their values these types.

    Raises FormatError if a table has a column of the name of the pictures or sounds.
    """
    rows = [row for _, row in tables.row_of.values()]
    table = next((table for table, row in tables.row_of.values() if column in row), None)
    if table is not None:
        raise column_is_taken(files.url(table), column)
    return fit_rows(rows, is_text=tables.is_text, nulls=nulls, encodings=encodings)


def describe_sounds(tables: Sequence[str], sounds: Sequence[str], files: Files) -> bool:
    """Return True if tables beside sounds are about the sounds, so that they can be joined.

    A table named ``metadata`` must have a column of paths. Of tables with other names, one alone
    must have a row for each sound and for no other file; those of splits, a row for some of them.

    Args:
        tables: Paths of the tables.
        sounds: Paths of the sounds.
        files: Reads the tables.
    """
    tables = [key for key in tables if is_table(key)]
    if named_tables := [key for key in tables if _is_metadata(key)]:
        return any(_has_paths(key, sounds, files) for key in named_tables)
    file_of = {key: _unlisted(key) for key in (*tables, *sounds)}
    try:
        joined = _Tables.read(None, file_of, files)
    except FormatError:
        return False
    if any("audio" in row for _, row in joined.row_of.values()):
        return False
    named_files = {*joined.row_of}
    return named_files <= {*sounds} if joined.are_splits else named_files == {*sounds}


def _has_paths(table: str, sounds: Sequence[str], files: Files) -> bool:
    """Return True if a table named ``metadata`` has a column of paths, or is that of LJSpeech."""
    if table == _LJSPEECH and _is_ljspeech(sounds, files):
        return True
    try:
        rows, _ = read_rows(_unlisted(table), files)
    except FormatError:  # a line further down may be damaged, which reading it reports
        return _FILE_NAME.encode() in files.get(_unlisted(table))
    return bool(rows) and _FILE_NAME in rows[0]


def _is_metadata(key: str) -> bool:
    """Return True for a table of the name that Hugging Face gives it."""
    return posixpath.basename(key).lower().partition(".")[0] == _METADATA


def _kind_of(table: str) -> str:
    """Return the kind of a table in words."""
    kinds = {".csv": "CSV", ".tsv": "TSV", ".parquet": "Parquet"}
    return kinds.get(ending_of(table), "JSON lines")


def _media_of(names: Sequence[str], root: str) -> tuple[str, str, tuple[str, ...]]:
    """Return column, encoding and endings of the files that tables name.

    Raises FormatError unless all are pictures, or all are sounds.
    """
    media = media_column(names)
    if media is not None:
        return (*media, SOUNDS if media[0] == "audio" else tuple(PICTURES))
    other = next((name for name in names if ending_of(name) not in {*PICTURES, *SOUNDS}), "")
    reason = f"{other} is neither" if other else "this one lists both"
    raise FormatError(f"{root}: a table of metadata must list pictures or sounds, but {reason}.")


def _file_column(rows: Rows, media: set[str], url: str) -> str:
    """Return the first column of a table in which a value names a file of the folder."""
    names = {posixpath.basename(key) for key in media}
    for row in rows[:_PROBED_ROWS]:
        for column, value in row.items():
            if isinstance(value, str) and posixpath.basename(value) in names:
                return column
    raise FormatError(
        f"{url}: no column of its first {plural(min(len(rows), _PROBED_ROWS), 'row')} names a "
        "picture or a sound of the folder."
    )


def _folder_of(table: str, rows: Rows, column: str, media: set[str]) -> str:
    """Return the folder below the root that the paths in a table are relative to.

    It is the folder of the table if the files are there, else the one folder that has them.
    """
    own_folder = posixpath.dirname(table)
    keys_by_name: dict[str, list[str]] = {}
    for key in media:
        keys_by_name.setdefault(posixpath.basename(key), []).append(key)
    folders: set[str] = set()
    for row in rows[:_PROBED_ROWS]:
        path = posixpath.normpath(str(row.get(column)))
        if posixpath.join(own_folder, path) in media:
            return own_folder
        folders |= {
            key.removesuffix(path).rstrip("/")
            for key in keys_by_name.get(posixpath.basename(path), ())
            if f"/{key}".endswith(f"/{path}")
        }
    return folders.pop() if len(folders) == 1 else own_folder


def _resolve(folder: str, row: Mapping[str, Any], column: str, url: str) -> str:
    """Return the path below the root of the file that a row names.

    Raises FormatError if there is none, or if it is outside the root.

    Args:
        folder: The folder that paths of the table are relative to.
        row: The row.
        column: The column of paths.
        url: URL of the table.
    """
    value = row.get(column)
    if not isinstance(value, str) or not value:
        if column in row:
            reason = f"must have paths, got {value!r}"
        else:
            reason = "is missing. The first line of a CSV must name the columns"
        raise FormatError(f"{url}: the column {column!r} {reason}.")
    name = posixpath.normpath(posixpath.join(folder, value))
    if posixpath.isabs(value) or name.split("/")[0] == "..":
        raise FormatError(f"{url}: {value!r} is outside the folder.")
    return name


def _is_ljspeech(keys: Sequence[str], files: Files) -> bool:
    """Return True if a folder has sounds in ``wavs``, and a table without a header."""
    if not any(key.startswith("wavs/") for key in keys):
        return False
    line = files.get(_unlisted(_LJSPEECH)).partition(b"\n")[0]
    return line.count(b"|") == len(_LJSPEECH_COLUMNS) - 1


def _read_ljspeech(files: Files) -> Rows:
    """Return the rows of the table of LJSpeech: lines of id|text|text, for the file wavs/ID.wav.

    Raises FormatError for a line that is not of this form.
    """
    url, data = files.url(_LJSPEECH), files.get(_unlisted(_LJSPEECH))
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"{url}: this is not UTF-8: {error}.") from error
    rows: Rows = []
    # Quotes have no meaning in this table, and many of them are not closed.
    for number, line in enumerate(lines[:-1] if not lines[-1] else lines, 1):
        values = line.rstrip("\r").split("|")
        if len(values) != len(_LJSPEECH_COLUMNS):
            raise FormatError(
                f"{url}, line {number}: {plural(len(values), 'value')} for "
                f"{len(_LJSPEECH_COLUMNS)} columns."
            )
        row = dict(zip(_LJSPEECH_COLUMNS, values, strict=True))
        rows.append({_FILE_NAME: f"wavs/{values[0]}.wav", **row})
    return rows


def _unlisted(key: str) -> DataFile:
    """Return a file of which nothing but its path is known."""
    from mds.formats._facts import DataFile

    return DataFile(key, -1)


def _exists(files: Files, key: str) -> bool:
    """Return True if a file that was not listed is on the disk: it is hidden or not included."""
    path = files.path(_unlisted(key))
    return key in files.not_included or (path is not None and os.path.lexists(path))
