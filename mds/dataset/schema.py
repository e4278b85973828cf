"""The columns of a dataset, as its indexes tell them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mds.index import Index


def column_names(indexes: Sequence[Index]) -> list[str]:
    """The names of all columns of any shard, in the order in which they are met."""
    return list(column_encodings(indexes))


def column_encodings(indexes: Sequence[Index]) -> dict[str, str]:
    """The encoding of each column; where shards differ, that of the first of them."""
    found: dict[str, str] = {}
    for index in indexes:
        for schema in index.schemas:
            for name, encoding in zip(schema.columns.names, schema.columns.encodings, strict=True):
                found.setdefault(name, encoding)
    return found
