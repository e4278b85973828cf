"""Persistent HTTP connections to one host, for many small GETs.

`http.client` connects, tunnels through proxies and parses answers. This module adds what it lacks:
idle connections that any thread may take, a deadline for the headers, a least rate for the body,
and a second request when the server closes an idle connection. Requests come as bytes because
their headers are signed.
"""

from __future__ import annotations

import errno
import http.client
import io
import select
import socket
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email import errors
from typing import TYPE_CHECKING, Any

from mds.storage.pace import LeastRate, Pace

if TYPE_CHECKING:
    import ssl

_BUFFER = 64 << 10
_PIECE = 128 << 10  # smaller pieces of a body are joined
_RECEIVE = 256 << 10  # bytes to ask of the socket at a time: more do not fit into its cache
_ERROR_BODY = 64 << 10
#: What `http.client` accepts as headers although their lines are none.
_NOT_HEADERS = (
    errors.FirstHeaderLineIsContinuationDefect,
    errors.MissingHeaderBodySeparatorDefect,
)


@dataclass(frozen=True, slots=True)
class Host:
    """The address of a server; TLS is used if ``context`` is given.

    ``tunnel`` is the host and port of a proxy, and the headers that it requires. A connection, the
    headers of an answer and each read may take ``seconds``.
    """

    name: str
    port: int
    seconds: float
    context: ssl.SSLContext | None = field(default=None, repr=False)
    tunnel: tuple[str, int, Mapping[str, str]] | None = field(default=None, repr=False)


class Connections:
    """The idle connections to a host; any thread may take one."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._idle: deque[Connection] = deque()
        weakref.finalize(self, _close_all, self._idle)

    def get(self, request: bytes) -> Answer:
        """Send a GET and return its answer, whose body is still to be read.

        Raises OSError.
        """
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = Connection(self._host)
                is_reused = False
            else:
                is_reused = True
                if connection.is_stale():
                    connection.close()
                    continue
            try:
                response = connection.send(request)
            except BaseException as error:
                connection.close()
                # The server closed an idle connection at this moment. A GET may be repeated.
                if is_reused and isinstance(error, ConnectionError) and not connection.has_answered:
                    continue
                raise
            return Answer(self, connection, response)

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for another request."""
        self._idle.append(connection)


class Answer:
    """Status, headers by lower-case name, and a body of ``length`` bytes (-1: unknown)."""

    def __init__(
        self, pool: Connections, connection: Connection, response: http.client.HTTPResponse
    ) -> None:
        self._pool = pool
        self._connection: Connection | None = connection
        self._response = response
        self._guard: weakref.finalize[..., Answer] | None = None
        self.status = response.status
        self.headers: dict[str, str] = {}
        for name, value in response.headers.items():
            key, text = name.lower(), value.strip()
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text
        self.length = _parse_length(self.headers)
        self._remaining = self.length
        if self._remaining == 0:
            self._release()

    def body(self, least: LeastRate, shown: str) -> Iterator[bytes]:
        """Return the body in pieces; it must arrive at the least rate. ``shown`` is its URL.

        A small body is read at once, so that the connection is free again. An error is raised
        after the bytes that arrived before it.
        """
        if self.length > _BUFFER:
            self._guard = weakref.finalize(self, _close, self._connection)
            return self._pieces(least, shown)
        pieces: list[bytes] = []
        try:
            pieces.extend(self._pieces(least, shown))
        except Exception as error:  # noqa: BLE001 - raised after the pieces
            return _then_raise(pieces, error)
        return iter(pieces)

    def whole(self, least: LeastRate, shown: str, most: int) -> bytes | None:
        """Return the whole body, or None if its end is not marked or it is longer than ``most``.

        Raises ConnectionError for a body in chunks that is longer.
        """
        if self._connection is None:
            return b""
        if 0 <= self.length <= most:
            return b"".join(self.body(least, shown))
        if self.length >= 0 or not self._response.chunked:
            self.close()
            return None
        self._connection.set_pace(Pace(least, shown))
        body = self._read_to_end(most + 1)
        if len(body) > most:
            raise ConnectionError(f"the answer has more than {most} bytes")
        return body

    def read_error(self) -> bytes:
        """Return the body of an error, or its beginning."""
        return self._read_to_end(_ERROR_BODY)

    def close(self) -> None:
        """Close the connection unless the body was read."""
        self._release(is_read=False)

    def _pieces(self, least: LeastRate, shown: str) -> Iterator[bytes]:
        if self._connection is not None:
            self._connection.set_pace(Pace(least, shown))
        enough = 1  # bytes that came with the headers are here already
        try:
            while self._remaining > 0 and self._connection is not None:
                piece = self._read_piece(enough)
                if not piece:
                    return
                if not self._remaining:
                    self._release()
                yield piece
                enough = _PIECE
        finally:
            self.close()

    def _read_piece(self, enough: int) -> bytes:
        """Return bytes of the body, at least ``enough`` except at its end."""
        size = 0
        pieces: list[bytes] = []
        while size < enough and self._remaining:
            # `read1` returns a new bytes object, which is passed on without a copy.
            piece = self._response.read1(min(self._remaining, _RECEIVE))
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
            self._remaining -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_to_end(self, most: int) -> bytes:
        """Return the body, or its first ``most`` bytes, however its length is given."""
        body = bytearray()
        is_read = False
        try:
            while len(body) < most:
                piece = self._response.read1(min(most - len(body), _RECEIVE))
                if not piece:
                    is_read = self.length >= 0 or self._response.chunked
                    break
                body += piece
        except http.client.HTTPException as error:
            raise ConnectionError(f"the body of the answer is damaged: {error!r}") from error
        finally:
            self._release(is_read=is_read)
        return bytes(body)

    def _release(self, *, is_read: bool = True) -> None:
        connection, self._connection = self._connection, None
        if self._guard is not None:
            self._guard.detach()
        if connection is None:
            return
        if is_read and not self._response.will_close:
            self._pool.give_back(connection)
        else:
            connection.close()


