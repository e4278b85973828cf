"""CSV and TSV with the quoting of RFC 4180: a header, then records that may span lines.

Whether a line break is inside quotes is known only after reading from the start. So one pass of the
csv module cuts a large file into parts, ahead of the processes that read them. Every cell is text;
a column is numeric if every probed value is a number.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, ClassVar, cast

from mds.errors import FormatError, SourceError
from mds.formats._columns import Column, infer_columns
from mds.formats._unpack import compression_of, unpacked
from mds.writers.convert._inputs.base import (
    BadRecord,
    FileInput,
    Input,
    InputOptions,
    InputPart,
    Record,
)
from mds.writers.convert._inputs.files import UTF16, is_utf16
from mds.writers.convert._inputs.format_files import line_number
from mds.writers.convert._inputs.listing import Listing, ending

# The default limit of a cell, 128 KB, is smaller than many documents.
csv.field_size_limit(min(sys.maxsize, (1 << 31) - 1))


class DelimitedTextInput(FileInput):
    """Tables in text files; the first line names the columns and is the same in every file.

    - ``listing`` (Listing): The files.
    - ``separator`` (str | None, default None): What is between cells; None: guess from the file.
    - ``encoding`` (str, default "utf-8"): The encoding of the text.
    - ``has_header`` (bool, default True): Whether the first line has names and is no record.
    """

    title: ClassVar[str] = "table of delimited text"
    endings: ClassVar[frozenset[str]] = frozenset({".csv", ".tsv"})
    is_text: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"encoding", "no_header"})

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Open the table in these files."""
        return cls(listing, encoding=options.encoding or "utf-8", has_header=not options.no_header)

    def __init__(
        self,
        listing: Listing,
        separator: str | None = None,
        *,
        encoding: str = "utf-8",
        has_header: bool = True,
    ) -> None:
        super().__init__(listing)
        self.encoding, self.has_header = encoding, has_header
        self.separator = separator or _separator(listing)
        if self.separator not in (",", "\t"):
            self.notes.append(f"the separator is {self.separator!r}")
        self.names = self._names(listing.names[0])
        if not has_header:
            self.notes.append(
                "the first line is a record: the columns are called column_0, column_1, ..."
            )
        elif "" in self.names:
            # pandas writes the index of a data frame without a name.
            self.notes.append("columns without a name are called column_0, column_1, ...")
        self.names = [name or f"column_{place}" for place, name in enumerate(self.names)]
        if twice := [name for name in self.names if self.names.count(name) > 1]:
            path = listing.path(listing.names[0])
            raise SourceError(f"{path}, line 1: two columns have the name {twice[0]!r}.")
        for name in listing.names[1:]:
            names = [each or f"column_{place}" for place, each in enumerate(self._names(name))]
            if names != self.names:
                raise SourceError(
                    f"{listing.path(name)}, line 1: the columns are {_list(names)}, but those of "
                    f"{listing.names[0]} are {_list(self.names)}. Convert the files one by one."
                )

    def infer_columns(self) -> Sequence[Column]:
        """Infer the columns of the header; one is numeric if every probed value is a number."""
        return infer_columns(self.probe(), is_text=True, nulls=self.nulls)

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield one sample per record."""
        name, start, end = part.address
        with open_content(self.listing.path(name)) as file:
            # A compressed file is one part: its `end` is an offset in the compressed bytes, and
            # lines are counted in the decompressed ones.
            end = None if compression_of(name) else end
            lines = _Lines(file, start, end, encoding=self.encoding)
            rows = self._rows(lines)
            while True:
                begin = lines.offset  # the byte at which the next record begins
                try:
                    row = next(rows)
                except StopIteration:
                    return
                except UnicodeDecodeError as error:
                    yield begin, BadRecord(_undecodable(error))
                    # The reader of the csv module ends with an error; go on with the next line.
                    rows = self._rows(lines)
                    continue
                except csv.Error as error:
                    yield begin, BadRecord(f"quotes or line ends are wrong: {error}")
                    rows = self._rows(lines)
                    continue
                # The record at byte 0 is the header; an empty row is a blank line.
                if (begin or not self.has_header) and row:
                    yield begin, self._sample(row)

    def locate(self, part: InputPart, position: Any) -> str:
        """Return the file and the line on which the record begins: ``"a.csv, line 7"``.

        - ``position`` (int): The byte of the (decompressed) file at which the record begins.
        """
        path = os.path.join(self.root, part.address[0])
        with open_content(path) as file:
            number = line_number(iter(lambda: file.read(1 << 20), b""), position)
        return f"{path}, line {number}"

    def _sample(self, row: list[str]) -> dict[str, Any] | BadRecord:
        """Return the cells of a row by column."""
        if len(row) != len(self.names):
            return BadRecord(f"{len(row)} values for {len(self.names)} columns")
        return dict(zip(self.names, row, strict=True))

    def _rows(self, lines: Iterator[str]) -> Iterator[list[str]]:
        """Return a reader of the rows in some lines."""
        return csv.reader(lines, delimiter=self.separator, strict=True)

    def _names(self, name: str) -> list[str]:
        """Return the names of the columns of a file; "" for a column without a name.

        All are "" if the first line is a record: it then only shows the number of columns.
        """
        try:
            with open_content(self.listing.path(name)) as file:
                first_row = next(self._rows(_Lines(file, 0, None, encoding=self.encoding)), [])
            return first_row if self.has_header else [""] * len(first_row)
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{self.listing.path(name)}, line 1: {_undecodable(error)}"
            ) from error
        except Exception as error:  # decoding, the csv module and compressions raise many kinds
            raise SourceError(
                f"{self.listing.path(name)}, line 1: this is not the header of a table: {error}"
            ) from error

    def cut_file(self, name: str, length: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield byte ranges that begin and end between records."""
        if length <= size or compression_of(name):
            yield 0, length
            return
        start = 0
        with open_content(self.listing.path(name)) as file:
            lines = _Lines(file, 0, None, encoding=self.encoding, errors="replace")
            rows = self._rows(lines)
            # Read all records to find where each one ends; a line break may be inside of quotes.
            while True:
                try:
                    next(rows)
                except StopIteration:
                    break
                except csv.Error:
                    # Reading the part reports the error; the cuts only need the next record.
                    rows = self._rows(lines)
                if lines.offset - start >= size:
                    yield start, lines.offset
                    start = lines.offset
        if start < length:
            yield start, length


