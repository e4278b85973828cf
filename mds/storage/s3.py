"""Amazon S3 and everything that speaks it, through boto3: s3://bucket/prefix.

The endpoint comes from the options, from S3_ENDPOINT_URL or from the SDK's own configuration. The
SDK's integrity checksums are asked for where the endpoint is Amazon's: other stores reject their
headers on upload or answer ranges with checksums of something else. Without credentials, and where
the store turns them down as malformed (400), reading is tried unsigned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from mds.errors import (
    ConfigError,
    CorruptError,
    NotFoundError,
    StalledError,
    StoreError,
    TransientError,
    UnauthenticatedError,
    need,
)
from mds.storage.base import CHUNK, Body, ObjectInfo, Store
from mds.storage.failure import Failure, border, guarded, network_failure, status_failure
from mds.storage.process import forget, per_process
from mds.storage.settings import env, parse_options
from mds.storage.url import check_key, parse_url
from mds.storage.wire import byte_range, empty_body

# Files above this size go up in parts; a shard of the usual size is one request.
_MULTIPART = 128 << 20
_PART = 32 << 20
_CONNECTIONS = 64


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
    aws_secret_access_key: str | None = None
    aws_session_token: str | None = None
    anonymous: bool = False
    requester_pays: bool | None = None
    acl: str | None = None
    verify: bool | str | None = None
    addressing_style: str = "auto"
    checksums: bool | None = None


class S3Store(Store):
    """Objects below a prefix of a bucket."""

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        place = parse_url(url)
        if not place.host:
            raise ConfigError(f"{url!r} names no bucket. Write {place.scheme}://bucket/prefix.")
        self.url = url
        self._timeout = timeout
        self._bucket = place.host
        self._prefix = f"{place.path}/" if place.path else ""
        self._options = self._settings(options)
        self._reading: dict[str, str] = {}
        if self._options.requester_pays:
            self._reading["RequestPayer"] = "requester"

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """The object, or a range of it."""
        shown = self.url_of(key)
        if end is not None and end <= start:
            return empty_body(self.head(key), shown)
        asked = {"Range": byte_range(start, end)} if start or end is not None else {}
        answer = self._read("get", "get_object", key, **asked)
        info, length = self._answer(key, answer, start, end, shown)
        body = answer["Body"]
        chunks = guarded(iter(partial(body.read, CHUNK), b""), shown, classify)
        return Body(info, chunks, length, url=shown, close=body.close)

    def head(self, key: str) -> ObjectInfo:
        """Size and etag."""
        answer = self._read("head", "head_object", key)
        return ObjectInfo(key, int(answer["ContentLength"]), _etag(answer))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Every object below a prefix, a thousand a request."""
        more: dict[str, str] = {}
        while True:
            page = self._call(
                "list",
                "list_objects_v2",
                prefix,
                Bucket=self._bucket,
                Prefix=self._prefix + prefix,
                **self._reading,
                **more,
            )
            for entry in page.get("Contents", ()):
                name = str(entry["Key"])[len(self._prefix) :]
                if name and not name.endswith("/"):  # a made-up folder of some browser
                    yield ObjectInfo(name, int(entry["Size"]), _etag(entry))
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        """Remove the object."""
        self._call("delete", "delete_object", key, Bucket=self._bucket, Key=self._name(key))

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        extra = dict(self._reading)
        if self._options.acl:
            extra["ACL"] = self._options.acl
        name = self._name(key)
        if size <= _MULTIPART:
            self._call(
                "put",
                "put_object",
                key,
                Bucket=self._bucket,
                Key=name,
                Body=file,
                ContentLength=size,
                **extra,
            )
            return
        with border("put", self.url_of(key), classify):
            from boto3.s3.transfer import TransferConfig

            self._client().upload_fileobj(
                file,
                self._bucket,
                name,
                ExtraArgs=extra,
                Config=TransferConfig(multipart_chunksize=_PART, max_concurrency=4),
            )

    def _settings(self, options: Mapping[str, Any]) -> S3Options:
        given = parse_options(S3Options, options, "s3")
        payers = (env("MOSAICML_STREAMING_AWS_REQUESTER_PAYS") or "").split(",")
        pays = given.requester_pays
        if pays is None:
            pays = self._bucket in {name.strip() for name in payers}
        return replace(
            given,
            endpoint_url=given.endpoint_url or env("S3_ENDPOINT_URL"),
            acl=given.acl or env("S3_CANNED_ACL"),
            requester_pays=pays,
        )

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key) if key else self._prefix.rstrip("/")

    def _read(self, verb: str, operation: str, key: str, **arguments: Any) -> Any:
        return self._call(
            verb,
            operation,
            key,
            Bucket=self._bucket,
            Key=self._name(key),
            **self._reading,
            **arguments,
        )

    def _call(self, verb: str, operation: str, key: str, **arguments: Any) -> Any:
        with border(verb, self.url_of(key), classify):
            client = self._client()
            try:
                return getattr(client, operation)(**arguments)
            except Exception as error:
                if self._options.anonymous or not _signature_refused(error):
                    raise
                signed = self._options
                forget((S3Store, signed, self._timeout))
                if verb in {"put", "delete"}:
                    raise
                # Public data are readable without a signature, and with a wrong one they are not.
                self._options = replace(signed, anonymous=True)
                try:
                    return getattr(self._client(), operation)(**arguments)
                except Exception as second:  # noqa: BLE001 - judged at the border
                    self._options = signed
                    telling = classify(second) or network_failure(second)
                    kind = telling.kind if telling else StoreError
                    told = issubclass(kind, (NotFoundError, TransientError))
                    raise (second if told else error) from None

    def _client(self) -> Any:
        options, timeout = self._options, self._timeout
        return per_process((S3Store, options, timeout), lambda: _make_client(options, timeout))

    def _answer(
        self, key: str, answer: Any, start: int, end: int | None, shown: str
    ) -> tuple[ObjectInfo, int]:
        """What the object is and how much of it comes; exactly the range, or an error."""
        length = int(answer["ContentLength"])
        total = length
        if start or end is not None:
            span, _, whole = str(answer.get("ContentRange", "")).rpartition("/")
            total = int(whole) if whole.isdecimal() else -1
            if not span.startswith(f"bytes {start}-"):
                answer["Body"].close()
                raise TransientError(
                    f"get {shown}: bytes from {start} on were asked for, the store answered with "
                    f"{span or 'no range'!r}.",
                    url=shown,
                    verb="get",
                )
        info = ObjectInfo(key, total, _etag(answer))
        try:
            self._check_range(info, start, end)
        except CorruptError:
            answer["Body"].close()
            raise
        return info, length if end is None else end - start


