"""A proxy between an HTTP client and its server that injects faults.

It delays, throttles, cuts and stalls connections, answers with errors, and sends bodies that are
damaged, too short or too long. A test runs it in threads of the test process and can add faults at
any time. `proxy_process` (or ``python -m devtools.proxy``) runs it in a separate process, for
measurements.

    with FaultProxy(server_url) as proxy:
        proxy.add(Fault("cut", after=1000, times=2))
        store = open_store("s3://bucket", options={"endpoint_url": proxy.url})
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import select
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import get_args
from urllib.parse import urlsplit

from devtools.http_messages import Head, Kind, Reader, pump
from devtools.servers import free_port, running
from mds.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the requests that it affects.

    ``kind`` is one of: ``drop`` (the connection ends without an answer), ``status`` (an answer of
    ``status``, with ``retry_after`` seconds), ``cut`` and ``reset`` (the connection ends after
    ``after`` bytes of the body), ``stall`` (nothing more comes after them), ``slow`` (``rate``
    bytes a second from there), ``damage`` (the byte at ``after`` is another), ``short`` (the body
    ends there and says that this is all), ``long`` (64 bytes too many), ``whole`` (the range that
    was asked for is ignored), ``shifted`` (another range is answered).

    ``match`` is a pattern found in "METHOD /path"; the first ``skip`` such requests pass, then
    ``times`` of them are hit (None: all), each with probability ``chance``.
    """

    kind: Kind
    match: str = "^GET "
    times: int | None = 1
    skip: int = 0
    chance: float = 1.0
    after: int = 0
    status: int = 503
    retry_after: int | None = None
    rate: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError(f"{self.kind!r} is no fault: {', '.join(get_args(Kind))}.")


@dataclass(slots=True)
class _Planned:
    fault: Fault
    matches: int = 0
    hits: int = 0


