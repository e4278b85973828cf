"""How long a store is waited for, what is said meanwhile, and what ends at once."""

import http.client
import http.server
import os
import socket
import threading

import pytest

from devtools import servers
from devtools.httpserver import FolderHandler, http_server
from devtools.proxy import Fault, FaultProxy
from devtools.sftpserver import sftp_server
from mds._process import fork_safe
from mds.errors import NotFoundError, StalledError, UnreachableError
from mds.storage import RetryPolicy, open_store
from mds.storage import _waiting as waiting_module
from mds.storage._locks import lock_within
from mds.storage._waiting import WaitingLines
from mds.testing._store_contract import noise


@pytest.fixture
def large(tmp_path):
    """A web server with the object 'large', and a proxy before it."""
    (tmp_path / "large").write_bytes(noise(300_000))
    with http_server(str(tmp_path)) as url, FaultProxy(url) as proxy:
        yield proxy


class Lines(list):
    """The lines that were told of waits; ``then`` is called after each."""

    def then(self):
        """Nothing, unless a test has something better to do."""

    def tell(self, line):
        self.append(line)
        self.then()


@pytest.fixture
def told(monkeypatch):
    """As in a process that has told of no wait: after one, the next line is 5 s away, then 10."""
    lines = Lines()
    waiting_module._Waits.stop()  # it may sleep until then
    monkeypatch.setattr(waiting_module._Waits, "lines", WaitingLines(lines.tell))
    return lines


@pytest.mark.slow
def test_a_wait_is_told_after_five_seconds(large, told):
    """A line says what, where and for how long, while it lasts: what stalls goes on only then."""
    large.add(Fault("stall", after=1000, times=1))
    told.then = large.cut
    assert open_store(large.url, timeout=60).get("large") == noise(300_000)
    assert any(f"Waiting for the next bytes of {large.url}/large for" in line for line in told)


@pytest.mark.slow
def test_a_lock_that_another_has_is_told(tmp_path, told):
    """A process that waits for another says so; the other lets go only then."""
    path = str(tmp_path / "lock")
    held = lock_within(path, 1, 0)
    assert lock_within(path, 1, 0) is None
    told.then = held.close
    lock_within(path, 1, 60).close()
    assert any("the owner of a lock" in line for line in told)


@pytest.mark.slow
def test_a_trickle_is_a_stall_that_another_try_mends(large):
    """A byte now and then keeps no transfer alive."""
    large.add(Fault("slow", after=1000, rate=100, times=1))
    store = open_store(large.url, timeout=1.5, options={"part_connections": 1})
    assert store.get("large") == noise(300_000)
    assert large.count() >= 2


@pytest.mark.slow
def test_a_trickle_that_stays_is_an_error_with_its_rate(large):
    """It names the option that says how slow is too slow; 0 asks for nothing."""
    large.add(Fault("slow", after=1000, rate=2000, times=None))
    once = RetryPolicy(attempts=1)
    slow = open_store(large.url, timeout=4, retry=once, options={"min_rate": 100_000})
    with pytest.raises(StalledError, match=r"only \d+ bytes arrived in .* s.*min_rate"):
        slow.get("large")
    patient = open_store(large.url, timeout=60, retry=once, options={"min_rate": 0})
    assert patient.get_range("large", 0, 5000) == noise(300_000)[:5000]


def test_headers_that_trickle_are_a_stall(trickling):
    """A byte of them now and then keeps no request alive."""
    port = trickling(b"HTTP/1.1 200 OK\r\nX-Long: ")
    store = open_store(f"http://127.0.0.1:{port}", timeout=1, retry=RetryPolicy(attempts=1))
    with pytest.raises(StalledError, match=r"get .*/x"):
        store.get("x")


