"""Downloads the files of one shard into its cache folder, or into memory.

A shard has one file, or a data file and a meta file. In the code, ``raw`` is the index entry of
such a file, uncompressed, and ``packed`` that of its compressed form on the remote, or None.

A file is written under a temporary name, checked, and renamed, so readers never see an incomplete
or damaged one. A compressed file is decompressed while it arrives. A file whose size or digest is
wrong is requested once more, since the error may be in the network; then the error is raised, with
both sizes or digests.

A dataset may be published anew while a job reads it. Then the ranges of a shard would come from two
different files, and offsets of one would be used on the other, without any error. `ObjectVersions`
detects this.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, NoReturn, TypeVar

from mds._cache.folder import CacheFolder, check_file, mark_as_ours
from mds._process.fork_safe import new_lock
from mds._process.stopwatch import TIMES
from mds._shardfile.hashing import new_hash
from mds._shardfile.layout import is_shard_name
from mds.errors import CacheError, CorruptError, ReplacedError, ShardError
from mds.events import Fetched, Retried, emit
from mds.storage._control_files import make_shared_folder, set_created_mode
from mds.storage._files import open_regular, open_target, publish

if TYPE_CHECKING:
    from mds._cache.counters import Counters
    from mds._cache.ledger import Ledger
    from mds._index.shard_object import FileInfo, ShardInfo
    from mds.storage import ObjectInfo, Store

T = TypeVar("T")


class NoRoomError(CacheError):
    """A shard is larger than its index says, and does not fit into the limit."""


class ShardDownloader:
    """Downloads shards from the remote of one cache folder. Thread-safe.

    The store of the remote is opened at the first download.

    Args:
        folder: The cache folder, with its source and index.
        counters: Counters of this process.
    """

    def __init__(self, folder: CacheFolder, counters: Counters) -> None:
        self.folder = folder
        self._counters = counters
        self._store: Store | None = None
        self._lock = new_lock()
        self.versions = ObjectVersions()

    @property
    def store(self) -> Store:
        """Store of the remote: the one that fetched the index, or a new one. It counts retries."""
        with self._lock:
            if self._store is None:
                from mds.storage import RetryPolicy, open_store
                from mds.storage._base import settings_for

                source = self.folder.source
                # A function and not a method: the store would keep this object alive, and with it
                # the ledger.
                notify = functools.partial(_record_retry, self._counters)
                retry = RetryPolicy(attempts=source.attempts, notify=notify)
                self._store = (
                    source.store.with_policy(retry)
                    if source.store is not None
                    else open_store(
                        self.folder.remote,
                        options=settings_for(self.folder.remote, source.options),
                        retry=retry,
                        timeout=source.timeout,
                    )
                )
            return self._store

    @property
    def is_far(self) -> bool:
        """Whether the remote is behind a network, so that the number of requests matters."""
        return self.store.local_path is None

    def download(self, info: ShardInfo, grow: Callable[[int], bool] | None = None) -> int:
        """Fetch all files of a shard into the cache folder; return the bytes transferred.

        Args:
            info: Entry of the shard in its index.
            grow: Not used here: for shards whose size is not in the index, see `mds._cache.decode`.
        """
        del grow
        received = 0
        self.folder.check_inside(info)
        for raw, packed in info.files:  # packed: the compressed file, or None
            if "/" in raw.basename:
                make_shared_folder(os.path.dirname(self.folder.path(raw)))
            try:
                received += self._to_disk(info, raw, packed)
            except CorruptError as error:
                retry = functools.partial(self._to_disk, info, raw, packed)
                received += self._retry_once(packed or raw, error, retry)
        return received

    def download_to_memory(self, info: ShardInfo) -> tuple[list[bytes], int]:
        """Return the contents of a shard's files, decompressed, and the bytes transferred.

        The first content is that of the data file; the meta file follows if the shard has one.
        """
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
        """Fetch the bytes from ``start`` to before ``end`` of a file that is stored uncompressed.

        Raises ReplacedError if the file does not have the size in the index, or is not the object
        that was read before.
        """
        started = time.monotonic()
        try:
            with self.store.stream(file.basename, start, end) as body:
                self.versions.check(info, file, body.info, self.url(file))
                data = b"".join(body)
        except CorruptError as error:  # shorter than the index says, or changed
            raise_replaced(error, self.url(file))
        emit(Fetched(self.url(file), len(data), time.monotonic() - started, ranged=True))
        return data

    def url(self, file: FileInfo) -> str:
        """Return the URL of a file, for messages."""
        return self.store.url_of(file.basename)

    # ------------------------------------------------------------------ one file

    def _retry_once(self, file: FileInfo, error: CorruptError, fetch: Callable[[], T]) -> T:
        """Call ``fetch`` to fetch a damaged file a second time, and return its result.

        If the index has a digest of the file, the second result was compared with it and can be
        trusted; if that fails too, its error is raised, with the remedy. Without a digest only the
        size is checked.

        Raises ReplacedError if the file is damaged again and the index has no digest of it: then
        most likely the dataset was published anew.

        Args:
            file: Entry of the damaged file in the index.
            error: Error of the first time.
            fetch: Function that fetches the file.
        """
        url, has_digest = self.url(file), _Verifier(self, file).has_digest
        # With a digest even after ReplacedError: the same bytes may have been written again.
        if isinstance(error, ReplacedError) and not has_digest:
            raise_replaced(error, url)
        try:
            return fetch()
        except CorruptError as second:
            if isinstance(second, ReplacedError) or not has_digest:
                raise_replaced(second, url)
            raise CorruptError(f"{second}. {_PERHAPS_REPLACED}.", url=url, verb="get") from second

    def _check_version(self, info: ShardInfo, file: FileInfo, stored_object: ObjectInfo) -> None:
        """Raise ReplacedError if a fetched object is not the one that was read before.

        A file with a digest in the index is not compared, since the digest is checked.

        Args:
            info: Entry of the shard in its index.
            file: Entry of the file, which is fetched as a whole.
            stored_object: Size and version of the object in the response.
        """
        if not _Verifier(self, file).has_digest:
            self.versions.check(info, file, stored_object, self.url(file), is_whole=True)

    def _to_disk(self, info: ShardInfo, raw: FileInfo, packed: FileInfo | None) -> int:
        """Fetch one raw file into the cache folder; return the bytes transferred.

        Args:
            info: Entry of the shard in its index.
            raw: Entry of the raw file.
            packed: Entry of the compressed file that is fetched instead; None: there is none.
        """
        folder, started = self.folder, time.monotonic()
        path = folder.path(raw)
        # `publish` renames the temporary file to its final name when all checks have passed.
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
                    self._check_version(info, raw, stored_object)
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
        """Decompress a file to ``path`` while it arrives; return its compressed bytes.

        Args:
            info: Entry of the shard in its index.
            raw: Entry of the raw file.
            packed: Entry of the compressed file.
            path: Path of the raw file.
            packed_path: Path at which the compressed file is kept; None: it is not kept.
        """
        received = 0

        def counted() -> Generator[bytes, None, None]:
            """Yield the compressed file, and count its bytes."""
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

    def _chunks(self, info: ShardInfo, packed: FileInfo) -> Generator[bytes, None, None]:
        """Yield a compressed file: from the folder if it has a valid copy, else from the remote."""
        path = self.folder.path(packed)
        # Use the copy if it has a hash to check, or is recent enough to be used without one.
        if os.path.exists(path) and self.folder.accepts_file(packed):
            try:
                check_file(packed, path, self.folder.hash_of(packed), path)
            except CorruptError:
                if is_shard_name(packed.basename):  # else it may be a file of another program
                    from mds.storage._relative_name import unlink_beneath

                    unlink_beneath(self.folder.root, packed.basename)
            else:
                with open_regular(path) as file:
                    yield from iter(lambda: file.read(1 << 20), b"")
                return
        yield from self._stream(info, packed)

    def _stream(self, info: ShardInfo, file: FileInfo) -> Iterator[bytes]:
        """Yield a whole file from the remote; raise ReplacedError if it is another object now."""
        with self.store.stream(file.basename) as body:
            self._check_version(info, file, body.info)
            yield from body

    def _to_memory(
        self, info: ShardInfo, raw: FileInfo, packed: FileInfo | None
    ) -> tuple[bytes, int]:
        """Fetch one raw file into memory; return its content and the bytes transferred.

        The arguments are as in `_to_disk`.
        """
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
        """Set the permissions and the ownership marker of a file, after its last byte is written.

        ``info`` is the entry of its shard.
        """
        set_created_mode(path, self.folder.mode())
        mark_as_ours(path, self.folder.content_id(info))


def _record_retry(counters: Counters, url: str, attempt: int, error: str) -> None:
    counters.add(retries=1)
    emit(Retried(url, attempt, error))


def _unpack_checked(
    downloader: ShardDownloader,
    info: ShardInfo,
    raw: FileInfo,
    packed: FileInfo,
    chunks: Generator[bytes, None, None],
    sink: Callable[[bytes], object],
) -> None:
    """Decompress a file, check its size and digest at its end, and close ``chunks`` in any case.

    If the disk is full, the download ends at once, and not when its error is forgotten.

    Args:
        downloader: The downloader of the file.
        info: Entry of the shard in its index.
        raw: The raw file.
        packed: The compressed file.
        chunks: Content of the compressed file.
        sink: Function that receives pieces of the raw file.
    """
    from mds._shardfile.compression import parse_compression

    codec = parse_compression(info.schema.compression)
    assert codec is not None
    verifier = _Verifier(downloader, packed)
    verified_chunks = verifier.checked(chunks)
    unpacking = codec.decompressor(raw.size)
    clock, spent = TIMES.clock, 0.0  # seconds of decompressing, without waits for chunks
    try:
        for chunk in verified_chunks:
            start = clock()
            unpacking.feed_to(chunk, sink)
            spent += clock() - start
        verifier.check()
        unpacking.finish_to(sink)
    except ShardError as error:
        # Decompressing a damaged file fails before its end. Its size or digest gives the reason.
        for _ in verified_chunks:
            pass
        verifier.check()
        url = downloader.url(packed)
        raise CorruptError(
            f"{url}: size and digest are those in the index, but {error}",
            url=url,
            verb="get",
        ) from error
    finally:
        chunks.close()
        TIMES.add(0.0, 0.0, unpack=spent)


class _Verifier:
    """Computes the size and digest of a file while it arrives, and compares them with the index.

    Args:
        downloader: The downloader of the file.
        file: Entry of the file in its index.
    """

    def __init__(self, downloader: ShardDownloader, file: FileInfo) -> None:
        self._downloader, self._file = downloader, file
        # Name of the digest; None: only the size is checked.
        self._name = downloader.folder.hash_of(file)
        if self._name not in file.hashes:
            self._name = None
        self._digest = new_hash(self._name) if self._name else None
        self._size = 0

    @property
    def has_digest(self) -> bool:
        """Whether the index has a digest of the file."""
        return self._digest is not None

    def checked(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the chunks after adding them to size and digest; stop if the file is too long."""
        for chunk in chunks:
            self.update(chunk)
            if self._size > self._file.size:
                break  # `check` raises the error
            yield chunk

    def update(self, chunk: bytes | memoryview) -> None:
        """Add the next piece of the file to the size and the digest; a file too long needs none."""
        self._size += len(chunk)
        if self._digest is not None and self._size <= self._file.size:
            self._digest.update(chunk)

    def check(self) -> None:
        """Raise CorruptError if the size or digest of the whole file differ from the index."""
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


