"""Filling of a batch of packs with stored columns: copied once, from the shards to their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mds.encodings import DecodeKind, parse_encoding
from mds.errors import ConfigError, IndexFileError
from mds.loader.pack_filling import Filling, batch_dtype, check_names, join_values, padding
from mds.readers import gather

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from mds.dataset.samples import Samples
    from mds.dataset.worker_epoch import WorkerEpoch
    from mds.loader.pack_filling import Tensors
    from mds.loader.tensor_buffers import Allocator
    from mds.plan.pack_plan import RankPacks
    from mds.prefetch.prefetcher import Window

    Ids = NDArray[np.int64]


class ColumnFilling(Filling):
    """A batch that is filled with columns of the readers."""

    def __init__(self, dataset: Samples, epoch: WorkerEpoch, allocate: Allocator) -> None:
        super().__init__(epoch, allocate)
        self._dataset = dataset
        self._following, self._others = stored_columns(dataset, self.tokens)
        self._has_form = False  # whether a document has shown how many axes its arrays have
        self._values: dict[str, list[Any]] = {name: [] for name in self._others}

    def _begin(self, packs: RankPacks) -> None:
        self._filled = 0  # tokens
        self._whole = self._lengths.take(packs.ids)
        self._flat = {
            name: self._allocate((int(packs.sizes.sum()),), dtype)
            for name, dtype in self._following.items()
        }

    def _add(self, packs: RankPacks, first: int, last: int, window: Window, places: slice) -> None:
        found = gather(window.readers, window.shards[places], window.rows[places], copy=False)
        self._find_form({name: found[name][0] for name in self._following})
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
            join_values(name, values, room[self._filled : end].numpy())
        for name, rows in self._values.items():
            rows += [np.array(v) if isinstance(v, np.ndarray) else v for v in found[name]]
        self._filled = end

    def _finish(self, packs: RankPacks) -> tuple[RankPacks, Tensors, dict[str, list[Any]]]:
        if not len(packs.ids) and not self._has_form and len(self._following) > 1:
            self._find_form(self._dataset._stored_item(0))
        flat = dict(self._flat) if len(packs.ids) else padding(self._following)
        self._flat, others = {}, self._values
        self._values = {name: [] for name in self._others}
        return packs, flat, others

    def _find_form(self, sample: Mapping[str, Any]) -> None:
        """Take columns whose arrays have several axes from those that follow the tokens."""
        if self._has_form:
            return
        self._has_form = True
        for name in [*self._following]:
            if name != self.tokens and np.ndim(sample[name]) != 1:
                del self._following[name]
                self._others.append(name)
                self._values[name] = []
                if self._packs is not None and len(self._packs.ids):
                    del self._flat[name]

    def _check(self, name: str, values: Any, whole: Ids, ids: Ids) -> None:
        """See that documents are as long as was recorded. Raises IndexFileError."""
        told = whole.tolist()
        if [*map(len, values)] == told and getattr(values[0], "ndim", 0) == 1:
            return
        at = next(i for i, v in enumerate(values) if np.ndim(v) != 1 or len(v) != told[i])
        if name == self.tokens:
            raise IndexFileError(
                f"sample {int(ids[at])} has {len(values[at])} values in column {name!r}, and its "
                f"recorded length is {told[at]}: the file of lengths is of other data. Make it "
                "anew with mds lengths."
            )
        raise ConfigError(
            f"sample {int(ids[at])} has {len(values[at])} values in column {name!r} and {told[at]} "
            f"in {self.tokens!r}: arrays follow the tokens and are as long. Leave the column out "
            "with columns=."
        )


def is_columnar(dataset: Samples) -> bool:
    """Whether the tokens are arrays with one axis in all streams, beside the same columns."""
    schemas = [schema for index in dataset._shards.indexes for schema in index.schemas]
    if any(schema.columns != schemas[0].columns for schema in schemas):
        return False
    assert dataset.packing is not None
    tokens = encodings_of(dataset)[dataset.packing.lengths]
    return tokens.decode_kind is DecodeKind.VECTOR or tokens.shape is not None


def stored_columns(dataset: Samples, tokens: str) -> tuple[dict[str, Any], list[str]]:
    """The columns that follow the tokens with the type that they come in, and the others.

    One-dimensional arrays without a fixed length follow; of a fixed length, those of the length of
    the tokens.
    """
    found = encodings_of(dataset)
    shape, following, others = found[tokens].shape, {}, list[str]()
    for name, encoding in found.items():
        follows = name == tokens or (
            encoding.decode_kind is DecodeKind.VECTOR
            if shape is None
            else encoding.shape is not None and encoding.shape == shape
        )
        if not follows:
            others.append(name)
            continue
        dtype = encoding.element_dtype if encoding.dtype is None else encoding.dtype
        following[name] = batch_dtype(dtype or np.dtype(np.int64))
    check_names(following, others)
    return following, others


def encodings_of(dataset: Samples) -> dict[str, Any]:
    """The encodings of the columns that a dataset reads."""
    columns = dataset._shards.indexes[0].schemas[0].columns
    return {
        name: parse_encoding(text)
        for name, text in zip(columns.names, columns.encodings, strict=True)
        if name in dataset._columns
    }
