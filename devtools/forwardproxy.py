"""A forward proxy that requires a login, as in companies: plain requests and CONNECT tunnels.

with forward_proxy("user", "p@ss") as proxy:
os.environ["http_proxy"] = "http://user:p%40ss@" + proxy.address
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from devtools.httpserver import QuietHandler, QuietServer, running


@dataclass(slots=True)
class ForwardProxy:
    """Address of the proxy, and its requests: method, target, and whether the login was right."""

    address: str
    seen: list[tuple[str, str, bool]] = field(default_factory=list)


@contextmanager
def forward_proxy(user: str, password: str) -> Iterator[ForwardProxy]:
    """Run a proxy for one login in threads of this process."""
    login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    server = _Server(("127.0.0.1", 0), _Handler)
    server.login, server.proxy = login, ForwardProxy(f"127.0.0.1:{server.server_address[1]}")
    with running(server, "mds-forward-proxy"):
        yield server.proxy


class _Server(QuietServer):
    login: str
    proxy: ForwardProxy


class _Handler(QuietHandler):
    server: _Server

    def do_CONNECT(self) -> None:
        if not self._may_pass():
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port))) as target:
            self.send_response(200)
            self.end_headers()
            self.wfile.flush()
            self._relay(target)
        self.close_connection = True

    def do_GET(self) -> None:
        if not self._may_pass():
            return
        place = urlsplit(self.path)
        origin = http.client.HTTPConnection(place.netloc, timeout=20)
        target = place._replace(scheme="", netloc="").geturl()
        with contextlib.closing(origin):
            headers = {k: v for k, v in self.headers.items() if not k.lower().startswith("proxy-")}
            origin.request(self.command, target, headers=headers)
            answer = origin.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    do_HEAD = do_GET

    def _may_pass(self) -> bool:
        is_right = self.headers.get("Proxy-Authorization") == self.server.login
        self.server.proxy.seen.append((self.command, self.path, is_right))
        if not is_right:
            self.send_response(407)
            self.send_header("Proxy-Authenticate", 'Basic realm="proxy"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        return is_right

    def _relay(self, target: socket.socket) -> None:
        ends = {self.connection: target, target: self.connection}
        while True:
            ready, _, _ = select.select(list(ends), [], [], 20)
            for each in ready:
                data = each.recv(1 << 16)
                if not data:
                    return
                ends[each].sendall(data)
            if not ready:
                return
