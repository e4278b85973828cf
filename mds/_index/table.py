"""The table of shards in index.json: numpy columns, packed names and digests, few schemas.

`Index` is the table, `read_index` reads it from a file. An index.json may instead list files in
another format, which are read in place. It has no shards, so readers of MDS alone find none:

    {"files": {"format": "parquet", "remote": "s3://bucket/c4", "settings": {...}}, "shards": [],
     "version": 2}

The table of these files is beside it (`index.files.bin`). Parsing raises `FilesIndexError`, which
carries the facts.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mds._index import binary_copy
from mds._index.parse import COLUMN_DTYPES, FEW, Builder, parse_index
from mds._index.shard_object import FileInfo, JsonShape, ShardInfo, ShardSchema, refuse_unsafe
from mds._words import plural
from mds.encodings import parse_encoding
from mds.errors import IndexFileError, NotFoundError, StoreError, UnknownEncodingError
from mds.storage._files import open_regular
from mds.storage._relative_name import RelativeName

Int64s = npt.NDArray[np.int64]
#: A smaller index.json is parsed as quickly as a binary copy of its table is opened.
MIN_COPIED_BYTES = 256 << 10


class Index:
    """All shards of a dataset, as read-only columns with one entry a shard.

    - ``samples``: number of samples of the shard, int64.
    - ``raw_size``, ``zip_size``, ``raw_meta_size``, ``zip_meta_size``: bytes of each file, int64; 0
      for a file that a shard does not have.
    - ``schema_of``: which of ``schemas`` the shard has, int32. A schema is what the shards of one
      writer have in common: columns, compression, kinds of files (`ShardSchema`).
    - ``offsets``: number of samples before each shard, and of all samples, int64 of shape
      (shards + 1,).
    - ``names``, ``name_ends``: names of all files, joined by NUL within a shard, and the byte at
      which the names of each shard end.
    - ``digests``: digests of all files as bytes, shard after shard without separators.

    The constructor takes these columns by name, the ``schemas``, and the ``fingerprint``
    (`fingerprint_of` the index.json).
    """

    samples: Int64s
    raw_size: Int64s
    raw_meta_size: Int64s
    zip_size: Int64s
    zip_meta_size: Int64s
    schema_of: npt.NDArray[np.int32]
    name_ends: Int64s
    names: npt.NDArray[np.uint8]
    digests: npt.NDArray[np.uint8]
    schemas: list[ShardSchema]

    COLUMNS = tuple(COLUMN_DTYPES)

    def __init__(
        self, columns: dict[str, npt.NDArray[Any]], schemas: Sequence[ShardSchema], fingerprint: str
    ) -> None:
        for name in self.COLUMNS:
            columns[name].flags.writeable = False
        vars(self).update(columns)
        self.schemas = list(schemas)
        self._fingerprint = fingerprint
        self.offsets: Int64s = np.zeros(len(self.samples) + 1, np.int64)
        self.samples.cumsum(out=self.offsets[1:])
        self.offsets.flags.writeable = False
        # Bytes of the digests of a shard of each schema. With one schema, those of shard n begin at
        # n times this width. With several, the end of each shard's digests is kept.
        widths = [*map(_digest_bytes, self.schemas)] or [0]
        self._digest_width = widths[0] if len(widths) == 1 else None
        self._digest_ends = (
            np.cumsum(np.array(widths)[self.schema_of]) if self._digest_width is None else None
        )

    @classmethod
    def parse(cls, data: bytes, location: str = "index.json") -> Index:
        """Parse the bytes of an index.json; ``location`` names it in errors.

        Raises IndexFileError (a ValueError) for bytes that are not a plausible index, and
        FilesIndexError for an index of files in another format.
        """
        fingerprint = fingerprint_of(data)
        refuse_files_index(data, fingerprint, location)
        return cls._of(parse_index(data, location), fingerprint, location)

    @classmethod
    def build(cls, shards: Iterable[object], location: str = "index.json") -> Index:
        """Make a table of parsed shard objects, such as the elements of "shards" in index.json.

        ``location`` names them in errors. Raises IndexFileError for an invalid object.
        """
        builder = Builder()
        for raw in shards:
            builder.add(raw, location)
        # The fingerprint is the digest of the index.json, whose text only a table can make: so make
        # one without a fingerprint first.
        text = cls._of(builder, "", location).to_json()
        return cls._of(builder, fingerprint_of(text), location)

    @classmethod
    def _of(cls, builder: Builder, fingerprint: str, location: str) -> Index:
        """Make the table of the columns that a builder has collected.

        ``fingerprint`` is that of the index, ``location`` names it in errors. Raises IndexFileError
        if two files have one name.
        """
        # A view keeps three objects alive, a copy of a few numbers only itself.
        column = np.array if len(builder.samples) <= FEW else np.frombuffer
        sizes = {kind: column(values, np.int64) for kind, values in builder.sizes.items()}
        columns: dict[str, npt.NDArray[Any]] = {
            "samples": column(builder.samples, np.int64),
            "raw_size": sizes["raw_data"],
            "raw_meta_size": sizes["raw_meta"],
            "zip_size": sizes["zip_data"],
            "zip_meta_size": sizes["zip_meta"],
            "schema_of": column(builder.schema_of, np.int32),
            "name_ends": np.frombuffer(builder.name_sizes, np.uint32).cumsum(dtype=np.int64),
            "names": column(builder.names, np.uint8),
            "digests": column(builder.digests, np.uint8),
        }
        index = cls(columns, list(builder.schemas), fingerprint)
        builder.names_seen.check(map(index._names, range(len(index))), location)
        return index

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        count = len(self.schemas)
        return (
            f"<Index: {plural(len(self), 'shard')}, {plural(self.total_samples, 'sample')}, "
            f"{count} schema{'' if count == 1 else 's'}>"
        )

    @property
    def total_samples(self) -> int:
        """The number of samples of all shards."""
        return int(self.offsets[-1])

    def fingerprint(self) -> str:
        """Return the xxh3_128 hex digest of the text of the index."""
        return self._fingerprint

    def largest(self) -> int:
        """Return the bytes, raw and compressed together, of the largest shard."""
        shard_bytes = self.raw_size + self.raw_meta_size + self.zip_size + self.zip_meta_size
        return int(shard_bytes.max(initial=0))

    def raw_contents(self) -> tuple[Int64s, Int64s, npt.NDArray[np.bool_]]:
        """Return three arrays that tell the raw data of the shards apart, with one entry a shard.

        - int64: first 8 bytes of the digests of the raw data file; 0 without digests.
        - int64: digest of the settings that are part of an MDS file, such as its compression. The
          first array can be compared only between shards with equal settings.
        - bool: whether the shard has digests.
        """
        import xxhash

        widths = np.array([_digest_bytes(schema) for schema in self.schemas] or [0], np.int64)
        ends = np.cumsum(widths[self.schema_of])
        contents = np.zeros((len(self), 8), np.uint8)
        settings = np.zeros(len(self.schemas) or 1, np.int64)
        has_digests = np.zeros(len(self.schemas) or 1, np.bool_)
        for number, schema in enumerate(self.schemas):
            hashes = next(file.hashes for file in schema.stored if file.kind == "raw_data")
            facts: tuple[Any, ...] = schema.format, hashes
            if not schema.is_split:
                facts += schema.compression, schema.hashes, schema.size_limit
            settings[number] = xxhash.xxh3_64_intdigest(repr(facts).encode()) >> 1
            # "raw_data" is the first kind of file, so its digests are the first of a shard.
            size = min(sum(digits for _, digits in hashes) // 2, 8)
            has_digests[number] = size > 0
            rows = np.flatnonzero(self.schema_of == number)
            starts = ends[rows] - widths[number]
            for byte in range(size):
                contents[rows, byte] = self.digests[starts + byte]
        return (
            contents.view("<i8").reshape(-1).astype(np.int64),
            settings[self.schema_of],
            has_digests[self.schema_of],
        )

    def check_safe(self, allow_unsafe_types: bool, location: str = "index.json") -> None:
        """Raise UnsafeTypeError (a ValueError) if a column holds pickles that are not allowed."""
        refuse_unsafe(self.schemas, allow_unsafe_types, location)

    def shard(self, number: int) -> ShardInfo:
        """Return one shard as an object. Raises IndexError if there is no such shard."""
        if not 0 <= number < len(self):
            raise IndexError(f"shard {number} of {len(self):,}")
        schema = self.schemas[self.schema_of[number]]
        names = self._names(number)
        digests = self._digests(number)  # the hex digits of all files, cut off one by one below
        files = {}
        for file, name in zip(schema.stored, names, strict=True):
            hashes = {}
            for algorithm, digits in file.hashes:
                hashes[algorithm], digests = digests[:digits], digests[digits:]
            files[file.kind] = FileInfo(
                RelativeName(name), int(self._size(file.kind)[number]), hashes
            )
        return ShardInfo(
            schema,
            int(self.samples[number]),
            files["raw_data"],
            files.get("zip_data"),
            files.get("raw_meta"),
            files.get("zip_meta"),
            number,
        )

    def file_names(self) -> Iterator[Iterator[tuple[str, str]]]:
        """Yield for each shard an iterator of (kind, name) of its files.

        A kind is one of `KINDS`, such as "raw_data". This is faster than `shard`, which makes an
        object for each shard and file.
        """
        kinds = [[file.kind for file in schema.stored] for schema in self.schemas]
        for number, schema_number in enumerate(self.schema_of.tolist()):
            yield zip(kinds[schema_number], self._names(number), strict=True)

    def __iter__(self) -> Iterator[ShardInfo]:
        return map(self.shard, range(len(self)))

    def to_json(self) -> bytes:
        """Return the bytes of index.json: default separators, keys sorted, ASCII."""
        shapes = [JsonShape(schema) for schema in self.schemas]
        shards = [
            self._shard_json(number, self.schemas[schema_number], shapes[schema_number])
            for number, schema_number in enumerate(self.schema_of.tolist())
        ]
        return f'{{"shards": [{", ".join(shards)}], "version": 2}}'.encode("ascii")

    def shard_json(self, number: int) -> str:
        """Return the JSON object of one shard in index.json."""
        schema = self.schemas[self.schema_of[number]]
        return self._shard_json(number, schema, JsonShape(schema))

    def _shard_json(self, number: int, schema: ShardSchema, shape: JsonShape) -> str:
        """Return the JSON text of shard ``number``, whose schema ``shape`` was made of."""
        sizes = [int(self._size(file.kind)[number]) for file in schema.stored]
        names, digests = self._names(number), self._digests(number)
        return shape.fill(int(self.samples[number]), sizes, names, digests)

    def _size(self, kind: str) -> Int64s:
        """Return the column of sizes of a kind of file: that of "raw_data" is ``raw_size``."""
        return getattr(self, kind.replace("_data", "") + "_size")  # type: ignore[no-any-return]

    def _names(self, number: int) -> list[str]:
        """Return the names of the files of shard ``number``."""
        start = int(self.name_ends[number - 1]) if number else 0
        packed = self.names[start : int(self.name_ends[number])].tobytes()
        return packed.decode().split("\0")

    def _digests(self, number: int) -> str:
        """Return the digests of all files of a shard, in hex, without separators."""
        if self._digest_ends is None:
            width = self._digest_width or 0  # never None here
            return self.digests[number * width : (number + 1) * width].tobytes().hex()
        start = int(self._digest_ends[number - 1]) if number else 0
        return self.digests[start : int(self._digest_ends[number])].tobytes().hex()


def column_encodings(indexes: Sequence[Index]) -> dict[str, str]:
    """Return the encoding of each column; if shards differ, that of the first one."""
    encodings_by_name: dict[str, str] = {}
    for index in indexes:
        for schema in index.schemas:
            for name, encoding in zip(schema.columns.names, schema.columns.encodings, strict=True):
                encodings_by_name.setdefault(name, encoding)
    return encodings_by_name


def describe_dtypes(schemas: Iterable[ShardSchema]) -> Iterator[tuple[str, str]]:
    """Yield each column whose numbers differ in dtype between shards, and a description of it.

    Batches of such a column differ in dtype, too. Encodings of any dtype, and of values that are no
    numbers, are not compared.
    """
    encodings: dict[str, dict[str, None]] = {}  # the inner dicts are ordered sets
    for columns in {schema.columns: None for schema in schemas}:
        for name, encoding in zip(columns.names, columns.encodings, strict=True):
            encodings.setdefault(name, {})[encoding] = None
    for name, names in encodings.items():
        if len(names) < 2:
            continue
        by_dtype: dict[np.dtype[Any], str] = {}
        for encoding in names:
            with contextlib.suppress(UnknownEncodingError):  # opening a shard reports it
                parsed = parse_encoding(encoding)
                dtype = parsed.dtype or parsed.element_dtype
                if dtype is not None:
                    by_dtype.setdefault(dtype, encoding)
        if len(by_dtype) > 1:
            first, *others = by_dtype.values()
            text = f"column {name!r} has the encoding {first!r} in some shards and "
            text += f"{', '.join(map(repr, others))} in others, so the dtype of its batches changes"
            yield name, text


def fingerprint_of(data: bytes | memoryview) -> str:
    """Return the digest that identifies an index: xxh3_128 of its bytes, in hex."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(data)


