"""Find line ends at the speed of memory, and cut lines into shards.

`cut_lines` counts the lines of a stream and cuts it into stretches of lines, which become shards.
`Probe` keeps the lines from which columns are inferred: some at the start of a file, some further
on. Bytes are compared in pieces of 256 KB, which stay in a processor's cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

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
#: Bytes that `Probe` keeps at each of these offsets, and lines that it uses.
_WINDOW, _LINES = 1 << 20, 250


@dataclasses.dataclass(frozen=True, slots=True)
class Stretch:
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
    data: bytes | bytearray | memoryview, *, skips_blank: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the begin and the end of every line, as two int64 arrays of shape (lines,).

    A line includes its newline; the last line may have none. With ``skips_blank`` lines of white
    space are left out.
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
    if not blank:
        return begins, ends
    is_kept = np.ones(len(ends), np.bool_)
    is_kept[blank] = False
    return begins[is_kept], ends[is_kept]


def count_lines(data: bytes | bytearray | memoryview, *, skips_blank: bool) -> int:
    """Return the number of lines that `line_bounds` would return.

    Newlines are counted without finding their places, which takes less time and memory. If a line
    begins with white space and may be blank, `line_bounds` counts.
    """
    array, count = np.frombuffer(data, np.uint8), 0
    if skips_blank and len(array) and array[0] <= _SPACE:
        return len(line_bounds(data, skips_blank=True)[1])
    is_end, is_blank = np.empty((2, _COUNTED), np.bool_)  # memory for the results of all pieces
    for offset in range(0, len(array), _COUNTED):
        piece = array[offset : offset + _COUNTED]
        ends = np.equal(piece, _NEWLINE, out=is_end[: len(piece)])
        count += int(np.count_nonzero(ends))
        if skips_blank:
            # Is there a newline before white space, that is, a line that may be blank?
            following = array[offset + 1 : offset + _COUNTED + 1]
            is_blank_end = np.less_equal(following, _SPACE, out=is_blank[: len(following)])
            if np.logical_and(is_blank_end, ends[: len(is_blank_end)], out=is_blank_end).any():
                return len(line_bounds(data, skips_blank=True)[1])
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
) -> list[Stretch]:
    """Cut a stream of bytes into stretches of lines.

    A stretch ends with the first line that ends ``size`` bytes or more after its start; with None
    the whole stream is one stretch. The result does not depend on how the bytes are chunked. Raises
    FormatError for a stretch with too many lines to be decoded.
    """
    out: list[Stretch] = []
    start = lines = 0  # first byte and number of lines of the current stretch
    counted = 0  # bytes of the stream whose lines are counted: all whole lines so far
    partial_line = bytearray()  # the beginning of a line whose end has not come yet

    def close(end: int) -> None:
        """End the current stretch at the byte ``end``, and begin the next one."""
        nonlocal start, lines
        out.append(Stretch(start, end, lines))
        start, lines = end, 0

    def take(data: bytes | bytearray | memoryview) -> None:
        """Count the whole lines in ``data``, which begins at the byte ``counted``."""
        nonlocal lines, counted
        view, first = memoryview(data), 0
        # The stretch ends with the first newline that makes it at least `size` bytes long: at the
        # byte start + size - 1 of the file or later, which is counted from `counted` in `view`.
        while size is not None and (end := _newline(view, start + size - counted - 1) + 1):
            lines += count_lines(view[first:end], skips_blank=skips_blank)
            close(counted + end)
            first = end
        lines += count_lines(view[first:], skips_blank=skips_blank)
        if lines > _MOST_LINES:
            raise FormatError(
                f"{location}: a compressed file is one shard, but this one has more than "
                f"{_MOST_LINES:,} lines. Write several files."
            )
        counted += len(view)

    for chunk in chunks:
        line_end = chunk.rfind(b"\n") + 1
        if not line_end:
            partial_line += chunk
            continue
        first = 0
        if partial_line:  # the line that began before is taken by itself, the rest without a copy
            first = chunk.find(b"\n") + 1
            partial_line += chunk[:first]
            take(partial_line)
        take(memoryview(chunk)[first:line_end])
        partial_line = bytearray(chunk[line_end:])
    if partial_line:
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


def numbered_lines(
    chunks: Iterable[bytes], offset: int = 0, *, skips_blank: bool
) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of some chunks, each with its newline, and the byte at which it begins.

    The first chunk begins at the byte ``offset``. With ``skips_blank`` lines of white space are
    left out.
    """
    for start, data in whole_lines(chunks, offset):
        begins, ends = line_bounds(data, skips_blank=skips_blank)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            yield start + begin, data[begin:end]


