"""Functions of the caller as a part of the dataset: map, map_batches, and what ``[]`` gives then.

These functions are methods of Samples.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from mds.dataset.indexing import resolve
from mds.dataset.reading import apply_functions
from mds.dataset.subsets import SubsettableDataset
from mds.transforms.column_function import ColumnFunction

D = TypeVar("D", bound=SubsettableDataset)


def map(self: D, function: Callable[..., Any]) -> D:  # noqa: A001 - a method's name
    """A dataset whose samples are what ``function`` returns for each, where samples are made.

    A function with an argument ``rng`` is given a numpy Generator by it, whose numbers follow from
    seed, epoch and place in the order alone: they are the same on any number of ranks and workers,
    and after a resume. It is good until the function returns. ``dataset[i]`` draws the same numbers
    every time. With worker processes that are spawned, ``function`` must be fit for a pickle.

    What the function raises comes as FunctionError (a RuntimeError), which names the sample.

    >>> def crop(sample, rng):
    ...     at = rng.integers(len(sample["tokens"]) - 128)
    ...     return {"tokens": sample["tokens"][at : at + 128]}
    >>> dataset = dataset.map(crop)  # doctest: +SKIP
    """
    return with_function(self, "map", function)


def map_batches(self: D, function: Callable[..., Any]) -> D:
    """A dataset whose batches are what ``function`` makes of them, in StreamingDataLoader.

    It is given a dict of columns: an array where all values have one shape, else a list. The arrays
    are its own to change. What it returns is the batch; of a dict, arrays and lists of numbers
    become tensors. A function with an argument ``keys`` is given a uint64 for each row by it, from
    which `mds.transforms.RowGenerator` draws random numbers that do not depend on ranks and
    workers. Functions of `mds.transforms`, such as ``pad()``, are taken as well.

    What the function raises comes as FunctionError (a RuntimeError), which names the samples.

    >>> def shift(columns):
    ...     tokens = columns["tokens"]
    ...     return {"inputs": tokens[:, :-1], "labels": tokens[:, 1:]}
    >>> dataset = dataset.map_batches(shift)  # doctest: +SKIP
    """
    return with_function(self, "map_batches", function)


def with_function(dataset: D, kind: str, function: Callable[..., Any]) -> D:
    """A dataset with one more link in its chain, which has not begun yet."""
    part = copy.copy(dataset)
    is_ours = isinstance(function, ColumnFunction)
    part._filter = dataset._filter.with_function(kind, function, is_ours=is_ours)
    if kind != "filter":
        part.__class__ = _applying(getattr(type(dataset), "_stored_kind", type(dataset)))
    part._reset(dataset._shards)
    return part


class AppliesFunctions:
    """Mixin of datasets with functions: ``[]`` gives what they make of a sample.

    They see what the class of the caller gives, whatever it overrides.
    """

    _stored_kind: Any  # the class without functions

    def __getitem__(self: Any, at: Any) -> Any:
        self._filter.chain.refuse_samples()
        return resolve(at, self._shards.num_samples, self._applied_item)

    def _applied_item(self: Any, number: int) -> Any:
        return apply_functions(self, number, self._stored_item(number))

    def _stored_item(self, number: int) -> Any:
        """A sample before the functions."""
        return super().__getitem__(number)  # type: ignore[misc]

    def __reduce_ex__(self: Any, protocol: Any) -> tuple[Any, ...]:
        # The class has no name by which a pickle could find it.
        del protocol
        return _revive, (self._stored_kind,), self.__getstate__()


@functools.cache
def _applying(kind: type) -> type:
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (AppliesFunctions, kind), {**names, "_stored_kind": kind})


def _revive(kind: type) -> Any:
    made = _applying(kind)
    return made.__new__(made)  # type: ignore[call-overload]
