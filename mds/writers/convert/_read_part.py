"""First step of a conversion: from one part of the input to the bytes of its samples.

`read_part` runs in any process. It writes a run of sample bytes per split and, last, the record
that the part was read. It does not know how samples become shards, nor which other parts exist.

Values are fitted to the types of their columns without loss (`mds.formats._fit`); one that would
be rounded or cut makes a bad record.
"""

from __future__ import annotations

import contextlib
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

from mds._shardfile.hashing import new_hash
from mds._shardfile.layout import split_sample
from mds.encodings import parse_encoding
from mds.encodings._arrays import length_function
from mds.errors import EncodingError, FormatError, MdsError, RecordError
from mds.formats._facts import Block, Problem
from mds.formats._fit import Coerce, fill_missing, find_coercer
from mds.formats._suggestions import as_options, suggest_options
from mds.storage._files import publish
from mds.writers.convert._checkpoint import Checkpoint, PartDone
from mds.writers.convert._inputs.base import Input, InputPart
from mds.writers.convert._inputs.format_input import FormatInput, RecordPosition
from mds.writers.convert._tokens import TokenSpec, find_text, tokenize

#: Number of bad records that are listed; further ones are only counted.
MAX_LISTED_RECORDS = 100


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """Settings with which any process can read any part.

    - ``names``, ``encodings`` (tuple[str, ...]): The columns to write, and their encodings.
    - ``splits`` (tuple[str, ...]): Names of the splits; ``shares`` (tuple[float, ...]): the share
      of the samples that each gets, empty if records have splits or there is only one.
    - ``merges_splits`` (bool): Whether the splits of the source are written as one dataset.
    - ``key`` (str | None): The column whose value decides the split; None: the whole sample.
    - ``tokens`` (TokenSpec | None): The tokenizer; None: records become samples as they are.
    - ``limit`` (int | None): The most samples to read.
    - ``skip_bad`` (bool): Whether bad records are left out instead of stopping the conversion.
    - ``checkpoint`` (Checkpoint): The work folder.
    """

    source: Input
    #: Approximate bytes of a part, and the largest sample in bytes.
    part_size: int
    max_sample_size: int
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    #: Columns whose encoding the user chose: text in them is parsed as that type.
    requested: frozenset[str]
    #: Columns that come as values, if those of the source are encoded already.
    decoded: frozenset[str]
    #: Keys of records that are not written, because the user left out these columns.
    dropped: frozenset[str]
    splits: tuple[str, ...]
    shares: tuple[float, ...]
    merges_splits: bool
    #: Texts of cells that count as missing, and the replacement for missing values by column.
    nulls: frozenset[str]
    fills: tuple[str | None, ...]
    key: str | None
    tokens: TokenSpec | None
    limit: int | None
    skip_bad: bool
    checkpoint: Checkpoint
    #: Column whose lengths are recorded.
    lengths: str | None = None
    #: Whether the samples of files are written as the bytes that a format yields.
    is_whole: bool = False


def read_part(reading: ReadSpec, part: InputPart) -> int:
    """Read a part, unless it was read before, and return its number.

    Raises RecordError for the first bad record, unless bad records are skipped.
    """
    if reading.checkpoint.load_part(part.number) is None:
        source = reading.source
        with contextlib.ExitStack() as runs:
            reader = _PartReader(reading, part, runs)
            if isinstance(source, FormatInput) and reading.is_whole:
                part_done = reader.copy(source)
            else:
                part_done = reader.read()
        reading.checkpoint.save_part(part_done)
    return part.number


