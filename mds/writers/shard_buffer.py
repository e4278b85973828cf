"""Buffer pool of shards being filled: memory is mapped once and used again for later shards.

Touching fresh memory costs as much as writing it to a memory file system (2 us for 4 KB page and
page, measured), so the memory of a written shard is filled anew, and huge pages are asked for. It
is private and anonymous: nothing of it has a name, and untouched pages cost nothing.
"""

from __future__ import annotations

import contextlib
import mmap
from collections import deque

# Mapped at once for a shard whose limit is higher; it doubles from there.
_FIRST = 1 << 26
_SLACK = 1 << 16


class ShardBufferPool:
    """Gives out memory for shards and takes it back. May be called from any thread."""

    def __init__(self, size: int | None) -> None:
        self._first = min(_FIRST, size or _FIRST) + _SLACK
        self._free: deque[mmap.mmap] = deque()

    def take(self) -> mmap.mmap:
        """Memory for a shard."""
        with contextlib.suppress(IndexError):
            return self._free.pop()
        return _map(self._first)

    def give_back(self, body: mmap.mmap) -> None:
        """Have the memory filled again; a place that grew is let go instead."""
        if len(body) == self._first:
            self._free.append(body)

    def clear(self) -> None:
        """Forget the memory that waits."""
        self._free.clear()


def grow_buffer(body: mmap.mmap, used: int, needed: int) -> mmap.mmap:
    """Larger memory with the first `used` bytes of `body`, and room for `needed` in all."""
    larger = _map(max(needed, 2 * len(body)))
    view = memoryview(body)
    larger[:used] = view[:used]
    return larger


def _map(size: int) -> mmap.mmap:
    # Windows maps private memory by itself and knows no flags.
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size)
    body = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            body.madvise(mmap.MADV_HUGEPAGE)
    return body
