"""Amazon S3 and stores with the same interface, through boto3: s3://bucket/prefix.

The endpoint comes from the options, from S3_ENDPOINT_URL or from the SDK's own configuration. The
SDK's integrity checksums are used if the endpoint is Amazon's: other stores reject their headers on
upload or answer ranges with checksums of something else. Without credentials, and if the store
refuses them as malformed (400), unsigned requests are tried for reading.

Most requests bypass the SDK: `RangeRequests` (_s3_requests.py) signs and sends GETs and listings
itself ("directly"). The SDK sends what is left: writes, and reads that `RangeRequests` cannot send.

`Store` (_base.py) describes the verbs. `classify` tells `translate_errors` which StoreError an
exception becomes. Clients are made once per process and options (`per_process`), and again after
`forget`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from mds._process.fork_safe import forget, per_process
from mds.errors import (
    ConfigError,
    CorruptError,
    DeniedError,
    MdsError,
    NotFoundError,
    StalledError,
    StoreError,
    TransientError,
    UnauthenticatedError,
    UnreachableError,
    need,
)
from mds.storage._base import (
    CHUNK,
    Body,
    LeastRate,
    ObjectInfo,
    Settings,
    Store,
    Upload,
    check_endpoint,
    check_key,
    env,
    find_file,
    parse_options,
)
from mds.storage._http import PacedStream, check_encoding, empty_body, format_range, is_page
from mds.storage._s3_requests import (
    ListingPage,
    RangeRequests,
    S3Client,
    StoreAnswerError,
    open_range_requests,
    show_example,
)
from mds.storage._translate import (
    Failure,
    network_failure,
    status_failure,
    translate_chunks,
    translate_errors,
)
from mds.storage._url import parse_url, redact

_MAX_CONNECTIONS = 64
_SDK_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_PROFILE")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)$")


@dataclass(frozen=True, slots=True)
class S3Options:
    """Options of S3. Those that are not listed here have the names and meanings of boto3.

    Attributes:
        anonymous: Whether to send unsigned requests.
        requester_pays: Whether to agree to pay for requests (default: for the buckets named in
            MOSAICML_STREAMING_AWS_REQUESTER_PAYS).
        acl: Access control list of uploads (default: S3_CANNED_ACL).
        verify: Whether to check the server's certificate, or a file of trusted certificates.
        addressing_style: "path", "virtual" or "auto": where URLs of requests name the bucket.
        checksums: Whether to use the SDK's integrity checksums (default: on Amazon only).
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


