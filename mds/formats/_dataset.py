"""A dataset in a format: its table, the columns that are wanted, and the index of its shards.

The index is of the same kind as that of an index.json, so planning, choosing and counting shards is
the same for all formats. Its shards have the names of MDS shards, and their sizes are estimates.
`make_table` plans the files of a dataset; `open_files` does it outside of a cache.

An index of files (`write_files_index`) is such a table, made once for all machines, with an
index.json that names it. A dataset that reads the index reads the pinned files: no start lists the
files or reads their metadata again, and a file that changed or is gone raises an error that names
it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._index.shard_object import ShardSchema, Stored
from mds._index.sidecar import read_sidecar, write_sidecar
from mds._index.table import (
    TABLE_KIND,
    TABLE_NAME,
    FilesIndexError,
    Index,
    files_index_bytes,
    fingerprint_of,
)
from mds._readers.fields import check_columns
from mds._redaction import get_logger
from mds._shardfile.layout import INDEX_NAME, Columns, header_size, shard_name
from mds._units import format_bytes
from mds.errors import ConfigError, FormatError, IndexFileError, MdsError, NotFoundError
from mds.formats._base import Format
from mds.formats._columns import NULLS, as_columns
from mds.formats._encode import LARGEST_DECODED, shard_config
from mds.formats._facts import Block, DataFile, FileCosts, FilePlan, FoundFiles
from mds.formats._registry import (
    find_recorded_format,
    format_names,
    format_of_files,
    parse_format,
)
from mds.formats._source import Files, check_version, open_pinned, parse_place
from mds.formats._table import FileTable
from mds.storage import open_store
from mds.storage._base import settings_for
from mds.storage._url import Url, is_local, local_path, redact, reveal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection
    from mds.formats._facts import ShardPlace
    from mds.storage import Store

log = get_logger("mds.formats")

_SIDE_BY_SIDE = 32
#: Bytes that planning may read over a network without a warning.
_WARNED_BYTES = 256 << 20


@dataclasses.dataclass(frozen=True)
class FormatData:
    """Everything that planning and reading a dataset in a format needs; picklable.

    - ``format``: the format with its settings.
    - ``table``: the files and shards.
    - ``columns``: the wanted columns.
    - ``has_chosen``: whether the user named the columns; samples may then have further ones.
    """

    format: Format
    table: FileTable
    columns: Columns
    has_chosen: bool = False

    @classmethod
    def of(
        cls,
        kind: Format,
        table: FileTable,
        selected: Sequence[str] | None = None,
        location: str = "",
    ) -> FormatData:
        """Return the dataset of a table of files, with merged columns.

        - ``kind`` (Format): The format with its settings. If it names ``columns``, only these are
          wanted.
        - ``table`` (FileTable): The files and shards.
        - ``selected`` (Sequence[str] | None, default None): The wanted columns otherwise; None
          takes all.
        - ``location`` (str, default ""): Name of the dataset, for errors.

        Raises ConfigError for a column that no file has.
        """
        column_names = kind.columns if kind.columns is not None else selected
        file_columns = table.found_columns()
        user_encodings = getattr(kind, "encodings", None)
        # The files of a lake may have other names for columns, by which encodings are given.
        if user_encodings and file_columns and "columns" not in table.header:
            names = {name for _, columns in file_columns for name in columns}
            check_columns(sorted(names), [*user_encodings], "encodings=")
        if column_names is not None:
            _check_known(location, table, file_columns, column_names)
            # Files may differ in columns that are not wanted.
            file_columns = [
                (key, {name: each for name, each in columns.items() if name in column_names})
                for key, columns in file_columns
            ]
        encodings = kind.merge(file_columns)
        encodings |= _columns_in_no_file(kind, table, file_columns, column_names)
        return cls(kind, table, as_columns(encodings, column_names), column_names is not None)

    def index(self) -> Index:
        """Return the shards as an index of uncompressed MDS shards, as the cache stores them.

        Its fingerprint identifies the files, the columns, and the settings of the format.
        """
        import xxhash

        schema = ShardSchema(
            "mds",
            self.columns,
            compression=None,
            hashes=(),
            size_limit=None,
            newline=None,
            separator=None,
            stored=(Stored("raw_data", ()),),
        )
        # A shard is one file that is not compressed: it has a raw size and no other sizes.
        count = len(self.table)
        names = [shard_name(number, "mds").encode() for number in range(count)]
        zeros = np.zeros(count, np.int64)
        columns: dict[str, Any] = {
            "samples": np.array(self.table.samples, np.int64),
            "raw_size": self._sizes(),
            "zip_size": zeros,
            "raw_meta_size": zeros.copy(),
            "zip_meta_size": zeros.copy(),
            "schema_of": np.zeros(count, np.int32),
            "name_ends": np.cumsum([len(name) for name in names], dtype=np.int64),
            "names": np.frombuffer(b"".join(names), np.uint8),
            "digests": np.zeros(0, np.uint8),
        }
        description = repr(
            (
                self.format.recorded_name(),
                self.format.revision,
                self.format.settings(),
                self.columns,
            )
        )
        digest = xxhash.xxh3_128_hexdigest((description + self.table.digest()).encode())
        return Index(columns, [schema] if count else [], digest)

    def place(self, number: int) -> ShardPlace:
        """Return shard ``number``, with the columns of this dataset."""
        return self.table.place(number, self.columns, has_chosen=self.has_chosen)

    def _sizes(self) -> Any:
        """Estimate the bytes of each decoded shard, within the limits of a shard; int64."""
        # At least the header, and of each sample an offset, its fixed values and its size words.
        minimum = header_size(0) + 4 * self.table.samples + len(shard_config(self.columns))
        fixed = sum(size for size in self.columns.sizes if size is not None)
        minimum += self.table.samples * (fixed + 4 * self.columns.variable)
        first = self.place(0) if len(self.table) else None
        share = min(max(self.format.share(first), 0.0), 1.0) if first is not None else 1.0
        estimate = (self.table.decoded * share).astype(np.int64)
        return np.minimum(np.maximum(estimate, minimum), LARGEST_DECODED).astype(np.int64)

    def pin(self) -> dict[str, Any]:
        """Return what the state of a run records of the files, as values of JSON.

        They are "files" (their number), "list" (a digest) and "pin" (their version, if they have
        one). A run only resumes with the same files.
        """
        facts: dict[str, Any] = {"files": len(self.table.keys), "list": self.table.list_digest()}
        root = self.table.header.get("root")
        pin = self.table.header.get("pin")
        if not pin and root is not None:  # no version of a table, but the files are at a fixed URL
            pin = {"remote": root}
        if pin:
            facts["pin"] = pin
        return facts

    def costs(self) -> FileCosts:
        """Estimate the cost of reading the files."""
        first = self.place(0) if len(self.table) else None
        share = self.format.share(first) if first is not None else 1.0
        return FileCosts(
            format=self.format.name,
            files=len(self.table.keys),
            size=int(int(self.table.sizes.sum()) * min(max(share, 0.0), 1.0)),
            decoded=int(self._sizes().sum()),
            is_in_place=self.is_in_place,
            slow_columns=tuple(self.format.slow_columns(self.columns)),
            whole_file_reason=self.format.comes_whole(first) if first is not None else "",
        )

    def where(self, number: int, files: Files) -> str:
        """Describe a shard in errors: URL of its file and name of the shard."""
        place = self.place(number)
        return f"{files.url(place.file)}, {self.format.shard_of(place)}"

    def blocks(self, number: int, files: Files) -> Iterator[Block]:
        """Yield the samples of shard ``number``, in order."""
        return self.format.blocks(self.place(number), files)

    def value_lengths(self, number: int, column: str, files: Files) -> NDArray[np.int64] | None:
        """Return the lengths of a column in a shard, or None if its values must be decoded."""
        return self.format.value_lengths(self.place(number), column, files)

    def can_range(self, number: int) -> bool:
        """Whether some samples of a shard can be fetched without the others."""
        return self.format.can_range(self.place(number))

    def rows(self, number: int, rows: Sequence[int], files: Files) -> Mapping[int, bytes]:
        """Return the stored bytes of some samples of a shard, by row."""
        return self.format.rows(self.place(number), rows, files)

    @property
    def is_in_place(self) -> bool:
        """Whether shards are read in place if their files are on this machine's disk."""
        table, kind = self.table, self.format
        notes = (table.note_of(number) for number in range(len(table.keys)))
        return kind.is_read_in_place(table.files) and all(map(kind.maps, notes))

    def reader(self, number: int, folder: str, columns: ColumnSelection) -> Reader:
        """Return a reader of shard ``number``, whose file below ``folder`` is read in place."""
        place = self.place(number)
        path = os.path.join(folder, *place.file.key.split("/"))
        _check_unchanged(place.file, path)
        reader = self.format.reader(place, path, columns)
        assert reader is not None, "a format that is read in place has readers"
        return reader


