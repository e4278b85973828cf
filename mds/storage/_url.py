"""URLs of datasets, taken apart once.

A URL is a plain path, or a scheme and a text whose form depends on the scheme. Objects below it are
named by keys: relative paths with '/' that stay below it. A query (as in a signed URL) belongs to
every object, so keys are inserted before it.

URLs may contain secrets. A `Url` shows itself without them, and `reveal` gives its full text.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from mds._redaction import mask_secrets, remember_secret, remember_secrets
from mds.errors import ConfigError, NotFoundError


class _Scheme(NamedTuple):
    """Facts about the URLs of a scheme.

    Attributes:
        has_query: Whether '?' begins a query, and '#' a fragment.
        is_plain: Whether '?' is an ordinary character of an object's name.
        has_login: Whether the text before '@' is a login, and not a container, bucket or revision.
        shows_user: Whether the user of a login is usually a person, and not a secret token.
        port: Default port with its colon, such as ":80"; '' if the host is a bucket, whose name may
            be case-sensitive.
    """

    has_query: bool = False
    is_plain: bool = False
    has_login: bool = True
    shows_user: bool = False
    port: str = ""


_UNKNOWN = _Scheme()
_BUCKET = _Scheme(is_plain=True)
_NO_LOGIN = _Scheme(is_plain=True, has_login=False)
_HOST = _Scheme(shows_user=True)
_SCHEMES = {
    "abfs": _NO_LOGIN,
    "abfss": _NO_LOGIN,
    "azure": _NO_LOGIN,
    "azure-dl": _NO_LOGIN,
    "dbfs": _NO_LOGIN,
    "file": _BUCKET,
    "ftp": _HOST,
    "ftps": _HOST,
    "gs": _BUCKET,
    "hdfs": _Scheme(is_plain=True, shows_user=True),
    "hf": _NO_LOGIN,
    "http": _Scheme(has_query=True, port=":80"),
    "https": _Scheme(has_query=True, port=":443"),
    "memory": _BUCKET,
    "oci": _NO_LOGIN,
    "s3": _BUCKET,
    "scp": _HOST,
    "sftp": _Scheme(shows_user=True, port=":22"),
    "smb": _HOST,
    "ssh": _HOST,
    "wasb": _NO_LOGIN,
    "wasbs": _NO_LOGIN,
}
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):")
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
_NO_SLASH = re.compile(r"(s3|gs|oci|hf|azure|azure-dl|https?|sftp):(?=[^/])", re.IGNORECASE)
_URL_IN_TEXT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)?(?<![\w/.])//[^\s'\"<>()]+")
_ONE_SLASH_IN_TEXT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)([^\s'\"<>()]+)")
_SHORTEST_SIGNATURE = 12  # characters; shorter values of a query are not taken for secrets
# What a query says of a request and not of the object, in lower case: its signature (S3, Google,
# CloudFront, OSS, COS, Akamai, a token of any server), until when, and how the answer shall look.
_SIGNATURES = re.compile(
    r"^(?:x-(?:amz|goog|oss|cos|obs|id)(?:-.*)?|q-.*|response-.*|sig|signature|expires|expiry|exp|"
    r"policy|key-pair-id|googleaccessid|.*accesskeyid|awsaccesskeyid|(?:.*[-_])?token(?:__)?|auth|"
    r"authorization|auth[-_]key|api[-_]?key|jwt|secret|password|credential|hdnts|hdnea|se|sp|sv)$"
)
# More letters of Azure's shared access signatures, which without one might mean anything.
_SHARED_ACCESS = re.compile(r"^(?:s[a-z]{1,4}|ses|skoid|sktid|saoid|suoid|scid)$")


class Url(str):
    """A URL whose text has no password and no signature, so that it is safe to print.

    The characters of this string are the redacted ones, so no way of printing, formatting or
    writing it shows more. `reveal` returns the full text, for requests. A Url compares equal to its
    full text, and pickles as it. It may carry the settings of its store (`options`), which
    `open_store` uses; the URLs that are made of it carry them too.

    >>> url = Url("https://me:secret@host/train?X-Amz-Signature=1f")
    >>> f"{url}", url.reveal() == "https://me:secret@host/train?X-Amz-Signature=1f" == url
    ('https://***@host/train?...', True)
    """

    __slots__ = ("_real", "options")
    _real: str
    #: Settings of the store (`storage_options`); None for none.
    options: Mapping[str, Any] | None

    def __new__(cls, url: str, options: Mapping[str, Any] | None = None) -> Url:
        """Return a Url for a full text; without options a Url is returned as it is.

        The secrets in the text and in the options are remembered, so that all later messages mask
        them.
        """
        if isinstance(url, Url):
            if not options:
                return url
            url = url.reveal()
        is_path = not scheme_of(url)  # it has no secrets
        instance = super().__new__(cls, url if is_path else _redacted(url))  # what is shown
        instance._real = url  # the full text, for `reveal`
        instance.options = dict(options) if options else None
        remember_secrets(instance.options)
        for secret in () if is_path else _secrets_of(url):
            remember_secret(secret)
        return instance

    def reveal(self) -> str:
        """Return the URL as it was given."""
        return self._real

    def rstrip(self, chars: str | None = None, /) -> Url:
        """Return the URL without some characters at its end."""
        return Url(self._real.rstrip(chars), self.options)

    def __add__(self, suffix: str, /) -> Url:
        return Url(self._real + reveal(suffix), self.options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self._real == reveal(other)

    def __hash__(self) -> int:
        return hash(self._real)

    def __reduce__(self) -> tuple[object, ...]:
        return Url, (self._real, self.options)


def reveal(url: str) -> str:
    """Return the full text of a URL, for requests; a plain text is returned as it is."""
    return url.reveal() if isinstance(url, Url) else url


def options_of(url: str) -> Mapping[str, Any] | None:
    """Return the settings of the store that a URL carries; None for a plain text."""
    return url.options if isinstance(url, Url) else None


@dataclass(frozen=True, slots=True)
class Location:
    """A URL in parts.

    For ``sftp://anna:pw@host:22/data/train`` they are:

    Attributes:
        url: The whole URL.
        scheme: "sftp"; '' for a plain path.
        host: "anna:pw@host:22", or a bucket; '' for a plain path.
        path: "data/train", without slashes at its ends. A plain path is left as it is.
        query: Text after '?' of a http URL, else ''.
        user: "anna"; None without a login.
        password: "pw"; None without one.
        hostname: "host".
        port: 22; None without one.
    """

    url: Url
    scheme: str
    host: str = field(repr=False)
    path: str
    query: str = field(default="", repr=False)
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    hostname: str = ""
    port: int | None = None


def parse_url(text: str) -> Location:
    """Split a URL into its parts. Raises ConfigError for an invalid host or port."""
    url, safe_url = reveal(text), Url(text)
    scheme = scheme_of(url)
    if not scheme:
        return Location(safe_url, "", "", url)
    if not _scheme_facts(scheme).has_query:
        # A '?' or '#' is an ordinary character of an object's name everywhere but in http.
        remainder = url.split(":", 1)[1]
        # dbfs:/ and file:/ may have one slash and then name no host.
        host, _, path = (
            remainder[2:].partition("/") if remainder.startswith("//") else ("", "", remainder)
        )
        query = ""
    else:
        try:
            parts = urlsplit(url)
        except ValueError:
            # Without the ValueError, whose text shows the host and the login before it.
            raise ConfigError(f"{safe_url!r} is not a URL: its host cannot be read.") from None
        host, path, query = parts.netloc, parts.path, parts.query
    if scheme == "oci" or "@" not in host:  # oci://bucket@namespace has no login
        user = password = None
        address = host
    else:
        login, _, address = host.rpartition("@")
        name, colon, secret = login.partition(":")
        user, password = unquote(name), unquote(secret) if colon else None
    hostname, port = _host_and_port(url, address)
    return Location(safe_url, scheme, host, path.strip("/"), query, user, password, hostname, port)


def scheme_of(url: str) -> str:
    """Return the scheme of a URL in lower case; '' for a plain path."""
    match = _SCHEME.match(url) if ":" in url else None
    # 'C:/data' begins with a drive, and 'a:b' is the name of a file. Most schemes need '://';
    # only dbfs:/ and file:/ may have one slash.
    if match is None or not url[match.end() :].startswith("/"):
        return ""
    scheme = match[1].lower()
    return scheme if url[match.end() :].startswith("//") or scheme in ("dbfs", "file") else ""


def is_local(url: str) -> bool:
    """Whether a URL is a plain path or file://, so that its data can be read in place.

    Raises ConfigError for a URL that has lost a slash, such as ``s3:/bucket/train``.
    """
    scheme = scheme_of(url)
    if not scheme and ":" in url:
        _refuse_one_slash(reveal(url))
    return scheme in ("", "file")


def _refuse_one_slash(path: str) -> None:
    """Raise ConfigError for a plain path that is a URL without its slashes.

    ``pathlib.Path("s3://bucket/train")`` makes "s3:/bucket/train" of a URL. It would be read as a
    folder of this machine, and it is one if a folder "s3:" exists.
    """
    match = _ONE_SLASH.match(path) or _NO_SLASH.match(path)
    if match is not None and not os.path.lexists(path.partition("/")[0]):
        # Show the URL without its secrets, but with the slashes that were given, one or none.
        safe_url = _redact_one_slash(match[1], path[match.end() :]).replace(
            f"{match[1]}:/", match[0], 1
        )
        raise ConfigError(
            f"{safe_url!r}: write {match[1]}:// with two slashes, in a str (a pathlib.Path "
            "drops one)."
        )


def local_path(url: str) -> str:
    """Return the path of a file:// URL, or a plain path with its ``~`` expanded.

    Raises ConfigError for a file on another host and for a URL that has lost a slash.
    """
    if scheme_of(url) == "":
        path = reveal(url)
        if ":" in path:
            _refuse_one_slash(path)
        return _without_nul(os.path.expanduser(path) if path.startswith("~") else path)
    address = reveal(url).split(":", 1)[1]
    if address.startswith("//"):
        host, slash, path = address[2:].partition("/")
        if host not in ("", "localhost"):
            raise ConfigError(
                f"{redact(url)!r} is a file on the host {host.rpartition('@')[2]!r}. Write "
                "three slashes, as in file:///data/train."
            )
        address = slash + path
    return _without_nul(unquote(address))


def _without_nul(path: str) -> str:
    """Return the path. Raises ConfigError for a NUL character, which no path has."""
    if "\0" in path:
        raise ConfigError(f"the path {path!r} has a NUL character. Write it without \\0.")
    return path


def absolute_path(path: str) -> str:
    """Return the absolute form of a path, which stays valid if the working folder changes.

    Links are not resolved. Raises NotFoundError if the path is relative and the working folder no
    longer exists.
    """
    try:
        absolute = os.path.abspath(path)
        if os.pardir in path.split(os.sep):
            # "link/.." is the folder above the link's target, so ".." stays after such a link.
            as_given = os.path.join(os.getcwd(), path)
            if os.path.realpath(as_given) != os.path.realpath(absolute):
                return as_given
    except FileNotFoundError:
        raise NotFoundError(
            f"open {path}: this path is relative, but the working folder of the process was "
            "deleted. Give an absolute path.",
            url=path,
            verb="open",
        ) from None
    return absolute


def absolute_place(place: str) -> str:
    """Return a path in absolute form (see `absolute_path`), and a URL or an empty text as it is."""
    return place if not place or scheme_of(place) else absolute_path(local_path(place))


def path_on_disk(
    location: str | os.PathLike[str], argument: str, remedy: str = "Give a path."
) -> str:
    """Return the path on this machine that an argument names: a path or a file:// URL.

    Raises ConfigError for a URL of another place and for an empty text. ``argument`` is the name of
    the argument in this error, and ``remedy`` its last sentence.
    """
    place = os.fspath(location)
    if not place:
        raise ConfigError(
            f"{argument} is an empty text. Give a path, such as '.' for the current folder."
        )
    if not is_local(place):
        raise ConfigError(
            f"{argument} must be a path on this machine, got the URL {redact(place)!r}. {remedy}"
        )
    return local_path(place)


def join(url: str, key: str) -> str:
    """Return the URL of an object below a URL.

    >>> join("s3://bucket/train", "index.json")
    's3://bucket/train/index.json'
    >>> join("https://host/train?signature=x", "index.json")
    'https://host/train/index.json?signature=x'
    """
    if not key:
        return url
    if isinstance(url, Url):
        return Url(join(url.reveal(), key), url.options)
    query = ""
    if "?" in url and _scheme_facts(scheme_of(url)).has_query:
        url, mark, old_query = url.partition("?")
        query = mark + old_query
    return f"{url.rstrip('/')}/{key}{query}" if url else key


def redact(url: str) -> str:
    """Return a URL without its password and its query, which may hold a signature.

    >>> redact("sftp://anna:secret@host/data")
    'sftp://anna:***@host/data'
    """
    # A Url consists of the redacted characters; here they are returned as a plain str.
    return str.__str__(url) if isinstance(url, Url) else _redacted(url)


def redact_text(text: str) -> str:
    """Return a text with every URL in it as `redact` shows it, and without secrets that are known.

    >>> redact_text("No such command 'http://me:secret@host/x?sig=1f'.")
    "No such command 'http://***@host/x?...'."
    """

    def redact_match(match: re.Match[str]) -> str:
        if match[1]:  # the scheme
            return redact(match[0])
        # Only "//host/path": redact it by the rules of http.
        return redact(f"http:{match[0]}").removeprefix("http:")

    text = _URL_IN_TEXT.sub(redact_match, text)
    text = _ONE_SLASH_IN_TEXT.sub(lambda match: _redact_one_slash(*match.groups()), text)
    return mask_secrets(text)


def _redact_one_slash(scheme: str, address: str) -> str:
    """Return a URL that has lost a slash, as pathlib.Path leaves it, without its secrets."""
    return redact(f"{scheme}://{address}").replace("://", ":/", 1)


def _redacted(url: str) -> str:
    """Return a URL with ``***`` in place of its password or token and ``?...`` of its query."""
    scheme = scheme_of(url)
    head, mark, remainder = url.partition("://")
    if not scheme or not mark:
        return url
    login, address, path, query = _split_leniently(scheme, remainder)
    if login is not None:
        user, colon, _ = login.partition(":")
        if _scheme_facts(scheme).shows_user and user:
            login = f"{user}:***" if colon else user
        else:
            login = "***"
        address = f"{login}@{address}"
    return f"{head}{mark}{address}{path}{'?...' if query else ''}"


def _scheme_facts(scheme: str) -> _Scheme:
    """Return the facts about URLs of a scheme, which may be unknown."""
    return _SCHEMES.get(scheme, _UNKNOWN)


def _split_leniently(scheme: str, remainder: str) -> tuple[str | None, str, str, str]:
    """Split the text after ``://`` into login (None: without), address, path and query.

    The result decides which characters are hidden. So unlike `urllib.parse.urlsplit` this function
    never fails, and it finds a login whose password has characters that should have been escaped:

    - http, ``me:pw@host:80/data?x=1``: "me:pw", "host:80", "/data", "x=1"
    - http, ``me:p/w@host/data``: "me:p/w", "host", "/data", ""
    - s3, ``bucket/data?x=1``: None, "bucket", "/data?x=1", "" ('?' is a part of the key)
    """
    facts = _scheme_facts(scheme)
    # The authority is the login and the address, and reaches to the first slash.
    match = re.search(r"[/?#]" if facts.has_query else r"/", remainder)
    authority = remainder[: match.start()] if match else remainder
    if facts.has_login:
        port = authority.rpartition(":")[2]
        if "@" not in authority and ":" in authority and not port.isdecimal() and "@" in remainder:
            # "me:p/w@host": what follows the ':' is no port, so it is a password with a slash in
            # it. The authority then reaches from the last '@' to the next slash.
            authority = (
                remainder[: remainder.rindex("@")]
                + re.split(r"[/?#]", remainder[remainder.rindex("@") :])[0]
            )
    login, mark, address = authority.rpartition("@")
    if not facts.has_login:
        login, mark, address = "", "", authority
    after = remainder[len(authority) :]
    if facts.has_query:
        path, _, query = after.partition("#")[0].partition("?")
    elif facts.is_plain:
        # A '?' is an ordinary character there, but people paste signed links: hide those, and leave
        # the query empty.
        path, query = re.sub(r"\?(?=[^/?]*[Ss]ignature=|[^/?]*sig=).*", "?...", after), ""
    else:
        path, _, query = after.partition("?")
    return (login if mark else None), address, path, query


def _secrets_of(url: str) -> Iterator[str]:
    """Yield the secrets in a URL: password or token, and values of its query that may be keys.

    Each part of a login is given as it is written, and without the escapes of URLs (%40).
    """
    scheme = scheme_of(url)
    address = url.partition("://")[2]
    if not scheme or not address:
        return
    login, _, _, query = _split_leniently(scheme, address)
    if login is not None:
        user, _, password = login.partition(":")
        # Where the user is no person, it may be a token ("https://TOKEN@host").
        secrets = (password,) if _scheme_facts(scheme).shows_user else (login, user, password)
        for secret in secrets:
            yield from (secret, unquote(secret))
    yield from (value for _, value in parse_qsl(query, True) if len(value) >= _SHORTEST_SIGNATURE)


def source_name(url: str) -> str:
    """Return one spelling of a URL without secrets; equal ones name the same source.

    Login, signature (`X-Amz-*`, `Signature`, `sig`, `Expires`, `token`, ...), usual port, fragment
    and slashes at the end are left out, scheme and host in lower case, a path is absolute.
    Any other query of a http URL may choose an object, or be a secret that is not known here, so
    a digest of it stays.

    >>> source_name("https://me:secret@Host:443/train/?X-Amz-Signature=1f&X-Amz-Expires=60")
    'https://host/train'
    >>> source_name("https://host/train?version=3") == source_name("https://host/train?version=4")
    False
    >>> source_name("S3://bucket/train//")
    's3://bucket/train'
    >>> source_name("file:///data/train/")
    '/data/train'
    """
    url = reveal(url)
    scheme = scheme_of(url)
    if is_local(url):
        return absolute_path(local_path(url))
    address = url.split(":", 1)[1]
    host, slash, path = (
        address[2:].partition("/") if address.startswith("//") else ("", "", address)
    )
    query, facts = "", _scheme_facts(scheme)
    if facts.has_query:
        host, path, query = _split_http(scheme, url)
        slash, query = "", _digest_query(query)  # the slash is in the path here
    if facts.has_login:
        host = host.rpartition("@")[2]
    if facts.port:  # else the host is a bucket, whose name may have upper case
        host = host.lower().removesuffix(facts.port)
    return f"{scheme}://{host}{(slash + path).rstrip('/')}{query}"


def _split_http(scheme: str, url: str) -> tuple[str, str, str]:
    """Return the host with its login, the path and the query of a http URL.

    It never fails; `parse_url` refuses invalid URLs later.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        _login, address, path, query = _split_leniently(scheme, url.partition("://")[2])
        return address, path, query
    return parts.netloc, parts.path, parts.query


