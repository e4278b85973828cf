"""Encodings of columns by name and as classes: `streaming.base.format.*.encodings`.

MDS columns come first: `mds_encode`, `mds_decode` and a class for each name, which calls the
encoding of mds with that name. `_encodings` is a live registry: a class that code puts into it is
used by readers and writers from then on, also in place of a built-in one. Columns of JSON, CSV, TSV
and XSV files are ``str``, ``int`` or ``float``; their registry is sealed.

In this package, 0.13 is mosaicml-streaming 0.13, "native" is the class of mds of the same name, and
"code" is code of the user that was written for 0.13.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from mds._readers import fields
from mds.compat._overrides import LiveRegistry, Sealed, SealedDict
from mds.encodings import Encoding as NativeEncoding
from mds.encodings import _registry as registry
from mds.encodings import parse_encoding
from mds.encodings._containers import ListEncoding
from mds.encodings._images import FileImageEncoding, JpegArrayEncoding, own_jpeg
from mds.encodings._scalars import NumpyEncoding
from mds.errors import EncodingTypeError, UnknownEncodingError, UnsafeTypeError

if TYPE_CHECKING:
    from typing_extensions import Self

# ---------------------------------------------------------------------- MDS: functions


def get_mds_encodings() -> set[str]:
    """Return the names of all encodings: those of 0.13, and those that code has added."""
    return {*_encodings}


def is_mds_encoding(encoding: str) -> bool:
    """Whether an encoding of that name exists; the name includes parameters: "ndarray:int32"."""
    try:
        parse_encoding(encoding)
    except UnknownEncodingError:
        return False
    return True


def is_mds_encoding_safe(encoding: str) -> bool:
    """Whether decoding a column runs no code, as pickles do; True for an unknown encoding."""
    return not is_mds_encoding(encoding) or not parse_encoding(encoding).is_unsafe


def mds_encode(encoding: str, obj: Any) -> bytes:
    """Return the stored bytes of a value. Bytes are returned as they are, whatever the encoding."""
    return obj if isinstance(obj, bytes) else packer_of(parse_encoding(encoding))(obj)


def mds_decode(encoding: str, data: bytes) -> Any:
    """Return the value of stored bytes. Raises UnsafeTypeError (a ValueError) for pickles."""
    parsed = parse_encoding(encoding)
    if parsed.is_unsafe:
        raise UnsafeTypeError(
            f"mds_decode({encoding!r}): loading a pickle can run any code of its author. Write "
            f"mds.encodings.parse_encoding({encoding!r}).decode(data) if you trust it."
        )
    return parsed.decode(data)


def get_mds_encoded_size(encoding: str) -> int | None:
    """Return the bytes of every value of an encoding, or None if values differ in size."""
    return parse_encoding(encoding).size


def packer_of(encoding: NativeEncoding) -> Callable[[Any], bytes]:
    """Return a function from a value to its bytes that converts as 0.13 does.

    0.13 stores bytes unchecked, and lets NumPy convert numbers: 1.5 in ``int32`` is stored as 1.
    Writers of `mds` refuse such values. 0.13 refuses numbers of NumPy in ``int``, and lists and
    tensors in ``ndarray``, which `mds` converts without loss. It also encodes JPEGs from memory
    again.
    """
    encoding = _with_jpegs_of_0_13(encoding)
    if isinstance(encoding, NumpyEncoding):
        return partial(_pack_number, encoding)
    if encoding.own_type is None:
        return encoding.pack
    return partial(_pack_own_type, encoding)


class _Jpeg(FileImageEncoding):
    """Encoding "jpeg" that encodes an image which was opened from memory again, as 0.13 does."""

    def _own_file(self, image: Any) -> bytes:
        return own_jpeg(image) if image.filename else b""


def _with_jpegs_of_0_13(encoding: NativeEncoding) -> NativeEncoding:
    """Return an encoding with `_Jpeg` in place of the encoding "jpeg" of mds."""
    if type(encoding) is FileImageEncoding and encoding.name == "jpeg":
        return _Jpeg("jpeg")
    # The attribute of a list that has the encoding of its items.
    attribute = {ListEncoding: "_inner", JpegArrayEncoding: "_jpeg"}.get(type(encoding))
    if attribute is None:
        return encoding
    changed = copy.copy(encoding)
    setattr(changed, attribute, _with_jpegs_of_0_13(getattr(encoding, attribute)))
    return changed


def _pack_own_type(encoding: NativeEncoding, value: Any) -> bytes:
    """Return the bytes of a value that is bytes or of the encoding's own type; see `packer_of`."""
    if isinstance(value, bytes) and encoding.size is None:
        return value
    if not isinstance(value, bytes):
        _refuse_other_type(encoding, value)
    return encoding.pack(value)


