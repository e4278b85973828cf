"""Make the bytes of MDS samples and shards, from encoded columns or from records.

    sample   size of each variable column, u32 | values of all columns, in order
    shard    count, u32 | offsets, u32 (count + 1) | configuration, JSON | samples

`join_columns` makes samples of whole columns. Neighbouring columns of fixed size are joined to one
array first, so a row costs one slice (about 0.1 us) for each group and for each variable column.
`encode_records` makes samples of dicts, one by one. `write_shard` writes the file.

The encoded values of a column (`ColumnBytes`) are uint8 of shape (rows, size) if the column is
fixed, that is, if all its values have one size; else they are a list with the bytes of each row. A
block (`Block`) holds some consecutive samples of a shard.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mds._shardfile.layout import VERSION, Columns, config_bytes, header_size
from mds.encodings import parse_encoding
from mds.errors import EncodingError, FormatError, ShardError
from mds.formats._facts import Block

Bytes = npt.NDArray[np.uint8]
#: Encoded values of one column: uint8 of shape (rows, size) if the size is fixed, else a list with
#: the bytes of each row.
ColumnBytes = Bytes | list[bytes] | list[memoryview]

#: Most samples, and bytes from which on a block is full, in a block of `encode_records`.
_ROWS, _BYTES = 1024, 8 << 20
#: The most bytes that a shard may take when it is decoded.
LARGEST_DECODED = 1 << 30


def join_columns(rows: int, values: Sequence[ColumnBytes]) -> Block:
    """Join the encoded values of all columns to a block of samples.

    - ``rows`` (int): Number of samples.
    - ``values`` (Sequence[ColumnBytes]): The values of each column, in order.

    Each sample is cut into pieces: one for each variable column, and one for the fixed columns
    between two variable ones. The sizes of the variable columns come first:

        sizes, fixed, fixed | variable | fixed, fixed | variable

    >>> numbers = np.array([[1], [2]], np.uint8)
    >>> block = join_columns(2, [numbers, [b"a", b"bc"]])
    >>> block.sizes.tolist(), len(block.data)
    ([6, 7], 13)
    """
    variable = [each for each in values if not isinstance(each, np.ndarray)]
    sizes = np.zeros((rows, len(variable)), "<u4")
    for column, pieces in enumerate(variable):
        sizes[:, column] = np.fromiter(map(len, pieces), np.int64, rows)
    head: Bytes = sizes.view(np.uint8).reshape(rows, 4 * len(variable))
    lengths = sizes.sum(axis=1, dtype=np.int64) + 4 * len(variable)
    parts: list[list[Any]] = []  # for each piece of a sample, its bytes in all rows
    fixed = [head]  # neighbouring fixed columns that are not cut into rows yet
    for column_bytes in values:
        if isinstance(column_bytes, np.ndarray):
            fixed.append(column_bytes)
            lengths += column_bytes.shape[1]
        else:
            parts += _cut_rows(fixed)
            parts.append(list(column_bytes))
            fixed = []
    if not parts:
        return Block(lengths, np.concatenate(fixed, axis=1).tobytes())
    parts += _cut_rows(fixed)
    return Block(lengths, b"".join(itertools.chain.from_iterable(zip(*parts, strict=True))))


def _cut_rows(fixed: Sequence[Bytes]) -> list[list[bytes]]:
    """Join neighbouring fixed columns, and cut the bytes into one piece per row.

    ``fixed`` are uint8 arrays of shape (rows, width). The pieces are like those of one variable
    column, so the caller treats both alike. They come in a list of one element, or of none if the
    columns have no bytes, to be added to its list of columns.
    """
    width = sum(each.shape[1] for each in fixed)
    if not width:
        return []
    data = np.concatenate(fixed, axis=1).tobytes()
    return [[data[offset : offset + width] for offset in range(0, len(data), width)]]


def encode_records(
    columns: Columns, records: Iterable[Mapping[str, Any]], location: str
) -> Iterator[Block]:
    """Encode records (dicts from column to value), and yield them in blocks.

    ``location`` names the shard in errors. Raises FormatError for a value that its column does not
    take, and for a record without one of the columns.

    In the method `Format.blocks` of your format::

        records = [{"id": 1, "text": "a"}, {"id": 2, "text": "bc"}]
        yield from encode_records(shard.columns, records, files.url(shard.file))
    """
    encode = sample_encoder(columns)
    samples: list[bytes] = []
    block_bytes = 0
    for row, record in enumerate(records):
        sample = encode(record, lambda row=row: f"{location}, sample {row}")  # type: ignore[misc]
        samples.append(sample)
        block_bytes += len(sample)
        if len(samples) == _ROWS or block_bytes >= _BYTES:
            yield block_of(samples)
            samples, block_bytes = [], 0
    if samples:
        yield block_of(samples)


def sample_encoder(columns: Columns) -> Callable[[Mapping[str, Any], Callable[[], str]], bytes]:
    """Return a function that encodes one record to the bytes of a sample.

    Its arguments are the record and a function that describes the record's place for an error. It
    raises FormatError as `encode_records` does.
    """
    packers: list[tuple[str, int | None, Callable[[Any], bytes]]] = [
        (name, size, parse_encoding(encoding).pack)
        for name, encoding, size in zip(
            columns.names, columns.encodings, columns.sizes, strict=True
        )
    ]

    def encode(record: Mapping[str, Any], describe_place: Callable[[], str]) -> bytes:
        """Encode a record: sizes of variable columns, then the values of all columns."""
        heads, values = [], []
        for name, size, pack in packers:
            try:
                value = pack(record[name])
            except KeyError as error:
                if name in record:  # FixedSizeError of the encoding is a KeyError, too
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
    """Return a block of samples that are encoded already."""
    return Block(np.fromiter(map(len, samples), np.int64, len(samples)), b"".join(samples))


def write_shard(
    file: BinaryIO,
    samples: int,
    columns: Columns,
    blocks: Iterable[Block],
    location: str,
    grow: Callable[[int], object] = lambda _: None,
) -> int:
    """Write blocks as an MDS shard to ``file``, and return its size in bytes.

    - ``samples`` (int): Number of samples that were planned.
    - ``columns`` (Columns): Names, encodings and sizes of the columns, for the configuration.
    - ``blocks`` (Iterable[Block]): The encoded samples, in order.
    - ``location`` (str): Name of the shard, for errors.
    - ``grow`` (Callable[[int], object]): Called with the new size before the file grows.

    Raises ShardError if the blocks have another number of samples, or too many bytes for a shard.
    """
    config = shard_config(columns)
    first = header_size(samples) + len(config)  # byte of the first sample
    # The header is written last, when all offsets are known.
    if first + 4 * samples * columns.variable > LARGEST_DECODED:
        raise _too_large(location)
    lengths = np.zeros(samples + 1, np.int64)  # becomes the offsets, by a cumulative sum
    row, end = 0, first
    file.seek(first)
    for sizes, data in blocks:
        end += len(data)
        if row + len(sizes) > samples:
            raise ShardError(f"{location}: there are more than the expected {samples:,} samples.")
        if end > LARGEST_DECODED:
            raise _too_large(location)
        grow(end)
        file.write(data)
        lengths[row + 1 : row + 1 + len(sizes)] = sizes
        row += len(sizes)
    if row != samples:
        raise ShardError(f"{location}: there are {row:,} samples, but {samples:,} were expected.")
    lengths[0] = first
    offsets = np.cumsum(lengths, out=lengths)
    if int(offsets[-1]) != end:
        raise ShardError(
            f"{location}: its {end - first:,} bytes are not the sum of the sizes of its samples."
        )
    file.seek(0)
    file.write(samples.to_bytes(4, "little"))
    file.write(offsets.astype("<u4").data)
    file.write(config)
    return end


def _too_large(location: str) -> ShardError:
    """Return the error for a shard that would be too large when it is decoded."""
    return ShardError(
        f"{location}: it takes more than {LARGEST_DECODED >> 30} GiB when decoded, and must be "
        "decoded at once. Leave columns out with columns=, or write the file again with fewer rows "
        "per group (pyarrow: row_group_size=)."
    )


def shard_bytes(samples: int, columns: Columns, blocks: Iterable[Block], location: str) -> bytes:
    """Return blocks as the bytes of an MDS shard; see `write_shard`."""
    file = io.BytesIO()
    write_shard(file, samples, columns, blocks, location)
    return file.getvalue()


def shard_config(columns: Columns) -> bytes:
    """Return the configuration of a shard: the JSON between its offsets and its samples."""
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
