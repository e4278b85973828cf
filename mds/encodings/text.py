"""`bytes`, `str`, and numbers as text: `str_int`, `str_float`, `str_decimal`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mds.encodings.base import LARGEST, DecodeKind, Encoding, describe
from mds.encodings.scalars import plain
from mds.errors import EncodingError

if TYPE_CHECKING:
    from mds.encodings.base import Data


class BytesEncoding(Encoding):
    """Bytes as they are."""

    shares_memory = False
    takes_bytes = True
    decode_kind = DecodeKind.BYTES
    expects = "bytes"

    def __init__(self, name: str) -> None:
        super().__init__(plain(name, "bytes"))

    def encode(self, value: Any) -> bytes:
        """Return the value itself."""
        if not isinstance(value, bytes):
            raise self.refuse(value)
        return value

    def check_bytes(self, data: bytes) -> None:
        """Take any bytes."""
        del data

    def way_out(self, value: Any) -> str:
        """Suggest how to make bytes of a value."""
        if isinstance(value, str):
            return "Write value.encode(), or use the encoding 'str'."
        if isinstance(value, (bytearray, memoryview)):
            return "Write bytes(value)."
        return super().way_out(value)

    def decode(self, data: Data) -> bytes:
        """Bytes."""
        return bytes(data)


class StrEncoding(Encoding):
    """Text in UTF-8."""

    shares_memory = False
    takes_bytes = True
    decode_kind = DecodeKind.TEXT
    expects = "a str"

    def __init__(self, name: str) -> None:
        super().__init__(plain(name, "str"))

    def encode(self, value: Any) -> bytes:
        """UTF-8."""
        if not isinstance(value, str):
            raise self.refuse(value)
        if len(value) > LARGEST:
            raise self.too_large(value, len(value))
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise EncodingError(
                f"encoding str: expected text that UTF-8 can hold, got {describe(value)} ({error})"
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
    """A number as the text that `str` makes of it; of any size and exact."""

    shares_memory = False
    takes_bytes = True

    def __init__(self, name: str) -> None:
        family = name.split(":", 1)[0]
        super().__init__(plain(name, family))
        self._type: type[Any] = {"str_int": int, "str_float": float}.get(name) or _decimal()
        self.expects = "a Decimal" if name == "str_decimal" else f"a Python {self._type.__name__}"

    def encode(self, value: Any) -> bytes:
        """ASCII of `str(value)`."""
        if not isinstance(value, self._type):
            raise self.refuse(value)
        try:
            # Subclasses may print themselves as they like: str(True) could not be read back.
            return str(self._type(value)).encode("ascii")
        except ValueError as error:  # Python refuses to print integers of thousands of digits
            raise EncodingError(f"encoding {self.name}: {error}") from error

    def decode(self, data: Data) -> Any:
        """Return an int, a float or a Decimal."""
        try:
            return self._type(str(data, "ascii"))
        except (ValueError, ArithmeticError) as error:  # the latter is decimal's
            raise self.broken(data, error) from error


def _decimal() -> type[Any]:
    from decimal import Decimal  # 3 ms of every import, for a column that few have

    return Decimal
