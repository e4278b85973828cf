"""URLs of datasets, taken apart once.

A URL is a plain path, or a scheme and what the scheme makes of the rest. Objects below it are
named by keys: relative, with '/', never climbing out. A query (a signed URL) belongs to every
object, so keys are put in front of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

from mds.errors import ConfigError

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):")
_QUERY_SCHEMES = {"http", "https"}


@dataclass(frozen=True, slots=True)
class Location:
    """A URL in parts; ``path`` is without the slashes at its ends, ``scheme`` '' for a path."""

    url: str
    scheme: str
    host: str
    path: str
    query: str = ""
    user: str | None = None
    password: str | None = None
    hostname: str = ""
    port: int | None = None


def parse_url(url: str) -> Location:
    """Take a URL apart. Raises ConfigError when it is not one."""
    scheme = scheme_of(url)
    if not scheme:
        return Location(url, "", "", url)
    if scheme == "dbfs" or scheme not in _QUERY_SCHEMES:
        # A '?' or '#' is an ordinary character of an object's name everywhere but in http.
        rest = url.split(":", 1)[1]
        host, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
        query = ""
    else:
        parts = urlsplit(url)
        host, path, query = parts.netloc, parts.path, parts.query
    if scheme == "oci" or "@" not in host:
        user = password = None
        address = host
    else:
        login, _, address = host.rpartition("@")
        name, colon, secret = login.partition(":")
        user, password = unquote(name), unquote(secret) if colon else None
    hostname, port = _address(url, address)
    return Location(url, scheme, host, path.strip("/"), query, user, password, hostname, port)


def scheme_of(url: str) -> str:
    """The scheme of a URL in lower case; '' for a plain path."""
    found = _SCHEME.match(url)
    # One letter is a drive, and 'a:b' without slashes is a file's name, but for dbfs:/.
    if found is None or not url[found.end() :].startswith("/"):
        return ""
    scheme = found[1].lower()
    return scheme if url[found.end() :].startswith("//") or scheme in ("dbfs", "file") else ""


def is_local(url: str) -> bool:
    """Whether a URL is a plain path or file://, so that its data can be read in place."""
    return scheme_of(url) in ("", "file")


def local_path(url: str) -> str:
    """The path of a plain path or file:// URL. Raises ConfigError for a file on another host."""
    if scheme_of(url) == "":
        return url
    rest = url.split(":", 1)[1]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise ConfigError(
                f"{url!r} is a file on the host {host!r}. Write file:/// and the absolute path."
            )
        rest = slash + path
    return unquote(rest)


def join(url: str, key: str) -> str:
    """The URL of an object below a URL.

    >>> join("s3://bucket/train", "index.json")
    's3://bucket/train/index.json'
    >>> join("https://host/train?signature=x", "index.json")
    'https://host/train/index.json?signature=x'
    """
    if not key:
        return url
    query = ""
    if scheme_of(url) in _QUERY_SCHEMES and "?" in url:
        url, mark, rest = url.partition("?")
        query = mark + rest
    return f"{url.rstrip('/')}/{key}{query}" if url else key


def check_key(key: str) -> str:
    """The key itself. Raises ConfigError when it would leave the folder of its store."""
    parts = key.split("/")
    if key.startswith("/") or ".." in parts or "\0" in key:
        raise ConfigError(f"{key!r} is not the name of an object below a URL.")
    return key


def redact(url: str) -> str:
    """A URL without its password and without its query, which may hold a signature.

    >>> redact("sftp://anna:secret@host/data")
    'sftp://anna:***@host/data'
    """
    scheme = scheme_of(url)
    if not scheme:
        return url
    if scheme in _QUERY_SCHEMES:
        parts = urlsplit(url)
        url = urlunsplit((parts.scheme, parts.netloc, parts.path, "..." if parts.query else "", ""))
    return re.sub(r"^(\w[\w+.-]*://[^/@:]+):[^/@]+@", r"\1:***@", url)


def _address(url: str, address: str) -> tuple[str, int | None]:
    name, colon, digits = address.rpartition(":")
    if not colon or address.endswith("]"):
        return address.strip("[]"), None
    if not digits.isdecimal() or int(digits) > 65535:
        raise ConfigError(f"{redact(url)!r}: {digits!r} is not a port.")
    return name.strip("[]"), int(digits)