class _PartReader:
    """Reader of one part.

    ``runs`` closes and publishes the files with the bytes of samples when the part is read.
    """

    def __init__(self, reading: ReadSpec, part: InputPart, runs: contextlib.ExitStack) -> None:
        self._reading = reading
        self._part = part
        self._runs = runs
        #: The open run of each split that has samples, by the number of the split.
        self._files: dict[int, BinaryIO] = {}
        self._pack = _make_packer(reading)
        #: Descriptions of the first bad records, and the number of all.
        self._bad: list[str] = []
        self._bad_count = 0
        self._length = None if reading.lengths is None else _length_of_sample(reading)
        # Numbers in [0, 1) at which the next split begins: (0.9, 0.05, 0.05) gives [0.9, 0.95].
        self._bounds = list(accumulate(reading.shares))[:-1]

    def read(self) -> PartDone:
        """Write the bytes of every sample to the run of its split, and return what was read."""
        splits, sizes, lengths = bytearray(), array("q"), array("I")
        for position, record in self._reading.source.read_records(self._part):
            try:
                split, data = self._encode_record(record)
                if self._length is not None:
                    lengths.append(self._length(data))
            except ValueError as error:
                self._skip(position, error)
                continue
            self._open_run(split).write(data)
            splits.append(split)
            sizes.append(len(data))
            if len(sizes) == self._reading.limit:
                break
        recorded = None if self._length is None else lengths
        return self._done(splits, sizes, recorded)

    def copy(self, source: FormatInput) -> PartDone:
        """Write the bytes of samples as a format yields them, and return what was read."""
        splits, sizes, lengths = bytearray(), array("q"), array("I")
        limit = self._reading.limit
        for position, item in source.blocks(self._part):
            if isinstance(item, Problem):
                self._skip(position, FormatError(item))
                continue
            data, block_sizes = self._drop_too_large(position, item)
            if limit is not None and len(sizes) + len(block_sizes) > limit:
                block_sizes = block_sizes[: limit - len(sizes)]
                data = data[: int(block_sizes.sum())]
            if self._length is not None:
                data, block_sizes = self._measure(position, data, block_sizes, lengths)
            if self._bounds:
                self._write_by_hash(data, block_sizes, splits)
            else:
                split = self._split_of_part()
                self._open_run(split).write(data)
                splits += bytes([split]) * len(block_sizes)
            sizes.extend(block_sizes.tolist())
            if len(sizes) == limit:
                break
        return self._done(splits, sizes, None if self._length is None else lengths)

    def _drop_too_large(
        self, position: RecordPosition, block: Block
    ) -> tuple[memoryview, npt.NDArray[np.int64]]:
        """Return the bytes and the sizes of the samples of a block that a shard can hold.

        Others are bad records. The words with the sizes of values do not count.

        Args:
            position: RecordPosition of the first sample.
            block: The samples.
        """
        variable = sum(parse_encoding(each).size is None for each in self._reading.encodings)
        most_bytes = self._reading.max_sample_size + 4 * variable
        is_too_large = block.sizes > most_bytes
        if not is_too_large.any():
            return memoryview(block.data), block.sizes
        ends = np.cumsum(block.sizes).tolist()
        starts = [0, *ends[:-1]]
        samples = []
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if is_too_large[row]:
                reason = _too_large(end - start)
                self._skip(position._replace(row=position.row + row), ValueError(reason))
            else:
                samples.append(block.data[start:end])
        return memoryview(b"".join(samples)), block.sizes[~is_too_large]

    def _measure(
        self, position: Any, data: memoryview, sizes: npt.NDArray[np.int64], lengths: array[int]
    ) -> tuple[memoryview, npt.NDArray[np.int64]]:
        """Append the length of each sample; return the samples without those that have none."""
        assert self._length is not None
        rows, pieces, start = [], [], 0
        for row, size in enumerate(sizes.tolist()):
            sample = data[start : start + size]
            start += size
            try:
                lengths.append(self._length(sample))
            except ValueError as error:
                self._skip(position._replace(row=position.row + row), error)
            else:
                rows.append(row)
                pieces.append(sample)
        if len(rows) == len(sizes):
            return data, sizes
        return memoryview(b"".join(pieces)), sizes[rows]

    def _write_by_hash(
        self, data: memoryview, sizes: npt.NDArray[np.int64], splits: bytearray
    ) -> None:
        """Write samples to the splits that the hashes of their bytes decide."""
        start = 0
        for size in sizes.tolist():
            sample = bytes(data[start : start + size])
            split = bisect_right(self._bounds, hash_fraction(sample))
            self._open_run(split).write(sample)
            splits.append(split)
            start += size

    def _done(self, splits: Any, sizes: Any, lengths: Any) -> PartDone:
        return PartDone(
            self._part.number, splits, sizes, tuple(self._bad), self._bad_count, lengths
        )

    def _skip(self, position: Any, error: ValueError) -> None:
        """Count a bad record. Raises RecordError unless bad records are left out."""
        self._bad_count += 1
        if not self._reading.skip_bad:
            self._refuse(position, error)
        if self._bad_count <= MAX_LISTED_RECORDS:
            self._bad.append(self._describe(position, error))

    def _describe(self, position: Any, error: ValueError) -> str:
        """Describe a bad record by its location, the reason and the remedy."""
        source, problem = self._reading.source, error.args[0] if error.args else None
        if isinstance(problem, Problem):
            return source.describe_problem(self._part, position, problem)
        return source.describe_record(self._part, position, str(error))

    def _refuse(self, position: Any, error: ValueError) -> NoReturn:
        description = self._describe(position, error)
        if "on_error=" not in description:
            description += (
                ". Correct it, or leave such records out with on_error='skip' (mds-convert "
                "--on-error skip)"
            )
        # The message has the text of a plain ValueError already, so that is no cause.
        raise RecordError(f"{description}.") from (error if isinstance(error, MdsError) else None)

    def _encode_record(self, record: Any) -> tuple[int, bytes]:
        """Return split and bytes of a record. Raises ValueError with the reason if it is bad.

        The split is the one of the part if the source has splits; else the hash of the key column,
        or of the bytes, decides it, so that equal records are in the same split.
        """
        if isinstance(record, Problem):
            raise FormatError(record)
        data = self._pack(record)
        if not self._bounds:
            return self._split_of_part(), data
        key = data if self._reading.key is None else record.get(self._reading.key)
        if key is None:
            raise ValueError(f"{self._reading.key!r}, which decides the split, is missing or null")
        return bisect_right(self._bounds, hash_fraction(key)), data

    def _split_of_part(self) -> int:
        """Return the number of the split of the part; 0 if splits are merged or there are none."""
        if self._part.split is None or self._reading.merges_splits:
            return 0
        return self._reading.splits.index(self._part.split)

    def _open_run(self, split: int) -> BinaryIO:
        """Return the open run of a split, which is created at the first sample."""
        if split not in self._files:
            path = self._reading.checkpoint.run_path(self._part.number, split)
            temporary = self._runs.enter_context(publish(path))
            self._files[split] = self._runs.enter_context(
                open(temporary, "wb", 1 << 20)  # noqa: SIM115 - the stack closes it
            )
        return self._files[split]


