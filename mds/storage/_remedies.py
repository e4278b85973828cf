"""Remedies in the errors of stores: which setting is probably wrong, and how to write it.

A *mistake* is a failure that stays until the user corrects a setting: the server speaks TLS and the
client does not, or the reverse, or the name of the host does not exist. But a name gets lost for a
minute in a cluster, too. So whoever retries asks whether the server has answered before
(`has_answered`): this process remembers the servers that have, with those of the process that
started it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urlsplit

from mds.errors import (
    DeniedError,
    StalledError,
    StoreError,
    TransientError,
    UnauthenticatedError,
    UnreachableError,
)
from mds.storage._translate import (
    EXPIRED_CERTIFICATE,
    NO_TLS,
    OTHER_CERTIFICATE,
    OTHER_PROTOCOL,
    PROXY_LOGIN,
    UNKNOWN_HOST,
    UNKNOWN_ISSUER,
)
from mds.storage._wrappers import has_answered, server_of

if TYPE_CHECKING:
    import socket

    from mds.storage._base import Settings, Store

ONLY_TLS = "TLS only"  # a symptom that only another connection shows
_PROBE_SECONDS = 2.0

_tls_servers: dict[str, bool] = {}  # by server, as `_speaks_tls` found out
_answers: dict[str, bytes] = {}  # by server, as `_first_bytes` found out
_said: set[tuple[str, str]] = set()  # servers, and remedies that were logged


class Remedy(NamedTuple):
    """What to do about a failure.

    Attributes:
        text: Sentences that begin with a space; '' if nothing is known.
        is_mistake: Whether the failure stays until the user corrects a setting.
    """

    text: str
    is_mistake: bool = False


def find_remedy(error: StoreError, store: Store) -> Remedy:
    """Return the remedy for an error of a store.

    If a server that never answered closed a connection without TLS, or refused a request as
    malformed, one or two more connections find out which protocol it speaks.
    """
    server, settings = server_of(store), store.settings
    if not server:
        return Remedy("")
    place, proxy = urlsplit(server), _proxy_hint(server)
    if error.symptom == PROXY_LOGIN:
        variable = f"{place.scheme.upper()}_PROXY"
        return Remedy(f" Set {variable}=http://user:password@host:port to log in to the proxy.")
    symptom = error.symptom
    if not has_answered(server) and not proxy and place.scheme in ("http", "sftp"):
        symptom = _probe(error, server) or symptom
    text = _remedy_of_symptom(symptom, place, settings)
    if text:
        return Remedy(f" {text}{proxy}", is_mistake=True)
    return Remedy(_other_remedy(error, store, server))


def _probe(error: StoreError, server: str) -> str:
    """Return the symptom of a server that speaks another protocol than its URL says, or ''."""
    is_http = server.startswith("http:")
    # A server with TLS closes the connection, or answers 400 in plain text.
    if is_closed(error) or (is_http and ": 400 " in str(error)):
        if _speaks_tls(server):
            return ONLY_TLS if is_http else OTHER_PROTOCOL
        answer = _first_bytes(server)
        if answer and answer.startswith(b"HTTP/") != is_http:
            return OTHER_PROTOCOL
    return ""


def _other_remedy(error: StoreError, store: Store, server: str) -> str:
    """Return the remedy for a failure that may pass, or for refused credentials; '' for others."""
    text, settings = str(error), store.settings
    if _CLOCK.search(text):
        return " Set the clock of this machine."
    if _REGION.search(text):
        return (
            " The bucket is in another region: give the storage option region_name= or set "
            "AWS_REGION, and give the endpoint of this region if you give one."
        )
    if isinstance(error, (UnauthenticatedError, DeniedError)):
        return f" {settings.credentials}" if settings.credentials else ""
    if has_answered(server) or not isinstance(error, TransientError):
        return ""
    proxy = _proxy_hint(server) or " Set HTTPS_PROXY if this network needs a proxy."
    proxy = proxy if server.startswith("http") else ""
    if isinstance(error, (UnreachableError, StalledError)):
        return f" Check the host and the port in {settings.endpoint}.{proxy}"
    if _BUSY.search(text):
        return " If the server limits requests, lower the storage option concurrency=."
    return f" Check the scheme, the host and the port in {settings.endpoint}.{proxy}"


_CLOCK = re.compile(r"RequestTimeTooSkewed|RequestExpired|RequestNotYetValid|clock skew")
_BUSY = re.compile(r": (?:429|503) |SlowDown|Throttling")
_REGION = re.compile(
    r"PermanentRedirect|AuthorizationHeaderMalformed.*[Rr]egion|IllegalLocationConstraint"
    r"|Moved Permanently"
)


def hint_while_waiting(store: Store) -> Callable[[], str]:
    """Return a function that returns, once for each server, what to check while it is silent."""
    server = server_of(store)
    text = _other_remedy(StalledError(""), store, server) if server else ""
    return lambda: unless_said(server, text)


def unless_said(server: str, text: str) -> str:
    """Return a remedy for a server, or '' if this process has logged it before."""
    if (server, text) in _said:
        return ""
    _said.add((server, text))
    return text


def _remedy_of_symptom(symptom: str, server: SplitResult, settings: Settings) -> str:
    """Return what to do about a symptom of a server, or ''."""
    address, endpoint = server.netloc, settings.endpoint
    proxy = ", or set HTTPS_PROXY if only a proxy knows it" if server.scheme != "sftp" else ""
    remedies = {
        UNKNOWN_HOST: f"Correct the host in {endpoint}{proxy}.",
        NO_TLS: f"{address} does not answer in TLS. If it is a port without TLS, write http:// "
        f"instead of https:// in {endpoint}, or correct the port.",
        ONLY_TLS: f"{address} speaks TLS: write https:// instead of http:// in {endpoint}.",
        OTHER_PROTOCOL: f"{address} is a server of another kind: correct the port in {endpoint}.",
        OTHER_CERTIFICATE: "The certificate has the name of another host: write this name in "
        f"{endpoint}.",
        EXPIRED_CERTIFICATE: "The certificate is not valid now: renew it, or set the clock of this "
        "machine.",
        UNKNOWN_ISSUER: "This machine does not know who issued the certificate: "
        f"{settings.certificate}.",
    }
    return remedies.get(symptom, "")


def is_closed(error: StoreError) -> bool:
    """Whether the server closed the connection, or did not answer in HTTP."""
    is_transient = isinstance(error, TransientError)
    has_time = isinstance(error, (UnreachableError, StalledError))
    return is_transient and not has_time and not re.search(r": [45]\d\d\b", str(error))


def _speaks_tls(server: str) -> bool:
    """Whether a server completes a TLS handshake, tried once; its certificate is not checked."""
    if server not in _tls_servers:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        _tls_servers[server] = False
        with (
            contextlib.suppress(OSError),
            _connect(server) as connection,
            context.wrap_socket(connection, server_hostname=urlsplit(server).hostname),
        ):
            _tls_servers[server] = True
    return _tls_servers[server]


def _first_bytes(server: str) -> bytes:
    """Return the first bytes that a server sends to a client of HTTP, tried once; b'' for none."""
    if server not in _answers:
        _answers[server] = b""
        with contextlib.suppress(OSError), _connect(server) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            _answers[server] = connection.recv(5)
    return _answers[server]


def _connect(server: str) -> socket.socket:
    """Return a connection to a server, for one question."""
    import socket

    place = urlsplit(server)
    port = place.port or {"http": 80, "sftp": 22}[place.scheme]
    return socket.create_connection((place.hostname, port), _PROBE_SECONDS)


def _proxy_hint(server: str) -> str:
    """Return a sentence about the proxy for a server, which may be wrong; '' without one."""
    from mds.storage._http import find_proxy, split_login

    proxy = find_proxy(server) if server.startswith("http") else None
    if not proxy:
        return ""
    return (
        f" Requests go through the proxy {split_login(proxy)[0]}: correct HTTPS_PROXY and "
        "HTTP_PROXY, or name the host in NO_PROXY."
    )
