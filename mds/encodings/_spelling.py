"""Other spellings of encodings: Python and NumPy types, texts alike, and words of other libraries.

`encoding_name` accepts a spelling that has one obvious meaning. `float` is one, because a Python
float has 64 bits and is stored unchanged by `float64` alone. The text "float" has none: it means
32 bits in torch, Arrow and SQL, and 64 in Python and NumPy, so `explain_word` names both.
"""

from __future__ import annotations

import re
import types
import typing
from typing import Any

import numpy as np

from mds._arguments import shown
from mds.errors import UnknownEncodingError

_TYPES: dict[Any, str] = {int: "int", str: "str", bytes: "bytes", bool: "bool", float: "float64"}
_TYPES |= {np.ndarray: "ndarray", np.bool_: "bool", np.str_: "str", np.bytes_: "bytes"}

_PICTURE = "PIL.Image.Image"
#: Encodings that dtypes, `torch.Tensor` and the class of Pillow's images name.
_OF_DTYPES = {f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)}
_OF_DTYPES = (_OF_DTYPES - {"float8"}) | {"bool", "str", "bytes", "tensor", "pil"}

# "ndarray:int32[4]", "ndarray:int32:(4, 4)"; and "ndarray[int32]", "ndarray[int32, 4]".
_BRACKETS = re.compile(r"(ndarray|tensor):(\w+):?[\[(]\s*(\d+(?:\s*,\s*\d+)*)\s*,?\s*[\])]")
_ALL_IN_BRACKETS = re.compile(r"(ndarray|tensor)\[(\w+)(?:\s*[,:]\s*(\d+(?:\s*,\s*\d+)*))?\s*\]")

_IMAGES = "Write 'jpeg', or 'png' or 'pil', which keep every pixel."
_TEXT, _BYTES = "Write 'str'.", "Write 'bytes'."
_JSON = "Write 'json', which holds dicts and lists."
_LIST = "Write 'list[str]' with the encoding of the items, 'ndarray:int64' for numbers, or 'json'."
_ARRAY = "Write 'ndarray', or 'ndarray:float32' with the type of the elements."
_FLOAT = "Write 'float64', which stores a Python float unchanged, or 'float32' of half the size."
_NAME = " Write a name, as in 'int' or 'ndarray:int32'."
#: What to write instead of words that other libraries use, in lower case.
_WORDS = {
    **dict.fromkeys(("string", "text", "utf8", "unicode", "large_string", "varchar"), _TEXT),
    **dict.fromkeys(("binary", "blob", "bytearray", "large_binary", "raw"), _BYTES),
    **dict.fromkeys(("image", "img", "picture", "pil.image", "rgb"), _IMAGES),
    **dict.fromkeys(("array", "numpy", "np.ndarray", "np", "npy", "vector"), _ARRAY),
    **dict.fromkeys(("list", "sequence", "tuple", "large_list"), _LIST),
    **dict.fromkeys(("object", "dict", "struct", "map", "any"), _JSON),
    **dict.fromkeys(("float", "number"), _FLOAT),
    **dict.fromkeys(("integer", "class_label", "classlabel"), "Write 'int'."),
    **dict.fromkeys(("tokens", "ids", "input_ids"), "Write 'ndarray:int32' or 'ndarray:uint16'."),
    "torch": "Write 'tensor'.",
    "torch.tensor": "Write 'tensor'.",
    "boolean": "Write 'bool'.",
    "double": "Write 'float64'.",
    "half": "Write 'float16'.",
    "long": "Write 'int64'.",
    "bfloat16": "Write 'tensor:bfloat16'.",
    "decimal": "Write 'str_decimal'.",
    "pickle": "Write 'json'; 'pkl' holds any object, but runs code when it is read.",
    "jpg": "Write 'jpeg'.",
    "optional": "Write 'optional[str]' with the encoding of the values.",
}


def encoding_name(spelling: Any) -> str:
    """Return the name of the encoding that a spelling means; a text with no other meaning as it is.

    - ``spelling``: A name, a Python type, a NumPy or torch dtype, ``np.ndarray``, ``torch.Tensor``,
      ``PIL.Image.Image``, ``list[T]``, ``T | None``, or a text with a shape in brackets.

    Raises UnknownEncodingError for something else that is no text.

    >>> encoding_name(np.int32), encoding_name(str | None), encoding_name("ndarray:int32[4]")
    ('int32', 'optional[str]', 'ndarray:int32:4')
    """
    if isinstance(spelling, str):
        return _without_brackets(spelling)
    try:
        name = _TYPES.get(spelling)
    except TypeError:  # not hashable
        name = None
    name = name or _dtype_name(spelling) or _generic_name(spelling)
    if name is None:
        way_out = explain_word(str(getattr(spelling, "__name__", ""))) or _NAME
        raise UnknownEncodingError(
            f"an encoding must be a str or a type such as int, got {shown(spelling)}.{way_out}"
        )
    return name


def explain_word(word: str) -> str:
    """Return what to write instead of a word of another library, as " Write ...", or ''."""
    way_out = _WORDS.get(word.lower().strip())
    return f" {way_out}" if way_out else ""


def _without_brackets(text: str) -> str:
    """Return a text such as "ndarray:int32[4, 4]" with its shape after a colon, as in names."""
    match = _BRACKETS.fullmatch(text) or _ALL_IN_BRACKETS.fullmatch(text)
    if match is None:
        return text
    parts = [part.replace(" ", "") for part in match.groups() if part is not None]
    return ":".join(parts)


def _dtype_name(spelling: Any) -> str | None:
    """Return the encoding of a dtype or class of values of NumPy, torch or Pillow; else None."""
    name = None
    if isinstance(spelling, type) and issubclass(spelling, np.generic):
        dtype = np.dtype(spelling) if spelling in np.sctypeDict.values() else None
        name = dtype.name if dtype is not None else None
    elif isinstance(spelling, np.dtype):
        name = {"U": "str", "S": "bytes"}.get(spelling.kind, spelling.name)
    elif f"{spelling}".startswith("torch.") and type(spelling).__module__ == "torch":
        name = f"{spelling}".removeprefix("torch.")  # torch.int32, which is printed so
    elif f"{getattr(spelling, '__module__', '')}.{getattr(spelling, '__name__', '')}" in (
        "torch.Tensor",
        "torch._tensor.Tensor",
    ):
        name = "tensor"
    elif f"{getattr(spelling, '__module__', '')}.{getattr(spelling, '__name__', '')}" == _PICTURE:
        name = "pil"  # which keeps every pixel and the mode
    return name if name in _OF_DTYPES else None


def _generic_name(spelling: Any) -> str | None:
    """Return the encoding of ``list[T]``, ``T | None`` or ``Optional[T]``; else None."""
    origin, inner = typing.get_origin(spelling), typing.get_args(spelling)
    if origin is list and len(inner) == 1:
        return f"list[{encoding_name(inner[0])}]"
    if origin in (typing.Union, types.UnionType) and type(None) in inner and len(inner) == 2:
        return f"optional[{encoding_name(next(t for t in inner if t is not type(None)))}]"
    return None