def hash_fraction(key: Any) -> float:
    """Return a number in [0, 1) that depends on the key alone, not on a seed, order or machine."""
    data = key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogatepass")
    digest = new_hash("xxh3_64")
    digest.update(data)
    # 13 hex digits are 52 bits, which a float holds exactly.
    return int(digest.hexdigest()[:13], 16) / (1 << 52)


def _make_packer(reading: ReadSpec) -> Callable[[dict[str, Any]], bytes]:
    """Return the function from a record to the bytes of a sample, or to its tokens."""
    if reading.tokens is not None:
        return _make_token_packer(reading.tokens, reading.names[0])
    is_text, is_json = reading.source.is_text, reading.source.is_json
    # For each column whether text in it is parsed as the type of the column ("12" becomes 12): in a
    # source of text such as CSV, and if the user chose the encoding. None: values are encoded
    # already, as in an MDS dataset, except in columns that get another encoding.
    parses_text: tuple[bool | None, ...]
    if reading.source.is_encoded:
        parses_text = tuple(
            name in reading.requested if name in reading.decoded else None for name in reading.names
        )
    else:
        parses_text = tuple(is_text or name in reading.requested for name in reading.names)
    return _make_record_packer(
        reading.names,
        reading.encodings,
        parses_text,
        reading.requested,
        is_json,
        reading.dropped,
        reading.max_sample_size,
        reading.nulls,
        reading.fills,
    )


def _make_token_packer(spec: TokenSpec, column: str) -> Callable[[dict[str, Any]], bytes]:
    """Return the function from a record to the tokens of its text, as bytes."""

    def pack(record: dict[str, Any]) -> bytes:
        """Return the token ids of the record's text. Raises ValueError if it is no text."""
        return tokenize(spec, find_text(record, column))

    return pack


def _length_of_sample(reading: ReadSpec) -> Callable[[bytes | memoryview], int]:
    """Return a function from the bytes of a sample to the length of its array in one column.

    The column is ``reading.lengths``.
    """
    assert reading.lengths is not None
    encodings = dict(zip(reading.names, reading.encodings, strict=True))
    length = length_function(encodings, reading.lengths)
    column = reading.names.index(reading.lengths)
    # Size in bytes of the values of each column; None if they differ.
    sizes = [parse_encoding(name).size for name in reading.encodings]
    variable_columns = sizes.count(None)

    def length_of_sample(data: bytes | memoryview) -> int:
        """Split a sample into the bytes of its columns, and return the length of one."""
        value = split_sample(memoryview(data), sizes, variable_columns)[column]
        try:
            return length(value)
        except MdsError as error:
            raise ValueError(f"column {reading.lengths!r}: {error}") from error

    return length_of_sample


