"""The incumbent's ``format.mds.encodings``: encodings by name, as classes, and a user's own.

A class of the incumbent is made without arguments and has ``encode``, ``decode`` and ``size``; ours
are answered by the library's own encodings. What is put into ``_encodings`` is used by readers and
writers from then on, also in the place of a built-in one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from mds.compat.json_encodings import check_type
from mds.compat.overrides import Sealed
from mds.encodings import Encoding as OurEncoding
from mds.encodings import parse_encoding, registry
from mds.encodings.scalars import NumpyEncoding
from mds.errors import UnknownEncodingError
from mds.readers import fields

if TYPE_CHECKING:
    from typing_extensions import Self


class Encoding(metaclass=Sealed):
    """Base of the incumbent's encodings, and of those that users wrote."""

    size: int | None = None

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """The bytes of a value."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """The value of bytes."""

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> None:
        check_type(data, expected_type)


_IMAGES = {"jpeg", "png"}


class BuiltIn(Encoding):
    """An encoding of the library under the incumbent's class."""

    _name: ClassVar[str]

    def __init__(self) -> None:
        self._take(self._name)

    def _take(self, name: str) -> None:
        family = name.partition(":")[0].partition("[")[0]
        # The library's own, also when a user has replaced it by what calls this class.
        self._ours = _LIBRARY[family](name)
        self.size = self._ours.size

    def encode(self, obj: Any) -> bytes:
        """The bytes of a value."""
        if self._name in _IMAGES and not hasattr(obj, "mode"):
            raise self._ours.refuse(obj)  # files and their bytes are for mds_encode
        return self._ours.encode(obj)

    def decode(self, data: bytes) -> Any:
        """The value of bytes."""
        return self._ours.decode(data)


class Scalar(BuiltIn):
    """A number of NumPy."""

    def encode(self, obj: Any) -> bytes:
        """The bytes of what the NumPy type makes of a value."""
        return self._ours.encode_as_numpy(obj)  # type: ignore[no-any-return,attr-defined]


class StrEncoding(BuiltIn):
    """A number as text."""


class List(BuiltIn):
    """A list of values of one encoding."""

    @property
    def underlying_encoder(self) -> Encoding:
        """What encodes each value."""
        found: Encoding = _get_coder(self._name.partition("[")[2].rstrip("]"))
        return found


