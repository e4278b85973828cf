"""Rows of a ragged column: arrays of different lengths, checked once for each batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mds.errors import ConfigError

if TYPE_CHECKING:
    import numpy.typing as npt


def rows_of(column: Any, name: str) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.int64]]:
    """Return the values of a column as arrays that differ in their first axis, and their lengths.

    Raises ConfigError for values that are no arrays or lists of numbers, and for other axes that
    differ.
    """
    rows = [_array(value, name) for value in column]
    shapes = {row.shape[1:] for row in rows}
    if len(shapes) > 1:
        first, second, *_ = sorted(shapes)
        raise ConfigError(
            f"column {name!r} has values of shape (n, *{first}) and (n, *{second}): only the first "
            "axis may differ."
        )
    return rows, np.fromiter(map(len, rows), np.int64, len(rows))


def _array(value: Any, name: str) -> npt.NDArray[Any]:
    if hasattr(value, "numpy"):  # a tensor
        value = _tensor_values(value, name)
    try:
        array = np.asarray(value) if isinstance(value, (np.ndarray, list, tuple)) else None
    except ValueError:  # arrays of different shapes in a list
        array = None
    if array is None or array.ndim == 0 or array.dtype.kind not in "biufc":
        excerpt = str(value)[:40]
        raise ConfigError(
            f"column {name!r} has {type(value).__name__} {excerpt!r}: its values are to be arrays "
            "or lists of numbers."
        )
    return array


def _tensor_values(value: Any, name: str) -> Any:
    """Return the array of a tensor. Raises ConfigError for a type that NumPy lacks."""
    try:
        return value.numpy()
    except TypeError as error:
        raise ConfigError(
            f"column {name!r} has tensors of {value.dtype}, a type that NumPy lacks: convert them "
            "to torch.float32 in map()."
        ) from error
