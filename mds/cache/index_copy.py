"""The index of a dataset, and whether the copy in a cache folder is still the remote's.

One look at the remote (HEAD) at the start tells: while source, version and size of its index.json
are what they were when the copy was made, and the copy is as it was written, the copy is the index.
Otherwise it is fetched anew, parsed, and only then published. Which folder it goes to is decided
here, under the lock of the folder, once for all (`origin.py`). What of the cached shards is still
good is a matter of the ledger, which knows the content that each of them has.

A remote that cannot be asked does not end a run whose cache has its index: the copy is used, with
one warning, if the note beside it names this very source and the text of the index is the noted
one. Nothing else in the folder is a reason to believe that it is the remote's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mds.arguments import did_you_mean
from mds.cache.filesystem import control_folder
from mds.cache.folder import derived_folder
from mds.cache.origin import (
    CONTROL,
    Origin,
    apart,
    claim,
    folder_for,
    identity_of,
    make_folders,
    read_origin,
    source_of,
    write_origin,
)
from mds.cache.ownership import (
    has_bytes,
    has_shards,
    identity_for,
    is_equal,
    is_hashed,
    is_shared_by_nodes,
    overlaps,
    version_of,
)
from mds.errors import (
    DeniedError,
    FormatError,
    MdsError,
    MissingDependencyError,
    NotFoundError,
    StoreError,
    UnauthenticatedError,
    VanishedError,
)
from mds.events import Retried, emit
from mds.index import Index, read_index
from mds.index.table import MIN_COPIED_BYTES, explain_missing_index
from mds.redaction import get_logger
from mds.storage.control_files import make_control_folder, mode_of, publish_control_file
from mds.storage.files import despite_deletion, temporary_path, translate_write_errors

if TYPE_CHECKING:
    from mds.storage import ObjectInfo, Store
    from mds.storage.retry import Retrying

INDEX = "index.json"
SIDECAR = "index.mds"
_ARCHIVES = (".zip", ".7z", ".rar")
_FOLDERS_LOOKED_AT = 100  # for the files of a folder that is not a dataset
_LOCK_AT = 1 << 40  # beside the bytes that the ledger uses
_LOCK_TIMEOUT_SECONDS = 600.0

log = get_logger("mds.cache")


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """An index, the folder that keeps what is fetched of it, the store and its version there."""

    index: Index
    folder: str
    version: str
    store: Retrying | None = dataclasses.field(default=None, repr=False, compare=False)


def find_index(
    remote: str | None,
    folder: str,
    options: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
    retries: int = 2,
) -> Found:
    """Find the index of a dataset: in place without ``remote``, else an up-to-date copy.

    What is fetched goes to ``folder``, or to a folder below it that is this source's alone, if
    ``folder`` is another's. Raises NotFoundError when there is no index, IndexFileError (a
    ValueError) when it is broken, and the StoreError of a remote that cannot be asked or the
    MissingDependencyError of its package, unless a verified copy of this very remote is there.
    """
    if remote is None:
        version = version_of(os.path.join(folder, INDEX))
        return Found(_in_place(folder), folder, version)

    from mds.storage import RetryPolicy, open_store

    source = source_of(remote, options)
    # Where there is a copy, waiting for minutes is pointless.
    within = timeout if _noted_copy(folder, source) is not None else 300.0
    retry = RetryPolicy(retries, within=within, notify=retried)
    try:
        store = open_store(remote, options=options, retry=retry, timeout=timeout)
    except MissingDependencyError as error:
        local_copy = _read_without_remote(folder, source, error)
        if local_copy is None:
            raise
        return local_copy  # a shard that is missing opens the store, and raises this error again
    index_copy = despite_deletion(_Search(store, source, folder).run)
    return dataclasses.replace(index_copy, store=store)


def fetch_index(
    remote: str | None,
    folder: str,
    options: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
    retries: int = 2,
) -> Index:
    """Return only the index that `find_index` finds."""
    return find_index(remote, folder, options, timeout, retries).index


@dataclasses.dataclass(frozen=True, slots=True)
class _Search:
    """One search for the index of a source that was told to use a folder."""

    store: Store
    source: str
    folder: str

    def run(self) -> Found:
        """Read an up-to-date copy of the index; raise VanishedError if it is deleted meanwhile."""
        before = self._copy()
        if (noted := _noted_copy(self.folder, self.source)) is not None:
            try:
                is_current = self._is_current(noted[1])
            except StoreError as error:
                copy = _read_without_remote(self.folder, self.source, error)
                if copy is None:
                    raise
                return copy
            copy = _read_copy(*before) if is_current and before is not None else None
            if copy is not None:
                return copy
        try:
            return self._find_anew(before)
        except StoreError as error:
            if error.url != self.store.url_of(INDEX):
                raise
            hint = _foreign_index_hint(self.folder) if noted is None else ""
            if type(error) is NotFoundError:
                raise _no_remote_index(self.store, hint) from None
            error.args = (f"{error}{hint}",)
            raise

    def _find_anew(self, before: tuple[str, Origin] | None) -> Found:
        """Fetch the index, unless another process has just published a copy other than `before`."""
        if not can_write(self.folder):
            return self._without_writing()
        with translate_write_errors(os.path.join(self.folder, INDEX)), locked_folder(self.folder):
            now = self._copy()
            # One download for all processes that start together.
            copy = _read_copy(*now) if now is not None and now != before else None
            return copy or self._fetch_and_publish()

    def _copy(self) -> tuple[str, Origin] | None:
        """Return the folder with a copy of the source's index, and its note."""
        noted = _noted_copy(self.folder, self.source)
        return noted if noted is not None and _is_unchanged_copy(*noted) else None

    def _is_current(self, origin: Origin) -> bool:
        info = self.store.head(INDEX)
        if not info.version:
            return False  # a store that tells nothing: the index itself must
        return (origin.version, origin.size) == (_short(info.version), info.size)

    # ------------------------------------------------------------------ fetching

    def _fetch_and_publish(self) -> Found:
        """Fetch the index, decide whose folder it is, and publish it there."""
        data, info = self._download()
        index = Index.parse(data, self.store.url_of(INDEX))
        version = _short(info.version)
        origin = Origin(self.source, identity_for(self.source, index, version), version, info.size)
        folder = self._choose_folder(origin, index, data)
        origin = self._publish(folder, origin, data)
        if index.total_samples and len(data) >= MIN_COPIED_BYTES:
            _read_copy(folder, origin)  # and write the sidecar
        return Found(index, folder, version)

    def _publish(self, folder: str, origin: Origin, data: bytes) -> Origin:
        """Write the index and its note; return the note."""
        noted, path = read_origin(folder), os.path.join(folder, INDEX)
        if noted is None or noted.source != self.source:
            raise VanishedError(f"read {folder}: its note is gone.", url=folder, verb="read")
        is_new = noted.identity != origin.identity
        if is_new or not has_bytes(path, data):
            with publish_control_file(path, mode_of(folder)) as file:
                file.write(data)
        state, since = os.stat(path), noted.since
        if is_new:
            since = state.st_mtime_ns if is_shared_by_nodes(folder) else -1
        copy = (state.st_ino, state.st_mtime_ns, state.st_size)
        origin = dataclasses.replace(origin, copy=copy, since=since)
        write_origin(folder, origin, mode_of(folder))
        return origin

    def _download(self) -> tuple[bytes, ObjectInfo]:
        temporary = temporary_path(os.path.join(self.folder, CONTROL, INDEX))
        try:
            info = self.store.get_file(INDEX, temporary)
            with open(temporary, "rb") as file:
                return file.read(), info
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def _choose_folder(self, origin: Origin, index: Index, data: bytes) -> str:
        """Choose the folder for the source, and record the source in it."""
        folder = folder_for(self.folder, self.source)
        if folder is None:
            folder = self._adopted(origin, index, data)
        if folder is None:
            folder = apart(self.folder, self.source)
        if folder != self.folder and read_origin(folder) is None:
            log.warning(
                "%s belongs to other data; what is fetched of %s is kept apart from it, in %s.",
                self.folder,
                self.store.url_of(""),
                folder,
            )
        if read_origin(folder) is None:
            self._claim(folder, origin)
        return folder

    def _adopted(self, origin: Origin, index: Index, data: bytes) -> str | None:
        """Return the requested folder if its files are of this source or do not conflict.

        Without a note it was filled by another program, by hand, or by an earlier version.
        """
        path = os.path.join(self.folder, INDEX)
        since = -1
        if overlaps(self.folder, index):
            return None
        if os.path.lexists(path):
            if not is_equal(path, data, index):
                return None
            since = 0
            if not is_hashed(index):
                log.warning(
                    "%s was not filled by this library. Its index equals that of %s, and its "
                    "shards have no digests, so only their sizes are checked.",
                    self.folder,
                    self.store.url_of(""),
                )
        elif has_shards(self.folder, index):
            if not is_hashed(index):
                return None
        elif is_shared_by_nodes(self.folder):
            since = 0
        self._claim(self.folder, Origin(self.source, origin.identity, since=since))
        return self.folder

    def _claim(self, folder: str, origin: Origin) -> None:
        make_folders(folder)
        if not claim(folder, origin, mode_of(folder)):
            raise VanishedError(
                f"open {folder}: another dataset took the folder at the same moment.",
                url=folder,
                verb="open",
            )

    def _without_writing(self) -> Found:
        """For a folder that cannot be written, which may hold the whole dataset all the same."""
        with self.store.stream(INDEX) as body:
            data, version = b"".join(body), _short(body.info.version)
        index = Index.parse(data, self.store.url_of(INDEX))
        folder = folder_for(self.folder, self.source) or self.folder
        origin, identity = read_origin(folder), identity_for(self.source, index, version)
        is_right = origin is None or origin.identity == identity
        if is_right and is_equal(os.path.join(folder, INDEX), data, index):
            return Found(index, folder, version)
        log.warning(
            "%s cannot be written and is not a copy of %s.", self.folder, self.store.url_of("")
        )
        return Found(index, apart(self.folder, self.source), version)


