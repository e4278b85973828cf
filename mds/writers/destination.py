"""Where a dataset goes: a local folder, a store behind it, and what of both is ours to remove.

Files that were there before are touched only with `exist_ok=True`, and then only those that an
earlier dataset left: its index, its shards, and what a killed writer did not finish. Other files
of the folder stay. The index comes last, and an old one goes first, so that no index ever names
files that are being replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from typing import TYPE_CHECKING, Any

from mds.errors import DeniedError, NotFoundError, WriterError
from mds.events import Uploaded, emit
from mds.layout import INDEX_NAME
from mds.storage import RetryPolicy, open_store, redact, temporary_owner, write_file

if TYPE_CHECKING:
    from mds.storage import Store
    from mds.writers.spec import OutSpec

_SHARD = re.compile(r"shard\.\d{5,}\.(mds|json|csv|tsv|xsv)(\.meta)?(\.(br|bz2|gz|snappy|zstd))?")

_FILES = ("raw_data", "zip_data", "raw_meta", "zip_meta")


class Destination:
    """The folder and the store of one writer."""

    def __init__(self, spec: OutSpec) -> None:
        self._spec = spec
        self._store: Store | None = None
        if spec.remote is not None:
            self._store = open_store(spec.remote, retry=RetryPolicy(attempts=spec.retry))
        # Both places are looked at before either is touched.
        there = self._store is not None and self._has_dataset(self._store)
        names = [] if spec.local is None else _check_folder(spec.local, spec.exist_ok)
        if self._store is not None and there:
            _clear_store(self._store)
        self._is_temporary = spec.local is None
        if spec.local is None:
            self.folder = tempfile.mkdtemp(prefix="mds-writer-")
        else:
            self.folder = spec.local
            _clear_folder(spec.local, names)
            os.makedirs(spec.local, exist_ok=True)

    @property
    def name(self) -> str:
        """Where the dataset ends up, without passwords."""
        return redact(self._spec.remote) if self._spec.remote else self.folder

    def _has_dataset(self, store: Store) -> bool:
        try:
            store.head(INDEX_NAME)
        except NotFoundError:
            return False
        except DeniedError:
            # Credentials that may only write cannot ask; what they write is theirs to know.
            return False
        if not self._spec.exist_ok:
            raise FileExistsError(
                f"{self.name} already holds a dataset ({INDEX_NAME}). Choose another place, or "
                "replace it with exist_ok=True."
            )
        return True

    def upload(self, name: str) -> None:
        """Bring a file of the folder to the store, if there is one. Raises WriterError."""
        if self._store is None:
            return
        path = os.path.join(self.folder, name)
        began = time.monotonic()
        try:
            size = os.path.getsize(path)
            self._store.put_file(name, path)
        except Exception as error:
            raise WriterError(f"{name} could not be brought to {self.name}: {error}") from error
        emit(Uploaded(f"{self.name}/{name}", size, time.monotonic() - began))
        if not self._keeps_local:
            os.unlink(path)

    def publish_index(self, data: bytes) -> None:
        """The last thing of all: the index, in the store first, then in a folder that is kept."""
        if self._store is not None:
            try:
                self._store.put(INDEX_NAME, data)
            except Exception as error:
                raise WriterError(
                    f"{INDEX_NAME} could not be brought to {self.name}: {error}"
                ) from error
        if self._keeps_local:
            write_file(os.path.join(self.folder, INDEX_NAME), data)

    @property
    def _keeps_local(self) -> bool:
        return not self._is_temporary and (self._store is None or self._spec.keep_local)

    def close(self) -> None:
        """Give back the store, and remove the folder if it was only a station."""
        if self._store is not None:
            self._store.close()
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)
        elif not self._keeps_local:
            # Empty after a good end; whatever else is in it is not ours.
            with contextlib.suppress(OSError):
                os.rmdir(self.folder)


def _check_folder(folder: str, exist_ok: bool) -> list[str]:
    """The files in a folder. Raises FileExistsError if there are some and may be none."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    if names and not exist_ok:
        raise FileExistsError(
            f"the folder {folder!r} is not empty ({len(names)} entries, such as {names[0]!r}). "
            "Choose another, or replace the dataset in it with exist_ok=True."
        )
    return names


def _clear_folder(folder: str, names: list[str]) -> None:
    ours = [name for name in names if _SHARD.fullmatch(name) or temporary_owner(name) is not None]
    # The old index goes first: from here on it would name files that are not there.
    for name in [INDEX_NAME] * (INDEX_NAME in names) + ours:
        os.unlink(os.path.join(folder, name))


def _clear_store(store: Store) -> None:
    old = _shard_names(store.get(INDEX_NAME))
    store.delete(INDEX_NAME)
    for name in old:
        store.delete(name)


def _shard_names(index: bytes) -> list[str]:
    """The files of an old index that can safely be called ours: shards right beside it."""
    try:
        shards: list[dict[str, Any]] = json.loads(index)["shards"]
        infos = [
            shard.get(key)
            for shard in shards
            for key in ("raw_data", "zip_data", "raw_meta", "zip_meta")
        ]
        names = {info["basename"] for info in infos if info}
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
    return sorted(name for name in names if isinstance(name, str) and _SHARD.fullmatch(name))
