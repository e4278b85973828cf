"""The interface of an encoding: one kind of column, from a value to its bytes and back.

An encoding is parsed once from its name (`ndarray:int32:2048`), has no state, and is shared by all
readers and writers of a process. `encode` refuses values of another type. `decode` accepts any
bytes: it returns a value or raises EncodingError, and checks every length in the bytes before it
uses it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from mds.errors import EncodingError, EncodingTypeError, FixedSizeError

if TYPE_CHECKING:
    import numpy as np

    Data = bytes | memoryview

_E = TypeVar("_E", bound=EncodingError)

#: The largest value of a column: sizes are stored in 32 bits.
LARGEST = (1 << 32) - 1


class DecodeKind(Enum):
    """Way to decode many values of a column without a call of `decode` for each.

    >>> from mds.encodings import parse_encoding
    >>> parse_encoding("ndarray:int32:2048").decode_kind.name
    'ARRAY'
    """

    OPAQUE = "the result of `decode`, which must be called for each value"
    BYTES = "the bytes themselves"
    TEXT = "a str of the bytes as UTF-8"
    JSON = "the result of `json.loads`"
    INT = "a Python int of 64 bits; with `size`, `dtype` and `shape`, as the next two"
    SCALAR = "a NumPy scalar of `dtype`"
    ARRAY = "an array of `dtype` and `shape`, with at least one element"
    VECTOR = "an array of `element_dtype` behind a head with its shape, as in `ndarray:int32`"
    ANY_ARRAY = "an array whose type and shape `decode` finds; it may be a view of the bytes"


class Encoding(ABC):
    """Base class of encodings. Subclasses set the attributes and write `encode` and `decode`.

    - `name`: the whole name, such as `ndarray:int32:2048`.
    - `size`: bytes of every value; None if they vary.
    - `dtype`, `shape`: of a value, if the bytes of a fixed-size column can be viewed as an array.
    - `element_dtype`: of the elements, if every array has a shape of its own.
    - `decode_kind`: the way in which readers may decode many values at once. A class that defines
      `decode` without it gets `OPAQUE`.
    - `decode_array`: for images, a function from bytes to pixels.
    - `is_unsafe`: whether decoding may run code, as with pickles.
    - `takes_bytes`: whether a `bytes` value counts as already encoded, such as the file of an
      image; writers call `check_bytes` on it.
    - `shares_memory`: whether a decoded value may be a view of the bytes. Readers then copy it, so
      that changing a value changes nothing else. A class that defines `decode` without it gets
      True.
    - `expects`: the values that the encoding takes, in words, for errors.
    - `own_type`: type of the values that `encode` stores without a conversion; None: not one type.

    >>> class Utf16Encoding(Encoding):
    ...     expects = "a str"
    ...
    ...     def encode(self, value):
    ...         if not isinstance(value, str):
    ...             raise self.refuse(value)
    ...         return value.encode("utf-16-le")
    ...
    ...     def decode(self, data):
    ...         try:
    ...             return bytes(data).decode("utf-16-le")
    ...         except UnicodeDecodeError as error:
    ...             raise self.broken(data, error) from error
    >>> encoding = Utf16Encoding("utf16")
    >>> encoding.decode(encoding.encode("word"))
    'word'
    >>> mds.encodings.register_encoding("utf16", Utf16Encoding)  # doctest: +SKIP
    """

    name: str
    size: int | None = None
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None
    element_dtype: np.dtype[Any] | None = None
    decode_kind: DecodeKind = DecodeKind.OPAQUE
    decode_array: Callable[[Data], Any] | None = None
    is_unsafe: bool = False
    takes_bytes: bool = False
    shares_memory: bool = True
    expects: str = "a value"
    own_type: type[Any] | None = None

    def __init_subclass__(cls) -> None:
        """Reset the two attributes that describe `decode` in a class with a `decode` of its own."""
        super().__init_subclass__()
        if "decode" in vars(cls):  # the attributes that the parent set describe its own function
            cls.shares_memory = vars(cls).get("shares_memory", True)
            cls.decode_kind = vars(cls).get("decode_kind", DecodeKind.OPAQUE)

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value. Raises EncodingError for a value that it does not take."""

    @abstractmethod
    def decode(self, data: Data) -> Any:
        """Return the value of these bytes. Raises EncodingError for damaged bytes."""

    def pack(self, value: Any) -> bytes:
        """Return the bytes to store: a `bytes` value itself if `takes_bytes`, else `encode(value)`.

        Raises EncodingError, and FixedSizeError (a KeyError) for another size than the column's.
        """
        data = value if self.takes_bytes and isinstance(value, bytes) else self.encode(value)
        if self.size is not None and len(data) != self.size:
            raise self._wrong_size(data, value)
        return data

    def pack_checked(self, value: Any) -> bytes:
        """Return the result of `pack`, but check that a `bytes` value is an encoded value.

        Raises EncodingError as `pack` and `check_bytes` do.
        """
        is_encoded = self.takes_bytes and isinstance(value, bytes)
        data = value if is_encoded else self.encode(value)
        if self.size is not None and len(data) != self.size:
            raise self._wrong_size(data, value)
        if is_encoded:
            self.check_bytes(data)
        return data

    def _wrong_size(self, data: bytes, value: Any) -> FixedSizeError:
        """Return the error for bytes that do not have the fixed size of the encoding."""
        return FixedSizeError(
            f"encoding {self.name}: a value must have {self.size} bytes, got {len(data)} "
            f"from {describe(value)}"
        )

    def check_bytes(self, data: bytes) -> None:
        """Raise EncodingError for bytes that cannot be decoded.

        An encoding whose ``decode`` is costly or unsafe overrides this.
        """
        try:
            self.decode(data)
        except EncodingError as error:
            raise EncodingError(
                f"{error}. This column stores bytes unchanged. Write {self.expects}, or use the "
                "encoding 'bytes'."
            ) from error

    def refuse(self, value: Any, way_out: str = "") -> EncodingTypeError:
        """Return the error for a value of a wrong type.

        ``way_out`` is the remedy as a sentence; without it the method `way_out` suggests one.
        """
        text = f"encoding {self.name}: expected {self.expects}, got {describe(value)}"
        way_out = way_out or self.way_out(value)
        return EncodingTypeError(f"{text}. {way_out}" if way_out else text)

    def way_out(self, value: Any) -> str:
        """Suggest in a sentence what to do with a value of another type, or return ''."""
        if value is None:
            return f"For a column that may be empty, write 'optional[{self.name}]'."
        return ""

    def too_large(self, value: Any, size: int) -> EncodingError:
        """Return the error for a value of ``size`` bytes, which is too large for any shard."""
        return EncodingError(
            f"encoding {self.name}: a value has {size} bytes, but a shard must be less than 4 GiB, "
            f"got {describe(value)}. Split the sample."
        )

    def broken(self, data: Data, reason: object) -> EncodingError:
        """Return the error for bytes that cannot be decoded, with the reason."""
        return EncodingError(f"encoding {self.name}: cannot decode {len(data)} bytes: {reason}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name,)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of torch, which is not imported for this."""
    return hasattr(value, "detach") and hasattr(value, "numpy")


def python_scalar(value: Any) -> Any:
    """Return a number of NumPy or torch as the same number of Python, and other values as they are.

    Numbers, bools included, are NumPy scalars, and arrays and tensors without axes. A masked number
    and a date are none, and a number that Python's float would change (`np.longdouble`) stays.

    >>> python_scalar(np.int64(3)), python_scalar(torch.tensor(0.5))
    (3, 0.5)
    """
    if getattr(value, "shape", None) != () or not hasattr(value, "item") or hasattr(value, "mask"):
        return value
    # Dtypes of torch have no kind, and mean numbers.
    is_number = getattr(getattr(value, "dtype", None), "kind", "i") in "biuf"
    return value.item() if is_number else value


def describe(value: Any) -> str:
    """Describe a value for an error: its type and its beginning, or its shape or size."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if dtype is not None and shape is not None:
        return f"{type(value).__name__} of {dtype} with shape {tuple(shape)}"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{type(value).__name__} of {len(value)} bytes"
    try:
        # Only the beginning of a long text, which may be as large as memory.
        text = repr(value[:60] + "..." if type(value) is str and len(value) > 60 else value)
    except Exception:  # noqa: BLE001 - a broken repr must not hide the real error
        return type(value).__name__
    if len(text) > 60:
        text = f"{text[:57]}..."
    return "None" if value is None else f"{type(value).__name__} {text}"


def located(error: _E, place: str) -> _E:
    """Return the error with a place before its text, such as `"column 'x' of sample 3"`."""
    return type(error)(f"{place}, {error}")
