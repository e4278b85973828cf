"""Azure Blob Storage and Data Lake: azure:// and azure-dl://, through azure-storage-blob.

Forms: ``azure://container/prefix`` with the account from AZURE_ACCOUNT_NAME, or with the account
in the URL as ``azure://account.blob.core.windows.net/container/prefix``,
``azure://container@account.blob.core.windows.net/prefix`` or ``azure://account/container/prefix``.
Data Lake accounts answer to the blob protocol too, so both schemes are one provider.

`Store` (_base.py) describes the verbs. `classify` tells `translate_errors` which StoreError an
exception of the SDK becomes. The SDK's client is made once per process (`per_process`), and again
after `forget`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, BinaryIO

from mds._process.fork_safe import forget, per_process
from mds.errors import (
    ConfigError,
    StalledError,
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
from mds.storage._http import HttpClient, StatusError, empty_body
from mds.storage._translate import Failure, network_failure, status_failure, translate_errors
from mds.storage._url import Location, parse_url

# The SDK downloads a blob in pieces of some megabytes, holds each in memory and retries it itself.
# So bytes are read by plain HTTP requests with the same rights, which stream and notice stalls.
_API = "2021-12-02"
_SCOPE = "https://storage.azure.com/.default"
_SIGNED_FOR = 3600.0
_HOST = "blob.core.windows.net"


@dataclass(frozen=True, slots=True)
class AzureOptions:
    """Account and credentials; without credentials azure-identity looks for some.

    Attributes:
        account_name: Account (default: AZURE_ACCOUNT_NAME).
        account_key: Key of the account (default: AZURE_ACCOUNT_ACCESS_KEY).
        sas_token: Shared access signature, instead of a key.
        connection_string: Account and credentials in one text (default without any option and
            without a key: AZURE_STORAGE_CONNECTION_STRING).
        endpoint: URL to use instead of the account's usual address.
        anonymous: Whether to send requests without credentials.
    """

    account_name: str | None = None
    account_key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    connection_string: str | None = field(default=None, repr=False)
    endpoint: str | None = None
    anonymous: bool = False


class AzureStore(Store):
    """Objects below a prefix of a container.

    Args:
        url: URL in one of the forms at the top of this module.
        options: Fields of `AzureOptions`.
        timeout: Seconds without a byte after which a request has stalled.
    """

    lists_pages = True
    settings = Settings(
        "the storage option endpoint= (AZURE_STORAGE_CONNECTION_STRING, AZURE_ACCOUNT_NAME)",
        credentials="Set AZURE_ACCOUNT_NAME and AZURE_ACCOUNT_ACCESS_KEY, or give the storage "
        "option sas_token=.",
    )

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        place = parse_url(url)
        settings = parse_options(AzureOptions, options, place.scheme)
        key = settings.account_key or env("AZURE_ACCOUNT_ACCESS_KEY")
        connection = settings.connection_string
        # Options may name another account than the connection string of the environment, which is
        # used only if there are none.
        if not key and not options:
            connection = env("AZURE_STORAGE_CONNECTION_STRING")
        settings = replace(
            settings,
            account_name=settings.account_name or env("AZURE_ACCOUNT_NAME"),
            account_key=key,
            connection_string=connection,
        )
        endpoint, account, self._container, path = _locate(place, settings)
        self.url = url
        endpoint = check_endpoint(endpoint, "endpoint")
        self._options = replace(settings, endpoint=endpoint, account_name=account)
        self._timeout = timeout
        self._prefix = f"{path}/" if path else ""
        self._http = HttpClient(timeout, classify=classify)

    @property
    def address(self) -> str:
        """URL of the account."""
        with contextlib.suppress(Exception):  # a client that the SDK cannot make sends no requests
            return str(self._service().url)
        return super().address

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the object, or its bytes from ``start`` to before ``end``."""
        safe_url = self.url_of(key)
        if end is not None and end <= start:  # HTTP has no empty range
            return empty_body(self.head(key), safe_url)
        with translate_errors("get", safe_url, classify):
            url, headers = self._signed_request(key)
        body = self._http.stream(
            url, key, start, end, safe_url=safe_url, min_rate=self.min_rate, headers=headers
        )
        # Every write changes the etag; `head` and `list` give no revision.
        body.info = replace(body.info, revision="")
        return body

    def head(self, key: str) -> ObjectInfo:
        """Return the size, and the etag as the version."""
        with translate_errors("head", self.url_of(key), classify):
            return _info(key, self._blob(key).get_blob_properties())

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below a prefix."""
        with translate_errors("list", self.url_of(prefix), classify):
            container = self._service().get_container_client(self._container)
            for entry in container.list_blobs(self._prefix + prefix, include=["metadata"]):
                folder = (entry.metadata or {}).get("hdi_isfolder") == "true"
                if not folder:  # Data Lake lists its folders as empty objects
                    yield _info(entry.name[len(self._prefix) :], entry)

    def renew(self) -> bool:
        """Forget the credentials, so that the next request looks them up; return whether it can."""
        forget((AzureStore, self._options, self._timeout))
        return not self._options.anonymous

    def delete(self, key: str) -> None:
        """Delete the object; a missing one is no error."""
        with translate_errors("delete", self.url_of(key), classify):
            blob = self._blob(key)
            from azure.core.exceptions import ResourceNotFoundError

            try:
                # Azure deletes a blob that has snapshots only together with them.
                blob.delete_blob(delete_snapshots="include")
            except ResourceNotFoundError:
                return

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Upload a blob; see `Store._write`."""
        with translate_errors("put", self.url_of(key), classify):
            # The SDK uploads blocks, and readers see the blob once it commits all of them.
            self._blob(key).upload_blob(file, length=size, overwrite=True, max_concurrency=4)

    def _blob(self, key: str) -> Any:
        """Return the SDK's BlobClient of an object."""
        name = self._prefix + check_key(key) if key else self._prefix.rstrip("/")
        return self._service().get_blob_client(self._container, name)

    def _signed_request(self, key: str) -> tuple[str, dict[str, str]]:
        """Return a URL and headers with which a plain HTTP request can read an object.

        The rights come from one of: an account key, which signs the URL; a token of Azure's login
        service in a header; the options' shared access signature, which the SDK puts into the
        URL's query. Public data needs none.
        """
        blob = self._blob(key)
        url, _, query = str(blob.url).partition("?")
        headers = {"x-ms-version": _API}
        credential = self._service().credential
        if hasattr(credential, "account_key"):
            query = self._signed_query(credential)
        elif hasattr(credential, "get_token"):
            headers["Authorization"] = f"Bearer {credential.get_token(_SCOPE).token}"
        return (f"{url}?{query}" if query else url), headers

    def _signed_query(self, credential: Any) -> str:
        """Return a query string that permits to read the container for one to two hours.

        It is a shared access signature, made with the account's key once per hour and process.
        One that is made at 10:05 or used at 10:59 is valid until 12:00. ``credential`` is the SDK's
        object with the name and the key of the account.
        """
        hour = int(time.time() / _SIGNED_FOR)  # hours since 1970

        def make_query() -> str:
            """Return the signature of this hour, which is valid until the end of the next one."""
            from azure.storage.blob import ContainerSasPermissions, generate_container_sas

            signature: str = generate_container_sas(
                credential.account_name,
                self._container,
                account_key=credential.account_key,
                permission=ContainerSasPermissions(read=True),
                expiry=datetime.fromtimestamp((hour + 2) * _SIGNED_FOR, timezone.utc),
            )
            return signature

        # Drop the signature of the hour before, which `per_process` would keep.
        forget((AzureStore, "read", self._options, self._container, hour - 1))
        return per_process((AzureStore, "read", self._options, self._container, hour), make_query)

    def _service(self) -> Any:
        options, timeout = self._options, self._timeout
        return per_process((AzureStore, options, timeout), lambda: _make_service(options, timeout))


