"""Batches of packs: the documents of a rank's packs end to end, or a pack in each row.

`check_packs` refuses loaders and datasets that cannot make packs. `PackSteps` has the documents of
each step read, and `BatchPacker` makes a batch of them. The columns that it adds (positions, and
labels that a loss leaves out) follow from the plan.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert

from mds.dataset.streaming import StreamingDataset
from mds.encodings import parse_encoding
from mds.errors import ConfigError
from mds.loader.pack_documents import LABELS, batch_dtype
from mds.loader.rows import BatchInfo, Rows
from mds.process.stopwatch import COLLATE
from mds.transforms.collate import ColumnFunction
from mds.transforms.columns import batch_of, tensors_of
from mds.transforms.randomness import keys_of_places

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds.dataset.filtering import DropCount
    from mds.dataset.samples import Samples
    from mds.dataset.worker_epoch import WorkerEpoch
    from mds.loader.batch_maker import BatchMaker
    from mds.loader.pack_documents import DocumentValues, Tensors
    from mds.loader.tensor_buffers import Allocator
    from mds.plan.order import Order
    from mds.plan.pack_plan import RankPacks
    from mds.process.stopwatch import Stopwatch

    Ids = NDArray[np.int64]
    Keys = NDArray[np.uint64]

PACK_AS = ("varlen", "dense")
#: Label that a loss leaves out, as torch's cross entropy does.
IGNORED = -100


def check_packs(loader: Any, streaming: StreamingDataset | None, pack_as: str | None) -> str | None:
    """Return how packs become the batches of a loader, or None without packing.

    ``streaming`` is the StreamingDataset of the loader, or None. Raises ConfigError for settings
    that contradict each other.
    """
    packing = None if streaming is None else streaming.packing
    if pack_as not in (None, *PACK_AS):
        raise ConfigError(f"pack_as is {' or '.join(map(repr, PACK_AS))}, got {pack_as!r}.")
    if packing is None or streaming is None:
        if pack_as is not None:
            raise ConfigError(
                f"pack_as={pack_as!r} is about packs, and the dataset makes none: give it "
                "packing=Packing(...)."
            )
        return None
    if streaming is not loader.dataset or type(streaming).__iter__ is not StreamingDataset.__iter__:
        raise ConfigError(
            f"packing= makes batches of packs, and {type(loader.dataset).__name__} iterates by "
            "itself over samples: give the loader a StreamingDataset, and what changes a sample to "
            "its map()."
        )
    _check_packing(streaming)
    _check_streams(streaming)
    if loader.batch_size != streaming.batch_size:
        raise ConfigError(
            f"batch_size counts packs here, and is {loader.batch_size} for the loader and "
            f"{streaming.batch_size} for the dataset: give it to the dataset alone."
        )
    is_ours = isinstance(loader.collate_fn, ColumnFunction)
    if not is_ours and loader.collate_fn not in (default_collate, default_convert):
        raise ConfigError(
            "packing= makes the batches, so collate_fn= would be given no samples: do its work in "
            "map(), for each document, or in map_batches(), for the packed batch."
        )
    return pack_as or "varlen"


def _check_packing(dataset: Any) -> None:
    """Check that a dataset reads the column of tokens, and its batch size. Raises ConfigError."""
    packing = dataset.packing
    is_made = dataset._filter.chain.maps or dataset._has_own_items
    if not is_made and packing.lengths not in dataset._columns:
        raise ConfigError(
            f"Packing counts the lengths of column {packing.lengths!r}, and columns= leaves it out."
        )
    if packing.budget is not None and dataset.batch_size not in (None, 1):
        raise ConfigError(
            f"Packing(budget=...) makes a batch of each pack, and batch_size is "
            f"{dataset.batch_size}: use batch_size=1."
        )


def _check_streams(dataset: StreamingDataset) -> None:
    """Refuse streams whose columns do not fit into one batch of packs (ConfigError).

    Samples of functions or a class of the user are not known here, and not checked.
    """
    if dataset._filter.chain.maps or dataset._has_own_items:
        return
    first: tuple[str, dict[str, str]] | None = None  # name of a stream, and its columns
    stream_names = dataset._order.samples_by_stream()
    for stream, index in zip(stream_names, dataset._shards.indexes, strict=True):
        for schema in index.schemas:
            pairs = zip(schema.columns.names, schema.columns.encodings, strict=True)
            columns = {name: text for name, text in pairs if name in dataset._columns}
            if first is None:
                first = stream, columns
                continue
            if lacking := sorted(columns.keys() ^ first[1].keys()):
                raise ConfigError(
                    f"packing=: streams {first[0]} and {stream} differ in the column "
                    f"{lacking[0]!r}, so their samples do not fit into one batch. Give columns= "
                    "that all have."
                )
            for name, text in columns.items():
                if _pack_kind(text) != _pack_kind(first[1][name]):
                    raise ConfigError(
                        f"packing=: column {name!r} is {first[1][name]!r} in stream {first[0]} and "
                        f"{text!r} in stream {stream}, which do not fit into one column. Leave it "
                        "out with columns=, or write one of the streams anew."
                    )


def _pack_kind(text: str) -> Any:
    """Return what must be equal for columns of two streams to fit into one column of a batch.

    ``text``: encoding of the column, such as "ndarray:int32". Returns "list" for lists, else the
    name of the dtype in batches (int64 for all integers), or None for other values.
    """
    encoding = parse_encoding(text.removeprefix("optional[").removesuffix("]"))
    if text.startswith(("list[", "optional[list[")):
        return "list"
    dtype = encoding.element_dtype if encoding.dtype is None else encoding.dtype
    return None if dtype is None else str(batch_dtype(dtype))


class PackSteps:
    """Steps of a worker in an epoch of packs: which documents to read, and for which packs.

    A step is a global batch of packs. `blocks` runs ahead of `join`, since shards are prefetched:

        blocks() -> ids of documents -> reader, which asks next_size() -> rows -> join()

    Args:
        epoch: The worker's part of the epoch.
        drop_last: Whether to leave out the last step, on all ranks, if it has places without a
            pack.
        is_keyed: Whether a function of samples takes random numbers.
    """

    def __init__(self, epoch: WorkerEpoch, *, drop_last: bool, is_keyed: bool) -> None:
        self._epoch, self._drop_last, self._is_keyed = epoch, drop_last, is_keyed
        # Steps whose documents join() has not got yet, and those that next_size() has not counted.
        self._waiting: collections.deque[RankPacks] = collections.deque()
        self._unread: collections.deque[RankPacks] = collections.deque()
        self._keys: Keys = np.empty(0, np.uint64)  # of the documents of the step that is read

    def blocks(self) -> Iterator[Ids]:
        """Yield the ids of the documents of each step, int64."""
        packs_of_step = self._epoch.order.shape.global_batch
        for packs in self._epoch.packs():
            if packs.packs == packs_of_step or not self._drop_last:
                self._waiting.append(packs)
                if len(packs.ids):
                    self._unread.append(packs)
                yield packs.ids

    def next_size(self) -> int:
        """Return the number of documents of the next step that has any, and make their keys."""
        packs, order = self._unread.popleft(), self._epoch.order
        if self._is_keyed:
            self._keys = keys_of_places(order.shuffle_seed, order.epoch, packs.places, packs.ids)
        return len(packs.ids)

    def take_keys(self, count: int) -> Keys:
        """Return the row keys of the next documents of this step."""
        keys, self._keys = self._keys[:count], self._keys[count:]
        return keys

    def join(self, steps: Iterable[Rows]) -> Iterator[tuple[RankPacks, Rows | None]]:
        """Yield the packs of each step with its documents, or None if the step has no documents.

        ``steps``: documents of each step that has any.
        """
        for rows in steps:
            while not len(self._waiting[0].ids):
                yield self._waiting.popleft(), None
            yield self._waiting.popleft(), rows
            del rows
        while self._waiting:
            yield self._waiting.popleft(), None


class BatchPacker:
    """Stage that makes a batch of the documents of a step.

    Args:
        dataset: Dataset of the documents.
        epoch: The worker's part of the epoch, with an order of packs.
        maker: Calls the functions of `map_batches`.
        watch: Stopwatch of the batches.
        pack_as: ``"varlen"`` for documents end to end, ``"dense"`` for a pack a row.
        allocate: Allocates the columns that packs add.
        documents: Collects the values of the documents.
        dropped: Documents that a filter dropped; their tokens become padding.
    """

    def __init__(
        self,
        dataset: Samples,
        epoch: WorkerEpoch,
        maker: BatchMaker,
        watch: Stopwatch,
        pack_as: str,
        allocate: Allocator,
        documents: DocumentValues,
        dropped: DropCount,
    ) -> None:
        assert epoch.order.packs is not None
        packing = epoch.order.packs.packing
        self._tokens, self._capacity = packing.lengths, packing.capacity
        self._dataset, self._epoch, self._maker, self._watch = dataset, epoch, maker, watch
        self._pack_as, self._allocate = pack_as, allocate
        self._documents, self._dropped = documents, dropped
        self._is_masked = dataset.exact == "mask" or not dataset._filter.keeps_everything
        self._ramp = np.arange(1)  # 0, 1, 2, ...: positions in the longest document so far

    def pack(self, step: tuple[RankPacks, Rows | None]) -> Rows:
        """Return the batch of a step.

        ``step``: packs of this rank in the step, and their documents; None if there are none.
        """
        planned, rows = step
        packs, flat, extra = self._documents.collect(planned, rows)
        self._add_columns(packs, flat)
        if self._pack_as == "varlen":
            columns = varlen(packs, flat)
        else:
            columns = dense(packs, flat, self._capacity)
        self._watch.charge(COLLATE)
        # Pieces that the plan had dropped are not read, so nothing else counts them.
        self._dataset._dropped.add((), planned.dropped)
        skipped, _ = self._dropped.take()
        info = BatchInfo(
            len(packs.counts),
            packs.order,
            self._epoch.begin,
            skipped=tuple(skipped),
            dropped=packs.dropped,
            is_empty=bool(len(planned.ids)) and not len(packs.ids),
            end=packs.end,
        )
        batch = self._apply(packs, columns, extra)
        mask = self._mask(packs) if self._is_masked else None
        return Rows(0, len(planned.ids), batch, mask=mask, info=info)

    def _add_columns(self, packs: RankPacks, flat: Tensors) -> None:
        """Add the columns that packs have besides those of the samples, to ``flat``.

        They are the positions in the documents, and labels (the tokens) unless the samples have
        some. The first label of each document is ignored: no token of the document predicts it.
        """
        sizes = packs.sizes if len(packs.ids) else np.ones(1, np.int64)
        flat["position_ids"] = self._positions(sizes)
        tokens = flat[self._tokens]
        if LABELS not in flat and tokens.dtype == torch.int64:
            labels = self._allocate(tuple(tokens.shape), np.dtype(np.int64))
            # With NumPy, because threads of torch cost more than the copy.
            np.copyto(labels.numpy(), tokens.numpy())
            flat[LABELS] = labels
        if LABELS in flat:
            first_tokens = np.cumsum(sizes) - sizes
            flat[LABELS].numpy()[first_tokens] = IGNORED

    def _positions(self, sizes: Ids) -> torch.Tensor:
        """Return the place of each token in its piece of a document, int64 of shape (tokens,).

        ``sizes``: tokens of each piece.
        """
        longest = int(sizes.max())
        if longest > len(self._ramp):
            self._ramp = np.arange(longest)
        positions = self._allocate((int(sizes.sum()),), np.dtype(np.int64))
        np.concatenate([self._ramp[:size] for size in sizes.tolist()], out=positions.numpy())
        return positions

    def _apply(self, packs: RankPacks, columns: dict[str, Any], extra: dict[str, list[Any]]) -> Any:
        """Return the batch after the functions of `map_batches`, which get columns as arrays.

        Args:
            packs: Packs of the batch.
            columns: Columns that follow the tokens, and those that packs add.
            extra: Other columns, with a value for each document.
        """
        maker = self._maker
        if not maker.has_functions:
            return {**columns, **tensors_of(extra)}
        arrays = {
            name: value.numpy() if isinstance(value, torch.Tensor) else value
            for name, value in columns.items()
        }
        keys = self._keys(packs) if maker.is_keyed else None

        def describe() -> str:
            """Describe the batch for an error of a function."""
            epoch, count = self._epoch.order.epoch, len(packs.counts)
            return f"a batch of {count} packs (before pack {packs.end.place:,} of epoch {epoch})"

        batch = batch_of(maker.apply({**arrays, **extra}, keys, describe, self._watch))
        self._watch.charge(COLLATE)
        return batch

    @property
    def _has_rows_of_packs(self) -> bool:
        """Whether a row of a batch is a pack and not a document."""
        return self._pack_as == "dense" and self._capacity is not None

    def _keys(self, packs: RankPacks) -> Keys:
        """Return the key of each row for random numbers, uint64.

        It is the key of the row's first document, or of place -1 for padding.
        """
        places, starts, ids = packs.places, packs.starts, packs.ids
        if self._has_rows_of_packs:
            firsts = np.cumsum(packs.counts) - packs.counts  # index of each pack's first piece
            is_real = packs.counts > 0
            rows = np.minimum(firsts, max(len(ids) - 1, 0))  # valid also for an empty last pack
            if len(ids):
                places, starts, ids = (
                    np.where(is_real, values[rows], -1) for values in (places, starts, ids)
                )
            else:
                places = starts = ids = np.full(len(firsts), -1)
        elif not len(ids):
            places = starts = ids = np.full(1, -1)
        return piece_keys(self._epoch.order, places, starts, ids)

    def _mask(self, packs: RankPacks) -> NDArray[np.bool_]:
        """Return the mask of the rows of a batch (packs or documents), bool, False for padding."""
        if self._has_rows_of_packs:
            is_real: NDArray[np.bool_] = packs.counts > 0
            return is_real
        return np.ones(len(packs.ids), bool) if len(packs.ids) else np.zeros(1, bool)


def piece_keys(order: Order, places: Ids, starts: Ids, ids: Ids) -> Keys:
    """Compute keys for the random numbers of functions of `map_batches`, for pieces of documents.

    A key depends on the place in the epoch, the first token of the piece, and the sample number.

    Args:
        order: Order of the epoch, with its shuffle seed and number.
        places: Place of each piece's document in the order.
        starts: First token of each piece in its document.
        ids: Sample number of each piece's document.
    """
    # Hashed twice: a key of place and first token is the place of the second hash.
    keys = keys_of_places(order.shuffle_seed, order.epoch, places, starts)
    return keys_of_places(order.shuffle_seed, order.epoch, keys.astype(np.int64), ids)


def varlen(packs: RankPacks, flat: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Lay the documents of all packs end to end, for attention kernels for varying lengths.

    ``flat``: columns with all documents end to end, tensors of shape (tokens,). Adds ``cu_seqlens``
    (int32), which has 0 and the end of each document, and ``max_seqlen``, the longest length.
    """
    sizes = packs.sizes if len(packs.sizes) else np.ones(1, np.int64)
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    return {**flat, "cu_seqlens": torch.from_numpy(ends), "max_seqlen": int(sizes.max())}


