"""Existence check of the files that an index will name: the look before an index appears.

A folder is asked for every file (a stat each); a store for its list, which has a thousand objects
a request, or for each file where they are few or it cannot list. What is there is told by its size
and, where a store gave a version tag when the file was uploaded, by that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile

from mds.errors import DeniedError, NotFoundError, WriterError
from mds.storage import ObjectInfo, Store
from mds.storage.files import Directory

#: Files that are asked for one by one rather than listed.
_FEW = 8
_CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class ExpectedFile:
    """A file below a place: its size, and the store's version tag ('' when none was told)."""

    name: str
    size: int
    version: str = ""


def check_presence(
    files: Iterable[ExpectedFile],
    place: Store | Directory,
    location: str,
    again: str = "exist_ok=True",
) -> None:
    """Check that all files are below a place. Raises WriterError for the first that is not.

    A folder of our own is given open. ``again`` is the option with which the dataset can be
    written anew.
    """
    for _, fault in find_faults(files, place):
        raise WriterError(
            f"{fault} in {location}: it was deleted or replaced while the dataset was written. No "
            f"index is published; write the dataset anew, with {again}."
        )


def find_faults(
    files: Iterable[ExpectedFile], place: Store | Directory
) -> Iterator[tuple[ExpectedFile, str]]:
    """Yield the files below a place that are not as expected, and what is wrong."""
    if isinstance(place, Directory):
        return _stat_all(files, place.size)
    if place.local_path is not None:
        folder = place.local_path
        return _stat_all(files, lambda name: os.path.getsize(os.path.join(folder, name)))
    return _ask_all(list(files), place)


def _stat_all(
    files: Iterable[ExpectedFile], size_of: Callable[[str], int]
) -> Iterator[tuple[ExpectedFile, str]]:
    for file in files:
        if fault := _stat(file, size_of):
            yield file, fault


def _stat(file: ExpectedFile, size_of: Callable[[str], int]) -> str:
    try:
        size = size_of(file.name)
    except (FileNotFoundError, NotADirectoryError):
        return f"{file.name} is missing"
    except OSError as error:
        return f"{file.name} cannot be looked at ({error.strerror})"
    return _other_size(file, size) if size != file.size else ""


def _ask_all(files: list[ExpectedFile], store: Store) -> Iterator[tuple[ExpectedFile, str]]:
    listed: dict[str, ObjectInfo] | None = None
    if store.can_list and len(files) > _FEW:
        names = {file.name for file in files}
        try:
            objects = store.list(_common_prefix(names))
            listed = {info.key: info for info in objects if info.key in names}
        except DeniedError:
            listed = None  # credentials may write and not list
    if listed is not None:
        # Some stores list an object a moment late, or with another tag than they answer with.
        files = [file for file in files if not _is_as_listed(file, listed.get(file.name))]
    with ThreadPoolExecutor(_CONNECTIONS, "mds-presence") as pool:
        for file, fault in zip(files, pool.map(lambda file: _ask(file, store), files), strict=True):
            if fault:
                yield file, fault


def _is_as_listed(file: ExpectedFile, info: ObjectInfo | None) -> bool:
    return info is not None and info.size == file.size and info.version == file.version


def _ask(file: ExpectedFile, store: Store) -> str:
    try:
        info = store.head(file.name)
    except NotFoundError:
        return f"{file.name} is missing"
    except DeniedError:
        return ""  # credentials that may only write; the upload was confirmed
    if info.size not in (file.size, -1):
        return _other_size(file, info.size)
    if file.version and info.version and info.version != file.version:
        return f"{file.name} is another object than was uploaded"
    return ""


def _other_size(file: ExpectedFile, size: int) -> str:
    return f"{file.name} has {size} bytes instead of {file.size}"


def _common_prefix(names: set[str]) -> str:
    """Return the longest common prefix of the keys, by character: a store has no folders."""
    first, last = min(names), max(names)
    same = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    )
    return first[:same]
