"""One batch of rows of several readers, made without a Python object for each sample."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mds.errors import ShardError
from mds.readers.base import Batch, Reader, Rows
from mds.readers.fields import Field, check_columns
from mds.readers.fixed import FixedReader, values_of

_KEPT = 8 << 20  # bytes of scratch memory that a thread keeps at most


class _Scratch(threading.local):
    """Memory in which a thread puts rows together, kept: fresh pages cost as much as copying."""

    memory: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def like(self, cells: Array) -> Array:
        """Return an array of this shape and type, valid until the thread's next one."""
        if cells.nbytes > _KEPT:
            return np.empty_like(cells)
        if len(self.memory) < cells.nbytes:
            self.memory = np.empty(cells.nbytes, np.uint8)
        found: Array = np.ndarray(cells.shape, cells.dtype, self.memory)
        return found


_scratch = _Scratch()


def gather(
    readers: Mapping[int, Reader],
    shards: Rows,
    rows: Rows,
    columns: Sequence[str] | None = None,
    out: Mapping[str, Array] | None = None,
    *,
    copy: bool = True,
) -> Batch:
    """Return the samples (shards[i], rows[i]) as columns, in that order.

    ``readers`` gives the reader of a shard number; all must have the same columns. A column of
    fixed-width numbers is an array of shape (rows, *shape), ``out[name]`` where it is given (C
    order, writable); any other is a list, whose arrays may be views without ``copy``. Raises
    IndexError for rows that do not exist, what the readers raise, and ShardError for readers or
    arrays that do not fit together.
    """
    shards, rows = np.asarray(shards), np.asarray(rows)
    if len(shards) == 0 or len(shards) != len(rows):
        if len(shards) == len(rows):
            return {}
        raise ShardError(f"{len(shards)} shards and {len(rows)} rows do not make samples.")
    groups = by_shard(shards)
    used = {number: readers[number] for number in groups.numbers}
    kind, schema = None, next(iter(used.values())).schema
    for reader in used.values():
        kind = type(reader) if kind in {None, type(reader)} else Reader
        if reader.schema.columns != schema.columns:
            raise ShardError(
                f"{reader.where}: its columns are not those of {schema.columns.names}."
            )
    if columns is not None:
        check_columns(schema.columns.names, columns)
    if kind is FixedReader:
        return _gather_fixed(used, groups, shards, rows, columns, out or {})  # type: ignore[arg-type]
    if groups.are_small:
        return _gather_few(used, shards, rows, columns, out or {}, copy=copy)
    return _gather_any(used, groups, rows, columns, out or {}, copy=copy)


def _gather_fixed(
    readers: dict[int, FixedReader],
    groups: Groups,
    shards: Array,
    rows: Array,
    columns: Sequence[str] | None,
    out: Mapping[str, Array],
) -> Batch:
    """Copy each value once, from the mapped file to its place in the batch."""
    low = int(rows.min())
    if low < 0:
        raise IndexError(f"there is no row {low}.")
    first = next(iter(readers.values()))
    fields = [f for f in first.fields.wanted if columns is None or f.name in columns]
    batch: Batch = {}
    for field in fields:
        sources = {number: reader.cells[field.name] for number, reader in readers.items()}
        if field.name not in out and len(groups.pieces) == 1:
            ((number, _, _),) = groups.pieces
            found = _run(sources[number], rows)
            batch[field.name] = values_of(found.copy() if found.base is not None else found, field)
            continue
        room, cells = _room(field, len(rows), out)
        _copy(sources, cells, groups, shards, rows)
        batch[field.name] = room
    return batch


def _copy(
    sources: Mapping[int, Array], cells: Array, groups: Groups, shards: Array, rows: Array
) -> None:
    """Fill the cells of one column."""
    if groups.are_small:
        for at, (number, row) in enumerate(zip(shards.tolist(), rows.tolist(), strict=True)):
            cells[at] = sources[number][row]
        return
    if groups.order is None or groups.back is None:
        for number, start, stop in groups.pieces:
            _take(sources[number], rows[start:stop], cells[start:stop])
        return
    # All of a shard beside each other, then each to its place: in two calls that let other threads
    # run, where a scattering assignment would not.
    ordered, together = rows[groups.order], _scratch.like(cells)
    for number, start, stop in groups.pieces:
        _take(sources[number], ordered[start:stop], together[start:stop])
    together.take(groups.back, out=cells, mode="clip")


def _run(cells: Array, rows: Array) -> Array:
    """Rows of one shard: a slice where they follow each other, which needs no copy."""
    start, count = int(rows[0]), len(rows)
    is_run = start + count <= len(cells) and int(rows[-1]) == start + count - 1
    if is_run and (count < 3 or (rows[1:] > rows[:-1]).all()):
        return cells[start : start + count]
    out = np.empty(count, cells.dtype)
    _take(cells, rows, out)
    return out


def _take(cells: Array, rows: Array, out: Array) -> None:
    """Copy rows of one shard, with the interpreter's lock let go where numpy can.

    ``take`` always lets go, a fancy index only for more than 500 elements (measured: two threads
    copy 256 rows of 8 KB 1.8 times as fast as one, and 0.9 times with the fancy index). It would
    copy all of an array with gaps first, as cells beside other columns are.
    """
    if not cells.flags.c_contiguous:
        out[...] = cells[rows]
        return
    if int(rows.max()) >= len(cells):
        raise IndexError(f"there is no row {int(rows.max())} in a shard of {len(cells)}.")
    cells.take(rows, out=out, mode="clip")  # other modes copy through a buffer