def make_table(
    kind: Format,
    files: Files,
    listing: FoundFiles,
    old: FileTable | None = None,
    header: Mapping[str, Any] | None = None,
    most_bytes: int | None = None,
) -> FileTable:
    """Plan all files, many at once, and return their table.

    To plan a file is to find its shards and columns, often by reading its beginning or end.

    - ``kind`` (Format): The format.
    - ``files`` (Files): Reads the files.
    - ``listing`` (FoundFiles): The files to plan.
    - ``old`` (FileTable | None, default None): An earlier table, whose plans of unchanged files are
      used again.
    - ``header`` (Mapping | None, default None): Further values for the header of the table.
    - ``most_bytes`` (int | None, default None): Most bytes to read over a network.

    Raises the error of the first file, in the order of the files, that cannot be planned, and
    FormatError if planning needs more than ``most_bytes``.
    """
    header = {**(header or {}), "reads": reads_of(kind)}
    if listing.pin or listing.schema:
        header |= {
            "pin": dict(listing.pin),
            "schema": listing.schema,
            "columns": [*listing.columns],
        }
    # Earlier plans are used again if they were made with the same settings, for files that are
    # certainly unchanged: their version is known and the same, or the format never rewrites files.
    old_plans = {}
    if old is not None and all(
        old.header.get(name) == header.get(name) for name in ("reads", "schema")
    ):
        is_final = kind.has_final_files
        old_plans = {file: plan for file, plan in old.plans().items() if file.version or is_final}
    files.facts = listing.facts

    def plan(file: DataFile) -> FilePlan:
        return old_plans.get(file) or kind.plan_file(file, files)

    # Use many threads over a network, where requests wait; on a disk, planning takes CPU time.
    threads = _SIDE_BY_SIDE if files.is_far else min(4, os.cpu_count() or 1)
    with ThreadPoolExecutor(min(threads, max(len(listing.files), 1)), "mds-table") as pool:
        try:
            if files.is_far:
                new = [file for file in listing.files if file not in old_plans]
                sizes = pool.map(lambda file: kind.plan_bytes(file, files), new)
                _check_bytes(kind, files, len(new), sum(sizes), most_bytes)
            plans = list(pool.map(plan, listing.files))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return FileTable.build(header, listing.files, plans)


