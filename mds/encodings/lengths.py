"""Lengths of the values of a column: how many elements an array or a list has, by its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mds.arguments import shown
from mds.encodings.base import DecodeKind, Encoding
from mds.encodings.registry import parse_encoding
from mds.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mds.encodings.base import Data

_ARRAYS = {DecodeKind.ARRAY, DecodeKind.VECTOR, DecodeKind.ANY_ARRAY}


def length_function(encodings: dict[str, str], column: Any) -> Callable[[Data], int]:
    """Return a function from the bytes of a value to its length: of sound in frames, of None 0.

    Raises ConfigError for a column that has none.
    """
    if not isinstance(column, str) or column not in encodings:
        raise ConfigError(
            f"there is no column {shown(column)} to take lengths of; there are "
            f"{', '.join(encodings)}."
        )
    encoding = parse_encoding(encodings[column])
    if not has_lengths(encoding):
        raise ConfigError(
            f"column {column!r} is stored as {encoding.name!r}, but only "
            "one-dimensional arrays have a length, such as 'ndarray:int32'."
        )
    if encoding.shape is not None:
        fixed = encoding.shape[0]
        return lambda _: fixed
    return lambda data: _length(encoding, data)


def has_lengths(encoding: Encoding) -> bool:
    """Whether values are arrays or lists, which may have one axis; or such and None."""
    name = encoding.name
    if name.startswith("optional["):
        return has_lengths(parse_encoding(name.removeprefix("optional[").removesuffix("]")))
    if name == "audio" or name.startswith("list[") or encoding.decode_kind is DecodeKind.JSON:
        return True
    shape = encoding.shape
    return encoding.decode_kind in _ARRAYS and (shape is None or len(shape) == 1)


def _length(encoding: Encoding, data: Data) -> int:
    value = encoding.decode(data)
    if value is None:
        return 0
    if encoding.name in {"audio", "optional[audio]"}:
        return len(value[0])  # frames
    if isinstance(value, list) and all(isinstance(v, (int, float, np.number)) for v in value):
        return len(value)
    shape = getattr(value, "shape", None)
    if shape is None:
        raise ConfigError(
            f"a value of the column is {shown(value)}, but only one-dimensional arrays and "
            "lists of numbers have a length."
        )
    if len(shape) != 1:
        raise ConfigError(
            f"a value of the column has the shape {tuple(shape)}, but only "
            "one-dimensional arrays have a length."
        )
    return int(shape[0])