class S3Store(Store):
    """Objects below a prefix of a bucket.

    Args:
        url: URL ``s3://bucket/prefix``.
        options: Fields of `S3Options`.
        timeout: Seconds without a byte after which a request has stalled.
    """

    #: Files above this size in bytes are uploaded in parts; a usual shard is one request.
    multipart_from = 128 << 20
    upload_part_size = 32 << 20
    #: Ranges are requested without the SDK, which takes four times the processor time.
    asks_for_ranges = True
    lists_pages = True
    settings = Settings(
        "the storage option endpoint_url= (S3_ENDPOINT_URL)",
        "give the storage option verify=, a file with the certificates to trust, or set "
        "AWS_CA_BUNDLE to it",
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), or AWS_PROFILE.",
    )

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        place = parse_url(url)
        if not place.host:
            raise ConfigError(
                f"{redact(url)!r} names no bucket. Write {place.scheme}://bucket/prefix."
            )
        self.url = url
        self._timeout = timeout
        self._bucket = place.host
        self._prefix = f"{place.path}/" if place.path else ""
        self._options = self._settings(options)
        # The SDK reads these too, so a change there needs a new client.
        self._environment = tuple(map(env, _SDK_VARIABLES))
        # Arguments of the SDK's operations for reading and uploading.
        self._common_arguments: dict[str, str] = {}
        if self._options.requester_pays:
            self._common_arguments["RequestPayer"] = "requester"

    @property
    def address(self) -> str:
        """URL of the endpoint."""
        with contextlib.suppress(Exception):  # a client that the SDK cannot make sends no requests
            return str(self._client().meta.endpoint_url)
        return super().address

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the object, or a range of it, if possible without the SDK."""
        safe_url = self.url_of(key)
        if end is not None and end <= start:  # HTTP has no empty range
            return empty_body(self.head(key), safe_url)
        # Value of the Range header, or None for the whole object.
        span = format_range(start, end) if start or end is not None else None
        body = self._stream_directly(key, start, end, span, safe_url)
        if body is not None:
            return body
        range_argument = {} if span is None else {"Range": span}
        answer = self._read("get", "get_object", key, **range_argument)
        info, length = self._check_answer(key, answer, start, end, safe_url)
        body = answer["Body"]
        raw = getattr(body, "_raw_stream", None)
        if hasattr(raw, "read1"):
            # Wrap the raw stream, so that the SDK's stream above it still checks checksums.
            body._raw_stream = PacedStream(  # noqa: SLF001
                raw, LeastRate(self.min_rate, self._timeout), safe_url
            )
        chunks = translate_chunks(iter(partial(body.read, CHUNK), b""), safe_url, classify)
        return Body(info, chunks, length, url=safe_url, close=body.close)

    def head(self, key: str) -> ObjectInfo:
        """Return the size, and the etag as the version."""
        try:
            answer = self._read("head", "head_object", key)
        except StoreError as error:
            if type(error) not in (DeniedError, StoreError):
                raise
            # The response to a HEAD has no body that says why, such as a wrong secret.
            with self.stream(key, 0, 1) as body:
                return body.info
        return ObjectInfo(
            key, int(answer.get("ContentLength", -1)), _etag(answer), _revision(answer)
        )

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below a prefix, a thousand per request."""
        token, prefix_size = "", len(self._prefix)
        while True:
            page = self._list_directly(prefix, token) or self._list_by_sdk(prefix, token)
            for entry in page.objects:
                name = entry.key[prefix_size:]
                if name and not name.endswith("/"):  # the placeholder of a folder
                    yield ObjectInfo(name, entry.size, entry.version)
            if not page.next_token:
                return
            token = page.next_token

    def renew(self) -> bool:
        """Forget the credentials, so that the next request reads them again as boto3 does."""
        self._forget(self._options)
        return not self._options.anonymous

    def delete(self, key: str) -> None:
        """Delete the object."""
        self._call("delete", "delete_object", key, Bucket=self._bucket, Key=self._name(key))

    def list_uploads(self) -> Iterator[Upload]:
        """List multipart uploads that did not end; S3 bills them until they are removed."""
        next_page: dict[str, str] = {}
        while True:
            page = self._call(
                "list",
                "list_multipart_uploads",
                "",
                Bucket=self._bucket,
                Prefix=self._prefix,
                **self._common_arguments,
                **next_page,
            )
            for entry in page.get("Uploads", ()):
                yield Upload(str(entry["Key"])[len(self._prefix) :], str(entry["UploadId"]))
            if not page.get("IsTruncated"):
                return
            next_page = {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page["NextUploadIdMarker"],
            }

    def abort_upload(self, upload: Upload) -> None:
        """Abort the upload and delete its parts."""
        with contextlib.suppress(NotFoundError):
            self._call(
                "delete",
                "abort_multipart_upload",
                upload.key,
                Bucket=self._bucket,
                Key=self._name(upload.key),
                UploadId=upload.identifier,
                **self._common_arguments,
            )

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Upload an object, in parts if it is large; see `Store._write`."""
        extra = dict(self._common_arguments)
        if self._options.acl:
            extra["ACL"] = self._options.acl
        name = self._name(key)
        if size <= self.multipart_from:
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
        with translate_errors("put", self.url_of(key), classify):
            from boto3.s3.transfer import TransferConfig, create_transfer_manager

            config = TransferConfig(
                multipart_threshold=self.multipart_from,
                multipart_chunksize=self.upload_part_size,
                max_concurrency=4,
            )
            with create_transfer_manager(self._client(), config) as manager:
                manager.upload(file, self._bucket, name, extra_args=extra).result()

    def _settings(self, options: Mapping[str, Any]) -> S3Options:
        """Return the options, with missing ones taken from the environment."""
        settings = parse_options(S3Options, options, "s3")
        payers = (env("MOSAICML_STREAMING_AWS_REQUESTER_PAYS") or "").split(",")
        pays = settings.requester_pays
        if pays is None:
            pays = self._bucket in {name.strip() for name in payers}
        return replace(
            settings,
            endpoint_url=check_endpoint(
                settings.endpoint_url or env("S3_ENDPOINT_URL"), "endpoint_url"
            ),
            acl=settings.acl or env("S3_CANNED_ACL"),
            verify=find_file("verify", settings.verify)
            if isinstance(settings.verify, str)
            else settings.verify,
            requester_pays=pays,
        )

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key) if key else self._prefix.rstrip("/")

    def _read(self, verb: str, operation: str, key: str, **arguments: Any) -> Any:
        """Call an operation of the SDK that reads an object; see `_call`."""
        return self._call(
            verb,
            operation,
            key,
            Bucket=self._bucket,
            Key=self._name(key),
            **self._common_arguments,
            **arguments,
        )

    def _call(self, verb: str, operation: str, key: str, **arguments: Any) -> Any:
        """Call an operation of the SDK, such as "get_object", and return its answer.

        If the store refuses the signature of a request that reads, it is sent again unsigned, and
        if that succeeds, all later requests are unsigned. ``verb`` and ``key`` are for errors.
        """
        with translate_errors(verb, self.url_of(key), classify):
            signed = self._options
            client = self._client()
            try:
                return getattr(client, operation)(**arguments)
            except Exception as error:
                if signed.anonymous or not signature_refused(error):
                    raise
                self._forget(signed)  # the next client reads the credentials again
                if verb in {"put", "delete"}:  # nobody may write without a signature
                    raise
                # Public data can be read without a signature, but not with a wrong one. Other
                # threads continue to sign until an unsigned request has succeeded.
                unsigned = replace(signed, anonymous=True)
                try:
                    answer = getattr(self._client(unsigned), operation)(**arguments)
                except Exception as unsigned_error:  # noqa: BLE001 - judged at translate_errors
                    # Usually an unsigned request is denied, which only hides the first error. But
                    # it may also find out that the object is missing, or the server is down.
                    failure = classify(unsigned_error) or network_failure(unsigned_error)
                    kind = failure.kind if failure else StoreError
                    says_more = issubclass(kind, (NotFoundError, TransientError))
                    raise (unsigned_error if says_more else error) from None
                self._options = unsigned
                return answer

    def _stream_directly(
        self, key: str, start: int, end: int | None, span: str | None, safe_url: str
    ) -> Body | None:
        """Stream by a request of this library, or return None if the SDK must send the request.

        Args:
            key: Key of the object.
            start: First byte.
            end: End of the bytes, exclusive; None for the end of the object.
            span: The same range as the value of the Range header; None for a whole object.
            safe_url: URL of the object in errors.
        """
        name = self._name(key)
        with translate_errors("get", safe_url, classify):
            requests = self._range_requests()
            if requests is None or (span is None and not requests.may_read_whole_objects):
                return None
            answer = requests.ask(name, span)
            if answer is None:
                if requests.have_lengths:
                    # The bucket may be in another region, or the credentials may be new: prepare
                    # the requests anew after the SDK has found out.
                    forget(self._ranges_key(self._options))
                return None
        # The names that the SDK gives to these facts, so that `_check_answer` reads both answers.
        facts = {
            "ContentLength": answer.length,
            "ContentRange": answer.headers.get("content-range", ""),
            "ContentEncoding": answer.headers.get("content-encoding", ""),
            "ContentType": answer.headers.get("content-type", ""),
            "ETag": answer.headers.get("etag", ""),
            "ResponseMetadata": {"HTTPHeaders": answer.headers},
            "Body": answer,
        }
        info, length = self._check_answer(key, facts, start, end, safe_url)
        pieces = answer.body(LeastRate(self.min_rate, self._timeout), safe_url)
        chunks = translate_chunks(pieces, safe_url, classify)
        return Body(info, chunks, length, url=safe_url, close=answer.close)

    def _list_directly(self, prefix: str, next_token: str) -> ListingPage | None:
        """Return a page of a listing by a request of this library; None if the SDK must send it.

        ``next_token`` is the token for this page, with which the page before ended; '' for the
        first page.
        """
        safe_url = self.url_of(prefix)
        with translate_errors("list", safe_url, classify):
            requests = self._range_requests()
            if requests is None:
                return None
            least_rate = LeastRate(self.min_rate, self._timeout)
            page = requests.list(self._prefix + prefix, next_token, least_rate, safe_url)
            if page is None:
                # The bucket may be in another region, or the credentials may be new: prepare the
                # requests anew after the SDK has found out.
                forget(self._ranges_key(self._options))
            return page

    def _list_by_sdk(self, prefix: str, next_token: str) -> ListingPage:
        """Return a page of a listing by the SDK; the arguments are those of `_list_directly`."""
        arguments = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        if next_token:
            arguments["ContinuationToken"] = next_token
        page = self._call("list", "list_objects_v2", prefix, **arguments, **self._common_arguments)
        objects = [
            ObjectInfo(str(entry["Key"]), int(entry["Size"]), _etag(entry))
            for entry in page.get("Contents", ())
        ]
        return ListingPage(
            objects, page["NextContinuationToken"] if page.get("IsTruncated") else ""
        )

    def _range_requests(self) -> RangeRequests | None:
        """Return this process's sender of direct requests to the bucket.

        Return None if only the SDK can send them.
        """
        options = self._options

        def make() -> RangeRequests | None:
            client = self._shared_client(options)
            return open_range_requests(client, self._bucket, self._common_arguments, self._timeout)

        try:
            return per_process(self._ranges_key(options), make)
        except MdsError:
            raise
        except Exception:  # noqa: BLE001 - the SDK raises it again, as for missing credentials
            return None

    def _ranges_key(self, options: S3Options) -> tuple[object, ...]:
        """Return the key of the `RangeRequests` in `per_process`."""
        return (RangeRequests, self._bucket, options, self._timeout, self._environment)

    def _forget(self, options: S3Options) -> None:
        """Drop this process's clients with these options, and their credentials."""
        forget((S3Store, options, self._timeout, self._environment))
        forget(self._ranges_key(options))

    def _client(self, options: S3Options | None = None) -> Any:
        """Return this process's client of botocore with ``options`` (default: the store's)."""
        return self._shared_client(options or self._options).client

    def _shared_client(self, options: S3Options) -> S3Client:
        timeout = self._timeout
        key = (S3Store, options, timeout, self._environment)
        return per_process(key, lambda: make_client(options, timeout))

    def _check_answer(
        self, key: str, answer: Any, start: int, end: int | None, safe_url: str
    ) -> tuple[ObjectInfo, int | None]:
        """Return the facts about an object, and the length of the answer's body (None: unknown).

        ``answer`` is the SDK's answer to a GET of bytes ``start`` to ``end``. If it is not this
        range, a StoreError is raised and the body is closed.
        """
        try:
            check_encoding(
                key, {"content-encoding": str(answer.get("ContentEncoding", ""))}, safe_url
            )
            info, length = _parse_answer(key, answer, start, end, safe_url)
            self._check_range(info, start, end)
        except StoreError:
            answer["Body"].close()
            raise
        return info, length


