"""Digests are spelled as everybody spells them."""

import hashlib
import random

import pytest

from mds._shardfile.hashing import hash_names, hexdigest, is_hash, new_hash
from mds.errors import ConfigError


def test_there_are_seventeen():
    """The hashes of the format, no more: an index with others could not be checked elsewhere."""
    assert len(hash_names()) == 17
    assert all(map(is_hash, hash_names()))
    assert hash_names() == sorted(hash_names())


@pytest.mark.parametrize("name", hash_names())
def test_pieces_make_the_same_digest(name):
    """Bytes in pieces have the digest of the whole, in lower-case hex."""
    data = random.Random(name).randbytes(100_000)
    digest = new_hash(name)
    for start in range(0, len(data), 33_333):
        digest.update(memoryview(data)[start : start + 33_333])
    assert digest.hexdigest() == hexdigest(name, data)
    assert digest.hexdigest() == digest.hexdigest().lower()
    if hasattr(hashlib, name):
        assert hexdigest(name, data) == hashlib.new(name, data).hexdigest()


def test_empty_digests_of_xxhash():
    """Digests of nothing, as the specification of xxHash gives them."""
    assert hexdigest("xxh32", b"") == "02cc5d05"
    assert hexdigest("xxh64", b"") == "ef46db3751d8e999"
    assert hexdigest("xxh3_64", b"") == "2d06800538d394c2"
    assert hexdigest("xxh128", b"") == "99aa06d3014798d86001c324468d497f"
    assert hexdigest("xxh3_128", b"") == hexdigest("xxh128", b"")


@pytest.mark.parametrize("name", ["shake_128", "nope", "", "SHA1", "__class__"])
def test_others_are_refused(name):
    """A name that is no hash is a ValueError that lists those that are."""
    assert not is_hash(name)
    with pytest.raises(ConfigError, match="xxh3_64"):
        new_hash(name)