def _check_known(
    location: str,
    table: FileTable,
    file_columns: Sequence[tuple[str, Mapping[str, str]]],
    selected: Sequence[str],
) -> None:
    """Raise ConfigError for a selected column that neither a file nor the table has.

    ``file_columns`` are pairs: key of a file, and encodings of its columns. ``location`` names the
    dataset in the error.
    """
    column_names = {name for _, columns in file_columns for name in columns}
    column_names.update(table.header.get("columns", ()))
    if file_columns:
        check_columns(sorted(column_names), selected, location or file_columns[0][0])


def _columns_in_no_file(
    kind: Format,
    table: FileTable,
    file_columns: Sequence[tuple[str, Mapping[str, str]]],
    selected: Sequence[str] | None,
) -> dict[str, str]:
    """Return the columns of the table that no file has yet, which are None in all samples.

    Only ``selected`` columns count (None: all). Raises FormatError if there is such a column and
    the format does not have ``missing="null"``.
    """
    names_in_files = {name for _, columns in file_columns for name in columns}
    table_columns = table.header.get("columns", ()) if file_columns else ()
    lacking = [
        n for n in table_columns if n not in names_in_files and (selected is None or n in selected)
    ]
    if lacking and kind.missing != "null":
        raise FormatError(
            f"{file_columns[0][0]}: the table has a column {lacking[0]!r}, but none of its files "
            f"has it. {kind.allow_missing}"
        )
    return dict.fromkeys(lacking, NULLS)


def _check_bytes(kind: Format, files: Files, count: int, size: int, byte_limit: int | None) -> None:
    """Warn if planning ``count`` files reads much over a network: ``size`` bytes.

    Raises FormatError if that is more than ``byte_limit`` (None: no limit).
    """
    if size < _WARNED_BYTES:
        return
    message = (
        f"{files.url('')}: to count the samples of {count:,} {kind.name} files, mds must read "
        f"{format_bytes(size)}"
    )
    if byte_limit is not None and size > byte_limit:
        raise FormatError(
            f"{message}, more than the limit of {format_bytes(byte_limit)}. Do it once: mds index "
            f"{files.url('')}"
        )
    log.warning("%s; mds index does it once for all machines.", message)


def reads_of(kind: Format) -> list[Any]:
    """Return what plans depend on besides the files: name, revision and settings of a format."""
    return [kind.recorded_name(), kind.revision, kind.settings()]


def _check_unchanged(file: DataFile, path: str) -> None:
    """Raise NotFoundError or ReplacedError if a local file is not the one that was planned."""
    try:
        state = os.stat(path)
    except OSError as error:
        raise NotFoundError(f"open {path}: {error.strerror}.", url=path, verb="open") from error
    check_version(path, state, file.version)


