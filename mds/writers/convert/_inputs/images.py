"""Folders of images, each stored byte for byte as it is.

    class/photo.jpg                  image, label (number of the class), class (its name)
    train/class/photo.jpg            the same, with the splits that the folders name
    photo.jpg and labels.csv         image, path, and the columns of the table
    photo.jpg                        image, path

The table is CSV, TSV or JSON lines. Its column of files is the first one in which a value is a file
of the folder. Images are not decoded: their first bytes show whether a file is an image.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from mds._units import format_bytes
from mds.errors import SourceError
from mds.formats._columns import Column, infer_columns, show_value
from mds.formats._images import PICTURE_STARTS, PICTURES, choose_encoding
from mds.writers.convert._inputs.base import BadRecord, Input, InputOptions, InputPart, Record
from mds.writers.convert._inputs.csv import DelimitedTextInput
from mds.writers.convert._inputs.files import FolderClasses, WholeFilesInput
from mds.writers.convert._inputs.format_files import JsonLinesInput
from mds.writers.convert._inputs.listing import Listing, ending

#: Names of folders that hold masks, and no class.
_MASKS = re.compile(
    r"(?i)^(?:.*[-_ ])?(?:masks?|labels?|annotations?|annots?|segmentations?|seg|segmentationclass|"
    r"segmentationobject|gt|ground[-_ ]?truths?|depths?|trimaps?)$"
)
#: Number of JSON files in which annotations are looked for, and bytes read at both ends of each.
_MAX_SEARCHED_FILES, _SEARCHED_BYTES = 20, 1 << 16


class ImagesInput(WholeFilesInput):
    """Images in a flat folder: the image and its path. Other files of the listing are left out."""

    title: ClassVar[str] = "images"
    takes: ClassVar[frozenset[str]] = frozenset({"labels"})
    endings: ClassVar[frozenset[str]] = frozenset(PICTURES)

    def __init__(self, listing: Listing) -> None:
        images = [name for name in listing.names if ending(name) in PICTURES]
        if not images:
            raise SourceError(f"{listing.root}: no file has the ending of an image ({_known()}).")
        other_count = len(listing) - len(images)
        super().__init__(listing.only(images) if other_count else listing)
        if other_count:
            self.notes.append(
                f"left out {other_count} file{'s that are' if other_count > 1 else ' that is'} "
                "not an image"
            )
        # The encoding of the column of images, and the note for it.
        self.encoding, self._note = _encoding(Counter(PICTURES[ending(name)] for name in images))

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Open images with a table of labels, with a class per folder, or with neither."""
        table = options.labels or _table(listing)
        if table is not None:
            return LabelledImagesInput(listing, table, read_label_rows(listing, table))
        pictures = [name for name in listing.names if ending(name) in PICTURES]
        if options.format is None:
            _refuse_masks(listing.root, pictures)
            _refuse_annotations(listing)
        if FolderClasses.are_in(pictures):
            return ImageClassesInput(listing)
        return ImagesInput(listing)

    @classmethod
    def recognizes_mixture(cls, files: Mapping[str, int]) -> bool:
        """Return whether the files are images and one table of labels."""
        tables = files.get("csv", 0) + files.get("jsonl", 0)
        return "images" in files and tables == 1 and {*files} <= {"images", "csv", "jsonl"}

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns of image and path."""
        return [self._image(), Column("path", "str", show_value(self.listing.names[0]))]

    def sample(self, name: str, data: bytes) -> dict[str, Any] | BadRecord:
        """Return the image and its path."""
        if not data.startswith(PICTURE_STARTS):
            return BadRecord(
                f"this is not an image: it starts with {data[:8]!r}" if data else "it is empty"
            )
        return {"image": data, "path": name}

    def _image(self) -> Column:
        size = format_bytes(self.listing.sizes[0])
        return Column("image", self.encoding, size, self._note)


class ImageClassesInput(ImagesInput):
    """Images in a folder per class, perhaps below folders that name splits."""

    title: ClassVar[str] = "image folder"

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        not_included = [name for name in listing.not_included if ending(name) in PICTURES]
        self._classes = FolderClasses(self.listing.names, self.split_of, not_included)

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns of class, image and label."""
        column, label = self._classes.columns(self.listing.names[0])
        return [column, self._image(), label]

    def list_extra_columns(self) -> Sequence[Column]:
        """Return the column of the path, which is written on request."""
        return [Column("path", "str", show_value(self.listing.names[0]))]

    def sample(self, name: str, data: bytes) -> dict[str, Any] | BadRecord:
        """Return the image with its class."""
        sample = super().sample(name, data)
        return sample if isinstance(sample, BadRecord) else {**sample, **self._classes.of(name)}

    def describe(self) -> str:
        """Summarise number of files, classes, bytes and splits."""
        return f"{super().describe()}, {self._classes}"


