"""Batches of packs: the documents of a rank's packs end to end, or a pack a row."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mds.dataset.reading import read_windows
from mds.loader.batch_groups import BatchInfo
from mds.loader.batch_masks import with_mask
from mds.loader.pack_columns import ColumnFilling, is_columnar
from mds.loader.pack_filling import IGNORED, LABELS
from mds.loader.pack_samples import SampleFilling
from mds.transforms.columns import batch_of, tensors_of
from mds.transforms.row_keys import keys_of_places

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds.dataset.samples import Samples
    from mds.dataset.worker_epoch import WorkerEpoch
    from mds.loader.batch_groups import Batch
    from mds.loader.batch_maker import BatchMaker
    from mds.loader.tensor_buffers import Allocator
    from mds.plan.order import Order
    from mds.plan.pack_plan import RankPacks
    from mds.process.stopwatch import Stopwatch

    Ids = NDArray[np.int64]
    Keys = NDArray[np.uint64]

PACK_AS = ("varlen", "dense")


class PackedBatches:
    """The batches of one worker.

    ``maker`` has the functions of batches. ``drop_last`` leaves out the last step, on all ranks, if
    it has places without a pack.
    """

    def __init__(
        self,
        dataset: Samples,
        epoch: WorkerEpoch,
        maker: BatchMaker,
        watch: Stopwatch,
        pack_as: str,
        allocate: Allocator,
        *,
        drop_last: bool,
    ) -> None:
        self._dataset, self._epoch, self._maker, self._watch = dataset, epoch, maker, watch
        self._pack_as, self._drop_last = pack_as, drop_last
        self._is_masked = dataset.exact == "mask" or not dataset._filter.keeps_everything
        self._waiting: collections.deque[RankPacks] = collections.deque()
        self._filling = (
            ColumnFilling(dataset, epoch, allocate)
            if dataset._is_plain and is_columnar(dataset)
            else SampleFilling(dataset, epoch, allocate, watch)
        )

    def __iter__(self) -> Iterator[Batch]:
        filling, waiting = self._filling, self._waiting
        self._watch.start()
        for window in read_windows(self._dataset, self._blocks(), self._epoch):
            at = 0
            while at < len(window.ids):
                if filling.is_full:
                    yield self._batch()
                    self._watch.start()
                at = filling.fill(waiting[0], window, at)
            del window
        while waiting:
            yield self._batch()
            self._watch.start()

    def _blocks(self) -> Iterator[Ids]:
        """The documents of each batch."""
        whole = self._epoch.order.shape.global_batch
        for packs in self._epoch.packs():
            if packs.packs == whole or not self._drop_last:
                self._waiting.append(packs)
                yield packs.ids

    def _batch(self) -> Batch:
        """The batch that was filled, or the next one if that has no documents."""
        planned = self._waiting.popleft()
        self._watch.end_samples(len(planned.ids))
        packs, flat, others = self._filling.take(planned)
        if self._pack_as == "varlen":
            made = varlen(packs, flat)
        else:
            made = dense(packs, flat, self._filling.capacity)
        self._watch.end_collating()
        self._dataset._dropped.add((), planned.dropped)
        skipped, _ = self._filling.dropped.take()
        info = BatchInfo(
            len(packs.counts),
            packs.order,
            self._epoch.begin,
            skipped=tuple(skipped),
            dropped=packs.dropped,
            is_empty=bool(len(planned.ids)) and not len(packs.ids),
            end=packs.end,
        )
        batch = self._apply(packs, made, others)
        if self._is_masked:
            batch = with_mask(batch, self._mask(packs))
        return info._replace(making=self._watch.take()), batch

    def _apply(self, packs: RankPacks, made: dict[str, Any], others: dict[str, list[Any]]) -> Any:
        """What the functions of batches make of columns: of arrays, and of lists."""
        maker = self._maker
        if not maker.has_functions:
            return {**made, **tensors_of(others)}
        arrays = {
            name: value.numpy() if isinstance(value, torch.Tensor) else value
            for name, value in made.items()
        }
        keys = self._keys(packs) if maker.is_keyed else None

        def where() -> str:
            epoch, count = self._epoch.order.epoch, len(packs.counts)
            return f"a batch of {count} packs (before pack {packs.end.place:,} of epoch {epoch})"

        found = batch_of(maker.apply({**arrays, **others}, keys, where, self._watch))
        self._watch.end_collating()
        return found

    @property
    def _has_rows_of_packs(self) -> bool:
        """Whether a row of a batch is a pack and not a document."""
        return self._pack_as == "dense" and self._filling.capacity is not None

    def _keys(self, packs: RankPacks) -> Keys:
        """The key of each row, from its first document's; of padding it is that of place -1."""
        places, starts, ids = packs.places, packs.starts, packs.ids
        if self._has_rows_of_packs:
            firsts = np.cumsum(packs.counts) - packs.counts
            is_real, at = packs.counts > 0, np.minimum(firsts, max(len(ids) - 1, 0))
            if len(ids):
                places, starts, ids = (np.where(is_real, x[at], -1) for x in (places, starts, ids))
            else:
                places = starts = ids = np.full(len(firsts), -1)
        elif not len(ids):
            places = starts = ids = np.full(1, -1)
        return piece_keys(self._epoch.order, places, starts, ids)

    def _mask(self, packs: RankPacks) -> NDArray[np.bool_]:
        """Which rows are no padding."""
        if self._has_rows_of_packs:
            found: NDArray[np.bool_] = packs.counts > 0
            return found
        return np.ones(len(packs.ids), bool) if len(packs.ids) else np.zeros(1, bool)


def piece_keys(order: Order, places: Ids, starts: Ids, ids: Ids) -> Keys:
    """Keys of pieces of documents, by which functions of batches draw random numbers."""
    keys = keys_of_places(order.shuffle_seed, order.epoch, places, starts)
    return keys_of_places(order.shuffle_seed, order.epoch, keys.astype(np.int64), ids)


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
        padding = {LABELS: IGNORED, "document_ids": -1}.get(name, 0)
        made[name] = torch.full((len(rows), width), padding, dtype=values.dtype)
        at = 0
        for row, tokens in zip(made[name], rows.tolist(), strict=True):
            row[:tokens] = values[at : at + tokens]
            at += tokens
    return made
