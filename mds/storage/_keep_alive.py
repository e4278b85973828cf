"""Persistent HTTP connections to one host, for many small GETs.

`http.client` connects, with TLS and through proxies. The rest is done here: idle connections that
any thread may take, a deadline for the headers, a least rate for the body, and a second request
when the server closes an idle connection. Callers give requests as bytes, since their headers are
signed.

Answers are parsed here too. `http.client` parses headers as those of an e-mail, which took a third
of the processor time of a GET of 8 KB. It also accepts headers and chunks that are cut off by the
end of the connection. Here such an answer is a ConnectionError, which the retries of a store mend.
"""

from __future__ import annotations

import errno
import functools
import http.client
import re
import select
import sys
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mds.storage._base import LeastRate, Pace

if TYPE_CHECKING:
    import socket
    import ssl

_BUFFER = 64 << 10  # bytes received with the headers, which may not be longer
_PIECE = 128 << 10  # smaller pieces of a body are joined
_RECEIVE = 256 << 10  # bytes to receive at a time: more do not fit into the processor's cache
_ERROR_BODY = 64 << 10
_CHUNK_LINE = 4096  # most bytes of a line between chunks
_TRAILERS = 100  # most lines after the last chunk

_STATUS_LINE = re.compile(r"HTTP/1\.([0-9]) ([0-9]{3})(?: .*)?")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Host:
    """The address of a server.

    Attributes:
        name: Name or address of the host.
        port: Port.
        seconds: Timeout of connecting, of the headers of an answer and of each read.
        context: Settings of TLS; None for plain HTTP.
        tunnel: Host and port of a proxy, and the headers that it requires; None without a proxy.
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
        weakref.finalize(self, _close_all, self._idle)  # close the sockets with this pool

    def get(self, request: bytes) -> Answer:
        """Send a GET and return its answer, whose body is not read yet.

        ``request`` is the whole request: its first line, its headers and an empty line. Raises
        OSError.
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
                status, headers = connection.send(request)
            except BaseException as error:
                connection.close()
                # The server may have closed the idle connection at this moment, as servers do after
                # some seconds. A GET has no effects, so it may be sent again on another connection.
                if is_reused and isinstance(error, ConnectionError) and not connection.has_answered:
                    continue
                raise
            return Answer(self, connection, status, headers)

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for another request."""
        self._idle.append(connection)


class Answer:
    """An answer: its status, headers by lower-case name, and a body of ``length`` bytes.

    A ``length`` of -1 means that it is not known yet. The body is read from ``connection`` by one
    of `body`, `whole` and `read_error`. Then the connection returns to ``pool`` and is None here.
    """

    def __init__(
        self, pool: Connections, connection: Connection, status: int, headers: dict[str, str]
    ) -> None:
        self._pool = pool
        self._connection: Connection | None = connection
        # Closes the connection if this answer is dropped before the end of its body.
        self._guard: weakref.finalize[..., Answer] | None = None
        self.status, self.headers = status, headers
        self.length = _parse_length(headers)
        if self.length == 0:
            self._release()

    def body(self, least_rate: LeastRate, safe_url: str) -> Iterator[bytes]:
        """Return the body in pieces; it must arrive at the least rate, or StalledError is raised.

        A small body is read at once, so that the connection is free again. Its error is raised only
        after the bytes that arrived before, which a retry then need not request. The pieces end
        early if the connection does. ``safe_url`` is the URL in errors.
        """
        connection = self._connection
        if connection is None:
            return iter(())
        connection.pace = Pace(least_rate, safe_url)
        if self.length > _BUFFER:
            self._guard = weakref.finalize(self, connection.close)
            return self._pieces()
        pieces: list[bytes] = []
        try:
            pieces.extend(self._pieces())
        except Exception as error:  # noqa: BLE001 - raised after the pieces
            return _then_raise(pieces, error)
        return iter(pieces)

    def whole(self, least_rate: LeastRate, safe_url: str, max_size: int) -> bytes | None:
        """Return the whole body, or None if it is longer than ``max_size`` or has no marked end.

        A body ends after its length or its last chunk; without both it ends with the connection, so
        that a body that is cut off looks complete. Raises ConnectionError for a body that is cut
        off, and for one in chunks that turns out to be longer than ``max_size``. ``least_rate`` and
        ``safe_url`` are those of `body`.
        """
        if self._connection is None:
            return b""
        if self.length > max_size or (self.length < 0 and not self._is_chunked):
            self.close()
            return None
        self._connection.pace = Pace(least_rate, safe_url)
        body = self._read_beginning(max_size + 1)
        if len(body) > max_size:
            raise ConnectionError(f"the response has more than {max_size} bytes")
        if len(body) < self.length:
            raise ConnectionResetError(
                f"{len(body)} of {self.length} bytes of the response arrived"
            )
        return body

    def read_error(self) -> bytes:
        """Return the body of an error, or its beginning."""
        return self._read_beginning(_ERROR_BODY)

    def close(self) -> None:
        """Close the connection unless the body was read."""
        self._release(is_read=False)

    @property
    def _is_chunked(self) -> bool:
        """Whether the body is sent in chunks, each with its length, and not with a total length."""
        return self.headers.get("transfer-encoding", "").strip().lower() == "chunked"

    def _read_beginning(self, max_size: int) -> bytes:
        """Return the body, or at least its first ``max_size`` bytes."""
        pieces: list[bytes] = []
        size = 0
        body = self._pieces()
        for piece in body:
            pieces.append(piece)
            size += len(piece)
            if size >= max_size:
                break
        body.close()
        return b"".join(pieces)

    def _pieces(self) -> Generator[bytes, None, None]:
        """Yield the body as it arrives: in chunks, of a known length, or to the connection's end.

        At the end the connection returns to the pool. If the caller stops early, it is closed.
        """
        connection = self._connection
        if connection is None:
            return
        try:
            if self._is_chunked:
                yield from connection.receive_chunks()
                self._release()
                return
            remaining = self.length if self.length >= 0 else sys.maxsize
            while remaining and (piece := connection.receive_piece(remaining)):
                remaining -= len(piece)
                # Free the connection with the last piece, and not when the caller asks for another
                # one: it may send the next request before.
                if not remaining:
                    self._release()
                yield piece
        finally:
            self.close()

    def _release(self, *, is_read: bool = True) -> None:
        """Keep the connection for another request if the answer was read, or close it.

        Bytes of an answer that was not read would be taken for the next answer.
        """
        connection, self._connection = self._connection, None
        if self._guard is not None:
            self._guard.detach()
        if connection is None:
            return
        if is_read and "close" not in self.headers.get("connection", "").lower():
            self._pool.give_back(connection)
        else:
            connection.close()


class Connection:
    """A connection to ``host``: a socket, and bytes that arrived and are not read yet.

    Each request is sent by `send`, which reads the headers of its answer. Then the body is read by
    `receive_piece`, or by `receive_chunks` if it is sent in chunks.
    """

    def __init__(self, host: Host) -> None:
        self._socket = _connect(host)
        self._seconds = host.seconds
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._unread = b""
        #: The least rate of the body, if there is one.
        self.pace: Pace | None = None
        #: Whether a byte of the latest answer arrived.
        self.has_answered = False

    def is_stale(self) -> bool:
        """Whether an idle connection is unusable: closed by the server, or with unexpected bytes.

        In both cases the socket is readable.
        """
        return bool(self._unread or self._poll.poll(0))

    def send(self, request: bytes) -> tuple[int, dict[str, str]]:
        """Send a request and return the status and the headers of its answer.

        Bytes behind the headers are kept for the body. Raises OSError.
        """
        self.pace, self.has_answered = None, False
        self._socket.sendall(request)
        deadline = float("inf")
        received = b""
        searched = 0  # bytes of `received` in which no end of the headers begins
        while True:
            end = received.find(b"\r\n\r\n", searched)
            if end >= 0:
                status, headers = _parse_head(received[:end])
                received, searched = received[end + 4 :], 0
                if status >= 200:  # others are interim answers
                    self._unread = received
                    return status, headers
                continue
            if len(received) >= _BUFFER:
                raise ConnectionError(f"the headers of the response have more than {_BUFFER} bytes")
            searched = max(0, len(received) - 3)  # the end may begin in the last three bytes
            piece = self._socket.recv(_BUFFER)
            if not piece:
                raise ConnectionResetError(
                    "the connection ended before the headers of the response"
                )
            self.has_answered = True
            received += piece
            if not b"HTTP/1.".startswith(received[:7]):
                raise ConnectionError(f"the response is not HTTP: {received[:80]!r}")
            # The timeout of a socket starts again with each byte, so it does not bound the headers.
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError(f"the headers were not complete after {self._seconds:g} s")
            deadline = min(deadline, now + self._seconds)  # counted from the first byte

    def receive_piece(self, max_size: int) -> bytes:
        """Return the next bytes of a body, at most ``max_size``; b'' at the connection's end.

        Bytes that already arrived are returned at once. Others are collected up to `_PIECE`.
        """
        if self._unread:
            piece, self._unread = self._unread[:max_size], self._unread[max_size:]
            return piece
        pieces: list[bytes] = []
        size = 0
        while size < min(max_size, _PIECE):
            # A new bytes object, which is passed on without a copy.
            piece = self._receive(min(max_size - size, _RECEIVE))
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def receive_chunks(self) -> Iterator[bytes]:
        r"""Yield the bytes of a body in chunks. Raises ConnectionError if any byte is missing.

        The body "hello world" may be sent as ``5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n``: each chunk
        is a line with its size in hex, its bytes and the end of a line. Size 0 ends the body;
        optional headers (trailers) and an empty line follow.
        """
        while remaining := _parse_chunk_size(self._receive_line()):
            while remaining:
                if not self._unread:
                    self._receive_more()
                piece, self._unread = self._unread[:remaining], self._unread[remaining:]
                remaining -= len(piece)
                yield piece
            if self._receive_line():
                raise ConnectionError("a chunk of the response does not have its declared length")
        for _ in range(_TRAILERS):
            if not self._receive_line():
                return
        raise ConnectionError(f"more than {_TRAILERS} headers follow the chunks of the response")

    def close(self) -> None:
        """Close the connection; more than once is fine."""
        self._socket.close()

    def _receive(self, max_size: int) -> bytes:
        """Receive up to ``max_size`` bytes, b'' at the end. Raises StalledError if too slow."""
        started = time.monotonic()
        piece = self._socket.recv(max_size)
        if self.pace is not None:
            self.pace.note(time.monotonic() - started, len(piece))
        return piece

    def _receive_more(self) -> None:
        """Append received bytes to the unread ones. Raises ConnectionResetError at the end."""
        piece = self._receive(_BUFFER)
        if not piece:
            raise ConnectionResetError("the connection ended before the last chunk of the response")
        self._unread += piece

    def _receive_line(self) -> bytes:
        """Return a line between chunks, without its end."""
        while (end := self._unread.find(b"\r\n")) < 0:
            if len(self._unread) > _CHUNK_LINE:
                raise ConnectionError("the response is not in chunks, but its headers say so")
            self._receive_more()
        line, self._unread = self._unread[:end], self._unread[end + 2 :]
        return line


def _then_raise(pieces: list[bytes], error: Exception) -> Iterator[bytes]:
    """Yield the pieces, then raise ``error``."""
    yield from pieces
    raise error


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    r"""Return status and headers by lower-case name from ``head``, the text before the body.

    ``head`` is such as ``HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: "1f"``. Headers of one name
    are joined by commas. Raises ConnectionError for lines of another form.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    status_line = _STATUS_LINE.fullmatch(first)
    if status_line is None:
        raise ConnectionError(f"the response is not HTTP: {first[:80]!r}")
    # Lines end with "\r\n" and with nothing else: servers and proxies that disagree about the end
    # of a line could be made to see different headers.
    if not head.count(b"\n") == head.count(b"\r") == len(lines):
        raise ConnectionError("a header line of the response does not end with CRLF")
    headers: dict[str, str] = {}
    for line in lines:
        text, colon, value = line.partition(":")
        name, value = _parse_name(text + colon), value.strip()
        if name in headers:
            if name == "content-length" and value != headers[name]:
                raise ConnectionError("the response has two different lengths")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    if status_line[1] == "0":  # HTTP/1.0 closes connections by default
        headers.setdefault("connection", "close")
    return int(status_line[2]), headers


