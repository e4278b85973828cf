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
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from mds._shardfile.layout import VERSION, Columns, broken_sample, config_bytes, header_size
from mds._words import plural
from mds.encodings import parse_encoding
from mds.errors import EncodingError, FormatError, ShardError
from mds.formats._facts import Block, Problem

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
    columns: Columns,
    records: Iterable[Mapping[str, Any] | Problem],
    location: str | Callable[[int], str],
    fitting: Fitting | None = None,
) -> Iterator[Block | Problem]:
    """Encode records (dicts from column to value), and yield them in blocks.

    A `Problem` among the records is yielded in its place. So is one for a record that lacks a
    column, or has a value that its column does not take.

    Args:
        columns: Names and encodings of the columns.
        records: The records of a shard, in order.
        location: Name of the shard, or a function that returns the location of a row; for errors.
        fitting: Functions that fit values to their columns first (default: values are fitting).

    In the method `Format.blocks` of your format::

        records = [{"id": 1, "text": "a"}, {"id": 2, "text": "bc"}]
        yield from encode_records(shard.columns, records, files.url(shard.file))
    """
    locate = f"{location}, sample {{}}".format if isinstance(location, str) else location
    encode = sample_encoder(columns, fitting)
    samples: list[bytes] = []
    block_bytes = row = 0

    def locate_row() -> str:
        """Return the location of the present row."""
        return locate(row)

    for row, record in enumerate(records):
        problem: Problem | None = None
        if isinstance(record, Problem):
            problem = record
        else:
            try:
                sample = encode(record, locate_row)
            except FormatError as error:
                problem = Problem.of(error, locate(row))
            else:
                samples.append(sample)
                block_bytes += len(sample)
        if samples and (problem or len(samples) == _ROWS or block_bytes >= _BYTES):
            yield block_of(samples)
            samples, block_bytes = [], 0
        if problem:
            yield problem
    if samples:
        yield block_of(samples)


def raise_problems(blocks: Iterable[Block | Problem]) -> Iterator[Block]:
    """Yield blocks, and raise FormatError at the first problem."""
    for block in blocks:
        if isinstance(block, Problem):
            raise FormatError(block)
        yield block


class Fitting(NamedTuple):
    """Functions that fit values to the columns of a sample.

    - ``coercers``: by column, converts a value to one that the encoding takes; raises ValueError.
    - ``suggest``: from column, encoding and value, returns a sentence on how to read a value that
      does not fit; '' if nothing is known.
    """

    coercers: Mapping[str, Callable[[Any], Any] | None]
    suggest: Callable[[str, str, Any], str]


def sample_encoder(
    columns: Columns, fitting: Fitting | None = None
) -> Callable[[Mapping[str, Any], Callable[[], str]], bytes]:
    """Return a function that encodes one record to the bytes of a sample.

    Its arguments are the record, and a function that returns the location of the record for an
    error. It raises ``FormatError(problem)`` for a record that lacks a column, and for a value that
    its column does not take. ``fitting`` converts values first.
    """
    coercers = {} if fitting is None else fitting.coercers
    packers = []
    for name, encoding in zip(columns.names, columns.encodings, strict=True):
        # Values of the usual type need no checks, and are encoded at once.
        usual_type, pack_usual = _USUAL.get(encoding, (None, None))
        pack = _packer(encoding, coercers.get(name))
        packers.append((name, usual_type, pack_usual or pack, pack))
    variable = [index for index, size in enumerate(columns.sizes) if size is None]
    pack_sizes = struct.Struct(f"<{len(variable)}I").pack

    def encode(record: Mapping[str, Any], locate: Callable[[], str]) -> bytes:
        """Encode a record: sizes of variable columns, then the values of all columns."""
        values = []
        for name, usual_type, pack_usual, pack in packers:
            try:
                value = record[name]
                values.append(pack_usual(value) if type(value) is usual_type else pack(value))
            except REFUSED as error:  # noqa: PERF203 - it ends the loop
                encoding = columns.encodings[len(values)]
                raise FormatError(problem_of(record, name, encoding, pack, locate)) from error
        return b"".join((pack_sizes(*[len(values[index]) for index in variable]), *values))

    def problem_of(
        record: Mapping[str, Any],
        name: str,
        encoding: str,
        pack: Callable[[Any], bytes],
        locate: Callable[[], str],
    ) -> Problem:
        """Return why a record lacks a column, or has a value that the column does not take."""
        remedy = fitting.suggest(name, encoding, record.get(name)) if fitting else ""
        if name not in record:
            return Problem(locate(), f"there is no column {name!r}", remedy)
        place = f"{locate()}, column {name!r}" + (f" ({encoding})" if fitting else "")
        try:
            pack(record[name])
        except REFUSED as error:  # also a FixedSizeError, which is a KeyError
            return Problem(place, str(error), remedy)
        raise AssertionError("a value that was refused is taken now")

    return encode


#: Errors of encoding a value that its column does not take, and of a record without the column.
REFUSED = (EncodingError, ValueError, TypeError, OverflowError, KeyError, struct.error)
#: Usual type of the values of an encoding, and how values of exactly this type are encoded.
_USUAL: dict[str, tuple[type, Callable[[Any], bytes]]] = {
    "int": (int, struct.Struct("<q").pack),
    "float64": (float, struct.Struct("<d").pack),
    "str": (str, str.encode),
}


def _packer(encoding: str, fit: Callable[[Any], Any] | None) -> Callable[[Any], bytes]:
    """Return the function from a value to its bytes, which calls ``fit`` first."""
    pack = parse_encoding(encoding).pack
    if fit is None:
        return pack
    return lambda value: pack(fit(value))


def block_of(samples: Sequence[bytes]) -> Block:
    """Return a block of samples that are encoded already."""
    return Block(np.fromiter(map(len, samples), np.int64, len(samples)), b"".join(samples))


def write_shard(
    file: BinaryIO,
    samples: int,
    columns: Columns,
    blocks: Iterable[Block | Problem],
    location: str,
    grow: Callable[[int], object] = lambda _: None,
) -> int:
    """Write blocks as an MDS shard to ``file``, and return its size in bytes.

    A problem becomes a sample that raises FormatError when it is read, so that a broken record does
    not break its shard.

    - ``samples`` (int): Number of samples that were planned.
    - ``columns`` (Columns): Names, encodings and sizes of the columns, for the configuration.
    - ``blocks`` (Iterable[Block | Problem]): The encoded samples, in order.
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
    for block in blocks:
        sizes, data = (
            block_of([broken_sample(str(block), columns)]) if isinstance(block, Problem) else block
        )
        end += len(data)
        if row + len(sizes) > samples:
            raise ShardError(
                f"{location}: there are more than the expected {plural(samples, 'sample')}."
            )
        if end > LARGEST_DECODED:
            raise _too_large(location)
        grow(end)
        file.write(data)
        lengths[row + 1 : row + 1 + len(sizes)] = sizes
        row += len(sizes)
    if row != samples:
        raise ShardError(
            f"{location}: there are {plural(row, 'sample')}, but {samples:,} were expected."
        )
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


def shard_bytes(
    samples: int, columns: Columns, blocks: Iterable[Block | Problem], location: str
) -> bytes:
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
