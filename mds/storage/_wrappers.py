"""Stores that wrap another store: a limit on requests, a prefix, no versions, hedging.

And which servers have answered this process, or the one that started it: the first failure of a
server that never did may be a mistake in the settings, see `mds.storage._remedies`.

`Retrying` is in _retry.py. Verbs that `Store` builds from others, such as `get_file` in parts, use
the verbs of the outermost wrapper. So a part that breaks is retried alone.
"""

from __future__ import annotations

import itertools
import queue
import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import BinaryIO
from urllib.parse import urlsplit

from mds._process.fork_safe import new_event, new_semaphore, per_process
from mds.errors import TransientError
from mds.storage._base import Body, ObjectInfo, Store, Upload, check_key
from mds.storage._url import Url, join

_numbers = itertools.count()

#: Ranges up to this size are hedged; larger ones would double too much traffic.
HEDGED_SIZE = 16 << 20
_MOST_NAMED = 32  # servers; a pickled store should stay small

_answered: dict[str, None] = {}  # in the order of their first answers
_newest: list[tuple[str, ...]] = [()]  # the last of them, for `answered_servers`


def server_of(store: Store) -> str:
    """Return scheme, host and port of a store's server: "https://host:9000"; '' for a disk."""
    is_disk = store.local_path is not None
    place = urlsplit("" if is_disk else store.address or store.url.reveal())
    return f"{place.scheme}://{place.netloc.rpartition('@')[2]}" if place.netloc else ""


def mark_answered(servers: Iterable[str]) -> None:
    """Remember that these servers, as `server_of` names them, have answered a request."""
    unknown = [server for server in servers if server and server not in _answered]
    if unknown:
        _answered.update(dict.fromkeys(unknown))
        _newest[:] = [tuple(_answered)[-_MOST_NAMED:]]


def has_answered(server: str) -> bool:
    """Whether a server has answered a request of this process, or of the one that started it."""
    return server in _answered


def answered_servers() -> tuple[str, ...]:
    """Return the last servers that answered for the first time, to mark them in another process.

    It is one object as long as no other server answers, so that it is pickled once for all streams.
    """
    return _newest[0]