def open_files(
    source: str,
    format: str | Format | None = None,  # noqa: A002 - what it is
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[FormatData, Files]:
    """Plan a dataset of files without a cache, and return it with the `Files` that read it.

    - ``source`` (str): URL or path of files in a format.
    - ``format`` (str | Format | None, default None): None goes by the endings of the files.
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode; None takes all.
    - ``storage_options`` (Mapping[str, Any] | None, default None): Settings of the store.

    Raises ConfigError for a source of no format, and the errors of planning.
    """
    kind = parse_format(format) or format_of_files(source, beside_index=True)
    if kind is None:
        known_formats = ", ".join(format_names())
        raise ConfigError(f"{redact(source)!r} holds no files of a known format ({known_formats}).")
    place = kind.narrow(parse_place(source, kind.endings))  # folder and patterns of the files
    # Files of a path take none of the settings of a URL, which may be that of the output.
    options = settings_for(place.root, storage_options)
    files = open_pinned(place.root, functools.partial(open_store, options=options))
    table = make_table(kind, files, kind.find(place, files))
    return FormatData.of(kind, table, columns, Url(source)), files


# --------------------------------------------------------------------- an index of files


#: Value of ``remote`` in an index whose files are in its own folder.
HERE = "."
#: Value of "source" in the header of a table beside an index.
PINNED = "mds index"
_LARGEST_TABLE = 1 << 32
#: Entries of the header that the table beside an index keeps.
_PINNED_HEADERS = ("pin", "schema", "columns")


def write_files_index(
    data: FormatData, files: Files, out: str | None = None, *, overwrite: bool = False
) -> str:
    """Write an index.json that lists planned files, and return the folder or URL it is in.

    - ``data``, ``files``: the planned dataset and its files, from `open_files`.
    - ``out`` (str | None, default None): Folder or URL to write to; None writes beside the files.
    - ``overwrite`` (bool, default False): Whether to replace an index that is there already.

    Raises FileExistsError if there is an index already, and ConfigError for files whose URL has a
    login or a signature.
    """
    root = files.store.url
    out = reveal(root) if out is None else out
    if reveal(root) != redact(root):
        raise ConfigError(
            f"{redact(root)}: the URL has a login or a signature, which would be written to the "
            f"index. Give them as storage options or in the environment."
        )
    store = open_store(out)
    if not overwrite and _has_index(store):
        raise FileExistsError(
            f"{redact(out)}: there is already an {INDEX_NAME}; replace it with --overwrite."
        )
    header = {
        name: data.table.header[name] for name in _PINNED_HEADERS if name in data.table.header
    }
    # The planned table, but with a header that holds nothing of this machine or this run.
    table = FileTable.build(
        {**header, "source": PINNED, "reads": reads_of(data.format)},
        data.table.files,
        list(data.table.plans().values()),
    )
    # Where the files are, for readers of the index; HERE means the folder of the index.
    place = os.path.abspath(local_path(root)) if is_local(root) else reveal(root)
    is_here = out.rstrip("/") == reveal(root).rstrip("/")
    settings = dict(data.format.settings())
    index_bytes = files_index_bytes(
        data.format.recorded_name(), HERE if is_here else place, settings, table.digest()
    )
    # The table first, so that an index.json never exists without its table.
    write_sidecar(store, TABLE_NAME, TABLE_KIND, fingerprint_of(index_bytes), table.to_bytes())
    store.put(INDEX_NAME, index_bytes)
    return out


def _has_index(store: Store) -> bool:
    """Whether a store has an index.json."""
    try:
        store.head(INDEX_NAME)
    except NotFoundError:
        return False
    return True


def pinned_format(index: FilesIndexError) -> Format:
    """Return the format that an index of files names, with the settings recorded there.

    Parsing an index.json that lists files, not MDS shards, raises FilesIndexError. ``index`` is
    that error, whose attributes hold what the file says. Raises IndexFileError for settings that
    the format does not take.
    """
    try:
        return find_recorded_format(index.format)(**index.settings)
    except (MdsError, TypeError, ValueError) as error:
        raise IndexFileError(
            f"the {INDEX_NAME} of {index.format} files has invalid settings: {error} Run mds index "
            f"again."
        ) from error


def read_pinned(store: Store, index: FilesIndexError, kind: Format) -> FileTable:
    """Read the table beside an index.json that lists files.

    - ``store`` (Store): The store of the index.
    - ``index`` (FilesIndexError): What parsing the index.json raised; it holds the content.
    - ``kind`` (Format): The format, whose settings must be those that the table was made with.

    Raises IndexFileError if the table is missing, damaged, or made with other settings.
    """
    sidecar = read_sidecar(
        store, TABLE_NAME, TABLE_KIND, index.fingerprint, max_bytes=_LARGEST_TABLE
    )
    location = store.url_of(TABLE_NAME)
    if sidecar is None:
        raise IndexFileError(f"{location}: the table of the files is missing; run mds index again.")
    table = FileTable.parse(sidecar.payload, location)
    if json.dumps(table.header.get("reads")) != json.dumps(reads_of(kind)):
        raise IndexFileError(
            f"{location}: a version of mds wrote it that read {kind.name} files differently; run "
            f"mds index again."
        )
    return table
