"""Values fitted to the encodings of their columns: unchanged, or an error with the way out.

The scalar types of the writer follow NumPy, where 3.7 becomes 3 in an integer column. Reading files
and converting change nothing unasked, so a value that would be rounded or cut is a problem
(`find_coercer`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from mds.errors import EncodingError

#: Function from a value of a record to the value to encode; raises ValueError if it does not fit.
Coerce = Callable[[Any], Any]

INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
#: Texts of numbers that may lose digits as a float64: leading zeros, and 16 digits or more.
_LONG_NUMBER = re.compile(r"\s*[+-]*(0\d|\d{16})")
FLOATS = {"float16", "float32", "float64", "str_float"}
#: Largest integer up to which a float64 holds every integer.
_EXACT = 1 << 53


def find_coercer(
    encoding: str, *, from_text: bool, plain: bool = False, is_exact: bool = False
) -> Coerce | None:
    """Return a function that converts values to ``encoding``, or None if none is needed.

    The function raises ValueError with the reason if a value does not fit.

    - ``from_text`` (bool): Whether numbers and JSON are parsed from strings.
    - ``plain`` (bool, default False): Whether all values came from JSON, so that a column of `json`
      takes them as they are.
    - ``is_exact`` (bool, default False): Whether to refuse values that another encoding would keep:
      "007" and True in a column of integers. A user who chose the encoding gets 7 and 1.
    """
    if encoding.startswith("optional["):
        inner = encoding[len("optional[") : -1]
        return _optional(find_coercer(inner, from_text=from_text, plain=plain, is_exact=is_exact))
    family = encoding.split(":", 1)[0]
    if family in INTEGERS or family in ("int", "str_int"):
        return _integer(family, from_text=from_text, is_exact=is_exact)
    if family in FLOATS:
        return _float(family, from_text=from_text, is_exact=is_exact)
    if family in ("ndarray", "tensor"):
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
    """Return a coercer that replaces missing values before it calls ``fit``.

    A value is missing if it is None or a text in ``nulls``.

    - ``fit`` (function | None): The coercer of the column.
    - ``fill`` (str | None): The replacement. Without it the column must be optional or `json`.
    """
    takes_none = encoding.startswith("optional[") or encoding == "json"

    def fitted(value: Any) -> Any:
        """Return the value, or its replacement if it is missing, as the type of the column."""
        if value is None or (isinstance(value, str) and value in nulls):
            if fill is None and takes_none:
                return None
            if fill is None:
                raise ValueError("the value is missing")
            value = fill
        return value if fit is None else fit(value)

    return fitted


def _optional(inner: Coerce | None) -> Coerce | None:
    """Return a coercer that returns None for None, and else the result of ``inner``."""
    if inner is None:
        return None
    return lambda value: None if value is None else inner(value)


def _integer(family: str, *, from_text: bool, is_exact: bool) -> Coerce:
    """Return the coercer of an integer column, which refuses fractions and overflow.

    - ``family`` (str): The encoding, such as "int", "uint8" or "str_int" (of any size).
    - ``from_text`` (bool): Whether text such as "12" is parsed.
    - ``is_exact`` (bool): Whether to refuse leading zeros and truth values.
    """
    low, high = _bounds(family)
    to_scalar: Callable[[int], Any] = np.dtype(family).type if family in INTEGERS else int

    def integer(value: Any) -> Any:
        """Return the value as a scalar of the column's type. Raises ValueError if it changes."""
        if from_text and isinstance(value, str):
            text, value = value, _parse_text(int, value, "a whole number")
            # Most texts are equal, and need no other text to be made.
            if is_exact and (own := str(value)) != text and own != text.strip().removeprefix("+"):
                raise ValueError(f"{_describe(text)} would become {value}")
        elif is_exact and isinstance(value, bool):
            raise ValueError(f"expected a whole number, got {_describe(value)}")
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
    """Return the least and the largest integer of an encoding; None for no limits."""
    if family == "str_int":
        return None, None
    limits = np.iinfo("int64" if family == "int" else family)
    return int(limits.min), int(limits.max)


def _float(family: str, *, from_text: bool, is_exact: bool) -> Coerce:
    """Return the coercer of a column of floats, which refuses truth values and overflow.

    - ``family`` (str): The encoding, such as "float32" or "str_float".
    - ``from_text`` (bool): Whether text such as "1.5" is parsed.
    - ``is_exact`` (bool): Whether to refuse leading zeros, and integers that would be rounded.
    """
    # A float64 is a float of Python, which is encoded faster than one of NumPy.
    is_float64 = family in ("str_float", "float64")
    to_scalar: Callable[[Any], Any] = float if is_float64 else np.dtype(family).type
    largest = float(np.finfo(family.removeprefix("str_")).max)

    def number(value: Any) -> Any:
        """Return the value as a float of the column's type. Raises ValueError for no number."""
        original = value
        if from_text and isinstance(value, str):
            text, value = value, _parse_text(float, value, "a number")
            if is_exact and _LONG_NUMBER.match(text) and _changes_as_float(text, value):
                raise ValueError(f"{_describe(text)} would become {value}")
        if type(value) is float and -largest <= value <= largest:  # the checks below take long
            return to_scalar(value)
        if isinstance(value, bool) or not isinstance(
            value, (int, float, np.floating, np.integer, Decimal)
        ):
            raise ValueError(f"expected a number, got {_describe(value)}")  # noqa: TRY004 - a record is wrong by value
        if is_exact and type(value) is int and abs(value) > _EXACT and value != float(value):
            raise ValueError(f"{_describe(value)} would become {float(value)}")
        with np.errstate(over="ignore"):  # raised as an error here
            scalar = to_scalar(value)
        if np.isinf(scalar) and not _is_infinite(original):
            raise ValueError(f"{_describe(original)} does not fit {family}")
        return scalar

    return number