def _room(field: Field, count: int, out: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return the array of a column, and the same memory as opaque cells."""
    dtype, shape = field.encoding.dtype, field.encoding.shape
    assert dtype is not None
    assert shape is not None
    room = _fitting(out.get(field.name), field.name, dtype, (count, *shape))
    return room, np.ndarray((count,), f"V{field.size}", room)


def _fitting(given: Array | None, name: str, dtype: Any, shape: tuple[int, ...]) -> Array:
    if given is None:
        return np.empty(shape, dtype)
    is_usable = given.flags.c_contiguous and given.flags.writeable
    if given.dtype != dtype or given.shape != shape or not is_usable:
        raise ShardError(
            f"out[{name!r}] must be a writable array of {dtype} in C order with shape {shape}, "
            f"got {given.dtype} {given.shape}."
        )
    return given


def _gather_any(
    readers: dict[int, Reader],
    groups: Groups,
    rows: Array,
    columns: Sequence[str] | None,
    out: Mapping[str, Array],
    *,
    copy: bool,
) -> Batch:
    """Fill columns that are lists, group by group."""
    batch: Batch = {}
    for number, places in groups.places():
        found = readers[number].rows(rows[places], copy=copy)
        for name in found if columns is None else columns:
            values = found[name]
            if len(groups.pieces) == 1 and name not in out:
                batch[name] = values
                continue
            if name not in batch:
                batch[name] = (
                    [None] * len(rows)
                    if isinstance(values, list)
                    else _fitting(out.get(name), name, values.dtype, (len(rows), *values.shape[1:]))
                )
            batch[name] = _put(batch[name], values, places)
    return batch


def _gather_few(
    readers: dict[int, Reader],
    shards: Array,
    rows: Array,
    columns: Sequence[str] | None,
    out: Mapping[str, Array],
    *,
    copy: bool,
) -> Batch:
    """Fill columns from a few samples of each shard, decoded one by one."""
    first, pairs = next(iter(readers.values())), zip(shards.tolist(), rows.tolist(), strict=True)
    if copy and not first.is_stacked:
        samples = [readers[number].get(row) for number, row in pairs]
    else:
        samples = [readers[number].viewer()(row) for number, row in pairs]
    batch = first.as_columns(samples)
    if columns is not None:
        batch = {name: batch[name] for name in columns}
    for name in out.keys() & batch.keys():
        found = batch[name]
        if isinstance(found, np.ndarray):
            batch[name] = _fitting(out[name], name, found.dtype, found.shape)
            batch[name][:] = found
    return batch


def _put(room: Any, found: Any, places: Places) -> Any:
    if isinstance(found, list) and not isinstance(room, list):
        room = list(room)  # a csv shard whose integers NumPy cannot hold makes a list of them all
    if not isinstance(room, list) or isinstance(places, slice):
        room[places] = found
        return room
    for place, value in zip(places.tolist(), found, strict=True):
        room[place] = value
    return room


if TYPE_CHECKING:
    Array = npt.NDArray[Any]
    Places = slice | npt.NDArray[np.int64]

# With fewer rows of a shard than this, copying them one by one is quicker than numpy's fancy index
# (measured with 8 KB rows: 0.3 us a row against 1.2 us a shard and 0.15 us a row).
_ROWS_WORTH_A_GROUP = 24


class Groups(NamedTuple):
    """The samples of a batch, shard by shard; only the shards where they ``are_small``.

    ``pieces``: shard, start and stop of each, in the order that ``order`` puts the samples into,
    and ``back`` from there; None where they lie so already. ``numbers``: the shards by first use.
    """

    pieces: list[tuple[int, int, int]]
    numbers: list[int]
    order: npt.NDArray[np.int64] | None = None
    back: npt.NDArray[np.int64] | None = None
    are_small: bool = False

    def places(self) -> Iterator[tuple[int, Places]]:
        """Each shard with the places of its samples in the batch."""
        for number, start, stop in self.pieces:
            yield number, slice(start, stop) if self.order is None else self.order[start:stop]


def by_shard(shards: Array) -> Groups:
    """Group the samples of a batch by their shards."""
    count, changes = len(shards), _changes(shards)
    if not len(changes) or len(changes) * _ROWS_WORTH_A_GROUP <= count:
        pieces = _pieces(shards, changes)
        return Groups(pieces, [*dict.fromkeys(number for number, _, _ in pieces)])
    numbers = _by_first_use(shards, changes)
    if len(numbers) * _ROWS_WORTH_A_GROUP > count:
        return Groups([], numbers, are_small=True)
    order = np.argsort(shards, kind="stable")
    ordered, back = shards[order], np.empty(count, np.int64)
    back[order] = np.arange(count)
    return Groups(_pieces(ordered, _changes(ordered)), numbers, order, back)


def _pieces(shards: Array, changes: Array) -> list[tuple[int, int, int]]:
    bounds = [0, *changes.tolist(), len(shards)]
    return [(int(shards[start]), start, stop) for start, stop in pairwise(bounds)]


def unique_stable(shards: Array) -> list[int]:
    """Return the distinct shards, by first use; quick for runs of one shard."""
    return _by_first_use(shards, _changes(shards))


def _by_first_use(shards: Array, changes: Array) -> list[int]:
    runs = np.concatenate([shards[:1], shards[changes]])
    if len(runs) > 64 and (top := int(runs.max())) < 8 * len(runs):
        # First use of each shard: assigned in reverse, so the earliest use is written last.
        firsts = np.full(top + 1, len(runs))
        firsts[runs[::-1]] = np.arange(len(runs) - 1, -1, -1)
        found: list[int] = runs[np.sort(firsts)[: np.count_nonzero(firsts < len(runs))]].tolist()
        return found
    return [*dict.fromkeys(runs.tolist())]


def _changes(shards: Array) -> npt.NDArray[np.intp]:
    """Return the positions where the shard differs from the one before."""
    return np.flatnonzero(shards[1:] != shards[:-1]) + 1
