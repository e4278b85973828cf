"""What the cache knows of a source of samples, and where this user's cached data lie."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mds.storage import url

if TYPE_CHECKING:
    from mds.formats.dataset import FormatData
    from mds.index import Index
    from mds.storage.retry import Retrying


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Facts about a stream that the cache needs: plain, frozen and picklable.

    Without ``remote`` the folder is the user's own: read in place, never copied, never evicted.
    """

    index: Index
    remote: str | None
    folder: str
    options: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    keep_zip: bool = False
    validate_hash: str | None = None
    retries: int = 2
    timeout: float = 60.0
    #: The version of the index at its store; None: as is noted of the folder.
    version: str | None = None
    #: What reads the files, where they are in a format; None: they are MDS.
    data: FormatData | None = dataclasses.field(default=None, repr=False)
    #: The name of the source where its URL does not say all; None: the URL.
    source_name: str | None = None
    #: The store that the index came from. It stays behind in a pickle: another process opens its
    #: own, for a store of a user's own need not travel.
    store: Retrying | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def is_near(self) -> bool:
        """Whether nothing is fetched: shards in place, or files of a format on this machine."""
        return self.remote is None or (self.data is not None and url.is_local(self.remote))

    def content(self) -> str:
        """Return a digest of the index.json, or of the files of a format and their versions.

        The columns that are chosen are no part of it.
        """
        return self.index.fingerprint() if self.data is None else self.data.table.digest()

    def __reduce__(self) -> tuple[Any, ...]:
        names = [field.name for field in dataclasses.fields(self) if field.name != "store"]
        return Source, tuple(getattr(self, name) for name in names)


def default_folder(remote: str) -> str:
    """Return the folder of this user's cache for a remote."""
    digest = hashlib.blake2s(url.source_name(remote).encode(), digest_size=16).hexdigest()
    return os.path.join(cache_root(), digest)


def cache_root() -> str:
    """Return the root folder of this user's cached data.

    ``$MDS_CACHE_DIR``, else ``$XDG_CACHE_HOME/mds``, else ``~/.cache/mds``.
    """
    variable = os.environ.get("MDS_CACHE_DIR")
    if variable:
        return url.path_on_disk(variable, "MDS_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if home.startswith("~"):  # no home directory: a folder of this user alone
        from mds.storage.control_files import private_temporary_folder

        return private_temporary_folder()
    return os.path.join(home, "mds")
