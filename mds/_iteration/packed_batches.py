"""Batches of packs: the documents of a rank's packs end to end, or a pack in each row.

`check_packing` refuses what cannot be packed. `PackSteps` has the documents of
each step read, and `BatchPacker` makes a batch of them, or splits it into single packs for
`PackIterator`. The columns that it adds (positions, and labels that a loss leaves out) follow from
the plan.

Terms: a *document* is a sample with a column of tokens. A *piece* is a document, or a part of a
long one. A *pack* is one or more pieces that share the ``capacity`` of tokens of a row. A *step* is
the global batch of packs that all ranks take at once. `RankPacks` are the packs of one rank in it:

    counts  [2, 1, 0]       pieces of each pack; 0 for a place of the batch without a pack
    sizes   [60, 40, 80]    tokens of each piece, for all packs end to end
    ids     [17, 4, 9]      sample number of each piece's document

"Flat" columns hold the tokens of all pieces end to end: here 180, of which 0 to 59 are document 17.
"""

from __future__ import annotations

import collections
from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mds._iteration.pack_documents import batch_dtype
from mds._iteration.rows import BatchInfo, Rows, with_mask
from mds._process.stopwatch import COLLATE
from mds._words import plural
from mds.encodings import parse_encoding
from mds.errors import ConfigError
from mds.plan._packing import LABELS, column_of
from mds.transforms._columns import PACK_COLUMNS, batch_of, tensors_of
from mds.transforms._randomness import keys_of_places

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds._iteration.batch_maker import BatchMaker
    from mds._iteration.filtering import DropCount
    from mds._iteration.pack_documents import DocumentValues, Tensors
    from mds._iteration.reading import SampleSource
    from mds._iteration.rows import Allocator
    from mds._iteration.worker_epoch import WorkerEpoch
    from mds._process.stopwatch import Stopwatch
    from mds.plan import EpochPlan
    from mds.plan._pack_filling import RankPacks
    from mds.plan._spec import OrderSpec

    Ids = NDArray[np.int64]
    Keys = NDArray[np.uint64]

#: Label that a loss leaves out, as torch's cross entropy does.
IGNORED = -100


def check_packing(source: SampleSource, spec: OrderSpec, streams: Iterable[str]) -> None:
    """Refuse columns, or a batch size, that packs cannot have (ConfigError).

    Samples that functions or a class of the user make are not known here, and not checked.

    Args:
        source: Samples to pack.
        spec: Settings of the order, with packing.
        streams: Name of each stream, for messages.
    """
    packing, batch_size = spec.packing, spec.batch_size
    assert packing is not None
    is_made = source.filter.chain.maps or source.has_own_items
    column, budget = column_of(packing), packing.budget
    if not is_made and column not in source.columns:
        raise ConfigError(
            f"Packing needs the column {column!r}, but columns= leaves it out. Add it there."
        )
    if budget is not None and batch_size not in (None, 1):
        raise ConfigError(
            "Packing(budget=...) makes each pack a batch, but batch_size is "
            f"{batch_size}. Use batch_size=1."
        )
    if not is_made:
        _check_streams(source, streams)


def _check_streams(source: SampleSource, streams: Iterable[str]) -> None:
    """Refuse streams whose columns do not fit into one batch of packs (ConfigError).

    ``streams``: name of each stream, for messages.
    """
    first: tuple[str, dict[str, str]] | None = None  # name of a stream, and its columns
    for stream, index in zip(streams, source.shards.indexes, strict=True):
        for schema in index.schemas:
            pairs = zip(schema.columns.names, schema.columns.encodings, strict=True)
            columns = {name: text for name, text in pairs if name in source.columns}
            if first is None:
                first = stream, columns
                continue
            if lacking := sorted(columns.keys() ^ first[1].keys()):
                raise ConfigError(
                    f"packing=: streams {first[0]} and {stream} differ in the column "
                    f"{lacking[0]!r}, so their samples do not fit into one batch. Choose common "
                    "columns with columns=."
                )
            for name, text in columns.items():
                if _pack_kind(text) != _pack_kind(first[1][name]):
                    raise ConfigError(
                        f"packing=: column {name!r} is {first[1][name]!r} in stream {first[0]} "
                        f"and {text!r} in stream {stream}, which do not fit into one column. "
                        "Leave the column out with columns=, or write one of the streams again."
                    )


