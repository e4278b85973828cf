"""Lossless type coercion: a value as it came to one that its column takes, or a reason.

The writer's own scalar types follow NumPy, where 3.7 becomes 3 in an integer column. A conversion
changes nothing without being told, so what would be rounded or cut is refused here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from mds.formats.columns import as_json

Coerce = Callable[[Any], Any]
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_FLOATS = {"float16", "float32", "float64", "str_float"}


def find_coercer(encoding: str, *, from_text: bool, plain: bool = False) -> Coerce | None:
    """Return a function that converts values to ``encoding``, or None if none is needed.

    It raises ValueError with the reason. With ``from_text`` numbers and JSON are read from strings;
    ``plain`` promises values that came from JSON.
    """
    if encoding.startswith("optional["):
        inner = find_coercer(encoding[len("optional[") : -1], from_text=from_text, plain=plain)
        return _optional(inner)
    family = encoding.split(":", 1)[0]
    if family in _INTEGERS or family in ("int", "str_int"):
        return _integer(family, from_text=from_text)
    if family in _FLOATS:
        return _float(family, from_text=from_text)
    if family == "ndarray":
        return _array(encoding)
    if family == "str_decimal":
        return _decimal
    if family == "json" and plain:
        return None
    if family == "json" and from_text:
        return _json_text
    return {"str": _text, "bytes": _bytes, "json": as_json}.get(family)


def fill_missing(
    fit: Coerce | None, encoding: str, nulls: frozenset[str], fill: str | None
) -> Coerce:
    """`fit` for a column of which values may be missing: None, or a text of ``nulls``.

    ``fill`` is what stands for them; without it the column has to be optional, or JSON.
    """
    takes_none = encoding.startswith("optional[") or encoding == "json"

    def fitted(value: Any) -> Any:
        if value is None or (isinstance(value, str) and value in nulls):
            if fill is None and takes_none:
                return None
            if fill is None:
                raise ValueError(
                    f"it is missing; give a replacement (--fill NAME=VALUE), or allow it to be "
                    f"missing (--columns NAME:optional[{encoding}])"
                )
            value = fill
        return value if fit is None else fit(value)

    return fitted


def _optional(inner: Coerce | None) -> Coerce | None:
    if inner is None:
        return None
    return lambda value: None if value is None else inner(value)


def _integer(family: str, *, from_text: bool) -> Coerce:
    low, high = _bounds(family)
    to_scalar: Callable[[int], Any] = np.dtype(family).type if family in _INTEGERS else int

    def integer(value: Any) -> Any:
        if from_text and isinstance(value, str):
            value = _parse(int, value, "a whole number")
        if isinstance(value, (float, np.floating)) and value.is_integer():
            value = int(value)
        if not isinstance(value, (int, np.integer)):
            raise ValueError(f"expected a whole number, got {_describe(value)}")  # noqa: TRY004 - a record is wrong by value
        number = int(value)
        if low is not None and high is not None and not low <= number <= high:
            raise ValueError(f"{number} does not fit {family} ({low} to {high})")
        return to_scalar(number)

    return integer


def _bounds(family: str) -> tuple[int | None, int | None]:
    if family == "str_int":
        return None, None
    limits = np.iinfo("int64" if family == "int" else family)
    return int(limits.min), int(limits.max)


def _float(family: str, *, from_text: bool) -> Coerce:
    to_scalar: Callable[[Any], Any] = float if family == "str_float" else np.dtype(family).type

    def number(value: Any) -> Any:
        if from_text and isinstance(value, str):
            value = _parse(float, value, "a number")
        if isinstance(value, bool) or not isinstance(
            value, (int, float, np.floating, np.integer, Decimal)
        ):
            raise ValueError(f"expected a number, got {_describe(value)}")  # noqa: TRY004 - a record is wrong by value
        return to_scalar(value)

    return number


def _array(encoding: str) -> Coerce:
    _, _, spec = encoding.partition(":")
    dtype = spec.partition(":")[0] or None

    def array(value: Any) -> Any:
        if isinstance(value, (bytes, np.ndarray)) and (
            dtype is None or isinstance(value, bytes) or value.dtype == dtype
        ):
            return value
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ValueError(f"expected an array, got {_describe(value)}: {error}") from error
        if dtype is None:
            return array
        try:
            cast = array.astype(dtype)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{_describe(value)} is not an array of {dtype}") from error
        if (
            array.dtype.kind in "iuf"
            and cast.dtype.kind in "iu"
            and not np.array_equal(cast, array)
        ):
            raise ValueError(f"{_describe(value)} does not fit {dtype}")
        return cast

    return array


def _decimal(value: Any) -> Any:
    try:
        return Decimal(value) if isinstance(value, (str, int)) else value
    except InvalidOperation as error:
        raise ValueError(f"expected a decimal number, got {_describe(value)}") from error


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, (int, float, Decimal, timedelta)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bytes):
        return value
    raise ValueError(f"expected text, got {_describe(value)}")


def _bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _json_text(value: Any) -> Any:
    if not isinstance(value, str):
        return as_json(value)
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"expected JSON, got {_describe(value)}: {error}") from error


def _parse(parse: Callable[[str], Any], text: str, type_name: str) -> Any:
    try:
        # Python reads 1_000 as a number; a file that holds it means something else.
        return parse(text.replace("_", "?"))
    except ValueError:
        raise ValueError(f"expected {type_name}, got {_describe(text)}") from None


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
