"""What a reader needs to know of its columns, worked out once for each schema and choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from mds.encodings import Encoding, parse_encoding
from mds.encodings.arrays import ArrayEncoding, TensorEncoding
from mds.encodings.images import FileImageEncoding, PilEncoding
from mds.encodings.objects import JsonEncoding
from mds.encodings.scalars import IntEncoding, NumpyEncoding
from mds.encodings.text import BytesEncoding, StrEncoding
from mds.errors import ConfigError
from mds.index import Columns


class Kind(Enum):
    """How one value is made; all but OTHER are written out in the compiled decoder."""

    BYTES = "bytes"
    STR = "str"
    JSON = "json"
    INT = "int"
    SCALAR = "a NumPy scalar"
    ARRAY = "an array of fixed shape"
    VECTOR = "an array of known type and free shape, nearly always with one axis"
    OTHER = "whatever Encoding.decode gives"

    @property
    def is_view(self) -> bool:
        """Whether a value is a row of a view on all values."""
        return self in {Kind.INT, Kind.SCALAR, Kind.ARRAY}


# The types of elements that NumPy holds just as they are stored.
VECTORS = frozenset(
    f"{kind}{bits}" for kind in ("uint", "int", "float") for bits in (8, 16, 32, 64)
) - {"float8"}

_KINDS: dict[type[Encoding], Kind] = {
    BytesEncoding: Kind.BYTES,
    StrEncoding: Kind.STR,
    JsonEncoding: Kind.JSON,
    IntEncoding: Kind.INT,
    NumpyEncoding: Kind.SCALAR,
}


@dataclass(frozen=True, slots=True)
class Choice:
    """What samples are to be like: which columns (None: all), and how images come.

    ``images``: "pil" for images opened and not yet decoded, "array" for uint8 arrays of shape
    (height, width, channels). Raises ConfigError for another word.
    """

    names: tuple[str, ...] | None = None
    images: str = "pil"

    def __post_init__(self) -> None:
        if self.images not in {"pil", "array"}:
            raise ConfigError(f"images come as 'pil' or 'array', got {self.images!r}.")

    def __contains__(self, name: str) -> bool:
        return self.names is None or name in self.names

    @classmethod
    def of(cls, columns: Sequence[str] | Choice | None) -> Choice:
        """A choice from what a caller says."""
        if isinstance(columns, Choice):
            return columns
        return cls(None if columns is None else tuple(columns))


class Field(NamedTuple):
    """One column."""

    name: str
    encoding: Encoding
    kind: Kind
    size: int | None
    is_wanted: bool
    decode: Callable[[Any], Any]

    @property
    def is_columnar(self) -> bool:
        """Whether many values are one NumPy array."""
        return bool(self.size) and self.encoding.dtype is not None


class Fields(NamedTuple):
    """The columns of a sample in stored order."""

    all: tuple[Field, ...]

    @property
    def wanted(self) -> list[Field]:
        """The columns that samples are to have."""
        return [field for field in self.all if field.is_wanted]

    @property
    def variable(self) -> int:
        """The number of columns with a size word in front of the sample."""
        return sum(field.size is None for field in self.all)

    @property
    def row_size(self) -> int | None:
        """Bytes of every sample, None when they vary."""
        return None if self.variable else sum(field.size or 0 for field in self.all)


@lru_cache(maxsize=256)
def fields_of(columns: Columns, choice: Choice = Choice()) -> Fields:
    """The fields of an mds schema, with the columns of ``choice`` wanted.

    Raises ConfigError for a column that does not exist.
    """
    check_columns(columns, choice.names)
    out = []
    for name, encoding_name in zip(columns.names, columns.encodings, strict=True):
        encoding = parse_encoding(encoding_name)
        kind = _KINDS.get(type(encoding), Kind.OTHER)
        is_array = type(encoding) in {ArrayEncoding, TensorEncoding}
        # A 0-d array and an empty one are rare enough for the general way.
        if is_array and encoding.dtype is not None and encoding.shape and encoding.size:
            kind = Kind.ARRAY
        if is_array and encoding_name.partition(":")[2] in VECTORS:
            kind = Kind.VECTOR
        is_wanted = name in choice
        decode = encoding.decode
        if choice.images == "array" and isinstance(encoding, (FileImageEncoding, PilEncoding)):
            decode = encoding.decode_array
        out.append(Field(name, encoding, kind, encoding.size, is_wanted, decode))
    return Fields(tuple(out))


def check_columns(columns: Columns, chosen: Sequence[str] | None) -> None:
    """Raise ConfigError unless all chosen columns exist."""
    if unknown := sorted(set(chosen or ()) - set(columns.names)):
        raise ConfigError(
            f"there is no column {', '.join(map(repr, unknown))}. "
            f"The columns are {', '.join(map(repr, columns.names))}."
        )
