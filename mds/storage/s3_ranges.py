"""GETs and listings of S3, signed and sent without the SDK.

Endpoints, regions and ways of addressing come from the SDK, by one example request per bucket
(`s3_client.find_template`). Credentials come from its provider at each request, so they are
renewed. All other answers than the requested bytes, a request to come back later (408, 429, 5xx)
and a refusal of a whole object are left to the SDK, which sends the request again and judges:
redirects to another region, missing keys of ranges, expired tokens.

The SDK took five sixths of the processor time of a small request; see docs/decisions/0017. Of a
page of a thousand objects it parses dates that are not used: 65 ms of processor time, 3 here. A
page in another form than Amazon's is left to the SDK.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote_plus, urlsplit

from mds.storage.base import ObjectInfo
from mds.storage.http_client import find_proxy, split_login
from mds.storage.keep_alive import Answer, Connections, Host
from mds.storage.s3_client import RequestTemplate, find_template
from mds.storage.sigv4 import EMPTY_DIGEST, sign, timestamp

if TYPE_CHECKING:
    import ssl

    from mds.storage.pace import LeastRate
    from mds.storage.s3_client import S3Client

_TRY_LATER = {408, 429, 500, 502, 503, 504}
#: Refusals of a whole object that the SDK need not confirm. A missing object is common: files
#: beside an index are requested, and are optional.
_REFUSALS = {(404, "NoSuchKey"), (404, "NoSuchBucket"), (403, "AccessDenied")}
_CHECKS = "when_supported"
#: Bytes of a page of a listing: a thousand names of 1,024 bytes, each escaped, and their facts.
_LONGEST_PAGE = 16 << 20
_WORD = re.compile(r"<(Code|Message)>([^<]*)</")


class StoreAnswerError(Exception):
    """An answer that says to come again later, before it is judged."""

    def __init__(self, status: int, code: str, message: str, retry_after: str | None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message = status, code, message
        self.retry_after = retry_after


class RangeRequests:
    """GETs of one bucket, by any thread of a process."""

    def __init__(
        self, template: RequestTemplate, connections: Connections, client: S3Client
    ) -> None:
        self._template = template
        self._connections = connections
        self._client = client
        self._skew = 0.0
        #: Whether the SDK checks no sum of a whole object, so that none is lost by going around it.
        self.are_unchecked = client.client.meta.config.response_checksum_validation != _CHECKS
        #: Whether all answers had a length so far. Those without one are left to the SDK.
        self.have_lengths = True
        extra = f"User-Agent: {template.agent}\r\n" if template.agent else ""
        self._tail = f"{extra}Accept-Encoding: identity\r\n\r\n"

    def ask(self, name: str, span: str | None) -> Answer | None:
        """Request an object, or the ``span`` of it in a Range header, and return the answer.

        None where the SDK must be asked. Raises what sockets raise, and StoreAnswerError where the
        store asks for patience or has no such whole object.
        """
        if not self.have_lengths:
            return None
        answer = self._ask(self._template.path + quote(name, safe="/~"), span)
        if answer is not None and answer.length < 0:
            answer.close()
            self.have_lengths = False
            return None
        return answer

    def list(
        self, prefix: str, token: str, least_rate: LeastRate, safe_url: str
    ) -> ListingPage | None:
        """List a page of names that begin with ``prefix``; ``token`` continues another page.

        None where the SDK must be asked; raises as `ask` does.
        """
        path = self._template.path.rstrip("/") or "/"
        answer = self._ask(path, None, listing_query(prefix, token))
        body = None if answer is None else answer.whole(least_rate, safe_url, _LONGEST_PAGE)
        return None if body is None else parse_listing(body)

    def _ask(self, path: str, span: str | None, query: str = "") -> Answer | None:
        answer = self._connections.get(self._request(path, span, query))
        words: dict[str, str] = {}
        if answer.status == 403:
            words = _words_of(answer)
            if self._has_other_time(answer, words):
                answer, words = self._connections.get(self._request(path, span, query)), {}
        if answer.status in (200, 206):
            return answer
        if answer.status in _TRY_LATER or (answer.status in (403, 404) and span is None):
            words = words or _words_of(answer)
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
            # Added last: a signature does not cover itself.
            signed = sign(credentials, template.scope, path, headers, stamp, query)
            headers["authorization"] = signed
        target = f"{path}?{query}" if query else path
        lines = "".join([f"{key}: {value}\r\n" for key, value in headers.items()])
        return f"GET {target} HTTP/1.1\r\n{lines}{self._tail}".encode("latin-1")

    def _has_other_time(self, answer: Answer, words: Mapping[str, str]) -> bool:
        """Whether the store's clock differs; its time is used from then on. True at most once."""
        if self._skew or words.get("Code") != "RequestTimeTooSkewed":
            return False
        try:
            theirs = parsedate_to_datetime(answer.headers.get("date", "")).timestamp()
        except (TypeError, ValueError):
            return False
        self._skew = theirs - time.time()
        return True