def _copied(chunks: Iterator[bytes], path: str) -> Generator[bytes, None, None]:
    """Yield chunks after writing them to a new file at ``path``."""
    with open_target(path) as file:
        for chunk in chunks:
            _write_all(file.fileno(), chunk)
            yield chunk


def _write_all(file: int, data: bytes) -> None:
    """Write all of ``data`` to a file descriptor."""
    written = 0
    while written < len(data):
        written += os.write(file, memoryview(data)[written:] if written else data)


# ---------------------------------------------------------------------- versions of objects

_NEW_NAMES = (
    "to read the new data, and publish changed datasets under new names. If a restart gives the "
    "same error, shards and index do not match: upload them again"
)
_REMEDY = f"The dataset was replaced during the run. Restart {_NEW_NAMES}"
_PERHAPS_REPLACED = f"If the dataset was replaced during the run, restart {_NEW_NAMES}"


@dataclasses.dataclass(slots=True, eq=False)
class ObjectVersions:
    """Versions of the objects of one remote, as they were when first read. Thread-safe.

    Every response is compared with the size in the index, and with the version (etag, generation or
    modification time) in the first response for the object: in this process, and in all processes
    that share the cache folder. The ledger holds 32 bits of each version until a process is alone
    in the folder. If a store reports no versions, only the size is compared; if the ledger cannot
    be written, only within this process.
    """

    #: The ledger of the cache folder, once it is open.
    ledger: Ledger | None = None
    #: Digest of the version that this process saw first, by key (see `_key`).
    _first: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)
    _lock: threading.Lock = dataclasses.field(default_factory=new_lock)

    def check(
        self,
        shard: ShardInfo,
        file: FileInfo,
        info: ObjectInfo,
        url: str,
        *,
        is_whole: bool = False,
    ) -> None:
        """Raise ReplacedError if a response is of another object than the index or an earlier one.

        Args:
            shard: Entry of the shard in its index.
            file: Entry of the file.
            info: Size and version in the response.
            url: URL of the object, for the message.
            is_whole: Whether the whole object is fetched (default False). Its size is then checked
                by the caller, on its bytes.
        """
        if not is_whole and info.size not in (-1, file.size):
            raise _replaced(url, f"the index says {file.size} bytes, the store has {info.size} now")
        if not info.version:
            return
        version, key = _version_digest(info.version), _key(shard, file)
        with self._lock:
            first = self._first.setdefault(key, version)
        if first == version and self.ledger is not None:
            first = _first_of_folder(self.ledger, key, version)
        if first != version:
            raise _replaced(
                url,
                f"its version is now {info.version!r} and was different when it was first read "
                f"(if the servers of this URL report different versions of one object, set the "
                f"storage option compare_versions=False)",
            )

    def record_verified_version(self, shard: ShardInfo, file: FileInfo, info: ObjectInfo) -> None:
        """Record the object version whose bytes matched the digest in the index.

        It replaces the version that was seen first. The arguments are as in `check`.
        """
        if not info.version:
            return
        version, key = _version_digest(info.version), _key(shard, file)
        with self._lock:
            self._first[key] = version
        if self.ledger is not None:
            with self.ledger.change() as entries:
                entries["versions"][key] = version


