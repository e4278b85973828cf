"""Compressions and hashes by name: `streaming.base.compression` and `.hashing`.

Functions come first, then a class for each compression, whose objects have a level. All of them
call `mds._shardfile`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from mds._shardfile.compression import compression_names, parse_compression
from mds._shardfile.hashing import hash_names, hexdigest, new_hash
from mds.compat._overrides import Sealed, SealedDict
from mds.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

#: Most bytes of a decompressed file: offsets of the format have 32 bits.
_MAX_SIZE = 1 << 32


def get_compressions() -> set[str]:
    """Return the names of all compressions, with and without levels: "zstd" and "zstd:7"."""
    return set(compression_names())


def is_compression(algo: str | None) -> bool:
    """Whether a name is that of a compression."""
    return algo in get_compressions()


def get_compression_extension(algo: str) -> str:
    """Return the end of the names of files compressed by ``algo``, without a dot."""
    codec = parse_compression(algo)
    if codec is None:
        raise ConfigError(f"{algo!r} names no compression.")
    return codec.extension


def compress(algo: str | None, data: bytes) -> bytes:
    """Return data compressed by ``algo``; None returns them unchanged."""
    codec = parse_compression(algo)
    return data if codec is None else codec.compress(data)


def decompress(algo: str | None, data: bytes) -> bytes:
    """Return the original of data that ``algo`` has compressed; None returns data unchanged.

    Raises ShardError for damaged data, and for data that decompress to more than 4 GiB.
    """
    codec = parse_compression(algo)
    if codec is None:
        return data
    if codec.algorithm == "snappy":  # a raw block begins with its size
        import cramjam

        return codec.decompress(data, cramjam.snappy.decompress_raw_len(data))
    # Decompress twice, first only to find the size: the codec needs the size, which an index has.
    return codec.decompress(data, len(codec.decompressor(_MAX_SIZE).feed(data)))


def get_hashes() -> set[str]:
    """Return the names of all hashes."""
    return set(hash_names())


def is_hash(algo: str) -> bool:
    """Whether a name is that of a hash."""
    return algo in get_hashes()


def get_hash(algo: str, data: bytes) -> str:
    """Return the digest of some bytes in lower-case hexadecimal digits."""
    return hexdigest(algo, data)


# ---------------------------------------------------------------------- classes and registries


class Compression(metaclass=Sealed):
    """Compression of whole files; ``extension`` is the end of the names of compressed files."""

    extension: ClassVar[str] = ""

    @classmethod
    def each(cls) -> Iterator[tuple[str, Self]]:
        """Yield each name that users may give, such as "br", with an object that compresses so."""
        yield cls.extension, cls()

    @abstractmethod
    def compress(self, data: bytes) -> bytes:
        """Return data compressed."""

    @abstractmethod
    def decompress(self, data: bytes) -> bytes:
        """Return compressed data decompressed. Raises ShardError for damaged data."""


class LevelledCompression(Compression):
    """Compression with levels: ``levels`` lists them, and each object has one.

    ``level`` (int | None): level of the object; None for the default.
    """

    levels: ClassVar[list[int]] = []

    @abstractmethod
    def __init__(self, level: int | None = None) -> None: ...

    @classmethod
    def each(cls) -> Iterator[tuple[str, Self]]:
        """Yield the name without a level, then with each level, each with an object that has it."""
        yield cls.extension, cls()
        for level in cls.levels:
            yield f"{cls.extension}:{level}", cls(level)


class LevelError(ConfigError, AssertionError):
    """Level that a compression does not have."""


class _NativeLevels(LevelledCompression):
    """Compression of mds with levels. Raises LevelError for a ``level`` that it does not have."""

    def __init__(self, level: int) -> None:
        if level not in self.levels:
            raise LevelError(f"the levels of {self.extension} are {self.levels}, got {level!r}.")
        self.level = level

    def compress(self, data: bytes) -> bytes:
        return compress(f"{self.extension}:{self.level}", data)

    def decompress(self, data: bytes) -> bytes:
        return decompress(self.extension, data)


class Brotli(_NativeLevels):
    """Brotli, level 11 by default."""

    extension = "br"
    levels: ClassVar[list[int]] = [*range(12)]

    def __init__(self, level: int = 11) -> None:
        super().__init__(level)


class Bzip2(_NativeLevels):
    """Bzip2, level 9 by default."""

    extension = "bz2"
    levels: ClassVar[list[int]] = [*range(1, 10)]

    def __init__(self, level: int = 9) -> None:
        super().__init__(level)


class Gzip(_NativeLevels):
    """Gzip, level 9 by default."""

    extension = "gz"
    levels: ClassVar[list[int]] = [*range(10)]

    def __init__(self, level: int = 9) -> None:
        super().__init__(level)


class Snappy(Compression):
    """Snappy, which has no levels."""

    extension = "snappy"

    def compress(self, data: bytes) -> bytes:
        """Return data compressed."""
        return compress(self.extension, data)

    def decompress(self, data: bytes) -> bytes:
        """Return compressed data decompressed. Raises ShardError for damaged data."""
        return decompress(self.extension, data)


class Zstandard(_NativeLevels):
    """Zstandard, level 3 by default."""

    extension = "zstd"
    levels: ClassVar[list[int]] = [*range(1, 23)]

    def __init__(self, level: int = 3) -> None:
        super().__init__(level)


_REMEDY = "Compress with one of the names that get_compressions() gives"
_families: dict[str, type[Compression]] = SealedDict(
    "_families",
    {kind.extension: kind for kind in (Brotli, Bzip2, Gzip, Snappy, Zstandard)},
    _REMEDY,
)


def _collect(families: dict[str, type[Compression]]) -> dict[str, Compression]:
    """Return an object for each name of some families, whose keys are names without a level."""
    return {name: algorithm for kind in families.values() for name, algorithm in kind.each()}


_algorithms = SealedDict("_algorithms", _collect(_families), _REMEDY)


def _hash_of(algo: str, data: bytes = b"") -> Any:
    digest = new_hash(algo)
    digest.update(data)
    return digest


def _collect_hashes() -> dict[str, Callable[[bytes], Any]]:
    """Return a function from bytes to an object with ``hexdigest`` for each name of a hash."""
    return {name: partial(_hash_of, name) for name in hash_names()}


_hashes = SealedDict(
    "_hashes", _collect_hashes(), "Hash with one of the names that get_hashes() gives"
)
