"""Incremental output of a shard: its file is written while the shard is filled.

The header of a shard holds the offsets of all its samples, so as a rule it is known last. Where
all samples have one size, the header of a full shard is known first: the samples can go to the
file a mebibyte at a time, out of memory that stays in the processor's cache, and a writer holds
two of these instead of three shards. A shard that ends early, as the last one of a dataset, gets
another header; its samples are moved then.

Fresh memory was what made writing expensive: three shards of it a writer, 8 KB of which took 5 us
where the system had no huge pages left, as much as everything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from mds.storage.directory import Directory

#: Bytes that are gathered before they are written.
GATHERED = 1 << 20


class EarlyFile:
    """The data file of one shard, behind the header of a full one. Used by one thread at a time."""

    def __init__(self, directory: Directory, name: str, header: bytes) -> None:
        self._pending = directory.begin(name)
        self._header = header
        self._size = 0
        self.append(header)

    @property
    def name(self) -> str:
        """The name that the file is going to have."""
        return self._pending.name

    @property
    def fd(self) -> int:
        """Its descriptor."""
        return self._pending.fd

    def append(self, piece: bytes | memoryview) -> None:
        """Write a piece behind the others. Raises NoSpaceError and others of a disk."""
        with self._pending.telling():
            _write_at(self.fd, piece, self._size)
        self._size += len(piece)

    def complete(self, header: bytes, check: Callable[[], None]) -> int:
        """Put the right header before the samples, if it is another; the size of the file.

        ``check`` is called now and then and may raise.
        """
        planned, body = len(self._header), self._size - len(self._header)
        if header == self._header:
            return self._size
        with self._pending.telling():
            starts = range(0, body, GATHERED)
            if len(header) != planned:
                # From the side to which the samples move, so that none is overwritten unread.
                for start in starts if len(header) < planned else reversed(starts):
                    check()
                    piece = os.pread(self.fd, min(GATHERED, body - start), planned + start)
                    _write_at(self.fd, piece, len(header) + start)
            _write_at(self.fd, header, 0)
            os.ftruncate(self.fd, len(header) + body)
        return len(header) + body

    def publish(self) -> None:
        """Give the file its name."""
        self._pending.publish()

    def discard(self) -> None:
        """Remove the file, if it was not published."""
        self._pending.discard()


def _write_at(file: int, data: bytes | memoryview, at: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(file, memoryview(data)[done:] if done else data, at + done)
