"""HTTP as object stores speak it: ranges asked for and their answers checked.

Used by every provider whose bytes come over plain HTTP requests. A range must be answered with
exactly that range; a server that answers with the whole object (200) is cut to it. The read
timeout of the sockets is what notices a stall: so many seconds without a single byte.
"""

from __future__ import annotations

import base64
import functools
import itertools
import os
import re
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urljoin

from mds.errors import CorruptError, MdsError, StoreError, TransientError
from mds.process.fork_safe import per_process
from mds.redaction import remember_secret
from mds.storage.base import Body, ObjectInfo
from mds.storage.pace import LeastRate, PacedStream, bounded_pools
from mds.storage.translate import Classify, Failure, fit_cause, status_failure, translate
from mds.storage.url import parse_url, redact, scheme_of

if TYPE_CHECKING:
    import urllib3

_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]+|\*)")
_LONGEST = 18  # digits of a size; no object has an exabyte
# Headers that may follow a redirect to another host.
_HARMLESS = {"accept", "accept-encoding", "content-length", "content-type", "range"}
_PROXY_NAMES = [
    name
    for scheme in ("http", "https", "all", "no")
    for name in (f"{scheme}_proxy", f"{scheme}_PROXY".upper())
]
_MAX_SHOWN = 200  # characters of a server's words in an error
# The most connections kept open to one host, and the most that a store of a process uses.
_CONNECTIONS = 64


class StatusError(Exception):
    """An answer that is an error, before it is judged."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str]) -> None:
        super().__init__(f"{status} {reason}")
        self.status, self.reason, self.headers = status, reason, headers


def by_status(error: Exception) -> Failure | None:
    """Judge an answer by its status; the rest is network trouble."""
    if isinstance(error, StatusError):
        return status_failure(error.status, error.reason, error.headers.get("retry-after"))
    return None


class HttpClient:
    """Requests to HTTP servers over the connections of this process."""

    def __init__(
        self, timeout: float, verify: bool | str = True, classify: Classify | None = None
    ) -> None:
        self._timeout = timeout
        self._verify = verify
        self._classify = classify or by_status

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | BinaryIO | Iterable[bytes] | None = None,
        redirect: bool = True,
        also: tuple[int, ...] = (),
    ) -> urllib3.BaseHTTPResponse:
        """Return an answer with its body unread. Raises StatusError from status 400 on.

        Statuses in ``also`` are answers too.
        """
        request_headers = dict(headers or {})
        response = self._pool(url).request(
            method,
            url,
            headers=request_headers,
            body=body,
            redirect=redirect,
            **_one_try(request_headers),
        )
        is_error = response.status >= 400 or response.status == 304
        if is_error and response.status not in also:
            raise _status_error(response)
        return response

    def call(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | BinaryIO | Iterable[bytes] | None = None,
    ) -> tuple[Mapping[str, str], bytes]:
        """Headers and whole body of an answer."""
        response = self.request(method, url, headers=headers, body=body)
        try:
            return response.headers, response.read(decode_content=True)
        finally:
            response.close()

    def stream(
        self,
        url: str,
        key: str,
        start: int,
        end: int | None,
        *,
        safe_url: str,
        min_rate: float,
        headers: Mapping[str, str] | None = None,
    ) -> Body:
        """Stream an object or a range of it; ``safe_url`` is its URL in errors."""
        request_headers = {"Accept-Encoding": "identity", **(headers or {})}
        if start or end is not None:
            request_headers["Range"] = format_range(start, end)
        started = time.monotonic()
        try:
            response = self._pool(url).request(
                "GET", url, headers=request_headers, **_one_try(request_headers)
            )
            if response.status not in (200, 203, 206, 416):
                raise _status_error(response)  # noqa: TRY301 - judged like what urllib3 raises
        except MdsError:
            raise
        except Exception as error:  # noqa: BLE001 - all of it is translated
            seconds = time.monotonic() - started
            failure = translate(error, "get", safe_url, seconds, self._classify)
            raise failure from fit_cause(error, failure)
        try:
            return make_body(
                response, key, start, end, safe_url, LeastRate(min_rate, self._timeout)
            )
        except BaseException:
            response.close()
            raise

    def _pool(self, url: str) -> urllib3.PoolManager:
        proxy = find_proxy(url)
        return per_process(
            ("http", self._timeout, self._verify, proxy), lambda: self._make_pool(proxy)
        )

    def _make_pool(self, proxy: str | None) -> urllib3.PoolManager:
        import urllib3

        settings: dict[str, Any] = {
            "maxsize": _CONNECTIONS,
            "num_pools": 32,
            "timeout": urllib3.Timeout(connect=self._timeout, read=self._timeout),
            "cert_reqs": "CERT_REQUIRED" if self._verify else "CERT_NONE",
            "ca_certs": self._verify if isinstance(self._verify, str) else None,
        }
        if proxy:
            address, login = split_login(proxy)
            pool: urllib3.PoolManager = urllib3.ProxyManager(
                address, proxy_headers=login, **settings
            )
        else:
            pool = urllib3.PoolManager(**settings)
        pool.pool_classes_by_scheme = bounded_pools(self._timeout)
        return pool


def _one_try(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return arguments that let urllib3 try once; `Retrying` does the rest."""
    # Credentials stay on the host, scheme and port that they are meant for.
    secret = [name for name in headers if name.lower() not in _HARMLESS]
    retries = _retry_kind()(
        None,
        connect=0,
        read=0,
        status=0,
        other=0,
        redirect=8,
        remove_headers_on_redirect=secret,
    )
    return {"preload_content": False, "decode_content": False, "retries": retries}


