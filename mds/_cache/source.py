"""A source of shards, as the cache sees it, and the folders of this user's cached data."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mds.storage import _url as url

if TYPE_CHECKING:
    from mds._index.table import Index
    from mds.formats._dataset import FormatData
    from mds.storage._retry import Retrying


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A source of shards: its index and where its files are. Frozen and picklable."""

    index: Index
    #: URL of the shards; None: ``folder`` is the user's own, read in place and never evicted.
    remote: str | None
    #: The cache folder, or the user's own folder.
    folder: str
    #: Options of the store.
    options: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    #: Whether compressed files are kept in the cache folder.
    keep_zip: bool = False
    #: Name of the digest that every file must have; None: files are checked when they are fetched.
    validate_hash: str | None = None
    #: Least number of tries of a request that fails, see `RetryPolicy.attempts`.
    attempts: int = 2
    #: Seconds without a byte after which a try fails.
    timeout: float = 60.0
    #: Version of the index at its store; None: the one in the note of the folder.
    version: str | None = None
    #: Reader of the files if they are in another format; None: they are MDS.
    data: FormatData | None = dataclasses.field(default=None, repr=False)
    #: Name of the source, see `source_of`; None: it follows from the URL and the options.
    source_name: str | None = None
    #: Root folder of this user's cached data, as it was when the source was made.
    user_cache: str = dataclasses.field(
        default_factory=lambda: cache_root(),  # noqa: PLW0108 - it is defined below
        repr=False,
    )
    #: The store from which the index was fetched. It is not pickled: another process opens its own,
    #: since a store of the user may not be picklable.
    store: Retrying | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def is_near(self) -> bool:
        """Whether all files are on this machine."""
        return self.remote is None or (self.data is not None and url.is_local(self.remote))

    def content(self) -> str:
        """Return the digest of the index, or of the files of another format and their versions.

        It does not depend on the selected columns.
        """
        return self.index.fingerprint() if self.data is None else self.data.table.digest()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all fields but the last one, the store, and the servers that have answered."""
        from mds.storage._wrappers import answered_servers

        names = [field.name for field in dataclasses.fields(self) if field.name != "store"]
        return _revive, (answered_servers(), *(getattr(self, name) for name in names))


def _revive(answered_servers: tuple[str, ...], *values: Any) -> Source:
    """Return a pickled source, in a process that learns which servers have answered the first."""
    from mds.storage._wrappers import mark_answered

    mark_answered(answered_servers)
    return Source(*values)


def default_folder(remote: str) -> str:
    """Return the folder in which this user's data of a remote are cached."""
    digest = hashlib.blake2s(url.source_name(remote).encode(), digest_size=16).hexdigest()
    return os.path.join(cache_root(), digest)


def cache_root() -> str:
    """Return the root folder of this user's cached data.

    ``$MDS_CACHE_DIR``, else ``$XDG_CACHE_HOME/mds``, else ``~/.cache/mds``.
    """
    variable = os.environ.get("MDS_CACHE_DIR")
    if variable:
        return url.absolute_path(url.path_on_disk(variable, "MDS_CACHE_DIR"))
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if home.startswith("~"):  # no home directory: use a temporary folder of this user
        from mds.storage._control_files import private_temporary_folder

        return private_temporary_folder()
    return os.path.join(url.absolute_path(home), "mds")