def dense(packs: RankPacks, flat: dict[str, torch.Tensor], capacity: int | None) -> dict[str, Any]:
    """Lay out each pack in a row of ``capacity`` tokens, filled up with padding.

    Without a capacity (with a budget), each row is a document, as long as the longest one. Returns
    tensors of shape (rows, tokens) and adds ``document_ids``, the number of each token's document
    in its row, from 0; -1 for padding.

    ``flat``: columns with all documents end to end, tensors of shape (tokens,).
    """
    sizes = packs.sizes
    if capacity is None:  # rows are documents
        row_sizes = sizes if len(sizes) else np.zeros(1, np.int64)
        numbers = np.zeros(len(sizes), np.int64)
        width = max(int(row_sizes.max()), 1)
    else:  # rows are packs
        piece_ends = np.concatenate([[0], np.cumsum(sizes)])  # in tokens
        pack_ends = np.concatenate([[0], np.cumsum(packs.counts)])  # in pieces
        row_sizes, width = np.diff(piece_ends[pack_ends]), capacity
        first_pieces = np.repeat(np.cumsum(packs.counts) - packs.counts, packs.counts)
        numbers = np.arange(len(sizes)) - first_pieces  # of each piece in its pack
    columns = {}
    documents = torch.from_numpy(np.repeat(numbers, sizes))
    for name, values in {**flat, "document_ids": documents}.items():
        padding = {LABELS: IGNORED, "document_ids": -1}.get(name, 0)
        columns[name] = torch.full((len(row_sizes), width), padding, dtype=values.dtype)
        start = 0
        for row, tokens in zip(columns[name], row_sizes.tolist(), strict=True):
            row[:tokens] = values[start : start + tokens]
            start += tokens
    return columns
