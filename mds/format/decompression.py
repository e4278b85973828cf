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
# What is given to a library at the beginning of a member, which copies what is behind its end.
FIRST_PIECE = 1 << 9
# Parallel compressors end a file with an empty member; thousands of them are an attack.
_MAX_EMPTY_MEMBERS = 1000


class Decompressor(ABC):
    """Decompression of one file under way, bounded by the size that the index names."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._given = 0
        self._sink: Callable[[bytes], object] = _drop
        self._sink_error: Exception | None = None

    def feed(self, chunk: Data) -> bytes:
        """What comes out of the next chunk. Raises ShardError at the first piece too many."""
        out: list[bytes] = []
        self.feed_to(chunk, out.append)
        return out[0] if len(out) == 1 else b"".join(out)

    def finish(self) -> bytes:
        """The rest, usually nothing. Raises ShardError when bytes are missing."""
        out: list[bytes] = []
        self.finish_to(out.append)
        return b"".join(out)

    def feed_to(self, chunk: Data, sink: Callable[[bytes], object]) -> None:
        """As `feed`, with every piece given to ``sink`` at once: a megabyte of memory at most."""
        self._guarded(lambda: self._push(chunk), sink)

    def finish_to(self, sink: Callable[[bytes], object]) -> None:
        """As `finish`, with the rest given to ``sink``."""
        self._guarded(self._end, sink)
        if self._given != self._size:
            raise ShardError(f"{self._name} data ended at {self._given} of {self._size} bytes")

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
        """The last chunk was pushed."""

    def _emit(self, piece: bytes) -> None:
        self._given += len(piece)
        if self._given > self._size:
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
        """The decompressor of one member, of the standard library."""

    @abstractmethod
    def _expand(self, piece: Data) -> None:
        """Emit what a piece of a member becomes."""

    def _push(self, chunk: Data) -> None:
        view, at = memoryview(chunk), 0
        while at < len(view):
            if self._between and (padding := self._padding(view, at)):
                at += padding
                continue
            self._between = False
            piece = view[at : at + self._step]
            self._expand(piece)
            at += len(piece)
            if self._member.eof:
                at -= len(self._member.unused_data)
                self._begin_anew()
            else:
                self._step = min(4 * self._step, PIECE)

    def _padding(self, view: memoryview, at: int) -> int:
        del view, at
        return 0

    def _begin_anew(self) -> None:
        self._empty += self._given == self._before
        if self._empty > _MAX_EMPTY_MEMBERS:
            raise ShardError(f"{self._name} data has more than {_MAX_EMPTY_MEMBERS} empty members")
        self._before, self._step, self._between = self._given, FIRST_PIECE, True
        self._member = self._new_member()

    def _end(self) -> None:
        if not self._between:
            raise ShardError(f"{self._name} data ended in the middle of a member")
