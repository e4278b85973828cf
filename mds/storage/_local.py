"""A folder on a mounted disk: plain paths and file:// URLs.

Its data can be read in place (`local_path`). Writes are published by rename, so a reader on the
same file system sees an object whole or not at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from mds.errors import CorruptError, StoreError
from mds.storage._base import CHUNK, Body, ObjectInfo, OnBytes, Store, check_key, replaced_error
from mds.storage._files import (
    check_regular,
    open_regular,
    open_target,
    publish,
    read_back,
    temporary_owner,
    translate_write_errors,
    version_of,
)
from mds.storage._translate import translate_chunks, translate_errors
from mds.storage._url import local_path


class LocalStore(Store):
    """Files below a folder, which is created by the first write.

    ``url`` is a path or a file:// URL. Options and the timeout have no meaning for files.
    """

    def __init__(
        self, url: str, options: Mapping[str, Any] | None = None, timeout: float = 60.0
    ) -> None:
        del options, timeout
        self.url = url
        self._root = local_path(url)
        self.local_path = self._root

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the file, or its bytes from ``start`` to before ``end``, in chunks."""
        path, url = self._path(key), self.url_of(key)
        with translate_errors("get", url):
            file = open_regular(path)
        try:
            info = self._info(key, os.fstat(file.fileno()))
            self._check_range(info, start, end)
        except BaseException:
            file.close()
            raise
        length = (info.size if end is None else end) - start
        chunks = self._check_unchanged(
            file, info, translate_chunks(_chunks(file, start, length), url)
        )
        return Body(info, chunks, length, url=url, close=file.close)

    def head(self, key: str) -> ObjectInfo:
        """Return the size of a file, and its time of change as the version."""
        with translate_errors("head", self.url_of(key)):
            state = os.stat(self._path(key))
            check_regular(self._path(key), state)
            return self._info(key, state)

    def get_file(
        self, key: str, path: str, size: int | None = None, on_bytes: OnBytes | None = None
    ) -> ObjectInfo:
        """Copy the file to ``path``, by the kernel if it can; see `Store.get_file`."""
        url = self.url_of(key)
        before = self.head(key)
        if size is not None and before.size != size:
            raise _other_size(url, before.size, size)
        with (
            translate_errors("get", url),
            translate_write_errors(path),
            open_regular(self._path(key)) as source,
            open_target(path) as target,
        ):
            copied = _copy(source, target)
        if copied != before.size:
            raise _other_size(url, copied, before.size)
        now = self.head(key)
        if now != before:
            raise replaced_error(url, before, now)
        if on_bytes is not None:
            read_back(path, on_bytes)
        return before

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List all files below the folder except temporary files of this library."""
        for folder, folders, names in os.walk(self._root):
            folders.sort()  # `os.walk` visits them in this order
            folder_key = os.path.relpath(folder, self._root).replace(os.sep, "/")
            for name in sorted(names):
                key = name if folder_key == "." else f"{folder_key}/{name}"
                if key.startswith(prefix) and temporary_owner(name) is None:
                    try:
                        yield self.head(key)
                    except FileNotFoundError:
                        continue  # deleted after it was listed

    def delete(self, key: str) -> None:
        """Delete the file; a missing one is no error."""
        with translate_errors("delete", self.url_of(key)):
            try:
                os.unlink(self._path(key))
            except FileNotFoundError:
                return

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Write a file that is renamed when it is complete; see `Store._write`."""
        path, url = self._path(key), self.url_of(key)
        with (
            translate_errors("put", url),
            publish(path) as temporary,
            open_target(temporary) as target,
        ):
            shutil.copyfileobj(file, target, CHUNK)
            if target.tell() != size:
                raise StoreError(
                    f"put {url}: the source changed while it was read: {target.tell()} bytes "
                    f"instead of {size}",
                    url=url,
                    verb="put",
                )

    def _verify(self, key: str, size: int) -> ObjectInfo:
        # The file was closed without an error before it was renamed, so its size is known.
        return ObjectInfo(key, size)

    def _check_unchanged(
        self, file: BinaryIO, before: ObjectInfo, chunks: Iterator[bytes]
    ) -> Iterator[bytes]:
        """Yield the chunks. Raises ReplacedError if the file was written to meanwhile."""
        yield from chunks
        now = self._info(before.key, os.fstat(file.fileno()))
        if now != before:
            raise replaced_error(self.url_of(before.key), before, now)

    def _path(self, key: str) -> str:
        """Return the path of an object's file; '' is the folder itself."""
        return os.path.join(self._root, *check_key(key).split("/")) if key else self._root

    @staticmethod
    def _info(key: str, state: os.stat_result) -> ObjectInfo:
        return ObjectInfo(key, state.st_size, version_of(state))


def _chunks(file: BinaryIO, start: int, length: int) -> Iterator[bytes]:
    """Yield ``length`` bytes of a file from ``start`` on; end early if the file does."""
    file.seek(start)
    while length > 0:
        chunk = file.read(min(CHUNK, length))
        if not chunk:
            return
        length -= len(chunk)
        yield chunk


def _other_size(url: str, size: int, expected_size: int) -> StoreError:
    """Return the error for a file of ``size`` bytes instead of ``expected_size``."""
    return CorruptError(
        f"get {url}: it has {size} bytes, {expected_size} were expected", url=url, verb="get"
    )


def _copy(source: BinaryIO, target: BinaryIO) -> int:
    """Copy all bytes of one file to an empty one, by the kernel if it can; return their number."""
    copied = 0
    try:
        # Each call copies at most 1 GB from offset `copied` on, and returns the number of bytes.
        while count := os.sendfile(target.fileno(), source.fileno(), copied, 1 << 30):
            copied += count
    except OSError:  # unsupported between these file systems, or on this system
        if copied:  # it is supported, so this is another error
            raise
        shutil.copyfileobj(source, target, CHUNK)
        copied = target.tell()
    return copied
