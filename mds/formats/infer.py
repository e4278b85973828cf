"""Schema inference: which encoding fits the values that were seen, without losing anything.

Only encodings that every reader of the format knows are chosen. What varies in type, is null here
and there, or is nested becomes `json`, which gives back exactly what came; a narrower encoding
can be asked for by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from mds.units import format_bytes

_INT64 = range(-(1 << 63), 1 << 63)
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
#: Largest integer up to which a float64 holds every integer.
_EXACT = 1 << 53
_ARRAYS = {"u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column as inferred: its encoding, an example for people, and what they should know."""

    name: str
    encoding: str
    example: str = ""
    note: str = ""
    #: What the numbers of classes mean, in turn; kept beside the dataset.
    class_names: tuple[str, ...] = ()
    #: What the column is, in words; kept beside the dataset too.
    description: str = ""


def infer_columns(
    samples: Iterable[Mapping[str, Any]], *, is_text: bool = False, nulls: Sequence[str] = ()
) -> list[Column]:
    """Columns, sorted by name, that hold every one of ``samples``.

    With ``is_text`` every value is a str and numbers are recognised in it; those in ``nulls`` are
    missing ones.
    """
    values_by_name: dict[str, list[Any]] = {}
    count = 0
    for sample in samples:
        for name, value in sample.items():
            values_by_name.setdefault(name, []).append(value)
        count += 1
    columns = []
    for name in sorted(values_by_name):
        values = values_by_name[name]
        encoding, note = _of_table(values, nulls) if is_text else encoding_of(values)
        if len(values) < count and encoding != "json":
            encoding, note = "json", "missing in some records, stored there as null"
        columns.append(Column(name, encoding, show_value(values[0]), note))
    return columns


def encoding_of(values: Sequence[Any]) -> tuple[str, str]:
    """Return the encoding that holds all values, and a note if its choice needs a reason."""
    kinds = _kinds(values)
    if kinds == {"int"}:
        return ("int", "") if all(v in _INT64 for v in values) else ("str_int", "beyond 64 bits")
    if kinds <= {"int", "float"} and kinds:
        big = any(isinstance(v, int) and abs(v) > _EXACT for v in values)
        return ("json", "integers too large for a float") if big else ("float64", "")
    if kinds == {"null"}:
        return "json", "always null"
    if len(kinds) == 1:
        kind = kinds.pop()
        if kind == "array":
            return _of_arrays(values)
        return kind, {"json": _why_json(values)}.get(kind, "")
    if "null" in kinds:
        other_kinds = sorted(kinds - {"null"})
        return "json", "sometimes null" + (
            "" if len(other_kinds) < 2 else f", else {_or(other_kinds)}"
        )
    return "json", f"sometimes {_or(sorted(kinds))}"


def show_value(value: Any, width: int = 40) -> str:
    """Return a value in a few characters."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return format_bytes(len(value))
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array {value.shape}"
    text = repr(value[: width * 2]) if isinstance(value, str) else repr(value)
    return text if len(text) <= width else text[: width - 3] + "..."


def _kinds(values: Sequence[Any]) -> set[str]:
    """Return the kinds of the values. One value of each type decides, except for NumPy's.

    (A million values take 20 ms so, and 0.6 s one by one.)
    """
    types = set(map(type, values))
    if any(issubclass(each, np.generic) for each in types):
        return {_kind(value) for value in values}
    return {_kind(value) for value in dict(zip(map(type, values), values, strict=True)).values()}


def _kind(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "json"
    if value is None:
        return "null"
    if isinstance(value, np.ndarray):
        return "array"
    if isinstance(value, np.generic):
        return str(value.dtype)
    for kind, name in (
        (int, "int"),
        (float, "float"),
        (str, "str"),
        (bytes, "bytes"),
        (Decimal, "str_decimal"),
    ):
        if isinstance(value, kind):
            return name
    return "json"


def _of_arrays(values: Sequence[np.ndarray]) -> tuple[str, str]:
    dtypes = {value.dtype for value in values}
    dtype = np.result_type(*dtypes)
    if dtype.str[1:] not in _ARRAYS:
        raise ValueError(f"arrays of {dtype} have no encoding")
    shapes = {value.shape for value in values}
    if len(shapes) == 1 and len(values) > 1 and 0 not in (shape := shapes.pop()) and shape:
        return f"ndarray:{dtype.name}:{','.join(map(str, shape))}", ""
    if any(value.size == 0 for value in values):
        return f"ndarray:{dtype.name}", "some are empty"
    return f"ndarray:{dtype.name}", ""


def _of_table(values: Sequence[str], nulls: Sequence[str]) -> tuple[str, str]:
    """Return the encoding of the cells of a column, some of which may be missing."""
    present = [value for value in values if value not in nulls]
    encoding, note = _of_text(present) if present else ("str", "always missing")
    if len(present) < len(values):
        return f"optional[{encoding}]", f"{len(values) - len(present)} of {len(values)} are missing"
    filled = [value for value in values if value]
    if encoding == "str" and filled and len(filled) < len(values):
        number, _ = _of_text(filled)
        if number != "str":
            return "str", f"some cells are empty, the others {number}: see --null and --fill"
    return encoding, note


def _of_text(values: Sequence[str]) -> tuple[str, str]:
    if all(_INTEGER.fullmatch(v) and v != "-0" for v in values):
        return ("int", "") if all(int(v) in _INT64 for v in values) else ("str", "beyond 64 bits")
    # Leading zeros are part of a code, not of a number.
    if all(_NUMBER.fullmatch(v) and not re.match(r"-?0[0-9]", v) for v in values):
        if any(_INTEGER.fullmatch(v) and abs(int(v)) > _EXACT for v in values):
            return "str", "integers too large for a float beside fractions"
        return "float64", ""
    return "str", ""


def _why_json(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values}
    if kinds <= {bool, np.bool_}:
        return "true or false"
    return ""


def _or(names: Sequence[str]) -> str:
    words = {"json": "a list, object or bool", "null": "null"}
    named = [words.get(name, name) for name in names]
    return named[0] if len(named) == 1 else ", ".join(named[:-1]) + " or " + named[-1]