class Connection:
    """A connection of `http.client` with one buffer for all its answers."""

    def __init__(self, host: Host) -> None:
        self._connection = _connect(host)
        self._incoming = _Incoming(self._connection.sock, host.seconds)
        self._buffer = _Buffer(self._incoming, _BUFFER)
        self._poll = select.poll()
        self._poll.register(self._connection.sock, select.POLLIN)

    @property
    def has_answered(self) -> bool:
        """Whether a byte of the latest answer arrived."""
        return self._incoming.has_answered

    def is_stale(self) -> bool:
        """Whether the server closed the connection, or sent more than the answer."""
        return bool(self._poll.poll(0)) or self._buffer.has_bytes(self._incoming)

    def send(self, request: bytes) -> http.client.HTTPResponse:
        """Send a request and return its answer once the headers are there."""
        self._incoming.expect_headers()
        self._connection.send(request)
        while True:
            response = http.client.HTTPResponse(_Socket(self._buffer), method="GET")  # type: ignore[arg-type]
            try:
                response.begin()
            except http.client.HTTPException as error:
                raise ConnectionError(f"the answer is not HTTP: {str(error)[:80]!r}") from error
            if any(isinstance(defect, _NOT_HEADERS) for defect in response.headers.defects):
                raise ConnectionError("the answer has a line among its headers that is none")
            if response.status >= 200:
                return response

    def set_pace(self, pace: Pace) -> None:
        """Require that bytes from now on arrive at a pace."""
        self._incoming.pace = pace

    def close(self) -> None:
        """Close the connection; more than once is fine."""
        self._connection.close()


class _Incoming(io.RawIOBase):
    """The bytes that arrive at a socket: headers in time, bodies at a pace."""

    def __init__(self, source: socket.socket, seconds: float) -> None:
        self._socket, self._seconds = source, seconds
        self._deadline = float("inf")
        self.pace: Pace | None = None
        self.has_answered = False
        #: Whether to return only buffered bytes, without reading from the socket.
        self.is_paused = False

    def readable(self) -> bool:
        return True

    def expect_headers(self) -> None:
        """Start the next answer."""
        self.pace, self.has_answered, self._deadline = None, False, float("inf")

    def readinto(self, target: Any) -> int | None:
        if self.is_paused:
            return None
        started = time.monotonic()
        count = self._socket.recv_into(target)
        now = time.monotonic()
        self.has_answered = self.has_answered or count > 0
        if self.pace is not None:
            self.pace.note(now - started, count)
            return count
        # The timeout of a socket starts again with each byte, so it does not bound the headers.
        if now > self._deadline:
            raise TimeoutError(f"the headers were not there after {self._seconds:g} s")
        self._deadline = min(self._deadline, now + self._seconds)
        return count


class _Buffer(io.BufferedReader):
    """A buffer that outlives the answers that `http.client` reads from it."""

    def has_bytes(self, incoming: _Incoming) -> bool:
        """Whether bytes are buffered."""
        incoming.is_paused = True
        try:
            return bool(self.peek(1))
        finally:
            incoming.is_paused = False

    def read(self, size: int | None = -1) -> bytes:
        """Read the end of a chunk: all else is read by `read1` and `readline`.

        `http.client` does not look at it, so a chunk longer than its length would be cut.
        """
        end = super().read(size)
        if len(end) == 2 and end != b"\r\n":
            raise ConnectionError("a chunk of the answer has another length than it says")
        return end

    def close(self) -> None:
        """Leave it open: an answer closes its file at its end."""


class _Socket:
    """A stand-in for the socket that `http.client.HTTPResponse` reads from."""

    def __init__(self, buffer: _Buffer) -> None:
        self._buffer = buffer

    def makefile(self, _mode: str) -> _Buffer:
        return self._buffer


def _then_raise(pieces: list[bytes], error: Exception) -> Iterator[bytes]:
    yield from pieces
    raise error


def _parse_length(headers: Mapping[str, str]) -> int:
    """Return the length of the body, or -1 if it is missing or ambiguous."""
    text = headers.get("content-length", "")
    is_number = text.isascii() and text.isdecimal() and len(text) <= 18
    return int(text) if is_number and "transfer-encoding" not in headers else -1


def _connect(host: Host) -> http.client.HTTPConnection:
    name, port, headers = host.tunnel or (host.name, host.port, {})
    if host.context is None:
        connection = http.client.HTTPConnection(name, port, timeout=host.seconds)
    else:
        connection = http.client.HTTPSConnection(
            name, port, timeout=host.seconds, context=host.context
        )
    if host.tunnel is not None:
        connection.set_tunnel(host.name, host.port, dict(headers))
    try:
        connection.connect()
    except TimeoutError as error:
        reason = f"no connection after {host.seconds:g} s"
        raise OSError(errno.EHOSTUNREACH, f"{reason} to {name}:{port}") from error
    except OSError as error:
        error.strerror = f"{error.strerror or error} ({name}:{port})"
        raise
    return connection


def _close(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()


def _close_all(idle: deque[Connection]) -> None:
    while idle:
        idle.pop().close()
