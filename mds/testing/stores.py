"""Stores for tests that inject faults: one is slow, one raises given errors."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from mds.storage import Body, ObjectInfo, Store, Wrapper


class Slow(Wrapper):
    """A store that waits some seconds before every operation."""

    def __init__(self, inner: Store, seconds: float) -> None:
        super().__init__(inner)
        self.seconds = seconds
        self.local_path = None  # so that its files are not read in place

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Return the bytes in chunks after a delay."""
        self._think()
        return super().stream(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        """Return size and version after a delay."""
        self._think()
        return super().head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List every object below a prefix after a delay."""
        self._think()
        return super().list(prefix)

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        self._think()
        super()._write(key, file, size)

    def _think(self) -> None:
        threading.Event().wait(self.seconds)


class Flaky(Wrapper):
    """A store whose operations raise the errors of a list in turn; None stands for no error.

    ``operations`` counts them: a stream, a head, an upload, an object of a listing.
    """

    def __init__(self, inner: Store, errors: Iterable[Exception | None] = ()) -> None:
        super().__init__(inner)
        self.errors = list(errors)
        self.operations = 0
        self.local_path = None

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Return the bytes in chunks, or raise the next error."""
        self._trouble()
        return super().stream(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        """Return size and version, or raise the next error."""
        self._trouble()
        return super().head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List every object below a prefix; each may raise the next error."""
        for info in super().list(prefix):
            self._trouble()
            yield info

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        # A try that had read some of the file before it failed.
        file.seek(-len(file.read(3)), 1)
        self._trouble()
        super()._write(key, file, size)

    def _trouble(self) -> None:
        self.operations += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
