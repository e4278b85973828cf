"""JSON lines and lines of text, also compressed, and JSON files of one list or one object.

A plain file is cut at byte offsets, and a part takes the lines that begin in it, so that all
processes read one large file. A compressed file or a JSON list is one part.

The position of a record is the byte offset at which its line begins. People want the number of the
line, which is counted when a record turns out bad and not before.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Generator, Iterator, Sequence
from typing import Any, BinaryIO, ClassVar, cast

from mds.errors import FormatError, SourceError
from mds.formats.infer import Column, infer_columns, show_value
from mds.formats.lines import json_object
from mds.formats.newlines import bounded, line_bounds, whole_lines
from mds.formats.unpack import compression_of, unpacked
from mds.writers.convert.inputs.base import BadRecord, Input, InputOptions, InputPart, Record
from mds.writers.convert.inputs.file_input import FileInput
from mds.writers.convert.inputs.files import bad_line, not_utf8
from mds.writers.convert.inputs.listing import Listing

BOM = b"\xef\xbb\xbf"
_PIECE_BYTES = 1 << 20
_COMPRESSED = (".gz", ".zst", ".zstd", ".bz2", ".xz")


class LinesInput(FileInput):
    """Files whose lines are records; subclasses say what a line means."""

    takes: ClassVar[frozenset[str]] = frozenset({"encoding"})

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Open the lines of these files."""
        source = cls(listing)
        source.encoding = options.encoding or source.encoding
        return source

    def record(self, line: bytes) -> dict[str, Any] | BadRecord | None:
        """Return the record of a line, or None if the line has none."""
        raise NotImplementedError

    def cut_file(self, name: str, length: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of any bytes: a part takes the lines that begin in it."""
        step = length if is_compressed(name) else size
        for start in range(0, length, max(step, 1)):
            yield start, min(start + step, length)

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield the records of the lines that begin in the part."""
        name, start, end = part.address
        for offset, line in lines_of(self.listing.path(name), start, end):
            record = self.record(line)
            if record is not None:
                yield offset, record

    def locate(self, part: InputPart, position: Any) -> str:
        """Return the file and the line."""
        name = part.address[0]
        path = os.path.join(self.root, name)
        return f"{path}, line {line_number(path, position)}"


class TextLinesInput(LinesInput):
    """Every line of the files is a sample; empty ones too."""

    title: ClassVar[str] = "lines of text"

    def infer_columns(self) -> Sequence[Column]:
        """Return the column of the text."""
        first = next((record for record in self.probe()), {"text": ""})
        return [Column("text", "str", show_value(first["text"]))]

    def record(self, line: bytes) -> dict[str, Any] | BadRecord | None:
        """Return the line without its end."""
        try:
            return {"text": line.removesuffix(b"\n").removesuffix(b"\r").decode(self.encoding)}
        except UnicodeDecodeError as error:
            return bad_line(line, error)


def lines_of(path: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of every line that begins from ``start`` to before ``end``."""
    # A compressed file is one part, whatever its length.
    limit = None if is_compressed(path) else end
    with contextlib.closing(_lines_from(path, start, end)) as numbered_lines:
        for offset, line in numbered_lines:
            if limit is not None and offset >= limit:
                return
            yield offset, line if offset else line.removeprefix(BOM)


def _lines_from(path: str, start: int, end: int) -> Generator[tuple[int, bytes], None, None]:
    """Yield the lines of a file from the first that begins at ``start`` or later.

    The search for it ends at ``end``: of a line of gigabytes each part reads its own bytes alone.
    """
    ending = compression_of(path)
    with open(path, "rb") if ending else open_text(path) as file:
        position = start
        if start:
            file.seek(start - 1)
            position = start - 1
            while position < end:
                piece = file.readline(min(end - position, _PIECE_BYTES))
                position += len(piece)
                if not piece or piece.endswith(b"\n"):
                    break
            else:
                return
        chunks = iter(lambda: file.read(1 << 20), b"")
        plain = unpacked(chunks, ending, path) if ending else chunks
        try:
            for offset, data in whole_lines(bounded(plain, path, position), position):
                begins, ends = line_bounds(data, skips_blank=False)
                for first, last in zip(begins.tolist(), ends.tolist(), strict=True):
                    yield offset + first, data[first:last]
        except FormatError as error:
            raise SourceError(str(error)) from error


def line_number(path: str, offset: int) -> int:
    """Return the number of the line that begins at ``offset``, from 1."""
    number = 1
    with open_text(path) as file:
        while offset > 0 and (chunk := file.read(min(offset, 1 << 20))):
            number += chunk.count(b"\n")
            offset -= len(chunk)
    return number


def is_compressed(path: str) -> bool:
    """Return whether the ending of a path is that of a compression."""
    return path.lower().endswith(_COMPRESSED)


def open_text(path: str) -> BinaryIO:
    """Open a file for reading bytes; it is decompressed if its ending is that of a compression."""
    lower = path.lower()
    if lower.endswith((".gz", ".tgz")):
        import gzip

        return cast("BinaryIO", gzip.open(path, "rb"))
    if lower.endswith(".bz2"):
        import bz2

        return cast("BinaryIO", bz2.open(path, "rb"))
    if lower.endswith(".xz"):
        import lzma

        return cast("BinaryIO", lzma.open(path, "rb"))
    if lower.endswith((".zst", ".zstd")):
        return cast("BinaryIO", io.BufferedReader(_UnpackedFile(path), 1 << 20))
    return open(path, "rb", buffering=1 << 20)


class _UnpackedFile(io.RawIOBase):
    """A Zstandard file for reading what it holds; one that is cut short is a SourceError.

    The reader of the package takes the end of the file for the end of its data.
    """

    def __init__(self, path: str) -> None:
        self._file = io.FileIO(path)
        self._pieces = unpacked(iter(lambda: self._file.read(1 << 20), b""), ".zst", path)
        self._unread = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        try:
            while not self._unread:
                self._unread = memoryview(next(self._pieces))
        except StopIteration:
            return 0
        except FormatError as error:
            raise SourceError(str(error)) from error
        room = memoryview(into)
        count = min(len(room), len(self._unread))
        room[:count], self._unread = self._unread[:count], self._unread[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class JsonLinesInput(LinesInput):
    """One JSON object a line; every object is a sample."""

    title: ClassVar[str] = "JSON lines"
    endings: ClassVar[frozenset[str]] = frozenset({".jsonl", ".ndjson", ".json"})
    is_json: ClassVar[bool] = True
    has_late_keys: ClassVar[bool] = True

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Open lines, or lists if the files hold lists."""
        lists = [name for name in listing.names if is_document(listing.path(name))]
        if lists and len(lists) < len(listing):
            raise SourceError(
                f"{listing.root}: some files are whole JSON ({lists[0]}), others are lines. "
                "Convert them one by one, or choose with --include."
            )
        source = JsonListInput(listing) if lists else JsonLinesInput(listing)
        source.encoding = options.encoding or source.encoding
        return source

    def infer_columns(self) -> Sequence[Column]:
        """Infer columns that hold every value of the probed records."""
        return infer_columns(self.probe())

    def record(self, line: bytes) -> dict[str, Any] | BadRecord | None:
        """Return the object on a line, or None for an empty line."""
        return None if line.isspace() else parse_object(line.rstrip(), self.encoding)


class JsonListInput(LinesInput):
    """Files that each hold one JSON list of objects, or one object over several lines."""

    title: ClassVar[str] = "JSON list"
    is_json: ClassVar[bool] = True
    has_late_keys: ClassVar[bool] = True

    def infer_columns(self) -> Sequence[Column]:
        """Infer columns that hold every value of the probed records."""
        return infer_columns(self.probe())

    def cut_file(self, name: str, length: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield one part per file: where a list can be cut is known only by reading it."""
        del name, size
        yield 0, length

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield the objects of the list."""
        name = part.address[0]
        with open_text(self.listing.path(name)) as file:
            data = file.read()
        try:
            items = json.loads(data if self.encoding == "utf-8" else data.decode(self.encoding))
        except UnicodeDecodeError as error:
            yield 0, BadRecord(not_utf8(data, error))
            return
        except ValueError as error:
            yield 0, BadRecord(f"this is not JSON: {error}")
            return
        for number, item in enumerate(items if isinstance(items, list) else [items], 1):
            yield number, item if isinstance(item, dict) else BadRecord(_no_object(item))

    def locate(self, part: InputPart, position: Any) -> str:
        """Return the file and the number of the item."""
        path = os.path.join(self.root, part.address[0])
        return f"{path}, item {position}" if position else path


def is_document(path: str) -> bool:
    """Whether a JSON file is one list, or one object over several lines, and not many lines."""
    if is_compressed(path):
        return False
    with open(path, "rb") as file:
        start = file.read(4096).removeprefix(BOM).lstrip()
    # What json.dump(indent=...) writes: no line of many is a brace alone.
    first, _, following = start.partition(b"\n")
    return start[:1] == b"[" or (first.strip() == b"{" and bool(following.strip()))


def parse_object(line: bytes, encoding: str = "utf-8") -> dict[str, Any] | BadRecord:
    """Parse the object on a line; return a BadRecord with the reason if there is none."""
    try:
        return json_object(line if encoding == "utf-8" else line.decode(encoding).encode())
    except UnicodeDecodeError as error:
        return bad_line(line, error)
    except json.JSONDecodeError as error:
        text = show_value(line.decode("utf-8", "replace"))
        return BadRecord(f"{error.msg} in {text}", column=error.colno)
    except RecursionError as error:
        return BadRecord(f"this is not JSON that Python takes: {error}")
    except ValueError as error:
        return BadRecord(str(error))


def _no_object(value: Any) -> str:
    return f"expected an object with the columns as keys, got {show_value(value)}"
