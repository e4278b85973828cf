"""Find line ends at the speed of memory, and cut lines into shards.

`cut_lines` counts the lines of a stream and cuts it into ranges of lines, which become shards.
`NumberedLines` iterates over lines, and knows their numbers. `Probe` keeps the lines from which
columns are inferred: some at the start of a file, some further on. Bytes are compared in pieces of
256 KB, which stay in a processor's cache.
"""

from __future__ import annotations

import dataclasses
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from mds.errors import FormatError

_PIECE = 1 << 18
#: Bytes that are compared at once to count lines. The arrays of results are used again.
_COUNTED = 1 << 16
_NEWLINE = 10
#: Most bytes of a line, which is in memory as a whole, several times while it is decoded.
_LONGEST = 1 << 30
#: Most lines of a shard. A decoded line takes at least eight bytes, a shard at most 1 GB.
_MOST_LINES = 1 << 27
_SPACE = 32  # white space is at most this; a line that begins with more is not blank
#: `Probe` takes lines at the beginning, at 4 MB, 8 MB, 16 MB, ...
_FIRST = 4 << 20
#: Bytes that `Probe` keeps at each of these offsets, and records of them that are looked at.
_WINDOW, MOST_PROBED = 1 << 20, 250


@dataclasses.dataclass(frozen=True, slots=True)
class LineRange:
    """Consecutive lines of a file: bytes [start, end), and the number of lines that are samples."""

    start: int
    end: int
    lines: int


def line_ends(data: bytes | bytearray | memoryview) -> npt.NDArray[np.int64]:
    """Return the position after each newline, int64 of shape (newlines,)."""
    array = np.frombuffer(data, np.uint8)
    ends = [
        np.flatnonzero(array[offset : offset + _PIECE] == _NEWLINE) + (offset + 1)
        for offset in range(0, len(array), _PIECE)
    ]
    return np.concatenate(ends) if ends else np.zeros(0, np.int64)


