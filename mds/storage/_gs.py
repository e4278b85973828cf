"""Google Cloud Storage: gs://bucket/prefix.

With the HMAC keys GCS_KEY and GCS_SECRET (or the options of these names) boto3 sends requests of
S3's kind, which Google Cloud Storage understands. Without them google-cloud-storage is used, with
the default credentials. Then bytes are read by HTTP requests of this library, which stream and
notice stalls.
STORAGE_EMULATOR_HOST points to an emulator.

`Store` (_base.py) describes the verbs. `classify` tells `translate_errors` which StoreError an
exception of the SDK becomes. Clients and credentials are made once per process (`per_process`), and
again after `forget`. The SDK's own retries are off (``retry=None``), since the wrapper `Retrying`
around each store retries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, BinaryIO
from urllib.parse import quote

from mds._process.fork_safe import forget, per_process
from mds.errors import (
    ConfigError,
    NotFoundError,
    TransientError,
    UnauthenticatedError,
    need,
)
from mds.storage._base import (
    Body,
    ObjectInfo,
    Settings,
    Store,
    check_endpoint,
    check_key,
    env,
    parse_options,
)
from mds.storage._http import HttpClient, by_status, empty_body
from mds.storage._s3 import S3Options, S3Store
from mds.storage._translate import Failure, status_failure, translate_errors
from mds.storage._url import parse_url, redact

_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)


@dataclass(frozen=True, slots=True)
class GsOptions:
    """Credentials and addresses of Google's own SDK.

    Attributes:
        project: Project of the client; only creating buckets needs one.
        credentials_file: Key file of a service account (default: the default credentials).
        anonymous: Whether to send requests without credentials.
        endpoint: URL to use instead of https://storage.googleapis.com.
        user_project: Project that is billed for the requests ("requester pays").
    """

    project: str | None = None
    credentials_file: str | None = None
    anonymous: bool = False
    endpoint: str | None = None
    user_project: str | None = None


def open_gs(url: str, options: Mapping[str, Any], timeout: float) -> Store:
    """Return the store for a gs:// URL: boto3 for HMAC keys, else Google's own SDK.

    ``options`` are fields of `GsOptions`, or with HMAC keys of `S3Options`.
    """
    remaining_options = dict(options)
    key = remaining_options.pop("gcs_key", None) or env("GCS_KEY")
    secret = remaining_options.pop("gcs_secret", None) or env("GCS_SECRET")
    own = {field.name for field in fields(GsOptions)}
    # HMAC keys select the S3 interface, unless an option is given that only Google's SDK takes.
    if key and secret and not own & remaining_options.keys():
        keys = {"aws_access_key_id": key, "aws_secret_access_key": secret}
        return GsHmacStore(url, {**keys, **remaining_options}, timeout)
    return GsStore(url, remaining_options, timeout)


class GsHmacStore(S3Store):
    """Objects below a prefix of a bucket, through the S3 dialect of Google Cloud Storage."""

    settings = S3Store.settings._replace(
        endpoint="the storage option endpoint_url=", credentials="Set GCS_KEY and GCS_SECRET."
    )

    def _settings(self, options: Mapping[str, Any]) -> S3Options:
        """Return the options of S3 with the endpoint and the region of Google Cloud Storage."""
        settings = parse_options(S3Options, options, "gs")
        endpoint = settings.endpoint_url or "https://storage.googleapis.com"
        return replace(settings, endpoint_url=endpoint, region_name=settings.region_name or "auto")


class GsStore(Store):
    """Objects below a prefix of a bucket, through google-cloud-storage.

    Args:
        url: URL ``gs://bucket/prefix``.
        options: Fields of `GsOptions`.
        timeout: Seconds without a byte after which a request has stalled.
    """

    lists_pages = True
    settings = Settings(
        "the storage option endpoint= (STORAGE_EMULATOR_HOST)",
        credentials="Run gcloud auth application-default login, or set "
        "GOOGLE_APPLICATION_CREDENTIALS to the key file of a service account.",
    )

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        place = parse_url(url)
        if not place.host:
            raise ConfigError(f"{redact(url)!r} names no bucket. Write gs://bucket/prefix.")
        settings = parse_options(GsOptions, options, "gs")
        emulator = env("STORAGE_EMULATOR_HOST")
        if emulator and settings.endpoint is None:
            # An emulator needs no credentials.
            address = emulator if "://" in emulator else f"http://{emulator}"
            settings = replace(settings, endpoint=address, anonymous=True)
        self.url = url
        self._options = replace(settings, endpoint=check_endpoint(settings.endpoint, "endpoint"))
        self._timeout = timeout
        self._bucket = place.host
        self._prefix = f"{place.path}/" if place.path else ""
        self._http = HttpClient(timeout)

    @property
    def address(self) -> str:
        """URL of Google Cloud Storage or of another endpoint."""
        return self._options.endpoint or "https://storage.googleapis.com"

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the object, or its bytes from ``start`` to before ``end``."""
        safe_url = self.url_of(key)
        if end is not None and end <= start:  # HTTP has no empty range
            return empty_body(self.head(key), safe_url)
        base = (self._options.endpoint or "https://storage.googleapis.com").rstrip("/")
        bucket, name = quote(self._bucket, safe=""), quote(self._name(key), safe="")
        url = f"{base}/download/storage/v1/b/{bucket}/o/{name}?alt=media"
        if self._options.user_project:
            url += f"&userProject={quote(self._options.user_project, safe='')}"
        with translate_errors("get", safe_url, classify):
            headers = self._auth_headers(url)
        body = self._http.stream(
            url, key, start, end, safe_url=safe_url, min_rate=self.min_rate, headers=headers
        )
        # Use the generation as the version, as `head` and `list` do.
        generation = body.headers.get("x-goog-generation", "")
        body.info = replace(body.info, version=generation, revision="")
        return body

    def head(self, key: str) -> ObjectInfo:
        """Return the size, and the generation as the version."""
        with translate_errors("head", self.url_of(key), classify):
            blob = self._bucket_of_sdk().get_blob(
                self._name(key), timeout=self._timeout, retry=None
            )
        if blob is None:
            url = self.url_of(key)
            raise NotFoundError(f"head {url}: there is no such object.", url=url, verb="head")
        return self._info(blob)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below a prefix."""
        with translate_errors("list", self.url_of(prefix), classify):
            blobs = self._bucket_of_sdk().list_blobs(
                prefix=self._prefix + prefix,
                fields="items(name,size,generation),nextPageToken",
                timeout=self._timeout,
                retry=None,
            )
            for blob in blobs:
                if not blob.name.endswith("/"):  # the placeholder of a folder
                    yield self._info(blob)

    def renew(self) -> bool:
        """Forget the credentials, so that the next request looks them up; return whether it can."""
        forget((GsStore, self._options))
        forget((GsStore, "login", self._options))
        return not self._options.anonymous

    def delete(self, key: str) -> None:
        """Delete the object; a missing one is no error."""
        with translate_errors("delete", self.url_of(key), classify):
            bucket = self._bucket_of_sdk()
            from google.api_core.exceptions import NotFound

            try:
                bucket.delete_blob(self._name(key), timeout=self._timeout, retry=None)
            except NotFound:
                return

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Upload an object in one request; see `Store._write`."""
        with translate_errors("put", self.url_of(key), classify):
            self._bucket_of_sdk().blob(self._name(key)).upload_from_file(
                file,
                size=size,
                content_type="application/octet-stream",
                timeout=self._timeout,
                retry=None,
                checksum="auto",
            )

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key) if key else self._prefix.rstrip("/")

    def _info(self, blob: Any) -> ObjectInfo:
        return ObjectInfo(
            blob.name[len(self._prefix) :], int(blob.size or 0), str(blob.generation or "")
        )

    def _bucket_of_sdk(self) -> Any:
        """Return the SDK's object for the bucket; this sends no request."""
        return self._client().bucket(self._bucket, user_project=self._options.user_project)

    def _client(self) -> Any:
        options = self._options
        return per_process((GsStore, options), lambda: _make_client(options))

    def _auth_headers(self, url: str) -> dict[str, str]:
        """Return headers of authentication for a GET of a URL."""
        headers: dict[str, str] = {}
        if not self._options.anonymous:
            credentials, transport = self._login()
            # Adds the headers; the transport renews expired credentials.
            credentials.before_request(transport, "GET", url, headers)
        return headers

    def _login(self) -> tuple[Any, Any]:
        """Return the credentials, and the transport by which they are renewed."""
        options = self._options
        return per_process((GsStore, "login", options), lambda: _make_login(options))