def _locate(place: Location, options: AzureOptions) -> tuple[str | None, str | None, str, str]:
    """Return the endpoint, account, container and path that a URL and the options name together.

    Raises ConfigError if they name no container.
    """
    first, _, remaining_path = place.path.partition("/")
    account = options.account_name
    if place.user is not None:  # azure://container@account.blob.core.windows.net/path
        container, path, host = place.user, place.path, place.host.rpartition("@")[2]
    elif "." in place.host or ":" in place.host:  # azure://account.blob.core.windows.net/...
        container, path, host = first, remaining_path, place.host
    elif place.host and (place.host == account or _names_account(place, options)):
        # azure://account/container/path
        account, container, path, host = place.host, first, remaining_path, ""
    elif place.host:  # azure://container/path
        container, path, host = place.host, place.path, ""
    else:  # azure:///container/path
        container, path, host = first, remaining_path, ""
    if host:
        account = account or host.partition(".")[0]
        # The Data Lake address of an account; the blob protocol has its own.
        host = host.replace(".dfs.core.", ".blob.core.")
    if not container:
        raise ConfigError(
            f"{place.url!r} names no container. Write {place.scheme}://container/prefix and set "
            f"AZURE_ACCOUNT_NAME, or {place.scheme}://account.{_HOST}/container/prefix."
        )
    endpoint = options.endpoint or (f"https://{host}" if host else None)
    if endpoint is None and account:
        endpoint = f"https://{account}.{_HOST}"
    return endpoint, account, container, path


