"""Schema of a shard: what many shards share, and the view of a single one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mds.encodings import parse_encoding
from mds.errors import UnsafeTypeError
from mds.shardfile.layout import Columns
from mds.storage.relative_name import RelativeName

VERSION = 2
MDS = "mds"
SPLIT_FORMATS = ("json", "csv", "tsv", "xsv")
FORMATS = (MDS, *SPLIT_FORMATS)
SPLIT_ENCODINGS = ("str", "int", "float")
# In the order of their names, which is the order of the packed names and digests of a shard.
KINDS = ("raw_data", "raw_meta", "zip_data", "zip_meta")


class Stored(NamedTuple):
    """One of the files that each shard of a schema has, with (hash name, hex digits) of it."""

    kind: str
    hashes: tuple[tuple[str, int], ...]


class ShardSchema(NamedTuple):
    """All that shards of one writer have in common."""

    format: str
    columns: Columns
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int | None
    newline: str | None
    separator: str | None
    stored: tuple[Stored, ...]
    version: int = VERSION

    @property
    def is_split(self) -> bool:
        """Whether a shard is a data file and a meta file."""
        return self.format != MDS

    @property
    def has_unsafe_types(self) -> bool:
        """Whether a column can hold pickles."""
        if self.is_split:
            return False
        return any(parse_encoding(name).is_unsafe for name in self.columns.encodings)


class FileInfo(NamedTuple):
    """One file of a shard: its path below the dataset's folder, its bytes, its hex digests."""

    basename: RelativeName
    size: int
    hashes: Mapping[str, str]


class ShardInfo(NamedTuple):
    """One shard of an index."""

    schema: ShardSchema
    samples: int
    raw: FileInfo
    zip: FileInfo | None = None
    raw_meta: FileInfo | None = None
    zip_meta: FileInfo | None = None
    number: int = 0  # in its index

    @property
    def files(self) -> list[tuple[FileInfo, FileInfo | None]]:
        """The parts as (raw, compressed or None): one for mds, two for split formats."""
        parts = [(self.raw, self.zip)]
        if self.raw_meta is not None:
            parts.append((self.raw_meta, self.zip_meta))
        return parts


def refuse_unsafe(schemas: Iterable[ShardSchema], allow_unsafe_types: bool, location: str) -> None:
    """Raise UnsafeTypeError for a schema with pickles, unless they are allowed."""
    if allow_unsafe_types:
        return
    for schema in schemas:
        if schema.has_unsafe_types:
            columns = zip(schema.columns.names, schema.columns.encodings, strict=True)
            bad = [f"{n!r} ({e})" for n, e in columns if parse_encoding(e).is_unsafe]
            raise UnsafeTypeError(
                f"{location}: column {', '.join(bad)} holds pickles, and to load a pickle is to "
                "run whatever code its author chose. Pass allow_unsafe_types=True if you trust "
                "them."
            )
