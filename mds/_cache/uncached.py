"""Reads of shards that are not in the cache: some rows by range, or a whole shard in memory.

The header of an uncompressed shard says where each sample is; where all samples have one size, not
even the header is needed. Ranges of neighbouring samples are joined:

    samples      |  0  |  1  |  2  |  3  |  4  |  5  |  6  |  7  |
    wanted       |xxxxx|     |xxxxx|                       |xxxxx|
    requests      <--------------->                         <--->
                  gap of at most ``gap`` bytes              gap too large

A compressed shard is fetched as a whole and decompressed in memory; only the wanted samples are
kept. Ranges cannot be checked against the digest of a file, only against its size and offsets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mds._cache import policy
from mds._cache.concurrency import ByteSemaphore, Pool
from mds._cache.open_readers import OpenReader
from mds._process.fork_safe import new_lock
from mds._readers import open_sparse
from mds._readers.fields import fields_of
from mds._readers.joint import JointReader
from mds._shardfile.layout import header_size, parse_meta_offsets, parse_offsets
from mds._words import plural
from mds.errors import ShardError

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._cache.counters import Counters
    from mds._cache.download import ShardDownloader
    from mds._cache.folder import CacheFolder, Catalog
    from mds._index.shard_object import ShardInfo
    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection

    Offsets = npt.NDArray[np.uint32] | npt.NDArray[np.int64]

_MAX_OFFSET_BYTES = 16 << 20  # of offsets that are kept for later reads


class UncachedReads:
    """Reads of the shards of a dataset without keeping them on the disk. Thread-safe.

    Args:
        catalog: The shards of the dataset.
        downloaders: The downloader of each cache folder, by its number.
        counters: Counters of this process.
        columns: Columns to decode.
        allow_unsafe_types: Whether columns may be decoded that can run code, such as pickles.
        max_requests: Number of requests for ranges at one time.
        max_bytes: Bytes of whole shards that may be read into memory at one time.
    """

    def __init__(
        self,
        catalog: Catalog,
        downloaders: Sequence[ShardDownloader],
        counters: Counters,
        columns: ColumnSelection,
        *,
        allow_unsafe_types: bool,
        max_requests: int,
        max_bytes: int,
    ) -> None:
        self._catalog, self._downloaders, self._counters = catalog, downloaders, counters
        self._columns, self._unsafe = columns, allow_unsafe_types
        self._pool = Pool(max_requests, "mds-range")
        self._ranges = RangeReader(self._pool)
        self._bytes_in_flight = ByteSemaphore(lambda: max_bytes)

    def read_rows(self, shard: int, rows: Sequence[int], gap: int = policy.REQUEST) -> Reader:
        """Return a reader of some rows of a shard.

        Args:
            shard: Number of the shard in the dataset.
            rows: Numbers of the rows in the shard.
            gap: Ranges with at most so many bytes between them are fetched as one (default 8 KiB).
        """
        folder, number = self._catalog.locate(shard)
        info, downloader = folder.index.shard(number), self._downloaders[folder.number]
        can_range, url = folder.can_range(number), downloader.url(info.raw)
        samples: dict[int, bytes]  # stored bytes by row
        # Three ways: decode the rows out of a file in another format, fetch ranges of an MDS file,
        # or fetch the whole shard into memory if it is compressed or small.
        if folder.is_decoded and can_range:
            from mds._cache.decode import ShardDecoder

            assert isinstance(downloader, ShardDecoder)
            row_bytes, received = downloader.rows(info, sorted(set(rows)))
            samples = dict(row_bytes)
            self._counters.add(ranged_reads=1, ranged_bytes=received)
        elif can_range and info.raw.size > policy.SMALL_SHARD:
            samples, ranges, received = self._ranges.read(downloader, shard, info, rows, gap)
            self._counters.add(ranged_reads=ranges, ranged_bytes=received)
        else:
            with self._bytes_in_flight.acquire(info.raw.size):
                parts, received = downloader.download_to_memory(info)
                reader = memory_reader(info, parts, url, self._columns)
                samples = {row: bytes(reader.sample_bytes(row)) for row in sorted(set(rows))}
            self._counters.add(in_memory_shards=1, fetched_bytes=received)
        return open_sparse(
            info, samples, url, allow_unsafe_types=self._unsafe, columns=self._columns
        )

    def open_in_memory(self, folder: CacheFolder, info: ShardInfo) -> OpenReader:
        """Return a reader of a whole shard that is fetched into memory."""
        downloader = self._downloaders[folder.number]
        with self._bytes_in_flight.acquire(info.raw.size):
            parts, received = downloader.download_to_memory(info)
        self._counters.add(in_memory_shards=1, fetched_bytes=received)
        reader = memory_reader(info, parts, downloader.url(info.raw), self._columns)
        return OpenReader(reader, in_memory=sum(map(len, parts)))

    def close(self) -> None:
        """Stop the threads. Closing twice is fine."""
        self._pool.close()


class RangeReader:
    """Ranged reads of uncompressed shards; keeps the offsets of recently read shards.

    The offsets of a shard say where each sample begins in its file, in bytes.

    ``pool`` are the threads that send requests to remotes behind a network.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._offsets: OrderedDict[int, Offsets] = OrderedDict()
        self._size = 0  # bytes of all kept offsets
        self._lock = new_lock()

    def read(
        self,
        downloader: ShardDownloader,
        shard: int,
        info: ShardInfo,
        rows: Sequence[int],
        gap: int,
    ) -> tuple[dict[int, bytes], int, int]:
        """Return the stored bytes of some rows by row, the number of requests, and their bytes.

        Args:
            downloader: Downloader of the shard.
            shard: Number of the shard in the dataset.
            info: Entry of the shard in its index.
            rows: Numbers of the rows in the shard.
            gap: Most bytes between two ranges that are fetched as one.
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
        # Cut the rows out of the ranges, which are in the same order.
        out, range_index = {}, 0
        for row, (start, end) in zip(sorted_rows, spans, strict=True):
            while end > ranges[range_index][1]:
                range_index += 1
            first = ranges[range_index][0]
            out[row] = pieces[range_index][start - first : end - first]
        requests = len(ranges) + (1 if received else 0)  # one more if the offsets were fetched
        return out, requests, sum(map(len, pieces)) + received

    def _offsets_of(
        self, downloader: ShardDownloader, shard: int, info: ShardInfo
    ) -> tuple[Offsets, int]:
        """Return the offset of each sample in its shard, and the bytes fetched to know them.

        The offsets have shape (samples + 1,): sample i ends where sample i + 1 begins.
        """
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
            while self._size > _MAX_OFFSET_BYTES and len(self._offsets) > 1:
                self._size -= self._offsets.popitem(last=False)[1].nbytes
        return offsets, received


def coalesce(
    spans: Sequence[tuple[int, int]], gap: int = policy.REQUEST, longest: int = 8 << 20
) -> Iterator[tuple[int, int]]:
    """Yield fewer ranges of bytes that cover the half-open ``spans``, which are ascending.

    Args:
        spans: Start and end of each span.
        gap: Neighbours with at most so many bytes between them are joined (default 8 KiB).
        longest: Ranges are not joined into longer ones (default 8 MiB), so that several
            connections share a long stretch.

    >>> list(coalesce([(0, 10), (15, 20), (90, 95)], gap=5))
    [(0, 20), (90, 95)]
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
    """Return the offsets of a shard whose samples all have one size, or None for other shards.

    They have shape (samples + 1,) and are computed, since the samples are at the end of the file.
    Raises ShardError if the samples do not fit into the size in the index.
    """
    if info.schema.is_split:
        return None
    size = fields_of(info.schema.columns).row_size
    if size is None:
        return None
    start = info.raw.size - info.samples * size
    if start < header_size(info.samples):
        raise ShardError(
            f"{info.raw.basename}: {plural(info.samples, 'sample')} of {size} bytes do not fit "
            f"into {info.raw.size} bytes, the size of the shard in the index."
        )
    return np.arange(info.samples + 1, dtype=np.int64) * size + start


def _read_offsets(downloader: ShardDownloader, info: ShardInfo) -> tuple[Offsets, int]:
    """Fetch the offsets of a shard from its header or meta file; also return the bytes fetched."""
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
    """Return a reader of a whole shard in memory.

    Args:
        info: Entry of the shard in its index.
        parts: Content of its raw files: one, or data and meta file.
        name: Path or URL for error messages.
        columns: Columns to decode.
    """
    if info.raw_meta is None:
        return JointReader(info.schema, info.samples, parts[0], name, columns=columns)
    from mds._readers.split import SplitReader

    return SplitReader(info.schema, info.samples, parts[0], parts[1], name, columns=columns)
