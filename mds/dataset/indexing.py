"""The rules of ``dataset[...]``: what may stand in the brackets and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mds.arguments import shown
from mds.errors import ConfigError


def resolve(at: Any, count: int, get: Callable[[int], Any]) -> Any:
    """``get`` of each number that ``at`` names: one sample, or lists of samples.

    An integer (also NumPy's; negative from the end) gives a sample; a slice, a list, a tuple, a
    range or an array of any of these gives a list in the same order and nesting. Raises IndexError
    out of range and ConfigError (a ValueError) for anything else.
    """
    if isinstance(at, (int, np.integer)) and not isinstance(at, (bool, np.bool_)):
        return get(normal(int(at), count))
    if isinstance(at, slice):
        try:
            return [get(number) for number in range(*at.indices(count))]
        except TypeError as error:
            raise ConfigError(f"a slice of samples is made of integers, got {at!r}.") from error
    if isinstance(at, (list, tuple, range)):
        return [
            get(one) if type(one) is int and 0 <= one < count else resolve(one, count, get)
            for one in at
        ]
    if hasattr(at, "tolist") and hasattr(at, "dtype"):  # NumPy arrays and torch tensors
        return resolve(_integers(at), count, get)
    raise ConfigError(
        f"dataset[{shown(at)}]: a sample is named by an integer, a slice, a list or an array, got "
        f"{type(at).__name__}.{_way_out(at)}"
    )


def _way_out(at: Any) -> str:
    return f" For a column write dataset[0][{at!r}]." if isinstance(at, str) else ""


def normal(number: int, count: int) -> int:
    """A number from 0 to count - 1; negative ones count from the end. Raises IndexError."""
    place = number + count if number < 0 else number
    if not 0 <= place < count:
        raise IndexError(
            f"there is no sample {number} among {count:,}: they go from 0 to {count - 1:,}."
            if count
            else f"there is no sample {number}: the dataset is empty."
        )
    return place


def _integers(array: Any) -> Any:
    """An array of integers as an int or nested lists."""
    found = np.asarray(array)
    if found.dtype.kind not in "iu" and found.size:
        raise ConfigError(f"samples are named by integers, got an array of {found.dtype}.")
    return found.tolist()
