"""GETs and listings of S3, signed and sent without the SDK.

The SDK still decides what it knows best: endpoint, region, path or virtual addressing, FIPS and
dual stack, access points, requester pays. It makes one example request per bucket, which shows the
result, and an event takes that request away before it is sent (`find_template`). That takes half a
millisecond. Credentials come from the SDK's provider at each request, so they are renewed.

Some answers are handled here: the requested bytes, a request to come back later (408, 429, 5xx) and
a refusal of a whole object. All others are left to the SDK, which sends the request again and
judges: redirects to another region, missing keys of ranges, expired tokens.

The SDK took five sixths of the processor time of a small request; see docs/decisions/0017. Of a
page of a thousand objects it parses dates that are not used: 65 ms of processor time, 3 here. A
page in another form than Amazon's is left to the SDK.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote_plus, urlsplit

from mds.storage._base import LeastRate, ObjectInfo
from mds.storage._http import find_proxy, split_login
from mds.storage._keep_alive import Answer, Connections, Host

if TYPE_CHECKING:
    import ssl

_TRY_LATER = {408, 429, 500, 502, 503, 504}
#: Refusals of a whole object that the SDK need not confirm. A missing object is common: files
#: beside an index are requested, and are optional.
_REFUSALS = {(404, "NoSuchKey"), (404, "NoSuchBucket"), (403, "AccessDenied")}
_CHECKS = "when_supported"
#: Bytes of a page of a listing: a thousand names of 1,024 bytes, each escaped, and their facts.
_LONGEST_PAGE = 16 << 20
_WORD = re.compile(r"<(Code|Message)>([^<]*)</")


class StoreAnswerError(Exception):
    """An answer that asks for a later retry or refuses an object.

    `classify` of _s3.py turns it into a StoreError. ``code`` and ``message`` are from the body of
    the answer, such as "NoSuchKey", and ``retry_after`` is the header of that name.
    """

    def __init__(self, status: int, code: str, message: str, retry_after: str | None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message = status, code, message
        self.retry_after = retry_after


class S3Client(NamedTuple):
    """A client of the SDK, and facts about it.

    Attributes:
        client: The client of botocore.
        provider: The SDK's credentials, which it renews; None for unsigned requests.
        verify: Whether to check certificates, or a file of trusted ones.
    """

    client: Any
    provider: Any
    verify: bool | str

    def credentials(self) -> Credentials:
        """Return the present credentials, which the provider renews before they expire."""
        frozen = self.provider.get_frozen_credentials()
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


class RangeRequests:
    """Signed GETs and listings of one bucket, which any thread of a process may send.

    Args:
        template: Common parts of all GETs of the bucket.
        connections: Idle connections to its host.
        client: Client of the SDK, for its credentials.
    """

    def __init__(
        self, template: RequestTemplate, connections: Connections, client: S3Client
    ) -> None:
        self._template = template
        self._connections = connections
        self._client = client
        # Seconds by which the store's clock is ahead of this machine's; see `_adopt_store_time`.
        self._skew = 0.0
        #: Whether whole objects may be read here, without the check of their checksums: if the SDK
        #: is set to check them, it must read them.
        self.may_read_whole_objects = (
            client.client.meta.config.response_checksum_validation != _CHECKS
        )
        #: Whether all answers had a length so far. Answers without one are left to the SDK.
        self.have_lengths = True
        agent = f"User-Agent: {template.agent}\r\n" if template.agent else ""
        # The headers that are not signed, at the end of each request.
        self._tail = f"{agent}Accept-Encoding: identity\r\n\r\n"

    def ask(self, name: str, span: str | None) -> Answer | None:
        """Request an object, or a range of it, and return the answer.

        ``span`` is the value of the Range header, None for the whole object. Return None if the SDK
        must send the request. Raises OSError, and StoreAnswerError if the store asks for a later
        retry or refuses a whole object.
        """
        if not self.have_lengths:
            return None
        answer = self._send(self._template.path + quote(name, safe="/~"), span)
        if answer is not None and answer.length < 0:
            answer.close()
            self.have_lengths = False
            return None
        return answer

    def list(
        self, prefix: str, token: str, least_rate: LeastRate, safe_url: str
    ) -> ListingPage | None:
        """Return a page of the objects whose names begin with ``prefix``.

        ``token`` is the token that the page before ended with, '' for the first page. Return None
        if the SDK must send the request; raises as `ask` does.
        """
        path = self._template.path.rstrip("/") or "/"
        answer = self._send(path, None, listing_query(prefix, token))
        body = None if answer is None else answer.whole(least_rate, safe_url, _LONGEST_PAGE)
        return None if body is None else parse_listing(body)

    def _send(self, path: str, span: str | None, query: str = "") -> Answer | None:
        """Send a GET and return its answer if it is a success.

        Else return None if the SDK must send the request again and judge the answer. Raises OSError
        if no answer arrives, and StoreAnswerError if the answer asks for a later retry or refuses a
        whole object. ``path`` and ``query`` are escaped.
        """
        answer = self._connections.get(self._request(path, span, query))
        words: dict[str, str] = {}  # Code and Message of an error, once they are read
        if answer.status == 403:
            words = _error_words(answer)
            if self._adopt_store_time(answer, words):
                # Send it again, signed with the store's time.
                answer, words = self._connections.get(self._request(path, span, query)), {}
        if answer.status in (200, 206):
            return answer
        if answer.status in _TRY_LATER or (answer.status in (403, 404) and span is None):
            words = words or _error_words(answer)
            if answer.status in _TRY_LATER or (answer.status, words.get("Code")) in _REFUSALS:
                raise StoreAnswerError(
                    answer.status,
                    words.get("Code", ""),
                    words.get("Message", ""),
                    answer.headers.get("retry-after"),
                )
        answer.close()
        return None

    def _request(self, path: str, span: str | None, query: str) -> bytes:
        """Return the bytes of a GET: its first line and its headers, signed if the template is."""
        template = self._template
        headers = {"host": template.host, **dict(template.amazon)}
        if span is not None:
            headers["range"] = span
        if template.scope is not None:
            credentials = self._client.credentials()
            stamp = timestamp(self._skew)
            headers["x-amz-content-sha256"] = EMPTY_DIGEST
            headers["x-amz-date"] = stamp
            if credentials.token:
                headers["x-amz-security-token"] = credentials.token
            # Added last, because the signature covers all other headers here.
            headers["authorization"] = sign(
                credentials, template.scope, path, headers, stamp, query
            )
        target = f"{path}?{query}" if query else path
        lines = "".join([f"{key}: {value}\r\n" for key, value in headers.items()])
        return f"GET {target} HTTP/1.1\r\n{lines}{self._tail}".encode("latin-1")

    def _adopt_store_time(self, answer: Answer, words: Mapping[str, str]) -> bool:
        """Sign with the store's time from now on if the store refused the time of a request.

        Stores refuse signatures that are some minutes old, so a wrong clock of this machine would
        fail all requests. ``answer`` is an answer 403, and ``words`` are its Code and Message.
        Return whether the time was adopted, which happens at most once.
        """
        if self._skew or words.get("Code") != "RequestTimeTooSkewed":
            return False
        try:
            store_time = parsedate_to_datetime(answer.headers.get("date", "")).timestamp()
        except (TypeError, ValueError):
            return False
        self._skew = store_time - time.time()
        return True


def open_range_requests(
    client: S3Client, bucket: str, extra: Mapping[str, str], seconds: float
) -> RangeRequests | None:
    """Return the sender of direct requests to a bucket, or None if only the SDK can send them.

    Args:
        client: Client of the SDK.
        bucket: Name of the bucket.
        extra: Further arguments of the SDK's GETs, such as ``RequestPayer``.
        seconds: Timeout of connecting and of each read.

    Raises the SDK's exceptions for missing credentials or an invalid name of a bucket.
    """
    if bucket.endswith("--x-s3"):  # directory buckets, whose credentials are a session's
        return None
    template = find_template(client.client, bucket, extra)
    if template is None:
        return None
    place = urlsplit(f"{template.scheme}://{template.host}")
    proxy = find_proxy(f"{template.scheme}://{template.host}/")
    tunnel = None  # host and port of the proxy, and the headers that it requires
    if proxy:
        # `Host` can only open a tunnel, which needs TLS to the store and a plain HTTP proxy.
        address, login = split_login(proxy)
        proxy_parts = urlsplit(address)
        is_plain = proxy_parts.scheme == "http"
        if template.scheme != "https" or not is_plain or proxy_parts.hostname is None:
            return None
        tunnel = (proxy_parts.hostname, proxy_parts.port or 80, login or {})
    is_secure = template.scheme == "https"
    host = Host(
        place.hostname or "",
        place.port or (443 if is_secure else 80),
        seconds,
        _context(client.verify) if is_secure else None,
        tunnel,
    )
    return RangeRequests(template, Connections(host), client)


def _error_words(answer: Answer) -> dict[str, str]:
    """Return the Code and the Message in the XML body of an error."""
    return dict(_WORD.findall(answer.read_error().decode("utf-8", "replace")))


def _context(verify: bool | str) -> ssl.SSLContext:
    """Return the settings of TLS; ``verify`` is the field of `S3Client`."""
    import ssl

    from botocore.httpsession import get_cert_path

    if not verify:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    return ssl.create_default_context(cafile=get_cert_path(verify))


# ----------------------------------------------------------------------------------------- template

# Placeholder key: the SDK signs one request with it, which becomes the template.
_EXAMPLE = "5f1c7a9e-the-template-of-a-request"
_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[^/]+/[0-9]{8}/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request,"
)
# Headers of a request that belong to it alone.
_CHANGING = {"x-amz-date", "x-amz-content-sha256", "x-amz-security-token", "x-amz-checksum-mode"}


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """The common parts of all GETs of a bucket.

    Attributes:
        scheme: "http" or "https".
        host: Host and port, as in the header ``host``.
        path: Escaped path up to the name of an object.
        scope: Region and service of signatures; None if requests are unsigned.
        amazon: Names and values of ``x-amz-`` headers that all requests have.
        agent: Value of the header ``user-agent``, or ''.
    """

    scheme: str
    host: str
    path: str
    scope: Scope | None
    amazon: tuple[tuple[str, str], ...]
    agent: str


class _SeenError(Exception):
    """Exception that carries the example request out of the SDK instead of its being sent."""

    def __init__(self, request: Any) -> None:
        super().__init__()
        self.request = request


def show_example(request: Any, **_: Any) -> None:
    """Raise `_SeenError` with ``request`` if it is the example request of `find_template`.

    The SDK calls this function before it sends a GET, and the exception prevents that. The example
    is recognised by its key.
    """
    if urlsplit(request.url).path.endswith(_EXAMPLE):
        raise _SeenError(request)


def find_template(client: Any, bucket: str, extra: Mapping[str, str]) -> RequestTemplate | None:
    """Return the template of the SDK's GETs of a bucket, or None if only the SDK can sign them.

    The SDK makes and signs a GET of the key `_EXAMPLE`, and `show_example` raises it as a
    `_SeenError` before it is sent: its host, path and headers are those of all GETs.

    ``client`` is a client of botocore, and ``extra`` are further arguments of its GETs.
    """
    try:
        client.get_object(Bucket=bucket, Key=_EXAMPLE, Range="bytes=0-1", **extra)
    except _SeenError as seen:
        request = seen.request
    else:
        return None
    headers = {key.lower(): _text(value) for key, value in request.headers.items()}
    url = urlsplit(request.url)
    signed = headers.get("authorization")
    match = _SIGNED.match(signed) if signed else None
    # A query, a login in the URL, another kind of signature or the session of a directory bucket
    # would differ from request to request.
    if (
        url.query
        or "@" in url.netloc
        or (signed and match is None)
        or "x-amz-s3session-token" in headers
    ):
        return None
    amazon = tuple(
        (key, value)
        for key, value in headers.items()
        if key.startswith("x-amz-") and key not in _CHANGING
    )
    return RequestTemplate(
        url.scheme,
        url.netloc,
        url.path.removesuffix(_EXAMPLE),
        Scope(match["region"], match["service"]) if match else None,
        amazon,
        headers.get("user-agent", ""),
    )


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


# ---------------------------------------------------------------------------------------- signature

# AWS Signature Version 4 of requests without a body: a canonical request and a chain of HMACs. The
# SDK signs any request of any service. These have one shape, so the names of their headers are
# sorted once and the key of a day is derived once: 13 us, the SDK takes 250 us. A path is signed as
# it is sent, as S3 wants it: nothing is escaped twice, no slash is left out.

#: The digest of no bytes, which is the body of these requests.
EMPTY_DIGEST = hashlib.sha256(b"").hexdigest()
_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Access key, secret and session token, as one provider of the SDK gave them at one time."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Scope:
    """The region and the service for which a signature is valid."""

    region: str
    service: str


def sign(
    credentials: Credentials,
    scope: Scope,
    path: str,
    headers: Mapping[str, str],
    stamp: str,
    query: str = "",
) -> str:
    """Return the value of the header Authorization for a GET (AWS Signature Version 4).

    The signature is an HMAC of the digest of these lines, the "canonical request"::

        GET
        /path
        query
        header: value          one line for each signed header, sorted by name

        names of the headers   joined by ';'
        digest of the body

    Args:
        credentials: Keys to sign with.
        scope: Region and service.
        path: Path of the URL, escaped.
        headers: Headers to sign, by lower-case name.
        stamp: Time of the request, as in the header x-amz-date: "20260131T235959Z".
        query: Query of the URL, sorted and escaped.
    """
    names = sorted(headers)
    joined_names = ";".join(names)
    lines = "\n".join([f"{name}:{headers[name].strip()}" for name in names])
    request = f"GET\n{path}\n{query}\n{lines}\n\n{joined_names}\n{EMPTY_DIGEST}"
    day = stamp[:8]
    day_and_scope = f"{day}/{scope.region}/{scope.service}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"{_ALGORITHM}\n{stamp}\n{day_and_scope}\n{digest}"
    key = _signing_key(credentials.secret_key, day, scope)
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    return (
        f"{_ALGORITHM} Credential={credentials.access_key}/{day_and_scope}, "
        f"SignedHeaders={joined_names}, Signature={signature}"
    )


def timestamp(skew: float = 0.0) -> str:
    """Return the time for x-amz-date, ``skew`` seconds ahead of this machine's clock."""
    return _timestamp(int(time.time() + skew))


