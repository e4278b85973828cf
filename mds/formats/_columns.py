"""Columns of files: their encodings, and what a file was planned with.

- `infer_columns` and `encoding_of` choose the encoding that holds all values of some samples
  without loss. Only encodings that every reader of MDS knows are chosen. Values that vary in type,
  are sometimes null or are nested become ``json``, which returns exactly what was stored; users may
  name a narrower encoding.
- `merge_encodings` gives the encoding for two files that differ.
- `KnownColumns` compares a sample with the columns that were inferred when its file was planned. A
  sample with another column is an error if all columns are wanted; otherwise a value would be lost
  without a message.

A note is a text for the user, with the reason for an encoding; but the note of a file is the bytes
that its plan keeps for readers (`note_of`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._shardfile.layout import Columns
from mds._units import format_bytes
from mds.encodings import parse_encoding
from mds.errors import ConfigError, FormatError
from mds.formats._partitions import partition_values

if TYPE_CHECKING:
    from mds.formats._facts import ShardPlace

_INT64 = range(-(1 << 63), 1 << 63)
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
#: Largest integer up to which a float64 holds every integer.
_EXACT = 1 << 53
_ARRAYS = {"u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"}


@dataclass(frozen=True, slots=True)
class Column:
    """An inferred column.

    - ``name``, ``encoding``: of the column.
    - ``example``: a value in a few characters, to be shown.
    - ``note``: why this encoding was chosen, if that needs a reason.
    - ``class_names``: the meaning of the numbers 0, 1, ... of a column of classes.
    - ``description``: of the column, in words. Both are kept beside the dataset.

    >>> Column("label", "int", class_names=("cat", "dog")).class_names[1]
    'dog'
    """

    name: str
    encoding: str
    example: str = ""
    note: str = ""
    class_names: tuple[str, ...] = ()
    description: str = ""


def infer_columns(
    samples: Iterable[Mapping[str, Any]],
    *,
    is_text: bool = False,
    nulls: Sequence[str] = (),
    has_types: bool = False,
) -> list[Column]:
    """Return the columns, sorted by name, that hold all ``samples`` without loss.

    - ``samples`` (Iterable[Mapping[str, Any]]): Dicts from column to value.
    - ``is_text`` (bool, default False): All values are str, as in a CSV file; columns of numbers
      are recognised.
    - ``nulls`` (Sequence[str], default ()): Texts that mean a missing value.
    - ``has_types`` (bool, default False): Values have types of Python that JSON lacks: columns of
      truth values and missing values get encodings of these types.
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
        if has_types:
            values += [None] * (count - len(values))
            encoding, note = typed_encoding(values)
        else:
            encoding, note = _of_table(values, nulls) if is_text else encoding_of(values)
        if len(values) < count and encoding != "json":  # some samples lack the column
            encoding, note = "json", "stored as null in records that lack it"
        columns.append(Column(name, encoding, show_value(values[0]), note))
    return columns


def encoding_of(values: Sequence[Any]) -> tuple[str, str]:
    """Return the encoding that holds all values without loss, and a note on why, or ''.

    Raises ValueError for arrays of a dtype that has no encoding.
    """
    kinds = _kinds(values)
    if kinds == {"int"}:
        return ("int", "") if all(v in _INT64 for v in values) else ("str_int", "beyond 64 bits")
    if kinds <= {"int", "float"} and kinds:
        are_large = any(isinstance(v, int) and abs(v) > _EXACT for v in values)
        return ("json", "integers too large for a float") if are_large else ("float64", "")
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


def typed_encoding(values: Sequence[Any]) -> tuple[str, str]:
    """Return the encoding that holds all values with their types in Python, and a note, or ''.

    It is as in `encoding_of`, but also `bool`, `optional` and, if some arrays are empty, `tensor`.
    """
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, (bool, np.bool_)) for value in present):
        encoding, note = "bool", ""
    else:
        encoding, note = encoding_of(present or values)
    if note == "some are empty":
        encoding, note = encoding.replace("ndarray", "tensor", 1), ""
    if len(present) < len(values):
        encoding, note = as_optional(encoding), note or "sometimes null"
    return encoding, note


