"""Listings of S3 go around the SDK, and are what it would have said."""

from urllib.parse import parse_qs, quote_plus, urlsplit

import pytest

from devtools.httpserver import QuietHandler, QuietServer, running
from mds.errors import DeniedError, TransientError
from mds.storage import RetryPolicy, open_store
from mds.storage._s3_requests import listing_query, parse_listing
from tests.programs.storage.test_s3_ranges import KEYS, is_signed_right

NAMES = sorted(f"p/{key}" for key in KEYS)
FEW = 5


def page_of(names, more="", *, encoded=True):
    """A page as Amazon writes it."""
    put = quote_plus if encoded else str
    found = "".join(
        f"<Contents><Key>{put(name)}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>"
        f"<ETag>&quot;e{at}&quot;</ETag><Size>{at}</Size><Owner><ID>x</ID></Owner></Contents>"
        for at, name in enumerate(names)
    )
    told = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3">'
        f"<Name>bucket</Name>{told}{'<EncodingType>url</EncodingType>' if encoded else ''}"
        f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{found}</ListBucketResult>"
    ).encode()


class Bucket(QuietHandler):
    """Lists five objects a page, in chunks; a script of functions may answer in its place."""

    def do_GET(self):
        asked = {name: each[0] for name, each in parse_qs(urlsplit(self.path).query).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.seen.append((self.path, headers, asked))
        if self.script and self.script.pop(0)(self):
            return
        at = int(asked.get("continuation-token", "at/0 +").split("/")[1].split(" ")[0])
        more = f"at/{at + FEW} +" if at + FEW < len(NAMES) else ""
        self.in_chunks(page_of(NAMES[at : at + FEW], more))

    def in_chunks(self, body, size=100, end=b"0\r\n\r\n"):
        """An answer as Amazon sends it."""
        self.send_response_only(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at in range(0, len(body), size):
            piece = body[at : at + size]
            self.wfile.write(b"%x;some=thing\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(end)

    def at_once(self, body, status=200, **headers):
        """An answer with a length."""
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return True


@pytest.fixture
def bucket():
    """A server, its script and what it saw; and its store."""
    handler = type("Handler", (Bucket,), {"script": [], "seen": []})
    server = QuietServer(("127.0.0.1", 0), handler)
    with running(server, "mds-bucket"):
        url = f"http://127.0.0.1:{server.server_address[1]}"
        handler.store = open_store(
            "s3://bucket/p", options={"endpoint_url": url}, retry=RetryPolicy(3, first_wait=0.01)
        )
        yield handler


def test_every_page_is_asked_for_once_and_signed_as_the_sdk_signs(bucket):
    """Names of every kind, sizes and versions, in order; the token of a page is sent as it came."""
    found = list(bucket.store.list())
    assert [f"p/{info.key}" for info in found] == NAMES
    assert [info.size for info in found] == [at % FEW for at in range(len(NAMES))]
    assert [info.version for info in found] == [f"e{at % FEW}" for at in range(len(NAMES))]
    assert [asked.get("continuation-token") for _, _, asked in bucket.seen] == [
        None,
        "at/5 +",
        "at/10 +",
    ]
    assert all(is_signed_right(path, headers) for path, headers, _ in bucket.seen)
    assert all("amz-sdk-invocation-id" not in headers for _, headers, _ in bucket.seen)


@pytest.mark.parametrize("prefix", ["", "a b", "é/ü+", "100%&x=y", "x~y/"])
def test_a_prefix_of_every_kind_is_signed_as_it_is_sent(bucket, prefix):
    """And is the one that the server reads."""
    list(bucket.store.list(prefix))
    path, headers, asked = bucket.seen[0]
    assert asked["prefix"] == f"p/{prefix}"
    assert is_signed_right(path, headers)


def test_a_listing_that_breaks_off_is_asked_for_again(bucket):
    """A page without its last chunk is none, and no object is given twice or left out."""
    body = page_of(NAMES[:FEW], "at/5 +")
    bucket.script += [lambda handler: handler.in_chunks(body, end=b"") or hang_up(handler)]
    assert [f"p/{info.key}" for info in bucket.store.list()] == NAMES
    # Beside the question whether a server that never answered speaks the protocol of its URL.
    assert len([path for path, *_ in bucket.seen if "list-type" in path]) == 4


def hang_up(handler):
    """End the connection behind what was sent."""
    handler.close_connection = True
    return True


def test_a_store_that_asks_for_patience_gets_it(bucket):
    """Also in the middle of a listing, which then repeats none."""
    slow = b"<Error><Code>SlowDown</Code><Message>later</Message></Error>"
    bucket.script += [lambda _: False, lambda handler: handler.at_once(slow, 503, Retry_After="0")]
    assert [f"p/{info.key}" for info in bucket.store.list()] == NAMES


def test_a_page_in_another_form_is_left_to_the_sdk(bucket):
    """One whose names are not escaped as was asked, say: the SDK knows."""

    def plain(handler):
        return handler.at_once(page_of(["p/x&amp;y"], encoded=False))

    bucket.script += [plain, plain]
    assert [info.key for info in bucket.store.list()] == ["x&y"]
    assert ["amz-sdk-invocation-id" in headers for _, headers, _ in bucket.seen] == [False, True]


def test_a_no_is_judged_by_the_sdk(bucket):
    """Which knows of other regions and of keys that may be wrong."""
    no = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
    bucket.script += [lambda handler: handler.at_once(no, 403)] * 4
    with pytest.raises(DeniedError, match="AccessDenied"):
        list(bucket.store.list())


def test_an_answer_that_tells_no_length_is_left_to_the_sdk(bucket):
    """Its end would be that of the connection, which may also break."""

    def endless(handler):
        handler.send_response_only(200)
        handler.end_headers()
        handler.wfile.write(page_of(NAMES[:2]))
        return hang_up(handler)

    bucket.script += [endless, endless]
    assert [f"p/{info.key}" for info in bucket.store.list()] == NAMES[:2]
    assert len(bucket.seen) == 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>login</html>",
        b"<ListBucketResult><Contents><Key>a</Key><Size>1</Size></Contents>",
        page_of(["a"]).replace(b"<Size>0<", b"<Size>many<"),
        page_of(["a"]).replace(b"<Key>a<", b"<Key>a&amp;b<"),
        page_of(["a"]).replace(b">false<", b">true<"),
    ],
)
def test_what_is_no_page_is_none(body):
    """So that the SDK is asked: pages of others, torn ones, ones without where to go on."""
    assert parse_listing(body) is None


def test_an_empty_bucket_is_a_page():
    """Of no objects, and the last one."""
    assert parse_listing(page_of([])) == ([], "")
    assert listing_query("a b/", "") == "encoding-type=url&list-type=2&prefix=a%20b%2F"


def test_a_listing_that_never_ends_well_is_an_error(bucket):
    """After the tries of the policy."""
    store = bucket.store.with_policy(RetryPolicy(1))
    body = page_of(NAMES[:FEW])
    bucket.script += [lambda handler: handler.in_chunks(body, end=b"") or hang_up(handler)] * 3
    with pytest.raises(TransientError):
        list(store.list())
