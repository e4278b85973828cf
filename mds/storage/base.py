"""The seam between the library and wherever bytes live: a few verbs on keys below a URL.

A provider implements `stream`, `_write`, `head`, `list` and `delete`, each one try; everything
else (whole gets, files, checks of size) is built on those here, and behaviour such as retries is
wrapped around (`mds.storage.wrappers`). A store may be used by many threads and in forked
children, and pickles as what it was made from: connections belong to a process (`process.py`).
"""

from __future__ import annotations

import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import BinaryIO

from mds.errors import ConfigError, CorruptError, ReplacedError, StoreError, TransientError
from mds.process.fork_safe import new_event
from mds.redaction import printable
from mds.storage.files import disk, open_target, read_back, write_at
from mds.storage.url import Url, join, redact

#: Bytes asked of a connection at a time. Measured over loopback HTTP, 1 MB costs the least
#: processor time; 64 KB a quarter more, 8 MB a third more.
CHUNK = 1 << 20

# A key that cannot be taken for a login or a query, and needs no escape: its URL is put together.
_PLAIN_KEY = re.compile(r"[0-9A-Za-z_./-]+").fullmatch

#: Function called with each piece of a file; the piece is valid until the next call.
OnBytes = Callable[["bytes | memoryview"], object]


def check_key(key: str) -> str:
    """Return the key. Raises ConfigError when it would leave the folder of its store."""
    parts = key.split("/")
    if key.startswith("/") or ".." in parts or "\0" in key:
        raise ConfigError(f"{key!r} is not the name of an object below a URL.")
    return key


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The key of an object, its size in bytes (-1: unknown) and its version.

    ``version`` is an etag, a generation or a time of change: it differs when the content does; ''
    when the store tells nothing of the kind.
    """

    key: str
    size: int
    version: str = ""


def is_same_object(first: ObjectInfo, second: ObjectInfo) -> bool:
    """Whether two answers may be of one object: what both tell of size and version agrees."""
    if first.size >= 0 and second.size >= 0 and first.size != second.size:
        return False
    return not (first.version and second.version) or first.version == second.version


def replaced_error(url: str, first: ObjectInfo, second: ObjectInfo) -> ReplacedError:
    """Return the error for an object that was replaced between two of its parts."""
    return ReplacedError(
        f"get {url}: the object changed while it was read ({describe_info(first)} before, "
        f"{describe_info(second)} now)",
        url=url,
        verb="get",
    )


def describe_info(info: ObjectInfo) -> str:
    """Describe the size and version of an object for people."""
    size = f"{info.size} bytes" if info.size >= 0 else "unknown size"
    return f"{size}, version {info.version!r}" if info.version else size


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload in parts that did not end: the key it was for, and the store's name for it."""

    key: str
    identifier: str


