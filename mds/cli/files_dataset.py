"""Files that are read as they lie, for `mds info`, `mds head` and `mds verify`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mds.errors import MdsError, NotFoundError
from mds.formats.dataset import HERE, FormatData, open_files, pinned_format, read_pinned
from mds.formats.encode import shard_bytes
from mds.formats.registry import format_of_files
from mds.formats.source import Files
from mds.index import Index
from mds.index.table import FilesIndexError
from mds.preview import Undecodable
from mds.readers import Reader
from mds.shardfile.layout import INDEX_NAME
from mds.storage import open_store
from mds.storage.url import Url


def open_dataset(url: str) -> tuple[FormatData, Files] | None:
    """Return the files at a place, planned or as pinned by an index, or None for an MDS dataset.

    Raises what planning raises.
    """
    store = open_store(url)
    try:
        Index.parse(store.get(INDEX_NAME), store.url_of(INDEX_NAME))
    except FilesIndexError as error:
        kind = pinned_format(error)
        root = url if error.remote == HERE else error.remote
        data = FormatData.of(kind, read_pinned(store, error, kind), location=Url(url))
        return data, Files(open_store(root))
    except (NotFoundError, NotADirectoryError):
        format_name = format_of_files(url)
        return None if format_name is None else open_files(url, format_name)
    return None


def decoded(data: FormatData, files: Files, number: int) -> Reader:
    """Return a reader of one shard, decoded in memory."""
    from mds.readers.fixed import joint_reader

    info = data.index().shard(number)
    file_name = data.where(number, files)
    shard = shard_bytes(info.samples, data.columns, data.blocks(number, files), file_name)
    reader: Reader = joint_reader(info.schema, info.samples, shard, file_name)
    return reader


def first_samples(data: FormatData, files: Files, count: int) -> Iterator[dict[str, Any]]:
    """Yield the first samples, decoded; an `Undecodable` stands for one that does not decode."""
    for number in range(len(data.table)):
        reader = decoded(data, files, number)
        for row in range(len(reader)):
            if count <= 0:
                return
            count -= 1
            try:
                yield reader.get(row)
            except MdsError as error:
                yield {"": Undecodable(error)}


def check_shard(data: FormatData, files: Files, number: int, *, decode: bool) -> tuple[int, str]:
    """Return the bytes of a shard as MDS, and its fault, or '' if it has none."""
    try:
        reader = decoded(data, files, number)
        if decode:
            reader.samples(range(len(reader)))
        return sum(len(reader.sample_bytes(row)) for row in range(len(reader))), ""
    except MdsError as error:
        return 0, str(error)
