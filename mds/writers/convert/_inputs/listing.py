"""Listing of the files of an input: names in a fixed order, sizes, and a digest of both.

Names are relative with '/' and sorted, so the same folder gives the same dataset on every machine.
Hidden files and folders are left out and counted.
"""

from __future__ import annotations

import fnmatch
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

from mds._units import format_bytes
from mds.errors import SourceError
from mds.events import Listed, emit

_FILES_BETWEEN_EVENTS = 10_000
#: Hidden files of Windows, in lower case.
_OF_SYSTEMS = frozenset({"thumbs.db", "desktop.ini"})


class Listing:
    """Files below ``root``: ``names`` (sorted, relative, with '/') and ``sizes`` in bytes.

    - ``omitted`` (Counter | None): Number of files that were left out, by reason.
    - ``states`` (Sequence[tuple[int, object]] | None): Size in bytes and version of each file;
      None: ask the disk, where the version is the time of the last change.

    ``digest`` changes with any name, size or version. A pickled listing has no names: a part has
    the names that it needs.
    """

    def __init__(
        self,
        root: str,
        names: Sequence[str],
        omitted: Counter[str] | None = None,
        states: Sequence[tuple[int, object]] | None = None,
    ) -> None:
        """Store the names, and look up the size of each file unless ``states`` has them."""
        self.root = root
        #: Number of files and folders that were left out, by reason.
        self.omitted: Counter[str] = omitted or Counter()
        #: Files that no pattern of ``include`` matches.
        self.not_included: list[str] = []
        self.names = list(names)
        self.sizes = array("q", bytes(8 * len(self.names)))
        digest = blake2b(digest_size=16)
        for number, name in enumerate(self.names):
            size, version = self._state(name) if states is None else states[number]
            self.sizes[number] = size
            digest.update(f"{name}\0{size}\0{version}\n".encode("utf-8", "replace"))
        self.digest = digest.hexdigest()

    def _state(self, name: str) -> tuple[int, object]:
        state = os.stat(self.path(name))
        return state.st_size, state.st_mtime_ns

    @classmethod
    def scan(cls, root: str, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Listing:
        """List every file below ``root`` (or ``root`` itself if it is a file).

        Patterns are those of a shell and match a file name or a whole relative path. Raises
        SourceError if the root does not exist, or if no file remains.
        """
        if os.path.isfile(root):
            folder, name = os.path.split(root)
            return cls(folder, [name])
        if not os.path.isdir(root):
            raise SourceError(
                f"{root or repr(root)}: there is no such file or folder. {_hint(root)}".rstrip()
            )
        names: list[str] = []
        not_included: list[str] = []
        omitted: Counter[str] = Counter()
        for name, why_not in _walk(root):
            if why_not:
                omitted[why_not] += 1
            elif is_wanted(name, include, exclude):
                names.append(name)
                if not len(names) % _FILES_BETWEEN_EVENTS:
                    emit(Listed(root, len(names)))
            elif is_wanted(name, (), exclude):
                not_included.append(name)
        if not names:
            missing = "file that matches" if include or exclude else "file to convert"
            raise SourceError(f"{root}: the folder holds no {missing}; there is nothing to write.")
        listing = cls(root, sorted(names), omitted)
        listing.not_included = not_included
        return listing

    def only(self, names: Sequence[str]) -> Listing:
        """Return a listing of some of the files, in the order of ``names``."""
        listing = Listing(self.root, names, self.omitted)
        listing.not_included = self.not_included
        return listing

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return os.path.join(self.root, *name.split("/"))

    def batches(
        self, size: int, files: int = 2000, *, keep: Callable[[str], bool] | None = None
    ) -> Iterator[tuple[list[str], int]]:
        """Yield runs of names, each with the bytes of its files.

        - ``size`` (int): Approximate bytes of a run; ``files`` (int): the most names of a run.
        - ``keep`` (function | None): Whether a name is taken; None: all are.
        """
        batch: list[str] = []
        total = 0
        for name, length in zip(self.names, self.sizes, strict=True):
            if keep is not None and not keep(name):
                continue
            if batch and (total + length > size or len(batch) >= files):
                yield batch, total
                batch, total = [], 0
            batch.append(name)
            total += length
        if batch:
            yield batch, total

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(self.sizes)

    def endings(self) -> Counter[str]:
        """Count the files of each ending."""
        return Counter(ending(name) for name in self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __str__(self) -> str:
        files = f"{len(self):,} file{'s' if len(self) != 1 else ''}"
        return f"{files}, {format_bytes(self.size)}"

    def __getstate__(self) -> dict[str, Any]:
        # Processes that read parts get the names of their files with each part; a list of millions
        # of files is not sent to them.
        return {**self.__dict__, "names": [], "not_included": [], "sizes": array("q")}


def ending(name: str) -> str:
    """Return a file name's ending in lower case, with that of a compression: ``'.jsonl.gz'``."""
    stem, last = os.path.splitext(name.lower())
    if last in (".gz", ".zst", ".zstd", ".bz2", ".xz"):
        return os.path.splitext(stem)[1] + last
    return last


def is_wanted(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Return whether a file is chosen: it matches ``include``, if there is any, and no ``exclude``.

    Patterns match the file name or the whole relative path.
    """
    return (not include or _matches(name, include)) and not _matches(name, exclude)


def _walk(root: str) -> Iterator[tuple[str, str]]:
    """Yield every file below a folder, and why it is skipped ('' for files to take).

    Links to files count as files, as in snapshots of the Hub. Links to folders are followed inside
    the root only: one to ``..`` or to another disk would add files that were not meant.
    """
    real_root = os.path.realpath(root)
    # Folders to visit: the relative path with a '/' at its end, and the real paths of the folders
    # above, to detect links in a circle.
    folders: list[tuple[str, frozenset[str]]] = [("", frozenset([real_root]))]
    while folders:
        prefix, above = folders.pop()
        with os.scandir(os.path.join(root, prefix)) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.name.startswith(".") or entry.name.lower() in _OF_SYSTEMS:
                    yield name, "hidden"
                elif entry.is_dir():
                    real = os.path.realpath(entry.path)
                    if real in above:
                        yield name, "links in a circle"
                    elif entry.is_symlink() and not real.startswith(real_root + os.sep):
                        yield name, "links to folders elsewhere"
                    else:
                        folders.append((name + "/", above | {real}))
                elif entry.is_file():
                    yield name, ""
                else:
                    yield name, "broken links" if entry.is_symlink() else "no files"


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a shell pattern matches the relative path or the file name."""
    base = name.rpartition("/")[2]
    return any(
        fnmatch.fnmatchcase(name, each) or fnmatch.fnmatchcase(base, each) for each in patterns
    )


def _hint(root: str) -> str:
    """Return a similar path that exists, as a sentence for the error; '' if there is none."""
    folder = os.path.dirname(root.rstrip("/")) or "."
    if not os.path.isdir(folder):
        return f"Nor is there a folder {folder}."
    import difflib

    near = difflib.get_close_matches(os.path.basename(root.rstrip("/")), os.listdir(folder), n=1)
    return f"Did you mean {os.path.join(folder, near[0])}?" if near else ""
