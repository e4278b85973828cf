"""Folders of images, each stored byte for byte as it is.

    class/photo.jpg                  image, label (number of the class), class (its name)
    train/class/photo.jpg            the same, with the splits that the folders name
    photo.jpg and labels.csv         image, path, and the columns of the table
    photo.jpg                        image, path

The table (CSV, TSV or JSON lines) names the file in one of its columns, the first one whose value
is a file of the folder. Nothing is decoded: the first bytes tell whether a file is an image.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from mds.errors import SourceError
from mds.units import format_bytes
from mds.writers.convert.files import FilesSource
from mds.writers.convert.infer import infer_columns, shown
from mds.writers.convert.listing import Listing, ending
from mds.writers.convert.source import Bad, Column, Part, Record

ENDINGS = {
    ".jpg": "jpeg",
    ".jpeg": "jpeg",
    ".jpe": "jpeg",
    ".png": "png",
    ".webp": "webp",
    ".gif": "gif",
    ".bmp": "bmp",
    ".tif": "tiff",
    ".tiff": "tiff",
}
_SPLITS = {"train", "val", "valid", "validation", "test", "training", "testing", "dev"}
_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")


class ImagesSource(FilesSource):
    """Images in a flat folder: the image and its path."""

    kind: ClassVar[str] = "images"

    def __init__(self, listing: Listing) -> None:
        images = [name for name in listing.names if ending(name) in ENDINGS]
        if not images:
            raise SourceError(f"{listing.root}: no file here ends like an image ({_known()}).")
        left = len(listing) - len(images)
        super().__init__(listing.only(images) if left else listing)
        if left:
            self.notes.append(f"{left} file{'s are' if left > 1 else ' is'} no image and left out")
        self.encoding, note = _encoding(Counter(ENDINGS[ending(name)] for name in images))
        self._note = note

    def columns(self) -> Sequence[Column]:
        """Image and path."""
        return [self._image(), Column("path", "str", shown(self.listing.names[0]))]

    def sample(self, name: str, data: bytes) -> dict[str, Any] | Bad:
        """The image and what is known of it."""
        if not data.startswith(_STARTS):
            return Bad(f"this is no image: it starts with {data[:8]!r}" if data else "it is empty")
        return {"image": data, "path": name}

    def _image(self) -> Column:
        size = format_bytes(self.listing.sizes[0])
        return Column("image", self.encoding, size, self._note)


class ClassesSource(ImagesSource):
    """Images in a folder per class, perhaps below folders that name splits."""

    kind: ClassVar[str] = "image folder"

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        tops = {name.split("/", 1)[0] for name in self.listing.names}
        nested = all(name.count("/") >= 2 for name in self.listing.names)
        self._depth = 1 if nested and tops <= _SPLITS else 0
        self._splits = sorted(tops) if self._depth else []
        classes = {name.split("/")[self._depth] for name in self.listing.names}
        self.classes = {name: number for number, name in enumerate(sorted(classes))}

    def columns(self) -> Sequence[Column]:
        """Class, image and label."""
        name = self.listing.names[0].split("/")[self._depth]
        return [
            Column("class", "str", shown(name)),
            self._image(),
            Column("label", "int", str(self.classes[name]), f"0 to {len(self.classes) - 1}"),
        ]

    def extras(self) -> Sequence[Column]:
        """The path of the image."""
        return [Column("path", "str", shown(self.listing.names[0]))]

    def parts(self, size: int) -> Iterator[Part]:
        """Runs of files, each of one split."""
        number = 0
        listings: Mapping[str | None, Listing] = {None: self.listing}
        if self._splits:
            listings = {each: self._below(each) for each in self._splits}
        for split, listing in listings.items():
            for names, total in listing.batches(size):
                yield Part(number, total, names, split)
                number += 1

    def sample(self, name: str, data: bytes) -> dict[str, Any] | Bad:
        """The image with its class."""
        sample = super().sample(name, data)
        if isinstance(sample, Bad):
            return sample
        label = name.split("/")[self._depth]
        return {**sample, "class": label, "label": self.classes[label]}

    def splits(self) -> Sequence[str]:
        """The folders above the classes."""
        return self._splits

    def describe(self) -> str:
        """Number of files, classes and bytes."""
        classes = f"{len(self.classes)} class{'es' if len(self.classes) != 1 else ''}"
        splits = f", splits {', '.join(self._splits)}" if self._splits else ""
        return f"{self.listing}, {classes}{splits}"

    def _below(self, split: str) -> Listing:
        return self.listing.only([n for n in self.listing.names if n.startswith(split + "/")])


class LabelledSource(ImagesSource):
    """Images whose labels are in a table beside them."""

    kind: ClassVar[str] = "images with a table of labels"

    def __init__(self, listing: Listing, table: str, rows: Sequence[dict[str, Any]]) -> None:
        super().__init__(listing)
        self._table = table
        names = {name: name for name in self.listing.names}
        stems = {os.path.splitext(name)[0]: name for name in self.listing.names}
        column = _file_column(rows, names, stems, table)
        self._labels: dict[str, dict[str, Any]] = {}
        lost = 0
        for row in rows:
            name = names.get(str(row[column])) or stems.get(str(row[column]))
            if name is None:
                lost += 1
            elif name in self._labels:
                raise SourceError(f"{table}: {name} is named twice in the column {column!r}.")
            else:
                self._labels[name] = {key: row[key] for key in row if key != column}
        if lost:
            self.notes.append(f"{lost} of {len(rows)} rows of {table} name no image of the folder")

    @property
    def is_text(self) -> bool:  # type: ignore[override]
        """Numbers of a CSV table are text until a column asks for them."""
        return not self._table.endswith("l")

    def columns(self) -> Sequence[Column]:
        """Image, path and the columns of the table."""
        columns = [*super().columns(), *infer_columns(self._labels.values(), is_text=self.is_text)]
        return sorted(columns, key=lambda column: column.name)

    def parts(self, size: int) -> Iterator[Part]:
        """Runs of files with their rows, which a process that reads a part then needs not hold."""
        for part in super().parts(size):
            rows = {name: self._labels.get(name) for name in part.what}
            yield Part(part.number, part.size, rows)

    def read(self, part: Part) -> Iterator[Record]:
        """Image, path and the row."""
        for name, record in super().read(part):
            row = part.what[name]
            if isinstance(record, Bad):
                yield name, record
            elif row is None:
                yield name, Bad(f"{self._table} has no row for it")
            else:
                yield name, {**row, **record}

    def describe(self) -> str:
        """Number of files, bytes and the table."""
        return f"{self.listing}, labels in {self._table}"

    def fingerprint(self) -> str:
        """Files and table."""
        table = Listing(self.root, [self._table]).digest
        return f"{self.listing.digest}-{table}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_labels": {}}


def _encoding(kinds: Counter[str]) -> tuple[str, str]:
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    if len(kinds) == 1 and (only := next(iter(kinds))) in ("jpeg", "png"):
        return only, "stored as it is"
    if set(kinds) <= {"jpeg", "png"}:
        return kinds.most_common()[0][0], f"{counts}, each stored as it is"
    return "bytes", f"{counts}; image:png has readers open them"


def _file_column(
    rows: Sequence[dict[str, Any]],
    names: Mapping[str, str],
    stems: Mapping[str, str],
    table: str,
) -> str:
    for row in rows[:100]:
        for column, value in row.items():
            if isinstance(value, (str, int)) and (str(value) in names or str(value) in stems):
                return column
    raise SourceError(
        f"{table}: no column of its first {min(len(rows), 100)} rows names an image of the folder."
    )


def _known() -> str:
    return " ".join(sorted(ENDINGS))
