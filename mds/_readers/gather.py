"""Batches of rows of several readers, without a Python object for each sample.

The samples of a batch are given by the number of the shard of each, and its row in the shard. They
are grouped by shard (`Groups`), and the rows of a group are read at once, column by column.

If all values of a column have one width, a value is a cell: one element of so many raw bytes (dtype
``V8`` for a float64). Cells are copied from the mapped files into those of the batch, without
regard to their type and shape.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mds._readers.base import Batch, Reader, Rows
from mds._readers.fields import Field, check_columns
from mds._readers.joint import FixedReader, values_of
from mds._words import plural
from mds.errors import ShardError

_MAX_SCRATCH = 8 << 20  # bytes of scratch memory that a thread keeps


class _Scratch(threading.local):
    """Memory of a thread for intermediate copies, which is used again.

    New memory would cost as much time as the copying itself.
    """

    memory: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def like(self, cells: Array) -> Array:
        """Return an array of the same shape and dtype, valid until the thread's next call."""
        if cells.nbytes > _MAX_SCRATCH:
            return np.empty_like(cells)
        if len(self.memory) < cells.nbytes:
            self.memory = np.empty(cells.nbytes, np.uint8)
        scratch: Array = np.ndarray(cells.shape, cells.dtype, self.memory)
        return scratch


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

    A column of fixed-width numbers is an array of shape (rows, *shape). Any other is a list.

    Args:
        readers: Reader by shard number. All must have the same columns.
        shards: Shard number of each sample.
        rows: Row of each sample in its shard.
        columns: Columns to return (default None: all selected ones).
        out: Arrays to fill, by column: writable, in C order, of the dtype and shape of the result.
        copy: Whether arrays in lists belong to the caller; without it they may be views of files.

    Raises IndexError for rows that do not exist, ShardError for readers or arrays that do not fit
    together, and what the readers raise.
    """
    shards, rows = np.asarray(shards), np.asarray(rows)
    if len(shards) != len(rows):
        raise ShardError(
            f"{plural(len(shards), 'shard')} and {plural(len(rows), 'row')}: each sample needs "
            "one of both."
        )
    if len(shards) == 0:
        return {}
    groups = group_by_shard(shards)
    # Only the readers of these shards; `kind` is their class, or Reader if they differ.
    used = {number: readers[number] for number in groups.numbers}
    kind, schema = None, next(iter(used.values())).schema
    for reader in used.values():
        kind = type(reader) if kind in {None, type(reader)} else Reader
        if reader.schema.columns != schema.columns:
            raise ShardError(f"{reader.source}: its columns are not {schema.columns.names}.")
    if columns is not None:
        check_columns(schema.columns.names, columns)
    if kind is FixedReader:
        return _gather_fixed(used, groups, shards, rows, columns, out or {})  # type: ignore[arg-type]
    for reader in used.values():
        if reader.check_unchanged is not None:
            reader.check_unchanged()
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
    """Return the batch of readers of fixed-width columns; each value is copied once.

    The arguments are those of `gather`; ``groups`` are the samples grouped by ``shards``.
    """
    low = int(rows.min())
    if low < 0:  # numpy would count it from the end
        raise IndexError(f"there is no row {low}.")
    first = next(iter(readers.values()))
    fields = [f for f in first.fields.selected if columns is None or f.name in columns]
    batch: Batch = {}
    for field in fields:
        sources = {number: reader.cells[field.name] for number, reader in readers.items()}
        if field.name not in out and len(groups.pieces) == 1:  # all rows are of one shard
            ((number, _, _),) = groups.pieces
            cells = _read_run(sources[number], rows)
            # The batch must not refer to the file, which may be closed before the batch is used.
            is_view = cells.base is not None
            batch[field.name] = values_of(cells.copy() if is_view else cells, field)
            continue
        # `cells` is a view of `array`, so filling it fills the array.
        array, cells = _make_array(field, len(rows), out)
        _copy_cells(sources, cells, groups, shards, rows)
        batch[field.name] = array
    return batch


def _copy_cells(
    sources: Mapping[int, Array], cells: Array, groups: Groups, shards: Array, rows: Array
) -> None:
    """Fill one column of the batch.

    Args:
        sources: Cells of the column in each shard, shape (samples,), by shard number.
        cells: Cells of the batch to fill, shape (rows,).
        groups: The samples of the batch, grouped by shard.
        shards: Shard number of each sample.
        rows: Row of each sample in its shard.
    """
    if groups.are_small:
        for place, (number, row) in enumerate(zip(shards.tolist(), rows.tolist(), strict=True)):
            cells[place] = sources[number][row]
        return
    if groups.order is None or groups.back is None:
        for number, start, stop in groups.pieces:
            _copy_rows(sources[number], rows[start:stop], cells[start:stop])
        return
    # Copy all cells of a shard next to each other, then move each to its place. Both calls release
    # the interpreter's lock; an assignment to scattered places would not.
    ordered_rows, ordered_cells = rows[groups.order], _scratch.like(cells)
    for number, start, stop in groups.pieces:
        _copy_rows(sources[number], ordered_rows[start:stop], ordered_cells[start:stop])
    ordered_cells.take(groups.back, out=cells, mode="clip")


def _read_run(cells: Array, rows: Array) -> Array:
    """Return rows of one shard: a view if they are consecutive, else a copy."""
    start, count = int(rows[0]), len(rows)
    # Increasing rows are consecutive if the last one is as far from the first as their number.
    is_run = start + count <= len(cells) and int(rows[-1]) == start + count - 1
    if is_run and (count < 3 or (rows[1:] > rows[:-1]).all()):
        return cells[start : start + count]
    out = np.empty(count, cells.dtype)
    _copy_rows(cells, rows, out)
    return out


def _copy_rows(cells: Array, rows: Array, out: Array) -> None:
    """Copy rows of one shard to ``out``; numpy releases the interpreter's lock if it can.

    ``take`` always releases it, a fancy index only for more than 500 elements (measured: two
    threads copy 256 rows of 8 KB 1.8 times as fast as one, and 0.9 times with the fancy index). But
    ``take`` would first copy all of an array with gaps, such as a column beside others.
    """
    if not cells.flags.c_contiguous:
        out[...] = cells[rows]
        return
    if int(rows.max()) >= len(cells):
        raise IndexError(f"there is no row {int(rows.max())} in a shard of {len(cells)}.")
    cells.take(rows, out=out, mode="clip")  # other modes copy through a buffer


def _make_array(field: Field, count: int, out: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return an array for a column of ``count`` values, and a view of it as ``count`` raw cells.

    A cell is one element of the bytes of a value. The array is that of ``out`` or a new one.
    """
    dtype, shape = field.encoding.dtype, field.encoding.shape
    assert dtype is not None
    assert shape is not None
    array = _check_out(out.get(field.name), field.name, dtype, (count, *shape))
    return array, np.ndarray((count,), f"V{field.size}", array)


