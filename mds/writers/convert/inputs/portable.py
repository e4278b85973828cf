"""Encodings that every reader of the format knows, for columns of tables.

Files that are read as they lie may have encodings that are younger than the format: ``bool``,
``tensor``, ``optional``. A conversion writes what old readers know where there is such a thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_FILES = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_OF_BYTES = ("bytes", "jpeg", "png", "audio")


def portable_encoding(
    encoding: str, values: Sequence[Any], *, has_nulls: bool = False
) -> tuple[str, str]:
    """The encoding in the place of one that a file gives a column, and a note.

    ``values`` are some of the column's; ``has_nulls``: whether others are known to be null (of a
    list also: empty). What may be null and is not known to be is a plain column.
    """
    plain = encoding[len("optional[") : -1] if encoding.startswith("optional[") else encoding
    plain = plain.replace("tensor:", "ndarray:", 1)
    lacks = has_nulls or any(value is None for value in values)
    if plain == "json":
        return "json", "nested" if any(value is not None for value in values) else ""
    if plain.startswith("ndarray:"):
        is_short = lacks or any(len(value) == 0 for value in values)
        return ("json", "some lists are empty or null") if is_short else (plain, "")
    if plain in _OF_BYTES:
        plain, note = _of_bytes([value for value in values if value is not None])
        # JSON has no word for bytes.
        return (f"optional[{plain}]", "sometimes null") if lacks else (plain, note)
    if lacks:
        return "json", "sometimes null"
    return ("json", "true or false") if plain == "bool" else (plain, "")


def _of_bytes(values: Sequence[Any]) -> tuple[str, str]:
    """`jpeg` or `png` where every value is such a file, else `bytes`."""
    for encoding, start in _FILES.items():
        if values and all(isinstance(v, bytes) and v.startswith(start) for v in values):
            return encoding, "stored as it is"
    return "bytes", ""
