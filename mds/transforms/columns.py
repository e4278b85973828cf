"""Columns of a batch: samples to columns, and columns to tensors as a loader gives them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mds.errors import ConfigError

_NUMBERS = (bool, int, float, complex, np.generic)


def columns_of(samples: Sequence[Any]) -> dict[str, Any]:
    """Return the columns of samples that are dicts with the same keys.

    Numbers, and arrays of one shape, become an array; anything else stays a list. Raises
    ConfigError for other samples.
    """
    first = samples[0]
    if not isinstance(first, Mapping):
        raise ConfigError(
            f"columns are made of samples that are dicts, got {type(first).__name__}: let the "
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
    """Return an array if all values have one shape, else the values unchanged."""
    if isinstance(values, np.ndarray) or not len(values):
        return values
    first = values[0]
    if isinstance(first, np.ndarray):
        if all(isinstance(v, np.ndarray) and v.shape == first.shape for v in values):
            return np.stack(values)
    elif isinstance(first, _NUMBERS) and all(isinstance(v, _NUMBERS) for v in values):
        made = np.array(values)
        if made.dtype != object:
            return made
    elif _is_tensor(first) and all(_is_tensor(v) and v.shape == first.shape for v in values):
        import torch

        return torch.stack(list(values))
    return values


def tensors_of(columns: Mapping[str, Any], *, transposes: bool = False) -> dict[str, Any]:
    """Return the batch that torch's default collate makes of the same values, where it makes one.

    Where it refuses, the values stay a list: arrays and images of different shapes as tensors of
    their own, anything else as it is. Dicts and lists without arrays in them, as columns of `json`
    and of lists have, stay a list: whether torch could transpose them depends on the batch. With
    ``transposes`` they become what torch makes of them.
    """
    return {name: tensor_of(values, transposes=transposes) for name, values in columns.items()}


def tensor_of(values: Any, *, transposes: bool = False) -> Any:
    """One column as a tensor, or as a list."""
    import torch
    from torch.utils.data import default_collate

    if isinstance(values, np.ndarray):
        return as_tensor(values)
    if not isinstance(values, (list, tuple)) or not values:
        return values
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


def batch_of(made: Any) -> Any:
    """Convert the return value of a function of map_batches to the batch of a loader.

    Of a dict each column is treated as by the default collate function; of anything else the
    arrays inside become tensors.
    """
    from torch.utils._pytree import tree_map

    if type(made) is dict:
        return tensors_of(made)
    return tree_map(lambda leaf: as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf, made)


def join_columns(pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns of pieces, end to end."""
    if len(pieces) == 1:
        return dict(pieces[0])
    return {
        name: np.concatenate([piece[name] for piece in pieces])
        if isinstance(first, np.ndarray)
        else [*itertools.chain.from_iterable(piece[name] for piece in pieces)]
        for name, first in pieces[0].items()
    }


def is_image(value: Any) -> bool:
    """Whether a value is a Pillow image; asks for no import."""
    return any(kind.__module__ == "PIL.Image" for kind in type(value).__mro__[:-1])


def _has_array(value: Any) -> bool:
    """Whether arrays or tensors are inside dicts and lists."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return isinstance(value, np.ndarray) or _is_tensor(value)
    return any(map(_has_array, value))


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "untyped_storage")
