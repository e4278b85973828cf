"""A web server of which every answer can be made to lie."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")


@dataclass
class Answer:
    """What is about to be sent; lies change it."""

    path: str
    status: int | str = 200
    reason: str = "OK"
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    raw: bytes | None = None

    def set(self, name: str, value: str | None) -> None:
        """Replace a header, or drop it."""
        self.headers = [(key, told) for key, told in self.headers if key != name]
        if value is not None:
            self.headers.append((name, value))

    def text(self, *, with_body: bool) -> bytes:
        """The bytes on the wire."""
        if self.raw is not None:
            return self.raw
        lines = [f"HTTP/1.1 {self.status} {self.reason}", *(f"{k}: {v}" for k, v in self.headers)]
        head = "\r\n".join(lines) + "\r\n\r\n"
        return head.encode("utf-8", "surrogateescape") + (self.body if with_body else b"")


class HostileServer:
    """Serves ``files`` (path to bytes) and lets ``lie`` change each answer."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.other: bytes | None = None  # what any other path has
        self.lie: Callable[[Answer], None] | None = None
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, path: str, wanted: str | None) -> Answer:
        """The honest answer, changed by the lie."""
        name = unquote(urlsplit(path).path, errors="surrogateescape").lstrip("/")
        data = self.files.get(name, self.other)
        answer = Answer(name)
        if data is None:
            answer.status, answer.reason = 404, "Not Found"
            answer.set("Content-Length", "0")
        else:
            answer.body = data
            answer.set("ETag", f'"{len(data):x}"')
            found = _RANGE.match(wanted or "")
            if found:
                start, end = int(found[1]), min(int(found[2] or len(data)), len(data) - 1) + 1
                answer.status, answer.reason, answer.body = 206, "Partial", data[start:end]
                answer.set("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
            answer.set("Content-Length", str(len(answer.body)))
        if self.lie is not None:
            self.lie(answer)
        return answer


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay quiet: clients hang up on lies."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: HostileServer

    def do_GET(self) -> None:
        answer = self.owner.answer(self.path, self.headers.get("Range"))
        self.wfile.write(answer.text(with_body=self.command == "GET"))
        # Most lies leave the connection in a state that cannot be gone on with.
        self.close_connection = self.owner.lie is not None

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""
