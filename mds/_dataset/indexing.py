"""Indexing of datasets: what ``dataset[...]`` accepts and returns, with and without functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mds._arguments import shown
from mds.errors import ConfigError


def resolve(index: Any, count: int, get: Callable[[int], Any]) -> Any:
    """Return the samples that an index selects: one sample, or nested lists of samples.

    An integer gives a sample; it may be negative, from the end. A slice, a list, a tuple, a range
    or an array gives a list in the same order and nesting. Raises IndexError for a number out of
    range and ConfigError (a ValueError) for any other index.

    Args:
        index: What the user wrote in ``dataset[index]``.
        count: Number of samples of the dataset.
        get: Returns the sample of a number from 0 to ``count`` - 1.
    """
    if isinstance(index, (int, np.integer)) and not isinstance(index, (bool, np.bool_)):
        return get(normalize(int(index), count))
    if isinstance(index, slice):
        try:
            return [get(number) for number in range(*index.indices(count))]
        except TypeError as error:
            raise ConfigError(f"a slice of samples needs integers, got {index!r}.") from error
    if isinstance(index, (list, tuple, range)):
        return [
            get(item) if type(item) is int and 0 <= item < count else resolve(item, count, get)
            for item in index
        ]
    if hasattr(index, "tolist") and hasattr(index, "dtype"):  # NumPy arrays and torch tensors
        return resolve(_integers(index), count, get)
    raise ConfigError(
        f"dataset[{shown(index)}]: an index must be an integer, a slice, a list or an array, got "
        f"{type(index).__name__}.{_way_out(index)}"
    )


def _way_out(index: Any) -> str:
    """Return how to read columns, for ``dataset["column"]`` and lists of columns; else ''."""
    if not isinstance(index, str):
        return ""
    return (
        f" For a column, write [sample[{index!r}] for sample in dataset]. To read no other "
        f"columns, write StreamingDataset(..., columns=[{index!r}])."
    )


def normalize(number: int, count: int) -> int:
    """Return a number of one of ``count`` samples as a number from 0 to ``count`` - 1.

    Negative numbers count from the end. Raises IndexError for a number out of range.
    """
    place = number + count if number < 0 else number
    if not 0 <= place < count:
        raise IndexError(
            (
                f"there is no sample {number}: the {count:,} samples have numbers from 0 to "
                f"{count - 1:,}."
            )
            if count
            else f"there is no sample {number}: the dataset is empty."
        )
    return place


def _integers(array: Any) -> Any:
    """Return an array of integers as an int or nested lists; raise ConfigError for other arrays."""
    numbers = np.asarray(array)
    if numbers.dtype.kind not in "iu" and numbers.size:
        raise ConfigError(
            f"an array of sample numbers must have integers, got an array of {numbers.dtype}."
        )
    return numbers.tolist()


class AppliesFunctions:
    """Mixin for a dataset with functions of the user: its samples are what the functions return.

    `applying_class` puts it before the caller's class, so ``super()`` returns the samples of that
    class, to which the functions are applied.
    """

    _stored_kind: Any  # the caller's class, without this mixin

    def __getitem__(self: Any, index: Any) -> Any:
        self._filter.chain.refuse_samples()
        self._filter.refuse_numbers(f"dataset[{shown(index)}]", f"[{shown(index)}]")
        return resolve(index, self._shards.num_samples, self._applied_item)

    def _applied_item(self: Any, number: int) -> Any:
        """Return the sample of a number after the functions."""
        from mds._iteration.reading import apply_functions

        stored = self._stored_item(number)
        return apply_functions(self._filter.chain, self.shuffle_seed, number, stored)

    def _stored_item(self, number: int) -> Any:
        """Return a sample before the functions."""
        return super().__getitem__(number)  # type: ignore[misc]

    def __reduce_ex__(self: Any, protocol: Any) -> tuple[Any, ...]:
        # pickle cannot find the class by its name: it is made by `applying_class`.
        del protocol
        return _revive, (self._stored_kind,), self.__getstate__()


def applying_class(kind: type) -> type:
    """Return the subclass of a class of datasets whose samples pass the functions of the user."""
    return _make_class(getattr(kind, "_stored_kind", kind))


@functools.cache
def _make_class(kind: type) -> type:
    """Return a subclass of ``kind`` with `AppliesFunctions`; it has the name and help of ``kind``.

    It is cached, so that two datasets of one class have the same class after `map` too.
    """
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (AppliesFunctions, kind), {**names, "_stored_kind": kind})


def _revive(kind: type) -> Any:
    """Return an empty object of the subclass of ``kind``, whose state pickle sets afterwards."""
    applying = _make_class(kind)
    return applying.__new__(applying)  # type: ignore[call-overload]
