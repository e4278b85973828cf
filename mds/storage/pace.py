"""The bytes of an answer as they come, if they come fast enough.

The timeout of a socket notices silence alone: a server that sends a byte a second keeps a transfer
alive for days. So the bytes are read as they arrive, and fewer than the least rate over as many
seconds as the timeout has are an error that another try may mend. Time in which nothing is asked
for, because the reader is busy, does not count. Over loopback HTTP a mebibyte took 0.20 ms of CPU,
and 0.15 ms when megabytes were read at once.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mds.errors import MdsError, StalledError
from mds.storage.base import CHUNK
from mds.storage.translate import fit_cause, translate

if TYPE_CHECKING:
    import urllib3

_PIECE = 128 << 10  # bytes that are worth handing on; smaller ones are gathered


@dataclass(frozen=True, slots=True)
class LeastRate:
    """The least bytes per second, on average over a number of seconds; 0 demands none."""

    bytes_per_second: float
    seconds: float


class Pace:
    """The rate of a transfer: bytes received per second of waiting for them."""

    def __init__(self, least_rate: LeastRate, url: str) -> None:
        self._least_rate, self._url = least_rate, url
        self._spent, self._received = 0.0, 0

    def note(self, seconds: float, count: int) -> None:
        """Count what one look brought; StalledError when it was too little for too long."""
        self._spent += seconds
        self._received += count
        least_rate = self._least_rate
        if self._spent >= least_rate.seconds:
            if self._received < least_rate.bytes_per_second * self._spent and count:
                raise StalledError(
                    f"get {self._url}: only {self._received} bytes came in {self._spent:.0f} s, "
                    f"fewer than {least_rate.bytes_per_second:g} a second "
                    "(storage option min_rate)",
                    url=self._url,
                    verb="get",
                )
            self._spent, self._received = 0.0, 0


class PacedStream:
    """A response of urllib3 whose bytes must come at a least rate; `read` is for SDKs."""

    def __init__(self, response: Any, least_rate: LeastRate, url: str) -> None:
        self._response, self._url = response, url
        self._pace = Pace(least_rate, url)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)

    def read(self, amount: int | None = None, **_: Any) -> bytes:
        """Return ``amount`` bytes, or all that remain."""
        pieces, size = [], 0
        while amount is None or size < amount:
            piece = self.read1(CHUNK if amount is None else min(CHUNK, amount - size))
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read1(self, amount: int) -> bytes:
        """Receive once, up to ``amount`` bytes; return b'' at the end."""
        started = time.monotonic()
        piece: bytes = self._response.read1(amount, decode_content=False)
        self._pace.note(time.monotonic() - started, len(piece))
        return piece

    def chunks(self) -> Iterator[bytes]:
        """All bytes, in pieces that are worth their while; raises errors of ours alone."""
        started = time.monotonic()
        try:
            while piece := self.read1(CHUNK):
                if len(piece) < _PIECE:
                    piece += self.read(_PIECE - len(piece))
                yield piece
        except MdsError:
            raise
        except Exception as error:  # noqa: BLE001 - all of it is translated
            seconds = time.monotonic() - started
            failure = translate(error, "get", self._url, seconds)
            raise failure from fit_cause(error, failure)


@functools.cache
def bounded_pools(seconds: float) -> dict[str, type[urllib3.HTTPConnectionPool]]:
    """Pools of connections by scheme, for urllib3, whose answers have a beginning in good time.

    From its first byte on the headers of an answer may take so many seconds: the timeout of a
    socket begins anew with each byte. What takes longer is a TimeoutError.
    """
    import http.client

    import urllib3.connection

    class BoundedResponse(http.client.HTTPResponse):
        def begin(self) -> None:
            raw: Any = self.fp.raw
            read, until = raw.readinto, float("inf")

            def read_in_time(buffer: memoryview) -> Any:
                nonlocal until
                count, now = read(buffer), time.monotonic()
                if now > until:
                    raise TimeoutError(f"the headers were not there after {seconds:g} s")
                until = min(until, now + seconds)
                return count

            raw.readinto = read_in_time
            try:
                super().begin()
            finally:
                del raw.readinto

    class BoundedConnection(urllib3.connection.HTTPConnection):
        response_class = BoundedResponse

    class BoundedSecureConnection(urllib3.connection.HTTPSConnection):
        response_class = BoundedResponse

    class BoundedPool(urllib3.HTTPConnectionPool):
        ConnectionCls = BoundedConnection

    class BoundedSecurePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = BoundedSecureConnection

    return {"http": BoundedPool, "https": BoundedSecurePool}
