"""Shared memory between a worker process and its trainer, in segments that are used again.

Each worker has a file without a name (memfd, or a temporary file that is deleted at once). So
nothing remains when a process is killed, a small /dev/shm does not matter, and a worker takes one
descriptor whatever it sends. The worker cuts the file into segments and lends one with each
message. The trainer returns it, by a byte at the beginning of the file, when the last tensor on it
is deleted:

    | a byte for each segment: 1 if lent | segment 0 | segment 1 | ...

So a few segments serve an epoch. Without them, new pages, and a file, a socket and a map for each
tensor, were most of the cost of a batch. If a trainer keeps batches, more segments are made; after
it has deleted them, all but a few return their memory to the system.

Pages are reserved before they are written, so that the system reports a lack of memory as an error
and not by SIGBUS. ``take`` then returns None, and the message is sent through the pipe.
"""

from __future__ import annotations

import itertools
import mmap
import os
import weakref
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds._process.mmaps import map_descriptor, open_nameless

if TYPE_CHECKING:
    import numpy.typing as npt

    Memory = npt.NDArray[np.uint8]

MAX_SEGMENTS = 1 << 14  # of a file
MIN_SEGMENT_BYTES = 64 << 10
MAX_FREE_SEGMENTS = 8  # free segments that keep their memory
MAX_KEPT_MAPS = 64  # segments of a file that stay mapped in the trainer
_MAX_WASTE = 4  # size of a segment relative to the requested size
_TAKEN = 1

_names = itertools.count()


class Segment(NamedTuple):
    """Segment of a file: its number, and its first byte and size in bytes."""

    number: int
    start: int
    size: int


class SegmentFile:
    """Anonymous file of segments, made by the trainer for one worker; a context manager.

    The worker inherits its descriptor, with every start method of multiprocessing. Raises OSError
    if the system cannot make the file.

    Attributes:
        name: Number that no other file of the trainer has.
        descriptor: File descriptor in this process.
        lent: Map of the bytes at the beginning of the file: 1 for each segment that is lent.
    """

    def __init__(self) -> None:
        self._take_over(next(_names), open_nameless("mds-batches"))

    def _take_over(self, name: int, descriptor: int) -> None:
        """Take the file ``descriptor`` as this object's own, in the trainer or in a worker.

        A new file, in the trainer, is extended by the bytes that mark segments as lent.
        """
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
        # DupFd works only while a process is being started, which is when a copy is needed.
        return _inherit, (self.name, reduction.DupFd(self.descriptor))


def _inherit(name: int, descriptor: Any) -> SegmentFile:
    file = SegmentFile.__new__(SegmentFile)
    file._take_over(name, descriptor.detach())
    return file


class SegmentPool:
    """Worker's side of a file: makes segments, and lends one with each message.

    ``file``: file that the trainer has made for this worker.
    """

    def __init__(self, file: SegmentFile) -> None:
        self._file = file
        # By number of the segment: 1 if it is lent; the trainer sets it to 0.
        self._lent = np.frombuffer(file.lent, np.uint8)
        self._places: list[Segment] = []  # all segments of the file, by number
        self._maps: dict[int, mmap.mmap] = {}  # by number, of the segments that have memory
        # End of the last segment in the file. The first one begins after the MAX_SEGMENTS bytes
        # that mark segments as lent.
        self._end = MAX_SEGMENTS

    @property
    def name(self) -> int:
        """Name of the file."""
        return self._file.name

    def take(self, size: int) -> tuple[Segment, memoryview] | None:
        """Lend a segment of at least ``size`` bytes, and return it with its memory.

        The trainer returns it when it needs it no more. Returns None if there is no memory, or if
        the file has its maximum number of segments.
        """
        free = np.flatnonzero(self._lent[: len(self._places)] == 0).tolist()
        max_size = max(_MAX_WASTE * size, MIN_SEGMENT_BYTES)
        fitting = [n for n in free if size <= self._places[n].size <= max_size]
        with_memory = [n for n in free if n in self._maps]
        # Prefer a segment that has memory, then one whose memory was given back, then a new one; of
        # several the smallest.
        fitting.sort(key=lambda n: (n not in self._maps, self._places[n].size))
        number = fitting[0] if fitting else self._add(_size_class(size))
        # Give the memory of all but a few free segments back to the system.
        for free_number in with_memory[MAX_FREE_SEGMENTS:]:
            if free_number != number:
                self._shrink(free_number)
        if number is None:
            return None
        try:
            memory = self._memory(number)
        except OSError:
            if not fitting:  # remove the new segment again
                self._end = self._places.pop().start
            return None
        self._lent[number] = _TAKEN
        return self._places[number], memoryview(memory)

    def _add(self, size: int) -> int | None:
        """Add a segment at the end of the file; return its number, or None in a full file."""
        number = len(self._places)
        if number == MAX_SEGMENTS:
            return None
        self._places.append(Segment(number, self._end, size))
        self._end += size
        return number

    def _memory(self, number: int) -> mmap.mmap:
        """Return the map of a segment to memory; reserve its pages if it has none."""
        memory = self._maps.get(number)
        if memory is None:
            place = self._places[number]
            _reserve(self._file.descriptor, place.start, place.size)
            memory = self._maps[number] = self._file.map(place)
        return memory

    def _shrink(self, number: int) -> None:
        """Return the memory of a free segment to the system; its place in the file remains."""
        memory = self._maps.pop(number)
        remove = getattr(mmap, "MADV_REMOVE", None)
        if remove is not None:
            memory.madvise(remove)

    def __repr__(self) -> str:
        lent = int(self._lent[: len(self._places)].sum())
        size = sum(self._places[n].size for n in self._maps)
        return f"<SegmentPool: {len(self._maps)} segments of {size:,} bytes, {lent} lent>"


class SegmentReader:
    """Trainer's side of a file: maps segments, and returns each when its last view is deleted.

    ``file``: file that the trainer has made for a worker. Only the process that makes this object
    returns segments, and no process that is forked from it.
    """

    def __init__(self, file: SegmentFile) -> None:
        self._file = file
        self._maps: dict[int, mmap.mmap] = {}  # by number of the segment
        # By number, a reference that calls back when the array on the segment is deleted.
        self._borrowed: dict[int, weakref.ref[Memory]] = {}
        self._owner = os.getpid()
        _readers[file.name] = self

    def borrow(self, place: Segment) -> Memory:
        """Return the bytes of a segment, which is free again when their last view is deleted."""
        number = place.number
        mapped = self._maps.get(number)
        if mapped is None:
            mapped = self._maps[number] = self._file.map(place)
        memory = np.frombuffer(mapped, np.uint8)

        def give_back(_: object) -> None:
            """Mark the segment free, when Python deletes ``memory`` with its last view."""
            # A forked child has copies of the views; the segment is in use as long as the parent's.
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
    """Return ``size`` bytes rounded up to the size of a segment: four sizes for a power of two."""
    step = max(MIN_SEGMENT_BYTES, 1 << max(0, size.bit_length() - 3))
    return -(-size // step) * step


def _reserve(descriptor: int, start: int, size: int) -> None:
    """Reserve the pages of a part of a file. Raises OSError if memory is short."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size)
        return
    zeros = bytes(1 << 20)
    for offset in range(start, start + size, len(zeros)):
        os.pwrite(descriptor, zeros[: start + size - offset], offset)
