"""The files inside a tar, found by their headers, and readers of a tar's bytes.

    header, 512 bytes | bytes of the file, padded to 512 | header | ... | 1024 zero bytes

ustar, GNU and PAX archives are read, with long names and sizes above 8 GB. `members` reads headers
only: two small reads per file, some milliseconds for a thousand files. It reports files without
bytes of their own (links, sparse files), files that are cut short, and a second archive behind the
end of the first.

The bytes of a tar come from a `ReadAt`, a function from ``start`` and ``end`` to these bytes: of a
mapped file (`reads`), of a stream (`Arriving`) or of a remote file (`Windows`). PAX attributes are
pairs of name and value in a header of their own, in front of that of the file.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from mds._process.mmaps import map_descriptor
from mds.errors import FormatError
from mds.storage._files import open_regular

if TYPE_CHECKING:
    from mds.formats._facts import DataFile
    from mds.formats._source import Files

#: Function from ``start`` and ``end`` to these bytes of a tar; fewer if the tar ends before.
ReadAt = Callable[[int, int], bytes]

BLOCK = 512
# Name, size, checksum, kind, target of a link, magic, prefix (folders of a long name).
_FIELDS = struct.Struct("100s24x12s12x8sc100s6s82x155s12x")
_LINKS = {b"1": "a hard link", b"2": "a symbolic link"}
_NO_BYTES = b"3456"  # devices, folders, pipes
_LARGEST_METADATA = 1 << 20  # bytes of a long name, or of all attributes of a file
_EMPTY = bytes(BLOCK)
#: Bytes of the header of a sparse file, and of each further one, that are 0 if none follows.
_SPARSE_MARK, _NEXT_MARK = 482, 504


class Member(NamedTuple):
    """One file in a tar.

    - ``name``: its path in the tar.
    - ``header``: byte of its first header.
    - ``start``, ``size``: first byte of its content, and number of bytes.
    - ``problem``: why it has no content of its own, such as a link; '' if it has.
    """

    name: str
    header: int
    start: int
    size: int
    problem: str = ""

    @property
    def end(self) -> int:
        """First byte after the file, including its padding to a block."""
        return self.start + -(-self.size // BLOCK) * BLOCK


def members(
    read: ReadAt, location: str, size: int | None = None, offset: int = 0
) -> Iterator[Member]:
    """Yield the files of a tar, from the header at ``offset`` on.

    - ``read`` (ReadAt): Returns bytes of the tar.
    - ``location`` (str): Name of the tar, for errors.
    - ``size`` (int | None, default None): Bytes of the tar if it is read to its end, so that a
      missing end is an error; None to read some of its files.
    - ``offset`` (int, default 0): First byte to read, where a header must be.

    Raises FormatError for bytes that are no tar, and for a tar that is cut short.
    """
    first, attributes, long_name = offset, {}, ""
    while True:
        header = read(offset, offset + BLOCK)
        if len(header) < BLOCK or header == _EMPTY:
            _check_end(read, header, offset, first, location, is_whole=size is not None)
            return
        name, length, checksum, kind, target, magic, prefix = _FIELDS.unpack(header)
        _check_sum(header, checksum, offset, location)
        length = _number(length, offset, location)
        start = offset + BLOCK
        if kind == b"S":  # further headers have the places of the parts of a sparse file
            is_last = not header[_SPARSE_MARK]
            while not is_last:
                places = read(start, start + BLOCK)
                start += BLOCK
                is_last = len(places) < BLOCK or not places[_NEXT_MARK]
        # Headers in front of that of the file, `first` being the first of them: PAX attributes (x),
        # global ones (g), a long name (L) or a long target of a link (K), which is not needed.
        if kind in (b"x", b"g", b"L", b"K"):
            metadata = _read_metadata(read, start, length, offset, location)
            if kind == b"L":
                long_name = metadata.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif kind == b"x":
                attributes = _attributes(metadata, offset, location)
            elif kind == b"g":
                _check_global(_attributes(metadata, offset, location), offset, location)
            offset = start + -(-length // BLOCK) * BLOCK
            continue
        if "size" in attributes:
            length = _decimal(attributes["size"], offset, location)
        has_bytes = kind in b"0\0" or kind not in b"123456"  # not a link, device, folder or pipe
        member = Member(
            attributes.get("GNU.sparse.name")
            or attributes.get("path")
            or long_name
            or _name(name, prefix, magic),
            first,
            start,
            length if has_bytes else 0,
            _problem(kind, target, attributes),
        )
        if size is not None and member.start + member.size > size:
            raise FormatError(
                f"{location}: its file {member.name!r} has {member.size:,} bytes from byte "
                f"{member.start:,} on, but the tar ends at {size:,}; it is cut short."
            )
        if kind not in _NO_BYTES:
            yield member
        offset = first = member.end
        attributes, long_name = {}, ""


def _problem(kind: bytes, target: bytes, attributes: dict[str, str]) -> str:
    """Return why a file has no content of its own, and what to do, or '' if it has.

    ``kind``, ``target`` and ``attributes`` are the type, the link's target and the PAX attributes
    in its headers.
    """
    if kind in _LINKS:
        to = target.rstrip(b"\0").decode("utf-8", "replace")
        way_out = "--hard-dereference" if kind == b"1" else "--dereference"
        return f"is {_LINKS[kind]} to {to!r}; write the tar with {way_out}"
    if kind == b"S" or any(name.startswith("GNU.sparse.") for name in attributes):
        return "is stored as a sparse file; write the tar without --sparse, or --no-read-sparse"
    if kind not in (b"0", b"\0", b"7"):
        return f"is of the kind {kind!r}, which is not a file"
    return ""


def _name(name: bytes, prefix: bytes, magic: bytes) -> str:
    """Return the path of a file from the fields of its header, which NUL bytes fill up."""
    short = name.split(b"\0", 1)[0]
    # GNU keeps times where ustar has the folders of a long name.
    folder = prefix.split(b"\0", 1)[0] if magic == b"ustar\0" else b""
    return (folder + b"/" + short if folder else short).decode("utf-8", "surrogateescape")


def _check_sum(header: bytes, checksum: bytes, offset: int, location: str) -> None:
    """Raise FormatError unless the checksum of a header is right."""
    # The checksum is the sum of all bytes, with spaces in its own field.
    byte_sum = sum(header) - sum(checksum) + 8 * 32
    if byte_sum != _number(checksum, offset, location):
        problem = "this is not a tar" if offset == 0 else f"there is no header at byte {offset:,}"
        raise FormatError(f"{location}: {problem}; the file is damaged or something else.")


def _number(field: bytes, offset: int, location: str) -> int:
    """Parse a number of the header at the byte ``offset``, octal or binary. Raises FormatError."""
    if field[0] & 0x80:  # binary, for numbers of more than eleven octal digits
        # The upper bit is no part of the number: it only marks the field as binary.
        return int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
    text = field.split(b"\0", 1)[0].strip()
    try:
        return int(text or b"0", 8)
    except ValueError:
        problem = (
            "this is not a tar" if offset == 0 else f"the header at byte {offset:,} holds {field!r}"
        )
        raise FormatError(
            f"{location}: {problem}; the file is damaged or something else."
        ) from None


def _decimal(text: str, offset: int, location: str) -> int:
    """Parse the size in a PAX header. Raises FormatError."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise FormatError(
            f"{location}: the header at byte {offset:,} has the invalid size {text[:40]!r}."
        )
    return int(text)