def _check_out(array: Array | None, name: str, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Return ``array``, the caller's array for column ``name``, or a new one for None.

    Raises ShardError unless it is writable, in C order and of this dtype and shape.
    """
    if array is None:
        return np.empty(shape, dtype)
    is_usable = array.flags.c_contiguous and array.flags.writeable
    if array.dtype != dtype or array.shape != shape or not is_usable:
        raise ShardError(
            f"out[{name!r}] must be a writable array of {dtype} in C order with shape {shape}, "
            f"got {array.dtype} {array.shape}."
        )
    return array


def _gather_any(
    readers: dict[int, Reader],
    groups: Groups,
    rows: Array,
    columns: Sequence[str] | None,
    out: Mapping[str, Array],
    *,
    copy: bool,
) -> Batch:
    """Return the batch of readers of any kind; the rows of each shard are read together.

    Args:
        readers: Readers by shard number.
        groups: The samples of the batch, grouped by shard.
        rows: Row of each sample in its shard, shape (samples,).
        columns: Names of the wanted columns; None takes all.
        out: Arrays to fill, by column; other columns get new arrays or lists.
        copy: Whether no value may refer to the file of a shard.
    """
    batch: Batch = {}
    for number, places in groups.places():
        shard_batch = readers[number].rows(rows[places], copy=copy)
        for name in shard_batch if columns is None else columns:
            values = shard_batch[name]
            if len(groups.pieces) == 1 and name not in out:  # one shard: its column is the batch's
                batch[name] = values
                continue
            if name not in batch:
                batch[name] = (
                    [None] * len(rows)
                    if isinstance(values, list)
                    else _check_out(
                        out.get(name), name, values.dtype, (len(rows), *values.shape[1:])
                    )
                )
            batch[name] = _assign(batch[name], values, places)
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
    """Return the batch of a few samples of each shard, which are decoded one by one.

    Args:
        readers: Readers by shard number.
        shards: Shard number of each sample, shape (samples,).
        rows: Row of each sample in its shard, shape (samples,).
        columns: Names of the wanted columns; None takes all.
        out: Arrays to fill, by column; other columns get new arrays.
        copy: Whether no value may refer to the file of a shard.
    """
    first, pairs = next(iter(readers.values())), zip(shards.tolist(), rows.tolist(), strict=True)
    # Views are faster, and fit if the caller accepts them or if `as_columns` copies them.
    if copy and not first.is_stacked:
        samples = [readers[number].get(row) for number, row in pairs]
    else:
        samples = [readers[number].viewer()(row) for number, row in pairs]
    batch = first.as_columns(samples)
    if columns is not None:
        batch = {name: batch[name] for name in columns}
    for name in out.keys() & batch.keys():
        values = batch[name]
        if isinstance(values, np.ndarray):
            batch[name] = _check_out(out[name], name, values.dtype, values.shape)
            batch[name][:] = values
    return batch


def _assign(column: Any, values: Any, places: Places) -> Any:
    """Assign values to positions of a column of the batch, and return the column.

    ``column`` is an array or a list, ``values`` are those of one shard, and ``places`` a slice or
    an array of positions. The returned column is another object if the array became a list.
    """
    if isinstance(values, list) and not isinstance(column, list):
        # This shard (csv) has integers that NumPy cannot hold, so the column becomes a list.
        column = list(column)
    if not isinstance(column, list) or isinstance(places, slice):
        column[places] = values
        return column
    for place, value in zip(places.tolist(), values, strict=True):
        column[place] = value
    return column


if TYPE_CHECKING:
    Array = npt.NDArray[Any]
    Places = slice | npt.NDArray[np.int64]

# For fewer rows of a shard than this, copying one by one is faster than numpy's fancy index
# (measured with 8 KB rows: 0.3 us a row against 1.2 us a shard and 0.15 us a row).
_ROWS_WORTH_A_GROUP = 24


class Groups(NamedTuple):
    """The samples of a batch, grouped by shard.

    Attributes:
        pieces: Shard, start and stop of each group, among the samples in ``order``.
        numbers: The shards in the order of their first sample.
        order: Positions of the samples in the batch, group by group; None if the samples of each
            shard are consecutive already.
        back: The inverse permutation of ``order``.
        are_small: Whether groups are too small to be copied as groups; ``pieces`` is empty then.

    For samples of the shards 7 2 7 2 it is: pieces [(2, 0, 2), (7, 2, 4)], numbers [7, 2], order
    [1, 3, 0, 2], back [2, 0, 3, 1].
    """

    pieces: list[tuple[int, int, int]]
    numbers: list[int]
    order: npt.NDArray[np.int64] | None = None
    back: npt.NDArray[np.int64] | None = None
    are_small: bool = False

    def places(self) -> Iterator[tuple[int, Places]]:
        """Yield each shard with the positions of its samples in the batch."""
        for number, start, stop in self.pieces:
            yield number, slice(start, stop) if self.order is None else self.order[start:stop]


def group_by_shard(shards: Array) -> Groups:
    """Group the samples of a batch by their shards.

    ``shards`` has the shard number of each sample. Three cases, from the cheapest:

        7 7 7 7 2 2 2 2   long runs of one shard: a group for each run, in the order of the batch
        7 2 9 4 8 1 3 6   many shards: groups would be too small, samples are read one by one
        7 2 7 2 2 7 7 2   few shards, mixed: sorted by shard, a group for each
    """
    count, changes = len(shards), _changes(shards)
    if not len(changes) or len(changes) * _ROWS_WORTH_A_GROUP <= count:
        # Long runs of one shard: each run is a group, and no sorting is needed.
        pieces = _cut_groups(shards, changes)
        return Groups(pieces, [*dict.fromkeys(number for number, _, _ in pieces)])
    numbers = _by_first_use(shards, changes)
    if len(numbers) * _ROWS_WORTH_A_GROUP > count:
        return Groups([], numbers, are_small=True)
    # Sort by shard; `back` leads from a position in the batch to the one in `order`.
    order = np.argsort(shards, kind="stable")
    ordered, back = shards[order], np.empty(count, np.int64)
    back[order] = np.arange(count)
    return Groups(_cut_groups(ordered, _changes(ordered)), numbers, order, back)


def _cut_groups(shards: Array, changes: Array) -> list[tuple[int, int, int]]:
    """Return shard, start and stop of each run of one shard; ``changes`` are their starts."""
    bounds = [0, *changes.tolist(), len(shards)]
    return [(int(shards[start]), start, stop) for start, stop in pairwise(bounds)]


def unique_stable(shards: Array) -> list[int]:
    """Return the distinct shards in the order of their first use; fast for runs of one shard."""
    return _by_first_use(shards, _changes(shards))


def _by_first_use(shards: Array, changes: Array) -> list[int]:
    """Return the distinct shards in the order of their first use; see `_changes`."""
    # The shard of each run.
    runs = np.concatenate([shards[:1], shards[changes]])
    # Many runs of small shard numbers: a table by shard number is faster than a dict.
    if len(runs) > 64 and (top := int(runs.max())) < 8 * len(runs):
        # First run of each shard: assigned in reverse, so the earliest one is written last.
        firsts = np.full(top + 1, len(runs))
        firsts[runs[::-1]] = np.arange(len(runs) - 1, -1, -1)
        first_runs = np.sort(firsts)[: np.count_nonzero(firsts < len(runs))]
        shards_by_use: list[int] = runs[first_runs].tolist()
        return shards_by_use
    return [*dict.fromkeys(runs.tolist())]


def _changes(shards: Array) -> npt.NDArray[np.intp]:
    """Return the positions where the shard differs from the one before."""
    return np.flatnonzero(shards[1:] != shards[:-1]) + 1
