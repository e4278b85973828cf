"""The registry of encodings: from a name to an `Encoding`.

    str        family
    ndarray:int32:2048    family:parameters
    list[str]  family[inner]

`register_encoding` adds a family to this process. Installed packages offer families in the entry
point group `mds.encodings`, which worker processes know too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mds._arguments import did_you_mean
from mds._lazy_imports import Registry, is_class, registers
from mds.encodings._base import DecodeKind, Encoding
from mds.errors import ConfigError, UnknownEncodingError

if TYPE_CHECKING:
    import numpy as np

Factory = Callable[[str], Encoding]

# Limits for hostile indexes: the parser recurses for every pair of brackets.
MAX_NAME = 512
MAX_DEPTH = 16

_FIXED_KINDS = {DecodeKind.INT, DecodeKind.SCALAR, DecodeKind.ARRAY}

#: Module and class of the families of this package. A module is imported when one is parsed.
_BUILT_IN = {
    "audio": "audio.AudioEncoding",
    "bool": "scalars.BoolEncoding",
    "bytes": "text.BytesEncoding",
    "float16": "scalars.NumpyEncoding",
    "float32": "scalars.NumpyEncoding",
    "float64": "scalars.NumpyEncoding",
    "int": "scalars.IntEncoding",
    "int16": "scalars.NumpyEncoding",
    "int32": "scalars.NumpyEncoding",
    "int64": "scalars.NumpyEncoding",
    "int8": "scalars.NumpyEncoding",
    "jpeg": "images.FileImageEncoding",
    "jpeg_array": "images.JpegArrayEncoding",
    "jpegarray": "images.JpegArrayEncoding",
    "json": "text.JsonEncoding",
    "list": "containers.ListEncoding",
    "ndarray": "arrays.ArrayEncoding",
    "optional": "containers.OptionalEncoding",
    "pil": "images.PilEncoding",
    "pkl": "text.PickleEncoding",
    "png": "images.FileImageEncoding",
    "str": "text.StrEncoding",
    "str_decimal": "text.NumberTextEncoding",
    "str_float": "text.NumberTextEncoding",
    "str_int": "text.NumberTextEncoding",
    "tensor": "arrays.TensorEncoding",
    "uint16": "scalars.NumpyEncoding",
    "uint32": "scalars.NumpyEncoding",
    "uint64": "scalars.NumpyEncoding",
    "uint8": "scalars.NumpyEncoding",
}


def _load_built_in(class_path: str, name: str) -> Encoding:
    """Import a class of this package, such as "text.StrEncoding", and make the encoding `name`."""
    module, class_name = class_path.split(".")
    factory: Factory = getattr(import_module(f"mds.encodings._{module}"), class_name)
    return factory(name)


_encodings: Registry[Factory] = Registry(
    "encoding",
    {family: partial(_load_built_in, class_path) for family, class_path in _BUILT_IN.items()},
    _BUILT_IN,
    lambda factory: is_class(factory, Encoding) if isinstance(factory, type) else callable(factory),
    "give a subclass of mds.encodings.Encoding, or a function that returns one for a name",
    "EncodingContract",
)


@registers
def register_encoding(name: str, encoding: Factory, *, replace: bool = False) -> None:
    """Add a family of encodings to this process; also a decorator, without ``encoding``.

    - ``name`` (str): The family, such as "point" for ``point:3``.
    - ``encoding`` (callable): A subclass of `Encoding`, or a function that returns one. It is
      called with a whole name, such as ``point:3``, and raises UnknownEncodingError for wrong
      parameters. `mds.testing.EncodingContract` tests it.
    - ``replace`` (bool, default False): Whether the name may be taken; see docs/contributing.md.

    Installed packages name it in an entry point of the group ``mds.encodings``, which worker
    processes know, too. Raises ConfigError for a name that is taken, and for another object.

    >>> @register_encoding("point")  # doctest: +SKIP
    ... class PointEncoding(Encoding): ...
    """
    _encodings.add(name, encoding, replace=replace)
    parse_encoding.cache_clear()


def encoding_names() -> list[str]:
    """Return the names of the known families, sorted.

    >>> encoding_names()[:4]
    ['audio', 'bool', 'bytes', 'float16']
    """
    return sorted(_encodings.entries)


@lru_cache(maxsize=4096)
def parse_encoding(name: str) -> Encoding:
    """Return the encoding of a name.

    - `name` (str): A family with its parameters, such as `int`, `list[str]` or
      `ndarray:int32:2048`.

    Raises UnknownEncodingError (an EncodingError; also a TypeError, KeyError and AttributeError),
    and ConfigError for an encoding whose class declares a contradiction.

    >>> encoding = parse_encoding("ndarray:int32:2048")
    >>> encoding.size, encoding.shape
    (8192, (2048,))
    """
    if not isinstance(name, str):
        raise UnknownEncodingError(f"an encoding must be a str, got {type(name).__name__}.")
    if len(name) > MAX_NAME or name.count("[") > MAX_DEPTH:
        raise UnknownEncodingError(f"{name[:60]!r}... is too long to be an encoding.")
    family = re.split(r"[:\[]", name, maxsplit=1)[0]
    factory = _encodings.find(family)
    if factory is None or name in ("list", "optional"):
        from mds.encodings._spelling import explain_word

        way_out = explain_word(name) or did_you_mean(family, encoding_names())
        raise UnknownEncodingError(
            f"there is no encoding {name!r}.{way_out} The encodings are "
            f"{', '.join(encoding_names())}."
        )
    encoding = factory(name)
    if not _is_consistent(encoding):
        raise ConfigError(
            f"the encoding {name!r} declares decode_kind={encoding.decode_kind.name}, which does "
            f"not fit size={encoding.size}, dtype={encoding.dtype}, shape={encoding.shape}."
        )
    return encoding


def _is_consistent(encoding: Encoding) -> bool:
    """Whether `size`, `dtype` and `shape` of an encoding agree with its `decode_kind`.

    Readers view the bytes of many values at once by these attributes, so an encoding of a user must
    not contradict itself; see `DecodeKind`.
    """
    kind, dtype, shape = encoding.decode_kind, encoding.dtype, encoding.shape
    if kind is DecodeKind.VECTOR:
        return encoding.size is None and _is_little_endian(encoding.element_dtype)
    if kind not in _FIXED_KINDS:
        return True
    if dtype is None or shape is None or not _is_little_endian(dtype):
        return False
    # An array has axes, a number has the shape ().
    if bool(shape) != (kind is DecodeKind.ARRAY) or (kind is DecodeKind.INT and dtype.str != "<i8"):
        return False
    return 0 < math.prod(shape) * dtype.itemsize == encoding.size


def _is_little_endian(dtype: np.dtype[Any] | None) -> bool:
    return dtype is not None and dtype == dtype.newbyteorder("<")
