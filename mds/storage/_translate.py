"""Translation of the exceptions of providers to StoreErrors.

A provider passes a function that classifies its own exceptions. The rest is classified here by the
HTTP status or by the network error among the causes. Failures that a retry may fix become
TransientErrors. Unknown exceptions become plain StoreErrors, which are not retried.

A `Failure` is the verdict on an exception, from which the StoreError is made.
"""

from __future__ import annotations

import errno
import http
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mds._redaction import mask_foreign, printable
from mds.errors import (
    DeniedError,
    MdsError,
    NoSpaceError,
    NotFoundError,
    StalledError,
    StoreError,
    TransientError,
    UnauthenticatedError,
    UnreachableError,
)

_BY_STATUS: dict[int, type[StoreError]] = {
    401: UnauthenticatedError,
    403: DeniedError,
    404: NotFoundError,
    407: UnauthenticatedError,  # of a proxy
    408: TransientError,
    409: TransientError,  # another writer wrote the same object
    410: NotFoundError,
    425: TransientError,
    429: TransientError,
    500: TransientError,
    502: TransientError,
    503: TransientError,
    504: TransientError,
}
_BY_ERRNO: dict[int, type[StoreError]] = {
    errno.ENOENT: NotFoundError,
    errno.ENOTDIR: NotFoundError,
    errno.EISDIR: NotFoundError,
    errno.ELOOP: NotFoundError,  # a link to itself
    errno.EACCES: DeniedError,
    errno.EPERM: DeniedError,
    errno.EROFS: DeniedError,
    errno.ENOSPC: NoSpaceError,
    errno.EDQUOT: NoSpaceError,
    # Network file systems and networks; other numbers mean wrong calls.
    errno.EIO: TransientError,
    errno.ESTALE: TransientError,
    errno.ETIMEDOUT: StalledError,
    errno.EAGAIN: TransientError,
    errno.ECONNREFUSED: UnreachableError,
    errno.EHOSTUNREACH: UnreachableError,
    errno.ENETUNREACH: UnreachableError,
    errno.ENETDOWN: UnreachableError,
    errno.EPIPE: TransientError,
}
_MAX_REASON = 2000  # characters of a foreign error message
_HINTS: dict[type[StoreError], str] = {
    UnauthenticatedError: " Credentials are missing, expired or unknown to the store.",
    DeniedError: " The credentials are missing or wrong, or do not allow this.",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """The meaning of an exception of a provider, from which `translate` makes a StoreError.

    Attributes:
        kind: Class of the StoreError.
        reason: Text about the reason, such as "503 Service Unavailable, slow down".
        retry_after: Seconds that the store wants to pass before a retry; 0 if it says nothing.
    """

    kind: type[StoreError]
    reason: str
    retry_after: float = 0.0


class ForeignError(Exception):
    """Replacement for a foreign exception whose text contains a secret."""


def fit_cause(error: Exception, failure: StoreError) -> Exception | None:
    """Return the exception to name as the cause of ``failure``: ``raise failure from ...``.

    Usually it is ``error``, from which ``failure`` was made. A traceback shows the texts of causes,
    too. So if ``error`` or one of its own causes contains a secret, a `ForeignError` with the
    masked text of ``error`` is returned. None is returned if ``error`` and ``failure`` both only
    say that an object is missing.
    """
    is_known = isinstance(error, FileNotFoundError) or type(error).__module__.startswith("mds.")
    if is_known and isinstance(failure, NotFoundError):
        return None
    # The exception and its causes. (`not in chain`: causes may form a circle.)
    chain: list[BaseException] = [error]
    while (link := chain[-1].__cause__ or chain[-1].__context__) and link not in chain:
        chain.append(link)
    if all(_is_fit(f"{link}") and _is_fit(f"{link.args}") for link in chain):
        return error
    text = mask_foreign(f"{type(error).__module__}.{type(error).__name__}: {error}")
    return ForeignError(printable(text)).with_traceback(error.__traceback__)


def _is_fit(text: str) -> bool:
    """Whether a text contains no secret and no control character."""
    plain = text.translate(_SPACES)
    return plain.isprintable() and mask_foreign(plain) == plain


_SPACES = str.maketrans("\n\t", "  ")
_reasons = {int(status): status.phrase for status in http.HTTPStatus}

#: Function that returns the failure for an exception of one provider, and None for any other.
Classify = Callable[[Exception], "Failure | None"]


@contextmanager
def translate_errors(verb: str, url: str, classify: Classify | None = None) -> Iterator[None]:
    """Translate exceptions of the block to StoreErrors with the verb, the URL and the time.

    Errors of this library pass unchanged. The arguments are those of `translate`.
    """
    started = time.monotonic()
    try:
        yield
    except MdsError:
        raise
    except Exception as error:  # noqa: BLE001 - all of it is translated
        failure = translate(error, verb, url, time.monotonic() - started, classify)
        raise failure from fit_cause(error, failure)


def translate_chunks(
    chunks: Iterator[bytes], url: str, classify: Classify | None = None
) -> Iterator[bytes]:
    """Yield the chunks of a body; translate exceptions of their iterator to StoreErrors."""
    with translate_errors("get", url, classify):
        yield from chunks


def translate(
    error: Exception, verb: str, url: str, seconds: float, classify: Classify | None = None
) -> StoreError:
    """Return the StoreError for a foreign exception.

    Args:
        error: The exception.
        verb: Verb of the request, such as "get".
        url: URL without secrets.
        seconds: Duration of the request.
        classify: Function of the provider that returns the failure for one of its exceptions, and
            None for others.
    """
    failure = (classify(error) if classify else None) or network_failure(error)
    for link in _links(error):
        if isinstance(link, OSError) and link.errno == errno.EMFILE:
            from mds._process.mmaps import explain_limit

            failure = Failure(
                StoreError, str(explain_limit(link, str(link.filename or "a socket")))
            )
    if failure is None:
        failure = Failure(StoreError, f"{type(error).__name__}: {error}")
    kind = failure.kind
    reason = mask_foreign(failure.reason[:_MAX_REASON]).strip().rstrip(".")
    result = kind(
        f"{verb} {url}: {reason}.{_HINTS.get(kind, '')}",
        url=url,
        verb=verb,
        seconds=seconds,
    )
    result.symptom = PROXY_LOGIN if reason.startswith("407 ") else find_symptom(error)
    if isinstance(result, TransientError):
        result.retry_after = failure.retry_after
    return result


def status_failure(status: int, reason: str = "", retry_after: str | None = None) -> Failure:
    """Return the failure that an HTTP status means.

    ``reason`` is the server's text, and ``retry_after`` the header of that name.
    """
    phrase = _reasons.get(status, "")
    text = f"{status} {phrase}".strip()
    if reason and reason not in (phrase, str(status)):
        text += f", {reason}"
    kind = _BY_STATUS.get(status, StoreError)
    seconds = float(retry_after) if retry_after and retry_after.strip().isdecimal() else 0.0
    return Failure(kind, text, seconds)


def network_failure(error: BaseException) -> Failure | None:
    """Return the failure for the first network or disk error among ``error`` and its causes.

    Return None if there is none. SDKs often wrap such an error in exceptions of their own.
    """
    links = list(_links(error))
    for link in links:
        if "407 Proxy Authentication" in str(link):
            return Failure(UnauthenticatedError, f"the proxy requires a login: {link}")
    for link in links:
        kind = _network_kind(link)
        if kind is not None:
            message = link.strerror if isinstance(link, OSError) else None
            return Failure(kind, message or f"{type(link).__name__}: {link}")
    return None


#: Symptoms of a wrong setting, as `StoreError.symptom` names them.
UNKNOWN_HOST = "unknown host"  # the resolver says so; it may also not answer at all
NO_TLS = "no TLS"  # the server answers in another way, or refuses the version of TLS
OTHER_PROTOCOL = "other protocol"  # such as that of an SSH server
OTHER_CERTIFICATE = "certificate of another host"
EXPIRED_CERTIFICATE = "expired certificate"
UNKNOWN_ISSUER = "unknown issuer of the certificate"
PROXY_LOGIN = "login of the proxy"

_OTHER_PROTOCOL = re.compile(
    r"the response is not HTTP|BadStatusLine|Indecipherable protocol version"
)


def find_symptom(error: BaseException) -> str:
    """Return the symptom of a wrong setting among an exception and its causes, or ''."""
    for link in _links(error):
        symptom = _symptom(link)
        if symptom:
            return symptom
    return ""


def _symptom(error: BaseException) -> str:
    """Return the symptom of a wrong setting in one exception, or ''."""
    import socket

    unknown = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
    if isinstance(error, socket.gaierror) and error.errno in unknown:
        return UNKNOWN_HOST
    ssl = sys.modules.get("ssl")  # before it is loaded, there are no errors of TLS
    if ssl is not None and isinstance(error, ssl.SSLCertVerificationError):
        # The codes of OpenSSL: not yet valid and expired, other name and other address.
        by_code = {9: EXPIRED_CERTIFICATE, 10: EXPIRED_CERTIFICATE}
        by_code |= {62: OTHER_CERTIFICATE, 64: OTHER_CERTIFICATE}
        return by_code.get(error.verify_code, UNKNOWN_ISSUER)
    if ssl is not None and isinstance(error, ssl.SSLError):
        # A busy server closes connections during the handshake, too.
        closed = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError, TimeoutError)
        return "" if isinstance(error, closed) or "EOF" in (error.reason or "EOF") else NO_TLS
    text = str(error)
    if "407 Proxy Authentication" in text:
        return PROXY_LOGIN
    if "doesn't match" in text and type(error).__name__ == "CertificateError":  # of urllib3
        return OTHER_CERTIFICATE
    return OTHER_PROTOCOL if _OTHER_PROTOCOL.search(text) else ""


