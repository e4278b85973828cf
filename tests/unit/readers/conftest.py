"""Datasets made from encodings and layout alone, so that reading is tested without the writers."""

import gc
import json
import struct
from itertools import pairwise

import numpy as np
import pytest

from mds._index.table import read_index
from mds._readers import open_reader
from mds._shardfile.layout import config_bytes, pack_header, shard_name
from mds.encodings import parse_encoding

MIXED = {
    "array": "ndarray:int16:3",
    "blob": "bytes",
    "flag": "bool",
    "half": "float16",
    "json": "json",
    "number": "int",
    "text": "str",
    "tokens": "ndarray:int32",
    "wide": "uint64",
}
FIXED = {"grid": "ndarray:float32:2,3", "id": "int", "label": "int16", "tokens": "ndarray:int32:5"}


def mixed_sample(i):
    return {
        "array": np.arange(3, dtype=np.int16) - i,
        "blob": bytes(range(i % 7)),
        "flag": i % 3 == 0,
        "half": np.float16(i / 3),
        "json": {"n": i, "é": [None, 1.5, "x" * (i % 4)]},
        "number": -(i**5),
        "text": "é" * (i % 5) + str(i),
        "tokens": np.arange(1 + i % 6, dtype=np.int32) * i,
        "wide": np.uint64(2**64 - 1 - i),
    }


def fixed_sample(i):
    return {
        "grid": np.arange(6, dtype=np.float32).reshape(2, 3) / (i + 1),
        "id": i * 10**12,
        "label": np.int16(i),
        "tokens": np.arange(5, dtype=np.int32) + i,
    }


def pack(columns, samples):
    """The bytes of an mds shard of these samples, and its entry in an index without the name."""
    names = sorted(columns)
    encodings = [parse_encoding(columns[name]) for name in names]
    sizes = [encoding.size for encoding in encodings]
    config = {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": None,
        "column_names": names,
        "column_encodings": [columns[name] for name in names],
        "column_sizes": sizes,
    }
    rows = []
    for sample in samples:
        values = [e.pack(sample[n]) for n, e in zip(names, encodings, strict=True)]
        words = [len(v) for v, size in zip(values, sizes, strict=True) if size is None]
        rows.append(struct.pack(f"<{len(words)}I", *words) + b"".join(values))
    data = b"".join([pack_header([len(row) for row in rows], config_bytes(config)), *rows])
    return data, {**config, "samples": len(rows), "zip_data": None}


def write_dataset(folder, columns, shards):
    """A folder with one mds shard for each list of samples."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, samples in enumerate(shards):
        data, entry = pack(columns, samples)
        name = shard_name(number, "mds")
        (folder / name).write_bytes(data)
        entry["raw_data"] = {"basename": name, "bytes": len(data), "hashes": {}}
        entries.append(entry)
    text = json.dumps({"shards": entries, "version": 2}, sort_keys=True)
    (folder / "index.json").write_text(text)
    return folder


def readers_of(folder, **options):
    """A reader for each shard of a folder."""
    index = read_index(str(folder / "index.json"))
    return [open_reader(str(folder), info, **options) for info in index]


def same(a, b):
    """Equality of decoded values that looks into arrays and tells types apart."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


class Kit:
    """What the tests of readers share."""

    MIXED, FIXED = MIXED, FIXED
    mixed_sample, fixed_sample = staticmethod(mixed_sample), staticmethod(fixed_sample)
    pack, write, readers = staticmethod(pack), staticmethod(write_dataset), staticmethod(readers_of)
    same = staticmethod(same)

    @staticmethod
    def mixed(folder, *counts):
        """Mixed samples 0, 1, ... in shards of these counts."""
        return write_dataset(folder, MIXED, Kit._split(mixed_sample, counts))

    @staticmethod
    def fixed(folder, *counts):
        """Fixed-width samples 0, 1, ... in shards of these counts."""
        return write_dataset(folder, FIXED, Kit._split(fixed_sample, counts))

    @staticmethod
    def _split(make, counts):
        ends = np.cumsum([0, *counts]).tolist()
        return [[make(i) for i in range(a, b)] for a, b in pairwise(ends)]


@pytest.fixture(scope="session")
def kit():
    return Kit


@pytest.fixture
def no_garbage():
    """Nothing that earlier tests have left is let go of in the middle of this one."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