@cache
def _models(folders: str | None) -> Any:
    """The descriptions of services that botocore reads from large files: 50 ms of a client's 55.

    They are data and nothing else, so forked workers may go on with those of their parent.
    """
    from botocore.loaders import create_loader

    return create_loader(folders)


def _make_client(options: S3Options, timeout: float) -> Any:
    try:
        import boto3
        import botocore.session
        from botocore.config import Config
    except ImportError as error:
        raise need("boto3", "s3", "s3:// URLs") from error
    inner = botocore.session.Session()
    # What its clients are made of is read once a process, not once a client.
    models = _models(inner.get_config_variable("data_path"))
    inner.register_component("data_loader", models)
    session = boto3.Session(
        botocore_session=inner,
        aws_access_key_id=options.aws_access_key_id,
        aws_secret_access_key=options.aws_secret_access_key,
        aws_session_token=options.aws_session_token,
        region_name=options.region_name,
        profile_name=options.profile_name,
    )
    config = Config(
        max_pool_connections=_CONNECTIONS,
        connect_timeout=timeout,
        read_timeout=timeout,
        tcp_keepalive=True,
        # One try: trying again is the business of the wrapper around the store.
        retries={"total_max_attempts": 1, "mode": "standard"},
        s3={"addressing_style": options.addressing_style},
        signature_version=botocore.UNSIGNED if options.anonymous else None,
    )

    def make(chosen: Config) -> Any:
        return session.client(
            "s3",
            config=chosen,
            endpoint_url=options.endpoint_url,
            verify=options.verify,
            # A signature needs a region, also where the store has none.
            region_name=session.region_name or "us-east-1",
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


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _status(error: Exception) -> int:
    answer = getattr(error, "response", None)
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) if answer else 0


def _signature_refused(error: Exception) -> bool:
    from botocore.exceptions import ClientError, NoCredentialsError

    code = error.response["Error"].get("Code") if isinstance(error, ClientError) else ""
    if code in ("RequestTimeout", "InvalidRange"):
        return False
    return isinstance(error, NoCredentialsError) or code in _UNKNOWN or _status(error) == 400


_UNKNOWN = {"InvalidAccessKeyId", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
_BY_CODE: dict[str, type[StoreError]] = {
    **dict.fromkeys(_UNKNOWN, UnauthenticatedError),
    "SignatureDoesNotMatch": UnauthenticatedError,
    "RequestExpired": UnauthenticatedError,
    "NoSuchKey": NotFoundError,
    "NoSuchBucket": NotFoundError,
    "InvalidRange": CorruptError,
    "RequestTimeout": TransientError,
    "SlowDown": TransientError,
    "Throttling": TransientError,
    "ThrottlingException": TransientError,
    "InternalError": TransientError,
    "ServiceUnavailable": TransientError,
    "BadDigest": TransientError,
}
_BY_NAME: dict[str, type[StoreError]] = {
    "NoCredentialsError": UnauthenticatedError,
    "PartialCredentialsError": UnauthenticatedError,
    "NoAuthTokenError": UnauthenticatedError,
    "TokenRetrievalError": UnauthenticatedError,
    "UnauthorizedSSOTokenError": UnauthenticatedError,
    "SSOTokenLoadError": UnauthenticatedError,
    # The metadata service of a busy machine; it answers a moment later.
    "CredentialRetrievalError": TransientError,
    "MetadataRetrievalError": TransientError,
    "ReadTimeoutError": StalledError,
    "ConnectTimeoutError": StalledError,
    "FlexibleChecksumError": TransientError,
    "IncompleteReadError": TransientError,
    "ResponseStreamingError": TransientError,
    "ConnectionClosedError": TransientError,
    "EndpointConnectionError": TransientError,
}


def classify(error: Exception) -> Failure | None:
    """Judge what botocore raises."""
    from botocore.exceptions import BotoCoreError, ClientError

    if isinstance(error, ClientError):
        code = str(error.response["Error"].get("Code", ""))
        said = str(error.response["Error"].get("Message", ""))
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        what = f"{code}: {said}" if said not in ("", code) and not code.isdecimal() else code
        judged = status_failure(_status(error), what, headers.get("retry-after"))
        return replace(judged, kind=_BY_CODE.get(code, judged.kind))
    name = type(error).__name__
    if isinstance(error, BotoCoreError) and name in _BY_NAME:
        return Failure(_BY_NAME[name], str(error))
    return None
