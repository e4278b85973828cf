"""Iceberg tables: the Parquet files of one snapshot.

    metadata/v3.metadata.json -> list of manifests -> manifests -> data files

Our own store reads these files, and pyiceberg decodes them, so Iceberg tables work in every store
that can list. Columns are identified by their numbers, whatever a file calls them. A table that was
moved or copied is readable: paths are taken relative to the table's location.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

from mds.errors import ConfigError, FormatError, MdsError, need
from mds.formats._arrow_values import pyarrow
from mds.formats._columnar import unreadable
from mds.formats._facts import DataFile, FoundFiles
from mds.formats._lake import (
    ROUGH,
    SIDE_BY_SIDE,
    FileFacts,
    TableFormat,
    check_number,
    digest_of,
    refused,
)
from mds.formats._source import FilePlace
from mds.storage._url import Url

if TYPE_CHECKING:
    from mds.formats._source import Files

_FOLDER, _ENDING, _HINT = "metadata/", ".metadata.json", "metadata/version-hint.text"
_NUMBERED = re.compile(r"metadata/v?(\d+)(?:-[^/]*)?\.metadata\.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Iceberg(TableFormat):
    """An Iceberg table, read in place: the row groups of the files of one snapshot.

    The place is the folder of the table, or the URL of the metadata file that a catalog names.

    - ``snapshot`` (int | None, default None): The snapshot to read; None takes the current one at
      the start. States record it, and a state of other files is refused.
    - ``columns`` (Sequence[str] | None, default None): The only columns to fetch and decode.
    - ``missing`` (str | None, default None): With ``"null"`` a column that a file does not have is
      None there, such as one that was written before the column was added; without it that is an
      error.
    - ``encodings`` (Mapping[str, str] | None, default None): Encodings by column, which replace
      those that follow from the types.

    Raises ConfigError (a ValueError) for a snapshot that is no whole number, or negative.

    >>> StreamingDataset(remote="s3://lake/db/events", format=Iceberg())  # doctest: +SKIP
    """

    name: ClassVar[str] = "iceberg"
    title: ClassVar[str] = "Iceberg table"
    endings: ClassVar[tuple[str, ...]] = (_ENDING,)

    snapshot: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("snapshot", self.snapshot)

    def narrow(self, place: FilePlace) -> FilePlace:
        """Narrow the place to the metadata, below the folder of the table.

        Of the folder ``s3://lake/events`` it takes the files ``metadata/*``. For the file
        ``s3://lake/events/metadata/v3.metadata.json`` the root becomes ``s3://lake/events``.
        """
        if not place.patterns and not place.literal:
            return FilePlace(place.root, (f"{_FOLDER}*",))
        root, _, folder = place.root.rstrip("/").rpartition("/")
        if folder != _FOLDER.rstrip("/"):
            raise ConfigError(
                f"{place.root!r}: the metadata file of a table must be in its folder {_FOLDER!r}."
            )
        below = tuple(f"{_FOLDER}{name}" for name in place.patterns)
        literal = f"{_FOLDER}{place.literal}" if place.literal else ""
        return FilePlace(Url(root or "."), below, literal)

    def takes(self, key: str) -> bool:
        """Whether a key is that of a metadata file."""
        return key.startswith(_FOLDER)

    def files_of_table(self, place: FilePlace, source: Files) -> FoundFiles:
        """Return the files of the snapshot, according to its manifests."""
        url = source.url("")
        metadata_file = _metadata_file(source.find(place), source, url)
        try:
            return _read(metadata_file, self.snapshot, source)
        except (MdsError, MemoryError):
            raise
        except Exception as error:
            raise unreadable(
                source.url(metadata_file), "the table cannot be read", error
            ) from error


def _metadata_file(files: Sequence[DataFile], source: Files, url: str) -> DataFile:
    """Return the newest metadata file: the one that the hint names, else the highest number.

    ``files`` are the files in the table's metadata folder, ``source`` reads the hint, and ``url``
    names the table in errors. Raises FormatError if no file can be chosen.
    """
    named = {file.key: file for file in files if file.key.endswith(_ENDING)}
    if len(named) == 1:
        return next(iter(named.values()))
    hint = next((file for file in files if file.key == _HINT), None)
    if hint is not None:
        hinted_name = source.get(hint).decode("ascii", "replace").strip()
        # Writers differ: the hint is a file name, or the number in one.
        for name in (hinted_name, f"v{hinted_name}{_ENDING}", f"{hinted_name}{_ENDING}"):
            if f"{_FOLDER}{name}" in named:
                return named[f"{_FOLDER}{name}"]
    numbers = {key: int(match[1]) for key in named if (match := _NUMBERED.fullmatch(key))}
    if not numbers:
        raise FormatError(f"{url}: this is not an Iceberg table: there is no {_FOLDER}*{_ENDING}.")
    newest = [key for key, number in numbers.items() if number == max(numbers.values())]
    if len(newest) > 1:
        raise FormatError(
            f"{url}: {' and '.join(sorted(newest)[:2])} have the same number; give the URL of the "
            f"one that is in the catalog."
        )
    return named[newest[0]]


def _read(metadata_file: DataFile, requested: int | None, source: Files) -> FoundFiles:
    """Return the files of a snapshot, and the facts of its manifests about each.

    - ``metadata_file`` (DataFile): The metadata file of the table.
    - ``requested`` (int | None): Number of the snapshot; None takes the current one.
    - ``source`` (Files): Reads the files of the table.

    Raises FormatError for a snapshot that does not exist, and for a feature that is not supported.
    """
    try:
        from pyiceberg.serializers import FromInputFile
    except ImportError as error:
        raise need("pyiceberg", "lake", "Iceberg tables") from error
    url = source.url(metadata_file)
    reads = _reads(source)
    metadata = FromInputFile.table_metadata(reads.new_input(metadata_file.key))
    reads.location = metadata.location.rstrip("/") + "/"
    snapshot = (
        metadata.current_snapshot() if requested is None else metadata.snapshot_by_id(requested)
    )
    if snapshot is None:
        if requested is None:
            raise FormatError(f"{url}: the table has no snapshot, and therefore no files.")
        newest_ids = ", ".join(str(each.snapshot_id) for each in metadata.snapshots[-5:])
        raise FormatError(
            f"{url}: snapshot {requested} does not exist (any more); the latest are {newest_ids}."
        )
    schema = metadata.schema()
    if requested is not None and snapshot.schema_id is not None:
        snapshot_schema = metadata.schema_by_id(snapshot.schema_id)  # it may be an older one
        if snapshot_schema is None:
            raise FormatError(
                f"{url}: the schema {snapshot.schema_id} of snapshot {requested} is missing."
            )
        schema = snapshot_schema
    _refuse_defaults(schema, url)
    # See `FileFacts.fields`.
    fields = [[_tree(field) for field in schema.fields], _file_numbers(metadata, schema), True]
    files, facts = [], {}
    for entry in _entries(snapshot, reads, url):
        file = entry.data_file
        key = reads.key_of(file.file_path)
        files.append(DataFile(key, file.file_size_in_bytes))
        batch = _constants(file, metadata, schema)
        facts[key] = FileFacts(batch, fields=fields).to_bytes()
    digest = digest_of(schema.model_dump_json() + json.dumps(fields[1]))
    names = tuple(field.name for field in schema.fields)
    return FoundFiles(files, {"snapshot": snapshot.snapshot_id}, facts, digest, names)


def _entries(snapshot: Any, reads: Any, url: str) -> Iterator[Any]:
    """Yield the entries of all manifests of a snapshot: one for each data file.

    ``reads`` are the files of the table as pyiceberg reads them (`_reads`), ``url`` names the table
    in errors. Raises FormatError for deleted rows, and for files that are not Parquet.
    """
    from pyiceberg.manifest import FileFormat, ManifestContent

    manifests = snapshot.manifests(reads)
    with ThreadPoolExecutor(SIDE_BY_SIDE, "mds-iceberg") as pool:
        for manifest, entries in zip(
            manifests, pool.map(lambda each: each.fetch_manifest_entry(reads), manifests),
            strict=True,
        ):  # fmt: skip
            if manifest.content == ManifestContent.DELETES and entries:
                raise refused(
                    url,
                    f"files of deleted rows in snapshot {snapshot.snapshot_id}",
                    "Rewrite the remaining rows: CALL system.rewrite_data_files(...).",
                )
            for entry in entries:
                if entry.data_file.file_format != FileFormat.PARQUET:
                    raise refused(
                        url,
                        f"files of {entry.data_file.file_format}",
                        "Write them as Parquet.",
                    )
                yield entry


def _constants(file: Any, metadata: Any, schema: Any) -> Any:
    """Return the partition columns of a file, with their values in it, as a batch of one row.

    ``file`` is pyiceberg's data file of a manifest, ``metadata`` and ``schema`` are those of the
    table. The file need not hold these columns itself: all of its rows have the same values.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.transforms import IdentityTransform

    pa = pyarrow()
    spec = metadata.specs()[file.spec_id]
    tops = {field.field_id: field.name for field in schema.fields}  # columns that are not nested
    fields, values = [], []
    for position, field in enumerate(spec.fields):
        name = tops.get(field.source_id)
        if isinstance(field.transform, IdentityTransform) and name is not None:
            kind = schema_to_pyarrow(schema.find_type(field.source_id))
            values.append(pa.array([file.partition[position]], kind))
            # The value of a double may have lost digits when pyiceberg read the manifest.
            is_rough = kind == pa.float64() and not _reads_doubles()
            fields.append(pa.field(name, kind, metadata={ROUGH: "1"} if is_rough else None))
    return pa.record_batch(values, schema=pa.schema(fields))


