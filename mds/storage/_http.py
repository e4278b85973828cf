"""HTTP: the store of web servers (http:// and https://), and the client of all HTTP providers.

`HttpStore` reads by GET, with Range headers for parts, and writes by a plain PUT, as WebDAV and
signed upload URLs accept it. HTTP has no listings. A query in the URL (a signature) is sent with
every object; user and password in the URL are sent as basic authentication.

`HttpClient` sends one request through urllib3 and checks its answer. A range must be answered with
exactly that range, or with the whole object (200), which is then cut. A stall is a TimeoutError of
the socket, which receives no byte for that long, or a rate below ``min_rate`` (`PacedStream`).
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
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote, urljoin, urlunsplit

from mds._process.fork_safe import per_process
from mds._redaction import remember_secret, remember_secrets
from mds.errors import ConfigError, CorruptError, MdsError, StoreError, TransientError
from mds.storage._base import (
    CHUNK,
    Body,
    LeastRate,
    ObjectInfo,
    Pace,
    Settings,
    Store,
    check_key,
    find_file,
    parse_options,
)
from mds.storage._translate import (
    Classify,
    Failure,
    fit_cause,
    status_failure,
    translate,
    translate_errors,
)
from mds.storage._url import parse_url, redact, scheme_of

if TYPE_CHECKING:
    import urllib3


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Headers and certificates.

    Attributes:
        headers: Mapping of names to values that are sent with every request; kept as sorted pairs.
        verify: Whether to check the server's certificate, or a file of trusted certificates.
    """

    headers: Any = field(default=(), repr=False)
    verify: bool | str = True

    def __post_init__(self) -> None:
        """Replace ``headers`` by sorted pairs, which are hashable. Raises ConfigError."""
        try:
            pairs = tuple(sorted(dict(self.headers).items()))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"headers= of a http URL must be a mapping of names to values, got "
                f"{type(self.headers).__name__}."
            ) from error
        object.__setattr__(self, "headers", pairs)