class Wrapper(Store):
    """A store that forwards every verb to the store ``inner``; subclasses change some."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url = inner.url
        self.local_path = inner.local_path
        self.part_size = inner.part_size
        self.part_connections = inner.part_connections
        self.asks_for_ranges = inner.asks_for_ranges
        self.can_list = inner.can_list
        self.lists_pages = inner.lists_pages
        self.can_write = inner.can_write
        self.settings = inner.settings

    @property
    def address(self) -> str:
        """URL of the server of the wrapped store."""
        return self.inner.address

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the bytes in chunks."""
        return self.inner.stream(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        """Return size and version."""
        return self.inner.head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below a prefix."""
        return self.inner.list(prefix)

    def delete(self, key: str) -> None:
        """Delete an object."""
        self.inner.delete(key)

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        self.inner._write(key, file, size)  # noqa: SLF001 - of the same family

    def _verify(self, key: str, size: int) -> ObjectInfo:
        """Return the facts about an uploaded object; a file on a disk needs no request for them."""
        return super()._verify(key, size) if self.local_path is None else ObjectInfo(key, size)

    def pinned_url(self) -> Url:
        """Return a URL that keeps naming the present content."""
        return self.inner.pinned_url()

    def list_uploads(self) -> Iterator[Upload]:
        """List multipart uploads that did not end."""
        return self.inner.list_uploads()

    def abort_upload(self, upload: Upload) -> None:
        """Abort a multipart upload."""
        self.inner.abort_upload(upload)

    def renew(self) -> bool:
        """Drop the credentials of the wrapped store."""
        return self.inner.renew()

    def close(self) -> None:
        """Close the wrapped store."""
        self.inner.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"


class Limited(Wrapper):
    """A store that sends at most ``limit`` requests to ``inner`` at a time, over all threads."""

    def __init__(self, inner: Store, limit: int) -> None:
        super().__init__(inner)
        self.limit = limit
        # Key of the semaphore in `per_process`. A semaphore may be held at the moment
        # of a fork, so each process has its own.
        self._slots_key = ("slots", next(_numbers), f"{inner.url}", limit)

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the bytes; the slot is held until the body ends or is closed."""
        slots = self._slots()
        slots.acquire()
        try:
            body = self.inner.stream(key, start, end)
        except BaseException:
            slots.release()
            raise
        # A finalizer runs once: at the end, or when the body is dropped before it.
        body.on_close(weakref.finalize(body, slots.release))
        return body

    def head(self, key: str) -> ObjectInfo:
        """Return size and version."""
        with self._slots():
            return self.inner.head(key)

    def delete(self, key: str) -> None:
        """Delete an object."""
        with self._slots():
            self.inner.delete(key)

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        with self._slots():
            super()._write(key, file, size)

    def _slots(self) -> threading.Semaphore:
        """Return this process's semaphore of ``limit`` slots, one for each request."""
        return per_process(self._slots_key, lambda: new_semaphore(self.limit))


class Unversioned(Wrapper):
    """A store without versions, for servers that give one object different etags.

    Without a version, `is_same_object` compares sizes only.
    """

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the bytes in chunks, without a version."""
        body = self.inner.stream(key, start, end)
        body.info = replace(body.info, version="", revision="")
        return body

    def head(self, key: str) -> ObjectInfo:
        """Return the size."""
        return replace(self.inner.head(key), version="", revision="")

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below a prefix, with their sizes."""
        for info in self.inner.list(prefix):
            yield replace(info, version="", revision="")


class Prefixed(Wrapper):
    """The objects of the store ``inner`` below a prefix, as a store of its own."""

    def __init__(self, inner: Store, prefix: str) -> None:
        super().__init__(inner)
        self.prefix = prefix.strip("/") + "/"
        self.url = join(inner.url, prefix.strip("/"))
        if inner.local_path is not None:
            self.local_path = join(inner.local_path, prefix.strip("/"))

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the bytes in chunks."""
        body = self.inner.stream(self._inside(key), start, end)
        body.info = replace(body.info, key=key)
        return body

    def head(self, key: str) -> ObjectInfo:
        """Return size and version."""
        return replace(self.inner.head(self._inside(key)), key=key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below both prefixes."""
        for info in self.inner.list(self.prefix + prefix):
            yield replace(info, key=info.key[len(self.prefix) :])

    def delete(self, key: str) -> None:
        """Delete an object."""
        self.inner.delete(self._inside(key))

    def list_uploads(self) -> Iterator[Upload]:
        """List multipart uploads below the prefix that did not end."""
        for upload in self.inner.list_uploads():
            if upload.key.startswith(self.prefix):
                yield replace(upload, key=upload.key[len(self.prefix) :])

    def abort_upload(self, upload: Upload) -> None:
        """Abort a multipart upload."""
        self.inner.abort_upload(replace(upload, key=self._inside(upload.key)))

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        super()._write(self._inside(key), file, size)

    def _inside(self, key: str) -> str:
        """Return the key in ``inner`` of an object of this store."""
        return self.prefix + check_key(key)


class Hedged(Wrapper):
    """A store that requests a slow range from ``inner`` a second time; the first answer counts.

    It costs a thread per range, and a second request if a range takes longer than ``after``
    seconds. Choose ``after`` near the 95th percentile of your store's answers.
    """

    def __init__(self, inner: Store, after: float) -> None:
        super().__init__(inner)
        self.after = after
        self.asks_for_ranges = False  # whole shards would be requested twice

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the bytes; a range of up to `HEDGED_SIZE` comes whole from the faster request."""
        if end is None or end - start > HEDGED_SIZE:
            return self.inner.stream(key, start, end)
        info, data = self._race(key, start, end)
        return Body(info, iter((data,)), end - start, url=self.url_of(key))

    def _race(self, key: str, start: int, end: int) -> tuple[ObjectInfo, bytes]:
        """Return the facts about an object and a range of its bytes, from the faster request.

        Raises the error of the faster request, unless it is transient and the other one succeeds.
        """
        answers: queue.SimpleQueue[tuple[ObjectInfo, bytes] | Exception] = queue.SimpleQueue()
        decided = new_event()  # set when an answer was chosen

        def run() -> None:
            """Send one request, in a thread, and put its answer or its error into ``answers``.

            An answer that comes too late is dropped: `decided` is set.
            """
            try:
                with self.inner.stream(key, start, end) as body:
                    chunks = []
                    for chunk in body:
                        chunks.append(chunk)
                        if decided.is_set():  # the other request was faster
                            return
                answers.put((body.info, b"".join(chunks)))
            except Exception as error:  # noqa: BLE001 - raised in the waiting thread
                answers.put(error)

        threading.Thread(target=run, name="mds-hedge", daemon=True).start()
        running = 1  # requests
        try:
            answer = answers.get(timeout=self.after)
        except queue.Empty:
            threading.Thread(target=run, name="mds-hedge", daemon=True).start()
            running = 2
            answer = answers.get()
        if isinstance(answer, TransientError) and running == 2:
            # The other request may still succeed.
            answer = answers.get()
        decided.set()
        if isinstance(answer, Exception):
            raise answer
        return answer
