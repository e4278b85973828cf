"""Samples of a tar as the bytes of an MDS shard, column by column, without a copy of a large file.

Images and bytes are stored as they lie, texts too once they are known to be UTF-8, so a block is
joined out of the tar. Whatever is wrong is found again one by one, by what has the words for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from mds.encodings import parse_encoding
from mds.formats.encode import ColumnBytes, block_of, join_columns, sample_encoder
from mds.formats.facts import Block, ShardPlace
from mds.formats.tar_ranges import SampleBytes
from mds.formats.tar_samples import KEY, is_number, value_of, whole_number
from mds.formats.tar_values import TarValues, header_key

_AS_THEY_LIE = ("bytes", "jpeg", "png")


def tar_block(sample_bytes: SampleBytes, shard: ShardPlace, values: TarValues) -> Block:
    """Return the block of some samples. Raises FormatError for a wrong value."""
    try:
        return _joined(sample_bytes, values)
    except Exception:  # noqa: BLE001 - told again by what knows the words
        encode = sample_encoder(shard.columns)
        samples = [
            encode(record, lambda row=row: f"{values.location}, sample {row}")  # type: ignore[misc]
            for row, record in zip(sample_bytes.rows, sample_bytes.records(values), strict=True)
        ]
        return block_of(samples)


def _joined(sample_bytes: SampleBytes, values: TarValues) -> Block:
    columns: list[ColumnBytes] = []
    for name, encoding in values.encodings.items():
        pieces = sample_bytes.column(name)
        if name == KEY:
            columns.append([header_key(each, values.location).encode() for each in pieces])
        elif encoding in _AS_THEY_LIE:
            columns.append(pieces)
        elif encoding == "str" and not is_number(name):
            for each in pieces:
                str(each, "utf-8")
            columns.append(pieces)
        elif encoding == "int" and is_number(name):
            columns.append(_integers(whole_number(bytes(each)) for each in pieces))
        else:
            columns.append(_packed(name, encoding, pieces))
    return join_columns(len(sample_bytes.rows), columns)


def _integers(numbers: Iterable[int | None]) -> npt.NDArray[np.uint8]:
    """Eight bytes of each. Raises TypeError for one that is none."""
    values: Any = list(numbers)
    return np.array(values, "<i8").view(np.uint8).reshape(len(values), 8)


def _packed(name: str, encoding: str, pieces: list[memoryview]) -> ColumnBytes:
    """Values that are stored otherwise than they lie."""
    kind = parse_encoding(encoding)
    packed = [kind.pack(value_of(name, bytes(each), encoding)) for each in pieces]
    if kind.size is None:
        return packed
    return np.frombuffer(b"".join(packed), np.uint8).reshape(len(packed), kind.size)
