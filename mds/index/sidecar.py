"""The table of an index as one binary file beside it, mapped instead of parsed.

    8 bytes   b"mdsindex"
    8 bytes   xxh3_64 of everything behind it, little-endian
    4 bytes   length of the header, little-endian
    header    JSON: version, size and digest of the index.json it was made from, the schemas as
              shard objects, and (name, dtype, offset, count) of each column
    columns   each at a multiple of 64 bytes

Its columns are views on the mapped file, so the processes of a node share its pages. It is a copy
and never the truth: when it is missing, damaged or of another index, the index is parsed again.
Opening costs one pass over index.json for its digest, some 20 ms for each 100 MB.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from mds.errors import FormatError, NotFoundError, StoreError
from mds.index.jsonshape import JsonShape
from mds.index.objects import parse_shard
from mds.index.table import Index

_MAGIC = b"mdsindex"
_VERSION = 1
_START = len(_MAGIC) + 8 + 4
# Below this the index is parsed as quickly as a sidecar is opened.
_WORTHWHILE = 256 << 10


def read_through(path: str, sidecar: str | None) -> Index:
    """Index.read: from the sidecar if it is right, else from the text, with a new sidecar."""
    if sidecar is None:
        return Index.parse(_read(path), path)
    size, digest = _digest(path)
    if size < _WORTHWHILE:
        return Index.parse(_read(path), path)
    index = load(sidecar, size, digest)
    if index is None:
        index = Index.parse(_read(path), path)
        # A folder that cannot be written to costs the next start its time, nothing else.
        with contextlib.suppress(OSError, StoreError):
            save(index, sidecar, size)
    return index


def save(index: Index, path: str, size: int) -> None:
    """Write the table of an index.json of ``size`` bytes."""
    import xxhash

    from mds.storage.files import publish  # brings in what opening an index does not need

    columns, at = [], 0
    for name in Index.COLUMNS:
        column: npt.NDArray[Any] = getattr(index, name)
        columns.append([name, column.dtype.str, at, len(column)])
        at += -(-column.nbytes // 64) * 64
    header = json.dumps(
        {
            "version": _VERSION,
            "size": size,
            "digest": index.fingerprint(),
            "schemas": [JsonShape(schema).example() for schema in index.schemas],
            "columns": columns,
        }
    ).encode()
    header += b" " * (-(_START + len(header)) % 64)
    start = len(header).to_bytes(4, "little") + header
    check = xxhash.xxh3_64(start)
    with publish(path) as temporary, open(temporary, "wb") as file:
        file.write(_MAGIC + bytes(8) + start)
        for name in Index.COLUMNS:
            column = np.ascontiguousarray(getattr(index, name))
            data = column.view(np.uint8).data
            for piece in (data, bytes(-len(data) % 64)):
                check.update(piece)
                file.write(piece)
        file.seek(len(_MAGIC))
        file.write(check.intdigest().to_bytes(8, "little"))


def load(path: str, size: int, digest: str) -> Index | None:
    """The table at ``path``, or None unless it is whole and of that very index.json."""
    import xxhash

    try:
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # not there, or empty
        return None
    if len(data) < _START or data[:8] != _MAGIC:
        return None
    view = memoryview(data)
    if xxhash.xxh3_64_intdigest(view[16:]) != int.from_bytes(view[8:16], "little"):
        return None
    start = _START + int.from_bytes(view[16:20], "little")
    header = json.loads(data[_START:start])
    if [header["version"], header["size"], header["digest"]] != [_VERSION, size, digest]:
        return None
    columns = {
        name: np.frombuffer(data, dtype, count, start + at)
        for name, dtype, at, count in header["columns"]
    }
    try:
        schemas = [parse_shard(json.loads(text), path)[0] for text in header["schemas"]]
    except FormatError:  # an encoding or compression that is not registered here
        return None
    return Index(columns, schemas, digest)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        raise _missing(path) from error


def _digest(path: str) -> tuple[int, str]:
    import xxhash

    hasher, size = xxhash.xxh3_128(), 0
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)
    try:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                hasher.update(view[:count])
                size += count
    except FileNotFoundError as error:
        raise _missing(path) from error
    return size, hasher.hexdigest()


def _missing(path: str) -> NotFoundError:
    folder = os.path.dirname(path) or "."
    reason = "has no index.json" if os.path.isdir(folder) else "does not exist"
    return NotFoundError(f"read {path}: the folder {folder} {reason}.", url=path, verb="read")
