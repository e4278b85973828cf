"""Collate function for pictures of different sizes: scaled, cut, flipped and normalised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._words import plural
from mds.encodings._base import describe
from mds.encodings._images import rgb_pixels
from mds.errors import ConfigError
from mds.transforms._collate import ColumnFunction
from mds.transforms._columns import is_image
from mds.transforms._randomness import RowGenerator

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._words import Crop, ImageDtype
    from mds.transforms._randomness import Keys

    Pixels = npt.NDArray[np.uint8]


class Images(ColumnFunction):
    """Column function that makes arrays of one shape of pictures of any size; see `images`.

    Args:
        names: Columns of pictures.
        masks: Columns of class ids for each pixel.
        size: Height and width of the result, in pixels.
        resize: Length to which the shorter side is scaled first, in pixels, or None.
        crop: Part that is cut out, "center" or "random".
        flip: Whether half of the pictures, at random, are mirrored.
        scaling: Factor and term of each channel, float32 of shape (3,), for float32 results; None
            for uint8.
        channels_first: Whether the axes are (channels, height, width).
    """

    def __init__(
        self,
        names: tuple[str, ...],
        masks: tuple[str, ...],
        size: tuple[int, int],
        resize: int | None,
        crop: Crop,
        flip: bool,
        scaling: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None,
        channels_first: bool,
    ) -> None:
        super().__init__((*names, *masks))
        self._pictures, self._masks = names, masks
        self._size, self._resize, self._crop = size, resize, crop
        self._flip, self._scaling, self._channels_first = flip, scaling, channels_first
        self.needs_keys = flip or crop == "random"

    def apply(self, columns: dict[str, Any], keys: Keys | None) -> dict[str, Any]:
        """Return the columns, with the named ones as arrays of one shape."""
        batch = dict(columns)
        # All pictures of a sample are cut and flipped alike, by the same three random numbers, so
        # that a mask fits its image. ``sizes`` has the size of each row, which masks must have too.
        draws = RowGenerator(keys).random(3).tolist() if keys is not None else None
        sizes: dict[int, tuple[int, int]] = {}
        for name in self._pictures:
            batch[name] = self._batch(columns[name], name, draws, sizes)
        for name in self._masks:
            batch[name] = self._mask_batch(columns[name], name, draws, sizes)
        return batch

    def _batch(
        self,
        values: Any,
        name: str,
        draws: list[list[float]] | None,
        sizes: dict[int, tuple[int, int]],
    ) -> Any:
        """Return the pictures of a column as one array, (rows, *shape of a picture).

        Args:
            values: Pictures of the column.
            name: Name of the column, for errors.
            draws: Three random numbers for each row (down, right, flip), or None.
            sizes: Height and width of each row's pictures before scaling; missing rows are added.
        """
        height, width = self._size
        shape = (3, height, width) if self._channels_first else (height, width, 3)
        out = np.empty((len(values), *shape), np.uint8 if self._scaling is None else np.float32)
        # A view of the result with the channels last, which pictures are copied into.
        channels_last = out.transpose(0, 2, 3, 1) if self._channels_first else out
        for row, value in enumerate(values):
            pixels = _rgb(value, name)
            sizes.setdefault(row, pixels.shape[:2])
            fitting = self._fit(pixels, _scale_picture)
            cropped = self._cut(fitting, draws[row] if draws is not None else None)
            self._put(cropped, channels_last[row])
        return out

    def _mask_batch(
        self,
        values: Any,
        name: str,
        draws: list[list[float]] | None,
        sizes: dict[int, tuple[int, int]],
    ) -> npt.NDArray[np.int64]:
        """Return the masks of a column as ids, int64 of shape (rows, height, width).

        Ids are never interpolated. The arguments are those of `_batch`. Raises ConfigError for a
        mask of another size than the pictures of its row.
        """
        out = np.empty((len(values), *self._size), np.int64)
        for row, value in enumerate(values):
            ids = _mask_ids(value, name)
            if sizes.setdefault(row, ids.shape) != ids.shape:
                raise ConfigError(
                    f"column {name!r} has a mask of {ids.shape[0]} x {ids.shape[1]} pixels for a "
                    f"picture of {sizes[row][0]} x {sizes[row][1]}. Both are cropped alike, so "
                    "their sizes must be equal: resize one in map()."
                )
            fitting = self._fit(ids, _scale_mask)
            out[row] = self._cut(fitting, draws[row] if draws is not None else None)
        return out

    def _cut(self, pixels: npt.NDArray[Any], draw: list[float] | None) -> npt.NDArray[Any]:
        """Return the part of a picture that a sample's random numbers choose, flipped or not.

        ``draw`` is three numbers from 0 to 1: where the part is from top to bottom and from left to
        right, and a number that flips the picture if below 0.5. None is the middle, not flipped.
        """
        height, width = self._size
        down, right, flip = draw if draw is not None else (0.5, 0.5, 1.0)
        if self._crop == "center":
            down = right = 0.5
        top = int((pixels.shape[0] - height + 1) * down)
        left_edge = int((pixels.shape[1] - width + 1) * right)
        cropped = pixels[top : top + height, left_edge : left_edge + width]
        return cropped[:, ::-1] if self._flip and flip < 0.5 else cropped

    def _put(self, cropped: Pixels, picture: npt.NDArray[Any]) -> None:
        """Copy pixels into a picture of the batch, (height, width, 3), and normalise them."""
        if self._scaling is None:
            picture[...] = cropped
            return
        factors, terms = self._scaling
        for channel in range(3):
            target = picture[..., channel]
            np.multiply(cropped[..., channel], factors[channel], out=target)
            target += terms[channel]

    def _fit(
        self,
        pixels: npt.NDArray[Any],
        scale_to: Callable[[npt.NDArray[Any], int, int], npt.NDArray[Any]],
    ) -> npt.NDArray[Any]:
        """Scale a picture: its shorter side to ``resize``, and both sides at least to ``size``.

        ``scale_to`` is called with the pixels, the new height and the new width.
        """
        height, width = pixels.shape[:2]
        shorter = min(height, width)
        scale = (self._resize or shorter) / shorter
        scale = max(scale, self._size[0] / height, self._size[1] / width)
        if scale == 1:
            return pixels
        new_height = max(self._size[0], round(height * scale))
        new_width = max(self._size[1], round(width * scale))
        return scale_to(pixels, new_height, new_width)


def _scale_picture(pixels: Pixels, height: int, width: int) -> Pixels:
    """Scale a picture with bilinear interpolation."""
    from PIL import Image

    scaled = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(scaled)


def _scale_mask(ids: npt.NDArray[Any], height: int, width: int) -> npt.NDArray[Any]:
    """Scale a mask, (height, width): each new pixel has the id of the old pixel at its centre."""
    down = ((np.arange(height) + 0.5) * (ids.shape[0] / height)).astype(np.intp)
    right = ((np.arange(width) + 0.5) * (ids.shape[1] / width)).astype(np.intp)
    scaled: npt.NDArray[Any] = ids[down[:, None], right]
    return scaled


def _check_decoded(value: Any, name: str) -> None:
    """Raise ConfigError if a value is the encoded bytes of a picture."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise ConfigError(
            f"column {name!r} has {describe(value)}, which images() does not decode. Write them "
            "into a column of the encoding jpeg or png, or decode them in map()."
        )


