"""Ranges of S3 are asked for by requests of our own, in whatever way the SDK would send them."""

import datetime as dt
import os
import re
import sys
import threading
from email.utils import formatdate
from time import time

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from devtools import servers
from devtools.forwardproxy import forward_proxy
from devtools.httpserver import QuietHandler, QuietServer, running
from devtools.proxy import Fault, FaultProxy
from mds.errors import CorruptError, DeniedError, NotFoundError, StoreError, TransientError
from mds.storage import RetryPolicy, open_store
from mds.testing._store_contract import noise
from tests.programs.storage.test_trust import https_server

ONCE = RetryPolicy(1)
DATA = noise(300_000)


class Amazon(QuietHandler):
    """Answers every GET with bytes of one object, if its signature is right; a script goes first.

    A script is a list of functions that get the handler and say whether they answered.
    """

    script = ()
    seen = ()
    skew = 0.0
    turn = threading.Lock()

    def do_GET(self):
        self.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        # The next request may be here before an answer is struck off.
        with self.turn:
            if self.script and self.script[0](self):
                self.script.pop(0)
                return
        start, end = re.match(r"bytes=(\d+)-(\d*)$", self.headers["Range"]).groups()
        piece = DATA[int(start) : int(end) + 1 if end else None]
        self.send_response(206)
        self.send_header("ETag", '"one"')
        self.send_header(
            "Content-Range", f"bytes {start}-{int(start) + len(piece) - 1}/{len(DATA)}"
        )
        self.send_header("Content-Length", str(len(piece)))
        self.end_headers()
        self.wfile.write(piece)

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("x-amz-bucket-region", "eu-west-1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def refuse(self, status, code, message="", **headers):
        """Answer with an error, in chunks as Amazon does."""
        body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))


@pytest.fixture
def amazon():
    """A server whose script a test writes, and what it saw."""
    known = {"script": [], "seen": []}
    handler = type("Handler", (Amazon,), known)
    server = QuietServer(("127.0.0.1", 0), handler)
    with running(server, "mds-amazon"):
        handler.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield handler


def store_at(url, *, retry=ONCE, prefix="p", **options):
    return open_store(
        f"s3://bucket/{prefix}", options={"endpoint_url": url, **options}, retry=retry
    )


def is_signed_right(path, headers, token=None):
    """Whether the SDK would have signed what came the same way."""
    names = re.search("SignedHeaders=([^,]*)", headers["authorization"])[1].split(";")
    url = f"http://{headers['host']}{path}"
    request = AWSRequest("GET", url, headers={name: headers[name] for name in names})
    request.context["timestamp"] = headers["x-amz-date"]
    region = headers["authorization"].split("/")[2]
    signer = S3SigV4Auth(Credentials("access", "secret", token), "s3", region)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    return signer.signature(text, request) in headers["authorization"]


KEYS = [
    "plain",
    "with space",
    "a+b",
    "100%",
    "é/ü",
    "日本",
    "a//b",
    "x~y",
    "q?a=b&c",
    "#;,=",
    "'\"<>",
]


@pytest.mark.parametrize("key", KEYS)
def test_names_of_every_kind_are_signed_as_they_are_sent(amazon, key):
    """Spaces, plus signs, percent signs, other scripts and empty folders."""
    assert store_at(amazon.url).get_range(key, 5, 900) == DATA[5:900]
    ((path, headers),) = amazon.seen
    assert headers["range"] == "bytes=5-899"
    assert is_signed_right(path, headers)


def test_names_of_every_kind_reach_a_server(s3, name):
    """What the SDK wrote is what a range reads."""
    store = store_at(s3, prefix=name)
    for key in KEYS:
        if key != "a//b":  # no folder of a disk has an empty name
            store.put(key, DATA[:100] + key.encode())
            assert store.get_range(key, 100, 100 + len(key.encode())) == key.encode()


def test_a_server_that_checks_signatures_takes_ours(tmp_path):
    """Of a key with a token and of one without."""
    (tmp_path / "bucket").mkdir()
    with servers.s3_server(str(tmp_path), auth="mine,very-secret") as url:
        keys = {"aws_access_key_id": "mine", "aws_secret_access_key": "very-secret"}
        store = store_at(url, **keys)
        store.put("x", DATA)
        with FaultProxy(url) as proxy:
            store = store_at(proxy.url, **keys)
            assert store.get_range("x", 7, 70_000) == DATA[7:70_000]
            assert b"".join(store.stream("x", 299_000)) == DATA[299_000:]
            assert proxy.count() == 2


