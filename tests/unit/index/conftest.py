"""Shard objects as writers put them into an index."""

import pytest


def shard(number=0, *, zipped=False, hashes=(), **changes):
    """One mds shard object; digests are made of its number."""
    digits = {"sha1": 40, "xxh64": 16}

    def file(tail, size):
        digests = {name: f"{number:x}".rjust(digits[name], "0") for name in hashes}
        return {"basename": f"shard.{number:05}.{tail}", "bytes": size, "hashes": digests}

    return {
        "column_encodings": ["ndarray:int32:4", "str"],
        "column_names": ["tokens", "url"],
        "column_sizes": [16, None],
        "compression": "zstd:7" if zipped else None,
        "format": "mds",
        "hashes": [*hashes],
        "raw_data": file("mds", 5000 + number),
        "samples": 100 + number % 7,
        "size_limit": 1 << 26,
        "version": 2,
        "zip_data": file("mds.zstd", 1000 + number) if zipped else None,
        **changes,
    }


@pytest.fixture(scope="session")
def make_shard():
    return shard
