"""Transfer times of a process: of requests until their answer, and of their bytes after it.

Three readings of the clock per request tell a distant store from a slow one; two per piece of a
compressed file tell decompression from both. They are sums over all threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from mds.process.fork_safe import new_lock

if TYPE_CHECKING:
    from mds.storage.base import Body

Clock = Callable[[], float]


class TransferSeconds(NamedTuple):
    """Seconds until requests were answered, until their bytes were there, and of decompression.

    ``requests``: how many there were.
    """

    request: float = 0.0
    transfer: float = 0.0
    unpack: float = 0.0
    requests: int = 0

    def since(self, earlier: TransferSeconds) -> TransferSeconds:
        """Subtract earlier sums."""
        return TransferSeconds(
            self.request - earlier.request,
            self.transfer - earlier.transfer,
            self.unpack - earlier.unpack,
            self.requests - earlier.requests,
        )

    @property
    def shares(self) -> tuple[float, float, float]:
        """The seconds; of what is unpacked as it comes, the transfer is the rest."""
        return self.request, max(0.0, self.transfer - self.unpack), self.unpack


class TransferTimes:
    """Sums of the seconds of all requests of a process."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.clock = clock
        self._sums = TransferSeconds()
        self._lock = new_lock()

    def add(self, request: float, transfer: float, unpack: float = 0.0, requests: int = 0) -> None:
        """Count seconds."""
        with self._lock:
            old = self._sums
            self._sums = TransferSeconds(
                old.request + request,
                old.transfer + transfer,
                old.unpack + unpack,
                old.requests + requests,
            )

    def now(self) -> TransferSeconds:
        """Return the sums up to now."""
        return self._sums

    def follow(self, body: Body, start: float) -> Body:
        """Return the body, and count its request, sent at ``start``, when it ends or is closed."""
        answered = self.clock()

        def ended() -> None:
            self.add(answered - start, self.clock() - answered, requests=1)

        body.on_close(ended)
        return body


#: Those of this process.
TIMES = TransferTimes()
