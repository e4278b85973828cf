"""One border: whatever a provider raises leaves it as one of our StoreErrors.

A provider gives a function that knows its own exceptions; what it does not know is judged here by
the HTTP status or by the kind of network trouble underneath. Only what another try may mend is a
TransientError. What nobody knows is a plain StoreError: loud, and not tried again.
"""

from __future__ import annotations

import errno
import http
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mds.errors import (
    DeniedError,
    MdsError,
    NoSpaceError,
    NotFoundError,
    StalledError,
    StoreError,
    TransientError,
    UnauthenticatedError,
)

_BY_STATUS: dict[int, type[StoreError]] = {
    401: UnauthenticatedError,
    403: DeniedError,
    404: NotFoundError,
    408: TransientError,
    409: TransientError,  # another writer of the same name was faster
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
    errno.EACCES: DeniedError,
    errno.EPERM: DeniedError,
    errno.EROFS: DeniedError,
    errno.ENOSPC: NoSpaceError,
    errno.EDQUOT: NoSpaceError,
    # Network file systems and networks; the rest of errno is about wrong calls.
    errno.EIO: TransientError,
    errno.ESTALE: TransientError,
    errno.ETIMEDOUT: StalledError,
    errno.EAGAIN: TransientError,
    errno.ECONNREFUSED: TransientError,
    errno.EHOSTUNREACH: TransientError,
    errno.ENETUNREACH: TransientError,
    errno.ENETDOWN: TransientError,
    errno.EPIPE: TransientError,
}
_HINTS: dict[type[StoreError], str] = {
    UnauthenticatedError: " Credentials are missing, expired or unknown to the store.",
    DeniedError: " The credentials were understood but may not do this.",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, judged: which of our errors, said how, and when to come back."""

    kind: type[StoreError]
    what: str
    retry_after: float = 0.0


_reasons = {int(status): status.phrase for status in http.HTTPStatus}

Classify = Callable[[Exception], "Failure | None"]


@contextmanager
def border(verb: str, url: str, classify: Classify | None = None) -> Iterator[None]:
    """Let nothing but our own errors out of the block; they name the verb, the URL, the time."""
    started = time.monotonic()
    try:
        yield
    except MdsError:
        raise
    except Exception as error:
        raise translate(error, verb, url, time.monotonic() - started, classify) from error


def guarded(chunks: Iterator[bytes], url: str, classify: Classify | None = None) -> Iterator[bytes]:
    """The same border around every chunk of a body."""
    with border("get", url, classify):
        yield from chunks


def translate(
    error: Exception, verb: str, url: str, seconds: float, classify: Classify | None = None
) -> StoreError:
    """Our error for a foreign one."""
    failure = (classify(error) if classify else None) or network_failure(error)
    if failure is None:
        failure = Failure(StoreError, f"{type(error).__name__}: {error}")
    kind = failure.kind
    result = kind(
        f"{verb} {url}: {failure.what.strip().rstrip('.')}.{_HINTS.get(kind, '')}",
        url=url,
        verb=verb,
        seconds=seconds,
    )
    if isinstance(result, TransientError):
        result.retry_after = failure.retry_after
    return result


def status_failure(status: int, what: str = "", retry_after: str | None = None) -> Failure:
    """The failure that an HTTP status stands for."""
    reason = _reasons.get(status, "")
    said = f"{status} {reason}".strip()
    if what and what not in (reason, str(status)):
        said += f", {what}"
    kind = _BY_STATUS.get(status, StoreError)
    seconds = float(retry_after) if retry_after and retry_after.strip().isdecimal() else 0.0
    return Failure(kind, said, seconds)


def network_failure(error: BaseException) -> Failure | None:
    """Trouble of the network or the disk, wherever in the chain of causes it hides."""
    seen: set[int] = set()
    queue: list[object] = [error]
    while queue:
        link = queue.pop(0)
        if not isinstance(link, BaseException) or id(link) in seen:
            continue
        seen.add(id(link))
        kind = _network_kind(link)
        if kind is not None:
            said = link.strerror if isinstance(link, OSError) else None
            return Failure(kind, said or f"{type(link).__name__}: {link}")
        # urllib3 keeps the cause in `reason`, requests and several SDKs in their arguments.
        queue += [link.__cause__, link.__context__, getattr(link, "reason", None), *link.args]
    return None


def _network_kind(error: BaseException) -> type[StoreError] | None:
    if isinstance(error, TimeoutError):
        return StalledError
    # By name: importing http.client, ssl and the SDKs' transports only to compare with them would
    # cost those who read a local folder tens of milliseconds.
    for kind in type(error).__mro__:
        module, name = kind.__module__.partition(".")[0], kind.__name__
        if (module, name) in _KINDS:
            return _KINDS[module, name]
        if module in _TRANSPORTS:
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
    # Names that cannot be resolved for a minute are an everyday thing in clusters.
    ("socket", "gaierror"): TransientError,
}
_TRANSPORTS = {"urllib3", "requests", "botocore"}
# Of the transports under the SDKs: a connection that broke or could not be made.
_BROKEN = {
    "ProtocolError",
    "IncompleteRead",
    "NewConnectionError",
    "NameResolutionError",
    "ProxyError",
    "ChunkedEncodingError",
    "InvalidChunkLength",
    "ConnectionClosedError",
    "ResponseStreamingError",
}