def _make_login(options: GsOptions) -> tuple[Any, Any]:
    """Return Google's credentials, and the transport by which they are renewed."""
    try:
        import google.auth
        from google.auth.transport.requests import Request
    except ImportError as error:
        raise need("google-cloud-storage", "gcs", "gs:// URLs") from error
    if options.credentials_file:
        credentials, _ = google.auth.load_credentials_from_file(
            options.credentials_file, scopes=_SCOPES, quota_project_id=options.user_project
        )
    else:
        credentials, _ = google.auth.default(scopes=_SCOPES)
    return credentials, Request()


def _make_client(options: GsOptions) -> Any:
    """Return a client of google-cloud-storage. Raises MissingDependencyError."""
    try:
        from google.auth.credentials import AnonymousCredentials
        from google.auth.transport.requests import AuthorizedSession
        from google.cloud.storage import Client
        from requests.adapters import HTTPAdapter
    except ImportError as error:
        raise need("google-cloud-storage", "gcs", "gs:// URLs") from error
    if options.anonymous:
        credentials = AnonymousCredentials()
    else:
        # The credentials of `GsStore._login`, so that client and direct requests renew them once.
        login = per_process((GsStore, "login", options), lambda: _make_login(options))
        credentials, _ = login
    # The SDK's own session keeps ten connections; more uploads at a time would reconnect each.
    session = AuthorizedSession(credentials)
    session.mount("https://", HTTPAdapter(pool_maxsize=64))
    session.mount("http://", HTTPAdapter(pool_maxsize=64))
    # Only creating buckets needs a project.
    settings: dict[str, Any] = {"credentials": credentials, "project": options.project or "none"}
    settings["_http"] = session
    if options.endpoint:
        settings["client_options"] = {"api_endpoint": options.endpoint}
    return Client(**settings)


def classify(error: Exception) -> Failure | None:
    """Return the failure that an exception of Google's libraries means; None for others."""
    code = getattr(error, "code", None)
    name = type(error).__name__
    if name in ("DefaultCredentialsError", "RefreshError", "InvalidOperation"):
        # The metadata service of a busy machine says when asking again may help.
        kind = TransientError if getattr(error, "retryable", False) else UnauthenticatedError
        return Failure(kind, f"{name}: {error}")
    if isinstance(code, int):  # google.api_core's exceptions carry the status
        return status_failure(code, str(getattr(error, "message", "")))
    # Exceptions of google.resumable_media carry the answer of the server.
    answer: Any = getattr(error, "response", None)
    if getattr(answer, "status_code", None):
        return status_failure(answer.status_code, str(error))
    return by_status(error)
