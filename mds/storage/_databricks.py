"""Databricks: Unity Catalog volumes as dbfs:/Volumes/catalog/schema/volume/..., and dbfs:/ itself.

databricks-sdk finds the credentials (DATABRICKS_HOST and DATABRICKS_TOKEN, a profile, a notebook);
the bytes are transferred by requests of this library to the REST interface. Files of volumes
stream, with ranges. Files of the old DBFS are transferred in pieces of 1 MB, the largest that its
interface allows.

`Store` (_base.py) describes the verbs. `classify` tells `translate_errors` which StoreError an
exception becomes.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode

from mds._process.fork_safe import per_process
from mds.errors import ConfigError, NotFoundError, UnauthenticatedError, need
from mds.storage._base import Body, ObjectInfo, Settings, Store, check_key, env, parse_options
from mds.storage._http import HttpClient, StatusError, empty_body, parse_info
from mds.storage._translate import Failure, status_failure, translate_chunks, translate_errors
from mds.storage._url import parse_url

_PIECE = 1 << 20  # the most bytes of one call of the DBFS interface


@dataclass(frozen=True, slots=True)
class DatabricksOptions:
    """Options of databricks-sdk: address and token of the workspace, or a profile with both.

    The SDK takes missing ones from the environment.
    """

    host: str | None = None
    token: str | None = field(default=None, repr=False)
    profile: str | None = None


def open_dbfs(url: str, options: Mapping[str, Any], timeout: float) -> Store:
    """Return the store for a dbfs:/ URL: a `VolumeStore` below /Volumes, else a `DbfsStore`."""
    place = parse_url(url)
    path = f"/{place.host}/{place.path}" if place.host else f"/{place.path}"
    is_volume = path == "/Volumes" or path.startswith("/Volumes/")
    return (VolumeStore if is_volume else DbfsStore)(url, path.rstrip("/"), options, timeout)


class _Workspace(Store):
    """Base of both stores: a root path, and signed requests to a workspace.

    Args:
        url: URL of the folder.
        root: Its absolute path in the workspace, such as "/Volumes/main/default/data".
        options: Fields of `DatabricksOptions`.
        timeout: Seconds without a byte after which a request has stalled.
    """

    settings = Settings("DATABRICKS_HOST", credentials="Set DATABRICKS_TOKEN.")

    def __init__(self, url: str, root: str, options: Mapping[str, Any], timeout: float) -> None:
        self.url = url
        self._root = root
        self._options = parse_options(DatabricksOptions, options, "dbfs")
        self._http = HttpClient(timeout)

    @property
    def address(self) -> str:
        """URL of the workspace."""
        if host := self._options.host or env("DATABRICKS_HOST"):
            return host
        with contextlib.suppress(Exception):  # a request raises it
            return str(self._config().host)
        return super().address

    def _path(self, key: str) -> str:
        """Return the absolute path of a file in the workspace; '' is the folder of the store."""
        return f"{self._root}/{check_key(key)}" if key else self._root or "/"

    def _config(self) -> Any:
        """Return the SDK's configuration of this process."""
        options = self._options
        # The SDK also reads the environment, so a change there needs a new configuration.
        environment = (env("DATABRICKS_HOST"), env("DATABRICKS_TOKEN"))
        return per_process((_Workspace, options, environment), lambda: _make_config(options))

    def _workspace(self) -> tuple[str, dict[str, str]]:
        """Return the address of the workspace, and headers with which it accepts a request."""
        config = self._config()
        return str(config.host).rstrip("/"), dict(config.authenticate())

    def _call_api(self, method: str, call: str, body: Any = None, /, **query: Any) -> Any:
        """Send a request to the REST interface and return its answer, both parsed from JSON.

        Args:
            method: HTTP method.
            call: Path below ``/api/2.0/``.
            body: Value that is sent as JSON; None sends none.
            query: Parameters of the URL.

        Raises StatusError from HTTP status 400 on.
        """
        host, headers = self._workspace()
        url = f"{host}/api/2.0/{call}" + (f"?{urlencode(query)}" if query else "")
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        answer = self._http.call(method, url, headers=headers, body=data)[1]
        return json.loads(answer) if answer else {}