def _newline(data: memoryview, begin: int) -> int:
    """Return the first newline at a position or behind it, or -1."""
    for start in range(begin, len(data), _PIECE):
        index = bytes(data[start : start + _PIECE]).find(b"\n")
        if index >= 0:
            return start + index
    return -1


class Probe:
    """Sampler of lines: keeps windows of a stream, and returns the first lines of each.

        0        4 MB       8 MB                16 MB
        |window| |window|   |window|            |window| ...

    A window has 1 MB, but the first one grows until it holds a whole line. The windows do not
    depend on how the bytes are chunked, so neither do the columns.
    """

    def __init__(self) -> None:
        #: The byte at which each window begins, and its bytes so far.
        self._windows: list[tuple[int, bytearray]] = [(0, bytearray())]
        self._searched = 0  # bytes of the first window that hold no newline

    def watch(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks unchanged, and keep the bytes that are in a window."""
        offset = 0
        for chunk in chunks:
            self._take(chunk, offset)
            offset += len(chunk)
            yield chunk

    def _take(self, chunk: bytes, offset: int) -> None:
        """Keep the bytes of a chunk, which begins at ``offset``, that are in a window.

        A round of the loop fills the last window. Another one follows if that window is full and
        the chunk reaches the next window.
        """
        while True:
            start, window = self._windows[-1]
            begin = start + len(window) - offset  # position in the chunk of the window's next byte
            if self._must_grow():
                window += chunk[begin:]
                return
            if begin < len(chunk):
                window += chunk[begin : begin + _WINDOW - len(window)]
            if self._must_grow():  # the first window is full now, but its first line has not ended
                continue
            next_start = 2 * start if start else _FIRST
            if len(window) < _WINDOW or offset + len(chunk) <= next_start:
                return
            self._windows.append((next_start, bytearray()))

    def _must_grow(self) -> bool:
        """Whether the first window, which is the last one so far, is full and has no newline."""
        start, window = self._windows[-1]
        is_first = start == 0
        if not is_first or len(window) < _WINDOW or window.find(b"\n", self._searched) >= 0:
            return False
        self._searched = len(window)  # a later call searches new bytes only
        return True

    def lines(self, *, skips_blank: bool) -> list[tuple[int, bytes]]:
        """Return (byte in the file, line) for the first lines in each window.

        Lines that are cut by a window are left out. Only the first window keeps a line without a
        newline at its end: it may be the last line of a short file.
        """
        lines = []
        for start, window in self._windows:
            data = bytes(window)
            offset = start
            if start:  # the window begins inside a line
                skipped = data.find(b"\n") + 1
                offset, data = start + skipped, data[skipped:]
            # A window that grew for a long first line ends with a chunk. It is cut after that line,
            # so that the result does not depend on the chunks.
            last = data.find(b"\n", _WINDOW - 1) if len(data) > _WINDOW else data.rfind(b"\n")
            if start or (len(data) >= _WINDOW and last >= 0):
                data = data[: last + 1]
            begins, ends = line_bounds(data, skips_blank=skips_blank)
            pairs = zip(begins[:_LINES].tolist(), ends[:_LINES].tolist(), strict=True)
            lines += [(offset + begin, data[begin:end]) for begin, end in pairs]
        return lines
