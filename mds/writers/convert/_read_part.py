"""First step of a conversion: from one part of the input to the bytes of its samples.

`read_part` runs in any process. It writes a run of sample bytes per split and, last, the record
that the part was read. It does not know how samples become shards, nor which other parts exist.

Values are fitted to the types of their columns without loss (`find_coercer`). The scalar types of
the writer follow NumPy, where 3.7 becomes 3 in an integer column; a conversion changes nothing
unasked, so a value that would be rounded or cut is a bad record.
"""

from __future__ import annotations

import contextlib
import json
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import accumulate
from typing import Any, BinaryIO

import numpy as np

from mds._shardfile.hashing import new_hash
from mds._shardfile.layout import split_sample
from mds.encodings import parse_encoding
from mds.encodings._arrays import length_function
from mds.errors import EncodingError, MdsError, RecordError
from mds.formats._columns import as_json
from mds.storage._files import publish
from mds.writers.convert._checkpoint import Checkpoint, PartDone
from mds.writers.convert._inputs.base import BadRecord, Input, InputPart
from mds.writers.convert._tokens import TokenSpec, tokenize

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


def read_part(reading: ReadSpec, part: InputPart) -> int:
    """Read a part, unless it was read before, and return its number.

    Raises RecordError for the first bad record, unless bad records are skipped.
    """
    if reading.checkpoint.load_part(part.number) is None:
        with contextlib.ExitStack() as runs:
            part_done = _PartReader(reading, part, runs).read()
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
        self._length = None if reading.lengths is None else _length_of_sample(reading)
        # Numbers in [0, 1) at which the next split begins: (0.9, 0.05, 0.05) gives [0.9, 0.95].
        self._bounds = list(accumulate(reading.shares))[:-1]

    def read(self) -> PartDone:
        """Write the bytes of every sample to the run of its split, and return what was read."""
        splits, sizes, lengths = bytearray(), [], array("I")
        bad: list[str] = []
        bad_count = 0
        for position, record in self._reading.source.read_records(self._part):
            try:
                split, data = self._encode_record(record)
                if self._length is not None:
                    lengths.append(self._length(data))
            except ValueError as error:
                bad_count += 1
                if bad_count <= MAX_LISTED_RECORDS or not self._reading.skip_bad:
                    bad.append(
                        self._reading.source.describe_record(self._part, position, str(error))
                    )
                if not self._reading.skip_bad:
                    # The message has the text of a plain ValueError already, so that is no cause.
                    raise RecordError(
                        f"{bad[0]}. Correct it, or leave such records out with on_error='skip' "
                        "(mds-convert --on-error skip)."
                    ) from (error if isinstance(error, MdsError) else None)
                continue
            self._open_run(split).write(data)
            splits.append(split)
            sizes.append(len(data))
            if len(sizes) == self._reading.limit:
                break
        recorded = None if self._length is None else lengths
        return PartDone(self._part.number, splits, sizes, tuple(bad), bad_count, recorded)

    def _encode_record(self, record: Any) -> tuple[int, bytes]:
        """Return split and bytes of a record. Raises ValueError with the reason if it is bad.

        The split is the one of the part if the source has splits; else the hash of the key column,
        or of the bytes, decides it, so that equal records are in the same split.
        """
        if isinstance(record, BadRecord):
            raise ValueError(str(record))  # noqa: TRY004 - a record is bad by value
        data = self._pack(record)
        if self._part.split is not None and not self._reading.merges_splits:
            return self._reading.splits.index(self._part.split), data
        if not self._bounds:
            return 0, data
        key = data if self._reading.key is None else record.get(self._reading.key)
        if key is None:
            raise ValueError(f"{self._reading.key!r}, which decides the split, is missing or null")
        return bisect_right(self._bounds, hash_fraction(key)), data

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
        parses_text = tuple(True if name in reading.requested else None for name in reading.names)
    else:
        parses_text = tuple(is_text or name in reading.requested for name in reading.names)
    return _make_record_packer(
        reading.names,
        reading.encodings,
        parses_text,
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
        text = record.get(column)
        if isinstance(text, bytes):
            text = text.decode()
        if not isinstance(text, str):
            raise ValueError(f"column {column!r}: expected text, got {type(text).__name__}")  # noqa: TRY004
        return tokenize(spec, text)

    return pack


def _length_of_sample(reading: ReadSpec) -> Callable[[bytes], int]:
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

    def length_of_sample(data: bytes) -> int:
        """Split a sample into the bytes of its columns, and return the length of one."""
        return length(split_sample(memoryview(data), sizes, variable_columns)[column])

    return length_of_sample


def _pass_encoded(value: bytes | None) -> bytes:
    """Return a value that is encoded already. Raises ValueError if it is missing."""
    if value is None:
        raise ValueError("the sample has no such column")
    return value


@lru_cache(maxsize=8)
def _make_record_packer(
    names: tuple[str, ...],
    encodings: tuple[str, ...],
    parses_text: tuple[bool | None, ...],
    is_json: bool,
    dropped: frozenset[str],
    max_size: int,
    nulls: frozenset[str],
    fills: tuple[str | None, ...],
) -> Callable[[dict[str, Any]], bytes]:
    """Return a function from a record to the bytes of a sample (`_shardfile/layout.py`).

    - ``parses_text`` (tuple[bool | None, ...]): Whether text in each column is parsed as the type
      of the column; None if its values are encoded already.
    - ``is_json`` (bool): Whether all values came from JSON.
    - ``dropped`` (frozenset[str]): Keys of records that are not written.
    - ``max_size`` (int, bytes): The largest sample.
    - ``nulls`` (frozenset[str]): Texts that count as missing.
    - ``fills`` (tuple[str | None, ...]): The replacement for missing values of each column.
    """
    parsed = [parse_encoding(name) for name in encodings]
    # Of each column: name, function from a value to its bytes, function that first converts the
    # value to the type of the column (None if none is needed), name of the encoding for messages.
    columns: list[tuple[str, Callable[[Any], bytes], Callable[[Any], Any] | None, str]] = []
    for name, encoding, parses, fill in zip(names, parsed, parses_text, fills, strict=True):
        if parses is None:
            columns.append((name, _pass_encoded, None, encoding.name))
            continue
        # A replacement of missing values is a text of the user, such as "-1".
        fit = find_coercer(encoding.name, from_text=parses or fill is not None, plain=is_json)
        is_optional = encoding.name.startswith("optional[")
        if nulls or fill is not None or is_optional:
            # In an optional column an empty cell is missing.
            missing = nulls or frozenset([""] if parses else [])
            fit = fill_missing(fit, encoding.name, missing, fill)
        columns.append((name, encoding.pack_checked, fit, encoding.name))
    # A sample is the sizes of the values that differ in size, and then all values.
    varying = [number for number, encoding in enumerate(parsed) if encoding.size is None]
    words = struct.Struct(f"<{len(varying)}I")
    known_keys = {*names, *dropped}

    def pack(record: dict[str, Any]) -> bytes:
        """Return the bytes of a record. Raises ValueError with the reason if it is bad."""
        values = []
        for name, encode, fit, encoding in columns:
            try:
                value = record.get(name)
                values.append(encode(value if fit is None else fit(value)))
            except (EncodingError, ValueError, TypeError, OverflowError) as error:  # noqa: PERF203
                missing = (
                    ""
                    if name in record
                    else f". The record has no {name!r}: --fill {name}=VALUE gives it one, and "
                    f"--encodings '{name}:optional[{encoding}]' stores None"
                )
                raise ValueError(f"column {name!r} ({encoding}): {error}{missing}") from error
        if len(record) > len(names) and (extra := record.keys() - known_keys):
            raise ValueError(
                f"it has the key {min(extra)!r}, which is not a column; give it one with "
                f"--encodings {min(extra)}:json, or leave it out with --drop {min(extra)}"
            )
        lengths = [len(values[number]) for number in varying]
        if sum(lengths) > max_size:
            raise ValueError(f"it has {sum(lengths)} bytes, but a shard must be less than 4 GiB")
        return words.pack(*lengths) + b"".join(values)

    return pack


# ---------------------------------------------------------------------- values

#: Function from a value of a record to the value to encode; raises ValueError if it does not fit.
Coerce = Callable[[Any], Any]
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_FLOATS = {"float16", "float32", "float64", "str_float"}


def find_coercer(encoding: str, *, from_text: bool, plain: bool = False) -> Coerce | None:
    """Return a function that converts values to ``encoding``, or None if none is needed.

    The function raises ValueError with the reason if a value does not fit.

    - ``from_text`` (bool): Whether numbers and JSON are parsed from strings.
    - ``plain`` (bool, default False): Whether all values came from JSON, so that a column of `json`
      takes them as they are.
    """
    if encoding.startswith("optional["):
        inner = find_coercer(encoding[len("optional[") : -1], from_text=from_text, plain=plain)
        return _optional(inner)
    family = encoding.split(":", 1)[0]
    if family in _INTEGERS or family in ("int", "str_int"):
        return _integer(family, from_text=from_text)
    if family in _FLOATS:
        return _float(family, from_text=from_text)
    if family == "ndarray":
        return _array(encoding)
    if family == "str_decimal":
        return _decimal
    if family == "json" and plain:
        return None
    if family == "json" and from_text:
        return _json_text
    return {"str": _text, "bytes": _bytes, "json": as_json}.get(family)


def fill_missing(
    fit: Coerce | None, encoding: str, nulls: frozenset[str], fill: str | None
) -> Coerce:
    """Return a coercer that replaces missing values before it calls ``fit``.

    A value is missing if it is None or a text in ``nulls``.

    - ``fit`` (function | None): The coercer of the column.
    - ``fill`` (str | None): The replacement. Without it the column must be optional or `json`.
    """
    takes_none = encoding.startswith("optional[") or encoding == "json"

    def fitted(value: Any) -> Any:
        """Return the value, or its replacement if it is missing, as the type of the column."""
        if value is None or (isinstance(value, str) and value in nulls):
            if fill is None and takes_none:
                return None
            if fill is None:
                raise ValueError(
                    f"it is missing; give a replacement (--fill NAME=VALUE), or allow it to be "
                    f"missing (--encodings NAME:optional[{encoding}])"
                )
            value = fill
        return value if fit is None else fit(value)

    return fitted


def _optional(inner: Coerce | None) -> Coerce | None:
    """Return a coercer that returns None for None, and else the result of ``inner``."""
    if inner is None:
        return None
    return lambda value: None if value is None else inner(value)


def _integer(family: str, *, from_text: bool) -> Coerce:
    """Return the coercer of an integer column, which refuses fractions and overflow.

    - ``family`` (str): The encoding, such as "int", "uint8" or "str_int" (of any size).
    - ``from_text`` (bool): Whether text such as "12" is parsed.
    """
    low, high = _bounds(family)
    to_scalar: Callable[[int], Any] = np.dtype(family).type if family in _INTEGERS else int

    def integer(value: Any) -> Any:
        """Return the value as a scalar of the column's type. Raises ValueError if it changes."""
        if from_text and isinstance(value, str):
            value = _parse_text(int, value, "a whole number")
        if isinstance(value, (float, np.floating)) and value.is_integer():
            value = int(value)
        if not isinstance(value, (int, np.integer)):
            raise ValueError(f"expected a whole number, got {_describe(value)}")  # noqa: TRY004 - a record is wrong by value
        number = int(value)
        if low is not None and high is not None and not low <= number <= high:
            raise ValueError(f"{number} does not fit {family} ({low} to {high})")
        return to_scalar(number)

    return integer


def _bounds(family: str) -> tuple[int | None, int | None]:
    """Return the least and the largest integer of an encoding; None for no limits."""
    if family == "str_int":
        return None, None
    limits = np.iinfo("int64" if family == "int" else family)
    return int(limits.min), int(limits.max)


def _float(family: str, *, from_text: bool) -> Coerce:
    """Return the coercer of a column of floats, which refuses truth values.

    - ``family`` (str): The encoding, such as "float32" or "str_float".
    - ``from_text`` (bool): Whether text such as "1.5" is parsed.
    """
    to_scalar: Callable[[Any], Any] = float if family == "str_float" else np.dtype(family).type

    def number(value: Any) -> Any:
        """Return the value as a float of the column's type. Raises ValueError for no number."""
        if from_text and isinstance(value, str):
            value = _parse_text(float, value, "a number")
        if isinstance(value, bool) or not isinstance(
            value, (int, float, np.floating, np.integer, Decimal)
        ):
            raise ValueError(f"expected a number, got {_describe(value)}")  # noqa: TRY004 - a record is wrong by value
        return to_scalar(value)

    return number


def _array(encoding: str) -> Coerce:
    """Return the coercer of a column of arrays, which refuses values that would change."""
    # "ndarray:int32:3,4" has the type "int32"; "ndarray" has none.
    _, _, spec = encoding.partition(":")
    dtype = spec.partition(":")[0] or None

    def array(value: Any) -> Any:
        """Return the value as an array of ``dtype``, or of its own type if ``dtype`` is None.

        Bytes are returned as they are: they are an encoded array. Raises ValueError for a value
        that is no array, or whose integers would be rounded or overflow.
        """
        if isinstance(value, bytes):
            return value
        if isinstance(value, np.ndarray) and (dtype is None or value.dtype == dtype):
            return value
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ValueError(f"expected an array, got {_describe(value)}: {error}") from error
        if dtype is None:
            return array
        try:
            cast = array.astype(dtype)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{_describe(value)} is not an array of {dtype}") from error
        # Integers must stay the same: 3.7 does not become 3, nor 300 a uint8 of 44.
        if (
            array.dtype.kind in "iuf"
            and cast.dtype.kind in "iu"
            and not np.array_equal(cast, array)
        ):
            raise ValueError(f"{_describe(value)} does not fit {dtype}")
        return cast

    return array


def _decimal(value: Any) -> Any:
    """Return a text or an integer as a Decimal. Raises ValueError for other text."""
    try:
        return Decimal(value) if isinstance(value, (str, int)) else value
    except InvalidOperation as error:
        raise ValueError(f"expected a decimal number, got {_describe(value)}") from error


def _text(value: Any) -> Any:
    """Return text, a time or a number as text, and bytes as they are. Raises ValueError."""
    if isinstance(value, str):
        return value
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, (int, float, Decimal, timedelta)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bytes):
        return value
    raise ValueError(f"expected text, got {_describe(value)}")


def _bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _json_text(value: Any) -> Any:
    """Parse text as JSON, and return other values as JSON types. Raises ValueError."""
    if not isinstance(value, str):
        return as_json(value)
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"expected JSON, got {_describe(value)}: {error}") from error


def _parse_text(parse: Callable[[str], Any], text: str, type_name: str) -> Any:
    """Return ``parse(text)``. Raises ValueError that names the expected type."""
    try:
        # Python parses 1_000 as a number; in a file it is hardly meant as one. With "?" it fails.
        return parse(text.replace("_", "?"))
    except ValueError:
        raise ValueError(f"expected {type_name}, got {_describe(text)}") from None


def _describe(value: Any) -> str:
    """Return the type of a value and its first letters, for messages."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
