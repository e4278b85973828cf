"""Random numbers of samples and batches that do not depend on workers, ranks or resumed runs.

They follow from row keys: 64 bits for each place of an epoch. A key is a hash of the seed, the
epoch, the place in the order and the sample. It does not depend on ranks, workers, batches, or on
where a run was resumed. The sample is hashed too because batches that are built by stream give all
streams of a step the same places.

`RowGenerator` draws numbers for each row from keys. `seeded` seeds the global generators for
functions that draw from these.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._words import plural
from mds.errors import ConfigError
from mds.shuffle._permutation import derive_key, hash_counters

if TYPE_CHECKING:
    import numpy.typing as npt

    Keys = npt.NDArray[np.uint64]  # shape (rows,)
    Shape = int | Sequence[int]


# --------------------------------------------------------------------------------------------- keys


# Numbers that keep the hashes of different purposes apart.
_PLACES, _SAMPLES, _NUMBERS, _LINKS = range(0x7A5, 0x7A9)
_SPREAD = np.uint64(0xD6E8FEB86659FD93)


def keys_of_places(
    seed: int, epoch: int, places: npt.NDArray[np.int64], samples: npt.NDArray[np.int64]
) -> Keys:
    """Compute the key of each sample at a place of an epoch, uint64 of shape (samples,).

    Args:
        seed: Seed of the dataset.
        epoch: Number of the epoch.
        places: Place of each sample in the epoch of all ranks, of shape (samples,).
        samples: Number of each sample, of shape (samples,).
    """
    # Hash the place, add the sample, and hash again, so that keys of neighbours are unrelated.
    bits = hash_counters(derive_key(_PLACES, seed, epoch), places)
    bits ^= samples.astype(np.uint64) * _SPREAD
    return hash_counters(derive_key(_SAMPLES, seed, epoch), bits)


def key_of_number(seed: int, sample: int) -> int:
    """Compute the key of a sample that is read by its number, outside an epoch."""
    return derive_key(_NUMBERS, seed, sample)


def keys_of_link(keys: Keys, stream: int) -> Keys:
    """Compute the keys for one function of a chain, so that functions draw different numbers.

    ``keys`` are the keys of the rows, and ``stream`` is the number of the function in the chain.
    """
    return hash_counters(derive_key(_LINKS, stream), keys)


class KeyedGenerator:
    """NumPy Generator whose key is set anew for each sample, which determines its numbers.

    It draws from the bit generator Philox, which makes numbers out of a key and a counter. Setting
    the key and the counter takes 1 to 2 us, and a new Generator 20.

    Args:
        stream: Number of the function in its chain: functions with different numbers draw different
            values.
    """

    def __init__(self, stream: int) -> None:
        self.bits = np.random.Philox(key=0)
        self.rng = np.random.Generator(self.bits)
        self._key = np.array([0, stream], np.uint64)
        # State of a fresh Philox: counter 0 and an empty buffer (position 4 of 4). It shares the
        # array of the key, which `at` changes.
        self._state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": np.zeros(4, np.uint64), "key": self._key},
            "buffer": np.zeros(4, np.uint64),
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def at(self, key: int) -> np.random.Generator:
        """Return the generator at the start of a key's numbers, valid until the next call."""
        self._key[0] = key  # this array is part of ``_state``
        self.bits.state = self._state
        return self.rng


# ------------------------------------------------------------------ numbers for the rows of a batch


_MAX_RANGE = 1 << 53


