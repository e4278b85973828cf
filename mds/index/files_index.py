"""An index.json of files in a format: it names them and what reads them, and has no shards.

    {"files": {"format": "parquet", "remote": "s3://bucket/c4", "settings": {...}}, "shards": [],
     "version": 2}

The table of the files lies beside it (`index.files.bin`). Readers of MDS alone find no shard in it.
"""

from __future__ import annotations

import json
from typing import Any

from mds.errors import IndexFileError

#: What the file beside it is called, and of which kind it is.
TABLE_NAME, TABLE_KIND = "index.files.bin", "files"
_START = b'{"files": '
_LARGEST = 1 << 16


class FilesIndexError(IndexFileError):
    """An index.json of files in a format was met where one of shards was asked for."""

    def __init__(self, text: str, told: dict[str, Any], fingerprint: str) -> None:
        super().__init__(text)
        self.format: str = told["format"]
        self.remote: str = told["remote"]
        self.settings: dict[str, Any] = told["settings"]
        self.fingerprint = fingerprint

    def __reduce__(self) -> tuple[Any, ...]:
        told = {"format": self.format, "remote": self.remote, "settings": self.settings}
        return FilesIndexError, (str(self), told, self.fingerprint)


def files_index_bytes(
    format_name: str, remote: str, settings: dict[str, Any], digest: str
) -> bytes:
    """The text of such an index; ``digest`` is that of its table."""
    told = {"format": format_name, "remote": remote, "settings": settings, "table": digest}
    text = json.dumps({"files": told, "shards": [], "version": 2}, sort_keys=True)
    assert text.encode().startswith(_START)
    return text.encode()


def refuse_files_index(data: bytes, fingerprint: str, where: str) -> None:
    """Raise FilesIndexError for such an index, IndexFileError for a broken one."""
    if not data.startswith(_START) or len(data) > _LARGEST:
        return
    try:
        told = json.loads(data)["files"]
        texts = [told["format"], told["remote"], told["table"]]
        is_right = isinstance(told["settings"], dict) and all(isinstance(t, str) for t in texts)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise IndexFileError(f"{where}: this is not an index of files: {error}") from error
    if not is_right:
        raise IndexFileError(f"{where}: this is not an index of files: a value is of another type.")
    raise FilesIndexError(
        f"{where}: it is of {told['format']} files, which StreamingDataset reads as they lie; to "
        f"have shards of them, convert them.",
        told,
        fingerprint,
    )
