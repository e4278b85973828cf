"""The incumbent's ``format.xsv.encodings``: values of columns as text and back."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from mds.compat.json_encodings import check_type
from mds.compat.overrides import Sealed, SealedDict
from mds.errors import UnknownEncodingError


class Encoding(metaclass=Sealed):
    """A type of a column."""

    @abstractmethod
    def encode(self, obj: Any) -> str:
        """The text of a value. Raises EncodingTypeError (an AttributeError)."""

    @abstractmethod
    def decode(self, obj: str) -> Any:
        """The value of a text."""

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> bool:
        return check_type(data, expected_type)


class Str(Encoding):
    """Texts."""

    def encode(self, obj: str) -> str:
        """The text of a value."""
        self._validate(obj, str)
        return obj

    def decode(self, obj: str) -> Any:
        """The value of a text."""
        return obj


class Int(Encoding):
    """Integers."""

    def encode(self, obj: int) -> str:
        """The text of a value."""
        self._validate(obj, int)
        return str(obj)

    def decode(self, obj: str) -> Any:
        """The value of a text."""
        return int(obj)


class Float(Encoding):
    """Floating-point numbers."""

    def encode(self, obj: float) -> str:
        """The text of a value."""
        self._validate(obj, float)
        return str(obj)

    def decode(self, obj: str) -> Any:
        """The value of a text."""
        return float(obj)


_encodings: dict[str, type[Encoding]] = SealedDict(
    "_encodings",
    {"str": Str, "int": Int, "float": Float},
    "A column of separated values is one of str, int and float; use MDSWriter for other values",
)


def _coder(encoding: str) -> Encoding:
    if encoding not in _encodings:
        raise UnknownEncodingError(
            f"a column of text is one of {', '.join(_encodings)}, got {encoding!r}."
        )
    return _encodings[encoding]()


def is_xsv_encoding(encoding: str) -> bool:
    """Whether a column of text can be of that encoding."""
    return encoding in _encodings


def xsv_encode(encoding: str, value: Any) -> str:
    """The text of a value."""
    return _coder(encoding).encode(value)


def xsv_decode(encoding: str, value: str) -> Any:
    """The value of a text."""
    return _coder(encoding).decode(value)