def _pack_kind(text: str) -> Any:
    """Return a description of a column that two streams must share to be packed together.

    For example, "ndarray:int32" and "ndarray:uint16" are both "int64", because integers are int64
    in batches. Returns "list" for lists, else the name of the dtype in batches, or None for values
    without a dtype, such as text.

    ``text``: encoding of the column, such as "ndarray:int32".
    """
    encoding = parse_encoding(text.removeprefix("optional[").removesuffix("]"))
    if text.startswith(("list[", "optional[list[")):
        return "list"
    dtype = encoding.element_dtype if encoding.dtype is None else encoding.dtype
    return None if dtype is None else str(batch_dtype(dtype))


class PackSteps:
    """Steps of a worker in an epoch of packs: which documents to read, and for which packs.

    A step is a global batch of packs. The reader takes the documents of coming steps from `blocks`
    long before it returns their values, since it prefetches shards. For each step it asks
    `next_size` how many documents to return at once, and `join` joins them with the packs again:

        blocks() -> ids of documents -> reader, which asks next_size() -> rows -> join()

    Args:
        epoch: The worker's part of the epoch.
        drop_last: Whether to leave out, on all ranks, the steps that have places without a pack.
        is_keyed: Whether a function of samples takes random numbers.
    """

    def __init__(self, epoch: WorkerEpoch, *, drop_last: bool, is_keyed: bool) -> None:
        self._epoch, self._drop_last, self._is_keyed = epoch, drop_last, is_keyed
        # Steps that blocks() has given out and join() has not returned yet.
        self._waiting: collections.deque[RankPacks] = collections.deque()
        # Those of them that have documents and that next_size() has not counted yet.
        self._unread: collections.deque[RankPacks] = collections.deque()
        # Row keys of the step that is read: those that take_keys() has not returned yet.
        self._keys: Keys = np.empty(0, np.uint64)

    def blocks(self) -> Iterator[Ids]:
        """Yield the ids of the documents of each step, int64."""
        packs_of_full_step = self._epoch.order.shape.global_batch  # of all ranks
        for packs in self._epoch.rank_packs():
            # Packs of all ranks are counted, so all ranks leave out the same step.
            is_full = packs.packs_of_step == packs_of_full_step
            if is_full or not self._drop_last:
                self._waiting.append(packs)
                if len(packs.ids):
                    self._unread.append(packs)
                yield packs.ids

    def next_size(self) -> int:
        """Return the number of documents of the next step, and make their row keys.

        The reader calls it when it begins to read a step. Steps without documents are left out,
        since there is nothing to read.
        """
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

        ``steps``: documents of each step that has any. Steps without documents come from
        ``_waiting``, in their order.
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
        source: Source of the documents.
        epoch: The worker's part of the epoch, with an order of packs.
        maker: Calls the functions of `map_batches`.
        watch: Stopwatch of the batches.
        allocate: Allocates the columns that packs add.
        documents: Collects the values of the documents.
        dropped: Documents that a filter dropped, filled by an earlier stage and emptied here with
            each batch. Their tokens become padding.
    """

    def __init__(
        self,
        source: SampleSource,
        epoch: WorkerEpoch,
        maker: BatchMaker,
        watch: Stopwatch,
        allocate: Allocator,
        documents: DocumentValues,
        dropped: DropCount,
    ) -> None:
        packing = epoch.packs.packing
        self._tokens, self._capacity = column_of(packing), packing.capacity
        self._source, self._epoch, self._maker, self._watch = source, epoch, maker, watch
        self._layout, self._allocate = packing.layout, allocate
        self._is_shifted = packing.labels == "shifted"
        self._documents, self._dropped = documents, dropped
        is_padded = epoch.order.spec.remainder == "mask"
        self._is_masked = is_padded or not source.filter.keeps_everything
        self._ramp = np.arange(1)  # 0, 1, 2, ...: positions in the longest document so far

    def pack(self, step: tuple[RankPacks, Rows | None]) -> Rows:
        """Return the batch of a step.

        ``step``: packs of this rank in the step, and their documents; None if there are none.
        """
        planned = step[0]
        packs, flat, extra = self._collect(step)
        columns = self._lay_out(packs, flat)
        self._watch.charge(COLLATE)
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

    def split(
        self, step: tuple[RankPacks, Rows | None], *, is_padded: bool
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each pack of a step by itself, with the number of its place in the batch.

        It is the batch of this pack alone; with rows of packs (``layout="dense"``), its only row.
        No functions of `map_batches` are called.

        Args:
            step: Packs of this rank in the step, and their documents; None if there are none.
            is_padded: Whether a place without documents gives a pack of padding, if another rank
                may have a pack there. Otherwise it gives none.
        """
        planned = step[0]
        packs, flat, extra = self._collect(step)
        self._dropped.take()  # SampleJudge has counted them for the source, too
        mask = self._mask(packs) if self._is_masked else None
        # Bounds of the packs: in pieces, and in tokens.
        piece_bounds = np.concatenate([[0], np.cumsum(packs.counts)])
        token_bounds = np.concatenate([[0], np.cumsum(packs.sizes)])[piece_bounds]
        most_packs = min(len(packs.counts), planned.filled)  # of a rank, in this step
        for place, count in enumerate(packs.counts.tolist()):
            if not count and not (is_padded and place < most_packs):
                continue
            pieces = slice(*piece_bounds[place : place + 2].tolist())
            tokens = slice(*token_bounds[place : place + 2].tolist())
            single = packs._replace(
                ids=packs.ids[pieces],
                starts=packs.starts[pieces],
                sizes=packs.sizes[pieces],
                places=packs.places[pieces],
                counts=packs.counts[place : place + 1],
            )
            # Copies, so that a pack that is kept does not keep the whole step.
            columns = {
                name: values[tokens].clone() if count else _padding_like(name, values)
                for name, values in flat.items()
            }
            pack = self._lay_out(single, columns)
            if mask is not None:
                mask_of_pack = mask[place : place + 1] if self._has_rows_of_packs else mask[pieces]
                pack = with_mask(pack, mask_of_pack if len(mask_of_pack) else np.zeros(1, bool))
            if self._has_rows_of_packs:
                pack = {name: rows[0] for name, rows in pack.items()}
            yield place, {**pack, **tensors_of({k: v[pieces] for k, v in extra.items()})}

    def _collect(
        self, step: tuple[RankPacks, Rows | None]
    ) -> tuple[RankPacks, Tensors, dict[str, list[Any]]]:
        """Return the packs of a step without dropped documents, and the values of the documents.

        See `DocumentValues.collect`; the columns that packs add are among those of the tokens.
        """
        planned, rows = step
        packs, flat, extra = self._documents.collect(planned, rows)
        self._add_columns(packs, flat)
        # Pieces that the plan itself dropped are not read, so no other stage counts them.
        self._source.dropped.add((), planned.dropped)
        return packs, flat, extra

    def _lay_out(self, packs: RankPacks, flat: Tensors) -> dict[str, Any]:
        """Return the columns of packs in the layout of the batch, see `varlen` and `dense`."""
        if self._layout == "varlen":
            return varlen(packs, flat)
        return dense(packs, flat, self._capacity, self._maker.pack_columns)

    def _add_columns(self, packs: RankPacks, flat: Tensors) -> None:
        """Add the columns that packs have besides those of the samples, to ``flat``.

        They are the positions in the documents, and labels (the tokens) unless the samples have
        some. The first label of each document is ignored: no token of the document predicts it. For
        documents of 3 and 2 tokens:

            tokens        [ 5, 6, 7,    8, 9]
            position_ids  [ 0, 1, 2,    0, 1]
            labels        [-100, 6, 7, -100, 9]
            labels        [6, 7, -100, 9, -100]    with Packing(labels="shifted")

        Without documents, ``flat`` has one token of padding (`DocumentValues.collect`).
        """
        sizes = packs.sizes if len(packs.ids) else np.ones(1, np.int64)
        if self._layout == "varlen" or "position_ids" in self._maker.pack_columns:
            flat["position_ids"] = self._positions(sizes)
        tokens = flat[self._tokens]
        if LABELS not in flat and tokens.dtype == torch.int64:
            labels = self._allocate(tuple(tokens.shape), np.dtype(np.int64))
            # With NumPy, because threads of torch cost more than the copy.
            np.copyto(labels.numpy(), tokens.numpy())
            flat[LABELS] = labels
        if LABELS in flat:
            first_tokens = np.cumsum(sizes) - sizes  # index of the first token of each piece
            labels_array = flat[LABELS].numpy()
            labels_array[first_tokens] = IGNORED
            if self._is_shifted:
                # Each label moves one token to the front: the ignored first label of a document
                # becomes that of the token before, the last one of the previous document.
                labels_array[:] = np.roll(labels_array, -1, axis=0)

    def _positions(self, sizes: Ids) -> torch.Tensor:
        """Return the place of each token in its piece of a document, int64 of shape (tokens,).

        Sizes 3 and 2 give [0, 1, 2, 0, 1]. All pieces are copied from the beginning of ``_ramp``,
        which is kept because it is the same in every step.

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
            batch = f"a batch of {plural(count, 'pack')}"
            return f"{batch} (before pack {packs.end.place:,} of epoch {epoch})"

        batch = batch_of(maker.apply({**arrays, **extra}, keys, describe, self._watch))
        self._watch.charge(COLLATE)
        return batch

    @property
    def _has_rows_of_packs(self) -> bool:
        """True if a row of a batch is a pack and not a document."""
        return self._layout == "dense" and self._capacity is not None

    def _keys(self, packs: RankPacks) -> Keys:
        """Return the key of each row for random numbers, uint64.

        It is the key of the first piece in the row, so that it depends on the samples and not on
        the batch. Rows without a piece are padding, whose key is made of -1 instead. If rows are
        packs with ``counts`` [2, 1, 0], their first pieces are 0 and 2, and the last row has none.
        """
        places, starts, ids = packs.places, packs.starts, packs.ids
        if self._has_rows_of_packs:
            firsts = np.cumsum(packs.counts) - packs.counts  # index of each pack's first piece
            is_real = packs.counts > 0
            # Packs without a piece at the end of the batch have firsts == len(ids), which is no
            # valid index; np.where() replaces their values.
            valid_firsts = np.minimum(firsts, max(len(ids) - 1, 0))
            if len(ids):
                places, starts, ids = (
                    np.where(is_real, values[valid_firsts], -1) for values in (places, starts, ids)
                )
            else:
                places = starts = ids = np.full(len(firsts), -1)
        elif not len(ids):
            places = starts = ids = np.full(1, -1)
        return piece_keys(self._epoch.order, places, starts, ids)

    def _mask(self, packs: RankPacks) -> NDArray[np.bool_]:
        """Return the mask of the rows of a batch (packs or documents), bool, False for padding.

        Rows of documents are all real. If none remains, the batch is a single row of padding.
        """
        if self._has_rows_of_packs:
            is_real: NDArray[np.bool_] = packs.counts > 0
            return is_real
        return np.ones(len(packs.ids), bool) if len(packs.ids) else np.zeros(1, bool)


def _padding_like(name: str, values: torch.Tensor) -> torch.Tensor:
    """Return one token of padding for a column that follows the tokens."""
    return values.new_full((1,), IGNORED if name == LABELS else 0)


def piece_keys(order: EpochPlan, places: Ids, starts: Ids, ids: Ids) -> Keys:
    """Compute keys for the random numbers of functions of `map_batches`, for pieces of documents.

    A key depends on the place in the epoch, the first token of the piece, and the sample number.

    Args:
        order: EpochPlan of the epoch, with its shuffle seed and number.
        places: Place of each piece's document in the order.
        starts: First token of each piece in its document.
        ids: Sample number of each piece's document.
    """
    # Hashed twice: a key of place and first token is the place of the second hash.
    keys = keys_of_places(order.shuffle_seed, order.epoch, places, starts)
    return keys_of_places(order.shuffle_seed, order.epoch, keys.astype(np.int64), ids)


def varlen(packs: RankPacks, flat: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Lay the documents of all packs end to end, for attention kernels for varying lengths.

    Adds ``cu_seqlens`` (int32), which has 0 and the end of each document, and ``max_seqlen``, the
    longest length: pieces of 60, 40 and 80 tokens give [0, 60, 100, 180] and 80.

    ``flat``: columns with all documents end to end, tensors of shape (tokens,).
    """
    # Without documents, ``flat`` has one token of padding, which counts as a document.
    sizes = packs.sizes if len(packs.sizes) else np.ones(1, np.int64)
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    return {**flat, "cu_seqlens": torch.from_numpy(ends), "max_seqlen": int(sizes.max())}


