"""One batch of rows of several readers, made without a Python object for each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mds.errors import ShardError
from mds.readers.base import Batch, Reader, Rows

if TYPE_CHECKING:
    Out = Mapping[str, npt.NDArray[Any]]


def gather(
    readers: Mapping[int, Reader],
    shards: Rows,
    rows: Rows,
    columns: Sequence[str] | None = None,
    out: Out | None = None,
) -> Batch:
    """The samples (shards[i], rows[i]) as columns, in that order.

    ``readers`` gives the reader of a shard number; all must have the same columns. A column of
    fixed-width numbers is an array of shape (rows, *shape), ``out[name]`` where it is given; any
    other is a list. Raises what the readers raise, and ShardError for readers that do not fit.
    """
    shards, rows = np.asarray(shards), np.asarray(rows)
    if len(shards) == 0:
        return {}
    groups = _groups(shards)
    batch: Batch = {}
    for number, places in groups:
        found = readers[number].rows(rows[places])
        for name in found if columns is None else columns:
            if name not in batch:
                batch[name] = _room(found[name], len(rows), (out or {}).get(name))
            _put(batch[name], found[name], places, name)
    return batch


def _groups(shards: npt.NDArray[Any]) -> list[tuple[int, slice | npt.NDArray[np.int64]]]:
    """The shards that occur, each with the places where it does."""
    changes = np.flatnonzero(shards[1:] != shards[:-1]) + 1
    bounds = [0, *changes.tolist(), len(shards)]
    numbers = shards[bounds[:-1]].tolist()
    if len(set(numbers)) == len(numbers):
        return [(n, slice(a, b)) for n, a, b in zip(numbers, bounds, bounds[1:], strict=False)]
    order = np.argsort(shards, kind="stable")
    _, firsts = np.unique(shards[order], return_index=True)
    return [(int(shards[places[0]]), places) for places in np.split(order, firsts[1:])]


def _room(found: Any, count: int, given: npt.NDArray[Any] | None) -> Any:
    if isinstance(found, list):
        return [None] * count
    if given is None:
        return np.empty((count, *found.shape[1:]), found.dtype)
    if given.shape != (count, *found.shape[1:]) or given.dtype != found.dtype:
        raise ShardError(f"out has {given.dtype} {given.shape}, the rows are {found.dtype} "
                         f"{(count, *found.shape[1:])}.")  # fmt: skip
    return given


def _put(room: Any, found: Any, places: slice | npt.NDArray[np.int64], name: str) -> None:
    if isinstance(room, list) != isinstance(found, list):
        raise ShardError(f"column {name!r} is of another kind in another shard.")
    if not isinstance(room, list) or isinstance(places, slice):
        room[places] = found
        return
    for place, value in zip(places.tolist(), found, strict=True):
        room[place] = value
