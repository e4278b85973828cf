"""Batches of packs: the documents of a rank's packs end to end, or a pack a row.

Documents are copied once, from the mapped shards to their place in the batch. What goes along with
the tokens (positions, document numbers, where documents begin) follows from the plan alone.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mds.dataset.reading import read_windows
from mds.encodings import DecodeKind, parse_encoding
from mds.errors import ConfigError, IndexFileError
from mds.loader.batch_groups import BatchInfo
from mds.readers import gather
from mds.transforms.columns import tensor_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds.dataset.filtering import DropCount
    from mds.dataset.packed_epoch import PackedEpoch
    from mds.dataset.samples import Samples
    from mds.loader.batch_groups import Batch
    from mds.loader.tensor_buffers import Allocator
    from mds.plan.pack_plan import RankPacks
    from mds.prefetch.prefetcher import Window

    Ids = NDArray[np.int64]

PACK_AS = ("varlen", "dense")
#: What a loss leaves out, as torch's cross entropy does.
IGNORED = -100
_LABELS = "labels"
#: Columns of a batch that the packs give.
_ADDED = ("position_ids", "document_ids", "cu_seqlens", "max_seqlen")


def packed_batches(
    dataset: Samples,
    epoch: PackedEpoch,
    pack_as: str,
    allocate: Allocator,
    *,
    drop_last: bool,
) -> Iterator[Batch]:
    """The batches of one worker, each with its bookkeeping.

    ``drop_last`` leaves out the last step, on all ranks, if it has places without a pack.
    """
    waiting: collections.deque[RankPacks] = collections.deque()
    whole, begun = epoch.plan.shape.global_batch, epoch.begun

    def blocks() -> Iterator[Ids]:
        for packs in epoch.steps():
            if packs.packs == whole or not drop_last:
                waiting.append(packs)
                yield packs.ids

    batch = _Filling(dataset, epoch, allocate)
    for window in read_windows(dataset, blocks(), epoch):
        at = 0
        while at < len(window.ids):
            if batch.is_full:
                yield _batch(batch, waiting, pack_as, begun, dataset._dropped)
            at = batch.fill(waiting[0], window, at)
        del window
    while waiting:
        yield _batch(batch, waiting, pack_as, begun, dataset._dropped)


def _batch(
    filled: _Filling,
    waiting: collections.deque[RankPacks],
    pack_as: str,
    begun: tuple[int, int],
    count: DropCount,
) -> Batch:
    """The batch that was filled, or the next one if that has no documents."""
    packs = waiting.popleft()
    flat, others = filled.take(packs)
    made = varlen(packs, flat) if pack_as == "varlen" else dense(packs, flat, filled.capacity)
    resume = (packs.position, packs.cursors, packs.turn)
    count.add((), packs.dropped)
    info = BatchInfo(len(packs.counts), packs.order, begun, dropped=packs.dropped, packs=resume)
    return info, {**made, **others}


class _Filling:
    """A batch that is being filled: the values of its documents end to end, column by column."""

    def __init__(self, dataset: Samples, epoch: PackedEpoch, allocate: Allocator) -> None:
        plan = epoch.plan
        self._tokens, self.capacity = plan.packing.lengths, plan.packing.capacity
        self._lengths, self._allocate = plan.lengths, allocate
        self._following, self._others = _columns(dataset, self._tokens)
        self._ramp = np.arange(1)
        self._begin()

    def _begin(self) -> None:
        self._done = self._filled = 0  # documents, and their tokens
        self._packs: RankPacks | None = None
        self._values: dict[str, list[Any]] = {name: [] for name in self._others}

    @property
    def is_full(self) -> bool:
        """Whether all documents of the batch are there."""
        return self._packs is not None and self._done == len(self._packs.ids)

    def fill(self, packs: RankPacks, window: Window, at: int) -> int:
        """Copy documents of a window from its place ``at`` on; where those of others begin."""
        if not len(packs.ids):  # told as a batch of its own
            self._packs = packs
            return at
        if self._packs is None:
            self._packs = packs
            self._whole = self._lengths.take(packs.ids)
            self._flat = {
                name: self._allocate((int(packs.sizes.sum()),), dtype)
                for name, dtype in self._following.items()
            }
        first, last = self._done, min(self._done + len(window.ids) - at, len(packs.ids))
        stop = at + last - first
        found = gather(window.readers, window.shards[at:stop], window.rows[at:stop], copy=False)
        sizes, whole = packs.sizes[first:last], self._whole[first:last]
        end = self._filled + int(sizes.sum())
        is_cut = not np.array_equal(sizes, whole)
        starts = packs.starts[first:last].tolist()
        for name, room in self._flat.items():
            values = found[name]
            self._check(name, values, whole, packs.ids[first:last])
            if is_cut:
                cuts = zip(values, starts, sizes.tolist(), strict=True)
                values = [value[start : start + size] for value, start, size in cuts]
            out = room[self._filled : end].numpy()
            np.concatenate(values, out=out, casting="unsafe")
        for name, rows in self._values.items():
            rows += [np.array(v) if isinstance(v, np.ndarray) else v for v in found[name]]
        self._done, self._filled = last, end
        return stop

    def take(self, packs: RankPacks) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The columns that follow the tokens, end to end, and those of a value a document."""
        if not len(packs.ids):
            flat = {
                name: torch.zeros(1, dtype=torch.from_numpy(np.empty(0, dtype)).dtype)
                for name, dtype in self._following.items()
            }
            sizes, others = np.ones(1, np.int64), {name: list[Any]() for name in self._others}
        else:
            flat, sizes = self._flat, packs.sizes
            others = {name: tensor_of(rows) for name, rows in self._values.items()}
        flat = dict(flat)
        flat["position_ids"] = self._positions(sizes)
        if _LABELS not in flat:
            labels = self._allocate(flat[self._tokens].shape, np.dtype(np.int64))
            # Not by torch, whose threads cost more than the copy.
            np.copyto(labels.numpy(), flat[self._tokens].numpy())
            flat[_LABELS] = labels
        begins = np.cumsum(sizes) - sizes
        flat[_LABELS].numpy()[begins] = IGNORED
        self._begin()
        return flat, others

    def _positions(self, sizes: Ids) -> torch.Tensor:
        """The place of each token in its document."""
        longest = int(sizes.max())
        if longest > len(self._ramp):
            self._ramp = np.arange(longest)
        found = self._allocate((int(sizes.sum()),), np.dtype(np.int64))
        np.concatenate([self._ramp[:size] for size in sizes.tolist()], out=found.numpy())
        return found

    def _check(self, name: str, values: Any, whole: Ids, ids: Ids) -> None:
        """See that documents are as long as was recorded. Raises IndexFileError."""
        told = whole.tolist()
        if [*map(len, values)] == told and getattr(values[0], "ndim", 0) == 1:
            return
        at = next(i for i, v in enumerate(values) if len(v) != told[i] or np.ndim(v) != 1)
        if name == self._tokens:
            raise IndexFileError(
                f"sample {int(ids[at])} has {len(values[at])} values in column {name!r}, and its "
                f"recorded length is {told[at]}: the file of lengths is of other data. Make it "
                "anew with mds lengths."
            )
        raise ConfigError(
            f"sample {int(ids[at])} has {len(values[at])} values in column {name!r} and {told[at]} "
            f"in {self._tokens!r}: arrays follow the tokens and are as long. Leave the column out "
            "with columns=."
        )