class LabelledImagesInput(ImagesInput):
    """Images whose labels are in a table beside them.

    - ``table`` (str): The name of the table; ``rows`` (Sequence[dict]): its records.

    The address of a part is a dict with the row of each of its files, or None.
    """

    title: ClassVar[str] = "images with a table of labels"

    def __init__(self, listing: Listing, table: str, rows: Sequence[dict[str, Any]]) -> None:
        super().__init__(listing)
        self._table = table
        # A row may name an image by its path or file name, with or without the ending: `names` and
        # `stems` have the image for each such text.
        names = _short_names(self.listing.names, os.path.dirname(table))
        stems = {os.path.splitext(short)[0]: name for short, name in names.items()}
        column = _file_column(rows, names, stems, table)
        #: The row of each image, without the column that names the image.
        self._labels: dict[str, dict[str, Any]] = {}
        unmatched = 0
        for number, row in enumerate(rows, 1):
            if column not in row:
                raise SourceError(
                    f"{table}, row {number}: the column {column!r}, which names the image, is "
                    f"missing; the row has {', '.join(map(repr, row)) or 'nothing'}. Add the "
                    "column, or delete the row."
                )
            name = names.get(str(row[column])) or stems.get(str(row[column]))
            if name is None:
                unmatched += 1
            elif name in self._labels:
                raise SourceError(f"{table}: {name} is named twice in the column {column!r}.")
            else:
                self._labels[name] = {key: row[key] for key in row if key != column}
        if unmatched:
            self.notes.append(
                f"{unmatched} of {len(rows)} rows of {table} name images that do not exist"
            )

    @property
    def is_text(self) -> bool:  # type: ignore[override]
        """Whether the values of the table are text, as in CSV."""
        return not _is_json_lines(self._table)

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns of image and path, and those of the table."""
        columns = [
            *super().infer_columns(),
            *infer_columns(self._labels.values(), is_text=self.is_text, nulls=self.nulls),
        ]
        return sorted(columns, key=lambda column: column.name)

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Yield runs of files, each with its rows, so that no process needs the whole table."""
        for part in super().cut_parts(size):
            rows = {name: self._labels.get(name) for name in part.address}
            yield InputPart(part.number, part.size, rows, part.split)

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield image, path and row."""
        for name, record in super().read(part):
            row = part.address[name]
            if isinstance(record, BadRecord):
                yield name, record
            elif row is None:
                yield name, BadRecord(f"{self._table} has no row for it")
            else:
                yield name, {**row, **record}

    def describe(self) -> str:
        """Summarise number of files, bytes and the table."""
        return f"{self.listing}, labels in {self._table}"

    def fingerprint(self) -> str:
        """Return a digest of the files and the table."""
        table = Listing(self.root, [self._table]).digest
        return f"{self.listing.digest}-{table}"

    def __getstate__(self) -> dict[str, Any]:
        # Processes that read parts need no labels: each part has those of its files.
        return {**super().__getstate__(), "_labels": {}}


def _encoding(kinds: Counter[str]) -> tuple[str, str]:
    """Return the encoding of a column of images, and a note, given the number of each kind."""
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    encoding = choose_encoding(kinds)
    if encoding != "bytes":
        note = "stored unchanged"
        return encoding, note if len(kinds) == 1 else f"{counts}, each {note}"
    return "bytes", f"{counts}; --encodings image:png lets readers decode them"


def _table(listing: Listing) -> str | None:
    """Return the only table of a folder, or None if there is none or more than one."""
    tables = [
        name
        for name in listing.names
        # The ending of labels.csv.gz is ".csv.gz", and without the compression ".csv".
        if {ending(name), os.path.splitext(ending(name))[0]} & {".csv", ".tsv", ".jsonl"}
    ]
    return tables[0] if len(tables) == 1 else None


def _is_json_lines(table: str) -> bool:
    """Return whether a table of labels is JSON lines, not CSV; it may be compressed."""
    return ending(table).startswith((".jsonl", ".ndjson"))


def read_label_rows(listing: Listing, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table of labels. Raises SourceError for the first bad one."""
    if not os.path.isfile(listing.path(table)):
        raise SourceError(f"{listing.path(table)}: this table of labels does not exist.")
    table_listing = listing.only([table])
    source = (
        JsonLinesInput(table_listing)
        if _is_json_lines(table)
        else DelimitedTextInput(table_listing)
    )
    rows = []
    for part in source.cut_parts(1 << 40):  # a single part
        for position, row in source.read_records(part):
            if isinstance(row, BadRecord):
                raise SourceError(f"{source.locate(part, position)}: {row.why}.")
            rows.append(row)
    return rows