def _links(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, each once; not the translated errors of earlier tries."""
    visited: set[int] = set()
    candidates: list[object] = [error]
    while candidates:
        link = candidates.pop(0)
        if not isinstance(link, BaseException) or id(link) in visited:
            continue
        # Python notes the error of the last try as the context of an error of the next one.
        if isinstance(link, MdsError) and link is not error:
            continue
        visited.add(id(link))
        yield link
        # urllib3 keeps the cause in `reason`, requests and several SDKs in their arguments.
        candidates += [link.__cause__, link.__context__, getattr(link, "reason", None), *link.args]
        candidates.append(getattr(link, "inner_exception", None))  # of Azure's SDK
        # botocore raises an error again, which replaces its context.
        facts = getattr(link, "kwargs", None)
        candidates.append(facts.get("error") if isinstance(facts, dict) else None)


def _network_kind(error: BaseException) -> type[StoreError] | None:
    """Return the class of StoreError for a network or disk error, or None for other exceptions."""
    if isinstance(error, TimeoutError):
        return StalledError
    if isinstance(error, ConnectionRefusedError):
        return UnreachableError
    # Compare names of classes: importing http.client, ssl and the SDKs' transports only to compare
    # with their classes would cost readers of a local folder tens of milliseconds.
    for kind in type(error).__mro__:
        module, name = kind.__module__.partition(".")[0], kind.__name__
        if (module, name) in _KINDS:
            return _KINDS[module, name]
        if module in _TRANSPORTS:
            if name in _UNREACHABLE:
                return UnreachableError
            if "Timeout" in name:
                return StalledError
            if name in _BROKEN:
                return TransientError
    if isinstance(error, ConnectionError):
        return TransientError
    if isinstance(error, OSError) and error.errno is not None:
        return _BY_ERRNO.get(error.errno)
    return None


_KINDS: dict[tuple[str, str], type[StoreError]] = {
    ("ssl", "SSLCertVerificationError"): StoreError,
    ("ssl", "SSLError"): TransientError,
    ("http", "HTTPException"): TransientError,
    # In clusters, name resolution often fails for a minute.
    ("socket", "gaierror"): UnreachableError,
}
_TRANSPORTS = {"urllib3", "requests", "botocore"}
# Exceptions of the SDKs' transports: a connection could not be opened, or it broke.
_UNREACHABLE = {
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeoutError",
    "ConnectTimeout",
    "EndpointConnectionError",
}
_BROKEN = {
    "ProtocolError",
    "IncompleteRead",
    "ProxyError",
    "ChunkedEncodingError",
    "InvalidChunkLength",
    "ConnectionClosedError",
    "ResponseStreamingError",
}
