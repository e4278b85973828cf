"""Plots in text: a distribution of lengths, and a mixture of streams along a run."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_BAR_WIDTH = 36
_MIXTURE_HEIGHT = 12
_LETTERS = string.ascii_lowercase + string.ascii_uppercase


def plot_lengths(lengths: NDArray[Any]) -> Iterator[str]:
    r"""Yield a line for each power of two, with its share of samples and of their sum.

    >>> print(*plot_lengths(np.array([3, 4, 5, 6, 7, 20])), sep="\\n")
    2 to 3      16.7 % of samples    6.7 % of the sum  ######
    4 to 7      66.7 % of samples   48.9 % of the sum  ########################
    16 to 31    16.7 % of samples   44.4 % of the sum  ######
    shortest 3, half up to 5, a hundredth above 7, longest 20; 45 in all
    """
    if not len(lengths):
        yield "no samples"
        return
    # frexp: a length below 2**power and at least half of it; 0 for a length of 0.
    powers = np.where(lengths > 0, np.frexp(lengths.astype(np.float64))[1], 0)
    counts = np.bincount(powers)
    sums = np.bincount(powers, lengths, minlength=len(counts))
    total = max(int(lengths.sum()), 1)
    names = {power: _range_name(power) for power in np.flatnonzero(counts).tolist()}
    width = max(11, *map(len, names.values()))
    for power, name in names.items():
        share, share_of_sum = counts[power] / len(lengths), sums[power] / total
        bar = "#" * max(round(share * _BAR_WIDTH), 1)
        line = f"{name:<{width}} {share:5.1%} of samples  {share_of_sum:6.1%} of the sum  {bar}"
        yield line.replace("%", " %")
    median, high = (int(np.quantile(lengths, q, method="lower")) for q in (0.5, 0.99))
    yield (
        f"shortest {int(lengths.min()):,}, half up to {median:,}, a hundredth above {high:,}, "
        f"longest {int(lengths.max()):,}; {int(lengths.sum()):,} in all"
    )


def _range_name(power: int) -> str:
    """Return the name of the lengths from 2**(power - 1) to 2**power - 1, such as "4 to 7"."""
    low, high = (0, 0) if not power else (1 << (power - 1), (1 << power) - 1)
    return f"{low:,} to {high:,}" if high > low else f"{low:,}"


def stream_letters(streams: int) -> list[str]:
    """Return the letter of each stream; those after the fifty-second share a dot."""
    return [_LETTERS[i] if i < len(_LETTERS) else "." for i in range(streams)]


def plot_mixture(
    counts: NDArray[Any], edges: Sequence[int], now: int | None = None, unit: str = "steps"
) -> Iterator[str]:
    r"""Yield a stacked plot of the shares of streams, the first stream at the bottom.

    Args:
        counts: Samples of each stream up to each edge, shape (edges, streams).
        edges: Steps between which a character of a line shows the shares, increasing.
        now: Step that is marked below the plot.
        unit: Name of the steps in the last line.

    >>> print(*plot_mixture(np.array([[0, 0], [6, 6], [9, 15]]), [0, 3, 6], 4), sep="\\n")
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
    samples = np.diff(counts, axis=0)
    totals = np.maximum(samples.sum(axis=1, keepdims=True), 1)
    # Cumulated shares are rounded, so that each column is full.
    tops = np.rint(np.cumsum(samples, axis=1) * _MIXTURE_HEIGHT / totals).astype(np.int64)
    letters = np.array([*stream_letters(counts.shape[1]), " "])
    labels = {_MIXTURE_HEIGHT: "100 %", _MIXTURE_HEIGHT // 2: " 50 %", 1: "  0 %"}
    for height in range(_MIXTURE_HEIGHT, 0, -1):
        # The stream at this height is the first whose top reaches it.
        cells = letters[(tops < height).sum(axis=1)]
        yield f"{labels.get(height, ''):5} |{''.join(cells)}".rstrip()
    if now is not None and edges[0] <= now <= edges[-1]:
        column = min(int(np.searchsorted(edges, now, side="right")) - 1, len(edges) - 2)
        yield " " * (7 + column) + "^"  # 7: width of the label and " |"
    yield f"{unit} {edges[0]:,} to {edges[-1]:,}"