def _short_names(names: Sequence[str], folder: str) -> dict[str, str]:
    """Return the path of the image for each name that a table may use.

    A table in the folder ``train`` may call ``train/cat/1.jpg`` by this path, by the path from its
    own folder, ``cat/1.jpg``, or by the file name, ``1.jpg``. A file name that two images share is
    left out.

    - ``names`` (Sequence[str]): The paths of the images.
    - ``folder`` (str): The folder of the table; "" for the root.
    """
    count_of = Counter(os.path.basename(name) for name in names)
    name_of = {base: name for name in names if count_of[base := os.path.basename(name)] == 1}
    if folder:
        name_of |= {
            name[len(folder) + 1 :]: name for name in names if name.startswith(folder + "/")
        }
    return name_of | {name: name for name in names}


def _file_column(
    rows: Sequence[dict[str, Any]],
    names: Mapping[str, str],
    stems: Mapping[str, str],
    table: str,
) -> str:
    """Return the first column of a table in which a value names an image. Raises SourceError.

    - ``names`` (Mapping), ``stems`` (Mapping): Images by the names that a table may use, and by
      these names without their endings.
    """
    for row in rows[:100]:
        for column, value in row.items():
            if isinstance(value, (str, int)) and (str(value) in names or str(value) in stems):
                return column
    raise SourceError(
        f"{table}: no column of its first {min(len(rows), 100)} rows names an image of the folder."
    )


def _refuse_masks(root: str, pictures: Sequence[str]) -> None:
    """Raise SourceError if folders hold pictures and their masks instead of classes."""
    stems: dict[str, set[str]] = {}
    for name in pictures:
        folder, _, file = name.rpartition("/")
        stems.setdefault(folder, set()).add(os.path.splitext(file)[0])
    for folder, masks in stems.items():
        if not _MASKS.search(folder.rpartition("/")[2]):
            continue
        for other, names in stems.items():
            # More than half of the masks have the name of a picture.
            if other != folder and len(masks & names) * 2 > len(masks):
                raise SourceError(
                    f"{root}: {folder} seems to hold masks of the pictures in {other}, but a "
                    "converted sample has one picture. Write both with MDSWriter (see 'Pictures "
                    "with masks or boxes' in docs/writing.md). Or convert one folder with "
                    f"mds-convert {os.path.join(root, other)}. If the folders are classes, give "
                    "--format images."
                )


def _refuse_annotations(listing: Listing) -> None:
    """Raise SourceError for pictures beside annotations in the format of COCO."""
    tables = [name for name in listing.names if name.lower().endswith(".json")]
    for name in tables[:_MAX_SEARCHED_FILES]:
        with open(listing.path(name), "rb") as file:
            # Such a file may have gigabytes, so only its beginning and its end are read.
            text = file.read(_SEARCHED_BYTES)
            file.seek(max(os.path.getsize(file.name) - _SEARCHED_BYTES, 0))
            text += file.read()
        if sum(f'"{key}"'.encode() in text for key in ("images", "annotations", "categories")) > 1:
            raise SourceError(
                f"{listing.path(name)} has annotations of the pictures (COCO), which mds-convert "
                "does not read. Write pictures and boxes with MDSWriter (see 'Pictures with masks "
                f"or boxes' in docs/writing.md), or leave them out with --exclude '{name}'."
            )


def _known() -> str:
    return " ".join(sorted(PICTURES))