def line_bounds(
    data: bytes | bytearray | memoryview, offset: int = 0, *, skips_blank: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the begin and the end of every line, as two int64 arrays of shape (lines,).

    A line includes its newline; the last line may have none. With ``skips_blank`` lines of white
    space are left out. ``data`` begins at the byte ``offset`` of the file (default 0). There, a
    byte order mark is no part of its line.
    """
    ends = line_ends(data)
    if len(data) and (not len(ends) or ends[-1] != len(data)):
        ends = np.append(ends, len(data))
    begins = np.concatenate([np.zeros(min(1, len(ends)), np.int64), ends[:-1]])
    if not skips_blank or not len(ends):
        return begins, ends
    first = np.frombuffer(data, np.uint8)[begins]
    # Only a line that begins with white space can be blank. Few do, so these are looked at one by
    # one.
    suspects = np.flatnonzero(first <= _SPACE)
    blank = [line for line in suspects.tolist() if bytes(data[begins[line] : ends[line]]).isspace()]
    if _mark_size(data, offset) and not bytes(data[len(BOM_UTF8) : ends[0]]).strip():
        blank.append(0)
    if not blank:
        return begins, ends
    is_kept = np.ones(len(ends), np.bool_)
    is_kept[blank] = False
    return begins[is_kept], ends[is_kept]


def _mark_size(data: bytes | bytearray | memoryview, offset: int) -> int:
    """Return the size of the byte order mark at the beginning of ``data``; 0 if it has none.

    ``data`` begins at the byte ``offset`` of the file, and only the file has such a mark.
    """
    size = len(BOM_UTF8)
    return size if not offset and bytes(data[:size]) == BOM_UTF8 else 0


def count_lines(data: bytes | bytearray | memoryview, offset: int = 0, *, skips_blank: bool) -> int:
    """Return the number of lines that `line_bounds` would return.

    Newlines are counted without finding their places, which takes less time and memory. If a line
    begins with white space and may be blank, `line_bounds` counts.
    """
    array, count = np.frombuffer(data, np.uint8), 0
    if skips_blank and len(array) and (array[0] <= _SPACE or _mark_size(data, offset)):
        return len(line_bounds(data, offset, skips_blank=True)[1])
    is_end, is_blank = np.empty((2, _COUNTED), np.bool_)  # memory for the results of all pieces
    for start in range(0, len(array), _COUNTED):
        piece = array[start : start + _COUNTED]
        ends = np.equal(piece, _NEWLINE, out=is_end[: len(piece)])
        count += int(np.count_nonzero(ends))
        if skips_blank:
            # Is there a newline before white space, that is, a line that may be blank?
            following = array[start + 1 : start + _COUNTED + 1]
            is_blank_end = np.less_equal(following, _SPACE, out=is_blank[: len(following)])
            if np.logical_and(is_blank_end, ends[: len(is_blank_end)], out=is_blank_end).any():
                return len(line_bounds(data, offset, skips_blank=True)[1])
    return count + bool(len(array) and array[-1] != _NEWLINE)  # the last line may have no newline


def bounded(chunks: Iterable[bytes], location: str, offset: int = 0) -> Iterator[bytes]:
    """Yield the chunks unchanged, and raise FormatError once a line has more than 1 GB.

    ``offset`` is the byte at which the first chunk begins. Without this check a few compressed
    bytes could become a line of any length.
    """
    begin = offset  # of the current line, which may have begun in an earlier chunk
    for chunk in chunks:
        first = chunk.find(b"\n")
        if offset + (len(chunk) if first < 0 else first) - begin > _LONGEST:
            raise FormatError(
                f"{location}: the line at byte {begin:,} has more than {_LONGEST:,} bytes; write "
                "several lines."
            )
        if first >= 0:
            begin = offset + chunk.rfind(b"\n") + 1
        offset += len(chunk)
        yield chunk


def cut_lines(
    chunks: Iterable[bytes], size: int | None, *, skips_blank: bool, location: str = ""
) -> list[LineRange]:
    """Cut a stream of bytes into ranges of lines.

    A range ends with the first line that ends ``size`` bytes or more after its start; with None the
    whole stream is one range. The result does not depend on how the bytes are chunked. Raises
    FormatError for a range with too many lines to be decoded.
    """
    out: list[LineRange] = []
    start = lines = 0  # first byte and number of lines of the current range
    counted = 0  # bytes of the stream whose lines are counted: all whole lines so far
    partial_line = bytearray()  # the beginning of a line whose end has not come yet

    def close(end: int) -> None:
        """End the current range at the byte ``end``, and begin the next one."""
        nonlocal start, lines
        out.append(LineRange(start, end, lines))
        start, lines = end, 0

    def take(data: bytes | bytearray | memoryview) -> None:
        """Count the whole lines in ``data``, which begins at the byte ``counted``."""
        nonlocal lines, counted
        view, first = memoryview(data), 0
        # The range ends with the first newline that makes it at least `size` bytes long: at the
        # byte start + size - 1 of the file or later, which is counted from `counted` in `view`.
        while size is not None and (end := _newline(view, start + size - counted - 1) + 1):
            lines += count_lines(view[first:end], counted + first, skips_blank=skips_blank)
            close(counted + end)
            first = end
        lines += count_lines(view[first:], counted + first, skips_blank=skips_blank)
        if lines > _MOST_LINES:
            raise FormatError(
                f"{location}: a compressed file is one shard, but this one has more than "
                f"{_MOST_LINES:,} lines. Write several files."
            )
        counted += len(view)

    def take_long(length: int) -> None:
        """Count one line of ``length`` bytes whose content is not kept."""
        nonlocal lines, counted
        lines, counted = lines + 1, counted + length
        if size is not None and counted - start >= size:
            close(counted)

    long_line = 0  # bytes of a long partial line, which is a sample whatever follows
    for chunk in chunks:
        line_end = chunk.rfind(b"\n") + 1
        if not line_end:
            partial_line += chunk
            mark = _mark_size(partial_line, counted)
            if long_line or (
                len(partial_line) > _WINDOW and not (skips_blank and partial_line[mark] <= _SPACE)
            ):
                long_line += len(partial_line)
                partial_line = bytearray()
            continue
        first = 0
        if long_line:
            first = chunk.find(b"\n") + 1
            take_long(long_line + first)
            long_line = 0
        elif partial_line:  # the line that began before is taken by itself, the rest without a copy
            first = chunk.find(b"\n") + 1
            partial_line += chunk[:first]
            take(partial_line)
        take(memoryview(chunk)[first:line_end])
        partial_line = bytearray(chunk[line_end:])
    if long_line:
        take_long(long_line)
    elif partial_line:
        take(partial_line)
    if counted > start:
        close(counted)
    return out


def whole_lines(chunks: Iterable[bytes], offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Join and cut chunks so that each piece ends with a newline; yield (offset, piece).

    ``offset`` is the byte of the file at which the first chunk begins. Only the last piece may have
    no newline at its end.
    """
    partial_line: list[bytes] = []
    for chunk in chunks:
        line_end = chunk.rfind(b"\n") + 1
        if not line_end:
            partial_line.append(chunk)
            continue
        data = b"".join((*partial_line, chunk[:line_end])) if partial_line else chunk[:line_end]
        yield offset, data
        offset += len(data)
        partial_line = [chunk[line_end:]] if line_end < len(chunk) else []
    if partial_line:
        yield offset, b"".join(partial_line)


#: A piece of a file: its offset, its bytes, which hold whole lines only, and where each wanted line
#: begins and ends in it.
Piece = tuple[int, bytes, "Offsets", "Offsets"]
#: Positions in some bytes, int64.
Offsets = npt.NDArray[np.int64]


def pieces_of_lines(
    chunks: Iterable[bytes], offset: int = 0, *, skips_blank: bool
) -> Iterator[Piece]:
    """Yield the lines of some chunks in pieces; see `Piece`.

    The first chunk begins at the byte ``offset``. With ``skips_blank`` lines of white space are
    left out.
    """
    for start, data in whole_lines(chunks, offset):
        yield start, data, *line_bounds(data, start, skips_blank=skips_blank)


class NumberedLines:
    """Iterator over lines, each with the byte at which it begins; it can also number them.

    Args:
        pieces: The lines in pieces, from `pieces_of_lines`.
        end: Lines that begin at this byte or after it are not wanted (default: all are).
    """

    def __init__(self, pieces: Iterable[Piece], end: int | None = None) -> None:
        self._pieces, self._end = pieces, end
        #: Newlines before the present piece, its offset, and its bytes.
        self._newlines, self._start, self._data = 0, 0, b""

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for start, data, begins, ends in self._pieces:
            self._start, self._data = start, data
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                if self._end is not None and start + begin >= self._end:
                    return
                yield start + begin, data[begin:end]
            self._newlines += data.count(b"\n")

    def count_before(self, offset: int) -> int:
        """Return the number of newlines before the line that was yielded last, from the first byte.

        ``offset`` is the byte at which that line begins.
        """
        return self._newlines + self._data.count(b"\n", 0, offset - self._start)


def count_newlines(chunks: Iterable[bytes], end: int) -> int:
    """Return the number of newlines in the first ``end`` bytes of some chunks."""
    count = 0
    for chunk in chunks:
        if end <= 0:
            break
        count += chunk.count(b"\n", 0, end)
        end -= len(chunk)
    return count


def _newline(data: memoryview, begin: int) -> int:
    """Return the first newline at a position or behind it, or -1."""
    for start in range(begin, len(data), _PIECE):
        index = bytes(data[start : start + _PIECE]).find(b"\n")
        if index >= 0:
            return start + index
    return -1


class Probe:
    """Sampler of lines: keeps windows of a file, and returns the first lines of each.

        0        4 MB       8 MB                16 MB
        |window| |window|   |window|            |window| ...

    A window has 1 MB, but the first one holds at least a whole line. The windows depend neither on
    how the bytes are chunked nor on who reads them, so neither do the columns.

    Args:
        limit: Windows begin before this byte (default: anywhere in the file).
    """

    def __init__(self, limit: int | None = None) -> None:
        #: The byte at which each window begins, and its bytes so far.
        self._windows: list[tuple[int, bytearray]] = [(0, bytearray())]
        self._searched = 0  # bytes of the first window that hold no newline
        self._limit = limit

    @classmethod
    def of_file(cls, read: Callable[[int, int], bytes], size: int) -> Probe:
        """Return the probe of a file of ``size`` bytes, of which only the windows are read.

        ``read`` returns the bytes from one offset to before another.
        """
        probe = cls()
        while True:
            start, window = probe._windows[-1]
            end = start + len(window)
            if probe._is_complete():
                end = probe._next_start()
                probe._windows.append((end, bytearray()))
            if end >= size:
                return probe
            probe._take(read(end, min(end + _WINDOW, size)), end)

    def watch(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks unchanged, and keep the bytes that are in a window."""
        offset = 0
        for chunk in chunks:
            self._take(chunk, offset)
            offset += len(chunk)
            yield chunk

    def fill(self, chunks: Iterable[bytes]) -> None:
        """Keep the bytes of the windows; chunks behind the last window are not asked for."""
        for _ in self.watch(chunks):
            if self._is_complete() and self._next_start() >= (self._limit or 0):
                return

    def _take(self, chunk: bytes, offset: int) -> None:
        """Keep the bytes of a chunk, which begins at ``offset``, that are in a window.

        A round of the loop fills the last window. Another one follows if that window is complete
        and the chunk reaches the next window.
        """
        while True:
            start, window = self._windows[-1]
            if not self._is_complete():
                position = start + len(window) - offset  # in the chunk, of the window's next byte
                if position >= len(chunk):
                    return
                is_growing = len(window) >= _WINDOW  # because the first line has not ended
                end = len(chunk) if is_growing else position + _WINDOW - len(window)
                window += chunk[position:end]
                continue
            next_start = self._next_start()
            if offset + len(chunk) <= next_start or (self._limit and next_start >= self._limit):
                return
            self._windows.append((next_start, bytearray()))

    def _is_complete(self) -> bool:
        """Return True if the last window is full; cut a first window that grew after its line."""
        start, window = self._windows[-1]
        if start or len(window) < _WINDOW:
            return len(window) >= _WINDOW
        newline = window.find(b"\n", self._searched)
        self._searched = len(window) if newline < 0 else newline  # later calls search new bytes
        if newline >= _WINDOW:
            del window[newline + 1 :]
        return newline >= 0

    def _next_start(self) -> int:
        """Return the byte at which the window after a complete one begins."""
        start, window = self._windows[-1]
        following = 2 * start or _FIRST
        while following < start + len(window):  # a first line of megabytes
            following *= 2
        return following

    def windows(self) -> list[tuple[int, bytes]]:
        """Return the whole lines of each window: the byte at which they begin, and their bytes.

        Lines that are cut by a window are left out. Only the first window keeps a line without a
        newline at its end: it may be the last line of a short file.
        """
        windows = []
        for start, window in self._windows:
            data = bytes(window)
            offset = data.find(b"\n") + 1 if start else 0  # the window begins inside a line
            end = data.rfind(b"\n") + 1
            if not start and (len(data) < _WINDOW or not end):
                end = len(data)
            windows.append((start + offset, data[offset:end]))
        return windows

    def lines(self, *, skips_blank: bool) -> list[tuple[int, bytes]]:
        """Return (byte in the file, line) for the first lines in each window."""
        lines = []
        for offset, data in self.windows():
            begins, ends = line_bounds(data, offset, skips_blank=skips_blank)
            pairs = zip(begins[:MOST_PROBED].tolist(), ends[:MOST_PROBED].tolist(), strict=True)
            lines += [(offset + begin, data[begin:end]) for begin, end in pairs]
        return lines
