"""Compressions by name, as the index spells them: `zstd:7`, `gz`, ... over whole files.

A compressed file is one zstd frame, gzip member, bz2 or brotli stream, or raw snappy block. Files
of several frames or members, as parallel compressors write them, are read too.

The index gives the size of the decompressed file, and a `Decompressor` raises an error at the first
byte more, so a decompression bomb costs nothing else. Output comes in pieces of a megabyte, so a
chunk of zeros takes no more memory than any other. A file of many members takes linear time.
"""

from __future__ import annotations

import bz2
import re
import zlib
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mds._arguments import did_you_mean
from mds.errors import ConfigError, ShardError, need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Data = bytes | bytearray | memoryview


class Codec(ABC):
    """One compression at one level. Stateless, thread-safe and picklable.

    A subclass sets `algorithm`, `levels` (None: it has no levels) and the `default` level. The
    constructor takes the whole `name`, such as "zstd:7", and the `level` in it (None: the default).
    """

    algorithm: str
    levels: range | None = None
    default: int = 0

    def __init__(self, name: str, level: int | None) -> None:
        self.name = name
        self.level = self.default if level is None else level

    @property
    def extension(self) -> str:
        """Extension of a compressed file, without the dot."""
        return self.algorithm

    def compress(self, data: Data) -> bytes:
        """Return the compressed file."""
        return b"".join(self.compress_parts([data]))

    @abstractmethod
    def compress_parts(self, parts: Sequence[Data]) -> Iterator[bytes]:
        """Compress a file that is given in parts, and yield the result in pieces."""

    def decompress(self, data: Data, size: int) -> bytes:
        """Return the content of the compressed file `data`.

        Raises ShardError for damaged data, and if the content does not have `size` bytes.
        """
        decompressor = self.decompressor(size)
        return decompressor.feed(data) + decompressor.finish()

    @abstractmethod
    def decompressor(self, size: int) -> Decompressor:
        """Return a decompressor for a file that arrives in chunks and holds `size` bytes."""

    def __repr__(self) -> str:
        return f"<Codec {self.name}>"


@lru_cache(maxsize=256)
def parse_compression(name: str | None) -> Codec | None:
    """Return the codec of a name such as `"zstd:7"`, or None if the name is None or ''.

    Raises ConfigError (a ValueError) for an unknown algorithm or level. The package of an optional
    algorithm is imported when the codec is first used.
    """
    if not name:
        return None
    algorithm, colon, level = name.partition(":")
    kind = _CODECS.get(algorithm)
    if kind is None:
        raise ConfigError(
            f"there is no compression {name!r}.{did_you_mean(algorithm, _CODECS)} The compressions "
            f"are {', '.join(sorted(_CODECS))}, most with a level as in 'zstd:7'."
        )
    if not colon:
        return kind(name, None)
    if kind.levels is None:
        raise ConfigError(f"{name!r}: {algorithm} has no levels; write {algorithm!r}.")
    # isdecimal takes other scripts' digits, and '07' would be a second name for '7'.
    if not re.fullmatch(r"0|[1-9][0-9]?", level) or int(level) not in kind.levels:
        first, last = kind.levels[0], kind.levels[-1]
        raise ConfigError(f"{name!r}: the levels of {algorithm} are {first} to {last}.")
    return kind(name, int(level))


def compression_names() -> list[str]:
    """Return all names that `parse_compression` takes, sorted: `br`, `br:0`, ..."""
    names = []
    for algorithm, kind in _CODECS.items():
        names += [algorithm, *(f"{algorithm}:{level}" for level in kind.levels or ())]
    return sorted(names)


def _cut(parts: Sequence[Data]) -> Iterator[memoryview]:
    """Yield the parts in pieces of a megabyte, so that a compressor needs little memory."""
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _PIECE):
            yield view[start : start + _PIECE]


# --------------------------------------------------------------------- bounded decompression


# Bytes of a piece of output, or of input that a library gets at once.
_PIECE = 1 << 20
# Bytes of the first piece of a member: the library copies all input after the end of a member.
_FIRST_PIECE = 1 << 9
# Parallel compressors end a file with an empty member; thousands of them are an attack.
_MAX_EMPTY_MEMBERS = 1000


