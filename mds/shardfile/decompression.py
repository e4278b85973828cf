"""Decompression of one file under way: bounded output, memory of a piece, linear time.

The size of the file is known beforehand, and the first byte more is an error. What comes out is
passed on in pieces of a megabyte, so a chunk of zeros takes no more memory than any other; formats
whose files are several members behind one another cost no more in many members than in one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from mds.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable

    Data = bytes | bytearray | memoryview

PIECE = 1 << 20
# Bytes of the first piece of a member: the library copies all input after the end of a member.
FIRST_PIECE = 1 << 9
# Parallel compressors end a file with an empty member; thousands of them are an attack.
_MAX_EMPTY_MEMBERS = 1000


class Decompressor(ABC):
    """Decompression of one file under way, bounded by the size that the index names."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._emitted = 0
        self._sink: Callable[[bytes], object] = _drop
        self._sink_error: Exception | None = None

    def feed(self, chunk: Data) -> bytes:
        """Return the output of the next chunk. Raises ShardError if it exceeds the file's size."""
        out: list[bytes] = []
        self.feed_to(chunk, out.append)
        return out[0] if len(out) == 1 else b"".join(out)

    def finish(self) -> bytes:
        """Return the last output, usually empty. Raises ShardError when bytes are missing."""
        out: list[bytes] = []
        self.finish_to(out.append)
        return b"".join(out)

    def feed_to(self, chunk: Data, sink: Callable[[bytes], object]) -> None:
        """Decompress as `feed`, and pass each piece of at most a megabyte to ``sink``."""
        self._guarded(lambda: self._push(chunk), sink)

    def finish_to(self, sink: Callable[[bytes], object]) -> None:
        """Finish as `finish`, and pass the last output to ``sink``."""
        self._guarded(self._end, sink)
        if self._emitted != self._size:
            raise ShardError(f"{self._name} data ended at {self._emitted} of {self._size} bytes")

    def _guarded(self, act: Callable[[], None], sink: Callable[[bytes], object]) -> None:
        self._sink = sink
        try:
            act()
        except (ShardError, ImportError):
            raise
        except Exception as error:  # each library has errors of its own
            if error is self._sink_error:
                raise
            raise ShardError(f"broken {self._name} data: {error}") from error
        finally:
            self._sink, self._sink_error = _drop, None

    @abstractmethod
    def _push(self, chunk: Data) -> None:
        """Take a chunk and call `_emit` for each piece; the library's own errors may pass."""

    def _end(self) -> None:  # noqa: B027 - most have nothing to do
        """Check the end, after the last chunk was pushed."""

    def _emit(self, piece: bytes) -> None:
        self._emitted += len(piece)
        if self._emitted > self._size:
            raise ShardError(f"{self._name} data holds more than the {self._size} bytes it should")
        if piece:
            try:
                self._sink(piece)
            except Exception as error:
                self._sink_error = error
                raise


def _drop(piece: bytes) -> None:
    del piece


class MemberDecompressor(Decompressor):
    """A file of members that follow one another, each with a decompressor object of its own.

    At a member's end the library copies all that is behind it, so the first pieces are small.
    """

    def __init__(self, name: str, size: int) -> None:
        super().__init__(name, size)
        self._member = self._new_member()
        self._between = True
        self._step = FIRST_PIECE
        self._before = 0  # bytes that had come when the member began
        self._empty = 0

    @staticmethod
    @abstractmethod
    def _new_member() -> Any:
        """Return a decompressor of the standard library for one member."""

    @abstractmethod
    def _expand(self, piece: Data) -> None:
        """Emit what a piece of a member becomes."""

    def _push(self, chunk: Data) -> None:
        view, start = memoryview(chunk), 0
        while start < len(view):
            if self._between and (padding := self._padding(view, start)):
                start += padding
                continue
            self._between = False
            piece = view[start : start + self._step]
            self._expand(piece)
            start += len(piece)
            if self._member.eof:
                start -= len(self._member.unused_data)
                self._begin_anew()
            else:
                self._step = min(4 * self._step, PIECE)

    def _padding(self, view: memoryview, start: int) -> int:
        del view, start
        return 0

    def _begin_anew(self) -> None:
        self._empty += self._emitted == self._before
        if self._empty > _MAX_EMPTY_MEMBERS:
            raise ShardError(f"{self._name} data has more than {_MAX_EMPTY_MEMBERS} empty members")
        self._before, self._step, self._between = self._emitted, FIRST_PIECE, True
        self._member = self._new_member()

    def _end(self) -> None:
        if not self._between:
            raise ShardError(f"{self._name} data ended in the middle of a member")
