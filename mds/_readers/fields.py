"""The columns that a reader decodes: how, and which are selected; computed once per schema.

A `ColumnSelection` says what the user wants. `fields_of` combines it with the columns of a schema
to `Fields`, one `Field` for each column, which all readers of the schema share. Columns that are
not selected are fields, too, because readers must skip their bytes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mds._arguments import did_you_mean
from mds._shardfile.layout import Columns
from mds.encodings import DecodeKind, Encoding, parse_encoding
from mds.errors import ConfigError

# Kinds whose values are rows of a view on all values of the column.
_VIEWS = {DecodeKind.INT, DecodeKind.SCALAR, DecodeKind.ARRAY}
_ARRAYS = {DecodeKind.ARRAY, DecodeKind.VECTOR, DecodeKind.ANY_ARRAY}


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnSelection:
    """Selected columns of samples, and the form of their images and arrays.

    Args:
        names: Columns (default None: all).
        images: "pil" (default) for opened Pillow images that are not yet decoded, "array" for
            arrays of shape (height, width, channels), or a mapping from columns to these words,
            which is kept as pairs.
        copy: Whether arrays belong to the caller (default True). Without it they are read-only
            views of the mapped file.
        stored: Columns whose values are the stored bytes, not decoded (default: none).
        loads_images: Decode Pillow images when they are opened, so that one that is damaged raises
            EncodingError (default False).

    Raises ConfigError for another value of ``images``.
    """

    names: tuple[str, ...] | None = None
    images: str | Mapping[str, str] | tuple[tuple[str, str], ...] = "pil"
    copy: bool = True
    stored: frozenset[str] = frozenset()
    loads_images: bool = False

    def __post_init__(self) -> None:
        """Replace a mapping of images by pairs, which are hashable, and check the words."""
        images: Any = self.images
        if isinstance(images, Mapping):
            object.__setattr__(self, "images", tuple(images.items()))
        words = [images] if isinstance(images, str) else [*dict(images).values()]
        if not {*words} <= {"pil", "array"}:
            raise ConfigError(
                f"images= must be 'pil', 'array', or a dict such as {{'image': 'array'}}, got "
                f"{images!r}."
            )

    @property
    def image_columns(self) -> list[str]:
        """The columns that ``images`` names."""
        return [] if isinstance(self.images, str) else list(dict(self.images))

    def images_of(self, name: str) -> str:
        """Return the form of the images of a column: "pil" or "array"."""
        return self.images if isinstance(self.images, str) else dict(self.images).get(name, "pil")

    def __contains__(self, name: str) -> bool:
        return self.names is None or name in self.names

    @property
    def viewing(self) -> ColumnSelection:
        """The same selection without copies of arrays."""
        return dataclasses.replace(self, copy=False)

    @classmethod
    def parse(cls, columns: Sequence[str] | ColumnSelection | None) -> ColumnSelection:
        """Return the selection for the argument ``columns`` of a caller."""
        if isinstance(columns, ColumnSelection):
            return columns
        return cls(None if columns is None else tuple(columns))


class Field(NamedTuple):
    """One column of a schema.

    Attributes:
        name: Name of the column.
        encoding: Its encoding.
        kind: How compiled decoders read a value.
        size: Bytes of a value; None if they vary.
        is_selected: Whether samples have the column.
        decode: Function from the bytes of a value to the value.
        is_copied: Whether arrays are copies, and not views of the stored bytes.
    """

    name: str
    encoding: Encoding
    kind: DecodeKind
    size: int | None
    is_selected: bool
    decode: Callable[[Any], Any]
    is_copied: bool = True

    @property
    def is_columnar(self) -> bool:
        """Whether many values become one NumPy array: numbers of a fixed width."""
        return bool(self.size) and self.encoding.dtype is not None


class Fields:
    """All columns of a sample, in the order in which they are stored, and facts about them.

    A dataset of many shards opens a reader for each, so these facts are computed once: there is one
    object per schema and selection, and caches compare it by identity.
    """

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self.stored = fields
        #: The selected columns.
        self.selected = [field for field in fields if field.is_selected]
        #: The number of columns with a size word in front of the sample.
        self.variable = sum(field.size is None for field in fields)
        #: Bytes of every sample; None if they vary.
        self.row_size = None if self.variable else sum(field.size or 0 for field in fields)
        #: Whether samples have one size, so that selected columns can be views on the file.
        self.are_views = bool(self.row_size) and all(
            field.kind in _VIEWS for field in self.selected
        )
        #: Whether making columns of samples copies every value that may be a view.
        self.are_stacked = all(
            field.is_columnar or not field.encoding.shares_memory for field in self.selected
        )


@functools.lru_cache(maxsize=256)
def fields_of(columns: Columns, selection: ColumnSelection = ColumnSelection()) -> Fields:
    """Return the columns of an mds schema as `Fields`, those of ``selection`` marked as selected.

    Raises ConfigError for a column that does not exist.
    """
    check_columns(columns.names, selection.names)
    check_columns(columns.names, selection.image_columns, "images=")
    fields = []
    for name, encoding_name in zip(columns.names, columns.encodings, strict=True):
        encoding = parse_encoding(encoding_name)
        is_selected = name in selection
        decode, kind = _decode_of(name, encoding, selection), encoding.decode_kind
        if name in selection.stored:
            decode, kind = bytes, DecodeKind.BYTES
        fields.append(
            Field(name, encoding, kind, encoding.size, is_selected, decode, selection.copy)
        )
    return Fields(tuple(fields))


def _decode_of(name: str, encoding: Encoding, selection: ColumnSelection) -> Callable[[Any], Any]:
    """Return the function that decodes a value, which copies arrays unless views are selected."""
    if selection.images_of(name) == "array" and encoding.decode_array is not None:
        return encoding.decode_array
    if selection.loads_images and encoding.decode_array is not None:
        return functools.partial(_decode_loaded, encoding)
    decode = encoding.decode
    if not selection.copy or not encoding.shares_memory:
        return decode
    if encoding.decode_kind in _ARRAYS:

        def decode_array(data: Any) -> Any:
            value = decode(data)
            return value.copy() if type(value) is np.ndarray else value

        return decode_array
    # A list or a value of a user's encoding may contain views: copy the bytes first.
    return lambda data: decode(memoryview(bytearray(data)))


def _decode_loaded(encoding: Encoding, data: Any) -> Any:
    """Decode an image, or a list of images, and their pixels.

    Raises EncodingError for one that is damaged, at any of its bytes.
    """
    value = encoding.decode(data)
    for image in value if isinstance(value, list) else [value]:
        if image is None:
            continue
        try:
            image.load()
        except MemoryError:
            raise
        except Exception as error:  # Pillow's plugins raise errors of any class on damaged files
            raise encoding.broken(data, f"{type(error).__name__}: {error}") from error
    return value


def check_images(owner: str, encodings: Mapping[str, str], selection: ColumnSelection) -> None:
    """Raise ConfigError if ``images=`` has no column of images that it could be about.

    Args:
        owner: Name of the user's class, for the error.
        encodings: Encoding of each stored column, also of columns that are not selected.
        selection: Selected columns and the form of their images.
    """
    if selection.images == "pil" or not encodings:
        return
    has_images = {
        name: parse_encoding(encoding).decode_array is not None
        for name, encoding in encodings.items()
    }
    if isinstance(selection.images, str):
        images = repr(selection.images)
        without_effect = not any(is_image and n in selection for n, is_image in has_images.items())
        reason = "no column of images is read"
    else:
        images = repr(dict(selection.images))
        names = [n for n in selection.image_columns if not has_images[n] or n not in selection]
        without_effect = bool(names)
        reason = f"column {names[0]!r} is not a column of images that is read" if names else ""
    if without_effect:
        unread_columns = [
            n for n, is_image in has_images.items() if is_image and n not in selection
        ]
        listed = ", ".join(f"{name!r} ({encoding})" for name, encoding in encodings.items())
        way_out = f"add {unread_columns[0]!r} to columns=, or " if unread_columns else ""
        raise ConfigError(
            f"{owner}(images={images}): {reason}, so it would have no effect. The columns are "
            f"{listed}. To fix this, {way_out}leave images= out."
        )


def check_columns(
    names: Sequence[str], selected: Sequence[str] | None, source: str = "a shard"
) -> None:
    """Raise ConfigError unless all selected columns (None: no check) are among ``names``.

    ``source`` is the owner of the columns in the error.
    """
    if unknown := sorted(set(selected or ()) - set(names)):
        known_names = ", ".join(map(repr, names))
        raise ConfigError(
            f"{source}: there is no column {', '.join(map(repr, unknown))}."
            f"{did_you_mean(unknown[0], names)} The columns are {known_names}."
        )
