"""Kept connections: what an answer is, what none is, and which connection is used again."""

import contextlib
import gc
import socket
import threading

import pytest

from mds.errors import StalledError, TransientError
from mds.storage._base import LeastRate
from mds.storage._keep_alive import Connections, Host
from mds.storage._translate import translate
from mds.testing._store_contract import noise

LEAST = LeastRate(0, 5)
ASK = b"GET / HTTP/1.1\r\n\r\n"


@contextlib.contextmanager
def serving(*answers, seconds=60):
    """A pool of connections to a server that gives each request the next answer, then hangs up.

    An answer may be a list of pieces. At None the server closes the connection; `accepted` counts
    connections.
    """
    rest = list(answers)
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            while rest:
                client, _ = listener.accept()
                accepted.append(1)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with client, contextlib.suppress(OSError):
                    while rest and client.recv(1000):
                        answer = rest.pop(0)
                        if answer is None:
                            break
                        pieces = [answer] if isinstance(answer, bytes) else answer
                        for piece in pieces:
                            if piece is not None:
                                client.sendall(piece)
                        if None in pieces:
                            break

        thread = threading.Thread(target=serve)
        thread.start()
        pool = Connections(Host("127.0.0.1", listener.getsockname()[1], seconds))
        yield pool, accepted
        del pool
        gc.collect()
        thread.join(60)
        assert not thread.is_alive()


def plain(body, more=b""):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), more, body)


def beginnings(answer):
    """Return a script of answers, each cut off one byte later, and the connection closed there."""
    return [[answer[:size], None] for size in range(1, len(answer))]


def whole(answer):
    return b"".join(answer.body(LEAST, "x"))


def test_one_connection_serves_one_request_after_another():
    """Bodies of any size leave it as it was."""
    bodies = [b"", noise(9), noise(60_000), noise(3 << 20), noise(100)]
    with serving(*map(plain, bodies)) as (pool, accepted):
        assert [whole(pool.get(ASK)) for _ in bodies] == bodies
        assert len(accepted) == 1


def test_a_connection_that_says_close_is_not_used_again():
    """Nor one of HTTP/1.0, nor one that brought more than it said."""
    answers = [
        plain(b"one", b"Connection: Close\r\n"),
        plain(b"two").replace(b"/1.1", b"/1.0"),
        plain(b"three") + b"four",
        plain(b"five"),
    ]
    with serving(*answers) as (pool, accepted):
        for expected in (b"one", b"two", b"three", b"five"):
            assert whole(pool.get(ASK)) == expected
        assert len(accepted) == 4


