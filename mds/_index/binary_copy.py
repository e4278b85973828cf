"""A binary copy of the table of an index, which is mapped instead of parsed.

    8 bytes   b"mdsindex"
    8 bytes   xxh3_64 of everything that follows, little-endian
    4 bytes   length of the header, little-endian
    header    JSON: version, size and digest of the index.json it was made from, the schemas as
              shard objects, and (name, dtype, offset, count) of each column
    columns   each at a multiple of 64 bytes

Its columns are views of the mapped file, so the processes of a node share its pages. If the copy is
missing, damaged, implausible or of another index, the index is parsed again and the copy replaced.
Any process that can write to its folder can forge its digest, so its numbers and names are checked
as well (`is_plausible`). Opening a copy costs one pass over index.json for its digest, about 20 ms
for each 100 MB.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mds._index.parse import COLUMN_DTYPES
from mds._index.shard_object import LARGEST, JsonShape, ShardSchema, parse_shard
from mds._process.mmaps import map_descriptor
from mds.errors import IndexFileError
from mds.storage._relative_name import INDEX_NAME, MAX_PLAIN_BYTES, RelativeName

_MAGIC = b"mdsindex"
_VERSION = 1
_START = len(_MAGIC) + 8 + 4
# Bytes by which a copy may exceed its index: each schema is repeated, columns are aligned.
_MOST_EXTRA = 64 << 10

Columns = dict[str, npt.NDArray[Any]]
Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

_SIZES = {
    "raw_data": "raw_size",
    "raw_meta": "raw_meta_size",
    "zip_data": "zip_size",
    "zip_meta": "zip_meta_size",
}
_WORD = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"
_NOT_PLAIN = (b'"', b"\\", b":")  # printable characters that a plain name cannot have
_NUL, _SLASH = 0, ord("/")
_SPACE, _DELETE = 0x20, 0x7F  # all between are printable
_BLOCK = 16_384  # shards that are checked together
# Whether a part of a plain name may begin with each byte.
_may_begin = np.zeros(256, np.bool_)
_may_begin[list(_WORD)] = True


def save(
    columns: Columns, schemas: Sequence[ShardSchema], digest: str, path: str, size: int
) -> None:
    """Write the binary copy of a table to a file.

    - ``columns`` (Columns): The columns of the table, by the names of `COLUMN_DTYPES`.
    - ``schemas`` (Sequence[ShardSchema]): The schemas of the table.
    - ``digest``, ``size``: xxh3_128 (hex) and bytes of the index.json, by which `load` recognises
      whether the copy belongs to it.
    - ``path`` (str): The file to write.
    """
    import xxhash

    from mds.storage._files import publish  # brings in what opening an index does not need

    # Columns are padded to multiples of 64 bytes; -n % 64 is the number of bytes that n lacks.
    descriptors, offset = [], 0  # (name, dtype, offset, count) of each column
    for name in COLUMN_DTYPES:
        column = columns[name]
        descriptors.append([name, column.dtype.str, offset, len(column)])
        offset += -(-column.nbytes // 64) * 64
    header = json.dumps(
        {
            "version": _VERSION,
            "size": size,
            "digest": digest,
            "schemas": [JsonShape(schema).example() for schema in schemas],
            "columns": descriptors,
        }
    ).encode()
    header += b" " * (-(_START + len(header)) % 64)  # so that the first column is aligned
    start = len(header).to_bytes(4, "little") + header
    check = xxhash.xxh3_64(start)
    with publish(path) as temporary, open(temporary, "wb") as file:
        file.write(_MAGIC + bytes(8) + start)  # the digest replaces these zeros at the end
        for name in COLUMN_DTYPES:
            column = np.ascontiguousarray(columns[name])
            data = column.view(np.uint8).data
            for piece in (data, bytes(-len(data) % 64)):
                check.update(piece)
                file.write(piece)
        file.seek(len(_MAGIC))
        file.write(check.intdigest().to_bytes(8, "little"))


def load(path: str, size: int, digest: str) -> tuple[Columns, list[ShardSchema]] | None:
    """Return the columns and the schemas in the copy at ``path``.

    ``size`` (bytes) and ``digest`` (xxh3_128, in hex) are those of index.json now. Returns None if
    the copy is missing, damaged, implausible, or was made from another index.
    """
    import xxhash

    # A copy is smaller than the text that it was made from, except for schemas and padding. So a
    # larger file is no copy.
    data = map_file(path, max_bytes=size + _MOST_EXTRA)
    if data is None or len(data) < _START or data[:8] != _MAGIC:
        return None
    view = memoryview(data)
    if xxhash.xxh3_64_intdigest(view[16:]) != int.from_bytes(view[8:16], "little"):
        return None
    # The digest detects damage, not malice: a hostile file may contain anything.
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
    return (columns, schemas) if is_plausible(columns, schemas) else None


def _columns(data: memoryview, descriptors: list[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns by name, as views of ``data``. Raises ValueError for wrong descriptors.

    A descriptor is [name, dtype, offset in ``data``, number of elements].
    """
    if [name for name, *_ in descriptors] != list(COLUMN_DTYPES):
        raise ValueError("the columns differ")
    columns = {}
    for name, dtype, offset, count in descriptors:
        if (
            dtype != COLUMN_DTYPES[name]
            or type(offset) is not int
            or type(count) is not int
            or count < 0
        ):
            raise ValueError("the type, position or length of a column differs")
        columns[name] = np.frombuffer(data, dtype, count, offset)
    return columns