def _digest_query(query: str) -> str:
    """Return ``?`` and a digest of the parameters of a query that may choose an object.

    Parameters of a signature are left out, since they differ each time a URL is signed: of
    "version=3&X-Amz-Signature=1f" only the version counts. Return '' if no other ones remain.
    """
    parameters = parse_qsl(query, True)
    # Azure's signatures have short names, such as "sr", that may mean anything in other URLs.
    is_azure = any(name.lower() == "sig" for name, _ in parameters)

    def is_of_signature(name: str) -> bool:
        return bool(_SIGNATURES.match(name) or (is_azure and _SHARED_ACCESS.match(name)))

    pairs = sorted((name, value) for name, value in parameters if not is_of_signature(name.lower()))
    if not pairs:
        return ""
    return f"?{hashlib.blake2s(repr(pairs).encode(), digest_size=8).hexdigest()}"


def _host_and_port(url: str, address: str) -> tuple[str, int | None]:
    """Return the host name and the port in an address; ``url`` is for errors.

    An IPv6 address is in brackets, which are removed. Raises ConfigError for an invalid port.
    """
    name, colon, digits = address.rpartition(":")
    if not colon or address.endswith("]"):
        return address.strip("[]"), None
    if not digits.isdecimal() or len(digits) > 5 or int(digits) > 65535:
        raise ConfigError(
            f"{redact(url)!r}: the text after the last ':' of the host is not a port. Escape "
            f"'@', ':' and '/' of a password (%40, %3A, %2F)."
        )
    return name.strip("[]"), int(digits)
