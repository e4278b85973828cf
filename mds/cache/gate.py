"""A bound on the bytes of whole shards that a process brings at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Gate:
    """Lets in so many bytes at a time, and one alone however large it is."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._inside = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def passing(self, size: int) -> Iterator[None]:
        """Wait until ``size`` bytes fit in, and hold them for the block.

        Those inside never wait for others at a gate, so they come out.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._inside or self._inside + size <= self._most())
            self._inside += size
        try:
            yield
        finally:
            with self._changed:
                self._inside -= size
                self._changed.notify_all()
