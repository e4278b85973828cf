"""Which folder the files of an index go to, and which files found there are used.

A folder belongs to one source and one index at a time, recorded in its note (`origin.py`). A
process whose folder belongs to another index by now (the dataset was published anew and a newer job
took the folder over, or the folder was deleted and another dataset came first) moves to a fallback
folder below it that is its own. So two jobs never write to one folder. This costs reading one small
file whenever the ledger is opened.

A folder without a note is inspected once before anything is written to it: one listing, and one
file lookup for each directory that the index names.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence

import numpy as np

from mds.cache.filesystem import control_folder
from mds.cache.origin import CONTROL, Origin, apart, claim, identity_of, make_folders, read_origin
from mds.errors import IndexFileError
from mds.index import Index
from mds.redaction import get_logger
from mds.storage.files import open_regular
from mds.storage.relative_name import INDEX_NAME

log = get_logger("mds.cache")

# From the fastest to the slowest, as measured on one core: 12, 10, 8, 6, 5, 2.0, 0.7 ... GB/s.
BY_SPEED = (
    *("xxh3_64", "xxh3_128", "xxh128", "xxh64", "xxh32", "sha1", "sha256", "sha224", "blake2b"),
    *("md5", "sha512", "sha384", "blake2s", "sha3_224", "sha3_256", "sha3_384", "sha3_512"),
)


class Ownership:
    """The right of one source, at one index, to a folder."""

    def __init__(self, source: str, index: Index, version: str, folder: str) -> None:
        self.source, self.version = source, version
        self.identity = identity_for(source, index, version)
        self._first = folder
        self._fallback = apart(folder, self.identity)
        self._since = -1

    def choose_folder(self, *, is_outdated: bool = False) -> str:
        """Return the folder to use from now on; called whenever the ledger is opened.

        With ``is_outdated`` it is known from elsewhere that the folder is not this index's.
        """
        for folder in () if is_outdated else (self._first,):
            origin = self._claimed(folder)
            if origin is None or origin.identity == self.identity:
                self._since = origin.since if origin is not None else -1
                return folder
        if not os.path.exists(self._fallback):
            log.warning(
                "%s belongs to other data by now: was the dataset published anew? This process "
                "continues with its own version, in %s.",
                self._first,
                self._fallback,
            )
        origin = self._claimed(self._fallback)
        self._since = origin.since if origin is not None else -1
        return self._fallback

    def believes(self, paths: Sequence[str]) -> bool:
        """Whether files that have no digest and no entry in the ledger are used."""
        if self._since < 0:
            return False
        try:
            return all(os.stat(path).st_mtime_ns >= self._since for path in paths)
        except OSError:
            return False

    def _claimed(self, folder: str) -> Origin | None:
        """Return the note of a folder, ours if it had none, or None if none can be written."""
        origin = read_origin(folder)
        if origin is None:
            # Deleted under us. What others of this index put there from now on is right.
            with contextlib.suppress(OSError):
                make_folders(folder)
                since = -1
                if is_shared_by_nodes(folder):
                    since = os.stat(os.path.join(folder, CONTROL)).st_mtime_ns
                mode = stat.S_IMODE(os.stat(folder).st_mode) & 0o666 | 0o600
                claim(folder, Origin(self.source, self.identity, self.version, since=since), mode)
            origin = read_origin(folder)
        return origin


def identity_for(source: str, index: Index, version: str) -> str:
    """Return the digest of a source and its index, and of its version if files lack digests."""
    return identity_of(source, index.fingerprint(), "" if is_hashed(index) else version)


def is_hashed(index: Index) -> bool:
    """Whether all raw files of an index have a digest that can be checked."""
    return all(
        any(name in BY_SPEED for name, _ in file.hashes)
        for schema in index.schemas
        for file in schema.stored
        if file.kind.startswith("raw")
    )


def version_of(path: str) -> str:
    """Return the version of a file on a disk, or '' if there is none."""
    try:
        state = os.stat(path)
    except OSError:
        return ""
    return f"{state.st_mtime_ns:x}-{state.st_size:x}"


def is_shared_by_nodes(folder: str) -> bool:
    """Whether a folder is on a network file system, so that every node has a ledger of its own."""
    return control_folder(folder, CONTROL) != os.path.join(folder, CONTROL)


def is_equal(path: str, data: bytes, index: Index) -> bool:
    """Whether a file is that index, be it written in another way."""
    try:
        with open_regular(path) as file:
            content = file.read(4 * len(data) + 1)
        return content == data or Index.parse(content).to_json() == index.to_json()
    except (OSError, IndexFileError):
        return False


def has_bytes(path: str, data: bytes) -> bool:
    """Whether a file has exactly these bytes."""
    try:
        with open_regular(path) as file:
            return file.read(len(data) + 1) == data
    except OSError:
        return False


def has_shards(folder: str, index: Index) -> bool:
    """Whether a folder has a file of a name that the index lists."""
    try:
        names = set(os.listdir(folder)) - {CONTROL}
    except OSError:
        return False
    if not names:
        return False
    return any(name.split("/")[0] in names for shard in index.file_names() for _, name in shard)


def overlaps(folder: str, index: Index) -> bool:
    """Whether files of an index would lie in another cache folder, or those of another in this one.

    As a dataset whose index names `train/shard.00000.mds` and its split `train` do.
    """
    if np.any(index.names == ord("/")):
        directories = {
            os.path.dirname(name) for shard in index.file_names() for _, name in shard
        } - {""}
        if any(read_origin(os.path.join(folder, directory)) for directory in directories):
            return True
    below, above = "", os.path.abspath(folder)
    while os.path.dirname(above) != above:
        above, name = os.path.split(above)
        below = f"{name}/{below}"
        if name != CONTROL and read_origin(above) is not None:
            return _names(os.path.join(above, INDEX_NAME), below)
    return False


def _names(path: str, directory: str) -> bool:
    """Whether an index names files in a directory."""
    try:
        with open_regular(path) as file:
            return f'"{directory}'.encode() in file.read()
    except OSError:
        return False
