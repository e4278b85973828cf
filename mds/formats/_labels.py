"""A table of labels beside pictures: which picture each of its rows is about.

    photos/labels.csv    file,label         photos/1.jpg    image   path     label
                         1.jpg,cat          photos/2.jpg    ...     1.jpg    cat

A row may name a picture by its path below the root or below the folder of the table, or by its file
name if no other picture has it; each with the ending or without. The column that names the pictures
is the first one in which a value does. It becomes the column ``path``; if the table has another
column of this name, both keep their names.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mds._words import plural
from mds.errors import FormatError, NotFoundError
from mds.formats._facts import DataFile
from mds.formats._raw_files import Rows, fit_rows, read_rows

if TYPE_CHECKING:
    from mds.formats._source import Files

#: Rows in whose values the column of pictures is looked for.
_PROBED_ROWS = 100


class Labels:
    """The rows of a table of labels, by picture.

    Args:
        table: Path of the table below the root.
        rows: Its rows, as they are stored.
        names: Paths of the pictures.

    Raises FormatError for a table that names no picture, or one of them twice, and for a row
    without a name.
    """

    def __init__(self, table: str, rows: Rows, names: Sequence[str]) -> None:
        self.table = table
        name_of = _name_of_text(names, os.path.dirname(table))
        column = _picture_column(rows, name_of, table)
        #: Values by column, for each picture that a row names.
        self.row_of: dict[str, dict[str, Any]] = {}
        #: Names in rows that are of no picture.
        self.unknown: list[str] = []
        for number, (row, values) in enumerate(
            zip(rows, without_names(rows, column), strict=True), 1
        ):
            if column not in row:
                raise FormatError(
                    f"{table}, row {number}: the column {column!r}, which names the image, is "
                    f"missing; the row has {', '.join(map(repr, row)) or 'nothing'}. Add the "
                    "column, or delete the row."
                )
            name = name_of.get(str(row[column]))
            if name is None:
                self.unknown.append(str(row[column]))
            elif name in self.row_of:
                raise FormatError(f"{table}: {name} is named twice in the column {column!r}.")
            else:
                self.row_of[name] = values

    @classmethod
    def read(
        cls,
        table: DataFile,
        files: Files,
        names: Sequence[str],
        nulls: Sequence[str],
        encodings: Mapping[str, str] | None,
    ) -> tuple[Labels, dict[str, str]]:
        """Read a table, and find the pictures of its rows.

        Args:
            table: The table.
            files: Reads it.
            names: Paths of the pictures.
            nulls: Texts of cells that mean a missing value.
            encodings: Encodings that the user gave columns.

        Returns the labels and the encodings of their columns. Raises FormatError for a table that
        cannot be read.
        """
        url = files.url(table)
        try:
            rows, is_text = read_rows(table, files)
        except NotFoundError as error:
            raise FormatError(f"{url}: this table of labels does not exist.") from error
        labels = cls(table.key, rows, names)
        label_rows = [*labels.row_of.values()]
        columns = fit_rows(label_rows, is_text=is_text, nulls=nulls, encodings=encodings)
        if "image" in columns:
            raise column_is_taken(url, "image")
        return labels, columns


def without_names(rows: Rows, column: str) -> Rows:
    """Return the rows of a table without the column that names the files: ``path`` replaces it.

    If the table has a column ``path`` of its own, nothing is left out.
    """
    if column != "path" and any("path" in row for row in rows):
        return rows
    return [{name: row[name] for name in row if name != column} for row in rows]


def column_is_taken(table: str, column: str) -> FormatError:
    """Return the error for a table with a column of the name that the files have."""
    return FormatError(
        f"{table}: the table has a column {column!r}, which is the name of the files' content, "
        "and another column names the files. Rename this column of the table."
    )


def _name_of_text(names: Sequence[str], folder: str) -> dict[str, str]:
    """Return the path of the picture for each text by which a table may name one.

    A table in the folder ``train`` may call ``train/cat/1.jpg`` by this path, by the path from its
    own folder, ``cat/1.jpg``, or by the file name, ``1.jpg``; and each without the ending. A text
    with the ending is looked at first.

    Args:
        names: Paths of the pictures.
        folder: Folder of the table; "" for the root.
    """
    count_of = Counter(map(os.path.basename, names))
    by_name = {base: name for name in names if count_of[base := os.path.basename(name)] == 1}
    if folder:
        prefix = f"{folder}/"
        by_name |= {name[len(prefix) :]: name for name in names if name.startswith(prefix)}
    by_name |= {name: name for name in names}
    by_stem = {os.path.splitext(text)[0]: name for text, name in by_name.items()}
    return by_stem | by_name


def _picture_column(rows: Rows, name_of: Mapping[str, str], table: str) -> str:
    """Return the first column of a table in which a value names a picture. Raises FormatError."""
    for row in rows[:_PROBED_ROWS]:
        for column, value in row.items():
            if isinstance(value, (str, int)) and str(value) in name_of:
                return column
    raise FormatError(
        f"{table}: no column of its first {plural(min(len(rows), _PROBED_ROWS), 'row')} names an "
        "image of the folder. Name another table with labels=, or give a pattern of the pictures, "
        "such as '*.jpg'."
    )
