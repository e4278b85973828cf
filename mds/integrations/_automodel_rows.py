"""Samples of NeMo Automodel, which workers make of the columns of a StreamingDataset."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from mds._iteration.packed_batches import IGNORED
from mds._words import plural
from mds.errors import ConfigError
from mds.integrations._token_rows import TokenRows, ignore_padding

# Columns that Automodel knows, but that have no effect here.
_UNUSED = frozenset({"input_ids", "attention_mask", "loss_mask", "position_ids"})
_COLLATE = "dataloader.collate_fn (of validation_dataset: validation_dataloader.collate_fn)"


class AutomodelRows(TokenRows):
    """Collate function that makes batches whose rows are samples of Automodel.

    Without a length and packing, samples have any length, and the rows are lists. Raises
    ConfigError as `TokenRows` does, and for columns without an effect.

    Args:
        settings: Arguments of `TokenRows`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._has_rows = settings["packing"] is not None or settings["length"] > 0

    def apply(self, columns: dict[str, Any], keys: Any) -> dict[str, Any]:
        """Return the columns of a batch; see `ColumnFunction`."""
        added = self.pack_columns if self._is_packed else set()
        unused = _UNUSED & columns.keys() - {self.column} - added
        if self.column not in columns or unused:
            raise ConfigError(
                f"samples have the columns {', '.join(columns) or 'none'}. Name that of the tokens "
                f"with column=, not {self.column!r}, and leave out "
                f"{sorted(unused) or 'others'} with columns=. Tokens without a loss have "
                "the label -100."
            )
        if not self._has_rows:
            return self._lists(columns)
        rows = super().apply(columns, keys)
        documents = rows.pop("document_ids", None)  # from 0; those of Automodel are from 1
        ids = rows["input_ids"]
        rows["attention_mask"] = np.ones_like(ids) if documents is None else documents + 1
        return rows

    def _lists(self, columns: dict[str, Any]) -> dict[str, list[Any]]:
        """Return the columns of samples of any length."""
        tokens = columns[self.column]
        rows: dict[str, list[Any]] = {"input_ids": [], "labels": [], "attention_mask": []}
        for ids, labels in zip(tokens, columns.get("labels", tokens), strict=True):
            count = len(ids) if np.ndim(ids) == 1 else 0
            if count == 0 or np.shape(labels) != (count,):
                raise ConfigError(
                    f"a sample has {plural(count, 'token')} and labels of shape "
                    f"{np.shape(labels)}. Give a "
                    "column of a label for each token, or leave it out with columns=."
                )
            rows["input_ids"].append(np.asarray(ids, np.int64).tolist())
            rows["labels"].append([*np.asarray(labels, np.int64)[1:].tolist(), IGNORED])
            rows["attention_mask"].append([1] * count)
        return rows


def samples_of(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a batch of `AutomodelRows`; padding has no labels."""
    ignore_padding(batch)
    return [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]


def checked_samples(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a batch, which raise ConfigError in a collate function that does not fit.

    That needs time, so it is done for the first step only.
    """
    rows = samples_of(batch)
    if "position_ids" in batch:
        return [{**row, "seq_lens": _NeatPack()} for row in rows]
    return [*map(_Sample, rows)]


class _Sample(dict[str, Any]):
    """Sample that raises ConfigError if a collate function of packs asks for its positions."""

    def __missing__(self, name: str) -> NoReturn:
        if name == "position_ids":
            raise ConfigError(
                f"samples have no {name!r}, because they are not packs. Set packing= of the "
                f"dataset, or leave out {_COLLATE}."
            )
        raise KeyError(name)


class _NeatPack:
    """Value of a pack that functions which would let documents attend to each other try to pad."""

    def __len__(self) -> NoReturn:
        raise ConfigError(
            f"packs need {_COLLATE}=nemo_automodel.components.datasets.utils.neat_packed_collater."
        )
