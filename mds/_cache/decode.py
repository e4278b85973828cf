"""Decodes shards of files in another format, such as Parquet, into MDS files in the cache.

`ShardDecoder` is used in place of `ShardDownloader` for a source with a format. The size of a shard
is known only after decoding, so its bytes are added to the ledger piece by piece before they are
written. A record that is no sample becomes a sample that raises an error when it is read, so that
the other samples of its shard can be read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from mds._cache.concurrency import Pool
from mds._cache.download import NoRoomError, ShardDownloader
from mds._process.fork_safe import per_process
from mds.formats._dataset import explain_memory
from mds.formats._encode import shard_bytes, write_shard
from mds.formats._source import Files
from mds.storage._files import open_target, publish

if TYPE_CHECKING:
    from mds._index.shard_object import ShardInfo
    from mds.formats._dataset import FormatData

#: Source files that a process fetches at one time.
_THREADS = 64


class ShardDecoder(ShardDownloader):
    """Decodes the shards of one source whose files are in another format. Thread-safe.

    The arguments are those of `ShardDownloader`.
    """

    @property
    def _data(self) -> FormatData:
        """Format, files and shards of the source, which decode its samples."""
        data = self.folder.source.data
        assert data is not None
        return data

    def _files(self, received: _Sum, *, is_urgent: bool = False) -> Files:
        """Return the reader of source files for one shard; it fetches in threads of the process.

        Files of the shard that was requested first are fetched first.

        Args:
            received: Counter to which the bytes that arrive are added.
            is_urgent: Whether its files come before those of all other shards (default False).
        """
        pool, numbers = per_process(
            ("threads of source files",), lambda: (Pool(_THREADS, "mds-files"), count())
        )
        deadline = -1.0 if is_urgent else float(next(numbers))
        return Files(self.store, received.add, functools.partial(pool.submit, deadline=deadline))

    def download(self, info: ShardInfo, grow: Callable[[int], bool] | None = None) -> int:
        """Decode a shard into the cache folder; return the bytes transferred.

        Args:
            info: Entry of the shard in its index.
            grow: Function that is called with the new size of the shard, in bytes, before the shard
                grows, and returns whether the cache has space for it. None (default): it has.

        Raises:
            NoRoomError: The cache has no space.
        """

        def reserve(size: int) -> None:
            """Raise NoRoomError if the cache has no space for ``size`` bytes of the shard."""
            if grow is not None and not grow(size):
                raise NoRoomError(
                    f"{info.raw.basename}: {size} bytes do not fit under cache_limit."
                )

        received = _Sum()
        files = self._files(received)
        self.folder.check_inside(info)
        data = self._data
        with publish(self.folder.path(info.raw)) as temporary:
            with open_target(temporary) as file:
                blocks = data.items(info.number, files)
                name = data.where(info.number, files)  # for error messages
                with explain_memory(name):
                    write_shard(file, info.samples, data.columns, blocks, name, reserve)
            self._finish(info, temporary)
        return received.total

    def download_to_memory(self, info: ShardInfo) -> tuple[list[bytes], int]:
        """Decode a shard in memory; return its content and the bytes transferred.

        The content, that of an MDS file, is in a list of one, as for the shards of an index.
        """
        received, data = _Sum(), self._data
        files = self._files(received)
        blocks = data.items(info.number, files)  # iterator over decoded samples, some at a time
        name = data.where(info.number, files)  # for error messages
        with explain_memory(name):
            return [shard_bytes(info.samples, data.columns, blocks, name)], received.total

    def rows(self, info: ShardInfo, rows: Sequence[int]) -> tuple[Mapping[int, bytes], int]:
        """Return the stored bytes of each sample in ``rows``, by row, and the bytes transferred."""
        received = _Sum()
        samples = self._data.rows(info.number, rows, self._files(received, is_urgent=True))
        return samples, received.total


class _Sum:
    """Counter of the bytes that have been received."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, size: int) -> None:
        self.total += size