def _status_error(response: urllib3.BaseHTTPResponse) -> StatusError:
    text = response.read(2000, decode_content=True).decode("utf-8", "replace")
    response.close()
    return StatusError(response.status, _first_words(text), response.headers)


@functools.cache
def _retry_kind() -> type[urllib3.Retry]:
    """urllib3's rule for redirects, but for those that give up encryption."""
    import urllib3

    class Redirects(urllib3.Retry):
        def increment(
            self,
            method: str | None = None,
            url: str | None = None,
            response: urllib3.BaseHTTPResponse | None = None,
            *args: Any,
            **options: Any,
        ) -> Redirects:
            target = response.get_redirect_location() if response is not None else None
            if response is not None and url and target:
                try:
                    check_redirect(response.status, url, urljoin(url, target))
                except StatusError:
                    response.close()
                    raise
            return super().increment(method, url, response, *args, **options)

    return Redirects


def check_redirect(status: int, url: str, target: str) -> None:
    """Raise StatusError for a redirect from https to http, which anyone on the way may change."""
    if scheme_of(url) == "https" != scheme_of(target):
        reason = f"the server redirects from https to {redact(target)}, which is not encrypted"
        raise StatusError(status, reason, {})


def format_range(start: int, end: int | None) -> str:
    """Return the value of a Range header for a half-open range."""
    return f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"


