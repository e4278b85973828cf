"""The incumbent's ``format.json.encodings``: whether a value is what a JSON column holds."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from mds.compat.overrides import Sealed, SealedDict
from mds.errors import EncodingTypeError, UnknownEncodingError


def check_type(data: Any, expected: Any) -> bool:
    """True; EncodingTypeError (an AttributeError) for data of another type."""
    if isinstance(data, expected):
        return True
    raise EncodingTypeError(
        f"data should be of type {expected}, but instead, found as {type(data)}"
    )


class Encoding(metaclass=Sealed):
    """A type of a column."""

    @classmethod
    @abstractmethod
    def is_encoded(cls, obj: Any) -> bool:
        """True, or EncodingTypeError (an AttributeError)."""

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> bool:
        return check_type(data, expected_type)


class Str(Encoding):
    """Texts."""

    @classmethod
    def is_encoded(cls, obj: Any) -> bool:
        """True, or EncodingTypeError."""
        return cls._validate(obj, str)


class Int(Encoding):
    """Integers."""

    @classmethod
    def is_encoded(cls, obj: Any) -> bool:
        """True, or EncodingTypeError."""
        return cls._validate(obj, int)


class Float(Encoding):
    """Floating-point numbers."""

    @classmethod
    def is_encoded(cls, obj: Any) -> bool:
        """True, or EncodingTypeError."""
        return cls._validate(obj, float)


_encodings: dict[str, type[Encoding]] = SealedDict(
    "_encodings",
    {"str": Str, "int": Int, "float": Float},
    "A column of JSON lines is one of str, int and float; use MDSWriter for other values",
)


def is_json_encoded(encoding: str, value: Any) -> bool:
    """True where a value is of an encoding's type. Raises EncodingError where it is not."""
    if encoding not in _encodings:
        raise UnknownEncodingError(
            f"a JSON column is one of {', '.join(_encodings)}, got {encoding!r}."
        )
    return _encodings[encoding].is_encoded(value)


def is_json_encoding(encoding: str) -> bool:
    """Whether a JSON column can be of that encoding."""
    return encoding in _encodings