def _parse_answer(
    key: str, answer: Any, start: int, end: int | None, safe_url: str
) -> tuple[ObjectInfo, int | None]:
    """Return the facts about an object, and the length of the answer's body (None: unknown).

    ``answer`` is the SDK's answer to a GET of bytes ``start`` to ``end`` (None: to the end).
    Raises StoreError if the answer is another range or no range.
    """
    length = int(answer.get("ContentLength", -1))
    content_range = str(answer.get("ContentRange") or "")
    if not content_range:
        is_range = start or end is not None
        # A range from 0 to the end of the object may be answered with the whole object.
        if is_range and (start or length != end):
            page = is_page(key, {"content-type": str(answer.get("ContentType", ""))})
            reason = (
                "a web page. Does it want a login? Check the endpoint and the credentials"
                if page
                else "the whole object: it ignores Range. Copy the dataset to another store"
            )
            raise StoreError(
                f"get {safe_url}: bytes from {start} on were requested, but the store answered "
                f"with {reason}.",
                url=safe_url,
                verb="get",
            )
        info = ObjectInfo(key, length, _etag(answer), _revision(answer))
        return info, length if length >= 0 else None
    match = _CONTENT_RANGE.match(content_range)
    if match is None or int(match[1]) != start:
        raise TransientError(
            f"get {safe_url}: bytes from {start} on were requested, but the store answered with "
            f"{content_range.rpartition('/')[0]!r}.",
            url=safe_url,
            verb="get",
        )
    total = int(match[3]) if match[3] != "*" else -1
    length = int(match[2]) + 1 - start if end is None else end - start
    return ObjectInfo(key, total, _etag(answer), _revision(answer)), length


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _revision(answer: Mapping[str, Any]) -> str:
    """Return the time of the last write, and its id in a bucket that keeps versions."""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    facts = (headers.get("last-modified"), headers.get("x-amz-version-id"))
    return " ".join(filter(None, facts))


