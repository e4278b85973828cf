"""The interface of all readers, and the mapping of shard files into memory.

A row is the number of a sample in its shard, and `Rows` a list or array of them. A `Batch` holds
the samples of many rows as columns: a dict from the name of a column to its values, an array or a
list. `Data` are the bytes of a file: its memory map, or b"" for an empty file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mds._index.shard_object import FileInfo
from mds._process.mmaps import count_maps, map_descriptor
from mds._words import plural
from mds.errors import MdsError, NotFoundError, ShardError, StoreError
from mds.storage._files import blocked_error

if TYPE_CHECKING:
    import mmap
    from types import TracebackType

    from mds._index.shard_object import ShardSchema

    Data = mmap.mmap | bytes

Rows = Sequence[int] | npt.NDArray[np.integer[Any]]
Batch = dict[str, "npt.NDArray[Any] | list[Any]"]


class Reader(ABC):
    """The samples of one shard, whose file is mapped once; samples are decoded when they are read.

    Args:
        schema: Columns and format of the shard.
        samples: Number of samples.
        source: Name of the shard in errors.

    ``reader[row]`` calls ``reader.get(row)``. The first call replaces ``get`` by a function that is
    compiled for the schema. No such function refers to the reader, so the file is closed as soon as
    nothing uses the reader. Arrays that are views of the file stay valid after ``close``: each
    keeps the mapping alive.
    """

    #: Whether `as_columns` copies all values that `viewer` returns as views of the file, so that
    #: its result never refers to the file.
    is_stacked: bool = False
    #: Raises an error if the user's own file, which is read in place, was changed; None for files
    #: of the cache.
    check_unchanged: Callable[[], object] | None = None
    #: Returns the location of a sample in the user's files of another format, for errors; None for
    #: shards of MDS.
    locate: Callable[[int], str] | None = None

    def __init__(self, schema: ShardSchema, samples: int, source: str) -> None:
        self.schema = schema
        self.source = source
        self._count = samples
        self._is_closed = False

    def get(self, row: int) -> dict[str, Any]:
        """Return one sample. The first call replaces this method by the compiled function."""
        return self.compiled_get()(row)

    def compiled_get(self) -> Callable[[int], dict[str, Any]]:
        """Return the compiled ``get``, which a loop can keep; the first call reads the offsets."""
        if "get" not in vars(self):
            self._check_open()
            self.get = self._open()  # type: ignore[assignment,method-assign]
        return self.get

    def __len__(self) -> int:
        return self._count

    def __contains__(self, row: object) -> bool:
        return isinstance(row, int) and 0 <= row < self._count

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Return one sample. Raises IndexError for a row that does not exist."""
        return self.get(row)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.get(row) for row in range(self._count))

    def samples(self, rows: Rows) -> list[dict[str, Any]]:
        """Return the samples of many rows, each as ``reader[row]`` does."""
        rows = rows.tolist() if isinstance(rows, np.ndarray) else rows
        return [*map(self.get, rows)]

    @abstractmethod
    def rows(self, rows: Rows, *, copy: bool = True) -> Batch:
        """Return the samples of many rows as columns by name.

        A column of fixed-width numbers is a new array of shape (rows, *shape). Any other column is
        a list of values; without ``copy`` these may be views of the file, for a caller that copies
        them.
        """

    def viewer(self) -> Callable[[int], dict[str, Any]]:
        """Return a ``get`` whose arrays may be views of the file, for a caller that copies them."""
        return self.get

    @abstractmethod
    def as_columns(self, samples: list[dict[str, Any]]) -> Batch:
        """Convert decoded samples of this schema to columns, as ``rows`` returns them."""

    @abstractmethod
    def sample_bytes(self, row: int) -> memoryview:
        """Return the stored bytes of one sample, as a view."""

    @abstractmethod
    def _open(self) -> Callable[[int], dict[str, Any]]:
        """Read the offsets and return the compiled ``get``."""

    def where(self, row: int) -> str:
        """Return the location of a sample, for errors."""
        if self.locate is not None:
            with contextlib.suppress(MdsError):  # the error that is being explained comes first
                return self.locate(row)
        return f"{self.source}, sample {row}"

    def release_pages(self) -> None:  # noqa: B027 - most readers have no mapped file
        """Give the memory of the file back to the system; later reads fetch it again."""

    def close(self) -> None:
        """Close the file. Closing it twice is allowed."""
        self._is_closed = True
        vars(self).pop("get", None)

    def _slow_decoder(self) -> Callable[[Any], dict[str, Any]]:
        """Return ``_decode_slowly`` by a weak reference, for compiled functions.

        A reader that referred to itself would keep its file mapped until the garbage collector
        runs, and maps of unused readers would accumulate.
        """
        weak_method, source = weakref.WeakMethod(self._decode_slowly), self.source

        def decode_slowly(row: Any) -> dict[str, Any]:
            """Call ``_decode_slowly`` of the reader, if the reader still exists."""
            method = weak_method()
            if method is None:
                raise ShardError(f"{source}: the reader is closed.")
            return method(row)

        return decode_slowly

    @abstractmethod
    def _decode_slowly(self, row: Any) -> dict[str, Any]:
        """Decode a sample for which the compiled ``get`` failed.

        Return the sample of a negative row, and else raise an error that says what is wrong.
        """

    def _check_open(self) -> None:
        if self._is_closed:
            raise ShardError(f"{self.source}: the reader is closed.")

    def _number(self, row: Any) -> int:
        """Return a row as an int in range, counted from the end when negative."""
        number = row.__index__()
        if number < 0:
            number += self._count
        if not 0 <= number < self._count:
            raise IndexError(f"{self.source}: there is no sample {row} of {self._count:,}.")
        return int(number)

    def _numbers(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Return rows as an int64 array of numbers in range, negative ones counted from the end.

        Raises IndexError for other rows, and ShardError for anything but a list of integers.
        """
        numbers = np.asarray(rows)
        if numbers.size == 0:
            return np.zeros(0, np.int64)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise ShardError(
                f"{self.source}: rows must be a list of integers, got {numbers.dtype} of shape "
                f"{numbers.shape}."
            )
        numbers = numbers.astype(np.int64, copy=False)
        if numbers.min() < 0 or numbers.max() >= self._count:
            return np.array([self._number(row) for row in numbers.tolist()], np.int64)
        return numbers

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"<{type(self).__name__} {self.source}: {plural(self._count, 'sample')}{state}>"


# Opening a pipe must not block.
# Opening a named pipe would wait for its other end otherwise.
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)


def map_file(folder: str, file: FileInfo) -> Data:
    """Map a file of a shard into memory and return the mapping; ``b""`` for an empty file.

    ``file`` is its entry in the index, whose name is relative to ``folder``. Raises NotFoundError
    (a FileNotFoundError) and StoreError (an OSError) when it cannot be opened, and ShardError (a
    ValueError) if it is not a file inside ``folder`` with the size in the index.
    """
    path = file.basename.under(folder)
    if file.basename.directories:
        _check_inside(folder, path)
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | _NONBLOCK)
    except FileNotFoundError:
        raise NotFoundError(f"open {path}: there is no such file.", url=path, verb="open") from None
    except OSError as error:
        if (blocked := blocked_error(path, error)) is not None:
            raise blocked from error
        raise StoreError(f"open {path}: {error.strerror}.", url=path, verb="open") from error
    try:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            raise ShardError(f"{path}: the shard is not a file.")
        if state.st_size != file.size:
            raise ShardError(
                f"{path}: the shard has {state.st_size} bytes, but its index says {file.size}."
            )
        # An empty file cannot be mapped.
        return _map_handle(handle, path, state.st_size) if state.st_size else b""
    finally:
        os.close(handle)


def _map_handle(handle: int, path: str, size: int) -> Data:
    """Map the first ``size`` bytes of an open file. Raises StoreError with a remedy."""
    try:
        return map_descriptor(handle, size)
    except OSError as error:
        way_out = ""
        if error.errno in {errno.ENOMEM, errno.EMFILE}:
            way_out = (
                f" The process maps {plural(count_maps(), 'file')}: drop samples that are views "
                "of them "
                "(copy=False), or raise vm.max_map_count."
            )
        raise StoreError(
            f"map {path}: {error.strerror}.{way_out}", url=path, verb="open"
        ) from error


def _check_inside(folder: str, path: str) -> None:
    """Raise ShardError if a link leads the folder of a file out of the dataset.

    The file itself may be a link: hubs keep their snapshots as folders of links, made by the owner
    of the disk. This library never writes through one.
    """
    root = os.path.realpath(folder)
    parent = os.path.realpath(os.path.dirname(path))
    if os.path.commonpath([root, parent]) != root:
        raise ShardError(f"{path}: the shard is a link to a place outside the folder {folder}.")
