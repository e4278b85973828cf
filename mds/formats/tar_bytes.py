"""Bytes of a tar by place: of one on this disk, one that arrives, and one looked into."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mds.formats.tar_members import ReadAt
from mds.process.mmaps import map_descriptor
from mds.storage.files import open_regular

Mapped = mmap.mmap | bytes

if TYPE_CHECKING:
    from mds.formats.facts import DataFile
    from mds.formats.source import Files


class Arriving:
    """A file that is read once, from its beginning on. Memory is what was not forgotten yet."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._data = bytearray()
        self._offset = 0  # the byte of the file that the data begin with

    def read(self, start: int, end: int) -> bytes:
        """Read the bytes from ``start``, which is not forgotten, to before ``end``."""
        while self._offset + len(self._data) < end and (chunk := next(self._chunks, b"")):
            self._data += chunk
        with memoryview(self._data) as view:
            return bytes(view[start - self._offset : end - self._offset])

    def forget(self, end: int) -> None:
        """Forget everything before ``end``."""
        del self._data[: end - self._offset]
        self._offset = end


class Windows:
    """A file of which only what is asked for is fetched, and what is right behind it."""

    def __init__(self, files: Files, file: DataFile, size: int) -> None:
        self._files, self._file, self._size = files, file, size
        self._offset, self._data = 0, b""

    def read(self, start: int, end: int) -> bytes:
        """Read the bytes from ``start`` to before ``end``."""
        end = min(end, self._file.size)
        if start >= end:
            return b""
        if not self._offset <= start <= end <= self._offset + len(self._data):
            upto = min(max(end, start + self._size), self._file.size)
            self._offset, self._data = start, self._files.range(self._file, start, upto)
        return self._data[start - self._offset : end - self._offset]


def reads(data: Mapped) -> ReadAt:
    """Return a function that reads bytes of a tar that is mapped, or in memory."""
    return lambda start, end: data[start:end]


def mapped(path: str) -> Mapped:
    """Map a file on a local disk."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        return map_descriptor(file.fileno(), size) if size else b""
