"""The incumbent's functions for compression, hashes and encodings, on top of ours."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from functools import partial
from typing import Any

from mds.compression import compression_names, parse_compression
from mds.encodings import Encoding as OurEncoding
from mds.encodings import encoding_names, parse_encoding, register_encoding
from mds.errors import ConfigError, UnknownEncodingError
from mds.hashing import hash_names, hexdigest, is_hash

__all__ = ["Encoding", "get_hash", "is_hash"]

# What a file can be at most: the format's offsets have 32 bits.
_LARGEST = 1 << 32


def get_compressions() -> set[str]:
    """Every name of a compression, with and without levels."""
    return set(compression_names())


def is_compression(algo: str | None) -> bool:
    """Whether there is a compression of that name."""
    return algo in get_compressions()


def get_compression_extension(algo: str) -> str:
    """What the names of files compressed by ``algo`` end with."""
    codec = parse_compression(algo)
    if codec is None:
        raise ConfigError(f"{algo!r} names no compression.")
    return codec.extension


def compress(algo: str | None, data: bytes) -> bytes:
    """Data compressed by ``algo``; unchanged for None."""
    codec = parse_compression(algo)
    return data if codec is None else codec.compress(data)


def decompress(algo: str | None, data: bytes) -> bytes:
    """The data that ``algo`` compressed, of up to 4 GiB. Raises ShardError when they are broken."""
    codec = parse_compression(algo)
    if codec is None:
        return data
    if codec.algorithm == "snappy":  # a raw block begins with its size
        import cramjam

        return codec.decompress(data, cramjam.snappy.decompress_raw_len(data))
    # The size is found by decompressing: nobody tells it here, unlike in an index.
    return codec.decompress(data, len(codec.decompressor(_LARGEST).feed(data)))


def get_hashes() -> set[str]:
    """Every name of a hash."""
    return set(hash_names())


def get_hash(algo: str, data: bytes) -> str:
    """The digest of some bytes in lower-case hex."""
    return hexdigest(algo, data)


def get_mds_encodings() -> set[str]:
    """The families of encodings."""
    return set(encoding_names())


def is_mds_encoding(encoding: str) -> bool:
    """Whether there is an encoding of that name, parameters included."""
    try:
        parse_encoding(encoding)
    except UnknownEncodingError:
        return False
    return True


def is_mds_encoding_safe(encoding: str) -> bool:
    """Whether an encoding holds no pickles."""
    return not parse_encoding(encoding).is_unsafe


def mds_encode(encoding: str, obj: Any) -> bytes:
    """The stored bytes of a value; bytes are taken as already encoded."""
    return parse_encoding(encoding).pack(obj)


def mds_decode(encoding: str, data: bytes) -> Any:
    """The value of stored bytes."""
    return parse_encoding(encoding).decode(data)


def get_mds_encoded_size(encoding: str) -> int | None:
    """The number of bytes of every value; None where it varies."""
    return parse_encoding(encoding).size


class Encoding:
    """The incumbent's base of encodings, for those that users wrote: ``encode`` and ``decode``."""

    size: int | None = None

    def encode(self, obj: Any) -> bytes:
        """The bytes of a value."""
        raise NotImplementedError

    def decode(self, data: bytes) -> Any:
        """The value of bytes."""
        raise NotImplementedError


class _Adapted(OurEncoding):
    """A user's encoding in the library's shape."""

    def __init__(self, name: str, user: Any) -> None:
        super().__init__(name)
        self._user = user() if isinstance(user, type) else user
        self.size = getattr(self._user, "size", None)

    def encode(self, value: Any) -> bytes:
        return bytes(self._user.encode(value))

    def decode(self, data: bytes | memoryview) -> Any:
        return self._user.decode(bytes(data))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Adapted, (self.name, self._user)


class _Encodings(MutableMapping[str, Any]):
    """The dict that users put their own encodings into: setting an item registers it."""

    def __getitem__(self, name: str) -> Any:
        try:
            return parse_encoding(name)
        except UnknownEncodingError as error:
            raise KeyError(name) from error

    def __setitem__(self, name: str, user: Any) -> None:
        register_encoding(name, partial(_Adapted, user=user))

    def __delitem__(self, name: str) -> None:
        raise ConfigError(f"the encoding {name!r} cannot be taken away again.")

    def __iter__(self) -> Iterator[str]:
        return iter(encoding_names())

    def __len__(self) -> int:
        return len(encoding_names())


_encodings = _Encodings()

# The incumbent has a class for each; here the class of a name is a call away.
_FAMILIES = {
    **{name: name.lower() for name in ("Bytes", "Str", "Int", "PIL", "JPEG", "PNG", "JSON")},
    **{f"{u}Int{n}": f"{u.lower()}int{n}" for u in ("U", "") for n in (8, 16, 32, 64)},
    **{f"Float{n}": f"float{n}" for n in (16, 32, 64)},
    "StrInt": "str_int",
    "StrFloat": "str_float",
    "StrDecimal": "str_decimal",
    "JPEGArray": "jpeg_array",
    "Pickle": "pkl",
}


def NDArray(dtype: str | None = None, shape: tuple[int, ...] | None = None) -> OurEncoding:  # noqa: N802 - the incumbent's class
    """The encoding of arrays of a type and shape, of a type, or of any."""
    name = "ndarray"
    if dtype is not None:
        name += f":{dtype}"
    if shape is not None:
        name += f":{','.join(map(str, shape))}"
    return parse_encoding(name)


def __getattr__(name: str) -> Any:
    if name not in _FAMILIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(parse_encoding, _FAMILIES[name])
