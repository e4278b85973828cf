"""Reader of rows of a shard that were fetched one by one, by ranged reads.

Of a shard with 1,000 samples the rows 7 and 412 may have been fetched. Their bytes are joined to a
small shard in memory, in which they have the places 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mds._index.shard_object import ShardInfo
from mds._readers.base import Batch, Reader, Rows
from mds._readers.fields import ColumnSelection
from mds._readers.joint import JointReader, joint_reader
from mds._readers.split import SplitReader


class SparseReader(Reader):
    """Reader of some rows of a shard; ``row in reader`` tells if it has a row.

    ``len(reader)`` is the number of all samples of the shard. The stored bytes of the rows are
    joined and read by the reader of a whole shard, in which a row has another number, its place.

    Args:
        info: The shard, as its index describes it.
        samples: Stored bytes of samples by row.
        source: Name of the shard in errors.
        columns: Columns that samples have.
    """

    def __init__(
        self,
        info: ShardInfo,
        samples: Mapping[int, bytes],
        source: str,
        columns: ColumnSelection,
    ) -> None:
        super().__init__(info.schema, info.samples, source)
        self._places = {row: place for place, row in enumerate(samples)}
        sizes = [len(data) for data in samples.values()]
        offsets = np.zeros(len(sizes) + 1, np.uint32)
        np.cumsum(sizes, out=offsets[1:], dtype=np.uint32)
        data = b"".join(samples.values())
        self._inner: JointReader | SplitReader
        if info.schema.is_split:
            self._inner = SplitReader(
                info.schema, len(sizes), data, b"", source, columns=columns, offsets=offsets
            )
        else:
            self._inner = joint_reader(
                info.schema, len(sizes), data, source, columns=columns, offsets=offsets
            )

        self.is_stacked = self._inner.is_stacked

    def __contains__(self, row: object) -> bool:
        return row in self._places

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.get(row) for row in self._places)

    def rows(self, rows: Rows, *, copy: bool = True) -> Batch:
        """Return the samples of many rows as columns; see Reader.rows."""
        return self._inner.rows(self._places_of(rows), copy=copy)

    def viewer(self) -> Callable[[int], dict[str, Any]]:
        """Return a ``get`` whose arrays may be views of the bytes; see Reader.viewer."""
        inner = self._inner.viewer()
        return lambda row: inner(self._place(row))

    def as_columns(self, samples: list[dict[str, Any]]) -> Batch:
        """Convert samples of this schema to columns; see Reader.as_columns."""
        return self._inner.as_columns(samples)

    def sample_bytes(self, row: int) -> memoryview:
        """Return the stored bytes of one sample, as a view."""
        return self._inner.sample_bytes(self._place(row))

    def _open(self) -> Callable[[int], dict[str, Any]]:
        """Return the function that reads a row; see Reader._open."""
        inner, places, decode_slowly = self._inner, self._places, self._slow_decoder()

        def get(row: int) -> dict[str, Any]:
            place = places.get(row)
            return decode_slowly(row) if place is None else inner.get(place)

        return get

    def _decode_slowly(self, row: Any) -> dict[str, Any]:
        return self._inner.get(self._place(row))

    def _place(self, row: int) -> int:
        """Return the place of a row among the fetched ones. Raises IndexError."""
        number = self._number(row)
        if number not in self._places:
            raise IndexError(
                f"{self.source}: sample {number} is not among the {len(self._places)} fetched ones."
            )
        return self._places[number]

    def _places_of(self, rows: Rows) -> npt.NDArray[np.int64]:
        places = [self._place(row) for row in self._numbers(rows).tolist()]
        return np.array(places, np.int64)

    def close(self) -> None:
        """Release the bytes."""
        super().close()
        self._inner.close()
        self._places = {}