def raise_replaced(error: CorruptError, url: str) -> NoReturn:
    """Raise ReplacedError, with the remedy, for an error of an object that was replaced."""
    if _REMEDY in str(error):  # it is one already
        raise error
    reason = str(error).removeprefix(f"get {url}: ").rstrip(".")
    raise _replaced(url, reason) from error


def _replaced(url: str, reason: str) -> ReplacedError:
    return ReplacedError(f"get {url}: {reason}. {_REMEDY}.", url=url, verb="get")


def _first_of_folder(ledger: Ledger, key: tuple[int, int], version: int) -> int:
    """Return the digest of the version of a file that any process of the folder saw first.

    If none has seen the file, ``version`` is recorded as the first and returned.

    Args:
        ledger: Ledger of the cache folder.
        key: Position of the file in the ledger, see `_key`.
        version: Digest of the version that this process sees.
    """
    first = int(ledger.refresh()["versions"][key])
    if not first:
        with ledger.change() as entries:  # look again: another process may have been faster
            first = int(entries["versions"][key])
            if not first:
                entries["versions"][key] = first = version
    return first


def _key(shard: ShardInfo, file: FileInfo) -> tuple[int, int]:
    """Return the position of a file in the ledger: its shard, and 0 for data or 1 for meta."""
    return shard.number, int(file in (shard.raw_meta, shard.zip_meta))


def _version_digest(text: str) -> int:
    """Return 32 bits of the digest of a version; never 0."""
    digest = hashlib.blake2s(text.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") or 1