@dataclass(slots=True)
class Seen:
    """Requests ("METHOD /path", range), their headers by lower name, and bytes of sent bodies."""

    requests: list[tuple[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bytes_sent: int = 0


class _Onward:
    """Connection from the proxy to the server, as a context manager; opened by the first request.

    A server that handles one connection at a time would wait for a connection without requests.
    """

    def __init__(self, server: tuple[str, int], open_connections: set[socket.socket]) -> None:
        self._server, self._open = server, open_connections
        self._connection: tuple[socket.socket, Reader] | None = None

    def connection(self) -> tuple[socket.socket, Reader]:
        """Return the connection and the reader of its answers."""
        if self._connection is None:
            connection = socket.create_connection(self._server)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.add(connection)
            self._connection = connection, Reader(connection)
        return self._connection

    def __enter__(self) -> _Onward:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._open.discard(self._connection[0])
            self._connection[0].close()


class FaultProxy:
    """A proxy to one server, as a context manager.

    ``latency`` is how many seconds every request is held back, ``rate`` how many bytes a second a
    connection carries back (0: no limit). ``seed`` decides about faults that have a chance.
    """

    def __init__(
        self, server: str, *, latency: float = 0.0, rate: float = 0.0, port: int = 0, seed: int = 0
    ) -> None:
        place = urlsplit(server)
        self._server = (place.hostname or "127.0.0.1", place.port or 80)
        self.latency = latency
        self.rate = rate
        self.seen = Seen()
        self._port = port
        self._planned: list[_Planned] = []
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()

    def __enter__(self) -> FaultProxy:
        self._listener = socket.create_server(("127.0.0.1", self._port), backlog=128)
        self._wake, self._waker = socket.socketpair()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, name="mds-proxy", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._waker.close()
        self._thread.join()
        self._listener.close()
        self.cut()
        self._wake.close()

    def add(self, *faults: Fault) -> None:
        """Plan faults; a request gets the earliest one that matches it."""
        with self._lock:
            self._planned += [_Planned(fault) for fault in faults]

    def clear(self) -> None:
        """Remove all faults; stalled connections stay stalled."""
        with self._lock:
            self._planned = []

    def cut(self) -> None:
        """Close every connection now, also in the middle of a transfer."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def count(self, pattern: str = "") -> int:
        """Count the requests so far in whose "METHOD /path" a pattern occurs."""
        return sum(1 for request, _ in self.seen.requests if re.search(pattern, request))

    def _accept(self) -> None:
        while True:
            ready, _, _ = select.select([self._listener, self._wake], [], [])
            if self._wake in ready:
                return
            client, _ = self._listener.accept()
            # Known before the proxy can end, which then overlooks no connection.
            self._connections.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        onward = _Onward(self._server, self._connections)
        with contextlib.suppress(OSError), client, onward:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asking = Reader(client)
            try:
                while self._exchange(client, asking, onward):
                    continue
            finally:
                self._connections.discard(client)

    def _exchange(self, client: socket.socket, asking: Reader, onward: _Onward) -> bool:
        """Pass on a request and its answer; return whether the connection stays open."""
        request = Head.read(asking)
        if request is None:
            return False
        request_line = f"{request.first[0]} {request.first[1]}"
        self.seen.requests.append((request_line, request.get("range")))
        self.seen.headers.append({name.lower(): value for name, value in request.headers})
        fault = self._choose(request_line)
        if fault is not None and fault.kind == "drop":
            return False
        if request.take("expect"):
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self.latency:
            # Held back as by a long way: requests on other connections are not.
            threading.Event().wait(self.latency)
        if fault is not None and fault.kind == "status":
            for _ in asking.body(request, b""):
                continue
            client.sendall(_refusal(fault))
            return True
        _bend_range(request, fault)
        server, answering = onward.connection()
        server.sendall(request.encode())
        for piece in asking.body(request, b""):
            server.sendall(piece)
        answer = Head.read(answering)
        if answer is None:
            return False
        body = answering.body(answer, request.first[0].encode())
        sent_bytes, goes_on = pump(client, answer, body, fault, self.rate, self._wake)
        self.seen.bytes_sent += sent_bytes
        return goes_on

    def _choose(self, request_line: str) -> Fault | None:
        with self._lock:
            for planned in self._planned:
                fault = planned.fault
                if not re.search(fault.match, request_line):
                    continue
                planned.matches += 1
                if planned.matches <= fault.skip:
                    continue
                if fault.times is not None and planned.hits >= fault.times:
                    continue
                if fault.chance < 1.0 and self._random.random() >= fault.chance:
                    continue
                planned.hits += 1
                return fault
        return None


@contextmanager
def proxy_process(server: str, *, latency: float = 0.0, rate: float = 0.0) -> Iterator[str]:
    """Run a proxy without faults in a process of its own, and give its URL."""
    port = free_port()
    command = [sys.executable, "-m", "devtools.proxy", server, f"--port={port}"]
    command += [f"--latency={latency}", f"--rate={rate}"]
    with running(command, port):
        yield f"http://127.0.0.1:{port}"


def _bend_range(request: Head, fault: Fault | None) -> None:
    if fault is None or fault.kind not in ("whole", "shifted"):
        return
    requested = request.take("range")
    bounds = re.match(r"bytes=(\d+)-(\d*)$", requested)
    if fault.kind == "shifted" and bounds:
        end = str(int(bounds[2]) - 1) if bounds[2] else ""
        request.add("Range", f"bytes={max(0, int(bounds[1]) - 1)}-{end}")


def _refusal(fault: Fault) -> bytes:
    after = f"Retry-After: {fault.retry_after}\r\n" if fault.retry_after is not None else ""
    return f"HTTP/1.1 {fault.status} Fault\r\n{after}Content-Length: 0\r\n\r\n".encode()


def main() -> None:
    """Run a proxy until the process is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=0.0)
    options = parser.parse_args()
    with FaultProxy(options.server, latency=options.latency, rate=options.rate, port=options.port):
        threading.Event().wait()


if __name__ == "__main__":
    main()
