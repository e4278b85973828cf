"""Encodings of the columns of files: what two files have in common, and what is projected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mds.encodings import parse_encoding
from mds.errors import ConfigError
from mds.shardfile.layout import Columns

#: The encoding of a column of which a file knows no more than that all is null.
NULLS = "optional[json]"
_SIGNED = ("int8", "int16", "int32", "int")
_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")


def merge_encodings(first: str, second: str) -> str | None:
    """Return the encoding that holds the values of both without loss, or None."""
    if first == second:
        return first
    if NULLS in (first, second):
        encoding = second if first == NULLS else first
        return (
            encoding
            if encoding == "json" or encoding.startswith("optional[")
            else f"optional[{encoding}]"
        )
    if "json" in (first, second):
        return None
    if first.startswith("optional[") or second.startswith("optional["):
        inner = merge_encodings(_inside(first), _inside(second))
        return None if inner is None else f"optional[{inner}]"
    if _is_array(first) and _is_array(second):
        return _merge_arrays(first.split(":"), second.split(":"))
    return _wider(first, second)


def _is_array(name: str) -> bool:
    return name.startswith(("ndarray:", "tensor:"))


def as_columns(encodings: Mapping[str, str], selected: Sequence[str] | None = None) -> Columns:
    """Columns in the order of their bytes, those that are ``selected`` or all.

    Raises ConfigError for a name that is not there.
    """
    for name in selected or ():
        if name not in encodings:
            raise ConfigError(
                f"there is no column {name!r}. There are {', '.join(map(repr, sorted(encodings)))}."
            )
    names = tuple(sorted(encodings if selected is None else set(selected)))
    kinds = tuple(encodings[name] for name in names)
    return Columns(names, kinds, tuple(parse_encoding(each).size for each in kinds))


def _inside(name: str) -> str:
    return name[len("optional[") : -1] if name.startswith("optional[") else name


def _merge_arrays(first: list[str], second: list[str]) -> str | None:
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
    for family in (_SIGNED, _UNSIGNED, _FLOATS):
        if first in family and second in family:
            return family[max(family.index(first), family.index(second))]
    for signed, unsigned in ((first, second), (second, first)):
        if signed in _SIGNED and unsigned in _UNSIGNED[:3]:
            width = max(_SIGNED.index(signed), _UNSIGNED.index(unsigned) + 1)
            return _SIGNED[width]
    return first if first == second else None
