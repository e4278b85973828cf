"""Delta tables: the Parquet files of one version.

    _delta_log/00000000000000000010.checkpoint.parquet    the files of version 10
    _delta_log/00000000000000000011.json                  files added and removed since

The last checkpoint and the commits after it are copied with our own store to a temporary folder,
where deltalake reads them. So Delta tables work in every store that can list, with its usual
settings.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

import numpy as np

from mds.errors import ConfigError, FormatError, MdsError, need
from mds.formats._arrow_values import pyarrow
from mds.formats._columnar import unreadable
from mds.formats._facts import DataFile, FoundFiles
from mds.formats._lake import SIDE_BY_SIDE, FileFacts, TableFormat, check_number, digest_of, refused
from mds.formats._registry import DELTA_LOG as LOG
from mds.formats._source import FilePlace

if TYPE_CHECKING:
    from mds.formats._source import Files

# Group 1: the version. Group 2 of a checkpoint: the number of its parts, None for a single file.
_COMMIT = re.compile(rf"{LOG}/(\d{{20}})\.json")
_CHECKPOINT = re.compile(rf"{LOG}/(\d{{20}})\.checkpoint(?:\.[0-9a-f-]+|\.\d+\.(\d+))?\.\w+")
_SIDECARS = f"{LOG}/_sidecars/"
_MAX_DEPTH = 10_000  # open brackets in a line of the log; with 100,000 deltalake ends the process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delta(TableFormat):
    """A Delta table, read in place: the row groups of the files of one version.

    - ``version`` (int | None, default None): The version to read; None takes the latest at the
      start. States record the version, and a state of other files is refused.
    - ``columns`` (Sequence[str] | None, default None): The only columns to fetch and decode.
    - ``missing`` (str | None, default None): With ``"null"`` a column that a file does not have is
      None there, such as one that was written before the column was added; without it that is an
      error.
    - ``encodings`` (Mapping[str, str] | None, default None): Encodings by column, which replace
      those that follow from the types.

    Raises ConfigError (a ValueError) for a version that is no whole number, or negative.

    >>> StreamingDataset(remote="s3://lake/events", format=Delta(version=37))  # doctest: +SKIP
    """

    name: ClassVar[str] = "delta"
    title: ClassVar[str] = "Delta table"

    version: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("version", self.version)

    def narrow(self, place: FilePlace) -> FilePlace:
        """Narrow the place to the log."""
        return FilePlace(place.root, (f"{LOG}/**",))

    def takes(self, key: str) -> bool:
        """Whether a key is that of a file of the log."""
        return key.startswith(f"{LOG}/")

    def files_of_table(self, place: FilePlace, source: Files) -> FoundFiles:
        """Return the files of the version, according to the log."""
        url = source.url("")
        log = source.find(place)
        version, log_files = _log_of(log, self.version, url)
        with tempfile.TemporaryDirectory(prefix="mds-delta-") as folder:
            _copy(log_files, source, folder)
            _check_depth(folder, url)
            try:
                return _read(folder, version, url)
            except MdsError:
                raise
            except BaseException as error:
                # A panic of Rust is no Exception.
                if type(error).__name__ == "PanicException":
                    raise _panic_error(url, error) from error
                if not isinstance(error, Exception):
                    raise
                raise unreadable(url, f"version {version} cannot be read", error) from error


def _log_of(log: Sequence[DataFile], requested: int | None, url: str) -> tuple[int, list[DataFile]]:
    """Return the version to read, and the checkpoint and commits of the log that define it.

    - ``log`` (Sequence[DataFile]): All files of the log.
    - ``requested`` (int | None): The version that the user named; None takes the latest.
    - ``url`` (str): URL of the table, for errors.

    Raises FormatError for a version that does not exist, or no longer.
    """
    commits = {int(m[1]): file for file in log if (m := _COMMIT.fullmatch(file.key))}
    parts: dict[int, list[DataFile]] = {}
    for file in log:
        if match := _CHECKPOINT.fullmatch(file.key):
            parts.setdefault(int(match[1]), []).append(file)
    versions = [*commits, *parts]
    if not versions:
        raise FormatError(f"{url}: this is not a Delta table: there is no {LOG}/.")
    version = max(versions) if requested is None else requested
    # The latest complete checkpoint up to the version, or -1; the commits after it are needed.
    first = max(
        (number for number in parts if number <= version and _is_whole(parts[number])), default=-1
    )
    needed = range(first + 1, version + 1)
    if version > max(versions) or any(number not in commits for number in needed):
        # Versions that can be read: any with a checkpoint, and 0 while its commit is kept.
        readable = [number for number in parts if _is_whole(parts[number])] + [0] * (0 in commits)
        oldest = min(readable, default=max(versions))
        raise FormatError(
            f"{url}: there is no version {version} of the table: its log has the versions "
            f"{oldest} to {max(versions)}."
        )
    log_files = [*parts.get(first, ()), *(commits[number] for number in needed)]
    if first in commits:  # the commit of the checkpoint's version, if it was kept
        log_files.append(commits[first])
    if first >= 0:
        log_files += [file for file in log if file.key.startswith(_SIDECARS)]
    return version, log_files


def _is_whole(parts: Sequence[DataFile]) -> bool:
    """Whether a checkpoint is complete: a single file, or as many parts as their names say."""
    part_counts = [match[2] for file in parts if (match := _CHECKPOINT.fullmatch(file.key))]
    return None in part_counts or any(part_counts.count(each) == int(each) for each in part_counts)


def _copy(log_files: Sequence[DataFile], source: Files, folder: str) -> None:
    """Copy files of the log to a local folder, many at once, under their keys."""

    def copy(file: DataFile) -> None:
        """Copy one file, whose key becomes a path below the folder."""
        path = os.path.join(folder, *file.key.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            out.writelines(source.stream(file))

    with ThreadPoolExecutor(SIDE_BY_SIDE, "mds-delta") as pool:
        list(pool.map(copy, log_files))


def _check_depth(folder: str, url: str) -> None:
    """Raise FormatError for brackets that are nested too deeply for the stack of deltalake.

    The log also has JSON in texts, such as the statistics of a file, so brackets in texts count.
    """
    for path, _, names in os.walk(folder):
        for name in (name for name in names if name.endswith(".json")):
            with open(os.path.join(path, name), "rb") as file:
                for number, line in enumerate(file, 1):
                    if line.count(b"[") + line.count(b"{") > _MAX_DEPTH < _depth_of(line):
                        raise FormatError(
                            f"{url}/{LOG}/{name}: line {number} has brackets inside of each other "
                            f"beyond {_MAX_DEPTH}, so it is damaged."
                        )


def _depth_of(line: bytes) -> int:
    """Return how many brackets are open at most at one place of a line."""
    letters = np.frombuffer(line, np.uint8)
    changes = np.isin(letters, (ord("["), ord("{"))).astype(np.int64)
    changes -= np.isin(letters, (ord("]"), ord("}")))
    return int(changes.cumsum().max(initial=0))


def _panic_error(url: str, error: BaseException) -> MdsError:
    """Return the error for a panic in deltalake, which its runtime has in a forked process."""
    if "fork" not in str(error):
        return unreadable(url, "deltalake failed", error)
    return ConfigError(
        f"{url}: this process was forked after its parent had used deltalake, which cannot be used "
        'in both. Open the dataset in the parent, or start processes with "spawn" '
        '(multiprocessing.get_context("spawn")).'
    )


def _read(folder: str, version: int, url: str) -> FoundFiles:
    """Return the files of a version, and the facts of the log about each.

    - ``folder`` (str): Local folder with the log of the table.
    - ``version`` (int): The version.
    - ``url`` (str): URL of the table, for errors.
    """
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        raise need("deltalake", "lake", "Delta tables") from error
    pa = pyarrow()
    table = DeltaTable(folder, version=version)
    _refuse_deleted_rows(table, url, version)
    schema = table.schema().to_json()
    trees = [_tree(field) for field in json.loads(schema)["fields"]]
    fields = [trees, _numbers(trees), False]  # see `FileFacts.fields`
    actions = pa.table(table.get_add_actions())  # a row for each file of the version
    # The partition columns: a struct with their values in each file, or None without partitions.
    has_partitions = "partition" in actions.schema.names
    constants: Any = actions["partition"].combine_chunks() if has_partitions else None
    if isinstance(constants, pa.ChunkedArray):
        constants = constants.chunk(0)
    files, facts = [], {}
    paths, sizes = actions["path"].to_pylist(), actions["size_bytes"].to_pylist()
    for row, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        key = _key_of(path, folder, url)
        files.append(DataFile(key, size))
        values, names = [], []  # of the partition columns in this file
        if constants is not None:
            values = [column.slice(row, 1) for column in constants.flatten()]
            names = [field.name for field in constants.type]
        batch = pa.record_batch(values, names=names)
        facts[key] = FileFacts(batch, fields=fields).to_bytes()
    columns = tuple(tree[1] for tree in trees)
    return FoundFiles(files, {"version": version}, facts, digest_of(schema), columns)


def _refuse_deleted_rows(table: Any, url: str, version: int) -> None:
    """Raise FormatError if rows of the version's files are marked as deleted."""
    features = table.protocol().reader_features or ()
    if "deletionVectors" not in features:
        return
    try:
        has_any = any(batch.num_rows for batch in table.deletion_vectors())
    except Exception:  # noqa: BLE001 - those in files of their own are not copied, and missing
        has_any = True
    if has_any:
        raise refused(
            url,
            f"deletion vectors in version {version}",
            "Rewrite the remaining rows: REORG TABLE ... APPLY (PURGE), or OPTIMIZE.",
        )


