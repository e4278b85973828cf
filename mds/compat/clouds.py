"""The incumbent's downloaders and uploaders: thin classes by scheme over the library's stores."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar

from mds.compat.overrides import Sealed, SealedDict, check_overrides, find_remedy
from mds.errors import ConfigError, NotFoundError
from mds.redaction import get_logger, mask_foreign
from mds.storage import (
    RetryPolicy,
    is_local,
    join,
    local_path,
    open_store,
    publish,
    schemes,
)
from mds.storage.url import Url

log = get_logger("mds.compat")

# Scheme (for dbfs, with the beginning of the path) -> what its classes are named after.
_FAMILIES = {
    "": "Local",
    "file": "Local",
    "s3": "S3",
    "gs": "GCS",
    "oci": "OCI",
    "azure": "Azure",
    "azure-dl": "AzureDataLake",
    "hf": "HF",
    "sftp": "SFTP",
    "dbfs:/Volumes": "DatabricksUnityCatalog",
    "dbfs": "DBFS",
    "alipan": "Alipan",
}


# Family -> the scheme that its classes are for; the incumbent's identifier of them.
_SCHEMES = {family: scheme for scheme, family in _FAMILIES.items() if scheme != "file"}

#: Methods that make the clients of mosaicml-streaming, and what there is in their place.
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
    """How Google Cloud Storage is told that it is we."""

    HMAC = 1
    SERVICE_ACCOUNT = 2


class NoRemoteError(NotFoundError, ValueError):
    """A file that is not there, and no remote to fetch it from."""


def _family(url: str | None) -> str:
    text = os.fspath(url) if url is not None else ""
    if is_local(text):
        return "Local"
    if text.startswith("dbfs:/Volumes"):
        return _FAMILIES["dbfs:/Volumes"]
    scheme = text.partition(":")[0].lower()
    if scheme not in _FAMILIES and not _is_known(scheme):
        raise ConfigError(
            f"{Url(text)!s}: no store is known for {scheme!r}. Known are {', '.join(schemes())}, "
            "what fsspec knows where it is installed, and what register_store adds."
        )
    return _FAMILIES.get(scheme, "Cloud")


def _is_known(scheme: str) -> bool:
    """Whether a scheme has a store here, or one of fsspec's."""
    if scheme in schemes():
        return True
    try:
        from fsspec.registry import known_implementations
    except ImportError:
        return False
    return scheme in known_implementations


class CloudDownloader(metaclass=Sealed):
    """Fetches single files; ``CloudDownloader.get(url)`` gives the class of the URL's scheme."""

    _family = ""
    _refused: ClassVar[Mapping[str, str]] = _CLIENTS

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_download_file_impl" not in vars(cls):  # which may call a client of its own
            check_overrides(cls, vars(cls))

    @classmethod
    def get(cls, remote_dir: str | None = None) -> CloudDownloader:
        """A downloader for what is below a URL or path. Raises ConfigError (a ValueError)."""
        # Downloaders that users wrote go first, by the identifier that they answer to.
        for kind in CloudDownloader.__subclasses__():
            if remote_dir is not None and kind.is_mine(remote_dir):
                return kind()
        name = f"{_family(remote_dir)}Downloader"
        made: CloudDownloader = globals().get(name, CloudDownloader)()
        return made

    @classmethod
    def is_mine(cls, url: str) -> bool:
        """Whether a class that users wrote is for this URL: its identifier is the URL's scheme."""
        if cls._family:
            return False
        identifier = cls.__dict__.get("_client_identifier")
        return identifier is not None and url.startswith(f"{cls._client_identifier()}://")

    @classmethod
    def _client_identifier(cls) -> str:
        return _SCHEMES.get(cls._family, "")

    @classmethod
    def direct_download(cls, remote: str | None, local: str, timeout: float = 60.0) -> None:
        """Bring a file to the path ``local`` unless it is there, whole or not at all."""
        cls.get(remote).download(remote, local, timeout)

    def download(self, remote: str | None, local: str, timeout: float = 60.0) -> None:
        """Bring a file to the path ``local`` unless it is there.

        Raises NotFoundError (FileNotFoundError), and ConfigError for a URL of another scheme.
        """
        if os.path.exists(local):
            return
        if not remote:
            raise NoRemoteError(f"{local} is not there, and no remote was given to fetch it from.")
        self._validate_remote_path(remote)
        self._download_file_impl(remote, local, timeout)

    def _validate_remote_path(self, remote: str) -> None:
        """Raise ConfigError (a ValueError) for a URL of another scheme than the class's."""
        if self._family and not (self._family == "Local" and is_local(remote)):
            scheme = _SCHEMES[self._family]
            if not scheme or not remote.startswith(f"{scheme.partition(':')[0]}:"):
                raise ConfigError(
                    f"{type(self).__name__} is for URLs of scheme {scheme!r}, got {Url(remote)}."
                )

    def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:
        with open_store(remote, timeout=timeout) as store, publish(local) as temporary:
            store.get_file("", temporary)

    def clean_up(self) -> None:
        """Nothing to do: connections belong to the process and are shared."""


