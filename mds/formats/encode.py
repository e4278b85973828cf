"""Samples as the bytes of an MDS shard: of columns that are encoded, or of records one by one.

A sample is the size of every column without a fixed one, then the values (`format/layout.py`).
Fixed columns that are neighbours are one array here, so a row costs one slice for each of those and
one for each other column, some 0.1 us, and a copy.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mds.encodings import parse_encoding
from mds.errors import EncodingError, FormatError, ShardError
from mds.formats.facts import Block
from mds.shardfile.layout import VERSION, Columns, config_bytes, header_size

Bytes = npt.NDArray[np.uint8]
#: Values of one column: (rows, size) bytes where the size is fixed, else one piece a row.
ColumnBytes = Bytes | list[bytes] | list[memoryview]

#: Samples that `encode_records` makes a block of, unless they are large.
_ROWS, _BYTES = 1024, 8 << 20
#: The most bytes that a shard may take when it is decoded.
LARGEST_DECODED = 1 << 30


def join_columns(rows: int, values: Sequence[ColumnBytes]) -> Block:
    """Join the bytes of columns, in their order, to a block of ``rows`` samples."""
    variable = [each for each in values if not isinstance(each, np.ndarray)]
    sizes = np.zeros((rows, len(variable)), "<u4")
    for column, pieces in enumerate(variable):
        sizes[:, column] = np.fromiter(map(len, pieces), np.int64, rows)
    head: Bytes = sizes.view(np.uint8).reshape(rows, 4 * len(variable))
    lengths = sizes.sum(axis=1, dtype=np.int64) + 4 * len(variable)
    parts: list[list[Any]] = []
    fixed = [head]
    for each in values:
        if isinstance(each, np.ndarray):
            fixed.append(each)
            lengths += each.shape[1]
        else:
            parts += _cut(fixed)
            parts.append(list(each))
            fixed = []
    if not parts:
        return Block(lengths, np.concatenate(fixed, axis=1).tobytes())
    parts += _cut(fixed)
    return Block(lengths, b"".join(itertools.chain.from_iterable(zip(*parts, strict=True))))


def _cut(fixed: Sequence[Bytes]) -> list[list[bytes]]:
    """Join neighbouring fixed columns, one piece a row; return [] if they have no bytes."""
    width = sum(each.shape[1] for each in fixed)
    if not width:
        return []
    data = np.concatenate(fixed, axis=1).tobytes()
    return [[data[offset : offset + width] for offset in range(0, len(data), width)]]


def encode_records(
    columns: Columns, records: Iterable[Mapping[str, Any]], location: str
) -> Iterator[Block]:
    """Blocks of samples that are dicts; ``location`` names the shard in errors.

    Raises FormatError for a value that its column does not take, and for one that is not there.
    """
    encode = sample_encoder(columns)
    samples: list[bytes] = []
    waiting = 0
    for row, record in enumerate(records):
        sample = encode(record, lambda row=row: f"{location}, sample {row}")  # type: ignore[misc]
        samples.append(sample)
        waiting += len(sample)
        if len(samples) == _ROWS or waiting >= _BYTES:
            yield block_of(samples)
            samples, waiting = [], 0
    if samples:
        yield block_of(samples)


def sample_encoder(columns: Columns) -> Callable[[Mapping[str, Any], Callable[[], str]], bytes]:
    """Return a function from a record, and one that describes it, to its stored bytes.

    It raises FormatError as `encode_records` does.
    """
    packers: list[tuple[str, int | None, Callable[[Any], bytes]]] = [
        (name, size, parse_encoding(encoding).pack)
        for name, encoding, size in zip(
            columns.names, columns.encodings, columns.sizes, strict=True
        )
    ]

    def encode(record: Mapping[str, Any], describe_place: Callable[[], str]) -> bytes:
        heads, values = [], []
        for name, size, pack in packers:
            try:
                value = pack(record[name])
            except KeyError as error:
                if name in record:
                    raise FormatError(f"{describe_place()}, column {name!r}: {error}") from error
                raise FormatError(f"{describe_place()}: there is no column {name!r}.") from error
            except EncodingError as error:
                raise FormatError(f"{describe_place()}, column {name!r}: {error}") from error
            if size is None:
                heads.append(len(value).to_bytes(4, "little"))
            values.append(value)
        return b"".join((*heads, *values))

    return encode


def block_of(samples: Sequence[bytes]) -> Block:
    """Return a block of samples that are bytes already."""
    return Block(np.fromiter(map(len, samples), np.int64, len(samples)), b"".join(samples))


def write_shard(
    file: BinaryIO,
    samples: int,
    columns: Columns,
    blocks: Iterable[Block],
    location: str,
    grow: Callable[[int], object] = lambda _: None,
) -> int:
    """Write an MDS shard of blocks; its bytes.

    ``grow`` is called before the file becomes that long. Raises ShardError when the blocks have
    another number of samples than was planned, or more bytes than a shard may have.
    """
    config = shard_config(columns)
    first = header_size(samples) + len(config)
    if first + 4 * samples * columns.variable > LARGEST_DECODED:
        raise _too_large(location)
    lengths = np.zeros(samples + 1, np.int64)
    row, end = 0, first
    file.seek(first)
    for sizes, data in blocks:
        end += len(data)
        if row + len(sizes) > samples:
            raise ShardError(f"{location}: there are more than the {samples:,} samples planned.")
        if end > LARGEST_DECODED:
            raise _too_large(location)
        grow(end)
        file.write(data)
        lengths[row + 1 : row + 1 + len(sizes)] = sizes
        row += len(sizes)
    if row != samples:
        raise ShardError(f"{location}: there are {row:,} samples, {samples:,} were planned.")
    lengths[0] = first
    offsets = np.cumsum(lengths, out=lengths)
    if int(offsets[-1]) != end:
        raise ShardError(f"{location}: its blocks have {end - first:,} bytes, not what they say.")
    file.seek(0)
    file.write(samples.to_bytes(4, "little"))
    file.write(offsets.astype("<u4").data)
    file.write(config)
    return end


def _too_large(location: str) -> ShardError:
    return ShardError(
        f"{location}: decoded it takes more than {LARGEST_DECODED >> 30} GiB, and comes whole. "
        f"Leave columns out with columns=, or write the file anew with fewer rows together "
        f"(pyarrow: row_group_size=)."
    )


def shard_bytes(samples: int, columns: Columns, blocks: Iterable[Block], location: str) -> bytes:
    """Return an MDS shard of blocks, in memory; see `write_shard`."""
    file = io.BytesIO()
    write_shard(file, samples, columns, blocks, location)
    return file.getvalue()


def shard_config(columns: Columns) -> bytes:
    """Return the configuration of a shard, which is between the offsets and the samples."""
    return config_bytes(
        {
            "version": VERSION,
            "format": "mds",
            "compression": None,
            "hashes": [],
            "size_limit": None,
            "column_names": columns.names,
            "column_encodings": columns.encodings,
            "column_sizes": columns.sizes,
        }
    )
