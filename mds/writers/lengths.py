"""Lengths of the values of a column: how many elements an array has, by its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mds.arguments import shown
from mds.encodings import DecodeKind, Encoding, parse_encoding
from mds.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mds.encodings.base import Data

_ARRAYS = {DecodeKind.ARRAY, DecodeKind.VECTOR, DecodeKind.ANY_ARRAY}


def length_function(encodings: dict[str, str], column: Any) -> Callable[[Data], int]:
    """What gives the length of a value of a column from its bytes. Raises ConfigError."""
    if not isinstance(column, str) or column not in encodings:
        raise ConfigError(
            f"there is no column {shown(column)} to take lengths of; there are "
            f"{', '.join(encodings)}."
        )
    encoding = parse_encoding(encodings[column])
    shape = encoding.shape
    if encoding.decode_kind not in _ARRAYS or (shape is not None and len(shape) != 1):
        raise ConfigError(
            f"column {column!r} is stored as {encoding.name!r}, and lengths are those of "
            "one-dimensional arrays, such as 'ndarray:int32'."
        )
    if shape is not None:
        fixed = shape[0]
        return lambda _: fixed
    return lambda data: _length(encoding, data)


def _length(encoding: Encoding, data: Data) -> int:
    shape = encoding.decode(data).shape
    if len(shape) != 1:
        raise ConfigError(
            f"a value of the column has the shape {tuple(shape)}, and lengths are those of "
            "one-dimensional arrays."
        )
    return int(shape[0])
