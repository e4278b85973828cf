"""Transfer times of a process: until requests are answered, until their bytes arrive, unpacking.

They are sums over all threads. Three readings of the clock per request distinguish a distant store
from a slow one. Two per piece of a compressed file measure decompression.
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
    """Seconds of all transfers, and the number of requests.

    Attributes:
        request: Until requests were answered.
        transfer: From the answers until all bytes arrived, with decompression meanwhile.
        unpack: Decompression.
        requests: Number of requests.
    """

    request: float = 0.0
    transfer: float = 0.0
    unpack: float = 0.0
    requests: int = 0

    def since(self, earlier: TransferSeconds) -> TransferSeconds:
        """Return the seconds and requests since the time of ``earlier``, which are older sums."""
        return TransferSeconds(
            self.request - earlier.request,
            self.transfer - earlier.transfer,
            self.unpack - earlier.unpack,
            self.requests - earlier.requests,
        )

    @property
    def shares(self) -> tuple[float, float, float]:
        """The seconds of requests, transfers without decompression, and decompression."""
        return self.request, max(0.0, self.transfer - self.unpack), self.unpack


class TransferTimes:
    """Sums of the seconds of all requests of a process; ``clock`` returns the time in seconds."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.clock = clock
        self._sums = TransferSeconds()
        self._lock = new_lock()

    def add(self, request: float, transfer: float, unpack: float = 0.0, requests: int = 0) -> None:
        """Add seconds of requests, transfers and decompression, and a number of requests."""
        with self._lock:
            old = self._sums
            self._sums = TransferSeconds(
                old.request + request,
                old.transfer + transfer,
                old.unpack + unpack,
                old.requests + requests,
            )

    def now(self) -> TransferSeconds:
        """Return the present sums."""
        return self._sums

    def follow(self, body: Body, start: float) -> Body:
        """Return ``body``; the times of its request are added when it ends or is closed.

        ``start`` is the time by `clock` at which the request was sent.
        """
        answered = self.clock()

        def ended() -> None:
            self.add(answered - start, self.clock() - answered, requests=1)

        body.on_close(ended)
        return body


#: The sums of this process.
TIMES = TransferTimes()