def open_range_requests(
    client: S3Client, bucket: str, extra: Mapping[str, str], seconds: float
) -> RangeRequests | None:
    """Prepare GETs of a bucket; return None for what only the SDK can do.

    Raises what the SDK raises: credentials that are not there, names that no bucket has.
    """
    if bucket.endswith("--x-s3"):  # directory buckets, whose credentials are a session's
        return None
    template = find_template(client.client, bucket, extra)
    if template is None:
        return None
    place = urlsplit(f"{template.scheme}://{template.host}")
    proxy, tunnel = find_proxy(f"{template.scheme}://{template.host}/"), None
    if proxy:
        address, login = split_login(proxy)
        via = urlsplit(address)
        if template.scheme != "https" or via.scheme != "http" or via.hostname is None:
            return None
        tunnel = (via.hostname, via.port or 80, login or {})
    is_secure = template.scheme == "https"
    host = Host(
        place.hostname or "",
        place.port or (443 if is_secure else 80),
        seconds,
        _context(client.verify) if is_secure else None,
        tunnel,
    )
    return RangeRequests(template, Connections(host), client)


def _words_of(answer: Answer) -> dict[str, str]:
    return dict(_WORD.findall(answer.read_error().decode("utf-8", "replace")))


def _context(verify: bool | str) -> ssl.SSLContext:
    import ssl

    from botocore.httpsession import get_cert_path

    if not verify:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    return ssl.create_default_context(cafile=get_cert_path(verify))


_FACT = re.compile(rb"<(Key|Size|ETag)>([^<]*)</")
_TOP = re.compile(rb"<(EncodingType|IsTruncated|NextContinuationToken)>([^<]*)</")
_ROOT = re.compile(rb"\s*(?:<\?xml[^>]*\?>)?\s*<ListBucketResult[\s>]")


class ListingPage(NamedTuple):
    """Some objects of a bucket, by whole names, and the token of the next page, or ''."""

    objects: list[ObjectInfo]
    next_token: str


def listing_query(prefix: str, next_token: str) -> str:
    """Return the query that asks for a page, in the form in which it is signed."""
    parameters = {"encoding-type": "url", "list-type": "2", "prefix": prefix}
    if next_token:
        parameters["continuation-token"] = next_token
    return "&".join(
        [f"{name}={quote(parameters[name], safe='-_.~')}" for name in sorted(parameters)]
    )


def parse_listing(body: bytes) -> ListingPage | None:
    """Parse a page of a listing; return None if it has another form."""
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
        if key is None or b"&" in key or not size.isdigit():
            return None
        version = facts.get(b"ETag", b"").replace(b"&quot;", b"").replace(b"&#34;", b"")
        name = unquote_plus(key.decode("utf-8", "replace"))
        objects.append(ObjectInfo(name, int(size), version.decode("utf-8", "replace").strip('"')))
    following = (next_token or b"").decode("utf-8", "replace") if is_truncated else ""
    return ListingPage(objects, following.replace("&amp;", "&"))
