"""The incumbent's downloaders and uploaders: thin classes by scheme over the library's stores."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from mds.errors import ConfigError, NotFoundError
from mds.storage import RetryPolicy, is_local, join, local_path, open_store, publish

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


def _family(url: str | None) -> str:
    text = os.fspath(url) if url is not None else ""
    if is_local(text):
        return "Local"
    if text.startswith("dbfs:/Volumes"):
        return _FAMILIES["dbfs:/Volumes"]
    return _FAMILIES.get(text.partition(":")[0].lower(), "Cloud")


class CloudDownloader:
    """Fetches single files; ``CloudDownloader.get(url)`` gives the class of the URL's scheme."""

    @classmethod
    def get(cls, remote_dir: str | None = None) -> CloudDownloader:
        """A downloader for what is below a URL or path."""
        name = f"{_family(remote_dir)}Downloader"
        # Downloaders that users wrote go first, by the identifier that they answer to.
        for kind in CloudDownloader.__subclasses__():
            if remote_dir is not None and kind.is_mine(remote_dir):
                return kind()
        made: CloudDownloader = globals().get(name, CloudDownloader)()
        return made

    @classmethod
    def is_mine(cls, url: str) -> bool:
        """Whether a class that users wrote is for this URL: its identifier is the URL's scheme."""
        identifier = cls.__dict__.get("_client_identifier")
        return identifier is not None and url.startswith(f"{cls._client_identifier()}://")

    @staticmethod
    def _client_identifier() -> str:
        return ""

    def direct_download(self, remote: str, local: str, timeout: float = 60.0) -> None:
        """Bring a file to the path ``local``, whole or not at all."""
        self._download_file_impl(remote, local, timeout)

    def download(self, remote: str | None, local: str, timeout: float = 60.0) -> None:
        """The same, unless ``local`` is there already. Raises NotFoundError (FileNotFoundError)."""
        if os.path.exists(local):
            return
        if not remote:
            raise NotFoundError(f"{local} is not there, and no remote was given to fetch it from.")
        self._download_file_impl(remote, local, timeout)

    def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:
        with open_store(remote, timeout=timeout) as store, publish(local) as temporary:
            store.get_file("", temporary)

    def clean_up(self) -> None:
        """Nothing to do: connections belong to the process and are shared."""


class CloudUploader:
    """Sends files of a folder to a URL; ``get(out)`` gives the class of the URL's scheme.

    ``out`` is a folder, a URL (files are gathered in a temporary folder) or (folder, URL).
    ``retry`` is the number of tries, ``exist_ok`` empties a folder that has files. Raises
    FileExistsError for one that has files otherwise.
    """

    def __init__(
        self,
        out: str | tuple[str, str],
        keep_local: bool = False,
        progress_bar: bool = False,
        retry: int = 2,
        exist_ok: bool = False,
    ) -> None:
        del progress_bar  # files go one by one here; the writers of the library show progress
        if isinstance(out, str):
            here, there = (local_path(out), None) if is_local(out) else (None, out)
        elif len(out) == 2:
            here, there = out
        else:
            raise ConfigError(f"out= is a folder, a URL or (folder, URL); got {out!r}.")
        self.keep_local, self.retry = keep_local, retry
        self.local = here or tempfile.mkdtemp(prefix="mds-upload-")
        self.remote = there
        if os.path.isdir(self.local) and os.listdir(self.local):
            if not exist_ok:
                raise FileExistsError(
                    f"{self.local} is not empty. Choose another folder, or pass exist_ok=True to "
                    "empty it."
                )
            shutil.rmtree(self.local)
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
        url = out if isinstance(out, str) else out[-1]
        kind: Any = globals().get(f"{_family(url)}Uploader", CloudUploader)
        made: CloudUploader = kind(out, keep_local, progress_bar, retry, exist_ok)
        return made

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
        """Remove the folder if its files were sent away and are not to be kept."""
        folder = local or self.local
        if self.remote is not None and not self.keep_local and os.path.isdir(folder):
            shutil.rmtree(folder)

    def _store(self) -> Any:
        return open_store(self.remote or self.local, retry=RetryPolicy(attempts=self.retry))


def download_file(
    remote: str | None, local: str, timeout: float = 60.0, keep_zip: bool = False
) -> None:
    """Bring one file to the path ``local`` unless it is there."""
    del keep_zip
    CloudDownloader.get(remote).download(remote, local, timeout)


for _name in {*_FAMILIES.values()}:
    for _base in (CloudDownloader, CloudUploader):
        _kind = _base.__name__.replace("Cloud", _name)
        globals()[_kind] = type(_kind, (_base,), {"__module__": __name__, "__doc__": _base.__doc__})
