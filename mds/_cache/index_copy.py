"""Finds the index of a dataset, and keeps a copy of a remote index in the cache folder.

At each start, one request (HEAD) asks for version and size of the remote index.json. If they are
the ones in the note of the folder (`mds._cache.ownership`), and the copy is the file that was
written with the note, the copy is used. Otherwise the index is fetched, parsed and only then
published. Under the lock of the folder, one process decides for all which folder the source gets.

If the remote cannot be reached, a job with a copy continues with one warning. The note must then
name this very source, and the text of the copy must have the digest in the note: nothing else in a
folder proves that its index is the remote's. An index that lists files in another format is kept
without a note, in the control folder, under the digest of the source.

Which cached shards are still valid is not decided here: the ledger knows the content of each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds._arguments import did_you_mean
from mds._cache.folder import derived_folder
from mds._cache.ownership import (
    CONTROL,
    Origin,
    claim,
    control_folder,
    folder_below,
    folder_for,
    full_version,
    identity_for,
    is_hashed,
    is_of_endpoint,
    is_shared_by_nodes,
    make_cache_folder,
    read_origin,
    source_of,
    write_origin,
)
from mds._index.table import (
    MAX_FILES_INDEX_BYTES,
    MIN_COPIED_BYTES,
    FilesIndexError,
    Index,
    explain_missing_index,
    read_index,
)
from mds._redaction import get_logger
from mds.errors import (
    CacheError,
    DeniedError,
    FormatError,
    IndexFileError,
    MdsError,
    MissingDependencyError,
    NotFoundError,
    StoreError,
    UnauthenticatedError,
    VanishedError,
)
from mds.events import Retried, emit
from mds.storage._control_files import (
    make_control_folder,
    mode_of,
    publish_control_file,
    read_control_file,
)
from mds.storage._files import (
    blocked_error,
    despite_deletion,
    open_regular,
    temporary_path,
    translate_write_errors,
)
from mds.storage._local import version_at

if TYPE_CHECKING:
    from mds.storage import ObjectInfo, Store
    from mds.storage._retry import Retrying

INDEX = "index.json"
SIDECAR = "index.mds"
_ARCHIVES = (".zip", ".7z", ".rar")
#: Names of folders that number the parts of a dataset, such as "0", "00000" and "part-3".
_PART_NAME = re.compile(r"([a-z]+[-_.]?)?\d+", re.IGNORECASE)
_MAX_SEARCHED_FOLDERS = 100  # for the files of a folder that is not a dataset
_LOCK_TIMEOUT_SECONDS = 600.0

log = get_logger("mds.cache")


@dataclasses.dataclass(frozen=True, slots=True)
class LocatedIndex:
    """An index, and where its shards are."""

    index: Index
    #: The user's own folder, or the cache folder of the source.
    folder: str
    #: Version of the index at its store; "" if unknown.
    version: str
    #: Name of the source, see `source_of`; None in the user's own folder.
    source: str | None = None
    #: The store of the remote, if it was opened.
    store: Retrying | None = dataclasses.field(default=None, repr=False, compare=False)


def find_index(
    remote: str | None,
    folder: str,
    options: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
    attempts: int = 2,
    split: str = "",
) -> LocatedIndex:
    """Find the index of a dataset: in its own folder, or an up-to-date copy of the remote's.

    Args:
        remote: URL of the dataset; None: ``folder`` is the dataset.
        folder: Cache folder. If it belongs to another source, a folder below it is used.
        options: Options of the store.
        timeout: Seconds without a byte after which a try fails (default 60).
        attempts: Least number of tries of a request that fails (default 2), see `RetryPolicy`.
        split: End of ``folder`` that the user gave as ``split=``, for errors.

    Raises:
        NotFoundError: There is no index.
        FilesIndexError: The index lists files in another format.
        IndexFileError: The index is damaged (a ValueError).
        StoreError: The remote cannot be reached and there is no verified copy of its index.
        MissingDependencyError: The package of the store is not installed, and there is no copy.
    """
    if remote is None:
        version = version_at(os.path.join(folder, INDEX))
        return LocatedIndex(_read_in_place(folder, split), folder, version)

    from mds.storage import RetryPolicy, open_store
    from mds.storage._base import settings_for

    source = source_of(remote, options)
    # Seconds of retries: with a copy of the index, do not retry for minutes.
    noted = _find_copy(folder, source)
    has_copy = noted is not None or os.path.exists(_files_index_path(folder, source))
    within = timeout if has_copy else 300.0
    retry = RetryPolicy(attempts, within=within, notify=emit_retried, unreachable_within=timeout)
    options = settings_for(remote, options)
    try:
        store = open_store(remote, options=options, retry=retry, timeout=timeout)
    except MissingDependencyError as error:
        local_copy = _read_without_remote(folder, source, error)
        if local_copy is None:
            raise
        return local_copy  # a missing shard opens the store and raises this error again
    search, known = _Search(store, source, folder, options, timeout), [noted]
    # What was found above is for the first try; later ones look for the copy again.
    index_copy = despite_deletion(
        lambda: search.run(known.pop() if known else _find_copy(folder, source))
    )
    return dataclasses.replace(index_copy, source=source, store=store)


def fetch_index(
    remote: str | None,
    folder: str,
    options: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
    attempts: int = 2,
) -> Index:
    """Return only the index that `find_index` finds."""
    return find_index(remote, folder, options, timeout, attempts).index


class _Search(NamedTuple):
    """One search for the index of a remote source.

    A *copy* is the `index.json` in a cache folder. The *note* of the folder (`Origin`) has its
    inode, time and size, and the version of the remote index that was copied. The copy is unchanged
    if its file still has that inode, time and size, and up to date if the remote still has that
    version.
    """

    store: Store
    source: str  # name of the source, see `source_of`
    folder: str  # the folder that the user gave
    options: Mapping[str, Any] | None = None  # of the store
    timeout: float = 60.0  # of the store

    def run(self, noted: tuple[str, Origin] | None) -> LocatedIndex:
        """Return the index: a copy that is up to date, else one that is fetched now.

        ``noted`` is what `_find_copy` has just returned. If the remote cannot be reached, a
        verified copy is returned, or the error is raised. Raises VanishedError if the copy is
        deleted meanwhile.
        """
        # Folder and note of an unchanged copy, or None. A changed copy is fetched again. Only if
        # the remote fails, its digest is compared instead.
        before = noted if noted is not None and _is_unchanged_copy(*noted) else None
        if noted is not None:
            _, origin = noted
            try:
                is_current = self._is_current(origin)
            except StoreError as error:
                copy = _read_without_remote(self.folder, self.source, error, self.store)
                if copy is None:
                    raise
                return copy
            copy = _read_copy(*before) if is_current and before is not None else None
            if copy is not None:
                return copy
        try:
            return self._find_anew(before)
        except StoreError as error:
            if error.url != self.store.url_of(INDEX):  # it is not about the index
                raise
            _raise_kept_files_index(self.folder, self.source, error)
            hint = _foreign_index_hint(self.folder) if noted is None else ""
            if type(error) is NotFoundError:
                from mds._cache.nearby_datasets import describe_nearby

                nearby = describe_nearby(self.store.url, self.options, self.timeout)
                raise _no_remote_index(self.store, nearby, hint) from None
            error.args = (f"{error}{hint}",)
            raise

    def _find_anew(self, before: tuple[str, Origin] | None) -> LocatedIndex:
        """Return the index that another process has just published, or fetch and publish it.

        ``before`` is what `_copy` returned before; another result now is a newer copy.
        """
        if not can_write(self.folder):
            return self._without_writing()
        with translate_write_errors(os.path.join(self.folder, INDEX)), locked_folder(self.folder):
            now = self._copy()
            # If processes start together, one of them fetches the index and publishes a copy. The
            # others, which waited for the lock, see a copy that they did not see before.
            copy = _read_copy(*now) if now is not None and now != before else None
            return copy or self._fetch_and_publish()

    def _copy(self) -> tuple[str, Origin] | None:
        """Return the folder with a copy of the index, and its note; None if it was changed."""
        noted = _find_copy(self.folder, self.source)
        return noted if noted is not None and _is_unchanged_copy(*noted) else None

    def _is_current(self, origin: Origin) -> bool:
        """Whether the remote index has the version and size in a note."""
        info = self.store.head(INDEX)
        if not info.version:
            return False  # the store reports no versions: compare the index itself
        return (origin.version, origin.size) == (self._version(info), info.size)

    def _version(self, info: ObjectInfo) -> str:
        """Return the version of the remote index, with its server; see `full_version`."""
        return full_version(info, self.store.local_path, self.store.endpoint)

    # ------------------------------------------------------------------ fetching

    def _fetch_and_publish(self) -> LocatedIndex:
        """Fetch the index, choose the folder of the source, and publish the index there."""
        data, info = self._download()
        files_index = _files_index_path(self.folder, self.source)
        try:
            index = Index.parse(data, self.store.url_of(INDEX))
        except FilesIndexError:
            with publish_control_file(files_index, mode_of(self.folder)) as file:
                file.write(data)
            raise
        with contextlib.suppress(FileNotFoundError):
            os.unlink(files_index)  # the remote had an index of files before
        version = self._version(info)
        origin = Origin(self.source, identity_for(self.source, index, version), version, info.size)
        folder = self._choose_folder(origin, index, data)
        origin = self._publish(folder, origin, data)
        if index.total_samples and len(data) >= MIN_COPIED_BYTES:
            # The first reading writes a binary copy, with which later starts are faster.
            _read_copy(folder, origin)
        return LocatedIndex(index, folder, version)

    def _publish(self, folder: str, origin: Origin, data: bytes) -> Origin:
        """Write the index and a note about it into a folder; return the note.

        Args:
            folder: The folder, which has a note of this source.
            origin: The note, without the fields ``copy`` and ``since``.
            data: Text of the index.
        """
        # `noted` is the note that the folder has now, perhaps about an older index.
        noted, path = read_origin(folder), os.path.join(folder, INDEX)
        if noted is None or noted.source != self.source:
            raise VanishedError(
                f"read {folder}: its origin.json was deleted by another process.",
                url=folder,
                verb="read",
            )
        is_new = noted.identity != origin.identity
        if is_new or not _has_bytes(path, data):
            with publish_control_file(path, mode_of(folder)) as file:
                file.write(data)
        state, since = os.stat(path), noted.since
        if is_new:
            # Files that are in the folder already have the content of the older index. On a disk of
            # this machine, the ledger knows the new ones. On a shared one, other nodes write files
            # that our ledger lacks: use those that are written from now on (`Origin.since`).
            since = state.st_mtime_ns if is_shared_by_nodes(folder) else -1
        copy = (state.st_ino, state.st_mtime_ns, state.st_size)
        origin = dataclasses.replace(origin, copy=copy, since=since)
        write_origin(folder, origin, mode_of(folder))
        return origin

    def _download(self) -> tuple[bytes, ObjectInfo]:
        """Fetch the index; return its text, and the size and version of the object."""
        temporary = temporary_path(os.path.join(self.folder, CONTROL, INDEX))
        try:
            info = self.store.get_file(INDEX, temporary)
            with open(temporary, "rb") as file:
                return file.read(), info
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def _choose_folder(self, origin: Origin, index: Index, data: bytes) -> str:
        """Choose the folder for the source, and write the note of a folder that has none.

        That is the folder that the user gave, if it is free or the source's already; else one below
        it. The arguments are as in `_adopt`.
        """
        folder = folder_for(self.folder, self.source)
        if folder is None:
            folder = self._adopt(origin, index, data)
        if folder is None:
            folder = folder_below(self.folder, self.source)
        if folder != self.folder and read_origin(folder) is None:
            log.warning(
                "%s belongs to another dataset, so the files of %s are cached separately, in %s.",
                self.folder,
                self.store.url_of(""),
                folder,
            )
        if read_origin(folder) is None:
            self._claim(folder, origin)
        return folder

    def _adopt(self, origin: Origin, index: Index, data: bytes) -> str | None:
        """Write a note into the user's folder if it fits; return its path, or None if it does not.

        The folder has no note: it is empty, or was filled by another program, by hand, or by an
        earlier version of this library. It fits if its files can be those of the index.

        Args:
            origin: The note.
            index: Index of the remote.
            data: Text of the index.
        """
        path = os.path.join(self.folder, INDEX)
        since = -1  # files without digests are not used; 0: all are used, see `Origin.since`
        if _overlaps(self.folder, index):  # the folder is part of another cache folder
            return None
        if os.path.lexists(path):
            if not _is_equal(path, data, index):
                return None
            since = 0  # it is a copy of this dataset
            if not is_hashed(index):
                log.warning(
                    "%s was not filled by mds. It has the index of %s, whose shards have no "
                    "digests, so only their sizes are checked.",
                    self.folder,
                    self.store.url_of(""),
                )
        elif _has_shards(self.folder, index):  # files with names of shards, but no index
            if not is_hashed(index):
                return None
        elif is_shared_by_nodes(self.folder):  # an empty folder, to which other nodes fetch too
            since = 0
        self._claim(self.folder, Origin(self.source, origin.identity, since=since))
        return self.folder

    def _claim(self, folder: str, origin: Origin) -> None:
        """Write the note of a folder; raise VanishedError if another source was faster.

        The search is then repeated, see `find_index`.
        """
        make_cache_folder(folder)
        if not claim(folder, origin, mode_of(folder)):
            raise VanishedError(
                f"open {folder}: another dataset took the folder at the same moment. Restart.",
                url=folder,
                verb="open",
            )

    def _without_writing(self) -> LocatedIndex:
        """Fetch the index without keeping a copy, for a folder that cannot be written.

        The folder is used if it holds an equal index, since it may hold the whole dataset: one that
        this library fetched (its note has the identity of the remote) or that a user copied
        (without a note). Otherwise the dataset gets a path of its own below it, so that shards of
        another dataset are not mistaken for those of this one.
        """
        with self.store.stream(INDEX) as body:
            data, version = b"".join(body), self._version(body.info)
        index = Index.parse(data, self.store.url_of(INDEX))
        folder = folder_for(self.folder, self.source) or self.folder
        origin, identity = read_origin(folder), identity_for(self.source, index, version)
        may_be_ours = origin is None or origin.identity == identity
        if may_be_ours and _is_equal(os.path.join(folder, INDEX), data, index):
            return LocatedIndex(index, folder, version)
        log.warning(
            "%s is not a copy of %s and cannot be written. Choose another local folder.",
            self.folder,
            self.store.url_of(""),
        )
        return LocatedIndex(index, folder_below(self.folder, self.source), version)


# ---------------------------------------------------------------------- folders without an index


def _read_in_place(folder: str, split: str) -> Index:
    """Read the index of the user's own folder, which ends with ``split``."""
    path = os.path.join(folder, INDEX)
    if not os.path.exists(path):
        raise no_index_error(folder, "local", split)
    return read_index(path, os.path.join(derived_folder(folder), CONTROL, SIDECAR))


