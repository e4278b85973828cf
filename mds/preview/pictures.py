"""Pictures made small: anew encoded for a page, or as half blocks for a terminal.

What a dataset holds is a stranger's. A picture is decoded within bounds, made small and encoded
anew, so that nothing of the file but its pixels is ever handed to a browser.
"""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

#: Pixels of a picture that is decoded at all, and the longer side of what is shown of it.
MAX_PIXELS = 50_000_000
MAX_SIDE = 192


def make_small(picture: Any, side: int = MAX_SIDE) -> Any | None:
    """Return a small RGB image of a Pillow image; None if it is too large or broken.

    A JPEG that is not decoded yet is decoded small, and is of that size from then on.
    """
    if picture.width * picture.height > MAX_PIXELS or not picture.width * picture.height:
        return None
    try:
        picture.draft("RGB", (side, side))
        small = picture.convert("RGB")
        small.thumbnail((side, side))
    except Exception:  # noqa: BLE001 - Pillow's plugins raise anything on damaged files
        return None
    return small


def to_data_uri(picture: Any) -> str | None:
    """Return a small picture as a data URL; None if it cannot be shown."""
    small = make_small(picture)
    if small is None:
        return None
    file = io.BytesIO()
    small.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def to_half_blocks(picture: Any, columns: int) -> Text | None:
    """Return a picture as lines of coloured half blocks; None if it cannot be shown."""
    from rich.text import Text

    small = make_small(picture, max(2, columns))
    if small is None:
        return None
    shown = Text()
    for top in range(0, small.height - small.height % 2, 2):
        for at in range(small.width):
            upper, lower = small.getpixel((at, top)), small.getpixel((at, top + 1))
            shown.append("\u2580", style=f"{_hex(upper)} on {_hex(lower)}")
        shown.append("\n")
    return shown


def _hex(pixel: Any) -> str:
    return "#{:02x}{:02x}{:02x}".format(*pixel)
