"""Persistent HTTP/1.1 connections to one host, for many small GETs.

A request is one `send`, and an answer's head and the first of its body are one `recv` into a buffer
that the connection keeps. What a general client does besides (merging of headers, redirects,
cookies of its own making, an e-mail parser for headers) took nine tenths of the processor time of
a small request. Bodies with a Content-Length are given as they come, those in chunks
whole; the caller has another way for answers of other kinds. Connecting, TLS and tunnels through a
proxy are the standard library's.
"""

from __future__ import annotations

import errno
import os
import select
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mds.storage.chunked import read_chunks
from mds.storage.pace import LeastRate, Pace

if TYPE_CHECKING:
    import socket
    import ssl

_BUFFER = 64 << 10
_PIECE = 128 << 10  # bytes that are worth handing on
_LOOK = 256 << 10  # bytes that one look at the socket may bring
_END = b"\r\n\r\n"
_SMALL = 64 << 10  # the longest body of an error that is read


@dataclass(frozen=True, slots=True)
class Host:
    """Where to connect to, and how: with ``context`` by TLS, with ``tunnel`` through a proxy.

    ``tunnel`` is the proxy's host, its port and the headers that it wants.
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
        # Also of a pool that is forgotten; a forked child leaves the sockets of its parent alone.
        weakref.finalize(self, _close_all, self._idle, os.getpid())

    def get(self, request: bytes) -> Answer:
        """The answer to a request, whose body is still to be read; raises what sockets raise."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = Connection(self._host)
                is_old = False
            else:
                is_old = True
                if connection.is_stale():
                    connection.close()
                    continue
            try:
                head = connection.ask(request)
            except BaseException as error:
                connection.close()
                # The server hung up on an idle connection just now; a GET may be sent again.
                if is_old and isinstance(error, ConnectionError) and not connection.came:
                    continue
                raise
            return Answer(self, connection, *head)

    def give_back(self, connection: Connection) -> None:
        """Have the connection used again."""
        self._idle.append(connection)


class Answer:
    """Status, headers by lower name, and a body of ``length`` bytes (-1: unknown)."""

    __slots__ = (
        "__weakref__",
        "_connection",
        "_guard",
        "_left",
        "_pool",
        "headers",
        "length",
        "status",
    )

    def __init__(
        self,
        pool: Connections,
        connection: Connection,
        status: int,
        headers: dict[str, str],
    ) -> None:
        self._pool = pool
        self._connection: Connection | None = connection
        self.status, self.headers = status, headers
        said = headers.get("content-length", "")
        is_plain = said.isascii() and said.isdecimal() and "transfer-encoding" not in headers
        self.length = int(said) if is_plain and len(said) <= 18 else -1
        self._left = self.length
        self._guard: weakref.finalize[..., Answer] | None = None
        if self._left == 0:
            self._end()

    def body(self, least: LeastRate, shown: str) -> Iterator[bytes]:
        """The body in pieces, as it comes at no less than a rate; ``shown`` is its URL.

        A small one is read here and now, so that the connection is free again. What breaks it is
        raised behind the bytes that came.
        """
        if self.length > _BUFFER:
            self._guard = weakref.finalize(self, _close, self._connection, os.getpid())
            return self._pieces(least, shown)
        pieces: list[bytes] = []
        try:
            pieces.extend(self._pieces(least, shown))
        except Exception as error:  # noqa: BLE001 - raised when its turn comes
            return _then_raise(pieces, error)
        return iter(pieces)

    def _pieces(self, least: LeastRate, shown: str) -> Iterator[bytes]:
        pace = None
        try:
            while self._left > 0:
                connection = self._connection
                if connection is None:
                    return
                if connection.count:
                    piece = connection.take(self._left)
                else:
                    pace = pace or Pace(least, shown)
                    piece = connection.receive(self._left, pace)
                    if not piece:
                        return
                self._left -= len(piece)
                if not self._left:
                    self._end()
                yield piece
        finally:
            self.close()

    def whole(self, least: LeastRate, shown: str, most: int) -> bytes | None:
        """The whole body, also one in chunks; None for more than ``most`` bytes, or no end."""
        connection = self._connection
        if connection is None:
            return b""
        if 0 <= self.length <= most:
            return b"".join(self.body(least, shown))
        try:
            said = self.headers.get("transfer-encoding", "").strip().lower()
            if self.length >= 0 or said != "chunked":
                return None
            pace = Pace(least, shown)

            def receive() -> bytes:
                started = time.monotonic()
                piece = connection.look()
                pace.note(time.monotonic() - started, len(piece))
                return piece

            body, rest = read_chunks(connection.take(connection.count), receive, most)
            if not rest:
                self._end()
            return body
        finally:
            self.close()

    def read_small(self) -> bytes:
        """What can be read of the body of an error, however it is framed."""
        connection = self._connection
        if connection is None:
            return b""
        body = b""
        is_chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        while len(body) < _SMALL and (self._left < 0 or len(body) < self._left):
            piece = connection.take(_SMALL) if connection.count else connection.look()
            if not piece:
                break
            body += piece
            if is_chunked and b"\r\n0\r\n" in body:
                break
        if len(body) == self._left:
            self._left = 0
            self._end()
        else:
            self.close()
        return body

    def close(self) -> None:
        """Hang up, if not all of the body was read."""
        connection = self._release()
        if connection is not None:
            connection.close()

    def _release(self) -> Connection | None:
        connection, self._connection = self._connection, None
        if self._guard is not None:
            self._guard.detach()
        return connection

    def _end(self) -> None:
        connection = self._release()
        if connection is None:
            return
        if connection.count or "close" in self.headers.get("connection", "").lower():
            connection.close()  # more came than was said
        else:
            self._pool.give_back(connection)


