"""The incumbent's ``base.compression`` and ``base.hashing``: by name, and as classes by level."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from mds.compat.overrides import Sealed, SealedDict
from mds.errors import ConfigError
from mds.shardfile.compression import compression_names, parse_compression
from mds.shardfile.hashing import hash_names, hexdigest, new_hash

if TYPE_CHECKING:
    from typing_extensions import Self

# What a file can be at most: the format's offsets have 32 bits.
_LARGEST = 1 << 32


class Compression(metaclass=Sealed):
    """A way of compressing whole files."""

    extension: ClassVar[str] = ""

    @classmethod
    def each(cls) -> Iterator[tuple[str, Self]]:
        """Every name of it, with what compresses so."""
        yield cls.extension, cls()

    @abstractmethod
    def compress(self, data: bytes) -> bytes:
        """The compressed file."""

    @abstractmethod
    def decompress(self, data: bytes) -> bytes:
        """What the compressed file holds."""


class LevelledCompression(Compression):
    """A compression with levels."""

    levels: ClassVar[list[int]] = []

    @abstractmethod
    def __init__(self, level: int | None = None) -> None: ...

    @classmethod
    def each(cls) -> Iterator[tuple[str, Self]]:
        """Every name of it, with what compresses so: without a level, and with each."""
        yield cls.extension, cls()
        for level in cls.levels:
            yield f"{cls.extension}:{level}", cls(level)


class LevelError(ConfigError, AssertionError):
    """A level that a compression does not have."""


class _Levels(LevelledCompression):
    """Levels of a codec of this library; the level is the default of ``__init__``."""

    def __init__(self, level: int) -> None:
        if level not in self.levels:
            raise LevelError(f"the levels of {self.extension} are {self.levels}, got {level!r}.")
        self.level = level

    def compress(self, data: bytes) -> bytes:
        return compress(f"{self.extension}:{self.level}", data)

    def decompress(self, data: bytes) -> bytes:
        return decompress(self.extension, data)


class Brotli(_Levels):
    """Brotli."""

    extension = "br"
    levels: ClassVar[list[int]] = [*range(12)]

    def __init__(self, level: int = 11) -> None:
        super().__init__(level)


class Bzip2(_Levels):
    """Bzip2."""

    extension = "bz2"
    levels: ClassVar[list[int]] = [*range(1, 10)]

    def __init__(self, level: int = 9) -> None:
        super().__init__(level)


class Gzip(_Levels):
    """Gzip."""

    extension = "gz"
    levels: ClassVar[list[int]] = [*range(10)]

    def __init__(self, level: int = 9) -> None:
        super().__init__(level)


class Snappy(Compression):
    """Snappy, which has no levels."""

    extension = "snappy"

    def compress(self, data: bytes) -> bytes:
        """The compressed file."""
        return compress(self.extension, data)

    def decompress(self, data: bytes) -> bytes:
        """What the compressed file holds."""
        return decompress(self.extension, data)


class Zstandard(_Levels):
    """Zstandard."""

    extension = "zstd"
    levels: ClassVar[list[int]] = [*range(1, 23)]

    def __init__(self, level: int = 3) -> None:
        super().__init__(level)


_COMPRESSIONS = "Compress with one of the names that get_compressions() gives"
_families: dict[str, type[Compression]] = SealedDict(
    "_families",
    {kind.extension: kind for kind in (Brotli, Bzip2, Gzip, Snappy, Zstandard)},
    _COMPRESSIONS,
)


def _collect(families: dict[str, type[Compression]]) -> dict[str, Compression]:
    """What compresses under each name of some families."""
    return {name: found for kind in families.values() for name, found in kind.each()}


_algorithms = SealedDict("_algorithms", _collect(_families), _COMPRESSIONS)


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
    # The size is found by decompressing: unlike an index, this call does not tell it.
    return codec.decompress(data, len(codec.decompressor(_LARGEST).feed(data)))


def get_hashes() -> set[str]:
    """Every name of a hash."""
    return set(hash_names())


def is_hash(algo: str) -> bool:
    """Whether there is a hash of that name."""
    return algo in get_hashes()


def get_hash(algo: str, data: bytes) -> str:
    """The digest of some bytes in lower-case hex."""
    return hexdigest(algo, data)


def _hash_of(algo: str, data: bytes = b"") -> Any:
    found = new_hash(algo)
    found.update(data)
    return found


def _collect_hashes() -> dict[str, Callable[[bytes], Any]]:
    """A function from bytes to a digest object for every hash."""
    return {name: partial(_hash_of, name) for name in hash_names()}


_hashes = SealedDict(
    "_hashes", _collect_hashes(), "Hash with one of the names that get_hashes() gives"
)
