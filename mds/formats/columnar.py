"""Formats whose shards come as record batches of Arrow: Parquet, Arrow files, tables of them.

They say how a shard becomes record batches. The samples of the cache and the records of a
conversion follow from these, so there is one reader of each kind of file.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mds.errors import MdsError
from mds.formats.arrow_bytes import block_of_batch, unreadable
from mds.formats.arrow_types import pyarrow
from mds.formats.base import Format
from mds.formats.facts import Block, FilePlan, ShardPlace

if TYPE_CHECKING:
    from mds.formats.source import Files
    from mds.shardfile.layout import Columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columnar(Format):
    """A format of record batches. Inherit it and write `plan_file` and `batches`."""

    @abstractmethod
    def batches(
        self, shard: ShardPlace, names: Sequence[str], files: Files, location: str
    ) -> Iterator[Any]:
        """Yield the rows of a shard as record batches of those columns that it has.

        Raises FormatError where it cannot be decoded; ``location`` names the shard.
        """

    def known_nulls(self, plan: FilePlan) -> frozenset[str]:
        """Columns of a file of which it is sure that they hold None, or an empty list.

        A plan has more as ``optional``: those of which the file does not say.
        """
        return frozenset(
            name for name, kind in plan.columns.items() if kind.startswith(("optional[", "tensor:"))
        )

    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block]:
        """Yield the rows of a shard, of the columns that were chosen."""
        location = f"{files.url(shard.file)}, {self.shard_of(shard)}"
        try:
            for batch in self.batches(shard, shard.columns.names, files, location):
                yield block_of_batch(batch, shard, location)
        except (MdsError, MemoryError):
            raise
        except Exception as error:
            raise unreadable(location, "it cannot be decoded", error) from error
        finally:
            # Otherwise each thread that decodes keeps the memory of one shard.
            pyarrow().default_memory_pool().release_unused()

    def slow_columns(self, columns: Columns) -> Sequence[str]:
        """Return the nested columns, which are decoded to JSON value by value."""
        pairs = zip(columns.names, columns.encodings, strict=True)
        return [name for name, kind in pairs if kind in ("json", "optional[json]")]