class Decompressor(ABC):
    """Decompressor of one file in chunks, which raises an error above the expected size.

    - `name` (str): Name of the compression, for errors.
    - `size` (int): Bytes of the decompressed file, according to the index.

    Callers use `feed` and `finish`, which return the output, or `feed_to` and `finish_to`, which
    pass it to a function piece by piece, the *sink*. A subclass writes `_push`, and `_end` if it
    has to check the end. Both pass their output to `_emit`, which counts it and calls the sink.

    Libraries raise errors of many classes for damaged data. All of them become ShardError; errors
    of the sink, such as a full disk, are raised as they are.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._emitted = 0  # bytes of output so far
        self._sink: Callable[[bytes], object] = _drop  # sink of the call in progress
        self._sink_error: Exception | None = None  # raised by the sink in this call

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
        """Finish as `finish`, and pass the last output to ``sink``.

        Raises ShardError if the output of all chunks is shorter than the file.
        """
        self._guarded(self._end, sink)
        if self._emitted != self._size:
            raise ShardError(f"{self._name} data ends after {self._emitted} of {self._size} bytes")

    def _guarded(self, act: Callable[[], None], sink: Callable[[bytes], object]) -> None:
        """Run a step of the decompression, and turn the errors of its library into ShardError.

        Args:
            act: The step: `_push` with a chunk, or `_end`.
            sink: Function that gets each piece of output. Its own errors are raised unchanged.
        """
        self._sink = sink
        try:
            act()
        except (ShardError, ImportError):
            raise
        except Exception as error:  # the class of errors differs by library
            # `_emit` runs inside the step, so an error of the sink arrives here, too.
            if error is self._sink_error:
                raise
            raise ShardError(f"broken {self._name} data: {error}") from error
        finally:
            self._sink, self._sink_error = _drop, None

    @abstractmethod
    def _push(self, chunk: Data) -> None:
        """Decompress a chunk and call `_emit` for each piece. May raise the library's errors."""

    def _end(self) -> None:  # noqa: B027 - most have nothing to do
        """Check the end, after the last chunk was pushed."""

    def _emit(self, piece: bytes) -> None:
        """Count a piece of output, and pass it to the sink. Raises ShardError if it is too much."""
        self._emitted += len(piece)
        if self._emitted > self._size:
            raise ShardError(f"{self._name} data holds more than the expected {self._size} bytes")
        if piece:
            try:
                self._sink(piece)
            except Exception as error:
                self._sink_error = error
                raise


def _drop(piece: bytes) -> None:
    del piece


class MemberDecompressor(Decompressor):
    """Decompressor of a file of consecutive members, each with its own library object.

    A member is a whole compressed stream; files of parallel compressors have many. At the end of a
    member the library copies all the input that it got beyond it. So input is given to it in
    pieces that start small with each member and grow: many short members then cost linear time.
    """

    def __init__(self, name: str, size: int) -> None:
        super().__init__(name, size)
        self._member = self._new_member()  # library object of the current member
        self._is_between = True  # no byte of the current member came yet
        self._step = _FIRST_PIECE  # bytes of the next piece of input
        self._emitted_before = 0  # bytes that were emitted before the current member
        self._empty_members = 0

    @staticmethod
    @abstractmethod
    def _new_member() -> Any:
        """Return a decompressor of the standard library for one member."""

    @abstractmethod
    def _expand(self, piece: Data) -> None:
        """Decompress a piece of a member, and emit the result."""

    def _push(self, chunk: Data) -> None:
        """Decompress a chunk, which may hold the end of a member and several more members."""
        view, start = memoryview(chunk), 0
        while start < len(view):
            if self._is_between and (padding := self._padding(view, start)):
                start += padding
                continue  # more padding may follow
            self._is_between = False
            piece = view[start : start + self._step]
            self._expand(piece)
            start += len(piece)
            if self._member.eof:
                start -= len(self._member.unused_data)  # input that belongs to the next member
                self._begin_member()
            else:
                self._step = min(4 * self._step, _PIECE)

    def _padding(self, view: memoryview, start: int) -> int:
        """Return the number of bytes of padding at ``start``, which is between two members."""
        del view, start
        return 0

    def _begin_member(self) -> None:
        """Prepare for the next member. Raises ShardError after too many empty ones."""
        if self._emitted == self._emitted_before:
            self._empty_members += 1
        if self._empty_members > _MAX_EMPTY_MEMBERS:
            raise ShardError(f"{self._name} data has more than {_MAX_EMPTY_MEMBERS} empty members")
        self._emitted_before, self._step, self._is_between = self._emitted, _FIRST_PIECE, True
        self._member = self._new_member()

    def _end(self) -> None:
        """Raise ShardError if the file ended inside a member."""
        if not self._is_between:
            raise ShardError(f"{self._name} data ended in the middle of a member")


