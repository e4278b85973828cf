"""MDS datasets as an input: to write them with other shards, compression or columns.

Samples of MDS shards are split into the bytes of their columns and joined again. Values are not
decoded, so images, arrays and even pickles keep their bytes; only columns that get another encoding
are decoded. Shards of JSON lines and of delimited text are parsed. A part is a shard; one of a
remote dataset is fetched when it is read.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from mds._index.column_notes import ColumnNote, read_notes
from mds._index.shard_object import FileInfo, ShardInfo
from mds._index.table import Index
from mds._shardfile.compression import parse_compression
from mds._shardfile.hashing import hexdigest, is_hash
from mds._shardfile.layout import (
    INDEX_NAME,
    Columns,
    parse_meta_offsets,
    parse_offsets,
    split_sample,
)
from mds._units import format_bytes
from mds._words import plural
from mds.encodings import parse_encoding
from mds.errors import NotFoundError, SourceError
from mds.formats._columns import Column, show_value
from mds.formats._detect import format_of_url
from mds.storage import open_store
from mds.storage._local import revised_version
from mds.storage._url import is_local, join, redact
from mds.writers.convert._inputs.base import Input, InputOptions, InputPart, Record


class MdsInput(Input):
    """The samples of an MDS dataset, in order.

    - ``url`` (str): The folder or URL of the dataset.
    - ``re_encode`` (frozenset[str]): Columns that are decoded, because they get another encoding.
    - ``is_verified`` (bool, default False): Whether shards must have the digests in the index.

    The address of a part is the index entry of its shard.
    """

    title: ClassVar[str] = "MDS dataset"
    is_encoded: ClassVar[bool] = True

    def __init__(
        self, url: str, *, re_encode: frozenset[str] = frozenset(), is_verified: bool = False
    ) -> None:
        super().__init__(url)
        self._re_encode, self._is_verified = re_encode, is_verified
        try:
            store = open_store(url)
            with store.stream(INDEX_NAME) as body:
                data, info = b"".join(body), body.info
        except NotFoundError as error:
            raise SourceError(
                f"{redact(url)}: this is not an MDS dataset: there is no {INDEX_NAME}."
            ) from error
        self._index: Index | None = Index.parse(data, join(redact(url), INDEX_NAME))
        if not self._index.total_samples:
            raise SourceError(
                f"{redact(url)}: the dataset has no samples; there is nothing to write."
            )
        self._columns = self._one_schema(self._index)
        self.size = int((self._index.raw_size + self._index.raw_meta_size).sum())
        self._summary = (
            f"{plural(self._index.total_samples, 'sample')} in "
            f"{plural(len(self._index), 'shard')}, "
            f"{format_bytes(self.size)}"
        )
        self._digest = self._index.fingerprint()
        self._notes = read_notes(store, self._digest)
        stored = [file for schema in self._index.schemas for file in schema.stored]
        if not all(file.hashes for file in stored):
            # Other shards may have an index with the same bytes.
            version = revised_version(info, store.local_path)
            self._digest = f"{self._digest} {store.endpoint} {version}"

    @classmethod
    def open(cls, path: str, options: InputOptions) -> Input:
        """Open the dataset at a folder or URL; columns that get another encoding are decoded."""
        return cls(path, re_encode=frozenset(options.encodings), is_verified=True)

    @classmethod
    def recognizes(cls, path: str) -> bool:
        """Return True for a folder that holds an index, and for a URL that names no other files."""
        if not is_local(path):
            return format_of_url(path) is None
        return os.path.isdir(path) and os.path.isfile(os.path.join(path, INDEX_NAME))

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns of the dataset."""
        first = next(self.probe(), {})
        columns = []
        for name, encoding in self._columns.items():
            kind = parse_encoding(encoding)
            example = ""
            if name in first and not kind.is_unsafe:
                # `read` has decoded the columns of `_re_encode` already.
                value = first[name]
                example = show_value(value if name in self._re_encode else kind.decode(value))
            stored_note = self._notes.get(name, ColumnNote())
            columns.append(
                Column(
                    name,
                    encoding,
                    example,
                    note="pickles, copied without loading them" if kind.is_unsafe else "",
                    class_names=stored_note.class_names,
                    description=stored_note.description,
                )
            )
        return columns

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Yield one part per shard, whatever the ``size`` asked for: no shard is divided."""
        del size
        assert self._index is not None, "an input is cut into parts where it was opened"
        for number, shard in enumerate(self._index):
            # Shards of JSON lines and of delimited text have a meta file too.
            length = shard.raw.size + (shard.raw_meta.size if shard.raw_meta else 0)
            yield InputPart(number, length, shard)

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield samples as the bytes of their columns."""
        shard: ShardInfo = part.address
        files = [
            _load(self.root, raw, zipped, shard, is_verified=self._is_verified)
            for raw, zipped in shard.files
        ]
        path = join(redact(self.root), shard.raw.basename)
        # `is_split` means that a shard has two files: text shards have their offsets in a meta
        # file, which is the second one.
        if not shard.schema.is_split:
            offsets = parse_offsets(files[0], shard.samples, len(files[0]), path)
        else:
            offsets = parse_meta_offsets(files[1], shard.samples, len(files[0]), path)
        view = memoryview(files[0])
        columns = shard.schema.columns
        split_columns = (
            _line_encoder(shard)
            if shard.schema.is_split
            else column_splitter(columns, self._re_encode)
        )
        for number in range(shard.samples):
            yield number, split_columns(view[int(offsets[number]) : int(offsets[number + 1])])

    def locate(self, part: InputPart, position: Any) -> str:
        """Return the shard and the number of the sample in it, from 0."""
        return f"{join(redact(self.root), part.address.raw.basename)}, sample {position}"

    def describe(self) -> str:
        """Summarise number of samples, shards and bytes."""
        return self._summary

    def fingerprint(self) -> str:
        """Return the digest of the index, with its version if shards have no digests."""
        return self._digest

    def _one_schema(self, index: Index) -> dict[str, str]:
        """Return the columns of all shards. Raises SourceError if they differ."""
        stored = [
            dict(zip(each.columns.names, map(_mds_encoding, each.columns.encodings), strict=True))
            for each in index.schemas
        ]
        for other in stored[1:]:
            if other != stored[0]:
                # The first column that is in one of the two only, or has another encoding.
                name = min({*other.items()} ^ {*stored[0].items()})[0]
                kinds = [stored[0].get(name, "missing"), other.get(name, "missing")]
                raise SourceError(
                    f"{redact(self.root)}: shards differ in column {name!r} ({' and '.join(kinds)})"
                    ", but a dataset must have one set of columns. Convert its samples instead: "
                    f"mds.convert(mds.StreamingDataset({redact(self.root)!r}), out, "
                    f"{_way_out(name, kinds)})."
                )
        return stored[0]

    def __getstate__(self) -> dict[str, Any]:
        # Processes that read parts need no index: each part has the entry of its shard.
        return {**self.__dict__, "_index": None}


