"""Some samples of a shard that is not in the cache: by ranged reads, or out of one pass in memory.

An uncompressed shard says in its header where each sample is; where all samples have one size not
even the header is needed. Neighbouring samples come as one range, ranges come side by side. A
compressed shard has to come whole; it is decompressed in memory and only the wanted samples stay.
Ranges cannot be checked against the digest of a file, only against its size and offsets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mds.cache import policy
from mds.errors import ShardError
from mds.process.fork_safe import new_lock
from mds.readers.fields import fields_of
from mds.readers.joint import JointReader
from mds.shardfile.layout import header_size, parse_meta_offsets, parse_offsets

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.cache.concurrency import Pool
    from mds.cache.download import ShardDownloader
    from mds.index import ShardInfo
    from mds.readers import ColumnSelection, Reader

    Offsets = npt.NDArray[np.uint32] | npt.NDArray[np.int64]

_REMEMBERED = 16 << 20  # bytes of offsets


class RangeReader:
    """Ranged reads of the shards of all folders; remembers offsets of recent shards."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._offsets: OrderedDict[int, Offsets] = OrderedDict()
        self._size = 0
        self._lock = new_lock()

    def read(
        self,
        downloader: ShardDownloader,
        shard: int,
        info: ShardInfo,
        rows: Sequence[int],
        gap: int = policy.REQUEST,
    ) -> tuple[dict[int, bytes], int, int]:
        """Fetch stored bytes of rows of an uncompressed shard; also count ranges and bytes.

        Ranges are joined over gaps of up to ``gap`` bytes.
        """
        sorted_rows = sorted(set(rows))
        offsets, received = self._offsets_of(downloader, shard, info)
        spans = [(int(offsets[row]), int(offsets[row + 1])) for row in sorted_rows]
        ranges = list(coalesce(spans, gap))
        if len(ranges) > 1 and downloader.is_far:
            get, raw = downloader.get_range, info.raw
            futures = [self._pool.submit(get, info, raw, *each) for each in ranges]
            pieces = [future.result() for future in futures]
        else:
            pieces = [downloader.get_range(info, info.raw, *each) for each in ranges]
        out, range_index = {}, 0
        for row, (start, end) in zip(sorted_rows, spans, strict=True):
            while end > ranges[range_index][1]:
                range_index += 1
            first = ranges[range_index][0]
            out[row] = pieces[range_index][start - first : end - first]
        return out, len(ranges) + bool(received), sum(map(len, pieces)) + received

    def _offsets_of(
        self, downloader: ShardDownloader, shard: int, info: ShardInfo
    ) -> tuple[Offsets, int]:
        with self._lock:
            if shard in self._offsets:
                self._offsets.move_to_end(shard)
                return self._offsets[shard], 0
        offsets, received = _fixed_offsets(info), 0
        if offsets is None:
            offsets, received = _read_offsets(downloader, info)
        with self._lock:
            if shard not in self._offsets:
                self._offsets[shard] = offsets
                self._size += offsets.nbytes
            while self._size > _REMEMBERED and len(self._offsets) > 1:
                self._size -= self._offsets.popitem(last=False)[1].nbytes
        return offsets, received


def coalesce(
    spans: Sequence[tuple[int, int]], gap: int = policy.REQUEST, longest: int = 8 << 20
) -> Iterator[tuple[int, int]]:
    """Fewer ranges that cover the half-open ``spans``, which come in rising order.

    Neighbours are joined over gaps of up to ``gap`` bytes, as long as the result stays below
    ``longest``, so that several connections share a long stretch.
    """
    if not spans:
        return
    start, end = spans[0]
    for first, last in spans[1:]:
        if first - end <= gap and last - start <= longest:
            end = max(end, last)
        else:
            yield start, end
            start, end = first, last
    yield start, end


def _fixed_offsets(info: ShardInfo) -> Offsets | None:
    """Offsets of a shard whose samples all have one size, which are the end of the file."""
    if info.schema.is_split:
        return None
    size = fields_of(info.schema.columns).row_size
    if size is None:
        return None
    start = info.raw.size - info.samples * size
    if start < header_size(info.samples):
        raise ShardError(
            f"{info.raw.basename}: {info.samples} samples of {size} bytes do not fit into the "
            f"{info.raw.size} bytes that the index says."
        )
    return np.arange(info.samples + 1, dtype=np.int64) * size + start


def _read_offsets(downloader: ShardDownloader, info: ShardInfo) -> tuple[Offsets, int]:
    meta = info.raw_meta
    if meta is not None:
        data = downloader.get_range(info, meta, 0, meta.size)
        url = downloader.url(meta)
        return parse_meta_offsets(data, info.samples, info.raw.size, url), len(data)
    data = downloader.get_range(info, info.raw, 0, header_size(info.samples))
    url = downloader.url(info.raw)
    return parse_offsets(data, info.samples, info.raw.size, url), len(data)


def memory_reader(
    info: ShardInfo, parts: Sequence[bytes], name: str, columns: ColumnSelection
) -> Reader:
    """Return a reader of a whole shard whose raw files are given as bytes."""
    if info.raw_meta is None:
        return JointReader(info.schema, info.samples, parts[0], name, columns=columns)
    from mds.readers.split import SplitReader

    return SplitReader(info.schema, info.samples, parts[0], parts[1], name, columns=columns)
