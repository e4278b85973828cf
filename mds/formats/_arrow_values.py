"""Arrow's types and values: the MDS encoding of each type, and the values as Python objects.

| Arrow                               | MDS                                              |
|-------------------------------------|--------------------------------------------------|
| numbers, text, bytes                | the encoding of the same width                   |
| lists of numbers                    | ``ndarray``, or ``tensor`` if some are empty     |
| dates and times                     | ``str``, as ISO 8601 writes them                 |
| decimals                            | ``str_decimal``, with every digit                |
| image or audio of `datasets`        | the bytes of the file                            |
| lists of images or audio            | ``list`` of the bytes of the files               |
| maps whose keys are not text        | ``json``, as pairs of key and value              |
| anything else that is nested        | ``json``                                         |

Text keeps the nanoseconds that Python's times cannot hold. `check_batch` and `check_column` check
buffers before a value is read: Arrow follows the offsets in a file, and those of a damaged file
point anywhere.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.errors import EncodingError, need
from mds.formats._columns import EMPTY_LISTS, NULLS
from mds.formats._fit import as_json

if TYPE_CHECKING:
    import pyarrow as pa

#: Arrow's names of numbers that NumPy calls otherwise.
_NUMPY = {"halffloat": "float16", "float": "float32", "double": "float64"}
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
#: Environment variable from which Arrow reads, once, which allocator to use.
_ALLOCATOR = "ARROW_DEFAULT_MEMORY_POOL"
NUMBERS = _INTEGERS | {"float16", "float32", "float64"}


def pyarrow() -> Any:
    """Import pyarrow, with the system's allocator, and return it.

    Raises MissingDependencyError.
    """
    try:
        with contextlib.nullcontext() if "pyarrow" in sys.modules else _system_allocator():
            import pyarrow as pa
            import pyarrow.ipc
    except ImportError as error:
        raise need("pyarrow", "arrow", "Parquet and Arrow files") from error
    return pa


@contextlib.contextmanager
def _system_allocator() -> Iterator[None]:
    """Make pyarrow, which is imported inside, use the system's allocator unless one is chosen.

    Arrow's own allocator keeps a heap for each thread that decodes: 95 MB in a worker that shuffles
    262,144 rows, instead of 55 MB. Child processes do not inherit the setting.
    """
    if _ALLOCATOR in os.environ:
        yield
        return
    os.environ[_ALLOCATOR] = "system"
    try:
        yield
        sys.modules["pyarrow"].default_memory_pool()  # reads the variable in its first call
    finally:
        os.environ.pop(_ALLOCATOR, None)  # another thread may have removed it already


def encoding_of(
    kind: pa.DataType, *, may_be_none: bool, may_be_empty: bool, feature: str = ""
) -> str:
    """Return the encoding of a column of Arrow type ``kind``.

    - ``may_be_none`` (bool): Whether the column may hold nulls.
    - ``may_be_empty`` (bool): Whether it may hold empty lists.
    - ``feature`` (str, default ""): Encoding of the images or audio in it, else ''.
    """
    if pyarrow().types.is_null(kind):
        return NULLS
    inner = _plain_encoding(kind, feature)
    if may_be_empty and inner.startswith("ndarray:") and inner.count(":") == 1:
        inner = inner.replace("ndarray", "tensor")  # an array of `ndarray` has elements
    return inner if inner == "json" or not may_be_none else f"optional[{inner}]"


def _plain_encoding(kind: pa.DataType, feature: str) -> str:
    """Return the encoding of values that are neither null nor empty; see `encoding_of`."""
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
    if has_no_elements(kind):
        return EMPTY_LISTS
    if is_list(kind) and is_file(kind.value_type):
        return f"list[{feature or 'bytes'}]"
    if dtype is None or (types.is_fixed_size_list(kind) and not kind.list_size):
        return "json"
    return (
        f"ndarray:{dtype}:{kind.list_size}"
        if types.is_fixed_size_list(kind)
        else f"ndarray:{dtype}"
    )


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the stored values, without dictionary or extension types."""
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