class VolumeStore(_Workspace):
    """Files below a folder of a Unity Catalog volume."""

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the file, or its bytes from ``start`` to before ``end``."""
        safe_url = self.url_of(key)
        if end is not None and end <= start:  # HTTP has no empty range
            return empty_body(self.head(key), safe_url)
        with translate_errors("get", safe_url, classify):
            url, headers = self._file_request(key)
        return self._http.stream(
            url, key, start, end, safe_url=safe_url, min_rate=self.min_rate, headers=headers
        )

    def head(self, key: str) -> ObjectInfo:
        """Return the size, and the time of change as the version."""
        with translate_errors("head", self.url_of(key), classify):
            url, headers = self._file_request(key)
            headers["Accept-Encoding"] = "identity"
            response = self._http.request("HEAD", url, headers=headers)
            response.close()
            return parse_info(key, response.headers, self.url_of(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the files below a prefix, folder by folder."""
        with translate_errors("list", self.url_of(prefix), classify):
            folders = [prefix.rpartition("/")[0]]
            while folders:
                for entry in self._list_folder(self._path(folders.pop())):
                    name = entry["path"][len(self._root) + 1 :]
                    if entry.get("is_directory"):
                        # Descend if the folder has the prefix, or leads to it.
                        if name.startswith(prefix) or prefix.startswith(f"{name}/"):
                            folders.append(name)
                    elif name.startswith(prefix):
                        # Without a version: a listing gives the time of change in other units
                        # than `head`.
                        yield ObjectInfo(name, int(entry["file_size"]))

    def delete(self, key: str) -> None:
        """Remove the file."""
        with translate_errors("delete", self.url_of(key), classify):
            url, headers = self._file_request(key)
            self._http.request("DELETE", url, headers=headers, also=(404,)).close()

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Upload a file; create its folder if that is missing. See `Store._write`."""
        with translate_errors("put", self.url_of(key), classify):
            url, headers = self._file_request(key)
            headers["Content-Length"] = str(size)
            headers["Content-Type"] = "application/octet-stream"
            start = file.tell()
            try:
                self._http.call(
                    "PUT", f"{url}?overwrite=true", headers=headers, body=file if size else b""
                )
            except StatusError as error:
                if error.status != 404:
                    raise
                # The folder is missing; making it makes its parents too.
                folder = quote(os.path.dirname(self._path(key)))
                self._call_api("PUT", f"fs/directories{folder}")
                file.seek(start)
                self._http.call(
                    "PUT", f"{url}?overwrite=true", headers=headers, body=file if size else b""
                )

    def _file_request(self, key: str) -> tuple[str, dict[str, str]]:
        """Return the address of a file in the REST interface, and the headers of a request."""
        host, headers = self._workspace()
        return f"{host}/api/2.0/fs/files{quote(self._path(key))}", headers

    def _list_folder(self, folder: str) -> Iterator[Any]:
        """Yield the entries of a folder, page by page; none if it is missing."""
        page_token: dict[str, str] = {}
        while True:
            try:
                page = self._call_api("GET", f"fs/directories{quote(folder)}", **page_token)
            except StatusError as error:
                if error.status == 404:
                    return
                raise
            yield from page.get("contents", ())
            if not page.get("next_page_token"):
                return
            page_token = {"page_token": page["next_page_token"]}


class DbfsStore(_Workspace):
    """Files below a folder of the DBFS root or a mount.

    Answers of its REST interface are JSON, in which the bytes of files are in base64.
    """

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the file, or a range of it, in requests of 1 MB."""
        safe_url = self.url_of(key)
        info = self.head(key)
        self._check_range(info, start, end)
        stop = info.size if end is None else end
        pieces = translate_chunks(self._pieces(self._path(key), start, stop), safe_url, classify)
        chunks = self._unchanged(info, pieces)
        return Body(info, chunks, max(0, stop - start), url=safe_url)

    def head(self, key: str) -> ObjectInfo:
        """Return the size, and the time of change as the version."""
        url = self.url_of(key)
        with translate_errors("head", url, classify):
            entry = self._call_api("GET", "dbfs/get-status", path=self._path(key))
        if entry.get("is_dir"):
            raise NotFoundError(f"head {url}: it is a folder.", url=url, verb="head")
        return _dbfs_info(key, entry)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the files below a prefix, folder by folder."""
        with translate_errors("list", self.url_of(prefix), classify):
            folders = [prefix.rpartition("/")[0]]
            while folders:
                try:
                    page = self._call_api("GET", "dbfs/list", path=self._path(folders.pop()))
                except StatusError as error:
                    if error.status == 404:
                        continue
                    raise
                for entry in page.get("files", ()):
                    name = entry["path"][len(self._root) + 1 :]
                    if entry.get("is_dir"):
                        folders.append(name)
                    elif name.startswith(prefix):
                        yield _dbfs_info(name, entry)

    def delete(self, key: str) -> None:
        """Remove the file."""
        with translate_errors("delete", self.url_of(key), classify):
            self._call_api("POST", "dbfs/delete", {"path": self._path(key)})

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Write a temporary file in pieces and move it to its name; see `Store._write`."""
        del size
        path = self._path(key)
        temporary = f"{path}.{secrets.token_hex(6)}.mds-part"
        with translate_errors("put", self.url_of(key), classify):
            # Readers of DBFS see a file while it is written, so write under another name.
            handle = self._call_api("POST", "dbfs/create", {"path": temporary, "overwrite": True})
            while piece := file.read(_PIECE):
                data = base64.b64encode(piece).decode()
                self._call_api("POST", "dbfs/add-block", {"handle": handle["handle"], "data": data})
            self._call_api("POST", "dbfs/close", {"handle": handle["handle"]})
            self._call_api("POST", "dbfs/delete", {"path": path})
            self._call_api(
                "POST", "dbfs/move", {"source_path": temporary, "destination_path": path}
            )

    def _pieces(self, path: str, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes from ``start`` to before ``stop``; end early if the file does."""
        while start < stop:
            length = min(_PIECE, stop - start)
            answer = self._call_api("GET", "dbfs/read", path=path, offset=start, length=length)
            piece = base64.b64decode(answer.get("data", ""))
            if not piece:
                return
            start += len(piece)
            yield piece


def _dbfs_info(key: str, entry: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(key, int(entry["file_size"]), str(entry.get("modification_time", "")))


def _make_config(options: DatabricksOptions) -> Any:
    """Return the SDK's configuration, with the credentials that it found.

    Raises MissingDependencyError, and ConfigError if the address of the workspace is unknown.
    """
    try:
        from databricks.sdk.core import Config
    except ImportError as error:
        raise need("databricks-sdk", "databricks", "dbfs:/ URLs") from error
    settings = {name: value for name, value in asdict(options).items() if value}
    # By default the SDK silently retries an unreachable host for five minutes.
    config = Config(retry_timeout_seconds=1, http_timeout_seconds=20, **settings)
    if not config.host:
        raise ConfigError("A dbfs:/ URL needs the workspace: set DATABRICKS_HOST.")
    return config


def classify(error: Exception) -> Failure | None:
    """Return the failure for an answer of the REST interface or an error about credentials.

    Return None for other exceptions.
    """
    if isinstance(error, StatusError):
        return status_failure(error.status, error.reason, error.headers.get("retry-after"))
    # The SDK raises a plain ValueError if it finds no credentials; its text names "auth".
    if isinstance(error, ValueError) and "auth" in str(error):
        return Failure(UnauthenticatedError, str(error))
    return None
