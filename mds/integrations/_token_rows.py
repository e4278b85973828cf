"""Rows of tokens with shifted labels, for trainers whose sequences all have one length.

A row is a pack of documents or a sample without packing, which is then a block of ``length`` tokens
or one more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._foreign_words import OF_A_LOADER
from mds._iteration.packed_batches import IGNORED
from mds._words import plural
from mds.errors import ConfigError
from mds.plan._packing import DEFAULT_COLUMN, Packing, column_of, packing_of
from mds.transforms._collate import ColumnFunction
from mds.transforms._columns import column_of as stack_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray


def row_arguments(
    config: Any, fixed: Mapping[str, str], length: int, setting: str
) -> dict[str, Any]:
    """Return the arguments of a dataset of rows; its packs have shifted labels.

    Raises ConfigError for arguments of the loader and those that the trainer determines, and for
    packs of another length.

    Args:
        config: Settings of the loader, a dataclass with ``arguments`` of the dataset and
            ``column``, the column of the tokens; None for the one that the packing finds.
        fixed: Arguments that the user may not give, with the reason.
        length: Tokens of a row.
        setting: Name of the trainer's setting of the length.
    """
    result, owner = dict(config.arguments), type(config).__qualname__
    settings = {field.name for field in fields(config)}
    for name in result:
        if name in fixed:
            raise ConfigError(f"{name}= of arguments: leave it out, {fixed[name]}.")
        if name in settings:
            raise ConfigError(f"{name}= of arguments: leave it out, and set {name}= of {owner}.")
        if name in OF_A_LOADER.split():
            raise ConfigError(f"{name}= of arguments: leave it out, {owner} chooses it.")
    packing = result.get("packing")
    if packing is None:
        return result
    packing = packing_of(packing)
    if packing.capacity != length:
        raise ConfigError(
            f"packs of {plural(packing.room, 'token')} do not fit {setting}={length}. Give "
            f"packing={length}."
        )
    result["packing"] = packing_of_rows(packing, config.column)
    return result


def packing_of_rows(packing: Packing, column: str | None) -> Packing:
    """Return a packing whose packs are rows with shifted labels.

    ``column``: column of the tokens if the packing names none; None for the one that it finds.
    """
    return replace(packing, column=packing.column or column, layout="dense", labels="shifted")


def token_column(column: str | None, packing: Packing | None) -> str:
    """Return the column of the tokens in a batch.

    Args:
        column: Column of the user, which counts without packing only. None is ``tokens``.
        packing: Packing of the dataset.
    """
    return column or DEFAULT_COLUMN if packing is None else column_of(packing)


class TokenRows(ColumnFunction):
    """Collate function that makes rows of tokens with shifted labels, all int64.

    Batches have ``input_ids`` and ``labels`` of shape (rows, length), and those of packs also the
    ``pack_columns``. Raises ConfigError for a batch that lacks the column of tokens, and for rows
    of another length.

    Args:
        packing: Packing of the dataset, which has the arguments of `row_arguments`.
        column: Column of the user, as for `token_column`.
        length: Tokens of a row.
        setting: Name of the trainer's setting of the length.
        vocabulary: Number of tokens of the tokenizer; None to check none.
    """

    is_of_adapter = True

    def __init__(
        self,
        packing: Packing | None,
        column: str | None,
        length: int,
        setting: str,
        vocabulary: int | None = None,
    ) -> None:
        super().__init__(())
        self._vocabulary = vocabulary
        self.column, self._is_packed = token_column(column, packing), packing is not None
        self._length, self._setting = length, setting

    def apply(self, columns: dict[str, Any], keys: Any) -> dict[str, Any]:
        """Return the columns of the trainer; see `ColumnFunction`."""
        del keys
        if self._is_packed:
            self._check_vocabulary(columns[self.column])
            added = {name: columns[name] for name in self.pack_columns}
            return {"input_ids": columns[self.column], "labels": columns["labels"], **added}
        if self.column not in columns:
            names = ", ".join(map(repr, columns))
            raise ConfigError(f"no column {self.column!r}, only {names}. Name it with column=.")
        length, tokens = self._length, self._rows(columns[self.column])
        self._check_vocabulary(tokens)
        labels = self._rows(columns["labels"]) if "labels" in columns else tokens
        shifted = np.empty((len(labels), length), np.int64)
        shifted[:, -1] = IGNORED
        shifted[:, : labels.shape[1] - 1] = labels[:, 1:]
        return {"input_ids": tokens[:, :length].astype(np.int64), "labels": shifted}

    def _check_vocabulary(self, tokens: NDArray[Any]) -> None:
        if self._vocabulary is None:
            return
        is_signed = tokens.dtype.kind != "u"  # a look for negative numbers costs time
        if tokens.max() >= self._vocabulary or (is_signed and tokens.min() < 0):
            raise ConfigError(
                f"samples have tokens from {tokens.min()} to {tokens.max()}, but the tokenizer has "
                f"{self._vocabulary}. Give the config of the one that made the data."
            )

    def _rows(self, column: Any) -> NDArray[Any]:
        length, rows = self._length, stack_rows(column)
        if getattr(rows, "shape", (0,))[1:] not in {(length,), (length + 1,)}:
            raise ConfigError(
                f"samples are not blocks of {length + 1} or {plural(length, 'token')}, for "
                f"{self._setting}={length}. Write blocks with mds-convert --block {length + 1}, or "
                f"pack documents with packing={length}."
            )
        return np.asarray(rows)


def ignore_padding(batch: dict[str, Any]) -> None:
    """Remove the mask of a batch of `TokenRows`, and ignore the labels of its padding."""
    labels = batch["labels"]
    for row in np.flatnonzero(~batch.pop("mask").numpy()).tolist():
        labels[row] = [IGNORED] * len(labels[row]) if isinstance(labels, list) else IGNORED
