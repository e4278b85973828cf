"""The table of an index as one binary file beside it, mapped instead of parsed.

    8 bytes   b"mdsindex"
    8 bytes   xxh3_64 of everything behind it, little-endian
    4 bytes   length of the header, little-endian
    header    JSON: version, size and digest of the index.json it was made from, the schemas as
              shard objects, and (name, dtype, offset, count) of each column
    columns   each at a multiple of 64 bytes

Its columns are views on the mapped file, so the processes of a node share its pages. It is a copy
and never the truth: when it is missing, damaged, implausible or of another index, the index is
parsed again and it is replaced. Its digest can be forged where its folder can be written, so its
numbers and names are checked as well (`table_check`). Opening costs one pass over index.json for
its digest, some 20 ms for each 100 MB.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import stat
from typing import Any

import numpy as np
import numpy.typing as npt

from mds.errors import NotFoundError, StoreError
from mds.index.shard_object import parse_shard
from mds.index.table import Index
from mds.process.mmaps import map_descriptor
from mds.storage.regular import open_regular

_MAGIC = b"mdsindex"
_VERSION = 1
_START = len(_MAGIC) + 8 + 4
# Below this the index is parsed as quickly as a sidecar is opened.
MIN_COPIED_BYTES = 256 << 10
# The header repeats each schema once, and columns begin at multiples of 64 bytes.
_ROOM = 64 << 10


def read_index(
    path: str, sidecar: str | None = None, *, min_copied_bytes: int = MIN_COPIED_BYTES
) -> Index:
    """Read the index.json at ``path``.

    ``sidecar`` is the path of a binary copy of the table. It is used if it was made from an index
    of the same size and digest, and written otherwise. An index of less than ``min_copied_bytes``
    is parsed without it.
    """
    if sidecar is None:
        return Index.parse(_read(path), path)
    size, digest = _digest(path)
    if size < min_copied_bytes:
        return Index.parse(_read(path), path)
    index = load(sidecar, size, digest)
    if index is None:
        index = Index.parse(_read(path), path)
        # If the folder is read-only, the next start only has to parse again.
        with contextlib.suppress(OSError, StoreError):
            save(index, sidecar, size)
    return index


def save(index: Index, path: str, size: int) -> None:
    """Write the table of an index.json of ``size`` bytes."""
    import xxhash

    from mds.index.emit import JsonShape
    from mds.storage.files import publish  # brings in what opening an index does not need

    columns, offset = [], 0
    for name in Index.COLUMNS:
        column: npt.NDArray[Any] = getattr(index, name)
        columns.append([name, column.dtype.str, offset, len(column)])
        offset += -(-column.nbytes // 64) * 64
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
    """Load the table at ``path``; return None if it is damaged, implausible or of another index."""
    import xxhash

    # A table is smaller than the text that it was made from, so a larger file is not one.
    data = map_file(path, max_bytes=size + _ROOM)
    if data is None or len(data) < _START or data[:8] != _MAGIC:
        return None
    view = memoryview(data)
    if xxhash.xxh3_64_intdigest(view[16:]) != int.from_bytes(view[8:16], "little"):
        return None
    # The digest detects damage, not malice: a hostile file may hold anything.
    try:
        start = _START + int.from_bytes(view[16:20], "little")
        header = json.loads(data[_START:start])
        if [header["version"], header["size"], header["digest"]] != [_VERSION, size, digest]:
            return None
        columns = _columns(view[start:], header["columns"])
        schemas = [parse_shard(json.loads(text), path)[0] for text in header["schemas"]]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        # FormatError is a ValueError: an encoding or compression that is not registered here.
        return None
    from mds.index.table_check import is_plausible

    return Index(columns, schemas, digest) if is_plausible(columns, schemas) else None


def _columns(data: memoryview, descriptors: list[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns by name; raise ValueError if they are not those of a table."""
    if [name for name, *_ in descriptors] != list(Index.COLUMNS):
        raise ValueError("other columns")
    columns = {}
    from mds.index.table_check import dtype_of

    for name, dtype, offset, count in descriptors:
        if (
            dtype != dtype_of(name)
            or type(offset) is not int
            or type(count) is not int
            or count < 0
        ):
            raise ValueError("another type, place or length")
        columns[name] = np.frombuffer(data, dtype, count, offset)
    return columns


def map_file(path: str, max_bytes: int) -> mmap.mmap | None:
    """Map a regular file of 1 to ``max_bytes`` bytes; return None if there is no such file."""
    # A pipe under this name must not block, and a symbolic link is never ours.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        handle = os.open(path, flags)
    except OSError:
        return None
    try:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode) or not 0 < state.st_size <= max_bytes:
            return None
        return map_descriptor(handle, state.st_size)
    except (OSError, ValueError):
        return None
    finally:
        os.close(handle)


def _read(path: str) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read()
    except FileNotFoundError as error:
        raise _missing(path) from error


def _digest(path: str) -> tuple[int, str]:
    import xxhash

    hasher, size = xxhash.xxh3_128(), 0
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)
    try:
        with open_regular(path) as file:
            while count := file.readinto(buffer):
                hasher.update(view[:count])
                size += count
    except FileNotFoundError as error:
        raise _missing(path) from error
    return size, hasher.hexdigest()


def _missing(path: str) -> NotFoundError:
    from mds.index.unfinished import unfinished

    folder = os.path.dirname(path) or "."
    reason = "has no index.json" if os.path.isdir(folder) else "does not exist"
    text = f"read {path}: the folder {folder} {reason}.{unfinished(folder)}"
    return NotFoundError(text, url=path, verb="read")
