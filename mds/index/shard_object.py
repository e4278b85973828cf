"""One shard object of index.json, checked key by key, to a schema and a row of numbers and names.

The incumbent passes the keys of an object on as keyword arguments, so a key that is unknown or
missing is an error there too. Here every value is checked as well, before anything relies on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from mds.encodings import parse_encoding
from mds.errors import EncodingError, IndexFileError, MdsError
from mds.index.schema import (
    FORMATS,
    KINDS,
    MDS,
    SPLIT_ENCODINGS,
    VERSION,
    ShardSchema,
    Stored,
)
from mds.shardfile.layout import Columns
from mds.storage.relative_name import RelativeName, shown
from mds.units import parse_bytes

_COMMON = {
    *("version", "format", "samples", "compression", "hashes", "size_limit"),
    *("raw_data", "zip_data"),
}
_COLUMNS = {"column_names", "column_encodings"}
_SPLIT = {"raw_meta", "zip_meta", "newline"}
_KEYS = {
    "mds": _COMMON | _COLUMNS | {"column_sizes"},
    "json": _COMMON | _SPLIT | {"columns"},
    "csv": _COMMON | _SPLIT | _COLUMNS,
    "tsv": _COMMON | _SPLIT | _COLUMNS,
    "xsv": _COMMON | _SPLIT | _COLUMNS | {"separator"},
}
_SEPARATORS = {"csv": ",", "tsv": "\t"}
_FILE_KEYS = {"basename", "bytes", "hashes"}
_DIGEST = re.compile(r"(?:[0-9a-f]{2}){1,128}")
# No count or size in an index can be larger, so sums of millions of them stay inside int64.
LARGEST = 1 << 36


class Row(NamedTuple):
    """Values of a single shard: names, sizes and digests in the order of ``stored``."""

    samples: int
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    digests: str


def parse_shard(raw: object, location: str) -> tuple[ShardSchema, Row]:
    """Split one element of ``shards`` into its schema and row; raise IndexFileError if invalid."""
    if not isinstance(raw, dict):
        raise IndexFileError(f"{location}: expected an object for each shard, got {shown(raw)}.")
    if _int(raw, "version", location) != VERSION:
        raise IndexFileError(
            f"{location}: the shard has version {raw['version']}; only version {VERSION} is known."
        )
    name = _get(raw, "format", location)
    if not isinstance(name, str) or name not in FORMATS:
        raise IndexFileError(
            f"{location}: {shown(name)} is not a shard format. There are {', '.join(FORMATS)}."
        )
    _check_keys(raw, _KEYS[name], location)
    files = [(kind, raw[kind]) for kind in KINDS if raw.get(kind) is not None]
    stored, sizes, names, digests = [], [], [], []
    for kind, file in files:
        shape, size, basename, digest = _file(file, kind, f"{location}, {kind}")
        stored.append(shape)
        sizes.append(size)
        names.append(basename)
        digests.append(digest)
    schema = _schema(raw, name, tuple(stored), location)
    row = Row(_int(raw, "samples", location), tuple(sizes), tuple(names), "".join(digests))
    return schema, row


def _schema(
    raw: Mapping[str, Any], name: str, stored: tuple[Stored, ...], location: str
) -> ShardSchema:
    is_split = name != MDS
    present = {shape.kind for shape in stored}
    needed = {"raw_data", "raw_meta"} if is_split else {"raw_data"}
    if not needed <= present:
        raise IndexFileError(
            f"{location}: {' and '.join(sorted(needed - present))} cannot be null."
        )
    compression = _text(raw, "compression", location, is_optional=True) or None
    zips = present & {"zip_data", "zip_meta"}
    if zips and (compression is None or len(zips) != len(needed)):
        raise IndexFileError(
            f"{location}: compression is {compression!r}, but the compressed files given are "
            f"{', '.join(sorted(zips))}."
        )
    if compression is not None:
        from mds.shardfile.compression import parse_compression

        try:
            parse_compression(compression)
        except MdsError as error:
            raise IndexFileError(f"{location}: {error}") from error
    hashes = _texts(raw["hashes"], f"{location}, hashes")
    separator = _text(raw, "separator", location) if name == "xsv" else _SEPARATORS.get(name)
    if separator == "":
        raise IndexFileError(f"{location}: the separator is empty.")
    return ShardSchema(
        format=name,
        columns=_columns(raw, name, location),
        compression=compression,
        hashes=tuple(hashes),
        size_limit=_size_limit(raw["size_limit"], location),
        newline=_text(raw, "newline", location) if is_split else None,
        separator=separator,
        stored=stored,
    )


def _columns(raw: Mapping[str, Any], name: str, location: str) -> Columns:
    if name == "json":
        pairs = raw["columns"]
        if not isinstance(pairs, dict):
            raise IndexFileError(f"{location}: expected an object for columns, got {shown(pairs)}.")
        # A JSON object is unordered; columns are sorted by name, as everywhere else.
        names = sorted(pairs)
        encodings = _texts([pairs[name] for name in names], f"{location}, columns")
    else:
        names = _texts(raw["column_names"], f"{location}, column_names")
        encodings = _texts(raw["column_encodings"], f"{location}, column_encodings")
    if len(names) != len(encodings) or len(set(names)) != len(names):
        raise IndexFileError(
            f"{location}: {len(names)} column names ({len(set(names))} distinct) and "
            f"{len(encodings)} encodings; each column needs its own of both."
        )
    sizes = [_encoded_size(e, name, f"{location}, column {shown(n)}") for n, e in
             zip(names, encodings, strict=True)]  # fmt: skip
    if name == MDS and raw["column_sizes"] != sizes:
        raise IndexFileError(
            f"{location}: column_sizes is {shown(raw['column_sizes'])}, but the encodings "
            f"{shown(encodings)} have the sizes {shown(sizes)}."
        )
    return Columns(tuple(names), tuple(encodings), tuple(sizes))


def _encoded_size(encoding: str, name: str, location: str) -> int | None:
    if name != MDS:
        if encoding not in SPLIT_ENCODINGS:
            raise IndexFileError(
                f"{location}: {shown(encoding)} is not an encoding of {name}. "
                f"There are {', '.join(SPLIT_ENCODINGS)}."
            )
        return None
    try:
        return parse_encoding(encoding).size
    except EncodingError as error:
        raise IndexFileError(f"{location}: {error}") from error


def _file(raw: object, kind: str, location: str) -> tuple[Stored, int, str, str]:
    if not isinstance(raw, dict):
        raise IndexFileError(f"{location}: expected an object or null, got {shown(raw)}.")
    _check_keys(raw, _FILE_KEYS, location)
    basename = RelativeName(_text(raw, "basename", location) or "", location, IndexFileError)
    hashes = raw["hashes"]
    if not isinstance(hashes, dict):
        raise IndexFileError(f"{location}: expected an object of digests, got {shown(hashes)}.")
    digests = []
    for name, digest in sorted(hashes.items()):
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise IndexFileError(f"{location}: {shown(digest)} is not a {shown(name)} digest.")
        digests.append((name, digest))
    shape = Stored(kind, tuple((name, len(digest)) for name, digest in digests))
    return shape, _int(raw, "bytes", location), basename, "".join(digest for _, digest in digests)


def _check_keys(raw: Mapping[str, Any], keys: set[str], location: str) -> None:
    if raw.keys() == keys:
        return
    missing, unknown = sorted(keys - raw.keys()), sorted(raw.keys() - keys)
    facts = [f"{', '.join(missing)} missing"] if missing else []
    facts += [f"{shown(', '.join(unknown))} unknown"] if unknown else []
    raise IndexFileError(f"{location}: {' and '.join(facts)}.")


def _get(raw: Mapping[str, Any], key: str, location: str) -> Any:
    if key not in raw:
        raise IndexFileError(f"{location}: {key} missing.")
    return raw[key]


def _int(raw: Mapping[str, Any], key: str, location: str) -> int:
    value = _get(raw, key, location)
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise IndexFileError(f"{location}: {key} cannot be {shown(value)}.")
    return value


def _text(
    raw: Mapping[str, Any], key: str, location: str, *, is_optional: bool = False
) -> str | None:
    value = raw[key]
    if value is None and is_optional:
        return None
    if not isinstance(value, str) or not _is_unicode(value):
        raise IndexFileError(f"{location}: expected a text for {key}, got {shown(value)}.")
    return value


def _texts(value: object, location: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise IndexFileError(f"{location}: expected a list of texts, got {shown(value)}.")
    return value


def _is_unicode(text: str) -> bool:
    # A lone surrogate is legal in JSON and can be neither stored nor compared as UTF-8.
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _size_limit(value: object, location: str) -> int | None:
    if value is None:
        return None
    if type(value) in {int, float, str}:
        try:
            size = parse_bytes(value)  # type: ignore[arg-type]
        except (ValueError, OverflowError) as error:
            raise IndexFileError(f"{location}: size_limit: {error}") from error
        if 0 <= size < 1 << 63:
            return size
    raise IndexFileError(f"{location}: size_limit cannot be {shown(value)}.")
