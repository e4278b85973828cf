"""Any other scheme that fsspec knows: hdfs://, abfs://, smb://, github://, ...

The file system is created once per process, without its caches. fsspec has no common timeout, so
each read runs in a thread, which is abandoned if it takes too long. Files are written under a
temporary name and then moved, if the file system can move them.

`Store` (_base.py) describes the verbs.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, BinaryIO, TypeVar

from mds._process.fork_safe import per_process
from mds._redaction import mask_foreign
from mds.errors import ConfigError, NotFoundError, StalledError, need
from mds.storage._base import CHUNK, Body, ObjectInfo, Store, check_key
from mds.storage._translate import translate_chunks, translate_errors
from mds.storage._url import scheme_of

T = TypeVar("T")
#: Schemes of this library, by those of other libraries for the same objects.
_OWN_SCHEMES = {
    **dict.fromkeys(("s3a", "s3n"), "s3"),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), "azure"),
    "gcs": "gs",
}
_PIECE = 8 << 20  # bytes of a request; fsspec returns each piece whole


class FsspecStore(Store):
    """Files below a path of a file system of fsspec.

    Args:
        url: URL with a scheme that fsspec knows.
        options: Keyword arguments of the file system's class.
        timeout: Seconds after which a request has stalled.
    """

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        self.url = url
        self._options = dict(options)
        self._timeout = timeout
        self._scheme = scheme_of(url)
        self._check_scheme()

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the file, or a range of it, in requests of 8 MB."""
        safe_url = self.url_of(key)
        info = self.head(key)
        self._check_range(info, start, end)
        stop = info.size if end is None else end
        chunks = self._unchanged(info, translate_chunks(self._pieces(key, start, stop), safe_url))
        return Body(info, chunks, max(0, stop - start), url=safe_url)

    def head(self, key: str) -> ObjectInfo:
        """Return the size, and an etag, a generation or the time of change as the version."""
        url = self.url_of(key)
        with translate_errors("head", url):
            system, path = self._system_and_path(key)
            entry = self._call_in_thread(url, "head", lambda: system.info(path))
        if entry.get("type") == "directory":
            raise NotFoundError(f"head {url}: it is a folder.", url=url, verb="head")
        return _info(key, entry)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the files below a prefix."""
        with translate_errors("list", self.url_of(prefix)):
            system, root = self._system_and_path("")
            try:
                entries = system.find(root, detail=True)
            except FileNotFoundError:
                return
        root = root.rstrip("/") + "/"
        for path, entry in entries.items():
            name = path.removeprefix(root)
            if name.startswith(prefix):
                yield _info(name, entry)

    def delete(self, key: str) -> None:
        """Remove the file; a missing one is no error."""
        with translate_errors("delete", self.url_of(key)):
            system, path = self._system_and_path(key)
            try:
                system.rm_file(path)
            except FileNotFoundError:
                return

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Write a temporary file and move it to its name; see `Store._write`."""
        del size
        with translate_errors("put", self.url_of(key)):
            system, path = self._system_and_path(key)
            temporary = f"{path}.{secrets.token_hex(6)}.mds-part"
            parent = system._parent(path)  # noqa: SLF001 - the name that every file system has
            system.makedirs(parent, exist_ok=True)
            try:
                with system.open(temporary, "wb") as target:
                    while chunk := file.read(CHUNK):
                        target.write(chunk)
                if system.exists(path):  # not every file system moves onto an existing file
                    system.rm_file(path)
                system.mv(temporary, path)
            except BaseException:
                if system.exists(temporary):
                    system.rm_file(temporary)
                raise

    def _pieces(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes from ``start`` to before ``stop``, one request for each `_PIECE`."""
        system, path = self._system_and_path(key)
        url = self.url_of(key)
        for offset in range(start, stop, _PIECE):
            until = min(offset + _PIECE, stop)
            read = partial(system.cat_file, path=path, start=offset, end=until)
            yield self._call_in_thread(url, "get", read)

    def _call_in_thread(self, url: str, verb: str, act: Callable[[], T]) -> T:
        """Call ``act`` in a thread and return its value.

        Raises what ``act`` raises, and StalledError at the timeout; the thread is abandoned then.
        ``url`` and ``verb`` are for this error.
        """
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(act())
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                result.set_exception(error)

        threading.Thread(target=run, name="mds-fsspec", daemon=True).start()
        try:
            return result.result(self._timeout)
        except FutureTimeoutError as error:
            if result.done():  # the error is one that `act` raised
                raise
            raise StalledError(
                f"{verb} {url}: no data arrived for {self._timeout:g} s.",
                url=url,
                verb=verb,
                seconds=self._timeout,
            ) from error

    def _system_and_path(self, key: str) -> tuple[Any, str]:
        """Return the file system, and the path of an object in it."""
        system, root = self._shared_system()
        return system, f"{root.rstrip('/')}/{check_key(key)}" if key else root

    def _shared_system(self) -> tuple[Any, str]:
        """Return the file system of this process, and the path of the store in it."""
        # Options may contain lists or dicts, which cannot be a part of a key; their text can.
        key = (FsspecStore, self.url, repr(sorted(self._options.items(), key=lambda item: item[0])))
        return per_process(key, self._make_system)

    def _check_scheme(self) -> None:
        """Raise MissingDependencyError without fsspec, and ConfigError for an unknown scheme."""
        try:
            from fsspec import available_protocols
        except ImportError as error:
            raise need("fsspec", "fsspec", f"{self._scheme}:// URLs") from error
        if self._scheme not in available_protocols():
            raise ConfigError(
                f"{str(self.url)!r}: the scheme {self._scheme!r} is unknown to fsspec and to mds. "
                f"mds.storage.register_store() adds a store for it.{self._own_scheme()}"
            )

    def _make_system(self) -> tuple[Any, str]:
        """Create the file system, and return it with the path of the store in it."""
        from fsspec.core import url_to_fs

        # Without fsspec's caches of file systems and listings, unless the options ask for them.
        settings = {"skip_instance_cache": True, "use_listings_cache": False, **self._options}
        try:
            system, root = url_to_fs(self.url.reveal(), **settings)
        except ImportError as error:
            reason = mask_foreign(str(error).rstrip("."))
            raise ConfigError(
                f"{self.url!r}: fsspec says: {reason}.{self._own_scheme()}"
            ) from error
        return system, str(root)

    def _own_scheme(self) -> str:
        """Return a sentence that names the scheme of mds for the same objects, or ''."""
        scheme = _OWN_SCHEMES.get(self._scheme)
        return f" mds has its own store for {scheme}:// URLs." if scheme else ""


def _info(key: str, entry: Mapping[str, Any]) -> ObjectInfo:
    """Return size and version from fsspec's ``info`` of a file.

    Each file system has its own name for a version: the first of these names is used.
    """
    for name in ("etag", "ETag", "version_id", "generation", "mtime", "last_modified", "created"):
        if entry.get(name):
            return ObjectInfo(key, int(entry["size"]), str(entry[name]).strip('"'))
    return ObjectInfo(key, int(entry["size"]), "")
