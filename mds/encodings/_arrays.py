"""NumPy arrays: `ndarray`, as the incumbent stores it, and `tensor`, which takes every array.

    ndarray  ndarray:DTYPE  ndarray:DTYPE:D1,D2,...      eleven number types, at least one element
    tensor   tensor:DTYPE   tensor:DTYPE:D1,D2,...       also bool, complex and bfloat16, empty
                                                         arrays, and 0-d ones (`tensor:int64:()`)

A value is stored as:

    u8 code of the dtype              if the name has no dtype
    u8 axes << 2 | w, axes numbers    if the name has no shape; each number has 1 << w bytes
    elements                          in C order, little-endian

Decoded arrays are views of the bytes, not copies. Only bfloat16, which NumPy does not have, is
copied into a torch tensor.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._arguments import shown
from mds.encodings._base import LARGEST, DecodeKind, Encoding, describe, is_tensor
from mds.encodings._registry import parse_encoding
from mds.errors import ConfigError, EncodingError, UnknownEncodingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mds.encodings._base import Data

# Bits of an element, plus 0 unsigned, 1 signed, 2 float, 3 other.
_CODES = {
    "uint8": 8,
    "int8": 9,
    "uint16": 16,
    "int16": 17,
    "float16": 18,
    "uint32": 32,
    "int32": 33,
    "float32": 34,
    "uint64": 64,
    "int64": 65,
    "float64": 66,
}
_MORE_CODES = {**_CODES, "bool": 11, "bfloat16": 19, "complex64": 67, "complex128": 131}
_LIST_DTYPES = {*_CODES, "bool"}  # of columns that take lists
_DIMENSIONS = "BHIQ"
_MAX_AXES = 63
_HEADS_KEPT = 1024


class ArrayEncoding(Encoding):
    """Encoding of NumPy arrays of numbers, with at least one element.

    `name` is the whole name, such as `ndarray:int32:2048`. The part of dtype and shape that it
    leaves open is stored before the elements of each array (the head).

    Class attributes, which `TensorEncoding` changes: `family` (first part of the name), `codes`
    (code of each dtype in a head), and `smallest` (smallest dimension of a shape).

    Attributes of the parsed name, which are None if it leaves them open: `_dtype_name` ("int32"),
    `_stored` (that dtype as in the file, little-endian), and `_dims` (the shape, such as (2048,)).
    """

    takes_bytes = True
    decode_kind = DecodeKind.ANY_ARRAY
    family = "ndarray"
    codes = _CODES
    smallest = 1
    expects = "a NumPy array or a torch tensor"
    own_type = np.ndarray

    def __init__(self, name: str) -> None:
        super().__init__(name)
        dtype, dims = self._parse(name)
        self._dtype_name = dtype
        self._dims = dims
        self._stored = None if dtype is None else _stored_dtype(dtype)
        self._heads: dict[tuple[Any, ...], bytes] = {}  # made by `_head`, by (dtype, shape)
        if self._stored is not None and dims is not None:
            self.size = math.prod(dims) * self._stored.itemsize
            if dtype != "bfloat16":
                self.dtype, self.shape = self._stored, dims
        elif dtype in _CODES:  # readers gather arrays of these types if only the shapes differ
            self.element_dtype = self._stored
        if self.decode_kind is DecodeKind.ANY_ARRAY:  # else a subclass has another `decode`
            self.decode_kind = self._narrower_kind()
        self._names = {code: name for name, code in self.codes.items()}  # of dtypes, by code
        if dtype in _LIST_DTYPES:
            self.expects = "a NumPy array, a torch tensor or a list"

    def _narrower_kind(self) -> DecodeKind:
        """Return the decode kind that fits the dtype and shape in the name."""
        if self.element_dtype is not None:
            return DecodeKind.VECTOR
        # 0-d and empty arrays are rare, so `decode` may be called for each.
        return DecodeKind.ARRAY if self.shape and self.size else DecodeKind.ANY_ARRAY

    def _parse(self, name: str) -> tuple[str | None, tuple[int, ...] | None]:
        """Parse a name to dtype and shape; None for a part that the name leaves open.

        Raises UnknownEncodingError.
        """
        parts = name.split(":")
        if parts[0] != self.family or len(parts) > 3:
            raise self._unknown(name, f"write {self.family}, {self.family}:DTYPE or all three")
        if len(parts) == 1 or (len(parts) == 2 and not parts[1]):
            return None, None
        if parts[1] not in self.codes:
            dtypes = ", ".join(self.codes)
            extra = "" if self.codes is _MORE_CODES else ". The encoding 'tensor' has more"
            raise self._unknown(name, f"the dtype must be one of {dtypes}{extra}")
        if len(parts) == 2:
            return parts[1], None
        return parts[1], self._parse_dims(name, parts[2])

    def _parse_dims(self, name: str, text: str) -> tuple[int, ...]:
        """Parse the shape in a name, such as "224,224,3". Raises UnknownEncodingError.

        ``name`` is the whole name, for errors, and ``text`` the shape in it.
        """
        if text == "()" and self.smallest == 0:
            return ()
        words = text.split(",")
        if not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
            raise self._unknown(name, "the shape must be whole numbers such as 224,224,3")
        dims = tuple(map(int, words))
        if min(dims) < self.smallest or len(dims) > _MAX_AXES:
            raise self._unknown(name, f"every dimension must be at least {self.smallest}")
        if math.prod(dims) * 16 >= 1 << 63:  # 16 bytes: the largest element
            raise self._unknown(name, "such an array does not fit into memory")
        return dims

    @staticmethod
    def _unknown(name: str, reason: str) -> UnknownEncodingError:
        return UnknownEncodingError(f"{name!r} is not an encoding: {reason}.")

    # ---------------------------------------------------------------------------------- writing

    def encode(self, value: Any) -> bytes:
        """Return the dtype and shape, as far as the name leaves them open, and the elements."""
        array = value
        if type(array) is not np.ndarray:
            array = self._as_array(value)
        if array.nbytes > LARGEST:
            raise self.too_large(value, array.nbytes)
        dtype = self._dtype_name
        # `is None` first: NumPy treats None as float64 in a comparison.
        if self._stored is None or array.dtype != self._stored:
            array, dtype = self._in_file_order(array, value)
        if self._dims is not None:
            if array.shape != self._dims:
                raise self._wrong(value, f"the column's shape is {self._dims}")
            return bytes(array.tobytes())
        head = self._heads.get((dtype, array.shape))
        return (head or self._head(dtype, array.shape, value)) + array.tobytes()

    def _as_array(self, value: Any) -> np.ndarray[Any, Any]:
        """Return an array, a tensor or a list of numbers as an array.

        Raises EncodingTypeError for other values, and EncodingError for a list that has no dtype or
        whose numbers do not fit.
        """
        if isinstance(value, np.ma.MaskedArray):
            raise self.refuse(value, "Its mask would be lost; use .filled(...) first.")
        if isinstance(value, np.ndarray):
            return np.asarray(value)
        if is_tensor(value):
            return self._tensor_as_array(value)
        if isinstance(value, (list, tuple)) and self._dtype_name in _LIST_DTYPES:
            return self._list_as_array(value)
        raise self.refuse(value)

    def _tensor_as_array(self, value: Any) -> np.ndarray[Any, Any]:
        """Return a torch tensor as an array. Raises EncodingError for a dtype NumPy lacks."""
        if str(value.layout) != "torch.strided":
            raise self._wrong(value, "a sparse tensor is not an array. Write value.to_dense()")
        try:
            # The conjugates and negatives that torch computes late are computed now.
            array: np.ndarray[Any, Any] = value.numpy(force=True)
        except TypeError:  # such as float8
            way_out = (
                "Write value.float(), or use the encoding 'tensor'"
                if str(value.dtype) == "torch.bfloat16"
                else "Write value.to(torch.bfloat16), or value.view(torch.uint8) for the bytes"
            )
            raise self._wrong(value, f"NumPy has no {value.dtype}. {way_out}") from None
        return array

    def _list_as_array(self, value: Any) -> np.ndarray[Any, Any]:
        """Return a list of numbers as an array of the column's dtype.

        Floats may be rounded to a narrower float type, as in a column of single floats. Raises
        EncodingError for numbers that would change otherwise, and for rows of different lengths.
        """
        assert self._stored is not None
        try:
            array = np.asarray(value)
        except ValueError as error:  # rows of different lengths
            raise self._wrong(value, f"its items are not an array ({error})") from None
        is_whole = array.dtype.kind in "iu"
        if array.dtype.kind in ("f", "O") and self._stored.kind in "iu":
            objects = np.asarray(value, object)
            if all(type(item) is int for item in objects.flat):
                # NumPy makes floats or objects of integers beyond int64.
                array, is_whole = objects, True
        kind = array.dtype.kind
        if not array.size or kind == self._stored.kind == "b":
            return array.astype(self._stored)
        if self._stored.kind == "b" or not (is_whole or kind == self._stored.kind):
            way_out = (
                f"Write np.asarray(value).astype(np.{self._dtype_name}) if they may change"
                if kind in "biuf"
                else "Give a list of numbers without gaps"
            )
            raise self._wrong(
                value,
                f"the column's dtype is {self._dtype_name}, but its items are "
                f"{array.dtype.name}. {way_out}",
            )
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # compared below
                converted = array.astype(self._stored)
                is_same = (
                    np.array_equal(converted.astype(array.dtype), array)
                    and np.array_equal(converted < 0, array < 0)
                    if is_whole
                    else np.array_equal(np.isinf(converted), np.isinf(array))
                )
        except OverflowError:
            is_same = False
        if not is_same:
            raise self._wrong(value, f"a number in it does not fit into {self._dtype_name}")
        return converted

    def fit_list(self, value: Any) -> Any:
        """Return a list of numbers, or an array made of one, with the column's dtype and shape.

        A flat list gets the shape if it has as many elements. A value that does not fit is returned
        unchanged, because `encode` refuses it.
        """
        if self._stored is None or self._dtype_name not in _LIST_DTYPES:
            return value
        array = value
        if not isinstance(value, np.ndarray) or value.dtype != self._stored:
            try:
                array = self._list_as_array(value)
            except EncodingError:
                return value
        if self._dims is not None and array.ndim == 1 and array.size == math.prod(self._dims):
            array = array.reshape(self._dims)
        return array

    def way_out(self, value: Any) -> str:
        """Suggest how to make an array of a value."""
        if isinstance(value, (list, tuple)):
            return f"Write np.asarray(value), or name the type of its items: '{self.family}:int64'."
        if isinstance(value, (int, float, np.generic)):
            return "For a single number use an encoding such as 'int' or 'float32'."
        if hasattr(value, "getbands"):
            return "Write np.asarray(image), or use the encoding 'jpeg' or 'png'."
        return super().way_out(value)

    def _in_file_order(
        self, array: np.ndarray[Any, Any], value: Any
    ) -> tuple[np.ndarray[Any, Any], str | None]:
        """Return an array as little-endian, and the name of its dtype.

        ``value`` is the array as the user gave it, for errors. Raises EncodingError for another
        dtype than the column's.
        """
        name = array.dtype.name
        if self._dtype_name is not None and name != self._dtype_name:
            cast = (
                f"to(torch.{self._dtype_name})"
                if is_tensor(value)
                else (f"astype(np.{self._dtype_name})")
            )
            raise self._wrong(
                value,
                f"the column's dtype is {self._dtype_name}. Write value.{cast}, or use the "
                f"encoding '{self.family}:{name}'.",
            )
        if name not in self.codes:
            raise self._wrong(value, f"only {', '.join(self.codes)} can be stored here")
        return array.astype(_stored_dtype(name), copy=False), name

    def _head(self, dtype: str | None, shape: tuple[int, ...], value: Any) -> bytes:
        """Return the bytes before the elements: code of the dtype, number of axes, shape.

        For int32 (code 33) and the shape (3, 500) these are 33, then ``2 << 2 | 1`` for two axes
        whose dimensions take ``1 << 1`` bytes, then 3 and 500 as uint16.

        The code is left out if the encoding's name has the dtype. The heads of the first
        `_HEADS_KEPT` shapes are kept. ``value`` is only for errors.
        """
        if len(shape) > _MAX_AXES:
            raise self._wrong(value, f"more than {_MAX_AXES} axes")
        if self.smallest and (not shape or not math.prod(shape)):
            raise self._wrong(
                value, "only the encoding 'tensor' stores an array without elements or axes"
            )
        largest = max(shape, default=0)
        # The narrowest of 1, 2, 4 and 8 bytes (1 << width) that holds every dimension.
        width = next(w for w in range(4) if largest < 1 << (8 << w))
        code = b"" if self._dtype_name is not None else bytes([self.codes[dtype or ""]])
        head = code + struct.pack(
            f"<B{len(shape)}{_DIMENSIONS[width]}", len(shape) << 2 | width, *shape
        )
        if len(self._heads) < _HEADS_KEPT:
            self._heads[dtype, shape] = head
        return head

    def _wrong(self, value: Any, reason: str) -> EncodingError:
        return EncodingError(f"encoding {self.name}: got {describe(value)}, but {reason}")

    # ---------------------------------------------------------------------------------- reading

    def decode(self, data: Data) -> Any:
        """Return the array, as a view of `data`."""
        if self.size is not None:
            if len(data) != self.size:
                raise self.broken(data, f"{self.size} are required")
            return self._view(data, self._stored, self._dims, 0)
        start, stored, dtype = 0, self._stored, self._dtype_name
        if stored is None:
            if not len(data) or data[0] not in self._names:
                raise self.broken(data, "they do not begin with a known dtype")
            dtype = self._names[data[0]]
            start, stored = 1, _stored_dtype(dtype)
        shape, start = self._read_shape(data, start)
        # Python's integers do not overflow, so a product of hostile dimensions stays honest.
        if start + math.prod(shape) * stored.itemsize != len(data):
            raise self.broken(data, f"shape {shape} of {dtype} takes another number of bytes")
        return self._view(data, stored, shape, start)

    def _read_shape(self, data: Data, start: int) -> tuple[tuple[int, ...], int]:
        """Parse the shape in a head; return the shape and the offset after it.

        ``start`` is the offset of the byte with the number of axes. Raises EncodingError.
        """
        if start >= len(data):
            raise self.broken(data, "there is no shape")
        axes, width = data[start] >> 2, data[start] & 3
        end = start + 1 + (axes << width)  # a dimension takes 1 << width bytes
        if end > len(data):
            raise self.broken(data, f"they are too few for {axes} dimensions")
        shape = struct.unpack_from(f"<{axes}{_DIMENSIONS[width]}", data, start + 1)
        if self.smallest and (not shape or 0 in shape):
            raise self.broken(data, f"the shape {shape} has no elements")
        # NumPy computes strides of empty arrays too, and they must fit.
        if 0 in shape and math.prod(n or 1 for n in shape) >= 1 << 58:
            raise self.broken(data, f"the shape {shape} is impossible")
        return shape, end

    def _view(self, data: Data, stored: Any, shape: Any, start: int) -> Any:
        """Return an array on the bytes of an encoded value, without a copy.

        Args:
            data: The encoded value.
            stored: Dtype of the elements in the file.
            shape: Shape of the array.
            start: Offset of the first element in ``data``, in bytes.
        """
        try:
            return np.ndarray(shape, stored, data, start)
        except (ValueError, TypeError) as error:  # such as more axes than this NumPy has
            raise self.broken(data, error) from error


class TensorEncoding(ArrayEncoding):
    """Encoding of all arrays: also bool, complex and bfloat16, empty and 0-d ones.

    NumPy has no bfloat16. Such values are torch tensors or arrays of the package ml_dtypes, and
    their elements are stored as uint16 numbers of the same bits.
    """

    family = "tensor"
    codes = _MORE_CODES
    smallest = 0
    takes_bytes = False
    expects = "a NumPy array or a torch tensor"

    def encode(self, value: Any) -> bytes:
        """Return the bytes of an array as `ndarray` does, also for tensors and bfloat16.

        Arrays of torch are recognised by their module, so that torch is not imported here.
        """
        if is_tensor(value):
            value = value.detach().cpu()
        # The dtype is printed as "torch.bfloat16" by torch, and as "bfloat16" by ml_dtypes.
        if not str(getattr(value, "dtype", "")).endswith("bfloat16"):
            # bfloat16 is stored as uint16, but an array of uint16 is not one of bfloat16.
            if self._dtype_name == "bfloat16":
                raise self._wrong(value, "the column's dtype is bfloat16")
            return super().encode(value)
        if self._dtype_name not in {None, "bfloat16"}:
            raise self._wrong(value, f"the column's dtype is {self._dtype_name}")
        shape, words = tuple(value.shape), _bfloat16_words(value)  # words of 16 bits
        if self._dims is None:
            return self._head("bfloat16", shape, value) + words
        if shape != self._dims:
            raise self._wrong(value, f"the column's shape is {self._dims}")
        return words

    def _view(self, data: Data, stored: Any, shape: Any, start: int) -> Any:
        """Return an array on the bytes of an encoded value; for bfloat16 a copy, as torch tensor.

        The arguments are those of `ArrayEncoding._view`.
        """
        array = super()._view(data, stored, shape, start)
        if stored is not _BFLOAT16:
            return array
        import torch

        # int16 has the same bits as uint16, which older versions of torch lack.
        words = torch.from_numpy(array.astype(np.int16))
        return words.view(torch.bfloat16)


def _bfloat16_words(value: Any) -> bytes:
    """Return the elements of a torch tensor or an ml_dtypes array of bfloat16, two bytes each."""
    if isinstance(value, np.ndarray):
        return value.astype(value.dtype, order="C").view(np.uint16).astype("<u2").tobytes()
    import torch

    return bytes(value.contiguous().view(torch.int16).numpy().astype("<i2").tobytes())


# uint16 in the file. `_view` recognises it by identity; the metadata makes it an object of its own,
# where NumPy would return its shared dtype of uint16.
_BFLOAT16 = np.dtype("<u2", metadata={"bfloat16": True})


def _stored_dtype(name: str) -> np.dtype[Any]:
    return _BFLOAT16 if name == "bfloat16" else np.dtype(name).newbyteorder("<")


# --------------------------------------------------------------------- lengths


_ARRAYS = {DecodeKind.ARRAY, DecodeKind.VECTOR, DecodeKind.ANY_ARRAY}


def length_function(encodings: dict[str, str], column: Any) -> Callable[[Data], int]:
    """Return a function from the encoded bytes of a value to its length.

    - ``encodings`` (dict[str, str]): Encodings of all columns, by name.
    - ``column`` (Any): Name of the column to measure.

    The length is the number of elements of an array or list, of frames of audio, and 0 of None.
    Raises ConfigError for a column whose values have no length.
    """
    if not isinstance(column, str) or column not in encodings:
        raise ConfigError(
            f"there is no column {shown(column)} to measure lengths of. The columns are "
            f"{', '.join(encodings)}."
        )
    encoding = parse_encoding(encodings[column])
    if not has_lengths(encoding):
        raise ConfigError(
            f"column {column!r} is stored as {encoding.name!r}, but only "
            "one-dimensional arrays have a length, such as 'ndarray:int32'."
        )
    if encoding.shape is not None:
        fixed = encoding.shape[0]
        return lambda _: fixed
    return lambda data: _length(encoding, data)


def has_lengths(encoding: Encoding) -> bool:
    """Whether the values of an encoding have lengths, by which packing plans its packs.

    These are lists, audio, JSON and one-dimensional arrays, and `optional` ones of these. Whether a
    value of JSON, or of an array whose shape varies, really has one dimension is seen when it is
    decoded.
    """
    name = encoding.name
    if name.startswith("optional["):
        return has_lengths(parse_encoding(name.removeprefix("optional[").removesuffix("]")))
    if name == "audio" or name.startswith("list[") or encoding.decode_kind is DecodeKind.JSON:
        return True
    shape = encoding.shape
    return encoding.decode_kind in _ARRAYS and (shape is None or len(shape) == 1)


def _length(encoding: Encoding, data: Data) -> int:
    """Decode a value, and return its length. Raises ConfigError if it has none."""
    value = encoding.decode(data)
    if value is None:
        return 0
    if encoding.name in {"audio", "optional[audio]"}:
        return len(value[0])  # frames
    if isinstance(value, list) and all(isinstance(v, (int, float, np.number)) for v in value):
        return len(value)
    shape = getattr(value, "shape", None)
    if shape is None:
        raise ConfigError(
            f"a value of the column is {shown(value)}, but only one-dimensional arrays and "
            "lists of numbers have a length."
        )
    if len(shape) != 1:
        raise ConfigError(
            f"a value of the column has the shape {tuple(shape)}, but only "
            "one-dimensional arrays have a length."
        )
    return int(shape[0])