def _is_infinite(number: Any) -> bool:
    """Return whether a number, or the text of one, means infinity."""
    return "inf" in str(number).lower()


def _changes_as_float(text: str, number: float) -> bool:
    """Return whether a text with a number loses digits as a float: "007", or 2**53 + 1."""
    digits = text.strip().lstrip("+-")
    if digits.isdigit():
        return (len(digits) > 1 and digits[0] == "0") or int(digits) != abs(int(number))
    return digits[:1] == "0" and digits[1:2].isdigit()


def _array(encoding: str) -> Coerce:
    """Return the coercer of a column of arrays, which refuses values that would change."""
    # "ndarray:int32:3,4" has the type "int32"; "ndarray" has none.
    _, _, spec = encoding.partition(":")
    dtype = spec.partition(":")[0] or None

    def array(value: Any) -> Any:
        """Return the value as an array of ``dtype``, or of its own type if ``dtype`` is None.

        Bytes are returned as they are: they are an encoded array. Raises ValueError for a value
        that is no array of numbers, or whose numbers would change or become infinite.
        """
        if isinstance(value, bytes):
            return value
        if isinstance(value, np.ndarray) and (dtype is None or value.dtype == dtype):
            return value
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ValueError(f"expected an array, got {_describe(value)}: {error}") from error
        if dtype is None:
            return array
        # NumPy makes numbers of text, and nan of None.
        if array.dtype.kind not in "biuf" or np.dtype(dtype).kind not in "biuf":
            raise ValueError(f"{_describe(value)} is not an array of {dtype}")
        with np.errstate(over="ignore", invalid="ignore"):  # raised as an error here
            cast = array.astype(dtype)
        if not _is_same(array, cast):
            raise ValueError(f"{_describe(value)} does not fit {dtype}")
        return cast

    return array


def _is_same(array: np.ndarray[Any, Any], cast: np.ndarray[Any, Any]) -> bool:
    """Return True if the numbers of an array are the same in another type.

    Integers must stay the same: 3.7 does not become 3, nor 300 a uint8 of 44, nor 2**53 + 1 a
    float64 of 2**53. Floats may be rounded, but do not become infinite.
    """
    if array.dtype.kind in "iu" and cast.dtype.kind == "f" and array.size:
        largest = 1 << (np.finfo(cast.dtype).nmant + 1)  # up to it, a float holds every integer
        if -largest <= int(array.min()) and int(array.max()) <= largest:
            return True
        return bool(np.isfinite(cast).all()) and [*map(int, cast.flat)] == array.ravel().tolist()
    if array.dtype.kind in "iuf" and cast.dtype.kind in "iu":
        return np.array_equal(cast, array)
    return np.array_equal(np.isinf(cast), np.isinf(array))


def _decimal(value: Any) -> Any:
    """Return a text or an integer as a Decimal. Raises ValueError for other text."""
    try:
        return Decimal(value) if isinstance(value, (str, int)) else value
    except InvalidOperation as error:
        raise ValueError(f"expected a decimal number, got {_describe(value)}") from error


def _text(value: Any) -> Any:
    """Return text, a time or a number as text, and bytes as they are. Raises ValueError."""
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
    """Parse text as JSON, and return other values as JSON types. Raises ValueError."""
    if not isinstance(value, str):
        return as_json(value)
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON, got {_describe(value)}: {error}") from error


def _parse_text(parse: Callable[[str], Any], text: str, type_name: str) -> Any:
    """Return ``parse(text)``. Raises ValueError that names the expected type."""
    try:
        # Python parses 1_000 as a number; in a file it is hardly meant as one. With "?" it fails.
        return parse(text.replace("_", "?"))
    except ValueError:
        raise ValueError(f"expected {type_name}, got {_describe(text)}") from None


def _describe(value: Any) -> str:
    """Return the type of a value and its first letters, for messages."""
    text = repr(value)
    if value is None:
        return text
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


def as_json(value: Any) -> Any:
    """Return a value in which everything that JSON lacks is replaced.

    Arrays become lists, dates and times ISO 8601 texts, decimals texts. Raises EncodingError for
    bytes, for which JSON has no equivalent.
    """
    convert = _JSON.get(type(value))  # of a dict, list or tuple, whose values are converted, too
    if convert is not None:
        return convert(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, timedelta)):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        raise EncodingError(
            "a nested value has bytes, which JSON cannot store; leave the column out, or give the "
            "bytes their own column."
        )
    return value


# Converters of values that hold other values.
_JSON: dict[type, Callable[[Any], Any]] = {
    dict: lambda value: {str(key): as_json(each) for key, each in value.items()},
    list: lambda value: [as_json(each) for each in value],
    tuple: lambda value: [as_json(each) for each in value],
}