def map_file(path: str, max_bytes: int) -> mmap.mmap | None:
    """Map a regular file of 1 to ``max_bytes`` bytes; return None if there is no such file."""
    # Opening a pipe of this name must not block, and a symbolic link is not a file of ours.
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


def is_plausible(columns: Columns, schemas: Sequence[ShardSchema]) -> bool:
    """Whether the columns are a table that parsing an index.json could have produced.

    Other users may be able to write to the folder of a copy, so every number and name is checked. A
    table that passes may be wrong, but can do no more harm than a wrong index.json. Half a
    million shards take about 20 ms.
    """
    shards = len(columns["samples"])
    per_shard = ("samples", "schema_of", "name_ends", *_SIZES.values())
    if any(len(columns[name]) != shards for name in per_shard):
        return False
    facts = _Facts(schemas)
    name_bytes, digest_bytes = 0, 0  # of the blocks that were checked
    # Block by block, so that the arrays of the check stay small and fit into the CPU's caches.
    for first in range(0, shards, _BLOCK):
        block = {name: columns[name][first : first + _BLOCK] for name in per_shard}
        if not _has_numbers(block, facts):
            return False
        # The names of the block are the bytes from the last block's end up to its own.
        ends, end = block["name_ends"], int(block["name_ends"][-1])
        if not name_bytes < end <= len(columns["names"]):
            return False
        names = columns["names"][name_bytes:end]
        if not _has_names(names, ends - name_bytes, facts.files[block["schema_of"]]):
            return False
        name_bytes = end
        digest_bytes += int(facts.digest_bytes[block["schema_of"]].sum())
    return name_bytes == len(columns["names"]) and digest_bytes == len(columns["digests"])


class _Facts:
    """Facts about the schemas, to check shards by the number of their schema.

    ``last`` is the largest number of a schema. The others are arrays with one entry a schema:

    - ``is_split``: whether its shards have a meta file, which then has the offsets.
    - ``files``: number of files of a shard. ``digest_bytes``: bytes of all digests of a shard.
    - ``lacks``: a dict with such an array for each kind of file, which tells whether shards have no
      such file.
    """

    def __init__(self, schemas: Sequence[ShardSchema]) -> None:
        self.last = len(schemas) - 1
        kinds = [[file.kind for file in schema.stored] for schema in schemas]
        self.is_split = np.array([schema.is_split for schema in schemas], np.bool_)
        self.files = np.array([len(kinds_of_schema) for kinds_of_schema in kinds], np.int64)
        self.lacks = {
            kind: np.array([kind not in kinds_of_schema for kinds_of_schema in kinds], np.bool_)
            for kind in _SIZES
        }
        # Two hex digits make a byte.
        digits = [
            sum(count for file in schema.stored for _, count in file.hashes) for schema in schemas
        ]
        self.digest_bytes = np.array(digits, np.int64) // 2