def _way_out(name: str, kinds: Sequence[str]) -> str:
    """Return the argument that gives a column one encoding, or leaves it out.

    ``kinds`` has the encodings of the column, or "missing".
    """
    encodings = [parse_encoding(kind) for kind in kinds if kind != "missing"]
    dtypes = [each.dtype for each in encodings if each.dtype is not None and each.shape == ()]
    if len(dtypes) < len(kinds):
        return f"drop=[{name!r}]"
    return f"encodings={{{name!r}: {np.result_type(*dtypes).name!r}}}"


def column_splitter(
    columns: Columns, decoded_columns: frozenset[str]
) -> Callable[[memoryview], dict[str, Any]]:
    """Return a function from the bytes of a sample to those of each column.

    Columns in ``decoded_columns`` come as values instead, to get another encoding.
    """
    decoders = {
        name: parse_encoding(encoding).decode
        for name, encoding in zip(columns.names, columns.encodings, strict=True)
        if name in decoded_columns
    }
    variable = columns.sizes.count(None)

    def split(data: memoryview) -> dict[str, Any]:
        """Return the columns of a sample, given its bytes."""
        values = split_sample(data, columns.sizes, variable)
        return {
            name: decoders[name](value) if name in decoders else bytes(value)
            for name, value in zip(columns.names, values, strict=True)
        }

    return split


def _mds_encoding(encoding: str) -> str:
    """Return the encoding in which a column is written: the ``float`` of text shards as float64."""
    return "float64" if encoding == "float" else encoding


def _line_encoder(shard: ShardInfo) -> Callable[[memoryview], dict[str, Any]]:
    """Return a function from a line of a text shard to the encoded bytes of each column.

    A line is a JSON object, or values with a separator between them (CSV, TSV).
    """
    schema = shard.schema
    newline = (schema.newline or "\n").encode()
    encoders = {
        name: parse_encoding(_mds_encoding(encoding))
        for name, encoding in zip(schema.columns.names, schema.columns.encodings, strict=True)
    }
    # Text shards have these three encodings only. Values of CSV are text, and numbers of JSON may
    # be int where a float is due: each is converted to the type that the encoder takes.
    python_types = {"str": str, "int": int, "float": float}

    def encode_line(data: memoryview) -> dict[str, Any]:
        """Return the encoded value of each column, given a line with its newline."""
        line = bytes(data).removesuffix(newline)
        if schema.format == "json":
            record = json.loads(line)
            values = [record[name] for name in schema.columns.names]
        else:
            values = line.decode().split(schema.separator)
        return {
            name: encoders[name].encode(python_types[encoding](value))
            for name, encoding, value in zip(
                schema.columns.names, schema.columns.encodings, values, strict=True
            )
        }

    return encode_line


def _load(
    url: str, raw: FileInfo, zipped: FileInfo | None, shard: ShardInfo, *, is_verified: bool
) -> bytes:
    """Return the decompressed bytes of a file of a shard.

    - ``url`` (str): The dataset.
    - ``raw`` (FileInfo), ``zipped`` (FileInfo | None): The index entries of the file without and
      with compression.
    - ``is_verified`` (bool): Whether the digest is compared with the index.

    Raises SourceError for a size or digest other than in the index.
    """
    store = open_store(url)
    stored = zipped or raw
    codec = parse_compression(shard.schema.compression) if zipped else None
    folder = store.local_path
    # A cache folder holds decompressed shards beside compressed ones, or instead of them.
    if zipped and folder and os.path.isfile(raw.basename.under(folder)):
        stored, codec = raw, None
    if folder is not None:
        data = store.get(stored.basename)
    else:
        # Unlike `get`, `get_file` downloads a large file over several connections.
        with tempfile.TemporaryDirectory() as temporary:
            path = os.path.join(temporary, "shard")
            store.get_file(stored.basename, path, stored.size)
            with open(path, "rb") as file:
                data = file.read()
    location = join(redact(url), stored.basename)
    if len(data) != stored.size:
        raise SourceError(
            f"{location}: the index says {plural(stored.size, 'byte')}, found {len(data):,}."
        )
    name = next(filter(is_hash, stored.hashes), None) if is_verified else None
    if name is not None and (value := hexdigest(name, data)) != stored.hashes[name]:
        raise SourceError(
            f"{location}: the index says {name} {stored.hashes[name]}, "
            f"found {value}. Copy the file again. List all damaged files with mds verify "
            f"{redact(url)}."
        )
    return codec.decompress(data, raw.size) if codec else data