class HttpStore(Store):
    """Objects below a http(s) URL.

    Args:
        url: URL; its login becomes a header, and its query is sent with every object.
        options: Fields of `HttpOptions`.
        timeout: Seconds without a byte after which a request has stalled.
    """

    can_list = False
    settings = Settings(
        certificate="give the storage option verify=, a file with the certificates to trust",
        credentials="Give storage_options={'headers': {'Authorization': ...}}, or write "
        "https://user:password@host/.",
    )

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        place = parse_url(url)
        if not place.hostname:
            raise ConfigError(f"{redact(url)!r} names no host.")
        settings = parse_options(HttpOptions, options, place.scheme)
        self.url = url
        verify = settings.verify
        self._http = HttpClient(
            timeout, verify if isinstance(verify, bool) else find_file("verify", verify) or True
        )
        self._headers = dict(settings.headers)
        remember_secrets(self._headers)
        if place.user is not None:
            self._headers.setdefault("Authorization", encode_login(place.user, place.password))
        # Scheme, host without the login, path and query of the store's URL, for `_target`.
        self._base = (place.scheme, place.host.rpartition("@")[2], place.path, place.query)

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the object or a range; a server without ranges sends all bytes before its end."""
        safe_url = self.url_of(key)
        if end is not None and end <= start:  # HTTP has no empty range
            return empty_body(self.head(key), safe_url)
        return self._http.stream(
            self._target(key),
            key,
            start,
            end,
            safe_url=safe_url,
            min_rate=self.min_rate,
            headers=self._headers,
        )

    def head(self, key: str) -> ObjectInfo:
        """Return the size, and the etag or the time of change."""
        with translate_errors("head", self.url_of(key), by_status):
            headers = {"Accept-Encoding": "identity", **self._headers}
            response = self._http.request(
                "HEAD", self._target(key), headers=headers, also=(405, 501)
            )
            response.close()
            if response.status in (405, 501):
                # Signed URLs often allow GET only.
                response = self._http.request("GET", self._target(key), headers=headers)
                response.close()
            return parse_info(key, response.headers, self.url_of(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Refuse: HTTP has no listings."""
        raise StoreError(
            f"list {self.url_of(prefix)}: a web server does not list its files. Name the files, or "
            f"use the store's own scheme (s3://, gs://, ...).",
            url=self.url_of(prefix),
            verb="list",
        )

    def delete(self, key: str) -> None:
        """Delete the object, by the method DELETE; 404 and 410 say that it is missing already."""
        with translate_errors("delete", self.url_of(key), by_status):
            self._http.request(
                "DELETE", self._target(key), headers=self._headers, also=(404, 410)
            ).close()

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Upload an object by PUT; see `Store._write`."""
        headers = {**self._headers, "Content-Length": str(size)}
        with translate_errors("put", self.url_of(key), by_status):
            body = file if size else b""
            self._http.call("PUT", self._target(key), headers=headers, body=body)

    def _target(self, key: str) -> str:
        """Return the URL of an object as it is requested: without login, with the query."""
        scheme, host, path, query = self._base
        if key:
            path = f"{path}/{quote(check_key(key))}" if path else quote(check_key(key))
        return urlunsplit((scheme, host, f"/{path}", query, ""))


# ------------------------------------------------------------------------------------------- client

_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]+|\*)")
_MAX_DIGITS = 18  # of a size; no object has an exabyte
# Headers that may follow a redirect to another host.
_HARMLESS = {"accept", "accept-encoding", "content-length", "content-type", "range"}
_PROXY_NAMES = [
    name
    for scheme in ("http", "https", "all", "no")
    for name in (f"{scheme}_proxy", f"{scheme}_PROXY".upper())
]
_MAX_SHOWN = 200  # characters of a server's text in an error
# Most connections to one host that the process keeps open.
_CONNECTIONS = 64


class StatusError(Exception):
    """An answer with an error status. `translate_errors` turns it into a StoreError.

    ``reason`` are the first words of its body.
    """

    def __init__(self, status: int, reason: str, headers: Mapping[str, str]) -> None:
        super().__init__(f"{status} {reason}")
        self.status, self.reason, self.headers = status, reason, headers


def by_status(error: Exception) -> Failure | None:
    """Return the failure that the status of a StatusError means, or None for other errors."""
    if isinstance(error, StatusError):
        return status_failure(error.status, error.reason, error.headers.get("retry-after"))
    return None


class HttpClient:
    """Requests to HTTP servers over the connections of this process.

    Args:
        timeout: Seconds without a byte after which a request has stalled.
        verify: As in `HttpOptions`.
        classify: Function that returns the failure for an exception (default `by_status`).
    """

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
        """Send a request and return its answer, whose body is not read yet.

        Args:
            method: HTTP method.
            url: URL without login.
            headers: Headers of the request.
            body: Body of the request.
            redirect: Whether to follow redirects.
            also: Statuses of errors that are returned instead of raised.

        Raises StatusError for other statuses from 400 on, and for 304.
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
        """Send a request and return the headers and the whole body of its answer."""
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
        """Stream an object by GET, or its bytes from ``start`` to before ``end``.

        Args:
            url: URL to request.
            key: Key of the object in the body's facts.
            start: First byte.
            end: End of the bytes; None for the end of the object.
            safe_url: URL without secrets, for errors.
            min_rate: Bytes per second below which the transfer has stalled.
            headers: Headers of the request.

        Raises StoreErrors.
        """
        request_headers = {"Accept-Encoding": "identity", **(headers or {})}
        if start or end is not None:
            request_headers["Range"] = format_range(start, end)
        started = time.monotonic()
        try:
            response = self._pool(url).request(
                "GET", url, headers=request_headers, **_one_try(request_headers)
            )
            # 206: a range. 416: a range outside the object, for which `make_body` raises.
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
        """Return the connections of this process to a server or its proxy, with these settings."""
        proxy = find_proxy(url)
        return per_process(
            ("http", self._timeout, self._verify, proxy), lambda: self._make_pool(proxy)
        )

    def _make_pool(self, proxy: str | None) -> urllib3.PoolManager:
        """Return a new pool of connections; ``proxy`` is the URL of a proxy."""
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
        # urllib3 itself sets no limit on the time until all headers of an answer have arrived.
        pool.pool_classes_by_scheme = bounded_pools(self._timeout)
        return pool