class _Lines(Iterator[str]):
    """Decoded lines of a file, from the byte ``start`` to the byte ``end`` (None: the end).

    ``offset`` is the byte at which the next line begins. ``errors`` is that of `bytes.decode`. A
    byte order mark at the beginning of the file is removed.
    """

    def __init__(
        self,
        file: BinaryIO,
        start: int,
        end: int | None,
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
    ) -> None:
        self.offset = start
        self._file = file
        self._end = end
        self._encoding, self._errors = encoding, errors
        if start:
            file.seek(start)

    def __next__(self) -> str:
        if self._end is not None and self.offset >= self._end:
            raise StopIteration
        line = self._file.readline()
        if not line:
            raise StopIteration
        is_first_line = self.offset == 0
        self.offset += len(line)
        if is_first_line:
            line = line.removeprefix(codecs.BOM_UTF8)
        return line.decode(self._encoding, self._errors)


def open_content(path: str) -> BinaryIO:
    """Open a file for reading its bytes, decompressed if its name ends like a compressed file."""
    if compression_of(path):
        return cast("BinaryIO", io.BufferedReader(_DecompressedFile(path), 1 << 20))
    return open(path, "rb", buffering=1 << 20)


class _DecompressedFile(io.RawIOBase):
    """File object over the decompressed content of a file. Raises SourceError for damaged data."""

    def __init__(self, path: str) -> None:
        self._file = io.FileIO(path)
        # Reads a mebibyte per item until the file ends.
        chunks = iter(lambda: self._file.read(1 << 20), b"")
        #: Decompressed content, piece by piece.
        self._pieces = unpacked(chunks, compression_of(path) or "", path)
        #: Bytes of the last piece that no caller has received yet.
        self._unread = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes, and return their number; 0 at the end."""
        try:
            while not self._unread:
                self._unread = memoryview(next(self._pieces))
        except StopIteration:
            return 0
        except FormatError as error:
            raise SourceError(str(error)) from error
        target = memoryview(buffer)
        count = min(len(target), len(self._unread))
        target[:count], self._unread = self._unread[:count], self._unread[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _undecodable(error: UnicodeDecodeError) -> str:
    """Describe bytes that are no text in the encoding, with a remedy."""
    if is_utf16(error.object):
        return UTF16
    byte = error.object[error.start]
    return f"byte 0x{byte:02x} is not {error.encoding.upper()}: give --encoding, such as cp1252"


def _separator(listing: Listing) -> str:
    """Return the most frequent separator in the first line of the first file; else a comma."""
    first = listing.names[0]
    if ending(first).startswith(".tsv"):
        return "\t"
    try:
        with open_content(listing.path(first)) as file:
            header = file.readline().decode("utf-8", "replace")
    except OSError as error:
        raise SourceError(f"{listing.path(first)}: cannot be read: {error}") from error
    counts = {each: header.count(each) for each in ",;\t|"}
    return max(counts, key=lambda each: counts[each]) if any(counts.values()) else ","


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:8])}, ..."