def _digest_bytes(schema: ShardSchema) -> int:
    """Return the bytes of all digests of a shard; two hex digits are a byte."""
    return sum(digits for file in schema.stored for _, digits in file.hashes) // 2


# --------------------------------------------------------------------- reading a file


def read_index(
    path: str, table_copy: str | None = None, *, min_copied_bytes: int = MIN_COPIED_BYTES
) -> Index:
    """Read the index.json at ``path``.

    ``table_copy`` is the path of a binary copy of the table (`binary_copy.py`), which is read
    faster than JSON. It is used if it was made from an index of the same size and digest; otherwise
    the index is parsed and the copy written. None is no copy, and an index of less than
    ``min_copied_bytes`` is parsed without one. Raises NotFoundError if there is no index, and
    IndexFileError if it is damaged.
    """
    if table_copy is None:
        return Index.parse(_read(path), path)
    with contextlib.suppress(OSError):  # `_read` explains why there is no index
        if os.stat(path).st_size < min_copied_bytes:
            return Index.parse(_read(path), path)
    size, digest = _digest(path)
    index = load_copy(table_copy, size, digest)
    if index is None:
        index = Index.parse(_read(path), path)
        columns = {name: getattr(index, name) for name in Index.COLUMNS}
        # A copy that cannot be written is no error: the next start only has to parse again.
        with contextlib.suppress(OSError, StoreError):
            binary_copy.save(columns, index.schemas, index.fingerprint(), table_copy, size)
    return index