def is_number(kind: pa.DataType) -> bool:
    """Return True for a type of numbers or truth values."""
    return number_name(kind) is not None or bool(pyarrow().types.is_boolean(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return True for a type of lists."""
    types = pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def list_dtype(kind: pa.DataType) -> str | None:
    """Return the type of the numbers in a list, or None for any other type."""
    return number_name(kind.value_type) if is_list(kind) else None


def has_no_elements(kind: pa.DataType) -> bool:
    """Return True for a type of lists whose elements have no type, as those of an empty list."""
    types = pyarrow().types
    is_varying = types.is_list(kind) or types.is_large_list(kind)
    return bool(is_varying and types.is_null(kind.value_type))


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
    """Whether a type is the struct in which `datasets` stores images and audio."""
    return pyarrow().types.is_struct(kind) and {f.name for f in kind.fields} == {"bytes", "path"}


def features_of(schema: pa.Schema) -> dict[str, str]:
    """Return "Image" or "Audio" for the columns that `datasets` declares as such, by name.

    `datasets` stores its declarations as JSON in the metadata of the schema. Schemas of other
    programs have none, or something else there.
    """
    try:
        metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = metadata["info"]["features"].items()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        name: kind for name, feature in features if (kind := _kind_of_feature(feature)) is not None
    }


#: Lists in the declarations of `datasets`.
_LISTS = ("List", "LargeList", "Sequence")


def _kind_of_feature(feature: Any) -> str | None:
    """Return "Image" or "Audio" for such a feature, or a list of it; None for any other."""
    while True:
        if isinstance(feature, list) and len(feature) == 1:  # as older versions declare a list
            (feature,) = feature
        elif isinstance(feature, dict) and feature.get("_type") in _LISTS:
            feature = feature.get("feature")
        else:
            break
    kind = feature.get("_type") if isinstance(feature, dict) else None
    return kind if kind in ("Image", "Audio") else None


def encoding_of_file(start: bytes) -> str:
    """Return "jpeg", "png" or "bytes" by the magic bytes of a file.

    ``start`` is the beginning of the file, or of a part of a Parquet file that contains it; then
    the first magic bytes in it decide.
    """
    magic = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
    offsets = {
        name: offset for name, letters in magic.items() if (offset := start.find(letters)) >= 0
    }
    return min(offsets, key=lambda name: offsets[name]) if offsets else "bytes"


_WITHOUT_VIEWS = {"string_view": "large_string", "binary_view": "large_binary"}


def python_values(column: pa.Array) -> Sequence[Any]:
    """Return the values of a column as Python objects, None for nulls.

    Lists of numbers are arrays that share the column's memory. Images and sound are the bytes of
    their files, times are texts. Raises EncodingError for a value that Python does not have.
    """
    column = plain(column)
    types, kind = pyarrow().types, column.type
    if is_file(kind):
        return _python(file_contents(column))
    if types.is_temporal(kind):
        texts = iter(values_for(column.drop_null(), "str"))
        return [next(texts) if is_valid else None for is_valid in column.is_valid().to_pylist()]
    if list_dtype(kind) is None or column.null_count or column.flatten().null_count:
        return _python(column)
    flat = numbers_of(column.flatten())
    if types.is_fixed_size_list(kind):
        return list(flat.reshape(len(column), kind.list_size))
    ends = np.cumsum(numbers_of(column.value_lengths()))
    return np.split(flat, ends[:-1]) if len(ends) else []


def numbers_of(column: pa.Array) -> np.ndarray[Any, Any]:
    """Return the numbers of a column without nulls, as a view of its buffer if it has one.

    (``to_numpy`` imports pandas where that is installed: half a second and 45 MB a worker.)
    """
    name = number_name(column.type)
    if not len(column):
        return np.zeros(0, name or np.bool_)
    data, first, end = column.buffers()[1], column.offset, column.offset + len(column)
    if name is not None:
        return np.frombuffer(data, name)[first:end]
    # Arrow stores a bool in one bit.
    return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[first:end].view(np.bool_)


def plain(column: pa.Array) -> pa.Array:
    """Return a column with the same values as a plain type.

    Types of extensions, dictionaries and views of text are replaced by the types of their values.
    """
    pa = pyarrow()
    while True:
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        elif isinstance(column, pa.DictionaryArray):
            kind = column.dictionary.type
            if str(kind) in _WITHOUT_VIEWS:  # pyarrow cannot decode a dictionary of views
                values = column.dictionary.cast(_WITHOUT_VIEWS[str(kind)])
                column = pa.DictionaryArray.from_arrays(column.indices, values)
            column = column.dictionary_decode()
        elif str(column.type) in _WITHOUT_VIEWS:
            column = column.cast(_WITHOUT_VIEWS[str(column.type)])
        else:
            return column


def values_for(column: pa.Array, encoding: str) -> list[Any]:
    """Return the values of a column as Python objects that an encoding takes, None for nulls.

    Times become ISO 8601 texts for the encoding "str". Raises EncodingError for a value that Python
    does not have.
    """
    types, kind = pyarrow().types, column.type
    if encoding.startswith("list[") and is_list(kind) and is_file(kind.value_type):
        contents = _python(file_contents(plain(column.flatten())))
        ends = np.cumsum(numbers_of(column.value_lengths())).tolist()
        return [contents[start:end] for start, end in itertools.pairwise([0, *ends])]
    if encoding == "str":
        if types.is_time64(kind) and kind.unit == "ns":
            return [_time_of_day(value) for value in column.cast("int64").to_pylist()]
        if types.is_timestamp(kind) and kind.unit == "ns":
            texts = np.datetime_as_string(numbers_of(column.cast("int64")).view("<M8[ns]"))
            return [f"{text}+00:00" if kind.tz else str(text) for text in texts.tolist()]
        return [_text(value) for value in _python(column)]
    if encoding == "json":
        return [as_json(value) for value in _python(column)]
    return _python(column)


def _python(column: pa.Array) -> list[Any]:
    """Return the values of a column as pyarrow converts them. Raises EncodingError if it cannot."""
    if "time64[ns]" in str(column.type):
        raise EncodingError(
            "the nested column has times in nanoseconds, but Python stores microseconds; leave the "
            "column out with columns=."
        )
    try:
        if not _has_other_keys(column.type):
            values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
        else:
            values = [_with_maps(value, column.type) for value in column.to_pylist()]
    except (OverflowError, ValueError, KeyError) as error:
        reason = str(error).strip("\"'").rstrip(".")
        raise EncodingError(
            f"Python cannot represent a value ({reason}); leave the column out with columns=."
        ) from error
    return values


def _has_other_keys(kind: pa.DataType) -> bool:
    """Return True if a type has maps, perhaps inside of other types, whose keys are not text."""
    if pyarrow().types.is_map(kind) and not is_text(kind.key_type):
        return True
    return any(_has_other_keys(kind.field(number).type) for number in range(kind.num_fields))


def is_text(kind: pa.DataType) -> bool:
    """Return True for a type of text."""
    return str(stored_type(kind)) in ("string", "large_string", "string_view")


def _with_maps(value: Any, kind: pa.DataType) -> Any:
    """Return a value in which maps of text are dicts, other maps are pairs of key and value.

    ``value`` is as pyarrow returns it: all maps are pairs. Keys of bytes become text. Raises
    KeyError for a key that a dict has twice, and ValueError for bytes that are no text.
    """
    types = pyarrow().types
    if value is None:
        return None
    if types.is_map(kind):
        pairs = [(key, _with_maps(each, kind.item_type)) for key, each in value]
        if not is_text(kind.key_type):
            return [(k.decode() if isinstance(k, bytes) else k, each) for k, each in pairs]
        if len(mapping := dict(pairs)) < len(pairs):
            raise KeyError("a key of a map occurs twice")
        return mapping
    if types.is_struct(kind):
        return {field.name: _with_maps(value[field.name], field.type) for field in kind.fields}
    if is_list(kind):
        return [_with_maps(each, kind.value_type) for each in value]
    return value


def file_contents(column: pa.Array) -> pa.Array:
    """Return the bytes of the images or sounds that `datasets` stored in a column of structs.

    They are null for a value without bytes and path. Raises EncodingError for a file of which only
    the path is stored.
    """
    # `field` ignores the offset of a slice and the nulls of the structs, `flatten` does not.
    fields = column.flatten()
    contents = plain(fields[column.type.get_field_index("bytes")])
    if contents.null_count:
        paths = fields[column.type.get_field_index("path")]
        if (numbers_of(paths.is_valid()) & ~numbers_of(contents.is_valid())).any():
            raise EncodingError(
                "a value is the path of a file whose bytes are not in the table; embed the files "
                "(datasets: embed_external_files=True)."
            )
    return contents


def _time_of_day(nanoseconds: int) -> str:
    """Return a time of day as ISO 8601 text, with all nanoseconds."""
    seconds, remainder = divmod(nanoseconds, 10**9)
    text = time(seconds // 3600, seconds // 60 % 60, seconds % 60).isoformat()
    return f"{text}.{remainder:09}" if remainder % 1000 else _with_micros(text, remainder // 1000)


def _with_micros(text: str, microseconds: int) -> str:
    return f"{text}.{microseconds:06}" if microseconds else text


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, (date, datetime, time)) else str(value)


def check_batch(batch: pa.RecordBatch) -> None:
    """Check all columns of a batch as `check_column` does."""
    for column in batch.columns:
        check_column(column)


def check_column(column: pa.Array) -> None:
    """Check that all values of a column lie inside its buffers.

    Otherwise an offset in a damaged file could make pyarrow read any memory of the process. Raises
    an error of pyarrow, or ValueError.
    """
    kind, types = column.type, pyarrow().types
    is_flat = number_name(kind) is not None or types.is_boolean(kind) or types.is_temporal(kind)
    if is_flat:
        column.validate()
    elif (offsets := offsets_of(column)) is not None:
        column.validate()
        if len(offsets) and (offsets[0] < 0 or np.any(np.diff(offsets) < 0)):
            raise ValueError("its offsets do not increase")
    else:
        column.validate(full=True)


def offsets_of(column: pa.Array) -> np.ndarray[Any, Any] | None:
    """Return the offsets of text, bytes or lists of numbers, shape (rows + 1,), else None."""
    types, kind = pyarrow().types, column.type
    is_long = (
        types.is_large_string(kind) or types.is_large_binary(kind) or types.is_large_list(kind)
    )
    is_short = types.is_string(kind) or types.is_binary(kind) or types.is_list(kind)
    is_list = types.is_list(kind) or types.is_large_list(kind)
    if not (is_long or is_short) or (is_list and list_dtype(kind) is None):
        return None
    if not len(column):
        return np.zeros(1, np.int64)
    # A slice of a column shares its buffers, and begins at the row `column.offset` of them.
    offsets = column.buffers()[1]
    count = len(column) + 1 + column.offset
    return np.frombuffer(offsets, "<i8" if is_long else "<i4", count)[column.offset :]