def _one_try(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return arguments with which urllib3 makes one try and leaves the body unread and unchanged.

    ``headers`` are those of the request. The wrapper `Retrying` around a store repeats requests.
    """
    # A redirect to another host, scheme or port must not carry credentials. Any header may be one,
    # so all but those that are known to be harmless are removed.
    secret = [name for name in headers if name.lower() not in _HARMLESS]
    retries = _retry_kind()(
        None,  # no limit of its own on the sum of the following
        connect=0,
        read=0,
        status=0,
        other=0,
        redirect=8,
        remove_headers_on_redirect=secret,
    )
    return {"preload_content": False, "decode_content": False, "retries": retries}


def _status_error(response: urllib3.BaseHTTPResponse) -> StatusError:
    """Return the error for an answer, with the first words of its body; close the answer."""
    text = response.read(2000, decode_content=True).decode("utf-8", "replace")
    response.close()
    return StatusError(response.status, _first_words(text), response.headers)


@functools.cache
def _retry_kind() -> type[urllib3.Retry]:
    """Return a `urllib3.Retry` that refuses redirects from https to http.

    The class is made at the first call, so that `import mds` does not load urllib3.
    """
    import urllib3

    class Redirects(urllib3.Retry):
        """A `urllib3.Retry` that raises StatusError for a redirect from https to http."""

        # urllib3 calls this before it follows a redirect. The arguments equal those of its method.
        def increment(
            self,
            method: str | None = None,
            url: str | None = None,
            response: urllib3.BaseHTTPResponse | None = None,
            *args: Any,
            **options: Any,
        ) -> Redirects:
            # URL of the redirect, perhaps relative to `url`; None or False for other answers.
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
    """Raise StatusError for a redirect from https to http, which could be tampered with.

    ``status`` is the status of the answer that redirects from ``url`` to ``target``.
    """
    if scheme_of(url) == "https" and scheme_of(target) != "https":
        reason = f"the server redirects from https to {redact(target)}, which is not encrypted"
        raise StatusError(status, reason, {})


def format_range(start: int, end: int | None) -> str:
    """Return the value of a Range header for a half-open range."""
    return f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"


def encode_login(user: str, password: str | None) -> str:
    """Return the value of an Authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()


def parse_info(key: str, headers: Mapping[str, str], safe_url: str) -> ObjectInfo:
    """Return the size and the version of an object from the headers of a whole answer."""
    size = parse_size(headers.get("content-length", ""), safe_url)
    modified = headers.get("last-modified") or ""
    return ObjectInfo(key, size, parse_etag(headers.get("etag") or modified), modified)


def parse_etag(text: str | None) -> str:
    """Return an etag without its quotes and its prefix ``W/``.

    The same file may have a weak or a strong etag, depending on the proxies in between.
    """
    return (text or "").removeprefix("W/").strip('"')


def parse_size(text: str, safe_url: str) -> int:
    """Parse the number of bytes in a header; -1 if there is none. Raises StoreError."""
    if not (text.isascii() and text.isdecimal()):
        return -1
    if len(text) > _MAX_DIGITS:
        raise StoreError(
            f"get {safe_url}: the server reports a size of {len(text)} digits for the object",
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
    """Return the body of an answer to a request for bytes ``start`` to ``end`` of an object.

    Args:
        response: Answer, whose body is not read yet.
        key: Key of the object.
        start: First byte of the request.
        end: End of the request, exclusive; None for the end of the object.
        safe_url: URL in errors.
        least_rate: Rate at which the body must arrive.

    Raises CorruptError for a range outside the object, TransientError for another range, and
    StoreError for a compressed answer. A web page in place of the object is a StoreError too,
    raised when the first bytes are read.
    """
    info = parse_info(key, response.headers, safe_url)
    length: int | None
    check_encoding(key, response.headers, safe_url)
    chunks = PacedStream(response, least_rate, safe_url).chunks()
    if is_page(key, response.headers):
        chunks = _refuse_page(chunks, safe_url)
    if response.status == 206:
        total, length = _parse_content_range(
            response.headers.get("content-range", ""), start, end, safe_url
        )
        info = replace(info, size=total)
    elif response.status == 416:
        total_text = response.headers.get("content-range", "").rpartition("/")[2]
        raise CorruptError(
            f"get {safe_url}: bytes {start} to {'the end' if end is None else end} were requested, "
            f"but the object has {total_text[:_MAX_DIGITS] or 'fewer'} bytes",
            url=safe_url,
            verb="get",
        )
    else:
        # The server sent the whole object, whether or not a range was requested.
        if info.size >= 0 and max(start, end or 0) > info.size:
            raise CorruptError(
                f"get {safe_url}: bytes {start} to {'the end' if end is None else end} were "
                f"requested, but the object has {info.size} bytes",
                url=safe_url,
                verb="get",
            )
        remaining_bytes = info.size - start if info.size >= 0 else None
        length = remaining_bytes if end is None else end - start
        if start or end is not None:
            chunks = cut_range(chunks, start, end)
    body = Body(info, chunks, length, url=safe_url, close=response.close)
    body.headers = response.headers
    return body


def check_encoding(key: str, headers: Mapping[str, str], safe_url: str) -> None:
    """Raise StoreError for an answer that the server compressed.

    Its sizes, ranges and digests would be those of other bytes. An object that is a compressed file
    itself may have this header.
    """
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in _ENCODINGS and not key.lower().endswith(_ENCODINGS[encoding]):
        raise StoreError(
            f"get {safe_url}: the server compressed the object (Content-Encoding: {encoding}), "
            "which mds did not request. Turn off compression for these files on the server.",
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
    """Whether an answer says that it is a web page, though its key is not that of a page."""
    kind = headers.get("content-type", "").strip().lower()
    return kind.startswith("text/html") and not key.lower().endswith((".html", ".htm"))


def _refuse_page(chunks: Iterator[bytes], safe_url: str) -> Iterator[bytes]:
    """Return the chunks. Raises StoreError if the first one begins a web page.

    Some servers declare every file as a page, so the bytes decide.
    """
    first = next(chunks, b"")
    if first.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html", b"<head")):
        raise StoreError(
            f"get {safe_url}: the server answered with a web page instead of the object. Does it "
            "need a login? Check the URL, and give credentials (storage_options=).",
            url=safe_url,
            verb="get",
        )
    return itertools.chain((first,), chunks)


def cut_range(chunks: Iterator[bytes], start: int, end: int | None) -> Iterator[bytes]:
    """Yield the bytes from ``start`` to before ``end`` of a body in chunks."""
    offset = 0
    for chunk in chunks:
        piece = chunk[max(0, start - offset) : None if end is None else max(0, end - offset)]
        offset += len(chunk)
        if piece:
            yield piece
        if end is not None and offset >= end:
            return


def _parse_content_range(
    content_range: str, start: int, end: int | None, safe_url: str
) -> tuple[int, int]:
    """Return the size of the object (-1: unknown) and the number of bytes in an answer 206.

    Raises CorruptError and TransientError if it is not the requested range.
    """
    # Such as "bytes 0-99/1000": first byte, last byte, size of the object (or '*').
    match = _RANGE.match(content_range)
    total = parse_size(content_range.rpartition("/")[2], safe_url)
    if total >= 0 and max(start, end or 0) > total:
        raise CorruptError(
            f"get {safe_url}: bytes {start} to {end} were requested, but the object has {total} "
            "bytes",
            url=safe_url,
            verb="get",
        )
    actual_end = int(match[2]) + 1 if match else -1
    expected_end = end or (total if total >= 0 else actual_end)  # an unknown size fits any end
    if not match or int(match[1]) != start or actual_end != expected_end:
        raise TransientError(
            f"get {safe_url}: bytes {start} to {'the end' if end is None else end} were requested, "
            f"but the server sent {content_range[:_MAX_SHOWN] or 'no Content-Range'!r}",
            url=safe_url,
            verb="get",
        )
    return total, actual_end - start


def _first_words(body: str) -> str:
    """Return the first words of an error's body, without markup."""
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())[:_MAX_SHOWN]


def find_proxy(url: str) -> str | None:
    """Return the URL of the proxy that the environment names for a URL, or None."""
    scheme, _, address = url.partition("://")
    host = address.partition("/")[0].rpartition("@")[2]
    return _proxy_for(scheme, host, tuple(map(os.environ.get, _PROXY_NAMES)))


@functools.lru_cache(maxsize=256)
def _proxy_for(scheme: str, host: str, _: tuple[str | None, ...]) -> str | None:
    """Return the proxy for a host from the environment, as urllib finds it.

    urllib looks through all variables, which took 40 us with 35 of them, so its answer is cached.
    The last argument is a part of the cache's key: the values of the variables of proxies.
    """
    proxies = urllib.request.getproxies()
    if not proxies or urllib.request.proxy_bypass(host):
        return None
    return proxies.get(scheme) or proxies.get("all")


def split_login(proxy: str) -> tuple[str, dict[str, str] | None]:
    """Return the address of a proxy, and a header of authentication if its URL has a login."""
    place = parse_url(proxy if "://" in proxy else f"http://{proxy}")
    address = f"{place.scheme}://{place.host.rpartition('@')[2]}"
    if place.user is None:
        return address, None
    login = encode_login(place.user, place.password)
    remember_secret(login)
    return address, {"Proxy-Authorization": login}


# ------------------------------------------------------------------------- time limits of an answer

_PIECE = 128 << 10  # bytes; smaller pieces are joined


class PacedStream:
    """A response of urllib3 whose bytes must arrive at a least rate, else StalledError is raised.

    It is used in place of ``response``, in SDKs too, and all other attributes are those of
    ``response``. ``url`` is the URL in errors.

    Over loopback HTTP a mebibyte took 0.20 ms of CPU, and 0.15 ms when megabytes were read at once.
    """

    def __init__(self, response: Any, least_rate: LeastRate, url: str) -> None:
        self._response, self._url = response, url
        self._pace = Pace(least_rate, url)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)

    def read(self, amount: int | None = None, **_: Any) -> bytes:
        """Return ``amount`` bytes (None: all that remain), fewer at the end."""
        pieces, size = [], 0
        while amount is None or size < amount:
            piece = self.read1(CHUNK if amount is None else min(CHUNK, amount - size))
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read1(self, amount: int) -> bytes:
        """Receive once, up to ``amount`` bytes; return b'' at the end."""
        started = time.monotonic()
        piece: bytes = self._response.read1(amount, decode_content=False)
        self._pace.note(time.monotonic() - started, len(piece))
        return piece

    def chunks(self) -> Iterator[bytes]:
        """Yield all bytes in pieces of about `CHUNK`. Errors are translated to StoreErrors."""
        started = time.monotonic()
        try:
            while piece := self.read1(CHUNK):
                if len(piece) < _PIECE:  # join small pieces, each of which costs its consumers time
                    piece += self.read(_PIECE - len(piece))
                yield piece
        except MdsError:
            raise
        except Exception as error:  # noqa: BLE001 - all of it is translated
            seconds = time.monotonic() - started
            failure = translate(error, "get", self._url, seconds)
            raise failure from fit_cause(error, failure)


@functools.cache
def bounded_pools(seconds: float) -> dict[str, type[urllib3.HTTPConnectionPool]]:
    """Return urllib3's pool classes by scheme, with a time limit on the headers of an answer.

    All headers must arrive within ``seconds`` after their first byte, or TimeoutError is raised.
    The timeout of a socket cannot bound them, because it starts again with each byte.
    """
    import http.client

    import urllib3.connection

    class BoundedResponse(http.client.HTTPResponse):
        """An answer whose headers must all arrive within ``seconds`` after their first byte."""

        def begin(self) -> None:
            """Read the status and the headers, with the time limit.

            `http.client` reads them by ``readinto`` of its socket file. During this method that
            function is replaced by one that also looks at the clock.
            """
            socket_file: Any = self.fp.raw
            receive = socket_file.readinto
            deadline = float("inf")  # by `time.monotonic`; set when the first bytes arrive

            def receive_in_time(buffer: memoryview) -> Any:
                """Receive bytes into ``buffer`` and return their number, as ``readinto`` does.

                Raises TimeoutError if bytes of the headers arrive after the deadline.
                """
                nonlocal deadline
                count, now = receive(buffer), time.monotonic()
                if now > deadline:
                    raise TimeoutError(f"the headers were not complete after {seconds:g} s")
                deadline = min(deadline, now + seconds)  # only the first call changes it
                return count

            socket_file.readinto = receive_in_time
            try:
                super().begin()
            finally:
                del socket_file.readinto  # the method of its class is used again

    class BoundedConnection(urllib3.connection.HTTPConnection):
        response_class = BoundedResponse

    class BoundedSecureConnection(urllib3.connection.HTTPSConnection):
        response_class = BoundedResponse

    class BoundedPool(urllib3.HTTPConnectionPool):
        ConnectionCls = BoundedConnection

    class BoundedSecurePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = BoundedSecureConnection

    return {"http": BoundedPool, "https": BoundedSecurePool}