# ---------------------------------------------------------------------- files in a folder


def _in_place(folder: str) -> Index:
    path = os.path.join(folder, INDEX)
    if not os.path.exists(path):
        raise no_index_error(folder, "local")
    return read_index(path, os.path.join(derived_folder(folder), CONTROL, SIDECAR))


def no_index_error(folder: str, argument: str) -> NotFoundError:
    """Return the error for a path that is not the folder of a dataset, with what to do instead.

    ``argument``: the name of the argument that has the path.
    """
    path = os.path.join(folder, INDEX)
    if os.path.isfile(folder):
        inside, name = os.path.split(folder)
        is_ours = name == INDEX or os.path.exists(os.path.join(inside, INDEX))
        way_out = (
            f"Give the folder of the dataset: {argument}={inside or '.'!r}."
            if is_ours
            else "Unpack it and convert its folder with mds-convert."
            if folder.lower().endswith(_ARCHIVES)
            else f"Convert it: {_convert_command(folder)}"
        )
        return NotFoundError(
            f"open {folder}: this is a file, and {argument}= is the folder of a dataset. {way_out}",
            url=folder,
            verb="open",
        )
    no_folder = "" if os.path.isdir(folder) else " The folder does not exist."
    if no_folder and argument == "local":
        no_folder += " A remote= would be fetched into it."
    return NotFoundError(
        f"open {path}: there is no such file. Is {folder} the folder of a dataset?{no_folder}"
        f"{explain_missing_index(folder)}{_told_splits(folder)}{_told_files(folder)}",
        url=path,
        verb="open",
    )