def _read_metadata(read: ReadAt, start: int, length: int, offset: int, location: str) -> bytes:
    """Read a long name, or the attributes of PAX, which tar stores as a file of its own.

    They are ``length`` bytes from the byte ``start`` on, behind their header at the byte
    ``offset``. Raises FormatError if they are too long or the tar ends inside of them.
    """
    if length > _LARGEST_METADATA:
        raise FormatError(
            f"{location}: the header at byte {offset:,} holds {length:,} bytes of names and "
            f"attributes; at most {_LARGEST_METADATA:,} are read. Write the tar without them."
        )
    metadata = read(start, start + length)
    if len(metadata) < length:
        raise FormatError(f"{location}: it ends at byte {start + len(metadata):,} inside a header.")
    return metadata


def _attributes(metadata: bytes, offset: int, location: str) -> dict[str, str]:
    """Parse the records of a PAX header, each ``LENGTH NAME=VALUE``."""
    attributes, place = {}, 0
    while place < len(metadata) and metadata[place]:
        # LENGTH counts the whole record: its own digits, the space and the newline at the end.
        space = metadata.find(b" ", place, place + 20)
        digits = metadata[place:space] if space > 0 else b""
        end = place + int(digits) if digits.isdigit() else 0
        name, is_pair, value = metadata[space + 1 : end - 1].partition(b"=")
        if not is_pair or end > len(metadata) or metadata[end - 1 : end] != b"\n":
            raise FormatError(f"{location}: the attributes at byte {offset:,} cannot be read.")
        attributes[name.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        place = end
    return attributes


def _check_global(attributes: dict[str, str], offset: int, location: str) -> None:
    """Raise FormatError for a global header that gives all files one name or size."""
    if wrong := sorted({"path", "size"} & attributes.keys()):
        raise FormatError(
            f"{location}: the header at byte {offset:,} sets the {wrong[0]} of all following "
            "files, which is not supported."
        )


def _check_end(
    read: ReadAt, header: bytes, offset: int, first: int, location: str, *, is_whole: bool
) -> None:
    """Raise FormatError unless a tar may end at ``offset``: between files, before zeros alone.

    - ``header`` (bytes): The last bytes that were read, zeros or fewer than a header.
    - ``first`` (int): First header of the next file. If it is not ``offset``, the tar ends between
      the headers of one file.
    - ``is_whole`` (bool): Whether the block of zeros at the end must be there.
    """
    if not header and offset == 0:
        raise FormatError(f"{location}: the file is empty, so it is not a tar.")
    if header.strip(b"\0") or offset != first:
        raise FormatError(f"{location}: it ends at byte {offset + len(header):,} inside a header.")
    if is_whole and len(header) < BLOCK:
        raise FormatError(
            f"{location}: it ends at byte {offset + len(header):,} without the empty block that "
            "ends a tar: it was cut short, or its writer did not close it. Write it again."
        )
    while chunk := read(offset, offset + (1 << 16)):
        if chunk.strip(b"\0"):
            raise FormatError(
                f"{location}: its end is marked at byte {first:,}, but more data follow. This may "
                f"be damage, or a second tar that was appended. Write each tar to its own file."
            )
        offset += len(chunk)


# --------------------------------------------------------------------- where bytes come from


Mapped = mmap.mmap | bytes


class Arriving:
    """A file that arrives in chunks and is read in order. `forget` frees what was read."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._data = bytearray()
        self._offset = 0  # byte of the file at which `_data` begins

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of the file, fewer at its end.

        ``start`` must not be forgotten yet.
        """
        while self._offset + len(self._data) < end and (chunk := next(self._chunks, b"")):
            self._data += chunk
        with memoryview(self._data) as view:  # a slice of it is not copied before bytes() does
            return bytes(view[start - self._offset : end - self._offset])

    def forget(self, end: int) -> None:
        """Forget everything before ``end``."""
        del self._data[: end - self._offset]
        self._offset = end


class Windows:
    """Reader of a remote file that fetches windows of ``size`` bytes; the last one is kept.

    Reads that follow one another then share a request, such as those of neighbouring headers.
    """

    def __init__(self, files: Files, file: DataFile, size: int) -> None:
        self._files, self._file, self._size = files, file, size
        self._offset, self._data = 0, b""

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of the file, fewer at its end.

        If the last window does not hold them, a new one is fetched, which begins at ``start``.
        """
        end = min(end, self._file.size)
        if start >= end:
            return b""
        if not self._offset <= start <= end <= self._offset + len(self._data):
            upto = min(max(end, start + self._size), self._file.size)
            self._offset, self._data = start, self._files.range(self._file, start, upto)
        return self._data[start - self._offset : end - self._offset]


def reads(data: Mapped) -> ReadAt:
    """Return a `ReadAt` for a tar that is mapped or in memory."""
    return lambda start, end: data[start:end]


def mapped(path: str) -> Mapped:
    """Map a file on a local disk, and return the mapping; b"" for an empty file.

    A mapping of no bytes is an error of the operating system.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        return map_descriptor(file.fileno(), size) if size else b""