def _names_account(place: Location, options: AzureOptions) -> bool:
    """Whether the host of a URL must be the account, since no option or variable names one."""
    account_source = options.account_name or options.connection_string or options.endpoint
    return not account_source and bool(place.path)


def _make_service(options: AzureOptions, timeout: float) -> Any:
    """Return the SDK's BlobServiceClient. Raises MissingDependencyError and ConfigError."""
    try:
        from azure.storage.blob import BlobServiceClient
    except ImportError as error:
        raise need("azure-storage-blob", "azure", "azure:// URLs") from error
    settings = {
        # No retries here: the wrapper `Retrying` around the store retries.
        "retry_total": 0,
        "connection_timeout": timeout,
        "read_timeout": timeout,
        "max_single_put_size": 64 << 20,
        "max_block_size": 16 << 20,
        "connection_data_block_size": 1 << 20,
        "session": _session(),
        "session_owner": False,
    }
    if options.connection_string:
        return BlobServiceClient.from_connection_string(options.connection_string, **settings)
    if options.endpoint is None:
        raise ConfigError(
            "An azure:// URL needs the account: set AZURE_ACCOUNT_NAME, or give the storage "
            "option account_name, or write azure://account.blob.core.windows.net/container."
        )
    return BlobServiceClient(options.endpoint, credential=_credential(options), **settings)


def _credential(options: AzureOptions) -> Any:
    """Return the credential in the form that the SDK takes: None, a dict, a text or an object."""
    if options.anonymous:
        return None
    if options.account_key:
        return {"account_name": options.account_name, "account_key": options.account_key}
    if options.sas_token:
        return options.sas_token
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError as error:
        raise need("azure-identity", "azure", "azure:// URLs without an account key") from error
    return DefaultAzureCredential()


def _session() -> Any:
    """Return a session of requests that keeps 64 connections; its default is ten."""
    import requests
    from requests.adapters import HTTPAdapter

    session = requests.Session()
    session.mount("https://", HTTPAdapter(pool_maxsize=64))
    session.mount("http://", HTTPAdapter(pool_maxsize=64))
    return session


def _info(key: str, properties: Any) -> ObjectInfo:
    return ObjectInfo(key, int(properties.size), str(properties.etag or "").strip('"'))


def classify(error: Exception) -> Failure | None:
    """Return the failure that an exception of the Azure SDK means; None for other exceptions."""
    from azure.core import exceptions as azure

    if isinstance(error, azure.ClientAuthenticationError) and error.status_code is None:
        return Failure(UnauthenticatedError, f"{error}".splitlines()[0])
    if isinstance(error, StatusError):
        headers = error.headers
        return _judge(error.status, headers.get("x-ms-error-code") or error.reason, headers)
    if isinstance(error, azure.HttpResponseError) and error.status_code:
        code = getattr(error, "error_code", None) or error.reason or ""
        headers = getattr(error.response, "headers", None) or {}
        return _judge(error.status_code, str(getattr(code, "value", code)), headers)
    broken = (azure.IncompleteReadError, azure.ServiceRequestError, azure.ServiceResponseError)
    if isinstance(error, broken):
        kind = StalledError if "timed out" in str(error) else TransientError
        network = network_failure(error)
        return Failure(network.kind if network else kind, str(error))
    return None


def _judge(status: int, code: str, headers: Mapping[str, str]) -> Failure:
    """Return the failure for an HTTP status and Azure's error code, such as "BlobNotFound"."""
    judged = status_failure(status, code, headers.get("retry-after"))
    if code in ("AuthenticationFailed", "NoAuthenticationInformation"):
        return replace(judged, kind=UnauthenticatedError)
    return judged