def _mask_ids(value: Any, name: str) -> npt.NDArray[Any]:
    """Return the ids of a mask, shape (height, width); a picture with a palette has its indices."""
    _check_decoded(value, name)
    if is_image(value):
        from PIL import ImageOps

        description = f"a picture of mode {value.mode}"
        ids = np.asarray(ImageOps.exif_transpose(value))
    else:
        ids = np.asarray(value) if hasattr(value, "shape") else np.empty(0)
        description = describe(value)
    if ids.ndim == 3 and ids.shape[2] == 1:
        ids = ids[..., 0]
    if ids.ndim != 2 or ids.dtype.kind not in "biu" or 0 in ids.shape:
        raise ConfigError(
            f"column {name!r} has {description}, but a mask has one whole number for each pixel. "
            "For PNGs with a palette, give the dataset images={'IMAGE': 'array'}: masks then stay "
            "Pillow images. Convert colours to ids in map()."
        )
    return ids


def _rgb(value: Any, name: str) -> Pixels:
    """Return the pixels of an upright picture, uint8 of shape (height, width, 3)."""
    if is_image(value):
        from PIL import ImageOps

        return rgb_pixels(ImageOps.exif_transpose(value))
    if isinstance(value, (list, tuple)):
        raise ConfigError(
            f"column {name!r} has a list of {plural(len(value), 'value')} in a sample, but "
            "images() needs "
            "one picture. Choose one in map(), or make a column for each there."
        )
    _check_decoded(value, name)
    pixels = np.asarray(value)
    if pixels.dtype in {np.dtype(np.uint16), np.dtype(np.int32)} and pixels.ndim == 2:
        pixels = (np.clip(pixels, 0, 0xFFFF) >> 8).astype(np.uint8)  # grey of 16 bits
    if pixels.dtype != np.uint8 or pixels.ndim not in {2, 3} or 0 in pixels.shape:
        raise ConfigError(
            f"column {name!r} has {describe(value)}: pictures must be Pillow images, or uint8 "
            "arrays of shape (height, width, channels)."
        )
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.shape[2] > 4:
        raise ConfigError(
            f"column {name!r} has {describe(value)}, but images() needs 1 to 4 channels on the "
            "last axis. Move them in map(): np.moveaxis(value, 0, -1)."
        )
    if pixels.shape[2] in {1, 2}:  # grey, and its alpha
        return np.broadcast_to(pixels[..., :1], (*pixels.shape[:2], 3))
    return pixels[..., :3]


