"""What breaks on the way is mended or told, through a proxy that breaks it in front of a server."""

import gzip
import os
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from devtools.httpserver import FolderHandler, http_server, running
from devtools.proxy import Fault, FaultProxy
from mds.errors import (
    CorruptError,
    NotFoundError,
    StalledError,
    StoreError,
    TransientError,
)
from mds.storage import RetryPolicy, open_store
from mds.storage._files import publish
from mds.testing._store_contract import noise

SIZE = 3 << 20
DATA = noise(SIZE)
QUICK = {"first_wait": 0.01, "longest_wait": 0.05}


@pytest.fixture
def proxy(web):
    """A proxy before the web server."""
    with FaultProxy(web[0]) as proxy:
        yield proxy


@pytest.fixture
def store(proxy, web, name):
    """A store behind the proxy with the object 'large'; one connection, four tries and no more."""
    return behind(proxy, web, name)


def behind(proxy, web, name, *, timeout=20, options=None, **policy):
    """A store behind the proxy, whose server has the object 'large'."""
    folder = os.path.join(web[1], name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "large"), "wb") as file:
        file.write(DATA)
    policy = RetryPolicy(**{"attempts": 4, "within": 0, **QUICK, **policy})
    options = {"part_connections": 1, **(options or {})}
    return open_store(f"{proxy.url}/{name}", options=options, retry=policy, timeout=timeout)


def test_a_cut_transfer_goes_on_where_it_stopped(proxy, store, tmp_path):
    """What has come is not asked for again."""
    proxy.add(Fault("cut", after=1 << 20, times=1), Fault("reset", after=1 << 19, times=1))
    store.get_file("large", str(tmp_path / "large"), SIZE)
    assert (tmp_path / "large").read_bytes() == DATA
    ranges = [asked for _, asked in proxy.seen.requests]
    assert len(ranges) == 3
    starts = [int(asked.removeprefix("bytes=").split("-")[0]) for asked in ranges[1:]]
    assert 0 < starts[0] <= starts[1] <= SIZE
    # Bytes on their way when the line broke may be lost, not more.
    assert proxy.seen.bytes_sent < SIZE + (2 << 20)


def test_a_connection_may_break_often_while_bytes_come(proxy, store):
    """The tries are counted from the last progress, not from the start."""
    proxy.add(Fault("cut", after=256 << 10, times=None))
    assert store.get("large") == DATA


def test_a_server_that_sends_a_byte_and_hangs_up_is_given_up(proxy, store):
    """Progress so small does not go on for ever."""
    proxy.add(Fault("cut", after=1, times=None))
    with pytest.raises(TransientError, match=r"get .*large: "):
        store.get("large")
    assert proxy.count() < 200


def test_each_part_is_mended_alone(proxy, web, name, tmp_path):
    """Of an object in parts, only what broke is asked for again."""
    store = behind(proxy, web, name, options={"part_size": 1 << 19, "part_connections": 3})
    proxy.add(Fault("cut", after=200_000, times=4), Fault("status", status=500, times=2))
    store.get_file("large", str(tmp_path / "large"), SIZE)
    assert (tmp_path / "large").read_bytes() == DATA
    assert proxy.count() == SIZE // (1 << 19) + 4 + 2


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_errors_that_pass_are_tried_again(proxy, store, status):
    """Throttling and server errors are mended by another try."""
    proxy.add(Fault("status", match="", status=status, times=1))
    assert store.get_range("large", 5, 10) == DATA[5:10]
    assert proxy.count() == 2


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, NotFoundError),
        (410, NotFoundError),
        (401, PermissionError),
        (403, PermissionError),
        (400, StoreError),
        (501, StoreError),
    ],
)
def test_errors_that_stay_are_told_at_once(proxy, web, name, status, kind):
    """Nobody waits minutes to learn that a file is missing or forbidden."""
    store = behind(proxy, web, name, attempts=5, within=60)
    proxy.add(Fault("status", match="", status=status, times=None))
    with pytest.raises(kind, match=rf"get http://.*/large: .*{status}") as caught:
        store.get("large")
    assert caught.value.verb == "get"
    assert proxy.count() == 1


