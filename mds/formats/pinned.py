"""An index of files: their table, made once for all machines, beside an index.json that names them.

A dataset of the index reads the files that it pins, as they were: no start lists them or looks at
them, and one that changed or went is told by name when it is read.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from mds.errors import ConfigError, IndexFileError, MdsError, NotFoundError
from mds.formats.base import Format
from mds.formats.dataset import FormatData, reads_of
from mds.formats.registry import find_format
from mds.formats.source import Files
from mds.formats.table import FileTable
from mds.index.sidecar import read_sidecar, write_sidecar
from mds.index.table import (
    TABLE_KIND,
    TABLE_NAME,
    FilesIndexError,
    files_index_bytes,
    fingerprint_of,
)
from mds.shardfile.layout import INDEX_NAME
from mds.storage import is_local, local_path, open_store, redact
from mds.storage.url import reveal

if TYPE_CHECKING:
    from mds.storage import Store

#: Root in an index whose files are in the folder of the index itself.
HERE = "."
#: The source of a table in an index.
PINNED = "mds index"
_LARGEST = 1 << 32
#: What an index keeps of the header of a table.
_PINNED_HEADERS = ("pin", "schema", "columns")


def write_files_index(
    data: FormatData, files: Files, out: str | None = None, *, overwrite: bool = False
) -> str:
    """Write the index of planned files (`open_files`) to a folder or URL, and return that.

    Without ``out`` it lies beside the files. Raises FileExistsError where there is an index, unless
    it is to be overwritten, and ConfigError for files whose URL has a login or a signature.
    """
    root = files.store.url
    out = reveal(root) if out is None else out
    if reveal(root) != redact(root):
        raise ConfigError(
            f"{redact(root)}: the URL has a login or a signature, which an index would tell; give "
            f"them as storage options or in the environment."
        )
    store = open_store(out)
    if not overwrite and _has_index(store):
        raise FileExistsError(
            f"{redact(out)}: there is an {INDEX_NAME} already; replace it with --overwrite."
        )
    header = {
        name: data.table.header[name] for name in _PINNED_HEADERS if name in data.table.header
    }
    table = FileTable.build(
        {**header, "source": PINNED, "reads": reads_of(data.format)},
        data.table.files,
        list(data.table.plans().values()),
    )
    place = os.path.abspath(local_path(root)) if is_local(root) else reveal(root)
    is_here = out.rstrip("/") == reveal(root).rstrip("/")
    settings = dict(data.format.settings())
    index_bytes = files_index_bytes(
        data.format.name, HERE if is_here else place, settings, table.digest()
    )
    # The table first: an index is good as soon as it is there.
    write_sidecar(store, TABLE_NAME, TABLE_KIND, fingerprint_of(index_bytes), table.to_bytes())
    store.put(INDEX_NAME, index_bytes)
    return out


def _has_index(store: Store) -> bool:
    try:
        store.head(INDEX_NAME)
    except NotFoundError:
        return False
    return True


def pinned_format(index: FilesIndexError) -> Format:
    """Return the format of an index of files. Raises IndexFileError for wrong settings."""
    try:
        return find_format(index.format)(**index.settings)
    except (MdsError, TypeError, ValueError) as error:
        raise IndexFileError(
            f"an {INDEX_NAME} of {index.format} files has settings that cannot be: {error} Run mds "
            f"index anew."
        ) from error


def read_pinned(store: Store, index: FilesIndexError, kind: Format) -> FileTable:
    """Read the table beside an index of files, for a format.

    Raises IndexFileError where it is missing, damaged, or of a version that read them otherwise.
    """
    sidecar = read_sidecar(store, TABLE_NAME, TABLE_KIND, index.fingerprint, max_bytes=_LARGEST)
    location = store.url_of(TABLE_NAME)
    if sidecar is None:
        raise IndexFileError(f"{location}: the table of the files is missing; run mds index anew.")
    table = FileTable.parse(sidecar.payload, location)
    if json.dumps(table.header.get("reads")) != json.dumps(reads_of(kind)):
        raise IndexFileError(
            f"{location}: another version of this library made it, which read {kind.name} files "
            f"otherwise; run mds index anew."
        )
    return table
