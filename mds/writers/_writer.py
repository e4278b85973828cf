"""Abstract base class of writers: encode samples, gather them into shards, index last.

    writer.write(sample) -> bytes -> the shard being filled -> (full) Pipeline -> index.json

The caller's thread encodes samples, other threads do the rest. If an exception leaves the `with`
block, no index is published, so a dataset is complete or does not exist. Complete shards stay, and
a later writer replaces them with `exist_ok=True`.

A writer belongs to the process that created it and to one thread at a time. Neither check costs a
system call: a forked child marks the writers that it inherited at the fork, and a turn is a token
that is taken from a list and put back, each one operation for Python (60 ns together). Threads may
take turns. A second thread at the same time is refused and does not wait, because the order of
samples would then depend on timing.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
import warnings
import weakref
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from mds._arguments import did_you_mean, no_attribute
from mds._index.column_notes import NAME as NOTES_NAME
from mds._index.column_notes import check_noted, make_notes, pack_notes
from mds._index.table import fingerprint_of
from mds._process.fork_safe import call_in_child
from mds._shardfile.layout import MAX_SIZE, VERSION
from mds._units import format_bytes
from mds._words import plural
from mds.encodings._base import describe, located
from mds.errors import EncodingError, MdsError, MissingColumnError, WriterError
from mds.writers._destination import Destination
from mds.writers._pipeline import GATHERED, EarlyFile, FullShard, Pipeline
from mds.writers._spec import (
    DEFAULT_HASHES,
    fill_options,
    full_signature,
    parse_out,
    parse_shards,
    parse_work,
)

if TYPE_CHECKING:
    import inspect
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from mds.writers._spec import Out, WriterOptions

    Data = bytes | bytearray | memoryview

#: Most bytes that are mapped at first for a shard; a buffer that is too small is doubled.
_FIRST = 1 << 26
#: Bytes of a buffer beyond the size limit of a shard.
_SLACK = 1 << 16


class ShardBufferPool:
    """Memory for the shards being filled, mapped once and reused for later shards.

    The first access to a new page of 4 KB costs 2 us (measured), as much as writing it to a memory
    file system. So the memory of a written shard is reused, and huge pages are requested. The
    memory is private and anonymous; pages without an access cost nothing. Thread-safe.

    - ``size`` (int | None, bytes): The size limit of a shard; None for no limit.
    """

    def __init__(self, size: int | None) -> None:
        self._first = min(_FIRST, size or _FIRST) + _SLACK
        self._free: deque[mmap.mmap] = deque()

    def take(self) -> mmap.mmap:
        """Return memory for a shard: the memory of an earlier shard, or a new mapping."""
        with contextlib.suppress(IndexError):
            return self._free.pop()
        return _map(self._first)

    def give_back(self, body: mmap.mmap) -> None:
        """Keep memory for later shards; memory that grew is released."""
        if len(body) == self._first:
            self._free.append(body)

    def clear(self) -> None:
        """Release the memory that is kept for later shards."""
        self._free.clear()


def grow_buffer(body: mmap.mmap, used: int, needed: int) -> mmap.mmap:
    """Return larger memory with the first `used` bytes of `body` and space for `needed` in all."""
    larger = _map(max(needed, 2 * len(body)))
    view = memoryview(body)
    larger[:used] = view[:used]
    return larger


def _map(size: int) -> mmap.mmap:
    """Map new memory of ``size`` bytes, in huge pages if the kernel has them."""
    # On Windows memory is private by default, and there are no flags.
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size)
    body = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            body.madvise(mmap.MADV_HUGEPAGE)
    return body


#: Reason why a writer is closed in a forked child that inherited it.
INHERITED = (
    "belongs to the process that created it, and this is a forked child. Create a writer in every "
    "process, each with its own folder, and join the datasets with merge_index"
)


class Inherited(Protocol):
    """Object that a forked child can detach from the resources of its parent."""

    def leave_to_parent(self) -> None:
        """Stop in a forked child, without closing, sending or deleting anything of the parent."""


@contextlib.contextmanager
def hold_turn(turn: list[bool]) -> Iterator[None]:
    """Hold the turn of a writer, which is the only item of ``turn``, for a `with` block.

    Raises WriterError if another thread holds it.
    """
    try:
        token = turn.pop()
    except IndexError:
        raise two_threads_error() from None
    try:
        yield
    finally:
        turn.append(token)


def two_threads_error() -> WriterError:
    """Return the error for a turn that another thread holds."""
    return WriterError(
        "two threads use this writer at the same time, so the order of samples would be random. "
        "Write from one thread, or create a writer in each thread, each with its own folder, and "
        "join the datasets with merge_index."
    )


_writers: weakref.WeakSet[Inherited] = weakref.WeakSet()


def register_writer(writer: Inherited) -> None:
    """Call `leave_to_parent` of a writer in every child process that is forked from now on."""
    _writers.add(writer)


def _detach_writers() -> None:
    """Close all registered writers in a forked child, which must not touch those of its parent."""
    for writer in list(_writers):
        writer.leave_to_parent()
    _writers.clear()


call_in_child(_detach_writers)

#: Reason why a writer is closed after `finish`.
FINISHED = "has finished"


class Writer(ABC):
    """Base of the writers; a context manager. `MDSWriter` lists the arguments.

    A subclass sets the attributes `extra_bytes_per_shard`, the bytes of a shard without samples,
    and `extra_bytes_per_sample`, the bytes of a sample beyond its own; both count toward
    `size_limit`.

    Raises ConfigError (a ValueError) for arguments that make no sense, FileExistsError for a
    destination that is not empty and WriterError for a folder that another writer is filling.
    """

    __signature__: inspect.Signature
    format: str
    #: Whether an argument of a wrong type or value is refused instead of converted.
    _is_strict = True
    #: Whether other types that mean the same are converted: `int` in place of "int" as an encoding,
    #: and numbers of NumPy in text formats.
    _converts = True
    #: Digests that ``hashes=None`` stores.
    _default_hashes: Sequence[str] = DEFAULT_HASHES
    #: Largest shard in bytes that offsets can address; a subclass may have a lower limit.
    max_shard_size = MAX_SIZE - 1
    #: Number of keys of a sample above which its keys are compared with the columns.
    _max_keys = sys.maxsize
    #: Why the writer takes no more samples; '' while it is open.
    _ended: str
    #: Memory with the samples of the current shard that are not in a file yet, its size, and the
    #: bytes in use.
    _buffer: mmap.mmap
    _capacity: int
    _used: int
    #: Bytes that the current shard will have as a file, and the size of each of its samples.
    _shard_size: int
    _sizes: array[int]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # With this signature help() and editors list the options of `WriterOptions`.
        cls.__signature__ = full_signature(cls.__init__)

    def __init__(
        self,
        *,
        out: Out,
        extra_bytes_per_shard: int = 0,
        extra_bytes_per_sample: int = 0,
        **options: Unpack[WriterOptions],
    ) -> None:
        self._ended = "never began"
        # The list holds a token, which a thread takes while it uses the writer (`hold_turn`).
        self._turn = [True]
        register_writer(self)  # a forked child detaches it
        settings = fill_options(
            type(self).__name__,
            options,
            is_strict=self._is_strict,
            hashes=self._default_hashes,
        )
        work = parse_work(settings)
        self._notes = make_notes(settings["class_names"] or {}, settings["descriptions"] or {})
        check_noted(self._notes, self._column_encodings())
        shards = parse_shards(settings)
        self.compression = shards.compression
        self.hashes = list(shards.hashes)
        self.size_limit = shards.size_limit
        # Bytes of a shard without samples, and bytes of a sample in the header of its shard.
        self.extra_bytes_per_shard = extra_bytes_per_shard
        self.extra_bytes_per_sample = extra_bytes_per_sample
        # Largest size of a shard in bytes.
        self._full_size = min(self.max_shard_size, shards.size_limit or self.max_shard_size)
        self._max_samples = shards.samples_per_shard or sys.maxsize
        self._shards = 0
        self._samples = 0
        #: Header of a full shard if shards are written while they are filled (`EarlyFile`).
        self._planned_header: bytes | None = None
        self._buffer_pool = ShardBufferPool(self.size_limit)
        self._begin_shard()
        self._strict = work.strict
        place = parse_out(out, settings)
        self._destination = Destination(place, durable=work.durable)
        self._pipeline = Pipeline(shards, work, self._destination)
        self._ended = ""

    # ----------------------------------------------------------------------------- for formats

    @abstractmethod
    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        """Return the bytes of a sample in a shard. Raises EncodingError."""

    @abstractmethod
    def _files(self, body: Data, sizes: Sequence[int]) -> tuple[Sequence[Data], ...]:
        """Return the content of the files of a full shard.

        - ``body`` (bytes-like): The encoded samples of the shard, one after the other.
        - ``sizes`` (Sequence[int]): The size of each sample in bytes.

        Returns the parts of the data file and, if the format has one, of the meta file. A file is
        the concatenation of its parts. If some samples are in an early file already, ``body`` has
        the rest, and ``sizes`` has all.
        """

    def _plan_header(self) -> bytes | None:
        """Return the header of a full shard, or None if it is not known in advance."""
        return None

    def get_config(self) -> dict[str, Any]:
        """Return what every shard and the index record about the dataset."""
        return {
            "version": VERSION,
            "format": self.format,
            "compression": self.compression,
            "hashes": self.hashes,
            "size_limit": self.size_limit,
        }

    # ----------------------------------------------------------------------------------- public

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a sample: a mapping with a value for every column.

        Raises EncodingError for a value that does not fit its column; the sample is then left
        out, and the next one can be written. Raises WriterError if shards cannot be written, for a
        sample of 4 GiB, and in a thread while another thread is writing.
        """
        if self._ended:
            raise WriterError(
                f"this {type(self).__name__} {self._ended}; it takes no more samples. Write inside "
                "the `with` block, or create another writer."
            )
        # As `hold_turn` does, without the cost of a context manager.
        try:
            token = self._turn.pop()
        except IndexError:
            raise two_threads_error() from None
        try:
            data = self.encode_sample(sample)
            try:
                is_wide = len(sample) > self._max_keys
            except TypeError:  # a sample that can be indexed may have no length
                is_wide = False
            if is_wide:
                self._report_surplus_keys(sample)
            length = len(data)
            size = length + self.extra_bytes_per_sample
            if self._full_size < self._shard_size + size or len(self._sizes) >= self._max_samples:
                self._end_full_shard(size)
            start = self._used
            end = start + length
            if end > self._capacity:
                start = self._make_buffer_space(start, length)
                end = start + length
            self._buffer[start:end] = data
            self._used = end
            self._sizes.append(length)
            self._shard_size += size
            self._samples += 1
        finally:
            self._turn.append(token)

    def flush_shard(self) -> None:
        """End the current shard, even if it is empty, and begin another."""
        body, sizes = self._buffer, self._sizes
        shard = FullShard(
            number=self._shards,
            samples=len(sizes),
            format=self.format,
            files=self._files(memoryview(body)[: self._used], sizes),
            config=self.get_config(),
            release=partial(self._buffer_pool.give_back, body),
            early=self._early,
        )
        # This waits for a place, and frees memory that the next shard reuses.
        self._pipeline.submit(shard)
        self._shards += 1
        self._begin_shard()

    def finish(self) -> None:
        """Write the last shard, wait until all shards are in their places, and publish the index.

        Raises WriterError, with its cause, if a file could not be written or uploaded; no index is
        published then. A second call does nothing.
        """
        if self._ended in (FINISHED, INHERITED):
            return
        if self._ended:
            raise WriterError(f"this writer {self._ended}; it has nothing to finish.")
        with hold_turn(self._turn):
            try:
                if self._sizes:
                    self.flush_shard()
                entries, files = self._pipeline.finish()
                index = f'{{"shards": [{", ".join(entries)}], "version": {VERSION}}}'
                self._publish_sidecars(index.encode())
                self._publish_notes(index.encode())
                self._destination.publish_index(index.encode(), files)
            except BaseException:
                self.abort()
                raise
            self._close(FINISHED)

    def _publish_sidecars(self, index: bytes) -> None:  # noqa: B027 - most formats have none
        """Publish the sidecars of an index, which is published after them."""

    def _publish_notes(self, index: bytes) -> None:
        """Publish the class names and descriptions of columns, if there are any."""
        if self._notes:
            data = pack_notes(self._notes, fingerprint_of(index))
            self._destination.publish_sidecar(NOTES_NAME, data)

    def abort(self) -> None:
        """Stop without publishing an index. Complete shards stay."""
        if not self._ended:
            self._close("was aborted")

    def leave_to_parent(self) -> None:
        """Close the writer in a forked child, without writing, sending or deleting anything."""
        self._ended = INHERITED

    def __getattr__(self, name: str) -> Any:
        # Called for names that are no attributes.
        raise no_attribute(self, name, "Writer")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
        else:
            self.abort()

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        # `warn` is an argument because the module `warnings` may be gone when the interpreter ends.
        if not getattr(self, "_ended", "never began"):
            warn(
                f"{self!r} was never finished: there is no index, so its files are not a "
                "dataset. Use it in a `with` block, or call finish().",
                # Not a ResourceWarning, which Python hides by default.
                UserWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {kind}" for name, kind in self._column_encodings().items())
        limit = "no size limit" if self.size_limit is None else format_bytes(self.size_limit)
        return (
            f"<{type(self).__name__} to {self._destination.name}: "
            f"{plural(self._samples, 'sample')}, "
            f"{self._shards:,} full shards of {limit}, {self.compression or 'no compression'}, "
            f"columns {columns} ({self._ended or 'open'})>"
        )

    # --------------------------------------------------------------------------------- privately

    def _begin_shard(self) -> None:
        """Begin an empty shard."""
        # Memory of the samples: `_used` of its `_capacity` bytes have some.
        self._buffer = self._buffer_pool.take()
        self._capacity = len(self._buffer)
        self._used = 0
        #: File with the samples that are no longer in the buffer, if there is one.
        self._early: EarlyFile | None = None
        self._sizes = array("I")  # bytes of each sample of the shard
        #: Bytes of the whole shard with its header.
        self._shard_size = self.extra_bytes_per_shard

    def _plan_early_file(self) -> None:
        """Decide whether shards are written to their files while they are filled.

        That needs a header that is known in advance. A subclass calls this in its constructor.
        """
        self._planned_header = self._plan_header()
        if self._planned_header is not None:
            # The buffer then holds only the samples up to the next write to the file.
            self._buffer_pool = ShardBufferPool(GATHERED)
            self._begin_shard()

    def _make_buffer_space(self, used: int, length: int) -> int:
        """Make space in the buffer for a sample, and return the offset at which it begins.

        - ``used`` (int): Bytes of the buffer in use.
        - ``length`` (int): Bytes of the sample.

        The samples in the buffer are written to the file of the shard, or the buffer grows.
        """
        if self._planned_header is not None and used:
            piece = memoryview(self._buffer)[:used]
            self._early = self._pipeline.spill(self._shards, self._planned_header, piece)
            self._used = used = 0
        if used + length > self._capacity:
            self._buffer = grow_buffer(self._buffer, used, used + length)
            self._capacity = len(self._buffer)
        return used

    def _end_full_shard(self, size: int) -> None:
        """Begin a new shard for a sample of ``size`` bytes, which the current shard cannot take.

        Raises WriterError if no shard can take it, or if there is no size limit to split shards.
        """
        may_split = self.size_limit is not None or len(self._sizes) >= self._max_samples
        # As the format requires, a first sample that is too large for the limit comes after an
        # empty shard, and no other shard is empty.
        if may_split and (self._sizes or not self._shards):
            self.flush_shard()
        if self._shard_size + size > self.max_shard_size:
            # The sample fits into no shard, or not into the rest of this shard.
            is_large = self.extra_bytes_per_shard + size > self.max_shard_size
            way_out = "Split the sample." if is_large or self.size_limit else "Set size_limit."
            raise self._too_large(size, way_out)

    def _too_large(self, size: int, way_out: str = "Split the sample.") -> WriterError:
        """Return the error for a sample of ``size`` bytes that fits into no shard."""
        return WriterError(
            f"sample {self._samples} has {size} bytes, and a shard of more than "
            f"{self.max_shard_size} bytes cannot be addressed. {way_out}"
        )

    def _report_surplus_keys(self, sample: Mapping[str, Any]) -> None:
        """Warn once of keys of a sample that no column has, or raise with strict=True."""
        names = tuple(self._column_encodings())
        surplus = [key for key in sample if key not in names]
        if not surplus:
            return
        reason = (
            f"sample {self._samples} has {', '.join(map(repr, surplus[:3]))}"
            f"{' and more' if len(surplus) > 3 else ''}, which no column has. The columns are "
            f"{', '.join(map(repr, names))}"
        )
        if self._strict:
            raise EncodingError(f"{reason}.")
        self._max_keys = sys.maxsize  # no further warnings
        warnings.warn(
            f"{reason}; such values are not written. Declare them as columns, leave them out, or "
            "pass strict=False (or strict=True to get an error).",
            stacklevel=3,
        )

    def _column_encodings(self) -> dict[str, str]:
        """Return the encoding of each column, in the order of the columns."""
        return dict(getattr(self, "columns", {}))

    def _close(self, state: str) -> None:
        """Stop the threads, and free memory and locks; ``state`` says why, as `_ended` does."""
        self._ended = state
        self._pipeline.close()
        self._buffer_pool.clear()
        del self._buffer
        self._destination.close()

    def _locate_error(self, error: Exception, name: str, sample: Any) -> Exception:
        """Return an error to raise for a value that cannot be encoded, with its place.

        - ``error`` (Exception): The error of encoding, or of reading the value from the sample.
        - ``name`` (str): The column.
        - ``sample`` (Any): The sample, which may be no mapping.
        """
        place = f"column {name!r} of sample {self._samples}"
        if isinstance(error, EncodingError):
            return located(error, place)
        if isinstance(error, MdsError):
            return error
        try:
            missing = name not in sample or isinstance(sample, (str, bytes, bytearray))
        except TypeError:
            missing = True
        if missing:
            return MissingColumnError(f"{place} is missing{_describe_keys(name, sample)}")
        return EncodingError(f"{place}: {type(error).__name__}: {error}")


def _describe_keys(name: str, sample: Any) -> str:
    """Describe a sample that lacks the column ``name``: its keys and the nearest one, or its type.

    Returns the end of a message, with a remedy.
    """
    if not hasattr(sample, "keys"):
        is_text = isinstance(sample, (str, bytes, bytearray))
        way_out = "json.loads(sample)" if is_text else f"{{{name!r}: ...}}"
        return (
            f": a sample is a dict with a value for every column, got {describe(sample)}. Write "
            f"{way_out}."
        )
    keys = [str(key) for key in sample]
    # The quoted key that is spelled most alike, or "" if none is: "'imgae'".
    near = did_you_mean(name, keys).removeprefix(" Did you mean ").removesuffix("?")
    way_out = (
        f" Write {name!r} instead of {near}."
        if near
        else " Give it a value; an encoding 'optional[...]' accepts None."
    )
    listed = ", ".join(map(repr, keys[:10])) + (", ..." if len(keys) > 10 else "")
    return f": the keys of the sample are {listed or 'none'}.{way_out}"