def load_copy(path: str, size: int, digest: str) -> Index | None:
    """Return the index of a binary copy, or None if the copy cannot be used.

    ``path`` is that of the copy. ``size`` (bytes) and ``digest`` (`fingerprint_of`) are those of
    index.json now, with which the copy must agree.
    """
    table = binary_copy.load(path, size, digest)
    return Index(*table, digest) if table is not None else None


def _read(path: str) -> bytes:
    """Read an index.json. Raises NotFoundError with an explanation if there is none."""
    try:
        with open_regular(path) as file:
            return file.read()
    except FileNotFoundError as error:
        raise _missing(path) from error


def _digest(path: str) -> tuple[int, str]:
    """Return the size and the xxh3_128 of an index.json, reading it in pieces."""
    import xxhash

    hasher, size = xxhash.xxh3_128(), 0
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)
    try:
        with open_regular(path) as file:
            while count := file.readinto(buffer):
                hasher.update(view[:count])
                size += count
    except FileNotFoundError as error:
        raise _missing(path) from error
    return size, hasher.hexdigest()


def _missing(path: str) -> NotFoundError:
    """Return the error for an index.json that does not exist."""
    folder = os.path.dirname(path) or "."
    reason = "has no index.json" if os.path.isdir(folder) else "does not exist"
    text = f"read {path}: the folder {folder} {reason}.{explain_missing_index(folder)}"
    return NotFoundError(text, url=path, verb="read")