def _convert_command(source: str) -> str:
    return f"mds-convert {shlex.quote(source)} {shlex.quote(os.path.splitext(source)[0] + '-mds')}"


def _told_files(folder: str) -> str:
    """Return what to do with a folder of pictures, tables and the like; '' if it has no file."""
    if _datasets_in(folder):
        return ""
    names = [
        name
        for _, _, names in itertools.islice(os.walk(folder), _FOLDERS_LOOKED_AT)
        for name in names
        if not name.startswith((".", "shard."))
    ]
    if not names:
        return ""
    counts = Counter(os.path.splitext(name)[1].lower() for name in names)
    ending = counts.most_common(1)[0][0]
    reads = " Read them with format='text', or convert" if ending == ".txt" else " Convert"
    kind = f"{ending} files" if ending else "other files"
    return f" It has {kind}.{reads} them: {_convert_command(folder.rstrip(os.sep))}"


def _no_remote_index(store: Store, hint: str) -> NotFoundError:
    """Return the error for a remote that has no index."""
    if store.local_path is not None:
        error = no_index_error(store.local_path, "remote")
        error.args = (f"{error}{hint}",)
        return error
    url = store.url_of(INDEX)
    return NotFoundError(
        f"open {url}: there is no such object. Is remote={store.url_of('')!r} the folder of a "
        "dataset? Files of other kinds are named by their ending or a pattern, such as "
        f"'*.parquet', by format=, or converted by mds-convert.{hint}",
        url=url,
        verb="open",
    )


