"""Folders of files, each file one sample: as it is, as text, or as sound.

files    path, bytes      whatever it is
audio    path, audio      wav, flac, mp3, ogg: the file's bytes
text     path, text       UTF-8 documents
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from mds.units import format_bytes
from mds.writers.convert.infer import shown
from mds.writers.convert.listing import Listing
from mds.writers.convert.source import Bad, Column, Part, Record, Source


class FilesSource(Source):
    """Every file is a sample: its path below the folder, and its bytes."""

    kind: ClassVar[str] = "files"
    value: ClassVar[tuple[str, str]] = ("bytes", "bytes")

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing.root)
        self.listing = listing
        self.key = "path"
        self.size = listing.size

    def columns(self) -> Sequence[Column]:
        """The path, and the content under its name."""
        name, encoding = self.value
        first = self.listing.names[0]
        size = self.listing.sizes[0]
        return sorted(
            [Column("path", "str", shown(first)), Column(name, encoding, format_bytes(size))],
            key=lambda column: column.name,
        )

    def parts(self, size: int) -> Iterator[Part]:
        """Runs of files."""
        for number, (names, total) in enumerate(self.listing.batches(size)):
            yield Part(number, total, names)

    def read(self, part: Part) -> Iterator[Record]:
        """One sample a file."""
        for name in part.what:
            try:
                with open(self.listing.path(name), "rb") as file:
                    data = file.read()
            except OSError as error:
                yield name, Bad(f"cannot be read: {error.strerror}")
                continue
            yield name, self.sample(name, data)

    def sample(self, name: str, data: bytes) -> dict[str, Any] | Bad:
        """The sample of one file."""
        return {"path": name, self.value[0]: data}

    def place(self, part: Part, mark: Any) -> str:
        """The path of the file."""
        del part
        return os.path.join(self.root, mark)

    def describe(self) -> str:
        """Number of files and bytes."""
        return str(self.listing)

    def fingerprint(self) -> str:
        """Names, sizes and times of change of all files."""
        return self.listing.digest


class AudioSource(FilesSource):
    """Sound files, each stored byte for byte as it is."""

    kind: ClassVar[str] = "audio"
    value: ClassVar[tuple[str, str]] = ("audio", "bytes")
    _STARTS: ClassVar[tuple[bytes, ...]] = (
        b"RIFF",
        b"RIFX",
        b"RF64",
        b"fLaC",
        b"OggS",
        b"ID3",
        b"\xff",
    )

    def sample(self, name: str, data: bytes) -> dict[str, Any] | Bad:
        """The bytes of the sound, if they begin like any."""
        if not data.startswith(self._STARTS):
            return Bad(f"this is no wav, flac, mp3 or ogg: it starts with {data[:8]!r}")
        return super().sample(name, data)


class TextSource(FilesSource):
    """Text files, each a document."""

    kind: ClassVar[str] = "text documents"
    value: ClassVar[tuple[str, str]] = ("text", "str")

    def columns(self) -> Sequence[Column]:
        """The path and the text."""
        first = next((record for record in self.probe()), {"path": "", "text": ""})
        return [Column(name, "str", shown(first[name])) for name in ("path", "text")]

    def sample(self, name: str, data: bytes) -> dict[str, Any] | Bad:
        """The text of the file, which must be UTF-8."""
        try:
            return {"path": name, "text": data.decode("utf-8-sig")}
        except UnicodeDecodeError as error:
            text = _declared(data) if name.endswith((".py", ".pyi", ".pyw")) else None
            return Bad(not_utf8(data, error)) if text is None else {"path": name, "text": text}


def _declared(data: bytes) -> str | None:
    """Python source in the encoding that its first lines declare; None when it is not."""
    import io
    import tokenize

    try:
        return data.decode(tokenize.detect_encoding(io.BytesIO(data).readline)[0])
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return None


def not_utf8(data: bytes, error: UnicodeDecodeError) -> str:
    """What to say of bytes that are not UTF-8, with line and column."""
    before = data[: error.start]
    line = before.count(b"\n") + 1
    return f"line {line}, column {_column(data, error)}: {_no_utf8(data, error)}"


def bad_line(data: bytes, error: UnicodeDecodeError) -> Bad:
    """The same for bytes that are one line."""
    return Bad(_no_utf8(data, error), column=_column(data, error))


def _column(data: bytes, error: UnicodeDecodeError) -> int:
    return error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1


def _no_utf8(data: bytes, error: UnicodeDecodeError) -> str:
    return f"byte 0x{data[error.start]:02x} is not UTF-8; --as files would store the file as bytes"
