"""Integers in a file, which are believed only after their digest was right and they are in range.

    ids       integers of one kind, filled up with zeros to a multiple of 8 bytes
    digests   xxh3_64 of each 256 KiB of what is before, 8 bytes each, little-endian
    8 bytes   b"mdsorder"
    8 bytes   xxh3_64 of a key and the digests, little-endian

A power cut leaves files of the right size with zeros in them, and a file may have the name of
another. The digests are checked when the file is opened, each block when it is first read: 256 KiB
take 30 us, the look at the range of their ids included, so an epoch of 10**9 ids costs a process
half a second, spread over the epoch.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from mds.errors import CorruptError
from mds.process.mmaps import map_descriptor
from mds.storage.control_files import open_control_file

if TYPE_CHECKING:
    import numpy.typing as npt

    Ids = npt.NDArray[np.int64]

BLOCK = 1 << 18  # bytes
_MAGIC = b"mdsorder"
_DROP_EVERY = 16  # reads after which mapped pages are given back; each touches a few megabytes


def file_size(size: int) -> int:
    """The bytes of a file with ``size`` bytes of ids."""
    padded = -(-size // 8) * 8
    return padded + 8 * -(-padded // BLOCK) + 16


def write_ids(file: BinaryIO, windows: Iterable[npt.NDArray[Any]], key: str) -> None:
    """Write ids that come in windows, and their digests behind them."""
    import xxhash

    digests, hasher, size = bytearray(), xxhash.xxh3_64(), 0

    def add(data: memoryview) -> None:
        nonlocal size
        file.write(data)
        while data:
            room = BLOCK - size % BLOCK
            hasher.update(data[:room])
            size += len(data[:room])
            if size % BLOCK == 0:
                digests.extend(hasher.intdigest().to_bytes(8, "little"))
                hasher.reset()
            data = data[room:]

    for window in windows:
        add(window.view(np.uint8).data)
    add(memoryview(bytes(-size % 8)))
    if size % BLOCK:
        digests.extend(hasher.intdigest().to_bytes(8, "little"))
    file.write(digests + _MAGIC + _seal(key, digests).to_bytes(8, "little"))


class CheckedIds:
    """The ids of a file, mapped; pages that were read are given back now and then.

    Every id is at least 0 and less than ``top``. Raises CorruptError where the file is damaged,
    when it is opened or when an id is asked for.
    """

    def __init__(self, path: str, key: str, size: int, kind: np.dtype[Any], top: int) -> None:
        self.path, self._top = path, top
        descriptor = open_control_file(path, os.O_RDONLY)
        try:
            state = os.fstat(descriptor)
            if state.st_size != file_size(size):
                raise self._damage(f"it has {state.st_size} bytes and should have more or fewer")
            self._map = map_descriptor(descriptor, state.st_size)
        finally:
            os.close(descriptor)
        self.inode = state.st_ino
        self._ids = np.frombuffer(self._map, kind, size // kind.itemsize)
        self._data = memoryview(self._map)[: -(-size // 8) * 8]
        digests = memoryview(self._map)[len(self._data) : -16]
        end = self._map[-16:]
        if end != _MAGIC + _seal(key, digests).to_bytes(8, "little"):
            raise self._damage("its digests are not right")
        self._digests = np.frombuffer(digests, "<u8")
        self._is_right = np.zeros(len(self._digests), np.bool_)
        self._reads = 0

    def take(self, places: Ids) -> Ids:
        """The integers at places, int64."""
        if len(places):
            self._check(places)
        out = self._ids[places].astype(np.int64)
        self._reads += 1
        if self._reads % _DROP_EVERY == 0 and sys.platform == "linux":
            # They stay in the page cache, and no longer count as this process's memory.
            self._map.madvise(mmap.MADV_DONTNEED)
        return out

    def _check(self, places: Ids) -> None:
        """Check the blocks of places that were not read yet."""
        per_block = BLOCK // self._ids.itemsize
        first, last = int(places.min()) // per_block, int(places.max()) // per_block
        if self._is_right[first : last + 1].all():
            return
        for block in np.unique(places // per_block).tolist():
            if not self._is_right[block]:
                self._check_block(block, per_block)

    def _check_block(self, block: int, per_block: int) -> None:
        import xxhash

        data = self._data[block * BLOCK : (block + 1) * BLOCK]
        if xxhash.xxh3_64_intdigest(data) != int(self._digests[block]):
            raise self._damage(f"the digest of its block {block} is not right")
        ids = self._ids[block * per_block : (block + 1) * per_block]
        if len(ids) and (int(ids.max()) >= self._top or int(ids.min()) < 0):
            raise self._damage(f"its block {block} has ids of samples that there are not")
        self._is_right[block] = True

    def _damage(self, reason: str) -> CorruptError:
        return CorruptError(f"{self.path}: {reason}.", url=self.path, verb="read")


def _seal(key: str, digests: bytearray | memoryview) -> int:
    import xxhash

    return int(xxhash.xxh3_64_intdigest(key.encode() + bytes(digests)))
