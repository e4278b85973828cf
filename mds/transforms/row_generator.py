"""RowGenerator: random numbers row by row of a batch, from the keys that map_batches gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.errors import ConfigError
from mds.shuffle.permutation import derive_key, hash_counters
from mds.transforms.row_keys import KeyedGenerator

if TYPE_CHECKING:
    import numpy.typing as npt

    Shape = int | Sequence[int]

_MAX_RANGE = 1 << 53


class RowGenerator:
    """Random numbers for each row of a batch, which do not depend on the other rows.

    Each method gives an array of shape ``(rows, *shape)``, and each call other numbers than the one
    before. One number a row costs nearly nothing; many are drawn by a Philox generator for each
    row, 2 us and 5 ns a number.

    - ``keys`` (uint64 array): What a function of map_batches is given as ``keys``.

    Raises ConfigError (a ValueError) for anything else.

    >>> def mask(columns, keys):
    ...     hidden = RowGenerator(keys).random(columns["tokens"].shape[1]) < 0.15
    ...     return {"tokens": np.where(hidden, 103, columns["tokens"]), "hidden": hidden}
    """

    def __init__(self, keys: npt.NDArray[np.uint64]) -> None:
        key_array = np.asarray(keys)
        if key_array.ndim != 1 or key_array.dtype != np.uint64:
            raise ConfigError(
                f"RowGenerator takes the keys of map_batches, a uint64 for each row, got "
                f"{key_array.dtype} of shape {key_array.shape}."
            )
        self._keys = key_array
        self._calls = 0
        self._generator: KeyedGenerator | None = None

    def random(self, shape: Shape = (), dtype: Any = np.float32) -> npt.NDArray[Any]:
        """Numbers from 0 up to, and without, 1.

        - ``shape`` (int or tuple, default ()): Shape of each row's numbers.
        - ``dtype`` (default float32): float32 or float64.

        >>> RowGenerator(np.arange(2, dtype=np.uint64)).random().shape
        (2,)
        """
        if _tuple(shape):
            return self._fill(shape, dtype, lambda rng, out: rng.random(out=out, dtype=out.dtype))
        kind, keys = _float(dtype), self._next_keys()
        bits = 24 if kind == np.float32 else 53
        unit: npt.NDArray[Any] = (keys >> np.uint64(64 - bits)).astype(kind)
        unit *= kind.type(2.0**-bits)
        return unit

    def integers(self, low: Any, high: Any = None, shape: Shape = ()) -> npt.NDArray[np.int64]:
        """Integers from ``low`` up to, and without, ``high``; from 0 where one bound is given.

        - ``low``, ``high`` (int, or an array of one for each row): The bounds, not 2**53 apart.
        - ``shape`` (int or tuple, default ()): Shape of each row's numbers.

        >>> int(RowGenerator(np.arange(1, dtype=np.uint64)).integers(7, 8)[0])
        7
        """
        first, last = (0, low) if high is None else (low, high)
        begin, end = (self._per_row(bound, shape) for bound in (first, last))
        if not np.all((begin < end) & (end - begin <= _MAX_RANGE)):
            raise ConfigError(
                f"integers() takes low < high, at most 2**53 apart, got {first!r} and {last!r}."
            )
        unit = self.random(shape, np.float64)
        integers: npt.NDArray[np.int64] = begin + (unit * (end - begin)).astype(np.int64)
        return integers

    def normal(self, shape: Shape = (), dtype: Any = np.float32) -> npt.NDArray[Any]:
        """Numbers of the normal distribution with mean 0 and deviation 1.

        - ``shape`` (int or tuple, default ()): Shape of each row's numbers.
        - ``dtype`` (default float32): float32 or float64.
        """
        return self._fill(
            shape, dtype, lambda rng, out: rng.standard_normal(out=out, dtype=out.dtype)
        )

    def _per_row(self, bound: Any, shape: Shape) -> npt.NDArray[np.int64]:
        """Reshape a bound so that it broadcasts with numbers of shape (rows, *shape)."""
        bounds = np.asarray(bound)
        if bounds.dtype.kind not in "iu" or bounds.shape not in {(), self._keys.shape}:
            raise ConfigError(
                f"a bound of integers() is an integer or one for each of {len(self._keys)} rows, "
                f"got {bound!r}."
            )
        return bounds.astype(np.int64).reshape(bounds.shape + (1,) * len(_tuple(shape)))

    def _next_keys(self) -> npt.NDArray[np.uint64]:
        self._calls += 1
        return hash_counters(derive_key(self._calls), self._keys)

    def _fill(
        self, shape: Shape, dtype: Any, fill: Callable[[np.random.Generator, Any], Any]
    ) -> npt.NDArray[Any]:
        keys = self._next_keys()
        out = np.empty((len(keys), *_tuple(shape)), _float(dtype))
        if self._generator is None:
            self._generator = KeyedGenerator(0)
        rows = out.reshape(len(keys), math.prod(_tuple(shape)))
        for row, key in zip(rows, keys.tolist(), strict=True):
            fill(self._generator.at(key), row)
        return out


def _float(dtype: Any) -> np.dtype[Any]:
    float_type: np.dtype[Any] = np.dtype(dtype)
    if float_type not in {np.dtype(np.float32), np.dtype(np.float64)}:
        raise ConfigError(f"random numbers are float32 or float64, got {float_type}.")
    return float_type


def _tuple(shape: Shape) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
