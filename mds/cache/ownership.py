"""Which folder the files of an index go to, and which files that lie there it may believe.

A folder is of one source and one index at a time, as its note says (`origin.py`). A process that
finds that it is another's by now (the dataset was published anew and a newer job took the folder
over, or the folder was deleted and another dataset came first) moves to a folder below it that is
its own alone. So two jobs never write to one folder and never take turns in it; the price is one
small file read whenever the ledger is opened.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mds.cache.filesystem import control_folder
from mds.cache.origin import CONTROL, Origin, apart, claim, identity_of, make_folders, read_origin
from mds.text.redaction import get_logger

if TYPE_CHECKING:
    from mds.index import Index

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
        self._refuge = apart(folder, self.identity)
        self._since = -1

    def choose_folder(self, *, is_outdated: bool = False) -> str:
        """The folder to use from now on; to be asked whenever the ledger is opened.

        With ``is_outdated`` it is known from elsewhere that the folder is not this index's.
        """
        for folder in () if is_outdated else (self._first,):
            origin = self._claimed(folder)
            if origin is None or origin.identity == self.identity:
                self._since = origin.since if origin is not None else -1
                return folder
        if not os.path.exists(self._refuge):
            log.warning(
                "%s belongs to other data by now: was the dataset published anew? This process "
                "goes on with what it began and keeps it apart, in %s.",
                self._first,
                self._refuge,
            )
        origin = self._claimed(self._refuge)
        self._since = origin.since if origin is not None else -1
        return self._refuge

    def believes(self, paths: Sequence[str]) -> bool:
        """Whether files without digests that no file knows are taken to be what they are called."""
        if self._since < 0:
            return False
        try:
            return all(os.stat(path).st_mtime_ns >= self._since for path in paths)
        except OSError:
            return False

    def _claimed(self, folder: str) -> Origin | None:
        """The source of a folder, ours if it had none; None where nothing can be noted."""
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
    """What stands for a source at an index, and at a version if that tells more than the index."""
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
    """The version of a file on a disk; '' when there is none."""
    try:
        state = os.stat(path)
    except OSError:
        return ""
    return f"{state.st_mtime_ns:x}-{state.st_size:x}"


def is_shared_by_nodes(folder: str) -> bool:
    """Whether a folder is on a network file system, so that every node has a ledger of its own."""
    return control_folder(folder, CONTROL) != os.path.join(folder, CONTROL)