def _status(error: Exception) -> int:
    """Return the HTTP status in an exception of botocore, or 0."""
    answer = getattr(error, "response", None)
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) if answer else 0


def signature_refused(error: Exception) -> bool:
    """Whether a request failed for its signature: an unsigned or newly signed one may succeed.

    Many stores answer 400 (Bad Request) to credentials of a form that they do not know.
    """
    from botocore.exceptions import ClientError, NoCredentialsError

    code = error.response["Error"].get("Code") if isinstance(error, ClientError) else ""
    if code in ("RequestTimeout", "InvalidRange"):
        return False
    if isinstance(error, NoCredentialsError) or code in _BAD_CREDENTIALS:
        return True
    return _status(error) == 400


#: S3's codes for keys and tokens that it does not know or that have expired.
_BAD_CREDENTIALS = {"InvalidAccessKeyId", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
_BY_CODE: dict[str, type[StoreError]] = {
    **dict.fromkeys(_BAD_CREDENTIALS, UnauthenticatedError),
    "SignatureDoesNotMatch": UnauthenticatedError,
    "RequestExpired": UnauthenticatedError,
    "UnsupportedAlgorithm": UnauthenticatedError,  # of rclone, to unsigned requests
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
    "ConnectTimeoutError": UnreachableError,
    "FlexibleChecksumError": TransientError,
    "IncompleteReadError": TransientError,
    "ResponseStreamingError": TransientError,
    "ConnectionClosedError": TransientError,
    "EndpointConnectionError": UnreachableError,
}


def classify(error: Exception) -> Failure | None:
    """Return the failure for an exception of botocore or of s3_requests; None for others."""
    from botocore.exceptions import BotoCoreError, ClientError

    if isinstance(error, StoreAnswerError):
        return _judge(error.status, error.code, error.message, error.retry_after)
    if isinstance(error, ClientError):
        code = str(error.response["Error"].get("Code", ""))
        message = str(error.response["Error"].get("Message", ""))
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return _judge(_status(error), code, message, headers.get("retry-after"))
    name = type(error).__name__
    if isinstance(error, RecursionError) or (
        name == "HTTPClientError" and "recursion" in str(error)
    ):
        # The SDK asks for the region of the bucket, and the answer is the same redirect again.
        return Failure(StoreError, "301 PermanentRedirect: the bucket has another endpoint")
    if isinstance(error, BotoCoreError) and name in _BY_NAME:
        return Failure(_BY_NAME[name], str(error))
    return None


def _judge(status: int, code: str, message: str, retry_after: str | None) -> Failure:
    """Return the failure for an HTTP status and S3's error code, such as "NoSuchKey"."""
    text = f"{code}: {message}" if message not in ("", code) and not code.isdecimal() else code
    failure = status_failure(status, text, retry_after)
    # S3's code says more than the status: 400 may be an expired token or a damaged upload.
    return replace(failure, kind=_BY_CODE.get(code, failure.kind))


@cache
def _model_loader(folders: str | None) -> Any:
    """Return botocore's loader of service descriptions, which take 50 of a client's 55 ms to load.

    They are plain data, so forked workers may use those of their parent. ``folders`` is botocore's
    search path for them.
    """
    from botocore.loaders import create_loader

    return create_loader(folders)


def make_client(options: S3Options, timeout: float) -> S3Client:
    """Create a client of the SDK. Raises MissingDependencyError without the package.

    The SDK is botocore, the basis of boto3. Without the rest of boto3 a process has its first
    client after 0.48 s of processor time instead of 0.70 s.
    """
    try:
        import botocore.session
    except ImportError as error:
        raise need("boto3", "s3", "s3:// URLs") from error
    session = botocore.session.Session(profile=options.profile_name)
    # Load the descriptions of services once per process, not once per client.
    models = _model_loader(session.get_config_variable("data_path"))
    session.register_component("data_loader", models)
    keys = (options.aws_access_key_id, options.aws_secret_access_key, options.aws_session_token)
    if any(keys):
        session.set_credentials(*keys)
    if options.region_name is not None:
        session.set_config_variable("region", options.region_name)
    client = _make_sdk_client(session, options, timeout)
    # For `find_template`, which lets the SDK sign an example request and catches it.
    client.meta.events.register_first("before-send.s3.GetObject", show_example)
    verify = options.verify
    if verify is None:
        verify = session.get_config_variable("ca_bundle")
    provider = None if options.anonymous else session.get_credentials()
    return S3Client(client, provider, True if verify is None else verify)


def _make_sdk_client(session: Any, options: S3Options, timeout: float) -> Any:
    """Return botocore's S3 client, which uses checksums as `S3Options.checksums` says."""
    import botocore
    from botocore.config import Config

    config = Config(
        max_pool_connections=_MAX_CONNECTIONS,
        connect_timeout=timeout,
        read_timeout=timeout,
        tcp_keepalive=True,
        # No retries here: the wrapper `Retrying` around the store retries.
        retries={"total_max_attempts": 1, "mode": "standard"},
        s3={"addressing_style": options.addressing_style},
        signature_version=botocore.UNSIGNED if options.anonymous else None,
    )

    def make_client_with(settings: Config) -> Any:
        """Return a client with the session's credentials and these settings."""
        return session.create_client(
            "s3",
            config=settings,
            endpoint_url=options.endpoint_url,
            verify=options.verify,
            # A signature needs a region, even if the store has none.
            region_name=session.get_config_variable("region") or "us-east-1",
        )

    # The same without the SDK's integrity checksums, which other stores do not support.
    unchecked = config.merge(
        Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
    )
    if options.checksums is not None:
        return make_client_with(config if options.checksums else unchecked)
    if options.endpoint_url is not None and not _is_amazon(options.endpoint_url):
        return make_client_with(unchecked)
    client = make_client_with(config)
    # The endpoint may also come from AWS_ENDPOINT_URL or a profile, which the SDK reads.
    return client if _is_amazon(client.meta.endpoint_url) else make_client_with(unchecked)


def _is_amazon(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
