"""Downloaders and uploaders of single files: `streaming.base.storage`.

mosaicml-streaming has a class for each kind of store. Here they all read and write through
`mds.storage` and differ only in the URLs that they accept. Datasets and writers of mds do not use
them; code that calls them does. A store of one's own is registered with `mds.storage`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar

from mds._redaction import get_logger, mask_foreign
from mds.compat._overrides import (
    Overridable,
    Sealed,
    SealedDict,
    check_overrides,
    find_remedy,
    refuse_missing,
)
from mds.errors import ConfigError, NotFoundError
from mds.storage import RetryPolicy, open_store
from mds.storage._files import publish
from mds.storage._registry import schemes
from mds.storage._url import Url, absolute_path, absolute_place, is_local, join, local_path

log = get_logger("mds.compat")

#: Beginning of the names of a store's classes -> scheme of its URLs; for Unity Catalog, the
#: beginning of the URL. The schemes are the keys of DOWNLOADER_MAPPINGS and UPLOADERS.
_SCHEMES = {
    "Local": "",
    "S3": "s3",
    "GCS": "gs",
    "OCI": "oci",
    "Azure": "azure",
    "AzureDataLake": "azure-dl",
    "HF": "hf",
    "SFTP": "sftp",
    "DatabricksUnityCatalog": "dbfs:/Volumes",
    "DBFS": "dbfs",
    "Alipan": "alipan",
}
_FAMILIES = {scheme: family for family, scheme in _SCHEMES.items()}

#: Methods of mosaicml-streaming that make a client, and what to use instead of overriding one.
_CLIENTS = dict.fromkeys(
    (
        "_create_azure_client",
        "_create_azure_dl_client",
        "_create_db_uc_client",
        "_create_dbfs_client",
        "_create_gcs_client",
        "_create_oci_client",
        "_create_s3_client",
        "_create_ssh_client",
        "_create_workspace_client",
    ),
    "mds.storage.register_store(), for a store with a client of your own",
)

BOTOCORE_CLIENT_ERROR_CODES = {"403", "404", "NoSuchKey"}
GCS_ERROR_NO_AUTHENTICATION = (
    "Either set the environment variables `GCS_KEY` and `GCS_SECRET` or use any of the methods in "
    "https://cloud.google.com/docs/authentication/external/set-up-adc to set up Application "
    "Default Credentials."
)


class GCSAuthentication(Enum):
    """Kind of credentials for Google Cloud Storage."""

    HMAC = 1
    SERVICE_ACCOUNT = 2


class NoRemoteError(NotFoundError, ValueError):
    """File that does not exist, without a remote to fetch it from."""


def _family_of(url: str | None) -> str:
    """Return the family of classes for a URL or path: "S3" for S3Downloader and S3Uploader.

    It is "Local" for a path, and "Cloud", the family of the base classes, for a URL of a store that
    mds or fsspec has and mosaicml-streaming has no class for.

    Raises ConfigError (a ValueError) for a scheme without a store.
    """
    text = os.fspath(url) if url is not None else ""
    if is_local(text):
        return "Local"
    if text.startswith("dbfs:/Volumes"):
        return "DatabricksUnityCatalog"
    scheme = text.partition(":")[0].lower()
    if scheme not in _FAMILIES and not _has_store(scheme):
        raise ConfigError(
            f"{Url(text)!s}: no store is known for {scheme!r}. Known are {', '.join(schemes())}, "
            "what fsspec knows where it is installed, and what register_store adds."
        )
    return _FAMILIES.get(scheme, "Cloud")


def _has_store(scheme: str) -> bool:
    """Whether mds or fsspec has a store for a scheme."""
    if scheme in schemes():
        return True
    try:
        from fsspec.registry import known_implementations
    except ImportError:
        return False
    return scheme in known_implementations


# ---------------------------------------------------------------------- downloaders


class CloudDownloader(metaclass=Sealed):
    """Downloader of single files; ``CloudDownloader.get(url)`` chooses the class for a URL.

    A user's class overrides ``_client_identifier``, the scheme of its URLs, and
    ``_download_file_impl``.
    """

    #: Key of `_SCHEMES`, such as "S3" for S3Downloader; empty for this class and those of users.
    _family = ""
    #: Methods that mds never calls, and what to use instead of overriding them.
    _refused: ClassVar[Mapping[str, str]] = _CLIENTS

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A class that downloads by itself may also define methods that make its clients.
        if "_download_file_impl" not in vars(cls):
            check_overrides(cls, vars(cls))

    @classmethod
    def get(cls, remote_dir: str | None = None) -> CloudDownloader:
        """Return a downloader for a URL or path.

        Raises ConfigError (a ValueError) for a scheme without a store.
        """
        # A user's class prevails over the built-in class for the same scheme.
        for kind in CloudDownloader.__subclasses__():
            if remote_dir is not None and kind._is_for(remote_dir):  # noqa: SLF001 - of this class
                return kind()
        name = f"{_family_of(remote_dir)}Downloader"  # a class that _make_classes() has defined
        downloader: CloudDownloader = globals().get(name, CloudDownloader)()
        return downloader

    @classmethod
    def _is_for(cls, url: str) -> bool:
        """Whether this is a user's class whose identifier is the scheme of a URL."""
        if cls._family:
            return False
        identifier = cls.__dict__.get("_client_identifier")
        return identifier is not None and url.startswith(f"{cls._client_identifier()}://")

    @classmethod
    def _client_identifier(cls) -> str:
        return _SCHEMES.get(cls._family, "")

    @classmethod
    def direct_download(cls, remote: str | None, local: str, timeout: float = 60.0) -> None:
        """Download a file with the class for its URL; see `download`."""
        cls.get(remote).download(remote, local, timeout)

    def download(self, remote: str | None, local: str, timeout: float = 60.0) -> None:
        """Download a file, unless ``local`` exists; a partial file is never visible.

        - ``remote`` (str | None): URL or path of the file.
        - ``local`` (str): path of the copy.
        - ``timeout`` (float, default 60, seconds): longest wait for one request.

        Raises NotFoundError (a FileNotFoundError), and ConfigError for a URL of another store.
        """
        if os.path.exists(local):
            return
        if not remote:
            raise NoRemoteError(
                f"{local} does not exist, and no remote was given to fetch it from."
            )
        self._validate_remote_path(remote)
        self._download_file_impl(remote, local, timeout)

    def _validate_remote_path(self, remote: str) -> None:
        """Raise ConfigError (a ValueError) for a URL of another store than the class is for."""
        if not self._family:  # the base class and classes of users take any URL
            return
        if self._family == "Local" and is_local(remote):
            return
        scheme = _SCHEMES[self._family]  # "" for Local; "dbfs:/Volumes" for Unity Catalog
        if not scheme or not remote.startswith(f"{scheme.partition(':')[0]}:"):
            raise ConfigError(
                f"{type(self).__name__} is for URLs of scheme {scheme!r}, got {Url(remote)}."
            )

    def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:
        with open_store(remote, timeout=timeout) as store, publish(local) as temporary:
            store.get_file("", temporary)

    def clean_up(self) -> None:
        """Do nothing: all downloaders of a process share its connections."""