# --------------------------------------------------------------------- the compressions


class _Zstd(Codec):
    """Zstandard: a file is one frame, or several."""

    algorithm = "zstd"
    levels = range(1, 23)
    default = 3

    def compress_parts(self, parts: Sequence[Data]) -> Iterator[bytes]:
        import zstandard

        # Given the size, the library writes it into the frame's header, as it does if it gets all
        # data at once. `decompress` uses it.
        size = sum(map(len, parts))
        stream = zstandard.ZstdCompressor(level=self.level).compressobj(size=size)
        for piece in _cut(parts):
            yield stream.compress(piece)
        yield stream.flush()

    def decompress(self, data: Data, size: int) -> bytes:
        """Return the content of a file; one frame is decompressed in one call, for speed."""
        import zstandard

        try:
            # One call allocates memory of the whole size first, so take it only if the header has
            # the size of the index, and so much data can be expected to have such a content.
            is_plausible = 0 < size <= (1 << 20) + 64 * len(data)
            if is_plausible and zstandard.frame_content_size(data) == size:
                return zstandard.ZstdDecompressor().decompress(
                    data, max_output_size=size, allow_extra_data=False
                )
        except zstandard.ZstdError:
            # Several frames, which `_ZstdDecompressor` reads, or damage, which it reports.
            return super().decompress(data, size)
        return super().decompress(data, size)

    def decompressor(self, size: int) -> Decompressor:
        return _ZstdDecompressor(self.name, size)


class _ZstdDecompressor(Decompressor):
    """Decompressor with zstandard's stream writer.

    A chunk written to it may yield much output, in calls of `_Target.write` with at most `_PIECE`
    bytes each.
    """

    def __init__(self, name: str, size: int) -> None:
        import zstandard

        super().__init__(name, size)
        self._target = _Target()
        self._writer = zstandard.ZstdDecompressor().stream_writer(
            self._target,  # type: ignore[arg-type]
            write_size=_PIECE,
        )

    def _push(self, chunk: Data) -> None:
        """Decompress a chunk; `_Target.write` emits the output while the writer runs."""
        # The target refers to this object only during the call. Otherwise this object, the writer
        # and the target would form a cycle, and the garbage collector does not see the reference
        # in the writer, which is C: the cycle would never be freed.
        self._target.emit = self._emit
        try:
            self._writer.write(chunk)
        finally:
            self._target.emit = None


class _Target:
    """File object to which zstandard's writer writes its output.

    Attributes:
        emit: Function that gets the output; None while nothing is decompressed.
    """

    emit: Callable[[bytes], None] | None = None

    def write(self, piece: Data) -> int:
        """Pass a piece of output to ``emit``, and return its size."""
        assert self.emit is not None
        self.emit(bytes(piece))
        return len(piece)


class _Gz(Codec):
    """gzip: a file is one member, or several."""

    algorithm = "gz"
    levels = range(10)
    default = 9

    def compress_parts(self, parts: Sequence[Data]) -> Iterator[bytes]:
        # zlib writes no time into the header, so the same data give the same file. 31 is zlib's
        # code for a window of 2**15 bytes, the largest, plus 16 for the gzip format.
        stream = zlib.compressobj(self.level, zlib.DEFLATED, 31)
        for piece in _cut(parts):
            yield stream.compress(piece)
        yield stream.flush()

    def decompressor(self, size: int) -> Decompressor:
        return _GzDecompressor(self.name, size)


class _GzDecompressor(MemberDecompressor):
    """Decompressor of gzip members. Zero bytes may follow each of them, as tools pad files."""

    @staticmethod
    def _new_member() -> Any:
        return zlib.decompressobj(31)  # as in `_Gz.compress_parts`

    def _expand(self, piece: Data) -> None:
        """Decompress a piece; the library returns at most `_PIECE` bytes at once."""
        self._emit(self._member.decompress(piece, _PIECE))
        # The tail is the input that the library did not use for these bytes. At the end of a member
        # the tail is not updated: such input is in `unused_data` then.
        while self._member.unconsumed_tail and not self._member.eof:
            self._emit(self._member.decompress(self._member.unconsumed_tail, _PIECE))

    def _padding(self, view: memoryview, start: int) -> int:
        """Return the number of zero bytes at ``start``, of which the next ``_step`` bytes have.

        `_push` calls this again until it returns 0, so zeros beyond are found later.
        """
        piece = bytes(view[start : start + self._step])
        zeros = len(piece) - len(piece.lstrip(b"\0"))
        # Longer pieces while there are only zeros; a member begins with a short piece.
        self._step = min(4 * self._step, _PIECE) if zeros == len(piece) else _FIRST_PIECE
        return zeros


