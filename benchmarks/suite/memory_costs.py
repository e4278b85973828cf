"""What memory itself costs here: copying a sample of tokens, and looking at each of its pages.

Where samples are handed out as copies, this is what a copy adds; where they are views, a question
that only counts them does not pay for their bytes, which the code that uses them does.
"""

from __future__ import annotations

import mmap
import tempfile
import timeit
from collections import deque

import numpy as np

from benchmarks.suite.workloads import TOKENS

_ROWS = 4096  # of a sample each: 32 MB, more than processors keep beside themselves
_PAGE = 4096


def describe_costs() -> str:
    """A sentence with both, measured now."""
    copied, touched = copy_and_touch()
    return (
        f"One sample of {TOKENS:,} tokens here: memcpy {copied * 1e6:.2f} us, a look at its first "
        f"and last byte and one in each 4 KB {touched * 1e6:.2f} us."
    )


def copy_and_touch() -> tuple[float, float]:
    """Seconds of copying a random row out of a mapped file, and of touching it instead."""
    with tempfile.TemporaryFile() as file:
        file.write(np.arange(_ROWS * TOKENS, dtype=np.int32).tobytes())
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    size = 4 * TOKENS
    rows = np.frombuffer(mapped, np.uint8).reshape(_ROWS, size)
    order = np.random.default_rng(5).permutation(_ROWS).tolist()
    places = np.unique([*range(0, size, _PAGE), size - 1])

    def per_row(act: object) -> float:
        best = min(timeit.repeat(lambda: deque(map(act, order), maxlen=0), number=1, repeat=5))  # type: ignore[call-overload]
        return float(best) / _ROWS

    nothing = per_row(rows.__getitem__)
    copied = per_row(lambda row: rows[row].copy()) - nothing
    touched = per_row(lambda row: rows[row].take(places)) - nothing
    return max(copied, 0.0), max(touched, 0.0)