@functools.lru_cache(maxsize=256)
def _parse_name(text: str) -> str:
    """Return the lower-case name of a header from the text up to its colon, "Content-Length:".

    Raises ConnectionError for a text that is no name. The same few names come with every answer.
    """
    if _NAME.fullmatch(text) is None:
        raise ConnectionError(f"the response has a line that is not a header: {text[:80]!r}")
    return text[:-1].lower()


def _parse_chunk_size(line: bytes) -> int:
    """Return the number of bytes in a chunk from the line before it, such as b"1f" for 31.

    Raises ConnectionError for another line.
    """
    match = _CHUNK_SIZE.fullmatch(line)
    if match is None:
        raise ConnectionError(f"the response has a chunk without a length: {line[:80]!r}")
    return int(match[1], 16)


def _parse_length(headers: Mapping[str, str]) -> int:
    """Return the length of the body, or -1 if it is missing or the body is sent in chunks."""
    text = headers.get("content-length", "")
    is_number = text.isascii() and text.isdecimal() and len(text) <= 18
    return int(text) if is_number and "transfer-encoding" not in headers else -1


def _connect(host: Host) -> socket.socket:
    """Return a connected socket, with TLS and through the proxy if ``host`` has them.

    Raises OSError. After a timeout its errno is EHOSTUNREACH, so that `network_failure` sees a
    server that cannot be reached, and not a stalled transfer.
    """
    # Connect to the proxy, or else to the host itself.
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
    connected: socket.socket = connection.sock
    return connected


def _close_all(idle: deque[Connection]) -> None:
    while idle:
        idle.pop().close()
