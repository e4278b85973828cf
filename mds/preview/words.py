"""Describe a decoded value in a few words, with its content if that is short."""

from __future__ import annotations

from typing import Any


class Undecodable:
    """Stands for a value whose bytes do not decode, and shows itself as the reason."""

    def __init__(self, error: Exception) -> None:
        self._why = f"{type(error).__name__}: {error}"

    def __repr__(self) -> str:
        return f"cannot be decoded: {self._why}"


def shorten_value(value: Any, width: int = 200) -> str:
    """Describe a decoded value in a few words, with its content if that is short."""
    if isinstance(value, (bytes, memoryview)):
        start = bytes(value[:16])
        return f"{len(value):,} bytes, {start!r}{'...' if len(value) > 16 else ''}"
    if hasattr(value, "dtype") and getattr(value, "shape", None):
        first = ", ".join(map(str, value.reshape(-1)[:8].tolist()))
        more = ", ..." if value.size > 8 else ""
        return f"{value.dtype} {'x'.join(map(str, value.shape))}: {first}{more}"
    if is_picture(value):
        return f"{value.format or 'raw'} image, {value.width} x {value.height} {value.mode}"
    if hasattr(value, "dtype"):  # repr says np.float64(0.5)
        return str(value)
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= width else f"{text[:width]}... ({len(text):,} characters)"


def is_picture(value: Any) -> bool:
    """Whether a value is an image of Pillow's."""
    return hasattr(value, "getbands") and hasattr(value, "width")
