"""Encodings that contain others: `list[T]` and `optional[T]`.

    list      u32 0 | u32 count | u32 size of each item | items
    optional  0                     for None
              1 | value

The incumbent knows `list[pil]`, `list[jpeg]` and `list[png]`; their bytes are the same. Older
readers refuse the other names. `list[int]` is refused, as existing tools expect: use
`list[str_int]` for Python ints, or `list[int64]` for NumPy's.
"""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from mds._words import plural
from mds.encodings._base import Encoding, located
from mds.encodings._registry import parse_encoding
from mds.errors import EncodingError, UnknownEncodingError

if TYPE_CHECKING:
    from mds.encodings._base import Data


class ListEncoding(Encoding):
    """Encoding of a Python list whose items have one encoding; ``name`` is such as `list[str]`."""

    expects = "a list"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._inner = _inside(name, "list")
        if self._inner.name == "int":
            raise UnknownEncodingError(
                "the encoding 'list[int]' is not supported, as in mosaicml-streaming. Write "
                "'list[str_int]' for Python ints, 'list[int64]' or 'tensor:int64' for NumPy's."
            )
        self.is_unsafe = self._inner.is_unsafe
        self.shares_memory = self._inner.shares_memory
        # `bytes` instead of a list of images are an encoded list, as in existing programs.
        self.takes_bytes = self._inner.name in {"pil", "jpeg", "png"}
        if self._inner.decode_array is not None:
            self.decode_array = self._decode_arrays

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a list: four zero bytes, count, size of each item, items."""
        if not isinstance(value, list):
            raise self.refuse(value)
        parts = []
        for number, item in enumerate(value):
            try:
                parts.append(pack_item(self._inner, item))
            except EncodingError as error:  # noqa: PERF203 - the number belongs into the sentence
                raise located(error, f"item {number}") from error
        return b"".join((b"\0\0\0\0", pack_sizes(parts), *parts))

    def check_bytes(self, data: bytes) -> None:
        """Raise EncodingError for bytes that are not a list whose items can be decoded."""
        for number, item in enumerate(self._items(data)):
            try:
                self._inner.check_bytes(bytes(item))
            except EncodingError as error:  # noqa: PERF203 - the number belongs into the sentence
                raise located(error, f"item {number}") from error

    def way_out(self, value: Any) -> str:
        """Suggest how to make a list of a value."""
        if isinstance(value, (tuple, set)) or hasattr(value, "tolist"):
            return "Write list(value)."
        return super().way_out(value)

    def decode(self, data: Data) -> list[Any]:
        """Return the decoded list."""
        return [self._inner.decode(item) for item in self._items(data)]

    def _decode_arrays(self, data: Data) -> list[Any]:
        """Return the pictures of a list as arrays."""
        assert self._inner.decode_array is not None
        return [self._inner.decode_array(item) for item in self._items(data)]

    def _items(self, data: Data) -> list[memoryview]:
        """Return the bytes of each item, as views. Raises EncodingError for wrong sizes."""
        if len(data) < 8:
            raise self.broken(data, "8 are required before the sizes")
        return unpack_items(self, data, 4)


class OptionalEncoding(Encoding):
    """Encoding of a value that may be None; ``name`` is such as `optional[str]`."""

    takes_bytes = False

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._inner = _inside(name, "optional")
        self.is_unsafe = self._inner.is_unsafe
        self.shares_memory = self._inner.shares_memory
        if self._inner.decode_array is not None:
            self.decode_array = self._decode_array

    def encode(self, value: Any) -> bytes:
        """Return a zero byte for None, else a one and the bytes of the value."""
        return b"\0" if value is None else b"\1" + self._inner.pack_checked(value)

    def decode(self, data: Data) -> Any:
        """Return the value or None."""
        stored = self._stored(data)
        return None if stored is None else self._inner.decode(stored)

    def _decode_array(self, data: Data) -> Any:
        """Return the pixels of a picture as an array, or None."""
        assert self._inner.decode_array is not None
        stored = self._stored(data)
        return None if stored is None else self._inner.decode_array(stored)

    def _stored(self, data: Data) -> memoryview | None:
        """Return the bytes of the value, or None for None. Raises EncodingError for others."""
        if len(data) == 0 or data[0] > 1 or (data[0] == 0 and len(data) > 1):
            raise self.broken(data, "a value begins with 1, or is a single 0")
        return memoryview(data)[1:] if data[0] else None


def pack_item(inner: Encoding, item: Any) -> bytes:
    """Return the bytes of an item of a list, by the items' encoding ``inner``.

    Unlike in `Encoding.pack`, `bytes` are never taken as already encoded. Raises EncodingError.
    """
    data = inner.encode(item)
    if inner.size is not None and len(data) != inner.size:
        raise EncodingError(
            f"encoding {inner.name}: {inner.size} bytes are required, got {len(data)}"
        )
    return data


def pack_sizes(parts: list[bytes]) -> bytes:
    """Return the count and the size in bytes of the encoded items ``parts``, each as u32."""
    try:
        return struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts))
    except struct.error:
        raise EncodingError("an item of 4 GiB or more does not fit into a shard") from None


def unpack_items(encoding: Encoding, data: Data, start: int) -> list[memoryview]:
    """Return the bytes of each item of a list, as views of ``data``.

    - ``encoding`` (Encoding): The encoding of the list, for errors.
    - ``data`` (Data): The encoded list.
    - ``start`` (int): Byte at which the count of items is.

    Raises EncodingError unless the sizes add up to the bytes of the list.
    """
    view = memoryview(data)
    if len(view) < start + 4:
        raise encoding.broken(data, "there is no count")
    (count,) = struct.unpack_from("<I", view, start)
    first = start + 4 + 4 * count
    if first > len(view):
        raise encoding.broken(data, f"they cannot hold the sizes of {plural(count, 'item')}")
    sizes = struct.unpack_from(f"<{count}I", view, start + 4)
    ends = list(accumulate(sizes, initial=first))
    if ends[-1] != len(view):
        raise encoding.broken(data, f"{plural(count, 'item')} take {ends[-1]} bytes")
    return [view[begin:end] for begin, end in pairwise(ends)]


def _inside(name: str, family: str) -> Encoding:
    """Return the encoding in the brackets of a name: `str` for `list[str]` and family `list`.

    Raises UnknownEncodingError for a name of another form.
    """
    if not (name.startswith(family + "[") and name.endswith("]")):
        raise UnknownEncodingError(
            f"{name!r} is not an encoding. Write, for example, '{family}[str]'."
        )
    return parse_encoding(name[len(family) + 1 : -1])