def _refuse_other_type(encoding: NativeEncoding, value: Any) -> None:
    """Raise EncodingTypeError for a value that 0.13 refuses and `mds` converts without loss."""
    if encoding.own_type is not None and not isinstance(value, encoding.own_type):
        raise encoding.refuse(value)


def _pack_number(encoding: NumpyEncoding, value: Any) -> bytes:
    """Return the bytes of a number after NumPy has converted it; see `packer_of`."""
    data = value if isinstance(value, bytes) else encoding.encode_as_numpy(value)
    return encoding.pack(data)


def _get_coder(encoding: str) -> Any:
    """Return an object that encodes and decodes a column, or None for an unknown encoding.

    ``encoding``: name, with parameters if it has any, such as "ndarray:int32".
    """
    family, colon, parameters = encoding.partition(":")
    kind = _encodings.get(family)
    if kind is None:
        return parse_encoding(encoding) if is_mds_encoding(encoding) else None
    return kind.from_str(parameters) if colon else kind()


# ---------------------------------------------------------------------- MDS: classes


def _check_type(data: Any, expected_type: Any) -> bool:
    """Return True if ``data`` has a type, as 0.13 does.

    Raises EncodingTypeError (an AttributeError) for a value of another type.
    """
    if isinstance(data, expected_type):
        return True
    raise EncodingTypeError(
        f"data should be of type {expected_type}, but instead, found as {type(data)}"
    )


class Encoding(metaclass=Sealed):
    """Base of encodings of MDS columns, built-in ones and those of users.

    It is sealed: methods of a built-in class cannot be replaced by code (`mds.compat._overrides`).

    ``size``: bytes of every value; None if values differ in size.
    """

    size: int | None = None

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """Return the stored bytes of a value."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Return the value of stored bytes."""

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> None:
        _check_type(data, expected_type)


#: Encodings of mds that encode images, and also take the bytes of an image file as a value.
_IMAGE_FILES = {"jpeg", "png"}


class BuiltIn(Encoding):
    """Class of 0.13 that encodes and decodes with an encoding of mds; made without arguments."""

    #: Name of the encoding of mds, such as "jpeg".
    _name: ClassVar[str]

    def __init__(self) -> None:
        self._set_native(self._name)

    def _set_native(self, name: str) -> None:
        """Set the encoding of mds that encodes and decodes.

        ``name``: its name with parameters, such as "ndarray:int32" or "list[jpeg]".
        """
        family = name.partition(":")[0].partition("[")[0]
        # Not parse_encoding(): code may have replaced the name by a class that calls this one.
        self._native = _with_jpegs_of_0_13(_NATIVE_FAMILIES[family](name))
        self.size = self._native.size

    def encode(self, obj: Any) -> bytes:
        """Return the stored bytes of a value. Raises EncodingError."""
        # As in 0.13, only images (which have a mode) are encoded here, and no bytes of a file.
        if self._name in _IMAGE_FILES and not hasattr(obj, "mode"):
            raise self._native.refuse(obj)
        _refuse_other_type(self._native, obj)
        return self._native.encode(obj)

    def decode(self, data: bytes) -> Any:
        """Return the value of stored bytes."""
        return self._native.decode(data)