class Body(Iterator[bytes]):
    """The bytes of one answer as they arrive; iterate it once, `close` it when you stop early.

    ``info`` describes the whole object, ``length`` is what this body must bring (None: as much as
    comes). A body that ends early or brings more raises TransientError rather than ending.
    """

    def __init__(
        self,
        info: ObjectInfo,
        chunks: Iterator[bytes],
        length: int | None,
        *,
        url: str = "",
        close: Callable[[], object] | None = None,
    ) -> None:
        self.info = info
        self.length = length
        #: Headers of the answer, where the store speaks HTTP.
        self.headers: Mapping[str, str] = {}
        self._chunks = chunks
        self._received = 0
        self._url = url
        self._on_close = [close] if close is not None else []

    def __next__(self) -> bytes:
        for chunk in self._chunks:
            self._received += len(chunk)
            if self.length is not None and self._received > self.length:
                self._fail("and still more came")
            if chunk:
                return chunk
        if self.length is not None and self._received < self.length:
            self._fail("then the connection ended")
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Give the connection back. Closing twice is fine."""
        while self._on_close:
            self._on_close.pop()()

    def on_close(self, act: Callable[[], object]) -> None:
        """Register ``act`` to be called when the body ends or is closed, the latest first."""
        self._on_close.append(act)

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fail(self, problem: str) -> None:
        self.close()
        raise TransientError(
            f"get {self._url}: {self._received} of {self.length} bytes came, {problem}",
            url=self._url,
            verb="get",
        )


class Store(ABC):
    """Objects below a URL. Keys are relative paths with '/', and '' is the URL itself."""

    _url = Url("")
    _printable_parts = ("", "")  # prefix and suffix of a plain key in `url_of`
    #: Folder that holds the objects as plain files, for a store on a mounted disk.
    local_path: str | None = None
    #: Whether the provider has a way to name the objects below a URL.
    can_list: bool = True
    #: Whether objects can be written and deleted.
    can_write: bool = True
    #: `get_file` downloads objects of at least two parts in parts of `part_size` bytes, with
    #: `part_connections` requests at a time.
    part_size: int = 16 << 20
    part_connections: int = 4
    #: Whether to request a range even for a whole object, if its size is known and the caller
    #: checks its bytes.
    asks_for_ranges: bool = False
    #: Bytes a second below which a transfer counts as stalled, over HTTP and SFTP.
    min_rate: float = 1024.0

    @property
    def url(self) -> Url:
        """The URL that the keys are below; its text is without secrets, `Url.reveal` gives them."""
        return self._url

    @url.setter
    def url(self, url: str) -> None:
        self._url = Url(url)
        before, _, behind = printable(redact(join(self._url, "key"))).rpartition("key")
        self._printable_parts = (before, behind)

    @abstractmethod
    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the object, or its bytes from ``start`` to before ``end``, as they arrive.

        Raises NotFoundError before the first chunk when there is no such object, CorruptError when
        it is too short for the range, TransientError when the bytes stop coming.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Size and version of an object. Raises NotFoundError."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Every object whose key starts with ``prefix``, at any depth, in no promised order."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object. One that is not there is fine."""

    @abstractmethod
    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Store ``size`` bytes of ``file``, from its position on, whole or not at all."""

    def get(self, key: str) -> bytes:
        """Return the whole object."""
        return b"".join(self.stream(key))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` to before ``end``: exactly that many, or raise."""
        return b"".join(self.stream(key, start, end))

    def get_file(
        self, key: str, path: str, size: int | None = None, on_bytes: OnBytes | None = None
    ) -> ObjectInfo:
        """Write the whole object to ``path``, which the caller renames when it is content.

        With ``size`` the object must have so many bytes (CorruptError) and large ones come over
        several connections at once. ``on_bytes`` is called with all its bytes in order, in pieces:
        as they come, or out of the file. Raises NoSpaceError when the disk is full.
        """
        with disk(path), open_target(path) as file:
            if size is not None and size >= 2 * self.part_size and self.part_connections > 1:
                info = _get_parts(self, key, file.fileno(), size)
            else:
                # Not without a digest: what a store checks of whole objects only counts then.
                end = size if on_bytes is not None and self.asks_for_ranges else None
                with self.stream(key, 0, end) as body:
                    return _write_body(self, body, file.fileno(), size, on_bytes)
        if on_bytes is not None:
            read_back(path, on_bytes)
        return info

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Store ``data`` under ``key``, replacing what was there, whole or not at all.

        Gives what the store then says about the object, where it was asked.
        """
        self._write(key, io.BytesIO(data), len(data))
        return self._verify(key, len(data))

    def put_file(self, key: str, path: str) -> ObjectInfo:
        """Store the content of a file under ``key``, whole or not at all; gives as `put`."""
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._write(key, file, size)
        return self._verify(key, size)

    def pinned_url(self) -> Url:
        """Return a URL that keeps naming the present content, if the provider has versions."""
        return self.url

    def list_uploads(self) -> Iterator[Upload]:
        """List multipart uploads that did not end, if the store keeps them until removed."""
        return iter(())

    def abort_upload(self, upload: Upload) -> None:
        """Abort a multipart upload. One that does not exist is fine."""
        raise StoreError(f"{self!r} keeps no unfinished uploads, such as {upload}.", url=self.url)

    def url_of(self, key: str) -> str:
        """Return the URL of an object without passwords and signatures."""
        if _PLAIN_KEY(key):
            return key.join(self._printable_parts)
        return printable(redact(join(self.url, key)))

    def renew(self) -> bool:
        """Forget clients with the credentials that they were made with; whether there were any.

        Called when a store says that credentials are not good (any more): what the environment,
        a file or a service of the machine tells now may be.
        """
        return False

    def close(self) -> None:  # noqa: B027 - most stores have nothing to close
        """Do nothing: connections belong to the process and are shared."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def _verify(self, key: str, size: int) -> ObjectInfo:
        # Uploads that were reported as done and left an empty object have been seen; one more
        # request per shard is a low price.
        info = self.head(key)
        if info.size not in (size, -1):
            raise TransientError(
                f"put {self.url_of(key)}: {size} bytes were sent, the store has {info.size}",
                url=self.url_of(key),
                verb="put",
            )
        return info

    def _unchanged(self, before: ObjectInfo, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Chunks that are asked for one by one, if the object is the same after the last one.

        For stores that read by name, piece by piece, and whose pieces tell no version.
        """
        yield from chunks
        now = self.head(before.key)
        if not is_same_object(before, now):
            raise replaced_error(self.url_of(before.key), before, now)

    def _check_range(self, info: ObjectInfo, start: int, end: int | None) -> None:
        if info.size >= 0 and (start > info.size or (end is not None and end > info.size)):
            upto = "the end" if end is None else end
            raise CorruptError(
                f"get {self.url_of(info.key)}: bytes {start} to {upto} were asked for, the object "
                f"has {info.size}",
                url=self.url_of(info.key),
                verb="get",
            )


def _write_body(
    store: Store, body: Body, file: int, size: int | None, on_bytes: OnBytes | None
) -> ObjectInfo:
    """Write a whole object to an open file; see `Store.get_file`."""
    _check_size(store, body, size)
    written = 0
    for chunk in body:
        write_at(file, chunk, written)
        written += len(chunk)
        if on_bytes is not None:
            on_bytes(chunk)
    if size is not None and written != size:
        raise _wrong_size_error(store, body.info.key, written, size)
    return type(body.info)(body.info.key, written, body.info.version)


def _get_parts(store: Store, key: str, file: int, size: int) -> ObjectInfo:
    step = store.part_size
    stop = new_event()
    infos: list[ObjectInfo] = []

    def part(start: int) -> None:
        with store.stream(key, start, min(start + step, size)) as body:
            _check_size(store, body, size)
            infos.append(body.info)
            if not is_same_object(infos[0], body.info):
                raise replaced_error(store.url_of(key), infos[0], body.info)
            for chunk in body:
                write_at(file, chunk, start)
                start += len(chunk)
                if stop.is_set():
                    break

    workers = min(store.part_connections, -(-size // step))
    with ThreadPoolExecutor(workers, thread_name_prefix="mds-part") as pool:
        futures = [pool.submit(part, start) for start in range(0, size, step)]
        try:
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in finished:
                future.result()
        finally:
            # After a failure parts that have not begun are not waited for.
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
    return infos[0]


def _check_size(store: Store, body: Body, size: int | None) -> None:
    if size is not None and body.info.size not in (size, -1):
        raise _wrong_size_error(store, body.info.key, body.info.size, size)


def _wrong_size_error(store: Store, key: str, size: int, expected_size: int) -> CorruptError:
    url = store.url_of(key)
    return CorruptError(
        f"get {url}: it has {size} bytes, {expected_size} were expected", url=url, verb="get"
    )
