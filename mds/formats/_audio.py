"""Folders of sounds, one sample each.

    sounds/cat/1.wav     class   audio                    label   path
           cat/2.flac    cat     <bytes of the file>      0       cat/1.wav

Labels count the classes in alphabetical order, as of pictures. Sounds that are not in the folder of
a class have the columns ``audio`` and ``path``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from mds.formats._media import SOUNDS
from mds.formats._rows_of_files import FileRow, ListedRows, RowsOfFiles, find_classes

if TYPE_CHECKING:
    from mds.formats._source import FilePlace, Files


@dataclasses.dataclass(frozen=True, kw_only=True)
class AudioFiles(RowsOfFiles):
    """Sounds below a folder (WAV, FLAC, MP3, Ogg), one sample each, in the order of their paths.

    If no file has an ending of a sound, all files are read. The columns are ``audio`` (the bytes of
    a file) and ``path``. Sounds in a folder per class also have ``class`` and ``label``, the number
    of the class.

    - ``encodings`` (Mapping[str, str] | None, default None): Encodings by column. With ``{"audio":
      "audio"}`` WAV and FLAC files become their samples and rate.
    - ``samples_per_shard`` (int, default 256): Number of consecutive files in a shard. Another
      number changes the order of an epoch.
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode; without
      ``audio`` no file is read.

    Raises ConfigError for a number of samples below one.

    >>> StreamingDataset(local="sounds", format="audio", batch_size=32)  # doctest: +SKIP
    """

    name: ClassVar[str] = "audio"
    title: ClassVar[str] = "audio"
    endings: ClassVar[tuple[str, ...]] = SOUNDS
    takes_other_endings: ClassVar[bool] = True

    def list_rows(self, place: FilePlace, files: Files) -> ListedRows:
        """Return a row for each sound, with its class if all have one."""
        sounds = self.choose(files.find(place), files)
        columns = {"audio": "bytes", "path": "str"}
        classes = find_classes([file.key for file in sounds], files, self.takes)
        if classes is None:
            rows = [FileRow({"path": file.key}, {"audio": file}) for file in sounds]
            return ListedRows(columns, rows)
        columns |= {"class": "str", "label": "int"}
        rows = [
            FileRow({"path": file.key, **classes.of(file.key)}, {"audio": file}) for file in sounds
        ]
        return ListedRows(columns, rows, classes=tuple(classes.numbers))