def _pass_encoded(value: bytes | None) -> bytes:
    """Return a value that is encoded already. Raises ValueError if it is missing."""
    if value is None:
        raise ValueError("the sample has no such column")
    return value


def _too_large(size: int) -> str:
    """Return the reason why a sample of this many bytes is refused."""
    return f"it has {size} bytes, but a shard must be less than 4 GiB"


@lru_cache(maxsize=8)
def _make_record_packer(
    names: tuple[str, ...],
    encodings: tuple[str, ...],
    parses_text: tuple[bool | None, ...],
    requested: frozenset[str],
    is_json: bool,
    dropped: frozenset[str],
    max_size: int,
    nulls: frozenset[str],
    fills: tuple[str | None, ...],
) -> Callable[[dict[str, Any]], bytes]:
    """Return a function from a record to the bytes of a sample (`_shardfile/layout.py`).

    - ``parses_text`` (tuple[bool | None, ...]): Whether text in each column is parsed as the type
      of the column; None if its values are encoded already.
    - ``requested`` (frozenset[str]): Columns whose encoding the user chose.
    - ``is_json`` (bool): Whether all values came from JSON.
    - ``dropped`` (frozenset[str]): Keys of records that are not written.
    - ``max_size`` (int, bytes): The largest sample.
    - ``nulls`` (frozenset[str]): Texts that count as missing.
    - ``fills`` (tuple[str | None, ...]): The replacement for missing values of each column.
    """
    parsed = [parse_encoding(name) for name in encodings]
    # Of each column: name, function from a value to its bytes, function that first converts the
    # value to the type of the column (None if none is needed), and for messages: the encoding,
    # whether text is parsed, and the replacement for missing values.
    columns: list[
        tuple[str, Callable[[Any], bytes], Coerce | None, str, bool | None, str | None]
    ] = []
    for name, encoding, parses, fill in zip(names, parsed, parses_text, fills, strict=True):
        if parses is None:
            columns.append((name, _pass_encoded, None, encoding.name, parses, fill))
            continue
        # A replacement of missing values is a text of the user, such as "-1".
        fit = find_coercer(
            encoding.name,
            from_text=parses or fill is not None,
            plain=is_json,
            is_exact=name not in requested,
        )
        is_optional = encoding.name.startswith("optional[")
        if nulls or fill is not None or is_optional:
            # In an optional column an empty cell is missing.
            missing = nulls or frozenset([""] if parses else [])
            fit = fill_missing(fit, encoding.name, missing, fill)
        columns.append((name, encoding.pack_checked, fit, encoding.name, parses, fill))
    # A sample is the sizes of the values that differ in size, and then all values.
    varying = [number for number, encoding in enumerate(parsed) if encoding.size is None]
    words = struct.Struct(f"<{len(varying)}I")
    known_keys = {*names, *dropped}

    def pack(record: dict[str, Any]) -> bytes:
        """Return the bytes of a record. Raises ValueError with the reason if it is bad."""
        values = []
        for name, encode, fit, encoding, parses, fill in columns:
            value = record.get(name)
            try:
                values.append(encode(value if fit is None else fit(value)))
            except (EncodingError, ValueError, TypeError, OverflowError) as error:
                reason = str(error).rstrip(".")
                if name not in record and parses is not None:
                    reason = f"the record has no {name!r}"
                remedy = suggest_options(name, encoding, value, parses, nulls, fill, is_json)
                raise ValueError(f"column {name!r} ({encoding}): {reason}{remedy}") from error
        if len(record) > len(names) and (extra := record.keys() - known_keys):
            key = min(extra)
            drop = "" if "," in key else f", or {as_options(drop=[key])} to leave it out"
            raise ValueError(
                f"it has the key {key!r}, which is not a column. Add "
                f"{as_options(encodings={key: 'json'})} to write it{drop}"
            )
        lengths = [len(values[number]) for number in varying]
        if sum(lengths) > max_size:
            raise ValueError(_too_large(sum(lengths)))
        return words.pack(*lengths) + b"".join(values)

    return pack
