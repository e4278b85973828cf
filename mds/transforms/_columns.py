"""Columns of a batch: conversion from samples to columns, and from columns to tensors."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mds.errors import ConfigError

#: Columns that dense packs get besides those that follow the tokens.
PACK_COLUMNS = frozenset({"position_ids", "document_ids"})
_NUMBERS = (bool, int, float, complex, np.generic)


def columns_of(samples: Sequence[Any]) -> dict[str, Any]:
    """Return the columns of samples that are dicts with the same keys.

    Numbers, and arrays of one shape, become an array; anything else stays a list. Raises
    ConfigError for other samples.
    """
    first = samples[0]
    if not isinstance(first, Mapping):
        raise ConfigError(
            f"samples must be dicts to become columns, got {type(first).__name__}: let the "
            "function of map() return a dict."
        )
    for sample in samples:
        if not isinstance(sample, Mapping) or sample.keys() != first.keys():
            raise ConfigError(
                f"the samples of a batch have different keys: {_keys(first)} and {_keys(sample)}. "
                "Let the function of map() return the same keys for every sample."
            )
    return {name: column_of([sample[name] for sample in samples]) for name in first}


def _keys(sample: Any) -> str:
    if not isinstance(sample, Mapping):
        return f"a {type(sample).__name__}"
    return ", ".join(map(repr, sample)) or "none"


def column_of(values: Any) -> Any:
    """Return a column's values as one array (or tensor) if they have one shape, else unchanged."""
    if isinstance(values, np.ndarray) or not len(values):
        return values
    first = values[0]
    if isinstance(first, np.ndarray):
        if all(isinstance(v, np.ndarray) and v.shape == first.shape for v in values):
            return np.stack(values)
    elif isinstance(first, _NUMBERS) and all(isinstance(v, _NUMBERS) for v in values):
        array = np.array(values)
        if array.dtype != object:  # as integers beyond 64 bits would make it
            return array
    elif _is_tensor(first) and all(_is_tensor(v) and v.shape == first.shape for v in values):
        import torch

        return torch.stack(list(values))
    return values


def tensors_of(columns: Mapping[str, Any], *, transposes: bool = False) -> dict[str, Any]:
    """Return the columns as torch's default collate would, or as lists if it would fail.

    ``columns`` has an array or a list of values for each name. A list in the result has tensors for
    arrays and images, whose shapes differ, and unchanged values otherwise. Dicts and lists without
    arrays, as in columns of `json` and of lists, stay a list, because it depends on the batch
    whether torch can transpose them. With ``transposes`` torch does so.
    """
    return {name: tensor_of(values, transposes=transposes) for name, values in columns.items()}


def tensor_of(values: Any, *, transposes: bool = False) -> Any:
    """Return a column as a tensor or a list; see `tensors_of`."""
    if isinstance(values, np.ndarray):
        return as_tensor(values)
    if not isinstance(values, (list, tuple)) or not values:
        return values
    import torch
    from torch.utils.data import default_collate

    first = values[0]
    if is_image(first):
        values = [np.array(v) if is_image(v) else v for v in values]
        first = values[0]
    if isinstance(first, np.ndarray) and all(isinstance(v, np.ndarray) for v in values):
        if len({v.shape for v in values}) == 1:
            return as_tensor(np.stack(values))
        return [as_tensor(v) for v in values]
    if isinstance(first, torch.Tensor) and len({getattr(v, "shape", None) for v in values}) > 1:
        return list(values)
    if isinstance(first, str) and all(isinstance(v, str) for v in values):
        return list(values)
    is_nested = isinstance(first, (dict, list, tuple)) and not transposes
    if is_nested and not any(map(_has_array, values)):
        return list(values)
    try:
        return default_collate(list(values))
    except (TypeError, RuntimeError, KeyError, ValueError):
        # None among numbers, lists of different lengths, dicts of different keys, other objects.
        return list(values)


def as_tensor(array: Any) -> Any:
    """Return a tensor on the memory of an array, or on a copy if torch cannot share it."""
    import torch

    if array.flags.writeable and array.dtype.isnative and array.dtype.kind in "biufc":
        with contextlib.suppress(ValueError, TypeError):  # negative strides, long double
            return torch.from_numpy(array)
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > 16:
        return array.tolist()  # texts and the like
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C", copy=True))


def batch_of(result: Any) -> Any:
    """Convert the return value of a function of map_batches to the batch of a loader.

    The columns of a dict become tensors as by the default collate function. In any other value, the
    arrays inside become tensors.
    """
    if type(result) is dict:
        return tensors_of(result)
    from torch.utils._pytree import tree_map

    return tree_map(lambda leaf: as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf, result)


def join_columns(pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Concatenate the columns of several batches."""
    if len(pieces) == 1:
        return dict(pieces[0])
    return {
        name: np.concatenate([piece[name] for piece in pieces])
        if isinstance(first, np.ndarray)
        else [*itertools.chain.from_iterable(piece[name] for piece in pieces)]
        for name, first in pieces[0].items()
    }


def is_image(value: Any) -> bool:
    """Whether a value is a Pillow image; does not import Pillow."""
    return any(kind.__module__ == "PIL.Image" for kind in type(value).__mro__[:-1])


def _has_array(value: Any) -> bool:
    """Whether a value is an array or a tensor, or has one inside dicts and lists."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return isinstance(value, np.ndarray) or _is_tensor(value)
    return any(map(_has_array, value))


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "untyped_storage")