def explain_missing_index(folder: str) -> str:
    """Return a sentence that explains why a folder has no index, or '' if that is unknown."""
    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    if ".mds-convert" in names:
        return " A conversion there was not finished. Continue with mds-convert --resume."
    if any(name.startswith("shard.") for name in names):
        return (
            " It has shards, but their writer never finished, or the index was lost. If no shard "
            f"is missing, write the index again: mds index {shlex.quote(folder)}"
        )
    return ""


# --------------------------------------------------------------------- an index of other files


#: Name and kind of the sidecar with the table of files.
TABLE_NAME, TABLE_KIND = "index.files.bin", "files"
_FILES_START = b'{"files": '
MAX_FILES_INDEX_BYTES = 1 << 16


class FilesIndexError(IndexFileError):
    """The index.json lists files in another format, and has no shards.

    Callers that can read such files catch it and use its attributes; ``facts`` has three of them.

    - ``format``, ``settings``: name and settings of the format.
    - ``remote``: root of the files; "." for the folder of the index.
    - ``fingerprint``: digest of the index.
    """

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
    """Return the bytes of an index.json that lists files in another format.

    - ``format_name``, ``settings``: name of the format, and its settings as values of JSON.
    - ``remote`` (str): URL of the files; "." for the folder of the index.
    - ``digest`` (str): Digest of the table of the files.
    """
    facts = {"format": format_name, "remote": remote, "settings": settings, "table": digest}
    text = json.dumps({"files": facts, "shards": [], "version": 2}, sort_keys=True)
    assert text.encode().startswith(_FILES_START)  # by which readers recognise it
    return text.encode()


def refuse_files_index(data: bytes, fingerprint: str, location: str) -> None:
    """Raise FilesIndexError if ``data`` is an index of files in another format.

    Returns for an index of shards, and raises IndexFileError for a broken index of files. ``data``
    are the bytes of an index.json, ``fingerprint`` is `fingerprint_of` them, and ``location`` names
    them in errors.
    """
    # `files_index_bytes` always begins with the same bytes, so an index of shards is not parsed.
    if not data.startswith(_FILES_START) or len(data) > MAX_FILES_INDEX_BYTES:
        return
    try:
        facts = json.loads(data)["files"]
        texts = [facts["format"], facts["remote"], facts["table"]]
        is_valid = isinstance(facts["settings"], dict) and all(isinstance(t, str) for t in texts)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise IndexFileError(f"{location}: this is not an index of files: {error}") from error
    if not is_valid:
        raise IndexFileError(
            f"{location}: this is not an index of files: a value has the wrong type."
        )
    raise FilesIndexError(
        f"{location}: it lists {facts['format']} files, which StreamingDataset reads in place. "
        "Convert them if you need shards.",
        facts,
        fingerprint,
    )