@functools.lru_cache(maxsize=4)
def _timestamp(second: int) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))


@functools.lru_cache(maxsize=16)
def _signing_key(secret: str, day: str, scope: Scope) -> bytes:
    """Return the key of a day's signatures: a chain of HMACs over day, region and service.

    ``day`` is written "20260131".
    """
    key = f"AWS4{secret}".encode()
    for part in (day, scope.region, scope.service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


# ------------------------------------------------------------------------------------------ listing

_FACT = re.compile(rb"<(Key|Size|ETag)>([^<]*)</")
_TOP = re.compile(rb"<(EncodingType|IsTruncated|NextContinuationToken)>([^<]*)</")
_ROOT = re.compile(rb"\s*(?:<\?xml[^>]*\?>)?\s*<ListBucketResult[\s>]")


class ListingPage(NamedTuple):
    """A page of a listing: some objects of a bucket, and the token with which to ask for the next.

    Keys are the whole names in the bucket, with the prefix of a store. The token of the last page
    is ''.
    """

    objects: list[ObjectInfo]
    next_token: str


def listing_query(prefix: str, next_token: str) -> str:
    """Return the query of a request for a page of objects whose names begin with ``prefix``.

    It is sorted and escaped as it is signed. ``next_token`` is the token with which the page before
    ended; '' for the first page.
    """
    parameters = {"encoding-type": "url", "list-type": "2", "prefix": prefix}
    if next_token:
        parameters["continuation-token"] = next_token
    return "&".join(
        [f"{name}={quote(parameters[name], safe='-_.~')}" for name in sorted(parameters)]
    )


def parse_listing(body: bytes) -> ListingPage | None:
    """Parse the XML of a page of a listing; return None if it has another form than Amazon's.

    A page is ``head <Contents> object </Contents> <Contents> object </Contents> last``, and it is
    cut at ``<Contents>``. ``head`` and ``last`` have the facts about the page, in any order. Other
    stores may escape names in other ways, so every deviation ends with None: the SDK parses better.
    """
    head, *parts = body.split(b"<Contents>")
    if not _ROOT.match(head):
        return None
    last = parts[-1].partition(b"</Contents>")[2] if parts else b""
    if not (last or head).rstrip().endswith(b"</ListBucketResult>"):
        return None
    page_facts = dict(_TOP.findall(head) + _TOP.findall(last))
    if page_facts.get(b"EncodingType") != b"url" and parts:
        return None
    is_truncated = page_facts.get(b"IsTruncated") == b"true"
    next_token = page_facts.get(b"NextContinuationToken")
    if is_truncated and not next_token:
        return None
    objects = []
    for part in parts:
        facts = dict(_FACT.findall(part))
        key, size = facts.get(b"Key"), facts.get(b"Size", b"")
        # Names are escaped as in a URL, so an entity of XML ("&amp;") is another form.
        if key is None or b"&" in key or not size.isdigit():
            return None
        version = facts.get(b"ETag", b"").replace(b"&quot;", b"").replace(b"&#34;", b"")
        name = unquote_plus(key.decode("utf-8", "replace"))
        objects.append(ObjectInfo(name, int(size), version.decode("utf-8", "replace").strip('"')))
    following = (next_token or b"").decode("utf-8", "replace") if is_truncated else ""
    return ListingPage(objects, following.replace("&amp;", "&"))
