"""A reader that makes each sample on request, from a file that is read in place.

It makes the bytes that an MDS shard would store, and decodes them like any others. A sample that is
read in place therefore equals the sample from the cache or from a converted copy, type for type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mds._index.shard_object import ShardSchema, Stored
from mds._readers.base import Batch, Reader, Rows
from mds._readers.fields import ColumnSelection, fields_of
from mds._readers.joint import JointReader, decode, joint_reader, sample_decoder
from mds._shardfile.layout import Columns
from mds.errors import EncodingError


class MadeReader(Reader):
    """Reader of samples that functions make.

    - ``columns`` (Columns): All columns of the samples.
    - ``samples`` (int): Number of samples.
    - ``location`` (str): Name of the shard, for errors.
    - ``make`` (Callable[[int], bytes]): Returns the MDS bytes of a row, and raises FormatError for
      damage.
    - ``selection`` (ColumnSelection): The columns to decode.
    - ``sample`` (Callable[[int], dict] | None, default None): A faster way to the decoded sample of
      a row. It may raise any exception; ``make`` is called then.
    """

    def __init__(
        self,
        columns: Columns,
        samples: int,
        location: str,
        make: Callable[[int], bytes],
        selection: ColumnSelection,
        sample: Callable[[int], dict[str, Any]] | None = None,
    ) -> None:
        # Like a shard in the cache: MDS, one file, neither compressed nor hashed.
        schema = ShardSchema(
            "mds",
            columns,
            compression=None,
            hashes=(),
            size_limit=None,
            newline=None,
            separator=None,
            stored=(Stored("raw_data", ()),),
        )
        super().__init__(schema, samples, location)
        self._make: Callable[[int], bytes] | None = make
        self._sample = sample
        self._selection = selection
        self.is_stacked = fields_of(columns, selection).are_stacked

    def compiled_get(self) -> Callable[[int], dict[str, Any]]:
        """Return the function that makes a sample; see Reader.compiled_get.

        Callers keep it for a stretch of samples, so the file is checked here.
        """
        if self.check_unchanged is not None:
            self.check_unchanged()
        return super().compiled_get()

    def samples(self, rows: Rows) -> list[dict[str, Any]]:
        """Return the samples of many rows; see Reader.samples."""
        rows = rows.tolist() if isinstance(rows, np.ndarray) else rows
        return [*map(self.compiled_get(), rows)]

    def rows(self, rows: Rows, *, copy: bool = True) -> Batch:
        """Return many samples as columns; see Reader.rows."""
        self._check_open()
        assert self._make is not None
        if self._sample is not None:
            return self.as_columns(self.samples(self._numbers(rows)))
        # Many samples as MDS bytes are decoded column by column, faster than one by one.
        numbers = self._numbers(rows).tolist()
        joint = self._joint([*map(self._make, numbers)])
        joint.locate = lambda row: self.where(numbers[row])
        return joint.rows(range(len(numbers)), copy=copy)

    def as_columns(self, samples: list[dict[str, Any]]) -> Batch:
        """Return samples of this schema as columns; see Reader.as_columns."""
        return self._joint([]).as_columns(samples)

    def sample_bytes(self, row: int) -> memoryview:
        """Return one sample as an MDS shard stores it."""
        number = self._number(row)
        self._check_open()
        assert self._make is not None
        return memoryview(self._make(number))

    def _open(self) -> Callable[[int], dict[str, Any]]:
        """Return the function that makes the sample of a row.

        Rows outside [0, samples), such as -1, take the slow way, which checks them. The fast way
        ``sample`` comes first if there is one; if it fails, ``make`` is used. One in 64 rows also
        checks that the file was not changed.
        """
        make, decode_slowly, count = self._make, self._slow_decoder(), len(self)
        assert make is not None
        decode_fast = sample_decoder(fields_of(self.schema.columns, self._selection), self.source)
        check = self.check_unchanged

        def get(row: int) -> dict[str, Any]:
            """Make the MDS bytes of a row, and decode them."""
            if not 0 <= row < count:
                return decode_slowly(row)
            if not row & 63 and check is not None:  # a counter would cost more
                check()
            try:
                return decode_fast(memoryview(make(row)))
            except EncodingError:  # raised again with the location of the row
                return decode_slowly(row)

        direct = self._sample
        if direct is None:
            return get

        def get_directly(row: int) -> dict[str, Any]:
            """Return the sample of a row by the fast function, or by ``make`` if that fails."""
            if not 0 <= row < count:
                return decode_slowly(row)
            if not row & 63 and check is not None:  # a counter would cost more
                check()
            try:
                return direct(row)
            except Exception:  # noqa: BLE001 - `make` raises an error with a message
                return get(row)

        return get_directly

    def _decode_slowly(self, row: Any) -> dict[str, Any]:
        """Decode the sample of a row, which may be negative; see Reader._decode_slowly."""
        number = self._number(row)
        fields = fields_of(self.schema.columns, self._selection)
        return decode(fields, self.sample_bytes(number), lambda: self.where(number))

    def _joint(self, stored: list[bytes]) -> JointReader:
        """Return a reader of samples in memory; ``stored`` are the MDS bytes of each."""
        offsets = np.zeros(len(stored) + 1, np.int64)
        np.cumsum([len(each) for each in stored], out=offsets[1:])
        return joint_reader(
            self.schema,
            len(stored),
            b"".join(stored),
            self.source,
            columns=self._selection,
            offsets=offsets,  # type: ignore[arg-type]  # wider ones hold more
        )

    def close(self) -> None:
        """Release the file. Values that were returned own their memory and stay valid."""
        super().close()
        self._make, self._sample = None, None
