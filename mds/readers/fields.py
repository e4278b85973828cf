"""What a reader needs to know of its columns, worked out once for each schema and selection."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mds.arguments import did_you_mean
from mds.encodings import DecodeKind, Encoding, parse_encoding
from mds.errors import ConfigError
from mds.shardfile.layout import Columns

# A value is a row of a view on all values.
_VIEWS = {DecodeKind.INT, DecodeKind.SCALAR, DecodeKind.ARRAY}
_ARRAYS = {DecodeKind.ARRAY, DecodeKind.VECTOR, DecodeKind.ANY_ARRAY}


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnSelection:
    """Form of the samples: which columns (None: all), and the form of images and arrays.

    ``images``: "pil" for images opened and not yet decoded, "array" for arrays of shape (height,
    width, channels), or a mapping from columns to these words, kept as pairs. ``copy``: arrays
    belong to the caller; else they are read-only views of the mapped file, for code that promises
    not to write. Raises ConfigError for another word.
    """

    names: tuple[str, ...] | None = None
    images: str | Mapping[str, str] | tuple[tuple[str, str], ...] = "pil"
    copy: bool = True

    def __post_init__(self) -> None:
        images: Any = self.images
        if isinstance(images, Mapping):
            object.__setattr__(self, "images", tuple(images.items()))
        words = [images] if isinstance(images, str) else [*dict(images).values()]
        if not {*words} <= {"pil", "array"}:
            raise ConfigError(
                f"images come as 'pil' or 'array', or as {{'image': 'array'}} says for each "
                f"column, got {images!r}."
            )

    @property
    def image_columns(self) -> list[str]:
        """The columns that ``images`` names."""
        return [] if isinstance(self.images, str) else list(dict(self.images))

    def images_of(self, name: str) -> str:
        """Return how the images of a column come: "pil" or "array"."""
        return self.images if isinstance(self.images, str) else dict(self.images).get(name, "pil")

    def __contains__(self, name: str) -> bool:
        return self.names is None or name in self.names

    @property
    def viewing(self) -> ColumnSelection:
        """The same with views, for code that copies them before they are seen."""
        return dataclasses.replace(self, copy=False)

    @classmethod
    def parse(cls, columns: Sequence[str] | ColumnSelection | None) -> ColumnSelection:
        """Return the selection that arguments of a caller describe."""
        if isinstance(columns, ColumnSelection):
            return columns
        return cls(None if columns is None else tuple(columns))


class Field(NamedTuple):
    """One column."""

    name: str
    encoding: Encoding
    kind: DecodeKind
    size: int | None
    is_wanted: bool
    decode: Callable[[Any], Any]
    is_copied: bool = True  # else arrays are views of the stored bytes

    @property
    def is_columnar(self) -> bool:
        """Whether many values are one NumPy array."""
        return bool(self.size) and self.encoding.dtype is not None


class Fields:
    """The columns of a sample in stored order.

    A data set of very many shards opens a reader for each, so what follows from the columns is
    worked out once; and there is one object for a schema, which dictionaries find by its identity.
    """

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self.all = fields
        #: The columns that samples are to have.
        self.wanted = [field for field in fields if field.is_wanted]
        #: The number of columns with a size word in front of the sample.
        self.variable = sum(field.size is None for field in fields)
        #: Bytes of every sample, None when they vary.
        self.row_size = None if self.variable else sum(field.size or 0 for field in fields)
        #: Whether samples have one size, and all wanted values are rows of views on the file.
        self.are_views = bool(self.row_size) and all(f.kind in _VIEWS for f in self.wanted)
        #: Whether making a batch of samples copies all that may be views.
        self.are_stacked = all(
            field.is_columnar or not field.encoding.shares_memory for field in self.wanted
        )


@lru_cache(maxsize=256)
def fields_of(columns: Columns, selection: ColumnSelection = ColumnSelection()) -> Fields:
    """Return the fields of an mds schema, with the columns of ``selection`` wanted.

    Raises ConfigError for a column that does not exist.
    """
    check_columns(columns.names, selection.names)
    check_columns(columns.names, selection.image_columns, "images=")
    out = []
    for name, encoding_name in zip(columns.names, columns.encodings, strict=True):
        encoding = parse_encoding(encoding_name)
        is_wanted = name in selection
        decode, kind = _decode_of(name, encoding, selection), encoding.decode_kind
        out.append(Field(name, encoding, kind, encoding.size, is_wanted, decode, selection.copy))
    return Fields(tuple(out))


def _decode_of(name: str, encoding: Encoding, selection: ColumnSelection) -> Callable[[Any], Any]:
    """Return a function from stored bytes to a value, a view only if that is chosen."""
    if selection.images_of(name) == "array" and encoding.decode_array is not None:
        return encoding.decode_array
    decode = encoding.decode
    if not selection.copy or not encoding.shares_memory:
        return decode
    if encoding.decode_kind in _ARRAYS:

        def decode_array(data: Any) -> Any:
            found = decode(data)
            return found.copy() if type(found) is np.ndarray else found

        return decode_array
    # Contents of lists and of users' encodings are unknown here: copy the bytes first.
    return lambda data: decode(memoryview(bytearray(data)))


def check_columns(
    names: Sequence[str], chosen: Sequence[str] | None, where: str = "a shard"
) -> None:
    """Raise ConfigError unless all chosen columns are among ``names``, those of ``where``."""
    if unknown := sorted(set(chosen or ()) - set(names)):
        known = ", ".join(map(repr, names))
        raise ConfigError(
            f"{where}: there is no column {', '.join(map(repr, unknown))}."
            f"{did_you_mean(unknown[0], names)} The columns are {known}."
        )
