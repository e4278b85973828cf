"""No two files of an index have one name, and none lies where another needs a folder.

Two shards with one file would take each other's place in a cache folder, for ever. Names are
compared by their hash, eight bytes each, which is salted in every process; only what seems to
occur twice is compared letter by letter. Case may differ: most file systems tell it apart.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import numpy as np

from mds.errors import IndexFileError
from mds.storage.relative_name import shown


class NamesSeen:
    """The names of an index so far, and the folders that they need."""

    def __init__(self) -> None:
        self._hashes = array("q")
        self._folders: set[bytes] = set()

    def add(self, names: Iterable[bytes], *, have_folders: bool) -> None:
        """Count names; ``have_folders`` says that some contain a slash."""
        names = list(names)
        self._hashes.extend(map(hash, names))
        if have_folders:
            self._folders.update(name.rpartition(b"/")[0] for name in names)

    def check(self, names: Iterable[list[str]], location: str) -> None:
        """Raise IndexFileError for a name that occurs twice, given the names of all shards."""
        if not self._hashes:
            return
        hashes = np.sort(np.frombuffer(self._hashes, np.int64))
        twice = hashes[1:][hashes[1:] == hashes[:-1]]
        folders = set(_with_parents(self._folders))
        folder_hashes = np.fromiter(map(hash, folders), np.int64, len(folders))
        nearest_hashes = hashes[np.minimum(hashes.searchsorted(folder_hashes), len(hashes) - 1)]
        suspects = {*twice.tolist(), *folder_hashes[nearest_hashes == folder_hashes].tolist()}
        if suspects:
            _compare(names, suspects, folders, location)


def _with_parents(folders: Iterable[bytes]) -> Iterator[bytes]:
    parents: set[bytes] = set()
    for folder in folders:
        while folder and folder not in parents:
            parents.add(folder)
            yield folder
            folder = folder.rpartition(b"/")[0]  # noqa: PLW2901 - upwards


def _compare(
    names: Iterable[list[str]], suspects: set[int], folders: set[bytes], location: str
) -> None:
    first: dict[bytes, int] = {}
    for number, of_shard in enumerate(names):
        for name in of_shard:
            key = name.encode()
            if hash(key) not in suspects:
                continue
            if key in folders:
                raise IndexFileError(
                    f"{location}, shard {number}: {shown(name)} is a file here and the folder of "
                    "another shard. An index like this cannot be laid out on a disk."
                )
            if key in first:
                raise IndexFileError(
                    f"{location}, shard {number}: {shown(name)} is also a file of shard "
                    f"{first[key]}. Two shards cannot share a file."
                )
            first[key] = number
