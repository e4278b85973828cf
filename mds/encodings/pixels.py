"""Images straight to arrays, through the fastest decoder that is installed.

JPEG files go through simplejpeg, a binding of libjpeg-turbo, where it is installed
(`pip install "mds[jpeg]"`), else through Pillow. Both release the interpreter's lock while they
decode, so threads decode side by side. JPEGs always come as RGB, whatever they store, so that a
batch of them has one shape; other images keep their channels, and palettes become RGB.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Pixels = npt.NDArray[Any]

# What numpy makes of a Pillow image as it stands; other modes become RGB first.
_AS_THEY_ARE = frozenset(("L", "LA", "RGB", "RGBA", "I;16", "I", "F"))


@functools.cache
def jpeg_decoder() -> Callable[[Any], Pixels]:
    """A function from a JPEG file's bytes to uint8 pixels of shape (height, width, 3), RGB.

    The function raises ValueError, OSError or SyntaxError for what it cannot decode.
    """
    try:
        import simplejpeg
    except ImportError:
        return _jpeg_by_pillow

    def decode(data: Any) -> Pixels:
        try:
            return np.asarray(simplejpeg.decode_jpeg(data, colorspace="RGB"))
        except ValueError:
            # CMYK, and files that Pillow takes all the same.
            return _jpeg_by_pillow(data)

    return decode


def _jpeg_by_pillow(data: Any) -> Pixels:
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        return np.array(image.convert("RGB"))


def image_pixels(image: Any) -> Pixels:
    """The pixels of a Pillow image, (height, width) or (height, width, channels)."""
    return np.array(image if image.mode in _AS_THEY_ARE else image.convert("RGB"))
