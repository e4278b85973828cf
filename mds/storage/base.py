"""The seam between the library and wherever bytes live: a few verbs on keys below a URL.

A provider implements `stream`, `_write`, `head`, `list` and `delete`, each one try; everything
else (whole gets, files, checks of size) is built on those here, and behaviour such as retries is
wrapped around (`mds.storage.wrappers`). A store may be used by many threads and in forked
children, and pickles as what it was made from: connections belong to a process (`process.py`).
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from mds.errors import CorruptError, TransientError
from mds.storage.url import join, redact

#: Bytes asked of a connection at a time. Measured over loopback HTTP, 1 MB costs the least
#: processor time; 64 KB a quarter more, 8 MB a third more.
CHUNK = 1 << 20

#: What is shown the bytes of a file, piece by piece; a piece is good until the next one.
Watch = Callable[["bytes | memoryview"], object]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store knows about an object: key, size in bytes (-1 unknown), and its version.

    ``version`` is an etag, a generation or a time of change: it differs when the content does; ''
    when the store tells nothing of the kind.
    """

    key: str
    size: int
    version: str = ""


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
        self._came = 0
        self._url = url
        self._on_close = [close] if close is not None else []

    def __next__(self) -> bytes:
        for chunk in self._chunks:
            self._came += len(chunk)
            if self.length is not None and self._came > self.length:
                self._wrong("and still more came")
            if chunk:
                return chunk
        if self.length is not None and self._came < self.length:
            self._wrong("then the connection ended")
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Give the connection back. Closing twice is fine."""
        while self._on_close:
            self._on_close.pop()()

    def on_close(self, act: Callable[[], object]) -> None:
        """Have ``act`` called when the body ends or is closed, the latest one first."""
        self._on_close.append(act)

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wrong(self, how: str) -> None:
        self.close()
        raise TransientError(
            f"get {self._url}: {self._came} of {self.length} bytes came, {how}",
            url=self._url,
            verb="get",
        )


class Store(ABC):
    """Objects below a URL. Keys are relative paths with '/', and '' is the URL itself."""

    url: str
    #: Folder that holds the objects as plain files, for a store on a mounted disk.
    local_path: str | None = None
    #: Whether the provider has a way to name the objects below a URL.
    can_list: bool = True
    #: Whether objects can be written and deleted.
    can_write: bool = True
    #: `get_file` brings objects of at least two parts in parts of this size, so many at a time.
    part_size: int = 16 << 20
    part_connections: int = 4

    @abstractmethod
    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """The object, or its bytes from ``start`` to before ``end``, in chunks as they arrive.

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
        """The whole object."""
        return b"".join(self.stream(key))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """The bytes from ``start`` to before ``end``; exactly so many, or an error."""
        return b"".join(self.stream(key, start, end))

    def get_file(
        self, key: str, path: str, size: int | None = None, watch: Watch | None = None
    ) -> ObjectInfo:
        """Write the whole object to ``path``, which the caller renames when it is content.

        With ``size`` the object must have so many bytes (CorruptError) and large ones come over
        several connections at once. ``watch`` is called with all its bytes in order, in pieces: as
        they come, or out of the file. Raises NoSpaceError when the disk is full.
        """
        from mds.storage.transfer import download

        return download(self, key, path, size, watch)

    def put(self, key: str, data: bytes) -> None:
        """Store ``data`` under ``key``, replacing what was there, whole or not at all."""
        self._write(key, io.BytesIO(data), len(data))
        self._verify(key, len(data))

    def put_file(self, key: str, path: str) -> None:
        """Store the content of a file under ``key``, whole or not at all."""
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._write(key, file, size)
        self._verify(key, size)

    def url_of(self, key: str) -> str:
        """Where an object lives, for people: passwords and signatures are left out."""
        return redact(join(self.url, key))

    def close(self) -> None:  # noqa: B027 - most stores have nothing to close
        """Nothing to do: connections belong to the process and are shared. Here for symmetry."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {redact(self.url)}>"

    def _verify(self, key: str, size: int) -> None:
        # Uploads that were reported as done and left an empty object have been seen; one more
        # request per shard is a low price.
        found = self.head(key).size
        if found not in (size, -1):
            raise TransientError(
                f"put {self.url_of(key)}: {size} bytes were sent, the store has {found}",
                url=self.url_of(key),
                verb="put",
            )

    def _check_range(self, info: ObjectInfo, start: int, end: int | None) -> None:
        if info.size >= 0 and (start > info.size or (end is not None and end > info.size)):
            upto = "the end" if end is None else end
            raise CorruptError(
                f"get {self.url_of(info.key)}: bytes {start} to {upto} were asked for, the object "
                f"has {info.size}",
                url=self.url_of(info.key),
                verb="get",
            )