def test_interim_answers_are_passed_over():
    """Of a status below 200 nothing is an answer."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    with serving(hints + hints + plain(b"body")) as (pool, _):
        assert whole(pool.get(ASK)) == b"body"


def test_headers_are_found_by_lower_name_and_joined():
    """Spaces around values do not count."""
    head = b'HTTP/1.1 206 Partial\r\nETAG:  "a" \r\nX: 1\r\nx: 2\r\nContent-Length: 0\r\n\r\n'
    with serving(head) as (pool, _):
        answer = pool.get(ASK)
        assert answer.status == 206
        assert answer.headers == {"etag": '"a"', "x": "1, 2", "content-length": "0"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "head",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n folded: b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\nY: b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000,
        b"",
    ],
    ids=[
        "ssh",
        "status",
        "colon",
        "first-folded",
        "folded",
        "space",
        "nameless",
        "newline",
        "lengths",
        "version",
        "digits",
        "endless",
        "nothing",
    ],
)
def test_what_is_no_answer_is_a_broken_connection(head):
    """Which another try may mend."""
    with serving(head or None) as (pool, _), pytest.raises(ConnectionError):
        pool.get(ASK)


@pytest.mark.parametrize(
    "more",
    [
        b"Content-Length: 4, 4\r\n",
        b"Content-Length: -4\r\n",
        b"Content-Length: \xb2\r\n",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 1234567890123456789\r\n",
        b"",
    ],
)
def test_a_length_that_is_in_doubt_is_none(more):
    """The caller is told that the server does not say it."""
    with serving(b"HTTP/1.1 200 OK\r\n" + more + b"\r\nbody") as (pool, _):
        answer = pool.get(ASK)
        assert answer.length == -1
        answer.close()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_chunks_are_joined_however_they_arrive(size):
    """Extensions and trailing headers are skipped, and the connection is used again."""
    raw = CHUNKED + b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nDigest: none\r\n\r\n"
    pieces = [raw[first : first + size] for first in range(0, len(raw), size)]
    with serving(pieces, plain(b"next")) as (pool, accepted):
        assert pool.get(ASK).whole(LEAST, "x", 100) == b"hello world"
        assert whole(pool.get(ASK)) == b"next"
        assert len(accepted) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "raw",
    [
        b"5\r\nhel",
        b"5\r\nhello\r\n",
        b"5\r\nhello!!0\r\n\r\n",
        b"zz\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"ffffff\r\n" + b"hello" * 30,
        b"x" * 5000,
    ],
)
def test_a_body_of_broken_chunks_is_a_broken_connection(raw):
    """No part of such a body is returned."""
    with serving(CHUNKED + raw) as (pool, _):
        answer = pool.get(ASK)
        with pytest.raises(ConnectionError):
            answer.whole(LEAST, "x", 100)


def test_an_answer_cut_off_in_its_headers_is_a_broken_connection():
    """At whichever byte the connection ends: missing headers may be those that say the length."""
    answer = plain(b"", b'ETag: "a"\r\nX: 1\r\n')
    with serving(*beginnings(answer)) as (pool, accepted):
        for count in range(1, len(answer)):
            with pytest.raises(ConnectionError):
                pool.get(ASK)
            assert len(accepted) == count


def test_a_body_cut_off_is_short_and_then_over():
    """The caller compares it with the length; `whole` does so itself."""
    answer = plain(b"0123456789")
    head = answer.index(b"0123")
    cut = beginnings(answer)[head - 1 :]
    with serving(*cut) as (pool, _):
        for size in range(len(cut)):
            got = pool.get(ASK)
            assert (got.length, whole(got)) == (10, b"0123456789"[:size])
    with serving(*cut) as (pool, _):
        for _ in cut:
            with pytest.raises(ConnectionError):
                pool.get(ASK).whole(LEAST, "x", 100)


@pytest.mark.parametrize("trailer", [b"", b"Digest: none\r\n"])
def test_chunks_cut_off_are_a_broken_connection(trailer):
    """At whichever byte, also behind the last chunk."""
    answer = CHUNKED + b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n" + trailer + b"\r\n"
    cut = beginnings(answer)[len(CHUNKED) - 1 :]
    with serving(*cut) as (pool, _):
        for _ in cut:
            with pytest.raises(ConnectionError):
                pool.get(ASK).whole(LEAST, "x", 100)


def test_a_cut_connection_is_an_error_that_a_store_repeats():
    """Bytes are those of the object, whatever the server sent before."""
    answer = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-4/5\r\nContent-Length: 5\r\n\r\nhello"
    with serving(*beginnings(answer)) as (pool, _):
        for _ in beginnings(answer):
            try:
                got = pool.get(ASK)
            except ConnectionError as error:
                with pytest.raises(TransientError):
                    raise translate(error, "get", "s3://b/k", 0.0) from error
            else:
                assert b"hello".startswith(whole(got))
                assert got.length == 5


def test_chunks_that_bring_more_than_the_body_close_the_connection():
    """The next answer may not begin with them."""
    with serving([CHUNKED + b"0\r\n\r\nmore", None], plain(b"next")) as (pool, accepted):
        assert pool.get(ASK).whole(LEAST, "x", 100) == b""
        assert whole(pool.get(ASK)) == b"next"
        assert len(accepted) == 2


@pytest.mark.parametrize("framing", [b"length", b"chunks", b"end"])
def test_the_body_of_an_error_is_read_however_its_length_is_given(framing):
    """Only one whose end is marked lets the connection be used again."""
    bodies = {
        b"length": b"Content-Length: 5\r\n\r\nerror",
        b"chunks": b"Transfer-Encoding: chunked\r\n\r\n2\r\ner\r\n3\r\nror\r\n0\r\n\r\n",
        b"end": b"\r\nerror",
    }
    answer = [b"HTTP/1.1 404 Not Found\r\n" + bodies[framing]]
    with serving(answer + [None] * (framing == b"end"), plain(b"next")) as (pool, accepted):
        assert pool.get(ASK).read_error() == b"error"
        assert whole(pool.get(ASK)) == b"next"
        assert len(accepted) == 1 + (framing == b"end")


def test_what_came_is_given_before_the_error():
    """So that a transfer can go on behind it."""
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + noise(100)
    with serving(cut, plain(b"next"), seconds=3) as (pool, _):
        body = pool.get(ASK).body(LEAST, "x")
        assert next(body) == noise(100)
        with pytest.raises(TimeoutError):
            next(body)
        assert whole(pool.get(ASK)) == b"next"


def test_a_rate_below_the_least_is_a_stall(trickling):
    """The rate is counted in the time of waiting."""
    port = trickling(b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n")
    pool = Connections(Host("127.0.0.1", port, 60))
    body = pool.get(ASK).body(LeastRate(1000, 0.4), "there")
    with pytest.raises(StalledError, match=r"get there: only \d+ bytes arrived"):
        list(body)


def test_a_body_that_is_forgotten_closes_its_connection():
    """Half read, it cannot be used for anything else."""
    with serving(plain(noise(8 << 20)), plain(b"next")) as (pool, accepted):
        body = pool.get(ASK).body(LEAST, "x")
        next(body)
        del body
        gc.collect()
        assert whole(pool.get(ASK)) == b"next"
        assert len(accepted) == 2
