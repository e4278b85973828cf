"""Any web server: http:// and https:// URLs, signed ones too.

Reading needs nothing but GET, and ranges where they are asked for. Writing is a plain PUT, as
WebDAV and signed upload URLs take it. HTTP has no way to list. A query in the URL (a signature) is
sent with every object, user and password in it as basic authentication.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO
from urllib.parse import quote, urlunsplit

from mds.errors import ConfigError, StoreError
from mds.redaction import remember_secrets
from mds.storage.base import Body, ObjectInfo, Store, check_key
from mds.storage.http_client import HttpClient, by_status, empty_body, encode_login, parse_info
from mds.storage.options import parse_options
from mds.storage.translate import translate_errors
from mds.storage.url import parse_url, redact


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """``headers``: sent with every request. ``verify``: False, or a file of certificates."""

    headers: Any = field(default=(), repr=False)
    verify: bool | str = True

    def __post_init__(self) -> None:
        try:
            pairs = tuple(sorted(dict(self.headers).items()))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"headers= of a http URL is a mapping of names to values, got "
                f"{type(self.headers).__name__}."
            ) from error
        object.__setattr__(self, "headers", pairs)


class HttpStore(Store):
    """Objects below a http(s) URL."""

    can_list = False

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        place = parse_url(url)
        if not place.hostname:
            raise ConfigError(f"{redact(url)!r} names no host.")
        settings = parse_options(HttpOptions, options, place.scheme)
        self.url = url
        self._http = HttpClient(timeout, settings.verify)
        self._headers = dict(settings.headers)
        remember_secrets(self._headers)
        if place.user is not None:
            self._headers.setdefault("Authorization", encode_login(place.user, place.password))
        self._base = (place.scheme, place.host.rpartition("@")[2], place.path, place.query)

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the object or a range; a server without ranges is read up to its end."""
        safe_url = self.url_of(key)
        if end is not None and end <= start:
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
        """Size and etag or time of change."""
        with translate_errors("head", self.url_of(key), by_status):
            headers = {"Accept-Encoding": "identity", **self._headers}
            response = self._http.request(
                "HEAD", self._target(key), headers=headers, also=(405, 501)
            )
            response.close()
            if response.status in (405, 501):
                # Signed URLs are often good for GET alone.
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
        """Remove the object by DELETE."""
        with translate_errors("delete", self.url_of(key), by_status):
            self._http.request(
                "DELETE", self._target(key), headers=self._headers, also=(404, 410)
            ).close()

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        headers = {**self._headers, "Content-Length": str(size)}
        with translate_errors("put", self.url_of(key), by_status):
            body = file if size else b""
            self._http.call("PUT", self._target(key), headers=headers, body=body)

    def _target(self, key: str) -> str:
        scheme, host, path, query = self._base
        if key:
            path = f"{path}/{quote(check_key(key))}" if path else quote(check_key(key))
        return urlunsplit((scheme, host, f"/{path}", query, ""))
