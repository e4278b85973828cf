"""Human-readable numbers: ``"64mb"`` and ``"100k"`` to integers and back.

Bytes count in powers of 1024, samples in powers of 1000, as users of the format expect.
"""

from __future__ import annotations

import re

from mds.errors import ConfigError

_BYTE_UNITS = ("kb", "mb", "gb", "tb", "pb", "eb", "zb", "yb")
_BYTES = {unit: 1024**power for power, unit in enumerate(_BYTE_UNITS, 1)}
_COUNTS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_MAX_LETTERS = 40  # of a text that is parsed; Python refuses to parse very long numbers
_NUMBER = re.compile(r"\d+\.?\d*|\.\d+")


def parse_bytes(value: float | str) -> int:
    """Return a number of bytes from an integer, a float (truncated) or a text such as ``"1.5gb"``.

    Raises ConfigError (a ValueError) for anything else.
    """
    if not isinstance(value, str):
        return int(value)
    text = _normalize(value)
    for unit, factor in _BYTES.items():
        if text.endswith(unit):
            return _multiply(text[: -len(unit)], factor, value, "a size in bytes such as '64mb'")
    digits = text.removesuffix("b")  # "64b" is 64 bytes
    if not digits.isdecimal():
        raise ConfigError(f"{value!r} is not a size in bytes. Write one like 67108864 or '64mb'.")
    return int(digits)


def parse_count(value: int | str) -> int:
    """Return a number of samples from an integer or a text such as ``"1.5m"`` for 1,500,000.

    Raises ConfigError (a ValueError) for anything else.
    """
    if not isinstance(value, str):
        return int(value)
    text = _normalize(value)
    if text and text[-1] in _COUNTS:
        return _multiply(text[:-1], _COUNTS[text[-1]], value, "a number of samples such as '100k'")
    if not text.isdecimal():
        raise ConfigError(f"{value!r} is not a number of samples. Write one like 100000 or '100k'.")
    return int(text)


def format_bytes(size: float) -> str:
    """Return a size as text: ``format_bytes(3 << 20) == "3.0 MB"``."""
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if abs(amount) < 1024 or unit == "TB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def _normalize(text: str) -> str:
    """Return a text in lower case without outer spaces. Raises ConfigError if it is too long."""
    if len(text) > _MAX_LETTERS:
        raise ConfigError(f"{text[:_MAX_LETTERS]!r}... is too long for a number.")
    return text.strip().lower()


def _multiply(number: str, factor: int, text: str, expected: str) -> int:
    """Return the product of a decimal number and the factor of its unit, rounded down.

    Args:
        number: Text before the unit, such as ``"1.5"`` of ``"1.5gb"``.
        factor: Bytes or samples of the unit.
        text: Whole text, for the message.
        expected: Description of a valid text, for the message.

    Raises ConfigError if ``number`` is not a decimal number.
    """
    number = number.strip()
    if not _NUMBER.fullmatch(number):
        raise ConfigError(f"{text!r} is not {expected}.")
    return int(float(number) * factor)
