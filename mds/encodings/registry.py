"""From the name of an encoding to the encoding: the registry, open to a user's own encodings.

A name is a family, which may be followed by `:parameters` or `[inner]`. Families of installed
packages are found through the entry point group `mds.encodings`, so that worker processes know
them too; `register_encoding` adds one to this process.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mds.encodings.base import DecodeKind, Encoding
from mds.errors import ConfigError, UnknownEncodingError
from mds.plugins import load_plugin
from mds.text.near import did_you_mean

if TYPE_CHECKING:
    import numpy as np

Factory = Callable[[str], Encoding]

ENTRY_POINTS = "mds.encodings"
# An index may nest brackets at will; the parser recurses once a level.
MAX_NAME = 512
MAX_DEPTH = 16

_FIXED_KINDS = {DecodeKind.INT, DecodeKind.SCALAR, DecodeKind.ARRAY}

_families: dict[str, Factory] = {}


def register_encoding(name: str, factory: Factory) -> None:
    """Add a family of encodings to this process.

    `factory` is called with the whole name (`point:3`) and gives an `Encoding`, or raises
    UnknownEncodingError for parameters that make no sense. Raises ConfigError for a name that is
    taken or has other characters than letters, digits, `_`, `-` and `.`.

    >>> register_encoding("point", PointEncoding)
    """
    if not re.fullmatch(r"[\w.-]+", name):
        raise ConfigError(
            f"{name!r} cannot name a family of encodings: use letters, digits, '_', '-' and '.'."
        )
    if _families.get(name, factory) is not factory:
        raise ConfigError(f"the encoding {name!r} is already registered; choose another name.")
    _families[name] = factory
    parse_encoding.cache_clear()


def encoding_names() -> list[str]:
    """The families that are known, sorted: what may stand in front of `:` or `[`."""
    return sorted(_families)


@lru_cache(maxsize=4096)
def parse_encoding(name: str) -> Encoding:
    """The encoding of that name.

    Raises UnknownEncodingError (an EncodingError; also a TypeError, KeyError and AttributeError),
    and ConfigError for an encoding whose class declares what cannot be.
    """
    if not isinstance(name, str):
        raise UnknownEncodingError(f"an encoding is named by a str, got {type(name).__name__}")
    if len(name) > MAX_NAME or name.count("[") > MAX_DEPTH:
        raise UnknownEncodingError(f"{name[:60]!r}... is too long to be an encoding.")
    family = re.split(r"[:\[]", name, maxsplit=1)[0]
    factory = _families.get(family) or _installed(family)
    if factory is None:
        raise UnknownEncodingError(
            f"there is no encoding {name!r}.{did_you_mean(family, encoding_names())} Known are "
            f"{', '.join(encoding_names())}."
        )
    encoding = factory(name)
    if not _has_what_it_declares(encoding):
        raise ConfigError(
            f"the encoding {name!r} declares decode_kind={encoding.decode_kind.name}, which does "
            f"not go with size={encoding.size}, dtype={encoding.dtype}, shape={encoding.shape}."
        )
    return encoding


def _has_what_it_declares(encoding: Encoding) -> bool:
    """Whether `size`, `dtype` and `shape` are such that values can be decoded as declared."""
    kind, dtype, shape = encoding.decode_kind, encoding.dtype, encoding.shape
    if kind is DecodeKind.VECTOR:
        return encoding.size is None and _is_little_endian(encoding.element_dtype)
    if kind not in _FIXED_KINDS:
        return True
    if dtype is None or shape is None or not _is_little_endian(dtype):
        return False
    if bool(shape) != (kind is DecodeKind.ARRAY) or (kind is DecodeKind.INT and dtype.str != "<i8"):
        return False
    return 0 < math.prod(shape) * dtype.itemsize == encoding.size


def _is_little_endian(dtype: np.dtype[Any] | None) -> bool:
    return dtype is not None and dtype == dtype.newbyteorder("<")


def _installed(family: str) -> Factory | None:
    """The factory that an installed package offers under this name."""
    factory: Factory | None = load_plugin(ENTRY_POINTS, family, "encoding")
    if factory is not None:
        register_encoding(family, factory)
    return factory
