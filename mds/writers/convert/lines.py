"""Files of lines, cut at byte offsets: what JSON lines and lines of text have in common.

The mark of a record is the byte offset at which its line begins. People want the number of the
line, which is counted when a record turns out bad and not before.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, ClassVar, cast

from mds.writers.convert.files import bad_line
from mds.writers.convert.infer import shown
from mds.writers.convert.listing import Listing
from mds.writers.convert.source import Bad, Column, Part, Record, Source

BOM = b"\xef\xbb\xbf"
_COMPRESSED = (".gz", ".zst", ".zstd", ".bz2", ".xz")


class LineFiles(Source):
    """Files whose lines are records; subclasses say what a line means."""

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing.root)
        self.listing = listing
        self.size = listing.size

    def record(self, line: bytes) -> dict[str, Any] | Bad | None:
        """The record of a line; None when the line holds none."""
        raise NotImplementedError

    def parts(self, size: int) -> Iterator[Part]:
        """Ranges of bytes of the files."""
        number = 0
        for name, length in zip(self.listing.names, self.listing.sizes, strict=True):
            step = length if is_compressed(name) else size
            for start in range(0, length, max(step, 1)):
                end = min(start + step, length)
                yield Part(number, end - start, (name, start, end))
                number += 1

    def read(self, part: Part) -> Iterator[Record]:
        """The records of the lines that begin in the part."""
        name, start, end = part.what
        for offset, line in lines_of(self.listing.path(name), start, end):
            record = self.record(line)
            if record is not None:
                yield offset, record

    def place(self, part: Part, mark: Any) -> str:
        """File and line."""
        name = part.what[0]
        path = os.path.join(self.root, name)
        return f"{path}, line {line_number(path, mark)}"

    def describe(self) -> str:
        """Number of files and bytes."""
        return str(self.listing)

    def fingerprint(self) -> str:
        """Names, sizes and times of change of all files."""
        return self.listing.digest


class TextLinesSource(LineFiles):
    """Every line of the files is a sample; empty ones too."""

    kind: ClassVar[str] = "lines of text"

    def columns(self) -> Sequence[Column]:
        """The text."""
        first = next((record for record in self.probe()), {"text": ""})
        return [Column("text", "str", shown(first["text"]))]

    def record(self, line: bytes) -> dict[str, Any] | Bad | None:
        """The line without its end."""
        try:
            return {"text": line.removesuffix(b"\n").removesuffix(b"\r").decode()}
        except UnicodeDecodeError as error:
            return bad_line(line, error)


def lines_of(path: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of every line that begins at ``start`` or later and before ``end``."""
    with open_text(path) as file:
        offset = start
        if start:
            file.seek(start - 1)
            offset = start - 1 + len(file.readline())
        # A compressed file is one part, whatever its length.
        limit = None if is_compressed(path) else end
        while (limit is None or offset < limit) and (line := file.readline()):
            yield offset, line if offset else line.removeprefix(BOM)
            offset += len(line)


def line_number(path: str, offset: int) -> int:
    """The number of the line that begins at ``offset``, from 1."""
    number = 1
    with open_text(path) as file:
        while offset > 0 and (chunk := file.read(min(offset, 1 << 20))):
            number += chunk.count(b"\n")
            offset -= len(chunk)
    return number


def is_compressed(path: str) -> bool:
    """Whether the name says so."""
    return path.lower().endswith(_COMPRESSED)


def open_text(path: str) -> BinaryIO:
    """A file for reading bytes, decompressed when its name says that it is compressed."""
    lower = path.lower()
    if lower.endswith(".gz"):
        import gzip

        return cast("BinaryIO", gzip.open(path, "rb"))
    if lower.endswith(".bz2"):
        import bz2

        return cast("BinaryIO", bz2.open(path, "rb"))
    if lower.endswith(".xz"):
        import lzma

        return cast("BinaryIO", lzma.open(path, "rb"))
    if lower.endswith((".zst", ".zstd")):
        import zstandard

        raw = zstandard.ZstdDecompressor().stream_reader(open(path, "rb"), read_across_frames=True)  # noqa: SIM115
        return cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", raw), 1 << 20))
    return open(path, "rb", buffering=1 << 20)
