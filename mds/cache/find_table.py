"""The table of a dataset in a format: found beside the cache, or made, once for all of a node.

The process that comes first takes the lock of the folder, lists the files and looks at those that
are new; those that waited for the lock meanwhile take what it published and ask for nothing. A
later start lists once and looks at no file that has the version it had.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mds.cache.filesystem import control_folder
from mds.cache.folder import derived_folder
from mds.cache.index_copy import can_write, locked_folder, retried
from mds.cache.origin import (
    CONTROL,
    Origin,
    apart,
    claim,
    folder_for,
    make_folders,
    read_origin,
    source_of,
    write_origin,
)
from mds.cache.ownership import identity_for
from mds.cache.source import Source
from mds.errors import CacheError, FormatError, StoreError, VanishedError
from mds.formats.base import Format
from mds.formats.dataset import HERE, PINNED, FormatData, make_table, read_pinned, reads_of
from mds.formats.facts import FoundFiles
from mds.formats.source import FilePlace, Files, open_pinned, parse_place
from mds.formats.table import FileTable, first_names
from mds.index.table import FilesIndexError
from mds.redaction import get_logger
from mds.storage.control_files import (
    make_control_folder,
    mode_of,
    publish_control_file,
    read_control_file,
)
from mds.storage.files import translate_write_errors
from mds.storage.url import Url, is_local, local_path, reveal

if TYPE_CHECKING:
    from mds.storage import Store

log = get_logger("mds.cache")

#: The folder of tables, in the control folder of a cache folder.
TABLES = "tables"
_LARGEST = 1 << 32
#: The most bytes that a start reads over a network to count samples.
MOST_PLANNED_BYTES = 10 << 30


def find_table(
    kind: Format,
    url: str,
    folder: str | None,
    columns: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
    retries: int = 2,
    pinned: FilesIndexError | None = None,
) -> Source:
    """Return the source of a dataset in a format, at a URL with or without wildcards.

    With ``pinned`` the URL is that of an index of files, and these are read and no others.

    What is decoded goes to ``folder``, or to one below it if that holds other columns or other
    data; None is a folder of this user. Raises NotFoundError when there are no such files,
    FormatError (a ValueError) for one that cannot be read, and ConfigError for a column that no
    file has.
    """
    from mds.storage import RetryPolicy, open_store

    if pinned is not None:
        place = FilePlace(Url(url if pinned.remote == HERE else pinned.remote))
    else:
        place = kind.narrow(parse_place(url, kind.endings))
    retry = RetryPolicy(retries, within=300.0, notify=retried)
    open_at = functools.partial(open_store, options=options, retry=retry, timeout=timeout)
    store = open_at(place.root)
    part = place.patterns or place.literal if pinned is None else pinned.fingerprint
    name = f"{source_of(place.root, options)}#{_digest(part, reads_of(kind))}"
    base = folder if folder is not None else derived_folder(url)
    search = _TableSearch(kind, place, Files(store), base, name, open_at)
    if pinned is None:
        table = search.run()
    else:
        table = search.run(functools.partial(read_pinned, open_at(url), pinned, kind))
    data = FormatData.of(kind, table, columns, Url(url))
    index = data.index()
    source = f"{name}-{_digest(data.columns.names)}"
    if data.is_in_place and is_local(place.root):
        return Source(index, None, local_path(place.root), options, data=data, version="")
    cache_folder = _own_folder(base, source, identity_for(source, index, ""))
    root = place.root
    if (table_root := table.header.get("root")) is not None:
        root, store = Url(table_root), open_at(table_root)
    return Source(
        index, root, cache_folder, options, retries=retries, timeout=timeout, version="",
        store=store, data=data, source_name=source,
    )  # fmt: skip


class _TableSearch:
    """One search for a table."""

    def __init__(
        self,
        kind: Format,
        place: FilePlace,
        files: Files,
        folder: str,
        name: str,
        open_at: Callable[[str], Store],
    ) -> None:
        self._open_at = open_at
        self.kind, self.place, self.files, self.folder, self.name = kind, place, files, folder, name
        self._tables = os.path.join(control_folder(folder, CONTROL), TABLES)
        self._path = os.path.join(self._tables, _digest(name))

    def run(self, pinned: Callable[[], FileTable] | None = None) -> FileTable:
        """Return the present table, or the one that is ``pinned``, which never changes."""
        began = time.time_ns()
        if not can_write(self.folder):
            return self._make_or_keep(self._read()[0]) if pinned is None else pinned()
        with translate_write_errors(self._path), locked_folder(self.folder):
            make_control_folder(self._tables)
            old, since = self._read()
            is_fresh = began <= since <= time.time_ns()  # and not of a clock that was ahead
            if old is not None and (is_fresh or pinned is not None):
                return old  # another process has just listed the files
            table = self._make_or_keep(old) if pinned is None else pinned()
            if old is not None and table is not old:
                self._report_changes(old, table)
            if table is old:
                os.utime(self._path)
            else:
                with publish_control_file(self._path, mode_of(self.folder)) as file:
                    file.write(table.to_bytes())
            return table

    def _make_or_keep(self, old: FileTable | None) -> FileTable:
        """Return the table as it is now, or ``old`` where the remote cannot be asked."""
        try:
            return self._make(old)
        except StoreError as error:
            if old is None or is_local(self.place.root):
                raise
            log.warning(
                "%s The remote cannot be asked: the table of files of the last start is used, and "
                "a shard that is not in the cache will raise an error.",
                error,
            )
            return old

    def _make(self, old: FileTable | None) -> FileTable:
        files = open_pinned(self.place.root, self._open_at)
        source_files = self.kind.find(self.place, files)
        if not source_files.files:
            raise self._nothing()
        if old is not None and self._is_same(old, source_files):
            return old
        header = {"source": self.name}
        if files.store.url != self.files.store.url:
            header["root"] = reveal(files.store.url)
        return make_table(self.kind, files, source_files, old, header, MOST_PLANNED_BYTES)

    def _is_same(self, old: FileTable, source_files: FoundFiles) -> bool:
        """Whether nothing has changed since a table was made."""
        is_told = self.kind.has_final_files or all(file.version for file in source_files.files)
        pin_and_schema = old.header.get("pin", {}), old.header.get("schema", "")
        return (
            is_told
            and old.files == source_files.files
            and pin_and_schema == (source_files.pin, source_files.schema)
        )

    def _report_changes(self, old: FileTable, new: FileTable) -> None:
        """Warn about files that differ since the last start, and record them in the new table."""
        for kind, names in new.record_changes(old).items():
            log.warning(
                "%s: since the last start here these files are %s: %s. With other counts "
                "of samples the order is another one; mds index pins the files of a run.",
                self.files.url(""),
                kind,
                first_names(names),
            )

    def _nothing(self) -> FormatError:
        endings = " or ".join(self.kind.endings)
        pattern = f" that match {', '.join(self.place.patterns[:3])}" if self.place.patterns else ""
        url = self.files.url("")
        return FormatError(f"{url}: there are no files of {self.kind.name} ({endings}){pattern}.")

    def _read(self) -> tuple[FileTable | None, int]:
        with contextlib.suppress(OSError, CacheError, FormatError):
            data = read_control_file(self._path, _LARGEST)
            table = FileTable.parse(data, self._path)
            if table.header.get("source") in (self.name, PINNED):
                return table, os.stat(self._path).st_mtime_ns
        return None, 0


def _own_folder(folder: str, source: str, identity: str) -> str:
    """Choose the folder for decoded shards of a source, and record the source in it."""
    root = folder_for(folder, source)
    if root is None:
        is_taken = os.path.isdir(folder) and any(name != CONTROL for name in os.listdir(folder))
        root = apart(folder, source) if is_taken else folder
    if can_write(folder):
        origin = Origin(source, identity)
        if not _take(root, origin):
            root = apart(folder, source)
            if not _take(root, origin):
                raise VanishedError(
                    f"open {root}: other data took the folder just now.", url=root, verb="open"
                )
    return root


def _take(folder: str, origin: Origin) -> bool:
    """Note whose folder it is, also where the same source was noted with files that changed since.

    False when another source was first.
    """
    make_folders(folder)
    with locked_folder(folder):
        noted = read_origin(folder)
        if noted is not None and noted.source == origin.source != "":
            renewed = dataclasses.replace(noted, identity=origin.identity)
            write_origin(folder, renewed, mode_of(folder))
        return claim(folder, origin, mode_of(folder))


def _digest(*facts: object) -> str:
    return hashlib.blake2s(repr(facts).encode(), digest_size=8).hexdigest()