def download_file(
    remote: str | None, local: str, timeout: float = 60.0, keep_zip: bool = False
) -> None:
    """Download a file, unless ``local`` exists; see `CloudDownloader.download`.

    ``keep_zip`` has no effect; versions of mosaicml-streaming before 0.10 take it.
    """
    del keep_zip
    CloudDownloader.get(remote).download(remote, local, timeout)


# ---------------------------------------------------------------------- uploaders


class CloudUploader(Overridable):
    """Uploader of single files from a folder; ``CloudUploader.get(out)`` chooses the class.

    - ``out`` (str | tuple[str, str]): folder, from which nothing is uploaded; URL, with a temporary
      folder for the files; or (folder, URL).
    - ``keep_local`` (bool, default False): whether files stay in the folder after the upload.
    - ``progress_bar`` (bool, default False): no effect, since files are uploaded one by one.
    - ``retry`` (int, default 2, tries): tries for each request.
    - ``exist_ok`` (bool, default False): whether a folder that is not empty is used, with a warning
      and with the files in it.

    Deletes only files that it has uploaded and folders that it has made. Raises FileExistsError for
    a folder that is not empty, and ConfigError (a ValueError) for a place without a store.
    """

    #: Key of `_SCHEMES`, such as "S3" for S3Uploader; empty for this class and those of users.
    _family = ""
    # Tables of methods that mds never calls, see `Overridable`.
    _refused: ClassVar[Mapping[str, str]] = _CLIENTS
    _ignored: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "check_bucket_exists",
            "check_container_exists",
            "check_dataset_exists",
            "check_folder_exists",
            "check_token",
            "s3",
        ),
        "upload_file(), whose error names the cause",
    )

    def __init__(
        self,
        out: str | tuple[str, str],
        keep_local: bool = False,
        progress_bar: bool = False,
        retry: int = 2,
        exist_ok: bool = False,
    ) -> None:
        self._validate(out)
        if isinstance(out, str):
            folder, url = (local_path(out), None) if is_local(out) else (None, out)
        else:
            folder, url = out
        folder = absolute_path(folder) if folder else folder
        url = absolute_place(url) if url else url
        self.keep_local, self.retry, self.progress_bar = keep_local, retry, progress_bar
        if folder and url and is_local(url) and _is_same(folder, local_path(url)):
            url = None  # a file that is copied onto itself and then deleted would be lost
        self.local = folder or tempfile.mkdtemp(prefix="mds-upload-")
        self.remote = Url(url) if url else None
        self._has_made_folder = not folder or not os.path.lexists(folder)
        if os.path.isdir(self.local) and os.listdir(self.local):
            if not exist_ok:
                raise FileExistsError(
                    f"{self.local} is not empty. Choose another folder, or pass exist_ok=True to "
                    "use it with the files in it."
                )
            log.warning("%s is not empty; its files stay, since exist_ok=True.", self.local)
        os.makedirs(self.local, exist_ok=True)

    @classmethod
    def get(
        cls,
        out: str | tuple[str, str],
        keep_local: bool = False,
        progress_bar: bool = False,
        retry: int = 2,
        exist_ok: bool = False,
    ) -> CloudUploader:
        """Return an uploader for a folder, a URL or (folder, URL); see the class."""
        cls._check_out(out)
        url = out if isinstance(out, str) else out[-1]
        # A class that _make_classes() has defined, such as S3Uploader.
        kind: Any = globals().get(f"{_family_of(url)}Uploader", CloudUploader)
        uploader: CloudUploader = kind(out, keep_local, progress_bar, retry, exist_ok)
        return uploader

    @classmethod
    def for_folder(cls, local: str, remote: str | None, keep_local: bool) -> CloudUploader:
        """Return an uploader for the folder of a writer, which may have files in it.

        - ``local`` (str): folder.
        - ``remote`` (str | None): URL; None if nothing is uploaded.
        - ``keep_local`` (bool): whether files stay in the folder after the upload.
        """
        kind: Any = globals().get(f"{_family_of(remote or local)}Uploader", CloudUploader)
        uploader: CloudUploader = kind.__new__(kind)  # __init__ would refuse the files
        uploader.local, uploader.remote = local, Url(remote) if remote else None
        uploader.keep_local, uploader.retry, uploader.progress_bar = keep_local, 2, False
        uploader._has_made_folder = False
        return uploader

    @staticmethod
    def _check_out(out: str | tuple[str, str]) -> None:
        """Raise ConfigError (a ValueError) unless ``out`` is a place or a pair of places."""
        if isinstance(out, str):
            return
        places: Any = out
        is_pair = hasattr(places, "__len__") and len(places) == 2
        if not is_pair or not all(isinstance(place, str) for place in places):
            raise ConfigError(
                f"out= is a folder, a URL or (folder, URL); got {mask_foreign(repr(out))}."
            )

    def _validate(self, out: str | tuple[str, str]) -> None:
        """Raise ConfigError (a ValueError) for a place that no store can write."""
        self._check_out(out)
        url = out if isinstance(out, str) else out[-1]
        _family_of(url)  # raises for a scheme without a store
        if not is_local(url):
            open_store(url).close()  # raises for a URL without a bucket

    def __getattr__(self, name: str) -> Any:
        refuse_missing(self, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")

    def upload_file(self, filename: str) -> None:
        """Upload a file of the folder, then delete it there unless ``keep_local``.

        ``filename``: path below the folder, and below the URL.
        """
        if self.remote is None:
            return
        path = os.path.join(self.local, filename)
        with self._open_store() as store:
            store.put_file(filename, path)
        if not self.keep_local:
            os.unlink(path)

    def list_objects(self, prefix: str | None = None) -> list[str]:
        """Return the URLs of all files at the destination, sorted.

        ``prefix``: beginning of their paths below the destination.
        """
        with self._open_store() as store:
            return sorted(join(store.url, entry.key) for entry in store.list(prefix or ""))

    def clear_local(self, local: str | None = None) -> None:
        """Delete the folder if its files were uploaded and are not kept.

        ``local``: the folder, or one below it. A folder that this uploader did not make is deleted
        only if it is empty.
        """
        folder = local or self.local
        if self.remote is None or self.keep_local or not os.path.isdir(folder):
            return
        if self._has_made_folder and _is_same(folder, self.local):
            shutil.rmtree(folder)
            return
        with contextlib.suppress(OSError):
            os.rmdir(folder)
        if os.path.isdir(folder):
            log.warning("%s stays: it holds files that this uploader did not make.", folder)

    def _open_store(self) -> Any:
        return open_store(self.remote or self.local, retry=RetryPolicy(attempts=self.retry))


def _is_same(folder: str, other_folder: str) -> bool:
    return os.path.realpath(folder) == os.path.realpath(other_folder)


class DatabricksUploader(CloudUploader):
    """Base of the uploaders to Databricks; see `CloudUploader`."""


# ---------------------------------------------------------------------- a class for each store


def _make_classes() -> None:
    """Define a downloader and an uploader for each store, such as S3Downloader and S3Uploader."""
    for family in _SCHEMES:
        is_databricks = family in {"DBFS", "DatabricksUnityCatalog"}
        for base, parent in (
            (CloudDownloader, CloudDownloader),
            (CloudUploader, DatabricksUploader if is_databricks else CloudUploader),
        ):
            name = base.__name__.replace("Cloud", family)
            namespace = {"__module__": __name__, "__doc__": base.__doc__, "_family": family}
            globals()[name] = type(name, (parent,), namespace)


_make_classes()
DOWNLOADER_MAPPINGS: dict[str, type[CloudDownloader]] = SealedDict(
    "DOWNLOADER_MAPPINGS",
    {scheme: globals()[f"{family}Downloader"] for family, scheme in _SCHEMES.items() if scheme},
    find_remedy("DOWNLOADER_MAPPINGS"),
)
UPLOADERS = SealedDict(
    "UPLOADERS",
    {scheme: f"{family}Uploader" for family, scheme in _SCHEMES.items()},
    find_remedy("UPLOADERS"),
)
_LOCAL_DOWNLOADER: type[CloudDownloader] = globals()["LocalDownloader"]
