"""Which encoding the values of an Arrow type get.

Numbers, text and bytes have an encoding of the same width; lists of numbers are arrays, dates and
times are text as ISO 8601 writes it, decimals keep every digit. An image or a sound as `datasets`
stores it (a struct of bytes and path) is its file's bytes. What is nested otherwise is JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mds.errors import need
from mds.formats.columns import NULLS

if TYPE_CHECKING:
    import pyarrow as pa

#: Arrow's names of numbers that NumPy calls otherwise.
_NUMPY = {"halffloat": "float16", "float": "float32", "double": "float64"}
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
#: Where Arrow looks for its allocator, once.
_ALLOCATOR = "ARROW_DEFAULT_MEMORY_POOL"
NUMBERS = _INTEGERS | {"float16", "float32", "float64"}


def pyarrow() -> Any:
    """Import pyarrow. Raises MissingDependencyError."""
    try:
        with contextlib.nullcontext() if "pyarrow" in sys.modules else _system_allocator():
            import pyarrow as pa
            import pyarrow.ipc
    except ImportError as error:
        raise need("pyarrow", "arrow", "Parquet and Arrow files") from error
    return pa


@contextlib.contextmanager
def _system_allocator() -> Iterator[None]:
    """Use the system's allocator for Arrow, which is imported here, unless one is chosen.

    Its own one keeps a heap for each thread that decodes: 95 MB of a worker that shuffles 262,144
    rows, where this one has 55. Programs that the process starts do not see it.
    """
    if _ALLOCATOR in os.environ:
        yield
        return
    os.environ[_ALLOCATOR] = "system"
    try:
        yield
        sys.modules["pyarrow"].default_memory_pool()  # it looks once
    finally:
        os.environ.pop(_ALLOCATOR, None)  # perhaps another thread was here, too


def encoding_of(
    kind: pa.DataType, *, may_be_none: bool, may_be_empty: bool, feature: str = ""
) -> str:
    """Return the encoding of a column; ``feature``: the encoding of the files in it."""
    if pyarrow().types.is_null(kind):
        return NULLS
    inner = _plain_encoding(kind, feature)
    if may_be_empty and inner.startswith("ndarray:") and inner.count(":") == 1:
        inner = inner.replace("ndarray", "tensor")  # an array of `ndarray` has elements
    return inner if inner == "json" or not may_be_none else f"optional[{inner}]"


def _plain_encoding(kind: pa.DataType, feature: str) -> str:
    types = pyarrow().types
    kind = stored_type(kind)
    if types.is_int64(kind):
        return "int"
    if types.is_boolean(kind):
        return "bool"
    if (name := number_name(kind)) is not None:
        return name
    if types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view":
        return "str"
    if is_bytes(kind) or is_file(kind):
        return feature or "bytes"
    if types.is_decimal(kind):
        return "str_decimal"
    if types.is_temporal(kind):
        return "str"
    dtype = list_dtype(kind)
    if dtype is None or (types.is_fixed_size_list(kind) and not kind.list_size):
        return "json"
    return (
        f"ndarray:{dtype}:{kind.list_size}"
        if types.is_fixed_size_list(kind)
        else f"ndarray:{dtype}"
    )


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary or of an extension."""
    while True:
        if pyarrow().types.is_dictionary(kind):
            kind = kind.value_type
        elif isinstance(kind, pyarrow().BaseExtensionType):
            kind = kind.storage_type
        else:
            return kind


def number_name(kind: pa.DataType) -> str | None:
    """Return NumPy's name of a number's type, or None for any other type."""
    name = _NUMPY.get(str(kind), str(kind))
    return name if name in NUMBERS else None


def list_dtype(kind: pa.DataType) -> str | None:
    """Return the type of the numbers in a list, or None for any other type."""
    types = pyarrow().types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return number_name(kind.value_type)
    return None


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values are bytes."""
    types = pyarrow().types
    return (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or str(kind) == "binary_view"
    )


def is_file(kind: pa.DataType) -> bool:
    """Whether values are files as `datasets` stores images and sound."""
    return pyarrow().types.is_struct(kind) and {f.name for f in kind.fields} == {"bytes", "path"}


def features_of(schema: pa.Schema) -> dict[str, str]:
    """Return the columns that `datasets` declares as Image or Audio, with that kind."""
    try:
        metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = metadata["info"]["features"].items()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        name: feature["_type"]
        for name, feature in features
        if isinstance(feature, dict) and feature.get("_type") in ("Image", "Audio")
    }


def encoding_of_file(start: bytes) -> str:
    """Return the encoding of files by their first bytes."""
    magic = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
    offsets = {
        name: offset for name, letters in magic.items() if (offset := start.find(letters)) >= 0
    }
    return min(offsets, key=lambda name: offsets[name]) if offsets else "bytes"
