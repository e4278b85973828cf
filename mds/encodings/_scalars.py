"""Numbers of a fixed size: `int`, `bool`, and the NumPy scalars `uint8` to `float64`.

The incumbent does not know `bool`, and refuses a column of that name. A NumPy column takes numbers,
and arrays of one number, that stay the same. Text, None, an integer that does not fit, a fraction
in a column of integers, and a number that would become infinite are refused. Floats may be rounded.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.encodings._base import DecodeKind, Encoding, describe, is_tensor, python_scalar
from mds.errors import EncodingError, EncodingRangeError, UnknownEncodingError

if TYPE_CHECKING:
    from mds.encodings._base import Data

_CODES = {
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}


def without_parameters(name: str, family: str) -> str:
    """Return ``name``; raise UnknownEncodingError if it has parameters that its family lacks.

    `int` is returned, and `int:3` (family `int`) is refused.
    """
    if name != family:
        raise UnknownEncodingError(f"the encoding {family!r} takes no parameters, got {name!r}.")
    return name


class IntEncoding(Encoding):
    """Encoding of an int in 64 bits; integers of NumPy and torch become Python ints."""

    shares_memory = False
    takes_bytes = True
    size = 8
    dtype = np.dtype("<i8")
    shape = ()
    decode_kind = DecodeKind.INT
    expects = "an int"
    own_type = int

    def __init__(self, name: str) -> None:
        super().__init__(without_parameters(name, "int"))
        self._pack = struct.Struct("<q").pack

    def encode(self, value: Any) -> bytes:
        """Return the int as eight bytes, little-endian."""
        if not isinstance(value, int):
            original, value = value, as_int(value)
            if value is None:
                raise self.refuse(original)
        try:
            return self._pack(value)
        except struct.error:
            raise _range_error(self, value, -(1 << 63), (1 << 63) - 1) from None

    def way_out(self, value: Any) -> str:
        """Suggest how to convert a value to an int."""
        return _as_number("int", value) or super().way_out(value)

    def decode(self, data: Data) -> int:
        """Return an int."""
        if len(data) != 8:
            raise self.broken(data, "8 are required")
        return int.from_bytes(data, "little", signed=True)


class BoolEncoding(Encoding):
    """Encoding of True and False in one byte."""

    shares_memory = False
    size = 1
    dtype = np.dtype("?")
    shape = ()
    expects = "a bool"

    def __init__(self, name: str) -> None:
        super().__init__(without_parameters(name, "bool"))

    def encode(self, value: Any) -> bytes:
        """Return one byte, 0 or 1."""
        if value is True:
            return b"\x01"
        if value is False:
            return b"\x00"
        scalar = python_scalar(value)
        if isinstance(scalar, bool):
            return b"\x01" if scalar else b"\x00"
        raise self.refuse(value)

    def way_out(self, value: Any) -> str:
        """Suggest how to convert a value to a bool."""
        return super().way_out(value) or "Write bool(value), or use the encoding 'int'."

    def decode(self, data: Data) -> bool:
        """Return a bool."""
        if len(data) != 1 or data[0] > 1:
            raise self.broken(data, "a bool must be one byte, 0 or 1")
        return data[0] == 1


class NumpyEncoding(Encoding):
    """Encoding of a number as a NumPy scalar of a fixed type, such as `uint8` or `float32`.

    `name` is the name of the type. Most values are Python numbers, which `struct` packs in a third
    of the time that NumPy's constructor takes. All others are converted by NumPy.
    """

    shares_memory = False
    takes_bytes = True
    shape = ()
    decode_kind = DecodeKind.SCALAR

    def __init__(self, name: str) -> None:
        family = name.split(":", 1)[0]
        super().__init__(without_parameters(name, family))
        code = struct.Struct("<" + _CODES[name])
        self.dtype = np.dtype(name).newbyteorder("<")
        self.size = code.size
        self.expects = f"a number that numpy.{name} accepts"
        self._scalar = np.dtype(name).type
        self._pack, self._unpack = code.pack, code.unpack
        is_whole = name[0] != "f"
        # Python type whose values `struct` packs. None for float16, which NumPy always rounds.
        self._fast = int if is_whole else (float if name != "float16" else None)
        self._limits = np.iinfo(name) if is_whole else np.finfo(name)
        self._is_whole = is_whole

    def encode(self, value: Any) -> bytes:
        """Return the bytes of the number, little-endian.

        Raises EncodingError if the number would change; floats may be rounded.
        """
        if type(value) is self._fast:
            try:
                return self._pack(value)
            except (struct.error, OverflowError):
                raise self._too_large(value) from None
        return self._convert(value)

    def encode_as_numpy(self, value: Any) -> bytes:
        """Return the bytes of the value that the NumPy type converts to, even if it changes.

        3.7 becomes 3, and 1e300 in a float32 infinite. Raises EncodingError for a value that is no
        number, and for whole numbers that do not fit.
        """
        if type(value) is self._fast:
            try:
                return self._pack(value)
            except (struct.error, OverflowError):
                pass  # NumPy makes infinity of a float, and _convert refuses an integer
        return self._convert(value, is_exact=False)

    def _convert(self, value: Any, *, is_exact: bool = True) -> bytes:
        """Return the bytes of a value, converted by the NumPy type.

        With ``is_exact`` it is an error if the number changes; see the module's docstring. Raises
        EncodingError.
        """
        if type(value) is self._scalar:  # the checks below would take longer than the rest
            return bytes(value.astype(self.dtype, copy=False).tobytes())
        original = value  # for errors
        if is_exact:
            if not _is_number(value):
                raise self.refuse(value)
            if is_tensor(value):
                value = python_scalar(value)
        # The scalar of another NumPy type counts as the Python number that it holds.
        if type(value) is not self._scalar and isinstance(value, np.generic):
            value = value.item()
            if is_exact and type(value) is self._fast:
                return self.encode(value)
        limits = self._limits
        if self._is_whole and isinstance(value, int) and not limits.min <= value <= limits.max:
            raise self._too_large(value)
        try:
            scalar: Any = self._scalar_of(value) if is_exact else self._scalar(value)
        except OverflowError:
            raise self._too_large(value) from None
        except TypeError:
            raise self.refuse(original) from None
        except ValueError as error:
            if isinstance(error, EncodingError):
                raise
            raise EncodingError(
                f"encoding {self.name}: expected {self.expects}, got {describe(original)} ({error})"
            ) from error
        return bytes(scalar.astype(self.dtype, copy=False).tobytes())

    def _scalar_of(self, value: Any) -> Any:
        """Return the NumPy scalar of a value. Raises EncodingError if the number would change.

        Floats may be rounded, but must not become infinite. ``value`` is a number, or an array of
        one.
        """
        if type(value) is self._scalar:
            return value
        if self._is_whole:
            # What becomes of such a float differs by processor and NumPy; it may even seem equal.
            if any(self._is_too_large(number) for number in np.asarray(value, object).flat):
                raise self._too_large(value)
            with np.errstate(invalid="ignore"):  # raised as an error below
                scalar = self._scalar(value)
            # NumPy itself refuses ints that do not fit, and truncates floats.
            if not isinstance(value, int) and not _is_same(scalar, value):
                raise EncodingError(
                    f"encoding {self.name}: expected a whole number, got {describe(value)}, which "
                    f"would become {scalar}. Write round(value), or use the encoding 'float64'."
                )
            return scalar
        if isinstance(value, float) and abs(value) <= float(self._limits.max):
            return self._scalar(value)
        with np.errstate(over="ignore"):  # raised as an error below
            scalar = self._scalar(value)
        # Infinity itself is kept; a finite number that became infinite is refused.
        if np.isinf(scalar).any() and not _is_same(scalar, value):
            raise self._too_large(value)
        return scalar

    def way_out(self, value: Any) -> str:
        """Suggest how to convert a value to a number."""
        return _as_number("int" if self._is_whole else "float", value) or super().way_out(value)

    def _is_too_large(self, number: Any) -> bool:
        return (
            isinstance(number, float)
            and number.is_integer()
            and not self._limits.min <= number <= self._limits.max
        )

    def _too_large(self, value: Any) -> EncodingRangeError:
        return _range_error(self, value, self._limits.min, self._limits.max)

    def decode(self, data: Data) -> np.generic:
        """Return a NumPy scalar."""
        if len(data) != self.size:
            raise self.broken(data, f"{self.size} are required")
        scalar: np.generic = self._scalar(self._unpack(data)[0])
        return scalar


def _is_number(value: Any) -> bool:
    """Whether a value may be a number, or an array or a list of one.

    Text, bytes, None, masked numbers, dates and complex numbers are none, although NumPy's types
    convert most of them.
    """
    kind = getattr(getattr(value, "dtype", None), "kind", "O")  # dtypes of torch have no kind
    if kind != "O":
        return kind in "biuf" and not np.any(getattr(value, "mask", False))
    if isinstance(value, (list, tuple, np.ndarray)):
        return all(map(_is_number, np.asarray(value, object).flat))
    return value is not None and not isinstance(value, (str, bytes, bytearray, memoryview, complex))


def as_int(value: Any) -> int | None:
    """Return an integer of NumPy or torch as a Python int; None for any other value.

    That is a scalar or an array or tensor without axes. A bool is none of these: NumPy does not
    count it among integers.
    """
    number = python_scalar(value)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def as_float(value: Any) -> float | None:
    """Return a float of NumPy or torch as the Python float that equals it; else None."""
    number = python_scalar(value)
    return number if isinstance(number, float) else None


def _is_same(scalar: Any, value: Any) -> bool:
    """Whether a scalar (or array of one element) equals the number that was given."""
    return bool(np.all(np.asarray(scalar == np.asarray(value))))


def _range_error(encoding: Encoding, value: Any, low: Any, high: Any) -> EncodingRangeError:
    """Return the error for a number that is not from ``low`` to ``high``."""
    return EncodingRangeError(
        f"encoding {encoding.name}: expected a number from {low} to {high}, got {describe(value)}."
        f"{_wider(value)}"
    )


def _wider(value: Any) -> str:
    """Return a sentence that names the narrowest encoding which can hold a number."""
    if isinstance(value, float):
        return " The encoding 'float64' holds it."
    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        limits = np.iinfo(name)
        if isinstance(value, (int, np.integer)) and limits.min <= value <= limits.max:
            return f" The encoding {name!r} holds it."
    if isinstance(value, int):
        return " The encoding 'str_int' holds integers of any size."
    return " The encoding 'float64' has a larger range, and 'str_decimal' holds any Decimal."


def _as_number(kind: str, value: Any) -> str:
    """Suggest in a sentence how to convert a value of a wrong type to a number, or return ''.

    ``kind`` is the Python type to convert to, "int" or "float".
    """
    if isinstance(value, str):
        return f"Write {kind}(value), or use the encoding 'str'."
    if isinstance(value, (float, bool)):
        other = "bool" if isinstance(value, bool) else "float64"
        return f"Write {kind}(value), or use the encoding '{other}'." if kind == "int" else ""
    if getattr(value, "shape", None) == ():
        value = python_scalar(value)
        return _as_number(kind, value) if isinstance(value, (float, bool)) else ""
    if hasattr(value, "shape"):
        return "For an array, use the encoding 'ndarray' or 'tensor'."
    is_list = isinstance(value, (list, tuple))
    return "For a list of numbers, use the encoding 'ndarray'." if is_list else ""
