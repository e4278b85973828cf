"""Encodings of the columns of files: what two files have in common, and what is projected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mds.encodings import parse_encoding
from mds.errors import ConfigError
from mds.format.layout import Columns

#: The encoding of a column of which a file knows no more than that all is null.
NULLS = "optional[json]"
_SIGNED = ("int8", "int16", "int32", "int")
_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")


def merge_encodings(one: str, other: str) -> str | None:
    """Return the encoding that holds the values of both without loss, or None."""
    if one == other:
        return one
    if NULLS in (one, other):
        given = other if one == NULLS else one
        return given if given == "json" or given.startswith("optional[") else f"optional[{given}]"
    if "json" in (one, other):
        return None
    if one.startswith("optional[") or other.startswith("optional["):
        inner = merge_encodings(_inside(one), _inside(other))
        return None if inner is None else f"optional[{inner}]"
    if _is_array(one) and _is_array(other):
        return _merge_arrays(one.split(":"), other.split(":"))
    return _wider(one, other)


def _is_array(name: str) -> bool:
    return name.startswith(("ndarray:", "tensor:"))


def as_columns(encodings: Mapping[str, str], wanted: Sequence[str] | None = None) -> Columns:
    """Columns in the order of their bytes, those that are ``wanted`` or all.

    Raises ConfigError for a name that is not there.
    """
    for name in wanted or ():
        if name not in encodings:
            raise ConfigError(
                f"there is no column {name!r}. There are {', '.join(map(repr, sorted(encodings)))}."
            )
    names = tuple(sorted(encodings if wanted is None else set(wanted)))
    chosen = tuple(encodings[name] for name in names)
    return Columns(names, chosen, tuple(parse_encoding(each).size for each in chosen))


def _inside(name: str) -> str:
    return name[len("optional[") : -1] if name.startswith("optional[") else name


def _merge_arrays(one: list[str], other: list[str]) -> str | None:
    wider = _wider(_as_scalar(one[1]), _as_scalar(other[1]))
    if wider is None:
        return None
    dtype = "int64" if wider == "int" else wider
    family = "ndarray" if one[0] == other[0] == "ndarray" else "tensor"
    is_fixed = len(one) == len(other) == 3 and one[2] == other[2]
    return f"{family}:{dtype}:{one[2]}" if is_fixed else f"{family}:{dtype}"


def _as_scalar(dtype: str) -> str:
    return "int" if dtype == "int64" else dtype


def _wider(one: str, other: str) -> str | None:
    for family in (_SIGNED, _UNSIGNED, _FLOATS):
        if one in family and other in family:
            return family[max(family.index(one), family.index(other))]
    for signed, unsigned in ((one, other), (other, one)):
        if signed in _SIGNED and unsigned in _UNSIGNED[:3]:
            at = max(_SIGNED.index(signed), _UNSIGNED.index(unsigned) + 1)
            return _SIGNED[at]
    return one if one == other else None
