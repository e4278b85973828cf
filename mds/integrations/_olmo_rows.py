"""Batches of OLMo-core, which workers make of the columns of a StreamingDataset."""

from __future__ import annotations

from typing import Any

import numpy as np

from mds.integrations._token_rows import TokenRows
from mds.plan._packing import Packing
from mds.transforms._columns import tensors_of


class OlmoRows(TokenRows):
    """Collate function that makes batches of OLMo-core; `finish_batch` adds what is no tensor.

    Raises ConfigError as `TokenRows` does, and for tokens of another vocabulary.

    Args:
        config: Settings of the loader, an MDSDataLoaderConfig.
        packing: Packing of the dataset.
    """

    pack_columns = frozenset({"document_lengths"})

    def __init__(self, config: Any, packing: Packing | None) -> None:
        tokenizer, length = config.tokenizer, config.sequence_length
        vocabulary = tokenizer.padded_vocab_size()
        super().__init__(packing, config.column, length, "sequence_length", vocabulary)
        self._padding, self._end = tokenizer.pad_token_id, tokenizer.vocab_size
        self._has_lengths = config.generate_doc_lengths

    def apply(self, columns: dict[str, Any], keys: Any) -> dict[str, Any]:
        """Return the rows of a batch; see `ColumnFunction`."""
        rows = super().apply(columns, keys)
        if "document_lengths" in rows:
            lengths, tokens = rows.pop("document_lengths"), rows["input_ids"]
            rests = tokens.shape[1] - lengths.sum(1)  # tokens of padding of each row
            if self._padding:  # packs are padded with 0
                for row, rest in zip(tokens, rests.tolist(), strict=True):
                    row[len(row) - rest :] = self._padding
            if self._has_lengths:
                rows["doc_lens"] = with_rests(lengths, rests)
        return rows

    def random_batch(self, rows: int, seed: int) -> dict[str, Any]:
        """Return a batch of random tokens, in two documents each if the dataset has packs."""
        shape, half = (rows, self._length), self._length // 2
        tokens = np.random.default_rng(seed).integers(self._end, size=shape)
        lengths = np.full((rows, 2), (half, self._length - half))
        columns = {self.column: tokens, "labels": tokens, "document_lengths": lengths}
        return finish_batch(tensors_of(self.apply(columns, None)))


def with_rests(lengths: Any, rests: Any) -> Any:
    """Return the lengths of documents with the padding of a row as one more document.

    Lengths ``[[2, 1], [4, 0]]`` and rests ``[1, 0]`` give ``[[2, 1, 1], [4, 0, 0]]``.
    """
    rows, most = lengths.shape
    longer = np.zeros((rows, most + 1), np.int64)
    longer[:, :most] = lengths
    longer[np.arange(rows), np.count_nonzero(lengths, 1)] = rests
    return longer if longer[:, -1].any() else longer[:, :-1]


def finish_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch without the mask, because steps are full, and with ``max_doc_lens``."""
    batch.pop("mask", None)
    if "doc_lens" in batch:
        batch["max_doc_lens"] = batch["doc_lens"].numpy().max(1).tolist()
    return batch
