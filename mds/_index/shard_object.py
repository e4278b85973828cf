"""Shards of index.json: their schema, and the checked conversion from and to JSON objects.

    {"shards": [{"column_names": [...], ..., "samples": 100, "raw_data": {"basename": ...}}], ...}

What all shards of a writer share (columns, compression, hashes) is one `ShardSchema`. `parse_shard`
splits an object into a schema and a `Row` with the numbers and names of the shard. `JsonShape`
makes the text of an object again. The incumbent passes the keys of an object on as keyword
arguments, so an unknown or missing key is an error there too. Here every value is checked as well,
before anything relies on it.

A shard has one to four files, one of each *kind*: "raw_data", its compressed form "zip_data", and
in a *split format* (json, csv, tsv, xsv) also "raw_meta", which has the offsets of the samples in
the data file, and its compressed form "zip_meta". The object describes the raw files even if only
the compressed ones were stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mds._shardfile.layout import Columns
from mds._units import parse_bytes
from mds.encodings import parse_encoding
from mds.errors import EncodingError, IndexFileError, MdsError, UnsafeTypeError
from mds.storage._relative_name import RelativeName, shown

VERSION = 2
MDS = "mds"
SPLIT_FORMATS = ("json", "csv", "tsv", "xsv")
FORMATS = (MDS, *SPLIT_FORMATS)
SPLIT_ENCODINGS = ("str", "int", "float")
# In the order of their names, which is the order of the packed names and digests of a shard.
KINDS = ("raw_data", "raw_meta", "zip_data", "zip_meta")


class Stored(NamedTuple):
    """Facts about one file that are equal in all shards of a schema.

    - ``kind``: one of `KINDS`, which is the key of the file in a shard object.
    - ``hashes``: (name, number of hex digits) of each digest of the file.
    """

    kind: str
    hashes: tuple[tuple[str, int], ...]


class ShardSchema(NamedTuple):
    """The properties that all shards of one writer have in common.

    - ``format``: one of `FORMATS`. ``columns``: names, encodings and sizes of the columns.
    - ``compression``: name such as "zstd:7", or None. ``hashes``: names of digests.
    - ``size_limit``: bytes of a shard at which the writer began the next one, or None.
    - ``newline``: end of a sample in a split format, else None. ``separator``: text between the
      columns of csv, tsv and xsv, else None.
    - ``stored``: the files of each shard, in the order of `KINDS`.
    - ``version``: version of the shard objects.
    """

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
        """Whether a column can hold pickles. Columns of split formats hold text or numbers only."""
        if self.is_split:
            return False
        return any(parse_encoding(name).is_unsafe for name in self.columns.encodings)


class FileInfo(NamedTuple):
    """One file of a shard.

    - ``basename``: path below the dataset's folder. ``size``: bytes.
    - ``hashes``: digests in hex, by the name of the hash.
    """

    basename: RelativeName
    size: int
    hashes: Mapping[str, str]


class ShardInfo(NamedTuple):
    """One shard of an index.

    - ``samples``: number of samples. ``number``: position of the shard in its index.
    - ``raw``, ``zip``: the data file, and its compressed form or None.
    - ``raw_meta``, ``zip_meta``: the meta file of a split format, and its compressed form.
    """

    schema: ShardSchema
    samples: int
    raw: FileInfo
    zip: FileInfo | None = None
    raw_meta: FileInfo | None = None
    zip_meta: FileInfo | None = None
    number: int = 0

    @property
    def files(self) -> list[tuple[FileInfo, FileInfo | None]]:
        """The files as pairs (raw, compressed or None): one pair for mds, two for split formats."""
        parts = [(self.raw, self.zip)]
        if self.raw_meta is not None:
            parts.append((self.raw_meta, self.zip_meta))
        return parts


def refuse_unsafe(schemas: Iterable[ShardSchema], allow_unsafe_types: bool, location: str) -> None:
    """Raise UnsafeTypeError for a schema with pickles, unless ``allow_unsafe_types`` is True.

    ``location`` names the index in the error.
    """
    if allow_unsafe_types:
        return
    for schema in schemas:
        if schema.has_unsafe_types:
            columns = zip(schema.columns.names, schema.columns.encodings, strict=True)
            bad = [f"{n!r} ({e})" for n, e in columns if parse_encoding(e).is_unsafe]
            raise UnsafeTypeError(
                f"{location}: column {', '.join(bad)} holds pickles, and loading a pickle can run "
                "any code of its author. Pass allow_unsafe_types=True if you trust them."
            )


# --------------------------------------------------------------------- from JSON


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
    """Values of one shard, which differ between the shards of a schema.

    Sizes, names and digests are in the order of ``ShardSchema.stored``.

    - ``samples``: number of samples.
    - ``sizes``: bytes of each file. ``names``: path of each file below the dataset's folder.
    - ``digests``: digests of all files in hex, joined without separators.
    """

    samples: int
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    digests: str


def parse_shard(raw: object, location: str) -> tuple[ShardSchema, Row]:
    """Parse one element of the list ``shards`` of index.json to its schema and row.

    ``raw`` is the element as `json` parsed it.
    ``location`` names the shard in errors. Raises IndexFileError for an invalid object.
    """
    if not isinstance(raw, dict):
        raise IndexFileError(f"{location}: expected an object for each shard, got {shown(raw)}.")
    if _int(raw, "version", location) != VERSION:
        raise IndexFileError(
            f"{location}: the shard has version {raw['version']}, but mds reads only version "
            f"{VERSION}."
        )
    name = _get(raw, "format", location)
    if not isinstance(name, str) or name not in FORMATS:
        raise IndexFileError(
            f"{location}: {shown(name)} is not a shard format. The formats are "
            f"{', '.join(FORMATS)}."
        )
    _check_keys(raw, _KEYS[name], location)
    files = [(kind, raw[kind]) for kind in KINDS if raw.get(kind) is not None]
    stored, sizes, names, digests = [], [], [], []
    for kind, file in files:
        shape, size, basename, digest = _parse_file(file, kind, f"{location}, {kind}")
        stored.append(shape)
        sizes.append(size)
        names.append(basename)
        digests.append(digest)
    schema = _parse_schema(raw, name, tuple(stored), location)
    row = Row(_int(raw, "samples", location), tuple(sizes), tuple(names), "".join(digests))
    return schema, row


def _parse_schema(
    raw: Mapping[str, Any], name: str, stored: tuple[Stored, ...], location: str
) -> ShardSchema:
    """Parse the part of a shard object that shards have in common. Raises IndexFileError.

    ``raw`` is the object, ``name`` its format, such as "mds", and ``stored`` the files it has.
    """
    is_split = name != MDS
    present = {shape.kind for shape in stored}
    needed = {"raw_data", "raw_meta"} if is_split else {"raw_data"}
    if not needed <= present:
        raise IndexFileError(
            f"{location}: {' and '.join(sorted(needed - present))} cannot be null."
        )
    compression = _text(raw, "compression", location, is_optional=True) or None
    # Either all files of a shard are compressed, or none.
    zips = present & {"zip_data", "zip_meta"}
    if zips and (compression is None or len(zips) != len(needed)):
        raise IndexFileError(
            f"{location}: compression is {compression!r}, but the compressed files in the index "
            f"are {', '.join(sorted(zips))}."
        )
    if compression is not None:
        from mds._shardfile.compression import parse_compression

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
        columns=_parse_columns(raw, name, location),
        compression=compression,
        hashes=tuple(hashes),
        size_limit=_size_limit(raw["size_limit"], location),
        newline=_text(raw, "newline", location) if is_split else None,
        separator=separator,
        stored=stored,
    )


def _parse_columns(raw: Mapping[str, Any], name: str, location: str) -> Columns:
    """Parse the columns of a shard object ``raw`` of format ``name``. Raises IndexFileError.

    The format json has an object {name: encoding}; the others have lists of names and of encodings,
    and mds a list of sizes as well, which must be those of the encodings.
    """
    if name == "json":
        pairs = raw["columns"]
        if not isinstance(pairs, dict):
            raise IndexFileError(f"{location}: expected an object for columns, got {shown(pairs)}.")
        # A JSON object is unordered; columns are sorted by name, as everywhere else.
        names = sorted(pairs)
        encodings = _texts([pairs[column] for column in names], f"{location}, columns")
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


def has_encoded_sizes(columns: Columns) -> bool:
    """Whether columns of MDS shards have the sizes of their encodings, which are all known."""
    try:
        return [*columns.sizes] == [parse_encoding(name).size for name in columns.encodings]
    except EncodingError:
        return False


def _encoded_size(encoding: str, name: str, location: str) -> int | None:
    """Return the bytes of every value of an encoding, or None if they vary.

    ``name`` is the format of the shard. Raises IndexFileError for an unknown encoding.
    """
    if name != MDS:
        if encoding not in SPLIT_ENCODINGS:
            raise IndexFileError(
                f"{location}: {shown(encoding)} is not an encoding of {name}. "
                f"The encodings are {', '.join(SPLIT_ENCODINGS)}."
            )
        return None
    try:
        return parse_encoding(encoding).size
    except EncodingError as error:
        raise IndexFileError(f"{location}: {error}") from error


def _parse_file(raw: object, kind: str, location: str) -> tuple[Stored, int, str, str]:
    """Parse the object of a file to its schema, bytes, name and joined digests (hex).

    ``raw`` is the object {"basename": ..., "bytes": ..., "hashes": {...}}, and ``kind`` its key in
    the shard object, one of `KINDS`. Raises IndexFileError.
    """
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
    """Raise IndexFileError unless an object has exactly these keys."""
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
    """Return the count or size at a key of an object.

    Raises IndexFileError if it is missing, or no integer from 0 to `LARGEST`.
    """
    value = _get(raw, key, location)
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise IndexFileError(f"{location}: {key} cannot be {shown(value)}.")
    return value


def _text(
    raw: Mapping[str, Any], key: str, location: str, *, is_optional: bool = False
) -> str | None:
    """Return the text at a key of an object; an optional one may be None (null in JSON).

    Raises IndexFileError for a value that UTF-8 cannot hold or that is no text.
    """
    value = raw[key]
    if value is None and is_optional:
        return None
    if not isinstance(value, str) or not _is_unicode(value):
        raise IndexFileError(f"{location}: expected a text for {key}, got {shown(value)}.")
    return value


def _texts(value: object, location: str) -> list[str]:
    """Return the value if it is a list of texts. Raises IndexFileError for others."""
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise IndexFileError(f"{location}: expected a list of texts, got {shown(value)}.")
    return value


def _is_unicode(text: str) -> bool:
    # A lone surrogate is legal in JSON and can be neither stored nor compared as UTF-8.
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _size_limit(value: object, location: str) -> int | None:
    """Parse ``size_limit``: bytes, a text such as "64mb", or None. Raises IndexFileError."""
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


# --------------------------------------------------------------------- to JSON


class _Hole:
    """A placeholder in the JSON of a shard, for a value that differs between shards.

    The arguments, ``path``, are the keys that lead to the value: ``"raw_data", "bytes"``.
    """

    def __init__(self, *path: str) -> None:
        self.path = path


class JsonShape:
    """Writer of shard objects of one schema, exactly as the incumbent writes them, 3 us each.

    The text of an object is made once, in pieces. For each shard, `fill` replaces the pieces that
    differ::

        '{', '"hashes": ', '[]', ', ', '"raw_data": ', '{', '"basename": ', PLACE OF A NAME, ...
    """

    def __init__(self, schema: ShardSchema) -> None:
        self._stored = schema.stored
        self._pieces = _flatten(_json_object(schema))
        # Position of each placeholder in the pieces, by its path, which is the piece itself.
        positions = {
            piece: index for index, piece in enumerate(self._pieces) if isinstance(piece, tuple)
        }
        self._samples = positions["samples",]  # a path of one key
        # For each file the positions of its name, its size and its digests, with the number of hex
        # digits of each digest.
        self._files = [
            (
                positions[file.kind, "basename"],
                positions[file.kind, "bytes"],
                [(positions[file.kind, "hashes", name], digits) for name, digits in file.hashes],
            )
            for file in schema.stored
        ]

    def fill(self, samples: int, sizes: Sequence[int], names: Sequence[str], digests: str) -> str:
        """Return the JSON text of one shard.

        ``sizes`` (bytes), ``names`` and ``digests`` (joined hex) are in the order of the schema's
        ``stored`` files, as in `Row`.
        """
        out = self._pieces.copy()
        out[self._samples] = str(samples)
        offset = 0
        for (name, size, hashes), basename, bytes_ in zip(self._files, names, sizes, strict=True):
            out[name] = json.dumps(basename)
            out[size] = str(bytes_)
            for position, digits in hashes:
                out[position] = f'"{digests[offset : offset + digits]}"'
                offset += digits
        return "".join(out)

    def example(self) -> str:
        """Return the text of a shard object without samples.

        `parse_shard` gets the schema of it: this is how a schema is stored as text.
        """
        digits = sum(digits for file in self._stored for _, digits in file.hashes)
        count = len(self._stored)
        return self.fill(0, [0] * count, ["-"] * count, "0" * digits)


def _json_object(schema: ShardSchema) -> dict[str, Any]:
    """Return the shard object of a schema, with placeholders for the values that differ.

    It has the keys that the incumbent writes for the format.
    """
    names, encodings = schema.columns.names, schema.columns.encodings
    raw: dict[str, Any] = {
        "version": schema.version,
        "format": schema.format,
        "compression": schema.compression,
        "hashes": schema.hashes,
        "size_limit": schema.size_limit,
        "samples": _Hole("samples"),
        "zip_data": None,
    }
    if schema.is_split:
        raw |= {"newline": schema.newline, "zip_meta": None}
    if schema.format == "json":
        raw["columns"] = dict(zip(names, encodings, strict=True))
    else:
        raw |= {"column_names": names, "column_encodings": encodings}
    if schema.format == "mds":
        raw["column_sizes"] = schema.columns.sizes
    if schema.format == "xsv":
        raw["separator"] = schema.separator
    for file in schema.stored:
        raw[file.kind] = {
            "basename": _Hole(file.kind, "basename"),
            "bytes": _Hole(file.kind, "bytes"),
            "hashes": {name: _Hole(file.kind, "hashes", name) for name, _ in file.hashes},
        }
    return raw


def _flatten(raw: Any) -> list[Any]:
    """Return the JSON text of ``raw``, with sorted keys, in pieces to be joined.

    A piece is a text, or for a placeholder (`_Hole`) its path: ``{"bytes": _Hole("bytes")}`` gives
    ``["{", '"bytes": ', ("bytes",), "}"]``.
    """
    if isinstance(raw, _Hole):
        return [raw.path]
    if not isinstance(raw, dict):
        return [json.dumps(raw)]
    pieces: list[Any] = ["{"]
    for key, value in sorted(raw.items()):
        if len(pieces) > 1:  # not the first key
            pieces.append(", ")
        pieces += [f"{json.dumps(key)}: ", *_flatten(value)]
    return [*pieces, "}"]
