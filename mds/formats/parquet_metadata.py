"""Footers of many Parquet files out of the one file ``_metadata`` that Spark and Dask leave.

It has the row groups of all files of a folder, each with the path of its file, so one request takes
the place of one a file. It is no more than a copy: one file is looked at itself, and what does not
fit the names and sizes that were listed is ignored with a sentence.
"""

from __future__ import annotations

import functools
import os
import tempfile
from typing import TYPE_CHECKING, Any

from mds.errors import FormatError, StoreError
from mds.formats.arrow_types import pyarrow
from mds.formats.parquet_footer import check_footer
from mds.process.fork_safe import new_lock
from mds.redaction import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from mds.formats.facts import DataFile
    from mds.formats.source import Files

log = get_logger("mds.formats")

NAME = "_metadata"
#: One of more bytes is left alone.
_LARGEST = 256 << 20
#: What may lie between the values of a file and its end, beside its footer: indexes of pages.
_BEHIND = 16 << 20


def shared_footer(
    file: DataFile, files: Files, read: Callable[[DataFile, Files], bytes]
) -> bytes | None:
    """Return a file's footer from the ``_metadata`` above it, or None if it is not used.

    ``read`` gets the footer of a file from itself.
    """
    folder = file.key
    while folder:
        folder = folder.rpartition("/")[0]
        note = files.listed(f"{folder}/{NAME}" if folder else NAME)
        if note is not None:
            footers: _Footers = files.once(
                note.key, functools.partial(_load, note, folder, file, files, read)
            )
            return footers.get(file)
    return None


def _load(
    note: DataFile,
    folder: str,
    first: DataFile,
    files: Files,
    read: Callable[[DataFile, Files], bytes],
) -> _Footers:
    url = files.url(note)
    why = f"it has {note.size:,} bytes" if note.size > _LARGEST else ""
    if not why:
        try:
            footers = _Footers(files.get(note), folder, url)
            footer = footers.get(first)
            if footer is None or _facts(footer) == _facts(read(first, files)):
                return footers
            why = f"it has other row groups of {first.key} than the file"
        except (StoreError, FormatError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - a file of others may be anything
            why = (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(".")
    log.warning("%s is not used, every file is looked at: %s.", url, why)
    return _Footers(b"", folder, url)


class _Footers:
    """Footers by the keys of their files; without ``data`` there are none. Thread-safe."""

    def __init__(self, data: bytes, folder: str, url: str) -> None:
        self._footers: dict[str, bytes] = {}
        self._url, self._lock = url, new_lock()
        self._is_told = not data
        if not data:
            return
        pa = pyarrow()
        from pyarrow import dataset, parquet

        footer = data[-8 - int.from_bytes(data[-8:-4], "little") :]
        check_footer(footer, parquet.read_metadata(pa.BufferReader(data)))

        with tempfile.TemporaryDirectory(prefix="mds-parquet-") as place:
            path = os.path.join(place, NAME)
            with open(path, "wb") as file:
                file.write(data)
            for fragment in dataset.parquet_dataset(path).get_fragments():
                key = os.path.relpath(fragment.path, place).replace(os.sep, "/")
                sink = pa.BufferOutputStream()
                fragment.metadata.write_metadata_file(sink)
                self._footers[f"{folder}/{key}" if folder else key] = bytes(sink.getvalue())[4:]

    def get(self, file: DataFile) -> bytes | None:
        """Return the file's footer from `_metadata`, or None if it is stale."""
        footer = self._footers.get(file.key)
        if footer is not None and _fits(footer, file):
            return footer
        with self._lock:
            is_told, self._is_told = self._is_told, True
        if not is_told:
            log.warning(
                "%s does not know %s as it is now; such files are looked at themselves. Write it "
                "anew, or delete it.",
                self._url,
                file.key,
            )
        return None


def _fits(footer: bytes, file: DataFile) -> bool:
    """Whether a footer can be that of a file of this size."""
    _, _, spans = _facts(footer)
    end = max((end for group in spans for _, end in group), default=4)
    return 4 <= end <= file.size - 12 <= end + len(footer) + _BEHIND


def _facts(footer: bytes) -> tuple[Any, list[int], list[list[tuple[int, int]]]]:
    """Return the schema, and of each row group the rows and the bounds of its chunks."""
    from pyarrow import parquet

    metadata = parquet.read_metadata(pyarrow().BufferReader(footer))
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    spans = [
        [chunk_span(group.column(index)) for index in range(group.num_columns)] for group in groups
    ]
    return metadata.schema.to_arrow_schema(), [group.num_rows for group in groups], spans


def chunk_span(column: Any) -> tuple[int, int]:
    """Return the bounds of the chunk of a column."""
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < (column.dictionary_page_offset or 0) < start:
        start = column.dictionary_page_offset
    return start, start + column.total_compressed_size
