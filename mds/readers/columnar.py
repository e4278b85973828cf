"""Many samples of an mds shard at once, as columns.

A fixed-width column is gathered by one numpy call wherever its values lie: the file is viewed as
an array of elements as wide as the value that overlap at every byte, and indexing that with the
byte positions copies each value once, at the speed of a plain fancy index, aligned or not
(measured for 8 KB rows: 0.141 us each, against 0.149 us from an aligned array).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mds.encodings import DecodeKind
from mds.errors import ShardError
from mds.readers.codegen import load_json, vector_decoder
from mds.readers.fields import Field, Fields

if TYPE_CHECKING:
    from mds.readers.base import Batch
    from mds.readers.mmap_file import Data

Positions = npt.NDArray[np.int64]


def gather(
    fields: Fields, data: Data, offsets: npt.NDArray[np.uint32], numbers: Positions
) -> Batch:
    """Return the wanted columns of samples. Raises ShardError if sizes do not add up."""
    begins = offsets[numbers].astype(np.int64)
    places = begins + 4 * fields.variable
    words = None
    if fields.variable:
        words = take(data, begins, 4 * fields.variable, "<u4").astype(np.int64)
        words = words.reshape(len(numbers), fields.variable)
        fixed = 4 * fields.variable + sum(field.size or 0 for field in fields.all)
        sizes = offsets[numbers + 1].astype(np.int64) - begins
        if not np.array_equal(words.sum(axis=1) + fixed, sizes):
            raise ShardError("sizes of columns do not add up to those of their samples.")
    out: Batch = {}
    size_index = 0
    for field in fields.all:
        start = places
        if field.size is not None:
            places = places + field.size
        elif words is not None:
            places = places + words[:, size_index]
            size_index += 1
        if field.is_wanted:
            out[field.name] = (
                column(field, data, start)
                if field.is_columnar
                else values(field, data, start, places)
            )
    return out


def column(field: Field, data: Data, starts: Positions) -> npt.NDArray[Any]:
    """Values of one fixed-width column that begin at ``starts``, as an array."""
    dtype, shape = field.encoding.dtype, field.encoding.shape
    assert dtype is not None
    assert shape is not None
    assert field.size
    array = take(data, starts, field.size, dtype).reshape(len(starts), *shape)
    if dtype.kind == "b" and (array.view(np.uint8) > 1).any():
        raise ShardError(f"column {field.name!r}: a byte of a bool is neither 0 nor 1.")
    return array


def take(data: Data, starts: Positions, width: int, dtype: Any) -> npt.NDArray[Any]:
    """``width`` bytes from each start as a flat array of ``dtype``; numpy checks the bounds."""
    if not len(starts):
        return np.empty(0, dtype)
    overlapping = np.ndarray((len(data) - width + 1,), f"V{width}", data, 0, (1,))
    values_at_starts: npt.NDArray[Any] = overlapping[starts].view(dtype)
    return values_at_starts


def stack(field: Field, samples: list[dict[str, Any]]) -> npt.NDArray[Any] | list[Any]:
    """One column of decoded samples, as ``gather`` gives it."""
    cells = [sample[field.name] for sample in samples]
    shape = field.encoding.shape
    if not field.is_columnar or shape is None:
        return cells
    out = np.empty((len(cells), *shape), field.encoding.dtype)
    if not shape:
        out[:] = cells
        return out
    for place, value in enumerate(cells):
        out[place] = value
    return out


def values(field: Field, data: Data, starts: Positions, ends: Positions) -> list[Any]:
    """Values of any other column, as a list."""
    places = zip(starts.tolist(), ends.tolist(), strict=True)
    if field.kind is DecodeKind.BYTES:
        return [data[start:end] for start, end in places]
    if field.kind is DecodeKind.TEXT:
        return [str(data[start:end], "utf-8") for start, end in places]
    if field.kind is DecodeKind.JSON:
        return [load_json(str(data[start:end], "utf-8")) for start, end in places]
    view, decode = memoryview(data), field.decode
    if field.kind is DecodeKind.VECTOR:
        vector = vector_decoder(field)
        return [vector(data, view, start, end) for start, end in places]
    return [decode(view[start:end]) for start, end in places]
