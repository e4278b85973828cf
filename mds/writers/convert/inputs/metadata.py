"""Folders of pictures or sound with a table of metadata, as Hugging Face and LJSpeech have them.

    metadata.csv or metadata.jsonl, a.wav          audio or image, path, the columns of the table
    train/metadata.csv, test/metadata.csv, ...     the same, with splits
    metadata.csv of id|text|text, wavs/ID.wav      audio, path, id, text, normalized_text (LJSpeech)

The column ``file_name`` of a table has the path of a file, relative to the folder of the table. One
table beside pictures is a table of labels unless ``--as metadata`` is given: `ImagesInput` also
takes tables that call pictures by other names.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from mds.errors import SourceError
from mds.formats.columns import Column, infer_columns
from mds.writers.convert.inputs.base import (
    SPLITS,
    BadRecord,
    Input,
    InputOptions,
    InputPart,
    Record,
)
from mds.writers.convert.inputs.files import AudioInput, WholeFilesInput
from mds.writers.convert.inputs.images import ImagesInput, read_label_rows
from mds.writers.convert.inputs.listing import Listing, ending

_TABLES = ("metadata.csv", "metadata.jsonl")
_FILE_NAME = "file_name"
_LJSPEECH_COLUMNS = ("id", "text", "normalized_text")


class MetadataInput(WholeFilesInput):
    """Pictures or sounds with a row each in a table of metadata."""

    title: ClassVar[str] = "files with a table of metadata"
    takes: ClassVar[frozenset[str]] = frozenset({"labels"})

    def __init__(self, listing: Listing, tables: Sequence[str]) -> None:
        self._tables = tables
        self._rows = _read_tables(listing, tables)
        kind = _media_kind(listing.root, [*self._rows])
        media = [name for name in listing.names if ending(name) in kind.endings]
        if not media:
            raise SourceError(f"{listing.root}: {tables[0]} names no file that was chosen.")
        super().__init__(listing.only(media))
        self._media = kind(self.listing)
        other_files = sorted({*listing.names} - {*media} - {*tables})
        if other_files:
            names = ", ".join(other_files[:3]) + (", ..." if len(other_files) > 3 else "")
            self.notes.append(
                f"{len(other_files):,} other file{'s' * (len(other_files) > 1)} left out ({names})"
            )
        media_names = {*media}
        #: Table of each file that is named and does not exist.
        self._missing = {
            name: table
            for name, (table, _) in self._rows.items()
            if name not in media_names and not os.path.lexists(listing.path(name))
        }
        reserved = {column.name for column in self._media.infer_columns()}
        for table, row in self._rows.values():
            if clash := reserved & row.keys():
                raise SourceError(
                    f"{table}: the column {min(clash)!r} has the name of a column that "
                    "mds-convert adds. Rename it in the table."
                )

    @classmethod
    def recognizes(cls, path: str) -> bool:
        """Return whether a folder has tables that name sounds, several tables, or is LJSpeech."""
        if not os.path.isdir(path):
            return False
        folders = ["", *sorted(SPLITS)]
        names = [posixpath.join(folder, table) for folder in folders for table in _TABLES]
        tables = [name for name in names if os.path.isfile(os.path.join(path, name))]
        if not tables:
            return False
        listing = Listing(path, tables)
        if _is_ljspeech(listing, tables):
            return True
        try:
            rows = read_label_rows(listing, tables[0])
        except SourceError:
            return False
        first = ending(str(rows[0].get(_FILE_NAME, ""))) if rows else ""
        return first in AudioInput.endings or (len(tables) > 1 and first in ImagesInput.endings)

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Open the files of a listing. Raises SourceError if there is no table of metadata."""
        if options.labels is not None:
            return ImagesInput.from_files(listing, options)
        # A pattern of --include that names media does not name the table.
        names = sorted([*listing.names, *listing.not_included])
        tables = [name for name in names if posixpath.basename(name) in _TABLES]
        if not tables:
            raise SourceError(f"{listing.root}: there is no {' or '.join(_TABLES)} in the folder.")
        return cls(listing, tables)

    @property
    def is_text(self) -> bool:  # type: ignore[override]
        """Whether the values of the tables are text, as in CSV."""
        return self._tables[0].endswith(".csv")

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns of the picture or sound and its path, and those of the tables."""
        rows = [row for _, row in self._rows.values()]
        columns = infer_columns(rows, is_text=self.is_text, nulls=self.nulls)
        return sorted([*self._media.infer_columns(), *columns], key=lambda column: column.name)

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Yield runs of files with their rows, then the files that do not exist."""
        number = 0
        for part in super().cut_parts(size):
            rows = {name: self._rows.get(name, ("", None))[1] for name in part.address}
            yield InputPart(part.number, part.size, rows, part.split)
            number = part.number + 1
        if self._missing:
            yield InputPart(number, 0, dict(self._missing), next(iter(self.list_splits()), None))

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield the picture or sound, its path and its row."""
        named = {name: row for name, row in part.address.items() if isinstance(row, str)}
        for name, table in named.items():
            yield name, BadRecord(f"{table} names it, and there is no such file")
        if named:
            return
        for name, record in super().read(part):
            row = part.address[name]
            if isinstance(record, BadRecord):
                yield name, record
            elif row is None:
                yield name, BadRecord(f"no row of {' or '.join(self._tables)} names it")
            else:
                yield name, {**row, **record}

    def sample(self, name: str, data: bytes) -> dict[str, Any] | BadRecord:
        """Return the sample of the picture or sound, without its row."""
        return self._media.sample(name, data)

    def describe(self) -> str:
        """Summarise number of files and bytes, splits and tables."""
        return f"{super().describe()}, rows in {', '.join(self._tables)}"

    def fingerprint(self) -> str:
        """Return a digest of the files and the tables."""
        return f"{self.listing.digest}-{Listing(self.root, self._tables).digest}"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_rows": {}, "_missing": {}}


def _read_tables(listing: Listing, tables: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return table and row of every file that the tables name.

    Raises SourceError for a row without a file of the folder, for a file that is named twice, and
    for tables that do not have the same columns.
    """
    if len({posixpath.splitext(table)[1] for table in tables}) > 1:
        raise SourceError(
            f"{listing.root}: some tables are CSV, others are JSON lines ({', '.join(tables)}). "
            "Keep one of them with --exclude."
        )
    entries: dict[str, tuple[str, dict[str, Any]]] = {}
    columns: dict[str, Sequence[str]] = {}
    for table in tables:
        rows = _read_rows(listing, tables, table)
        if table.endswith(".csv") and rows:
            columns[table] = sorted(rows[0])
            first = tables[0]
            if extra := {*columns[table]} ^ {*columns.get(first, columns[table])}:
                raise SourceError(
                    f"{listing.path(table)}: {first} and this table do not both have the column "
                    f"{min(extra)!r}. Convert their folders one by one."
                )
        for row in rows:
            name = _resolve(listing, table, row)
            if name in entries:
                raise SourceError(f"{listing.path(table)}: {name} is named twice.")
            entries[name] = (table, {key: row[key] for key in row if key != _FILE_NAME})
    if not entries:
        raise SourceError(f"{listing.path(tables[0])}: there is no record to make samples of.")
    return entries


