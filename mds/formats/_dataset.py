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

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

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
from mds.formats._columns import NULLS, as_columns, as_optional, without_optional
from mds.formats._detect import format_of_split
from mds.formats._encode import LARGEST_DECODED, raise_problems, shard_config
from mds.formats._facts import Block, DataFile, FileCosts, FilePlan, FoundFiles, Problem
from mds.formats._names import ALL_SPLITS, FolderListing, SplitError, find_splits, is_split
from mds.formats._partitions import partition_encodings
from mds.formats._registry import (
    find_recorded_format,
    format_names,
    parse_format,
)
from mds.formats._source import (
    FilePlace,
    Files,
    check_names,
    check_version,
    has_pattern,
    memory_error,
    open_pinned,
    parse_place,
)
from mds.formats._table import FileTable
from mds.storage import open_store
from mds.storage._base import settings_for
from mds.storage._url import Url, is_local, join, local_path, redact, reveal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection
    from mds.formats._facts import ShardPlace
    from mds.storage import Store

log = get_logger("mds.formats")

T = TypeVar("T")

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
    - ``extras``: encodings of the columns that samples have only if the user names them.
    - ``mixed``: columns that are texts in some files and have another type in others.
    """

    format: Format
    table: FileTable
    columns: Columns
    has_chosen: bool = False
    extras: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mixed: frozenset[str] = frozenset()

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
        partitions = _partitions(kind, table, file_columns)
        file_columns = [(key, {**partitions, **columns}) for key, columns in file_columns]
        if kind.encodings and file_columns:
            names = {name for _, columns in file_columns for name in columns}
            names.update(table.header.get("columns", ()))
            if not kind.has_late_keys:
                check_columns(sorted(names), [*kind.encodings], "encodings=")
        if column_names is not None:
            _check_known(location, table, file_columns, column_names)
            # Files may differ in columns that are not wanted.
            file_columns = [
                (key, {name: each for name, each in columns.items() if name in column_names})
                for key, columns in file_columns
            ]
        encodings = kind.merge(file_columns)
        encodings |= _columns_in_no_file(kind, table, file_columns, column_names)
        if kind.encodings and kind.has_late_keys:  # samples further on may have such a column
            encodings = {**dict(kind.encodings), **encodings}
        has_chosen = column_names is not None
        extra_names = {*table.header.get("extras", ())} & {*encodings}
        extras = {name: encodings[name] for name in sorted(extra_names)}
        if column_names is None:
            column_names = [name for name in encodings if name not in extras]
        mixed = _mixed_columns(file_columns)
        return cls(kind, table, as_columns(encodings, column_names), has_chosen, extras, mixed)

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
        return self.table.place(number, self.columns, has_chosen=self.has_chosen, mixed=self.mixed)

    def class_names(self) -> Mapping[str, Sequence[str]]:
        """Return the class names of columns of numbers, by name."""
        listed: Mapping[str, Sequence[str]] = self.table.header.get("class_names", {})
        return listed or self.format.class_names(map(self.place, range(len(self.table))))

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
        left_out = self.table.left_out
        if len(empty := np.setdiff1d(np.arange(len(self.table.keys)), self.table.file)):
            left_out["files without samples"] = len(empty), self.table.keys[int(empty[0])]
        return FileCosts(
            format=self.format.name,
            files=len(self.table.keys),
            size=int(int(self.table.sizes.sum()) * min(max(share, 0.0), 1.0)),
            decoded=int(self._sizes().sum()),
            is_in_place=self.is_in_place,
            slow_columns=tuple(self.format.slow_columns(self.columns)),
            whole_file_reason=self.format.comes_whole(first) if first is not None else "",
            left_out=left_out,
            followed=self.table.followed,
        )

    def where(self, number: int, files: Files) -> str:
        """Describe a shard in errors: URL of its file and name of the shard."""
        place = self.place(number)
        return f"{files.url(place.file)}, {self.format.shard_of(place)}"

    def blocks(self, number: int, files: Files) -> Iterator[Block]:
        """Yield the samples of shard ``number``, in order. Raises FormatError for a problem."""
        return raise_problems(self.items(number, files))

    def items(self, number: int, files: Files) -> Iterator[Block | Problem]:
        """Yield the samples of shard ``number``, and the problems in their places, in order."""
        return self.format.blocks(self.place(number), files)

    def locate(self, number: int, root: str, options: Mapping[str, Any] | None, row: int) -> str:
        """Return where a sample of shard ``number`` is, for errors.

        Args:
            number: Number of the shard.
            root: URL or path of the folder of the files.
            options: Options of its store.
            row: Number of the sample in the shard.
        """
        files = Files(open_store(root, options=options))
        return self.format.location_of(self.place(number), row, files)

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
        inode = _check_unchanged(place.file, path)
        reader = self.format.reader(place, path, columns)
        assert reader is not None, "a format that is read in place has readers"
        reader.check_unchanged = functools.partial(_check_unchanged, place.file, path, inode)
        reader.locate = functools.partial(self.locate, number, folder, None)
        return reader


def list_split(kind: Format, place: FilePlace, files: Files, split: str | None) -> FoundFiles:
    """Return the files of one split of a dataset, in the order of their samples.

    Args:
        kind: The format.
        place: Where the files are.
        files: Lists and reads them.
        split: Name of a split, "all" or '', as in `FoundFiles.of_split`; None for all files.

    Raises FormatError if there are splits and none is chosen, and SplitError for another split.
    """
    listing = kind.find(place, files)
    if kind.has_many_samples and kind.lists_files:
        keys = [file.key for file in listing.files]
        listing = listing._replace(splits=find_splits(keys, by_file=True))
    listing = listing.of_split(split, files.url(""))
    if listing.facts and not listing.schema:
        listing = listing._replace(schema=_digest(listing.facts))
    return listing


def _digest(facts: Mapping[str, bytes]) -> str:
    """Return a digest of what was found about the files."""
    import xxhash

    return xxhash.xxh3_64_hexdigest(b"\0".join(facts.values()))


def open_split(kind: Format, url: str, split: str, open_at: Callable[[str, str], T]) -> T:
    """Return the result of ``open_at(url, split)`` for the place where the files of a split are.

    The name of a split (`is_split`) or "all" is looked for among the files at the URL. If it is
    only the name of a folder there, or for other names, the files are those of the folder, which
    ``open_at`` gets without a split.

    Args:
        kind: The format.
        url: URL or path of the files of all splits.
        split: The argument ``split=``; '' for none.
        open_at: Opens the files of a split at a URL.
    """
    if kind.lists_files and (is_split(split) or split == ALL_SPLITS):
        try:
            return open_at(url, split)
        except SplitError as error:
            if not error.is_folder or has_pattern(url):
                raise
    return open_at(join(url, split), "")


def make_table(
    kind: Format,
    files: Files,
    listing: FoundFiles,
    old: FileTable | None = None,
    header: Mapping[str, Any] | None = None,
    most_bytes: int | None = None,
    *,
    is_counted: bool = True,
) -> FileTable:
    """Plan all files, many at once, and return their table.

    To plan a file is to find its shards and columns, often by reading its beginning or end.

    - ``kind`` (Format): The format.
    - ``files`` (Files): Reads the files, and counts those that the listing left out.
    - ``listing`` (FoundFiles): The files to plan.
    - ``old`` (FileTable | None, default None): An earlier table, whose plans of unchanged files are
      used again.
    - ``header`` (Mapping | None, default None): Further values for the header of the table.
    - ``most_bytes`` (int | None, default None): Most bytes to read over a network.
    - ``is_counted`` (bool, default True): Count the samples of each shard; False for a conversion,
      which needs no counts (`Format.plan_uncounted`).

    Raises the error of the first file, in the order of the files, that cannot be planned, and
    FormatError if planning needs more than ``most_bytes``.
    """
    header = {**(header or {}), "reads": reads_of(kind)}
    if files.left_out:
        header["left_out"] = files.left_out
    if files.followed:
        header["followed"] = files.followed
    if listing.pin or listing.schema:
        header |= {
            "pin": dict(listing.pin),
            "schema": listing.schema,
            "columns": [*listing.columns],
        }
    if listing.extras:
        header["extras"] = [*listing.extras]
    if listing.class_names:
        header["class_names"] = {name: [*names] for name, names in listing.class_names.items()}
    check_names(listing.files, files.url(""))
    # Earlier plans are used again if they were made with the same settings, for files that are
    # certainly unchanged: their version is known and the same, or the format never rewrites files.
    old_plans = {}
    if old is not None and all(
        old.header.get(name) == header.get(name) for name in ("reads", "schema")
    ):
        is_final = kind.has_final_files
        old_plans = {file: plan for file, plan in old.plans().items() if file.version or is_final}
    files.facts = listing.facts
    plan_file = kind.plan_file if is_counted else kind.plan_uncounted

    def plan(file: DataFile) -> FilePlan:
        with explain_memory(files.url(file)):
            return old_plans.get(file) or plan_file(file, files)

    # Use many threads over a network, where requests wait; on a disk, planning takes CPU time.
    threads = _SIDE_BY_SIDE if files.is_far else min(4, os.cpu_count() or 1)
    with ThreadPoolExecutor(min(threads, max(len(listing.files), 1)), "mds-table") as pool:
        try:
            if files.is_far and is_counted:
                new = [file for file in listing.files if file not in old_plans]
                sizes = pool.map(lambda file: kind.plan_bytes(file, files), new)
                _check_bytes(kind, files, len(new), sum(sizes), most_bytes)
            plans = list(pool.map(plan, listing.files))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    table = FileTable.build(header, listing.files, plans)
    # A file without samples, or of which no record could be read, says nothing about columns.
    has_columns = any(plan.columns for plan in plans) or not is_counted
    for file in listing.files if not (len(table) and has_columns) else ():
        kind.check_empty(file, files)
    return table


def _partitions(
    kind: Format, table: FileTable, file_columns: Sequence[tuple[str, Mapping[str, str]]]
) -> dict[str, str]:
    """Return the encodings of the columns that folders such as ``lang=en`` name.

    ``file_columns`` are pairs: key of a file, and encodings of its columns. A name that is also a
    column of a file is none of these.
    """
    keys = table.keys if kind.has_partitions else []
    partitions = partition_encodings(keys if any("=" in key for key in keys) else ())
    names_in_files = {name for _, columns in file_columns for name in columns}
    return {name: each for name, each in partitions.items() if name not in names_in_files}


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


def _mixed_columns(file_columns: Sequence[tuple[str, Mapping[str, str]]]) -> frozenset[str]:
    """Return the columns that are texts in some files and have another type in others."""
    kinds: dict[str, set[str]] = {}
    for _, columns in file_columns:
        for name, encoding in columns.items():
            if encoding != NULLS:
                kinds.setdefault(name, set()).add(without_optional(encoding))
    return frozenset(name for name, each in kinds.items() if "str" in each and len(each) > 1)


def _columns_in_no_file(
    kind: Format,
    table: FileTable,
    file_columns: Sequence[tuple[str, Mapping[str, str]]],
    selected: Sequence[str] | None,
) -> dict[str, str]:
    """Return the columns of the table that no file has yet, which are None in all samples.

    Only ``selected`` columns count (None: all). Raises FormatError if there is such a column and
    the format has ``missing="error"``.
    """
    names_in_files = {name for _, columns in file_columns for name in columns}
    table_columns = table.header.get("columns", ()) if file_columns else ()
    lacking = [
        n for n in table_columns if n not in names_in_files and (selected is None or n in selected)
    ]
    if lacking and kind.missing == "error":
        raise FormatError(
            f"{file_columns[0][0]}: the table has a column {lacking[0]!r}, but none of its files "
            f"has it. {kind.allow_missing}"
        )
    kind.warn_missing(file_columns[0][0] if file_columns else "", lacking)
    return {name: as_optional((kind.encodings or {}).get(name, NULLS)) for name in lacking}


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


def _check_unchanged(file: DataFile, path: str, inode: int | None = None) -> int:
    """Return the inode of a local file, which must be the one that was planned.

    ``inode`` (int | None, default None): The inode of the file when it was opened, if it is open.

    Raises NotFoundError for a file that is gone, and ReplacedError for another one.
    """
    try:
        state = os.stat(path)
    except OSError as error:
        raise NotFoundError(f"open {path}: {error.strerror}.", url=path, verb="open") from error
    check_version(path, state, file.version, inode)
    return state.st_ino


def open_files(
    source: str,
    format: str | Format | None = None,  # noqa: A002 - what it is
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    split: str | None = "",
) -> tuple[FormatData, Files]:
    """Plan a dataset of files without a cache, and return it with the `Files` that read it.

    - ``source`` (str): URL or path of files in a format.
    - ``format`` (str | Format | None, default None): None goes by the endings of the files.
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode; None takes all.
    - ``storage_options`` (Mapping[str, Any] | None, default None): Settings of the store.
    - ``split`` (str | None, default ""): The split to plan, as `list_split` takes it.

    Raises ConfigError for a source of no format, and the errors of planning.
    """
    kind, files, found = find_files(source, format, storage_options, split=split)
    return FormatData.of(kind, make_table(kind, files, found), columns, Url(source)), files


def find_files(
    source: str,
    format: str | Format | None = None,  # noqa: A002 - what it is
    storage_options: Mapping[str, Any] | None = None,
    *,
    split: str | None = "",
    settings: Mapping[str, Any] | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> tuple[Format, Files, FoundFiles]:
    """List the files of a dataset.

    Args:
        source: URL, path or pattern of files in a format.
        format: A format or its name; None goes by the endings of the files.
        storage_options: Settings of the store.
        split: Name of a split, "all" or '', as `list_split` takes it; None for all files.
        settings: Settings of the format, by name. Those that are empty, or that the format does not
            have, are left out.
        include: Shell patterns of the files to read; empty reads all.
        exclude: Shell patterns of the files to leave out.

    Returns the format with its settings, the reader of the files, and the files.

    Raises ConfigError for a source of no format.
    """
    listings: list[FolderListing] = []  # of the folder, if its format is detected
    kind = parse_format(format) or format_of_split(
        source,
        split or "",
        beside_index=True,
        include=include,
        exclude=exclude,
        labels=(settings or {}).get("labels"),
        listings=listings,
    )
    if kind is None:
        known_formats = ", ".join(format_names())
        raise ConfigError(f"{redact(source)!r} holds no files of a known format ({known_formats}).")
    fields = {field.name for field in dataclasses.fields(kind)}
    own_settings = {
        name: value for name, value in (settings or {}).items() if value and name in fields
    }
    kind = dataclasses.replace(kind, **own_settings) if own_settings else kind

    def find_at(url: str, split: str | None) -> tuple[Format, Files, FoundFiles]:
        place = kind.narrow(parse_place(url, kind.endings))  # folder and patterns of the files
        # Files of a path take none of the settings of a URL, which may be that of the output.
        options = settings_for(place.root, storage_options)
        open_at = functools.partial(open_store, options=options)
        files = open_pinned(place.root, open_at, include, exclude)
        is_listed = bool(listings) and _is_same_folder(listings[0].root, files.store.local_path)
        files.listing = listings.pop() if is_listed else None
        return kind, files, list_split(kind, place, files, split)

    return find_at(source, None) if split is None else open_split(kind, source, split, find_at)


def _is_same_folder(path: str, other: str | None) -> bool:
    """Return True if two paths are of one folder; None is of none."""
    return other is not None and os.path.abspath(path) == os.path.abspath(other)


# --------------------------------------------------------------------- an index of files


#: Value of ``remote`` in an index whose files are in its own folder.
HERE = "."
#: Value of "source" in the header of a table beside an index.
PINNED = "mds index"
_LARGEST_TABLE = 1 << 32
#: Entries of the header that the table beside an index keeps.
_PINNED_HEADERS = ("pin", "schema", "columns", "class_names", "extras")


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


@contextlib.contextmanager
def explain_memory(location: str) -> Iterator[None]:
    """Name the file or shard that is read in the block if there is too little memory for it."""
    try:
        yield
    except MemoryError as error:
        raise memory_error(location) from error
