"""What all writers share: samples are encoded and gathered into shards, the index comes last.

    writer.write(sample) -> bytes -> the shard being filled -> (full) Pipeline -> index.json

Encoding is done by the caller, the rest by threads. Leaving the `with` block by an exception
publishes no index: a dataset is there whole or not at all. Complete shards stay where they are
then, and a later writer replaces them with `exist_ok=True`.
"""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from mds.encodings import describe, located
from mds.errors import EncodingError, MdsError, MissingColumnError, WriterError
from mds.layout import MAX_SIZE, VERSION
from mds.writers.body import BodyPool, grown
from mds.writers.destination import Destination
from mds.writers.pipeline import Pipeline
from mds.writers.seal import FullShard
from mds.writers.spec import parse_out, parse_shards, parse_work

if TYPE_CHECKING:
    import mmap
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from mds.writers.spec import Out

    Data = bytes | bytearray | memoryview


class Writer(ABC):
    """Base of the writers; a context manager.

    `out` is a folder, a URL, or a pair (folder, URL or folder). `compression` is a name such as
    `"zstd:7"`, `hashes` a sorted list of digests to store, `size_limit` the most bytes of a shard
    (a number or `"64mb"`; None: one shard), `samples_per_shard` the most samples of one.
    `keep_local` keeps the shards of a pair's folder. Further: `exist_ok` replaces a dataset that
    is already there, `retry` is the least number of tries of an upload, `max_workers` the number of
    threads and of shards in memory besides one being filled, `progress_bar` shows shards done.

    Raises ConfigError (a ValueError) for arguments that make no sense and FileExistsError for a
    destination that is not empty.
    """

    format: str
    _body: mmap.mmap
    _room: int
    _used: int
    _running: int
    _sizes: array[int]

    def __init__(
        self,
        *,
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        extra_bytes_per_shard: int = 0,
        extra_bytes_per_sample: int = 0,
        samples_per_shard: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._ended = "never began"
        work, rest = parse_work(kwargs)
        shards = parse_shards(compression, hashes, size_limit, samples_per_shard)
        self.compression = shards.compression
        self.hashes = list(shards.hashes)
        self.size_limit = shards.size_limit
        self.extra_bytes_per_shard = extra_bytes_per_shard
        self.extra_bytes_per_sample = extra_bytes_per_sample
        self._limit = MAX_SIZE - 1 if shards.size_limit is None else shards.size_limit
        self._most = samples_per_shard or sys.maxsize
        self._shards = 0
        self._samples = 0
        self._bodies = BodyPool(self.size_limit)
        self._begin_shard()
        self._destination = Destination(parse_out(out, keep_local=keep_local, **rest))
        self._pipeline = Pipeline(shards, work, self._destination)
        self._ended = ""

    # ----------------------------------------------------------------------------- for formats

    @abstractmethod
    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        """The bytes of a sample as they stand in a shard. Raises EncodingError."""

    @abstractmethod
    def _files(self, body: Data, sizes: Sequence[int]) -> tuple[Sequence[Data], ...]:
        """The parts of the data file, and of the meta file if there is one."""

    def get_config(self) -> dict[str, Any]:
        """What every shard and the index tell about the dataset."""
        return {
            "version": VERSION,
            "format": self.format,
            "compression": self.compression,
            "hashes": self.hashes,
            "size_limit": self.size_limit,
        }

    # ----------------------------------------------------------------------------------- public

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a sample: a mapping with a value for every column; other keys are ignored.

        Raises EncodingError for a value that does not fit its column; the sample is then left
        out, and the writer can go on. Raises WriterError when shards cannot be written.
        """
        if self._ended:
            raise WriterError(f"this writer {self._ended}; it takes no more samples.")
        data = self.encode_sample(sample)
        length = len(data)
        size = length + self.extra_bytes_per_sample
        if self._limit < self._running + size or len(self._sizes) >= self._most:
            self._make_room(size)
        start = self._used
        end = start + length
        if end > self._room:
            self._body = grown(self._body, start, end)
            self._room = len(self._body)
        self._body[start:end] = data
        self._used = end
        self._sizes.append(length)
        self._running += size
        self._samples += 1

    def flush_shard(self) -> None:
        """End the shard being filled, even if it is empty, and begin another."""
        body, sizes = self._body, self._sizes
        shard = FullShard(
            self._shards,
            len(sizes),
            self.format,
            self._files(memoryview(body)[: self._used], sizes),
            self.get_config(),
            partial(self._bodies.give_back, body),
        )
        # Waits for a place, and only then takes memory: some just became free.
        self._pipeline.submit(shard)
        self._shards += 1
        self._begin_shard()

    def finish(self) -> None:
        """Write what is left, wait until all of it is where it belongs, and publish the index.

        Raises WriterError, with its cause, when anything could not be written or uploaded; there
        is no index then. Finishing twice is fine.
        """
        if self._ended == "has finished":
            return
        if self._ended:
            raise WriterError(f"this writer {self._ended}; it has nothing to finish.")
        try:
            if self._sizes:
                self.flush_shard()
            entries = ", ".join(self._pipeline.finish())
            index = f'{{"shards": [{entries}], "version": {VERSION}}}'
            self._destination.publish_index(index.encode())
        except BaseException:
            self.abort()
            raise
        self._end("has finished")

    def abort(self) -> None:
        """Stop without an index. Complete shards stay, for whoever wants to look at them."""
        if not self._ended:
            self._end("was aborted")

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
        # Bound here: at the very end of the interpreter the name `warnings` may be gone already.
        if not getattr(self, "_ended", "never began"):
            warn(f"{self!r} was never finished", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        state = f" ({self._ended})" if self._ended else ""
        return (
            f"<{type(self).__name__} {self._samples} samples, {self._shards} full shards "
            f"to {self._destination.name}{state}>"
        )

    # --------------------------------------------------------------------------------- privately

    def _begin_shard(self) -> None:
        self._body = self._bodies.take()
        self._room = len(self._body)
        self._used = 0
        self._sizes = array("I")
        self._running = self.extra_bytes_per_shard

    def _make_room(self, size: int) -> None:
        """Begin a new shard for a sample that does not fit into this one."""
        may_split = self.size_limit is not None or len(self._sizes) >= self._most
        # An empty shard can only be the very first one, where the format wants it so.
        if may_split and (self._sizes or not self._shards):
            self.flush_shard()
        if self._running + size >= MAX_SIZE:
            raise WriterError(
                f"sample {self._samples} has {size} bytes, and a shard of more than "
                f"{MAX_SIZE - 1} bytes cannot be addressed. "
                + ("Set size_limit." if self.size_limit is None else "Split the sample.")
            )

    def _end(self, how: str) -> None:
        self._ended = how
        self._pipeline.close()
        self._bodies.clear()
        del self._body
        self._destination.close()

    def _explain(self, error: Exception, name: str, sample: Any) -> Exception:
        """An error of a column, told with the column and the number of the sample."""
        where = f"column {name!r} of sample {self._samples}"
        if isinstance(error, EncodingError):
            return located(error, where)
        if isinstance(error, MdsError):
            return error
        try:
            missing = name not in sample
        except TypeError:
            missing = True
        if missing:
            keys = list(sample) if hasattr(sample, "keys") else describe(sample)
            return MissingColumnError(f"{where} is missing; the sample is {keys}")
        return EncodingError(f"{where}: {type(error).__name__}: {error}")