def _reads_doubles() -> bool:
    """Whether pyiceberg keeps all digits of a double in a manifest; its fast decoder does not."""
    from pyiceberg.avro.decoder import new_decoder

    return bool(new_decoder(struct.pack("<d", 0.1)).read_double() == 0.1)


def _tree(field: Any) -> list[Any]:
    """Return a field of the table as a tree: [number, name, kind, fields inside].

    ``field`` is pyiceberg's. `lake.tree_of` makes such trees of the fields of files.
    """
    from pyiceberg.types import ListType, MapType, StructType

    kind, name, inside = field.field_type, "", []
    if isinstance(kind, StructType):
        name, inside = "struct", [*kind.fields]
    elif isinstance(kind, ListType):
        name, inside = "list", [kind.element_field]
    elif isinstance(kind, MapType):
        name, inside = "map", [kind.key_field, kind.value_field]
    return [str(field.field_id), field.name, name, [_tree(each) for each in inside]]


def _file_numbers(metadata: Any, schema: Any) -> dict[str, Any] | None:
    """Return the numbers of columns by name, for files that do not contain numbers.

    None if the table was changed and has no mapping: a name may have meant another column before.
    """
    from pyiceberg.table.name_mapping import create_mapping_from_schema

    mapping = metadata.name_mapping()
    if mapping is None and len(metadata.schemas) == 1:
        mapping = create_mapping_from_schema(schema)
    return None if mapping is None else _by_name(mapping.root)


