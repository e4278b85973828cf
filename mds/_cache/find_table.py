"""Finds the table of files of a dataset in another format, such as Parquet, once for a node.

The table lists the files, their versions and their numbers of samples, and is kept in the cache
folder. The first process takes the lock of the folder, lists the files, and reads the headers of
new ones. Processes that waited for the lock use the table that it published. A later start lists
the files again, and reads no file whose version is unchanged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from mds._cache.folder import derived_folder
from mds._cache.index_copy import can_write, emit_retried, locked_folder
from mds._cache.ownership import (
    CONTROL,
    Origin,
    claim,
    control_folder,
    folder_below,
    folder_for,
    full_version,
    identity_for,
    make_cache_folder,
    read_origin,
    source_of,
    write_origin,
)
from mds._cache.source import Source
from mds._index.table import FilesIndexError
from mds._redaction import get_logger
from mds.errors import CacheError, FormatError, StoreError, VanishedError
from mds.formats._base import Format
from mds.formats._dataset import (
    HERE,
    PINNED,
    FormatData,
    list_split,
    make_table,
    read_pinned,
    reads_of,
)
from mds.formats._facts import FoundFiles, describe_left_out
from mds.formats._names import WARNED
from mds.formats._source import FilePlace, Files, open_pinned, parse_place
from mds.formats._table import REVISION, FileTable, first_names
from mds.storage._base import ObjectInfo
from mds.storage._control_files import (
    make_control_folder,
    mode_of,
    publish_control_file,
    read_control_file,
)
from mds.storage._files import translate_write_errors
from mds.storage._url import Url, is_local, join, local_path, reveal

if TYPE_CHECKING:
    from mds.storage._retry import Retrying, RetryPolicy

log = get_logger("mds.cache")

#: The folder of tables, in the control folder of a cache folder.
TABLES = "tables"
_MAX_TABLE_BYTES = 1 << 32
#: Most bytes that are read over a network at a start to count samples.
MOST_PLANNED_BYTES = 10 << 30


def find_table(
    kind: Format,
    url: str,
    folder: str | None,
    columns: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
    attempts: int = 2,
    pinned: FilesIndexError | None = None,
    split: str = "",
) -> Source:
    """Return the source of a dataset in another format.

    Args:
        kind: The format.
        url: Path or URL of files or of a folder, with or without wildcards.
        folder: Folder for decoded shards; a folder below it is used if it holds other columns or
            other data. None: a folder of this user.
        columns: Columns to decode; None (default): all.
        options: Options of the store.
        timeout: Seconds without a byte after which a try fails (default 60).
        attempts: Least number of tries of a request that fails (default 2), see `RetryPolicy`.
        pinned: The error that parsing the ``index.json`` at ``url`` raised because it lists files
            in another format. It has the contents of that index; only the listed files are read.
            None (default): there is no such index.
        split: The split to read, as `list_split` takes it; '' (default) if there are none.

    Raises:
        NotFoundError: There are no files.
        FormatError: A file cannot be read, or a split must be chosen (a ValueError).
        SplitError: There is no such split.
        ConfigError: No file has a column.
    """
    from mds.storage import RetryPolicy, open_store
    from mds.storage._base import settings_for

    # Where the files are: as the index says, or by the URL and the endings of the format.
    if pinned is not None:
        place = FilePlace(Url(url if pinned.remote == HERE else pinned.remote))
    else:
        place = kind.narrow(parse_place(url, kind.endings))
    # The name of the data contains everything on which the table depends, besides the files.
    part: object = place.patterns or place.literal if pinned is None else pinned.fingerprint
    if split:
        part = (part, split)
    name = f"{source_of(place.root, options)}#{_digest(part, reads_of(kind))}"
    base = folder if folder is not None else derived_folder(join(url, split))
    patient = RetryPolicy(attempts, notify=emit_retried)
    # With a table of the last start, which can be used instead, do not list for minutes.
    has_table = os.path.exists(_table_path(base, name)) and not is_local(place.root)
    retry = dataclasses.replace(patient, within=timeout) if has_table else patient

    def open_at(url: str) -> Retrying:
        settings = settings_for(url, options)
        return open_store(url, options=settings, retry=retry, timeout=timeout)

    store = open_at(place.root)
    search = _TableSearch(kind, place, split, Files(store), base, name, open_at, patient)
    if pinned is None:
        table = search.run()
    else:
        table = search.run(functools.partial(read_pinned, open_at(url), pinned, kind))
    data = FormatData.of(kind, table, columns, Url(url))
    index, version = data.index(), table.header.get(REVISION, "")
    source = f"{name}-{_digest(data.columns.names)}"
    if data.is_in_place and is_local(place.root):  # the files are read as they are
        return Source(index, None, local_path(place.root), options, data=data, version=version)
    cache_folder = _choose_folder(base, source, identity_for(source, index, version))
    root = place.root
    # The table may name a fixed version of the remote, whose files it lists.
    if (table_root := table.header.get("root")) is not None:
        root, store = Url(table_root), open_at(table_root)
    return Source(
        index, root, cache_folder, options, attempts=attempts, timeout=timeout, version=version,
        store=store, data=data, source_name=source,
    )  # fmt: skip


class _TableSearch:
    """One search for the table of a dataset.

    Args:
        kind: The format.
        place: Where the files are.
        split: The split to read.
        files: Reader of the files.
        folder: Cache folder that holds the table.
        name: Name of the data. A table in the folder is used only if it contains this name.
        open_at: Function that opens the store of a URL, with retries for a listing.
        retry: Retries for the headers of files, after the remote has listed them.
    """

    def __init__(
        self,
        kind: Format,
        place: FilePlace,
        split: str,
        files: Files,
        folder: str,
        name: str,
        open_at: Callable[[str], Retrying],
        retry: RetryPolicy,
    ) -> None:
        self._open_at, self._retry = open_at, retry
        self.kind, self.place, self.files, self.folder, self.name = kind, place, files, folder, name
        self._split = split
        self._path = _table_path(folder, name)

    def run(self, pinned: Callable[[], FileTable] | None = None) -> FileTable:
        """Return the table of the present files, and keep it in the cache folder.

        A table in the folder is used as it is if another process confirmed it after this call
        began: it waited for the lock of the folder meanwhile.

        ``pinned`` is a function that reads a table that never changes; None (default): list the
        files.
        """
        began = time.time_ns()
        if not can_write(self.folder):
            old, _ = self._read()
            return self._make_or_keep(old) if pinned is None else old or pinned()
        with translate_write_errors(self._path), locked_folder(self.folder):
            make_control_folder(os.path.dirname(self._path))
            old, listed = self._read()  # a table, and when its files were last listed, in ns
            is_fresh = began <= listed <= time.time_ns()  # the clock may have been set back
            if old is not None and (is_fresh or pinned is not None):
                return old  # another process has listed the files since this one began
            table = self._make_or_keep(old) if pinned is None else pinned()
            if old is not None and table is not old:
                self._report_changes(old, table)
            if table is old:
                os.utime(self._path)  # the files were listed now
            else:
                with publish_control_file(self._path, mode_of(self.folder)) as file:
                    file.write(table.to_bytes())
            return table

    def _make_or_keep(self, old: FileTable | None) -> FileTable:
        """Return the present table, or ``old`` if the remote cannot be reached."""
        try:
            return self._make(old)
        except StoreError as error:
            if old is None or is_local(self.place.root):
                raise
            log.warning(
                "%s The remote cannot be listed, so mds uses the table of files of the last "
                "start. A shard that is not in the cache will raise an error.",
                error,
            )
            return old

    def _make(self, old: FileTable | None) -> FileTable:
        """Return a table of the present files, or ``old`` if no file has changed.

        Only the headers of files that are not in ``old`` are read, at most `MOST_PLANNED_BYTES`
        over a network.
        """
        # A remote with versions, such as a repository, is read at its present version.
        files = open_pinned(self.place.root, self._open_at)
        source_files = list_split(self.kind, self.place, files, self._split)
        if not source_files.files:
            raise self._no_files_error(files)
        self._warn_of_left_out(files)
        # The same names, sizes and versions may be of other files: at another endpoint, or behind a
        # link that leads elsewhere now. Then all of them are planned again.
        header = {"source": self.name}
        revision = self._revision(files, source_files)
        if revision:
            header[REVISION] = revision
        if old is not None and old.header.get(REVISION, "") != revision:
            old = None
        counts = files.left_out, files.followed
        if (
            old is not None
            and self._is_same(old, source_files)
            and (old.left_out, old.followed) == counts
        ):
            return old
        # The header of the table names the data. If the remote has versions, `files` is opened at
        # the present one, and the header has the URL with that version.
        files.store = cast("Retrying", files.store).with_policy(self._retry)
        if files.store.url != self.files.store.url:
            header["root"] = reveal(files.store.url)
        return make_table(self.kind, files, source_files, old, header, MOST_PLANNED_BYTES)

    def _revision(self, files: Files, source_files: FoundFiles) -> str:
        """Return a text that differs if other files have the names, sizes and versions of these."""
        known = [files.revisions.get(file.key, "") for file in source_files.files]
        info = ObjectInfo("", -1, revision=_digest(known) if any(known) else "")
        return full_version(info, files.store.local_path, files.store.endpoint)

    def _is_same(self, old: FileTable, source_files: FoundFiles) -> bool:
        """Whether the listed files are those of an ``old`` table, in the same versions.

        Pin (a fixed version of all files) and schema, which some formats have, must be equal too.
        """
        # Files without versions may have changed, unless files of the format never change.
        has_versions = self.kind.has_final_files or all(file.version for file in source_files.files)
        pin_and_schema = old.header.get("pin", {}), old.header.get("schema", "")
        return (
            has_versions
            and old.files == source_files.files
            and pin_and_schema == (source_files.pin, source_files.schema)
        )

    def _report_changes(self, old: FileTable, new: FileTable) -> None:
        """Warn about files that differ since the last start, and record them in the new table."""
        for kind, names in new.record_changes(old).items():
            log.warning(
                "%s: since the last start, these files are %s: %s. If the counts of samples "
                "differ, so does the order. mds index fixes the files of a run.",
                self.files.url(""),
                kind,
                first_names(names),
            )

    @staticmethod
    def _warn_of_left_out(files: Files) -> None:
        """Warn about links and names with "_" that the dataset does not read."""
        if described := describe_left_out(files.left_out, WARNED):
            log.warning(
                "%s: the dataset does not read all files here. It leaves out %s. To read them, "
                "replace links by copies and rename files and folders. dataset.explain() counts "
                "everything that is left out.",
                files.url(""),
                described,
            )

    def _no_files_error(self, files: Files) -> FormatError:
        """Return the error for a URL without files of the format."""
        endings = " or ".join(self.kind.endings)
        pattern = f" that match {', '.join(self.place.patterns[:3])}" if self.place.patterns else ""
        left_out = describe_left_out(files.left_out)
        suffix = f" Files that are left out: {left_out}." if left_out else ""
        url = files.url("")
        return FormatError(
            f"{url}: there are no {self.kind.name} files ({endings}){pattern}.{suffix}"
        )

    def _read(self) -> tuple[FileTable | None, int]:
        """Return the table in the folder, or None, and when it was last confirmed, in ns."""
        with contextlib.suppress(OSError, CacheError, FormatError):
            data = read_control_file(self._path, _MAX_TABLE_BYTES)
            table = FileTable.parse(data, self._path)
            # `PINNED` is the name in a table of fixed files, which `mds index` has written.
            if table.header.get("source") in (self.name, PINNED):
                return table, os.stat(self._path).st_mtime_ns
        return None, 0


def _table_path(folder: str, name: str) -> str:
    """Return the path of the table of the data with a name, below its cache folder."""
    return os.path.join(control_folder(folder), TABLES, _digest(name))


def _choose_folder(folder: str, source: str, identity: str) -> str:
    """Choose the folder for decoded shards of a source, and record the source in it.

    Args:
        folder: Folder that the user gave. If it belongs to other data, a folder below it is chosen.
        source: Name of the source, with its columns.
        identity: Digest of the source and its index, see `identity_for`.
    """
    root = folder_for(folder, source)
    if root is None:  # no folder has been chosen for this source yet
        is_taken = os.path.isdir(folder) and any(name != CONTROL for name in os.listdir(folder))
        root = folder_below(folder, source) if is_taken else folder
    if can_write(folder):
        origin = Origin(source, identity)
        if not _take(root, origin):
            root = folder_below(folder, source)  # another source was faster
            if not _take(root, origin):
                raise VanishedError(
                    f"open {root}: another dataset took the folder at the same moment. Restart.",
                    url=root,
                    verb="open",
                )
    return root


def _take(folder: str, origin: Origin) -> bool:
    """Record in the note of a folder that it belongs to the source of ``origin``.

    If it does already, record the new identity of the source. Return False if the folder belongs to
    another source.
    """
    make_cache_folder(folder)
    with locked_folder(folder):
        present = read_origin(folder)
        # An empty name would match any unnamed source.
        if present is not None and origin.source and present.source == origin.source:
            renewed = dataclasses.replace(present, identity=origin.identity)
            write_origin(folder, renewed, mode_of(folder))
        return claim(folder, origin, mode_of(folder))


def _digest(*facts: object) -> str:
    return hashlib.blake2s(repr(facts).encode(), digest_size=8).hexdigest()