def test_tokens_and_payers_are_signed(amazon, monkeypatch):
    """A session token and the consent to pay are part of what is signed."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token/+==")
    assert store_at(amazon.url, requester_pays=True).get_range("x", 0, 9) == DATA[:9]
    ((path, headers),) = amazon.seen
    assert headers["x-amz-security-token"] == "token/+=="
    assert headers["x-amz-request-payer"] == "requester"
    assert "x-amz-request-payer;x-amz-security-token" in headers["authorization"]
    assert is_signed_right(path, headers, "token/+==")


def test_public_data_are_read_without_a_signature(amazon):
    """Where that was asked for, no header tells who asks."""
    store = store_at(amazon.url, anonymous=True)
    assert store.get_range("x", 10, 20) == DATA[10:20]
    assert not {name for name in amazon.seen[0][1] if "auth" in name or "amz-date" in name}


def test_credentials_that_are_not_there_leave_it_to_the_sdk(amazon, monkeypatch):
    """Which finds out that the data are public; then ranges go unsigned."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = store_at(amazon.url, region_name="eu-west-2")
    for _ in range(3):
        assert store.get_range("x", 10, 20) == DATA[10:20]
    assert [("authorization" in headers) for _, headers in amazon.seen] == [False] * 3


def test_credentials_are_asked_for_before_they_expire(amazon, monkeypatch, tmp_path):
    """A program that gives keys for a minute is run again for the next range."""
    program = tmp_path / "keys.py"
    program.write_text(
        "import datetime as dt, json, uuid\n"
        "end = dt.datetime.now(dt.timezone.utc) + dt.timedelta(minutes=1)\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': uuid.uuid4().hex, 'SecretAccessKey': 's',"
        " 'SessionToken': 't', 'Expiration': end.isoformat()}))\n"
    )
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {sys.executable} {program}\n")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    store = store_at(amazon.url, region_name="eu-west-9")
    for _ in range(3):
        assert store.get_range("x", 0, 5) == DATA[:5]
    keys = {re.search("Credential=([^/]*)", h["authorization"])[1] for _, h in amazon.seen}
    assert len(keys) == len(amazon.seen) == 3


def test_a_clock_that_is_wrong_is_set_right_once(amazon):
    """The server's time counts from then on."""

    def is_late(handler):
        handler.refuse(403, "RequestTimeTooSkewed", Date=formatdate(time() + 7200))
        return True

    amazon.script.append(is_late)
    store = store_at(amazon.url, region_name="eu-west-4")
    assert store.get_range("x", 0, 5) == store.get_range("x", 0, 5) == DATA[:5]
    first, *others = [
        dt.datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%S%z") for _, headers in amazon.seen
    ]
    ahead = [round((other - first).total_seconds() / 3600) for other in others]
    assert ahead == [2, 2]
    assert all(is_signed_right(path, headers) for path, headers in amazon.seen)


def test_a_clock_that_stays_wrong_is_an_error(amazon):
    """The store is asked twice by us, and once by the SDK, which tells."""

    def never(handler):
        handler.refuse(403, "RequestTimeTooSkewed", "too far", Date=formatdate(time() + 7200))
        return True

    amazon.script.extend([never] * 9)
    with pytest.raises(DeniedError, match="RequestTimeTooSkewed: too far"):
        store_at(amazon.url, region_name="eu-west-5").get_range("x", 0, 5)
    assert len(amazon.seen) == 3


@pytest.mark.parametrize("status", [503, 500, 429])
def test_a_store_that_asks_for_patience_gets_it(amazon, status):
    """Its words are told, and no second request follows at once."""

    def slow_down(handler):
        handler.refuse(status, "SlowDown", "Please reduce your rate", Retry_After="0")
        return True

    amazon.script.append(slow_down)
    with pytest.raises(TransientError, match=f"{status} .*SlowDown: Please reduce your rate"):
        store_at(amazon.url).get_range("x", 0, 5)
    assert len(amazon.seen) == 1
    amazon.script.append(slow_down)
    patient = store_at(amazon.url, retry=RetryPolicy(3, 5, first_wait=0.01))
    assert patient.get_range("x", 0, 5) == DATA[:5]
    assert len(amazon.seen) == 3


def test_a_bucket_of_another_region_is_found_once(amazon):
    """The SDK learns the region from the refusal; ranges are signed for it from then on."""

    def is_elsewhere(handler):
        if "/eu-west-1/s3/" in handler.headers["Authorization"]:
            return False
        said = "the region is wrong</Message><Region>eu-west-1</Region><Message>"
        handler.refuse(400, "AuthorizationHeaderMalformed", said)
        return True

    amazon.script.extend([is_elsewhere] * 2)
    store = store_at(amazon.url, region_name="us-west-2")
    for _ in range(5):
        assert store.get_range("x", 0, 5) == DATA[:5]
    regions = [headers["authorization"].split("/")[2] for _, headers in amazon.seen]
    assert regions == ["us-west-2", "us-west-2", *["eu-west-1"] * 5]


