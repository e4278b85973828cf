"""The index of a dataset, and whether the copy in a cache folder is still the remote's.

One look at the remote (HEAD) at the start tells: while URL, version and size of its index.json are
what they were when the copy was made, and the copy is as it was written, the copy is the index.
Otherwise it is fetched anew, parsed, and only then published. What of the cached shards is still
good is a matter of the ledger, which knows the content that each of them has.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mds.cache.filesystem import control_folder
from mds.cache.locks import lock_within
from mds.cache.places import CONTROL, ORIGIN, derived_folder, read_origin
from mds.errors import ConfigError, IndexFileError, NotFoundError, TransientError, VanishedError
from mds.events import Retried, emit
from mds.index import Index
from mds.storage.files import despite_deletion, disk, publish, write_file

if TYPE_CHECKING:
    from mds.storage import ObjectInfo, Store

INDEX = "index.json"
SIDECAR = "index.mds"
_LOCK_AT = 1 << 40  # beside the bytes that the ledger uses
_PATIENCE = 600.0

log = logging.getLogger("mds.cache")


def fetch_index(
    remote: str | None,
    folder: str,
    options: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
    retries: int = 2,
) -> Index:
    """The index of a dataset: read in place without ``remote``, else a copy that is up to date.

    Raises NotFoundError when there is none, IndexFileError (a ValueError) when it is broken, and
    the StoreError of a remote that cannot be asked, unless a copy of this very remote is there and
    the trouble may pass.
    """
    if remote is None:
        return _in_place(folder)
    return despite_deletion(lambda: _up_to_date(remote, folder, options, timeout, retries))


def _up_to_date(
    remote: str, folder: str, options: Mapping[str, Any] | None, timeout: float, retries: int
) -> Index:
    """The index from a copy that is up to date; VanishedError when that is deleted meanwhile."""
    from mds.storage import RetryPolicy, open_store

    path = os.path.join(folder, INDEX)
    before = read_origin(folder)
    has_copy = _is_copy(before, remote, path)
    # Who has a copy need not wait for minutes.
    retry = RetryPolicy(retries, within=60.0 if has_copy else 300.0, notify=_retried)
    store = open_store(remote, options=options, retry=retry, timeout=timeout)
    if has_copy:
        try:
            if _is_same(before, store.head(INDEX)):
                return _read_copy(folder)
        except TransientError as error:
            log.warning("%s The index in %s is used as it is.", error, folder)
            return _read_copy(folder)
    if not _can_write(folder):
        return _without_writing(store, remote, path)
    with disk(path):
        os.makedirs(os.path.join(folder, CONTROL), exist_ok=True)
        control = control_folder(folder, CONTROL)
        os.makedirs(control, exist_ok=True)
        # One download for all processes that start together.
        lock = lock_within(os.path.join(control, "lock"), _LOCK_AT, _PATIENCE, _mode(folder))
        try:
            now = read_origin(folder)
            if now == before or not _is_copy(now, remote, path):
                return _bring(store, remote, folder)
            return _read_copy(folder)
        finally:
            if lock is not None:
                lock.close()


def _read_copy(folder: str) -> Index:
    path = os.path.join(folder, INDEX)
    try:
        return Index.read(path, os.path.join(folder, CONTROL, SIDECAR))
    except NotFoundError as error:
        raise VanishedError(
            f"read {path}: it was there a moment ago. Was it deleted by somebody else?",
            url=path,
            verb="read",
        ) from error


def _in_place(folder: str) -> Index:
    path = os.path.join(folder, INDEX)
    if not os.path.exists(path):
        raise NotFoundError(
            f"open {path}: there is no such file. Is {folder} the folder of a dataset? A remote= "
            f"would be fetched into it.",
            url=path,
            verb="open",
        )
    return Index.read(path, os.path.join(derived_folder(folder), CONTROL, SIDECAR))


def _bring(store: Store, remote: str, folder: str) -> Index:
    path = os.path.join(folder, INDEX)
    if os.path.isdir(path):
        raise ConfigError(f"{path} is a folder. Choose another local folder.")
    with publish(path) as temporary:
        info = store.get_file(INDEX, temporary)
        try:
            index = Index.read(temporary)
        except IndexFileError as error:
            where = store.url_of(INDEX)
            raise IndexFileError(str(error).replace(temporary, where)) from error
        os.chmod(temporary, _mode(folder))
    state = os.stat(path)
    facts = {
        "url": remote,
        "version": info.version,
        "size": info.size,
        "copy": [state.st_ino, state.st_mtime_ns, state.st_size],
    }
    write_file(os.path.join(folder, CONTROL, ORIGIN), json.dumps(facts).encode())
    os.chmod(os.path.join(folder, CONTROL, ORIGIN), _mode(folder))
    if index.total_samples and state.st_size >= 256 << 10:
        return _read_copy(folder)  # and write the sidecar
    return index


def _is_copy(facts: Mapping[str, Any], remote: str, path: str) -> bool:
    """Whether the file is as it was when it came from that remote."""
    try:
        state = os.stat(path)
    except OSError:
        return False
    found = [state.st_ino, state.st_mtime_ns, state.st_size]
    return facts.get("url") == remote and facts.get("copy") == found


def _is_same(facts: Mapping[str, Any], info: ObjectInfo) -> bool:
    if not info.version:
        return False  # a store that tells nothing: the index itself must
    return bool(facts.get("version") == info.version and facts.get("size") == info.size)


def _without_writing(store: Store, remote: str, path: str) -> Index:
    """For a folder that cannot be written, which may hold the whole dataset all the same."""
    data = store.get(INDEX)
    index = Index.parse(data, store.url_of(INDEX))
    try:
        with open(path, "rb") as file:
            is_same = file.read() == data
    except OSError:
        is_same = False
    if not is_same:
        log.warning("%s cannot be written and is no copy of %s.", os.path.dirname(path), remote)
    return index


def _can_write(folder: str) -> bool:
    while not os.path.exists(folder):
        parent = os.path.dirname(os.path.abspath(folder))
        if parent == folder:
            return False
        folder = parent
    return os.access(folder, os.W_OK | os.X_OK)


def _mode(folder: str) -> int:
    return stat.S_IMODE(os.stat(folder).st_mode) & 0o666 | 0o600


def _retried(url: str, attempt: int, error: str) -> None:
    emit(Retried(url, attempt, error))