def encode_login(user: str, password: str | None) -> str:
    """Return the value of an Authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()


def parse_info(key: str, headers: Mapping[str, str], safe_url: str) -> ObjectInfo:
    """Return the size and the version that the headers of a whole answer state."""
    size = parse_size(headers.get("content-length", ""), safe_url)
    return ObjectInfo(key, size, parse_etag(headers.get("etag") or headers.get("last-modified")))


def parse_etag(text: str | None) -> str:
    """Return an etag without its quotes and without the mark of a weak one.

    Servers call the etag of one file weak or strong depending on what stands between.
    """
    return (text or "").removeprefix("W/").strip('"')


def parse_size(text: str, safe_url: str) -> int:
    """Parse the number of bytes in a header; -1 if there is none. Raises StoreError."""
    if not (text.isascii() and text.isdecimal()):
        return -1
    if len(text) > _LONGEST:
        raise StoreError(
            f"get {safe_url}: the server says that the object has a size of {len(text)} digits",
            url=safe_url,
            verb="get",
        )
    return int(text)


def empty_body(info: ObjectInfo, safe_url: str) -> Body:
    """Return the body of an empty range."""
    return Body(info, iter(()), 0, url=safe_url)


def make_body(
    response: urllib3.BaseHTTPResponse,
    key: str,
    start: int,
    end: int | None,
    safe_url: str,
    least_rate: LeastRate,
) -> Body:
    """Return the body of an answer, which must be that of the requested range."""
    info = parse_info(key, response.headers, safe_url)
    length: int | None
    check_encoding(key, response.headers, safe_url)
    chunks = PacedStream(response, least_rate, safe_url).chunks()
    if is_page(key, response.headers):
        chunks = _refuse_page(chunks, safe_url)
    if response.status == 206:
        total, length = _check_answer(
            response.headers.get("content-range", ""), start, end, safe_url
        )
        info = ObjectInfo(key, total, info.version)
    elif response.status == 416:
        total_text = response.headers.get("content-range", "").rpartition("/")[2]
        raise CorruptError(
            f"get {safe_url}: bytes {start} to {'the end' if end is None else end} were asked for, "
            f"the object has {total_text[:_LONGEST] or 'fewer'}",
            url=safe_url,
            verb="get",
        )
    else:
        # The whole object, asked for or not.
        if info.size >= 0 and max(start, end or 0) > info.size:
            raise CorruptError(
                f"get {safe_url}: bytes {start} to {'the end' if end is None else end} were asked "
                f"for, the object has {info.size}",
                url=safe_url,
                verb="get",
            )
        length = end - start if end is not None else info.size - start if info.size >= 0 else None
        if start or end is not None:
            chunks = cut_range(chunks, start, end)
    body = Body(info, chunks, length, url=safe_url, close=response.close)
    body.headers = response.headers
    return body


def check_encoding(key: str, headers: Mapping[str, str], safe_url: str) -> None:
    """Raise StoreError for an answer that a server has compressed.

    Sizes, ranges and digests are of other bytes then. A file that is compressed itself may be
    called so.
    """
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in _ENCODINGS and not key.lower().endswith(_ENCODINGS[encoding]):
        raise StoreError(
            f"get {safe_url}: the server sends the object with Content-Encoding: {encoding}, "
            "though it was asked for as it is. Turn off the compression of answers for these "
            "files.",
            url=safe_url,
            verb="get",
        )


_ENCODINGS = {
    "gzip": (".gz", ".tgz"),
    "x-gzip": (".gz", ".tgz"),
    "deflate": (".zz",),
    "br": (".br",),
    "zstd": (".zst", ".zstd"),
}


def is_page(key: str, headers: Mapping[str, str]) -> bool:
    """Whether an answer says that it is a web page, though no page was asked for."""
    kind = headers.get("content-type", "").strip().lower()
    return kind.startswith("text/html") and not key.lower().endswith((".html", ".htm"))


def _refuse_page(chunks: Iterator[bytes], safe_url: str) -> Iterator[bytes]:
    """Return the chunks. Raises StoreError if the first one begins a web page.

    Some servers call everything a page, so the bytes decide.
    """
    first = next(chunks, b"")
    if first.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html", b"<head")):
        raise StoreError(
            f"get {safe_url}: the server answered with a web page and not with the object. Does it "
            "want a login? Check the URL, and give credentials (storage_options=).",
            url=safe_url,
            verb="get",
        )
    return itertools.chain((first,), chunks)


def cut_range(chunks: Iterator[bytes], start: int, end: int | None) -> Iterator[bytes]:
    """Cut the bytes from ``start`` to before ``end`` out of chunks."""
    offset = 0
    for chunk in chunks:
        piece = chunk[max(0, start - offset) : None if end is None else max(0, end - offset)]
        offset += len(chunk)
        if piece:
            yield piece
        if end is not None and offset >= end:
            return


def _check_answer(answer: str, start: int, end: int | None, safe_url: str) -> tuple[int, int]:
    """Size of the object and number of bytes that a 206 brings; it must be the range asked for."""
    match = _RANGE.match(answer)
    total = parse_size(answer.rpartition("/")[2], safe_url)
    if total >= 0 and max(start, end or 0) > total:
        raise CorruptError(
            f"get {safe_url}: bytes {start} to {end} were asked for, the object has {total}",
            url=safe_url,
            verb="get",
        )
    last = int(match[2]) + 1 if match else -1
    if not match or int(match[1]) != start or last != (end or (total if total >= 0 else last)):
        raise TransientError(
            f"get {safe_url}: bytes {start} to {'the end' if end is None else end} were asked for, "
            f"the server answered with {answer[:_MAX_SHOWN] or 'no Content-Range'!r}",
            url=safe_url,
            verb="get",
        )
    return total, last - start


def _first_words(body: str) -> str:
    """Return the first words of an error's body, without markup."""
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())[:_MAX_SHOWN]


def find_proxy(url: str) -> str | None:
    """Return the proxy that the environment names for a URL."""
    scheme, _, address = url.partition("://")
    host = address.partition("/")[0].rpartition("@")[2]
    return _proxy_for(scheme, host, tuple(map(os.environ.get, _PROXY_NAMES)))


@functools.lru_cache(maxsize=256)
def _proxy_for(scheme: str, host: str, _: tuple[str | None, ...]) -> str | None:
    # All variables are looked through for it, which took 40 us where there were 35 of them; so the
    # answer is kept for as long as those that matter stay the same.
    proxies = urllib.request.getproxies()
    if not proxies or urllib.request.proxy_bypass(host):
        return None
    return proxies.get(scheme) or proxies.get("all")


def split_login(proxy: str) -> tuple[str, dict[str, str] | None]:
    """Address of a proxy, and the header of authentication, if its URL holds a login."""
    place = parse_url(proxy if "://" in proxy else f"http://{proxy}")
    address = f"{place.scheme}://{place.host.rpartition('@')[2]}"
    if place.user is None:
        return address, None
    login = encode_login(place.user, place.password)
    remember_secret(login)
    return address, {"Proxy-Authorization": login}