def test_an_answer_without_a_length_is_left_to_the_sdk(amazon):
    """Bodies in chunks are correct too, only not quick."""

    def in_chunks(handler):
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 0-4/{len(DATA)}")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"5\r\n" + DATA[:5] + b"\r\n0\r\n\r\n")
        return True

    amazon.script.append(in_chunks)
    assert store_at(amazon.url).get_range("x", 0, 5) == DATA[:5]
    assert len(amazon.seen) == 2


class Chunked(Amazon):
    """Amazon behind a gateway, which tells no length of any answer."""

    def send_header(self, name, value):
        if name == "Content-Length":
            super().send_header("Connection", "close")
        else:
            super().send_header(name, value)


class Rangeless(Amazon):
    """A store that answers every request with the whole object."""

    def do_GET(self):
        self.seen.append((self.path, self.headers))
        self.send_response(200)
        self.send_header("Content-Length", str(len(DATA)))
        self.end_headers()
        self.wfile.write(DATA)


def serve(handler):
    server = QuietServer(("127.0.0.1", 0), type("Handler", (handler,), {"seen": [], "script": []}))
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    server.seen = server.RequestHandlerClass.seen
    return server


def test_a_store_that_tells_no_length_is_read():
    """Ranges come whole, by one request each from the second on, and the size is unknown."""
    server = serve(Chunked)
    with running(server, "amazon"):
        store = store_at(server.url)
        assert store.get_range("x", 0, 5) == DATA[:5]
        before = len(server.seen)
        assert store.get_range("x", 100, 100_000) == DATA[100:100_000]
        assert store.head("x").size == -1
        assert len(server.seen) == before + 1


def test_a_store_that_ignores_ranges_is_refused_at_the_first_answer(tmp_path):
    """Nothing is tried again, and a range that is the whole object is right."""
    server = serve(Rangeless)
    with running(server, "amazon"):
        store = store_at(server.url, retry=RetryPolicy(5))
        with pytest.raises(StoreError, match="it ignores Range") as error:
            store.get_range("x", 100, 200)
        assert not isinstance(error.value, TransientError)
        assert len(server.seen) == 1
        assert store.get_range("x", 0, len(DATA)) == DATA
        store.get_file("x", str(tmp_path / "x"), len(DATA), bytes)
        assert (tmp_path / "x").read_bytes() == DATA


def test_a_range_beyond_the_end_is_judged_by_the_sdk(s3, name):
    """As a CorruptError that names both sizes or the store's words."""
    store = store_at(s3, prefix=name)
    store.put("x", DATA[:100])
    with pytest.raises(CorruptError):
        store.get_range("x", 50, 200)


def test_an_idle_connection_that_died_costs_no_try(s3, name):
    """It is seen before it is used, and another is made."""
    with FaultProxy(s3) as proxy:
        store = store_at(proxy.url, prefix=name)
        store.put("x", DATA)
        for start in range(0, 50, 10):
            assert store.get_range("x", start, start + 9) == DATA[start : start + 9]
            proxy.cut()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cut", "short", "stall", "reset"])
def test_a_range_that_breaks_goes_on_where_it_stopped(s3, name, kind):
    """What has come is not asked for again, of small ranges and of large ones."""
    with FaultProxy(s3) as proxy:
        policy = RetryPolicy(4, 0, first_wait=0.01)
        options = {"endpoint_url": proxy.url}
        seconds = 4 if kind == "stall" else 60
        store = open_store(f"s3://bucket/{name}", options=options, retry=policy, timeout=seconds)
        store.put("x", DATA)
        proxy.seen.requests.clear()
        for size, after in ((30_000, 10_000), (250_000, 140_000)):
            proxy.add(Fault(kind, after=after, times=1))
            assert store.get_range("x", 5, 5 + size) == DATA[5 : 5 + size]
        assert proxy.count() == 4


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_makes_its_own_connections(s3, name):
    """Parent and child read side by side, each what it asked for."""
    store = store_at(s3, prefix=name)
    store.put("x", DATA)
    assert store.get_range("x", 0, 10) == DATA[:10]
    child = os.fork()
    if child == 0:
        good = all(store.get_range("x", at, at + 99) == DATA[at : at + 99] for at in range(50))
        os._exit(0 if good else 1)
    assert all(store.get_range("x", at, at + 99) == DATA[at : at + 99] for at in range(50))
    assert os.waitpid(child, 0)[1] == 0