def dense(
    packs: RankPacks,
    flat: dict[str, torch.Tensor],
    capacity: int | None,
    added: Container[str] = PACK_COLUMNS,
) -> dict[str, Any]:
    """Lay out each pack in a row of ``capacity`` tokens, filled up with padding.

    Without a capacity (with a budget), each row is a document, as long as the longest one. Returns
    tensors of shape (rows, tokens) and adds ``document_ids``, the number of each token's document
    in its row, from 0; -1 for padding. For packs of 2 and 1 documents and a capacity of 5:

        flat tokens   [1, 2, 3, 4, 5, 6]        documents of 2, 2 and 2 tokens
        row 0         [1, 2, 3, 4, 0]           document_ids [0, 0, 1, 1, -1]
        row 1         [5, 6, 0, 0, 0]           document_ids [0, 0, -1, -1, -1]

    An adapter may ask for ``document_lengths`` instead: [[2, 2], [2, 0]].

    Args:
        packs: Packs of the batch.
        flat: Columns with all documents end to end, tensors of shape (tokens,).
        capacity: Tokens of a row; None for rows that are documents.
        added: Names of the columns to add.
    """
    sizes = packs.sizes
    if capacity is None:  # rows are documents
        row_sizes = sizes if len(sizes) else np.zeros(1, np.int64)
        counts = np.ones(len(sizes), np.int64)  # documents of each row
        width = max(int(row_sizes.max()), 1)
    else:  # rows are packs
        # In the example: sizes [2, 2, 2], counts [2, 1], piece_bounds [0, 2, 4, 6] (in tokens),
        # pack_bounds [0, 2, 3] (in pieces), and so row_sizes [4, 2].
        piece_bounds = np.concatenate([[0], np.cumsum(sizes)])
        pack_bounds = np.concatenate([[0], np.cumsum(packs.counts)])
        row_sizes, counts, width = np.diff(piece_bounds[pack_bounds]), packs.counts, capacity
    first_pieces = np.repeat(np.cumsum(counts) - counts, counts)
    numbers = np.arange(len(sizes)) - first_pieces  # of each piece in its pack: [0, 1, 0]
    columns, flat = {}, dict(flat)
    if "document_lengths" in added:
        lengths = np.zeros((len(row_sizes), counts.max(initial=0)), np.int64)
        lengths[np.repeat(np.arange(len(counts)), counts), numbers] = sizes
        columns["document_lengths"] = torch.from_numpy(lengths)
    if "document_ids" in added:
        flat["document_ids"] = torch.from_numpy(np.repeat(numbers, sizes))
    # Bounds of the rows: in the flat columns, and in the row itself.
    ends = np.cumsum(row_sizes)
    bounds = [*zip((ends - row_sizes).tolist(), ends.tolist(), row_sizes.tolist(), strict=True)]
    # With NumPy, because threads of torch cost more than these small copies.
    for name, values in flat.items():
        padding = {LABELS: IGNORED, "document_ids": -1}.get(name, 0)
        flat_array = values.numpy()
        rows = np.empty((len(bounds), width), flat_array.dtype)
        for row, (start, end, size) in zip(rows, bounds, strict=True):
            row[:size] = flat_array[start:end]
            row[size:] = padding
        columns[name] = torch.from_numpy(rows)
    return columns
