"""Lines to tell columns from: of the beginning of a file and from further on, as it goes by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mds.formats.newlines import line_bounds

#: Where samples are taken: at the beginning, at 4 MB, and at every doubling of that.
_FIRST = 4 << 20
#: How much is looked at in each place, and how many lines of it count.
_WINDOW, _LINES = 1 << 20, 250


class Probe:
    """Windows of a file. They depend on its bytes alone, however these come in chunks."""

    def __init__(self) -> None:
        self._windows: list[tuple[int, bytearray]] = [(0, bytearray())]
        self._searched = 0  # bytes of the first window that hold no newline

    def watch(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Pass chunks on, and keep the bytes that are in a window."""
        offset = 0
        for chunk in chunks:
            self._take(chunk, offset)
            offset += len(chunk)
            yield chunk

    def _take(self, chunk: bytes, offset: int) -> None:
        while True:
            start, window = self._windows[-1]
            begin = start + len(window) - offset
            if self._is_long():
                window += chunk[begin:]
                return
            if begin < len(chunk):
                window += chunk[begin : begin + _WINDOW - len(window)]
            following = 2 * start if start else _FIRST
            if self._is_long():
                continue
            if len(window) < _WINDOW or offset + len(chunk) <= following:
                return
            self._windows.append((following, bytearray()))

    def _is_long(self) -> bool:
        """Whether the first line has not ended yet, without which nothing would be known."""
        start, window = self._windows[-1]
        if start or len(window) < _WINDOW or window.find(b"\n", self._searched) >= 0:
            return False
        self._searched = len(window)
        return True

    def lines(self, *, skips_blank: bool) -> list[tuple[int, bytes]]:
        """Return the lines in the windows, with the byte of each; cut ones only at the start."""
        lines = []
        for start, window in self._windows:
            data = bytes(window)
            offset = start
            if start:
                skipped = data.find(b"\n") + 1
                offset, data = start + skipped, data[skipped:]
            # Behind a first line of a megabyte is what came by chance.
            last = data.find(b"\n", _WINDOW - 1) if len(data) > _WINDOW else data.rfind(b"\n")
            if start or (len(data) >= _WINDOW and last >= 0):
                data = data[: last + 1]
            begins, ends = line_bounds(data, skips_blank=skips_blank)
            pairs = zip(begins[:_LINES].tolist(), ends[:_LINES].tolist(), strict=True)
            lines += [(offset + begin, data[begin:end]) for begin, end in pairs]
        return lines