class CloudUploader(metaclass=Sealed):
    """Sends files of a folder to a URL; ``get(out)`` gives the class of the URL's scheme.

    ``out`` is a folder, a URL (files are gathered in a temporary folder) or (folder, URL).
    ``retry`` is the number of tries. A folder that has files raises FileExistsError, or with
    ``exist_ok`` is used as it is, with a warning: what is in it stays. Nothing is ever removed but
    what this uploader sent or made.
    """

    _refused: ClassVar[Mapping[str, str]] = _CLIENTS

    def __init__(
        self,
        out: str | tuple[str, str],
        keep_local: bool = False,
        progress_bar: bool = False,
        retry: int = 2,
        exist_ok: bool = False,
    ) -> None:
        # Files go one by one here; the writers of the library show progress.
        self._validate(out)
        if isinstance(out, str):
            here, there = (local_path(out), None) if is_local(out) else (None, out)
        else:
            here, there = out
        self.keep_local, self.retry, self.progress_bar = keep_local, retry, progress_bar
        if here and there and is_local(there) and _is_same(here, local_path(there)):
            there = None  # a file "sent" onto itself and then removed would be lost
        self.local = here or tempfile.mkdtemp(prefix="mds-upload-")
        self.remote = Url(there) if there else None
        self._has_made = not here or not os.path.lexists(here)
        if os.path.isdir(self.local) and os.listdir(self.local):
            if not exist_ok:
                raise FileExistsError(
                    f"{self.local} is not empty. Choose another folder, or pass exist_ok=True to "
                    "use it with what is in it."
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
        """An uploader for a folder, a URL or (folder, URL)."""
        cls._check_out(out)
        url = out if isinstance(out, str) else out[-1]
        kind: Any = globals().get(f"{_family(url)}Uploader", CloudUploader)
        made: CloudUploader = kind(out, keep_local, progress_bar, retry, exist_ok)
        return made

    @classmethod
    def of(cls, local: str, remote: str | None, keep_local: bool) -> CloudUploader:
        """An uploader of a folder that is a writer's: it is taken as it is."""
        kind: Any = globals().get(f"{_family(remote or local)}Uploader", CloudUploader)
        made: CloudUploader = kind.__new__(kind)
        made.local, made.remote = local, Url(remote) if remote else None
        made.keep_local, made.retry, made.progress_bar = keep_local, 2, False
        made._has_made = False
        return made

    @staticmethod
    def _check_out(out: str | tuple[str, str]) -> None:
        """Raise ConfigError (a ValueError) for what is neither a place nor two of them."""
        if isinstance(out, str):
            return
        places: Any = out
        is_pair = hasattr(places, "__len__") and len(places) == 2
        if not is_pair or not all(isinstance(place, str) for place in places):
            raise ConfigError(
                f"out= is a folder, a URL or (folder, URL); got {mask_foreign(repr(out))}."
            )

    def _validate(self, out: str | tuple[str, str]) -> None:
        """Raise ConfigError (a ValueError) for a place that cannot be sent to."""
        self._check_out(out)
        url = out if isinstance(out, str) else out[-1]
        _family(url)  # is there a store for it?
        if not is_local(url):
            open_store(url).close()  # does it name a bucket?

    def check_bucket_exists(self, remote: str) -> None:
        """Raise the StoreError of a bucket that cannot be listed."""
        with open_store(remote, retry=RetryPolicy(attempts=self.retry)) as store:
            next(iter(store.list("")), None)

    def check_dataset_exists(self) -> None:
        """Raise the StoreError of a repository that cannot be listed."""
        self.check_bucket_exists(str(self.remote))

    def check_folder_exists(self) -> None:
        """Raise the StoreError of a folder that cannot be listed."""
        self.check_bucket_exists(str(self.remote))

    def check_container_exists(self, remote: str) -> None:
        """Raise the StoreError of a container that cannot be listed."""
        self.check_bucket_exists(remote)

    def check_token(self) -> None:
        """Raise the StoreError of a place that does not know us."""
        self.check_bucket_exists(str(self.remote))

    @property
    def s3(self) -> Any:
        """A client of boto3; uploads need none of it."""
        import boto3

        return boto3.client("s3", endpoint_url=os.environ.get("S3_ENDPOINT_URL"))

    def upload_file(self, filename: str) -> None:
        """Send a file of the folder; it is removed afterwards unless ``keep_local``."""
        if self.remote is None:
            return
        path = os.path.join(self.local, filename)
        with self._store() as store:
            store.put_file(filename, path)
        if not self.keep_local:
            os.unlink(path)

    def list_objects(self, prefix: str | None = None) -> list[str]:
        """The URLs of what is at the destination, sorted."""
        with self._store() as store:
            return sorted(join(store.url, found.key) for found in store.list(prefix or ""))

    def clear_local(self, local: str | None = None) -> None:
        """Remove the folder if its files were sent away and are not to be kept.

        A folder that this uploader did not make is removed only when it is empty.
        """
        folder = local or self.local
        if self.remote is None or self.keep_local or not os.path.isdir(folder):
            return
        if self._has_made and _is_same(folder, self.local):
            shutil.rmtree(folder)
            return
        with contextlib.suppress(OSError):
            os.rmdir(folder)
        if os.path.isdir(folder):
            log.warning("%s stays: it holds files that were there before.", folder)

    def _store(self) -> Any:
        return open_store(self.remote or self.local, retry=RetryPolicy(attempts=self.retry))


def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def download_file(
    remote: str | None, local: str, timeout: float = 60.0, keep_zip: bool = False
) -> None:
    """Bring one file to the path ``local`` unless it is there."""
    del keep_zip
    CloudDownloader.get(remote).download(remote, local, timeout)


def _make_classes() -> None:
    for name in {*_FAMILIES.values()}:
        for base in (CloudDownloader, CloudUploader):
            kind = base.__name__.replace("Cloud", name)
            parents: tuple[type, ...] = (base,)
            if base is CloudUploader and name in {"DBFS", "DatabricksUnityCatalog"}:
                parents = (DatabricksUploader,)
            space = {"__module__": __name__, "__doc__": base.__doc__, "_family": name}
            globals()[kind] = type(kind, parents, space)


class DatabricksUploader(CloudUploader):
    """Sends files of a folder to Databricks."""


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
