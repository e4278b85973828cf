"""Rows of tokens with shifted labels, for trainers whose sequences all have one length.

A row is a pack of documents or a sample without packing, which is then a block of ``length`` tokens
or one more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from mds._loader.packed_batches import IGNORED
from mds.errors import ConfigError
from mds.plan._packing import DEFAULT_COLUMN, Packing, column_of, packing_of


def row_arguments(
    arguments: Mapping[str, Any],
    fixed: Mapping[str, str],
    length: int,
    setting: str,
    column: str | None,
) -> dict[str, Any]:
    """Return the arguments of a dataset of rows; its packs have shifted labels.

    Raises ConfigError for arguments that the trainer determines, and for packs of another length.

    Args:
        arguments: Arguments of the user.
        fixed: Arguments that the user may not give, with the reason.
        length: Tokens of a row.
        setting: Name of the trainer's setting of the length.
        column: Column of the tokens; None for the one that the packing finds.
    """
    result = dict(arguments)
    for name in fixed.keys() & result:
        raise ConfigError(f"{name}= of arguments: leave it out, {fixed[name]}.")
    packing = result.get("packing")
    if packing is None:
        return result
    packing = packing_of(packing)
    if packing.capacity != length:
        raise ConfigError(
            f"packs of {packing.room} tokens do not fit {setting}={length}. Give packing={length}."
        )
    result["packing"] = packing_of_rows(packing, column)
    return result


def packing_of_rows(packing: Packing, column: str | None) -> Packing:
    """Return a packing whose packs are rows with shifted labels.

    ``column``: column of the tokens; None for the one that the packing finds.
    """
    return replace(packing, column=column or packing.column, layout="dense", labels="shifted")


def token_column(column: str | None, packing: Packing | None) -> str:
    """Return the column of the tokens in a batch.

    Args:
        column: Column of the user, which counts without packing only. None is ``tokens``.
        packing: Packing of the dataset.
    """
    return column or DEFAULT_COLUMN if packing is None else column_of(packing)


def rows_of(
    batch: Mapping[str, Any],
    packing: Packing | None,
    column: str | None,
    length: int,
    setting: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens and shifted labels of a batch, both int64 of shape (rows, length).

    Raises ConfigError if the batch lacks the column, or has rows of another length.

    Args:
        batch: Batch of a dataset with the arguments of `row_arguments`.
        packing: Packing of the dataset.
        column: Column of the user, as for `token_column`.
        length: Tokens of a row.
        setting: Name of the trainer's setting of the length.
    """
    column = token_column(column, packing)
    if packing is not None:
        return batch[column], batch["labels"]
    if column not in batch:
        names = ", ".join(repr(name) for name in batch if name != "mask")
        raise ConfigError(f"no column {column!r}, only {names}. Name it with column=.")
    tokens, labels = batch[column], batch.get("labels", batch[column])
    for rows in (tokens, labels):
        if getattr(rows, "shape", (0,))[1:] not in {(length,), (length + 1,)}:
            raise ConfigError(
                f"samples are not blocks of {length + 1} or {length} tokens, for "
                f"{setting}={length}. Write blocks with mds-convert --block {length + 1}, or pack "
                f"documents with arguments={{'packing': {length}}}."
            )
    shifted = labels[:, 1:].long()
    if shifted.shape[1] < length:
        shifted = torch.nn.functional.pad(shifted, (0, 1), value=IGNORED)
    if not batch["mask"].all():
        shifted[~batch["mask"]] = IGNORED
    return tokens[:, :length].long(), shifted


def document_lengths(documents: torch.Tensor) -> torch.Tensor:
    """Return the tokens of each document of packs, int64 of shape (rows, documents), 0 at the end.

    The padding of a row comes as one more document, so its lengths add up to the whole row. For
    rows with the document ids ``[0, 0, 1, -1]`` and ``[0, 0, 0, 0]``, it is ``[[2, 1, 1], [4, 0,
    0]]``.

    ``documents``: column ``document_ids``, int64 of shape (rows, tokens), -1 for padding.
    """
    last = documents.amax(1, keepdim=True) + 1  # number of the padding in each row
    numbers = torch.where(documents < 0, last, documents)
    lengths = torch.zeros(len(numbers), int(numbers.max()) + 1, dtype=torch.int64)
    return lengths.scatter_add_(1, numbers, torch.ones_like(numbers))
