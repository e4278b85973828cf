"""Clients of S3, made once a process, and the template of the requests that they make.

Path or virtual addressing, FIPS and dual stack, access points, regions after a redirect, requester
pays: the SDK has decided all of it when a request is ready. So it makes one GET for a placeholder
key, and an event takes the request away before it is sent. That takes half a millisecond, and
nothing goes over the network but what credentials need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from mds.errors import need
from mds.storage.sigv4 import Credentials, Scope

MAX_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class S3Options:
    """Names as boto3 has them, and a few of ours.

    ``anonymous``: do not sign. ``requester_pays``: agree to pay; else the buckets named in
    MOSAICML_STREAMING_AWS_REQUESTER_PAYS. ``acl``: of uploads, else S3_CANNED_ACL. ``checksums``:
    whether the SDK's integrity checksums are used, by default on Amazon only.
    """

    endpoint_url: str | None = None
    region_name: str | None = None
    profile_name: str | None = None
    aws_access_key_id: str | None = None
    aws_secret_access_key: str | None = field(default=None, repr=False)
    aws_session_token: str | None = field(default=None, repr=False)
    anonymous: bool = False
    requester_pays: bool | None = None
    acl: str | None = None
    verify: bool | str | None = None
    addressing_style: str = "auto"
    checksums: bool | None = None


class S3Client(NamedTuple):
    """A client of the SDK, where its credentials come from, and which certificates it trusts."""

    client: Any
    provider: Any
    verify: bool | str

    def credentials(self) -> Credentials:
        """Return the present credentials, which the provider renews before they expire."""
        frozen = self.provider.get_frozen_credentials()
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


@cache
def _models(folders: str | None) -> Any:
    """Load botocore's large descriptions of services: 50 ms of a client's 55.

    They are data and nothing else, so forked workers may go on with those of their parent.
    """
    from botocore.loaders import create_loader

    return create_loader(folders)


def make_client(options: S3Options, timeout: float) -> S3Client:
    """Create a client of the SDK. Raises MissingDependencyError without the package.

    The SDK is botocore, on which boto3 stands. What boto3 adds took a third of the processor time
    until a process has its first client: 0.48 in place of 0.70 s.
    """
    try:
        import botocore.session
    except ImportError as error:
        raise need("boto3", "s3", "s3:// URLs") from error
    session = botocore.session.Session(profile=options.profile_name)
    # What its clients are made of is read once a process, not once a client.
    models = _models(session.get_config_variable("data_path"))
    session.register_component("data_loader", models)
    keys = (options.aws_access_key_id, options.aws_secret_access_key, options.aws_session_token)
    if any(keys):
        session.set_credentials(*keys)
    if options.region_name is not None:
        session.set_config_variable("region", options.region_name)
    client = _make_sdk_client(session, options, timeout)
    client.meta.events.register_first("before-send.s3.GetObject", show_example)
    verify = options.verify
    if verify is None:
        verify = session.get_config_variable("ca_bundle")
    provider = None if options.anonymous else session.get_credentials()
    return S3Client(client, provider, True if verify is None else verify)


def _make_sdk_client(session: Any, options: S3Options, timeout: float) -> Any:
    import botocore
    from botocore.config import Config

    config = Config(
        max_pool_connections=MAX_CONNECTIONS,
        connect_timeout=timeout,
        read_timeout=timeout,
        tcp_keepalive=True,
        # One try: trying again is the business of the wrapper around the store.
        retries={"total_max_attempts": 1, "mode": "standard"},
        s3={"addressing_style": options.addressing_style},
        signature_version=botocore.UNSIGNED if options.anonymous else None,
    )

    def make(settings: Config) -> Any:
        return session.create_client(
            "s3",
            config=settings,
            endpoint_url=options.endpoint_url,
            verify=options.verify,
            # A signature needs a region, also where the store has none.
            region_name=session.get_config_variable("region") or "us-east-1",
        )

    unchecked = config.merge(
        Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
    )
    if options.checksums is not None:
        return make(config if options.checksums else unchecked)
    if options.endpoint_url is not None and not _is_amazon(options.endpoint_url):
        return make(unchecked)
    client = make(config)
    # The endpoint may also come from AWS_ENDPOINT_URL or a profile.
    return client if _is_amazon(client.meta.endpoint_url) else make(unchecked)


def _is_amazon(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


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