def _by_name(fields: Sequence[Any]) -> dict[str, Any]:
    """Return the `lake.Numbers` of the fields in a name mapping of pyiceberg.

    A field of a mapping has a number, several names, and fields inside.
    """
    numbers = ["" if each.field_id is None else str(each.field_id) for each in fields]
    return {
        name: [number, _by_name(each.fields)]
        for number, each in zip(numbers, fields, strict=True)
        for name in each.names
    }


def _refuse_defaults(schema: Any, url: str) -> None:
    """Raise FormatError if a field has a default value for files that lack it."""
    for name in schema.column_names:
        if schema.find_field(name).initial_default is not None:
            raise refused(
                url,
                f"default values of a column for older files ({name!r})",
                "Rewrite the files: CALL system.rewrite_data_files(...).",
            )


def _reads(source: Files) -> Any:
    """Return an object by which pyiceberg reads the files of a table through ``source``.

    Set its ``location`` to that of the table before it is asked for paths in the metadata. The
    classes are made here, since their base classes need pyiceberg.
    """
    from pyiceberg.io import FileIO, InputFile

    class TableInput(InputFile):  # type: ignore[misc]
        """A file of the table, in the interface of pyiceberg.

        ``location`` is its path in the metadata, ``key`` the key by which the store finds it.
        """

        def __init__(self, location: str, key: str) -> None:
            super().__init__(location)
            self._key = key

        def __len__(self) -> int:
            return int(source.store.head(self._key).size)

        def exists(self) -> bool:
            return True

        def open(self, seekable: bool = True) -> Any:
            del seekable
            return io.BytesIO(source.get(DataFile(self._key, -1)))  # size unknown

    class TableReads(FileIO):  # type: ignore[misc]
        """The file system of pyiceberg, for reading only: it opens files of the table by path."""

        location = ""  # of the table when it was written, such as "s3://old-bucket/db/events"

        def key_of(self, path: str) -> str:
            """Return the key of a file from its path in the metadata, relative to the table."""
            plain_path, root = _plain(path), _plain(self.location)
            if not plain_path.startswith(root):
                raise refused(
                    source.url(""), f"files outside its folder ({path})",
                    "Copy the whole table.",
                )  # fmt: skip
            return plain_path[len(root) :]

        def new_input(self, location: str) -> TableInput:
            return TableInput(location, self.key_of(location))

        def new_output(self, location: str) -> Any:
            raise NotImplementedError(location)

        def delete(self, location: Any) -> None:
            raise NotImplementedError(str(location))

    return TableReads()


def _plain(path: str) -> str:
    """Normalize a location that can be written in several ways: ``file:/a``, ``s3a://b``."""
    path = re.sub(r"^file:/*(?=/)", "", path)
    return re.sub(r"^s3[an]://", "s3://", path)