def test_a_store_is_left_alone_for_as_long_as_it_asks(proxy, web, name, monkeypatch):
    """Retry-After is honoured, up to a bound."""
    waits = []
    monkeypatch.setattr("tenacity.nap.time.sleep", waits.append)
    store = behind(proxy, web, name)
    proxy.add(Fault("status", status=429, retry_after=7, times=1))
    assert store.get_range("large", 0, 3) == DATA[:3]
    policy = RetryPolicy()
    bounded = behind(proxy, web, name, longest_wait=policy.longest_wait)
    proxy.add(Fault("status", status=503, retry_after=100_000, times=1))
    bounded.get_range("large", 0, 3)
    assert waits == [pytest.approx(0.2), pytest.approx(4 * policy.longest_wait)]


@pytest.mark.parametrize("attempts", [0, 1])
def test_one_attempt_means_one(proxy, web, name, attempts):
    """download_retry of 0 and 1 both mean one try, and the error says what happened."""
    store = behind(proxy, web, name, attempts=attempts, within=60)
    proxy.add(Fault("status", status=503, times=1))
    with pytest.raises(TransientError, match=r"get http://.*large: 503"):
        store.get("large")
    assert proxy.count() == 1


def test_the_last_error_says_how_many_tries_there_were(proxy, web, name):
    """Verb, URL, cause, tries and seconds."""
    told = []
    store = behind(
        proxy, web, name, attempts=4, notify=lambda url, number, error: told.append(number)
    )
    proxy.add(Fault("drop", times=None))
    with pytest.raises(
        TransientError, match=r"get http://.*large: .*Given up after 4 tries, "
    ) as e:
        store.get("large")
    assert e.value.tries == 4
    assert proxy.count() == 4
    assert told == [1, 2, 3]


@pytest.mark.slow
def test_a_stalled_transfer_is_noticed_and_started_again(proxy, web, name):
    """No bytes for the timeout is a failure like others; the rest comes over a new connection."""
    store = behind(proxy, web, name, timeout=2)
    proxy.add(Fault("stall", after=1 << 20, times=1), Fault("stall", after=0, times=1))
    assert store.get("large") == DATA


def test_a_stall_without_another_try_is_a_timeout(proxy, web, name):
    """It is told as one of ours and as Python's own TimeoutError."""
    store = behind(proxy, web, name, timeout=0.3, attempts=1)
    proxy.add(Fault("stall", after=100, times=None))
    with pytest.raises(StalledError) as caught:
        store.get("large")
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.parametrize("kind", ["short", "long", "cut"])
def test_a_body_of_another_length_is_never_a_file(proxy, web, name, tmp_path, kind):
    """Nothing appears under the final name, nothing is left under a temporary one."""
    store = behind(proxy, web, name, attempts=1)
    proxy.add(Fault(kind, after=SIZE // 2, times=None))
    path = str(tmp_path / "shard")
    with pytest.raises(StoreError), publish(path) as temporary:
        store.get_file("large", temporary, SIZE)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["short", "long", "shifted"])
def test_a_wrong_answer_to_a_range_is_asked_for_again(proxy, store, kind):
    """Too few bytes, too many, or others than were asked for."""
    proxy.add(Fault(kind, after=100, times=1))
    assert store.get_range("large", 1000, 9000) == DATA[1000:9000]


def test_a_server_that_ignores_ranges_is_read_up_to_the_range(proxy, store):
    """200 instead of 206 is the whole object; only what was asked for comes out."""
    proxy.add(Fault("whole", times=None))
    assert store.get_range("large", 1000, 9000) == DATA[1000:9000]
    assert store.get_range("large", SIZE - 1, SIZE) == DATA[-1:]


class Odd(FolderHandler):
    """A server that answers in a way of its own, which the name of the object says."""

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        if name.startswith("page"):
            self.end(200, b"<!DOCTYPE html><p>Log in", Content_Type="text/html")
        elif name.startswith("labelled"):
            self.end(200, DATA, Content_Type="text/html")
        elif name.startswith("packed"):
            self.end(200, gzip.compress(DATA), Content_Encoding="gzip")
        else:
            self.end(304)

    do_HEAD = do_GET


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("page", "answered with a web page"),
        ("packed", "Content-Encoding: gzip"),
        ("same", "304 Not Modified"),
    ],
)
def test_an_answer_that_is_not_the_object_is_named(tmp_path, name, message):
    """A login page, a compressed answer and a 304 are errors that say so, at the first request."""
    with http_server(str(tmp_path), handler=Odd) as url, FaultProxy(url) as proxy:
        store = open_store(proxy.url)
        for start, end in ((0, None), (0, 10), (1000, 9000)):
            with pytest.raises(StoreError, match=message) as error:
                b"".join(store.stream(name, start, end))
            assert not isinstance(error.value, (TransientError, CorruptError))
        assert len(proxy.seen.requests) == 3