def _read_rows(listing: Listing, tables: Sequence[str], table: str) -> list[dict[str, Any]]:
    if _is_ljspeech(listing, tables):
        return _read_ljspeech(listing.path(table))
    return read_label_rows(listing, table)


def _resolve(listing: Listing, table: str, row: dict[str, Any]) -> str:
    """Return the path of a row's file below the root. Raises SourceError if it has none there."""
    value = row.get(_FILE_NAME)
    if not isinstance(value, str) or not value:
        if _FILE_NAME in row:
            reason = f"is no path ({value!r})"
        else:
            reason = "is missing. The first line of a CSV has to name the columns"
        raise SourceError(f"{listing.path(table)}: the column {_FILE_NAME!r} {reason}.")
    name = posixpath.normpath(posixpath.join(posixpath.dirname(table), value))
    if posixpath.isabs(value) or name.split("/")[0] == "..":
        raise SourceError(f"{listing.path(table)}: {value!r} is outside the folder.")
    return name


def _media_kind(root: str, names: Sequence[str]) -> type[AudioInput | ImagesInput]:
    """Return the input of the files that tables name. Raises SourceError if they are mixed."""
    if all(ending(name) in AudioInput.endings for name in names):
        return AudioInput
    if all(ending(name) in ImagesInput.endings for name in names):
        return ImagesInput
    media_endings = AudioInput.endings | ImagesInput.endings
    other = next((name for name in names if ending(name) not in media_endings), "")
    reason = f"{other} is neither" if other else "it has both"
    raise SourceError(
        f"{root}: a table of metadata is read for pictures or for sounds, and {reason}."
    )


def _is_ljspeech(listing: Listing, tables: Sequence[str]) -> bool:
    """Return whether a folder has a table without a header and the sounds in ``wavs``."""
    if [*tables] != ["metadata.csv"] or not os.path.isdir(listing.path("wavs")):
        return False
    with open(listing.path(tables[0]), "rb") as file:
        return file.readline().count(b"|") == len(_LJSPEECH_COLUMNS) - 1


def _read_ljspeech(path: str) -> list[dict[str, Any]]:
    rows = []
    # Quotes have no meaning in this table, and many of them are not closed.
    with open(path, encoding="utf-8-sig") as file:
        try:
            for number, line in enumerate(file, 1):
                values = line.rstrip("\n").split("|")
                if len(values) != len(_LJSPEECH_COLUMNS):
                    raise SourceError(
                        f"{path}, line {number}: {len(values)} values for "
                        f"{len(_LJSPEECH_COLUMNS)} columns."
                    )
                row = dict(zip(_LJSPEECH_COLUMNS, values, strict=True))
                rows.append({_FILE_NAME: f"wavs/{values[0]}.wav", **row})
        except UnicodeDecodeError as error:
            raise SourceError(f"{path}: this is not UTF-8: {error}.") from error
    return rows