def no_index_error(folder: str, argument: str, split: str = "") -> StoreError:
    """Return the error for a path that is not the folder of a dataset, with a remedy.

    Args:
        folder: The path.
        argument: Name of the argument that has the path.
        split: End of ``folder`` that the user gave as ``split=``.
    """
    path = os.path.join(folder, INDEX)
    try:
        os.stat(path)
    except OSError as error:
        if (blocked := blocked_error(path, error)) is not None:
            return blocked
    if os.path.isfile(folder):
        inside, name = os.path.split(folder)
        is_ours = name == INDEX or os.path.exists(os.path.join(inside, INDEX))
        remedy = (
            f"Give the folder of the dataset: {argument}={inside or '.'!r}."
            if is_ours
            else "Unpack it and convert its folder with mds-convert."
            if folder.lower().endswith(_ARCHIVES)
            else f"Convert it: {_convert_command(folder)}"
        )
        return NotFoundError(
            f"open {folder}: this is a file, but {argument}= must be the folder of a dataset. "
            f"{remedy}",
            url=folder,
            verb="open",
        )
    no_folder = "" if os.path.isdir(folder) else " The folder does not exist."
    above, name = os.path.split(folder.rstrip(os.sep))
    is_split = bool(no_folder) and (bool(split) or argument == "remote")
    if is_split and os.path.isfile(os.path.join(above, INDEX)):
        no_folder += f" But {above} is a dataset without splits: leave split={name!r} out."
    elif is_split and _has_files(above):
        no_folder += f" But {above} has files: to read them, leave split={name!r} out."
    elif no_folder and argument == "local":
        no_folder += " With remote=, mds creates it and fetches the dataset into it."
    return NotFoundError(
        f"open {path}: there is no such file. Is {folder} the folder of a dataset?{no_folder}"
        f"{explain_missing_index(folder)}{_suggest_part(folder)}{_suggest_splits(folder)}"
        f"{_suggest_conversion(folder)}",
        url=path,
        verb="open",
    )


