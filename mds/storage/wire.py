"""HTTP as object stores speak it: ranges asked for and their answers checked.

Used by every provider whose bytes come over plain HTTP requests. A range must be answered with
exactly that range; a server that answers with the whole object (200) is cut to it. The read
timeout of the sockets is what notices a stall: so many seconds without a single byte.
"""

from __future__ import annotations

import base64
import re
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from mds.errors import CorruptError, TransientError
from mds.storage.base import CHUNK, Body, ObjectInfo
from mds.storage.failure import Classify, Failure, border, guarded, status_failure
from mds.storage.process import per_process

if TYPE_CHECKING:
    import urllib3

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
# Most connections kept open to one host; as many as any store of a process uses at a time.
_CONNECTIONS = 64


class StatusError(Exception):
    """An answer that is an error, before it is judged."""

    def __init__(self, status: int, what: str, headers: Mapping[str, str]) -> None:
        super().__init__(f"{status} {what}")
        self.status, self.what, self.headers = status, what, headers


def by_status(error: Exception) -> Failure | None:
    """Judge an answer by its status; the rest is network trouble."""
    if isinstance(error, StatusError):
        return status_failure(error.status, error.what, error.headers.get("retry-after"))
    return None


class Wire:
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
        """An answer whose body is still to be read. Raises StatusError from status 400 on.

        Statuses in ``also`` are answers too.
        """
        import urllib3

        response = self._pool(url).request(
            method,
            url,
            headers=dict(headers or {}),
            body=body,
            preload_content=False,
            decode_content=False,
            redirect=redirect,
            # One try: trying again is the business of the wrapper around the store.
            retries=urllib3.Retry(None, connect=0, read=0, status=0, other=0, redirect=8),
        )
        if response.status >= 400 and response.status not in also:
            what = response.read(2000, decode_content=True).decode("utf-8", "replace")
            response.close()
            raise StatusError(response.status, _said(what), response.headers)
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
        shown: str,
        headers: Mapping[str, str] | None = None,
    ) -> Body:
        """An object or a range of it; ``shown`` is its URL in errors."""
        asked = {"Accept-Encoding": "identity", **(headers or {})}
        if start or end is not None:
            asked["Range"] = byte_range(start, end)
        with border("get", shown, self._classify):
            response = self.request("GET", url, headers=asked, also=(416,))
        try:
            return _body(response, key, start, end, shown)
        except BaseException:
            response.close()
            raise

    def _pool(self, url: str) -> urllib3.PoolManager:
        proxy = _proxy(url)
        return per_process(
            ("wire", self._timeout, self._verify, proxy), lambda: self._make_pool(proxy)
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
            return urllib3.ProxyManager(proxy, **settings)
        return urllib3.PoolManager(**settings)


def byte_range(start: int, end: int | None) -> str:
    """The value of a Range header for a half-open range."""
    return f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"


def basic_auth(user: str, password: str | None) -> str:
    """The value of an Authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()


def info_of(key: str, headers: Mapping[str, str]) -> ObjectInfo:
    """Size and version as the headers of a whole answer tell them."""
    size = headers.get("content-length", "")
    version = headers.get("etag") or headers.get("last-modified") or ""
    return ObjectInfo(key, int(size) if size.isdecimal() else -1, version.strip('"'))


def empty_body(info: ObjectInfo, shown: str) -> Body:
    """The body of an empty range."""
    return Body(info, iter(()), 0, url=shown)


def _body(
    response: urllib3.BaseHTTPResponse, key: str, start: int, end: int | None, shown: str
) -> Body:
    info = info_of(key, response.headers)
    length: int | None
    chunks = response.stream(CHUNK, decode_content=False)
    if response.status == 206:
        total, length = _check_answer(response.headers.get("content-range", ""), start, end, shown)
        info = ObjectInfo(key, total, info.version)
    elif response.status == 416:
        total_text = response.headers.get("content-range", "").rpartition("/")[2]
        raise CorruptError(
            f"get {shown}: bytes {start} to {'the end' if end is None else end} were asked for, "
            f"the object has {total_text or 'fewer'}",
            url=shown,
            verb="get",
        )
    else:
        # The whole object, asked for or not.
        if info.size >= 0 and max(start, end or 0) > info.size:
            raise CorruptError(
                f"get {shown}: bytes {start} to {'the end' if end is None else end} were asked "
                f"for, the object has {info.size}",
                url=shown,
                verb="get",
            )
        length = end - start if end is not None else info.size - start if info.size >= 0 else None
        if start or end is not None:
            chunks = cut(chunks, start, end)
    chunks = guarded(chunks, shown)
    body = Body(info, chunks, length, url=shown, close=response.close)
    body.headers = response.headers
    return body


def cut(chunks: Iterator[bytes], start: int, end: int | None) -> Iterator[bytes]:
    """The bytes from ``start`` to before ``end`` of what comes."""
    at = 0
    for chunk in chunks:
        piece = chunk[max(0, start - at) : None if end is None else max(0, end - at)]
        at += len(chunk)
        if piece:
            yield piece
        if end is not None and at >= end:
            return


def _check_answer(answer: str, start: int, end: int | None, shown: str) -> tuple[int, int]:
    """Size of the object and number of bytes that a 206 brings; it must be the range asked for."""
    found = _RANGE.match(answer)
    size = answer.rpartition("/")[2]
    total = int(size) if size.isdecimal() else -1
    if total >= 0 and max(start, end or 0) > total:
        raise CorruptError(
            f"get {shown}: bytes {start} to {end} were asked for, the object has {total}",
            url=shown,
            verb="get",
        )
    last = int(found[2]) + 1 if found else -1
    if not found or int(found[1]) != start or last != (end or (total if total >= 0 else last)):
        raise TransientError(
            f"get {shown}: bytes {start} to {'the end' if end is None else end} were asked for, "
            f"the server answered with {answer or 'no Content-Range'!r}",
            url=shown,
            verb="get",
        )
    return total, last - start


def _said(body: str) -> str:
    """The sentence in an error's body: the first of its words, without markup."""
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())[:200]


def _proxy(url: str) -> str | None:
    """The proxy that the environment names for a URL."""
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0].rpartition("@")[2]
    proxies = urllib.request.getproxies()
    if not proxies or urllib.request.proxy_bypass(host):
        return None
    return proxies.get(scheme) or proxies.get("all")
