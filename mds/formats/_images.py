"""Folders of pictures, one sample each.

    photos/cat/1.jpg     class   image                    label
           cat/2.jpg     cat     <bytes of the file>      0
           dog/1.jpg     dog     <bytes of the file>      1

Labels count the classes in alphabetical order. Pictures that are not in the folder of a class have
the columns ``image`` and ``path``, and those of a table of labels beside them (`_labels.py`).
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from mds.errors import ConfigError, FormatError
from mds.formats._facts import DataFile
from mds.formats._labels import Labels
from mds.formats._media import PICTURES, choose_encoding, ending_of
from mds.formats._raw_files import is_table
from mds.formats._rows_of_files import FileRow, ListedRows, RowsOfFiles, find_classes

if TYPE_CHECKING:
    from mds.formats._source import FilePlace, Files

#: Reason for which rows of a table of labels are left out, in plural.
_WITHOUT_PICTURE = "rows of labels without a picture"
#: Names of folders that hold masks, and no class.
_MASKS = re.compile(
    r"(?i)^(?:.*[-_ ])?(?:masks?|labels?|annotations?|annots?|segmentations?|seg|segmentationclass|"
    r"segmentationobject|gt|ground[-_ ]?truths?|depths?|trimaps?)$"
)
#: Number of JSON files in which annotations are looked for, and bytes read at both ends of each.
_MAX_SEARCHED_FILES, _SEARCHED_BYTES = 20, 1 << 16
#: Keys of annotations in the format of COCO.
_COCO = (b'"images"', b'"annotations"', b'"categories"')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFiles(RowsOfFiles):
    """Pictures below a folder, one sample each, in the order of their paths.

    Pictures in a folder per class have the columns ``class``, ``image`` and ``label``, and ``path``
    if ``columns`` names it; others have ``image`` and ``path``. With a table of labels beside them,
    pictures have ``image``, ``path`` and the columns of the table. Images are stored as they are
    and decoded by their content.

    - ``labels`` (str | None, default None): Path of the table of labels below the folder: CSV, TSV,
      JSON Lines or Parquet. None: the only table there.
    - ``null`` (Sequence[str], default ()): Texts of cells of CSV that mean a missing value.
    - ``samples_per_shard`` (int, default 256): Number of consecutive files in a shard. Another
      number changes the order of an epoch.
    - ``encodings`` (Mapping[str, str] | None, default None): Encodings by column.
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode; without
      ``image`` no file is read.

    Raises ConfigError for a number of samples below one.

    >>> StreamingDataset(local="photos", format="images", batch_size=32)  # doctest: +SKIP
    """

    name: ClassVar[str] = "images"
    title: ClassVar[str] = "images"
    revision: ClassVar[int] = 2
    endings: ClassVar[tuple[str, ...]] = tuple(PICTURES)

    labels: str | None = None
    null: Sequence[str] = ()

    def list_rows(self, place: FilePlace, files: Files) -> ListedRows:
        """Return a row for each picture, with its labels or its class."""
        listed = files.find(place)
        table = self._find_table(listed, files)
        candidates = listed if table is None else [file for file in listed if file != table]
        pictures = self.choose(candidates, files)
        keys = [file.key for file in pictures]
        kinds: Counter[str] = Counter()
        for ending, count in Counter(map(ending_of, keys)).items():
            kinds[PICTURES[ending]] += count
        columns = {"image": choose_encoding(kinds), "path": "str"}
        files.column_notes["image"] = _describe_kinds(kinds)
        if self.null and table is None:
            raise ConfigError(
                f"{files.url('')}: null= applies to cells of a table of labels, but there is none. "
                "Leave it out, or name the table with labels=."
            )
        if table is not None and pictures:
            labels, label_columns = Labels.read(table, files, keys, self.null, self.encodings)
            for name in labels.unknown:
                files.leave_out(name, _WITHOUT_PICTURE)
            rows = [_labelled(file, labels) for file in pictures]
            return ListedRows({**columns, **label_columns}, rows)
        classes = find_classes(keys, files, self.takes)
        if classes is None:
            rows = [FileRow({"path": file.key}, {"image": file}) for file in pictures]
            return ListedRows(columns, rows)
        columns |= {"class": "str", "label": "int"}
        rows = [
            FileRow({"path": file.key, **classes.of(file.key)}, {"image": file})
            for file in pictures
        ]
        return ListedRows(columns, rows, extras=("path",), classes=tuple(classes.numbers))

    def _find_table(self, listed: Sequence[DataFile], files: Files) -> DataFile | None:
        """Return the table of labels: the one that is named, else the only one."""
        if self.labels is not None:
            named = [file for file in listed if file.key == self.labels]
            return named[0] if named else DataFile(self.labels, -1)
        candidates = [file for file in listed if not self.takes(file.key)]
        # A pattern that includes pictures need not match the table.
        candidates += [DataFile(key, -1) for key in files.not_included]
        tables = [file for file in candidates if is_table(file.key)]
        return tables[0] if len(tables) == 1 else None


def _describe_kinds(kinds: Counter[str]) -> str:
    """Describe how pictures are stored, with the number of each kind if there are several."""
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    return "stored unchanged" if len(kinds) == 1 else f"{counts}, each stored unchanged"


def _labelled(file: DataFile, labels: Labels) -> FileRow:
    """Return the row of a picture with its labels."""
    values = labels.row_of.get(file.key)
    problem = "" if values is not None else f"{labels.table} has no row for it"
    return FileRow({"path": file.key, **(values or {})}, {"image": file}, problem)


# --------------------------------------------------------------------- folders that are no classes


def refuse_no_classes(keys: Sequence[str], files: Files) -> None:
    """Raise FormatError for pictures with masks or with annotations in the format of COCO.

    It is for folders of pictures whose format the user has not named.

    Args:
        keys: Paths of all files of the folder.
        files: Reads them.
    """
    if any(map(_may_be_masks, {key.rpartition("/")[0] for key in keys})):
        _refuse_masks([key for key in keys if ending_of(key) in PICTURES], files)
    _refuse_annotations([key for key in keys if key.lower().endswith(".json")], files)


def _may_be_masks(folder: str) -> bool:
    """Return True for a folder with a name that folders of masks have."""
    return _MASKS.search(folder.rpartition("/")[2]) is not None


def _refuse_masks(keys: Sequence[str], files: Files) -> None:
    """Raise FormatError if folders hold pictures and their masks instead of classes."""
    stems: dict[str, set[str]] = {}
    for key in keys:
        folder, _, name = key.rpartition("/")
        stems.setdefault(folder, set()).add(os.path.splitext(name)[0])
    for folder, masks in stems.items():
        if not _may_be_masks(folder):
            continue
        for other, names in stems.items():
            # More than half of the masks have the name of a picture.
            if other != folder and len(masks & names) * 2 > len(masks):
                raise FormatError(
                    f"{files.url('')}: {folder} seems to hold masks of the pictures in {other}, "
                    "but a sample has one picture. Write both with MDSWriter (see "
                    "'Pictures with masks or boxes' in docs/writing.md). Or convert one folder "
                    f"with mds-convert {files.url(other)}. If the folders are classes, give "
                    "--format images."
                )


def _refuse_annotations(keys: Sequence[str], files: Files) -> None:
    """Raise FormatError if a JSON file beside pictures has annotations."""
    for key in keys[:_MAX_SEARCHED_FILES]:
        # Such a file may have gigabytes, so only its beginning and its end are read.
        size = files.store.head(key).size
        file = DataFile(key, size)
        text = files.range(file, 0, min(size, _SEARCHED_BYTES))
        text += files.range(file, max(size - _SEARCHED_BYTES, 0), size)
        if sum(name in text for name in _COCO) > 1:
            raise FormatError(
                f"{files.url(key)} has annotations of the pictures (COCO), which mds does "
                "not read. Write pictures and boxes with MDSWriter (see 'Pictures with masks or "
                f"boxes' in docs/writing.md), or leave them out with --exclude '{key}'."
            )
