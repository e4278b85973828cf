"""Values of any size: `bytes`, `str`, numbers as text (`str_int`, ...), `json`, and `pkl`.

Reading a pickle runs whatever code its author chose, so readers refuse a column with `pkl` anywhere
in its encoding unless `allow_unsafe_types=True`.
"""

from __future__ import annotations

import json
import json.encoder
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.encodings._base import LARGEST, DecodeKind, Encoding, describe
from mds.encodings._scalars import as_float, as_int, without_parameters
from mds.errors import EncodingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mds.encodings._base import Data


class BytesEncoding(Encoding):
    """Encoding of bytes, stored unchanged."""

    shares_memory = False
    takes_bytes = True
    decode_kind = DecodeKind.BYTES
    expects = "bytes"
    own_type = bytes

    def __init__(self, name: str) -> None:
        super().__init__(without_parameters(name, "bytes"))

    def encode(self, value: Any) -> bytes:
        """Return the value itself, or the content of a bytearray or memoryview."""
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        if not isinstance(value, bytes):
            raise self.refuse(value)
        return value

    def check_bytes(self, data: bytes) -> None:
        """Accept any bytes."""
        del data

    def way_out(self, value: Any) -> str:
        """Suggest how to make bytes of a value."""
        if isinstance(value, str):
            return "Write value.encode(), or use the encoding 'str'."
        if hasattr(value, "tobytes"):
            return "Write value.tobytes(), or use the encoding 'ndarray', which keeps the shape."
        return super().way_out(value)

    def decode(self, data: Data) -> bytes:
        """Return the bytes."""
        return bytes(data)


class StrEncoding(Encoding):
    """Encoding of text as UTF-8."""

    shares_memory = False
    takes_bytes = True
    decode_kind = DecodeKind.TEXT
    expects = "a str"

    def __init__(self, name: str) -> None:
        super().__init__(without_parameters(name, "str"))

    def encode(self, value: Any) -> bytes:
        """Return the text in UTF-8."""
        if not isinstance(value, str):
            raise self.refuse(value)
        if len(value) > LARGEST:
            raise self.too_large(value, len(value))
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise EncodingError(
                f"encoding str: expected text that UTF-8 can encode, got {describe(value)} "
                f"({error})"
            ) from error

    def way_out(self, value: Any) -> str:
        """Suggest how to make text of a value."""
        if isinstance(value, (int, float)):
            return "Write str(value), or use the encoding 'int' or 'float64'."
        if isinstance(value, (dict, list)):
            return "The encoding 'json' holds dicts and lists."
        return super().way_out(value)

    def decode(self, data: Data) -> str:
        """Return a str."""
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise self.broken(data, error) from error


class NumberTextEncoding(Encoding):
    """Encoding of an int, float or Decimal of any size as the text of `str(value)`: exact.

    `name` is `str_int`, `str_float` or `str_decimal`. Integers and floats of NumPy and torch become
    those of Python.
    """

    shares_memory = False

    def __init__(self, name: str) -> None:
        family = name.split(":", 1)[0]
        super().__init__(without_parameters(name, family))
        # Decimal is imported only for `str_decimal`.
        self._type: type[Any] = {"str_int": int, "str_float": float}.get(name) or _decimal()
        self.own_type = self._type
        self.expects = "a Decimal" if name == "str_decimal" else f"a Python {self._type.__name__}"

    def encode(self, value: Any) -> bytes:
        """Return `str(value)` in ASCII."""
        if not isinstance(value, self._type):
            convert = {int: as_int, float: as_float}.get(self._type)
            number = None if convert is None else convert(value)
            if number is None:
                raise self.refuse(value)
            value = number
        try:
            # Converted first, since subclasses print otherwise: str(True) could not be read back.
            return str(self._type(value)).encode("ascii")
        except ValueError as error:  # Python refuses to print integers of thousands of digits
            raise EncodingError(f"encoding {self.name}: {error}") from error

    def way_out(self, value: Any) -> str:
        """Suggest how to convert text to a number."""
        if isinstance(value, (str, bytes)):
            text = "value" if isinstance(value, str) else "value.decode()"
            return f"Write {self._type.__name__}({text})."
        return super().way_out(value)

    def decode(self, data: Data) -> Any:
        """Return an int, a float or a Decimal."""
        try:
            return self._type(str(data, "ascii"))
        except (ValueError, ArithmeticError) as error:  # the latter is decimal's
            raise self.broken(data, error) from error


def _decimal() -> type[Any]:
    from decimal import Decimal  # 3 ms of every import, for a column that few have

    return Decimal


# --------------------------------------------------------------------- objects


def _make_dumps() -> Callable[[Any], str]:
    """Return a function like `json.dumps` that does not make a new C encoder in every call.

    That halves its time. Circular objects raise RecursionError rather than ValueError.
    """
    encoder = json.JSONEncoder()
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    escape = json.encoder.encode_basestring_ascii
    # The arguments with which json.JSONEncoder.iterencode makes its encoder, except the first:
    # None leaves out the search for circular objects.
    encode = make(None, encoder.default, escape, None, ": ", ", ", False, False, True)

    def dumps(value: Any) -> str:
        return "".join(encode(value, 0))

    return dumps


_dumps = _make_dumps()


class JsonEncoding(Encoding):
    """Encoding of values of JSON. A NumPy array at the top becomes nested lists."""

    shares_memory = False
    takes_bytes = True
    decode_kind = DecodeKind.JSON
    expects = "a value that json.dumps accepts"

    def __init__(self, name: str) -> None:
        super().__init__(without_parameters(name, "json"))

    def encode(self, value: Any) -> bytes:
        """Return `json.dumps(value)`: keys unsorted, non-ASCII escaped, NaN allowed."""
        # Refuse values that are too large before their text is made. A text takes at least its
        # length, and a number of an array three bytes: digit, comma and space.
        if isinstance(value, str) and len(value) > LARGEST:
            raise self.too_large(value, len(value))
        if isinstance(value, np.ndarray):
            if 3 * value.size > LARGEST:
                raise self.too_large(value, 3 * value.size)
            value = value.tolist()
        try:
            return _dumps(value).encode()
        except TypeError as error:
            raise self.refuse(value, f"{error}.") from error
        except (ValueError, RecursionError) as error:
            raise EncodingError(
                f"encoding json: expected {self.expects}, got {describe(value)} ({error})"
            ) from error

    def decode(self, data: Data) -> Any:
        """Return the value that `json.loads` parses."""
        try:
            return json.loads(str(data, "utf-8"))
        except (ValueError, RecursionError) as error:
            raise self.broken(data, error) from error


class PickleEncoding(Encoding):
    """Encoding of any object as a pickle. Unsafe to decode."""

    shares_memory = False
    takes_bytes = True
    is_unsafe = True
    expects = "a value that pickle accepts"

    def __init__(self, name: str) -> None:
        super().__init__(without_parameters(name, "pkl"))

    def encode(self, value: Any) -> bytes:
        """Return the pickle of a value, in the default protocol."""
        try:
            return pickle.dumps(value)
        except Exception as error:  # objects may raise anything while being pickled
            raise EncodingError(
                f"encoding pkl: expected {self.expects}, got {describe(value)} ({error})"
            ) from error

    def check_bytes(self, data: bytes) -> None:
        """Accept any bytes: looking inside a pickle would run it."""
        del data

    def decode(self, data: Data) -> Any:
        """Return the unpickled object."""
        try:
            return pickle.loads(data)  # noqa: S301 - readers check allow_unsafe_types first
        except Exception as error:  # damaged pickles raise anything at all
            raise self.broken(data, f"{type(error).__name__}: {error}") from error