def _has_files(folder: str) -> bool:
    """Whether a folder has files that may be samples."""
    try:
        entries = os.scandir(folder)
    except OSError:
        return False
    with entries:
        return any(entry.is_file() and entry.name[0] not in "._" for entry in entries)


def _suggest_part(folder: str) -> str:
    """Return how to choose a part of a split, for a folder such as "train[:10]"; else ""."""
    name, bracket, part = os.path.basename(folder).partition("[")
    if not (bracket and ":" in part and part.endswith("]")):
        return ""
    return (
        f" To take a part of a split, write split={name!r} and then .limit(10), "
        ".select(range(10, 20)) or .split([0.8, 0.2])."
    )


def _convert_command(source: str) -> str:
    """Return the command that converts a file or folder."""
    return f"mds-convert {shlex.quote(source)} {shlex.quote(os.path.splitext(source)[0] + '-mds')}"


def _suggest_conversion(folder: str) -> str:
    """Return how to convert a folder of images, tables or other files, or "" if it has none."""
    if _datasets_in(folder):
        return ""
    names = [
        name
        for path, _, file_names in itertools.islice(os.walk(folder), _MAX_SEARCHED_FOLDERS)
        for name in file_names
        if "/." not in path[len(folder) :] and not name.startswith((".", "shard."))
    ]
    if not names:
        return ""
    counts = Counter(os.path.splitext(name)[1].lower() for name in names)
    ending = counts.most_common(1)[0][0]
    kind = f"{ending} files" if ending else "other files"
    from mds.formats._registry import BUILTIN_FORMATS

    # Formats that are read in place only if they are named.
    named = (name for name in ("images", "lines") if ending in BUILTIN_FORMATS[name].endings)
    format_name = next(named, None)
    advice = f"Read them with format={format_name!r}, or convert" if format_name else "Convert"
    return f" It has {kind}. {advice} them: {_convert_command(folder.rstrip(os.sep))}"


