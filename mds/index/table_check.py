"""Checks of a table that was not made from the text: every number and every name, by columns.

A sidecar lies in a folder that others may write to, so what it says is as good as what a stranger
says. A table that passes here can be wrong, but it cannot do more than a wrong index.json could.
Half a million shards take some 20 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mds.errors import IndexFileError
from mds.index.schema import ShardSchema
from mds.index.shard_object import LARGEST
from mds.storage.relative_name import INDEX_NAME, MAX_PLAIN_BYTES, RelativeName

Columns = dict[str, npt.NDArray[Any]]
Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

_SIZES = {
    "raw_data": "raw_size",
    "raw_meta": "raw_meta_size",
    "zip_data": "zip_size",
    "zip_meta": "zip_meta_size",
}
_DTYPES = {"schema_of": "<i4", "names": "|u1", "digests": "|u1"}
_WORD = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"
_NOT_PLAIN = (b'"', b"\\", b":")  # printable characters that a plain name cannot have
_NUL, _SLASH = 0, ord("/")
_SPACE, _DELETE = 0x20, 0x7F  # all between are printable
_BLOCK = 16_384
_may_begin = np.zeros(256, np.bool_)
_may_begin[list(_WORD)] = True


def is_plausible(columns: Columns, schemas: Sequence[ShardSchema]) -> bool:
    """Whether the columns are a table that parsing an index.json could have produced."""
    shards = len(columns["samples"])
    per_shard = ("samples", "schema_of", "name_ends", *_SIZES.values())
    if any(len(columns[name]) != shards for name in per_shard):
        return False
    facts, name_bytes, digest_bytes = _Facts(schemas), 0, 0
    # Block by block, so that the arrays of the check stay small and fit into the CPU's caches.
    for first in range(0, shards, _BLOCK):
        block = {name: columns[name][first : first + _BLOCK] for name in per_shard}
        if not _has_numbers(block, facts):
            return False
        ends, end = block["name_ends"], int(block["name_ends"][-1])
        if not name_bytes < end <= len(columns["names"]):
            return False
        names = columns["names"][name_bytes:end]
        if not _has_names(names, ends - name_bytes, facts.files[block["schema_of"]]):
            return False
        name_bytes = end
        digest_bytes += int(facts.digest_bytes[block["schema_of"]].sum())
    return name_bytes == len(columns["names"]) and digest_bytes == len(columns["digests"])


def dtype_of(column: str) -> str:
    """Return the dtype of a column, as numpy spells it."""
    return _DTYPES.get(column, "<i8")


class _Facts:
    """Facts of the schemas as arrays, one entry a schema."""

    def __init__(self, schemas: Sequence[ShardSchema]) -> None:
        self.last = len(schemas) - 1
        kinds = [[file.kind for file in schema.stored] for schema in schemas]
        self.is_split = np.array([schema.is_split for schema in schemas], np.bool_)
        self.files = np.array([len(each) for each in kinds], np.int64)
        self.lacks = {k: np.array([k not in each for each in kinds], np.bool_) for k in _SIZES}
        digits = [sum(d for file in s.stored for _, d in file.hashes) for s in schemas]
        self.digest_bytes = np.array(digits, np.int64) // 2


def _has_numbers(block: Columns, facts: _Facts) -> bool:
    which = block["schema_of"]
    if not _within(which, facts.last):
        return False
    if not all(_within(block[name], LARGEST) for name in ("samples", *_SIZES.values())):
        return False
    if int(block["raw_size"].max()) >= 1 << 32:
        return False
    room = block["raw_size"]
    if facts.is_split.any():
        room = np.where(facts.is_split[which], block["raw_meta_size"], room)
    if (4 * (block["samples"] + 2) > room).any():
        return False
    # A file that no shard has is the common case, and has a column of zeros.
    sizes_by_kind = [(kind, block[name]) for kind, name in _SIZES.items() if block[name].any()]
    return not any(sizes[facts.lacks[kind][which]].any() for kind, sizes in sizes_by_kind)


def _within(column: npt.NDArray[Any], maximum: int) -> bool:
    # Without its sign a number below zero is larger than every number that may be.
    return int(column.view(f"u{column.itemsize}").max()) <= maximum


def _has_names(names: Bytes, ends: Int64s, files: Int64s) -> bool:
    """Whether the names of a block are checked names, one for each file of its shards."""
    if not _within(ends, len(names)):
        return False
    lengths = np.diff(ends, prepend=0)
    if int(lengths.min()) < 1:
        return False
    packed = names.tobytes()
    breaks = _places(packed, names, _NUL)
    breaks_per_shard = np.diff(breaks.searchsorted(ends), prepend=0) if len(breaks) else 0
    if (files - 1 != breaks_per_shard).any():
        return False
    if _are_plain(packed, names, ends, breaks) and int(lengths.max()) <= MAX_PLAIN_BYTES:
        return True
    return _are_names(packed, ends.tolist())


def _places(packed: bytes, names: Bytes, letter: int) -> Int64s:
    # Most have none, and looking for one in bytes is six times as quick.
    return np.flatnonzero(names == letter) if letter in packed else np.zeros(0, np.int64)


def _are_plain(packed: bytes, names: Bytes, ends: Int64s, breaks: Int64s) -> bool:
    """Whether all names match PLAIN_NAME and none is the index's, without a look at each."""
    if int(names.max()) >= _DELETE or any(letter in packed for letter in _NOT_PLAIN):
        return False
    if np.count_nonzero(names < _SPACE) != len(breaks):
        return False
    slashes = _places(packed, names, _SLASH)
    starts = np.concatenate([[0], ends[:-1], breaks + 1, slashes + 1])
    # A part that begins with a letter is neither empty nor hidden.
    if (names[ends - 1] == _SLASH).any() or not _may_begin[names[starts]].all():
        return False
    # Few names have a "j", which is quicker to look for than all is to make small.
    if b"j" not in packed and b"J" not in packed:
        return True
    return INDEX_NAME.encode() not in packed.lower()


def _are_names(packed: bytes, ends: list[int]) -> bool:
    start = 0
    try:
        for end in ends:
            for name in packed[start:end].decode().split("\0"):
                RelativeName(name, error=IndexFileError)
            start = end
    except (UnicodeDecodeError, IndexFileError):
        return False
    return True
