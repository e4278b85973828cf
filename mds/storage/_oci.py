"""Oracle Cloud Object Storage: oci://bucket@namespace/prefix, through its own SDK.

Without a namespace in the URL, one request asks for the account's own. Credentials come from
~/.oci/config, or with ``auth='instance_principal'`` from the machine.

`Store` (_base.py) describes the verbs. `classify` tells `translate_errors` which StoreError an
exception of the SDK becomes. The SDK's client is made once per process (`per_process`), and again
after `forget`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from mds._process.fork_safe import forget, per_process
from mds.errors import (
    ConfigError,
    CorruptError,
    TransientError,
    UnauthenticatedError,
    need,
)
from mds.storage._base import Body, LeastRate, ObjectInfo, Settings, Store, check_key, parse_options
from mds.storage._http import empty_body, format_range, make_body, parse_etag, parse_info
from mds.storage._translate import (
    Failure,
    network_failure,
    status_failure,
    translate_errors,
)
from mds.storage._url import parse_url, redact


@dataclass(frozen=True, slots=True)
class OciOptions:
    """Credentials and addresses.

    Attributes:
        config_file: Configuration file of the SDK.
        profile: Section of this file.
        auth: "config" for the credentials in the file, "instance_principal" for those of the
            machine, "resource_principal" for those of a cloud function or job.
        region: Region, instead of the one in the file.
        namespace: Namespace of the bucket (default: in the URL, else the account's own).
        endpoint: URL to use instead of the region's usual address.
    """

    config_file: str = "~/.oci/config"
    profile: str = "DEFAULT"
    auth: str = "config"
    region: str | None = None
    namespace: str | None = None
    endpoint: str | None = None


class OciStore(Store):
    """Objects below a prefix of a bucket.

    Args:
        url: URL ``oci://bucket@namespace/prefix``.
        options: Fields of `OciOptions`.
        timeout: Seconds without a byte after which a request has stalled.
    """

    lists_pages = True
    settings = Settings(
        "the storage options region= and endpoint=",
        credentials="Run oci setup config, or give the storage options config_file= and profile=.",
    )

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        place = parse_url(url)
        bucket, _, namespace = place.host.partition("@")
        if not bucket:
            raise ConfigError(
                f"{redact(url)!r} names no bucket. Write oci://bucket@namespace/prefix."
            )
        settings = parse_options(OciOptions, options, "oci")
        self.url = url
        self._bucket = bucket
        self._options = replace(settings, namespace=settings.namespace or namespace or None)
        self._timeout = timeout
        self._prefix = f"{place.path}/" if place.path else ""

    @property
    def address(self) -> str:
        """URL of the region's service."""
        with contextlib.suppress(Exception):  # a client that the SDK cannot make sends no requests
            return str(_shared_client(self._options, self._timeout).base_client.endpoint)
        return super().address

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the object, or its bytes from ``start`` to before ``end``."""
        safe_url = self.url_of(key)
        if end is not None and end <= start:  # HTTP has no empty range
            return empty_body(self.head(key), safe_url)
        range_header = {"range": format_range(start, end)} if start or end is not None else {}
        with translate_errors("get", safe_url, classify):
            client, address = self._client_and_address()
            answer = client.get_object(*address, self._name(key), **range_header)
        raw = answer.data.raw
        try:
            return make_body(
                raw, key, start, end, safe_url, LeastRate(self.min_rate, self._timeout)
            )
        except BaseException:
            raw.close()
            raise

    def head(self, key: str) -> ObjectInfo:
        """Return the size, and the etag as the version."""
        with translate_errors("head", self.url_of(key), classify):
            client, address = self._client_and_address()
            headers = client.head_object(*address, self._name(key)).headers
        return parse_info(key, headers, self.url_of(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below a prefix, a thousand per request."""
        next_page: dict[str, str] = {}
        with translate_errors("list", self.url_of(prefix), classify):
            client, address = self._client_and_address()
            while True:
                page = client.list_objects(
                    *address, prefix=self._prefix + prefix, fields="name,size,etag", **next_page
                ).data
                for entry in page.objects:
                    if not entry.name.endswith("/"):  # the placeholder of a folder
                        name = entry.name[len(self._prefix) :]
                        yield ObjectInfo(name, int(entry.size), parse_etag(entry.etag))
                if not page.next_start_with:
                    return
                next_page = {"start": page.next_start_with}

    def renew(self) -> bool:
        """Forget the configuration, so that the next request reads it again."""
        forget((OciStore, self._options, self._timeout))
        return True

    def delete(self, key: str) -> None:
        """Delete the object; a missing one is no error."""
        with translate_errors("delete", self.url_of(key), classify):
            client, address = self._client_and_address()
            from oci.exceptions import ServiceError

            try:
                client.delete_object(*address, self._name(key))
            except ServiceError as error:
                if error.status != 404:
                    raise

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Upload an object in one request; see `Store._write`."""
        with translate_errors("put", self.url_of(key), classify):
            client, address = self._client_and_address()
            client.put_object(*address, self._name(key), file, content_length=size)

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key) if key else self._prefix.rstrip("/")

    def _client_and_address(self) -> tuple[Any, tuple[str, str]]:
        """Return the SDK's client, and the first arguments of its calls: namespace and bucket."""
        options, timeout = self._options, self._timeout
        client = _shared_client(options, timeout)
        namespace = options.namespace or per_process(
            (OciStore, "namespace", options), lambda: str(client.get_namespace().data)
        )
        return client, (namespace, self._bucket)


def _shared_client(options: OciOptions, timeout: float) -> Any:
    """Return this process's client of the SDK with these options."""
    return per_process((OciStore, options, timeout), lambda: _make_client(options, timeout))


def _make_client(options: OciOptions, timeout: float) -> Any:
    """Return the SDK's ObjectStorageClient. Raises MissingDependencyError and ConfigError."""
    try:
        import oci
        from requests.adapters import HTTPAdapter
    except ImportError as error:
        raise need("oci", "oci", "oci:// URLs") from error
    config, signer = _log_in(oci, options)
    if options.region:
        config["region"] = options.region
    settings: dict[str, Any] = {"signer": signer} if signer is not None else {}
    if options.endpoint:
        settings["service_endpoint"] = options.endpoint
    client = oci.object_storage.ObjectStorageClient(
        config,
        timeout=(timeout, timeout),
        # No retries here: the wrapper `Retrying` around the store retries.
        retry_strategy=oci.retry.NoneRetryStrategy(),
        circuit_breaker_strategy=oci.circuit_breaker.NoCircuitBreakerStrategy(),
        **settings,
    )
    client.base_client.session.mount("https://", HTTPAdapter(pool_maxsize=64))
    client.base_client.session.mount("http://", HTTPAdapter(pool_maxsize=64))
    return client


def _log_in(oci: Any, options: OciOptions) -> tuple[dict[str, Any], Any]:
    """Return the SDK's configuration, and the object that signs requests.

    The signer is None if requests are signed with the key in the configuration, which else is
    empty. ``oci`` is the imported SDK.
    """
    if options.auth == "instance_principal":
        return {}, oci.auth.signers.InstancePrincipalsSecurityTokenSigner()
    if options.auth == "resource_principal":
        return {}, oci.auth.signers.get_resource_principals_signer()
    if options.auth != "config":
        raise ConfigError(
            f"auth={options.auth!r} of oci:// must be one of 'config', 'instance_principal' and "
            f"'resource_principal'."
        )
    path = os.path.expanduser(options.config_file)
    return dict(oci.config.from_file(path, options.profile)), None


def classify(error: Exception) -> Failure | None:
    """Return the failure that an exception of the SDK means; None for other exceptions."""
    import oci

    if isinstance(error, oci.exceptions.ServiceError):
        after = (error.headers or {}).get("retry-after")
        failure = status_failure(error.status, str(error.code or ""), after)
        # 416: the object is shorter than the requested range.
        return replace(failure, kind=CorruptError) if error.status == 416 else failure
    missing_credentials = (
        oci.exceptions.ConfigFileNotFound,
        oci.exceptions.InvalidConfig,
        oci.exceptions.ProfileNotFound,
    )
    if isinstance(error, missing_credentials):
        return Failure(UnauthenticatedError, f"{type(error).__name__}: {error}")
    if isinstance(error, oci.exceptions.RequestException):
        network = network_failure(error)
        return Failure(network.kind if network else TransientError, str(error))
    return None
