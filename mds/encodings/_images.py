"""Images: `pil` (raw pixels), `jpeg`, `png`, and `jpeg_array` (also spelled `jpegarray`).

A JPEG or PNG that is given as bytes or as a path is stored unchanged, never encoded again; so is a
JPEG that Pillow opened and whose pixels are those of its file (`own_jpeg`). Files are decoded to
Pillow images that are opened but not yet decoded. Only file types that Pillow decodes by itself are
opened; EPS would start another program.

    pil         u32 width | u32 height | u32 length of the mode | mode | pixels
    jpeg, png   the file
    jpeg_array  u32 count | u32 size of each file | files
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import struct
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.encodings._base import Encoding, describe, located
from mds.encodings._containers import pack_sizes, unpack_items
from mds.encodings._scalars import without_parameters
from mds.errors import EncodingError

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.encodings._base import Data


_MAGIC = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_BEGINNINGS = (*_MAGIC.values(), b"GIF8", b"BM", b"II*\0", b"MM\0*")
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
# Bytes of a pixel in Pillow's raw form; mode "1" packs eight pixels into one.
_PIXEL = {
    **dict.fromkeys(("L", "P"), 1),
    **dict.fromkeys(("LA", "La", "PA", "I;16", "I;16L", "I;16B", "I;16N"), 2),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 3),
    **dict.fromkeys(("RGBA", "RGBa", "RGBX", "CMYK", "I", "F"), 4),
}


def is_picture(data: Data | bytearray) -> bool:
    """Whether bytes begin like an image file of a type that is opened here."""
    head = bytes(data[:12])
    return head.startswith(_BEGINNINGS) or (head[:4] == b"RIFF" and head[8:] == b"WEBP")


class PilEncoding(Encoding):
    """Encoding `pil` of an image as raw pixels, with its size and mode."""

    shares_memory = False
    takes_bytes = True
    expects = "a PIL image"

    def __init__(self, name: str) -> None:
        super().__init__(without_parameters(name, "pil"))

    def encode(self, value: Any) -> bytes:
        """Return width, height and length of the mode (u32 each), the mode, and the pixels."""
        from PIL import Image

        if not isinstance(value, Image.Image):
            raise self.refuse(value)
        pixels = _pixels(self, value)
        if value.mode == "P" and not _is_grey_palette(value):
            # The format has no palette. Existing programs write such images and must still work,
            # so this is only a warning.
            warnings.warn(
                "encoding pil stores the pixels of a mode P image and loses its palette: give "
                "image.convert('RGB'), or use the encoding png",
                UserWarning,
                stacklevel=2,
            )
        mode = value.mode.encode()
        return struct.pack("<3I", *value.size, len(mode)) + mode + pixels

    def decode(self, data: Data) -> Any:
        """Return a PIL image."""
        from PIL import Image

        view = memoryview(data)
        if len(view) < 12:
            raise self.broken(data, "12 are required before the mode")
        width, height, length = struct.unpack_from("<3I", view)
        mode = str(view[12 : 12 + length], "utf-8", "replace") if length <= 16 else ""
        if mode != "1" and mode not in _PIXEL:
            raise self.broken(data, f"{mode!r} is not a mode of a raw image")
        row_bytes = (width + 7) // 8 if mode == "1" else width * _PIXEL[mode]
        # Before Pillow allocates memory for as many pixels as the bytes claim.
        if 12 + length + row_bytes * height != len(view):
            needed = 12 + length + row_bytes * height
            raise self.broken(data, f"{width} x {height} pixels of mode {mode} take {needed} bytes")
        try:
            return Image.frombytes(mode, (width, height), view[12 + length :])
        except (ValueError, TypeError, MemoryError) as error:
            raise self.broken(data, error) from error

    def decode_array(self, data: Data) -> Any:
        """Return the pixels as an array; see `image_pixels`."""
        return image_pixels(self.decode(data))


class FileImageEncoding(Encoding):
    """Encoding of an image as a JPEG or PNG file; `name` is `jpeg` or `png`."""

    shares_memory = False
    takes_bytes = True

    def __init__(self, name: str) -> None:
        family = name.split(":", 1)[0]
        super().__init__(without_parameters(name, family))
        self.expects = f"a PIL image, the bytes of a {name} file, or the path of one"

    def check_bytes(self, data: Data | bytearray) -> None:
        """Raise EncodingError for bytes that do not begin like an image file."""
        if not is_picture(data):
            begins = f"begin with {bytes(data[:8])!r}" if len(data) else "are empty"
            raise EncodingError(
                f"encoding {self.name}: {describe(data)} {begins}, so they are not the file of a "
                f"picture. Write the bytes of a {self.name} file or a PIL image. "
                f"'optional[{self.name}]' accepts None, and 'bytes' accepts any bytes."
            )

    def encode(self, value: Any) -> bytes:
        """Return the bytes of an image file.

        A file that is given as bytes or as a path is returned unchanged. A Pillow image is written
        as a file, except a JPEG whose own file is known (`own_jpeg`). Raises EncodingError.
        """
        if isinstance(value, (bytes, bytearray)):
            self.check_bytes(value)
            return bytes(value)
        if isinstance(value, (str, os.PathLike)):
            return self._file(value)
        from PIL import Image, JpegImagePlugin

        if not isinstance(value, Image.Image):
            raise self.refuse(value)
        if self.name == "jpeg" and isinstance(value, JpegImagePlugin.JpegImageFile):
            data = self._own_file(value)
            if data:
                return data
        file = io.BytesIO()
        try:
            value.save(file, format=self.name.upper())
        except Exception as error:  # Pillow's plugins raise errors of any class
            way_out = ". Give image.convert('RGB')" if self.name == "jpeg" else ""
            raise EncodingError(
                f"encoding {self.name}: Pillow cannot write {describe(value)}: {error}{way_out}"
            ) from error
        return file.getvalue()

    def _own_file(self, image: Any) -> bytes:
        """Return the file that a JPEG of Pillow was opened from, or b'' to encode its pixels."""
        data = own_jpeg(image)
        if not data and not image.filename:
            warnings.warn(
                "encoding jpeg: a JPEG that was opened from memory and decoded is encoded again, "
                "with loss. Write the bytes of the file, or the image before anything decodes it",
                UserWarning,
                stacklevel=2,
            )
        return data

    def _file(self, path: str | os.PathLike[str]) -> bytes:
        """Return the bytes of the image file at a path. Raises EncodingError."""
        data = _read_if_there(path)
        if not data:
            raise self.refuse(path, "There is no such file: give the full path, or the image.")
        if not data.startswith(_MAGIC[self.name]):
            raise EncodingError(
                f"encoding {self.name}: the file {os.fspath(path)!r} begins with {data[:8]!r}, "
                f"which is not a {self.name}. Open it with PIL and give the image."
            )
        return data

    def decode(self, data: Data) -> Any:
        """Return a PIL image that is opened but not yet decoded."""
        return open_image(self, data)

    def decode_array(self, data: Data) -> Any:
        """Return the pixels, decoded by the type of the file and not by the column's name.

        A JPEG file is RGB in any column, and so is every image in a column `jpeg`. Images are
        rotated according to their EXIF orientation.
        """
        from PIL import ImageOps

        try:
            if bytes(data[:3]) == _MAGIC["jpeg"]:
                pixels = jpeg_decoder()(data)
                orientation = _jpeg_orientation(data)
                return pixels if orientation == 1 else _upright(pixels, orientation)
            image = ImageOps.exif_transpose(open_image(self, data))
            return rgb_pixels(image) if self.name == "jpeg" else image_pixels(image)
        except (ValueError, OSError, SyntaxError) as error:
            if isinstance(error, EncodingError):
                raise
            raise self.broken(data, error) from error


class JpegArrayEncoding(Encoding):
    """Encoding of a list of JPEG files; `name` is `jpeg_array` or `jpegarray`."""

    shares_memory = False
    takes_bytes = True
    expects = "a sequence of the bytes of JPEG files"

    def __init__(self, name: str) -> None:
        family = name.split(":", 1)[0]
        super().__init__(without_parameters(name, family))
        self._jpeg = FileImageEncoding("jpeg")

    def encode(self, value: Any) -> bytes:
        """Return the count, the size of each file, and the files.

        Items are the bytes of JPEG files, or images or paths that the encoding `jpeg` takes.
        """
        if isinstance(value, (str, bytearray)):
            raise self.refuse(value)
        try:
            parts = [
                bytes(item) if isinstance(item, (bytes, bytearray)) else self._jpeg.encode(item)
                for item in value
            ]
        except EncodingError:
            raise
        except TypeError as error:
            raise self.refuse(value) from error
        return b"".join((pack_sizes(parts), *parts))

    def pack_checked(self, value: Any) -> bytes:
        """Return the result of `pack`, after a check of every file. Raises EncodingError."""
        data = self.pack(value)
        self.check_bytes(data)
        return data

    def check_bytes(self, data: bytes) -> None:
        """Raise EncodingError for bytes that are not a list of JPEG files."""
        for number, item in enumerate(unpack_items(self, data, 0)):
            try:
                self._jpeg.check_bytes(item)
            except EncodingError as error:  # noqa: PERF203 - the number belongs into the sentence
                raise located(error, f"item {number}") from error

    def decode(self, data: Data) -> list[Any]:
        """Return a list of PIL images that are opened but not yet decoded."""
        return [open_image(self, item) for item in unpack_items(self, data, 0)]

    def decode_array(self, data: Data) -> list[Any]:
        """Return the pixels of each image."""
        return [self._jpeg.decode_array(item) for item in unpack_items(self, data, 0)]


def open_image(encoding: Encoding, data: Data) -> Any:
    """Return the Pillow image of a file's bytes, opened but not yet decoded.

    Raises EncodingError, of which `encoding` makes the text.
    """
    from PIL import Image

    try:
        return Image.open(io.BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise encoding.broken(data, _too_large(error)) from error
    except Exception as error:  # Pillow's plugins raise errors of any class on damaged files
        raise encoding.broken(data, f"{type(error).__name__}: {error}") from error


def _most_pixels() -> int | None:
    """Return the most pixels of an image that Pillow opens; None: any number.

    The user may have changed Pillow's limit; if Pillow is not imported, it has the default.
    """
    pillow = sys.modules.get("PIL.Image")
    limit: int | None = 89_478_485 if pillow is None else pillow.MAX_IMAGE_PIXELS
    return None if limit is None else 2 * limit


def _too_large(error: Exception) -> str:
    """Return the message for an image that Pillow refuses to open, with the remedy."""
    return (
        f"{str(error).rstrip('.')}. If the picture is really so large, raise the limit: "
        "PIL.Image.MAX_IMAGE_PIXELS = 10**10"
    )


def own_jpeg(image: Any) -> bytes:
    """Return the JPEG file that a Pillow image was opened from, or b'' if it may be another one.

    Before Pillow decodes an image, its stream is open and has the file. Then Pillow drops the
    stream, and methods such as ``thumbnail`` may change the pixels. So the file of that name, which
    may be another one by now, is decoded, and must have the same pixels.
    """
    from PIL import JpegImagePlugin

    if not isinstance(image, JpegImagePlugin.JpegImageFile):
        return b""
    # `draft` sets `decoderconfig`; a file with several pictures may be at another one.
    is_untouched = bool(image.tile) and not image.decoderconfig and not image.tell()
    data = _stream_bytes(image.fp) if is_untouched else b""
    if data:
        return data
    data = _read_if_there(image.filename)
    # An image that was closed has no pixels to compare, only their number.
    is_same = data.startswith(_MAGIC["jpeg"]) and _is_like(data, image, by_pixels=not is_untouched)
    return data if is_same else b""


def _stream_bytes(stream: Any) -> bytes:
    """Return all bytes of an open file, and leave its position; b'' if it is closed or None."""
    try:
        position = stream.tell()
        stream.seek(0)
        data = stream.read()
        stream.seek(position)
    except (AttributeError, OSError, ValueError):  # None; ValueError: closed
        return b""
    return bytes(data)


def _is_like(data: bytes, image: Any, *, by_pixels: bool) -> bool:
    """Whether a file has the size, the mode and, with ``by_pixels``, the pixels of an image."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as original:
            if (original.size, original.mode) != (image.size, image.mode):
                return False
            return not by_pixels or bool(original.tobytes() == image.tobytes())
    except Exception:  # noqa: BLE001 - Pillow's plugins raise errors of any class on damaged files
        return False


