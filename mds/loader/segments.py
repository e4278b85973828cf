"""Shared memory between a worker process and its trainer: segments that are used again.

The memory is a file without a name (memfd, or a temporary file removed at birth), one for each
worker, so nothing is left when either process is killed, /dev/shm may be as small as Docker makes
it, and a worker takes one descriptor whatever it sends. The worker cuts it into segments and lends
one with each message; the trainer gives it back, by a byte at the file's beginning, when the last
tensor on it is gone. So a handful serves an epoch: pages that are new each time, and a file, a
socket and a map for each tensor, were most of what a batch cost. A trainer that keeps batches has
more segments made; when it lets go of them, all but a few give their memory back.

Every page is asked for before it is written: where memory is short, the system says so there, and
not by SIGBUS. Then ``take`` gives None, and the message goes through the pipe.
"""

from __future__ import annotations

import itertools
import mmap
import os
import weakref
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds.process.mmaps import map_descriptor, open_nameless

if TYPE_CHECKING:
    import numpy.typing as npt

    Memory = npt.NDArray[np.uint8]

MAX_SEGMENTS = 1 << 14  # of a file; a byte each tells whether it is lent
MIN_SEGMENT_BYTES = 64 << 10
MAX_FREE_SEGMENTS = 8  # that keep their memory
MAX_KEPT_MAPS = 64  # of a file, in the trainer
_MAX_WASTE = 4  # times the size that was asked for
_TAKEN = 1

_names = itertools.count()


class Segment(NamedTuple):
    """A segment: its number, and its bytes in the file."""

    number: int
    start: int
    size: int


class SegmentFile:
    """An anonymous file of segments, made by the trainer for one worker; a context manager.

    It goes to the worker as an inherited descriptor, by any way of starting processes.
    ``name``: a number that no other file of the trainer has. Raises OSError where the system gives
    no such file.
    """

    def __init__(self) -> None:
        self._take_over(next(_names), open_nameless("mds-batches"))

    def _take_over(self, name: int, descriptor: int) -> None:
        self.name, self.descriptor = name, descriptor
        self.close = weakref.finalize(self, os.close, descriptor)
        if os.fstat(descriptor).st_size < MAX_SEGMENTS:
            _reserve(descriptor, 0, MAX_SEGMENTS)
        self.lent = map_descriptor(descriptor, MAX_SEGMENTS, is_shared=True)

    def map(self, place: Segment) -> mmap.mmap:
        """Map a segment to memory."""
        return map_descriptor(self.descriptor, place.size, start=place.start, is_shared=True)

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        # Only while a process is being started; afterwards nothing needs another copy.
        return _inherit, (self.name, reduction.DupFd(self.descriptor))


def _inherit(name: int, descriptor: Any) -> SegmentFile:
    file = SegmentFile.__new__(SegmentFile)
    file._take_over(name, descriptor.detach())
    return file


class SegmentPool:
    """The free list of a worker's segments."""

    def __init__(self, file: SegmentFile) -> None:
        self._file = file
        self._lent = np.frombuffer(file.lent, np.uint8)
        self._places: list[Segment] = []
        self._maps: dict[int, mmap.mmap] = {}  # of the segments that have memory
        self._end = MAX_SEGMENTS

    @property
    def name(self) -> int:
        """Name of the file."""
        return self._file.name

    def take(self, size: int) -> tuple[Segment, memoryview] | None:
        """Lend a segment of at least ``size`` bytes; return None if there is no memory."""
        free = np.flatnonzero(self._lent[: len(self._places)] == 0).tolist()
        max_size = max(_MAX_WASTE * size, MIN_SEGMENT_BYTES)
        fitting = [n for n in free if size <= self._places[n].size <= max_size]
        with_memory = [n for n in free if n in self._maps]
        # One that has its pages, else one that had them, else a new one; the smallest of each.
        fitting.sort(key=lambda n: (n not in self._maps, self._places[n].size))
        number = fitting[0] if fitting else self._add(_size_class(size))
        for other in with_memory[MAX_FREE_SEGMENTS:]:
            if other != number:
                self._shrink(other)
        if number is None:
            return None
        try:
            memory = self._memory(number)
        except OSError:
            if not fitting:  # the new one is of no use
                self._end = self._places.pop().start
            return None
        self._lent[number] = _TAKEN
        return self._places[number], memoryview(memory)

    def _add(self, size: int) -> int | None:
        number = len(self._places)
        if number == MAX_SEGMENTS:
            return None
        self._places.append(Segment(number, self._end, size))
        self._end += size
        return number

    def _memory(self, number: int) -> mmap.mmap:
        memory = self._maps.get(number)
        if memory is None:
            place = self._places[number]
            _reserve(self._file.descriptor, place.start, place.size)
            memory = self._maps[number] = self._file.map(place)
        return memory

    def _shrink(self, number: int) -> None:
        """Give the memory of a free segment to the system; its place in the file stays."""
        memory = self._maps.pop(number)
        remove = getattr(mmap, "MADV_REMOVE", None)
        if remove is not None:
            memory.madvise(remove)

    def __repr__(self) -> str:
        lent = int(self._lent[: len(self._places)].sum())
        size = sum(self._places[n].size for n in self._maps)
        return f"<SegmentPool: {len(self._maps)} segments of {size:,} bytes, {lent} lent>"


class SegmentReader:
    """Trainer's side of a file: segments as memory, given back with their last view."""

    def __init__(self, file: SegmentFile) -> None:
        self._file = file
        self._maps: dict[int, mmap.mmap] = {}
        self._borrowed: dict[int, weakref.ref[Memory]] = {}
        self._owner = os.getpid()
        _readers[file.name] = self

    def borrow(self, place: Segment) -> Memory:
        """Return the bytes of a segment, which stays borrowed until the last view on it is gone."""
        number = place.number
        mapped = self._maps.get(number)
        if mapped is None:
            mapped = self._maps[number] = self._file.map(place)
        memory = np.frombuffer(mapped, np.uint8)

        def give_back(_: object) -> None:
            # A forked child holds copies of the references, but what it drops stays in use.
            if self._owner == _getpid():
                del self._borrowed[number]
                if len(self._maps) > MAX_KEPT_MAPS:
                    self._maps.pop(number, None)
                self._file.lent[number] = 0

        self._borrowed[number] = weakref.ref(memory, give_back)
        return memory

    def __repr__(self) -> str:
        return f"<SegmentReader: {len(self._borrowed)} of {len(self._maps)} segments in use>"


# By the name of their file. A message finds its reader when it is unpickled.
_readers: weakref.WeakValueDictionary[int, SegmentReader] = weakref.WeakValueDictionary()


def find_reader(name: int) -> SegmentReader:
    """Return the reader of a file in this process."""
    return _readers[name]


_getpid = os.getpid


def _size_class(size: int) -> int:
    """Return the size of a segment for ``size`` bytes: four sizes for each power of two."""
    step = max(MIN_SEGMENT_BYTES, 1 << max(0, size.bit_length() - 3))
    return -(-size // step) * step


def _reserve(descriptor: int, start: int, size: int) -> None:
    """Reserve the pages of a stretch of a file. Raises OSError if the system has none."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size)
        return
    zeros = bytes(1 << 20)
    for offset in range(start, start + size, len(zeros)):
        os.pwrite(descriptor, zeros[: start + size - offset], offset)