class Scalar(BuiltIn):
    """Number of a NumPy type."""

    def encode(self, obj: Any) -> bytes:
        """Return the bytes of a value after NumPy has converted it."""
        return self._native.encode_as_numpy(obj)  # type: ignore[no-any-return,attr-defined]


class StrEncoding(BuiltIn):
    """Number as text."""


class List(BuiltIn):
    """List of values of one encoding, such as "list[jpeg]"."""

    @property
    def underlying_encoder(self) -> Encoding:
        """Encoding of each value."""
        encoder: Encoding = _get_coder(self._name.partition("[")[2].rstrip("]"))
        return encoder


class NDArray(BuiltIn):
    """NumPy array: of any type and shape, of one type, or of one type and shape.

    ``dtype``: NumPy's name, such as "int32"; None for any. ``shape``: lengths; None for any.
    """

    _name = "ndarray"

    def __init__(self, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> None:
        self.dtype, self.shape = dtype, shape
        name = self._name if dtype is None else f"{self._name}:{dtype}"
        self._set_native(name if shape is None else f"{name}:{','.join(map(str, shape))}")

    @classmethod
    def from_str(cls, text: str) -> Self:
        """Return the encoding for the part of a name after "ndarray:": "int32" or "int32:2,3"."""
        dtype, _, shape = text.partition(":")
        return cls(dtype, tuple(map(int, shape.split(","))) if shape else None)


_NATIVE_FAMILIES = dict(registry._encodings.entries)  # noqa: SLF001 - copied before code can replace one
_CLASSES: dict[str, type[Encoding]] = {"ndarray": NDArray}


def _make_classes(base: type[BuiltIn], **encodings: str) -> None:
    """Define classes of this module: ``JPEG="jpeg"`` defines class JPEG of encoding "jpeg".

    ``base``: their base. ``encodings``: name of each class, with the name of its encoding.
    """
    for class_name, encoding in encodings.items():
        namespace = {
            "_name": encoding,
            "__module__": __name__,
            "__doc__": f"Encoding {encoding!r}.",
        }
        globals()[class_name] = _CLASSES[encoding] = type(class_name, (base,), namespace)


_make_classes(BuiltIn, Bytes="bytes", Str="str", Int="int", PIL="pil", JPEG="jpeg", PNG="png")
_make_classes(BuiltIn, JSON="json", Pickle="pkl", JPEGArray="jpeg_array")
_make_classes(Scalar, **{f"UInt{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)})
_make_classes(Scalar, **{f"Int{bits}": f"int{bits}" for bits in (8, 16, 32, 64)})
_make_classes(Scalar, **{f"Float{bits}": f"float{bits}" for bits in (16, 32, 64)})
_make_classes(StrEncoding, StrInt="str_int", StrFloat="str_float", StrDecimal="str_decimal")
_make_classes(List, PILList="list[pil]", JPEGList="list[jpeg]", PNGList="list[png]")
_CLASSES["jpegarray"] = _CLASSES["jpeg_array"]

_unsafe_encodings = frozenset({"pkl"})  # cannot be changed: pickles always need permission


# ---------------------------------------------------------------------- MDS: classes of users


class _UserEncoding(NativeEncoding):
    """Encoding class of a user, with the methods that readers and writers of mds call.

    - ``name`` (str): name of the encoding, with parameters if it has any.
    - ``user_class`` (type): class that code has put into `_encodings`, with ``encode``, ``decode``
      and, for names with parameters, ``from_str``.
    """

    shares_memory = False  # decode() is given a copy of the bytes
    takes_bytes = True  # a bytes value is stored as it is, without a call of encode()

    def __init__(self, name: str, user_class: Any) -> None:
        super().__init__(name)
        self._user_class = user_class
        _, colon, parameters = name.partition(":")
        # from_str() may return a class or an object.
        encoding = user_class.from_str(parameters) if colon else user_class
        self._encoding = encoding() if isinstance(encoding, type) else encoding
        self.size = getattr(self._encoding, "size", None)

    def encode(self, value: Any) -> bytes:
        return bytes(self._encoding.encode(value))

    def decode(self, data: bytes | memoryview) -> Any:
        return self._encoding.decode(bytes(data))

    def __reduce__(self) -> tuple[Any, ...]:
        return _UserEncoding, (self.name, self._user_class)


def _apply_encoding(name: str) -> None:
    """Make readers and writers use the class that `_encodings` has under a name now.

    ``name``: name without parameters, such as "ndarray".
    """
    families = registry._encodings.entries  # noqa: SLF001 - the registry has no method to replace one
    kind = _encodings.get(name)
    if kind is None:  # code has deleted the entry
        families.pop(name, None)
    elif _encodings.is_original(name):
        families[name] = _NATIVE_FAMILIES[name]
    else:
        families[name] = partial(_UserEncoding, user_class=kind)
    # Both functions keep encodings that they have made.
    parse_encoding.cache_clear()
    fields.fields_of.cache_clear()


_encodings: LiveRegistry[str, Any] = LiveRegistry(
    f"{__name__}._encodings", _CLASSES, _apply_encoding
)


# ---------------------------------------------------------------------- JSON, CSV, TSV and XSV


class TextEncoding(metaclass=Sealed):
    """Base of the types of text columns: a class each for str, int and float.

    A value in a JSON line keeps its type, which `is_encoded` checks. In CSV, TSV and XSV all values
    are text, which `encode` and `decode` convert.

    ``_type``: Python type of the values, such as int.
    """

    _type: ClassVar[type]

    @classmethod
    def is_encoded(cls, obj: Any) -> bool:
        """Return True. Raises EncodingTypeError (an AttributeError) for a value of another type."""
        return cls._validate(obj, cls._type)

    def encode(self, obj: Any) -> str:
        """Return the text of a value. Raises EncodingTypeError for a value of another type."""
        self._validate(obj, self._type)
        return str(obj)

    def decode(self, obj: str) -> Any:
        """Return the value of a text."""
        return self._type(obj)

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> bool:
        return _check_type(data, expected_type)


class TextStr(TextEncoding):
    """Column of texts."""

    _type = str


class TextInt(TextEncoding):
    """Column of integers."""

    _type = int


class TextFloat(TextEncoding):
    """Column of floating-point numbers."""

    _type = float


_text_encodings: dict[str, type[TextEncoding]] = SealedDict(
    "_encodings",
    {"str": TextStr, "int": TextInt, "float": TextFloat},
    "A column of a text format is one of str, int and float; use MDSWriter for other values",
)


def _text_encoding(encoding: str) -> TextEncoding:
    """Return the encoding of a name. Raises UnknownEncodingError."""
    if encoding not in _text_encodings:
        raise UnknownEncodingError(
            f"a column of a text format is one of {', '.join(_text_encodings)}, got {encoding!r}."
        )
    return _text_encodings[encoding]()


def is_json_encoding(encoding: str) -> bool:
    """Whether a column of a JSON file can have that encoding."""
    return encoding in _text_encodings


def is_json_encoded(encoding: str, value: Any) -> bool:
    """Return True if a value has the type of an encoding.

    Raises EncodingTypeError (an AttributeError) if it has another type, and UnknownEncodingError
    for an unknown encoding.
    """
    return _text_encoding(encoding).is_encoded(value)


def is_xsv_encoding(encoding: str) -> bool:
    """Whether a column of a CSV, TSV or XSV file can have that encoding."""
    return encoding in _text_encodings


def xsv_encode(encoding: str, value: Any) -> str:
    """Return the text of a value. Raises EncodingTypeError, and UnknownEncodingError."""
    return _text_encoding(encoding).encode(value)


def xsv_decode(encoding: str, value: str) -> Any:
    """Return the value of a text. Raises UnknownEncodingError for an unknown encoding."""
    return _text_encoding(encoding).decode(value)