def _no_remote_index(store: Store, nearby: str, hint: str) -> StoreError:
    """Return the error for a remote that has no index.

    ``nearby`` is a sentence about datasets near it, and ``hint`` one about the local folder.
    """
    if store.local_path is not None:
        error = no_index_error(store.local_path, "remote")
        error.args = (f"{error}{hint}",)
        return error
    url = store.url_of(INDEX)
    other_files = (
        " For other files, remote= takes a name or a pattern such as '*.parquet', with format= if "
        "needed; mds-convert converts them."
    )
    return NotFoundError(
        f"open {url}: there is no such object. Is remote={store.url_of('')!r} the folder of a "
        f"dataset?{nearby or other_files}{hint}",
        url=url,
        verb="open",
    )


def _suggest_splits(folder: str) -> str:
    """Return a hint that names datasets in a folder, or with similar names if it does not exist."""
    datasets = _datasets_in(folder)
    if not datasets:
        above, name = os.path.split(folder)
        return "" if os.path.isdir(folder) else did_you_mean(name, _datasets_in(above or "."))
    listed = ", ".join(datasets[:5]) + (", ..." if len(datasets) > 5 else "")
    if all(map(_PART_NAME.fullmatch, datasets)):
        return (
            f" There are datasets in {listed}, which look like parts that were not merged. Merge "
            f"them with merge_index({folder!r}), or with: mds merge {shlex.quote(folder)}"
        )
    return f" There are datasets in {listed}: give split={datasets[0]!r}."


