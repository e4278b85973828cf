"""The table of shards: numpy columns, packed names and digests, one schema for many shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mds.index.files_index import refuse_files_index
from mds.index.parse import Builder, parse_index
from mds.index.schema import FileInfo, ShardInfo, ShardSchema, refuse_unsafe
from mds.storage.relative_name import RelativeName

Int64s = npt.NDArray[np.int64]


class Index:
    """All shards of a dataset as read-only columns, one entry a shard.

    ``samples``, ``raw_size``, ``zip_size``, ``raw_meta_size`` and ``zip_meta_size`` (bytes; 0 for
    a file that does not exist) are int64 of shape (shards,), ``schema_of`` (int32) points into
    ``schemas``, and ``offsets`` (shards + 1,) is the number of samples before each shard.
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

    # Everything that the sidecar holds besides the schemas.
    COLUMNS = (
        *("samples", "raw_size", "raw_meta_size", "zip_size", "zip_meta_size"),
        *("schema_of", "name_ends", "names", "digests"),
    )

    def __init__(
        self, columns: dict[str, npt.NDArray[Any]], schemas: Sequence[ShardSchema], fingerprint: str
    ) -> None:
        for name in self.COLUMNS:
            column = columns[name]
            column.flags.writeable = False
            setattr(self, name, column)
        self.schemas = list(schemas)
        self._fingerprint = fingerprint
        self.offsets: Int64s = np.zeros(len(self.samples) + 1, np.int64)
        np.cumsum(self.samples, out=self.offsets[1:])
        self.offsets.flags.writeable = False
        # Digests of a shard stand at a place that follows from the schemas before it.
        widths = np.array([_digest_bytes(schema) for schema in self.schemas] or [0], np.int64)
        self._digest_width = int(widths[0]) if len(widths) == 1 else None
        self._digest_ends = (
            np.cumsum(widths[self.schema_of]) if self._digest_width is None else None
        )

    @classmethod
    def parse(cls, data: bytes, location: str = "index.json") -> Index:
        """Parse the bytes of an index.json; ``location`` is named in errors.

        Raises IndexFileError (a ValueError) for anything that is not a plausible index.
        """
        fingerprint = fingerprint_of(data)
        refuse_files_index(data, fingerprint, location)
        return cls._of(parse_index(data, location), fingerprint, location)

    @classmethod
    def build(cls, shards: Iterable[object], location: str = "index.json") -> Index:
        """Make a table of shard objects as in the JSON, checked like those of a file."""
        builder = Builder()
        for raw in shards:
            builder.add(raw, location)
        text = cls._of(builder, "", location).to_json()
        return cls._of(builder, fingerprint_of(text), location)

    @classmethod
    def _of(cls, builder: Builder, fingerprint: str, location: str) -> Index:
        sizes = {kind: np.frombuffer(column, np.int64) for kind, column in builder.sizes.items()}
        columns: dict[str, npt.NDArray[Any]] = {
            "samples": np.frombuffer(builder.samples, np.int64),
            "raw_size": sizes["raw_data"],
            "raw_meta_size": sizes["raw_meta"],
            "zip_size": sizes["zip_data"],
            "zip_meta_size": sizes["zip_meta"],
            "schema_of": np.frombuffer(builder.schema_of, np.int32),
            "name_ends": np.cumsum(np.frombuffer(builder.name_sizes, np.uint32), dtype=np.int64),
            "names": np.frombuffer(builder.names, np.uint8),
            "digests": np.frombuffer(builder.digests, np.uint8),
        }
        index = cls(columns, list(builder.schemas), fingerprint)
        builder.names_seen.check(map(index._names, range(len(index))), location)
        return index

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        count = len(self.schemas)
        return (
            f"<Index: {len(self):,} shards, {self.total_samples:,} samples, "
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

    def check_safe(self, allow_unsafe_types: bool, location: str = "index.json") -> None:
        """Raise UnsafeTypeError (a ValueError) if a column holds pickles that are not allowed."""
        refuse_unsafe(self.schemas, allow_unsafe_types, location)

    def shard(self, number: int) -> ShardInfo:
        """One shard as an object, made on demand; IndexError when there is no such shard."""
        if not 0 <= number < len(self):
            raise IndexError(f"shard {number} of {len(self):,}")
        schema = self.schemas[self.schema_of[number]]
        names = self._names(number)
        digests = self._digests(number)
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
        """Yield for each shard the kinds and names of its files, without making a ShardInfo."""
        kinds = [[file.kind for file in schema.stored] for schema in self.schemas]
        for number, schema_number in enumerate(self.schema_of.tolist()):
            yield zip(kinds[schema_number], self._names(number), strict=True)

    def __iter__(self) -> Iterator[ShardInfo]:
        return map(self.shard, range(len(self)))

    def to_json(self) -> bytes:
        """Return the bytes of index.json: default separators, keys sorted, ASCII."""
        from mds.index.emit import JsonShape

        shapes = [JsonShape(schema) for schema in self.schemas]
        shards = []
        for number, schema_number in enumerate(self.schema_of.tolist()):
            stored = self.schemas[schema_number].stored
            sizes = [int(self._size(file.kind)[number]) for file in stored]
            names, digests = self._names(number), self._digests(number)
            shards.append(
                shapes[schema_number].fill(int(self.samples[number]), sizes, names, digests)
            )
        return f'{{"shards": [{", ".join(shards)}], "version": 2}}'.encode("ascii")

    def _size(self, kind: str) -> Int64s:
        return getattr(self, kind.replace("_data", "") + "_size")  # type: ignore[no-any-return]

    def _names(self, number: int) -> list[str]:
        start = int(self.name_ends[number - 1]) if number else 0
        packed = self.names[start : int(self.name_ends[number])].tobytes()
        return packed.decode().split("\0")

    def _digests(self, number: int) -> str:
        if self._digest_ends is None:
            width = self._digest_width or 0
            return self.digests[number * width : (number + 1) * width].tobytes().hex()
        start = int(self._digest_ends[number - 1]) if number else 0
        return self.digests[start : int(self._digest_ends[number])].tobytes().hex()


def fingerprint_of(data: bytes | memoryview) -> str:
    """Return the digest that identifies an index."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(data)


def _digest_bytes(schema: ShardSchema) -> int:
    return sum(digits for file in schema.stored for _, digits in file.hashes) // 2