def images(
    *names: str,
    masks: Sequence[str] = (),
    size: int | tuple[int, int],
    resize: int | None = None,
    crop: Crop = "center",
    flip: bool = False,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dtype: ImageDtype | None = None,
    channels_first: bool = True,
) -> Images:
    """Return a collate function that makes one tensor of pictures of any size.

    - ``names`` (str): The columns, of Pillow images or of arrays as ``images="array"`` of a dataset
      returns them (faster); all other columns are collated as by default.
    - ``masks`` (Sequence[str], default ()): The columns of class ids for each pixel: Pillow images
      of one channel, palettes as their indices, or arrays of whole numbers (height, width). They
      are cut and flipped like the picture of their sample, scaled to the nearest pixel and never
      normalised. The result is int64 of shape (masks, height, width).
    - ``size`` (int or (height, width), pixels): Size of the resulting pictures.
    - ``resize`` (int | None, default None, pixels): Length to which the shorter side is scaled
      first; with None only pictures that are smaller than ``size`` are scaled.
    - ``crop`` ("center" or "random", default 'center'): Part that is cut out: ``"center"`` or
      ``"random"``.
    - ``flip`` (bool, default False): Whether half of the pictures, at random, are mirrored.
    - ``mean``, ``std`` (Sequence[float] | None, default None): Each channel, as a share of 255, has
      ``mean`` subtracted and is divided by ``std``. The result is float32.
    - ``dtype`` ("uint8", "float32" or None, default None): ``"uint8"`` or ``"float32"`` (from 0 to
      1); None is uint8 without ``mean`` and ``std``.
    - ``channels_first`` (bool, default True): Whether the axes are (channels, height, width).

    Pictures of any mode become RGB: grey and palettes are expanded, an alpha channel is dropped,
    and 16 bits are reduced to the upper eight. They are turned upright by their EXIF orientation.
    Random parts follow from the place in the order, as ``keys`` of `map_batches` do, and columns of
    one sample are cut alike. Raises ConfigError (a ValueError) for invalid arguments and for values
    that are no pictures.

    >>> train = images("image", size=224, resize=256, crop="random", flip=True)
    """
    if isinstance(masks, str) or set(masks) & set(names):
        raise ConfigError(
            f"masks of images() must be a list of columns that are not pictures, got {masks!r}: "
            f"write images('image', masks=['mask'], size=224)."
        )
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if not names or len(sides) != 2 or any(type(s) is not int or s < 1 for s in sides):
        raise ConfigError(
            f"images() needs names of columns and a size in pixels, got {names} and {size!r}."
        )
    if resize is not None and resize < 1:
        raise ConfigError(f"resize of images() must be at least 1 pixel, got {resize}.")
    if crop not in {"center", "random"}:
        raise ConfigError(f"crop of images() must be 'center' or 'random', got {crop!r}.")
    if dtype not in {None, "uint8", "float32"}:
        raise ConfigError(f"dtype of images() must be 'uint8' or 'float32', got {dtype!r}.")
    is_float = dtype == "float32" or mean is not None or std is not None
    if is_float and dtype == "uint8":
        raise ConfigError("mean and std of images() produce float32; leave out dtype='uint8'.")
    scaling = _scaling(mean, std) if is_float else None
    return Images(
        names, tuple(masks), (sides[0], sides[1]), resize, crop, flip, scaling, channels_first
    )


def _scaling(
    mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return factors and terms, shape (3,), so that pixel * factor + term is normalised."""
    means = np.asarray(mean if mean is not None else (0, 0, 0), np.float64)
    stds = np.asarray(std if std is not None else (1, 1, 1), np.float64)
    if means.shape != (3,) or stds.shape != (3,) or not (stds > 0).all():
        raise ConfigError(
            f"mean and std of images() must have three numbers each, got {mean} and {std}."
        )
    return (1 / (255 * stds)).astype(np.float32), (-means / stds).astype(np.float32)
