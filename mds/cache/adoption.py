"""What lies in a folder before it is a cache of ours, and whether an index may have it.

Looked at once, before anything is noted of the folder or written to it. The price is one listing,
and one look at a file for each directory that the index names.
"""

from __future__ import annotations

import os

import numpy as np

from mds.cache.origin import CONTROL, read_origin
from mds.errors import IndexFileError
from mds.index import Index
from mds.storage.regular import open_regular
from mds.storage.relative_name import INDEX_NAME


def is_equal(path: str, data: bytes, index: Index) -> bool:
    """Whether a file is that index, be it written in another way."""
    try:
        with open_regular(path) as file:
            there = file.read(4 * len(data) + 1)
        return there == data or Index.parse(there).to_json() == index.to_json()
    except (OSError, IndexFileError):
        return False


def has_bytes(path: str, data: bytes) -> bool:
    """Whether those are the bytes of a file."""
    try:
        with open_regular(path) as file:
            return file.read(len(data) + 1) == data
    except OSError:
        return False


def has_shards(folder: str, index: Index) -> bool:
    """Whether something lies under a name that the index has."""
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
