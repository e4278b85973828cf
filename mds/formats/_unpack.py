"""Decompression of files while they arrive, of one member or many: gzip, Zstandard, bzip2 and xz.

The name of a file says whether it is to be treated as compressed before it is opened. Its first
bytes say with what it is compressed: downloads often keep the ending and lose the compression, or
the other way round.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mds._shardfile.layout import MAX_SIZE
from mds._units import format_bytes
from mds.errors import FormatError
from mds.formats._facts import Problem

if TYPE_CHECKING:
    from mds.formats._facts import DataFile
    from mds.formats._source import Files

#: Compressed bytes that are decompressed at once. Four bytes of Zstandard can become 128 KB, so
#: this many become at most 32 MB.
_PIECE = 1 << 10
#: Decompressed data are joined or cut to pieces of about this many bytes.
_UNPACKED = 1 << 18
#: First bytes of compressed data, by ending. Some Zstandard files begin with a frame to be skipped.
_MAGIC = {
    ".gz": re.compile(rb"\x1f\x8b"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
    ".bz2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17\x72\x45\x38\x50\x90)"),
    ".xz": re.compile(rb"\xfd7zXZ\x00"),
}
_MAGIC_BYTES = 10
#: Compressed bytes that are read to see how the content of a file begins.
_LOOK = 1 << 16
#: Endings of compressed files that are read in place.
COMPRESSED_ENDINGS = (".gz", ".zst", ".zstd", ".bz2", ".xz")


def compression_of(name: str) -> str | None:
    """Return the ending of a compressed file, such as ``".gz"``, or None for a plain one."""
    lower = name.lower()
    return next((ending for ending in _DECOMPRESSORS if lower.endswith(ending)), None)


def packed_endings(*plain: str) -> tuple[str, ...]:
    """Return the endings of plain files and of their compressed forms."""
    return tuple(f"{each}{packed}" for each in plain for packed in ("", *COMPRESSED_ENDINGS))


def find_compression(start: bytes) -> str | None:
    """Return the ending of a compression, such as ".gz", by the first bytes of a file, or None."""
    return next((ending for ending, magic in _MAGIC.items() if magic.match(start)), None)


def content(file: DataFile, files: Files) -> Generator[bytes, None, None]:
    """Yield the bytes of a file as they arrive, decompressed if they are compressed.

    Raises FormatError for damaged compressed data.
    """
    start, chunks = read_start(files.stream(file), _MAGIC_BYTES)
    ending = find_compression(start)
    yield from unpacked(chunks, ending, files.url(file)) if ending else chunks


def content_start(file: DataFile, files: Files, size: int = 4096) -> tuple[bool, bytes]:
    """Return whether a file is compressed, by its name or content, and how its content begins.

    The start has about ``size`` bytes. Of damaged data it is what could be decompressed.
    """
    data = files.range(file, 0, min(file.size, _LOOK))
    ending = find_compression(data)
    if ending is None:
        return compression_of(file.key) is not None, data[:size]
    start = b""
    with contextlib.suppress(FormatError):  # the data go on, or reading them reports the damage
        for piece in _unpack([data], ending, ""):
            start += piece
            if len(start) >= size:
                break
    return True, start[:size]


def read_start(chunks: Iterator[bytes], size: int) -> tuple[bytes, Iterator[bytes]]:
    """Return at least ``size`` first bytes (fewer at the end of the data), and all chunks."""
    start = b""
    for chunk in chunks:
        start += chunk
        if len(start) >= size:
            break
    return start, itertools.chain([start] if start else [], chunks)


def unpack_document(data: bytes, location: str) -> bytes:
    """Return the content of a file that is read whole, decompressed if its bytes are compressed.

    ``location`` names the file in errors. Raises FormatError for damaged compressed data, and for
    more than a sample may have.
    """
    ending = find_compression(data[:_MAGIC_BYTES])
    if ending is None:
        return data
    pieces, size = [], 0
    for piece in unpacked([data], ending, location):  # a few bytes may become very many
        pieces.append(piece)
        size += len(piece)
        if size >= MAX_SIZE:
            most = format_bytes(MAX_SIZE)
            raise FormatError(
                Problem(
                    location,
                    f"decompressed it has more than {most}, and a sample has less",
                    "Cut the file into several.",
                )
            )
    return b"".join(pieces)


def unpacked(chunks: Iterable[bytes], ending: str, location: str) -> Iterator[bytes]:
    """Decompress the chunks of a file, and yield its content in pieces of 256 KB.

    ``ending`` is that of the file's name, ``location`` names the file in errors. Raises FormatError
    for damage, and for a file that is cut short.
    """
    pieces: list[bytes] = []
    size = 0
    for piece in _unpack(chunks, ending, location):
        pieces.append(piece)
        size += len(piece)
        if size >= _UNPACKED:
            data = memoryview(b"".join(pieces) if len(pieces) > 1 else piece)
            pieces, size = [], 0
            yield from (
                bytes(data[offset : offset + _UNPACKED])
                for offset in range(0, len(data), _UNPACKED)
            )
    if pieces:
        yield b"".join(pieces)


def _unpack(chunks: Iterable[bytes], ending: str, location: str) -> Iterator[bytes]:
    """Decompress chunks of a file, and yield pieces as the library returns them.

    A file may have several members (whole compressed streams), one after the other. Raises
    FormatError for damage; see `unpacked` for the arguments.
    """
    make = _DECOMPRESSORS[ending]
    member: Any = None
    for chunk in chunks:
        # Small pieces: a few compressed bytes may become very many.
        for offset in range(0, len(chunk), _PIECE):
            compressed = chunk[offset : offset + _PIECE]
            while compressed:
                if member is None:
                    compressed = compressed.lstrip(b"\0")  # padding of tapes between members
                    if not compressed:
                        break
                    member = make()
                try:
                    data = member.decompress(compressed)
                except MemoryError:
                    raise
                except Exception as error:  # the class for damage differs by library
                    raise FormatError(
                        Problem(location, f"the compressed data are damaged: {error}")
                    ) from error
                if data:
                    yield data
                compressed = b""
                if member.eof:  # the rest of the input belongs to the next member
                    compressed, member = member.unused_data, None
    if member is not None:
        raise FormatError(
            Problem(location, "the compressed data end too early; the file is cut short")
        )


def _gzip() -> Any:
    return zlib.decompressobj(31)


def _zstd() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj()


def _bzip2() -> Any:
    import bz2

    return bz2.BZ2Decompressor()


def _xz() -> Any:
    import lzma

    return lzma.LZMADecompressor()


#: Functions that make a decompressor of one member, by the ending of a file.
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": _gzip,
    ".tgz": _gzip,
    ".zst": _zstd,
    ".zstd": _zstd,
    ".bz2": _bzip2,
    ".xz": _xz,
}
