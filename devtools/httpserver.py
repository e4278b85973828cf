"""A small web server over a folder, with ranges, PUT and DELETE, for tests.

It sends etags, 206 for one range and 416 for a range outside the file. With ``ranges=False`` it
ignores Range and sends whole files, as some servers do.
"""

from __future__ import annotations

import http.server
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from mds.storage._files import publish

_RANGE = re.compile(r"bytes=(\d*)-(\d*)$")


@contextmanager
def http_server(
    folder: str, *, ranges: bool = True, handler: type[FolderHandler] | None = None
) -> Iterator[str]:
    """Serve a folder in threads of this process; yield the URL of its root.

    ``handler`` is a subclass of FolderHandler, for another protocol.
    """
    attributes = {"root": folder, "has_ranges": ranges}
    server = QuietServer(("127.0.0.1", 0), type("Handler", (handler or FolderHandler,), attributes))
    with running(server, "mds-http-server"):
        yield f"http://127.0.0.1:{server.server_address[1]}"


@contextmanager
def running(server: http.server.HTTPServer, name: str) -> Iterator[None]:
    """Run a server during the block, in a thread with that name."""
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name=name)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class QuietServer(http.server.ThreadingHTTPServer):
    """A threaded server that says nothing and never waits for its clients."""

    # Kept-alive connections end when their clients hang up.
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay quiet: clients that hang up in the middle are what many tests are about."""


class QuietHandler(http.server.BaseHTTPRequestHandler):
    """Handler for HTTP/1.1 that logs nothing: tests read their own output."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class FolderHandler(QuietHandler):
    """Handler that serves a folder; `locate` maps a request to a file."""

    disable_nagle_algorithm = True
    root: str
    has_ranges: bool

    def do_GET(self) -> None:
        path = self.locate()
        if not os.path.isfile(path):
            self.end(404)
            return
        with open(path, "rb") as file:
            state = os.fstat(file.fileno())
            start, end, status = self._wanted(state.st_size)
            self.send_response(status)
            self.send_header("ETag", f'"{state.st_mtime_ns:x}-{state.st_size:x}"')
            self.send_header("Accept-Ranges", "bytes" if self.has_ranges else "none")
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{state.st_size}")
            elif status == 416:
                self.send_header("Content-Range", f"bytes */{state.st_size}")
            self.send_header("Content-Length", str(end - start))
            self.end_headers()
            if self.command == "GET" and end > start:
                self.wfile.flush()
                self.connection.sendfile(file, start, end - start)

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        size, path = int(self.headers.get("Content-Length", 0)), self.locate()
        if os.path.isfile(os.path.dirname(path)):  # a file is no folder
            self.rfile.read(size)
            self.end(403)
            return
        with publish(path) as temporary, open(temporary, "wb") as file:
            while size > 0:
                chunk = self.rfile.read(min(size, 1 << 20))
                if not chunk:
                    raise ConnectionResetError("the client hung up")
                file.write(chunk)
                size -= len(chunk)
        self.end(201)

    def do_DELETE(self) -> None:
        path = self.locate()
        if os.path.isfile(path):
            os.unlink(path)
            self.end(204)
        else:
            self.end(404)

    def locate(self) -> str:
        """Return the path of the file that the request names."""
        parts = unquote(urlsplit(self.path).path).split("/")
        return os.path.join(self.root, *[part for part in parts if part not in ("", ".", "..")])

    def _wanted(self, size: int) -> tuple[int, int, int]:
        bounds = _RANGE.match(self.headers.get("Range", "")) if self.has_ranges else None
        if bounds is None or (not bounds[1] and not bounds[2]):
            return 0, size, 200
        if not bounds[1]:
            return max(0, size - int(bounds[2])), size, 206
        start = int(bounds[1])
        end = min(size, int(bounds[2]) + 1) if bounds[2] else size
        return (0, 0, 416) if start >= size else (start, end, 206)

    def end(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Answer with a status and a body; '_' in the name of a header stands for '-'."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
