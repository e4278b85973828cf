"""Digests by name, as the index spells them: `xxh3_64`, `sha1`, ... in lower-case hex."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, get_args

import numpy as np

from mds._words import Digest
from mds.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


_NAMES = frozenset(get_args(Digest))


class Hash(Protocol):
    """A digest that is being computed, as objects of hashlib and xxhash are."""

    def update(self, data: Any, /) -> None:
        """Add more bytes."""

    def hexdigest(self) -> str:
        """Return the digest of the bytes so far, in lower-case hex."""


def hash_names() -> list[str]:
    """Return the digests that an index may name, sorted."""
    return sorted(_NAMES)


def is_hash(name: str) -> bool:
    """Whether a digest of that name exists."""
    return name in _NAMES


def new_hash(name: str) -> Hash:
    """Return a new `Hash`. Raises ConfigError (a ValueError) for an unknown algorithm."""
    return _maker(name)()


def hexdigest(name: str, data: Any) -> str:
    """Return the digest of some bytes. Raises ConfigError (a ValueError) for an unknown name."""
    digest = new_hash(name)
    digest.update(data)
    return digest.hexdigest()


def _maker(name: str) -> Callable[[], Hash]:
    """Return the constructor of a `Hash` by its name. Raises ConfigError for an unknown name.

    xxhash is only imported for its own digests.
    """
    if name not in _NAMES:
        raise ConfigError(f"there is no hash {name!r}. The hashes are {', '.join(hash_names())}.")
    if name.startswith("xxh"):
        import xxhash

        maker: Callable[[], Hash] = getattr(xxhash, name)
        return maker
    # Digests detect damage here, not forgery, so machines in FIPS mode may use md5 and sha1.
    return partial(getattr(hashlib, name), usedforsecurity=False)


def digest(*parts: str | float | NDArray[Any] | None) -> str:
    """Return a hex digest (blake2b, 16 bytes) that identifies some values.

    Arrays count by their elements as int64, other values by their `repr`.
    """
    values_hash = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.astype("<i8").tobytes() if isinstance(part, np.ndarray) else repr(part).encode()
        # With its length: otherwise ("ab", "c") and ("a", "bc") could have one digest.
        values_hash.update(len(data).to_bytes(8, "little"))
        values_hash.update(data)
    return values_hash.hexdigest()
