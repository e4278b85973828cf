"""Shuffled slices of a node's ids, in windows: what py1b and py1br have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mds.shuffle.drawn import CHUNK
from mds.shuffle.spans import fill

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

# Beyond the second-level cache a shuffle of 4-byte numbers is faster than one of 8-byte numbers,
# below it is slower (measured: 16 and 21 ns a sample at 4 million, 11 and 8 at 262,144).
_NARROW_FROM = 1 << 20


def shuffled_slices(
    parts: tuple[NDArray[np.int64], NDArray[np.int64]],
    slices: Sequence[tuple[int, int]],
    rng: np.random.Generator,
) -> Iterator[NDArray[np.integer]]:
    """The ids of ``parts``, with every slice (first, last + 1) shuffled in turn.

    Slices begin in ascending order and may overlap; what no slice covers stays as it is. A window
    is good until the next one is asked for: all are parts of one buffer, because fresh memory for
    each would cost as much as the shuffle.
    """
    begin, size = parts
    ends = np.cumsum(size)
    total = int(ends[-1]) if len(ends) else 0
    longest = max((last - first for first, last in slices), default=0)
    small = total == 0 or int((begin + size).max()) <= 1 << 32
    kind = np.dtype(np.uint32 if small and longest >= _NARROW_FROM else np.int64)
    # Of a slice before, no more than the length of a slice is left when the next begins.
    held = np.empty(min(2 * longest, total), kind)
    done = filled = 0  # how many were given out, and how many were filled in
    for i, (first, last) in enumerate(slices):
        while filled < last:
            step = min(filled + CHUNK, last)
            held[filled - done : step - done] = _range(begin, size, ends, (filled, step), kind)
            filled = step
        rng.shuffle(held[first - done : last - done])
        # What no later slice reaches is final.
        until = min(slices[i + 1][0], filled) if i + 1 < len(slices) else filled
        if until > done:
            yield held[: until - done]
            left = held[until - done : filled - done].copy()
            held[: len(left)] = left
            done = until
    for at in range(done, total, CHUNK):
        yield _range(begin, size, ends, (at, min(at + CHUNK, total)), kind)


def skip_slices(slices: Sequence[tuple[int, int]], rng: np.random.Generator) -> None:
    """Draw what shuffling slices draws."""
    scratch = np.empty(max((last - first for first, last in slices), default=0), np.int64)
    narrow = scratch.view(np.uint32) if len(scratch) >= _NARROW_FROM else scratch
    for first, last in slices:
        rng.shuffle(narrow[: last - first])


def _range(
    begin: NDArray[np.int64],
    size: NDArray[np.int64],
    ends: NDArray[np.int64],
    wanted: tuple[int, int],
    kind: np.dtype[Any],
) -> NDArray[np.integer]:
    """Ids number ``wanted[0]`` to ``wanted[1]`` - 1 of the parts."""
    first, last = wanted
    a = int(np.searchsorted(ends, first, side="right"))
    b = int(np.searchsorted(ends, last, side="left")) + 1
    begins, sizes = begin[a:b].copy(), size[a:b].copy()
    before = first - int(ends[a] - size[a])
    begins[0] += before
    sizes[0] -= before
    sizes[-1] -= int(ends[b - 1]) - last
    return fill(begins, sizes, kind)