def _datasets_in(folder: str) -> list[str]:
    """Return the names of the subfolders that have an index, among the first 100."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        return []
    return [name for name in names[:100] if os.path.exists(os.path.join(folder, name, INDEX))]


# ---------------------------------------------------------------------- copies in a folder


def _read_copy(folder: str, origin: Origin) -> LocatedIndex | None:
    """Read the copy of an index; return None if it does not have the identity in the note."""
    path = os.path.join(folder, INDEX)
    try:
        index = read_index(path, os.path.join(folder, CONTROL, SIDECAR))
    except NotFoundError as error:
        raise VanishedError(
            f"read {path}: it existed a moment ago. Did another process delete it?",
            url=path,
            verb="read",
        ) from error
    if identity_for(origin.source, index, origin.version) != origin.identity:
        return None
    return LocatedIndex(index, folder, origin.version)


def _find_copy(folder: str, source: str) -> tuple[str, Origin] | None:
    """Return the folder that has an index and a note of ``source``, and the note, or None.

    ``folder`` is the folder that the user gave. If it belongs to another source, the copy is in a
    folder below it, see `mds._cache.ownership`.
    """
    own_folder: str | None = folder
    origin = read_origin(folder)
    if origin is None or origin.source != source:
        own_folder = folder_for(folder, source)
        origin = read_origin(own_folder) if own_folder is not None else None
    if own_folder is None or origin is None or origin.source != source:
        return None
    return (own_folder, origin) if os.path.isfile(os.path.join(own_folder, INDEX)) else None


def _is_unchanged_copy(folder: str, origin: Origin) -> bool:
    """Whether the index in a folder is the file that was written with the note."""
    try:
        state = os.stat(os.path.join(folder, INDEX))
    except OSError:
        return False
    return origin.copy == (state.st_ino, state.st_mtime_ns, state.st_size)


def _read_without_remote(
    folder: str, source: str, error: MdsError, store: Store | None = None
) -> LocatedIndex | None:
    """Return the copy of an index whose remote failed with ``error``, or None.

    The folder may have been copied, so the text of the index is compared with the note. Without
    digests, shards are used only for the server from which they were fetched: that of ``store``,
    if it could be opened. Raises FilesIndexError if the last index listed files in another format.
    """
    _raise_kept_files_index(folder, source, error)
    noted = _find_copy(folder, source)
    copy = None
    if noted is not None:
        with contextlib.suppress(FormatError, VanishedError):
            copy = _read_copy(*noted)
    if copy is None:
        return None
    is_verified = store is None or is_of_endpoint(copy.version, store.endpoint)
    if not is_verified and not is_hashed(copy.index):
        reason = (
            f"{copy.folder} was filled from another endpoint, and its shards have no digests. To "
            f"read the local files without the remote, give only local={copy.folder!r}."
        )
        error.args = (f"{error} {reason}",)
        return None
    _warn_without_remote(error, copy.folder)
    return copy


def _raise_kept_files_index(folder: str, source: str, error: MdsError) -> None:
    """Raise FilesIndexError with the last index of the files of a source, if it was kept.

    ``folder`` is the folder that the user gave, and ``error`` is that of the remote.
    """
    path = _files_index_path(folder, source)
    try:
        data = read_control_file(path, MAX_FILES_INDEX_BYTES)
        Index.parse(data, path)
    except FilesIndexError:
        _warn_without_remote(error, path)
        raise
    except (OSError, CacheError, IndexFileError):
        return  # it was not kept, or is damaged


def _files_index_path(folder: str, source: str) -> str:
    """Return the path of the kept index of a source whose index lists files."""
    digest = hashlib.blake2s(source.encode(), digest_size=8).hexdigest()
    return os.path.join(control_folder(folder), f"files-{digest}.json")


def _warn_without_remote(error: MdsError, path: str) -> None:
    """Warn that the index at ``path`` is used, because the remote failed with ``error``."""
    if isinstance(error, NotFoundError):
        reason = "The remote no longer has this dataset"
    elif isinstance(error, (DeniedError, UnauthenticatedError)):
        reason = "The remote does not accept the credentials"
    else:
        reason = "The remote cannot be read"
    log.warning(
        "%s %s, so mds uses the verified index in %s. A shard that is not in the cache will raise "
        "an error.",
        error,
        reason,
        path,
    )


def _foreign_index_hint(folder: str) -> str:
    """Return how to read a folder with an index of unknown origin; "" if it has no index."""
    if not os.path.isfile(os.path.join(folder, INDEX)):
        return ""
    return (
        f" To read the files in {folder}, whose index.json mds did not fetch from this remote, "
        f"give only local={folder!r}, or make the remote readable."
    )


def _is_equal(path: str, data: bytes, index: Index) -> bool:
    """Whether a file contains an index: its text ``data``, or other JSON of the same meaning."""
    try:
        with open_regular(path) as file:
            # Another notation is at most a few times as long.
            content = file.read(4 * len(data) + 1)
        return content == data or Index.parse(content).to_json() == index.to_json()
    except (OSError, IndexFileError):
        return False


def _has_bytes(path: str, data: bytes) -> bool:
    """Whether a file contains exactly ``data``."""
    try:
        with open_regular(path) as file:
            return file.read(len(data) + 1) == data
    except OSError:
        return False


def _has_shards(folder: str, index: Index) -> bool:
    """Whether a folder has a file that the index lists, or the first subfolder of its path."""
    try:
        names = set(os.listdir(folder)) - {CONTROL}
    except OSError:
        return False
    if not names:
        return False
    return any(name.split("/")[0] in names for shard in index.file_names() for _, name in shard)


def _overlaps(folder: str, index: Index) -> bool:
    """Whether files of an index would be inside another cache folder, or the reverse.

    For example, a dataset whose index lists `train/shard.00000.mds`, and its split `train`.
    """
    if np.any(index.names == ord("/")):  # some files are in subfolders
        directories = {
            os.path.dirname(name) for shard in index.file_names() for _, name in shard
        } - {""}
        if any(read_origin(os.path.join(folder, directory)) for directory in directories):
            return True
    # Find the nearest cache folder above. `below` is the path of ``folder`` relative to `above`,
    # with "/" at the end: for folder /data/a/b, "b/" below /data/a, then "a/b/" below /data.
    below, above = "", os.path.abspath(folder)
    while os.path.dirname(above) != above:
        above, name = os.path.split(above)
        below = f"{name}/{below}"
        if name != CONTROL and read_origin(above) is not None:
            return _lists_files_in(os.path.join(above, INDEX), below)
    return False


def _lists_files_in(path: str, directory: str) -> bool:
    """Whether the index file at ``path`` lists files in a directory.

    ``directory`` is its path relative to the index, with "/" at the end.
    """
    try:
        with open_regular(path) as file:
            # In JSON, a listed path such as "train/shard.00000.mds" follows a quotation mark.
            return f'"{directory}'.encode() in file.read()
    except OSError:
        return False


@contextlib.contextmanager
def locked_folder(folder: str) -> Iterator[None]:
    """Hold the lock of a folder during the block: one process decides which source owns it.

    The folder is created if it is missing. If another process holds the lock for too long, a
    warning is logged and the block runs without it.
    """
    from mds._cache.ledger_file import FOLDER_LOCK
    from mds.storage._locks import lock_within

    make_cache_folder(folder)
    control = control_folder(folder)
    make_control_folder(control)
    path = os.path.join(control, "lock")
    lock = lock_within(path, FOLDER_LOCK, _LOCK_TIMEOUT_SECONDS, mode_of(folder), past_stopped=True)
    if lock is None:  # safe without the lock: a folder has one note, and files appear by rename
        from mds.storage._locks import describe_processes, holders_of

        owners = describe_processes(holders_of(path, FOLDER_LOCK))
        log.warning("%s is being opened by a process that is stuck or stopped: %s.", folder, owners)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def can_write(folder: str) -> bool:
    """Whether a folder can be written, or created in the nearest folder above that exists."""
    while not os.path.exists(folder):
        parent = os.path.dirname(os.path.abspath(folder))
        if parent == folder:
            return False
        folder = parent
    # If the path is a file, creating the folder raises the error.
    return not os.path.isdir(folder) or os.access(folder, os.W_OK | os.X_OK)


def emit_retried(url: str, attempt: int, error: str) -> None:
    """Emit the event of a request that is repeated; a function for `RetryPolicy`."""
    emit(Retried(url, attempt, error))