@pytest.mark.slow
def test_a_slow_server_of_files_is_a_stall_too(tmp_path):
    """Pieces of a file over SFTP that come one by one, but too seldom."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "large").write_bytes(noise(300_000))
    with sftp_server(str(tmp_path / "files"), read_seconds=0.7) as server:
        url = f"sftp://{server.user}@127.0.0.1:{server.port}/"
        known = {"password": server.password, "accept_unknown_host": True}
        once = RetryPolicy(attempts=1)
        slow = open_store(url, timeout=4, retry=once, options={"min_rate": 1_000_000, **known})
        with pytest.raises(StalledError, match=r"only \d+ bytes arrived in .* s.*min_rate"):
            slow.get("large")
        patient = open_store(url, timeout=60, retry=once, options={"min_rate": 0, **known})
        assert patient.get("large") == noise(300_000)
        assert slow.head("large").size == 300_000


@pytest.fixture
def resolver(monkeypatch):
    """A resolver that knows at once that there is no such host."""
    resolve = socket.getaddrinfo

    def answer(host, *rest, **more):
        if host == "no-such-host.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", answer)


@pytest.mark.slow
@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("url", ["http://127.0.0.1:{}/x", "http://no-such-host.invalid/x"])
def test_a_host_that_is_not_there_is_tried_for_the_timeout_in_all(url, caplog):
    """However many tries and minutes a policy has for other trouble."""
    store = open_store(url.format(servers.free_port()), timeout=4, retry=RetryPolicy(9, 3600))
    with pytest.raises(UnreachableError, match="Given up after"):
        store.get("index.json")
    assert "Trying again" in caplog.messages[0]


class Enough(Exception):
    """Ends the tries of a test."""


def enough(*_):
    raise Enough


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://no-such-host.invalid/x", {}),
        ("s3://bucket/x", {"endpoint_url": "http://no-such-host.invalid"}),
    ],
)
def test_a_name_that_is_not_known_is_given_up_soon(url, options, caplog):
    """The first line says so, and for how long the host is tried; one that answered has longer."""
    store = open_store(url, options=options, retry=RetryPolicy(9, 3600, notify=enough))
    with pytest.raises(Enough):
        store.get_range("x", 0, 5)
    assert "no-such-host.invalid" in caplog.messages[0]
    assert "for 15 s in all" in caplog.messages[0]


def test_a_name_that_was_known_has_the_whole_time(web, name, caplog, monkeypatch):
    """Names get lost for a minute in clusters, of hosts that are there."""
    store = open_store(f"{web[0]}/{name}".replace("127.0.0.1", "localhost"))
    store.put("x", b"12345")
    assert store.get("x") == b"12345"

    def resolve(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    fork_safe._objects.clear()
    store = store.with_policy(RetryPolicy(9, 3600, notify=enough))
    with pytest.raises(Enough):
        store.get("x")
    assert "for 60 s in all" in caplog.messages[0]


def test_a_missing_bucket_ends_at_once(s3):
    """What the store says is missing is not asked for again."""
    with FaultProxy(s3) as proxy:
        store = open_store("s3://no-such-bucket/x", options={"endpoint_url": proxy.url})
        with pytest.raises(NotFoundError):
            store.get("index.json")
        assert proxy.count() == 1


@pytest.mark.parametrize("is_ranged", [True, False])
@pytest.mark.parametrize("is_renewed", [True, False])
def test_credentials_that_expire_during_a_run(
    s3, name, tmp_path, monkeypatch, is_renewed, is_ranged
):
    """They are read anew from where they came from, and the run goes on, or a sentence ends it."""
    path = tmp_path / "credentials"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))

    def login(key):
        path.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=secret\n")

    login("OLD")
    with expiring(s3, lambda: login("NEW") if is_renewed else None) as (url, seen):
        store = open_store(f"s3://bucket/{name}", options={"endpoint_url": url}, timeout=31)

        def read(key):
            return store.get_range(key, 0, 2000) if is_ranged else store.get(key)

        data = {f"{number}": noise(2000, number) for number in range(8)}
        for key, value in data.items():
            store.put(key, value)
        seen["left"] = 5
        if is_renewed:
            for _ in range(3):
                assert {key: read(key) for key in data} == data
            assert seen["refused"] >= 1
        else:
            with pytest.raises(PermissionError, match="expired or unknown"):
                {key: read(key) for key in data}


class expiring:
    """A proxy before an S3 server that refuses the key OLD when ``left`` requests were made."""

    def __init__(self, server, renew):
        self.seen = seen = {"left": 10**9, "refused": 0}
        address = server.removeprefix("http://")

        class Handler(FolderHandler):
            def do_GET(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                seen["left"] -= 1
                login = self.headers.get("Authorization", "")
                if seen["left"] < 0 and "Credential=NEW/" not in login:
                    seen["refused"] += 1
                    renew()
                    self.end(400, b"<Error><Code>ExpiredToken</Code><Message>old</Message></Error>")
                    return
                there = http.client.HTTPConnection(address, timeout=20)
                there.request(self.command, self.path, body, dict(self.headers.items()))
                answer = there.getresponse()
                data = answer.read()
                self.send_response(answer.status)
                for key, value in answer.getheaders():
                    if key.lower() not in ("connection", "date", "server", "transfer-encoding"):
                        self.send_header(key, value)
                self.end_headers()
                self.wfile.write(data)
                there.close()

            do_HEAD = do_PUT = do_DELETE = do_GET

        known = {"root": os.devnull, "has_ranges": True}
        self.server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (Handler,), known)
        )
        self.server.daemon_threads, self.server.block_on_close = True, False

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}", self.seen

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