class _Bz2(Codec):
    """bzip2: a file is one stream, or several."""

    algorithm = "bz2"
    levels = range(1, 10)
    default = 9

    def compress_parts(self, parts: Sequence[Data]) -> Iterator[bytes]:
        stream = bz2.BZ2Compressor(self.level)
        for piece in _cut(parts):
            yield stream.compress(piece)
        yield stream.flush()

    def decompressor(self, size: int) -> Decompressor:
        return _Bz2Decompressor(self.name, size)


class _Bz2Decompressor(MemberDecompressor):
    """Decompressor of bzip2 streams."""

    @staticmethod
    def _new_member() -> Any:
        return bz2.BZ2Decompressor()

    def _expand(self, piece: Data) -> None:
        """Decompress a piece; the library returns at most `_PIECE` bytes at once."""
        self._emit(self._member.decompress(piece, _PIECE))
        # The library keeps the rest of the input, and continues when called without any.
        while not (self._member.needs_input or self._member.eof):
            self._emit(self._member.decompress(b"", _PIECE))


class _Br(Codec):
    """Brotli: a file is one stream."""

    algorithm = "br"
    levels = range(12)
    default = 11

    def compress_parts(self, parts: Sequence[Data]) -> Iterator[bytes]:
        stream = _brotli().Compressor(quality=self.level)
        for piece in _cut(parts):
            # A copy, so that the caller may release a part while brotli still holds its input.
            yield stream.process(bytes(piece))
        yield stream.finish()

    def decompressor(self, size: int) -> Decompressor:
        return _BrDecompressor(self.name, size)


class _BrDecompressor(Decompressor):
    """Decompressor of a Brotli stream."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(name, size)
        self._stream = _brotli().Decompressor()

    def _push(self, chunk: Data) -> None:
        """Decompress a chunk in calls that return at most `_PIECE` bytes each.

        The first call gets the whole chunk; calls with empty input return the rest of its output.
        """
        pending = bytes(chunk)
        while pending or not self._stream.is_finished():
            piece = self._stream.process(pending, output_buffer_limit=_PIECE)
            self._emit(piece)
            pending = b""
            if not piece:
                break  # no more output before the next chunk

    def _end(self) -> None:
        if not self._stream.is_finished():
            raise ShardError(f"{self._name} data ended in the middle of the stream")


class _Snappy(Codec):
    """Snappy: a file is one raw block."""

    algorithm = "snappy"

    def compress_parts(self, parts: Sequence[Data]) -> Iterator[bytes]:
        yield bytes(_snappy().compress_raw(b"".join(parts)))

    def decompressor(self, size: int) -> Decompressor:
        return _SnappyDecompressor(self.name, size)


class _SnappyDecompressor(Decompressor):
    """Decompressor of a raw block, which can only be decompressed as a whole, at the end.

    More input than a block of `size` bytes can have is refused.
    """

    def __init__(self, name: str, size: int) -> None:
        super().__init__(name, size)
        self._library = _snappy()
        self._data = bytearray()

    def _push(self, chunk: Data) -> None:
        """Collect a chunk. Raises ShardError for more bytes than a block of this size can have."""
        self._data += chunk
        # Snappy's bound for data that does not compress.
        if len(self._data) > 32 + self._size + self._size // 6:
            raise ShardError(f"{self._name} data is too long for {self._size} bytes")

    def _end(self) -> None:
        """Decompress the block, after a check of the size that its header gives."""
        length = self._library.decompress_raw_len(self._data)
        if length != self._size:
            raise ShardError(f"{self._name} data holds {length} bytes, expected {self._size}")
        self._emit(bytes(self._library.decompress_raw(self._data)))


def _brotli() -> Any:
    """Import brotli. Raises MissingDependencyError."""
    try:
        import brotli
    except ImportError:
        raise need("brotli", "br", "shards compressed with 'br'") from None
    return brotli


def _snappy() -> Any:
    """Import cramjam. Raises MissingDependencyError."""
    try:
        import cramjam
    except ImportError:
        raise need("cramjam", "snappy", "shards compressed with 'snappy'") from None
    return cramjam.snappy


_CODECS: dict[str, type[Codec]] = {
    kind.algorithm: kind for kind in (_Br, _Bz2, _Gz, _Snappy, _Zstd)
}