class NDArray(BuiltIn):
    """Arrays: of any type, of one type, or of one type and shape."""

    _name = "ndarray"

    def __init__(self, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> None:
        self.dtype, self.shape = dtype, shape
        name = self._name if dtype is None else f"{self._name}:{dtype}"
        self._take(name if shape is None else f"{name}:{','.join(map(str, shape))}")

    @classmethod
    def from_str(cls, text: str) -> Self:
        """The encoding of what follows the colon of its name: ``int32`` or ``int32:2,3``."""
        dtype, _, shape = text.partition(":")
        return cls(dtype, tuple(map(int, shape.split(","))) if shape else None)


_LIBRARY = dict(registry._families)  # noqa: SLF001 - before any user has replaced one
_CLASSES: dict[str, type[Encoding]] = {"ndarray": NDArray}


def _make_classes(base: type[BuiltIn], **names: str) -> None:
    for kind, name in names.items():
        doc = f"The encoding {name!r}."
        made = type(kind, (base,), {"_name": name, "__module__": __name__, "__doc__": doc})
        globals()[kind] = _CLASSES[name] = made


_make_classes(BuiltIn, Bytes="bytes", Str="str", Int="int", PIL="pil", JPEG="jpeg", PNG="png")
_make_classes(BuiltIn, JSON="json", Pickle="pkl", JPEGArray="jpeg_array")
_make_classes(Scalar, **{f"UInt{n}": f"uint{n}" for n in (8, 16, 32, 64)})
_make_classes(Scalar, **{f"Int{n}": f"int{n}" for n in (8, 16, 32, 64)})
_make_classes(Scalar, **{f"Float{n}": f"float{n}" for n in (16, 32, 64)})
_make_classes(StrEncoding, StrInt="str_int", StrFloat="str_float", StrDecimal="str_decimal")
_make_classes(List, PILList="list[pil]", JPEGList="list[jpeg]", PNGList="list[png]")
_CLASSES["jpegarray"] = _CLASSES["jpeg_array"]

_unsafe_encodings = frozenset({"pkl"})  # a pickle is never safe, and what is safe stays so


class _Adapted(OurEncoding):
    """A user's encoding in the library's shape."""

    shares_memory = False  # with us: it is given bytes of its own, as ever
    takes_bytes = True  # what is bytes already was written as it is, whatever the column

    def __init__(self, name: str, user: Any) -> None:
        super().__init__(name)
        self._class = user
        _, colon, parameters = name.partition(":")
        if colon:
            user = user.from_str(parameters)
        self._user = user() if isinstance(user, type) else user
        self.size = getattr(self._user, "size", None)

    def encode(self, value: Any) -> bytes:
        return bytes(self._user.encode(value))

    def decode(self, data: bytes | memoryview) -> Any:
        return self._user.decode(bytes(data))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Adapted, (self.name, self._class)


class Encodings(MutableMapping[str, Any]):
    """The dict that users put their own encodings into: setting an item is using it."""

    def __init__(self) -> None:
        self._users: dict[str, Any] = {}
        self._gone: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        if name in self._gone:
            raise KeyError(name)
        return self._users[name] if name in self._users else _CLASSES[name]

    def __setitem__(self, name: str, user: Any) -> None:
        self._gone.discard(name)
        if user is _CLASSES.get(name):
            self._users.pop(name, None)
        else:
            self._users[name] = user
        self._apply(name)

    def __delitem__(self, name: str) -> None:
        self[name]  # a KeyError where there is none
        self._users.pop(name, None)
        self._gone.add(name)
        self._apply(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in {**_CLASSES, **self._users} if name not in self._gone)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _apply(self, name: str) -> None:
        """Let readers and writers use what stands under a name now."""
        families = registry._families  # noqa: SLF001 - the registry itself refuses to replace
        if name in self._users:
            families[name] = partial(_Adapted, user=self._users[name])
        elif name in self._gone or name not in _LIBRARY:
            families.pop(name, None)
        else:
            families[name] = _LIBRARY[name]
        parse_encoding.cache_clear()
        fields.fields_of.cache_clear()


_encodings = Encodings()


def get_mds_encodings() -> set[str]:
    """The encodings of 0.13, and those that users put beside them."""
    return {*_encodings}


def _get_coder(encoding: str) -> Any:
    """What encodes and decodes a column; None for an unknown encoding."""
    family, colon, parameters = encoding.partition(":")
    found = _encodings.get(family)
    if found is None:
        return parse_encoding(encoding) if is_mds_encoding(encoding) else None
    return found.from_str(parameters) if colon else found()


def is_mds_encoding(encoding: str) -> bool:
    """Whether there is an encoding of that name, parameters included."""
    try:
        parse_encoding(encoding)
    except UnknownEncodingError:
        return False
    return True


def is_mds_encoding_safe(encoding: str) -> bool:
    """Whether an encoding holds no pickles; what is no encoding holds none."""
    return not is_mds_encoding(encoding) or not parse_encoding(encoding).is_unsafe


def mds_encode(encoding: str, obj: Any) -> bytes:
    """The stored bytes of a value; bytes are taken as already encoded."""
    return obj if isinstance(obj, bytes) else packer_of(parse_encoding(encoding))(obj)


def packer_of(encoding: OurEncoding) -> Callable[[Any], bytes]:
    """Return a function from a value to its bytes that neither bytes nor numbers are refused by.

    The incumbent stores bytes without a look at them, and whatever a NumPy type makes of a value.
    """
    return partial(_pack_number, encoding) if isinstance(encoding, NumpyEncoding) else encoding.pack


def _pack_number(encoding: NumpyEncoding, value: Any) -> bytes:
    data = value if isinstance(value, bytes) else encoding.encode_as_numpy(value)
    return encoding.pack(data)


def mds_decode(encoding: str, data: bytes) -> Any:
    """The value of stored bytes."""
    return parse_encoding(encoding).decode(data)


def get_mds_encoded_size(encoding: str) -> int | None:
    """The number of bytes of every value; None where it varies."""
    return parse_encoding(encoding).size