class Connection:
    """A socket with a buffer of what came and was not read yet."""

    __slots__ = ("_buffer", "_first", "_poll", "_seconds", "_socket", "_view", "came", "count")

    def __init__(self, host: Host) -> None:
        self._socket = _connect(host)
        self._seconds = host.seconds
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._first = 0
        #: Bytes in the buffer.
        self.count = 0
        #: Whether anything of an answer came.
        self.came = False

    def is_stale(self) -> bool:
        """Whether the other end hung up, or says what it was not asked for."""
        return bool(self._poll.poll(0))

    def ask(self, request: bytes) -> tuple[int, dict[str, str]]:
        """Send a request; status and headers of its answer."""
        self.came = False
        self._first = self.count = 0
        self._socket.sendall(request)
        while True:
            status, headers = _parse_head(self._read_head())
            if status >= 200:
                return status, headers

    def take(self, most: int) -> bytes:
        """Bytes that are in the buffer."""
        count = min(most, self.count)
        piece = bytes(self._view[self._first : self._first + count])
        self._first += count
        self.count -= count
        return piece

    def look(self) -> bytes:
        """What one look at the socket brings; none at the end."""
        return self._socket.recv(_BUFFER)

    def receive(self, most: int, pace: Pace) -> bytes:
        """Bytes from the socket: a piece that is worth its while, or less at the end."""
        pieces: list[bytes] = []
        at, enough = 0, min(most, _PIECE)
        while at < enough:
            started = time.monotonic()
            # Straight into the bytes that are handed on. So few fit into the processor's cache,
            # from where they are checked and written.
            piece = self._socket.recv(min(most - at, _LOOK))
            pace.note(time.monotonic() - started, len(piece))
            if not piece:
                break
            pieces.append(piece)
            at += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Hang up. Closing twice is fine."""
        self._socket.close()

    def _read_head(self) -> bytes:
        """Bytes up to the empty line; what stands behind it stays in the buffer."""
        at, end, until = 0, self._first + self.count, float("inf")
        if self._first:  # behind an interim answer
            self._buffer[: self.count] = self._buffer[self._first : end]
            self._first, end = 0, self.count
        while True:
            found = self._buffer.find(_END, at, end)
            if found >= 0:
                self._first = found + len(_END)
                self.count = end - self._first
                return bytes(self._view[:found])
            if end == _BUFFER:
                raise ConnectionError(f"the headers of the answer have more than {_BUFFER} bytes")
            at = max(0, end - len(_END))
            count = self._socket.recv_into(self._view[end:])
            if not count:
                raise ConnectionResetError("the connection ended before the answer came")
            end += count
            self.came = True
            # The timeout of a socket begins anew with each byte.
            now = time.monotonic()
            if now > until:
                raise TimeoutError(f"the headers were not there after {self._seconds:g} s")
            until = min(until, now + self._seconds)


def _then_raise(pieces: list[bytes], error: Exception) -> Iterator[bytes]:
    yield from pieces
    raise error


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdecimal()):
        raise ConnectionError(f"the answer is not HTTP: {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():
            raise ConnectionError(f"a header of the answer is none: {line[:80]!r}")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return int(code), headers


def _connect(host: Host) -> socket.socket:
    import http.client

    name, port, headers = host.tunnel or (host.name, host.port, {})
    if host.context is None:
        made = http.client.HTTPConnection(name, port, timeout=host.seconds)
    else:
        made = http.client.HTTPSConnection(name, port, timeout=host.seconds, context=host.context)
    if host.tunnel is not None:
        made.set_tunnel(host.name, host.port, dict(headers))
    try:
        made.connect()
    except TimeoutError as error:
        said = f"no connection after {host.seconds:g} s"
        raise OSError(errno.EHOSTUNREACH, f"{said} to {name}:{port}") from error
    except OSError as error:
        error.strerror = f"{error.strerror or error} ({name}:{port})"
        raise
    found: socket.socket = made.sock
    return found


def _close(connection: Connection | None, process: int) -> None:
    if connection is not None and process == os.getpid():
        connection.close()


def _close_all(idle: deque[Connection], process: int) -> None:
    while idle and process == os.getpid():
        idle.pop().close()
