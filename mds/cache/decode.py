"""Shards of files in a format: fetched, decoded and written as one MDS file each.

It takes the place of a download where a source has a format. How large a shard is shows while it is
decoded, so its bytes are entered into the ledger as they come, before they are written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from mds.cache.concurrency import Pool
from mds.cache.download import NoRoomError, ShardDownloader
from mds.formats.encode import shard_bytes, write_shard
from mds.formats.source import Files
from mds.process.fork_safe import per_process
from mds.storage.files import open_target, publish

if TYPE_CHECKING:
    from mds.formats.dataset import FormatData
    from mds.index import ShardInfo

#: Files of their own that a process fetches at once.
_SIDE_BY_SIDE = 64


class ShardDecoder(ShardDownloader):
    """The files of one source in a format. Thread-safe."""

    @property
    def _data(self) -> FormatData:
        data = self.folder.source.data
        assert data is not None
        return data

    def _files(self, received: _Count, *, is_urgent: bool = False) -> Files:
        """Return the reader of source files, which fetches single files in shared threads.

        Those of the shard that was begun first come first, and those of single rows before them.
        """
        pool = per_process(
            ("files side by side",), lambda: (Pool(_SIDE_BY_SIDE, "mds-files"), count())
        )
        deadline = -1.0 if is_urgent else float(next(pool[1]))
        return Files(self.store, received.add, functools.partial(pool[0].submit, deadline=deadline))

    def download(self, info: ShardInfo, grow: Callable[[int], bool] | None = None) -> int:
        """Decode a shard into the cache folder; the bytes that came over the wire.

        Raises NoRoomError when ``grow`` refuses the bytes that it takes.
        """

        def ask(size: int) -> None:
            if grow is not None and not grow(size):
                raise NoRoomError(f"{info.raw.basename}: the limit has no room for {size} bytes.")

        received = _Count()
        files = self._files(received)
        self.folder.check_inside(info)
        data = self._data
        with publish(self.folder.path(info.raw)) as temporary:
            with open_target(temporary) as file:
                blocks = data.blocks(info.number, files)
                name = data.where(info.number, files)
                write_shard(file, info.samples, data.columns, blocks, name, ask)
            self._finish(info, temporary)
        return received.total

    def download_to_memory(self, info: ShardInfo) -> tuple[list[bytes], int]:
        """Return a shard decoded in memory, and the number of bytes fetched."""
        received, data = _Count(), self._data
        files = self._files(received)
        blocks, name = data.blocks(info.number, files), data.where(info.number, files)
        return [shard_bytes(info.samples, data.columns, blocks, name)], received.total

    def rows(self, info: ShardInfo, rows: Sequence[int]) -> tuple[Mapping[int, bytes], int]:
        """Return the stored bytes of some samples by row, and the number of bytes fetched."""
        received = _Count()
        return self._data.rows(
            info.number, rows, self._files(received, is_urgent=True)
        ), received.total


class _Count:
    def __init__(self) -> None:
        self.total = 0

    def add(self, size: int) -> None:
        self.total += size