def varlen(packs: RankPacks, flat: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The documents of all packs end to end, as attention kernels for varying lengths take them."""
    sizes = packs.sizes if len(packs.sizes) else np.ones(1, np.int64)
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    return {**flat, "cu_seqlens": torch.from_numpy(ends), "max_seqlen": int(sizes.max())}


def dense(packs: RankPacks, flat: dict[str, torch.Tensor], capacity: int | None) -> dict[str, Any]:
    """A pack a row, or with a budget a document a row, filled up with padding."""
    sizes = packs.sizes
    if capacity is None:  # rows are documents
        rows, numbers = (
            sizes if len(sizes) else np.zeros(1, np.int64),
            np.zeros(len(sizes), np.int64),
        )
        width = max(int(rows.max()), 1)
    else:
        ends = np.concatenate([[0], np.cumsum(sizes)])[
            np.concatenate([[0], np.cumsum(packs.counts)])
        ]
        rows, width = np.diff(ends), capacity
        firsts = np.repeat(np.cumsum(packs.counts) - packs.counts, packs.counts)
        numbers = np.arange(len(sizes)) - firsts
    made = {}
    documents = torch.from_numpy(np.repeat(numbers, sizes))
    for name, values in {**flat, "document_ids": documents}.items():
        padding = {_LABELS: IGNORED, "document_ids": -1}.get(name, 0)
        made[name] = torch.full((len(rows), width), padding, dtype=values.dtype)
        at = 0
        for row, tokens in zip(made[name], rows.tolist(), strict=True):
            row[:tokens] = values[at : at + tokens]
            at += tokens
    return made


def _columns(dataset: Samples, tokens: str) -> tuple[dict[str, Any], list[str]]:
    """The columns that follow the tokens with the type that they come in, and the others.

    One-dimensional arrays without a fixed length follow; of a fixed length, those of the length of
    the tokens. Whole numbers come as int64.
    """
    columns = dataset._shards.indexes[0].schemas[0].columns
    found = {
        name: parse_encoding(text)
        for name, text in zip(columns.names, columns.encodings, strict=True)
    }
    shape, following, others = found[tokens].shape, {}, list[str]()
    for name, encoding in found.items():
        if name not in dataset._columns:
            continue
        follows = name == tokens or (
            encoding.decode_kind is DecodeKind.VECTOR
            if shape is None
            else encoding.shape is not None and encoding.shape == shape
        )
        if not follows:
            others.append(name)
            continue
        dtype = encoding.element_dtype if encoding.dtype is None else encoding.dtype
        if dtype is None or dtype.kind in "iu":
            dtype = np.dtype(np.int64)
        following[name] = dtype.newbyteorder("=")
    taken = [name for name in (*following, *others) if name in _ADDED]
    if taken or _LABELS in others:
        raise ConfigError(
            f"batches of packs get columns {', '.join(_ADDED)} and labels, and the samples have "
            f"{', '.join(taken or [_LABELS])} of another kind already. Leave them out with "
            "columns=."
        )
    return following, others
