"""A mixture of streams along a training, in letters: one a stream, steps to the right."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_HEIGHT = 12
_LETTERS = string.ascii_lowercase + string.ascii_uppercase
_OTHERS = "."


def letters(streams: int) -> list[str]:
    """The letter of each stream; those beyond the fifty-second share a dot."""
    return [_LETTERS[i] if i < len(_LETTERS) else _OTHERS for i in range(streams)]


def draw(
    counts: NDArray[Any], edges: Sequence[int], now: int | None = None, unit: str = "steps"
) -> Iterator[str]:
    r"""The shares of streams as a picture of lines, the first stream at the bottom.

    ``counts``: samples of each stream up to each of the ``edges``, in ``unit``, (edges, streams).
    ``now``: a step that is marked below.

    >>> print(*draw(np.array([[0, 0], [6, 6], [9, 15]]), [0, 3, 6], 4), sep="\\n")
    100 % |bb
          |bb
          |bb
          |bb
          |bb
          |bb
     50 % |ab
          |ab
          |ab
          |aa
          |aa
      0 % |aa
           ^
    steps 0 to 6
    """
    of_column = np.diff(counts, axis=0)
    whole = np.maximum(of_column.sum(axis=1, keepdims=True), 1)
    # Heights are rounded as sums, so that each column is full.
    tops = np.rint(np.cumsum(of_column, axis=1) * _HEIGHT / whole).astype(np.int64)
    of_stream = np.array([*letters(counts.shape[1]), " "])
    names = {_HEIGHT: "100 %", _HEIGHT // 2: " 50 %", 1: "  0 %"}
    for height in range(_HEIGHT, 0, -1):
        cells = of_stream[(tops < height).sum(axis=1)]
        yield f"{names.get(height, ''):5} |{''.join(cells)}".rstrip()
    if now is not None and edges[0] <= now <= edges[-1]:
        column = min(int(np.searchsorted(edges, now, side="right")) - 1, len(edges) - 2)
        yield " " * (7 + column) + "^"
    yield f"{unit} {edges[0]:,} to {edges[-1]:,}"
