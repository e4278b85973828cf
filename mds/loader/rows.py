"""Chunks of a worker's order on their way to a batch, and the steps that every batch takes.

A batch is made in stages: ``read -> filter -> map -> collate | pack -> mask -> transport``. A stage
takes an iterator of `Rows` and returns one: it is a generator, or a function under ``map()`` that
sets the values of its `Rows` and returns them. It keeps no reference to what it has handed on, so
that the memory of one chunk can be that of the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.errors import ConfigError

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from mds.dataset.worker_epoch import KeyStream
    from mds.loader.batch_groups import BatchInfo
    from mds.process.stopwatch import Stopwatch
    from mds.transforms.row_keys import Keys

    Mask = npt.NDArray[np.bool_]


class Rows:
    """Consecutive places of a worker's order: part of a batch, a batch, or several batches.

    Attributes:
        first: The first of the places, counted from the beginning of the worker's order.
        size: Number of places.
        values: Columns (a dict), samples (a list), or the finished batch.
        keys: Row keys of the places, uint64, if a function takes random numbers.
        mask: Which values count, bool; None if all do.
        ends_batch: Whether a batch ends with these places.
        info: Bookkeeping of the batch, where it is not simply that of the places.
        sources: Tensors that the columns may be views of, together with other batches.
        ends_sources: Whether these are the last rows of ``sources``.
    """

    __slots__ = (
        "ends_batch", "ends_sources", "first", "info", "keys", "mask", "size", "sources", "values",
    )  # fmt: skip

    def __init__(
        self,
        first: int,
        size: int,
        values: Any,
        keys: Keys | None = None,
        mask: Mask | None = None,
        ends_batch: bool = True,
        info: BatchInfo | None = None,
        sources: Sequence[torch.Tensor] = (),
        ends_sources: bool = True,
    ) -> None:
        self.first, self.size, self.values = first, size, values
        self.keys, self.mask, self.ends_batch, self.info = keys, mask, ends_batch, info
        self.sources, self.ends_sources = sources, ends_sources


def timed(stage: Iterable[Rows], watch: Stopwatch, phase: int) -> Iterator[Rows]:
    """Return the rows of a stage, and charge to ``phase`` the time since the stage before it.

    The stages take turns in one thread. So the time between two readings of the clock is that of
    the stage between them.
    """

    def charge(rows: Rows) -> Rows:
        watch.charge(phase)
        return rows

    return map(charge, stage)


def cut_columns(
    chunks: Iterable[Rows], batch_size: int, least: int, keys: KeyStream | None
) -> Iterator[Rows]:
    """Yield the batches of chunks of columns as views, except one of fewer than ``least`` rows.

    ``keys`` gives the row keys, if a function takes random numbers. Tensors become arrays.
    """
    for chunk in chunks:
        columns = chunk.values
        if chunk.sources:
            columns = {name: tensor.numpy() for name, tensor in columns.items()}
        for start in range(0, chunk.size, batch_size):
            count = min(batch_size, chunk.size - start)
            row_keys = keys.take(count) if keys is not None else None
            if count < least:
                continue
            values = {name: v[start : start + count] for name, v in columns.items()}
            is_last = chunk.size - start - count < least  # or nothing remains
            rows = Rows(
                chunk.first + start, count, values, row_keys, chunk.mask,
                sources=chunk.sources, ends_sources=is_last,
            )  # fmt: skip
            del values
            yield rows
            del rows
        del chunk, columns


def join_samples(chunks: Iterable[Rows], least: int = 0) -> Iterator[Rows]:
    """Yield each batch of samples in one piece, except one of fewer than ``least`` places."""
    parts: list[Rows] = []
    size = 0
    for rows in chunks:
        parts.append(rows)
        size += rows.size
        is_end = rows.ends_batch
        del rows
        if is_end:
            if size >= least:
                yield _join(parts)
            parts, size = [], 0
    if parts and size >= least:  # the order ends in the middle of a batch
        yield _join(parts)


def _join(parts: list[Rows]) -> Rows:
    """Join parts of a batch, and forget them."""
    if len(parts) == 1:
        return parts.pop()
    joined = Rows(
        parts[0].first,
        sum(rows.size for rows in parts),
        [*itertools.chain.from_iterable(rows.values for rows in parts)],
        _join_arrays([rows.keys for rows in parts]),
        _join_arrays([rows.mask for rows in parts]),
    )
    for rows in parts:
        rows.values = None  # generators may still hold their last rows
    parts.clear()
    return joined


def _join_arrays(arrays: Sequence[Any]) -> Any:
    return None if arrays[0] is None else np.concatenate(arrays)


def add_mask(rows: Rows) -> Rows:
    """Add the mask to a batch that has one."""
    if rows.mask is not None:
        rows.values = with_mask(rows.values, rows.mask)
    return rows


def with_mask(batch: Any, mask: Mask) -> Any:
    """Return a batch with its mask: as column ``mask`` of a dict, else as a pair.

    Raises ConfigError for a batch that has a column of this name.
    """
    import torch

    tensor = torch.from_numpy(mask)
    if not isinstance(batch, dict):
        return batch, tensor
    if "mask" in batch:
        raise ConfigError(
            "batches get a column 'mask' from exact='mask', filter() and on_error='skip', and the "
            "samples have one already. Choose others with columns=, or name it otherwise in a "
            "collate function."
        )
    return {**batch, "mask": tensor}
