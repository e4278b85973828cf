"""The template of a bucket's GETs, taken from one that the SDK makes and that is not sent.

Path or virtual addressing, FIPS and dual stack, access points, regions that a redirect told,
requester pays: the SDK has decided all of it when a request is ready. So it is had to make one for
an object of a name that stands for all, and an event before it is sent takes it away. It takes
half a millisecond and nothing goes over the network but what credentials need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from mds.storage.sigv4 import Scope

# Placeholder key: the SDK signs one request with it, which becomes the template.
_EXAMPLE = "5f1c7a9e-the-template-of-a-request"
_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[^/]+/[0-9]{8}/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request,"
)
# Headers of a request that belong to it alone.
_CHANGING = {"x-amz-date", "x-amz-content-sha256", "x-amz-security-token", "x-amz-checksum-mode"}


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """The common parts of all GETs of a bucket; ``scope`` is None if they are unsigned."""

    scheme: str
    host: str
    path: str
    scope: Scope | None
    amazon: tuple[tuple[str, str], ...]
    agent: str


class _SeenError(Exception):
    """Carries a request out of the SDK before it is sent."""

    def __init__(self, request: Any) -> None:
        super().__init__()
        self.request = request


def show_example(request: Any, **_: Any) -> None:
    """For the SDK's event before a request is sent: keep the example from being sent."""
    if urlsplit(request.url).path.endswith(_EXAMPLE):
        raise _SeenError(request)


def find_template(client: Any, bucket: str, extra: Mapping[str, str]) -> RequestTemplate | None:
    """Return the template of the SDK's GETs, or None if their signature is another."""
    try:
        client.get_object(Bucket=bucket, Key=_EXAMPLE, Range="bytes=0-1", **extra)
    except _SeenError as seen:
        request = seen.request
    else:
        return None
    headers = {key.lower(): _text(value) for key, value in request.headers.items()}
    url = urlsplit(request.url)
    signed = headers.get("authorization")
    match = _SIGNED.match(signed) if signed else None
    if (
        url.query
        or "@" in url.netloc
        or (signed and match is None)
        or "x-amz-s3session-token" in headers
    ):
        return None
    amazon = tuple(
        (key, value)
        for key, value in headers.items()
        if key.startswith("x-amz-") and key not in _CHANGING
    )
    return RequestTemplate(
        url.scheme,
        url.netloc,
        url.path.removesuffix(_EXAMPLE),
        Scope(match["region"], match["service"]) if match else None,
        amazon,
        headers.get("user-agent", ""),
    )


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
