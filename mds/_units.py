"""Human-readable numbers: ``"64mb"`` and ``"100k"`` to integers and back.

Bytes count in powers of 1,024, as users of the format expect: ``"64kb"``, ``"64KiB"`` and ``"64K"``
are all 65,536. Samples count in powers of 1,000: ``"64k"`` are 64,000.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mds.errors import ConfigError

_BYTES = {
    prefix + ending: 1024**power
    for power, prefix in enumerate("kmgtpezy", 1)
    for ending in ("b", "ib", "")
    if ending or prefix in "kmgtp"
} | {"b": 1, "": 1}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_MAX_LETTERS = 40  # of a text that is parsed; Python refuses to parse very long numbers

# A number such as "64", "1_000", "1.5" or "1e9", and the letters after it. An "e" begins an
# exponent only before a digit: "1eb" is an exabyte. Exponents of three digits exceed every limit.
_AMOUNT = re.compile(r"((?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:e\+?\d{1,2})?)\s*([a-z]*)", re.ASCII)


def parse_bytes(value: float | str) -> int:
    """Return a number of bytes from an integer, a float (truncated) or a text such as ``"1.5gb"``.

    A kb, a KiB and a K are 1,024 bytes each; larger units follow. ``"1_000"``, ``"1e9"`` and
    ``"512 MiB"`` are sizes, too.

    Raises ConfigError (a ValueError) for anything else.
    """
    if not isinstance(value, str):
        return int(value)
    size = _parse(value, _BYTES)
    if size is None:
        raise ConfigError(
            f"{value!r} is not a size in bytes. Write a number such as 67108864, or a text such as "
            "'64mb'."
        )
    return size


def parse_count(value: int | str) -> int:
    """Return a number of samples from an integer or a text such as ``"1.5m"`` for 1,500,000.

    A k is 1,000 samples. ``"1_000"`` and ``"1e6"`` are numbers, too.

    Raises ConfigError (a ValueError) for anything else.
    """
    if not isinstance(value, str):
        return int(value)
    count = _parse(value, _COUNTS)
    if count is None:
        raise ConfigError(
            f"{value!r} is not a number of samples. Write a number such as 100000, or a text such "
            "as '100k'."
        )
    return count


def _parse(text: str, factors: Mapping[str, int]) -> int | None:
    """Return the number in a text times the factor of its unit, rounded down; None if it has none.

    Args:
        text: Text of a user, in any case.
        factors: Factors by unit in lower case; with the unit '', a number must be whole.

    Raises ConfigError for a text that is too long.
    """
    if len(text) > _MAX_LETTERS:
        raise ConfigError(f"{text[:_MAX_LETTERS]!r}... has too many digits for a number.")
    match = _AMOUNT.fullmatch(text.strip().lower())
    if match is None or match[2] not in factors:
        return None
    number, unit = match[1], match[2]
    if number.replace("_", "").isdecimal() and factors[unit] == 1:
        return int(number)  # exact; a float is not beyond 2**53
    product = float(number) * factors[unit]
    return int(product) if factors[unit] > 1 or product.is_integer() else None


def format_bytes(size: float) -> str:
    """Return a size as text: ``format_bytes(3 << 20) == "3.0 MB"``."""
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if abs(amount) < 1024 or unit == "TB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")
