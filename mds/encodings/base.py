"""What an encoding is: one kind of column, from a value to its bytes and back.

An encoding is parsed once from its name (`ndarray:int32:2048`), holds no state, and is shared by
every reader and writer of a process. `encode` is strict, `decode` distrusts what it is given: any
bytes come back as a value or as EncodingError, and no length inside them is believed before it
was checked against the bytes that are there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from mds.errors import EncodingError, EncodingTypeError, FixedSizeError

if TYPE_CHECKING:
    import numpy as np

    Data = bytes | memoryview

_E = TypeVar("_E", bound=EncodingError)


class Encoding(ABC):
    """One kind of column. Subclasses set the attributes and write `encode` and `decode`.

    `size` is the number of bytes of every value, None when it varies. `dtype` and `shape` are set
    when the bytes of a fixed-size column can be viewed as an array just so. `takes_bytes` says
    that a `bytes` value is taken as already encoded, which is how encoded images and JSON are
    written. It is off for encodings of your own unless they say otherwise.
    """

    name: str
    size: int | None = None
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None
    is_unsafe: bool = False
    takes_bytes: bool = False
    expects: str = "a value"

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """The bytes of a value. Raises EncodingError."""

    @abstractmethod
    def decode(self, data: Data) -> Any:
        """The value of exactly these bytes. Raises EncodingError."""

    def pack(self, value: Any) -> bytes:
        """What a writer stores: `bytes` untouched where allowed, else `encode`, of the right size.

        Raises EncodingError; FixedSizeError (a KeyError) for another size than the column's.
        """
        data = value if self.takes_bytes and isinstance(value, bytes) else self.encode(value)
        if self.size is not None and len(data) != self.size:
            raise FixedSizeError(
                f"encoding {self.name}: a value has {self.size} bytes, got {len(data)}"
                f" from {describe(value)}"
            )
        return data

    def refuse(self, value: Any, way_out: str = "") -> EncodingTypeError:
        """The error for a value of a type that the encoding does not take."""
        text = f"encoding {self.name}: expected {self.expects}, got {describe(value)}"
        return EncodingTypeError(f"{text}. {way_out}" if way_out else text)

    def broken(self, data: Data, reason: object) -> EncodingError:
        """The error for bytes that are no value of this encoding."""
        return EncodingError(
            f"encoding {self.name}: these {len(data)} bytes are no value: {reason}"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name,)


def describe(value: Any) -> str:
    """A value in a few words for an error sentence: its type and its beginning."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if dtype is not None and shape is not None:
        return f"{type(value).__name__} of {dtype} with shape {tuple(shape)}"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{type(value).__name__} of {len(value)} bytes"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a broken repr must not hide the real error
        return type(value).__name__
    if len(text) > 60:
        text = f"{text[:57]}..."
    return "None" if value is None else f"{type(value).__name__} {text}"


def located(error: _E, where: str) -> _E:
    """The same kind of error with the place in front, such as `"column 'x' of sample 3"`."""
    return type(error)(f"{where}, {error}")
