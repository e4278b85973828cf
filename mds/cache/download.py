"""Downloads the files of one shard: to a temporary name, checked, decompressed on the way, renamed.

Nothing that failed a check gets a name that a reader looks at. A compressed file is decompressed
while it arrives; its size and digest are judged when all of it came, before what it made is
published. What is damaged is asked for once more (a proxy may have had a bad day) and then
reported with both digests or both sizes.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from mds.cache.folder import CacheFolder, check_file, mark_as_ours
from mds.cache.versions import ObjectVersions, raise_replaced
from mds.errors import CacheError, CorruptError, ReplacedError, ShardError
from mds.events import Fetched, Retried, emit
from mds.process.fork_safe import new_lock
from mds.shardfile.hashing import new_hash
from mds.shardfile.layout import is_shard_name
from mds.storage.control_files import let_in, make_shared_folder
from mds.storage.files import open_regular, open_target, publish
from mds.storage.transfer_times import TIMES

if TYPE_CHECKING:
    from mds.cache.counters import Counters
    from mds.index import FileInfo, ShardInfo
    from mds.storage import ObjectInfo, Store

T = TypeVar("T")


class NoRoomError(CacheError):
    """A shard turned out to be larger than the limit has room for."""


class ShardDownloader:
    """The remote of one folder. Thread-safe; its store is made when it is first needed."""

    def __init__(self, folder: CacheFolder, counters: Counters) -> None:
        self.folder = folder
        self._counters = counters
        self._store: Store | None = None
        self._lock = new_lock()
        self.versions = ObjectVersions()

    @property
    def store(self) -> Store:
        """The store behind the remote."""
        with self._lock:
            if self._store is None:
                from mds.storage import RetryPolicy, open_store

                source = self.folder.source
                # Not a method: the store would keep this object, and with it the ledger, alive.
                notify = functools.partial(_note_retry, self._counters)
                retry = RetryPolicy(attempts=source.retries, notify=notify)
                self._store = (
                    source.store.with_policy(retry)
                    if source.store is not None
                    else open_store(
                        self.folder.remote,
                        options=source.options,
                        retry=retry,
                        timeout=source.timeout,
                    )
                )
            return self._store

    @property
    def is_far(self) -> bool:
        """Whether the remote is behind a network, so that round trips count."""
        return self.store.local_path is None

    def download(self, info: ShardInfo, grow: Callable[[int], bool] | None = None) -> int:
        """Fetch all files of a shard into the cache folder; the bytes that came over the wire.

        ``grow`` is for shards of which the index does not know the size (`decode.py`).
        """
        del grow
        received = 0
        self.folder.check_inside(info)
        for raw, packed in info.files:
            if "/" in raw.basename:
                make_shared_folder(os.path.dirname(self.folder.path(raw)))
            try:
                received += self._to_disk(info, raw, packed)
            except CorruptError as error:
                again = functools.partial(self._to_disk, info, raw, packed)
                received += self._retry_once(packed or raw, error, again)
        return received

    def download_to_memory(self, info: ShardInfo) -> tuple[list[bytes], int]:
        """Return the raw files of a shard as bytes, and the number of bytes fetched."""
        parts, received = [], 0
        self.folder.check_inside(info)
        for raw, packed in info.files:
            try:
                data, size = self._to_memory(info, raw, packed)
            except CorruptError as error:
                data, size = self._retry_once(
                    packed or raw, error, functools.partial(self._to_memory, info, raw, packed)
                )
            parts.append(data)
            received += size
        return parts, received

    def get_range(self, info: ShardInfo, file: FileInfo, start: int, end: int) -> bytes:
        """Fetch a half-open range of bytes of a file that is stored uncompressed.

        Raises ReplacedError when the file is not of the size that the index says, or not the one
        of which other bytes came before.
        """
        started = time.monotonic()
        try:
            with self.store.stream(file.basename, start, end) as body:
                self.versions.agree(info, file, body.info, self.url(file))
                data = b"".join(body)
        except CorruptError as error:  # too short for a range that the index knows, or changed
            raise_replaced(error, self.url(file))
        emit(Fetched(self.url(file), len(data), time.monotonic() - started, ranged=True))
        return data

    def url(self, file: FileInfo) -> str:
        """Return the URL of a file, for messages."""
        return self.store.url_of(file.basename)

    # ------------------------------------------------------------------ one file

    def _retry_once(self, file: FileInfo, error: CorruptError, act: Callable[[], T]) -> T:
        """Fetch a damaged file a second time, and raise the error that names the cause."""
        if _Verifier(self, file).has_digest:
            return act()  # also of an object that was written once more, with the same bytes
        if isinstance(error, ReplacedError):
            raise_replaced(error, self.url(file))
        try:
            return act()
        except CorruptError as second:
            raise_replaced(second, self.url(file))

    def _agree(self, info: ShardInfo, file: FileInfo, stored_object: ObjectInfo) -> None:
        """Compare a whole file with what was read of it before, unless its digest decides."""
        if not _Verifier(self, file).has_digest:
            self.versions.agree(info, file, stored_object, self.url(file), is_whole=True)

    def _to_disk(self, info: ShardInfo, raw: FileInfo, packed: FileInfo | None) -> int:
        folder, started = self.folder, time.monotonic()
        path = folder.path(raw)
        if packed is None:
            with publish(path) as temporary:
                verifier = _Verifier(self, raw)
                if verifier.has_digest:
                    stored_object = self.store.get_file(
                        raw.basename, temporary, raw.size, verifier.update
                    )
                    verifier.check()
                    self.versions.record_verified_version(info, raw, stored_object)
                else:
                    stored_object = self.store.get_file(raw.basename, temporary, raw.size)
                    self._agree(info, raw, stored_object)
                self._finish(info, temporary)
            size = raw.size
        else:
            with publish(path) as temporary:
                if folder.keep_zip:
                    with publish(folder.path(packed)) as packed_path:
                        size = self._unpack(info, raw, packed, temporary, packed_path)
                        self._finish(info, packed_path)
                else:
                    size = self._unpack(info, raw, packed, temporary, None)
                self._finish(info, temporary)
        emit(Fetched(self.url(packed or raw), size, time.monotonic() - started))
        return size

    def _unpack(
        self, info: ShardInfo, raw: FileInfo, packed: FileInfo, path: str, packed_path: str | None
    ) -> int:
        """Write the raw file while the compressed one arrives (or from one that is kept)."""
        received = 0

        def counted() -> Iterator[bytes]:
            nonlocal received
            for chunk in self._chunks(info, packed):
                received += len(chunk)
                yield chunk

        chunks = _copied(counted(), packed_path) if packed_path else counted()
        with open_target(path) as file:
            handle = file.fileno()
            _unpack_checked(
                self, info, raw, packed, chunks, lambda piece: _write_all(handle, piece)
            )
        return received

    def _chunks(self, info: ShardInfo, packed: FileInfo) -> Iterator[bytes]:
        # A compressed file in the folder saves a download.
        path = self.folder.path(packed)
        if os.path.exists(path) and self.folder.believes_file(packed):
            try:
                check_file(packed, path, self.folder.hash_of(packed), path)
            except CorruptError:
                if is_shard_name(packed.basename):  # else it may be anything of the user's
                    from mds.storage.relative_name import unlink_beneath

                    unlink_beneath(self.folder.root, packed.basename)
            else:
                with open_regular(path) as file:
                    yield from iter(lambda: file.read(1 << 20), b"")
                return
        yield from self._stream(info, packed)

    def _stream(self, info: ShardInfo, file: FileInfo) -> Iterator[bytes]:
        with self.store.stream(file.basename) as body:
            self._agree(info, file, body.info)
            yield from body

    def _to_memory(
        self, info: ShardInfo, raw: FileInfo, packed: FileInfo | None
    ) -> tuple[bytes, int]:
        started = time.monotonic()
        if packed is None:
            verifier = _Verifier(self, raw)
            data = b"".join(verifier.checked(self._stream(info, raw)))
            verifier.check()
            size = len(data)
        else:
            size = packed.size
            pieces: list[bytes] = []
            _unpack_checked(self, info, raw, packed, self._chunks(info, packed), pieces.append)
            data = b"".join(pieces)
        emit(Fetched(self.url(packed or raw), size, time.monotonic() - started))
        return data, size

    def _finish(self, info: ShardInfo, path: str) -> None:
        let_in(path, self.folder.mode())
        mark_as_ours(path, self.folder.content_id(info))


def _note_retry(counters: Counters, url: str, attempt: int, error: str) -> None:
    counters.add(retries=1)
    emit(Retried(url, attempt, error))


def _unpack_checked(
    downloader: ShardDownloader,
    info: ShardInfo,
    raw: FileInfo,
    packed: FileInfo,
    chunks: Iterator[bytes],
    sink: Callable[[bytes], object],
) -> None:
    """Give ``sink`` the raw bytes of a compressed stream, which is judged when it has ended."""
    from mds.shardfile.compression import parse_compression

    codec = parse_compression(info.schema.compression)
    assert codec is not None
    verifier = _Verifier(downloader, packed)
    verified_chunks = verifier.checked(chunks)
    unpacking = codec.decompressor(raw.size)
    clock, spent = TIMES.clock, 0.0
    try:
        for chunk in verified_chunks:
            start = clock()
            unpacking.feed_to(chunk, sink)
            spent += clock() - start
        verifier.check()
        unpacking.finish_to(sink)
    except ShardError as error:
        # Decompression fails first on a damaged file; its size or digest gives the reason.
        for _ in verified_chunks:
            pass
        verifier.check()
        url = downloader.url(packed)
        raise CorruptError(
            f"{url}: the {packed.size} bytes that the index names came, but {error}",
            url=url,
            verb="get",
        ) from error
    finally:
        TIMES.add(0.0, 0.0, unpack=spent)


class _Verifier:
    """Size and digest of a file as it goes by."""

    def __init__(self, downloader: ShardDownloader, file: FileInfo) -> None:
        self._downloader, self._file = downloader, file
        self._name = downloader.folder.hash_of(file)
        if self._name not in file.hashes:
            self._name = None
        self._digest = new_hash(self._name) if self._name else None
        self._size = 0

    @property
    def has_digest(self) -> bool:
        """Whether more than the size is known of the file."""
        return self._digest is not None

    def checked(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Iterate over the chunks, up to one that makes the file too long."""
        for chunk in chunks:
            self.update(chunk)
            if self._size > self._file.size:
                break
            yield chunk

    def update(self, chunk: bytes | memoryview) -> None:
        """Add the next piece of the file to the size and the digest."""
        self._size += len(chunk)
        if self._digest is not None and self._size <= self._file.size:
            self._digest.update(chunk)

    def check(self) -> None:
        """Raise CorruptError with the facts when the file is not what the index says."""
        url = self._downloader.url(self._file)
        if self._size != self._file.size:
            value = f"at least {self._size}" if self._size > self._file.size else str(self._size)
            raise CorruptError(
                f"{url}: the index says {self._file.size} bytes, found {value}",
                url=url,
                verb="get",
            )
        if self._digest is not None and self._name is not None:
            value = self._digest.hexdigest()
            if value != self._file.hashes[self._name]:
                raise CorruptError(
                    f"{url}: the index says {self._name} {self._file.hashes[self._name]}, "
                    f"found {value}",
                    url=url,
                    verb="get",
                )


def _copied(chunks: Iterator[bytes], path: str) -> Iterator[bytes]:
    with open_target(path) as file:
        for chunk in chunks:
            _write_all(file.fileno(), chunk)
            yield chunk


def _write_all(file: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.write(file, memoryview(data)[written:] if written else data)
