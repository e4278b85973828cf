"""An index.json of files in a format: it names them and what reads them, and has no shards.

    {"files": {"format": "parquet", "remote": "s3://bucket/c4", "settings": {...}}, "shards": [],
     "version": 2}

The table of the files lies beside it (`index.files.bin`). Readers of MDS alone find no shard in it.
"""

from __future__ import annotations

import json
from typing import Any

from mds.errors import IndexFileError

#: Name and kind of the table beside it.
TABLE_NAME, TABLE_KIND = "index.files.bin", "files"
_START = b'{"files": '
_LARGEST = 1 << 16


class FilesIndexError(IndexFileError):
    """An index.json of files in a format, where one of shards is needed."""

    def __init__(self, text: str, facts: dict[str, Any], fingerprint: str) -> None:
        super().__init__(text)
        self.format: str = facts["format"]
        self.remote: str = facts["remote"]
        self.settings: dict[str, Any] = facts["settings"]
        self.fingerprint = fingerprint

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {"format": self.format, "remote": self.remote, "settings": self.settings}
        return FilesIndexError, (str(self), facts, self.fingerprint)


def files_index_bytes(
    format_name: str, remote: str, settings: dict[str, Any], digest: str
) -> bytes:
    """Return the bytes of an index of files; ``digest`` is the digest of its table."""
    facts = {"format": format_name, "remote": remote, "settings": settings, "table": digest}
    text = json.dumps({"files": facts, "shards": [], "version": 2}, sort_keys=True)
    assert text.encode().startswith(_START)
    return text.encode()


def refuse_files_index(data: bytes, fingerprint: str, location: str) -> None:
    """Raise FilesIndexError for an index of files, IndexFileError for a broken one."""
    if not data.startswith(_START) or len(data) > _LARGEST:
        return
    try:
        facts = json.loads(data)["files"]
        texts = [facts["format"], facts["remote"], facts["table"]]
        is_right = isinstance(facts["settings"], dict) and all(isinstance(t, str) for t in texts)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise IndexFileError(f"{location}: this is not an index of files: {error}") from error
    if not is_right:
        raise IndexFileError(
            f"{location}: this is not an index of files: a value is of another type."
        )
    raise FilesIndexError(
        f"{location}: it lists {facts['format']} files, which StreamingDataset reads in place. "
        "Convert them if you need shards.",
        facts,
        fingerprint,
    )