def _tree(field: Mapping[str, Any]) -> list[Any]:
    """Return a field of the table as a tree: [stored name, name, kind, fields inside].

    ``field`` is the JSON of a field in the table's schema. `lake.tree_of` makes such trees of the
    fields of files. In place of a number a tree of Delta has the name by which files store the
    field.
    """
    stored = (field.get("metadata") or {}).get("delta.columnMapping.physicalName")
    kind, name, inside = field["type"], "", []
    if isinstance(kind, Mapping) and kind["type"] == "struct":
        name, inside = "struct", kind["fields"]
    elif isinstance(kind, Mapping) and kind["type"] == "array":
        name, inside = "list", [{"name": "element", "type": kind["elementType"]}]
    elif isinstance(kind, Mapping) and kind["type"] == "map":
        name = "map"
        inside = [{"name": each, "type": kind[f"{each}Type"]} for each in ("key", "value")]
    return [stored or field["name"], field["name"], name, [_tree(each) for each in inside]]


def _numbers(trees: Sequence[Any]) -> dict[str, Any]:
    """Return the `lake.Numbers` of trees: each stored name stands for itself."""
    return {tree[0]: [tree[0], _numbers(tree[3])] for tree in trees}


def _key_of(path: str, folder: str, url: str) -> str:
    """Return the key of a file from its path in the log, which may be a URL.

    ``folder`` is the local copy of the table's folder, to which deltalake makes paths absolute.
    Raises FormatError, with the table's ``url``, for a file outside of the table.
    """
    path = unquote(path).removeprefix("file://").removeprefix(folder).lstrip("/")
    if "://" in path:
        raise refused(url, f"files outside its folder ({path})", "Copy the whole table.")
    return path