def test_labels_of_answers_do_not_refuse_objects(tmp_path):
    """What is compressed itself may be called so, and not all that is called a page is one."""
    with http_server(str(tmp_path), handler=Odd) as url:
        store = open_store(url)
        assert gzip.decompress(store.get("packed.jsonl.gz")) == DATA
        assert store.get("labelled") == DATA


def test_an_object_that_changes_while_it_is_read_is_an_error(proxy, store, web, name):
    """Half of one version and half of another make no object."""
    proxy.add(Fault("cut", after=1 << 20, times=1))
    body = store.stream("large")
    next(body)
    with open(os.path.join(web[1], name, "large"), "wb") as file:
        file.write(noise(SIZE, 1))
    with pytest.raises(CorruptError, match="changed while it was read"):
        list(body)


def test_a_slow_range_is_asked_for_twice_when_told_so(proxy, web, name):
    """With ``hedge``, a second request is made and the first answer counts."""
    store = behind(proxy, web, name, timeout=60, options={"hedge": 0.05})
    proxy.add(Fault("stall", after=10, times=1))
    assert store.get_range("large", 100, 50_000) == DATA[100:50_000]
    assert proxy.count() == 2


def test_a_hedged_range_fails_only_when_both_requests_do(proxy, web, name):
    """An error of one is no error while the other may come."""
    store = behind(proxy, web, name, options={"hedge": 0.05}, attempts=1)
    proxy.add(Fault("slow", rate=40_000, times=1), Fault("drop", times=1))
    assert store.get_range("large", 0, 20_000) == DATA[:20_000]
    proxy.add(Fault("drop", times=None))
    with pytest.raises(TransientError):
        store.get_range("large", 0, 20_000)


def test_an_upload_is_tried_again_from_its_start(proxy, store, tmp_path):
    """The file that arrives is whole, however the first try ended."""
    (tmp_path / "out").write_bytes(DATA)
    proxy.add(Fault("drop", match="^PUT", times=1), Fault("status", match="^HEAD", times=1))
    store.put_file("up", str(tmp_path / "out"))
    assert store.get("up") == DATA


def test_connections_that_died_while_idle_are_replaced(proxy, store):
    """A cut of everything between two requests costs a try, not an error."""
    assert store.get_range("large", 0, 5) == DATA[:5]
    proxy.cut()
    assert store.get_range("large", 5, 9) == DATA[5:9]


def test_no_more_transfers_than_allowed_at_a_time(proxy, web, name):
    """``concurrency`` bounds what is open, and a forgotten body gives its slot back."""
    store = behind(proxy, web, name, options={"concurrency": 2})
    bodies = [store.stream("large"), store.stream("large")]
    got = []
    waiting = threading.Thread(target=lambda: got.append(store.get_range("large", 0, 4)))
    waiting.start()
    waiting.join(0.2)
    assert got == []
    bodies.pop().close()
    waiting.join(60)
    assert got == [DATA[:4]]
    bodies.clear()
    with store.stream("large") as one, store.stream("large") as other:
        assert next(one)[:9] == next(other)[:9] == DATA[:9]


def test_a_full_disk_is_told_as_such(store, monkeypatch):
    """The error says that the disk is full, where, and is not tried again."""
    from mds.errors import NoSpaceError

    with pytest.raises(NoSpaceError, match="/dev/full"):
        store.get_file("large", "/dev/full")


def test_a_refused_connection_holds_no_server():
    """A server that answers one connection after another goes on while a client keeps its own."""
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    with running(server, "mds-one-at-a-time"), FaultProxy(url) as proxy:
        proxy.add(Fault("status", match="", times=1))
        kept = HTTPConnection(proxy.url.removeprefix("http://"), timeout=20)
        kept.request("GET", "/refused")
        assert kept.getresponse().read() == b""
        other = HTTPConnection(url.removeprefix("http://"), timeout=20)
        other.request("GET", "/answered")
        assert other.getresponse().status == 501
        other.close()
        kept.close()
