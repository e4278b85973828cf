"""Small pictures."""

import functools
import io

from PIL import Image


@functools.lru_cache
def jpeg(number, kind="JPEG"):
    """A picture of one colour, as the bytes of a file."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number * 10 % 256, 0, 0)).save(file, kind)
    return file.getvalue()
