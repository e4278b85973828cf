"""Whether the buffers of Arrow arrays hold what their lengths and places say.

Arrow reads memory by places that a file tells. Those of a stranger may lie anywhere, so they are
looked at before a value is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mds.formats.arrow_types import list_dtype, number_name, pyarrow

if TYPE_CHECKING:
    import pyarrow as pa


def check_batch(batch: pa.RecordBatch) -> None:
    """Raise an error of pyarrow, or ValueError, where a value would be read from other memory."""
    for column in batch.columns:
        check_column(column)


def check_column(column: pa.Array) -> None:
    """Raise an error of pyarrow, or ValueError, where a value would be read from other memory."""
    kind, types = column.type, pyarrow().types
    is_flat = number_name(kind) is not None or types.is_boolean(kind) or types.is_temporal(kind)
    if is_flat:
        column.validate()
    elif (places := places_of(column)) is not None:
        column.validate()
        if len(places) and (places[0] < 0 or np.any(np.diff(places) < 0)):
            raise ValueError("places that go backwards")
    else:
        column.validate(full=True)


def places_of(column: pa.Array) -> np.ndarray[Any, Any] | None:
    """Return the bounds of the values of text, bytes and lists of numbers, else None."""
    types, kind = pyarrow().types, column.type
    is_long = (
        types.is_large_string(kind) or types.is_large_binary(kind) or types.is_large_list(kind)
    )
    is_short = types.is_string(kind) or types.is_binary(kind) or types.is_list(kind)
    is_list = types.is_list(kind) or types.is_large_list(kind)
    if not (is_long or is_short) or (is_list and list_dtype(kind) is None):
        return None
    if not len(column):
        return np.zeros(1, np.int64)
    offsets = column.buffers()[1]
    count = len(column) + 1 + column.offset
    return np.frombuffer(offsets, "<i8" if is_long else "<i4", count)[column.offset :]