def _read_if_there(path: Any) -> bytes:
    """Return the bytes of a file, empty if there is no such file."""
    try:
        if not path or not os.path.isfile(path):
            return b""
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError):  # ValueError: a null character in the name
        return b""


def _pixels(encoding: Encoding, image: Any) -> bytes:
    """Return the raw pixels of a Pillow image. Raises EncodingError if it cannot be decoded."""
    try:
        return bytes(image.tobytes())
    except Exception as error:  # a file that Pillow opened and now fails to decode
        raise EncodingError(
            f"encoding {encoding.name}: Pillow cannot decode {describe(image)}: {error}"
        ) from error


def _is_grey_palette(image: Any) -> bool:
    """Whether entry n of an image's palette is the grey (n, n, n), for all numbers."""
    palette = image.getpalette("RGB") or []
    return all(palette[i : i + 3] == [i // 3] * 3 for i in range(0, len(palette), 3))


if TYPE_CHECKING:
    Pixels = npt.NDArray[Any]

_ORIENTATION_TAG = 0x0112
# Modes of Pillow that NumPy converts directly; images of other modes become RGB first.
_NUMPY_MODES = frozenset(("L", "LA", "RGB", "RGBA", "I;16", "I", "F"))


@functools.cache
def jpeg_decoder() -> Callable[[Any], Pixels]:
    """Return a function from a JPEG file's bytes to uint8 pixels of shape (height, width, 3), RGB.

    The function raises ValueError, OSError or SyntaxError for bytes that it cannot decode.
    """
    try:
        import simplejpeg
    except ImportError:
        return _jpeg_by_pillow

    def decode(data: Any) -> Pixels:
        # Before the decoder allocates memory for as many pixels as the header claims.
        with contextlib.suppress(ValueError):  # CMYK, or a damaged file that Pillow can still read
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
            if (limit := _most_pixels()) is None or height * width <= limit:
                return np.asarray(simplejpeg.decode_jpeg(data, colorspace="RGB"))
        return _jpeg_by_pillow(data)

    return decode


def _jpeg_by_pillow(data: Any) -> Pixels:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            return np.array(image.convert("RGB"))
    except Image.DecompressionBombError as error:
        raise ValueError(_too_large(error)) from error


def image_pixels(image: Any) -> Pixels:
    """Return the pixels of a Pillow image, (height, width) or (height, width, channels)."""
    return np.array(image if image.mode in _NUMPY_MODES else image.convert("RGB"))


def rgb_pixels(image: Any) -> Pixels:
    """Return the pixels of a Pillow image as uint8 (height, width, 3).

    Grey becomes RGB, an alpha channel is dropped, and 16 bits are reduced to the upper eight.
    """
    if image.mode.startswith("I"):
        levels = np.clip(np.asarray(image), 0, 0xFFFF) >> 8
        return np.repeat(levels.astype(np.uint8)[..., None], 3, axis=2)
    return np.array(image.convert("RGB"))


def _jpeg_orientation(data: Data) -> int:
    """Return the EXIF orientation of a JPEG file, or 1 if it has no valid one.

    Only the segments before the image are searched: they include the EXIF segment.
    """
    start, size = 2, len(data)  # after the two bytes that begin every JPEG
    # A segment is 0xFF, its type (0xE0 to 0xEF for metadata), its length in two bytes, content.
    while start + 10 <= size and data[start] == 0xFF and 0xE0 <= data[start + 1] <= 0xEF:
        end = start + 2 + (data[start + 2] << 8 | data[start + 3])
        if bytes(data[start + 4 : start + 10]) == b"Exif\0\0":
            return _exif_orientation(bytes(data[start + 4 : end]))
        start = end
    return 1


def _exif_orientation(segment: bytes) -> int:
    """Return the orientation in an EXIF segment, or 1 if it has no valid one."""
    from PIL import Image

    exif = Image.Exif()
    try:
        exif.load(segment)
        orientation = exif.get(_ORIENTATION_TAG)
    except Exception:  # noqa: BLE001 - Pillow raises anything on damaged EXIF
        return 1
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    """Rotate and flip pixels so that an image of EXIF orientation 2 to 8 is upright.

    Returns a new array; `pixels` has the shape (height, width, 3).
    """
    if orientation >= 5:  # rows are stored as columns
        pixels = pixels.swapaxes(0, 1)
    if orientation in {3, 4, 7, 8}:
        pixels = pixels[::-1]
    if orientation in {2, 3, 6, 7}:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
