"""Bringing the files of one shard: to a temporary name, checked, decompressed on the way, renamed.

Nothing that failed a check gets a name that a reader looks at. A compressed file is decompressed
while it arrives; its size and digest are judged when all of it came, before what it made is
published. What is damaged is asked for once more (a proxy may have had a bad day) and then
reported with both digests or both sizes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mds.cache.places import Place, check_file
from mds.errors import CorruptError, ShardError
from mds.events import Fetched, Retried, emit
from mds.hashing import new_hash
from mds.storage.files import publish

if TYPE_CHECKING:
    from mds.cache.counters import Counters
    from mds.index import FileInfo, ShardInfo
    from mds.storage import Store


class Fetcher:
    """The remote of one place. Thread-safe; its store is made when it is first needed."""

    def __init__(self, place: Place, counters: Counters) -> None:
        self.place = place
        self._counters = counters
        self._store: Store | None = None
        self._lock = threading.Lock()

    @property
    def store(self) -> Store:
        """The store behind the remote."""
        with self._lock:
            if self._store is None:
                from mds.storage import RetryPolicy, open_store

                source = self.place.source
                retry = RetryPolicy(attempts=source.retries, notify=self._retried)
                self._store = open_store(
                    self.place.remote, options=source.options, retry=retry, timeout=source.timeout
                )
            return self._store

    @property
    def is_far(self) -> bool:
        """Whether the remote is behind a network, so that round trips count."""
        return self.store.local_path is None

    def whole(self, info: ShardInfo) -> int:
        """Bring all files of a shard into the cache folder; the bytes that came over the wire."""
        came = 0
        for raw, packed in info.files:
            self.place.check_inside(raw)
            came += self._twice(info, raw, packed)
        return came

    def in_memory(self, info: ShardInfo) -> tuple[list[bytes], int]:
        """The raw files of a shard as bytes, and how many came over the wire."""
        parts, came = [], 0
        for raw, packed in info.files:
            try:
                data, size = self._to_memory(info, raw, packed)
            except CorruptError:
                data, size = self._to_memory(info, raw, packed)
            parts.append(data)
            came += size
        return parts, came

    def span(self, file: FileInfo, start: int, end: int) -> bytes:
        """A half-open range of bytes of a file that is stored uncompressed."""
        started = time.monotonic()
        data = self.store.get_range(file.basename, start, end)
        emit(Fetched(self.url(file), len(data), time.monotonic() - started, ranged=True))
        return data

    def url(self, file: FileInfo) -> str:
        """Where a file is, for people."""
        return self.store.url_of(file.basename)

    # ------------------------------------------------------------------ one file

    def _twice(self, info: ShardInfo, raw: FileInfo, packed: FileInfo | None) -> int:
        try:
            return self._to_disk(info, raw, packed)
        except CorruptError:
            return self._to_disk(info, raw, packed)

    def _to_disk(self, info: ShardInfo, raw: FileInfo, packed: FileInfo | None) -> int:
        place, started = self.place, time.monotonic()
        path = place.path(raw)
        if packed is None:
            with publish(path) as temporary:
                judge = _Judge(self, raw)
                if judge.has_digest:
                    self.store.get_file(raw.basename, temporary, raw.size, judge.see)
                    judge.verdict()
                else:
                    self.store.get_file(raw.basename, temporary, raw.size)  # checks the size
                self._let_in(temporary)
            size = raw.size
        else:
            with publish(path) as temporary:
                if place.keep_zip:
                    with publish(place.path(packed)) as kept:
                        size = self._unpack(info, raw, packed, temporary, kept)
                        self._let_in(kept)
                else:
                    size = self._unpack(info, raw, packed, temporary, None)
                self._let_in(temporary)
        emit(Fetched(self.url(packed or raw), size, time.monotonic() - started))
        return size

    def _unpack(
        self, info: ShardInfo, raw: FileInfo, packed: FileInfo, path: str, kept: str | None
    ) -> int:
        """Write the raw file while the compressed one arrives (or from one that is kept)."""
        came = 0

        def counted() -> Iterator[bytes]:
            nonlocal came
            for chunk in self._chunks(packed):
                came += len(chunk)
                yield chunk

        chunks = _copied(counted(), kept) if kept else counted()
        with open(path, "wb", buffering=0) as file:
            for piece in _checked_unpack(self, info, raw, packed, chunks):
                _write_all(file.fileno(), piece)
        return came

    def _chunks(self, packed: FileInfo) -> Iterator[bytes]:
        # A compressed file that lies in the folder already saves the way.
        path = self.place.path(packed)
        if os.path.exists(path):
            try:
                check_file(packed, path, self.place.hash_of(packed), path)
            except CorruptError:
                os.unlink(path)
            else:
                with open(path, "rb", buffering=0) as file:
                    yield from iter(lambda: file.read(1 << 20), b"")
                return
        yield from self.store.stream(packed.basename)

    def _to_memory(
        self, info: ShardInfo, raw: FileInfo, packed: FileInfo | None
    ) -> tuple[bytes, int]:
        started = time.monotonic()
        if packed is None:
            data = _judged(self, raw, self.store.stream(raw.basename))
            size = len(data)
        else:
            size = packed.size
            data = b"".join(_checked_unpack(self, info, raw, packed, self._chunks(packed)))
        emit(Fetched(self.url(packed or raw), size, time.monotonic() - started))
        return data, size

    def _retried(self, url: str, attempt: int, error: str) -> None:
        self._counters.add(retries=1)
        emit(Retried(url, attempt, error))

    def _let_in(self, path: str) -> None:
        os.chmod(path, self.place.mode())


def _judged(fetcher: Fetcher, file: FileInfo, chunks: Iterator[bytes]) -> bytes:
    judge = _Judge(fetcher, file)
    data = b"".join(judge.watch(chunks))
    judge.verdict()
    return data


def _checked_unpack(
    fetcher: Fetcher, info: ShardInfo, raw: FileInfo, packed: FileInfo, chunks: Iterator[bytes]
) -> Iterator[bytes]:
    """The raw bytes of a compressed stream, which is judged at its end before anything else."""
    from mds.compression import parse_compression

    codec = parse_compression(info.schema.compression)
    assert codec is not None
    judge = _Judge(fetcher, packed)
    rest = judge.watch(chunks)
    unpacking = codec.decompressor(raw.size)
    try:
        for chunk in rest:
            yield unpacking.feed(chunk)
        judge.verdict()
        yield unpacking.finish()
    except ShardError as error:
        # Damage shows in decompression first; the digest of the whole says what is the matter.
        for _ in rest:
            pass
        judge.verdict()
        where = fetcher.url(packed)
        raise CorruptError(
            f"{where}: the {packed.size} bytes that the index names came, but {error}",
            url=where,
            verb="get",
        ) from error


class _Judge:
    """Size and digest of a file as it goes by."""

    def __init__(self, fetcher: Fetcher, file: FileInfo) -> None:
        self._fetcher, self._file = fetcher, file
        self._name = fetcher.place.hash_of(file)
        if self._name not in file.hashes:
            self._name = None
        self._digest = new_hash(self._name) if self._name else None
        self._size = 0

    @property
    def has_digest(self) -> bool:
        """Whether more than the size is known of the file."""
        return self._digest is not None

    def watch(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The chunks as they come, up to one that makes the file too long."""
        for chunk in chunks:
            self.see(chunk)
            if self._size > self._file.size:
                break
            yield chunk

    def see(self, chunk: bytes | memoryview) -> None:
        """The next piece of the file."""
        self._size += len(chunk)
        if self._digest is not None and self._size <= self._file.size:
            self._digest.update(chunk)

    def verdict(self) -> None:
        """Raise CorruptError with the facts when the file is not what the index says."""
        where = self._fetcher.url(self._file)
        if self._size != self._file.size:
            found = f"at least {self._size}" if self._size > self._file.size else str(self._size)
            raise CorruptError(
                f"{where}: the index says {self._file.size} bytes, found {found}",
                url=where,
                verb="get",
            )
        if self._digest is not None and self._name is not None:
            found = self._digest.hexdigest()
            if found != self._file.hashes[self._name]:
                raise CorruptError(
                    f"{where}: the index says {self._name} {self._file.hashes[self._name]}, "
                    f"found {found}",
                    url=where,
                    verb="get",
                )


def _copied(chunks: Iterator[bytes], path: str) -> Iterator[bytes]:
    with open(path, "wb", buffering=0) as file:
        for chunk in chunks:
            _write_all(file.fileno(), chunk)
            yield chunk


def _write_all(file: int, data: bytes) -> None:
    done = 0
    while done < len(data):
        done += os.write(file, memoryview(data)[done:] if done else data)
