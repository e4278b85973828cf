"""Objects in the memory of this process, for tests: memory://name.

Two stores of the same name see the same objects. A forked child starts with its parent's.

`Store` (_base.py) describes the verbs. `reveal` gives the full text of a `Url`, which serves as a
key here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from mds.errors import NotFoundError
from mds.storage._base import CHUNK, Body, ObjectInfo, Store, check_key
from mds.storage._url import join, reveal

# Single operations on a dictionary are atomic; a lock could be held at the moment of a fork.
#: By URL: the bytes of an object, and the number of the write that stored it.
_objects: dict[str, tuple[bytes, int]] = {}
_write_numbers = itertools.count(1)  # they serve as versions


class MemoryStore(Store):
    """Objects in a dictionary of this process, for tests.

    Stores with the same URL have the same objects.

    Args:
        url: URL below which the objects are, such as ``memory://bucket/train``.
        options: Ignored, as the store has no settings (default None).
        timeout: Ignored, as no request can stall (default 60 seconds).

    >>> store = MemoryStore("memory://bucket")
    >>> store.put("word", b"hello").size
    5
    >>> MemoryStore("memory://bucket").get("word")
    b'hello'
    """

    def __init__(
        self, url: str, options: Mapping[str, Any] | None = None, timeout: float = 60.0
    ) -> None:
        del options, timeout
        self.url = url

    address = ""  # no server
    lists_pages = True

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the bytes, or those from ``start`` to before ``end``."""
        data, write_number = self._object("get", key)
        info = ObjectInfo(key, len(data), str(write_number))
        self._check_range(info, start, end)
        view = data[start:end]
        chunks = (view[offset : offset + CHUNK] for offset in range(0, len(view), CHUNK))
        return Body(info, chunks, len(view), url=self.url_of(key))

    def head(self, key: str) -> ObjectInfo:
        """Return the size, and the number of the write as the version."""
        data, write_number = self._object("head", key)
        return ObjectInfo(key, len(data), str(write_number))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects whose keys start with ``prefix``."""
        root = reveal(join(self.url, "x"))[:-1]  # the URL with a slash at its end
        for url, (data, write_number) in list(_objects.items()):
            if url.startswith(root + prefix):
                yield ObjectInfo(url[len(root) :], len(data), str(write_number))

    def delete(self, key: str) -> None:
        """Delete the object."""
        _objects.pop(reveal(join(self.url, check_key(key))), None)

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Store the bytes; see `Store._write`."""
        _objects[reveal(join(self.url, check_key(key)))] = file.read(size), next(_write_numbers)

    def _object(self, verb: str, key: str) -> tuple[bytes, int]:
        """Return the bytes of an object and the number of its write. Raises NotFoundError."""
        url = reveal(join(self.url, check_key(key)))
        try:
            return _objects[url]
        except KeyError:
            raise NotFoundError(
                f"{verb} {url}: there is no such object.", url=url, verb=verb
            ) from None
