"""A distribution of lengths in a few lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_WIDTH = 40


def draw(lengths: NDArray[Any]) -> Iterator[str]:
    r"""A line for each power of two with the share of samples and of their sum, and the middle.

    >>> print(*draw(np.array([3, 4, 5, 6, 7, 20])), sep="\\n")
    2 to 3      16.7 % of samples    6.7 % of the sum  ######
    4 to 7      66.7 % of samples   48.9 % of the sum  ########################
    16 to 31    16.7 % of samples   44.4 % of the sum  ######
    shortest 3, half up to 5, a hundredth above 7, longest 20; 45 in all
    """
    if not len(lengths):
        yield "no samples"
        return
    kinds = np.where(lengths > 0, np.frexp(lengths.astype(np.float64))[1], 0)
    counts = np.bincount(kinds)
    sums = np.bincount(kinds, lengths, minlength=len(counts))
    whole = max(int(lengths.sum()), 1)
    there = np.flatnonzero(counts).tolist()
    width = max(11, *(len(_name(kind)) for kind in there))
    for kind in there:
        share, of_sum = counts[kind] / len(lengths), sums[kind] / whole
        bar = "#" * max(round(share * _WIDTH * 0.9), 1)
        name = f"{_name(kind):<{width}}"
        yield f"{name} {share:5.1%} of samples  {of_sum:6.1%} of the sum  {bar}".replace("%", " %")
    middle, high = (int(np.quantile(lengths, q, method="lower")) for q in (0.5, 0.99))
    yield (
        f"shortest {int(lengths.min()):,}, half up to {middle:,}, a hundredth above {high:,}, "
        f"longest {int(lengths.max()):,}; {int(lengths.sum()):,} in all"
    )


def _name(kind: int) -> str:
    """The lengths between two powers of two."""
    low, high = (0, 0) if not kind else (1 << (kind - 1), (1 << kind) - 1)
    return f"{low:,} to {high:,}" if high > low else f"{low:,}"