class RowGenerator:
    """Random numbers for each row of a batch, which do not depend on the other rows.

    Each method returns an array of shape ``(rows, *shape)``, and each call draws new numbers. One
    number per row costs nearly nothing. Several are drawn by a Philox generator for each row: 2 us,
    and 5 ns for each number.

    - ``keys`` (uint64 array, one key for each row): The argument ``keys`` of a function of
      map_batches.

    Raises ConfigError (a ValueError) for other arrays.

    >>> def mask(columns, keys):
    ...     hidden = RowGenerator(keys).random(columns["tokens"].shape[1]) < 0.15
    ...     return {"tokens": np.where(hidden, 103, columns["tokens"]), "hidden": hidden}
    """

    def __init__(self, keys: npt.NDArray[np.uint64]) -> None:
        key_array = np.asarray(keys)
        if key_array.ndim != 1 or key_array.dtype != np.uint64:
            raise ConfigError(
                f"RowGenerator needs the keys of map_batches, a uint64 for each row, got "
                f"{key_array.dtype} of shape {key_array.shape}."
            )
        self._keys = key_array
        self._calls = 0
        self._generator: KeyedGenerator | None = None

    def random(self, shape: Shape = (), dtype: Any = np.float32) -> npt.NDArray[Any]:
        """Draw numbers from 0 (included) to 1 (excluded).

        - ``shape`` (int or tuple, default ()): Shape of each row's numbers.
        - ``dtype`` (default float32): float32 or float64.

        >>> RowGenerator(np.arange(2, dtype=np.uint64)).random().shape
        (2,)
        """
        if _tuple(shape):
            return self._fill(shape, dtype, lambda rng, out: rng.random(out=out, dtype=out.dtype))
        kind, keys = _float(dtype), self._next_keys()
        # A key is random itself: its upper bits, as many as the type can represent, are the number.
        bits = 24 if kind == np.float32 else 53
        unit: npt.NDArray[Any] = (keys >> np.uint64(64 - bits)).astype(kind)
        unit *= kind.type(2.0**-bits)
        return unit

    def integers(self, low: Any, high: Any = None, shape: Shape = ()) -> npt.NDArray[np.int64]:
        """Draw integers from ``low`` (included) to ``high`` (excluded); from 0 with one bound.

        - ``low``, ``high`` (int, or an array of one for each row): The bounds, at most 2**53 apart.
        - ``shape`` (int or tuple, default ()): Shape of each row's numbers.

        >>> int(RowGenerator(np.arange(1, dtype=np.uint64)).integers(7, 8)[0])
        7
        """
        first, last = (0, low) if high is None else (low, high)
        begin, end = (self._per_row(bound, shape) for bound in (first, last))
        if not np.all((begin < end) & (end - begin <= _MAX_RANGE)):
            raise ConfigError(
                f"integers() needs low < high, at most 2**53 apart, got {first!r} and {last!r}."
            )
        unit = self.random(shape, np.float64)
        integers: npt.NDArray[np.int64] = begin + (unit * (end - begin)).astype(np.int64)
        return integers

    def normal(self, shape: Shape = (), dtype: Any = np.float32) -> npt.NDArray[Any]:
        """Draw numbers of the normal distribution with mean 0 and standard deviation 1.

        - ``shape`` (int or tuple, default ()): Shape of each row's numbers.
        - ``dtype`` (default float32): float32 or float64.
        """
        return self._fill(
            shape, dtype, lambda rng, out: rng.standard_normal(out=out, dtype=out.dtype)
        )

    def _per_row(self, bound: Any, shape: Shape) -> npt.NDArray[np.int64]:
        """Reshape a bound of `integers` so that it broadcasts with numbers of shape (rows, *shape).

        A bound for each of 8 rows and ``shape`` (5,) gives an array of shape (8, 1).
        """
        bounds = np.asarray(bound)
        if bounds.dtype.kind not in "iu" or bounds.shape not in {(), self._keys.shape}:
            raise ConfigError(
                f"a bound of integers() must be one integer, or one for each of the "
                f"{plural(len(self._keys), 'row')}, got {bound!r}."
            )
        return bounds.astype(np.int64).reshape(bounds.shape + (1,) * len(_tuple(shape)))

    def _next_keys(self) -> npt.NDArray[np.uint64]:
        """Return other keys of the rows for each call, so that every call draws new numbers."""
        self._calls += 1
        return hash_counters(derive_key(self._calls), self._keys)

    def _fill(
        self, shape: Shape, dtype: Any, fill: Callable[[np.random.Generator, Any], Any]
    ) -> npt.NDArray[Any]:
        """Return an array of shape (rows, *shape), each row filled from the row's own generator.

        ``fill`` is called with a generator and a 1-D array to fill.
        """
        keys = self._next_keys()
        out = np.empty((len(keys), *_tuple(shape)), _float(dtype))
        if self._generator is None:
            self._generator = KeyedGenerator(0)
        rows = out.reshape(len(keys), math.prod(_tuple(shape)))
        for row, key in zip(rows, keys.tolist(), strict=True):
            fill(self._generator.at(key), row)
        return out


def _float(dtype: Any) -> np.dtype[Any]:
    """Return float32 or float64 as a dtype; raise ConfigError for any other type."""
    float_type: np.dtype[Any] = np.dtype(dtype)
    if float_type not in {np.dtype(np.float32), np.dtype(np.float64)}:
        raise ConfigError(f"random numbers must be float32 or float64, got {float_type}.")
    return float_type


def _tuple(shape: Shape) -> tuple[int, ...]:
    """Return a shape as a tuple; an integer is a shape with one axis."""
    return (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)


# -------------------------------------------------------------------------------- global generators


class Seeded:
    """Function of samples that runs under seeded global generators; see `seeded`."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        if not callable(function):
            raise ConfigError(
                f"seeded() needs a function of a sample, got {type(function).__name__}. Write "
                "dataset.map(seeded(function))."
            )
        self._function = function
        if (name := getattr(function, "__qualname__", None)) is not None:
            self.__qualname__ = name  # errors name the function

    def __call__(self, sample: Any, rng: np.random.Generator) -> Any:
        """Call the function under seeded generators, restore them, and return its result."""
        import torch

        seed = int(rng.integers(1 << 63))
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        try:
            random.seed(seed)
            np.random.seed(seed % (1 << 32))  # noqa: NPY002
            torch.default_generator.manual_seed(seed)
            return self._function(sample)
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
            torch.set_rng_state(states[2])

    def __repr__(self) -> str:
        return f"seeded({getattr(self, '__qualname__', self._function)})"


def seeded(function: Callable[[Any], Any]) -> Seeded:
    """Seed `random`, `numpy.random` and torch's CPU generator for each call of a function.

    Augmentations of torchvision, timm and albumentations draw from these global generators. Under
    ``seeded`` they draw the same numbers for a sample on any number of ranks and workers and after
    a resume, as ``rng`` of `map` does. Each call restores the state of the generators.

    - ``function`` (Callable[[Any], Any]): Function of a sample, as for `map`.

    Use it with worker processes or without workers. Threads share the generators, so
    ``worker_type="threads"`` raises ConfigError (a ValueError), as does what is not a function.

    >>> dataset = dataset.map(seeded(augment))  # doctest: +SKIP
    """
    return Seeded(function)