def test_certificates_and_tunnels_are_those_of_the_environment(tmp_path, monkeypatch):
    """AWS_CA_BUNDLE says whom to trust, https_proxy through whom to go."""
    seen = []
    handler = type("Handler", (Amazon,), {"script": [], "seen": seen})
    with (
        https_server(str(tmp_path), tmp_path, handler) as (url, certificate),
        forward_proxy("me", "p@ss") as proxy,
    ):
        monkeypatch.setenv("AWS_CA_BUNDLE", certificate)
        assert store_at(url, region_name="eu-west-6").get_range("x", 0, 5) == DATA[:5]
        monkeypatch.setenv("https_proxy", f"http://me:p%40ss@{proxy.address}")
        monkeypatch.delenv("no_proxy", raising=False)
        store = store_at(url, region_name="eu-west-7")
        assert store.get_range("x", 0, 70_000) == store.get_range("x", 0, 70_000) == DATA[:70_000]
        assert proxy.seen == [("CONNECT", url.removeprefix("https://"), True)]
    assert all(is_signed_right(path, headers) for path, headers in seen)
    assert not any("proxy-authorization" in headers for _, headers in seen)


def test_a_certificate_that_is_not_trusted_is_an_error(tmp_path):
    """Unless that was asked for."""
    handler = type("Handler", (Amazon,), {"script": [], "seen": []})
    with https_server(str(tmp_path), tmp_path, handler) as (url, _):
        with pytest.raises(OSError, match="certificate verify failed"):
            store_at(url, region_name="eu-west-8").get_range("x", 0, 5)
        assert store_at(url, verify=False).get_range("x", 0, 5) == DATA[:5]


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_whole_object_goes_around_the_sdk_when_its_bytes_are_checked(
    s3, name, tmp_path, is_checked
):
    """As the range of all its bytes; else the SDK brings it, and checks what it checks."""
    with FaultProxy(s3) as proxy:
        store = store_at(proxy.url, prefix=name)
        store.put("x", DATA)
        proxy.seen.requests.clear()
        pieces = []
        seen = (lambda piece: pieces.append(bytes(piece))) if is_checked else None
        info = store.get_file("x", str(tmp_path / "x"), len(DATA), seen)
        assert (tmp_path / "x").read_bytes() == DATA
        assert b"".join(pieces) == (DATA if is_checked else b"")
        assert info.size == len(DATA)
        ((_, asked),) = proxy.seen.requests
        assert (asked or None) == (f"bytes=0-{len(DATA) - 1}" if is_checked else None)


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_a_whole_object_of_another_size_is_an_error(s3, name, tmp_path, size):
    """Longer or shorter than the index says."""
    store = store_at(s3, prefix=name)
    store.put("x", DATA)
    with pytest.raises(CorruptError):
        store.get_file("x", str(tmp_path / "x"), size, lambda _: None)


def test_a_hedged_store_asks_once_for_a_whole_object(s3, name, tmp_path):
    """A second request for a shard would be as many bytes again."""
    store = store_at(s3, prefix=name, hedge=0.001)
    store.put("x", DATA)
    assert not store.asks_for_ranges
    store.get_file("x", str(tmp_path / "x"), len(DATA), lambda _: None)
    assert (tmp_path / "x").read_bytes() == DATA


@pytest.mark.parametrize("checks", [None, True])
def test_a_whole_object_of_which_no_sum_is_checked_goes_around_the_sdk(s3, name, checks):
    """Where the SDK would check one, as on Amazon, it brings the object."""
    with FaultProxy(s3) as proxy:
        store = store_at(proxy.url, prefix=name, checksums=checks)
        store.put("x", DATA)
        store.put("empty", b"")
        proxy.seen.headers.clear()
        assert store.get("x") == DATA
        assert store.get("empty") == b""
        found = [{"amz-sdk-request", "range"} & {*seen} for seen in proxy.seen.headers]
        assert found == 2 * [{"amz-sdk-request"} if checks else set()]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(404, "NoSuchKey", NotFoundError), (403, "AccessDenied", DeniedError)],
)
def test_a_plain_no_to_a_whole_object_is_asked_for_once(amazon, status, code, kind):
    """What need not be there costs one request, and is no reason to make connections anew."""
    for _ in range(2):
        amazon.script.append(lambda handler: handler.refuse(status, code) or True)
        with pytest.raises(kind):
            store_at(amazon.url).get("x")
    assert len(amazon.seen) == 2


def test_a_whole_object_with_a_clock_that_is_wrong_is_judged_by_the_second_answer(amazon):
    """The clock is set right, and what is said then counts."""
    late = {"Date": formatdate(time() + 3600, usegmt=True)}
    amazon.script.append(lambda h: h.refuse(403, "RequestTimeTooSkewed", **late) or True)
    amazon.script.append(lambda h: h.refuse(404, "NoSuchKey") or True)
    with pytest.raises(NotFoundError):
        store_at(amazon.url).get("x")
    assert len(amazon.seen) == 2