def _has_numbers(block: Columns, facts: _Facts) -> bool:
    """Whether the counts and sizes of a block of shards are possible, and fit their schemas.

    ``block`` has the entries of these shards in every column with one entry a shard, by name.
    """
    schema_numbers = block["schema_of"]
    if not _within(schema_numbers, facts.last):
        return False
    if not all(_within(block[name], LARGEST) for name in ("samples", *_SIZES.values())):
        return False
    if int(block["raw_size"].max()) >= 1 << 32:  # offsets have 32 bits
        return False
    # The file with the offsets must have room for the count, an offset of each sample and the end,
    # of four bytes each. It is the data file, or the meta file of a split format.
    offsets_size = block["raw_size"]
    if facts.is_split.any():
        is_split = facts.is_split[schema_numbers]
        offsets_size = np.where(is_split, block["raw_meta_size"], offsets_size)
    if (4 * (block["samples"] + 2) > offsets_size).any():
        return False
    # A file that a shard lacks must have the size 0. Most columns are zeros, and need no check.
    sizes_by_kind = [(kind, block[name]) for kind, name in _SIZES.items() if block[name].any()]
    return not any(sizes[facts.lacks[kind][schema_numbers]].any() for kind, sizes in sizes_by_kind)


def _within(column: npt.NDArray[Any], maximum: int) -> bool:
    """Whether all integers of a column are from 0 to ``maximum``."""
    # As an unsigned number a negative one is larger than every allowed number.
    return int(column.view(f"u{column.itemsize}").max()) <= maximum


def _has_names(names: Bytes, ends: Int64s, files: Int64s) -> bool:
    """Whether the names of a block are valid, with one name for each file of its shards.

    - ``names`` (uint8): The bytes of all names, joined by NUL within a shard and without between.
    - ``ends`` (int64, shape (shards,)): Byte at which the names of each shard end.
    - ``files`` (int64, shape (shards,)): Number of files of each shard.
    """
    if not _within(ends, len(names)):
        return False
    lengths = np.diff(ends, prepend=0)  # bytes of the names of each shard
    if int(lengths.min()) < 1:
        return False
    # A shard with n files must have n - 1 NUL bytes.
    packed = names.tobytes()
    breaks = _places(packed, names, _NUL)
    breaks_per_shard = np.diff(breaks.searchsorted(ends), prepend=0) if len(breaks) else 0
    if (files - 1 != breaks_per_shard).any():
        return False
    # Check plain names all at once, and others one by one, which takes far longer.
    if _are_plain(packed, names, ends, breaks) and int(lengths.max()) <= MAX_PLAIN_BYTES:
        return True
    return _are_names(packed, ends.tolist())


def _places(packed: bytes, names: Bytes, letter: int) -> Int64s:
    """Return the positions of a byte in names, which are given as bytes and as an array."""
    # Most blocks have none, and searching bytes is six times as fast.
    return np.flatnonzero(names == letter) if letter in packed else np.zeros(0, np.int64)


def _are_plain(packed: bytes, names: Bytes, ends: Int64s, breaks: Int64s) -> bool:
    """Whether all names match PLAIN_NAME and none is that of the index, checked all at once.

    ``packed`` and ``names`` are the same bytes. A shard's names end at ``ends``; within a shard
    they are separated by the NUL bytes at ``breaks``.
    """
    if int(names.max()) >= _DELETE or any(letter in packed for letter in _NOT_PLAIN):
        return False
    if np.count_nonzero(names < _SPACE) != len(breaks):  # control characters other than NUL
        return False
    slashes = _places(packed, names, _SLASH)
    # Where each name and each further part of a path begins. A part that begins with a letter is
    # not empty, not hidden and not "..".
    starts = np.concatenate([[0], ends[:-1], breaks + 1, slashes + 1])
    if (names[ends - 1] == _SLASH).any() or not _may_begin[names[starts]].all():
        return False
    # Look for index.json in any case. Few names contain a "j", and looking for this letter is
    # faster than converting all to lower case.
    if b"j" not in packed and b"J" not in packed:
        return True
    return INDEX_NAME.encode() not in packed.lower()


def _are_names(packed: bytes, ends: list[int]) -> bool:
    """Whether all names are valid, checked one by one.

    ``packed`` are the names of all shards, and ``ends`` the byte at which those of each shard end.
    """
    start = 0
    try:
        for end in ends:
            for name in packed[start:end].decode().split("\0"):
                RelativeName(name, error=IndexFileError)
            start = end
    except (UnicodeDecodeError, IndexFileError):
        return False
    return True
