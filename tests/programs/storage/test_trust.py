"""What strangers say or ask for is not trusted: redirects, proxies, lengths, escape sequences."""

import contextlib
import datetime as dt
import http.server
import ipaddress
import ssl
import threading

import pytest

from devtools.forwardproxy import forward_proxy
from devtools.httpserver import FolderHandler, http_server
from mds.errors import StoreError
from mds.storage import RetryPolicy, open_store

ONCE = RetryPolicy(attempts=1)


@pytest.fixture
def folder(tmp_path):
    """A folder with the file 'x'."""
    (tmp_path / "x").write_bytes(b"content")
    return str(tmp_path)


def told_by(act):
    """The text of the error that an act ends with; '' without one."""
    try:
        act()
    except StoreError as error:
        return str(error)
    return ""


def recording(seen, **answers):
    """A handler that notes the headers of each request, and answers as told."""

    class Handler(FolderHandler):
        def do_GET(self):
            seen.append({name.lower(): value for name, value in self.headers.items()})
            if not answers:
                super().do_GET()
                return
            self.send_response(answers["status"])
            for name, value in answers["headers"].items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answers.get("body", b""))
            self.close_connection = True

        do_HEAD = do_GET

    return Handler


def test_headers_do_not_follow_to_another_host(folder):
    """A redirect takes the range along, and nothing that says who asks."""
    there, here = [], []
    with http_server(folder, handler=recording(there)) as other:
        moved = {"status": 302, "headers": {"Location": f"{other}/x", "Content-Length": "0"}}
        with http_server(folder, handler=recording(here, **moved)) as url:
            headers = {"X-Api-Key": "canary-key", "Authorization": "Bearer canary", "Cookie": "c"}
            store = open_store(url, options={"headers": headers}, retry=ONCE)
            assert store.get_range("x", 1, 3) == b"on"
    assert here[0]["x-api-key"] == "canary-key"
    assert there[0]["range"] == "bytes=1-2"
    assert not {"x-api-key", "authorization", "cookie"} & there[0].keys()


def test_headers_follow_on_the_same_host(folder):
    """A path that moved on one server is read with the same rights."""
    seen = []

    class Moved(recording(seen)):
        def do_GET(self):
            if self.path == "/old/x":
                self.end(301, Location="/x")
            else:
                super().do_GET()

    with http_server(folder, handler=Moved) as url:
        store = open_store(f"{url}/old", options={"headers": {"X-Api-Key": "canary"}}, retry=ONCE)
        assert store.get("x") == b"content"
    assert seen[0]["x-api-key"] == "canary"


@pytest.mark.parametrize("proxy_url", ["http://{}:{}@{}", "{}:{}@{}"])
def test_a_proxy_with_a_password_lets_us_through(folder, monkeypatch, proxy_url):
    """Login and password are unescaped; hosts that no_proxy names are asked directly."""
    with http_server(folder) as url, forward_proxy("me", "p@ss/w%rd") as proxy:
        monkeypatch.setenv("http_proxy", proxy_url.format("me", "p%40ss%2Fw%25rd", proxy.address))
        monkeypatch.delenv("no_proxy", raising=False)
        assert open_store(url, retry=ONCE, timeout=21).get("x") == b"content"
        assert proxy.seen == [("GET", f"{url}/x", True)]
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert open_store(url, retry=ONCE, timeout=21).get("x") == b"content"
        assert len(proxy.seen) == 1


def test_a_wrong_password_of_a_proxy_is_a_sentence_without_it(folder, monkeypatch):
    """The answer 407 is told as what it is."""
    with http_server(folder) as url, forward_proxy("me", "right") as proxy:
        monkeypatch.setenv("http_proxy", f"http://me:wrong-canary@{proxy.address}")
        with pytest.raises(StoreError, match="407") as caught:
            open_store(url, retry=ONCE, timeout=22).get("x")
        assert "canary" not in str(caught.value)


def test_a_tunnel_through_a_proxy_with_a_password(folder, monkeypatch, tmp_path):
    """Https goes through CONNECT, whose login is for the proxy alone."""
    seen = []
    with (
        https_server(folder, tmp_path, recording(seen)) as (url, certificate),
        forward_proxy("me", "p@ss") as proxy,
    ):
        monkeypatch.setenv("https_proxy", f"http://me:p%40ss@{proxy.address}")
        monkeypatch.delenv("no_proxy", raising=False)
        store = open_store(url, options={"verify": certificate}, retry=ONCE, timeout=23)
        assert store.get("x") == b"content"
        assert proxy.seen == [("CONNECT", url.removeprefix("https://"), True)]
    assert "proxy-authorization" not in seen[0]


def test_a_redirect_does_not_give_up_encryption(folder, tmp_path):
    """From https to http is refused at once, with both addresses and without their secrets."""
    seen = []
    with http_server(folder, handler=recording(seen)) as plain:
        moved = {"Location": f"{plain}/x?sig=canary-signature", "Content-Length": "0"}
        handler = recording([], status=302, headers=moved)
        with https_server(folder, tmp_path, handler) as (url, certificate):
            store = open_store(url, options={"verify": certificate}, timeout=24)
            for act in (lambda: store.get("x"), lambda: store.head("x")):
                told = told_by(act)
                assert f"302 Found, the server redirects from https to {plain}/x?..." in told
                assert "canary" not in told
    assert not seen


@pytest.mark.parametrize("status", [200, 206, 503])
@pytest.mark.parametrize("name", ["Content-Length", "Content-Range", "Retry-After", "ETag"])
def test_numbers_of_thousands_of_digits_are_a_sentence(folder, status, name):
    """No header of a server ends in anything but an error of ours."""
    told = {"Content-Length": "7", "Content-Range": "bytes 0-6/7"}
    absurd = ("bytes 0-6/" if name == "Content-Range" else "") + "9" * 5000
    answer = {"status": status, "headers": {**told, name: absurd}, "body": b"content"}
    with http_server(folder, handler=recording([], **answer)) as url:
        store = open_store(url, retry=ONCE, timeout=5)
        for act in (
            lambda: store.head("x"),
            lambda: store.get_range("x", 0, 7),
            lambda: store.get("x"),
        ):
            assert len(told_by(act)) < 1000


def test_escape_sequences_of_a_server_do_not_reach_a_terminal(folder, caplog):
    """Neither in an error nor in the log, whether in a body, a header or a reason."""
    evil = "\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202e"
    answer = {
        "status": 503,
        "headers": {"Content-Length": str(len(evil.encode()))},
        "body": evil.encode(),
    }
    policy = RetryPolicy(attempts=2, within=0, first_wait=0.01)
    with http_server(folder, handler=recording([], **answer)) as url:
        with pytest.raises(StoreError) as caught:
            open_store(url, retry=policy).get("x")
        with pytest.raises(StoreError) as named:
            open_store(url, retry=ONCE).get(f"a{evil}b")
    for text in (str(caught.value), str(named.value), *caplog.messages):
        assert text.isprintable()
    assert "owned" in str(caught.value)
    assert "owned" in caplog.messages[0]


@contextlib.contextmanager
def https_server(folder, tmp_path, handler):
    """The URL of a server of a folder, and the file of its certificate."""
    certificate = self_signed(tmp_path)
    known = {"root": folder, "has_ranges": True}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), known))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}", certificate
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def self_signed(folder):
    """A file with a key and a certificate for 127.0.0.1."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.timezone.utc)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(here, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    form = serialization.Encoding.PEM
    path.write_bytes(
        key.private_bytes(form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(form)
    )
    return str(path)