def show_value(value: Any, width: int = 40) -> str:
    """Return a value in a few characters."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return format_bytes(len(value))
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array {value.shape}"
    text = repr(value[: width * 2]) if isinstance(value, str) else repr(value)
    return text if len(text) <= width else text[: width - 3] + "..."


def _kinds(values: Sequence[Any]) -> set[str]:
    """Return the kinds of the values, such as {"int", "null"}.

    One value of each Python type is looked at, which takes 20 ms for a million values; 0.6 s one by
    one. NumPy scalars are looked at one by one, since their dtype counts.
    """
    types = set(map(type, values))
    if any(issubclass(each, np.generic) for each in types):
        return {_kind(value) for value in values}
    value_by_type = dict(zip(map(type, values), values, strict=True))
    return {_kind(value) for value in value_by_type.values()}


def _kind(value: Any) -> str:
    """Return the kind of a value: the name of an encoding, "null" or "array"."""
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
    """Return the encoding that holds all arrays, and a note on why, or ''.

    It names the shape if all arrays have one shape. Raises ValueError for a dtype without encoding.
    """
    dtypes = {value.dtype for value in values}
    dtype = np.result_type(*dtypes)
    if dtype.str[1:] not in _ARRAYS:
        raise ValueError(f"arrays of {dtype} have no encoding")
    shapes = {value.shape for value in values}
    if any(value.size == 0 or value.ndim == 0 for value in values):
        return f"tensor:{dtype.name}", "some are empty or have no dimension"
    if len(shapes) == 1 and len(values) > 1:  # a single array does not show that shapes are equal
        (shape,) = shapes
        return f"ndarray:{dtype.name}:{','.join(map(str, shape))}", ""
    return f"ndarray:{dtype.name}", ""


def _of_table(values: Sequence[str], nulls: Sequence[str]) -> tuple[str, str]:
    """Return the encoding of a column of a CSV file by its cells, and a note on why, or ''.

    Cells whose text is one of ``nulls`` are missing values.
    """
    present = [value for value in values if value not in nulls]
    encoding, note = _of_text(present) if present else ("str", "always missing")
    if len(present) < len(values):
        return f"optional[{encoding}]", f"{len(values) - len(present)} of {len(values)} are missing"
    filled = [value for value in values if value]
    if encoding == "str" and filled and len(filled) < len(values):
        number, _ = _of_text(filled)
        if number != "str":
            return "str", f"some cells are empty, others are {number}: see --null and --fill"
    return encoding, note


def _of_text(values: Sequence[str]) -> tuple[str, str]:
    """Return the encoding of the numbers in some texts, and a note on the choice, or ''.

    The encoding is "int" or "float64" if all texts are such numbers and no digit would be lost,
    else "str".
    """
    # "-0" would become "0".
    if all(_INTEGER.fullmatch(v) and v != "-0" for v in values):
        return ("int", "") if all(int(v) in _INT64 for v in values) else ("str", "beyond 64 bits")
    # Leading zeros are part of a code, not of a number.
    if all(_NUMBER.fullmatch(v) and not re.match(r"-?0[0-9]", v) for v in values):
        if any(_INTEGER.fullmatch(v) and abs(int(v)) > _EXACT for v in values):
            return "str", "fractions, and integers too large for a float"
        if any(math.isinf(float(v)) for v in values):
            return "str", "numbers too large for a float"
        return "float64", ""
    return "str", ""


def _why_json(values: Sequence[Any]) -> str:
    """Return the note on a column of `json`: that its values are bools, or ''."""
    kinds = {type(value) for value in values}
    if kinds <= {bool, np.bool_}:
        return "true or false"
    return ""


def _or(names: Sequence[str]) -> str:
    """Join kinds of values to a text such as "int, str or null"."""
    words = {"json": "a list, object or bool", "null": "null"}
    named = [words.get(name, name) for name in names]
    return named[0] if len(named) == 1 else ", ".join(named[:-1]) + " or " + named[-1]


# --------------------------------------------------------------------- columns of several files


#: The encoding of a column of which a file knows no more than that all is null.
NULLS = "optional[json]"
#: The encoding of a column of lists of which a file knows no more than that all are empty.
EMPTY_LISTS = "list[json]"
#: The encoding of a column of lists of numbers of which some are null, until files are merged.
NULL_ELEMENTS = "list[optional[json]]"
_SIGNED = ("int8", "int16", "int32", "int")
_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")


def merge_encodings(first: str, second: str) -> str | None:
    """Return the encoding that holds values of two encodings without loss, or None.

    >>> merge_encodings("int32", "optional[int]")
    'optional[int]'
    """
    if first == second:
        return first
    if NULLS in (first, second):
        return as_optional(second if first == NULLS else first)
    if first.startswith("optional[") or second.startswith("optional["):
        inner = merge_encodings(without_optional(first), without_optional(second))
        return None if inner is None else as_optional(inner)
    if NULL_ELEMENTS in (first, second):
        other = second if first == NULL_ELEMENTS else first
        if _is_array(other) or other == EMPTY_LISTS:
            return NULL_ELEMENTS
        return other if other == "json" else None
    if EMPTY_LISTS in (first, second):
        other = second if first == EMPTY_LISTS else first
        if _is_array(other):  # without a shape, and as `tensor`, which may be empty
            return f"tensor:{other.split(':')[1]}"
        return other if other == "json" or other.startswith("list[") else None
    if "json" in (first, second):  # JSON would return values of the other column as another type
        return None
    if _is_array(first) and _is_array(second):
        return _merge_arrays(first.split(":"), second.split(":"))
    return _wider(first, second)


def as_optional(encoding: str) -> str:
    """Return the encoding that holds None besides the values of another.

    >>> as_optional("int"), as_optional("json")
    ('optional[int]', 'json')
    """
    can_hold_none = encoding == "json" or encoding.startswith("optional[")
    return encoding if can_hold_none else f"optional[{encoding}]"


def settled(encoding: str) -> str:
    """Return the encoding of a column once all files are merged.

    Lists of which no more is known than that they are empty or hold nulls are JSON.
    """
    return "json" if without_optional(encoding) in (EMPTY_LISTS, NULL_ELEMENTS) else encoding


def _is_array(name: str) -> bool:
    return name.startswith(("ndarray:", "tensor:"))


def as_columns(encodings: Mapping[str, str], selected: Sequence[str] | None = None) -> Columns:
    """Return the ``selected`` columns (None: all), sorted by name as in a sample's bytes.

    Raises ConfigError for a selected name that is not a column.
    """
    for name in selected or ():
        if name not in encodings:
            raise ConfigError(
                f"there is no column {name!r}. The columns are "
                f"{', '.join(map(repr, sorted(encodings)))}."
            )
    names = tuple(sorted(encodings if selected is None else set(selected)))
    kinds = tuple(encodings[name] for name in names)
    return Columns(names, kinds, tuple(parse_encoding(each).size for each in kinds))


def without_optional(name: str) -> str:
    """Return the encoding of the values of a column that are not None."""
    return name[len("optional[") : -1] if name.startswith("optional[") else name


def _merge_arrays(first: list[str], second: list[str]) -> str | None:
    """Merge the encodings of two array columns: [family, dtype] or [family, dtype, shape] each.

    Returns None if no dtype holds the numbers of both.
    """
    wider = _wider(_as_scalar(first[1]), _as_scalar(second[1]))
    if wider is None:
        return None
    dtype = "int64" if wider == "int" else wider
    family = "ndarray" if first[0] == second[0] == "ndarray" else "tensor"
    is_fixed = len(first) == len(second) == 3 and first[2] == second[2]
    return f"{family}:{dtype}:{first[2]}" if is_fixed else f"{family}:{dtype}"


def _as_scalar(dtype: str) -> str:
    return "int" if dtype == "int64" else dtype


def _wider(first: str, second: str) -> str | None:
    """Return the narrowest scalar encoding that holds the values of both, or None.

    For "int8" and "int32" it is "int32", for "int8" and "uint16" "int32", for "int16" and "float16"
    "float32". A float64 holds integers of 64 bits up to 2**53; readers refuse others.
    """
    for family in (_SIGNED, _UNSIGNED, _FLOATS):
        if first in family and second in family:
            return family[max(family.index(first), family.index(second))]
    # A signed type of twice the width holds unsigned numbers; none holds those of 64 bits. Both
    # families are sorted by width, so the type of twice the width is the next one.
    for signed, unsigned in ((first, second), (second, first)):
        if signed in _SIGNED and unsigned in _UNSIGNED[:3]:
            width = max(_SIGNED.index(signed), _UNSIGNED.index(unsigned) + 1)
            return _SIGNED[width]
    for integer, number in ((first, second), (second, first)):
        for family in (_SIGNED, _UNSIGNED):
            if integer in family and number in _FLOATS:
                # Integers of 8, 16 and more bits need a float of 16, 32 and 64 bits.
                narrowest = min(family.index(integer), 2)
                return _FLOATS[max(narrowest, _FLOATS.index(number))]
    return first if first == second else None


# --------------------------------------------------------------------- columns of a file as planned


def note_of(columns: Iterable[str], extra: bytes = b"") -> bytes:
    """Return the note of a `FilePlan` that lists the columns of its file.

    length of the names, u32 | names, JSON | extra
    """
    names = json.dumps(sorted(columns)).encode()
    return len(names).to_bytes(4, "little") + names + extra


def more_of(note: bytes) -> bytes:
    """Return the ``extra`` bytes of a note that `note_of` made."""
    return note[4 + int.from_bytes(note[:4], "little") :]


class KnownColumns:
    """The columns with which a file was planned, compared with those of its samples.

    The constructor takes a shard, whose note was made by `note_of`.

    - ``selected``: the wanted columns.
    - ``omitted``: columns that were planned and are not wanted.
    - ``gaps``: the value of each wanted column that a sample may lack, by name: that of the folder
      of the file, as in ``lang=en/``, or None.
    """

    def __init__(self, shard: ShardPlace) -> None:
        names = shard.columns.names
        self.selected = frozenset(names)
        end = 4 + int.from_bytes(shard.note[:4], "little")
        try:
            planned_names = frozenset(json.loads(shard.note[4:end]))
        except (ValueError, TypeError, RecursionError) as error:
            raise FormatError(
                f"the table of files has no columns of {shard.file.key}: {error}. Delete the "
                "table, or run mds index again."
            ) from error
        self.omitted = planned_names - {*names}
        # All columns that a sample may have; None if further ones do not matter.
        self._allowed = None if shard.has_chosen else planned_names | self.selected | shard.dropped
        pairs = zip(names, shard.columns.encodings, strict=True)
        encodings = dict(pairs)
        self.gaps: dict[str, Any] = dict.fromkeys(
            name for name, kind in encodings.items() if kind == as_optional(kind)
        )
        self.gaps |= partition_values(shard.file.key, encodings)

    def is_late(self, record: Mapping[str, object]) -> bool:
        """Return True if a sample has a column that was not planned, which is an error."""
        return self._allowed is not None and not record.keys() <= self._allowed

    def late(self, names: Iterable[str]) -> str:
        """Return those names of columns that were not planned, as text."""
        return ", ".join(map(repr, sorted({*names} - (self._allowed or frozenset(names)))))

    def first_late(self, names: Iterable[str]) -> str:
        """Return the first name, in their order, of a column that was not planned."""
        return min({*names} - (self._allowed or frozenset()))
