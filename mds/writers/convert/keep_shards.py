"""A copy in MDS of files that are read as they lie, with a shard for each of theirs.

Samples, their encodings and the number of each shard's samples are the same, so the order is too:
a run that began on the files goes on from the copy, in the middle of an epoch, and the other way
round. A shard is the bytes that the cache would have kept, so nothing is decoded a second time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from mds.errors import ShardError
from mds.formats.base import Format
from mds.formats.dataset import FormatData
from mds.formats.facts import Block
from mds.formats.opening import open_files
from mds.formats.source import Files
from mds.shardfile.layout import pack_header
from mds.writers.convert.run import Progress, SplitSummary, Summary
from mds.writers.finalize import FullShard
from mds.writers.mds import MDSWriter

#: Shards that are decoded ahead of the one that is written.
_AHEAD = 2


def keep_shards(
    source: str,
    out: str,
    *,
    format: str | Format | None = None,  # noqa: A002 - what it is
    columns: Sequence[str] | None = None,
    compression: str | None = None,
    hashes: Sequence[str] = ("xxh3_64",),
    overwrite: bool = False,
    durable: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Write files in a format as MDS, shard by shard, so that the order stays what it was.

    * ``source`` (str): a file, a folder or a pattern, as ``remote=`` of a dataset has it.
    * ``out`` (str): a folder or a URL.
    * ``format`` (str | Format, None): what the files are; None to go by their endings.
    * ``columns`` (list[str], None): the only columns to write.
    * ``compression`` (str, None): how shards are compressed, such as "zstd:7".
    * ``hashes`` (list[str], ("xxh3_64",)): digests of every file to store.
    * ``overwrite`` (bool, False): replace the dataset at ``out``.
    * ``durable`` (bool, True): wait until shards and index are on the disk.
    * ``storage_options`` (dict[str, Any], None): settings of the store of the source.
    * ``progress`` (function, None): is called after every shard.

    Raises ConfigError for a source of no format, FormatError for a file that cannot be read, and
    FileExistsError for an output that is not empty.

    >>> keep_shards("s3://bucket/c4/*.parquet", "/data/c4")  # doctest: +SKIP
    """
    began = time.monotonic()
    data, files = open_files(source, format, columns, storage_options)
    encodings = dict(zip(data.columns.names, data.columns.encodings, strict=True))
    writer = _ShardWriter(
        columns=encodings,
        out=out,
        compression=compression,
        hashes=list(hashes),
        exist_ok=overwrite,
        durable=durable,
        size_limit=None,
    )
    with writer:
        for number, blocks in enumerate(_decoded(data, files)):
            writer.write_shard(blocks, data.where(number, files))
            if progress is not None:
                decoded_bytes = int(data.table.decoded[: number + 1].sum())
                all_bytes = int(data.table.decoded.sum())
                progress(Progress(decoded_bytes, all_bytes, writer.samples, number + 1, 0))
    seconds = time.monotonic() - began
    split = SplitSummary("", writer.samples, len(data.table), writer.raw_size, 0)
    return Summary(out, (split,), seconds)


def _decoded(data: FormatData, files: Files) -> Iterator[list[Block]]:
    """Yield the samples of every shard in order, decoded a few shards ahead."""
    with ThreadPoolExecutor(_AHEAD, "mds-keep-shards") as pool:
        waiting: deque[Future[list[Block]]] = deque()
        try:
            for number in range(len(data.table)):
                waiting.append(pool.submit(lambda shard: list(data.blocks(shard, files)), number))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()


class _ShardWriter(MDSWriter):
    """A writer that is given whole shards."""

    samples = raw_size = 0

    def write_shard(self, blocks: Sequence[Block], location: str) -> None:
        """Write one shard of blocks of samples."""
        sizes = np.concatenate([block.sizes for block in blocks])
        parts = [block.data for block in blocks]
        if int(sizes.sum()) != sum(map(len, parts)):
            raise ShardError(f"{location}: its blocks have other bytes than they say.")
        header = pack_header(sizes.tolist(), self._config)
        files = ((header, *parts),)
        config = self.get_config()
        self._pipeline.submit(
            FullShard(self._shards, len(sizes), self.format, files, config, parts.clear)
        )
        self._shards += 1
        self.samples += len(sizes)
        self.raw_size += len(header) + int(sizes.sum())
