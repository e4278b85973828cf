"""Folders of text files, each of which is one sample.

    books/a.txt       path     text
          b.md        a.txt    <all of its text>

A compressed file is decompressed. A byte order mark is not part of a text.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from mds.formats._names import TEXTS
from mds.formats._rows_of_files import FileRow, ListedRows, RowsOfFiles
from mds.formats._unpack import packed_endings

if TYPE_CHECKING:
    from mds.formats._source import FilePlace, Files

#: Size in bytes from which on a note says that a document is one sample.
_LONG_DOCUMENT = 256 << 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFiles(RowsOfFiles):
    """Text files below a folder, each a sample with ``path`` and ``text``, in order of paths.

    Files with the ending of a text or of source code are read; if there are none, all files.

    - ``encoding`` (str, default "utf-8"): Encoding of the texts, such as ``"cp1252"``.
    - ``samples_per_shard`` (int, default 256): Number of consecutive files in a shard. Another
      number changes the order of an epoch.
    - ``encodings`` (Mapping[str, str] | None, default None): Encodings by column.
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode; without ``text``
      no file is read.

    Raises ConfigError for a number of samples below one.

    >>> StreamingDataset(local="books", format="text", batch_size=32)  # doctest: +SKIP
    """

    name: ClassVar[str] = "text"
    title: ClassVar[str] = "text documents"
    endings: ClassVar[tuple[str, ...]] = packed_endings(*TEXTS)
    takes_other_endings: ClassVar[bool] = True

    encoding: str = "utf-8"

    @classmethod
    def recorded_name(cls) -> str:
        """Return the name in states: "text" was the name of files whose lines are samples."""
        return "documents"

    @property
    def _text_encoding(self) -> str:
        return self.encoding

    def list_rows(self, place: FilePlace, files: Files) -> ListedRows:
        """Return a row for each text file."""
        documents = self.choose(files.find(place), files)
        rows = [FileRow({"path": file.key}, {"text": file}) for file in documents]
        notes = []
        if len(documents) == 1 and documents[0].size >= _LONG_DOCUMENT:
            notes.append(
                "the file is one sample; --format lines makes each line a sample, --tokenizer "
                "makes blocks of tokens"
            )
        return ListedRows({"path": "str", "text": "str"}, rows, notes=notes)