def _told_splits(folder: str) -> str:
    """Return a hint that names datasets in a folder, or beside one that does not exist."""
    datasets = _datasets_in(folder)
    if not datasets:
        above, name = os.path.split(folder)
        return "" if os.path.isdir(folder) else did_you_mean(name, _datasets_in(above or "."))
    ellipsis = ", ..." if len(datasets) > 5 else ""
    return (
        f" There are datasets in {', '.join(datasets[:5])}{ellipsis}: give split={datasets[0]!r}."
    )


def _datasets_in(folder: str) -> list[str]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        return []
    return [name for name in names[:100] if os.path.exists(os.path.join(folder, name, INDEX))]


def _read_copy(folder: str, origin: Origin) -> Found | None:
    """Read the copy of an index; return None if it is not the one that the note describes."""
    path = os.path.join(folder, INDEX)
    try:
        index = read_index(path, os.path.join(folder, CONTROL, SIDECAR))
    except NotFoundError as error:
        raise VanishedError(
            f"read {path}: it was there a moment ago. Did another process delete it?",
            url=path,
            verb="read",
        ) from error
    if identity_for(origin.source, index, origin.version) != origin.identity:
        return None
    return Found(index, folder, origin.version)


def _noted_copy(folder: str, source: str) -> tuple[str, Origin] | None:
    """Return the folder whose note names ``source`` and that has an index, and the note."""
    own_folder = folder_for(folder, source)
    origin = read_origin(own_folder) if own_folder is not None else None
    if own_folder is None or origin is None or origin.source != source:
        return None
    return (own_folder, origin) if os.path.isfile(os.path.join(own_folder, INDEX)) else None


def _is_unchanged_copy(folder: str, origin: Origin) -> bool:
    """Whether the index in a folder is the very file that was published with the note."""
    try:
        state = os.stat(os.path.join(folder, INDEX))
    except OSError:
        return False
    return origin.copy == (state.st_ino, state.st_mtime_ns, state.st_size)


def _read_without_remote(folder: str, source: str, error: MdsError) -> Found | None:
    """Return the noted copy of an index whose remote failed with ``error``, or None.

    The copy may have been copied with its folder: its text must have the digest that is noted.
    """
    noted = _noted_copy(folder, source)
    copy = None
    if noted is not None:
        with contextlib.suppress(FormatError, VanishedError):
            copy = _read_copy(*noted)
    if copy is None:
        return None
    if isinstance(error, NotFoundError):
        reason = "The remote holds this dataset no longer"
    elif isinstance(error, (DeniedError, UnauthenticatedError)):
        reason = "The remote does not accept the credentials"
    else:
        reason = "The remote cannot be asked"
    log.warning(
        "%s %s. The verified index in %s is used; a shard that is not in the cache will raise an "
        "error.",
        error,
        reason,
        copy.folder,
    )
    return copy


def _foreign_index_hint(folder: str) -> str:
    """Return how to read a folder that holds an index which did not come from this remote."""
    if not os.path.isfile(os.path.join(folder, INDEX)):
        return ""
    return (
        f" {folder} holds an index.json that was not fetched from this remote by this library. To "
        f"read what is there without the remote, give local={folder!r} alone."
    )


@contextlib.contextmanager
def locked_folder(folder: str) -> Iterator[None]:
    """Hold the lock under which one process at a time decides which source owns a folder."""
    from mds.storage.locks import lock_within

    make_folders(folder)
    control = control_folder(folder, CONTROL)
    make_control_folder(control)
    path = os.path.join(control, "lock")
    lock = lock_within(path, _LOCK_AT, _LOCK_TIMEOUT_SECONDS, mode_of(folder), past_stopped=True)
    if lock is None:  # safe without it: files appear by rename, and a folder has one note
        from mds.storage.locks import describe_processes, holders_of

        owners = describe_processes(holders_of(path, _LOCK_AT))
        log.warning("%s is being opened by a process that does not go on: %s.", folder, owners)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def can_write(folder: str) -> bool:
    """Whether a folder can be written to, or made."""
    while not os.path.exists(folder):
        parent = os.path.dirname(os.path.abspath(folder))
        if parent == folder:
            return False
        folder = parent
    # A path that is no folder raises an error when the folder is made.
    return not os.path.isdir(folder) or os.access(folder, os.W_OK | os.X_OK)


def _short(version: str) -> str:
    """Return a version that is short enough for a note."""
    return version if len(version) <= 256 else identity_of(version, "", "")


def retried(url: str, attempt: int, error: str) -> None:
    """Emit the event of a request for an index that is retried."""
    emit(Retried(url, attempt, error))
